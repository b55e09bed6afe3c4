"""The model of one broker, put together from its parts: what a protocol, management and the process work with.

The parts know each other only as far as they need to, and none of them knows the broker. The store, where there is one,
keeps what is durable, and gives it back in `recover`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from broker.log.event_log import log_event
from broker.log.logs import log_of
from broker.model.authorization import Authorization
from broker.model.errors import InvalidArgumentError
from broker.model.events import Events
from broker.model.exchanges.default import DefaultExchange
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from broker.model.memory import MemoryCeiling
from broker.model.message import Message
from broker.model.queues.argument_table import unmet
from broker.model.queues.arguments import NO_ARGUMENTS, read_arguments
from broker.model.queues.composition import QueueFactory
from broker.model.queues.counters import QueueTotals, sum_of
from broker.model.queues.idle import IdleQueues
from broker.model.queues.queue import Queue
from broker.model.router import Router
from broker.model.store_protocol import LIVE, RecoveredQueue, Store
from broker.model.topology.bindings import BindingMaker, recover_bindings
from broker.model.topology.deletion import QueueRemoval
from broker.model.topology.kept_wiring import KeptWiring
from broker.model.topology.wiring import Wiring
from broker.model.transactions.local import LocalTransaction
from broker.model.turn import Turn
from broker.settings import BrokerSettings
from formats.broker_records.errors import BrokerRecordError
from formats.values import TypedMap

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
        queue_factory: makes queues.
        router: publishes and moves messages.
        removal: deletes queues, and remembers what they have counted.
        wiring: declares, deletes, binds and unbinds.
        started_at: when the broker has started, by its clock.
        authorization: says who may do what.
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
        self.authorization = Authorization()
        self.events = Events()
        self.events.listen(log_event)
        self.memory = MemoryCeiling(settings.memory_bytes, self.held_memory)
        self.turn = Turn(call_soon, store, self.memory)
        self.transactions: WeakSet[LocalTransaction] = WeakSet()
        self.unfinished_bytes: Callable[[], int] = lambda: 0
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {"": DefaultExchange(self.queues)}
        self.in_doubt_messages = 0
        for name, type_name in STANDARD_EXCHANGES.items():
            self.exchanges[name] = exchange_type(type_name)(name, durable=True)
        self.idle_queues = IdleQueues(clock)
        self.router = Router(store, self.turn)
        self.queue_factory = QueueFactory(self.turn, store, settings.queue_limit_bytes, clock)
        self.started_at = clock()
        kept = KeptWiring(store)
        self.removal = QueueRemoval(self.queues, self.exchanges, self.router, kept)
        self.wiring = Wiring(
            self.queues,
            self.exchanges,
            factory=self.queue_factory,
            idle_queues=self.idle_queues,
            kept=kept,
            removal=self.removal,
            bindings=BindingMaker(self.router, self.turn, kept, clock),
            authorization=self.authorization,
            events=self.events,
        )

    # ---- messages ----

    @property
    def totals(self) -> QueueTotals:
        """What all its queues have counted, those that are deleted included."""
        queues = (*self.queues.values(), *self.removal.leaving)
        return sum_of((self.removal.deleted, *(queue.totals for queue in queues)))

    def begin_transaction(self, max_bytes: int) -> LocalTransaction:
        """A local transaction; what is published in it takes `max_bytes` of memory at most, or 0 for no limit."""
        transaction = LocalTransaction(self.router, self.store, self.turn, self.memory, max_bytes)
        self.transactions.add(transaction)
        return transaction

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
        queue = self.queue_factory.make(
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
        queue.creator = record.owner or ""
        self.queues[record.name] = queue
        self.exchanges[""].binding_count.set(len(self.queues))
        return queue

    def _warn_of_unmet(self, name: str, arguments: TypedMap) -> None:
        """Tell which kind of queue a recovered one should be, and is not."""
        lacking = [each for each in unmet(arguments) if each.is_refused]
        if lacking:
            _LOG.warning('Queue "%s" is served as a plain FIFO queue: %s', name, "; ".join(map(str, lacking)))

    # ---- from here on ----

    def run(self) -> None:
        """All is ready, and clients are let in. The manual's rules name this method (Qpid C++ Broker Book, 1.1.8.5)."""
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
