"""What may be found in a store after a crash: all that was promised, and nothing half done.

A promise is a callback. Of a queue's operations since the last promise, any beginning may be found. A transaction over
several queues, or a distributed one, has a set of fates, of which one is found in all of its queues. Of a change of the
catalogue that was asked for and not answered, both ends may be found.

Messages are known by their data, each of which is written once: a process may die before it knows a record id.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.start.started import RecoveredMessage


class BrokenPromiseError(BaseException):
    """A store is not what it may be. Not an `Exception`: the store reports those of its background as errors."""


class Fate(Enum):
    """What became of a transaction."""

    COMMITTED = auto()
    ABORTED = auto()
    IN_DOUBT = auto()


@dataclass(eq=False, slots=True)
class Message:
    """A message in one queue. `rid` is None as long as the store has not told."""

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
    """Whether what is there is what may be. A record id that nobody was told may be any."""
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


def require(condition: bool, what: str) -> None:
    """Raise BrokenPromiseError unless that is so."""
    if not condition:
        raise BrokenPromiseError(what)


def short(messages: dict[bytes, State]) -> str:
    """Messages without their padding."""
    return ", ".join(f"{data.split(b':')[0].decode()}={state}" for data, state in messages.items())


def shown(fates: dict[Branch, Fate]) -> str:
    """Fates, to be read."""
    return ", ".join(f"{branch.xid!r} {fate.name}" for branch, fate in fates.items())
