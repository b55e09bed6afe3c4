"""Conditions of queries."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.qmf.predicate import MAX_DEPTH, MAX_NODES, PredicateError, bounded_pattern, parse_predicate
from tests.support.profiles import examples

OBJECT = {
    "name": "orders",
    "msgDepth": 12,
    "durable": True,
    "rate": 1.5,
    "altExchange": {"_object_name": "org.apache.qpid.broker:exchange:amq.fanout"},
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (["eq", "name", ["quote", "orders"]], True),
        (["eq", ["quote", "orders"], "name"], True),
        (["eq", "name", "name"], True),
        (["eq", ["unquote", "name"], ["quote", "orders"]], True),
        (["ne", "name", ["quote", "orders"]], False),
        (["gt", "msgDepth", 10], True),
        (["gt", "msgDepth", 12], False),
        (["ge", "msgDepth", 12.0], True),
        (["lt", "rate", 2], True),
        (["le", ["quote", "a"], "name"], True),
        (["eq", "durable", True], True),
        (["eq", "durable", 1], False),
        (["ne", "durable", 1], True),
        (["lt", "name", 3], False),
        (["eq", "absent", 3], False),
        (["ne", "absent", 3], False),
        (["eq", "altExchange", ["quote", "org.apache.qpid.broker:exchange:amq.fanout"]], True),
        (["exists", "rate"], True),
        (["exists", ["quote", "absent"]], False),
        (["exists", ["unquote", "rate"]], True),
        (["lt", "altExchange", "name"], False),  # an object id has no order
        (["re_match", "name", ["quote", "^ord.*s$"]], True),
        (["re_match", "name", ["quote", "^x"]], False),
        (["re_match", "msgDepth", ["quote", "1"]], False),
        (["true"], True),
        (["false"], False),
        (["and", ["true"], ["exists", "name"]], True),
        (["and", ["true"], ["false"]], False),
        (["and"], True),
        (["or"], False),
        (["or", ["false"], ["eq", "msgDepth", 12]], True),
        (["not", ["false"], ["eq", "msgDepth", 13]], True),
        (["not", ["true"]], False),
        (("eq", "msgDepth", 12), True),
    ],
)
def test_a_condition_holds_or_not(condition: object, expected: bool) -> None:
    assert parse_predicate(condition)(OBJECT) is expected


@pytest.mark.parametrize(
    "condition",
    [
        None, "eq", 3, [], [3], ["eq"], ["eq", "a"], ["eq", 1, 2, 3], ["nonsense", 1], ["exists"], ["exists", 3],
        ["and", "name"], ["and", 3], ["true", 1], ["eq", "a", ["quote"]], ["eq", "a", ["other", 1]],
        ["eq", "a", ["unquote", 3]],
        ["exists", ["quote", 3]], ["exists", ["unquote", "a", "b"]], ["re_match", "a", "b"],
        ["re_match", "a", ["quote", "["]], {"and": []},
    ],
)  # fmt: skip
def test_invalid_condition_is_refused(condition: object) -> None:
    with pytest.raises(PredicateError):
        parse_predicate(condition)


def test_conditions_have_limits() -> None:
    deep: Any = ["true"]
    for _ in range(MAX_DEPTH + 1):
        deep = ["not", deep]
    wide = ["or", *([["true"]] * MAX_NODES)]
    for condition in (deep, wide):
        with pytest.raises(PredicateError, match="too large"):
            parse_predicate(condition)


@pytest.mark.parametrize(
    "expression",
    ["(a+)+$", "(?=a)", r"(a)\1", "a*b*c*", "a{2,}b{3,}c{4,}", "x" * 257, "(a|b)*", "a?" * 30 + "b",
     "(a|a)" * 30 + "b", "a*a*b", ".*a*a*b", "^x|.*a*b"],
)  # fmt: skip
def test_an_expression_that_could_take_long_is_refused(expression: str) -> None:
    with pytest.raises(PredicateError):
        bounded_pattern(expression)


@pytest.mark.parametrize(
    "expression", ["^a.*b.*$", r"[)*+]\)\*", "(a|b)c", "a?b?c?", r"\[x\]+", "[^]a]x", ".*a.*", "^(a|b).*"]
)
def test_other_expressions_are_accepted(expression: str) -> None:
    bounded_pattern(expression)


def test_any_text_at_the_beginning_is_not_searched_for() -> None:
    """It would be tried from each place: the time would grow with the third power of the length."""
    assert bounded_pattern(".*.*a*b").pattern == "a*b"
    assert bounded_pattern(".*?a*b").pattern == "a*b"
    assert bounded_pattern(".*+a").pattern == ".*+a"  # this one keeps what it has matched
    assert bounded_pattern(".*").search("")


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        ("a?" * 10 + "b", "a?" * 8 + "b"), ("(a|aa)" * 9 + "b", "(a|aa)" * 6 + "b"), ("a.*?b.?[cd]", "a.*?b"),
        ("a.*[bc]|b.*[cd]|c.*[de]", "a.*[bc]|b.*[cd]"), (r"^\w*\w*\w*", r"^\w*\w*[!?]"),
        ("(?:a|b).*(c|d)e?f", "(?:a|b).*c"),
    ],
)  # fmt: skip
def test_the_bound_is_that_of_the_longest_text(slow: str, fast: str) -> None:
    """An estimate for the 255 characters of a name was too low for longer texts, and for many ways at each place."""
    bounded_pattern(fast)
    with pytest.raises(PredicateError, match="could take too long"):
        bounded_pattern(slow)


def test_the_expressions_of_a_condition_are_bounded_together() -> None:
    one = ["re_match", "name", ["quote", "a.*b"]]
    parse_predicate(["or", *[one] * 14])
    with pytest.raises(PredicateError, match="too long together"):
        parse_predicate(["or", *[one] * 15])


@example("[[")  # Python warns of it
@example("a?" * 30 + "b")
@example("(a|a)" * 30 + "b")
@example("a*a*b")
@given(st.text(alphabet="ab.*+?()[]{}|\\^$1,:=", max_size=20))
@examples(400)
def test_no_expression_takes_long(expression: str) -> None:
    try:
        search = bounded_pattern(expression).search
    except PredicateError:
        return
    began = time.process_time()
    search("ab" * 500 + "!")
    assert time.process_time() - began < 2


_CONDITIONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["name", "eq", "and", "quote", "re_match", "exists"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(_CONDITIONS)
@examples(400)
def test_anything_is_a_condition_or_refused(condition: object) -> None:
    try:
        holds = parse_predicate(condition)
    except PredicateError:
        return
    assert holds(OBJECT) in (True, False)
    assert holds({}) in (True, False)
