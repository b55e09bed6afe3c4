"""Recovery: loads exchanges, queues, bindings and messages from the store into the model at a start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import WARNING
from typing import Final

from qstore.broker.log.logs import NOTICE, log_of
from qstore.broker.model.arguments import DURABLE, Of, lacking
from qstore.broker.model.events import Event, JournalRecovered, QueueRecovered, RecoveryBegun, RecoveryCompleted
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.types import exchange_type, join_host, load_type
from qstore.broker.model.message import Message, RestoreMessage
from qstore.broker.model.queues.arguments import read_usable
from qstore.broker.model.queues.composition import QueueFactory
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.store_protocol import (
    LIVE,
    PENDING,
    RecoveredMessage,
    RecoveredQueue,
    ReportProgress,
    Store,
)
from qstore.broker.model.topology.bindings import recover_bindings, recover_exchange_bindings
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.virtual_host import VirtualHost
from qstore.formats.broker_records.topology import split_name
from qstore.formats.errors import BrokerRecordError
from qstore.formats.values import TypedMap
from qstore.formats.wording import printable

_LOG: Final = log_of("Broker")

_RELIEVED_AFTER: Final = 1000  # messages
_OF_FRAMEWORKS: Final = ("x-queue-", "x-ha-")


class _Held:
    """The messages of one queue that branches in doubt hold.

    Attributes:
        xids: the branches.
        enqueues, dequeues: numbers of messages that they enqueue there, and dequeue.
    """

    def __init__(self) -> None:
        self.xids: set[bytes | None] = set()
        self.enqueues = self.dequeues = 0

    def count(self, stored: RecoveredMessage) -> None:
        """Count a message that a branch holds."""
        self.xids.add(stored.xid)
        if stored.state == PENDING:
            self.enqueues += 1
        else:
            self.dequeues += 1


class Recovery:
    """Loads the contents of a store into the model.

    Args:
        store: the store.
        hosts: returns the virtual host of a name, for the exchanges and queues of it that the store has.
        factory: creates queues.
        restore: decodes a stored message.
        has_grown: counts the memory of a queue.
        emit: emits the events of recovery.
        progress: called with the progress.

    Attributes:
        in_doubt: xid of each prepared branch -> its effects.
    """

    def __init__(
        self,
        store: Store,
        hosts: Callable[[str], VirtualHost],
        factory: QueueFactory,
        restore: RestoreMessage,
        has_grown: Callable[[Queue], None],
        emit: Callable[[Event], None],
        progress: ReportProgress | None = None,
    ) -> None:
        self._store, self._hosts = store, hosts
        self._exchanges: dict[str, Exchange] = {}  # by full name
        self._recovered = 0
        self._factory, self._restore, self._has_grown, self._emit = factory, restore, has_grown, emit
        self._tell = progress or (lambda _: None)
        self._messages = self._queue_count = self._message_count = 0
        self.in_doubt: dict[bytes, Effects] = {xid: Effects() for xid in store.transactions.in_doubt}

    def run(self) -> None:
        """Recover everything."""
        alternates: list[tuple[Exchange | Queue, VirtualHost, str]] = []
        self._emit(RecoveryBegun())
        self._recover_exchanges(alternates)
        by_id: dict[int, Queue] = {}
        self._queue_count = len(self._store.recovered_queues)
        self._message_count = sum(found.journal.depth for found in self._store.recovered_queues)
        for found in self._store.recovered_queues:
            host, name = self._host_of(found.record.name)
            queue = by_id[found.queue_id] = self._recover_queue(found, host, name)
            alternates.append((queue, host, split_name(found.record.alternate_exchange or "")[1]))
        self._store.end_recovery()
        recover_bindings(self._store, self._exchanges, by_id)
        for bound in self._store.topology.bindings:
            if bound.record.arguments.entries:
                queue_name, exchange_name = printable(bound.record.queue_name), printable(bound.exchange.name)
                what = f'Binding of queue "{queue_name}" to exchange "{exchange_name}"'
                _log_lacking(Of.BINDING, what, bound.record.arguments)
        for user, host, name in alternates:
            if name in host.exchanges and name:
                user.alternate = host.exchanges[name]
            elif name:
                host.topology.awaiting[user] = name
        recover_exchange_bindings(self._store, self._exchanges)
        for queue in by_id.values():  # which may move messages to others
            queue.end_recovery()
        self._emit(RecoveryCompleted())

    def _host_of(self, full: str) -> tuple[VirtualHost, str]:
        host, name = split_name(full)
        return self._hosts(host), name

    def _recover_exchanges(self, alternates: list[tuple[Exchange | Queue, VirtualHost, str]]) -> None:
        for number, record in self._store.topology.exchanges.items():
            host, name = self._host_of(record.name)
            exchange = host.exchanges.get(name)
            if exchange is None:
                try:
                    load_type(record.type)
                    make = exchange_type(record.type, record.arguments)
                except Exception as error:
                    _LOG.warning('Exchange "%s" was not recovered: %s', printable(record.name), error)
                    continue
                exchange = make(
                    name,
                    durable=True,
                    auto_delete=bool(record.auto_delete),
                    arguments=record.arguments,
                )
                join_host(exchange, host.name, host.queues, host.schedule, host.seal)
                _log_lacking(Of.EXCHANGE, f'Exchange "{printable(record.name)}"', record.arguments)
                host.exchanges[name] = exchange
                alternates.append((exchange, host, split_name(record.alternate_exchange or "")[1]))
            self._exchanges[record.name] = exchange
            exchange.store_id = number

    def _recover_queue(self, found: RecoveredQueue, host: VirtualHost, name: str) -> Queue:
        record, shown = found.record, printable(found.record.name)
        self._emit(RecoveryBegun(shown))
        self._report_progress(record.name)
        parsed, reasons = read_usable(record.arguments)
        for reason in reasons:  # qpidd or an earlier version has accepted the argument
            _LOG.warning('Queue "%s": %s', shown, reason)
        _log_lacking(Of.QUEUE, f'Queue "{shown}"', record.arguments)
        queue = self._factory.make(
            host,
            name,
            durable=True,
            auto_delete=bool(record.auto_delete),
            arguments=record.arguments,
            parsed=parsed,
            journal=found.journal,
        )
        held = _Held()
        if not self._recover_index(found, queue, held):
            self._recover_messages(found, queue, held)
        queue.recover_returns(self._store.returns(found))
        journal = found.journal
        self._emit(
            JournalRecovered(
                journal.name,
                journal.geometry.data_size,
                journal.geometry.files,
                journal.depth,
                len(held.xids),
                held.enqueues,
                held.dequeues,
            )
        )
        queue.creator = record.owner or ""
        host.queues[name] = queue
        self._recovered += 1
        host.exchanges[""].binding_count.set(len(host.queues))
        self._emit(QueueRecovered(shown, queue.message_count))
        return queue

    def _recover_index(self, found: RecoveredQueue, queue: Queue, held: _Held) -> bool:
        """Put the messages on a queue without reading them, if the queue allows that. Returns whether it does.

        Those that a branch in doubt holds are read, and counted in `held`. The sizes of the others are estimated from
        that of the first one, and known once they are read. A queue that displaces messages, such as a ring, needs
        exact sizes: with estimates it would discard messages for which there is room. One with a TTL for messages needs
        to know when they expire.
        """
        is_plain = not queue.displacements and queue.message_ttl is None
        taker = queue if isinstance(queue, Stream) else queue.residency
        if taker is None or not is_plain or not taker.takes_index:
            return False
        portions = self._store.index(found)
        if portions is None:
            return False
        surplus = -1
        for portion in portions:
            if portion.rids:
                if surplus < 0:
                    surplus = max(0, taker.measure(portion.rids[0], portion.sizes[0]))
                sizes = _less(portion.sizes, surplus)
                taker.recover(portion.rids, sizes, portion.redelivered)
                self._messages += len(sizes)
            if portion.held is not None and self._recover_message(queue, portion.held, held):
                self._messages += 1
            self._report_progress(found.record.name)
        self._relieve(queue)
        return True

    def _recover_messages(self, found: RecoveredQueue, queue: Queue, held: _Held) -> None:
        count = 0
        for stored in self._store.messages(found):
            if not self._recover_message(queue, stored, held):
                continue
            count += 1
            if count % _RELIEVED_AFTER == 0:
                self._messages += _RELIEVED_AFTER
                self._relieve(queue)
                self._report_progress(found.record.name)
        self._messages += count % _RELIEVED_AFTER
        self._relieve(queue)

    def _recover_message(self, queue: Queue, stored: RecoveredMessage, held: _Held) -> bool:
        """Put a message that was read on a queue. Returns False if it cannot be decoded, which is logged."""
        try:
            message = self._restore(stored.data)
        except BrokerRecordError as error:
            _LOG.error('Queue "%s": record 0x%x is skipped, and stays stored: %s', queue.name, stored.rid, error)
            return False
        if stored.state == LIVE:
            queue.enter(message, stored.rid).is_redelivered = stored.redelivered
        else:
            self._hold(queue, message, stored)
            held.count(stored)
        return True

    def _report_progress(self, name: str) -> None:
        self._tell(
            lambda: (
                f"recovered {self._messages:,} of {self._message_count:,} messages; at queue "
                f'{self._recovered + 1:,} of {self._queue_count:,}, "{printable(name)}"'
            )
        )

    def _relieve(self, queue: Queue) -> None:
        """Move recovered messages out of memory again, if there are too many."""
        if queue.residency is not None:
            queue.residency.keep_within_budget()
        self._has_grown(queue)

    def _hold(self, queue: Queue, message: Message, stored: RecoveredMessage) -> None:
        """Enqueue a message that a branch in doubt holds."""
        assert stored.xid is not None
        effects = self.in_doubt[stored.xid]
        if stored.state == PENDING:
            entry = queue.add_uncommitted(message, stored.rid)
            effects.published.setdefault(queue, []).append(entry)
        else:
            entry = queue.enter(message, stored.rid)
            queue.lock(entry)
            effects.accepted.append((queue, entry))
        entry.is_redelivered = stored.redelivered


def _less(sizes: Sequence[int], surplus: int) -> Sequence[int]:
    """The sizes without `surplus`, at least 1. Most often all are equal."""
    if min(sizes) == max(sizes):
        return [max(1, sizes[0] - surplus)] * len(sizes)
    return [max(1, size - surplus) for size in sizes]


def _log_lacking(of: Of, what: str, arguments: TypedMap) -> None:
    """Log features that a recovered object was declared with and does not have.

    The ignored arguments of RabbitMQ are left out: frameworks set them for every queue.
    """
    found = [each for each in lacking(of, arguments, (DURABLE,)) if each.row is not None and not each.where]
    refused = "; ".join(str(each) for each in found if each.is_refused)
    ignored = "; ".join(str(each) for each in found if not each.is_refused and not each.name.startswith(_OF_FRAMEWORKS))
    for level, lines in ((WARNING, refused), (NOTICE, ignored)):
        if lines:
            _LOG.log(level, "%s lacks features of its declaration: %s", what, lines)
