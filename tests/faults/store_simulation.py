"""A whole store on a simulated disk, beside a model of what may be found in it after a crash.

All that was promised has to be found, and nothing half done. A promise is a callback. Of a queue's operations since the
last promise, any beginning may be found. A transaction over several queues, or a distributed one, has a set of fates,
of which one is found in all of its queues. Of a change of the catalogue that was asked for and not answered, both ends
may be found. Messages are known by their data, each of which is written once: a process may die before it knows a
record id.

A `StoreLife` is one process's time with the store: it opens it, holds what it finds against the `Model`, works under a
seed and keeps the model; `StoreCrashes` kills it. A `Shop` is a store for tests that know what they want.

Two things that a broker has beside its loop are simulated: the sync driver and the background. Both do their work when
chance says, so that several flushes are under way at once and a transaction's steps come between those of others.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeAlias, TypeVar
from unittest.mock import patch

from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.records import COMPRESSED
from qstore.formats.values import EMPTY_MAP, typed_map
from qstore.store.disk import WritableFile
from qstore.store.environment import Environment, InlineBackground, SharedWork, Together, do_together
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError, StoreError
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.key_value import CatalogueError
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.transactions import Dequeue, Enqueue, LargeTransaction
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.start.started import RecoveredMessage
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError
from qstore.store.sync.threads import InlineSync
from tests.faults.journal_simulation import rows_of
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.faults.simulator import BrokenPromiseError, Simulator, require
from tests.support.bodies import joined


class Fate(Enum):
    """What became of a transaction."""

    COMMITTED = auto()
    ABORTED = auto()
    IN_DOUBT = auto()


@dataclass(eq=False, slots=True)
class Message:
    """A message in one queue. `rid` is None until the store has returned it."""

    data: bytes
    rid: int | None = None


class Operation(NamedTuple):
    """What is appended to one journal at once, and found whole or not at all."""

    enqueues: Sequence[Message] = ()
    dequeues: Sequence[Message] = ()


Content: TypeAlias = dict[bytes, Message]


@dataclass(eq=False, slots=True)
class QueueModel:
    """A queue.

    Attributes:
        name: its name, which no other queue ever has.
        number: its number; None while it is being made.
        journal: its journal in the life that goes on.
        is_certain: it is there; if not, it is being made or deleted.
        is_deleting: it is being deleted.
        content: what is certain to be there, but for the effect of open branches.
        pending: what was appended since.
        settled: how many operations came before `pending`.
        available: what may be dequeued.
    """

    name: str
    number: int | None = None
    journal: QueueJournal | None = None
    is_certain: bool = False
    is_deleting: bool = False
    content: Content = field(default_factory=dict)
    pending: list[Operation] = field(default_factory=list)
    settled: int = 0
    available: Content = field(default_factory=dict)

    @property
    def position(self) -> int:
        """How many operations there were so far."""
        return self.settled + len(self.pending)

    def settle(self, position: int) -> None:
        """The first `position` operations are on the disk."""
        count = max(0, min(position - self.settled, len(self.pending)))
        for operation in self.pending[:count]:
            apply(self.content, operation)
        del self.pending[:count]
        self.settled += count


def apply(content: Content, operation: Operation) -> None:
    """What an operation does."""
    content.update((message.data, message) for message in operation.enqueues)
    for message in operation.dequeues:
        content.pop(message.data, None)


@dataclass(eq=False, slots=True)
class Branch:
    """A transaction over several queues, or a distributed one.

    Attributes:
        xid: of a distributed one.
        work: what it does in each queue.
        positions: the operations in each queue that came before it.
        fates: those that may be found.
    """

    xid: bytes
    work: dict[QueueModel, Operation]
    fates: set[Fate]
    positions: dict[QueueModel, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {queue: queue.position for queue in self.work}


@dataclass(eq=False, slots=True)
class ExchangeModel:
    """An exchange; `is_certain` as for queues."""

    name: str
    number: int | None = None
    is_certain: bool = False


@dataclass(eq=False, slots=True)
class BindingModel:
    """A binding; `entry` is what deletes it."""

    key: str
    queue: QueueModel
    exchange: ExchangeModel
    entry: object = None
    is_certain: bool = False


class FoundQueue(NamedTuple):
    """A queue that was found."""

    name: str
    messages: list[RecoveredMessage]


class Found(NamedTuple):
    """What a store was found to hold. Bindings are: key, queue's name, exchange's name."""

    was_clean: bool
    queues: dict[int, FoundQueue]
    exchanges: dict[int, str]
    bindings: set[tuple[str, str, str]]
    in_doubt: set[bytes]
    orphans: int


@dataclass(slots=True)
class Model:
    """What may be found.

    Attributes:
        queues, exchanges, bindings: by name or key.
        branches: the transactions whose fate is not sealed in all queues.
        serial: makes data and names unique.
        highest_rid: the highest record id that was given out.
        orphans: journals that were set aside.
        left: journals of deleted queues that could not be removed.
        delivered: what is given to the close that was begun: number of a queue -> record ids; None if none was.
        is_closed: the store was closed cleanly.
    """

    queues: dict[str, QueueModel] = field(default_factory=dict)
    exchanges: dict[str, ExchangeModel] = field(default_factory=dict)
    bindings: dict[str, BindingModel] = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    serial: int = 0
    highest_rid: int = 0
    orphans: int = 0
    left: int = 0
    delivered: dict[int, set[int]] | None = None
    is_closed: bool = False

    def unique(self) -> int:
        """A number that was never used."""
        self.serial += 1
        return self.serial

    def seal(self, branch: Branch, fate: Fate) -> None:
        """The fate of a branch is certain, and so are the operations before it in its queues, if it was prepared."""
        self.branches.remove(branch)
        for queue, work in branch.work.items():
            if fate is Fate.COMMITTED:
                queue.settle(branch.positions[queue])
                apply(queue.content, work)
                queue.available.update((message.data, message) for message in work.enqueues)
            else:
                queue.available.update((message.data, message) for message in work.dequeues)

    # ---- after a crash ----

    def check(self, found: Found, *, must_be_clean: bool) -> None:
        """Raise BrokenPromiseError if the store may not be as it was found."""
        require(not must_be_clean or found.was_clean, "a clean close was forgotten")
        require(not found.was_clean or self.delivered is not None, "a store that was not closed is clean")
        deleting = sum(queue.is_deleting for queue in self.queues.values())
        require(found.orphans <= self.orphans + self.left + deleting, "a journal was set aside")
        self._check_topology(found)
        for queue_id, queue in found.queues.items():
            rids = [message.rid for message in queue.messages]
            require(rids == sorted(set(rids)), f"{queue.name}: not in the order of record ids: {rids}")
            delivered = (self.delivered or {}).get(queue_id, set())
            for message in queue.messages:
                expected = message.rid in delivered if found.was_clean else True
                require(message.redelivered == expected, f"{queue.name}: redelivered is wrong for {message.rid}")
        self._check_messages(found)

    def _check_topology(self, found: Found) -> None:
        names = {queue.name: number for number, queue in found.queues.items()}
        check_names("queue", names, self.queues.values())
        for queue in self.queues.values():
            known = queue.number is None or names.get(queue.name, queue.number) == queue.number
            require(known, f"queue {queue.name} has another number")
        exchanges = set(found.exchanges.values())
        check_names("exchange", exchanges, self.exchanges.values())
        for key, queue_name, exchange_name in found.bindings:
            binding = self.bindings.get(key)
            require(binding is not None, f"binding {key} is back")
            assert binding is not None
            ends = (binding.queue.name, binding.exchange.name)
            require((queue_name, exchange_name) == ends, f"binding {key} binds something else")
        for binding in self.bindings.values():
            ends = (binding.queue.name, binding.exchange.name)
            if binding.is_certain and ends[0] in names and ends[1] in exchanges:
                require((binding.key, *ends) in found.bindings, f"binding {binding.key} is lost")

    def _check_messages(self, found: Found) -> None:
        in_doubt = {branch.xid for branch in self.branches if branch.xid and Fate.IN_DOUBT in branch.fates}
        require(found.in_doubt <= in_doubt, f"in doubt without being prepared: {found.in_doubt - in_doubt}")
        choices: list[list[Fate]] = []
        for branch in self.branches:
            doubtful = bool(branch.xid) and branch.xid in found.in_doubt
            choices.append([fate for fate in branch.fates if (fate is Fate.IN_DOUBT) is doubtful])
            require(bool(choices[-1]), f"branch {branch.xid!r} is not in doubt any more")
        reason = ""
        for fates in itertools.product(*choices):
            reason = self._unlike(found, dict(zip(self.branches, fates, strict=True)))
            if not reason:
                return
        raise BrokenPromiseError(f"messages: {reason}")

    def _unlike(self, found: Found, fates: dict[Branch, Fate]) -> str:
        """Why what was found is not what these fates lead to; nothing if it is."""
        by_name = {queue.name: queue for queue in found.queues.values()}
        for queue in self.queues.values():
            if queue.name not in by_name:
                continue
            there = {
                message.data: (message.rid, message.state, message.xid) for message in by_name[queue.name].messages
            }
            if len(there) != len(by_name[queue.name].messages):
                return f"{queue.name}: a message is there twice"
            ways = list(possible(queue, fates, all_pending=found.was_clean))
            if not any(is_like(there, way) for way in ways):
                return f"{queue.name} holds {short(there)}, not {[short(way) for way in ways]}, if {shown(fates)}"
        return ""

    def after(self, found: Found) -> Model:
        """What may be found from now on: all that was found is certain."""
        model = Model(serial=self.serial, highest_rid=self.highest_rid, orphans=found.orphans)
        work: dict[bytes, dict[QueueModel, tuple[list[Message], list[Message]]]] = {
            xid: {} for xid in sorted(found.in_doubt)
        }
        for number, queue in found.queues.items():
            new = model.queues[queue.name] = QueueModel(queue.name, number, is_certain=True)
            for each in queue.messages:
                rid, data, state, xid = each.rid, each.data, each.state, each.xid
                message = Message(data, rid)
                if state == LIVE:
                    new.available[data] = message
                else:
                    assert xid is not None
                    work[xid].setdefault(new, ([], []))[state == LOCKED].append(message)
                if state != PENDING:
                    new.content[data] = message
        for xid, queues in work.items():
            operations = {queue: Operation(*lists) for queue, lists in queues.items()}
            model.branches.append(Branch(xid, operations, {Fate.IN_DOUBT}))
        for number, name in found.exchanges.items():
            model.exchanges[name] = ExchangeModel(name, number, is_certain=True)
        for key, queue_name, exchange_name in sorted(found.bindings):
            ends = model.queues[queue_name], model.exchanges[exchange_name]
            model.bindings[key] = BindingModel(key, *ends, is_certain=True)
        return model


State: TypeAlias = "tuple[int | None, int, bytes | None]"  # record id, state, branch in doubt


def possible(queue: QueueModel, fates: dict[Branch, Fate], *, all_pending: bool) -> Iterator[dict[bytes, State]]:
    """What may be in a queue, if these are the fates of the branches."""
    branches = [(branch.work[queue], branch, fate) for branch, fate in fates.items() if queue in branch.work]
    first = 0
    for _, branch, fate in branches:
        if fate is not Fate.ABORTED:
            first = max(first, branch.positions[queue] - queue.settled)
    content = dict(queue.content)
    for count in range(len(queue.pending) + 1):
        if count:
            apply(content, queue.pending[count - 1])
        if count < (len(queue.pending) if all_pending else first):
            continue
        now = content.copy()
        held: dict[bytes, tuple[int, bytes]] = {}
        for work, branch, fate in branches:
            if fate is Fate.COMMITTED:
                apply(now, work)
            elif fate is Fate.IN_DOUBT:
                apply(now, Operation(work.enqueues))
                held.update((message.data, (PENDING, branch.xid)) for message in work.enqueues)
                held.update((message.data, (LOCKED, branch.xid)) for message in work.dequeues)
        yield {data: (message.rid, *held.get(data, (LIVE, None))) for data, message in now.items()}


def is_like(there: dict[bytes, State], way: dict[bytes, State]) -> bool:
    """Whether the content is possible. A record id that was never returned may be any."""
    if there.keys() != way.keys():
        return False
    for data, (rid, state, xid) in way.items():
        found = there[data]
        if (state, xid) != found[1:] or (rid is not None and rid != found[0]):
            return False
    return True


def check_names(kind: str, found: Iterable[str], known: Iterable[QueueModel | ExchangeModel]) -> None:
    """Everything certain is there, and nothing that is unknown."""
    there, names = set(found), set()
    for each in known:
        names.add(each.name)
        require(not each.is_certain or each.name in there, f"{kind} {each.name} is lost")
    require(there <= names, f"{kind} {there - names} is back")


def short(messages: dict[bytes, State]) -> str:
    """Messages without their padding."""
    return ", ".join(f"{data.split(b':')[0].decode()}={state}" for data, state in messages.items())


def shown(fates: dict[Branch, Fate]) -> str:
    """Fates, to be read."""
    return ", ".join(f"{branch.xid!r} {fate.name}" for branch, fate in fates.items())


# ---- the environment: tiny sizes, a simulated disk and catalogue, slow helpers ----


PATH: Final = "/store"
RID_BLOCK: Final = 64

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class TinyParameters(StoreParameters):
    """Sizes below what is legal, so that everything happens soon."""

    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        super().__init__(**{"auto_expand": False, **values})

    @property
    def geometry(self) -> Geometry:
        """Sixteen KiB."""
        return Geometry(4, 4096)

    @property
    def tpl_geometry(self) -> Geometry:
        """Sixteen KiB."""
        return Geometry(4, 4096)

    @property
    def page_bytes(self) -> int:
        """Two sectors."""
        return 1024

    @property
    def tpl_page_bytes(self) -> int:
        """One sector."""
        return 512

    @property
    def write_cache_bytes(self) -> int:
        """So little that enqueues wait for the disk now and then."""
        return 2048


class SlowStep:
    """What a `SlowSync` has to do for one ticket: writes, if it takes them, and then syncs."""

    def __init__(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite]) -> None:
        self.ticket = ticket
        self._files, self._writes = files, deque(writes)
        self.syncs: list[tuple[WritableFile, int]] = []
        self._error: OSError | None = None
        if not writes:
            self.write(0)

    def write(self, count: int) -> None:
        """Do some of the writes; after the last one the syncs begin."""
        try:
            while count and self._writes:
                write = self._writes[0]
                content, file = b"".join(write.pieces), write.file
                assert len(content) == write.size
                file.write(write.offset, content)
                is_left_out = file.has_unsynced_outside(write.offset, write.size)  # type: ignore[attr-defined]
                assert not write.is_all or not is_left_out
                self._writes.popleft()
                count -= 1
        except OSError as error:
            self._error = error
            self._writes.clear()
            return
        if not self._writes and not self.syncs and self._error is None:
            self.syncs = [(file, file.begin_sync()) for file in self._files]  # type: ignore[attr-defined]

    def end(self) -> Completion:
        """Do the rest."""
        self.write(len(self._writes))
        for file, token in self.syncs:
            try:
                file.finish_sync(token)  # type: ignore[attr-defined]
            except OSError as error:
                self._error = self._error or error
        return self.ticket, self._error


class SlowSync:
    """A driver whose work begins at once, or when chance says, and ends when chance says, in any order."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._under_way: list[SlowStep] = []
        self._writes = rng.random() < 0.6

    @property
    def takes_writes(self) -> bool:
        """By chance: some never do, others most of the time."""
        return self._writes and self._rng.random() < 0.8

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Begin."""
        self._under_way.append(SlowStep(ticket, files, writes))
        if writes:
            self._write()

    def _write(self) -> None:
        """Do some of the writes that are under way."""
        rng = self._rng
        for step in self._under_way:
            step.write(rng.choice((0, 0, 1, 5)))

    def fileno(self) -> int:
        """It cannot be polled."""
        return -1

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """End some of what is under way, and at least one if the caller waits."""
        rng, done = self._rng, []
        rng.shuffle(self._under_way)
        if self._writes:
            self._write()
        while self._under_way and (rng.random() < 0.4 or (timeout is None and not done)):
            done.append(self._under_way.pop().end())
        return done

    def describe(self) -> str:
        """It is simulated."""
        return "the simulated sync driver"

    @property
    def is_stopped(self) -> bool:
        """Never."""
        return False

    def kill(self, reason: str) -> None:
        """Nobody does it here."""
        raise AssertionError(reason)

    def successor(self) -> SyncDriver:
        """None: those that die here say themselves who comes next."""
        raise SyncDriverError("there is no other")

    def close(self) -> None:
        """What is under way does not come back."""
        self._under_way.clear()


class SlowBackground(InlineBackground):
    """A background that does the work when chance says, in order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._later: deque[Callable[[], None] | SharedWork] = deque()

    def run(
        self, work: Callable[[], _Result], done: Callable[[_Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` later."""
        self._later.append(partial(super().run, work, done, failed))

    def run_together(
        self,
        together: Together[_Item, _Result],
        item: _Item,
        done: Callable[[_Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Do the item later, often with others."""
        self._later.append(SharedWork(together, item, done, failed))

    def _next(self) -> None:
        """Do the next piece of work, or the next few that are done together."""
        first = self._later.popleft()
        if not isinstance(first, SharedWork):
            first()
            return
        group = [first]
        while self._later and self._rng.random() < 0.8:
            following = self._later[0]
            if not isinstance(following, SharedWork) or following.together != first.together:
                break
            group.append(following)
            self._later.popleft()
        self._finished += do_together(group)
        self.finished += len(group)

    def collect(self) -> None:
        """Do some of it, and call the waiters for what is done."""
        while self._later and self._rng.random() < 0.5:
            self._next()
        super().collect()

    @property
    def is_busy(self) -> bool:
        """Whether anything is left."""
        return bool(self._later) or super().is_busy

    def wait(self) -> None:
        """Do all of it."""
        while self._later:
            self._next()


def environment_without_catalogue(disk: SimulatedDisk) -> Environment:
    """Everything from outside for stores of version 1."""

    def open_key_value(path: str, *, create: bool) -> NoReturn:
        raise AssertionError(f"{path}: version 1 has no catalogue")

    bits = random.Random(0).getrandbits
    return Environment(disk, open_key_value, lambda _: InlineSync(), InlineBackground, lambda: 1_700_000_000, bits)


def simulated_environment(
    disk: SimulatedDisk, rng: random.Random, driver: Callable[[], SyncDriver] | None = None
) -> Environment:
    """Everything from outside: slow, or inline, by chance, unless the driver is given."""
    slow = rng.random() < 0.6
    make = driver or ((lambda: SlowSync(rng)) if slow else InlineSync)
    return Environment(
        disk,
        lambda path, *, create: SimulatedKeyValue.open(disk, path, create=create),
        lambda _: make(),
        (lambda: SlowBackground(rng)) if slow else InlineBackground,
        lambda: 1_700_000_000_000_000_000,
        rng.getrandbits,
        lambda: 0,  # nothing takes any time, however busy the machine is
    )


@contextmanager
def tiny_rid_blocks() -> Iterator[None]:
    """Blocks of record ids that are soon used up."""
    with (
        patch("qstore.store.catalogue.catalogue.RID_BLOCK", RID_BLOCK),
        patch("qstore.formats.catalogue.RID_BLOCK", RID_BLOCK),
    ):
        yield


def look(store: MessageStore) -> Found:
    """What a store that was just opened holds. Ends its recovery."""
    queues = {}
    for queue in store.recovered_queues:
        messages = list(store.messages(queue))
        require(queue.messages + queue.in_doubt == len(messages), f"{queue.record.name}: counted wrongly")
        require(queue.messages == sum(each.state == LIVE for each in messages), "counted wrongly")
        queues[queue.queue_id] = FoundQueue(queue.record.name, messages)
    bindings = {(each.record.key, each.record.queue_name, each.exchange.name) for each in store.topology.bindings}
    exchanges = {number: exchange.name for number, exchange in store.topology.exchanges.items()}
    orphans = names_in(store, "orphans")
    found = Found(store.was_clean, queues, exchanges, bindings, set(store.transactions.in_doubt), len(orphans))
    quarantine = [name for name in names_in(store, "quarantine") if not name.startswith("catalogue-")]
    require(not quarantine, "a journal was set aside as damaged")
    journals = {entry.directory.rsplit("/", 1)[1] for entry in store.journals.values()}
    require(set(names_in(store, "jrnl")) == journals, "a directory was left behind")
    for queue in list(store.recovered_queues):
        require(store.topology.queues[queue.queue_id].record == queue.record, "the topology names another queue")
    store.end_recovery()
    return found


def names_in(store: MessageStore, part: str) -> list[str]:
    """The names in a part of the store's directory; none if it is not there."""
    disk, path = store._environment.disk, store.directory.part(part)
    return disk.names(path) if disk.is_directory(path) else []


# ---- one process's time with the store ----


GEOMETRIES: Final = (Geometry(4, 4096), Geometry(6, 2048), Geometry(4, 2048))
XIDS: Final = (b"branch-a", b"branch-b", b"branch-c" * 20)
_MAX_QUEUES: Final = 4
_MAX_TURNS: Final = 2000


class StoreLife:
    """One process's time with the store.

    Args:
        disk: where it is.
        model: what may be found.
        rng: decides everything.
        must_be_clean: it was closed cleanly, and nobody has opened it since.
        faults: whether the disk fails, so that errors are no surprise.
        driver: makes the sync driver, if it is a special one.
        is_damaged: whether its catalogue was damaged, which must be reported and cost nothing; None if unknown.

    Raises:
        BrokenPromiseError: it may not be as it is.
    """

    parameters: ClassVar = TinyParameters()
    geometries: ClassVar[Sequence[Geometry]] = GEOMETRIES
    looks: ClassVar = False
    """Whether it is looked after now and then, as a broker does every second."""

    def __init__(
        self,
        disk: SimulatedDisk,
        model: Model,
        rng: random.Random,
        *,
        must_be_clean: bool = False,
        faults: bool = False,
        driver: Callable[[], SyncDriver] | None = None,
        is_damaged: bool | None = False,
    ) -> None:
        self.disk, self.rng, self.faults = disk, rng, faults
        self.lines: list[LogLine] = []
        self.asked = self.answered = self.refused = self.compressed = self.ended_large = 0
        self.in_runs = self.to_several = self.counted = 0
        self.errors: list[Exception] = []
        environment = simulated_environment(disk, rng, driver)
        try:
            self.store = MessageStore.open(environment, PATH, self.parameters, "test", log=self.lines.append)
        except StoreError as error:
            require(faults, f"the store cannot be opened: {error}")
            raise
        reported = [line.text for line in self.lines if line.level in (Level.CRITICAL, Level.WARNING)]
        if faults:  # a start reserves record ids, and records how far it is synced: it says what it cannot write
            unwritten = ("the second copy of the topology cannot be written", "it cannot be recorded how far the store")
            reported = [text for text in reported if not any(each in text for each in unwritten)]
        reported = [text for text in reported if not any(_is_about(text, queue) for queue in model.queues.values())]
        orphans = len(names_in(self.store, "orphans")) - model.orphans
        require(is_damaged is not False or len(reported) <= orphans, f"damage is reported: {reported}")
        require(not is_damaged or bool(reported), "a damaged catalogue is not reported")
        found = look(self.store)
        model.check(found, must_be_clean=must_be_clean)
        first = self.store._ids.next
        require(first > model.highest_rid, f"record id {first} was given out before")
        self.model = model.after(found)
        for queue in self.model.queues.values():
            assert queue.number is not None
            queue.journal = self.store.journals[queue.number]

    # ---- what is asked, and what is answered ----

    def _ask(self, answered: Callable[[Exception | None], None]) -> Done:
        """A callback that is called once."""
        self.asked += 1
        calls = []

        def done(error: Exception | None) -> None:
            calls.append(error)
            require(len(calls) == 1, "called back twice")
            self.answered += 1
            if error is not None:
                is_full = isinstance(error, JournalFullError)  # the prepared list
                require(self.faults or is_full, f"an error without a cause: {error!r}")
                self.errors.append(error)
            answered(error)

        return done

    def quiesce(self) -> None:
        """Until everything is answered."""
        for _ in range(_MAX_TURNS):
            self.store.start()
            self.store.collect(None)
            if self.asked == self.answered and self.store._flusher.is_idle:
                self.highest()
                return
        raise BrokenPromiseError("a waiter is never called back")

    def promises(self) -> Model:
        """What the next life may find."""
        self.highest()
        return self.model

    def highest(self) -> None:
        """Note the highest record id that may be in use."""
        self.model.highest_rid = max(self.model.highest_rid, self.store._ids.next - 1)

    # ---- work ----

    def work(self, steps: int) -> None:
        """Some steps, by chance."""
        deeds = self.deeds()
        for deed in self.rng.choices([deed for deed, _ in deeds], [weight for _, weight in deeds], k=steps):
            deed()

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What may be done, with weights."""
        deeds: list[tuple[Callable[[], object], int]] = [
            (self.create_queue, 3),
            (self.delete_queue, 1),
            (self.change_topology, 2),
            (self.enqueue, 14),
            (self.dequeue, 10),
            (self.purge, 1),
            (self.transaction, 6),
            (self.prepare, 5),
            (self.decide, 6),
            (self.load, 1),
            (self.flush, 8),
            (self.store.start, 3),
            (self.store.collect, 8),
            (self.quiesce, 2),
        ]
        if self.parameters.auto_expand:
            deeds += [(self.store.look, 8), (self.enqueue, 14)]
        if self.looks:
            deeds += [(self.store.look, 20)]
        return deeds

    @property
    def grown(self) -> int:
        """How often a journal grew or shrank."""
        return sum(" files now, " in line.text for line in self.lines)

    def queues(self) -> list[QueueModel]:
        """The queues that take messages."""
        return [queue for queue in self.model.queues.values() if queue.is_certain and queue.journal is not None]

    def some_queues(self) -> list[QueueModel]:
        """One queue, or a few."""
        queues = self.queues()
        return self.rng.sample(queues, min(len(queues), self.rng.choice((1, 1, 2, 3))))

    def message(self) -> bytes:
        """Data that was never used."""
        head = b"%d:" % self.model.unique()
        return head + b"." * self.rng.choice((0, 20, 70, 200, 500))

    # ---- topology ----

    def create_queue(self) -> None:
        """Ask for a queue."""
        if len(self.model.queues) >= _MAX_QUEUES:
            return
        queue = QueueModel(f"queue-{self.model.unique()}")
        self.model.queues[queue.name] = queue

        def made(journal: QueueJournal | None, error: Exception | None) -> None:
            if journal is not None:
                queue.number, queue.journal, queue.is_certain = journal.queue_id, journal, True
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.create_queue(self.declared(queue.name), self.rng.choice(self.geometries), made)

    def declared(self, name: str) -> Queue:
        """The record of a new queue."""
        return Queue(name)

    def delete_queue(self) -> None:
        """Ask for the end of a queue."""
        queues = self.queues()
        if len(queues) < 2:
            return
        queue = self.rng.choice(queues)
        queue.is_certain, queue.is_deleting = False, True
        assert queue.journal is not None

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                del self.model.queues[queue.name]
                self.model.left = sum("cannot be removed" in line.text for line in self.lines)
                for binding in list(self.model.bindings.values()):
                    if binding.queue is queue:
                        del self.model.bindings[binding.key]
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_queue(queue.journal, deleted)

    def change_topology(self) -> None:
        """Ask for an exchange or a binding, or for the end of one."""
        self.rng.choice((self.create_exchange, self.delete_exchange, self.bind, self.bind, self.unbind))()

    def create_exchange(self) -> None:
        """Ask for an exchange."""
        exchange = ExchangeModel(f"exchange-{self.model.unique()}")
        self.model.exchanges[exchange.name] = exchange

        def made(number: int | None, error: Exception | None) -> None:
            exchange.number, exchange.is_certain = number, error is None
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.create_exchange(Exchange(exchange.name, durable=True, type="topic"), made)

    def delete_exchange(self) -> None:
        """Ask for the end of an exchange."""
        exchanges = [each for each in self.model.exchanges.values() if each.is_certain]
        if len(exchanges) < 2:
            return
        exchange = self.rng.choice(exchanges)
        exchange.is_certain = False
        assert exchange.number is not None

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                del self.model.exchanges[exchange.name]
                for binding in list(self.model.bindings.values()):
                    if binding.exchange is exchange:
                        del self.model.bindings[binding.key]
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_exchange(exchange.number, deleted)

    def bind(self) -> None:
        """Ask for a binding."""
        exchanges, queues = [each for each in self.model.exchanges.values() if each.is_certain], self.queues()
        if not exchanges or not queues:
            return
        binding = BindingModel(f"key-{self.model.unique()}", self.rng.choice(queues), self.rng.choice(exchanges))
        self.model.bindings[binding.key] = binding

        def made(entry: object, error: Exception | None) -> None:
            if binding.key in self.model.bindings:
                binding.entry, binding.is_certain = entry, error is None
            done(error)

        done = self._ask(lambda _: None)
        assert binding.queue.number is not None
        assert binding.exchange.number is not None
        record = Binding(binding.queue.number, binding.queue.name, binding.key)
        self.store.changes.create_binding(binding.exchange.number, record, made)

    def unbind(self) -> None:
        """Ask for the end of a binding that this life made."""
        bindings = [each for each in self.model.bindings.values() if each.is_certain and each.entry is not None]
        bindings = [each for each in bindings if each.queue.is_certain and each.exchange.is_certain]
        if not bindings:
            return
        binding = self.rng.choice(bindings)
        binding.is_certain = False

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                self.model.bindings.pop(binding.key, None)
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_binding(binding.entry, deleted)  # type: ignore[arg-type]

    # ---- messages ----

    def _append(self, work: dict[QueueModel, Operation], append: Callable[[], Sequence[int]]) -> bool:
        """Append to journals: what is appended may be found from the beginning of the call."""
        for queue, operation in work.items():
            queue.pending.append(operation)
        return self._appended(work, append)

    def _appended(self, work: dict[QueueModel, Operation], append: Callable[[], Sequence[int]]) -> bool:
        try:
            rids = list(append())
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            for queue, operation in work.items():
                if queue.pending and queue.pending[-1] is operation:
                    queue.pending.pop()
            return False
        messages = [message for operation in work.values() for message in operation.enqueues]
        for message, rid in zip(messages, rids, strict=True):
            message.rid = rid
        for operation_queue, operation in work.items():
            for message in operation.dequeues:
                del operation_queue.available[message.data]
        self.highest()
        return True

    def _refused(self, error: Exception) -> None:
        self.refused += 1
        if isinstance(error, JournalFailedError | CatalogueError):
            require(self.faults, f"an error without a cause: {error!r}")
            self.errors.append(error)

    def enqueue(self) -> None:
        """A message for one queue or several."""
        queues, data = self.some_queues(), self.message()
        if not queues:
            return
        work = {queue: Operation([Message(data)]) for queue in queues}
        journals = [journal_of(queue) for queue in queues]
        parts, crc = (data[:3], data[3:]), data_crc((data,))
        if len(queues) == 1:
            done = self._append(work, lambda: [self.store.append.enqueue(journals[0], parts, len(data), crc)])
        else:
            done = self._append(work, lambda: self.store.append.enqueue_all(journals, parts, len(data), crc))
        for queue, operation in work.items() if done else ():
            queue.available[data] = operation.enqueues[0]

    def dequeue(self) -> None:
        """Some messages of a queue go."""
        for queue in self.some_queues()[:1]:
            messages = list(queue.available.values())
            for message in self.rng.sample(messages, min(len(messages), self.rng.randint(1, 4))):
                self._dequeue(queue, message)

    def _dequeue(self, queue: QueueModel, message: Message) -> None:
        assert message.rid is not None
        rid = message.rid

        def append() -> Sequence[int]:
            self.store.append.dequeue(journal_of(queue), rid)
            return ()

        self._append({queue: Operation((), [message])}, append)

    def purge(self) -> None:
        """All messages of a queue go."""
        for queue in self.some_queues()[:1]:
            messages = list(queue.available.values())
            operations = [Operation((), [message]) for message in messages]
            queue.pending += operations
            done = self._ask(partial(settle, queue, queue.position))
            rids = [message.rid for message in messages if message.rid is not None]
            try:
                self.store.purge(journal_of(queue), rids, done)
            except (JournalError, CatalogueError) as error:
                self.asked -= 1
                self._refused(error)
                records = journal_of(queue).writer.records
                queue.pending = [each for each in queue.pending if each not in operations or not is_live(each, records)]
            queue.available.clear()

    def load(self) -> None:
        """Read messages back."""
        self.quiesce()
        for queue in self.queues():
            for data, message in queue.available.items():
                if message.rid is not None and journal_of(queue).writer.failure is None:
                    require(journal_of(queue).load(message.rid) == data, "a message is not what it was")

    def flush(self) -> None:
        """Ask when all that was appended to some queues is on the disk."""
        queues = self.some_queues()
        marks = {queue: queue.position for queue in queues}

        def synced(error: Exception | None) -> None:
            for queue, mark in marks.items():
                if error is None:
                    queue.settle(mark)

        self.store.flush([journal_of(queue) for queue in queues], self._ask(synced))

    # ---- transactions ----

    def _work(self) -> tuple[dict[QueueModel, Operation], list[Enqueue], list[Dequeue]]:
        """What a transaction does."""
        work: dict[QueueModel, Operation] = {}
        enqueues, dequeues = [], []
        for queue in self.some_queues():
            messages = [Message(self.message()) for _ in range(self.rng.randint(0, 2))]
            available = list(queue.available.values())
            going = self.rng.sample(available, min(len(available), self.rng.randint(0, 2)))
            if messages or going:
                work[queue] = Operation(messages, going)
            for message in messages:
                data = message.data
                enqueues.append((journal_of(queue), [((data,), len(data), data_crc((data,)))]))
            dequeues += [(journal_of(queue), message.rid) for message in going if message.rid is not None]
        return work, enqueues, dequeues

    def transaction(self) -> None:
        """A local transaction over one queue or several."""
        work, enqueues, dequeues = self._work()
        if len(work) <= 1:
            for queue, operation in work.items():
                done = self._ask(partial(settle, queue, queue.position + 1))
                if not self._append(work, partial(self.store.transactions.commit, enqueues, dequeues, done)):
                    self.asked -= 1
                else:
                    queue.available.update((message.data, message) for message in operation.enqueues)
            return
        branch = Branch(b"", work, {Fate.COMMITTED, Fate.ABORTED})
        self._branch(branch, {Fate.COMMITTED}, partial(self.store.transactions.commit, enqueues, dequeues))

    def prepare(self) -> None:
        """A distributed transaction."""
        xid = self.rng.choice(XIDS)
        if any(branch.xid == xid for branch in self.model.branches):
            return
        work, enqueues, dequeues = self._work()
        branch = Branch(xid, work, {Fate.IN_DOUBT, Fate.ABORTED})
        self._branch(branch, {Fate.IN_DOUBT}, partial(self.store.transactions.prepare, xid, enqueues, dequeues))

    def _branch(self, branch: Branch, fates: set[Fate], append: Callable[[Done], Sequence[int]]) -> None:
        self.model.branches.append(branch)

        def answered(error: Exception | None) -> None:
            if error is None:
                self._settled(branch, fates)
            elif self._list_is_sound():
                self._settled(branch, {Fate.ABORTED})

        done = self._ask(answered)
        if not self._appended(branch.work, lambda: append(done)):
            self.asked -= 1
            self.model.branches.remove(branch)

    def _list_is_sound(self) -> bool:
        return self.store.failure is None and self.store.prepared_list.writer.failure is None

    def _settled(self, branch: Branch, fates: set[Fate]) -> None:
        """The fate of a branch is known."""
        branch.fates = fates
        if fates == {Fate.IN_DOUBT}:
            for queue, position in branch.positions.items():
                queue.settle(position)
        else:
            self.model.seal(branch, *fates)

    def decide(self) -> None:
        """Commit or abort a branch that is prepared."""
        branches = [branch for branch in self.model.branches if branch.fates == {Fate.IN_DOUBT}]
        if not branches:
            return
        branch = self.rng.choice(branches)
        fate = self.rng.choice((Fate.COMMITTED, Fate.ABORTED))
        branch.fates = {Fate.IN_DOUBT, fate}

        def answered(error: Exception | None) -> None:
            if error is None:
                self._settled(branch, {fate})

        transactions = self.store.transactions
        decide = transactions.commit_prepared if fate is Fate.COMMITTED else transactions.abort_prepared
        done = self._ask(answered)
        try:
            decide(branch.xid, done)
        except (JournalError, StoreError, CatalogueError) as error:
            require(self.faults, f"an error without a cause: {error!r}")
            self.asked -= 1
            branch.fates = {Fate.IN_DOUBT}

    # ---- the end ----

    def close(self) -> None:
        """Close cleanly, after some messages were delivered."""
        delivered: dict[int, set[int]] = {}
        for queue in self.queues():
            rids = [message.rid for message in queue.available.values() if message.rid is not None]
            assert queue.number is not None
            delivered[queue.number] = set(self.rng.sample(rids, self.rng.randint(0, len(rids))))
        self.model.delivered = delivered
        self.model.is_closed = self.store.close(delivered)
        require(self.asked == self.answered, "closed before a waiter was called back")
        require(self.model.is_closed or self.faults, "a close that is not clean")

    def stop(self) -> bool:
        """Close. Returns whether that was clean."""
        self.close()
        return self.model.is_closed

    def discard(self) -> None:
        """The process is gone: its disk crashes."""


class CompressingLife(StoreLife):
    """One in which every other queue compresses its messages."""

    def message(self) -> bytes:
        """Data that was never used: a header with its size, and content that can be compressed."""
        head = b"%d:" % self.model.unique()
        return struct.pack(">I", len(head)) + head + b"." * self.rng.choice((0, 20, 300, 500, 900))

    def declared(self, name: str) -> Queue:
        """The record of a new queue."""
        return Queue(name, typed_map({"qpid.compress": "zstd"}) if name[-1] in "13579" else EMPTY_MAP)

    def close(self) -> None:
        """Close the store, after counting the compressed messages in it."""
        self.quiesce()
        for journal in map(journal_of, self.queues()):
            self.compressed += sum(bool(journal.stored(rid)[0].flags & COMPRESSED) for rid in self.messages_of(journal))
        super().close()

    def messages_of(self, journal: QueueJournal) -> list[int]:
        """The messages in a journal, without the dequeues of open transactions."""
        escorts = {rid for each in journal.writer.transactions.values() for rid in each.dequeues.values()}
        return [rid for rid in journal.writer.live if rid not in escorts]


class LargeWork:
    """A large transaction that is under way.

    Attributes:
        handle: the store's.
        xid: of a distributed one.
        queues: those that it is about.
        work: for each of them the messages that it has added, and those that it has removed.
    """

    def __init__(self, handle: LargeTransaction, xid: bytes, queues: list[QueueModel]) -> None:
        self.handle, self.xid, self.queues = handle, xid, queues
        self.work: dict[QueueModel, tuple[list[Message], list[Message]]] = {}

    def take(self, queue: QueueModel, added: list[Message], removed: list[Message]) -> None:
        """A portion was appended."""
        if added or removed:
            of_queue = self.work.setdefault(queue, ([], []))
            of_queue[0].extend(added)
            of_queue[1].extend(removed)

    def give_back(self) -> None:
        """What it has removed may be dequeued."""
        for queue, (_, removed) in self.work.items():
            queue.available.update((message.data, message) for message in removed)


class LargeLife(StoreLife):
    """One with transactions that are appended in portions, while everything else goes on; an event loop watches it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._soon: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []
        self.store.is_watched(self._soon.append, lambda _seconds, function: self._later.append(function))
        self.large: LargeWork | None = None

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What is done, and how often."""
        return [*super().deeds(), (self.begin_large, 20), (self.go_on, 60), (self.iterate, 20)]

    def iterate(self) -> None:
        """One iteration of the event loop, in which timers may be due."""
        soon = self._soon[:]
        self._soon.clear()
        if self.rng.random() < 0.5:
            soon += self._later
            self._later.clear()
        for function in soon:
            function()

    def quiesce(self) -> None:
        """Until everything is answered; the large transaction stays open."""
        for _ in range(_MAX_TURNS):
            self.iterate()
            self.store.start()
            self.store.collect(None)
            if self.asked == self.answered and self.store._flusher.is_idle and not self._soon and not self._later:
                self.highest()
                return
        raise BrokenPromiseError("a waiter is never called back")

    def close(self) -> None:
        """Close the store, after everybody was called back."""
        self.quiesce()
        super().close()

    def begin_large(self) -> None:
        """Begin a large transaction."""
        queues = self.some_queues()
        xid = self.rng.choice((b"", b"", *XIDS))
        is_taken = xid and any(branch.xid == xid for branch in self.model.branches)
        if self.large is not None or not queues or is_taken:
            return
        try:
            handle = self.store.transactions.begin_large(xid)
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            return
        self.large = LargeWork(handle, xid, queues)

    def go_on(self) -> None:
        """A portion of it, or its end."""
        large, chance = self.large, self.rng.random()
        if large is None:
            return
        is_there = all(queue.is_certain for queue in large.queues)
        if is_there and chance < 0.7:
            self._portion(large)
        elif is_there and chance < 0.9:
            self._end_large(large)
        else:
            self._abort_large(large)

    def _portion(self, large: LargeWork) -> None:
        enqueues, dequeues = [], []
        parts: list[tuple[QueueModel, list[Message], list[Message]]] = []
        for queue in large.queues:
            added = [Message(self.message()) for _ in range(self.rng.randint(0, 3))]
            available = list(queue.available.values())
            removed = self.rng.sample(available, min(len(available), self.rng.randint(0, 3)))
            parts.append((queue, added, removed))
            forms = [((message.data,), len(message.data), data_crc((message.data,))) for message in added]
            if forms:
                enqueues.append((journal_of(queue), forms))
            dequeues += [(journal_of(queue), message.rid) for message in removed if message.rid is not None]
        transactions = self.store.transactions
        try:
            rids = transactions.append_portion(large.handle, enqueues, dequeues)
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            self._abort_large(large)
            return
        for message, rid in zip([each for _, added, _ in parts for each in added], rids, strict=True):
            message.rid = rid
        for queue, added, removed in parts:
            large.take(queue, added, removed)
            for message in removed:
                del queue.available[message.data]
        self.highest()
        transactions.when_written(large.handle, lambda: None)

    def _end_large(self, large: LargeWork) -> None:
        self.large = None
        self.ended_large += 1
        large.give_back()  # `_appended` takes it
        work = {queue: Operation(added, removed) for queue, (added, removed) in large.work.items()}
        rids = [message.rid or 0 for operation in work.values() for message in operation.enqueues]

        def end(done: Done) -> Sequence[int]:
            try:
                self.store.transactions.end_large(large.handle, done)
            except (JournalError, CatalogueError, StoreError):
                self.large = large
                raise
            return rids

        if large.xid:
            self._branch(Branch(large.xid, work, {Fate.IN_DOUBT, Fate.ABORTED}), {Fate.IN_DOUBT}, end)
        elif len(work) > 1:
            self._branch(Branch(b"", work, {Fate.COMMITTED, Fate.ABORTED}), {Fate.COMMITTED}, end)
        else:
            answered = [partial(settle, queue, queue.position + 1) for queue in work]
            done = self._ask(lambda error: [each(error) for each in answered])  # type: ignore[arg-type, return-value]
            if not self._append(work, partial(end, done)):
                self.asked -= 1
            else:
                for queue, operation in work.items():
                    queue.available.update((message.data, message) for message in operation.enqueues)
        if self.large is not None:
            for operation_queue, (_, removed) in large.work.items():
                for message in removed:
                    operation_queue.available.pop(message.data, None)
            self._abort_large(large)

    def _abort_large(self, large: LargeWork) -> None:
        self.large = None
        done = self._ask(lambda _: large.give_back())
        self.store.transactions.abort_large(large.handle, lambda: done(None))


class TransactingLife(StoreLife):
    """One that has little but local transactions over the same two queues."""

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What may be done, with weights."""
        return [
            (self.create_queue, 2),
            (self.enqueue, 4),
            (self.transaction, 20),
            (self.store.start, 8),
            (self.store.collect, 4),
        ]

    def some_queues(self) -> list[QueueModel]:
        """All of two."""
        return self.queues()[:2]


def is_live(dequeue: Operation, records: LiveRecords) -> bool:
    """Whether the message of a dequeue is still there."""
    rid = dequeue.dequeues[0].rid
    return rid is not None and records.where(rid) is not None


def settle(queue: QueueModel, position: int, error: Exception | None) -> None:
    """What was appended to a queue is on the disk, or not."""
    if error is None:
        queue.settle(position)


def journal_of(queue: QueueModel) -> QueueJournal:
    """The journal of a queue that is there."""
    assert queue.journal is not None
    return queue.journal


class RunningLife(StoreLife):
    """One in which most messages come and go in runs, beside single ones."""

    geometries = (Geometry(4, 4096), Geometry(4, 8192), Geometry(4, 16_384))  # runs of more than a few need some room

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What may be done, with weights."""
        return [*super().deeds(), (self.enqueue_run, 40), (self.enqueue_run_to_all, 10), (self.dequeue_run, 35)]

    def _new_run(self) -> tuple[bytes, list[bytes], Bodies]:
        """The head of the messages of a new run, and their bodies, each by itself and together."""
        rng = self.rng
        size, spread, count = rng.choice((12, 12, 60, 200)), rng.choice((0, 0, 150)), rng.choice((1, 3, 20, 40))
        bodies = [(b"%d:" % self.model.unique()).ljust(size + rng.randint(0, spread), b".") for _ in range(count)]
        return b"run ", bodies, joined(bodies, rng.randint(1, 5))

    def enqueue_run(self) -> None:
        """Messages with equal heads, each of which may be there without those after it."""
        for queue in self.some_queues()[:1]:
            journal, (head, bodies, run) = journal_of(queue), self._new_run()
            messages = deque(Message(head + body) for body in bodies)
            while messages:
                rid, several = self._append_run(
                    queue,
                    [Operation([message]) for message in messages],
                    partial(
                        self.store.append.enqueue_run,
                        journal,
                        head,
                        None,
                        run,
                        run.count - len(messages),
                        len(messages),
                    ),
                )
                if not several:
                    break
                for number in range(several):
                    message = messages.popleft()
                    message.rid = rid + number
                    queue.available[message.data] = message

    def enqueue_run_to_all(self) -> None:
        """The same messages of a run for several queues, each of which may have some without those after them."""
        queues, (head, bodies, run), least = self.some_queues(), self._new_run(), self.rng.choice((1, 2, 10))
        if not queues:
            return
        for queue in queues:
            queue.pending += [Operation([Message(head + body)]) for body in bodies]
        journals = [journal_of(queue) for queue in queues]
        rids, count = self.store.append.enqueue_run_to_all(journals, head, None, run, run.count, least)
        require(count == 0 or least <= count <= run.count, f"{count} of {run.count} appended, at least {least} or none")
        self.to_several += count > 1 and len(queues) > 1
        for queue, rid in zip(queues, rids or [0] * len(queues), strict=True):
            for number in range(count):
                (message,) = queue.pending[number - run.count].enqueues
                message.rid = rid + number
                queue.available[message.data] = message
            del queue.pending[len(queue.pending) - run.count + count :]
        self.highest()

    def dequeue_run(self) -> None:
        """Messages with consecutive record ids go: from either end, or between others."""
        for queue in self.some_queues()[:1]:
            by_rid = {message.rid: message for message in queue.available.values() if message.rid is not None}
            rows = rows_of(sorted(by_rid))
            if not rows:
                continue
            first, end = self.rng.choice(rows)
            begin = self.rng.choice((first, self.rng.randrange(first, end)))
            stop = self.rng.randint(begin + 1, end)
            while begin < stop:
                messages = [by_rid[rid] for rid in range(begin, stop)]
                remove = partial(self.store.append.dequeue_run, journal_of(queue), begin, stop - begin)
                _, several = self._append_run(
                    queue, [Operation((), [message]) for message in messages], lambda remove=remove: (0, remove())
                )
                if not several:
                    break
                for message in messages[:several]:
                    del queue.available[message.data]
                begin += several

    def _append_run(
        self, queue: QueueModel, operations: list[Operation], append: Callable[[], tuple[int, int]]
    ) -> tuple[int, int]:
        """Append some of the operations, in order. Returns what the store has returned; 0 and 0 if it has refused."""
        queue.pending += operations
        rid = several = 0
        try:
            rid, several = append()
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
        else:
            require(1 <= several <= len(operations), f"{several} of {len(operations)} appended")
            self.in_runs += several > 1
        del queue.pending[len(queue.pending) - len(operations) + several :]
        self.highest()
        return rid, several


class _RoomyParameters(TinyParameters):
    """Pages and a write cache that have room for a run."""

    __slots__ = ()

    @property
    def page_bytes(self) -> int:
        """Eight sectors."""
        return 4096

    @property
    def write_cache_bytes(self) -> int:
        """Four pages."""
        return 16_384


class FanningLife(RunningLife):
    """One in which most messages go to several queues at once, whose journals have room for parts of their runs."""

    parameters = _RoomyParameters()
    geometries = (Geometry(4, 32_768), Geometry(4, 16_384))

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What may be done, with weights."""
        return [
            (self.create_queue, 3),
            (self.enqueue, 4),
            (self.enqueue_run, 6),
            (self.enqueue_run_to_all, 20),
            (self.dequeue_run, 30),
            (self.purge, 2),
            (self.transaction, 2),
            (self.flush, 6),
            (self.store.start, 6),
            (self.store.collect, 12),
            (self.quiesce, 3),
        ]


class ReturningLife(StoreLife):
    """One whose messages return to their queues, and their numbers of returns tell which message they are of."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for queue_id, journal in self.store.journals.items():
            for rid, count in self.store._returns.of(queue_id).items():
                require(journal.writer.records.where(rid) is not None, f"returns of message {rid}, which is gone")
                require(count % 1000 == self._mark(queue_id, rid), f"message {rid} has the returns of another one")
                self.counted += 1

    @staticmethod
    def _mark(queue_id: int, rid: int) -> int:
        return (queue_id * 37 + rid) % 1000

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What may be done, with weights."""
        return [*super().deeds(), (self.return_messages, 20)]

    def return_messages(self) -> None:
        """Some messages return once more; of others the number is not needed any more."""
        for queue in self.some_queues():
            journal = journal_of(queue)
            for message in queue.available.values():
                if message.rid is not None and self.rng.random() < 0.5:
                    count = 1000 * self.rng.randint(1, 9) + self._mark(journal.queue_id, message.rid)
                    self.store.returned(journal, message.rid, None if self.rng.random() < 0.1 else count)


class GrowingLife(StoreLife):
    """A store whose journals grow, and give files back as soon as they do not need them."""

    parameters = TinyParameters(auto_expand=True)


def _is_about(text: str, queue: QueueModel) -> bool:
    """Whether a start reports that the catalogue lacks a queue whose deletion has failed: it may have been written."""
    has_failed = queue.is_deleting and not queue.is_certain
    names = (f'queue "{queue.name}" is not in the catalogue', f"catalogue: queue {queue.number} is missing")
    return has_failed and any(name in text for name in names)


# ---- crashes ----


@dataclass(kw_only=True)
class StoreCrashes(Simulator):
    """Stores that are killed; those that start with what is left have to work on, and to close cleanly.

    Attributes:
        life_class: the life of one process with the store.
        driver: makes the sync drivers of the history's own lives, if they are special ones.
    """

    life_class: type[StoreLife] = StoreLife
    driver: Callable[[random.Random, SimulatedDisk], SyncDriver] | None = None

    lives: ClassVar = 3
    steps: ClassVar = 45
    stops: ClassVar = 1.0
    again: ClassVar = (0, 0, 1, 1, 2)
    steps_again: ClassVar = 12
    stops_again: ClassVar = 0.3
    works_on: ClassVar = 0.3

    def start(
        self, disk: SimulatedDisk, promises: Model | None, rng: random.Random, *, must_be_clean: bool
    ) -> StoreLife:
        driver = None if self.driver is None or self.is_fork else partial(self.driver, rng, disk)
        return self.life_class(disk, promises or Model(), rng, must_be_clean=must_be_clean, driver=driver)

    def seen(self, life: StoreLife) -> None:
        self.counts["relocated"] += sum(journal_of(queue).writer.compactor.copied for queue in life.queues())
        for name in ("refused", "answered", "grown", "compressed"):
            self.counts[name] += getattr(life, name)
        self.counts["large"] += life.ended_large
        self.counts["in runs"] += life.in_runs
        self.counts["to several"] += life.to_several
        self.counts["counted"] += life.counted


# ---- a store that is asked for one thing after the other ----


GEOMETRY: Final = Geometry(8, 4096)


class Shop:
    """A store with some queues, and what its callbacks brought."""

    def __init__(
        self,
        disk: SimulatedDisk,
        queues: int = 0,
        on_damage: OnDamage = OnDamage.QUARANTINE,
        *,
        auto_expand: bool = False,
    ) -> None:
        self.lines: list[LogLine] = []
        self.disk = disk
        parameters = TinyParameters(on_damage=on_damage, auto_expand=auto_expand)
        environment = simulated_environment(disk, random.Random(1), lambda: SlowSync(random.Random(2)))
        self.store = MessageStore.open(environment, PATH, parameters, "test", log=self.lines.append)
        self.found = {
            queue.record.name: [message.data for message in self.store.messages(queue)]
            for queue in self.store.recovered_queues
        }
        self.store.end_recovery()
        self.journals = {journal.name: journal for journal in self.store.journals.values()}
        for number in range(queues):
            self.make(f"queue-{number}")

    def make(self, name: str, geometry: Geometry = GEOMETRY) -> Exception | None:
        got: list[Exception | None] = []

        def made(journal: QueueJournal | None, error: Exception | None) -> None:
            if journal is not None:
                self.journals[name] = journal
            got.append(error)

        self.store.changes.create_queue(Queue(name), geometry, made)
        return self.wait(got)

    def wait(self, got: list[Exception | None], count: int = 1) -> Exception | None:
        for _ in range(1000):
            if len(got) == count:
                return next((error for error in got if error is not None), None)
            self.store.start()
            self.store.collect(None)
        raise AssertionError("nobody calls back")

    def ask(self, ask: Callable[[Done], object]) -> Exception | None:
        got: list[Exception | None] = []
        ask(got.append)
        return self.wait(got)

    def enqueue(self, name: str, data: bytes) -> int:
        return self.store.append.enqueue(self.journals[name], (data,), len(data), data_crc((data,)))

    def flush(self, *names: str) -> Exception | None:
        return self.ask(lambda done: self.store.flush([self.journals[name] for name in names], done))

    def transaction(self, data: bytes, *names: str) -> Exception | None:
        return self.ask(lambda done: self.store.transactions.commit(self.enqueues(data, *names), [], done))

    def enqueues(self, data: bytes, *names: str) -> list[Enqueue]:
        return [(self.journals[name], [((data,), len(data), data_crc((data,)))]) for name in names]

    def critical(self) -> list[str]:
        return [line.text for line in self.lines if line.level is Level.CRITICAL]
