"""A model of a broker as clients see it: what it has promised them, before a crash and after.

A promise is a completion that a client has got, or a message. Each message has a number, which is its body, and a
`Copy` for each queue that it may be on:

    a copy                                          after a crash, on a durable queue, if it is persistent
    ----------------------------------------------  ------------------------------------------------------------------
    of a transfer that is completed                 it is there
    that was delivered to a consumer                it is there: its record was synced; not on a queue that is early
    whose removal was asked for (`leaving`)         it may be there or not
    whose removal was completed (`is_gone`)         it is not there
    that is being moved (`Move`)                    it is there, or in all the queues that it moves to
    of a transaction (`Transaction`)                all of it has happened or nothing; all, if the commit is completed

Nothing is there that was never sent, was rolled back, or was gone. What comes of one publisher is in order in each
queue, live (on a priority queue, what is of one priority) and after a crash. Whatever is asked of the topology is there
when it is completed, and may be before.

`delivered` holds each delivery against the same, `check` what a start has found after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from tests.faults.simulator import require

DEFAULT: Final = ""
ROUNDING: Final = 1.0  # seconds: an expiration is kept in whole ones


@dataclass(eq=False, slots=True)
class ExchangeModel:
    """A durable exchange. `ever` has the queues that were ever bound to it, or were to be."""

    name: str
    kind: str
    is_certain: bool = False
    is_leaving: bool = False
    ever: set[QueueModel] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class QueueModel:
    """A queue. `purges` are those that are under way; `has_priorities`: it has ten levels.

    `is_early`: it delivers messages of no transaction before their records are synced.
    """

    name: str
    durable: bool
    alternate: ExchangeModel | None = None
    has_priorities: bool = False
    is_early: bool = False
    is_certain: bool = False
    is_leaving: bool = False
    copies: dict[int, Copy] = field(default_factory=dict)
    purges: set[Purge] = field(default_factory=set)

    @property
    def is_sound(self) -> bool:
        """Whether it is there for sure."""
        return self.is_certain and not self.is_leaving


@dataclass(eq=False, slots=True)
class BindingModel:
    """A binding."""

    exchange: ExchangeModel
    queue: QueueModel
    key: str
    is_certain: bool = False
    is_leaving: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether it is there for sure."""
        ends = self.queue.is_sound and self.exchange.is_certain and not self.exchange.is_leaving
        return ends and self.is_certain and not self.is_leaving

    def matches(self, exchange: ExchangeModel | None, key: str) -> bool:
        """Whether messages to this exchange with this key take it."""
        return self.exchange is exchange and (self.exchange.kind == "fanout" or self.key == key)


@dataclass(eq=False, slots=True)
class MessageModel:
    """A message. `exchange` is None for the default one; `ways` are the bindings that it takes for sure.

    `perhaps` are queues whose bindings came, or went, while it was on its way: it may come to them as well.
    """

    number: int
    publisher: str
    exchange: ExchangeModel | None
    key: str
    persistent: bool
    sent_at: float
    ttl: float | None
    copies: list[Copy] = field(default_factory=list)
    ways: list[BindingModel] = field(default_factory=list)
    perhaps: set[QueueModel] = field(default_factory=set)
    transaction: Transaction | None = None
    completed_at: float | None = None
    is_uniform: bool = False

    @property
    def body(self) -> bytes:
        """Its content, by which it is known; many that follow each other are of equal size if they are uniform."""
        if self.is_uniform and self.number // 100 % 2:
            return (b"%d:" % self.number).ljust(40, b".")
        return b"%d:" % self.number + b"." * (self.number * 37 % 200)

    @property
    def priority(self) -> int:
        """As its publisher sets it."""
        return 4 if self.is_uniform else self.number * 7 % 10

    def may_be_expired(self, now: float) -> bool:
        """Whether it need not be there any more."""
        return self.ttl is not None and now >= self.sent_at + self.ttl

    def is_expired(self, now: float) -> bool:
        """Whether it must not be delivered any more."""
        return self.ttl is not None and self.completed_at is not None and now > self.completed_at + self.ttl + ROUNDING


@dataclass(eq=False, slots=True)
class Copy:
    """A message in one queue.

    Attributes:
        message, queue: which.
        is_moved: it came from another queue, out of its order.
        is_promised: it is there, unless it is `leaving`, or expired.
        leaving: who has asked for its removal.
        is_gone: it is not there; `gone_in` is the tick in which that was told.
        holder: the client's session that has it.
        was_delivered, needs_mark: whether it may be marked as redelivered, and whether it must be.
        available_in: the tick in which it was sure to be available to any consumer; None if it is not.
        deliveries: how often it came.
    """

    message: MessageModel
    queue: QueueModel
    is_moved: bool = False
    is_promised: bool = False
    leaving: set[object] = field(default_factory=set)
    is_gone: bool = False
    gone_in: int = -1
    holder: object | None = None
    was_delivered: bool = False
    needs_mark: bool = False
    available_in: int | None = None
    deliveries: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether it outlives the broker."""
        return self.message.persistent and self.queue.durable

    def need_not_be(self, now: float, but_for: object = None) -> bool:
        """Whether it may be gone, whatever becomes of `but_for`."""
        if self.is_gone or self.queue.is_leaving or self.message.may_be_expired(now):
            return True
        return any(each is not but_for for each in self.leaving)


@dataclass(eq=False, slots=True)
class Purge:
    """A purge that is under way. `certain`: the copies that it takes for sure."""

    certain: set[Copy]


@dataclass(eq=False, slots=True)
class Move:
    """A copy that goes to an alternate exchange."""

    source: Copy
    targets: list[Copy]


@dataclass(eq=False, slots=True)
class Transaction:
    """A local transaction. `is_sent`: its commit is on its way; `is_undone`: it is known to have failed."""

    messages: list[MessageModel] = field(default_factory=list)
    dequeues: list[Copy] = field(default_factory=list)
    is_sent: bool = False
    is_undone: bool = False


class Model:
    """What clients of one broker expect.

    Attributes:
        exchanges, queues, bindings: the topology, by name, and by exchange, queue and key.
        messages: number -> message that may still be somewhere.
        moves, transactions: those that are under way.
        tick: the number of the broker's tick.
        now: seconds since 1970.
        deliveries: how many messages came.
        early: how many of them were not promised by then.
        suspicions: copies that came while another consumer had them, and which one.
        overtaken: copies that did not come before one that was sent later, that one, and since when they could.
        ends_in_turns: whether transactions take several ticks, also when a session ends, before what it has goes back.
    """

    ends_in_turns: ClassVar = False

    def __init__(self) -> None:
        self.exchanges: dict[str, ExchangeModel] = {}
        self.queues: dict[str, QueueModel] = {}
        self.bindings: dict[tuple[str, str, str], BindingModel] = {}
        self.messages: dict[int, MessageModel] = {}
        self.moves: list[Move] = []
        self.transactions: list[Transaction] = []
        self.tick = 0
        self.now = 1_700_000_000.0
        self.suspicions: list[tuple[Copy, object]] = []
        self.overtaken: list[tuple[Copy, Copy, int]] = []
        self.numbers = self.deliveries = self.early = 0

    def unique(self) -> int:
        """A number that was never given out."""
        self.numbers += 1
        return self.numbers

    # ---- routing ----

    def ways(self, exchange: ExchangeModel, key: str) -> list[BindingModel]:
        """The bindings that a message takes for sure."""
        return [each for each in self.bindings.values() if each.is_sound and each.matches(exchange, key)]

    def may_be_on(self, message: MessageModel, queue: QueueModel) -> bool:
        """Whether a message may have come to a queue, by whatever way."""
        first = {copy.queue for copy in message.copies}
        if message.exchange is not None:
            first |= message.exchange.ever
        moved = (each.alternate.ever for each in first if each.alternate is not None)
        return queue in first.union(*moved)

    def copy_of(self, message: MessageModel, queue: QueueModel) -> Copy:
        """Its copy on a queue: a new one, of which nothing is promised, if none was expected."""
        copy = queue.copies.get(message.number)
        if copy is None:
            require(self.may_be_on(message, queue), f"message {message.number} is on {queue.name}")
            copy = self.expect(message, queue)
            copy.is_moved = message.exchange is None or queue not in message.exchange.ever
        return copy

    def bind(self, exchange: ExchangeModel, queue: QueueModel, key: str) -> BindingModel:
        """A binding is asked for."""
        binding = self.bindings[exchange.name, queue.name, key] = BindingModel(exchange, queue, key)
        exchange.ever.add(queue)
        for message in self.messages.values():
            if message.completed_at is None and binding.matches(message.exchange, message.key):
                message.perhaps.add(queue)
        return binding

    def expect(self, message: MessageModel, queue: QueueModel) -> Copy:
        """A copy that may be on a queue from now on."""
        copy = Copy(message, queue, leaving=set(queue.purges))
        queue.copies[message.number] = copy
        message.copies.append(copy)
        return copy

    # ---- publishing ----

    def publish(
        self,
        publisher: str,
        exchange: ExchangeModel | None,
        key: str,
        *,
        persistent: bool,
        ttl: float | None,
        transaction: Transaction | None,
        is_uniform: bool = False,
    ) -> MessageModel:
        """A message is sent."""
        number = self.unique()
        message = MessageModel(
            number, publisher, exchange, key, persistent, self.now, ttl, transaction=transaction, is_uniform=is_uniform
        )
        self.messages[number] = message
        if exchange is None:
            self.expect(message, self.queues[key])
        else:
            message.ways = self.ways(exchange, key)
            for queue in dict.fromkeys(way.queue for way in message.ways):
                self.expect(message, queue)
            unsound = [each for each in self.bindings.values() if not each.is_sound]
            message.perhaps = {each.queue for each in unsound if each.matches(exchange, key)}
        if transaction is not None:
            transaction.messages.append(message)
        return message

    def published(self, message: MessageModel) -> None:
        """Its transfer, or its commit, is completed."""
        message.completed_at = self.now
        sound = {way.queue for way in message.ways if way.is_sound}
        for copy in message.copies:
            if message.exchange is not None and copy.queue not in sound:
                continue
            if not copy.is_moved and copy.queue.is_sound:
                copy.is_promised = True
                if not copy.was_delivered and not copy.leaving and not copy.is_gone:
                    copy.available_in = self.tick

    # ---- deliveries ----

    def delivered(self, session: object, queue: QueueModel, number: int, body: bytes, *, is_marked: bool) -> Copy:
        """A message has come."""
        message = self.messages.get(number)
        if message is None:
            require(False, f"message {number} comes back on {queue.name}")
        assert message is not None
        require(body == message.body, f"message {number} is not what it was")
        copy = self.copy_of(message, queue)
        what = f"message {number} on {queue.name}"
        require(not copy.is_gone or copy.gone_in == self.tick, f"{what} comes back")
        require(not message.is_expired(self.now), f"{what} has expired")
        if copy.holder is not None:
            self.suspicions.append((copy, copy.holder))
        require(not copy.needs_mark or is_marked, f"{what} is not marked as redelivered")
        require(copy.was_delivered or not is_marked, f"{what} is marked as redelivered, and never was delivered")
        self._check_order(copy)
        self._learn(copy)
        self.deliveries += 1
        copy.holder, copy.was_delivered, copy.available_in = session, True, None
        copy.deliveries += 1
        return copy

    def _check_order(self, copy: Copy) -> None:
        """No earlier message of the same publisher is still available.

        On a priority queue what is of a lower priority may be.
        """
        if copy.is_moved:
            return
        number, publisher = copy.message.number, copy.message.publisher
        for earlier in copy.queue.copies.values():
            if earlier.message.number >= number or earlier.message.publisher != publisher or earlier.is_moved:
                continue
            if copy.queue.has_priorities and earlier.message.priority < copy.message.priority:
                continue
            since = earlier.available_in
            if since is not None and since < self.tick and not earlier.need_not_be(self.now):
                self.overtaken.append((earlier, copy, since))

    def _learn(self, copy: Copy) -> None:
        """What a delivery says of what was not known."""
        transaction = copy.message.transaction
        if transaction is not None:
            require(transaction.is_sent, f"message {copy.message.number} was not committed")
            self.committed(transaction)
        if copy.is_kept and copy.queue.is_early:
            self.early += not copy.is_promised
        elif copy.is_kept:
            copy.is_promised = True
        for each in [each for each in copy.leaving if isinstance(each, Transaction)]:
            if each is not transaction:
                self.aborted(each)
        copy.leaving = {each for each in copy.leaving if each in copy.queue.purges or copy.queue.is_leaving}
        for purge in copy.queue.purges:
            purge.certain.discard(copy)
        if not copy.queue.is_leaving:
            self.moves = [each for each in self.moves if each.source is not copy]

    def end_turn(self, has_ended: Callable[[object], bool]) -> None:
        """All that the broker had to send in this tick was sent: what looked wrong before is, or is not.

        Args:
            has_ended: says whether a session has.
        """
        for copy, holder in self.suspicions:
            what = f"message {copy.message.number} on {copy.queue.name}"
            require(has_ended(holder), f"{what} was delivered while another consumer had it")
        self.suspicions.clear()
        for earlier, copy, since in self.overtaken:
            what = f"message {copy.message.number} on {copy.queue.name} overtakes {earlier.message.number}"
            require(earlier.available_in != since, f"{what}, which is there since tick {since}, in turn {self.tick}")
        self.overtaken.clear()
        self.tick += 1

    # ---- messages go, or come back ----

    def gone(self, copies: Iterable[Copy]) -> None:
        """Their removal is completed."""
        for copy in copies:
            copy.is_gone, copy.gone_in, copy.holder, copy.available_in = True, self.tick, None, None

    def give_back(self, copies: Iterable[Copy]) -> list[tuple[Copy, int]]:
        """Their holder gives them back. For `back`: each with how often it came until then."""
        given = []
        for copy in copies:
            copy.holder = None
            given.append((copy, copy.deliveries))
        return given

    def back(self, given: Iterable[tuple[Copy, int]], *, is_marked: bool, is_now: bool = True) -> None:
        """The broker has them again, or had: what was delivered since may be with a holder that has yet to give it.

        Unless it has them `is_now`, it may have some later than others.
        """
        for copy, deliveries in given:
            if copy.holder is None and not copy.is_gone and not copy.leaving:
                copy.needs_mark = copy.needs_mark or is_marked
                if copy.deliveries == deliveries and is_now:
                    copy.available_in = self.tick

    def left_by(self, session: object, copies: Iterable[Copy], *, is_transactional: bool) -> None:
        """A session has ended, and what it had goes back."""
        own = [copy for copy in copies if copy.holder is session]
        self.back(self.give_back(own), is_marked=True, is_now=not (is_transactional and self.ends_in_turns))

    def move(self, copy: Copy) -> Move | None:
        """A copy is to go to its queue's alternate exchange. None if it may be there already."""
        alternate = copy.queue.alternate
        assert alternate is not None
        if self.may_come_twice(copy):
            return None
        queues = [way.queue for way in self.ways(alternate, copy.message.key)]
        targets = [self.expect(copy.message, queue) for queue in queues]
        for target in targets:
            target.is_moved = True
        move = Move(copy, targets)
        copy.leaving.add(move)
        self.moves.append(move)
        return move

    def may_come_twice(self, copy: Copy) -> bool:
        """Whether its message is, or may come, to where it would move, from elsewhere or since an earlier attempt."""
        alternate = copy.queue.alternate
        others = {each.queue for each in copy.message.copies if each is not copy and not each.is_gone}
        others |= copy.message.perhaps - {copy.queue}
        return alternate is not None and any(
            queue in alternate.ever or queue.alternate is alternate for queue in others
        )

    def may_be_deleted(self, queue: QueueModel) -> bool:
        """Whether no message that it has, or may have, may come twice to where it would move."""
        perhaps = [each for each in self.messages.values() if queue in each.perhaps and queue.alternate is not None]
        return not any(self.may_come_twice(copy) for copy in queue.copies.values()) and all(
            copy.is_gone or copy.queue is queue for message in perhaps for copy in message.copies
        )

    def moved(self, move: Move) -> None:
        """It has gone there, and nowhere else."""
        if move not in self.moves:
            return
        self.moves.remove(move)
        others = (each for each in move.source.leaving if each is not move and not isinstance(each, Purge))
        if not move.source.is_gone and not any(others):
            for target in move.targets:
                target.is_promised = True
        self.gone([move.source])

    # ---- transactions ----

    def commit(self, transaction: Transaction) -> None:
        """A commit is sent."""
        transaction.is_sent = True
        self.transactions.append(transaction)
        for copy in transaction.dequeues:
            copy.leaving.add(transaction)

    def committed(self, transaction: Transaction) -> None:
        """It is done. That may be known already, from a message of it."""
        require(not transaction.is_undone, "a transaction that was undone is committed")
        if transaction not in self.transactions:
            return
        self.transactions.remove(transaction)
        self.gone(transaction.dequeues)
        for message in transaction.messages:
            message.transaction = None
            self.published(message)

    def aborted(self, transaction: Transaction) -> None:
        """It never was. That may be known already, from a message that it was to remove."""
        if transaction.is_undone:
            return
        require(transaction in self.transactions, "a transaction that was committed is undone")
        self.transactions.remove(transaction)
        transaction.is_undone = True
        for copy in transaction.dequeues:
            copy.leaving.discard(transaction)
        self.forget(transaction.messages)

    def forget(self, messages: Sequence[MessageModel]) -> None:
        """Messages that must not be delivered."""
        for message in messages:
            del self.messages[message.number]
            for copy in message.copies:
                copy.queue.copies.pop(message.number, None)

    # ---- whole queues ----

    def purge(self, queue: QueueModel) -> Purge:
        """A purge is sent."""
        copies = list(queue.copies.values())
        certain = {each for each in copies if each.is_promised and not each.leaving and each.holder is None}
        purge = Purge({each for each in certain if each.available_in is not None})
        queue.purges.add(purge)
        for copy in copies:
            copy.leaving.add(purge)
        return purge

    def purged(self, queue: QueueModel, purge: Purge) -> None:
        """It is completed."""
        queue.purges.discard(purge)
        self.gone(purge.certain)

    def delete(self, queue: QueueModel) -> list[Move]:
        """The end of a queue is asked for. What it has for sure goes to its alternate exchange."""
        moves = []
        if queue.alternate is not None:
            for copy in list(queue.copies.values()):
                if copy.is_promised and not copy.need_not_be(self.now):
                    move = self.move(copy)
                    if move is not None:
                        moves.append(move)
        queue.is_leaving = True
        return moves

    def deleted(self, queue: QueueModel, moves: Sequence[Move]) -> None:
        """It is gone."""
        for move in moves:
            self.moved(move)
        self.gone(queue.copies.values())
        del self.queues[queue.name]
        for key in [key for key, binding in self.bindings.items() if binding.queue is queue]:
            del self.bindings[key]


# ---- what is found after a start ----


class Seen(NamedTuple):
    """A message that was found on a queue."""

    number: int
    body: bytes
    is_marked: bool


class Found(NamedTuple):
    """What was found.

    Attributes:
        was_clean: whether the broker had been stopped, and not killed.
        queues: name -> messages, in order.
        alternates: name of a queue -> its alternate exchange.
        exchanges: the names of those that are no standard ones.
        bindings: exchange, queue, key; but for the default exchange's.
    """

    was_clean: bool
    queues: Mapping[str, list[Seen]]
    alternates: Mapping[str, str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]


def check(model: Model, found: Found, order: Mapping[str, list[int]]) -> None:
    """Raise BrokenPromiseError unless that may be found.

    Args:
        model: what is expected.
        found: what is there.
        order: name of a queue -> the messages that were on it when the broker ended, in order.
    """
    _check_topology(model, found)
    numbers = {name: [each.number for each in seen] for name, seen in found.queues.items()}
    for name, seen in found.queues.items():
        require(len(set(numbers[name])) == len(seen), f"a message is twice on {name}: {numbers[name]}")
        queue = model.queues[name]
        for each in seen:
            _check_seen(model, queue, each, was_clean=found.was_clean)
        _check_order(queue, seen, order.get(name, []))
    there = {name: set(each) for name, each in numbers.items()}
    for queue in model.queues.values():
        for copy in queue.copies.values():
            if copy.is_kept and copy.is_promised and not copy.need_not_be(model.now):
                require(_is_there(copy, there), f"message {copy.message.number} is lost from {queue.name}")
    for move in model.moves:
        if move.source.is_kept and move.source.is_promised and not move.source.need_not_be(model.now, move):
            targets = all(_is_there(each, there) or each.need_not_be(model.now) for each in move.targets)
            is_kept = _is_there(move.source, there) or targets
            require(is_kept, f"message {move.source.message.number} was lost on its way from {move.source.queue.name}")
    for transaction in model.transactions:
        _check_transaction(model, transaction, there)


def _check_topology(model: Model, found: Found) -> None:
    queues = {queue.name: queue for queue in model.queues.values() if queue.durable}
    _check_names("queue", set(found.queues), queues)
    _check_names("exchange", found.exchanges, model.exchanges)
    bindings = {key: each for key, each in model.bindings.items() if each.queue.durable}
    require(found.bindings <= set(bindings), f"bindings are back: {found.bindings - set(bindings)}")
    for key, binding in bindings.items():
        require(not binding.is_sound or key in found.bindings, f"binding {key} is lost")
    for name, alternate in found.alternates.items():
        expected = queues[name].alternate
        require(alternate == ("" if expected is None else expected.name), f"{name} has lost its alternate exchange")


def _check_names(kind: str, found: set[str], known: Mapping[str, QueueModel] | Mapping[str, ExchangeModel]) -> None:
    require(found <= set(known), f"{kind} {found - set(known)} is back")
    for name, each in known.items():
        require(not each.is_certain or each.is_leaving or name in found, f"{kind} {name} is lost")


def _check_seen(model: Model, queue: QueueModel, seen: Seen, *, was_clean: bool) -> None:
    """A message that is there may be there."""
    what = f"message {seen.number} on {queue.name}"
    message = model.messages.get(seen.number)
    require(message is not None, f"{what} is back")
    assert message is not None
    require(seen.body == message.body, f"{what} is not what it was")
    require(message.persistent, f"{what} is transient")
    require(not message.is_expired(model.now), f"{what} has expired")
    require(message.transaction is None or message.transaction.is_sent, f"{what} was not committed")
    copy = queue.copies.get(seen.number)
    require(copy is not None or model.may_be_on(message, queue), f"{what} was never sent there")
    require(copy is None or not copy.is_gone, f"{what} is back")
    if was_clean:
        was_delivered = copy is not None and copy.was_delivered
        require(was_delivered or not seen.is_marked, f"{what} is marked as redelivered, and never was delivered")
        must_be = copy is not None and copy.needs_mark
        require(seen.is_marked or not must_be, f"{what} is not marked as redelivered")
    else:
        require(seen.is_marked, f"{what} is not marked as redelivered")


def _check_order(queue: QueueModel, seen: Iterable[Seen], order: Iterable[int]) -> None:
    """The order is that of each publisher, and that which it was before."""
    last: dict[str, int] = {}
    places = {number: place for place, number in enumerate(order)}
    before = -1
    for number, _, _ in seen:
        place = places.get(number, before)
        require(place >= before, f"message {number} on {queue.name} has another place than it had")
        before = place
        copy = queue.copies.get(number)
        if copy is not None and not copy.is_moved:
            publisher = copy.message.publisher
            require(last.get(publisher, 0) < number, f"message {number} on {queue.name} is out of order")
            last[publisher] = number


def _is_there(copy: Copy, there: Mapping[str, set[int]]) -> bool:
    return copy.message.number in there.get(copy.queue.name, ())


def _check_transaction(model: Model, transaction: Transaction, there: Mapping[str, set[int]]) -> None:
    """All of it, or nothing."""
    enqueues = [copy for each in transaction.messages for copy in each.copies if copy.is_kept]
    enqueues = [each for each in enqueues if each.queue.is_certain and each.queue.name in there]
    dequeues = [copy for copy in transaction.dequeues if copy.is_kept and copy.queue.name in there]
    sound = [each for each in enqueues if _goes_for_sure(each) and not each.need_not_be(model.now, transaction)]
    is_dequeued = not any(_is_there(each, there) for each in dequeues)
    is_committed = is_dequeued and all(_is_there(each, there) for each in sound)
    kept = [each for each in dequeues if each.is_promised and not each.need_not_be(model.now, transaction)]
    is_aborted = not any(_is_there(each, there) for each in enqueues) and all(_is_there(each, there) for each in kept)
    came = {each.message.number: _is_there(each, there) for each in enqueues}
    went = {each.message.number: not _is_there(each, there) for each in dequeues}
    require(is_committed or is_aborted, f"half a transaction: came {came}, went {went}")


def _goes_for_sure(copy: Copy) -> bool:
    """Whether a copy is put on its queue when its transaction is committed."""
    return copy.message.exchange is None or any(way.queue is copy.queue and way.is_sound for way in copy.message.ways)


# ---- the next life ----


def after(model: Model, found: Found) -> Model:
    """What is expected of the broker that was started again, now that this was found."""
    new = Model()
    new.tick, new.now, new.numbers = model.tick, model.now, model.numbers
    for name in sorted(found.exchanges):
        new.exchanges[name] = ExchangeModel(name, model.exchanges[name].kind, is_certain=True)
    queues = {name: model.queues[name] for name in found.queues}
    for name, old in queues.items():
        alternate = None if old.alternate is None else new.exchanges[old.alternate.name]
        new.queues[name] = QueueModel(name, True, alternate, old.has_priorities, old.is_early, is_certain=True)
    for old_exchange in model.exchanges.values():
        if old_exchange.name in new.exchanges:
            ever = (new.queues[each.name] for each in old_exchange.ever if each.name in new.queues)
            new.exchanges[old_exchange.name].ever = set(ever)
    for key in sorted(found.bindings):
        new.bindings[key] = BindingModel(new.exchanges[key[0]], new.queues[key[1]], key[2], is_certain=True)
    for name, seen in found.queues.items():
        for each in seen:
            _take_over(model, new, new.queues[name], model.queues[name].copies.get(each.number), each)
    return new


def _take_over(model: Model, new: Model, queue: QueueModel, old: Copy | None, seen: Seen) -> None:
    was, message = model.messages[seen.number], new.messages.get(seen.number)
    if message is None:
        exchange = None if was.exchange is None else new.exchanges.get(was.exchange.name)
        completed = was.completed_at or model.now
        message = new.messages[seen.number] = MessageModel(
            seen.number, was.publisher, exchange, was.key, True, was.sent_at, was.ttl, completed_at=completed,
            is_uniform=was.is_uniform,
        )  # fmt: skip
    copy = new.expect(message, queue)
    if old is not None:
        copy.is_moved = old.is_moved
    elif was.exchange is None:
        copy.is_moved = was.key != queue.name
    else:
        copy.is_moved = model.queues[queue.name] not in was.exchange.ever
    copy.is_promised, copy.available_in = True, new.tick
    copy.was_delivered = copy.needs_mark = seen.is_marked
