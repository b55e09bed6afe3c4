"""The headers exchange: arguments of bindings against headers of messages."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InternalError, NotAllowedError
from qstore.broker.model.exchanges.exchange import BoundResult
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.matching import comparable
from qstore.formats.values import TypedMap, typed_map
from tests.broker.exchange_parts import fake_queues, routed
from tests.support.coded import coded, coded_array


def bound(arguments: TypedMap) -> HeadersExchange:
    """An exchange with queue a bound with these arguments."""
    exchange = HeadersExchange("h")
    exchange.bind(fake_queues("a")[0], "k", arguments)
    return exchange


def asks(how: str, **headers: Any) -> TypedMap:
    return typed_map({"x-match": how, **headers})


class TestAllAndAny:
    def test_all(self) -> None:
        exchange = bound(asks("all", name="fred", age=3))
        assert routed(exchange, headers={"name": "fred", "age": 3}) == "a"
        assert routed(exchange, headers={"name": "fred", "age": 3, "more": 1}) == "a"
        assert routed(exchange, headers={"name": "fred"}) == ""
        assert routed(exchange, headers={"name": "fred", "age": 4}) == ""
        assert routed(exchange) == ""

    def test_any(self) -> None:
        exchange = bound(asks("any", name="fred", age=3))
        assert routed(exchange, headers={"name": "fred"}) == "a"
        assert routed(exchange, headers={"name": "joe", "age": 3}) == "a"
        assert routed(exchange, headers={"name": "joe", "age": 4}) == ""
        assert routed(exchange) == ""

    def test_nothing_asked_for(self) -> None:
        assert routed(bound(asks("all")), headers={"a": 1}) == "a"
        assert routed(bound(asks("all"))) == "a"
        assert routed(bound(asks("any")), headers={"a": 1}) == ""

    def test_void_asks_for_presence(self) -> None:
        exchange = bound(asks("all", name=None))
        assert routed(exchange, headers={"name": "fred"}) == "a"
        assert routed(exchange, headers={"name": None}) == "a"
        assert routed(exchange, headers={"other": "fred"}) == ""

    def test_a_void_header_is_not_a_value(self) -> None:
        assert routed(bound(asks("all", n=0)), headers={"n": None}) == ""

    def test_names_with_x_say_nothing(self) -> None:
        assert routed(bound(asks("all", name="fred", **{"x-other": 1})), headers={"name": "fred"}) == "a"
        assert routed(bound(asks("any", name="fred", **{"x-other": 1})), headers={"x-other": 1}) == ""

    def test_the_routing_key_says_nothing(self) -> None:
        exchange = bound(asks("all", name="fred"))
        assert routed(exchange, "k") == ""
        assert routed(exchange, "other", {"name": "fred"}) == "a"

    def test_a_queue_comes_once(self) -> None:
        exchange = HeadersExchange("h")
        a, b = fake_queues("ab")
        exchange.bind(a, "1", asks("all", x=1))
        exchange.bind(a, "2", asks("any", x=1, y=2))
        exchange.bind(b, "1", asks("all", y=2))
        assert routed(exchange, headers={"x": 1}) == "a"
        assert routed(exchange, headers={"x": 1, "y": 2}) == "ab"


class TestValues:
    @pytest.mark.parametrize("code", [0x01, 0x02, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32])
    def test_integers_by_number(self, code: int) -> None:
        exchange = bound(typed_map([("x-match", "all"), ("n", coded(code, 7))]))
        assert routed(exchange, headers={"n": 7}) == "a"
        for other in (8, "7", 7.0, True, None):
            assert routed(exchange, headers={"n": other}) == ""

    @pytest.mark.parametrize("value", ["fred", b"fred"])
    @pytest.mark.parametrize("code", [0x85, 0x95, 0x80, 0x90, 0xA0])
    def test_text_by_text(self, code: int, value: object) -> None:
        wanted = b"fred" if code in (0x80, 0x90, 0xA0) else "fred"
        exchange = bound(typed_map([("x-match", "all"), ("n", coded(code, wanted))]))
        assert routed(exchange, headers={"n": value}) == "a"
        assert routed(exchange, headers={"n": "Fred"}) == ""

    def test_booleans_are_no_numbers(self) -> None:
        exchange = bound(asks("all", flag=True))
        assert routed(exchange, headers={"flag": True}) == "a"
        assert routed(exchange, headers={"flag": 1}) == ""
        assert routed(exchange, headers={"flag": False}) == ""

    @pytest.mark.parametrize(
        ("wanted", "found", "other"),
        [
            (1.5, 1.5, 1.25),
            (uuid.UUID(int=1), uuid.UUID(int=1), str(uuid.UUID(int=1))),
            (coded(0xC8, Decimal("1.50")), Decimal("1.5"), 1.5),
            (("a", 1), ["a", 1], ["a", "1"]),
            (coded(0xAA, coded_array(0x31, (1, 2))), [1, 2], [2, 1]),
            ({"a": 1}, {"a": 1}, {"a": True}),
            ({"a": {"b": b"x"}}, typed_map({"a": {"b": "x"}}), {}),
        ],
    )
    def test_other_types(self, wanted: object, found: object, other: object) -> None:
        exchange = bound(asks("all", n=wanted))
        assert routed(exchange, headers={"n": found}) == "a"
        assert routed(exchange, headers={"n": other}) == ""

    @given(st.dictionaries(st.text(max_size=2), st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.text())))
    def test_matching_headers_are_routed(self, headers: dict[str, Any]) -> None:
        arguments = {name: value for name, value in headers.items() if not name.startswith("x-")}
        assert routed(bound(typed_map({"x-match": "all", **arguments})), headers=headers) == "a"
        assert routed(bound(typed_map({"x-match": "any", **arguments})), headers=headers) == "a" * bool(arguments)


class TestBindings:
    @pytest.mark.parametrize("how", [None, "", "ALL", "some", 1, True])
    def test_x_match_is_needed(self, how: object) -> None:
        with pytest.raises(InternalError, match="x-match"):
            bound(typed_map({"x-match": how, "a": 1}))
        with pytest.raises(InternalError, match="x-match"):
            bound(typed_map({"a": 1}))

    @pytest.mark.parametrize("how", ["all", b"all", "any", b"any"])
    def test_x_match_in_any_text(self, how: object) -> None:
        assert routed(bound(typed_map({"x-match": how, "a": 1})), headers={"a": 1}) == "a"

    def test_the_same_again(self) -> None:
        exchange = HeadersExchange("h")
        (a,) = fake_queues("a")
        first = exchange.bind(a, "k", asks("all", n=1, t="x"))
        again = typed_map([("t", b"x"), ("n", coded(0x02, 1)), ("x-match", "all")])
        assert exchange.bind(a, "k", again) is None
        assert list(exchange.bindings) == [first]

    def test_other_arguments_under_the_same_key(self) -> None:
        exchange = HeadersExchange("h")
        a, b = fake_queues("ab")
        exchange.bind(a, "k", asks("all", n=1))
        for other in (asks("any", n=1), asks("all", n=2), asks("all")):
            with pytest.raises(NotAllowedError, match='"k" and different arguments'):
                exchange.bind(a, "k", other)
        assert exchange.bind(b, "k", asks("all", n=2)) is not None
        assert routed(exchange, headers={"n": 1}) == "a"

    def test_unbinding_by_key(self) -> None:
        exchange = HeadersExchange("h")
        (a,) = fake_queues("a")
        exchange.bind(a, "1", asks("all", n=1))
        exchange.bind(a, "2", asks("all", n=2))
        removed = exchange.unbind(a, "1")
        assert removed is not None
        assert routed(exchange, headers={"n": 1}) == ""
        assert routed(exchange, headers={"n": 2}) == "a"
        exchange.add(removed)
        assert routed(exchange, headers={"n": 1}) == "a"

    def test_bound(self) -> None:
        exchange = HeadersExchange("h")
        a, b = fake_queues("ab")
        exchange.bind(a, "1", asks("all", n=1))
        exchange.bind(b, "2", asks("all", n=2))
        assert exchange.bound(a, "1", asks("all", n=1)) == BoundResult()
        assert exchange.bound(None, None, asks("all", n=2)) == BoundResult()
        assert exchange.bound(a, None, asks("all", n=2)) == BoundResult(args_not_matched=True)
        assert exchange.bound(a, "2", asks("all", n=1)) == BoundResult(key_not_matched=True)
        assert exchange.bound(a, "1", typed_map({"n": 1})) == BoundResult(args_not_matched=True)

    def test_keys_are_not_asked(self) -> None:
        with pytest.raises(AssertionError, match="does not route by key"):
            HeadersExchange("h").find("k")


def test_a_message_is_matched_only_against_bindings_that_want_its_headers() -> None:
    exchange = HeadersExchange("h")
    queues = fake_queues("abc")
    for number in range(300):
        exchange.bind(queues[0], f"{number}", asks("all", kind="order", number=number))
        exchange.bind(queues[1], f"{number}", asks("any", number=number, other=number))
    exchange.bind(queues[2], "present", asks("any", kind=None))
    exchange.bind(queues[2], "everything", asks("all"))
    headers = {"kind": comparable("order"), "number": comparable(7)}
    assert len(exchange.candidates(headers)) <= 5
    assert routed(exchange, headers={"kind": "order", "number": 7}) == "abc"
    assert routed(exchange, headers={"other": 8}) == "bc"
    for binding in list(exchange.bindings):
        exchange.remove(binding)
    assert not exchange.candidates(headers)
    assert routed(exchange, headers={"kind": "order", "number": 7}) == ""
