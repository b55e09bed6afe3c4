"""Arguments of a declaration: integers of any type or as text, policies by name, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.arguments import (
    NO_ARGUMENTS,
    POLICIES,
    QueueArguments,
    read_arguments,
    read_usable,
)
from qstore.broker.model.queues.flow_control import AlertArguments, FlowArguments
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
def test_a_count_of_an_unsuitable_type(code: int, value: object) -> None:
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


# ---- priorities ----


def test_priorities() -> None:
    assert (NO_ARGUMENTS.levels, NO_ARGUMENTS.fair_share) == (0, ())
    for name in ("qpid.priorities", "x-qpid-priorities"):
        for value in (5, "5", b"5"):
            assert read({name: value}) == QueueArguments(levels=5)
    assert read({"x-qpid-priorities": 3, "qpid.priorities": 7}).levels == 7


def test_more_than_ten_levels_count_as_ten() -> None:
    found = read({"qpid.priorities": 200, "qpid.fairshare": 2, "qpid.fairshare-9": 5, "qpid.fairshare-150": 1})
    assert (found.levels, found.fair_share) == (10, (2, 2, 2, 2, 2, 2, 2, 2, 2, 5))


@pytest.mark.parametrize("name", ["qpid.fairshare", "x-qpid-fairshare"])
def test_fair_share(name: str) -> None:
    assert read({"qpid.priorities": 3, name: 4}).fair_share == (4, 4, 4)
    assert read({"qpid.priorities": 3, f"{name}-1": b"4"}).fair_share == (0, 4, 0)
    assert read({"qpid.priorities": 3, name: "4", f"{name}-2": 0}).fair_share == (4, 4, 0)
    assert read({"qpid.priorities": 3, name: 0, f"{name}-0": 0}).fair_share == ()
    other = "x-qpid-fairshare" if name == "qpid.fairshare" else "qpid.fairshare"
    found = read({"qpid.priorities": 2, name: 1, f"{name}-0": 2, other: 3, f"{other}-0": 4}).fair_share
    assert found == ((2, 1) if name == "qpid.fairshare" else (4, 3))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"qpid.priorities": -1}, "qpid.priorities"),
        ({"qpid.priorities": "many"}, "qpid.priorities"),
        ({"qpid.priorities": True}, "qpid.priorities"),
        ({"qpid.fairshare": 3}, "qpid.fairshare is 3, but qpid.priorities is not given"),
        ({"qpid.fairshare-0": 3}, "qpid.fairshare-0 is 3, but qpid.priorities is 0"),
        ({"qpid.priorities": 4, "x-qpid-fairshare-4": 1}, "x-qpid-fairshare-4 is 1, but qpid.priorities is 4"),
        ({"qpid.priorities": 4, "qpid.fairshare-high": 1}, "the level of qpid.fairshare-high is 'high'"),
        ({"qpid.priorities": 4, "qpid.fairshare-": 1}, "the level of qpid.fairshare- is ''"),
        ({"qpid.priorities": 4, "qpid.fairshare-1": "few"}, "qpid.fairshare-1 is 'few'"),
        ({"qpid.priorities": 4, "qpid.last_value_queue_key": "k"}, "a last value queue has no priorities"),
        ({"x-max-priority": 1, "qpid.last_value_queue_key": "k"}, "a last value queue has no priorities"),
        ({"x-max-priority": 256}, "x-max-priority is 256, not a whole number from 0 to 255"),
        ({"x-max-priority": -1}, "x-max-priority is -1"),
        ({"x-max-priority": True}, "x-max-priority is True"),
        ({"x-max-priority": 4, "qpid.priorities": 4}, "x-max-priority and qpid.priorities cannot be given"),
        ({"x-max-priority": 4, "qpid.fairshare-1": 4}, "x-max-priority and qpid.fairshare-1 cannot be given"),
    ],
)
def test_no_priorities(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(named)):
        read(values)


# ---- what a queue has that is there already ----


@pytest.mark.parametrize(
    ("values", "usable", "left_out"),
    [
        ({"qpid.max_count": 5}, {"qpid.max_count": 5}, []),
        ({"qpid.max_count": 5, "qpid.max_size": -1}, {"qpid.max_count": 5}, ["qpid.max_size -1"]),
        ({"qpid.max_count": -5, "a": 1, "qpid.max_size": -1}, {}, ["qpid.max_count -5", "qpid.max_size -1"]),
        ({"qpid.fairshare": 5, "qpid.max_count": 7}, {"qpid.max_count": 7}, ["qpid.fairshare 5"]),
        (
            {"qpid.fairshare": 5, "qpid.priorities": "x", "qpid.max_count": 7},
            {"qpid.max_count": 7},
            ["qpid.priorities 'x'", "qpid.fairshare 5"],
        ),
        (
            {"qpid.fairshare-7": 5, "qpid.priorities": 3, "qpid.policy_type": b"ring"},
            {"qpid.priorities": 3, "qpid.policy_type": "ring"},
            ["qpid.fairshare-7 5"],
        ),
        (
            {"qpid.priorities": 3, "qpid.last_value_queue_key": "k", "no-local": True},
            {"qpid.last_value_queue_key": "k", "no-local": True},
            ["qpid.priorities 3"],
        ),
    ],
)
def test_usable_arguments_are_kept_and_others_left_out(
    values: dict[str, Any], usable: dict[str, Any], left_out: list[str]
) -> None:
    found, reasons = read_usable(typed_map(values))
    assert found == read(usable)
    assert [reason.removeprefix("ignoring ").partition(": ")[0] for reason in reasons] == left_out


def test_all_are_left_out_if_no_single_one_is_at_fault() -> None:
    twice = typed_map({"qpid.max_count": 5, "qpid.priorities": -1}).entries
    found, reasons = read_usable(TypedMap((*twice, twice[-1])))
    assert found == NO_ARGUMENTS
    assert reasons == ["ignoring all its arguments: qpid.priorities is -1, not a whole number from 0 to 4294967295"]


# ---- message groups ----


def test_message_groups() -> None:
    assert read({}).group_header == ""
    assert read({"qpid.group_header_key": "group", "qpid.shared_msg_group": 1}).group_header == "group"
    assert read({"qpid.group_header_key": b"group", "qpid.shared_msg_group": "1"}).group_header == "group"
    assert read({"qpid.group_header_key": "", "qpid.shared_msg_group": 0}).group_header == ""
    assert read({"qpid.group_header_key": "g", "qpid.shared_msg_group": 1, "qpid.priorities": 1}).group_header == "g"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"qpid.group_header_key": "g"}, "qpid.group_header_key is given without qpid.shared_msg_group"),
        ({"qpid.group_header_key": "g", "qpid.shared_msg_group": 0}, "is given without qpid.shared_msg_group"),
        ({"qpid.shared_msg_group": 1}, "qpid.shared_msg_group is given without qpid.group_header_key"),
        ({"qpid.group_timestamp": 1}, "qpid.group_timestamp is given without qpid.group_header_key"),
        (
            {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1, "qpid.last_value_queue_key": "k"},
            "a last value queue has no message groups",
        ),
        (
            {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1, "x-qpid-priorities": 2},
            "a priority queue has no message groups",
        ),
    ],
)
def test_message_groups_that_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        read(given)
