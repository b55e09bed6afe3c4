"""Regular expressions set by operators: slow ones are refused, and accepted ones are fast."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.patterns import MAX_PATTERN, compile_pattern
from qstore.formats.pattern_steps import MAX_NAME, MAX_STEPS, steps_of

USUAL = (
    "", ".*", "^amq\\.", "^(?!amq\\.).*", "^orders$", "^(orders|invoices)\\.(eu|us)\\..*$", ".*log.*",
    "^.*\\.dead\\..*$",
    "^[a-z]+-\\d{1,4}$", "^celery(\\.pidbox)?$", "^a|b|c$", "(?i)^Orders", "^[^]]+$", "^\\(.*\\)$", "^x{3}",
    "^amq\\.gen.*|^q",
    "^(?P<name>a|b)\\.x", "^{hm}",
)  # fmt: skip


@pytest.mark.parametrize("text", USUAL)
def test_usual_expressions_are_taken(text: str) -> None:
    assert compile_pattern("pattern", text).search("") is not None or text


@pytest.mark.parametrize(
    "text",
    ["(a+)+$", "^(a|a)*$", "(.*)*x", "^(a?){40}b", "a.*b.*c.*d", "^(\\w+\\s?)*$", "(x+x+)+y", "^" + "a?" * 18 + "b",
     "^((a|b|c|d)(a|b|c|d)){2}", "(" * 21 + "a" + ")" * 21, "^(a+)(?#hm)+$", "(a)(?(1)b|c)+"],
)  # fmt: skip
def test_slow_ones_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="too long to match"):
        compile_pattern("pattern", text)


@pytest.mark.parametrize("text", ["(", "[a", "*", "a{2,1}", "\\"])
def test_invalid_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        compile_pattern("pattern", text)


def test_long_ones_are_refused() -> None:
    compile_pattern("pattern", "^" + "a" * (MAX_PATTERN - 1))
    with pytest.raises(InvalidArgumentError, match="at most"):
        compile_pattern("pattern", "^" + "a" * MAX_PATTERN)


def test_empty_one_matches_everything_or_nothing() -> None:
    assert compile_pattern("pattern", "").search("x")
    never = compile_pattern("pattern", "", is_empty_nothing=True)
    assert not never.search("x")
    assert not never.search("")


PARTS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\w", "^", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        inner.map(lambda part: f"(?:{part})*"),
        inner.map(lambda part: f"({part})+"),
        inner.map(lambda part: f"({part})?"),
        inner.map(lambda part: f"({part}){{1,30}}"),
        st.sampled_from([".*", "a+", "b?", "a{2,9}", "\\w*"]),
    ),
    max_leaves=12,
)


@given(PARTS, st.sampled_from(["a", "ab", "aab"]))
def test_accepted_expressions_match_quickly(text: str, part: str) -> None:
    if steps_of(text) > MAX_STEPS:
        return
    pattern = compile_pattern("pattern", text)
    name = (part * MAX_NAME)[: MAX_NAME - 1] + "!"
    began = time.process_time()
    pattern.search(name)
    assert time.process_time() - began < 0.5  # one of those refused takes minutes, or years
