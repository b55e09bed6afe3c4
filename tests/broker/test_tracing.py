"""The tracer: which messages are sampled, its limits, and how spans end."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest

from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, GONE, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.tick import Tick
from qstore.broker.model.tracing import Span, Tracer
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing, Target
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.values import TypedMap, typed_map
from tests.broker.wired_broker import PlainMessage, Somebody

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


class Headed(PlainMessage):
    """A message with headers as they arrived."""

    def __init__(self, headers: bytes, *, persistent: bool = True) -> None:
        super().__init__("key", b"body", persistent=persistent)
        self.raw = headers

    def raw_headers(self) -> bytes:
        return self.raw


class Stage:
    """A tracer with a tick that no event loop ends.

    Attributes:
        spans: what was exported.
        now: seconds.
    """

    def __init__(self, limit: int = 10) -> None:
        self.spans: list[Span] = []
        self.now = 1000.0
        self.tick = Tick(lambda _: None, None)
        numbers = count(1)
        self.tracer = Tracer(
            self.tick, limit, self.spans.extend, lambda: int(self.now * 1e9), lambda: f"{next(numbers):016x}"
        )

    def deliver(self, name: str) -> Entry:
        entry = Entry()
        entry.state, entry.rid, entry.is_redelivered = ACQUIRED, 1, False
        queue = cast("Queue", type("Named", (), {"name": name})())
        caller: Any = Somebody()
        self.tracer.delivered(queue, entry, Headed(b"traceparent" + SAMPLED.encode()), caller, is_settled=False)
        self.entries = [*getattr(self, "entries", []), (queue, entry)]
        return entry


@pytest.mark.parametrize(
    ("headers", "is_sampled"),
    [
        (b"", False),
        (b"\x0btraceparentS\x00\x00\x007" + SAMPLED.encode(), True),
        (b"\x0btraceparent\x95\x007" + SAMPLED.encode(), True),
        (b"\x0btraceparentS\x00\x00\x007" + SAMPLED[:-2].encode() + b"00", False),
        (b"\x0btraceparentS\x00\x00\x007" + SAMPLED[:-2].encode() + b"03", True),
        (b"\x0btraceparentS\x00\x00\x007" + f"00-{'0' * 32}-{PARENT}-01".encode(), False),
        (b"\x0btraceparentS\x00\x00\x007" + f"00-{TRACE}-{'0' * 16}-01".encode(), False),
        (b"\x0btraceparentS\x00\x00\x007" + SAMPLED.upper().encode(), False),
        (b"\x0btraceparentS\x00\x00\x005" + SAMPLED[:-3].encode(), False),
        (b"\x0btraceparentS\x00\x00\x00\x02ab\x04otherS" + SAMPLED.encode(), False),
        (b"traceparent", False),
    ],
)
def test_a_message_is_sampled_if_its_publisher_says_so(headers: bytes, is_sampled: bool) -> None:
    assert Stage().tracer.samples(Headed(headers)) is is_sampled


def test_no_more_spans_begin_in_a_second_than_the_limit() -> None:
    stage = Stage(limit=2)
    message = Headed(b"traceparent" + SAMPLED.encode())
    for number in range(5):
        assert stage.tracer.samples(message) is (number < 2)
        if number < 2:
            stage.deliver(f"q{number}")
    assert stage.tracer.limited == 3
    stage.now += 1
    assert stage.tracer.samples(message)


def test_deliveries_that_nobody_settles_are_found_out() -> None:
    stage = Stage()
    held, removed, released = (stage.deliver(name) for name in ("held", "removed", "released"))
    removed.state, released.state = GONE, AVAILABLE
    stage.tracer.sweep()
    assert [(span.name, span.attributes["qstore.outcome"]) for span in stage.spans] == [
        ("deliver removed", "removed"), ("deliver released", "released"),
    ]  # fmt: skip
    held.state = GONE
    stage.tracer.sweep()
    assert [span.name for span in stage.spans[2:]] == ["deliver held"]


def test_a_settlement_ends_when_it_is_on_the_disk_or_says_why_it_is_not() -> None:
    stage = Stage()
    stage.deliver("a")
    stage.deliver("b")
    tracer = stage.tracer
    assert list(tracer.settling(stage.entries[:1], "accepted")) == stage.entries[:1]
    first = tracer.complete_received()
    list(tracer.settling(stage.entries[1:], "rejected"))
    second = tracer.complete_received()
    stage.now += 2
    tracer.complete(first)
    tracer.fail(second, OSError("the disk is full"))
    tracer.report_completed()
    settled = [span for span in stage.spans if span.name.startswith("settle")]
    assert [(span.name, span.error, span.end - span.begin) for span in settled] == [
        ("settle a", "", 2_000_000_000), ("settle b", "the disk is full", 2_000_000_000),
    ]  # fmt: skip
    delivered = {span.identity for span in stage.spans if span.name.startswith("deliver")}
    assert {span.parent for span in settled} == delivered
    assert {span.trace for span in stage.spans} == {TRACE}


def test_only_sampled_messages_leave_their_runs() -> None:
    checks = Publishing(object(), checks_user_ids=False, checks_publish=False)
    assert not checks.has_rare
    checks.trace_by(Stage().tracer)
    assert checks.has_rare
    target = Target(encode_method("basic.publish", exchange="", routing_key="q", mandatory=False, immediate=False))
    for headers, is_covered in (({}, True), ({"traceparent": SAMPLED}, False), ({"traceparent": "x"}, True)):
        header = encode_header(4, Properties(headers=typed_map(headers)))
        message = checks.read(target, header, b"body", lambda: 0.0, "")
        assert isinstance(message, BasicMessage)
        assert checks.covers(message) is is_covered


class Stated(Headed):
    """A sampled message with a tracestate that is not ASCII."""

    def headers(self) -> TypedMap:
        return typed_map({"tracestate": b"a=\xff"})


def test_a_trace_state_that_is_not_ascii_is_left_out() -> None:
    stage = Stage()
    message = Stated(b"\x0btraceparentS\x00\x00\x007" + SAMPLED.encode())
    assert message.header_text("tracestate")
    queue, caller = cast("Queue", type("Named", (), {"name": "q"})()), cast("Any", Somebody())
    entry = Entry()
    entry.state, entry.rid, entry.is_redelivered = ACQUIRED, 1, False
    stage.tracer.delivered(queue, entry, message, caller, is_settled=True)
    stage.tick.end()
    assert [span.state for span in stage.spans] == [""]
