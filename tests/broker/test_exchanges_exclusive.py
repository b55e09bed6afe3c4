"""Exclusive bindings of direct exchanges: one takes the place of all others of its key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.arguments import EXCLUSIVE_BINDING
from qstore.broker.model.errors import InternalError
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.exchange_parts import fake_queues, routed, unbind_queue

ALONE = typed_map({EXCLUSIVE_BINDING: 1})


def test_takes_the_place_of_all_others_of_its_key() -> None:
    exchange = DirectExchange("d")
    a, b, c = fake_queues("abc")
    for queue in (a, b):
        exchange.bind(queue, "k")
        exchange.bind(queue, "other")
    assert exchange.bind(c, "k", ALONE) is not None
    assert routed(exchange, "k") == "c"
    assert routed(exchange, "other") == "ab"
    exchange.bind(a, "k", ALONE)
    assert routed(exchange, "k") == "a"


def test_exclusive_bind_returns_the_replaced_bindings() -> None:
    exchange = DirectExchange("d")
    a, b = fake_queues("ab")
    first = exchange.bind(a, "k")
    binding = exchange.prepare(b, "k", ALONE)
    assert binding is not None
    assert routed(exchange, "k") == "a"
    assert exchange.put(binding) == [first]
    assert routed(exchange, "k") == "b"


def test_exclusive_bind_clears_cached_routes() -> None:
    exchange = DirectExchange("d")
    a, b = fake_queues("ab")
    exchange.bind(a, "k")
    assert exchange.find("k").queues == (a,)
    exchange.bind(b, "k", ALONE)
    assert exchange.routes == {}


def test_the_same_again_changes_nothing() -> None:
    exchange = DirectExchange("d")
    (a,) = fake_queues("a")
    binding = exchange.bind(a, "k", ALONE)
    assert exchange.bind(a, "k", ALONE) is None
    assert exchange.bind(a, "k") is None
    assert list(exchange.bindings) == [binding]


def test_the_same_again_when_another_has_come_beside_it() -> None:
    exchange = DirectExchange("d")
    a, b = fake_queues("ab")
    exchange.bind(a, "k", ALONE)
    exchange.bind(b, "k")
    assert routed(exchange, "k") == "ab"
    exchange.bind(a, "k", ALONE)
    assert routed(exchange, "k") == "a"


def test_an_ordinary_binding_becomes_exclusive() -> None:
    exchange = DirectExchange("d")
    (a,) = fake_queues("a")
    ordinary = exchange.bind(a, "k")
    binding = exchange.bind(a, "k", ALONE)
    assert binding is not None
    assert binding is not ordinary
    assert list(exchange.bindings) == [binding]


def test_restored_queue_replaces_no_binding() -> None:
    """A deletion that fails puts the bindings back as they were (`broker.model.topology.deletion`)."""
    exchange = DirectExchange("d")
    a, b = fake_queues("ab")
    exchange.bind(a, "k", ALONE)
    exchange.bind(b, "k")
    for binding in unbind_queue(exchange, a):
        exchange.add(binding)
    assert routed(exchange, "k") == "ab"


@pytest.mark.parametrize(
    "kind", [kind for name, kind in EXCHANGE_TYPES.items() if name in ("topic", "fanout", "headers")]
)
def test_means_nothing_to_other_types(kind: type[Exchange]) -> None:
    exchange = kind("x")
    a, b = fake_queues("ab")
    exchange.bind(a, "k", typed_map({"x-match": "all"}))
    exchange.bind(b, "k", typed_map({"x-match": "all", EXCLUSIVE_BINDING: 1}))
    assert routed(exchange, "k", {EXCLUSIVE_BINDING: 1}) == "ab"


_DEEDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("kl"), st.sampled_from(["bind", "alone", "unbind"]))
)


@given(_DEEDS)
def test_bindings_match_the_model_and_after_a_restart(deeds: list[tuple[str, str, str]]) -> None:
    """The model is a dictionary; what a store would have, made again in its order, comes out the same."""
    exchange, expected = DirectExchange("d"), {"k": "", "l": ""}
    queues: dict[str, Any] = dict(zip("abc", fake_queues("abc"), strict=True))
    stored: list[tuple[str, str, Any]] = []
    for name, key, deed in deeds:
        if deed == "unbind":
            exchange.unbind(queues[name], key)
            expected[key] = expected[key].replace(name, "")
        else:
            exchange.bind(queues[name], key, ALONE if deed == "alone" else EMPTY_MAP)
            there = "" if deed == "alone" else expected[key].replace(name, "")
            expected[key] = "".join(sorted(there + name))
        kept = {(each.queue.name, each.key): each for each in exchange.bindings}
        stored = [each for each in stored if kept.pop((each[0], each[1]), None) is each[2]]
        kept = {(each.queue.name, each.key): each for each in exchange.bindings}
        known = [each[2] for each in stored]
        stored += [(*where, each) for where, each in kept.items() if each not in known]
    again = DirectExchange("d")
    for name, key, binding in stored:
        again.bind(queues[name], key, binding.arguments)
    for key, names in expected.items():
        assert routed(exchange, key) == routed(again, key) == names


def test_errors_are_not_hidden() -> None:
    """The headers exchange still wants its own argument."""
    (a,) = fake_queues("a")
    with pytest.raises(InternalError):
        EXCHANGE_TYPES["headers"]("h").bind(a, "k", ALONE)
