"""Filters on the properties of messages, as RabbitMQ 4 has them: a link gets only messages that match all entries.

    amqp:properties-filter                fields of the section properties, by their names in the specification
    amqp:application-properties-filter    application-properties

    value of an entry    matches
    -------------------  ---------------------------------------------------------------
    null                 a message without the property
    "&p:TEXT"            a string that begins with TEXT
    "&s:TEXT"            a string that ends with TEXT
    "&&TEXT"             the string "&TEXT"
    any other            an equal value; numbers of all types are compared as numbers

A value of several types, such as message-id, matches only in the type of the entry. Each filter has at most
`MAX_ENTRIES`; with other filters a message must match all of them.

**SQL** (amqp:sql-filter): a condition as in a selector (`model.selectors.grammar`), with these differences:

    operand                                        value
    ---------------------------------------------  ---------------------------------------------------------------
    NAME, application_properties.NAME, a.NAME      an application property; ASCII letters, digits and "_"
    [NAME]                                         the same, with any characters, "[" and "]" doubled
    properties.FIELD, p.FIELD                      a field of the section properties: p.message_id, p.to
    header.priority, h.priority; header.durable    of the section header, with its defaults
    'TEXT', "TEXT"                                 a string, the quote doubled in it
    0x48656C                                       a binary, which equals a string with the same UTF-8
    UTC()                                          the time, in milliseconds since 1970

Strings are ordered, and values of different kinds are unequal: `<>`, or `!=`. `/` does not truncate, `%` is the
remainder of exact numbers. There is no BETWEEN. Numbers are decimal, times are in milliseconds, UUIDs the usual texts.

Sources: AMQP Filter Expressions 1.0, working draft 9, sections 4.2.4 to 4.2.6, and draft 01 of the committee
specification, section 6; RabbitMQ, "Stream Filtering", and the tests of its SQL filters, where the draft is silent.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from qstore.broker.model.arguments import shown
from qstore.broker.model.selectors.candidate import as_string, fitting
from qstore.broker.model.selectors.grammar import Dialect, SelectorError, Token, parse, unquoted
from qstore.broker.model.selectors.nodes import Calculation, Header, Literal, Node, Property, SqlComparison, SqlIn
from qstore.broker.model.selectors.selector import MAX_LENGTH, Selector
from qstore.broker.protocols.amqp_1_0.errors import ConditionError
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import BY_NAME
from qstore.formats.amqp_1_0.neutral import neutral_value
from qstore.formats.amqp_1_0.values import Value, plain_key

if TYPE_CHECKING:
    from qstore.broker.model.selectors.candidate import Candidate
    from qstore.broker.model.selectors.candidate import Value as Operand

MAX_ENTRIES: Final = 16
"""Entries of a filter, as in RabbitMQ."""

PROPERTIES_FILTER: Final = "properties-filter"
APPLICATION_FILTER: Final = "application-properties-filter"
SQL_FILTER: Final = "sql-filter"

_FIELDS: Final = {each.name.replace("_", "-"): each.name for each in BY_NAME["properties"].fields}
_BYTE_COST: Final = 8  # a converted byte of a body counts as much as one of so many compared ones


class PropertyFilter:
    """Decides which messages a link gets, by their properties and perhaps by selectors.

    Args:
        properties: field -> wanted value.
        application: application property -> wanted value.
        selectors: must match, too.

    Attributes:
        text: equal for filters that match the same messages.
    """

    __slots__ = ("_application", "_length", "_properties", "_selectors", "text")

    def __init__(
        self, properties: Mapping[str, Value], application: Mapping[str, Value], selectors: tuple[Selector, ...]
    ) -> None:
        self._properties = {name: _matcher(value) for name, value in properties.items()}
        self._application = {name: _matcher(value) for name, value in application.items()}
        self._selectors = selectors
        texts = [each.text for each in selectors]
        self.text = repr((sorted(properties.items(), key=repr), sorted(application.items(), key=repr), texts))
        self._length = len(self.text)

    def matches(self, candidate: Candidate) -> bool:
        """Whether a message matches. Adds to the candidate's work."""
        if not all(each.matches(candidate) for each in self._selectors):
            return False
        candidate.work += self._length
        message = _sections_of(candidate)
        if message is None:
            return False
        if self._properties:
            fields = message.section_properties()
            if not all(wanted(_plain(fields.get(name))) for name, wanted in self._properties.items()):
                return False
        if self._application:
            found = message.application_properties()
            for name, wanted in self._application.items():
                typed = found.get(name)
                if not wanted(None if typed is None else typed.value):
                    return False
        return True


def _sections_of(candidate: Candidate) -> SectionMessage | None:
    """A message, converted if it is of another protocol; None if it cannot be. Adds to the candidate's work."""
    message = candidate.message.whole()
    if isinstance(message, SectionMessage):
        candidate.work += len(message.header)
        return message
    candidate.work += message.size - len(message.body) + len(message.body) // _BYTE_COST
    converted = as_sections(message)
    if converted is not None:
        candidate.work += len(converted.header)
    return converted


def read_property_filter(name: str, value: Value) -> dict[str, Value]:
    """The entries of one of the filters. Raises ConditionError."""
    if value.type_name != "map":
        raise ConditionError(Condition.INVALID_FIELD, f"filter {name} is not a map")
    if len(value.value) > MAX_ENTRIES:
        text = f"filter {name} has {len(value.value)} entries, more than {MAX_ENTRIES}"
        raise ConditionError(Condition.INVALID_FIELD, text)
    entries: dict[str, Value] = {}
    for key, wanted in value.value:
        field = plain_key(key)
        if name == PROPERTIES_FILTER:
            known = _FIELDS.get(field)
            if known is None:
                raise ConditionError(Condition.INVALID_FIELD, f"filter {name}: there is no property {field!a:.64}")
            field = known
        if wanted.value is not None and not isinstance(wanted.value, bool | int | float | str | bytes | UUID):
            text = f"filter {name}: {field!a:.64} is of type {wanted.type_name}, which is not a simple one"
            raise ConditionError(Condition.INVALID_FIELD, text)
        entries[field] = wanted
    return entries


def _plain(found: Any) -> object:
    """A field of the section properties as a plain value, as those of application-properties are."""
    return neutral_value(found).value if isinstance(found, Value) else found


def _matcher(wanted: Value) -> Callable[[object], bool]:
    """The test for a wanted value."""
    value = neutral_value(wanted).value if wanted.value is not None else None
    if isinstance(value, str) and value.startswith("&"):
        rest = value[3:]
        if value.startswith("&p:"):
            return lambda found: isinstance(found, str) and found.startswith(rest)
        if value.startswith("&s:"):
            return lambda found: isinstance(found, str) and found.endswith(rest)
        if not value.startswith("&&"):
            raise ConditionError(Condition.INVALID_FIELD, f"{value!a:.64} has a modifier that is not implemented")
        value = value[1:]
    kind = _kind(value)
    return lambda found: _kind(found) is kind and found == value


def _kind(value: object) -> type:
    """Values of equal kinds are compared: those of one type, and numbers of all types."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float if is_number else type(value)


# ---- SQL ----

_SQL_TOKEN: Final = re.compile(
    r"""
    [ \t\f\n\r]*(?:
    (?P<binary>0x(?:[0-9A-F]{2})+\b)
    |(?P<number>[0-9]+(?:\.[0-9]+(?:E[+-]?[0-9]+)?)?\b)
    |(?P<string>'(?:[^']|'')*'(?!')|"(?:[^"]|"")*"(?!"))
    |(?P<quoted>\[(?:[^][]|\[\[|\]\])*\])
    |(?P<clock>[Uu][Tt][Cc][ \t\f\n\r]*\([ \t\f\n\r]*\))
    |(?P<field>(?:header|h|properties|p)\.[A-Za-z][A-Za-z0-9_]*)
    |(?P<property>(?:application_properties|a)\.[A-Za-z][A-Za-z0-9_]*)
    |(?P<name>[A-Za-z][A-Za-z0-9_]*)
    |(?P<relation><>|!=|<=|>=|=|<|>)
    |(?P<symbol>[-+*/%(),])
    |(?P<end>\Z))
    """,
    re.VERBOSE,
)
_SQL_WORDS: Final = frozenset(
    (
        "and", "date", "escape", "exists", "false", "in", "inf", "is", "left", "like", "lower", "nan", "not", "null",
        "or", "right", "substring", "true", "upper", "utc",
    )
)  # fmt: skip
_MAX_DIGITS: Final = 400  # more than the largest number has
_SQL_FILTERS_KEPT: Final = 64


def read_sql_filter(text: str) -> Selector:
    """The condition in SQL. Raises ConditionError."""
    if len(text) > MAX_LENGTH:
        text = f"filter {SQL_FILTER} has {len(text)} characters, more than {MAX_LENGTH}"
        raise ConditionError(Condition.INVALID_FIELD, text)
    try:
        return _compiled_sql(text)
    except SelectorError as error:
        where = "" if error.position is None else f" at character {error.position}"
        problem = f"filter {SQL_FILTER} is not a condition{where}: {error.problem}"
        raise ConditionError(Condition.INVALID_FIELD, problem) from None


@lru_cache(maxsize=_SQL_FILTERS_KEPT)
def _compiled_sql(text: str) -> Selector:
    """Compile a condition, under a text that differs from that of a selector. Raises SelectorError."""
    return Selector(f"{SQL_FILTER}: {text}", parse(text, _SQL))


def _sql_operand(token: Token) -> Node:
    kind, text = token.kind, token.text
    if kind == "name":
        return Header(text)
    if kind == "property":
        return Header(text.partition(".")[2])
    if kind == "field":
        return Property(_sql_field(token))
    if kind == "quoted":
        return Header(text[1:-1].replace("[[", "[").replace("]]", "]"))
    if kind == "string":
        return Literal(unquoted(token))
    if kind == "binary":
        return Literal(as_string(bytes.fromhex(text[2:])))
    if kind == "clock":
        return Property(_now)
    if kind == "number":
        return Literal(_sql_number(token))
    return Literal(kind == "true")


def _sql_number(token: Token) -> int | float:
    text = token.text
    number = float(text)
    if math.isinf(number):
        raise SelectorError(token.position, "the number is too large")
    return fitting(int(text)) if text.isdigit() and len(text) < _MAX_DIGITS else number


def _sql_field(token: Token) -> Callable[[Candidate], Operand]:
    """The value of a field of a section. Raises SelectorError."""
    section, _, name = token.text.partition(".")
    found = _OF_HEADER.get(name) if section in ("header", "h") else _OF_PROPERTIES.get(name)
    if found is None:
        raise SelectorError(token.position, f"there is no field {shown(token.text)}")
    return found


def _section_fields(candidate: Candidate) -> dict[str, Any]:
    """The fields of the section properties; a condition may have many of them, and the conversion can take long."""
    message = _sections_of(candidate)
    return {} if message is None else message.section_properties()


def _field_value(name: str, candidate: Candidate) -> Operand:
    """A field of the section properties."""
    value = _plain(candidate.memoized(_section_fields).get(name))
    if isinstance(value, bytes | str):
        return as_string(value)
    if isinstance(value, UUID):
        return str(value)
    return fitting(value) if isinstance(value, int) else None


def _priority(candidate: Candidate) -> Operand:
    return candidate.message.handling.priority


def _is_durable(candidate: Candidate) -> Operand:
    return candidate.message.is_persistent


def _now(_candidate: Candidate) -> Operand:
    return int(time.time() * 1000)


_OF_HEADER: Final[Mapping[str, Callable[[Candidate], Operand]]] = {"priority": _priority, "durable": _is_durable}
_OF_PROPERTIES: Final[Mapping[str, Callable[[Candidate], Operand]]] = {
    name: partial(_field_value, name) for name in _FIELDS.values()
}


def _sql_comparison(left: Node, symbol: str, right: Node) -> Node:
    return SqlComparison(left, "<>" if symbol == "!=" else symbol, right)


def _sql_membership(operand: Node, items: list[Node], is_negated: bool) -> Node:
    return SqlIn(operand, items, is_negated=is_negated)


def _sql_calculation(first: Node, rest: list[tuple[str, Node]]) -> Node:
    return Calculation(first, rest, truncates=False)


_SQL: Final = Dialect(
    tokens=_SQL_TOKEN,
    words=_SQL_WORDS,
    operands=("number", "binary", "string", "true", "false", "name", "property", "quoted", "field", "clock"),
    operand=_sql_operand,
    products=("*", "/", "%"),
    comparison=_sql_comparison,
    membership=_sql_membership,
    calculation=_sql_calculation,
)
