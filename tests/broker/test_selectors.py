"""Selectors: what they mean, what their names mean, and which texts are invalid."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import Message
from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.selectors.grammar import MAX_DEPTH, MAX_PARENTHESES, MAX_TOKENS
from qstore.broker.model.selectors.nodes import Pattern
from qstore.broker.model.selectors.selector import MAX_LENGTH, Selector, compile_selector, read_selector
from qstore.broker.protocols.amqp_0_10.publishing import TransferReader
from qstore.formats.amqp_0_10.structs import ReplyTo
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.world import header
from tests.support.profiles import examples

NOW = 1_700_000_000.25
VALUES: dict[str, Any] = {
    "text": "Bye, bye cruel world",
    "other": "hello kitty",
    "Text": "another",
    "approx": 42.0,
    "exact": 39,
    "yes": True,
    "no": False,
    "bytes": b"bin\xc3\xa4ry",
    "huge": (1 << 63) + 2048,
    "decimal": Decimal("1.5"),
    "nothing": None,
    "id": UUID(int=1),
    "map": {"a": 1},
    "a.b-c d": 1,
    "$_x.1": "dollar",
    "größe": 5,
    "JMSXGroupID": "g1",
    "amqp.mine": "hidden",
}


def message(headers: dict[str, Any] | None = None, exchange: str = "amq.topic", **delivery: Any) -> Message:
    """A message as it comes from a client."""
    values = VALUES if headers is None else headers
    return TransferReader().read(
        header({"application_headers": typed_map(values)}, **delivery), b"body", exchange, lambda: NOW
    )


def selector(text: str | bytes) -> Selector | None:
    return read_selector(typed_map({"x-apache-selector": text}), "x-apache-selector")


def selects(text: str, found: Message | None = None, *, is_redelivered: bool = False) -> bool:
    compiled = selector(text)
    return compiled is None or compiled.matches(Candidate(found or message(), is_redelivered=is_redelivered))


# ---- what they mean ----


@pytest.mark.parametrize(
    "text",
    [
        "text is not null",
        "unknown IS NULL",
        "text = 'Bye, bye cruel world'",
        "text <> 'hello kitty'",
        "text<>other",
        "Text = 'another'",
        "other='hello kitty' OR text='x'",
        "other='hello kitty' AnD text='Bye, bye cruel world'",
        "unknown is null OR text is not null and text<>'Bye, bye cruel world'",
        "NOT unknown is not null OR unknown is null",
        "Not text='' or other=unknown",
        "not text=17",
        "13 is not null",
        "approx > exact",
        "approx = 42",
        "exact = 39.0",
        "3 BETWEEN -17 and 98.5",
        "approx BETWEEN exact and 98.5",
        "exact NOT BETWEEN 40 AND 100",
        "(approx BETWEEN 40 and unknown) IS NULL",
        "(14 NOT BETWEEN unknown and 17) IS NULL",
        "'hello' NOT BETWEEN 30 and 40",
        "14 NOT BETWEEN 'aardvark' and 'zebra'",
        "17/4=4",
        "-17/4=-4",
        "17/4.0=4.25",
        "approx*exact+19<approx*(exact+19)",
        "-approx=0-approx",
        "- - exact = + exact",
        "2+3*4-6/2 = 11",
        "8/2/2 = 2",
        "8-2-2 = 4",
        "(1/0) is null and (1.5/0.0) is null",
        "(text + 1) is null and (yes * 2) is null and (-text) is null",
        "yes",
        "yes = TRUE and no = false and yes <> no",
        "not no",
        "(yes and unknown) is null and (no and unknown) = false",
        "(no or unknown) is null and (yes or unknown) = true",
        "(not unknown) is null",
        "(text and yes) is null",
        "text LIKE '%cru_l%'",
        "text NOT LIKE 'cruel'",
        "(exact LIKE '%') is null and (unknown NOT LIKE '%') is null",
        "'a%b' LIKE 'a!%_' ESCAPE '!'",
        "'it''s' LIKE '_t''s'",
        "text IN ('x', 'Bye, bye cruel world')",
        "text NOT IN ('x', 'y')",
        "exact IN (1, exact, 'x')",
        "exact IN (38 + 1)",
        "exact NOT IN (1, 2.5)",
        "(unknown IN ('a')) is null and (unknown NOT IN (1)) is null",
        "(-16 IN ('hello', unknown, true)) is null",
        "(-16 NOT IN ('hello', unknown)) is null",
        "-16 IN ('hello', (1-17), true, unknown)",
        "NOT -16 NOT IN ('hello', 'there', true)",
        "NOT 1 NOT IN ('hello', 'there')",
        "huge > 9223372036854775807",
        "bytes = 'binäry'",
        "decimal = 1.5",
        "nothing is null and id is null and map is null",
        '"a.b-c d" = 1',
        "$_x.1 = 'dollar'",
        "größe = 5",
        "JMSXGroupID = 'g1'",
        "amqp.mine is null and amqp.delivery_count is null",
        "android is null and nothing is null and orange is null and inn is null",
        "\t1\n=\r1 ",
        "1=1AND 2=2",
        "9223372036854775807 + 1 = 9223372036854775808.0",
        "-9223372036854775808 = 0x8000_0000_0000_0000",
        "0x8000_0000_0000_0001 = -9223372036854775807L",
        "077L = 0b111_111 and 077 = 63 and 0xfF = 255l and 0 = 0L",
        "0.4f > 0.3d and 3d = 3 and 1_000.5 = 1000.5 and .5 = 5e-1 and 5. = 5 and 1E3 = 1000 and 2e+2=200",
        "0x800p-3 = 256 and 0x10p0d = 16",
        "0e0 = 0 and 00 = 0",
    ],
)
def test_true(text: str) -> None:
    assert selects(text)


@pytest.mark.parametrize(
    "text",
    [
        "unknown = 1",
        "unknown <> 1",
        "not unknown = 1",
        "unknown = unknown or not unknown = unknown",
        "unknown > 19.0 or unknown <= 19.0",
        "text = 17",
        "text <> 17",
        "'hello' > 19.0",
        "'hello' < 19.0",
        "'a' < 'b'",
        "'a' >= 'a'",
        "'b' BETWEEN 'a' AND 'c'",
        "yes = 1",
        "yes > no",
        "yes IN (1)",
        "text NOT IN (1)",
        "1/0 = 1/0",
        "text = 'bye, bye cruel world'",
        "TEXT = 'Bye, bye cruel world'",
        "-354",
        "'text'",
        "text",
        "unknown",
        "FALSE",
        "exact NOT IN (39, unknown)",
        "17 > 19.0",
        "not (yes or unknown)",
    ],
)
def test_not_true(text: str) -> None:
    assert not selects(text)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_blank_text_is_not_a_selector(text: str) -> None:
    assert selector(text) is None
    assert read_selector(TypedMap(), "x-apache-selector") is None
    assert read_selector(typed_map({"x-apache-selector": None}), "x-apache-selector") is None


def test_bytes_are_text() -> None:
    compiled = selector("größe = 5".encode())
    assert compiled is not None
    assert compiled.text == "größe = 5"


def test_equal_texts_are_compiled_once() -> None:
    assert selector("exact = 39 ") is selector(b"exact = 39 ")


# ---- LIKE ----


def like(pattern: str, text: str, escape: str = "") -> bool:
    """The plain definition, by trying everything."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == escape and rest:
        return text[:1] == rest[0] and like(rest[1:], text[1:], escape)
    if first == "%":
        return any(like(rest, text[at:], escape) for at in range(len(text) + 1))
    return bool(text) and first in ("_", text[0]) and like(rest, text[1:], escape)


@given(
    st.text("ab\n%_!", max_size=8).filter(lambda text: not text.replace("!!", "").endswith("!")),
    st.text("ab\n%_!", max_size=10),
    st.booleans(),
)
def test_like(pattern: str, text: str, has_escape: bool) -> None:
    escape = "!" if has_escape else ""
    assert Pattern(pattern, escape).matches(text) is like(pattern, text, escape)


@given(st.text("ab%_", max_size=12), st.text("ab", max_size=12))
def test_like_of_longer_ones(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) is like(pattern, text)


@given(st.text("a_", min_size=50, max_size=90), st.text("ab", max_size=20), st.data())
def test_like_with_a_long_part(part: str, before: str, data: st.DataObject) -> None:
    """Parts of up to 64 characters are searched in another way than longer ones."""
    text = before + "".join(data.draw(st.sampled_from("ab")) if each == "_" else each for each in part)
    spoilt = text.replace("a", "b", data.draw(st.integers(0, 2)))
    for each in (text, text[1:], spoilt, "b" + spoilt + "b"):
        places = range(len(each) - len(part) + 1)
        expected = any(all(p in ("_", c) for p, c in zip(part, each[at:], strict=False)) for at in places)
        assert Pattern(f"%{part}%").matches(each) is expected


@pytest.mark.parametrize(
    "part", ["a" * 50, "_b", "a_" * 32 + "b", "a%" * 500, "a_" * 500, "_%" * 500, "%a_" * 500, "a" * 4000 + "_"]
)
def test_no_pattern_takes_long(part: str) -> None:
    text = "a" * 60_000
    begin = time.process_time()
    assert not Pattern(f"%{part}b%").matches(text)
    assert not Pattern(f"%{part}%b").matches(text)
    assert time.process_time() - begin < 2.0


# ---- how much work they are ----


def test_work_counts_the_bytes_read() -> None:
    found = message({"h": "a" * 60_000, "g": "b"})
    compiled = selector("h = 'x' AND g = 'b'")
    assert compiled is not None
    candidate = Candidate(found, is_redelivered=False)
    compiled.matches(candidate)
    decoded = candidate.work
    assert decoded > 60_000
    compiled.matches(candidate)
    assert candidate.work == decoded + len(compiled.text)  # it is decoded only once
    begin = candidate.work
    for pattern, least, most in (
        ("x%", 0, 0),
        ("%x%", 1000, 2000),
        ("%_x%", 60_000, 60_000),
        ("%_x%_x%", 120_000, 120_000),
    ):
        searching = selector(f"h LIKE '{pattern}'")
        assert searching is not None
        searching.matches(candidate)
        assert least <= candidate.work - begin - len(searching.text) <= most
        begin = candidate.work


@pytest.mark.parametrize("name", ["h", "JMSCorrelationID"])
def test_a_name_that_is_used_often_is_decoded_once(name: str) -> None:
    large = "ä".encode() * 25_000
    values = {"application_headers": typed_map({"h": large[:10_000]}), "correlation_id": large[:40_000]}
    found = TransferReader().read(header(values, routing_key="q"), b"", "", lambda: NOW)
    text = " AND ".join([f"{name}={name}"] * min(MAX_LENGTH // (2 * len(name) + 6), MAX_TOKENS // 4))
    begin = time.process_time()
    for _ in range(20):
        assert selects(text, found)
    assert time.process_time() - begin < 1.0


# ---- names ----


@pytest.mark.parametrize(
    ("text", "delivery"),
    [
        ("JMSPriority = 4 and amqp.priority = 4", {}),
        ("JMSPriority BETWEEN 7 AND 9", {"priority": 8}),
        ("JMSDeliveryMode = 'PERSISTENT' and amqp.durable", {"delivery_mode": 2}),
        ("amqp.delivery_mode = 'NON_PERSISTENT' and amqp.durable = FALSE", {}),
        ("JMSExpiration = 0 and JMSTimestamp = 0", {}),
        ("JMSExpiration = 1700000002250", {"ttl": 2000}),
        ("JMSTimestamp = 1600000000000 and amqp.creation_time > 0", {"timestamp": 1_600_000_000}),
        ("JMSType = 'a.b' and amqp.subject = 'a.b' and JMSDestination = 'amq.topic'", {"routing_key": "a.b"}),
        ("JMSRedelivered = FALSE and not amqp.redelivered", {}),
        ("JMSMessageID is null and JMSCorrelationID is null and JMSReplyTo is null and amqp.jms_type is null", {}),
    ],
)
def test_delivery_properties(text: str, delivery: dict[str, Any]) -> None:
    assert selects(text, message({}, **delivery))


def test_message_properties() -> None:
    properties = {
        "message_id": UUID(int=5),
        "correlation_id": b"c\xc3\xa4",
        "reply_to": ReplyTo("amq.direct", "me"),
        "application_headers": typed_map({"qpid.subject": "news", "jms-type": 7}),
    }
    found = TransferReader().read(header(properties, routing_key="q"), b"", "", lambda: NOW)
    assert selects("JMSMessageID = '00000000-0000-0000-0000-000000000005'", found)
    assert selects("JMSCorrelationID = 'cä' and amqp.reply_to = 'amq.direct/me'", found)
    assert selects("amqp.to = 'q' and JMSType = 'news' and amqp.jms_type = '7'", found)


@pytest.mark.parametrize(("reply_to", "expected"), [(("", "me"), "me"), (("x", ""), "x"), ((None, None), None)])
def test_reply_to_with_one_part(reply_to: tuple[str | None, str | None], expected: str | None) -> None:
    found = TransferReader().read(header({"reply_to": ReplyTo(*reply_to)}), b"", "", lambda: NOW)
    assert selects("JMSReplyTo is null" if expected is None else f"JMSReplyTo = '{expected}'", found)


def test_redelivered() -> None:
    assert selects("JMSRedelivered", is_redelivered=True)
    assert not selects("amqp.redelivered = false", is_redelivered=True)


def test_the_last_of_two_headers_of_one_name_counts() -> None:
    twice = TypedMap(typed_map({"a": 1}).entries + typed_map({"a": 2}).entries)
    found = TransferReader().read(header({"application_headers": twice}), b"", "", lambda: NOW)
    assert selects("a = 2", found)


def test_headers_that_cannot_be_decoded_are_null() -> None:
    broken = bytes.fromhex("0000000c 0403 0001 00000008 00000001 09".replace(" ", "") + "ff" * 3)
    found = TransferReader().read(header(routing_key="a") + broken[:16], b"", "x", lambda: NOW)
    assert selects("a is null and JMSMessageID is null and JMSType = 'a'", found)


# ---- what is none ----


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("hello world", "at character 7: 'world' is not expected here"),
        ("hello ^ world", "at character 7: '^' is not expected here"),
        ("a is null not", "at character 11: 'not'"),
        ("a is null or", "at character 13: unexpected end"),
        ("a is null or and", "at character 14: 'and'"),
        ("a is 5", "at character 6: '5'"),
        ("(b='x'", "at character 7: unexpected end"),
        ("b='x')", "at character 6: ')'"),
        ("in='x'", "at character 1: 'in'"),
        ("a = null", "at character 5: 'null'"),
        ("a like 234", "at character 8: '234'"),
        ("a like b", "at character 8: 'b'"),
        ("a not 234", "at character 7: '234'"),
        ("a like 'x' escape 'long'", "at character 19: ESCAPE must be followed by one character"),
        ("a like 'x' escape '%'", "at character 19: ESCAPE"),
        ("a like 'x' escape ''", "at character 19: ESCAPE"),
        ("a like 'x' escape", "at character 18: unexpected end"),
        ("a BETWEEN AND 'true'", "at character 11: 'AND'"),
        ("a BETWEEN 34 OR 3", "at character 14: 'OR'"),
        ("a IN ()", "at character 7: ')'"),
        ("a IN (1,)", "at character 9: ')'"),
        ("a IN ('x' 'y')", "at character 11"),
        ("a IN 'x'", "at character 6"),
        ("'open", "at character 1: the quotes are not closed"),
        ('a = "open', "at character 5: the quotes are not closed"),
        ("a = 'it''s", "at character 5: the quotes are not closed"),
        ("9223372036854775809 > 0", "at character 1: the number exceeds 64 bits with sign"),
        ("a = " + "9" * 5000, "at character 5: the number"),
        ("a = 0x1" + "0" * 16, "at character 5: the number exceeds 64 bits"),
        ("a = 1e400", "at character 5: the number is too large"),
        ("a = 0x1p5000", "at character 5: the number is too large"),
        ("019", "at character 3: '9'"),
        ("0b2", "at character 2"),
        ("1..2", "at character 3"),
        ("a\0b", "at character 2"),
        ("a = 1;", "at character 6"),
        ("a == 1", "at character 4: '='"),
        ("a != 1", "at character 3: '!'"),
        ("a = b = c", "at character 7: '='"),
        ("(" * 900, "at character 901: unexpected end"),
        ("a = 1 AND (" + "(" * 4000, f"more than {MAX_PARENTHESES:,} parentheses are nested"),
        ("not " * (MAX_DEPTH + 1) + "a", f"more than {MAX_DEPTH} operators are nested"),
        ("-" * 3000 + "a", "operators are nested"),
        ("(1+" * 900 + "a" + ")" * 900, "operators are nested"),
        ("a in (" + ",".join(["1"] * 4000) + ")", f"at character {MAX_TOKENS + 4}: more than {MAX_TOKENS:,} names"),
        ("a" * (MAX_LENGTH + 1), f"has {MAX_LENGTH + 1} characters, more than {MAX_LENGTH}"),
        (b"a = '\xff'", "is not UTF-8 at byte 6"),
        (5, "is 5, not a string"),
    ],
)
def test_a_syntax_error_names_its_position(text: Any, where: str) -> None:
    with pytest.raises(InvalidArgumentError) as failed:
        selector(text)
    assert str(failed.value).startswith("x-apache-selector ")
    assert where in str(failed.value)
    assert len(str(failed.value)) < 200


@given(st.text(max_size=60) | st.text("a1.'\" ()=<>+-*/,_%", max_size=60))
def test_any_text_is_one_or_not(text: str) -> None:
    try:
        found = selector(text)
    except InvalidArgumentError:
        return
    assert found is None or found.matches(Candidate(message(), is_redelivered=False)) in (True, False)


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["a"] * 1600),
        " AND ".join(["yes"] * 1000),
        "+".join(["exact"] * 1300),
        "*".join(["huge"] * 1600),
        "(" * MAX_PARENTHESES + "yes" + ")" * MAX_PARENTHESES,
        "(yes) and " * 800 + "(yes)",
        "a in (" + ",".join(["1"] * (MAX_TOKENS // 2 - 2)) + ")",
        "not " * (MAX_DEPTH - 1) + "a",
        "'" + "x" * 8000 + "' = a",
        "+" * (MAX_TOKENS - 1) + "exact",
    ],
)
def test_long_ones_are_as_good_as_others(text: str) -> None:
    begin = time.process_time()
    compiled = selector(text)
    assert compiled is not None
    compiled.matches(Candidate(message(), is_redelivered=False))
    assert time.process_time() - begin < 2.0


def test_the_grammar_is_loaded_before_the_first_one() -> None:
    program = (
        "import sys, qstore.broker.process.runner\n"
        "before = set(sys.modules)\n"
        "from qstore.broker.model.selectors.selector import compile_selector\n"
        "compile_selector(\"color = 'red'\")\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "[]\n"


# ---- random selectors, against a second evaluator ----
# A condition is made as a text and as a function beside it. Truth is a number here: 1 for true, 0 for false, ½ for
# unknown, so that AND is the lowest, OR the highest, and NOT what is missing to 1.


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
