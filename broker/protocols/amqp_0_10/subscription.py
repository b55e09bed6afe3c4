"""The consumers of a session with their credit, and their deliveries until these are settled.

    flow mode   credit of completed transfers
    credit      stays used up
    window      is returned

Credit is counted in messages and in bytes of header and content; a subscription needs both to get messages, and the
value 0xffffffff means unlimited. Initially the mode is window and there is no credit. `deliver` handles every outgoing
message: it adds the frames of a transfer to the connection's output. Frame headers are cached, by the length of header
and body.

A subscription with a selector gets only the messages that match it, and leaves the others alone. The selector is the
argument `x-apache-selector` of message.subscribe, as in qpidd, or `x-filter-jms-selector`, the Java client's name for
it. All subscriptions of a queue with the same selector are of one kind: a message that one of them has declined is not
evaluated for the others. Evaluated bytes count like bytes sent to its connection: when the connection has no room left,
others are served first. So a costly selector delays other clients by one evaluation a tick, not by a whole queue.

Deliveries of a session:

    unsettled    messages that the client has acquired, by the number of their transfer: until it accepts, releases or
                 rejects them, or the session ends
    browsed      messages delivered without acquiring them, which the client may still acquire
    runs         transfers that the client has not completed, in order, for returning credit

Source: AMQP 0-10, class message, and session.completed; Apache Qpid C++, SemanticState (selectors).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import StreamRun
from qstore.broker.model.run import MessageRun, RunEntry
from qstore.broker.model.settlement import AT_ONCE, drained
from qstore.broker.protocols.amqp_0_10.message import TransferIn, TransferMessage, run_as_transfer
from qstore.broker.protocols.amqp_0_10.session import merge_ranges, unwrap_ranges
from qstore.broker.protocols.consumer import (
    FramedConsumer,
    HeldRun,
    HeldRuns,
    SelectorCheck,
    numbers_among,
    with_numbers,
)
from qstore.broker.protocols.message import native_of
from qstore.broker.protocols.output import CONVERSION_OF_HEADER, COST_OF_CONVERSION, COST_OF_MESSAGE
from qstore.formats.amqp_0_10.codes import AcceptMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    encode_frame,
)
from qstore.formats.kernels import write_deliveries
from qstore.formats.kernels.bodies import SizeField
from qstore.formats.values import EMPTY_MAP

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.selectors.candidate import LastCandidate
    from qstore.broker.model.selectors.selector import Selector
    from qstore.broker.protocols.amqp_0_10.server_session import ServerSession

UNLIMITED: Final = 0xFFFFFFFF
_WHOLE: Final = FIRST_FRAME | LAST_FRAME


class Subscription(FramedConsumer):
    """A consumer.

    Args:
        session: its session.
        destination: its name in the session.
        queue: the queue that it consumes.
        accept_mode: whether the client accepts messages explicitly.
        acquires: whether it acquires messages, or browses them.

    Attributes:
        session: as above.
        is_windowed: whether the flow mode is window.
        epoch: incremented when its credit is taken away: deliveries of earlier epochs return no credit.
        is_stopped: whether message.stop has taken its credit, and none was granted since.
        message_credit, byte_credit: remaining credit.
        granted: message credit that the client has granted since it was taken away.
        payload: the command that is sent with each message.
    """

    __slots__ = (
        "_given", "_unlimited", "byte_credit", "epoch", "granted", "is_stopped", "message_credit", "payload", "session",
    )  # fmt: skip

    def __init__(
        self, session: ServerSession, destination: str, queue: Queue, accept_mode: int, *, acquires: bool
    ) -> None:
        is_accepting = accept_mode == AcceptMode.EXPLICIT
        super().__init__(destination, queue, acquires=acquires, is_accepting=is_accepting, arguments=EMPTY_MAP)
        self.session = session
        self.epoch = 0
        self.is_stopped = False
        self.message_credit = self.byte_credit = self.granted = 0
        self._given = 0  # message credit granted, minus credit taken away
        self._unlimited = 0  # messages delivered with unlimited credit
        self.payload = self._transfer(asks=False)

    def ask_for_answers(self) -> None:
        """Have the client complete and accept each message at once: qpidd's routes wait until they are asked."""
        self.payload = self._transfer(asks=True)

    def _transfer(self, *, asks: bool) -> bytes:
        accept_mode = AcceptMode.EXPLICIT if self.is_accepting else AcceptMode.NONE
        return encode_command(
            "message.transfer", sync=asks, destination=self.destination, accept_mode=accept_mode,
            acquire_mode=int(not self.acquires),
        )  # fmt: skip

    # ---- credit ----

    def set_flow_mode(self, mode: int) -> None:
        """Change the flow mode, which takes away all credit."""
        self.is_windowed = mode == FlowMode.WINDOW
        self.stop()

    def add_credit(self, unit: int, value: int) -> None:
        """Add credit that the client grants."""
        if unit == CreditUnit.MESSAGE:
            self._set_message_credit(UNLIMITED if value == UNLIMITED else min(self.message_credit + value, UNLIMITED))
            self.granted = min(self.granted + value, UNLIMITED)
        else:
            self.byte_credit = UNLIMITED if value == UNLIMITED else min(self.byte_credit + value, UNLIMITED)
        self.wake()

    def _set_message_credit(self, credit: int) -> None:
        """Grant or take away credit. Deliveries are counted by the difference to what was granted."""
        self._given += credit - self.message_credit
        self.message_credit = credit

    @property
    def prefetch(self) -> int:
        """As `ManagedSubscription.prefetch`: its window."""
        return self.granted if self.is_windowed and self.granted != UNLIMITED else 0

    @property
    def delivered(self) -> int:
        """Number of messages delivered."""
        return self._given - self.message_credit + self._unlimited

    def return_credit(self, messages: int, size: int, epoch: int) -> None:
        """Return the credit of completed transfers of that epoch, if the mode is window."""
        if not self.is_windowed or epoch != self.epoch:
            return
        if self.message_credit != UNLIMITED:
            self._set_message_credit(self.message_credit + messages)
        if self.byte_credit != UNLIMITED:
            self.byte_credit += size
        self.wake()

    def stop(self) -> None:
        """Take away all credit: nothing is delivered until the client grants new credit."""
        self._set_message_credit(0)
        self.byte_credit = self.granted = 0
        self.epoch += 1

    def cancel(self) -> None:
        """Stop delivering for good: transfers not completed yet return no credit."""
        self.is_windowed = False
        self.stop()

    def wake(self) -> None:
        """Mark the subscription as ready if it can take messages; do nothing while its queue is being deleted."""
        if self.message_credit and self.byte_credit and not self.is_waiting and self.session.can_send:
            if not self.queue.is_deleted:
                self.queue.wake(self)
            elif self.queue.is_gone:
                self.session.subscription_lost(self)

    @property
    def kind(self) -> Hashable:
        """The same for all without a selector: each declines exactly the messages that AMQP 0-10 cannot represent."""
        return "AMQP 0-10"

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`; False while the session is detached."""
        return bool(self.message_credit and self.byte_credit) and self.session.transport is not None

    @property
    def publisher(self) -> object:
        """Identifies messages published over its connection."""
        return self.session.publisher

    @property
    def is_blocked(self) -> bool:
        """Whether it has credit, but the connection cannot accept more now."""
        has_credit = bool(self.message_credit and self.byte_credit)
        return has_credit and (not self.session.can_send or self.session.connection.room <= 0)

    # ---- messages ----

    def deliver(self, entry: Entry) -> int:
        """Send a message, if there is credit for it. Returns as `Consumer.deliver` does."""
        session = self.session
        connection = session.connection
        credit = self.message_credit
        if not credit or connection.room <= 0 or not session.can_send:
            return REFUSED
        message = entry.message
        if entry.is_redelivered:
            message = self.queue.as_returned(entry)
        if not isinstance(message, TransferMessage):
            transfer = native_of(message, TransferMessage, TransferIn(session.virtual_host))
            if transfer is None:
                connection.room -= COST_OF_CONVERSION
                connection.has_output()  # renews its room
                return NOT_FOR_ME
            message = transfer
        if message is not entry.message:  # it was converted, or its headers were changed
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * len(message.header)
            connection.has_output()
        header, body = message.header, message.body
        size = len(header) + len(body)
        if self.byte_credit != UNLIMITED:
            if size > self.byte_credit:
                return REFUSED
            self.byte_credit -= size
        if credit != UNLIMITED:
            self.message_credit = credit = credit - 1
        else:
            self._unlimited += 1
        if not message.expires_at:
            if entry.is_redelivered:
                header = message.header_for_redelivery()
        else:
            header = message.header_for_delivery(is_redelivered=entry.is_redelivered, now=session.clock())
        number = session.sent
        if session.is_resumable or size > session.max_plain_bytes or not message.has_body:
            session.send_payload(self.payload, header, body if message.has_body else None)
        else:
            session.sent = number + 1
            heads = self._heads
            length = len(header)
            head = heads.get(length) or self.make_head(length)
            length = len(body)
            body_head = self._body_heads.get(length) or self.make_body_head(length)
            connection.output += (head, header, body_head, body)  # type: ignore[arg-type]  # one frame: it is bytes
        session.delivered(number, self, entry, size)
        if session.is_failed:
            return TAKEN  # already removed from the queue's ring: TAKEN_LAST would remove another consumer
        return TAKEN if credit and connection.room > 0 else TAKEN_LAST

    def room_for(self, run: MessageRun) -> int:
        """As `Consumer.room_for`."""
        session, size = self.session, run.largest
        room = session.connection.room
        if room <= 0 or not session.can_send:
            return 0
        if not isinstance(run.template, TransferMessage):
            found = run_as_transfer(run, session.virtual_host)
            if found is None:
                return 0
            size = len(found[0].header) + found[1].largest
        if session.is_resumable or size > session.max_plain_bytes:
            return 0
        room = min(-(-room // (size + COST_OF_MESSAGE)), self.message_credit)  # the last may exceed the room
        if self.byte_credit == UNLIMITED:
            return room
        return min(room, self.byte_credit // max(size, 1)) if run.bodies.is_even else 0

    def deliver_run(self, run: RunEntry) -> int:
        """As `Consumer.deliver_run`."""
        session, messages, count = self.session, run.run, run.count
        connection, found = session.connection, run_as_transfer(messages, session.virtual_host)
        assert found is not None, "room_for has found it"
        message, bodies, field = found
        size, total = messages.largest, run.size
        if message is not messages.template:
            size = len(message.header) + bodies.largest
            total = count * size
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * len(message.header)
        header = message.header_for_redelivery() if run.is_redelivered else message.header
        if self.byte_credit != UNLIMITED:
            self.byte_credit -= total
        if self.message_credit != UNLIMITED:
            self.message_credit -= count
        else:
            self._unlimited += count
        number = session.sent
        session.sent = number + count
        head = self._heads.get(len(header)) or self.make_head(len(header))
        body_head = self._body_heads.get(bodies.largest) or self.make_body_head(bodies.largest)
        frames = b"".join((head, header, body_head))
        fields: tuple[SizeField, ...] = ()
        if not bodies.is_even:
            fields = (SizeField(len(frames) - FRAME.size + 2, 2, FRAME.size),)
        if field is not None:
            fields = (field.moved(len(head)), *fields)
        connection.output.append(
            write_deliveries(
                frames, -1, 0, fields, bodies.data, bodies.at, bodies.starts, bodies.gap, run.first, count, b""
            )
        )
        session.delivered_run(number, self, run, size)
        if session.is_failed:
            return TAKEN
        return TAKEN if self.message_credit and connection.room > 0 else TAKEN_LAST

    def encode_head(self, length: int) -> bytes:
        """As `FramedConsumer.encode_head`: the command's frame, and the header's frame header."""
        channel = self.session.channel
        command = encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, channel, self.payload)
        return command + FRAME.pack(_WHOLE, HEADER, FRAME.size + length, 0, TRACK_COMMAND, channel, 0)

    def encode_body_head(self, length: int) -> bytes:
        """As `FramedConsumer.encode_body_head`: the body's frame header."""
        flags = LAST_SEGMENT | _WHOLE
        return FRAME.pack(flags, BODY, FRAME.size + length, 0, TRACK_COMMAND, self.session.channel, 0)

    def queue_deleted(self) -> None:
        """End the session because the queue was deleted, at once or when this subscription gets credit."""
        is_there = self.session.subscriptions.get(self.destination) is self  # otherwise it has ended meanwhile
        if is_there and self.message_credit and self.byte_credit:
            self.session.subscription_lost(self)

    def fail(self, error: Exception) -> None:
        """As `Consumer.fail`: end the session."""
        if self.session.subscriptions.get(self.destination) is self:
            self.session.subscription_failed(self, error)


class SelectiveSubscription(Subscription):
    """A consumer with a selector.

    Args:
        session, destination, queue, accept_mode, acquires: as for `Subscription`.
        selector: the selector.
        last: the last candidate examined by any consumer of the broker.
    """

    __slots__ = ("_check", "_kind")

    def __init__(
        self,
        session: ServerSession,
        destination: str,
        queue: Queue,
        accept_mode: int,
        *,
        acquires: bool,
        selector: Selector,
        last: LastCandidate,
    ) -> None:
        super().__init__(session, destination, queue, accept_mode, acquires=acquires)
        self._check = SelectorCheck(selector, last)
        self._kind = ("AMQP 0-10", selector.text)

    @property
    def kind(self) -> Hashable:
        """Equal for equal selectors."""
        return self._kind

    def room_for(self, run: MessageRun) -> int:
        """As `Consumer.room_for`: none if the messages of the run do not match."""
        room = super().room_for(run)
        return room if room and self._check.admits_run(run, self.session.connection) else 0

    def deliver(self, entry: Entry) -> int:
        """Send a message if it matches and there is credit for it. Returns as `Consumer.deliver` does."""
        session = self.session
        connection = session.connection
        if not self.message_credit or connection.room <= 0 or not session.can_send:
            return REFUSED
        check = self._check
        result = super().deliver(entry) if check.admits(entry) else NOT_FOR_ME
        check.answered(entry, connection, is_refused=result == REFUSED)  # for lack of byte credit
        return result


class TracedSubscription(Subscription):
    """A consumer of a broker that traces sampled messages."""

    __slots__ = ()

    def deliver(self, entry: Entry) -> int:
        """As `Subscription.deliver`."""
        message = entry.message
        return _traced(self, entry, message, super().deliver(entry))

    def room_for(self, run: MessageRun) -> int:
        """As `Subscription.room_for`: sampled messages are delivered singly."""
        tracer = self.session.tick.tracer
        return 0 if tracer is not None and tracer.samples(run.template) else super().room_for(run)


class StreamSubscription(TracedSubscription):
    """A consumer of a stream: each message has its offset in a header."""

    __slots__ = ()

    @property
    def numbers_runs(self) -> bool:
        """As `Reader.numbers_runs`."""
        return True

    def room_for(self, run: MessageRun) -> int:
        """As `Subscription.room_for`: messages of other protocols are converted singly."""
        return super().room_for(run) if isinstance(run.template, TransferMessage) else 0

    def deliver_run(self, run: RunEntry) -> int:
        """As `Subscription.deliver_run`."""
        first, count, messages, output = run.first, run.count, run.run, self.session.connection.output
        at = len(self.make_head(len(messages.template.header_bytes)))
        number = run.position - 1
        place = len(output)
        result = super().deliver_run(run)
        if isinstance(run, StreamRun) and run.number_at >= 0:
            output[place] = with_numbers(output[place], at + run.number_at, number, messages.bodies, first, count)
        return result


class TracedSelectiveSubscription(SelectiveSubscription):
    """A consumer with a selector, of a broker that traces sampled messages."""

    __slots__ = ()

    def deliver(self, entry: Entry) -> int:
        """As `SelectiveSubscription.deliver`."""
        message = entry.message
        return _traced(self, entry, message, super().deliver(entry))


def _traced(subscription: Subscription, entry: Entry, message: Message, result: int) -> int:
    """Trace the delivery of a message, if it is sampled. Returns the result of the delivery."""
    tracer = subscription.session.tick.tracer
    if tracer is not None and result in (TAKEN, TAKEN_LAST) and tracer.samples(message):
        is_settled = not (subscription.acquires and subscription.is_accepting)
        tracer.delivered(subscription.queue, entry, message, subscription.session, is_settled=is_settled)
    return result


_number = itemgetter(0)

MAX_RANGES: Final = 0xFFFF // 8  # in one sequence-set: its size is 16 bits wide
MAX_BROWSED: Final = 65_536  # browsed deliveries of one session; beyond it, the oldest is forgotten


class Delivery:
    """A message that was delivered.

    Args:
        subscription: the subscription that got it.
        entry: the message's entry on its queue.

    Attributes:
        subscription, entry: as above.
    """

    __slots__ = ("entry", "subscription")

    def __init__(self, subscription: Subscription, entry: Entry) -> None:
        self.subscription, self.entry = subscription, entry


class _Run:
    """Consecutive transfers of one subscription: of the same size, or of any if the credit of bytes is unlimited."""

    __slots__ = ("epoch", "first", "last", "size", "subscription")

    def __init__(self, number: int, subscription: Subscription, size: int, epoch: int) -> None:
        self.first = self.last = number
        self.subscription, self.size, self.epoch = subscription, size, epoch


class Deliveries:
    """The deliveries of one session.

    Attributes:
        unsettled: number of the transfer -> acquired and unsettled delivery.
        held: those that were delivered in runs.
        browsed: number of the transfer -> browsed delivery.
    """

    __slots__ = ("_accepted", "_browsed_in_order", "_runs", "browsed", "held", "unsettled")

    def __init__(self) -> None:
        self.unsettled: dict[int, Delivery] = {}
        self.held = HeldRuns()
        self.browsed: dict[int, Delivery] = {}
        self._browsed_in_order: deque[int] = deque()  # including some that are gone
        self._accepted: set[int] = set()  # keys of `unsettled`, to be settled at commit
        self._runs: deque[_Run] = deque()

    def add(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """Record a delivery."""
        if not subscription.acquires:
            self.browsed[number] = Delivery(subscription, entry)
            self._browsed_in_order.append(number)
            if len(self._browsed_in_order) > MAX_BROWSED:
                self._forget_oldest()
        elif subscription.is_accepting:
            self.unsettled[number] = Delivery(subscription, entry)
        if subscription.is_windowed or not subscription.acquires:
            self._await_completion(number, number, subscription, size)

    def add_run(self, number: int, subscription: Subscription, run: RunEntry, size: int) -> None:
        """Record the delivery of a run, from that number on, with messages of at most `size` bytes."""
        if subscription.is_accepting:
            self.held.add(HeldRun(subscription.queue, run, subscription, number))
        if subscription.is_windowed:
            self._await_completion(number, number + run.count - 1, subscription, size)

    @property
    def count(self) -> int:
        """Acquired and unsettled deliveries."""
        return len(self.unsettled) + self.held.count

    def _await_completion(self, number: int, last: int, subscription: Subscription, size: int) -> None:
        runs = self._runs
        if runs:
            run = runs[-1]
            if (
                run.last == number - 1
                and run.subscription is subscription
                and run.size == size
                and run.epoch == subscription.epoch
            ):
                run.last = last
                return
        runs.append(_Run(number, subscription, size, subscription.epoch))
        runs[-1].last = last

    def _forget_oldest(self) -> None:
        """Forget browsed deliveries beyond the limit. Finding the first of a dictionary is slow after deletions."""
        order, browsed = self._browsed_in_order, self.browsed
        while order and (len(browsed) > MAX_BROWSED or order[0] not in browsed):
            browsed.pop(order.popleft(), None)
        if len(order) > 2 * MAX_BROWSED:  # many after the oldest are gone
            self._browsed_in_order = deque(browsed)

    # ---- completion by the client ----

    def completed(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Return the credit of transfers that the client has completed, given in merged ranges."""
        runs = self._runs
        before: list[_Run] = []
        for first, last in ranges:
            while runs and runs[0].first <= last:
                run = runs.popleft()
                if run.first < first:
                    before.append(self._cut(run, first))
                    if before[-1] is run:
                        continue
                end = min(run.last, last)
                self._run_completed(run, end)
                if end < run.last:
                    run.first = end + 1
                    runs.appendleft(run)
        runs.extendleft(reversed(before))

    @staticmethod
    def _cut(run: _Run, number: int) -> _Run:
        """Split off and return the part of a run before `number`; the run itself if that is all of it."""
        if run.last < number:
            return run
        before = _Run(run.first, run.subscription, run.size, run.epoch)
        before.last = number - 1
        run.first = number
        return before

    def _run_completed(self, run: _Run, last: int) -> None:
        count = last - run.first + 1
        subscription = run.subscription
        subscription.return_credit(count, count * run.size, run.epoch)
        if not subscription.acquires and not subscription.is_accepting:
            for number in range(run.first, last + 1):
                self.browsed.pop(number, None)

    # ---- settlement by the client ----

    def settle(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[tuple[Queue, Entry]]:
        """Remove settled deliveries and yield their queues and entries; browsed ones are forgotten.

        Args:
            ranges: of transfers, as received.
            near: the number of the next transfer.
        """
        wanted = merge_ranges(unwrap_ranges(ranges or (), near))
        unsettled, accepted = self.unsettled, self._accepted
        for part in self._parts(wanted):
            if isinstance(part, HeldRun):
                yield part.queue, part.entry
                continue
            for number in numbers_among(part, unsettled, near):
                if accepted:
                    accepted.discard(number)
                delivery = unsettled.pop(number)
                yield delivery.subscription.queue, delivery.entry
        if self.browsed:
            for number in list(numbers_among(wanted, self.browsed, near)):
                del self.browsed[number]

    def accept_at_commit(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[tuple[Queue, Entry]]:
        """Queues and entries of deliveries accepted in a transaction; they stay unsettled until the commit."""
        wanted = merge_ranges(unwrap_ranges(ranges or (), near))
        for number in self._single_numbers(wanted, near):
            if number not in self._accepted:
                self._accepted.add(number)
                delivery = self.unsettled[number]
                yield delivery.subscription.queue, delivery.entry

    def _parts(self, ranges: list[tuple[int, int]]) -> Iterator[HeldRun | list[tuple[int, int]]]:
        """The unsettled deliveries in merged ranges, in ascending order: parts of runs, then removed, and other ranges.

        Each part is removed when it is its turn.
        """
        held = self.held
        if not held.count:
            yield ranges
            return
        for first, last in ranges:
            at = first
            while (run := held.overlapping(at, last)) is not None:
                if not run.is_whole:
                    self._make_single(held.take(run))
                elif at < run.first:
                    yield [(at, run.first - 1)]
                    at = run.first
                else:
                    part = held.beginning_with(at)
                    assert part is not None
                    taken = held.take(part, min(AT_ONCE, last + 1 - at))
                    at = taken.end
                    yield taken
            yield [(at, last)]

    def _make_single(self, run: HeldRun) -> None:
        self.unsettled.update(_singly(run))

    def _single_numbers(self, ranges: list[tuple[int, int]], near: int) -> Iterator[int]:
        """The numbers of unsettled deliveries in merged ranges, each of which is single now."""
        for part in self._parts(ranges):
            if isinstance(part, HeldRun):
                numbers = range(part.first, part.end)
                self._make_single(part)
                yield from numbers
            else:
                yield from numbers_among(part, self.unsettled, near)

    def are_more(self, count: int, ranges: Iterable[tuple[int, int]] | None, near: int) -> bool:
        """Whether more than `count` deliveries may be settled with these ranges."""
        if self.count <= count:
            return False
        return sum(last - first + 1 for first, last in unwrap_ranges(ranges or (), near)) > count

    def commit(self) -> dict[int, Delivery]:
        """Remove and return the deliveries accepted in the transaction, by number."""
        accepted, self._accepted = self._accepted, set()
        return {number: self.unsettled.pop(number) for number in accepted}

    def commit_in_turns(self) -> Iterator[None]:
        """Forget the many deliveries accepted in the transaction, as work in turns."""
        accepted, self._accepted = self._accepted, set()
        numbers = iter(accepted)
        while portion := list(islice(numbers, AT_ONCE)):
            for number in portion:
                self.unsettled.pop(number, None)
            yield

    def roll_back(self) -> None:
        """Forget which deliveries were accepted in the transaction."""
        self._accepted.clear()

    def acquire(
        self, ranges: Iterable[tuple[int, int]] | None, near: int, acquired: list[tuple[int, int]]
    ) -> Iterator[None]:
        """Acquire browsed messages, as work in turns; adds the ranges of those acquired to a list.

        Messages of a browse-only queue, and of one that is exclusive to another session, can only be browsed.
        """
        numbers = numbers_among(merge_ranges(unwrap_ranges(ranges or (), near)), self.browsed, near)
        while portion := list(islice(numbers, AT_ONCE)):
            for number in portion:
                if len(acquired) == MAX_RANGES:  # the client can ask for the rest again
                    return
                delivery = self.browsed[number]
                queue, owner = delivery.subscription.queue, delivery.subscription.queue.owner
                if queue.is_browse_only or (owner is not None and owner is not delivery.subscription.session):
                    continue
                if queue.is_deleted or not queue.acquire(delivery.entry, consumer=delivery.subscription):
                    continue
                self.unsettled[number] = self.browsed.pop(number)
                if acquired and acquired[-1][1] == number - 1:
                    acquired[-1] = (acquired[-1][0], number)
                else:
                    acquired.append((number, number))
            yield

    def take_all(self) -> Iterator[tuple[Queue, Entry]]:
        """Remove all deliveries, and yield the queues and entries of unsettled ones."""
        unsettled, self.unsettled, held = self.unsettled, {}, self.held.take_all()
        self.browsed.clear()
        self._browsed_in_order.clear()
        self._accepted.clear()
        self._runs.clear()
        if not held:
            for delivery in drained(unsettled):
                yield delivery.subscription.queue, delivery.entry
            return
        of_runs = chain.from_iterable(map(_singly, held))
        for _, delivery in merge(sorted(unsettled.items(), key=_number), of_runs, key=_number):
            yield delivery.subscription.queue, delivery.entry


def _singly(run: HeldRun) -> Iterator[tuple[int, Delivery]]:
    """The number and the delivery of each message of a run."""
    for number, entry in run.singly():
        yield number, Delivery(run.consumer, entry)
