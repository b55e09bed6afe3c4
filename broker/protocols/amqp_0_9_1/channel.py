"""A channel: its consumers, unacknowledged deliveries, confirms, and its transaction.

    states      open -> closing (channel.close was sent, what arrives is discarded) -> closed
    modes       plain; confirm (`acknowledgements`); transactional (`transaction`): the last two exclude each other
    output      methods and content in order; everything after a large message waits until that was sent

`methods` has the effect of each method. A method that takes time pauses the connection's input until it is done
(`run`), so that later ones see its effect. When the channel ends, unacknowledged messages are available again, and
marked as redelivered.

Source: AMQP 0-9-1, classes channel, basic and tx; RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.completion import Runs
from qstore.broker.model.errors import InternalError, ModelError
from qstore.broker.model.events import SessionEnded
from qstore.broker.model.queues.consumers import FOREMOST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.flow_control import HeldTransfers
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.run import RunEntry
from qstore.broker.model.settlement import drained, unsubscribe
from qstore.broker.protocols.amqp_0_9_1.acknowledgements import all_unsettled
from qstore.broker.protocols.amqp_0_9_1.consumer import BasicConsumer, Delivery, Getter, SelectiveConsumer
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError, locked, missing, refusal_of
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, content_frames
from qstore.broker.protocols.consumer import HeldRuns, first_portion, give_back, has_many
from qstore.broker.protocols.machine import ManagedLink, SessionModes
from qstore.broker.protocols.output import Stream, is_large
from qstore.broker.protocols.publishing import tell_held
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import METHOD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.flow_control import Stop
    from qstore.broker.model.router import Fanout
    from qstore.broker.model.transactions.local import LocalTransaction
    from qstore.broker.protocols.amqp_0_9_1.acknowledgements import Confirms
    from qstore.broker.protocols.amqp_0_9_1.connection import ServerConnection


_LOG: Final = log_of("Protocol")

MAX_UNACKNOWLEDGED: Final = 262_144
"""Messages that one channel may have unacknowledged, whatever its prefetch counts."""

MAX_CONSUMERS: Final = 10_000
"""Maximum number of consumers of one channel."""

ENDED_AT_ONCE: Final = 500
"""Consumers that end in one turn because there is nothing for them: 4 ms."""


class Channel:
    """A channel.

    Args:
        number: its number.
        connection: its connection.
        broker: the model.

    Attributes:
        number, connection, broker: as above.
        virtual_host: that of its connection.
        can_send: whether messages may be sent: it is open and flowing, sends no stream, and the socket accepts them.
        credit: messages that may be delivered to all its consumers together before some are acknowledged.
        last_tag: the last delivery tag.
        unsettled: delivery tag -> delivery, until it is acknowledged, in ascending order.
        held_runs: likewise, those that were delivered as runs.
        is_open: whether methods are accepted: channel.close was neither sent nor received.
        is_gone: whether it is to be forgotten after its stream was sent.
        is_flowing: whether the client accepts messages (channel.flow).
        consumers: consumer tag -> consumer.
        prefetch: the prefetch count of new consumers; 0 for no limit.
        limit: how many messages may be unacknowledged.
        reply_to: the name of its reply queue; empty if it does not consume direct replies.
        last_queue: the name of the queue that was declared last; None for none.
        confirms: publisher confirms; None unless they were selected.
        rate: limits how fast it may publish; None for no limit.
        transaction: the open transaction that publishes and acknowledgements belong to; None outside of transactions.
        settled: delivery tag -> delivery, of those acknowledged in the transaction.
        refused: likewise, those that were rejected in it, and whether they are requeued.
        settled_below: all deliveries below this tag were settled by `multiple`.
        returns: unroutable messages, which are returned at commit.
        name, user, timeout, txn_starts, txn_commits, txn_rejects: as in `ManagedSession`.
    """

    __slots__ = (
        "__weakref__", "_closing", "_getter", "_held_transfers", "_holding", "_stream", "broker", "can_send",
        "confirms", "connection", "consumers", "credit", "held_runs", "is_flowing", "is_gone", "is_open",
        "last_queue", "last_tag", "limit",
        "name", "number", "prefetch", "rate", "refused", "reply_to", "returns", "settled", "settled_below", "timeout",
        "transaction", "txn_commits", "txn_rejects", "txn_starts", "unsettled", "user", "virtual_host",
    )  # fmt: skip

    def __init__(self, number: int, connection: ServerConnection, broker: Broker) -> None:
        self.number, self.connection, self.broker = number, connection, broker
        self.virtual_host = connection.virtual_host
        self.name, self.user = f"{connection.peer}.{number}".encode(), connection.user
        self.timeout = 0  # a channel ends with its connection
        self.is_open = self.is_flowing = True
        self.is_gone = False
        self.can_send = connection.can_send
        self.credit = self.limit = MAX_UNACKNOWLEDGED
        self.last_tag = self.prefetch = 0
        self.settled_below = 1
        self.unsettled: dict[int, Delivery] = {}
        self.held_runs = HeldRuns()
        self.consumers: dict[str, BasicConsumer] = {}
        self.last_queue: str | None = None
        self.reply_to = ""
        self.confirms: Confirms | None = None
        connection.limit_rate()
        self.rate = connection.new_rate()
        self.transaction: LocalTransaction | None = None
        self.settled: dict[int, Delivery] = {}
        self.refused: dict[int, tuple[Delivery, bool]] = {}
        self.returns: list[tuple[bytes, BasicMessage]] = []
        self.txn_starts = self.txn_commits = self.txn_rejects = 0
        self._stream: Stream | None = None
        self._held_transfers: HeldTransfers | None = None
        self._holding = 0  # messages for which the connection's input is paused
        self._getter: Getter | None = None
        self._closing: dict[SelectiveConsumer, None] = {}  # for which there may be nothing, so that they end

    # ---- as management sees it ----

    @property
    def subscriptions(self) -> Mapping[str, BasicConsumer]:
        """Consumer tag -> consumer, without that of direct replies, whose queue others cannot see."""
        if not self.reply_to:
            return self.consumers
        return {tag: each for tag, each in self.consumers.items() if each.queue.name != self.reply_to}

    @property
    def remote_host(self) -> str:
        """Address and port of the client."""
        return self.connection.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`: the connection, and its channel."""
        return f"{self.connection.actor}/ch:{self.number}"

    @property
    def vhost(self) -> str:
        """As `Caller.vhost`."""
        return self.virtual_host.name

    @property
    def can_answer(self) -> bool:
        """Whether a method with content may be sent: as `can_send`, but ignoring channel.flow."""
        return self.is_open and self._stream is None and self.connection.can_send

    @property
    def outstanding_commands(self) -> int:
        """Messages not confirmed yet."""
        confirms = self.confirms
        return (
            0 if confirms is None else confirms.published + 1 - confirms.ledger.done.count_below(confirms.published + 1)
        )

    @property
    def modes(self) -> SessionModes:
        """As `ManagedSession.modes`."""
        transaction = self.transaction
        return SessionModes(
            confirms=self.confirms is not None,
            is_transactional=transaction is not None,
            prefetch=self.prefetch,
            shared_prefetch=0 if self.limit == MAX_UNACKNOWLEDGED else self.limit,
            published=0 if transaction is None else len(transaction.messages),
            settled=len(self.settled) + len(self.refused),
        )

    @property
    def unsettled_count(self) -> int:
        """Messages delivered to the client and not acknowledged."""
        return len(self.unsettled) + self.held_runs.count

    # ---- output ----

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method without content."""
        self.send_method(encode_method(method, self.connection.version, **values))

    def send_method(self, payload: bytes) -> None:
        """Send an encoded method without content."""
        frame, connection = encode_frame(METHOD, self.number, payload), self.connection
        if self._stream is None:
            connection.send_frame(frame)
        else:
            self._stream.add([(frame,)])
            connection.has_output()

    def send_content(self, method: bytes, message: BasicMessage) -> None:
        """Send a method with content in as many frames as it needs, in portions if it is large."""
        connection, body = self.connection, message.body
        connection.messages_sent += 1
        frames = content_frames(self.number, method, message.header, body, connection.max_payload)
        if self._stream is None and not is_large(body):
            for frame in frames:
                connection.output += frame
                connection.frames_sent += 1
        else:
            if self._stream is None:
                self._stream = connection.streams[self.number] = Stream()
                self.can_send = False
            self._stream.add(frames)
        connection.has_output()

    def stream_ended(self) -> None:
        """Continue after the stream: all of it was sent."""
        self._stream = None
        self.broker.tick.workers[self] = None  # to report confirms that had to wait
        self.wake_all()
        if self.is_gone:
            self.connection.forget_channel(self)

    def wake_all(self) -> None:
        """Messages may be sent again."""
        self.can_send = self.is_flowing and self.can_answer
        if self.can_send:
            for consumer in self.consumers.values():
                consumer.wake()
        if self._getter is not None and self.can_answer:
            self._getter.wake()
            self.look_again()

    # ---- work that takes time ----

    def run(self, work: Coroutine[Any, Any, None], reply: Callable[[], None], payload: bytes) -> None:
        """Run a coroutine with the connection's input paused, then send the reply; or fail with its error."""
        connection = self.connection
        connection.pause()

        def done(error: ModelError | None) -> None:
            if error is not None:
                connection.fail(self, error, payload)
            elif self.is_open:
                reply()
            connection.unpause()

        connection.run(work, done)

    def do_in_turns(self, work: Iterator[None], payload: bytes = b"") -> None:
        """Do a method's work in turns, with the connection's input paused, so that later methods see its effect."""
        self.connection.pause()
        self.broker.tick.turns.do(self, self._guarded(work, payload))

    def _guarded(self, work: Iterator[None], payload: bytes) -> Iterator[None]:
        try:
            yield from work
        except ModelError as error:
            self.connection.fail(self, error, payload)
        finally:
            self.connection.unpause()

    # ---- queues and consumers ----

    def queue_name(self, given: str) -> str:
        """The name of a queue; an empty one means the queue declared last. Raises CodedError."""
        if given:
            return given
        if self.last_queue is None:
            text = "no queue name is given, and no queue was declared on this channel"
            if self.connection.version.is_older:
                raise HardError(ReplyCode.NOT_ALLOWED, text)
            raise SoftError(ReplyCode.NOT_FOUND, text)
        return self.last_queue

    def find_queue(self, given: str, action: Action) -> Queue:
        """The queue with a name, if this connection may use it; an unauthorized user does not learn why it may not.

        Raises SoftError or UnauthorizedError.
        """
        name = self.queue_name(given)
        queue = self.virtual_host.queues.get(name)
        if queue is not None and queue.owner in (None, self.connection):
            return queue
        self.broker.authorization.check(self.connection, action, ObjectType.QUEUE, name)
        if queue is None:
            raise missing("queue", name, self.vhost)
        raise locked(name, self.vhost)

    def drop_consumer(self, consumer: BasicConsumer) -> None:
        """End a consumer; its deliveries stay unacknowledged."""
        self.consumers.pop(consumer.tag, None)
        consumer.is_cancelled = True
        queue = consumer.queue
        if queue.name == self.reply_to:
            self.reply_to = ""
            self.virtual_host.replies.close(queue)
            return
        unsubscribe(self.virtual_host, self, queue, consumer, consumer.tag)
        if not queue.is_deleted:
            self.connection.leave(queue)

    def consumer_lost(self, consumer: Any) -> None:
        """End a consumer whose queue was deleted; notify the client if it has the capability."""
        if consumer is self._getter:
            self.look_again()
            return
        if self.consumers.pop(consumer.tag, None) is not None:
            unsubscribe(self.virtual_host, self, consumer.queue, consumer, consumer.tag)
        consumer.is_cancelled = True
        if self.is_open and "consumer_cancel_notify" in self.connection.capabilities:
            self.send("basic.cancel", consumer_tag=consumer.tag, nowait=True)

    @property
    def attached_links(self) -> tuple[ManagedLink, ...]:
        """As `ManagedSession.attached_links`: none."""
        return ()

    def close_subscription(self, destination: str) -> None:
        """As `ManagedSession.close_subscription`: a client that cannot be told of it loses the channel."""
        consumer = self.consumers.get(destination)
        if consumer is None:
            return
        self.drop_consumer(consumer)
        if self.is_open and "consumer_cancel_notify" in self.connection.capabilities:
            self.send("basic.cancel", consumer_tag=consumer.tag, nowait=True)
        elif self.is_open:
            text = f"consumer '{consumer.tag}' was closed by management"
            self.connection.fail(self, SoftError(ReplyCode.CONNECTION_FORCED, text))

    # ---- basic.get ----

    def begin_get(self, queue: Queue, *, no_ack: bool) -> None:
        """Deliver a message, or report that there is none: now, or once messages that wait for the disk are on it."""
        getter = Getter(self, queue, no_ack=no_ack)
        queue.add_consumer(getter, FOREMOST)
        getter.wake()
        queue.dispatch()
        self._getter = getter
        self.virtual_host.idle_queues.used(queue)
        if not self._end_get():
            self.connection.pause()
            self._wait_for(queue, partial(self._flushed, getter))

    def _continue_get(self) -> None:
        getter = self._getter
        if getter is None:
            return
        if self._end_get():
            self.connection.unpause()
        else:
            self._wait_for(getter.queue, partial(self._flushed, getter))

    def _end_get(self) -> bool:
        """Whether basic.get was answered."""
        getter = self._getter
        assert getter is not None
        queue = getter.queue
        if not getter.is_done and not queue.is_deleted:
            if not self.can_answer or self.connection.room <= 0:
                return False
            if queue.available_count and (queue.is_held or queue.is_unfinished):
                return False
        self._drop_getter()
        if queue.is_deleted and not getter.is_done:
            name = queue.name
            self.connection.fail(self, SoftError(ReplyCode.NOT_FOUND, f"queue '{name}' was deleted"))
        elif not getter.is_done:
            self.send("basic.get-empty")
        return True

    def may_close(self, consumer: SelectiveConsumer) -> None:
        """Note that a consumer which ends when there is nothing for it may have got the last message."""
        self._closing[consumer] = None
        self.look_again()

    def _close_empty(self) -> None:
        """End such consumers, if there is nothing for them; the others have more to get, or no credit."""
        awaited: set[Queue] = set()
        ended = 0
        for consumer in list(self._closing):
            queue = consumer.queue
            if not consumer.is_cancelled and self.is_open:
                if queue.is_held or queue.is_unfinished or queue in self.broker.tick.ready:
                    if queue not in awaited:
                        awaited.add(queue)
                        self._wait_for(queue, self.look_again)
                    continue
                if ended == ENDED_AT_ONCE:
                    self.look_again()
                    return
                if consumer.is_waiting:  # it could take another message, and was offered none
                    ended += 1
                    self._end_empty(consumer)
            del self._closing[consumer]

    def _end_empty(self, consumer: SelectiveConsumer) -> None:
        self.drop_consumer(consumer)
        does_know = "consumer_cancel_notify" in self.connection.capabilities
        fields = {"nowait": True} if does_know else {}  # clients of the Java broker wait for an answer instead
        self.send("basic.cancel" if does_know else "basic.cancel-ok", consumer_tag=consumer.tag, **fields)

    def _drop_getter(self) -> None:
        getter, self._getter = self._getter, None
        if getter is not None and not getter.queue.is_gone:
            getter.queue.remove_consumer(getter)

    def _wait_for(self, queue: Queue, flushed: Callable[[Exception | None], None]) -> None:
        """Look again when the queue's records are on the disk, or messages were read back.

        If only output has to be sent first, `wake_all` tries again.
        """
        if not self.can_answer or self.connection.room <= 0:
            return
        tick, store = self.broker.tick, queue.store
        if not queue.is_held or queue.is_unfinished:
            self.look_again()
        elif store is None or queue in tick.written:
            tick.when_synced(self.look_again)
        else:
            store.when_synced((queue.journal,), flushed)
            store.drained()

    def _flushed(self, getter: Getter, error: Exception | None) -> None:
        """Try a basic.get again, since its queue's records are on the disk; after an error the channel fails."""
        if error is None or self._getter is not getter:
            self.look_again()
            return
        self._drop_getter()
        self.connection.fail(self, InternalError(f"queue '{getter.queue.name}': {error}"))
        self.connection.unpause()

    def look_again(self, _error: Exception | None = None) -> None:
        """Check at the end of the tick whether basic.get can be answered, and which confirms are due."""
        self.broker.tick.workers[self] = None
        self.broker.tick.schedule()

    # ---- deliveries ----

    def dequeue(self, queue: Queue, entry: Entry) -> None:
        """Dequeue a message that was delivered and needs no acknowledgement."""
        try:
            queue.dequeue(entry)
        except ModelError as error:
            self.connection.fail(self, error)

    def dequeue_run(self, queue: Queue, run: RunEntry) -> None:
        """As `dequeue`, of the messages of a run."""
        try:
            queue.dequeue_run(run, run.count)
        except ModelError as error:
            self.connection.fail(self, error)

    def return_credit(self, deliveries: Iterable[Delivery]) -> None:
        """Return the credit of settled deliveries to their consumers; basic.get takes none."""
        before, count = self.credit, 0
        for delivery in deliveries:
            consumer = delivery.consumer
            if consumer is not None:
                count += 1
                consumer.credit += 1
                consumer.wake()
        self.credit = before + count
        if before <= 0 < self.credit:
            for consumer in self.consumers.values():
                consumer.wake()

    def adjust_consumers(self, count: int) -> None:
        """Set the limit of unacknowledged messages of each running consumer; 0 for the maximum."""
        limit = min(count, MAX_UNACKNOWLEDGED) or MAX_UNACKNOWLEDGED
        for consumer in self.consumers.values():
            if not consumer.no_ack:
                consumer.credit += limit - consumer.limit  # negative while it has more than the limit
                consumer.limit = limit
                consumer.wake()

    def give_credit(self, settled: Mapping[BasicConsumer, int]) -> None:
        """As `return_credit`, for many deliveries: consumer -> number settled."""
        before = self.credit
        self.credit = before + sum(settled.values())
        for consumer, count in settled.items():
            consumer.credit += count
            consumer.wake()
        if before <= 0 < self.credit:
            for consumer in self.consumers.values():
                consumer.wake()

    def set_limit(self, count: int) -> None:
        """Set the limit of unacknowledged messages of all consumers together; 0 for the maximum."""
        limit = min(count, MAX_UNACKNOWLEDGED) or MAX_UNACKNOWLEDGED
        self.credit += limit - self.limit
        self.limit = limit
        self.wake_all()

    # ---- publishing ----

    def hold(self, number: int, *, is_stored: bool) -> None:
        """Hold a confirm until the message's records are on the disk and no stopped queue holds it."""
        assert self.confirms is not None
        stops = self.broker.router.stops
        if not stops:
            self.confirms.ledger.hold(number)
            return
        self.confirms.ledger.postpone(number)
        self.connection.publisher_waits(stops[0][0])
        self._held_transfers_of().hold(number, stops, self.broker.tick if is_stored else None)
        stops.clear()

    def hold_input(self) -> None:
        """Stop reading until queues have drained: a message without confirms was put on stopped queues."""
        stops = self.broker.router.stops
        self._hold_input(stops)
        stops.clear()

    def _hold_input(self, stops: list[Stop]) -> None:
        self._holding += 1
        self.connection.publisher_waits(stops[0][0])
        self._held_transfers_of().hold(-self._holding, stops, None)
        self.connection.pause()

    def hold_fanout(self, number: int) -> None:
        """Stop reading until a message is on its many queues; its confirm, if it has a number, waits for the disk."""
        router, connection = self.broker.router, self.connection
        fanout = router.take_fanout()
        assert fanout is not None
        router.stops.clear()
        if number:
            assert self.confirms is not None
            self.confirms.ledger.postpone(number)
        connection.pause()
        self.broker.tick.turns.after(router, connection.unpause)
        fanout.when_done(partial(self._fanned_out, number, fanout))

    def _fanned_out(self, number: int, fanout: Fanout, error: Exception | None) -> None:
        confirms = self.confirms
        if not self.is_open:
            return
        if error is not None:
            if confirms is not None:
                _LOG.info("Client %s, channel %d: a message is not on all its queues: %s", self.connection.peer,
                          self.number, error)  # fmt: skip
                confirms.fail_one(number)
                self.look_again()
            elif (failure := refusal_of(error)) is not None:
                self.connection.fail(self, failure)
            return
        if confirms is not None and not fanout.stops:
            confirms.ledger.complete([[number, number]])
            self.look_again()
        elif confirms is not None:
            self.connection.publisher_waits(fanout.stops[0][0])
            self._held_transfers_of().hold(number, fanout.stops, None)
        elif fanout.stops and not self.connection.has_consumers:
            self._hold_input(fanout.stops)

    def _held_transfers_of(self) -> HeldTransfers:
        """The messages that wait for stopped queues."""
        if self._held_transfers is None:
            self._held_transfers = HeldTransfers(self._transfer_done, partial(tell_held, self.broker, self))
        return self._held_transfers

    def _transfer_done(self, number: int, error: Exception | None) -> None:
        confirms = self.confirms
        self.connection.publisher_continues()
        if number <= 0:
            self._holding -= 1
            self.connection.unpause()
        elif confirms is not None:
            if error is None:
                confirms.ledger.complete([[number, number]])
            else:
                confirms.fail_one(number)
            self.look_again()

    # ---- as a worker of the tick ----

    @property
    def is_in_step(self) -> bool:
        """Whether the client seems to wait for the confirms of all that it has published."""
        return self.confirms is not None and self.confirms.is_in_step

    def complete_received(self) -> Runs:
        """Complete the messages that do not wait. Returns the runs of those that wait for the disk."""
        confirms = self.confirms
        if confirms is None:
            return []
        confirms.has_more(self.connection.monotonic())
        return confirms.ledger.complete_below(confirms.published + 1)

    def complete(self, runs: Runs) -> None:
        """Confirm messages whose records are on the disk."""
        confirms = self.confirms
        if confirms is not None:
            confirms.ledger.complete(runs)
            if confirms.is_awaited:
                self.connection.tick.awaited[self] = None

    def fail(self, runs: Runs, error: Exception) -> None:
        """Refuse messages whose records could not be written."""
        _LOG.info("Client %s, channel %d: messages were not stored: %s", self.connection.peer, self.number, error)
        if self.confirms is not None:
            self.confirms.fail(runs)

    def report_completed(self) -> None:
        """Send the confirms that are due, after the end of a stream; and answer basic.get."""
        if self._getter is not None:
            self._continue_get()
        if self._closing:
            self._close_empty()
        confirms = self.confirms
        if confirms is None or self._stream is not None or not self.is_open:
            return
        frames = confirms.take()
        if frames:
            connection = self.connection
            connection.output += frames
            connection.frames_sent += len(frames)
            connection.has_output()
            confirms.sent(connection.monotonic())

    # ---- end ----

    def end(self) -> None:
        """End the channel: release what it holds."""
        self.is_open = self.can_send = False
        self.broker.events.emit(SessionEnded(), self)
        if self.transaction is not None:
            self.txn_rejects += 1
            self.broker.end_transaction(self.transaction)
            self.transaction.count_end(is_committed=False)
            self.transaction = None
        if self._held_transfers is not None:
            self.connection.publisher_continues(len(self._held_transfers))
            self._held_transfers.drop()
            self._held_transfers = None
        for _ in range(self._holding):
            self.connection.unpause()
        self._holding = 0
        if self._getter is not None:
            self._drop_getter()
            self.connection.unpause()
        if has_many(self.consumers.values()):
            self.broker.tick.turns.do(self, self._drop_consumers())
        else:
            for consumer in list(self.consumers.values()):
                self.drop_consumer(consumer)
        held = self.unsettled_count + len(self.settled) + len(self.refused)
        give_back(self, self.broker.tick.turns, held, self._take_all())

    def _drop_consumers(self) -> Iterator[None]:
        """End many consumers, which get no more messages, in turns."""
        while consumers := first_portion(self.consumers.values()):
            for consumer in consumers:
                self.drop_consumer(consumer)
            yield

    def _take_all(self) -> Iterator[tuple[Queue, Entry]]:
        """Remove and yield all messages that the client has not settled for good."""
        refused = drained(self.refused)
        held = chain(all_unsettled(self), drained(self.settled), (delivery for delivery, _ in refused))
        self.settled, self.refused, self.returns = {}, {}, []
        for delivery in held:
            if delivery.is_acquired:
                yield delivery.queue, delivery.entry
