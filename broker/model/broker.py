"""The model of one broker, assembled from its parts. Protocols, management and the process use it.

Each part knows only the parts it needs, and none of them knows the broker. The store, if there is one, persists durable
objects and messages; `recover` loads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from qstore.broker.log.event_log import log_event
from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import ArgumentCheck
from qstore.broker.model.authorization import Authorization
from qstore.broker.model.configuration import Configuration
from qstore.broker.model.counters import QueueTotals, sum_of
from qstore.broker.model.dead_letters import DeadLetters
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.events import Events, JournalEnqThresholdExceeded, JournalFull
from qstore.broker.model.exchanges.default import DefaultExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from qstore.broker.model.memory import QUEUE_OVERHEAD, MemoryCeiling
from qstore.broker.model.message import Message, RestoreMessage
from qstore.broker.model.policies import HOST, Policies, PolicyHost
from qstore.broker.model.queues.composition import QueueFactory, WatchFactory
from qstore.broker.model.queues.expiry import Expiries, IdleQueues, expire_in_turns
from qstore.broker.model.queues.flow_control import FlowDefaults
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.quotas import Quotas
from qstore.broker.model.recovery import Recovery
from qstore.broker.model.replies import DirectReplies
from qstore.broker.model.router import Router
from qstore.broker.model.selectors.candidate import LastCandidate
from qstore.broker.model.store_protocol import ReportProgress, Store
from qstore.broker.model.tick import Tick
from qstore.broker.model.topology.bindings import BindingMaker, ExchangeBindings
from qstore.broker.model.topology.changes import TopologyStorage
from qstore.broker.model.topology.checks import Access
from qstore.broker.model.topology.deletion import QueueRemoval
from qstore.broker.model.topology.redirection import Redirections
from qstore.broker.model.topology.topology import Topology
from qstore.broker.model.transactions.distributed import DistributedTransactions
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.settings import BrokerSettings

_LOG: Final = log_of("Broker")


class Broker:
    """The exchanges and queues of one broker.

    Args:
        settings: its limits.
        store: persists durable objects; None for a broker without persistence.
        call_soon: schedules a function to run at the end of the event loop tick.
        clock: seconds since 1970, for timestamps: expirations, and times shown. The administrator or NTP may step
            it at any time.
        call_later: schedules a function after a delay in seconds; None for no timers.
        monotonic: seconds of a clock that is never stepped, for durations.

    Attributes:
        settings, store, clock, monotonic: as above.
        exchanges: name -> exchange; the default exchange has the empty name.
        queues: name -> queue.
        memory: the memory ceiling for messages, and current usage.
        transactions: open local transactions.
        distributed: distributed transactions.
        unfinished_bytes: returns the bytes received of incomplete messages.
        tick: work collected during the current event loop tick.
        idle_queues: unused auto-delete queues whose timeout is running.
        queue_factory: creates queues.
        expiries: removes messages at the head of queues when they expire.
        router: publishes and moves messages.
        replies: the reply queues for direct replies.
        removal: deletes queues, and keeps the counters of deleted ones.
        topology: declares, deletes, binds and unbinds.
        exchange_bindings: binds exchanges to each other.
        arguments: checks the arguments of declarations and subscriptions.
        redirections: redirects messages for a queue to another one.
        started_at, started: start time, by `clock` and by `monotonic`.
        has_timestamps: whether messages of new connections get their time of arrival.
        authorization: checks operations.
        configuration: policies, permissions and other records that are set while the broker runs.
        policies: what operators set for queues and exchanges by the patterns of their names.
        quotas: counts connections and queues of users, and limits them.
        events: emits events to listeners.
        last_candidate: the last message for which a consumer's selector was evaluated.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store | None,
        call_soon: Callable[[Callable[[], None]], Any],
        clock: Callable[[], float] = time.time,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.store, self.clock, self.monotonic = settings, store, clock, monotonic
        self.authorization = Authorization()
        self.configuration = Configuration(store)
        self.events = Events()
        self.events.listen(log_event)
        self.quotas = Quotas(self.events.emit, settings.connections_per_host)
        self.memory = MemoryCeiling(
            settings.memory_bytes, self.held_memory, queues=lambda: QUEUE_OVERHEAD * len(self.queues)
        )
        self.memory.relieve = self._relieve_memory
        self.tick = Tick(call_soon, store, self.memory)
        self.transactions: set[LocalTransaction] = set()
        self.unfinished_bytes: Callable[[], int] = lambda: 0
        self.queues: dict[str, Queue] = {}
        self.last_candidate = LastCandidate()
        default = DefaultExchange(self.queues)
        self.exchanges: dict[str, Exchange] = {"": default}
        self.replies = DirectReplies(self.tick, default, settings.max_message_bytes, clock)
        for name, type_name in STANDARD_EXCHANGES.items():
            self.exchanges[name] = exchange_type(type_name)(name, durable=True)
        self.idle_queues = IdleQueues(monotonic)
        self.router = Router(store, self.tick, self.queues, self.authorization)
        self.expiries = Expiries(clock, call_later)
        self.queue_factory = self._new_queue_factory()
        self.distributed = DistributedTransactions(
            self.router,
            store,
            self.tick,
            self.authorization,
            partial(self._new_transaction, settings.transaction_bytes),
            default_timeout=settings.dtx_default_timeout_seconds,
            max_timeout=settings.dtx_max_timeout_seconds,
            monotonic=monotonic,
            call_later=call_later,
        )
        self.started_at, self.started = clock(), monotonic()
        self.has_timestamps = settings.enable_timestamp
        storage = TopologyStorage(store, self.events.emit)
        self.arguments = ArgumentCheck()
        access = Access(self.authorization, self.queue_factory.default_bytes, _events_to(settings))
        self.exchange_bindings = ExchangeBindings(self.exchanges, storage, access, self.events, self.arguments)
        self.removal = QueueRemoval(self.queues, self.exchanges, self.router, storage)
        self.topology = self._new_topology(storage, access)
        host = PolicyHost(HOST, self.queues, self.exchanges)
        self.policies = Policies(
            self.configuration, lambda: (host,), self.queue_factory, self.idle_queues, self.topology.awaiting
        )
        self.queue_factory.policy_of = partial(self.policies.for_new, HOST)
        self.topology.exchange_created = partial(self.policies.exchange_created, host)
        self.redirections = Redirections(self.topology, self.exchanges, self.authorization, self.events)
        self.removal.leaves = self.redirections.cancel
        if store is not None:
            store.on_refusal(lambda journal, is_full: call_soon(partial(self._journal_refuses, journal, is_full)))
        self._connections = 0

    def _new_queue_factory(self) -> QueueFactory:
        settings = self.settings
        watches = self._watches = WatchFactory(
            self.router.stops,
            FlowDefaults(settings.flow_stop_percent, settings.flow_resume_percent),
            settings.event_threshold_percent,
            self.events.emit,
            self.monotonic,
        )
        factory = QueueFactory(
            self.tick,
            self.store,
            settings.queue_limit_bytes,
            self.clock,
            watches,
            settings.default_message_group,
            settings.queue_memory_bytes,
        )
        factory.divert, factory.expiries = self.router.divert, self.expiries
        factory.dead_letter = DeadLetters(self.exchanges, self.router, self.tick, self.clock, self.monotonic).to
        factory.staging_bytes, factory.deliver_before_sync = settings.staging_bytes, settings.deliver_before_sync
        return factory

    def _new_topology(self, storage: TopologyStorage, access: Access) -> Topology:
        return Topology(
            self.queues,
            self.exchanges,
            factory=self.queue_factory,
            idle_queues=self.idle_queues,
            storage=storage,
            removal=self.removal,
            bindings=BindingMaker(self.router, self.tick, storage, self.clock),
            bound_exchanges=self.exchange_bindings,
            access=access,
            quotas=self.quotas,
            events=self.events,
            arguments=self.arguments,
        )

    def _journal_refuses(self, journal: str, is_full: bool) -> None:
        """Emit an event: a journal has begun to refuse messages, or, if it is full, all records."""
        if is_full:
            self.events.emit(JournalFull(journal, "no record fits any more"))
        else:
            what = "enqueue capacity threshold exceeded: messages are refused until others are consumed"
            self.events.emit(JournalEnqThresholdExceeded(journal, what))

    def next_connection(self) -> int:
        """The number of a new connection, from 1."""
        self._connections += 1
        return self._connections

    # ---- messages ----

    @property
    def totals(self) -> QueueTotals:
        """The summed counters of all queues, including deleted ones. Takes some microseconds for each."""
        queues = (*self.queues.values(), *self.removal.leaving)
        return sum_of((self.removal.deleted, *(queue.totals for queue in queues)))

    def begin_transaction(self, max_bytes: int) -> LocalTransaction:
        """Begin a local transaction. Messages published in it may take `max_bytes` of memory; 0 for no limit.

        Its memory is counted until `end_transaction`.
        """
        transaction = self._new_transaction(max_bytes)
        self.transactions.add(transaction)
        return transaction

    def _new_transaction(self, max_bytes: int) -> LocalTransaction:
        return LocalTransaction(self.router, self.store, self.tick, self.memory, max_bytes)

    def end_transaction(self, transaction: LocalTransaction) -> None:
        """Stop counting a transaction that is about to be committed, or was discarded."""
        self.transactions.discard(transaction)

    def held_memory(self) -> int:
        """Bytes of memory taken by messages: on queues, in open transactions, and incomplete ones."""
        queues = sum(queue.memory for queue in self.queues.values())
        local = sum(each.memory for each in self.transactions)
        return queues + local + self.distributed.memory + self.replies.memory + self.unfinished_bytes()

    def _relieve_memory(self, excess: int) -> None:
        """Move messages out of memory, those of the largest queues first, to free `excess` bytes."""
        queues = sorted(self.queues.values(), key=lambda queue: queue.memory, reverse=True)
        for queue in queues:
            if excess <= 0:
                return
            residency = queue.residency
            if residency is not None and queue.message_count > residency.messages_out - residency.messages_in:
                excess -= residency.relieve(excess, is_urgent=True)

    def check_memory(self, message: Message, exchange: Exchange, *, in_transaction: bool) -> None:
        """Raise ResourceLimitExceededError if memory is full and a published message would stay in it."""
        try:
            self.memory.check()
        except ResourceLimitExceededError:
            if in_transaction or self.memory.is_exhausted or not self.router.leaves_memory(message, exchange):
                raise

    def log_stopped_queues(self) -> None:
        """Log the queues whose publishers wait. Call this about twice a second."""
        self._watches.stopped.look(self.monotonic())

    def expire(self) -> int:
        """Remove expired messages from all queues, in turns. Returns the number removed in the first turn."""
        turns, removed = self.tick.turns, 0

        def work() -> Iterator[None]:
            nonlocal removed
            for count in expire_in_turns(list(self.queues.values()), self.clock()):
                removed += count
                yield

        if not turns.has(self.expiries):  # otherwise the last purge has not ended
            turns.do(self.expiries, work())
        return removed

    def recover(self, restore: RestoreMessage, progress: ReportProgress | None = None) -> None:
        """Load exchanges, queues, bindings and messages from the store.

        Args:
            restore: decodes a stored message.
            progress: called with the progress.
        """
        self.queue_factory.use_restore(restore)
        self.configuration.recover()
        self.policies.recover()
        if self.store is not None:
            recovery = Recovery(
                self.store,
                self.exchanges,
                self.queues,
                self.queue_factory,
                restore,
                self.tick.count_memory,
                self.events.emit,
                progress,
            )
            recovery.run()
            self.topology.awaiting.update(recovery.awaiting)
            self.policies.exchanges_recovered()
            self.tick.schedule()  # messages may have expired meanwhile
            for queue in self.queues.values():
                self.quotas.queue_created(queue.creator)
                self.idle_queues.used(queue)
            for xid, effects in recovery.in_doubt.items():
                self.distributed.recover(xid, effects, self.store.transactions.user_of(xid))

    # ---- serving clients ----

    def run(self) -> None:
        """Log that the broker serves clients. Log rules in the manual name this method (Broker Book, 1.1.8.5)."""
        _LOG.notice("Broker running")

    # ---- shutdown ----

    def close(self) -> bool:
        """Close the store for good. Returns whether everything acknowledged is on the disk."""
        if self.store is None:
            self.tick.close()
            return True
        delivered = {
            queue.journal.queue_id: rids
            for queue in self.queues.values()
            if queue.journal is not None and (rids := queue.delivered_rids())
        }
        try:
            return self.store.close(delivered)
        finally:
            self.tick.close()


def _events_to(settings: BrokerSettings) -> Sequence[tuple[str, str | None]]:
    """The destinations of events of replicated queues: an exchange, and a routing key, or None for any."""
    if settings.replication_exchange:
        return ((settings.replication_exchange, None),)
    return (("", settings.replication_queue),) if settings.replication_queue else ()
