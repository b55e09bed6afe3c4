"""Random selectors, against an evaluator that knows nothing of the one in the broker.

A condition is made as a text and as a function beside it. Truth is a number here: 1 for true, 0 for false, ½ for
unknown, so that AND is the lowest, OR the highest, and NOT what is missing to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.selectors.selector import compile_selector
from tests.broker.test_selectors import message
from tests.support.profiles import examples

Headers: TypeAlias = Mapping[str, Any]
HALF: Final = Fraction(1, 2)
NAMES: Final = ("a", "b", "c", "d")


class Operand(NamedTuple):
    """A value: how it is written, and what it is."""

    text: str
    value: Callable[[Headers], Any]


class Condition(NamedTuple):
    """A condition: how it is written, and how true it is."""

    text: str
    truth: Callable[[Headers], Any]


def kind(value: Any) -> str:
    return {bool: "flag", int: "number", Fraction: "number", str: "text"}[type(value)]


def compared(symbol: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return HALF
    if kind(left) != kind(right):
        return 0
    if symbol == "=":
        return int(left == right)
    if symbol == "<>":
        return int(left != right)
    if kind(left) != "number":
        return 0
    return int({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[symbol])


def listed(value: Any, items: list[Any], *, negated: bool) -> Any:
    if value is None:
        return HALF
    known = [item for item in items if item is not None]
    if any(kind(item) == kind(value) and item == value for item in known):
        return int(not negated)
    if len(known) < len(items):
        return HALF
    return int(negated and all(kind(item) == kind(value) for item in known))


def between(value: Any, low: Any, high: Any) -> Any:
    if value is None or low is None or high is None:
        return HALF
    return min(compared(">=", value, low), compared("<=", value, high))


def calculated(symbol: str, left: Any, right: Any) -> Any:
    if left is None or right is None or kind(left) != "number" or kind(right) != "number":
        return None
    if symbol == "+":
        return left + right
    return left - right if symbol == "-" else left * right


words = st.sampled_from(["x", "y", "it's", ""])
literals = st.one_of(
    st.integers(-9, 9).map(lambda number: Operand(str(number), lambda _: number)),
    st.integers(-9, 9).map(lambda number: Operand(f"{number / 4!r}", lambda _: Fraction(number, 4))),
    words.map(lambda word: Operand("'" + word.replace("'", "''") + "'", lambda _: word)),
    st.booleans().map(lambda flag: Operand(str(flag).upper(), lambda _: flag)),
)
names = st.sampled_from(NAMES).map(lambda name: Operand(name, lambda headers: headers.get(name)))


def calculations(operands: st.SearchStrategy[Operand]) -> st.SearchStrategy[Operand]:
    def joined(symbol: str, left: Operand, right: Operand) -> Operand:
        return Operand(
            f"({left.text}) {symbol} ({right.text})",
            lambda headers: calculated(symbol, left.value(headers), right.value(headers)),
        )

    def negative(of: Operand) -> Operand:
        return Operand(f"- ({of.text})", lambda headers: calculated("-", 0, of.value(headers)))

    return st.builds(joined, st.sampled_from("+-*"), operands, operands) | st.builds(negative, operands)


operands = st.recursive(literals | names, calculations, max_leaves=4)


def flagged(operand: Operand) -> Condition:
    def truth(headers: Headers) -> Any:
        value = operand.value(headers)
        return int(value) if isinstance(value, bool) else HALF

    return Condition(operand.text, truth)


def comparison(left: Operand, symbol: str, right: Operand) -> Condition:
    return Condition(
        f"{left.text} {symbol} {right.text}",
        lambda headers: compared(symbol, left.value(headers), right.value(headers)),
    )


def null_test(operand: Operand, negated: bool) -> Condition:
    words = "IS NOT NULL" if negated else "is null"
    return Condition(f"{operand.text} {words}", lambda headers: int((operand.value(headers) is None) is not negated))


def membership(operand: Operand, items: list[Operand], negated: bool) -> Condition:
    text = f"{operand.text} {'not ' if negated else ''}in ({', '.join(item.text for item in items)})"
    return Condition(
        text,
        lambda headers: listed(operand.value(headers), [item.value(headers) for item in items], negated=negated),
    )


def ranged(operand: Operand, low: Operand, high: Operand, negated: bool) -> Condition:
    def truth(headers: Headers) -> Any:
        found = between(operand.value(headers), low.value(headers), high.value(headers))
        return 1 - found if negated else found

    return Condition(f"{operand.text} {'NOT ' if negated else ''}BETWEEN {low.text} AND {high.text}", truth)


def nested(conditions: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    def joined(word: str, parts: list[Condition]) -> Condition:
        pick: Callable[[list[Any]], Any] = min if word == "and" else max
        return Condition(
            f" {word} ".join(f"({part.text})" for part in parts),
            lambda headers: pick([part.truth(headers) for part in parts]),
        )

    def negated(part: Condition) -> Condition:
        return Condition(f"NOT ({part.text})", lambda headers: 1 - part.truth(headers))

    def asked(part: Condition) -> Condition:
        return Condition(f"(({part.text}) AND TRUE) is null", lambda headers: int(part.truth(headers) == HALF))

    parts = st.lists(conditions, min_size=2, max_size=3)
    return (
        st.builds(joined, st.sampled_from(["and", "or"]), parts)
        | st.builds(negated, conditions)
        | st.builds(asked, conditions)
    )


simple = st.one_of(
    st.builds(comparison, operands, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operands),
    st.builds(null_test, operands, st.booleans()),
    st.builds(membership, operands, st.lists(operands, min_size=1, max_size=3), st.booleans()),
    st.builds(ranged, operands, operands, operands, st.booleans()),
    st.booleans().map(lambda flag: Condition(str(flag), lambda _: int(flag))),
    names.map(flagged),
)
conditions = st.recursive(simple, nested, max_leaves=6)
headers = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(st.integers(-9, 9), words, st.booleans(), st.integers(-9, 9).map(float))
)


@examples(300)
@given(conditions, st.lists(headers, min_size=1, max_size=4))
def test_both_evaluators_agree(condition: Condition, found: list[dict[str, Any]]) -> None:
    compiled = compile_selector(condition.text)
    for values in found:
        exact = {name: Fraction(value) if isinstance(value, float) else value for name, value in values.items()}
        selected = compiled.matches(Candidate(message(values), is_redelivered=False))
        assert selected is (condition.truth(exact) == 1), condition.text


@given(simple, simple, simple, headers)
def test_precedence(first: Condition, second: Condition, third: Condition, values: dict[str, Any]) -> None:
    """NOT binds closer than AND, and that closer than OR."""
    exact = {name: Fraction(value) if isinstance(value, float) else value for name, value in values.items()}
    truths = [each.truth(exact) for each in (first, second, third)]
    candidate = Candidate(message(values), is_redelivered=False)
    either = compile_selector(f"{first.text} OR {second.text} AND NOT {third.text}")
    assert either.matches(candidate) is (max(truths[0], min(truths[1], 1 - truths[2])) == 1)
