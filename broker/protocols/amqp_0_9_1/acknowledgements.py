"""Acknowledgements on one channel, in both directions: publisher confirms, and the settlement of deliveries.

**Confirms.** Messages are numbered from 1. The ledger (`model/completion`) tracks which are done: a message is done
when it is on the disk in every durable queue that it was put on, at once if it was stored nowhere. Done messages are
reported as runs:

    all below a number        one basic.ack with `multiple`, which covers everything before it
    a run beyond that         a basic.ack for each of its numbers, as an earlier message still waits
    refused                   a basic.nack: a queue has no room, or its journal cannot be written

A number is reported once, except that a later `multiple` may cover it again.

**Confirm or delivery first.** The second one is sent some ten microseconds later, or fifty if the system schedules the
first one's client in between. A consumer always waits for its message. The protocol does not say whether a publisher
waits, but its behaviour shows it: if so, its next message comes right after the confirm of all earlier ones. Messages
that arrive after all were confirmed keep a score: one within `PROMPT` adds 1, up to 8; a later one subtracts 2. While
the score is positive the publisher is taken to be waiting (`is_awaited`), and its confirm is sent first, otherwise the
delivery.

**Deliveries.**

    ack                          the message is dequeued; in a transaction, at commit
    nack, reject with requeue    it is available again at its position, marked as redelivered
    nack, reject without requeue it moves to the queue's dead-letter or alternate exchange; without one it is dequeued
    recover                      all unacknowledged messages are available again

The model defines these outcomes (`settlement`); the protocol has no answers to them, so nothing waits for the disk.
A delivery tag that is unknown, or was settled before, closes the channel. In a transaction, acknowledged deliveries
cannot be settled again until its end, and are unacknowledged again after a rollback. Many deliveries are settled in
turns, with the connection's input paused.

Source: AMQP 0-9-1, class basic and tx; RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from qstore.broker.model.completion import CompletionLedger, Done, Runs
from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.run import RunEntry
from qstore.broker.model.settlement import (
    AT_ONCE,
    MOVED_AT_ONCE,
    accept,
    drained,
    reject,
    reject_in_turns,
    release,
    release_in_turns,
)
from qstore.broker.protocols.amqp_0_9_1.consumer import Delivery
from qstore.broker.protocols.amqp_0_9_1.errors import SoftError
from qstore.broker.protocols.consumer import NO_NUMBER, HeldRun
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import METHOD, encode_frame
from qstore.formats.amqp_0_9_1.methods import ack_head, encode_ack_frame, encode_nack

if TYPE_CHECKING:
    from qstore.broker.model.message import Buffer
    from qstore.broker.protocols.amqp_0_9_1.channel import Channel
    from qstore.broker.protocols.amqp_0_9_1.consumer import BasicConsumer
    from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage

_tag = itemgetter(0)

PROMPT: Final = 0.0003
"""The longest time in seconds from a confirm to the next message of a publisher that has waited for it."""

_MAX_SCORE: Final = 8


class Confirms:
    """The confirms of one channel.

    Args:
        channel: its number.

    Attributes:
        ledger: which messages are done.
        published: number of the last message.
        is_in_step: whether one message has arrived last, after all others were confirmed.
    """

    __slots__ = (
        "_all_sent",
        "_channel",
        "_head",
        "_noted",
        "_refused",
        "_reported",
        "_score",
        "is_in_step",
        "ledger",
        "published",
    )

    def __init__(self, channel: int) -> None:
        self._channel, self._head = channel, ack_head(channel)
        self.ledger = CompletionLedger(1)
        self.published = self._noted = 0
        self.is_in_step = False
        self._reported = Done(1)
        self._score = 0  # see above; negative if recent messages came late
        self._all_sent = 0.0  # when the last confirm of all messages was sent; 0.0 after a message has followed
        self._refused: list[int] = []

    def refuse(self, number: int) -> None:
        """Refuse a message that is being published."""
        self.ledger.postpone(number)
        self._refused.append(number)

    def fail(self, runs: Runs) -> None:
        """Refuse messages whose records could not be written."""
        for first, last in runs:
            self._refused += range(first, last + 1)

    def fail_one(self, number: int) -> None:
        """As `fail`, for one message."""
        self._refused.append(number)

    @property
    def is_awaited(self) -> bool:
        """Whether every message is done, and the publisher seems to wait for the confirm."""
        return self._score > 0 and self.ledger.done.below > self.published

    def sent(self, now: float) -> None:
        """Note that the frames of `take` were sent. `now` is in seconds of a monotonic clock."""
        if self.ledger.done.below > self.published:
            self._all_sent = now

    def has_more(self, now: float) -> None:
        """Note that messages that arrived since the last call, if any, were written."""
        if self.published > self._noted:
            self.is_in_step = self._all_sent > 0.0 and self.published == self._noted + 1
            self._noted = self.published
        if self._all_sent and self.ledger.done.below <= self.published:
            if now - self._all_sent < PROMPT:
                self._score = min(self._score + 1, _MAX_SCORE)
            else:
                self._score = max(self._score - 2, -_MAX_SCORE)
            self._all_sent = 0.0

    def take(self) -> list[Buffer]:
        """The frames to send for messages done since the last call."""
        frames: list[Buffer] = []
        head = self._head
        reported, done = self._reported, self.ledger.done
        if self._refused:
            for number in self._refused:
                frames.append(encode_frame(METHOD, self._channel, encode_nack(number)))
                reported.add(number, number)
                self.ledger.complete([[number, number]])
            self._refused.clear()
        if done.below > reported.below:
            last = done.below - 1
            if not reported.beyond:
                frames.append(encode_ack_frame(head, last, multiple=last > reported.below))
            else:
                for first, end in reported.missing(reported.below, last):
                    frames.append(encode_ack_frame(head, end, multiple=end > first))
            reported.add(reported.below, last)
        for first, last in done.beyond:
            for begin, end in list(reported.missing(first, last)):
                frames += [encode_ack_frame(head, number, multiple=False) for number in range(begin, end + 1)]
                reported.add(begin, end)
        return frames


_COPIED_AT_ONCE: Final = 4_000  # deliveries that become unacknowledged again in one turn
RUNS_AT_ONCE: Final = 4_000
"""Messages of runs that are acknowledged in one turn: about 2 ms in pure Python."""

_SPARE: Final = 1_000  # tags without a delivery that are examined before a walk over all deliveries


def acknowledge(channel: Channel, tag: int, *, multiple: bool) -> None:
    """basic.ack. Raises SoftError or InternalError."""
    if channel.held_runs.count and channel.transaction is None and _acknowledge_runs(channel, tag, multiple=multiple):
        return
    if not multiple and channel.transaction is None:
        _acknowledge_one(channel, tag)
        return
    if multiple:
        if channel.unsettled_count > AT_ONCE:
            channel.do_in_turns(_acknowledging(channel, _take_in_turns(channel, tag)))
            return
        taken = _take(channel, tag, multiple=True)
    else:
        taken = _take(channel, tag, multiple=False)
    if channel.transaction is not None:
        channel.settled.update(taken)
        for queue, entry in _taken(taken.values()):
            channel.transaction.accept(queue, entry)
        return
    accept(channel.broker.tick, _taken(taken.values()), partial(_settled, channel))
    channel.return_credit(taken.values())


def _acknowledge_one(channel: Channel, tag: int) -> None:
    """As `acknowledge`, of one delivery outside of a transaction, that is not in a run."""
    delivery = channel.unsettled.pop(tag, None)
    if delivery is None:
        delivery = _take_single(channel, tag)
    if delivery.is_acquired:
        queue, entry, tick = delivery.queue, delivery.entry, channel.connection.tick
        if queue.is_deleted or tick.tracer is not None or isinstance(entry, RunEntry):
            accept(tick, ((queue, entry),), partial(_settled, channel))
        else:
            queue.dequeue(entry)  # as `accept`, without objects that are not needed for one
    channel.return_credit((delivery,))


def acknowledge_all(channel: Channel, first: int, count: int) -> None:
    """Basic.ack of each of `count` consecutive tags. Raises as `acknowledge`: later ones are not acknowledged then."""
    end = first + count
    while first < end and channel.is_open:
        run = channel.held_runs.beginning_with(first) if channel.transaction is None else None
        if run is None or not run.is_whole:
            acknowledge(channel, first, multiple=False)
            first += 1
        else:
            settled = min(run.entry.count, end - first)
            _settle_first(channel, run, settled)
            first += settled


def acknowledge_up_to(channel: Channel, tags: list[int]) -> int:
    """Basic.ack with `multiple` of each of some ascending tags. Returns how many were taken. Raises as `acknowledge`.

    If the unsettled deliveries are consecutive up to the last one, and all tags are among them, none of the tags can be
    wrong: then the last one stands for all. Otherwise only the first one is taken.
    """
    first = _first_tag(channel)
    is_whole = (
        channel.unsettled_count == channel.last_tag + 1 - first and first <= tags[0] and tags[-1] <= channel.last_tag
    )
    taken = len(tags) if is_whole and channel.transaction is None else 1
    acknowledge(channel, tags[taken - 1], multiple=True)
    return taken


def refuse(channel: Channel, tag: int, *, multiple: bool, requeue: bool) -> None:
    """basic.nack and basic.reject. Raises SoftError or ModelError."""
    if multiple and channel.unsettled_count > MOVED_AT_ONCE:
        portions = _take_in_turns(channel, tag)
        if channel.transaction is not None:
            channel.do_in_turns(_refusing(channel, portions, requeue=requeue))
        else:
            deliveries = chain.from_iterable(taken.values() for taken in portions)
            channel.do_in_turns(_refuse_in_turns(channel, deliveries, requeue=requeue))
        return
    taken = _take(channel, tag, multiple=multiple)
    if channel.transaction is not None:
        channel.refused.update({each: (delivery, requeue) for each, delivery in taken.items()})
        return
    _refuse(channel, taken, requeue=requeue)


def _refuse(channel: Channel, taken: dict[int, Delivery], *, requeue: bool) -> None:
    if requeue:
        release(_taken(taken.values()), is_redelivered=True)
    else:
        reject(channel.broker, _taken(taken.values()), partial(_settled, channel))
    channel.return_credit(taken.values())


def recover(channel: Channel) -> None:
    """basic.recover: make all unacknowledged messages available again."""
    if channel.unsettled_count > AT_ONCE:
        channel.do_in_turns(_refuse_in_turns(channel, all_unsettled(channel), requeue=True))
        return
    taken = list(all_unsettled(channel))
    release(_taken(taken), is_redelivered=True)
    channel.return_credit(taken)


# ---- many deliveries, in turns ----


def _take_in_turns(channel: Channel, tag: int) -> Iterator[dict[int, Delivery]]:
    """As `_take` with `multiple`, in portions. Raises SoftError at once if there are none."""
    if tag > channel.last_tag or (tag and _first_tag(channel) > tag):
        raise _unknown(tag)
    if tag:
        channel.settled_below = max(channel.settled_below, tag + 1)
    return _portions_below(channel, tag or channel.last_tag)


def _portions_below(channel: Channel, tag: int) -> Iterator[dict[int, Delivery]]:
    while True:
        unsettled = channel.unsettled
        end = min(tag, channel.held_runs.first - 1)
        tags = [each for each in islice(unsettled, AT_ONCE) if each <= end]
        if tags:
            yield {each: unsettled.pop(each) for each in tags}
            continue
        run = channel.held_runs.take_first(tag + 1, AT_ONCE)
        if run is None:
            return
        yield dict(_singly(run))


def _acknowledging(channel: Channel, portions: Iterator[dict[int, Delivery]]) -> Iterator[None]:
    transaction = channel.transaction
    for taken in portions:
        if transaction is not None:
            channel.settled.update(taken)
            for queue, entry in _taken(taken.values()):
                transaction.accept(queue, entry)
        else:
            accept(channel.broker.tick, _taken(taken.values()), partial(_settled, channel))
            channel.return_credit(taken.values())
        yield


def _refusing(channel: Channel, portions: Iterator[dict[int, Delivery]], *, requeue: bool) -> Iterator[None]:
    for taken in portions:
        channel.refused.update({each: (delivery, requeue) for each, delivery in taken.items()})
        yield


def _refuse_in_turns(channel: Channel, deliveries: Iterator[Delivery], *, requeue: bool) -> Iterator[None]:
    """As `_refuse`; the credit of the consumers returns when all are refused."""
    settled: dict[BasicConsumer, int] = {}
    acquired = _counted(deliveries, settled)
    try:
        if requeue:
            yield from release_in_turns(acquired, is_redelivered=True)
        else:
            yield from reject_in_turns(channel.broker, acquired, partial(_settled, channel))
    finally:
        channel.give_credit(settled)


def _counted(deliveries: Iterator[Delivery], settled: dict[BasicConsumer, int]) -> Iterator[tuple[Queue, Entry]]:
    """As `_taken`; also counts the deliveries of each consumer."""
    for delivery in deliveries:
        consumer = delivery.consumer
        if consumer is not None:
            settled[consumer] = settled.get(consumer, 0) + 1
        if delivery.is_acquired:
            yield delivery.queue, delivery.entry


def _settled(channel: Channel, error: Exception | None) -> None:
    """End a settlement that took time; after an error the channel fails."""
    if error is not None:
        channel.connection.fail(channel, error)


def _take(channel: Channel, tag: int, *, multiple: bool) -> dict[int, Delivery]:
    """Remove and return deliveries that the client settles. Raises SoftError if there are none."""
    if not multiple:
        delivery = channel.unsettled.pop(tag, None)
        if delivery is None:
            delivery = _take_single(channel, tag)
        return {tag: delivery}
    if channel.held_runs.count:
        _make_single(channel, tag or channel.last_tag)
    unsettled = channel.unsettled
    if not tag:
        taken, channel.unsettled = unsettled, {}
        return taken
    if tag > channel.last_tag:
        raise _unknown(tag)
    tags: Iterable[int] = range(channel.settled_below, tag + 1)
    if tag - channel.settled_below > len(unsettled) + _SPARE:  # many tags of consumers without acknowledgement
        tags = [each for each in unsettled if each <= tag]
    channel.settled_below = max(channel.settled_below, tag + 1)
    taken = {each: unsettled.pop(each) for each in tags if each in unsettled}
    if not taken:
        raise _unknown(tag)
    return taken


def _unknown(tag: int) -> SoftError:
    return SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")


def _taken(deliveries: Iterable[Delivery]) -> list[tuple[Queue, Entry]]:
    """The queues and entries of deliveries, except for those of browsers."""
    return [(each.queue, each.entry) for each in deliveries if each.is_acquired]


# ---- runs ----


def _acknowledge_runs(channel: Channel, tag: int, *, multiple: bool) -> bool:
    """Acknowledge deliveries in runs. Returns whether that is all; otherwise single deliveries are left.

    Raises InternalError.
    """
    held = channel.held_runs
    if not multiple:
        run = held.beginning_with(tag)
        if run is None or not run.is_whole:
            return False
        _settle_first(channel, run, 1)
        return True
    end = tag or channel.last_tag
    if end > channel.last_tag:
        return False
    if held.count > RUNS_AT_ONCE:
        channel.do_in_turns(_acknowledging_all(channel, tag))
        return True
    if not _settle_runs(channel, end, held.count) or _first_tag(channel) <= end:
        return False
    channel.settled_below = max(channel.settled_below, end + 1)
    return True


def _acknowledging_all(channel: Channel, tag: int) -> Iterator[None]:
    """As `acknowledge` with `multiple`, in turns: first what was delivered in runs."""
    end = tag or channel.last_tag
    is_any = False
    while _settle_runs(channel, end, RUNS_AT_ONCE):
        is_any = True
        yield
    if _first_tag(channel) <= end:
        yield from _acknowledging(channel, _portions_below(channel, end))
    elif not is_any and tag:
        raise _unknown(tag)
    channel.settled_below = max(channel.settled_below, end + 1)


def _settle_runs(channel: Channel, end: int, most: int) -> bool:
    """Dequeue at most that many messages of the first runs, with tags up to `end`. Returns whether there were any."""
    is_any = False
    while most > 0:
        run = channel.held_runs.beginning_with(channel.held_runs.first)
        if run is None or run.first > end or not run.is_whole:
            break
        count = min(run.entry.count, end + 1 - run.first, most)
        _settle_first(channel, run, count)
        most -= count
        is_any = True
    return is_any


def _settle_first(channel: Channel, run: HeldRun, count: int) -> None:
    """Dequeue the first messages of a run. Raises InternalError: those that are left stay unacknowledged."""
    before = run.entry.count
    try:
        run.queue.dequeue_run(run.entry, count)
    finally:
        settled = before - run.entry.count
        channel.held_runs.settled(run, settled)
        channel.give_credit({run.consumer: settled})


def _first_tag(channel: Channel) -> int:
    """The first tag that is not settled, or one after all."""
    return min(next(iter(channel.unsettled), NO_NUMBER), channel.held_runs.first)


def _take_single(channel: Channel, tag: int) -> Delivery:
    """Remove the delivery of a tag from a run. Raises SoftError if there is none."""
    run = channel.held_runs.beginning_with(tag)
    if run is None:
        raise _unknown(tag)
    if run.is_whole:
        ((_, delivery),) = _singly(channel.held_runs.take(run, 1))
        return delivery
    _add_singles(channel, channel.held_runs.take(run))
    return channel.unsettled.pop(tag)


def _make_single(channel: Channel, end: int) -> None:
    """Turn the messages of runs with tags up to `end` into single deliveries."""
    while (run := channel.held_runs.take_first(end + 1)) is not None:
        _add_singles(channel, run)


def _add_singles(channel: Channel, run: HeldRun) -> None:
    unsettled = channel.unsettled
    is_last = not unsettled or next(reversed(unsettled)) < run.first
    unsettled.update(_singly(run))
    if not is_last:
        channel.unsettled = dict(sorted(unsettled.items()))


def _singly(run: HeldRun) -> Iterator[tuple[int, Delivery]]:
    for tag, entry in run.singly():
        yield tag, Delivery(run.queue, entry, run.consumer)


def all_unsettled(channel: Channel) -> Iterator[Delivery]:
    """All deliveries that are not settled, in the order of their tags, which the channel forgets now."""
    singles, runs = channel.unsettled, channel.held_runs.take_all()
    channel.unsettled = {}
    return _in_order(singles, runs) if runs else drained(singles)


def _in_order(singles: dict[int, Delivery], runs: Iterable[HeldRun]) -> Iterator[Delivery]:
    for _, delivery in merge(singles.items(), chain.from_iterable(map(_singly, runs)), key=_tag):
        yield delivery


# ---- transactions ----


def commit(channel: Channel) -> None:
    """tx.commit. Raises ModelError: it cannot be committed, and nothing was changed."""
    transaction, broker, connection = channel.transaction, channel.broker, channel.connection
    assert transaction is not None
    broker.end_transaction(transaction)
    begin_transaction(channel)
    settled, refused = channel.settled, channel.refused
    returns, channel.returns = channel.returns, []
    channel.settled, channel.refused = {}, {}

    def done(error: ModelError | None) -> None:
        if error is not None:
            channel.txn_rejects += 1
            of_refused = _counted((delivery for delivery, _ in refused.values()), {})
            channel.broker.tick.turns.do(channel, release_in_turns(of_refused, is_redelivered=True))
            connection.fail(channel, error)
        else:
            _committed(channel, returns, settled, refused)
        connection.unpause()

    connection.pause()
    if transaction.is_large:
        channel.broker.tick.turns.do(channel, transaction.commit_in_turns(done))
        return
    try:
        transaction.commit(done)
    except ModelError:
        connection.unpause()
        channel.txn_rejects += 1
        transaction.count_end(is_committed=False)
        channel.unsettled.update(settled)
        channel.refused = refused
        raise


def _committed(
    channel: Channel,
    returns: list[tuple[bytes, BasicMessage]],
    settled: dict[int, Delivery],
    refused: dict[int, tuple[Delivery, bool]],
) -> None:
    """Notify the client, if still connected, that a transaction is on the disk; then settle those outside of it."""
    if channel.is_open:
        channel.txn_commits += 1
        for method, message in returns:
            channel.send_content(method, message)
        channel.send("tx.commit-ok")
    if len(settled) + len(refused) > MOVED_AT_ONCE:
        channel.do_in_turns(_after_commit(channel, settled, refused))
        return
    if channel.is_open:
        channel.return_credit(settled.values())
    left = dict(refused)
    try:
        for tag, (delivery, requeue) in refused.items():
            del left[tag]
            _refuse(channel, {tag: delivery}, requeue=requeue)
    except ModelError as error:
        release(_taken(delivery for delivery, _ in left.values()), is_redelivered=True)
        channel.connection.fail(channel, error)


def _after_commit(
    channel: Channel, settled: dict[int, Delivery], refused: dict[int, tuple[Delivery, bool]]
) -> Iterator[None]:
    """As `_committed`, for a transaction of many deliveries: settle what is outside of it."""
    deliveries = drained(settled)
    while portion := list(islice(deliveries, AT_ONCE)):
        channel.return_credit(portion)
        yield
    requeued: list[Delivery] = []
    rejected = _rejected(refused, requeued)
    yield from _refuse_in_turns(channel, rejected, requeue=False)
    yield from _refuse_in_turns(channel, iter(requeued), requeue=True)


def _rejected(refused: dict[int, tuple[Delivery, bool]], requeued: list[Delivery]) -> Iterator[Delivery]:
    """The rejected deliveries that are not requeued; adds the others to a list."""
    for delivery, requeue in drained(refused):
        if requeue:
            requeued.append(delivery)
        else:
            yield delivery


def roll_back(channel: Channel) -> None:
    """tx.rollback: discard published messages, and make settled deliveries unacknowledged again.

    Clients of older versions than AMQP 0-9-1 expect these again, instead of asking for them with basic.recover.
    """
    transaction = channel.transaction
    assert transaction is not None
    channel.broker.end_transaction(transaction)
    transaction.count_end(is_committed=False)
    channel.txn_rejects += 1
    begin_transaction(channel)
    if channel.connection.version.is_older:
        channel.do_in_turns(_returning(channel))
        return
    if len(channel.settled) + len(channel.refused) > AT_ONCE:
        channel.do_in_turns(_rolling_back(channel))
        return
    refused = {tag: delivery for tag, (delivery, _) in channel.refused.items()}
    again = {**channel.unsettled, **channel.settled, **refused}
    channel.unsettled = dict(sorted(again.items()))
    channel.settled_below = min(channel.unsettled, default=1)
    channel.settled, channel.refused, channel.returns = {}, {}, []
    channel.send("tx.rollback-ok")


def _returning(channel: Channel) -> Iterator[None]:
    """As `roll_back` for clients of older versions."""
    runs = yield from _of_transaction(channel)
    yield from _refuse_in_turns(channel, (delivery for _, delivery in merge(*runs)), requeue=True)
    if channel.is_open:
        channel.send("tx.rollback-ok")


def _of_transaction(channel: Channel) -> Generator[None, None, list[list[tuple[int, Delivery]]]]:
    """The deliveries that were settled in the transaction, which forgets them, with their tags, in sorted lists."""
    settled, refused = channel.settled, channel.refused
    channel.settled, channel.refused, channel.returns = {}, {}, []
    runs: list[list[tuple[int, Delivery]]] = []
    back = chain(settled.items(), ((tag, delivery) for tag, (delivery, _) in refused.items()))
    while portion := sorted(islice(back, AT_ONCE)):
        if runs and runs[-1][-1] < portion[0]:
            runs[-1] += portion
        else:
            runs.append(portion)
        yield
    return runs


def _rolling_back(channel: Channel) -> Iterator[None]:
    """As `roll_back`, for many deliveries."""
    held, channel.unsettled = channel.unsettled, {}
    runs = yield from _of_transaction(channel)
    items = merge(held.items(), *runs)
    again: dict[int, Delivery] = {}
    while portion := list(islice(items, _COPIED_AT_ONCE)):
        again.update(portion)
        yield
    while len(channel.unsettled) > _COPIED_AT_ONCE:  # delivered meanwhile
        later, channel.unsettled = channel.unsettled, {}
        again.update(later)
        yield
    again.update(channel.unsettled)
    channel.unsettled = again
    channel.settled_below = next(iter(again), 1)
    if channel.is_open:
        channel.send("tx.rollback-ok")


def begin_transaction(channel: Channel) -> None:
    """Begin a transaction of everything that is published and settled from now on."""
    channel.txn_starts += 1
    channel.transaction = channel.broker.begin_transaction(channel.broker.settings.transaction_bytes)
