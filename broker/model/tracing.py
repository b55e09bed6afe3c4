"""Spans of sampled messages, for OpenTelemetry: publish -> deliver -> settle.

A message is sampled if its publisher says so, with a header `traceparent` of the W3C whose flag `sampled` is set. The
broker starts no traces. Its spans are children of the publisher's span, which the consumer's instrumentation finds in
the same header, so that they belong together, also after a restart of the broker:

    publish   from the arrival of the message to its place on its queues; of a persistent one on the disk
    deliver   from the delivery to its settlement by the client; without acknowledgements it has no length
    settle    child of `deliver`: from the settlement to the removal, on the disk

Outcomes of a delivery are accepted, rejected, released (it is available again), and removed: in a transaction, or by
expiry, a purge or a deletion, which are not told apart, and noticed within a second.

Without a tracer (`Tick.tracer`) no message pays for this. With one, messages of connections take the road of those that
need checks (`PublishChecks`), and consumers are traced ones; only sampled messages leave the runs that they came in.
At most `limit` spans begin in a second, whatever publishers ask for: further messages are as unsampled. At most
`MAX_HELD` deliveries are followed until they are settled.

What is finished goes to `export` once in a tick, which must not block.

Sources: W3C Trace Context; OpenTelemetry, semantic conventions for messaging spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, MOVING, Entry
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.completion import Runs
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.tick import Tick

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

MAX_HELD: Final = 10_000
"""Deliveries that are followed until they are settled: each takes about 2 kB."""

MAX_TEXT: Final = 256
"""Characters of a text in a span."""

_MAX_STATE: Final = 512  # characters of a tracestate: longer ones may be left out (W3C Trace Context, 3.3.1.5)
_NAME: Final = TRACEPARENT.encode()
_CONTEXT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_REACH: Final = len(_NAME) + 5 + 55  # the name, type and length of the value, the value
_SAMPLED: Final = 1
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16

#: Kinds of spans, as OpenTelemetry has them.
CONSUMER, PRODUCER, INTERNAL = "CONSUMER", "PRODUCER", "INTERNAL"

Attribute: TypeAlias = str | int | bool


class Span(NamedTuple):
    """A finished span.

    Attributes:
        name, kind: its name, and CONSUMER, PRODUCER or INTERNAL.
        trace, identity, parent: the ids of its trace, of itself and of its parent, in hex.
        state: the tracestate of the publisher; empty for none.
        begin, end: nanoseconds since 1970.
        attributes: what it says.
        error: why it has failed; empty if it has not.
    """

    name: str
    kind: str
    trace: str
    identity: str
    parent: str
    state: str
    begin: int
    end: int
    attributes: dict[str, Attribute]
    error: str


class _Open:
    """A span that has begun."""

    __slots__ = (
        "attributes", "begin", "error", "identity", "is_stored", "kind", "message", "name", "parent", "state", "trace"
    )  # fmt: skip

    def __init__(self, name: str, kind: str, trace: str, parent: str, state: str, identity: str, begin: int) -> None:
        self.name, self.kind, self.trace, self.parent, self.state = name, kind, trace, parent, state
        self.identity, self.begin = identity, begin
        self.attributes: dict[str, Attribute] = {}
        self.error = ""
        self.is_stored = False
        self.message: Message | None = None


class Tracer:
    """Makes the spans of one broker. It is a `Worker` of ticks in which there is something to trace.

    Args:
        tick: the broker's.
        limit: spans that may begin in a second.
        export: takes finished spans.
        clock: nanoseconds since 1970.
        new_id: makes the id of a span: 16 digits in hex.

    Attributes:
        limited: messages that were not traced because of the limits.
    """

    def __init__(
        self,
        tick: Tick,
        limit: int,
        export: Callable[[list[Span]], None],
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._tick, self._limit, self._export, self._clock, self._new_id = tick, limit, export, clock, new_id
        self.limited = 0
        self._second, self._begun = 0, 0
        self._published: list[_Open] = []
        self._settled: list[_Open] = []
        self._held: dict[Entry, tuple[Queue, _Open]] = {}
        self._waiting: dict[int, list[_Open]] = {}  # spans that wait for the disk
        self._batch = 0
        self._finished: list[Span] = []

    # ---- which messages ----

    def samples(self, message: Message) -> bool:
        """Whether a message is to be traced."""
        found = _context_in(message)
        if found is None:
            return False
        second = self._clock() // 1_000_000_000
        if second != self._second:
            self._second, self._begun = second, 0
        if self._begun >= self._limit:
            self.limited += 1
            return False
        return True

    # ---- what happens ----

    def published(self, message: Message, exchange: Exchange, caller: Caller) -> None:
        """A message that `samples` has chosen is about to be routed."""
        span = self._begin("publish", exchange.name or "amq.default", CONSUMER, message)
        if span is None:
            return
        span.is_stored, span.message = message.is_persistent, message
        span.attributes |= {
            "messaging.operation.type": "receive",
            "messaging.destination.name": _text(f"{exchange.name or 'amq.default'}:{message.routing_key}"),
            "qstore.virtual_host": _text(caller.vhost),
            "qstore.persistent": message.is_persistent,
            **_peer(caller),
        }
        self._published.append(span)
        self._tick.workers[self] = None

    def refused(self, message: Message, error: Exception) -> None:
        """A message that was about to be routed is refused."""
        for span in self._published:
            if span.message is message:
                span.error = _text(str(error))

    def delivered(self, queue: Queue, entry: Entry, message: Message, caller: Caller, *, is_settled: bool) -> None:
        """A message that `samples` has chosen was delivered. `is_settled`: the client does not settle it."""
        known = self._held.pop(entry, None)
        if known is not None:
            self._finish(known[1], "released")
        span = self._begin("deliver", queue.name, PRODUCER, message)
        if span is None:
            return
        span.attributes |= {
            "messaging.operation.type": "send",
            "messaging.destination.name": _text(
                f"{message.exchange or 'amq.default'}:{message.routing_key}:{queue.name}"
            ),
            "qstore.virtual_host": _text(caller.vhost),
            "qstore.redelivered": entry.is_redelivered,
            **_peer(caller),
        }
        if is_settled:
            self._finish(span, "accepted")
        elif len(self._held) < MAX_HELD:
            self._held[entry] = queue, span
        else:
            self.limited += 1

    def settling(self, acquired: Iterable[tuple[Queue, Entry]], outcome: str) -> Iterator[tuple[Queue, Entry]]:
        """Deliveries as they are settled by their client, unchanged: accepted or rejected."""
        for queue, entry in acquired:
            held = self._held.pop(entry, None) if self._held else None
            if held is not None:
                self._settle(queue, entry, held[1], outcome)
            yield queue, entry

    def _settle(self, queue: Queue, entry: Entry, delivery: _Open, outcome: str) -> None:
        self._finish(delivery, outcome)
        begin = self._clock()
        span = _Open(
            f"settle {_text(queue.name)}", INTERNAL, delivery.trace, delivery.identity, delivery.state, self._new_id(),
            begin,
        )  # fmt: skip
        span.attributes |= {
            "messaging.system": "qstore",
            "messaging.operation.name": "settle",
            "messaging.operation.type": "settle",
            "messaging.destination.name": delivery.attributes["messaging.destination.name"],
            "qstore.outcome": outcome,
        }
        span.is_stored = entry.rid != 0
        self._settled.append(span)
        self._tick.workers[self] = None

    def sweep(self) -> None:
        """Find deliveries that have ended otherwise than by a settlement. Call this about once a second."""
        for entry, (_, span) in list(self._held.items()):
            if entry.state not in (ACQUIRED, MOVING):
                del self._held[entry]
                self._finish(span, "released" if entry.state == AVAILABLE else "removed")
        self.report_completed()

    # ---- a worker of the tick ----

    @property
    def is_in_step(self) -> bool:
        """Nobody waits for spans."""
        return False

    def complete_received(self) -> Runs:
        """As `Worker.complete_received`: spans of stored messages wait for the disk."""
        spans, self._published, self._settled = self._published + self._settled, [], []
        waiting = []
        for span in spans:
            if span.is_stored and not span.error:
                waiting.append(span)
            else:
                self._finish(span)
        if not waiting:
            return []
        self._batch += 1
        self._waiting[self._batch] = waiting
        return [[self._batch, self._batch]]

    def complete(self, runs: Runs) -> None:
        """As `Worker.complete`."""
        for first, _ in runs:
            for span in self._waiting.pop(first, ()):
                self._finish(span)

    def fail(self, runs: Runs, error: Exception) -> None:
        """As `Worker.fail`."""
        for first, _ in runs:
            for span in self._waiting.pop(first, ()):
                span.error = _text(str(error))
                self._finish(span)

    def report_completed(self) -> None:
        """As `Worker.report_completed`: finished spans leave."""
        if self._finished:
            finished, self._finished = self._finished, []
            self._export(finished)

    # ---- spans ----

    def _begin(self, operation: str, destination: str, kind: str, message: Message) -> _Open | None:
        context = _context_in(message)
        if context is None:
            return None
        self._begun += 1
        trace, parent = context
        state = message.header_text(TRACESTATE) or ""
        if not (state.isascii() and state.isprintable()):
            state = ""
        span = _Open(
            f"{operation} {_text(destination)}", kind, trace, parent, state if len(state) <= _MAX_STATE else "",
            self._new_id(), self._clock(),
        )  # fmt: skip
        span.attributes |= {
            "messaging.system": "qstore",
            "messaging.operation.name": operation,
            "messaging.rabbitmq.destination.routing_key": _text(message.routing_key),
            "messaging.message.body.size": len(message.body),
        }
        properties = message.properties()
        for name, value in (
            ("messaging.message.id", properties.message_id),
            ("messaging.message.conversation_id", properties.correlation_id),
        ):
            if value is not None:
                span.attributes[name] = _text(value.hex() if isinstance(value, bytes) else str(value))
        return span

    def _finish(self, span: _Open, outcome: str = "") -> None:
        if outcome:
            span.attributes["qstore.outcome"] = outcome
        self._finished.append(
            Span(
                span.name, span.kind, span.trace, span.identity, span.parent, span.state, span.begin,
                max(self._clock(), span.begin), span.attributes, span.error,
            )
        )  # fmt: skip
        self._tick.workers[self] = None


def _context_in(message: Message) -> tuple[str, str] | None:
    """The ids of the trace and of the span that a sampled message comes from; None if it is not sampled."""
    headers = message.raw_headers()
    at = headers.find(_NAME)
    if at < 0:
        return None
    found = _CONTEXT.search(headers, at + len(_NAME), at + _REACH)
    if found is None:
        return None
    trace, parent, flags = found.groups()
    if not int(flags, 16) & _SAMPLED or trace == _NO_TRACE or parent == _NO_SPAN:
        return None
    return trace.decode(), parent.decode()


def _text(text: str) -> str:
    """A text that a peer has chosen, in a span."""
    return printable(text[:MAX_TEXT])


def _peer(caller: Caller) -> dict[str, Attribute]:
    address, _, port = caller.remote_host.rpartition(":")
    return {"network.peer.address": _text(address), "network.peer.port": int(port)} if port.isdecimal() else {}
