"""Queries of XML exchanges: what they mean, what is refused, and what an evaluation may cost."""

from __future__ import annotations

import sys
from contextlib import suppress
from cProfile import Profile
from typing import Any

import pytest

from qstore.broker.model.xquery import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    MAX_QUERY,
    Budget,
    Document,
    Query,
    QueryError,
    TooExpensiveError,
    variables,
)
from qstore.formats.values import typed_map

WEATHER = """<weather>
    <station>Raleigh-Durham International Airport (KRDU)</station>
    <wind_speed_mph>16</wind_speed_mph>
    <temperature_f>70</temperature_f>
    <dewpoint>35</dewpoint>
</weather>"""
SAILING = """let $w := ./weather
   return $w/station = 'Raleigh-Durham International Airport (KRDU)'
      and $w/temperature_f > 50
      and $w/temperature_f - $w/dewpoint > 5
      and $w/wind_speed_mph > 7
      and $w/wind_speed_mph < 20"""
BUDGET = 40_000


def matches(query: str, content: bytes | str = b"", **headers: Any) -> bool:
    return Query(query).matches(Document(content), variables(typed_map(headers)), Budget(BUDGET))


def test_the_examples_of_the_guides_and_of_qpidds_tests() -> None:
    """MRG 2 Messaging User Guide, 2.1.6; qpidd, XmlClientSessionTest.cpp."""
    assert matches(SAILING, WEATHER)
    assert not matches(SAILING, WEATHER.replace("70", "40"))
    either = "declare variable $control external;\n./message/id mod 2 = 1 or $control = 'end'"
    for number, control, wanted in ((1, "", True), (2, "", False), (2, "end", True)):
        assert matches(either, f"<message><id>{number}</id></message>", control=control) is wanted
    both = "declare variable $color external;(./message/id mod 2 = 1) and ($color = 'blue')"
    assert matches(both, "<message><id>1</id></message>", color="blue")
    assert not matches(both, "<message><id>1</id></message>", color="red")
    untyped = (
        "declare variable $s external;declare variable $i external;declare variable $d external;"
        "$s = 'string' and $i = 1 and $d < 1"
    )
    typed = untyped.replace("$s external", "$s as xs:string external").replace("$i ext", "$i as xs:integer ext")
    for query in (untyped, typed):
        assert matches(query, "Hi, Mom!", s="string", i=1, d=0.5)
        assert not matches(query, "Hi, Mom!", s="string", i=2, d=0.5)


@pytest.mark.parametrize(
    ("query", "content", "wanted"),
    [
        ("true()", b"", True),
        ("false()", b"", False),
        ("./weather", WEATHER, True),
        ("./climate", WEATHER, False),
        ("for $a in //id let $b := $a + 1 where $b > 3 return $b", "<m><id>1</id><id>3</id></m>", True),
        ("for $a in //id let $b := $a + 1 where $b > 4 return $b", "<m><id>1</id><id>3</id></m>", False),
        ("for $a in (for $x in //id where $x > 1 return $x), $c in //id where $a=$c return 1", "<m><id>3</id></m>", 1),
        ("let $a := //id for $b in $a where $b = 2 return 1", "<m><id>1</id><id>2</id></m>", True),
        ("for $a in //id where some $b in //id satisfies $a < $b return true()", "<m><id>1</id></m>", False),
        ("some $x in //id satisfies $x = 3", "<m><id>1</id><id>3</id></m>", True),
        ("if (//id) then //id/@k = 'a' else false()", "<m><id k='a'/></m>", True),
        ("declare namespace w='urn:w'; /w:a/w:b = 1", "<a xmlns='urn:w'><b>1</b></a>", True),
        ("declare default element namespace 'urn:w'; /a/b = 1", "<a xmlns='urn:w'><b>1</b></a>", True),
        ("declare variable $n := count(//b); $n = 2", "<a><b/><b/></a>", True),
        ("xquery version '1.0'; (: a (: nested :) comment :) '(: text' = '(: text'", b"", True),
        ("'where' = 'return'", b"", False),
        ("//where = 1", "<return><where>1</where></return>", True),
        ("/a = '\u00e9'", "<?xml version='1.0' encoding='ISO-8859-1'?><a>\u00e9</a>".encode("latin-1"), True),
    ],
)  # fmt: skip
def test_what_matches(query: str, content: bytes | str, wanted: int) -> None:
    assert matches(query, content) == wanted


def test_variables_are_the_headers_as_qpidd_gives_them() -> None:
    found = variables(typed_map({"s": "x", "i": 5, "b": True, "f": 0.5, "raw": b"y", "list": [1], "no": None}))
    assert found == {"s": "x", "i": 5, "b": 1, "f": 0.5, "raw": "y"}
    query = "declare variable $qpid.subject external; $qpid.subject = 'a'"
    assert (matches(query, **{"qpid.subject": "a"}), matches(query)) == (True, False)
    number = "declare variable $i as xs:integer external; $i > 1"
    assert [matches(number, i=value) for value in (2, "2", 2.5)] == [True, False, False]
    assert not matches("declare variable $i external; $i > 1", i="two")


@pytest.mark.parametrize("content", [b"", b"<>colour>blue</colour>", b"<a>", b"\xff\xfe", b"Hi", b"\0" * 100])
def test_content_that_is_not_xml_matches_no_query_that_looks_at_it(content: bytes) -> None:
    assert not matches("true() or ./colour", content)
    assert not matches("not(./colour)", content)
    assert matches("true()", content)


ENTITIES = [
    '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><a>&b;</a>',
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x"> %x;]><a/>',
]


@pytest.mark.parametrize("content", ENTITIES)
def test_a_document_with_entities_matches_nothing(content: str) -> None:
    assert not matches("/a", content)
    assert matches("/a", "<!DOCTYPE a SYSTEM 'file:///none'><a/>")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "empty"),
        ("./colour $=! 'blue'", "unparsed"),
        ("doc('/etc/passwd')", "doc"),
        ("fn:doc('/etc/passwd')", "doc"),
        ("unparsed-text('/etc/passwd') = 'x'", "unparsed-text"),
        ("environment-variable('HOME')", "environment-variable"),
        ("collection('/')", "collection"),
        ("parse-xml('<a/>')", "parse-xml"),
        ("concat('a', 'b') = 'ab'", "concat"),
        ("'a' || 'b' = 'ab'", "not supported"),
        ("string-join(//a)", "string-join"),
        ("matches(., '(a+)+b')", "matches"),
        ("count(1 to 1000000000) = 1", "to"),
        ("xs:NMTOKENS(1 to 1000000000)", "NMTOKENS"),
        ("function($x) { $x }", "not supported"),
        ("//a ! .", "not supported"),
        ("map { 'a': 1 }", "not supported"),
        ("<a/>", "unexpected"),
        ("for $a in //b order by $a return 1", "order"),
        ("for $a in //b where $a", "return"),
        ("$undeclared = 1", "not declared"),
        ("declare variable $x as element() external; $x", "unexpected"),
        ("declare variable $x as xs:date external; $x", "no header"),
        ("*".join("1234567891"), "multiplications"),
        ("1" * 30, "digits"),
        ("(" * 1000 + "1" + ")" * 1000, "cannot be read"),
        ("1" + " " * MAX_QUERY, "characters"),
        ("(: never ends", "comment"),
    ],
)
def test_what_a_binding_is_refused_for(query: str, why: str) -> None:
    with pytest.raises(QueryError, match=why):
        Query(query)


MANY = "<a>" + "<b/>" * (MAX_NODES - 10) + "</a>"


@pytest.mark.parametrize(
    "query",
    [
        "//b[//b[//b]]",
        "every $a in //b, $b in //b, $c in //b satisfies true()",
        "let $x := //b return $x != $x and $x != $x",
        "count(//b[. = //b]) > 0",
        "for $a in //b let $b := //b where $a != $b return 1",
    ],
)
def test_a_query_that_takes_too_long_is_an_error(query: str) -> None:
    budget = Budget(BUDGET)
    with pytest.raises(TooExpensiveError, match="too long"):
        Query(query).matches(Document(MANY), {}, budget)
    assert budget.left < 0
    assert sys.getprofile() is None


@pytest.mark.parametrize(
    "query",
    ["true()", "some $x in //id satisfies $x = 3", "for $a in //id where $a[@k] return $a", "//id[@k] or //id = 4"],
)
def test_an_evaluation_ends_at_its_budget_wherever_that_is(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swallowed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)  # of generators that are being closed
    document, parsed, most = Document("<m><id k='1'>1</id><id>3</id></m>"), Query(query), Budget(BUDGET)
    parsed.matches(document, {}, most)
    for left in range(BUDGET - most.left):
        budget = Budget(left)
        with suppress(TooExpensiveError):
            parsed.matches(document, {}, budget)
        assert (budget.left > -30, swallowed, sys.getprofile()) == (True, [], None)


@pytest.mark.parametrize(
    "content",
    [
        b"<a>" + b"x" * MAX_BYTES + b"</a>",
        b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1),
        b"<a>" + b"<b/>" * MAX_NODES + b"</a>",
        b"<a " + b" ".join(b"k%d=''" % number for number in range(MAX_NODES)) + b"/>",
    ],
    ids=["bytes", "depth", "elements", "attributes"],
)
def test_a_document_that_is_too_large_is_an_error(content: bytes) -> None:
    with pytest.raises(TooExpensiveError, match="the content has more than"):
        matches("./a", content)
    assert matches("true()", content)


def test_an_evaluation_does_not_disturb_a_profiler() -> None:
    profile = Profile()
    with profile:
        assert matches("//id = 3", "<m><id>3</id></m>")
        after_it()
    names = {entry.code.co_name for entry in profile.getstats() if not isinstance(entry.code, str)}
    assert "after_it" in names


def after_it() -> None:
    """Called after an evaluation."""


def test_what_an_evaluation_takes_does_not_depend_on_the_past() -> None:
    taken = []
    for _ in range(3):
        budget = Budget(BUDGET)
        assert Query("//id[. = '3']").matches(Document("<m><id>1</id><id>3</id></m>"), {}, budget)
        taken.append(BUDGET - budget.left)
    assert taken[1] == taken[2]
    assert taken[0] < 4 * taken[1]
