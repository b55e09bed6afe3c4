"""Threshold alerts: which thresholds a queue has, and when it raises events."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from qstore.broker.model.events import (
    Event,
    QueueThresholdCrossedDownward,
    QueueThresholdCrossedUpward,
    QueueThresholdExceeded,
)
from qstore.broker.model.queues.arguments import QueueArguments
from qstore.broker.model.queues.flow_control import AlertArguments, FlowArguments, alert_thresholds
from qstore.broker.model.queues.limits import Capacity
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import PlainMessage
from tests.support.fake_store import Model

SCHEMA = Path(__file__).parent.parent / "fixtures" / "qmf" / "broker.xml"
ALERTS = (QueueThresholdExceeded, QueueThresholdCrossedUpward, QueueThresholdCrossedDownward)
NO_FLOW = FlowArguments(stop_count=0, stop_size=0)


@pytest.mark.parametrize(
    ("given", "capacity", "percent", "expected"),
    [
        ({}, Capacity(messages=1000), 80, (800, 0, 400, 0, 60, 0)),
        ({}, Capacity(bytes=1000, overhead=320), 80, (0, 800, 0, 400, 60, 320)),
        ({"size_up": 500}, Capacity(bytes=1000, overhead=320), 80, (0, 500, 0, 250, 60, 0)),
        ({"count_up": 7, "repeat_gap": 5}, Capacity(bytes=1000), 80, (7, 800, 3, 400, 5, 0)),
        ({"count_up": 7, "count_down": 6, "size_down": 1}, Capacity(bytes=1000), 80, (7, 800, 6, 1, 60, 0)),
        ({"count_up": 7, "count_down": 7}, Capacity(), 80, (7, 0, 3, 0, 60, 0)),
        ({"count_up": 7, "count_down": 0}, Capacity(), 80, (7, 0, 3, 0, 60, 0)),
        ({"count_up": 7}, Capacity(10, 10), 0, (7, 0, 3, 0, 60, 0)),
        ({"count_up": 0}, Capacity(10, 0), 80, None),
        ({}, Capacity(10, 10), 0, None),
        ({}, Capacity(), 80, None),
    ],
)
def test_thresholds(given: dict[str, int], capacity: Capacity, percent: int, expected: tuple[int, ...] | None) -> None:
    assert alert_thresholds(AlertArguments(**given), capacity, percent) == expected


def test_the_fields_are_those_of_the_schema() -> None:
    events = {each.get("name"): each for each in ElementTree.parse(SCHEMA).getroot().iter("event")}
    for event in ALERTS:
        name = event.__name__[0].lower() + event.__name__[1:]
        assert events[name].get("args") == "qName, msgDepth, byteDepth"
        assert event._fields == ("queue", "messages", "bytes")


class Stand:
    """A queue with alerts, and those that were raised."""

    def __init__(self, percent: int = 80, **asked: Any) -> None:
        self.model = Model(BrokerSettings(event_threshold_percent=percent))
        self.events: list[Event] = []
        self.model.broker.events.listen(self.events.append)
        self.queue = self.model.broker.queue_factory.make(
            self.model.broker.default_host,
            "q",
            durable=False,
            auto_delete=False,
            arguments=EMPTY_MAP,
            parsed=QueueArguments(**asked),
        )

    def publish(self, count: int = 1, size: int = 10) -> list[Event]:
        for _ in range(count):
            self.queue.publish(PlainMessage("q", b"x" * size, persistent=False))
        return self.raised()

    def take(self, count: int = 1) -> list[Event]:
        for _ in range(count):
            entry = next(self.queue.available())
            self.queue.acquire(entry)
            self.queue.dequeue(entry)
        return self.raised()

    def raised(self) -> list[Event]:
        events = [event for event in self.events if isinstance(event, ALERTS)]  # flow control raises others
        self.events.clear()
        return events


@pytest.mark.parametrize("flow", [FlowArguments(), NO_FLOW])
def test_80_percent_of_a_limit(flow: FlowArguments) -> None:
    stand = Stand(max_messages=1000, flow=flow)
    assert stand.publish(799) == []
    assert stand.publish() == [QueueThresholdExceeded("q", 800, 8000), QueueThresholdCrossedUpward("q", 800, 8000)]
    assert stand.publish(10) == []


def test_none_if_the_ratio_is_0() -> None:
    stand = Stand(0, max_messages=10)
    assert stand.publish(10) == []


def test_one_alert_for_the_first_threshold_reached() -> None:
    stand = Stand(alerts=AlertArguments(count_up=3, size_up=100))
    assert stand.publish(size=99) == []
    assert stand.publish(size=1) == [QueueThresholdExceeded("q", 2, 100), QueueThresholdCrossedUpward("q", 2, 100)]
    assert stand.publish(5) == []


def test_none_within_the_gap_and_none_is_made_up_for() -> None:
    stand = Stand(alerts=AlertArguments(count_up=3, repeat_gap=60))
    stand.publish(3)
    stand.model.now += 59.9
    assert stand.publish() == []
    stand.model.now += 0.1
    assert stand.take() == []
    assert stand.publish() == [QueueThresholdExceeded("q", 4, 40)]
    stand.model.now += 30
    assert stand.take(3) == [QueueThresholdCrossedDownward("q", 1, 10)]
    assert stand.publish(2) == [QueueThresholdCrossedUpward("q", 3, 30)]
    stand.model.now += 30
    assert stand.raised() == []
    assert stand.publish() == [QueueThresholdExceeded("q", 4, 40)]


@pytest.mark.parametrize("step", [-1000.0, 1000.0])
def test_the_gap_does_not_depend_on_the_time_of_day(step: float) -> None:
    stand = Stand(alerts=AlertArguments(count_up=3))
    stand.publish(3)
    stand.model.stepped += step
    assert stand.publish() == []
    stand.model.now += 60
    assert stand.publish() == [QueueThresholdExceeded("q", 5, 50)]


def test_every_message_without_a_gap() -> None:
    stand = Stand(alerts=AlertArguments(count_up=3, repeat_gap=0))
    assert len(stand.publish(3)) == 2
    assert len(stand.publish(3)) == 3


def test_down_only_when_both_are() -> None:
    stand = Stand(alerts=AlertArguments(count_up=4, size_up=1000, count_down=3, size_down=5))
    stand.publish(4)
    assert stand.take(3) == []
    assert stand.take() == [QueueThresholdCrossedDownward("q", 0, 0)]


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stand = Stand(alerts=AlertArguments(count_up=2))
    stand.publish(2)
    stand.take(2)
    assert [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "Model"] == [
        ("WARNING", 'Queue "q" has reached its alert threshold: 2 messages, 20 bytes'),
        ("INFO", 'Queue "q" is down to its lower alert threshold: 1 messages, 10 bytes'),
    ]
