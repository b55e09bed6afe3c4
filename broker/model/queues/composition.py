"""Builds queues from their declarations: each is a `Queue` with the parts that its arguments require.

part            decides                                         without it
--------------  ----------------------------------------------  ----------------------------------
`fifo`          which message is next: the oldest               (each queue has an order)
`priority`      likewise: the oldest of the highest level       `fifo` decides
`groups`        likewise, for each consumer                     messages have no groups
`limits`        which messages the queue accepts: eligibility   it accepts every message
                what happens to a message beyond the limit      the queue has no limit
                which messages leave when others arrive         none (see also `last_value`)
`replication`   the listeners to enqueues and dequeues          none (`replication.source`)
`flow_control`  when publishers wait, and alerts                its depth has no effect
`residency`     which of its messages are in memory             all of them
`consumers`     which consumers are offered a message           all, in turn

A stream is a queue of another kind (`stream`): it has none of these but `flow_control`, for alerts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError
from qstore.broker.model.exchanges.history import RecentHistoryExchange
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.arguments import (
    FLOW_TO_DISK,
    LENGTHS,
    NO_ARGUMENTS,
    POLICY_TYPE,
    REJECT,
    REJECT_DEAD,
    RING,
    RING_STRICT,
    SELF_DESTRUCT,
    QueueArguments,
    read_arguments,
    read_usable,
)
from qstore.broker.model.queues.due import HISTORY, WAITING
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.flow_control import (
    Alerts,
    AlertThresholds,
    DepthWatch,
    FlowControl,
    FlowDefaults,
    FlowThresholds,
    Stop,
    StoppedQueues,
    alert_thresholds,
    flow_thresholds,
)
from qstore.broker.model.queues.groups import DEFAULT_GROUP, GroupOrder
from qstore.broker.model.queues.idle_arguments import Fit, idle_arguments
from qstore.broker.model.queues.last_value import LastValues
from qstore.broker.model.queues.limits import (
    Capacity,
    DiskLimit,
    Displacement,
    Eligibility,
    Limit,
    OverflowLimit,
    Ring,
    RingLimit,
    SelfDestruct,
)
from qstore.broker.model.queues.patrol import Patrol
from qstore.broker.model.queues.priority import PriorityOrder
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Retention, Stream
from qstore.broker.model.queues.stream_log import MAX_BYTES as MAX_SEGMENT
from qstore.broker.model.queues.stream_log import StreamCache
from qstore.broker.model.replication.source import EventGeneration, ReplicatingListener
from qstore.broker.model.residency.page_file import PageFile
from qstore.broker.model.residency.paging_directory import PagingDirectory, cannot_restore
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.sources import JournalSource
from qstore.broker.model.residency.stretch import PORTIONS, Portions
from qstore.broker.settings import QUEUE_LIMIT_BYTES
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.arguments import Applied, IdleArgument
    from qstore.broker.model.events import Event
    from qstore.broker.model.message import RestoreMessage
    from qstore.broker.model.queues.expiry import Expiries
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.virtual_host import VirtualHost

_LOG: Final = log_of("Model")

SMALL_PORTIONS: Final = Portions(window=256, largest=128, smallest=16, bytes=1 << 18, patience=128, ahead=1 << 18)
"""How queues that keep few messages in memory move the others out."""

DELIVERIES: Final = 20
"""How often a message of a quorum queue may return, if neither the declaration nor a policy says so."""

STREAM_CACHE_BYTES: Final = 32 << 20
"""Messages of all streams that are in memory, because consumers have just read them."""

MIN_SEGMENT: Final = 4096
"""Bytes of the smallest segment of a stream."""

MIN_BUDGET: Final = 1 << 20
"""Least bytes that a queue may have in memory: a few stretches."""

_LIMITED: Final = (RING, RING_STRICT, SELF_DESTRUCT, FLOW_TO_DISK)
"""The policies that have no effect without a limit."""

_NOT_KEPT_BELOW_LIMIT: Final = (RING, RING_STRICT, SELF_DESTRUCT)
_NO_DEFAULTS: Final = FlowDefaults()


class QueueFactory:
    """Creates the queues of one broker.

    Args:
        tick: dispatches the queues.
        store: persists durable queues; None without persistence.
        max_bytes: limit in bytes for queues that declare none; 0 for no limit, None for `default_bytes`. A declared
            limit counts headers and content, as in qpidd; this one counts memory.
        clock: seconds since 1970.
        watches: makes their depth watches.
        default_group: the name of the default group.
        queue_memory: bytes of memory that a queue's messages may take, if more can be kept on disk; 0 for no limit.

    Attributes:
        listener: sends the events of queues with `qpid.queue_event_generation`; None if there are none.
        restore: decodes a stored message (`use_restore`).
        staging_bytes: larger messages leave memory when they are not consumed at once; 0 to disable.
        deliver_before_sync: whether queues deliver a stored message before its record is on the disk, unless their
            declaration decides.
        paging: the paging files; None if there is no directory for them (`use_paging`).
        divert: moves an acquired message of a queue to its dead-letter or alternate exchange. Returns False if there is
            none, or no room there.
        expiries: removes messages at the head of queues when they expire.
        patrol: watches queues that ask for it.
        default_policy: what durable queues do at their limit that declare no policy.
        stream_made: called with each new stream.
        forget_stream: deletes what is stored of an earlier stream of a virtual host with a name.
    """

    def __init__(
        self,
        tick: Tick,
        store: Store | None,
        max_bytes: int | None,
        clock: Callable[[], float],
        watches: WatchFactory,
        default_group: str = DEFAULT_GROUP,
        queue_memory: int = 0,
    ) -> None:
        self._tick, self._store, self._max_bytes, self._clock = tick, store, max_bytes, clock
        self._watches, self._default_group = watches, default_group
        self._queue_memory = queue_memory or sys.maxsize
        self.restore: RestoreMessage = cannot_restore
        self.paging: PagingDirectory | None = None
        self._max_paging_bytes = self.staging_bytes = 0
        self.deliver_before_sync = False
        self.divert: Callable[[Queue, Entry], bool] = lambda _queue, _entry: False
        self.listener: ReplicatingListener | None = None
        self.expiries: Expiries | None = None
        self.patrol = Patrol(lambda _event: None, lambda: 0.0)
        self.default_policy = REJECT
        self._stream_cache = StreamCache(STREAM_CACHE_BYTES)
        self.stream_made: Callable[[Stream], None] = lambda _stream: None
        self.forget_stream: Callable[[str, str], Coroutine[Any, Any, None]] = _nothing_stored

    def use_paging(self, directory: PagingDirectory, max_bytes: int) -> None:
        """Let queues move messages to paging files, each of at most `max_bytes`; 0 for no limit."""
        directory.restore = self.restore
        self.paging, self._max_paging_bytes = directory, max_bytes

    def use_restore(self, restore: RestoreMessage) -> None:
        """Set the decoder of stored messages, before there are any."""
        self.restore = restore
        if self.paging is not None:
            self.paging.restore = restore

    @property
    def has_store(self) -> bool:
        """Whether durable queues have journals."""
        return self._store is not None

    def read(self, name: str, arguments: TypedMap, *, durable: bool) -> QueueArguments:
        """Parse the arguments of a new queue. Raises InvalidArgumentError."""
        parsed = read_arguments(arguments)
        if parsed.is_stream and self._store is None:
            raise PreconditionFailedError(f"queue '{name}' cannot be a stream: the broker has no store")
        parsed = self._with_default(parsed, arguments, durable=durable)
        self._watches.check(name, parsed, self._capacity(parsed, durable=durable))
        return parsed

    def idle_arguments(
        self, host: VirtualHost, name: str, arguments: TypedMap, *, durable: bool, auto_delete: bool
    ) -> list[IdleArgument]:
        """The arguments of a new queue of a host that have no effect beside the others, and the host's policies."""
        _, effective = host.policy_of(name, arguments)
        parsed, _ = read_usable(effective)
        parsed = self._with_default(parsed, effective, durable=durable)
        is_stored = durable and self._store is not None
        capacity = Capacity() if parsed.is_stream else self._capacity(parsed, durable=is_stored)
        flow, alerts = self._watches.thresholds(name, parsed, capacity)
        fit = Fit(
            parsed,
            capacity,
            parsed.max_messages > 0 or self._max_bytes_of(parsed, durable=is_stored) > 0,
            flow or FlowThresholds(),
            alerts or AlertThresholds(),
            _retention(parsed).segment_bytes,
            durable,
            is_stored or self.paging is not None,
            auto_delete,
            MIN_BUDGET,
            self._queue_memory,
        )
        return idle_arguments(arguments, fit)

    def _with_default(self, parsed: QueueArguments, arguments: TypedMap, *, durable: bool) -> QueueArguments:
        """With the default policy for durable queues, if neither the declaration nor a policy has one."""
        is_given = parsed.overflow != "" or any(arguments.get(each) is not None for each in (POLICY_TYPE, *LENGTHS))
        if self.default_policy == REJECT or is_given or not durable or parsed.is_stream or parsed.last_value_key:
            return parsed
        has_limit = parsed.max_messages > 0 or bool(parsed.max_bytes)
        return parsed._replace(policy=self.default_policy) if has_limit else parsed

    def make(
        self,
        host: VirtualHost,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: TypedMap,
        parsed: QueueArguments = NO_ARGUMENTS,
        journal: Any = None,
    ) -> Queue:
        """Create a queue of a host; `parsed` are its parsed arguments, `journal` its journal in the store."""
        policy, effective = host.policy_of(name, arguments)
        if effective is not arguments:
            parsed, _ = read_usable(effective)
        parsed = self._with_default(parsed, effective, durable=durable)
        if parsed.is_stream and journal is not None:
            return self._make_stream(host, name, policy, arguments, parsed, journal)
        order = self._order(parsed)
        capacity = self._capacity(parsed, durable=journal is not None)
        residency = self._residency(name, order, parsed, journal)
        limit, displacements = self._limit(host, name, parsed, capacity)
        if parsed.policy == FLOW_TO_DISK and residency is not None:
            limit = self._disk_limit(parsed, residency, durable=journal is not None)
        if parsed.last_value_key:
            last_values = LastValues(
                parsed.last_value_key, keeps_browsed=parsed.keeps_browsed, keeps_place=parsed.keeps_place
            )
            displacements = (last_values, *displacements)
        if parsed.patrol.message_size:
            displacements = (*displacements, self.patrol.large_messages(parsed.patrol))
        if parsed.event_generation and self.listener is not None:  # its event precedes those of displaced messages
            events = EventGeneration(name, self.listener, with_dequeues=parsed.event_generation > 1)
            displacements = (events, *displacements)
        eligibility = None
        if parsed.no_local or parsed.filter is not None or parsed.trace_id or parsed.trace_excludes:
            eligibility = Eligibility(
                no_local=parsed.no_local,
                selector=parsed.filter,
                trace_id=parsed.trace_id,
                excludes=parsed.trace_excludes,
            )
        is_schedule = name == WAITING
        if is_schedule:
            displacements = (host.schedule.due_times,)
        queue = Queue(
            name,
            self._tick,
            durable=durable,
            auto_delete=auto_delete if parsed.auto_delete is None else parsed.auto_delete,
            arguments=arguments,
            store=None if journal is None else self._store,
            journal=journal,
            order=order,
            limit=limit,
            displacements=displacements,
            eligibility=eligibility,
            watch=self._watches.make(host.name, name, parsed, capacity),
            residency=residency,
            is_single_active=parsed.is_single_active,
            clock=self._clock,
        )
        queue.host = host.name
        queue.auto_delete_seconds, queue.sequence_header = parsed.auto_delete_seconds, parsed.sequence_header
        queue.policy, queue.expiries = policy, self.expiries
        if is_schedule:
            queue.owner, queue.is_private, queue.expiries = host.schedule, True, None
            host.schedule.queue = queue
        elif name.startswith(HISTORY):
            queue.owner, queue.is_private = BROKER, True
            exchange = host.exchanges.get(name.removeprefix(HISTORY))
            if isinstance(exchange, RecentHistoryExchange):  # which is recovered before
                exchange.history.queue = queue
        self._set_times(host, queue, parsed)
        if self.deliver_before_sync if parsed.is_early is None else parsed.is_early:
            queue.deliver_before_sync()
        queue.is_kept_until_empty, queue.is_browse_only = parsed.is_kept_until_empty, parsed.is_browse_only
        queue.max_consumers = parsed.max_consumers
        self.patrol.watch(queue, parsed.patrol)
        return queue

    def _make_stream(
        self, host: VirtualHost, name: str, policy: Applied, arguments: TypedMap, parsed: QueueArguments, journal: Any
    ) -> Stream:
        assert self._store is not None
        stream = Stream(
            name,
            self._tick,
            store=self._store,
            journal=journal,
            restore=self.restore,
            cache=self._stream_cache,
            clock=self._clock,
            arguments=arguments,
            retention=_retention(parsed),
            is_single_active=parsed.is_single_active,
        )
        stream.watch = self._watches.make(host.name, name, parsed, Capacity())
        stream.host, stream.policy, stream.max_consumers = host.name, policy, parsed.max_consumers
        if self.deliver_before_sync if parsed.is_early is None else parsed.is_early:
            stream.deliver_before_sync()
        self.stream_made(stream)
        return stream

    def _set_times(self, host: VirtualHost, queue: Queue, parsed: QueueArguments) -> None:
        """Set when messages of a queue expire, when it does, how often they may return, and where dead ones go."""
        queue.message_ttl = None if parsed.message_ttl is None else parsed.message_ttl / 1000
        queue.expires_seconds = parsed.expires / 1000
        if parsed.is_quorum:
            queue.delivery_limit = DELIVERIES if parsed.delivery_limit is None else parsed.delivery_limit
        wanted, current = parsed.dead_letter, queue.dead_letter
        if wanted is None:
            queue.dead_letter = None
        else:
            exchange, key, is_kept = wanted.exchange, wanted.routing_key, parsed.keeps_dead
            now = None if current is None else (current.exchange, current.routing_key, current.is_at_least_once)
            if now != (exchange, key, is_kept):
                queue.dead_letter = host.dead_letters.to(exchange, key, is_at_least_once=is_kept)

    def refit(self, host: VirtualHost, queue: Queue, arguments: TypedMap) -> None:
        """Change the limits, times and destinations of a host's running queue to those of other effective arguments.

        Messages beyond a new limit leave as when another one arrives. Everything else of it stays as it is.
        """
        parsed, _ = read_usable(arguments)
        parsed = self._with_default(parsed, arguments, durable=queue.durable)
        queue.max_consumers = parsed.max_consumers
        if isinstance(queue, Stream):
            queue.retain(_retention(parsed))
            return
        is_durable = queue.journal is not None
        capacity = self._capacity(parsed, durable=is_durable)
        limit, limiting = self._limit(host, queue.name, parsed, capacity)
        if parsed.policy == FLOW_TO_DISK and queue.residency is not None:
            limit = self._disk_limit(parsed, queue.residency, durable=is_durable)
        if limit is not None and queue.limit is not None:
            limit.refused = queue.limit.refused
        ring = next((each for each in queue.displacements if isinstance(each, Ring)), None)
        others = [each for each in queue.displacements if not isinstance(each, Ring | SelfDestruct)]
        if ring is not None and (limiting or ring.is_diverting):  # it counts messages that are on their way elsewhere
            ring.use(limit if isinstance(limit, RingLimit) else RingLimit(Capacity(), is_strict=False))
            limiting = (ring, *(each for each in limiting if not isinstance(each, Ring)))
        self._set_times(host, queue, parsed)
        queue.change_limit(limit, (*others, *limiting), self._watches.make(host.name, queue.name, parsed, capacity))

    def _residency(self, name: str, order: Fifo, parsed: QueueArguments, journal: Any) -> Residency | None:
        """The part that decides which messages are in memory; None if all must be.

        The journal of a durable queue has all persistent messages; a paging file can have the others.
        """
        stored, others = None, None
        if journal is not None:
            assert self._store is not None
            stored = JournalSource(self._store, journal, name, self.restore)
        if self.paging is not None:
            others = PageFile(
                self.paging,
                name,
                page_size=parsed.page_bytes,
                max_bytes=self._max_paging_bytes,
                compresses=parsed.compresses,
            )
        elif parsed.pages or (parsed.policy == FLOW_TO_DISK and journal is None):
            text = 'Queue "%s": its messages stay in memory, since there is no directory for them; see --paging-dir'
            _LOG.warning(text, name)
        if stored is None and others is None:
            return None
        budget = self._queue_memory
        if parsed.pages:
            budget = min(budget, max(parsed.pages * parsed.page_bytes, MIN_BUDGET))
        return Residency(
            stored,
            others,
            budget,
            has_stretches=type(order) is Fifo,
            staging=self.staging_bytes,
            portions=SMALL_PORTIONS if parsed.pages or parsed.policy == FLOW_TO_DISK else PORTIONS,
        )

    def default_bytes(self, policy: str, *, durable: bool, has_other: bool) -> int:
        """The limit in bytes of a queue that declares none; 0 for no limit.

        Messages that can leave memory are limited by the disk, and memory by its ceiling (`model.memory`). Where they
        cannot, one queue must not take the memory of all others.

        Args:
            policy: the queue's policy.
            durable: whether it has a journal.
            has_other: whether it has another limit, or needs none: x-overflow without a length has no effect.
        """
        if self._max_bytes is not None:
            return self._max_bytes
        if policy in _LIMITED and not has_other:
            return QUEUE_LIMIT_BYTES
        can_leave = self.paging is not None or (durable and self._store is not None)
        return 0 if can_leave else QUEUE_LIMIT_BYTES

    def _max_bytes_of(self, parsed: QueueArguments, *, durable: bool) -> int:
        """The limit in bytes of a queue: its own, or else the default; 0 for no limit."""
        if parsed.max_bytes is not None:
            return parsed.max_bytes
        has_other = bool(parsed.max_messages or parsed.overflow)
        return self.default_bytes(parsed.policy, durable=durable, has_other=has_other)

    def _disk_limit(self, parsed: QueueArguments, residency: Residency, *, durable: bool) -> Limit:
        """The limit of a queue whose messages leave memory beyond it."""
        max_bytes = self._max_bytes_of(parsed, durable=durable)
        if max_bytes:
            residency.budget = min(residency.budget, max(max_bytes, MIN_BUDGET))
        return DiskLimit(Capacity(parsed.max_messages, max_bytes), residency)

    def _order(self, parsed: QueueArguments) -> Fifo:
        """The order of a queue's messages; priorities and groups exclude each other."""
        if parsed.group_header:
            return GroupOrder(parsed.group_header, self._default_group)
        if parsed.levels < 2:
            return Fifo()
        return PriorityOrder(parsed.levels, parsed.fair_share, is_capped=parsed.is_capped)

    def _capacity(self, parsed: QueueArguments, *, durable: bool) -> Capacity:
        if parsed.policy == FLOW_TO_DISK and self.paging is not None:
            return Capacity()
        max_bytes = self._max_bytes_of(parsed, durable=durable)
        if parsed.max_bytes is None and parsed.pages and self.paging is not None:
            max_bytes = 0  # the default counts memory
        return Capacity(parsed.max_messages, max_bytes, MESSAGE_OVERHEAD if parsed.max_bytes is None else 0)

    def _limit(
        self, host: VirtualHost, name: str, parsed: QueueArguments, capacity: Capacity
    ) -> tuple[Limit | None, tuple[Displacement, ...]]:
        """The part that refuses messages beyond the limit, and the part that makes room for them."""
        if not capacity.messages and not capacity.bytes:
            return None, ()
        if parsed.policy in (RING, RING_STRICT):
            ring = RingLimit(capacity, is_strict=parsed.policy == RING_STRICT)
            return ring, (Ring(ring, lambda queue, entry: self.divert(queue, entry)),)
        if parsed.overflow:
            return OverflowLimit(capacity, is_dead=parsed.overflow == REJECT_DEAD), ()
        if parsed.policy == SELF_DESTRUCT:
            return None, (SelfDestruct(Limit(capacity), lambda: host.self_destruct(name)),)
        return Limit(capacity), ()


async def _nothing_stored(_host: str, _name: str) -> None:
    """Nothing is stored of streams."""


def _retention(parsed: QueueArguments) -> Retention:
    """What a stream keeps; segments are so small that it can drop an eighth of what it keeps."""
    max_bytes = parsed.max_bytes or 0
    largest = min(parsed.segment_bytes or MAX_SEGMENT, MAX_SEGMENT)
    if max_bytes:
        largest = min(largest, max(max_bytes // 8, MIN_SEGMENT))
    return Retention(max_bytes, parsed.max_age, parsed.keep_unread, largest)


class WatchFactory:
    """Makes the depth watches of one broker's queues.

    Args:
        stops: collects the stopped queues that a message is put on.
        flow_defaults: default thresholds of flow control. Rings have none (Qpid C++ Broker Book, 1.8.2), nor
            do queues that are deleted at their limit.
        alert_percent: default threshold of alerts, in percent of a queue's capacity; 0 for none.
        emit: passes an event to the listeners.
        monotonic: seconds of a monotonic clock.

    Attributes:
        stopped: the queues whose flow control is on.
    """

    def __init__(
        self,
        stops: list[Stop],
        flow_defaults: FlowDefaults,
        alert_percent: int,
        emit: Callable[[Event], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._stops, self._emit, self._monotonic = stops, emit, monotonic
        self._flow_defaults, self._alert_percent = flow_defaults, alert_percent
        self.stopped = StoppedQueues(emit)

    def check(self, name: str, parsed: QueueArguments, capacity: Capacity) -> None:
        """Raise InvalidArgumentError if thresholds of the declaration contradict each other, or the capacity."""
        self._thresholds(name, parsed, capacity)

    def thresholds(
        self, name: str, parsed: QueueArguments, capacity: Capacity
    ) -> tuple[FlowThresholds | None, AlertThresholds | None]:
        """The thresholds of a queue, without those of flow control if they contradict each other (`make`)."""
        flow = None
        with contextlib.suppress(InvalidArgumentError):
            flow = self._thresholds(name, parsed, capacity)
        return flow, alert_thresholds(parsed.alerts, capacity, self._alert_percent)

    def make(self, host: str, name: str, parsed: QueueArguments, capacity: Capacity) -> DepthWatch:
        """The watch of a queue. Contradictory thresholds, which only a recovered queue can have, are ignored."""
        try:
            thresholds = self._thresholds(name, parsed, capacity)
        except InvalidArgumentError as error:
            _LOG.warning("A recovered queue has no flow control: %s", error)
            thresholds = None
        alerts = alert_thresholds(parsed.alerts, capacity, self._alert_percent)
        return DepthWatch(
            self._stops,
            None if thresholds is None else FlowControl(thresholds, self.stopped, host),
            None if alerts is None else Alerts(alerts, self._emit, self._monotonic),
        )

    def _thresholds(self, name: str, parsed: QueueArguments, capacity: Capacity) -> FlowThresholds | None:
        defaults = _NO_DEFAULTS if parsed.policy in _NOT_KEPT_BELOW_LIMIT else self._flow_defaults
        return flow_thresholds(name, parsed.flow, capacity, defaults)
