"""The model: exchanges, queues, and the way of a message from one to the other.

`publish` is the way of every message: its exchange finds the queues, and each queue takes it, all of them or none. The
store, where there is one, keeps what is durable, and gives it back in `recover`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from broker.log.event_log import log_event
from broker.log.logs import log_of
from broker.model.authorization import ALLOW_ALL, Action, Authorizer, ObjectType
from broker.model.caller import BROKER, Caller
from broker.model.errors import InternalError, InvalidArgumentError, ResourceLimitExceededError, UnauthorizedError
from broker.model.events import Events
from broker.model.exchanges.default import DefaultExchange
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from broker.model.memory import MemoryCeiling
from broker.model.message import Message
from broker.model.queues.argument_table import unmet
from broker.model.queues.arguments import NO_ARGUMENTS, QueueArguments, read_arguments
from broker.model.queues.composition import make_queue
from broker.model.queues.entry import ACQUIRED, LEAVING, Entry
from broker.model.queues.idle import IdleQueues
from broker.model.queues.queue import Queue
from broker.model.store_protocol import LIVE, RecoveredQueue, Store
from broker.model.topology.bindings import recover_bindings
from broker.model.topology.wiring import Wiring
from broker.model.turn import Turn
from broker.settings import BrokerSettings
from formats.broker_records.errors import BrokerRecordError
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.transactions.local import LocalTransaction

_LOG: Final = log_of("Broker")

#: Reads a message that a store kept. Raises BrokerRecordError.
RestoreMessage = Callable[[bytes], Message]


class Broker:
    """The exchanges and queues of one broker.

    Args:
        settings: its limits.
        store: what keeps durable things; None if nothing is kept.
        call_soon: has a function called at the end of the event loop's turn.
        clock: seconds since 1970.

    Attributes:
        settings, store, clock: as above.
        exchanges: name -> exchange; the default one's name is empty.
        queues: name -> queue.
        memory: what the messages may take, and what they do.
        transactions: those that are open.
        unfinished_bytes: says how much has come of messages of which only a part has.
        turn: what the event loop's turn has gathered.
        idle_queues: those that are to go if nobody uses them for a while.
        wiring: declares, deletes, binds and unbinds.
        authorizer: says who may do what.
        events: what happens, for those who listen.
        in_doubt_messages: messages that distributed transactions in doubt hold, and the store alone.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store | None,
        call_soon: Callable[[Callable[[], None]], Any],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self.authorizer: Authorizer = ALLOW_ALL
        self.events = Events()
        self.events.listen(log_event)
        self.memory = MemoryCeiling(settings.memory_bytes, self.held_memory)
        self.turn = Turn(call_soon, store, self.memory)
        self.transactions: WeakSet[LocalTransaction] = WeakSet()
        self.unfinished_bytes: Callable[[], int] = lambda: 0
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {"": DefaultExchange(self.queues)}
        self.in_doubt_messages = 0
        self._store_errors: tuple[type[Exception], ...] = () if store is None else store.errors
        for name, type_name in STANDARD_EXCHANGES.items():
            self.exchanges[name] = exchange_type(type_name)(name, durable=True)
        self.idle_queues = IdleQueues(clock)
        self.wiring = Wiring(self)

    def make_queue(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: TypedMap,
        asked: QueueArguments = NO_ARGUMENTS,
        journal: Any = None,
    ) -> Queue:
        """A queue, which is not among `queues` yet; `asked` is what its arguments say."""
        return make_queue(
            name,
            self.turn,
            asked,
            self.settings.queue_limit_bytes,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
            store=None if journal is None else self.store,
            journal=journal,
            clock=self.clock,
        )

    def authorize(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, **properties: object
    ) -> None:
        """Raises UnauthorizedError if a caller may not do that. `properties` are those of `authorization`'s table."""
        if caller is BROKER or self.authorizer.allows(caller, action, object_type, name, properties):
            return
        what = f'{action.value} {object_type.value} "{name}"'
        raise UnauthorizedError(f"{caller.user} is not allowed to {what}")

    # ---- messages ----

    def publish(self, message: Message, exchange: Exchange) -> bool:
        """Put a message on the queues that an exchange finds for it, on all of them or none.

        Returns:
            Whether it is promised only when what was written in this turn is on the disk.

        Raises:
            ResourceLimitExceededError: a queue has no room for it.
            InvalidArgumentError: the exchange numbers messages, and cannot read this one's headers.
            InternalError: a journal cannot be written.
        """
        queues: Sequence[Queue] | None
        if not exchange.routes_by_key:
            return self.publish_to(message, exchange, self.route(message, exchange))
        queues = exchange.routes.get(message.routing_key)
        if queues is None:
            queues = exchange.find(message.routing_key)
        if not queues and exchange.alternate is not None and not message.handling.discards_unroutable:
            queues = exchange.alternate.route(message)
        try:  # as `put`, which would be one more call for every message
            if len(queues) == 1:
                return queues[0].publish(message)
            return self._publish_to_all(message, queues)
        except self._store_errors as error:
            raise InternalError(str(error)) from error

    def route(self, message: Message, exchange: Exchange) -> Sequence[Queue]:
        """The queues that a message goes to: those of the exchange, or else of its alternate exchange."""
        queues: Sequence[Queue] | None
        if exchange.routes_by_key:
            queues = exchange.routes.get(message.routing_key)
            if queues is None:
                queues = exchange.find(message.routing_key)
        else:
            queues = exchange.route(message)
        if not queues and exchange.alternate is not None and not message.handling.discards_unroutable:
            return exchange.alternate.route(message)
        return queues

    def route_immediate(self, message: Message, exchange: Exchange) -> Sequence[Queue]:
        """As `route`, for a message that is immediate.

        Unless all these queues have a consumer that can take it now, it counts as one that no queue wants. Source: AMQP
        0-10, delivery-properties, immediate. (qpidd does not look at that bit.)
        """
        queues = self.route(message, exchange)
        if all(queue.has_taker() for queue in queues):
            return queues
        if exchange.alternate is None or message.handling.discards_unroutable:
            return ()
        return exchange.alternate.route(message)

    def publish_to(self, message: Message, exchange: Exchange, queues: Sequence[Queue]) -> bool:
        """As `publish`, to queues that were found before."""
        sent = exchange.sent
        if sent is None:
            return self.put(message, queues)
        message = sent.number(message)
        is_promised = self.put(message, queues)
        sent.keep(message)
        return is_promised

    def put(self, message: Message, queues: Sequence[Queue]) -> bool:
        """Put a message on these queues, on all of them or none. Returns and raises as `publish`."""
        try:
            if len(queues) == 1:
                return queues[0].publish(message)
            return self._publish_to_all(message, queues)
        except self._store_errors as error:
            raise InternalError(str(error)) from error

    def _publish_to_all(self, message: Message, queues: Sequence[Queue]) -> bool:
        for queue in queues:
            queue.check_room(message)
        kept = [queue for queue in queues if queue.keeps(message)]
        if not kept:
            for queue in queues:
                if queue.admits(message):
                    queue.add(message, 0)
            return False
        assert self.store is not None
        parts, size, crc = message.stored_form()
        try:
            rids = self.store.append.enqueue_all([queue.journal for queue in kept], parts, size, crc)
        except self.store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        by_queue = dict(zip(kept, rids, strict=True))
        for queue in queues:
            rid = by_queue.get(queue, 0)
            if rid:
                queue.add_held(message, rid)
                self.turn.written[queue] = None
                self.turn.journals[queue.journal] = None
            elif queue.admits(message):
                queue.add(message, 0)
        return True

    def move(self, queue: Queue, entry: Entry, exchange: Exchange, done: Callable[[Exception | None], None]) -> None:
        """Move an acquired message to where an exchange sends it: it leaves its queue when it is kept there.

        If it is being moved already, or gone, nothing happens.

        Raises:
            As `publish`. Then it is still acquired.
        """
        if entry.state != ACQUIRED:
            done(None)
            return
        is_held = self.put(entry.message, self.route(entry.message, exchange))
        entry.state = LEAVING
        self.turn.schedule()

        def leave(error: Exception | None) -> None:
            is_written = False
            entry.state = ACQUIRED
            if error is None and not queue.is_deleted:
                try:
                    is_written = queue.dequeue(entry)
                except InternalError as failure:
                    error = InternalError(str(failure))  # not the one that has passed this frame, which keeps it
            if is_written:
                self.turn.when_synced(done)
            else:
                done(error)

        if is_held and entry.rid:
            self.turn.when_synced(leave)
        else:
            leave(None)

    def held_memory(self) -> int:
        """Bytes of memory that messages take: on queues, in open transactions, and those that are not all here."""
        queues = sum(queue.memory for queue in self.queues.values())
        return queues + sum(each.memory for each in self.transactions) + self.unfinished_bytes()

    def expire(self) -> int:
        """Remove the messages that have expired from all queues. Returns how many."""
        return sum(queue.expire() for queue in self.queues.values())

    # ---- recovery ----

    def recover(self, restore: RestoreMessage) -> None:
        """Take over what the store kept: exchanges, queues, bindings, messages.

        Args:
            restore: reads a message.
        """
        if self.store is None:
            return
        alternates: list[tuple[Exchange | Queue, str]] = []
        self._recover_exchanges(alternates)
        by_id: dict[int, Queue] = {}
        for found in self.store.recovered_queues:
            queue = by_id[found.queue_id] = self._recover_queue(found, restore)
            alternates.append((queue, found.record.alternate_exchange or ""))
        self.store.end_recovery()
        recover_bindings(self.store, self.exchanges, by_id)
        for user, name in alternates:
            if name and name in self.exchanges:
                user.alternate = self.exchanges[name]

    def _recover_exchanges(self, alternates: list[tuple[Exchange | Queue, str]]) -> None:
        assert self.store is not None
        for number, record in self.store.wiring.exchanges.items():
            exchange = self.exchanges.get(record.name)
            if exchange is None:
                try:
                    make = exchange_type(record.type)
                except Exception as error:
                    _LOG.warning('Exchange "%s" is left out: %s', record.name, error)
                    continue
                exchange = make(
                    record.name,
                    durable=True,
                    auto_delete=bool(record.auto_delete),
                    arguments=record.arguments,
                )
                self.exchanges[record.name] = exchange
                alternates.append((exchange, record.alternate_exchange or ""))
            exchange.store_id = number

    def _recover_queue(self, found: RecoveredQueue, restore: RestoreMessage) -> Queue:
        assert self.store is not None
        record = found.record
        try:
            asked = read_arguments(record.arguments)
        except InvalidArgumentError as error:  # qpidd has taken it, or an earlier version
            asked = NO_ARGUMENTS
            _LOG.warning('Queue "%s": its arguments are ignored: %s', record.name, error)
        self._warn_of_unmet(record.name, record.arguments)
        queue = self.make_queue(
            record.name,
            durable=True,
            auto_delete=bool(record.auto_delete),
            arguments=record.arguments,
            asked=asked,
            journal=found.journal,
        )
        for kept in self.store.messages(found):
            if kept.state != LIVE:
                self.in_doubt_messages += 1
                continue
            try:
                message = restore(kept.data)
            except BrokerRecordError as error:
                _LOG.error('Queue "%s": record 0x%x is left where it is: %s', record.name, kept.rid, error)
                continue
            queue.add(message, kept.rid).is_redelivered = kept.redelivered
        self.queues[record.name] = queue
        return queue

    def _warn_of_unmet(self, name: str, arguments: TypedMap) -> None:
        """Tell which kind of queue a recovered one should be, and is not."""
        lacking = [each for each in unmet(arguments) if each.is_refused]
        if lacking:
            _LOG.warning('Queue "%s" is served as a plain FIFO queue: %s', name, "; ".join(map(str, lacking)))

    # ---- from here on ----

    def run(self) -> None:
        """All is ready, and clients are let in. The line is written here since rules name it so (000, B9 and B19)."""
        _LOG.notice("Broker running")

    # ---- the end ----

    def close(self) -> bool:
        """Close the store. Returns whether all that was promised is on the disk."""
        if self.store is None:
            return True
        delivered = {
            queue.journal.queue_id: rids
            for queue in self.queues.values()
            if queue.journal is not None and (rids := queue.delivered_rids())
        }
        return self.store.close(delivered)
