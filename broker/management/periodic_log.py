"""`--log-statistics`: what managed objects have done, in the log once in an interval, or in each of several.

    Statistics of 60 s: queue "orders": in 12.5 messages/s (12,800 bytes/s), out 10.0 messages/s (10,240 bytes/s);
    so far in 750 messages (768,000 bytes), out 600 messages (614,400 bytes); most in 20.0/s, out 11.0/s; 1,024 bytes a
    message; has 150 messages, 153,600 bytes, 1 consumer, 2 bindings          (all of it in one line)

The broker has a line in each interval. Any other object has one if it has got or sent messages since the last one, and
one more, `is idle`, when it no longer does. `most` is the highest rate of an interval. Of a kind of objects, those
beyond `MAX_LINES` are counted in a last line.

Nothing is counted for these lines: they are differences of counters that there are anyway, so that they cost nothing
between two intervals. Hence a session has no number of messages that it has published (its connection has), a
subscription no bytes, and sizes are averages; only the broker knows how many messages are of which size. Objects are
read in time slices. What has gone through an object since the last line when it ends is in the lines of its virtual
host and of the broker, and in the line about its end (`model/topology`).

Source: Qpid wiki, "Status update design", statistics updates (seed 004, lines 5611-5727).
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.management.managed_broker import AT_ONCE
from qstore.broker.management.objects.exchange import all_exchanges
from qstore.broker.model.counters import sum_of
from qstore.broker.model.events import ClientConnect
from qstore.broker.model.memory import resident_bytes
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural, printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.counters import QueueTotals
    from qstore.broker.model.events import Event
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.protocols.machine import Machine

MAX_LINES: Final = 1000
"""Of one kind of objects in an interval."""
_MAX_NAME: Final = 300  # characters of a name in a line
_BROKER: Final = "broker"
_LOG: Final = log_of("Model")


class _Flow(NamedTuple):
    """What has gone one way: messages, and their bytes; None if these are not counted."""

    messages: int = 0
    size: int | None = None

    def since(self, before: _Flow) -> _Flow:
        """What has gone since then; nothing if there is less now, as of a session whose subscription has ended."""
        size = None if self.size is None else max(0, self.size - (before.size or 0))
        return _Flow(max(0, self.messages - before.messages), size)


class _Sample(NamedTuple):
    """An object at one moment.

    Attributes:
        kind: queue, exchange and so on.
        name: its name among those of its kind; None for the only one.
        flows: what it has got ("in") and sent ("out") so far.
        levels: what it has now, as parts of a sentence.
    """

    kind: str
    name: str | None
    flows: Mapping[str, _Flow]
    levels: Sequence[str]


class _Past:
    """What an object had done when it was last looked at, and its highest rates, in messages a second."""

    __slots__ = ("flows", "is_idle", "peaks", "round")

    def __init__(self) -> None:
        self.flows: Mapping[str, _Flow] = {}
        self.peaks: dict[str, float] = {}
        self.is_idle, self.round = True, 0


class PeriodicLog:
    """The lines of one interval.

    Args:
        managed: the broker.
        seconds: the interval.
        run: runs tasks that take time.
    """

    def __init__(
        self, managed: ManagedBroker, seconds: float, run: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._managed, self._seconds, self._run = managed, seconds, run
        self._past: dict[tuple[str, str | None], _Past] = {}
        self._next = self._last = managed.broker.monotonic()
        self._round, self._is_under_way = 0, False
        self._opened = Counter[str]()  # connections so far, by virtual host
        self._sizes = Counter[str]()  # messages so far, by the largest size of their class
        managed.broker.events.watch(self._on_event, ClientConnect)

    def on_timer(self) -> None:
        """To be called about twice a second: begins a round at once, and then whenever the interval is over."""
        now = self._managed.broker.monotonic()
        if now >= self._next and not self._is_under_way:
            self._next, self._is_under_way = now + self._seconds, True
            self._run(self.write())

    async def write(self) -> None:
        """Write the lines of the time since the last round. The first round only notes what there is."""
        slices, is_first = self._managed.slices, not self._round
        written = Counter[str]()
        try:
            await slices.next()
            await self._managed.sum_up()
            now = self._managed.broker.monotonic()
            seconds, self._last = max(now - self._last, 1e-3), now
            self._round += 1
            for number, each in enumerate(self._samples(), 1):
                line = self._line(each, seconds)
                if line and not is_first:
                    written[each.kind] += 1
                    if written[each.kind] <= MAX_LINES:
                        _LOG.notice("Statistics of %.0f s: %s", seconds, line)
                if number % AT_ONCE == 0 and slices.is_over:
                    await slices.next()
            for kind, count in written.items():
                if count > MAX_LINES:
                    _LOG.notice("Statistics of %.0f s: %s left out", seconds, plural(count - MAX_LINES, f"more {kind}"))
            self._past = {key: past for key, past in self._past.items() if past.round == self._round}
        finally:
            self._is_under_way = False

    def _on_event(self, event: Event, caller: Caller) -> None:
        if isinstance(event, ClientConnect):
            self._opened[caller.vhost or DEFAULT_HOST] += 1

    def _line(self, sample: _Sample, seconds: float) -> str:
        """The line of an object; empty for none."""
        past = self._past.setdefault((sample.kind, sample.name), _Past())
        gains = {way: flow.since(past.flows.get(way, _Flow())) for way, flow in sample.flows.items()}
        was_idle, past.is_idle = past.is_idle, not any(gain.messages for gain in gains.values())
        past.flows, past.round = sample.flows, self._round
        if self._round > 1:
            for way, gain in gains.items():
                past.peaks[way] = max(past.peaks.get(way, 0.0), gain.messages / seconds)
        if past.is_idle and was_idle and sample.kind != _BROKER:
            return ""
        rates = ", ".join(f"{way} {_rate(gain, seconds)}" for way, gain in gains.items())
        parts = ["is idle" if past.is_idle else rates]
        parts.append(f"so far {', '.join(f'{way} {_total(flow)}' for way, flow in sample.flows.items())}")
        parts.append(f"most {', '.join(f'{way} {peak:,.1f}/s' for way, peak in past.peaks.items())}")
        averages = (flow.size / flow.messages for flow in sample.flows.values() if flow.size and flow.messages)
        parts += [f"{average:,.0f} bytes a message" for average in averages][:1]
        parts.append(f"has {', '.join(sample.levels)}")
        name = f' "{printable(sample.name)[:_MAX_NAME]}"' if sample.name is not None else ""
        return f"{sample.kind}{name}: {'; '.join(parts)}"

    # ---- the objects ----

    def _samples(self) -> Iterator[_Sample]:
        """All objects now. They may come and go between one and the next."""
        managed = self._managed
        machines, sessions = managed.machines(), list(managed.sessions())
        yield self._broker(len(machines))
        if managed.broker.store is not None:
            yield _store(managed, managed.broker.store)
        for host in list(managed.broker.hosts.values()):
            sums = [host.removal.deleted]
            for queue in list(host.queues.values()):
                sums.append(queue.totals)
                yield _queue(queue, sums[-1])
                if len(sums) > AT_ONCE:  # 50,000 would take 24 ms at the end
                    sums = [sum_of(sums)]
            yield self._host(host, sum_of(sums))
        yield from map(_exchange, all_exchanges(managed))
        for machine in machines:
            yield _connection(machine)
        for listed in sessions:
            yield _session(listed)
            for subscription in list(listed.session.subscriptions.values()):
                name = f"{listed.key}/{subscription.destination}"
                flows = {"out": _Flow(subscription.delivered)}
                levels = (
                    f'queue "{printable(subscription.queue.full_name)[:_MAX_NAME]}"',
                    (f"a prefetch of {subscription.prefetch:,}" if subscription.prefetch else "no prefetch"),
                )
                yield _Sample("subscription", name, flows, levels)

    def _broker(self, connections: int) -> _Sample:
        broker, totals = self._managed.broker, self._managed.totals
        sizes = Counter[str]()
        for each in list(broker.message_sizes.values()):
            sizes.update(each.by_bound())
        new, self._sizes = sizes - self._sizes, sizes
        by_size = (f"{count:,} up to {_bound(bound)}" for bound, count in new.items() if count)
        levels = [
            *_depth(totals),
            plural(connections, "connection"),
            f"{plural(sum(self._opened.values()), 'connection')} so far",
            f"{resident_bytes():,} bytes of memory",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10:,} at most",
        ]
        if new:
            levels.append(f"new messages by size: {', '.join(by_size)}")
        return _Sample(_BROKER, None, _flows(totals), levels)

    def _host(self, host: VirtualHost, totals: QueueTotals) -> _Sample:
        levels = (
            *_depth(totals),
            plural(len(host.queues), "queue"),
            plural(host.connection_count, "connection"),
            f"{plural(self._opened[host.name], 'connection')} so far",
        )
        return _Sample("virtual host", host.name, _flows(totals), levels)


def _rate(gain: _Flow, seconds: float) -> str:
    size = "" if gain.size is None else f" ({gain.size / seconds:,.0f} bytes/s)"
    return f"{gain.messages / seconds:,.1f} messages/s{size}"


def _total(flow: _Flow) -> str:
    return plural(flow.messages, "message") + ("" if flow.size is None else f" ({flow.size:,} bytes)")


def _bound(bound: str) -> str:
    return f"{int(bound):,} bytes" if bound.isdigit() else "any size"


def _flows(totals: QueueTotals) -> dict[str, _Flow]:
    return {
        "in": _Flow(totals.messages_enqueued, totals.bytes_enqueued),
        "out": _Flow(totals.messages_dequeued, totals.bytes_dequeued),
    }


def _depth(totals: QueueTotals) -> tuple[str, str]:
    return plural(totals.messages, "message"), f"{totals.bytes:,} bytes"


def _store(managed: ManagedBroker, store: Any) -> _Sample:
    totals, flushed, disk = managed.totals, store.flush_metrics(), store.disk_metrics()
    flows = {
        "in": _Flow(totals.persistent_messages_enqueued, totals.persistent_bytes_enqueued),
        "out": _Flow(totals.persistent_messages_dequeued, totals.persistent_bytes_dequeued),
    }
    hosts = list(managed.broker.hosts.values())
    journals = sum(queue.journal is not None for host in hosts for queue in host.queues.values())
    levels = (
        plural(flows["in"].messages - flows["out"].messages, "message"),
        plural(journals, "journal"),
        f"{flushed['size']:,} bytes written in {plural(flushed['flushes'], 'batch', 'batches')}",
        f"{disk['free']:,} of {disk['total']:,} bytes of the disk free",
    )
    return _Sample("store", None, flows, levels)


def _queue(queue: Queue, totals: QueueTotals) -> _Sample:
    levels = (
        *_depth(totals),
        plural(queue.consumer_count, "consumer"),
        plural(queue.binding_count.value, "binding"),
        f"{plural(totals.messages_on_disk, 'message')} on the disk alone",
    )
    return _Sample("queue", queue.full_name, _flows(totals), levels)


def _exchange(exchange: Exchange) -> _Sample:
    counts = exchange.counts
    flows = {
        "in": _Flow(counts.messages_received, counts.bytes_received),
        "out": _Flow(counts.messages_routed, counts.bytes_routed),
    }
    levels = (
        plural(exchange.binding_count.value, "binding"),
        f"dropped {plural(counts.messages_dropped, 'message')} ({counts.bytes_dropped:,} bytes)",
    )
    return _Sample("exchange", exchange.full_name, flows, levels)


def _connection(machine: Machine) -> _Sample:
    counts, sessions = machine.counts, list(machine.sessions.values())
    flows = {
        "in": _Flow(counts.messages_received, counts.bytes_received),
        "out": _Flow(counts.messages_sent, counts.bytes_sent),
    }
    levels = (
        f"user {printable(machine.user)[:_MAX_NAME]}",
        plural(len(sessions), "session"),
        plural(sum(len(each.subscriptions) for each in sessions), "consumer"),
    )
    return _Sample("connection", machine.peer, flows, levels)


def _session(listed: ListedSession) -> _Sample:
    session = listed.session
    subscriptions = list(session.subscriptions.values())
    flows = {"out": _Flow(sum(each.delivered for each in subscriptions))}
    levels = (
        plural(len(subscriptions), "consumer"),
        f"{session.unsettled_count:,} unacknowledged",
        f"{plural(session.txn_commits, 'transaction')} committed",
    )
    return _Sample("session", listed.key, flows, levels)
