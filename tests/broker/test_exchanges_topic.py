"""Topic patterns: the index against a matcher that tries everything, and cases by hand."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.broker.model.exchanges.topic_index import TopicIndex
from tests.broker.exchange_parts import fake_queues, routed

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
def test_what_was_removed_leaves_nothing(patterns: list[str], data: st.DataObject) -> None:
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
