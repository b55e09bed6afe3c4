"""Parameters of requests: pages, filters, order, columns, and the fields of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qstore.broker.management.console import Data, ObjectId
from qstore.tools.web.calls import Call, HttpError, boolean, listed, mapping, text, whole
from qstore.tools.web.collector import Sample
from qstore.tools.web.resources import SampledRows

ROWS: list[dict[str, Any]] = [
    {"name": f"q{number}", "messages": number % 3, "message_stats": {"publish_details": {"rate": number / 10}}}
    for number in range(10)
]


def call(body: bytes = b"", **query: str) -> Call:
    return Call("GET", {}, query, body, "127.0.0.1", None)


def names(found: Any) -> list[str]:
    return [row["name"] for row in (found["items"] if isinstance(found, dict) else found)]


def refusal(run: Any) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        run()
    return caught.value.status, caught.value.error


def test_without_parameters_all_are_listed() -> None:
    assert listed(call(), ROWS) == ROWS


def test_a_page_tells_its_place() -> None:
    found = listed(call(page="3", page_size="4"), ROWS)
    assert names(found) == ["q8", "q9"]
    numbers = {name: value for name, value in found.items() if name != "items"}
    assert numbers == {
        "total_count": 10, "filtered_count": 10, "item_count": 2, "page": 3, "page_size": 4, "page_count": 3,
    }  # fmt: skip


def test_an_empty_list_has_one_page() -> None:
    assert listed(call(page="1"), [])["page_count"] == 1


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"page": "4", "page_size": "4"}, "page_out_of_range"),
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "x"}, "bad_request"),
        ({"page": "-1"}, "bad_request"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request"),
        ({"page": "1", "name": "x" * 1001, "use_regex": "true"}, "bad_request"),
        ({"columns": ",".join(["a"] * 101)}, "bad_request"),
    ],
)
def test_pages_that_do_not_exist_are_refused(query: dict[str, str], error: str) -> None:
    assert refusal(lambda: listed(call(**query), ROWS)) == (400, error)


def test_names_are_filtered_by_text_and_by_expression() -> None:
    assert names(listed(call(page="1", name="Q1"), ROWS)) == ["q1"]
    assert names(listed(call(page="1", name="^q[89]$", use_regex="true"), ROWS)) == ["q8", "q9"]
    assert listed(call(page="1", name="q[8"), ROWS)["filtered_count"] == 0


def test_an_expression_that_takes_too_long_is_given_up() -> None:
    rows = [{"name": "a" * 40 + "!"}]
    run = lambda: listed(call(page="1", name="^(a|aa|a?a)+$", use_regex="true"), rows)  # noqa: E731
    assert refusal(run) == (400, "bad_request")


def test_sorted_by_any_field_whatever_its_type() -> None:
    rows = [
        {"name": "a", "v": "x"},
        {"name": "b"},
        {"name": "c", "v": 2},
        {"name": "d", "v": {"k": 1}},
        {"name": "e", "v": 1},
    ]
    assert names(listed(call(sort="v"), rows)) == ["b", "e", "c", "a", "d"] or names(listed(call(sort="v"), rows)) == [
        "b", "e", "c", "d", "a",
    ]  # fmt: skip
    backwards = listed(call(sort="message_stats.publish_details.rate", sort_reverse="true"), ROWS)
    assert names(backwards)[:3] == ["q9", "q8", "q7"]


def test_columns_are_cut_out_of_objects() -> None:
    found = listed(call(columns="name,message_stats.publish_details.rate,nothing,name.x"), ROWS[:1])
    assert found == [{"name": "q0", "message_stats": {"publish_details": {"rate": 0.0}}}]


def test_bodies_must_be_objects_with_the_required_fields() -> None:
    assert call(b"").object() == {}
    assert refusal(lambda: call(b"[1]").object()) == (400, "bad_request")
    assert refusal(lambda: call(b"{").object()) == (400, "bad_request")
    with pytest.raises(HttpError) as caught:
        call(b'{"a": 1}').object("a", "b", "c")
    assert caught.value.reason == "[{key_missing,b},{key_missing,c}]"


def test_fields_have_their_types() -> None:
    assert (boolean({"a": "true"}, "a"), boolean({"a": False}, "a"), boolean({}, "a", default=True)) == (
        True,
        False,
        True,
    )
    assert (text({"a": "x"}, "a"), mapping({"a": []}, "a"), whole({"a": "12"}, "a", 0, 10)) == ("x", {}, 10)
    for read in (
        lambda: boolean({"a": "maybe"}, "a"),
        lambda: boolean({"a": 1}, "a"),
        lambda: text({"a": 1}, "a"),
        lambda: mapping({"a": [1]}, "a"),
        lambda: whole({"a": -1}, "a", 0, 9),
        lambda: whole({"a": True}, "a", 0, 9),
    ):
        assert refusal(read) == (400, "bad_request")


async def test_rows_of_objects_that_have_not_changed_are_used_again() -> None:
    made: list[str] = []

    def make(data: Data) -> dict[str, Any] | None:
        made.append(data.values["name"])
        return None if data.values.get("hidden") else {"name": data.values["name"], "depth": data.values["depth"]}

    def sample(**depths: int) -> Sample:
        objects = {
            name: Data({"name": name, "depth": depth}, ObjectId(f"p:queue:{name}")) for name, depth in depths.items()
        }
        return Sample(0.0, 0.0, objects)

    sampled, first, second = SampledRows(), sample(b=1, a=1), sample(b=2, a=1, c=5)

    async def build(now: Sample, *, is_still: bool = True) -> list[dict[str, Any]]:
        objects = now.objects.values()
        return await sampled.build(
            (now,), objects, lambda data: (data.values, "policy") if is_still else None, make, lambda row: row["name"]
        )

    both = await asyncio.gather(build(first), build(first))
    assert both[0] is both[1]
    assert made == ["b", "a"]
    made.clear()
    assert await build(second) == [{"name": "a", "depth": 1}, {"name": "b", "depth": 2}, {"name": "c", "depth": 5}]
    assert made == ["b", "c"]
    made.clear()
    await build(sample(b=2, a=1, c=5), is_still=False)  # some rate is not 0
    assert made == ["b", "a", "c"]
    assert await build(sample()) == []
