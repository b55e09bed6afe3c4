"""Flow control of one queue: thresholds, when it stops and resumes publishers, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.log.logs import INFO, NOTICE, WARNING
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.arguments import QueueArguments
from qstore.broker.model.queues.entry import AVAILABLE
from qstore.broker.model.queues.flow_control import (
    Alerts,
    AlertThresholds,
    DepthWatch,
    FlowArguments,
    FlowControl,
    FlowDefaults,
    FlowThresholds,
    HeldTransfers,
    Stop,
    StoppedQueues,
    flow_thresholds,
)
from qstore.broker.model.queues.limits import Capacity
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.tick import Tick
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import PlainMessage
from tests.support.fake_store import Model

DEFAULTS = FlowDefaults(80, 70)


@cache
def one() -> PlainMessage:
    return PlainMessage("q", b"x" * 10, persistent=False)


def thresholds(given: dict[str, int], capacity: Capacity, defaults: FlowDefaults = DEFAULTS) -> FlowThresholds | None:
    return flow_thresholds("q", FlowArguments(**given), capacity, defaults)


# ---- thresholds ----


@pytest.mark.parametrize(
    ("given", "capacity", "defaults", "expected"),
    [
        # The Book's and the Guide's: 90 % and 75 % of 10,000 bytes, and the same for messages.
        ({}, Capacity(bytes=10_000), FlowDefaults(90, 75), (0, 0, 9000, 7500, 0)),
        ({}, Capacity(messages=10_000), FlowDefaults(90, 75), (9000, 7500, 0, 0, 0)),
        ({}, Capacity(1000, 10_000), DEFAULTS, (800, 700, 8000, 7000, 0)),
        ({}, Capacity(bytes=10_000, overhead=320), DEFAULTS, (0, 0, 8000, 7000, 320)),
        ({"stop_count": 900, "resume_count": 500}, Capacity(messages=1000), DEFAULTS, (900, 500, 0, 0, 0)),
        # Each measure for itself: what is not given has its default.
        ({"stop_count": 9}, Capacity(10, 10_000, 320), DEFAULTS, (9, 7, 8000, 7000, 320)),
        ({"stop_size": 9000}, Capacity(0, 10_000, 320), DEFAULTS, (0, 0, 9000, 7000, 0)),
        ({"resume_size": 5000}, Capacity(bytes=10_000), DEFAULTS, (0, 0, 8000, 5000, 0)),
        ({"stop_count": 0}, Capacity(1000, 10_000), DEFAULTS, (0, 0, 8000, 7000, 0)),
        # Without a resume threshold, or with 0, it is at most the stop threshold.
        ({"stop_count": 5}, Capacity(messages=10), DEFAULTS, (5, 5, 0, 0, 0)),
        ({"stop_count": 5}, Capacity(), DEFAULTS, (5, 5, 0, 0, 0)),
        ({"stop_count": 5, "resume_count": 0}, Capacity(), DEFAULTS, (5, 5, 0, 0, 0)),
        ({"stop_size": 5}, Capacity(), FlowDefaults(), (0, 0, 5, 5, 0)),
        # Disabled.
        ({"stop_count": 0, "stop_size": 0}, Capacity(1000, 10_000), DEFAULTS, None),
        ({"stop_size": 0}, Capacity(bytes=10_000, overhead=320), DEFAULTS, None),
        ({}, Capacity(1000, 10_000), FlowDefaults(), None),
        ({}, Capacity(), DEFAULTS, None),
        ({"resume_count": 5}, Capacity(), DEFAULTS, None),
        # Small capacities: the stop threshold is rounded to the nearest number.
        ({}, Capacity(messages=1), DEFAULTS, (1, 1, 0, 0, 0)),
        ({}, Capacity(messages=2), DEFAULTS, (2, 1, 0, 0, 0)),
        ({}, Capacity(messages=3), DEFAULTS, (2, 2, 0, 0, 0)),
    ],
)
def test_thresholds(
    given: dict[str, int], capacity: Capacity, defaults: FlowDefaults, expected: tuple[int, ...] | None
) -> None:
    assert thresholds(given, capacity, defaults) == expected


@pytest.mark.parametrize(
    ("given", "capacity", "text"),
    [
        ({"stop_count": 5, "resume_count": 6}, Capacity(), "qpid.flow_resume_count 6 is above qpid.flow_stop_count 5"),
        ({"stop_size": 5, "resume_size": 6}, Capacity(), "qpid.flow_resume_size 6 is above qpid.flow_stop_size 5"),
        (
            {"resume_count": 801},
            Capacity(messages=1000),
            "qpid.flow_resume_count 801 is above qpid.flow_stop_count 800",
        ),
        ({"stop_count": 11}, Capacity(messages=10), "qpid.flow_stop_count 11 is above the limit of the queue, 10"),
        (
            {"stop_size": 11},
            Capacity(bytes=10, overhead=1),
            "qpid.flow_stop_size 11 is above the limit of the queue, 10",
        ),
    ],
)
def test_contradictions(given: dict[str, int], capacity: Capacity, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        thresholds(given, capacity)
    assert str(raised.value) == f'queue "q": {text}'


# ---- on and off ----


class Stand:
    """A queue with flow control, and how often its watch looked at it."""

    def __init__(self, **asked: Any) -> None:
        self.model = Model(BrokerSettings(**asked.pop("settings", {})))
        self.queue = self.model.broker.queue_factory.make(
            self.model.broker.default_host,
            "q",
            durable=False,
            auto_delete=False,
            arguments=EMPTY_MAP,
            parsed=QueueArguments(**asked),
        )
        self.stops: list[Stop] = self.model.broker.router.stops

    @property
    def flow(self) -> FlowControl:
        assert self.queue.watch.flow is not None
        return self.queue.watch.flow

    def publish(self, count: int = 1, message: PlainMessage | None = None) -> bool:
        is_held = False
        for _ in range(count):
            self.stops.clear()
            is_held = self.queue.publish(message or one())
            assert is_held == bool(self.stops) == self.queue.watch.is_stopped
        return is_held

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            entry = next(self.queue.available())
            self.queue.acquire(entry)
            self.queue.dequeue(entry)


def test_the_example_of_900_and_500() -> None:
    stand = Stand(max_messages=1000, flow=FlowArguments(stop_count=900, resume_count=500))
    assert not stand.publish(900)
    assert stand.publish()
    assert stand.queue.watch.stopped_count == 1
    stand.take(401)
    assert stand.queue.message_count == 500
    assert stand.queue.watch.is_stopped
    stand.take()
    assert not stand.queue.watch.is_stopped
    assert not stand.publish(401)
    assert stand.publish()
    assert stand.queue.watch.stopped_count == 2


def test_the_example_of_both_measures() -> None:
    """4000 and 8000 stop it, fewer than 3000 and 6000 resume it."""
    flow = FlowArguments(4000, 3000, 8000, 6000)
    small, large = PlainMessage("q", b"x", persistent=False), PlainMessage("q", b"x" * 6000, persistent=False)
    stand = Stand(max_messages=5000, max_bytes=10_000, flow=flow)
    assert not stand.publish(message=large)
    assert not stand.publish(2000, small)
    assert stand.publish(message=small)  # 8001 bytes, of 2002 messages
    stand.take()  # the large one
    assert stand.queue.message_bytes == 2001
    assert not stand.queue.watch.is_stopped
    assert not stand.publish(1999, small)
    assert stand.publish(message=small)  # 4001 messages
    stand.take(1001)
    assert stand.queue.watch.is_stopped
    stand.take()
    assert not stand.queue.watch.is_stopped
    assert stand.queue.watch.stopped_count == 2


def test_flow_resumes_only_below_both_thresholds() -> None:
    stand = Stand(flow=FlowArguments(4, 3, 1000, 100))
    stand.publish(5)
    stand.publish(message=PlainMessage("q", b"x" * 500, persistent=False))
    stand.take(5)
    assert (stand.queue.message_count, stand.queue.message_bytes) == (1, 500)
    assert stand.queue.watch.is_stopped
    stand.take()
    assert not stand.queue.watch.is_stopped


def test_the_default_limit_counts_memory() -> None:
    limit = 100 * (MESSAGE_OVERHEAD + 10)
    stand = Stand(settings={"queue_limit_bytes": limit})
    assert not stand.publish(80)
    assert stand.publish()
    stand.take(11)
    assert stand.queue.watch.is_stopped
    stand.take()
    assert stand.queue.message_count == 69
    assert not stand.queue.watch.is_stopped


def test_a_queue_without_it() -> None:
    stand = Stand(settings={"queue_limit_bytes": 0})
    assert stand.queue.watch.flow is None
    assert not stand.publish(100)


@pytest.mark.parametrize("policy", ["ring", "ring_strict"])
def test_queues_that_drop_messages_have_no_defaults(policy: str) -> None:
    assert Stand(policy=policy, max_messages=5).queue.watch.flow is None
    assert Stand(policy=policy, flow=FlowArguments(stop_count=4)).flow.thresholds == (4, 4, 0, 0, 0)


def test_purging_and_messages_of_transactions_count() -> None:
    stand = Stand(flow=FlowArguments(stop_count=3))
    transaction = stand.model.broker.begin_transaction(0)
    stand.model.broker.default_host.queues["q"] = stand.queue
    for _ in range(4):
        transaction.publish(one(), stand.model.broker.default_host.exchanges[""])
    assert not stand.queue.watch.is_stopped
    outcome: list[object] = []
    transaction.commit(outcome.append)
    assert outcome == [None]
    assert not stand.stops
    assert stand.queue.watch.is_stopped
    stand.queue.purge()
    assert not stand.queue.watch.is_stopped


# ---- what the watch does not look at ----


def test_a_queue_with_room_is_seldom_checked() -> None:
    stand = Stand()
    watch, marks = stand.queue.watch, set()
    for _ in range(20_000):
        stand.publish()
        stand.take()
        marks.add((watch.count_mark, watch.bytes_mark))
    assert len(marks) == 1
    for _ in range(150_000):
        stand.queue.publish(one())
        marks.add((watch.count_mark, watch.bytes_mark))
    assert len(marks) <= 3


_LIMIT = st.integers(0, 12)


@given(
    st.tuples(_LIMIT, _LIMIT, st.integers(0, 300), st.integers(0, 300), st.sampled_from([0, 7])),
    st.tuples(_LIMIT, _LIMIT, st.integers(0, 300), st.integers(0, 300), st.sampled_from([0, 7])),
    st.lists(st.one_of(st.integers(0, 60), st.sampled_from(["take", "take last"])), max_size=60),
)
def test_flow_control_misses_no_change(
    flow: tuple[int, int, int, int, int], alert: tuple[int, int, int, int, int], steps: list[int | str]
) -> None:
    """However seldom the watch looks: flow control and alerts are as if it looked at each message."""
    limits = FlowThresholds(flow[0], min(flow[0], flow[1]), flow[2], min(flow[2], flow[3]), flow[4])
    levels = AlertThresholds(
        alert[0], alert[2], min(max(alert[0] - 1, 0), alert[1]), min(max(alert[2] - 1, 0), alert[3]), 60, alert[4]
    )
    crossings: list[str] = []
    model = Model()
    alerts = Alerts(levels, lambda event: crossings.append(type(event).__name__), lambda: 0.0)
    queue = Queue("q", model.tick, watch=DepthWatch([], FlowControl(limits), alerts))
    is_stopped = is_above = False
    expected: list[str] = []
    for step in steps:
        if isinstance(step, int):
            held = queue.publish(PlainMessage("q", b"x" * step, persistent=False))
        else:
            entries = [entry for entry in queue.entries() if entry.state == AVAILABLE]
            if not entries:
                continue
            entry = entries[0 if step == "take" else -1]
            queue.acquire(entry)
            queue.dequeue(entry)
        count, size = queue.message_count, queue.message_bytes
        memory, cost = size + limits.overhead * count, size + levels.overhead * count
        if isinstance(step, int):
            is_stopped |= 0 < limits.stop_count < count or 0 < limits.stop_bytes < memory
            assert held == is_stopped
            if 0 < levels.count_up <= count or 0 < levels.size_up <= cost:
                if not is_above:
                    expected += ["QueueThresholdCrossedUpward"]
                is_above = True
        else:
            is_low = not limits.stop_count or count < limits.resume_count
            is_stopped &= not (is_low and (not limits.stop_bytes or memory < limits.resume_bytes))
            is_low = not levels.count_up or count <= levels.count_down
            if is_above and is_low and (not levels.size_up or cost <= levels.size_down):
                expected += ["QueueThresholdCrossedDownward"]
                is_above = False
        assert queue.watch.is_stopped == is_stopped
        assert [each for each in crossings if each != "QueueThresholdExceeded"] == expected


# ---- transfers that are held ----


Outcome = list[tuple[int, Exception | None]]


def held_at(tick: Tick | None, *flows: FlowControl, position: int = 1) -> tuple[HeldTransfers, Outcome]:
    """Transfer 7, which has put its message there."""
    outcome: Outcome = []
    transfers = HeldTransfers(lambda number, error: outcome.append((number, error)))
    transfers.hold(7, [(flow, position) for flow in flows], tick)
    assert len(transfers) == 1
    return transfers, outcome


def stopped() -> FlowControl:
    flow = FlowControl(FlowThresholds(stop_count=2, resume_count=2))
    flow.rise("q", 3, 0)
    assert flow.is_stopped
    return flow


class Disk:
    """A tick of which only this is used."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Exception | None], None]] = []

    def when_synced(self, callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append(callback)


def test_it_waits_for_all_queues_and_the_disk() -> None:
    first, second, disk = stopped(), stopped(), Disk()
    tick: Any = disk
    transfers, outcome = held_at(tick, first, second)
    first.fall("q", 1, 0, 9)
    disk.waiting.pop()(None)
    assert outcome == []
    second.fall("q", 1, 0, 9)
    assert (outcome, len(transfers)) == ([(7, None)], 0)
    transfers, outcome = held_at(tick, first)
    first.release()
    assert outcome == []
    disk.waiting.pop()(None)
    assert (outcome, len(transfers)) == ([(7, None)], 0)


def test_it_does_not_wait_for_a_queue_that_its_message_has_left() -> None:
    flow = stopped()
    _, outcome = held_at(None, flow, position=5)
    flow.fall("q", 2, 0, 4)
    assert outcome == []
    flow.fall("q", 2, 0, 5)
    assert outcome == [(7, None)]
    assert flow.is_stopped


def test_it_fails_with_the_disk_and_only_once() -> None:
    flow, disk = stopped(), Disk()
    tick: Any = disk
    _, outcome = held_at(tick, flow)
    error = OSError(5, "x")
    disk.waiting.pop()(error)
    flow.release()
    assert outcome == [(7, error)]


def test_dropped_transfers_get_no_outcome() -> None:
    flow, disk = stopped(), Disk()
    tick: Any = disk
    transfers, outcome = held_at(tick, flow)
    transfers.drop()
    disk.waiting.pop()(None)
    flow.release()
    assert outcome == []


# ---- the log ----


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Log lines of level notice or above."""
    found = [(each.levelno, each.getMessage()) for each in caplog.records if each.levelno > INFO]
    caplog.clear()
    return found


def test_publishers_that_wait_are_logged_once_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    queues = StoppedQueues()
    flow = FlowControl(FlowThresholds(stop_bytes=10_000, resume_bytes=7_000, overhead=320), queues)
    flow.rise("big", 20, 4000)
    held_at(None, flow)
    for now in (5.0, 5.9):
        queues.look(now)
    assert said(caplog) == []
    for now in (6.1, 7.0, 60.0, 100.0):
        queues.look(now)
    text = (
        'Publishers to queue "big" wait: it has 10,400 bytes in 20 messages, above its flow control threshold of '
        "10,000 bytes. They continue below 7,000 bytes: consume or purge messages, or raise --default-queue-limit"
    )
    assert said(caplog) == [(WARNING, text)]
    flow.fall("big", 5, 1000, 9)
    assert said(caplog) == [(NOTICE, 'Queue "big": publishers are resumed at 5 messages, 1,000 bytes')]
    assert len(queues) == 0


def test_short_repeated_or_idle_stops_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    queues = StoppedQueues()
    flow = FlowControl(FlowThresholds(stop_count=2, resume_count=2), queues)
    now = 0.0
    for _ in range(10):
        flow.rise("q", 3, 0)
        held_at(None, flow)
        for _ in range(2):
            now += 0.4
            queues.look(now)
        flow.fall("q", 1, 0, 9)
    flow.rise("q", 3, 0)
    for _ in range(10):
        now += 0.5
        queues.look(now)
    assert said(caplog) == [], "no publisher waits"
    held_at(None, flow)
    queues.look(now)
    ((_, text),) = said(caplog)
    assert "3 messages, above its flow control threshold of 2. They continue below 2 messages" in text
    flow.fall("q", 1, 0, 9)
    said(caplog)
    flow.rise("q", 3, 0)
    held_at(None, flow)
    began = now
    while not (found := said(caplog)):
        now += 0.5
        queues.look(now)
    assert 59 < now - began <= 60.5, "the same queue once a minute"
    assert len(found) == 1


def test_a_deleted_queue_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    queues = StoppedQueues()
    flow = FlowControl(FlowThresholds(stop_count=2, resume_count=2), queues)
    flow.rise("q", 3, 0)
    held_at(None, flow)
    flow.release()
    assert len(queues) == 0
    for now in range(10):
        queues.look(float(now))
    assert said(caplog) == []
