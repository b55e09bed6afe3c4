"""The model of one broker, assembled from its parts. Protocols, management and the process use it.

Each part knows only the parts it needs, and none of them knows the broker. The store, if there is one, persists durable
objects and messages; `recover` loads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from qstore.broker.log.event_log import log_event
from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import OF_SUBSCRIPTION, ArgumentCheck
from qstore.broker.model.authorization import Authorization
from qstore.broker.model.configuration import Configuration
from qstore.broker.model.counters import MessageSizes, QueueTotals, sum_of
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.events import Events, JournalEnqThresholdExceeded, JournalFull
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.memory import QUEUE_OVERHEAD, MemoryCeiling
from qstore.broker.model.message import Message, RestoreMessage
from qstore.broker.model.node_policies import NodePolicies
from qstore.broker.model.parameters import Parameters
from qstore.broker.model.policies import Policies
from qstore.broker.model.queues.composition import QueueFactory, WatchFactory
from qstore.broker.model.queues.expiry import Expiries, expire_in_turns
from qstore.broker.model.queues.flow_control import FlowDefaults
from qstore.broker.model.queues.patrol import Patrol
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.quotas import Quotas
from qstore.broker.model.recovery import Recovery
from qstore.broker.model.replication.events import CopySeal
from qstore.broker.model.router import Router
from qstore.broker.model.selectors.candidate import LastCandidate
from qstore.broker.model.store_protocol import ReportProgress, Store
from qstore.broker.model.streams import Streams
from qstore.broker.model.tick import Tick
from qstore.broker.model.topology.changes import TopologyStorage
from qstore.broker.model.transactions.distributed import DistributedTransactions
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.model.virtual_host import VirtualHost, VirtualHosts
from qstore.broker.settings import BrokerSettings
from qstore.formats.broker_records.topology import DEFAULT_HOST

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
        hosts: name -> virtual host.
        default_host: the default one, which always exists.
        virtual_hosts: creates, limits and deletes them.
        memory: the memory ceiling for messages, and current usage.
        transactions: open local transactions.
        distributed: distributed transactions.
        unfinished_bytes: returns the bytes received of incomplete messages.
        tick: work collected during the current event loop tick.
        queue_factory: creates queues.
        expiries: removes messages at the head of queues when they expire.
        router: publishes and moves messages.
        arguments: checks the arguments of declarations and subscriptions.
        message_sizes: protocol -> the sizes of the messages that publishers have sent.
        started_at, started: start time, by `clock` and by `monotonic`.
        has_timestamps: whether messages of new connections get their time of arrival.
        federation_tag: its name in a federation; empty until the server has set it.
        known_hosts: a URL with the addresses that are announced to clients; empty for none.
        authorization: checks operations.
        copy_seal: makes and reads the header of copies of replicated messages.
        configuration: policies, permissions, parameters and other records that are set while the broker runs.
        parameters: what components are configured with while the broker runs.
        policies: what operators set for queues and exchanges by the patterns of their names.
        node_policies: which nodes are made when links of AMQP 1.0 are attached to names that no node has.
        streams: the queues that are streams.
        quotas: counts connections and queues of users, and limits them.
        events: emits events to listeners.
        last_candidate: the last message for which a consumer's selector was evaluated.
        self_destruct: schedules the deletion of a virtual host's queue, which has exceeded its limit.
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
        self.call_later = call_later
        self.authorization = Authorization()
        self.configuration = Configuration(store)
        self.parameters = Parameters(self.configuration)
        self.node_policies = NodePolicies(store, self.authorization, clock)
        self.events = Events()
        self.events.listen(log_event)
        self.quotas = Quotas(self.events.emit, settings.connections_per_host)
        self.memory = MemoryCeiling(
            settings.memory_bytes, self.held_memory, queues=lambda: QUEUE_OVERHEAD * self.queue_count
        )
        self.memory.relieve = self._relieve_memory
        self.tick = Tick(call_soon, store, self.memory)
        self.transactions: set[LocalTransaction] = set()
        self.unfinished_bytes: Callable[[], int] = lambda: 0
        self.last_candidate = LastCandidate()
        self.router = Router(store, self.tick, self.authorization)
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
        self.message_sizes: dict[str, MessageSizes] = {}
        self.started_at, self.started = clock(), monotonic()
        self.has_timestamps = settings.enable_timestamp
        self.federation_tag = settings.federation_tag or ""
        self.known_hosts = settings.known_hosts
        self.arguments = ArgumentCheck()
        self.copy_seal = CopySeal(self.configuration)
        self.hosts: dict[str, VirtualHost] = {}
        self.policies = Policies(self.configuration, self.hosts, self.queue_factory)
        self.self_destruct: Callable[[VirtualHost, str], None] = lambda _host, _queue: None
        self.default_host = self.hosts[DEFAULT_HOST] = self._make_host(DEFAULT_HOST)
        self.virtual_hosts = VirtualHosts(self.configuration, self.hosts, self._make_host)
        self.virtual_hosts.forgotten += [self.policies.forget, self.parameters.forget]
        self.streams = Streams(self.configuration, clock, monotonic)
        self.queue_factory.stream_made, self.queue_factory.forget_stream = self.streams.made, self.streams.forget
        if store is not None:
            store.on_refusal(lambda journal, is_full: call_soon(partial(self._journal_refuses, journal, is_full)))
        self._connections = 0

    def _new_queue_factory(self) -> QueueFactory:
        settings = self.settings
        self.patrol = Patrol(self.events.emit, self.monotonic)
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
        factory.patrol, factory.default_policy = self.patrol, settings.default_queue_policy
        factory.staging_bytes, factory.deliver_before_sync = settings.staging_bytes, settings.deliver_before_sync
        return factory

    def _make_host(self, name: str) -> VirtualHost:
        """Make a virtual host, with the standard exchanges."""
        host = VirtualHost(
            name,
            self.settings,
            tick=self.tick,
            router=self.router,
            factory=self.queue_factory,
            policies=self.policies,
            authorization=self.authorization,
            storage=TopologyStorage(self.store, name, self.events.emit),
            quotas=self.quotas,
            events=self.events,
            arguments=self.arguments,
            seal=self.copy_seal,
            clock=self.clock,
            monotonic=self.monotonic,
            call_later=self.call_later,
        )
        host.self_destruct = lambda queue: self.self_destruct(host, queue)
        return host

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

    # ---- all hosts ----

    def all_queues(self) -> Iterator[Queue]:
        """The queues of all hosts."""
        for host in self.hosts.values():
            yield from host.queues.values()

    @property
    def queue_count(self) -> int:
        """The number of queues of all hosts."""
        return sum(len(host.queues) for host in self.hosts.values())

    async def finish(self) -> None:
        """Wait until no change of the topology or the configuration is pending. Called before the store is closed."""
        for host in list(self.hosts.values()):
            await host.topology.finish()
        await self.streams.finish()
        await self.configuration.finish()

    # ---- messages ----

    @property
    def totals(self) -> QueueTotals:
        """The summed counters of all queues, including deleted ones. Takes some microseconds for each."""
        hosts = list(self.hosts.values())
        leaving = [queue for host in hosts for queue in host.removal.leaving]
        deleted = [host.removal.deleted for host in hosts]
        return sum_of((*deleted, *(queue.totals for queue in (*self.all_queues(), *leaving))))

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
        queues = sum(queue.memory for queue in self.all_queues())
        replies = sum(host.replies.memory for host in self.hosts.values())
        local = sum(each.memory for each in self.transactions)
        return queues + local + self.distributed.memory + replies + self.unfinished_bytes()

    def _relieve_memory(self, excess: int) -> None:
        """Move messages out of memory, those of the largest queues first, to free `excess` bytes."""
        queues = sorted(self.all_queues(), key=lambda queue: queue.memory, reverse=True)
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
            waiting = {host.schedule.queue for host in self.hosts.values()}  # nothing expires there
            queues = [queue for queue in self.all_queues() if queue not in waiting]
            for count in expire_in_turns(queues, self.clock()):
                removed += count
                yield

        if not turns.has(self.expiries):  # otherwise the last purge has not ended
            turns.do(self.expiries, work())
        return removed

    def stop_timers(self) -> None:
        """Let no message expire, become due or be tried again any more: the broker shuts down."""
        self.expiries.stop()
        for host in self.hosts.values():
            host.schedule.stop()
            host.dead_letters.stop()

    def recover(self, restore: RestoreMessage, progress: ReportProgress | None = None) -> None:
        """Load exchanges, queues, bindings and messages from the store.

        Args:
            restore: decodes a stored message.
            progress: called with the progress.
        """
        self.queue_factory.use_restore(restore)
        self.configuration.recover()
        self.policies.recover()
        self.node_policies.recover()
        self.parameters.recover()
        self.virtual_hosts.recover()
        if self.store is not None:
            recovery = Recovery(
                self.store,
                self.virtual_hosts.of_stored,
                self.queue_factory,
                restore,
                self.tick.count_memory,
                self.events.emit,
                progress,
            )
            recovery.run()
            self.streams.recovered(lambda host, name: self.hosts[host].queues.get(name) if host in self.hosts else None)
            self.policies.exchanges_recovered()
            self.tick.schedule()  # messages may have expired meanwhile
            for host in self.hosts.values():
                for queue in host.queues.values():
                    self.quotas.queue_created(queue.creator)
                    host.idle_queues.used(queue)
                    if queue.auto_delete_seconds and queue.arguments.get(OF_SUBSCRIPTION) is not None:
                        host.idle_queues.begin(queue)
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
            for queue in self.all_queues()
            if queue.journal is not None and (rids := queue.delivered_rids())
        }
        for queue in self.all_queues():
            if queue.journal is not None:
                for rid, count in queue.last_returns():
                    self.store.returned(queue.journal, rid, count)
        try:
            return self.store.close(delivered)
        finally:
            self.tick.close()
