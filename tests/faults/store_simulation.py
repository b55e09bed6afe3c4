"""What a whole store runs on in simulations: tiny sizes, a simulated disk and catalogue, and slow helpers.

Two things that a broker has beside its loop are simulated here: the sync driver and the background. Both do their work
when chance says, so that several flushes are under way at once and a transaction's steps come between those of others.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from unittest.mock import patch

from qstore.formats.rhm.geometry import Geometry
from qstore.store.disk import WritableFile
from qstore.store.environment import Environment, InlineBackground
from qstore.store.journal.recovery import LIVE
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import StoreParameters
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError
from qstore.store.sync.threads import InlineSync
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.faults.store_model import Found, FoundQueue, require

PATH: Final = "/store"
RID_BLOCK: Final = 64

_Result = TypeVar("_Result")


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
                file, offset, pieces, size = self._writes[0]
                content = b"".join(pieces)
                assert len(content) == size
                file.write(offset, content)
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
        """Nobody can poll this one."""
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
        self._later: deque[Callable[[], None]] = deque()

    def run(
        self, work: Callable[[], _Result], done: Callable[[_Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` later."""
        self._later.append(partial(super().run, work, done, failed))

    def collect(self) -> None:
        """Do some of it, and call whoever waits for what is done."""
        while self._later and self._rng.random() < 0.5:
            self._later.popleft()()
        super().collect()

    @property
    def is_busy(self) -> bool:
        """Whether anything is left."""
        return bool(self._later) or super().is_busy

    def wait(self) -> None:
        """Do all of it."""
        while self._later:
            self._later.popleft()()


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
