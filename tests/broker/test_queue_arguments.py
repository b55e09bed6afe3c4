"""What a declaration's arguments say: whole numbers in any dress, policies by name, and nothing besides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.alerts import AlertArguments
from qstore.broker.model.queues.arguments import NO_ARGUMENTS, POLICIES, QueueArguments, read_arguments
from qstore.broker.model.queues.flow_control import FlowArguments
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from tests.support.coded import coded

COUNTS = (
    "qpid.max_count",
    "qpid.max_size",
    "qpid.auto_delete_timeout",
    "qpid.flow_stop_count",
    "qpid.flow_resume_count",
    "qpid.flow_stop_size",
    "qpid.flow_resume_size",
    "qpid.alert_count",
    "qpid.alert_size",
    "qpid.alert_count_up",
    "qpid.alert_size_up",
    "qpid.alert_count_down",
    "qpid.alert_size_down",
    "qpid.alert_repeat_gap",
    "x-qpid-maximum-message-count",
    "x-qpid-maximum-message-size",
    "x-qpid-minimum-alert-repeat-gap",
)
FLOAT, DOUBLE, BOOLEAN = 0x23, 0x33, 0x08


def read(values: dict[str, Any]) -> QueueArguments:
    return read_arguments(typed_map(values))


def test_none() -> None:
    assert read_arguments(EMPTY_MAP) == NO_ARGUMENTS == QueueArguments(0, None, "reject", False, 0)
    assert read({"anything": -1, "x-custom": "text"}) == NO_ARGUMENTS


def test_all() -> None:
    found = read(
        {
            "qpid.max_count": 5,
            "qpid.max_size": "1000",
            "qpid.policy_type": "ring",
            "no-local": False,  # that it is there is enough
            "qpid.auto_delete_timeout": 3,
        }
    )
    assert found == QueueArguments(5, 1000, "ring", True, 3)


def test_thresholds() -> None:
    flow = {"stop_count": 4, "resume_count": 3, "stop_size": 2, "resume_size": 1}
    assert read({f"qpid.flow_{name}": str(count) for name, count in flow.items()}).flow == FlowArguments(**flow)
    assert NO_ARGUMENTS.flow == FlowArguments(None, None, None, None)
    alerts = {"count_up": 5, "size_up": 4, "count_down": 3, "size_down": 2, "repeat_gap": 1}
    assert read({f"qpid.alert_{name}": count for name, count in alerts.items()}).alerts == AlertArguments(**alerts)
    assert NO_ARGUMENTS.alerts == AlertArguments(None, None, None, None, 60)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("qpid.alert_count", "count_up"),
        ("x-qpid-maximum-message-count", "count_up"),
        ("qpid.alert_size", "size_up"),
        ("x-qpid-maximum-message-size", "size_up"),
        ("x-qpid-minimum-alert-repeat-gap", "repeat_gap"),
    ],
)
def test_other_names_of_alerts(name: str, field: str) -> None:
    assert read({name: 7}).alerts == AlertArguments(**{field: 7})
    assert read({"x-qpid-maximum-message-count": 7, "qpid.alert_count": 0}).alerts.count_up == 0


def test_texts_may_come_as_bytes() -> None:
    assert read({"qpid.max_count": b"7", "qpid.policy_type": b"reject"}) == QueueArguments(max_messages=7)


@given(st.sampled_from(COUNTS), st.integers(0, (1 << 32) - 1), st.booleans())
def test_every_count_as_a_number_and_as_a_text(name: str, count: int, is_text: bool) -> None:
    found = read({name: str(count) if is_text else count})
    assert found.max_messages == (count if name == "qpid.max_count" else 0)
    assert found.max_bytes == (count if name == "qpid.max_size" else None)
    assert found.auto_delete_seconds == (count if name == "qpid.auto_delete_timeout" else 0)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    "value", [-1, "-1", "", "foo", "2222222.22222", " 3", "+3", "3 ", "²", "٣", "9" * 21, 1 << 63, b"\xff", {}, [1]]
)
def test_no_count(name: str, value: Any) -> None:
    if value == 1 << 63:
        if name not in ("qpid.auto_delete_timeout", "qpid.flow_stop_count", "qpid.flow_resume_count"):
            return  # a size may be as large
        value = str(value)
    with pytest.raises(InvalidArgumentError, match=name):
        read({name: value})


@pytest.mark.parametrize(("code", "value"), [(FLOAT, 3.0), (DOUBLE, 3.14159), (BOOLEAN, True)])
def test_a_count_of_a_type_that_is_none(code: int, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"qpid\.max_size"):
        read_arguments(TypedMap((("qpid.max_size", coded(code, value)),)))


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(policy: str) -> None:
    assert read({"qpid.policy_type": policy}).policy == policy


@pytest.mark.parametrize("policy", ["", "Ring", "drop", 1, "x" * 10_000])
def test_no_policy(policy: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"qpid\.policy_type") as caught:
        read({"qpid.policy_type": policy})
    assert len(str(caught.value)) < 300
