"""Topic patterns: the index against a matcher that tries everything, and cases by hand."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import RoutingLimitError
from qstore.broker.model.exchanges import matching
from qstore.broker.model.exchanges.exchange import ExchangeBinding, refresh
from qstore.broker.model.exchanges.matching import MAX_STEPS, Steps, TopicIndex, _Below, _Node
from qstore.broker.model.exchanges.route import route_by_all
from qstore.broker.model.exchanges.topic import TopicExchange
from tests.broker.exchange_parts import FakeMessage, fake_queues, routed
from tests.support.compiled import replaces

# A few words, so that patterns meet; the empty word is one of them.
_WORDS = st.sampled_from(["", "a", "b", "ab"])
_KEYS = st.lists(_WORDS, min_size=1, max_size=7).map(".".join)
_PATTERNS = st.lists(st.one_of(_WORDS, st.sampled_from("*#")), min_size=1, max_size=7).map(".".join)


def matches(pattern: str, key: str) -> bool:
    """By the words of the specification: `*` is one word, `#` any number of them."""

    @cache
    def rest(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
        if not pattern:
            return not key
        if pattern[0] == "#":
            return rest(pattern[1:], key) or (bool(key) and rest(pattern, key[1:]))
        return bool(key) and pattern[0] in ("*", key[0]) and rest(pattern[1:], key[1:])

    return rest(tuple(pattern.split(".")), tuple(key.split(".")))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], ["a", ".", "a."]),
        ("a", ["a"], ["", "A", "aa", "a.", ".a", "a.a"]),
        (".", ["."], ["", "..", "a."]),
        ("a.b", ["a.b"], ["a", "a.b.", "a..b", "a.b.c"]),
        ("*", ["", "a", "*", "#"], [".", "a.b"]),
        ("a.*", ["a.b", "a.", "a.*"], ["a", "a.b.c", "b.a"]),
        ("*.*", [".", "a.b"], ["a", "a.b.c"]),
        ("#", ["", ".", "a", "a.b.c", "#"], []),
        ("a.#", ["a", "a.", "a.b", "a.b.c"], ["", "b.a", "aa"]),
        ("#.a", ["a", ".a", "b.c.a"], ["", "a.b", "a."]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.zz.b", "a.b.b", "a..b"], ["a.b.", "q.x.b", "a", "b"]),
        ("*.#", ["", "a", "a.b", "."], []),
        ("#.*", ["", "a", "a.b", "."], []),
        ("#.*.#", ["", "a", "a.b"], []),
        ("*.#.*", [".", "a.b", "a.b.c"], ["", "a"]),
        ("#.#", ["", "a", "a.b"], []),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.b", "a.a"], ["", "b", "aa"]),
        ("#.a.#.b.#.c", ["a.b.c", "x.a.x.b.x.c", "a.a.b.b.c.c"], ["a.c.b", "a.b.c.", "b.c"]),
        ("a*", ["a*"], ["a", "ab"]),
        ("usa.#", ["usa.news", "usa.weather"], ["europe.news"]),
        ("#.news", ["usa.news", "europe.news"], ["usa.weather"]),
    ],
)
def test_by_hand(pattern: str, matching: list[str], others: list[str]) -> None:
    index = TopicIndex()
    index.add(pattern)
    assert [key for key in matching + others if index.match(key)] == matching
    assert [key for key in matching + others if matches(pattern, key)] == matching


@given(st.lists(_PATTERNS, unique=True, max_size=12), _KEYS)
def test_the_index_is_the_matcher(patterns: list[str], key: str) -> None:
    index = TopicIndex()
    for pattern in patterns:
        index.add(pattern)
    assert sorted(index.match(key)) == sorted(pattern for pattern in patterns if matches(pattern, key))


@given(st.lists(_PATTERNS, unique=True, max_size=12), st.data())
def test_removed_patterns_leave_the_index_empty(patterns: list[str], data: st.DataObject) -> None:
    index = TopicIndex()
    for pattern in patterns:
        index.add(pattern)
    removed = data.draw(st.permutations(patterns))
    key = data.draw(_KEYS)
    for count, pattern in enumerate(removed, 1):
        index.remove(pattern)
        assert sorted(index.match(key)) == sorted(each for each in removed[count:] if matches(each, key))
    assert index._root.is_empty


@pytest.mark.parametrize(
    "pattern",
    [
        "#." * 127 + "z",
        ".".join(["#", "a"] * 63),
        ".".join(["#", "*"] * 63),
        ".".join(["*", "#", "a"] * 42),
    ],
)
def test_hostile_patterns_have_few_places(pattern: str) -> None:
    """The places that a key can reach are no more than the words of the pattern, so nothing can explode."""
    index = TopicIndex()
    index.add(pattern)
    assert index.match(".".join(["a"] * 127 + ["b"])) == ([pattern] if pattern.endswith("*") else [])
    places = [index._root]
    for place in places:
        places += [each for each in (place.star, place.rest, *place.words.values()) if each is not None]
    assert len(places) <= len(pattern.split(".")) + 1


HOSTILE_KEY = ".".join(["a"] * 127)


PATTERN = ".".join(["#", "a"] * 10 + ["*"] * 10)
"""That takes some hundred steps with such a key."""


def hostile(count: int, seed: int = 1) -> list[str]:
    """Patterns with which a key of the same word reaches very many places."""
    chance = random.Random(seed)
    return list({".".join(chance.choice("#*a") for _ in range(40)): None for _ in range(count)})


class TestLimit:
    @replaces
    @pytest.mark.parametrize("key", [HOSTILE_KEY, "a", ".".join("b" * 80)])
    def test_hostile_patterns_take_no_more_steps_than_allowed(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        index, reached = TopicIndex("t"), 0
        for pattern in hostile(2_000):
            index.add(pattern)

        class Counted(_Below):
            def enter(self, nodes: list[_Node], found: list[str], most: int) -> int:
                nonlocal reached
                reached += len(nodes)
                return super().enter(nodes, found, most)

        monkeypatch.setattr(matching, "_Below", Counted)
        steps = Steps()
        with contextlib.suppress(RoutingLimitError):
            index.match(key, steps)
        assert reached <= 3 * MAX_STEPS
        assert (steps.left < 0) is (key == HOSTILE_KEY)

    @pytest.mark.parametrize("pattern", ["#.{}.#", "{}.#", "#.{}", "a.*.{}", "*.*.{}.#", "#.{}.#.x.#"])
    def test_thousands_of_usual_patterns_take_few(self, pattern: str) -> None:
        index = TopicIndex()
        for number in range(20_000):
            index.add(pattern.format(f"id{number}"))
        for key in ("id7", "a.b.id7", "id7.a.b", "id1.id2.id3.id4.id5.x"):
            steps = Steps()
            index.match(key, steps)
            assert MAX_STEPS - steps.left <= 100

    def test_the_log_names_the_exchange_once(self, caplog: pytest.LogCaptureFixture) -> None:
        exchange = TopicExchange("hot")
        (a,) = fake_queues("a")
        for pattern in hostile(2_000):
            exchange.bind(a, pattern)
        for _ in range(3):
            with pytest.raises(RoutingLimitError, match=r'exchange "hot": matching routing key "a.a'):
                exchange.find(HOSTILE_KEY)
        assert routed(exchange, "b") == ""
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert 'exchange "hot"' in caplog.text

    def test_all_exchanges_of_a_chain_share_the_steps(self) -> None:
        chain = [TopicExchange(f"t{number}") for number in range(40)]
        (a,) = fake_queues("a")
        for source, destination in itertools.pairwise(chain):
            source.bind_exchange(ExchangeBinding(source, destination, "#"))
        for exchange in chain:
            exchange.bind(a, PATTERN)
        refresh(chain)
        chain[-1].find(HOSTILE_KEY)
        with pytest.raises(RoutingLimitError):
            chain[0].find(HOSTILE_KEY)
        assert routed(chain[0], "a.b") == routed(chain[-1], "a.b")

    def test_a_message_may_come_to_thousands_of_exchanges(self) -> None:
        source, others = TopicExchange("t"), [TopicExchange(f"t{number}") for number in range(5_000)]
        (a,) = fake_queues("a")
        for other in others:
            source.bind_exchange(ExchangeBinding(source, other, "room.*"))
            other.bind(a, "#.user.#")
            other.bind(a, "room.#")
        refresh([source, *others])
        assert routed(source, "room.5") == "a"

    def test_all_keys_of_a_message_share_the_steps(self) -> None:
        exchange = TopicExchange("t")
        (a,) = fake_queues("a")
        exchange.bind(a, PATTERN)
        keys = [f"{HOSTILE_KEY[:200]}.b{number}" for number in range(1_000)]

        class Keyed(FakeMessage):
            def under_further_keys(self) -> list[FakeMessage]:
                return [FakeMessage(key) for key in keys]

        exchange.find(keys[0])
        message: Any = Keyed("a")
        with pytest.raises(RoutingLimitError, match="CC and BCC"):
            route_by_all(message, exchange)
        assert exchange.steps < 3 * MAX_STEPS


class TestExchange:
    def test_a_queue_comes_once(self) -> None:
        exchange = TopicExchange("t")
        a, b = fake_queues("ab")
        for pattern in ("#", "#.#", "a.#", "a.*", "*.b", "a.b"):
            exchange.bind(a, pattern)
        exchange.bind(b, "*.b")
        assert routed(exchange, "a.b") == "ab"

    def test_patterns_that_mean_the_same_are_two_bindings(self) -> None:
        exchange = TopicExchange("t")
        (a,) = fake_queues("a")
        assert exchange.bind(a, "#") is not None
        assert exchange.bind(a, "#.#") is not None
        exchange.unbind(a, "#")
        assert routed(exchange, "x.y") == "a"
        exchange.unbind(a, "#.#")
        assert routed(exchange, "x.y") == ""

    def test_a_pattern_stays_for_the_others(self) -> None:
        exchange = TopicExchange("t")
        a, b = fake_queues("ab")
        exchange.bind(a, "a.*")
        exchange.bind(b, "a.*")
        exchange.unbind(a, "a.*")
        assert routed(exchange, "a.b") == "b"

    def test_names_that_are_no_text(self) -> None:
        exchange = TopicExchange("t")
        (a,) = fake_queues("a")
        key = b"\xff.x".decode("utf-8", "surrogateescape")
        exchange.bind(a, key)
        assert routed(exchange, key) == "a"
