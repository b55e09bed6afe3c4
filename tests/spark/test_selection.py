"""Filters that are pushed down: rows are those that Spark itself would leave, and the rest is left to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from qstore.tools.spark.columns import HIGHEST, OptionError, Selection, chosen, push
from tests.spark.reading import in_order, records
from tests.support.fixtures import StoreFixture, StoreOpener


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


def test_understood_filters_are_pushed_and_others_left() -> None:
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
    selection, rest = push([*left, *taken], Selection())
    assert rest == left
    assert selection == Selection(queues=frozenset({"b"}), lowest=5, highest=8)


def test_the_narrowest_bounds_count() -> None:
    selection, _ = push(
        [
            GreaterThanOrEqual(("rid",), 2),
            GreaterThan(("rid",), 4),
            LessThanOrEqual(("rid",), 9),
            LessThan(("rid",), 20),
        ],
        Selection(),
    )
    assert (selection.lowest, selection.highest) == (5, 9)


def test_filters_narrow_the_selection_of_the_options() -> None:
    options = {"queue": "a, b", "type": "enqueue,dequeue", "xid": "00ff", "rids": "7, 100-200,300-", "columns": "rid"}
    selection = chosen(options)
    assert selection == Selection(
        frozenset({"a", "b"}),
        frozenset({"enqueue", "dequeue"}),
        frozenset({"00ff"}),
        ranges=((7, 7), (100, 200), (300, HIGHEST)),
    )
    assert [rid for rid in (None, -1, 6, 7, 8, 99, 100, 200, 201, 300, HIGHEST) if selection.wants_rid(rid)] == [
        7, 100, 200, 300, HIGHEST,
    ]  # fmt: skip
    narrowed, left = push([In(("queue",), ["b", "c"]), LessThan(("rid",), 150)], selection)
    assert not left
    assert narrowed.queues == {"b"}
    assert [rid for rid in (7, 149, 150, 300) if narrowed.wants_rid(rid)] == [7, 149]
    assert chosen({"queue": '["a,b", "c"]'}).queues == {"a,b", "c"}
    assert chosen({}) == Selection()


@pytest.mark.parametrize(
    "options",
    [
        {"queue": ""},
        {"queue": "[1]"},
        {"queue": '["a"'},
        {"xid": " , "},
        {"type": "enqeue"},
        {"rids": ""},
        {"rids": "9-7"},
        {"rids": "a"},
        {"rids": "-5"},
        {"rids": "1-2-3"},
        {"rids": "9999999999999999999"},
    ],
)
def test_options_that_select_nothing_that_could_be_are_refused(options: dict[str, str]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"option {name}: "):
        chosen(options)


@pytest.mark.parametrize(
    ("selection", "keeps"),
    [
        (Selection(queues=frozenset({"d.q1"})), lambda row: row["queue"] == "d.q1"),
        (Selection(kinds=frozenset({"commit", "abort"})), lambda row: row["type"] in ("commit", "abort")),
        (Selection(lowest=10, highest=20), lambda row: 10 <= row["rid"] <= 20),
        (Selection(ranges=((3, 4), (10, 12))), lambda row: row["rid"] in (3, 4, 10, 11, 12)),
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
