"""`exchange.bound`: every combination of its fields, for every type, against a search through all bindings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from qstore.broker.model.exchanges.exchange import BoundResult
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES, STANDARD_EXCHANGES
from qstore.formats.values import TypedMap, typed_map
from tests.broker.exchange_parts import fake_queues

RED = typed_map({"x-match": "all", "colour": "red"})
BLUE = typed_map({"x-match": "any", "colour": "blue"})
GREEN = typed_map({"x-match": "all", "colour": "green"})
NO_CRITERIA = typed_map({"n": 1})
A, B, C = fake_queues("abc")
MADE = ((A, "x", RED), (A, "y", BLUE), (B, "x", BLUE), (B, "z.#", RED))
ASKED: tuple[tuple[Any, ...], ...] = (
    (None, A, B, C),
    (None, "x", "y", "z.#", "z.1", "none"),
    (None, RED, BLUE, GREEN, NO_CRITERIA),
)

Alike = Callable[[Binding, str, TypedMap], tuple[bool, bool]]


def searched(
    bindings: Iterable[Binding], alike: Alike, queue: Any, key: str | None, arguments: TypedMap | None
) -> BoundResult:
    """What a search says: each question narrows what is asked next, unless it leaves nothing."""
    left = list(bindings)
    missing = []
    for is_asked, matches in (
        (queue is not None, lambda each: each.queue is queue),
        (key is not None, lambda each: alike(each, key or "", RED)[0]),
        (arguments is not None, lambda each: alike(each, "", arguments or RED)[1]),
    ):
        found = [each for each in left if not is_asked or matches(each)]
        missing.append(is_asked and not found)
        left = found or left
    return BoundResult(*missing)


def by_key(binding: Binding, key: str, _arguments: TypedMap) -> tuple[bool, bool]:
    return binding.key == key, True


def by_key_and_arguments(binding: Binding, key: str, arguments: TypedMap) -> tuple[bool, bool]:
    return binding.key == key, binding.arguments == arguments


def by_nothing(_binding: Binding, _key: str, _arguments: TypedMap) -> tuple[bool, bool]:
    return True, True


ALIKE: dict[str, Alike] = {
    "direct": by_key,
    "topic": by_key,
    "fanout": by_nothing,
    "headers": by_key_and_arguments,
}


@pytest.mark.parametrize("type_name", STANDARD_EXCHANGES.values())
@pytest.mark.parametrize("made", range(len(MADE) + 1))
def test_as_a_search_says(type_name: str, made: int) -> None:
    exchange = EXCHANGE_TYPES[type_name]("x")
    for queue, key, arguments in MADE[:made]:
        exchange.bind(queue, key, arguments)
    for queue, key, arguments in itertools.product(*ASKED):
        if type_name == "fanout" and not made and key is not None:
            continue  # its own test, below
        expected = searched(exchange.bindings, ALIKE[type_name], queue, key, arguments)
        assert exchange.bound(queue, key, arguments) == expected, (queue, key, arguments)


def test_a_key_of_a_fanout_exchange_that_has_no_bindings_says_nothing() -> None:
    exchange = EXCHANGE_TYPES["fanout"]("x")
    assert exchange.bound(None, "k") == exchange.bound() == BoundResult()
    assert exchange.bound(A, "k") == BoundResult(queue_not_matched=True)
