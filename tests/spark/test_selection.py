"""Filters that are pushed down: rows are those that Spark itself would leave, and the rest is left to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from tests.spark.reading import in_order, records
from tests.support.fixtures import StoreFixture, StoreOpener
from tools.spark.selection import Selection, push


class EqualTo(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class In(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class GreaterThan(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class GreaterThanOrEqual(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class LessThan(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class LessThanOrEqual(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class IsNotNull(NamedTuple):
    attribute: tuple[str, ...]


class Not(NamedTuple):
    child: Any


@pytest.fixture(scope="module")
def dtx(open_fixture: StoreOpener) -> StoreFixture:
    return open_fixture("legacy-d-dtx")


def test_what_is_understood_is_taken_and_the_rest_left() -> None:
    left = [
        IsNotNull(("queue",)), Not(EqualTo(("rid",), 3)), EqualTo(("body_length",), 5), EqualTo(("rid", "x"), 5),
        GreaterThan(("queue",), "a"), EqualTo(("rid",), "3"),
    ]  # fmt: skip
    taken = [
        In(("queue",), ["a", "b", None]),
        EqualTo(("queue",), "b"),
        GreaterThan(("rid",), 4),
        LessThan(("rid",), 9),
    ]
    selection, rest = push([*left, *taken])
    assert rest == left
    assert selection == Selection(queues=frozenset({"b"}), lowest=5, highest=8)


def test_the_narrowest_bounds_count() -> None:
    selection, _ = push(
        [
            GreaterThanOrEqual(("rid",), 2),
            GreaterThan(("rid",), 4),
            LessThanOrEqual(("rid",), 9),
            LessThan(("rid",), 20),
        ]
    )
    assert (selection.lowest, selection.highest) == (5, 9)


@pytest.mark.parametrize(
    ("selection", "keeps"),
    [
        (Selection(queues=frozenset({"d.q1"})), lambda row: row["queue"] == "d.q1"),
        (Selection(kinds=frozenset({"commit", "abort"})), lambda row: row["type"] in ("commit", "abort")),
        (Selection(lowest=10, highest=20), lambda row: 10 <= row["rid"] <= 20),
        (Selection(rids=frozenset({10, 12})), lambda row: row["rid"] in (10, 12)),
        (Selection(kinds=frozenset({"nothing"})), lambda row: False),
        (Selection(queues=frozenset({"nothing"})), lambda row: False),
    ],
)
def test_a_selection_leaves_the_rows_that_spark_would(dtx: StoreFixture, selection: Selection, keeps: Any) -> None:
    every = records(dtx.path)
    if selection.queues == {"d.q1"}:
        assert "d.q1" in {row["queue"] for row in every}
    assert in_order(records(dtx.path, selection=selection)) == in_order([row for row in every if keeps(row)])


def test_transactions_are_selected_by_their_ids(dtx: StoreFixture) -> None:
    every = records(dtx.path)
    xids = sorted({row["xid"] for row in every if row["xid"]})
    assert len(xids) > 1
    found = records(dtx.path, selection=Selection(xids=frozenset(xids[:1])))
    assert in_order(found) == in_order([row for row in every if row["xid"] == xids[0]])
