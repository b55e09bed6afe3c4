"""The condition of a query, `_where`: nested lists whose first element is an operator.

    and, or, not                  of conditions; `not` is true if none of its conditions is
    eq, ne, lt, le, gt, ge        of two operands
    re_match                      the second operand, a regular expression, matches somewhere in the first one
    exists                        of a name: the object has that value
    true, false

    operand        text is the name of a value of the object; everything else is itself
    [quote, X]     X itself, also if it is text
    [unquote, N]   the value with the name N

A comparison with a value that the object does not have, or of a number with a text, is false; for `ne`, of different
kinds of values, it is true. A reference to an object is compared by the object's name. A regular expression that could
take long (`formats/pattern_steps`) is refused, and so is one that repeats a group, refers to one, or looks ahead. It
sees the first 512 characters of a text, for which the bound holds.

Source: Qpid wiki, "QMF Python API", its section on queries.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from qstore.formats.errors import FormatError
from qstore.formats.pattern_steps import nanoseconds_of
from qstore.formats.wording import printable

MAX_DEPTH: Final = 16
MAX_NODES: Final = 256
_MAX_PATTERN: Final = 256  # characters
_MAX_SUBJECT: Final = 512  # characters of a text that a pattern is matched with
_MAX_TIME: Final = 4_000_000  # ns of an expression and a text
_MAX_ALL_TIMES: Final = 8_000_000  # ns, of all expressions of a condition

Values: TypeAlias = Mapping[str, Any]
Condition: TypeAlias = Callable[[Values], bool]
_Operand: TypeAlias = Callable[[Values], Any]


class PredicateError(FormatError):
    """It is no condition, or one that is too large."""

    format_name = "condition"


class _Missing:
    """Stands for a value that an object does not have."""


_MISSING: Final = _Missing()
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def parse_predicate(value: object) -> Condition:
    """The test whether an object's values fulfil a condition.

    Args:
        value: nested lists or tuples of Python values.

    Raises:
        PredicateError: it is not a condition.
    """
    return _Parser().condition(value, 0)


class _Parser:
    """Parses one condition, and counts its parts."""

    def __init__(self) -> None:
        self._nodes = self._time = 0

    def _parts(self, value: object, depth: int) -> tuple[str, Sequence[Any]]:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise PredicateError("the condition is too large")
        if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], str):
            raise PredicateError("a condition is a list that begins with an operator")
        return value[0], value[1:]

    def condition(self, value: object, depth: int) -> Condition:
        """A condition at a nesting depth."""
        name, arguments = self._parts(value, depth)
        if name in ("and", "or", "not"):
            return _logical(name, [self.condition(each, depth + 1) for each in arguments])
        if name in ("true", "false"):
            _check_count(name, arguments, 0)
            return lambda _: name == "true"
        if name == "exists":
            _check_count(name, arguments, 1)
            variable = self._name(arguments[0], depth + 1)
            return lambda values: variable in values
        if name == "re_match":
            _check_count(name, arguments, 2)
            return self._matching(self._operand(arguments[0], depth + 1), self._operand(arguments[1], depth + 1))
        if name in _COMPARISONS:
            _check_count(name, arguments, 2)
            return _comparison(name, self._operand(arguments[0], depth + 1), self._operand(arguments[1], depth + 1))
        raise PredicateError(f"the operator {printable(name)} is unknown")

    def _name(self, value: object, depth: int) -> str:
        if isinstance(value, str):
            return value
        name, arguments = self._parts(value, depth)
        if name in ("unquote", "quote") and len(arguments) == 1 and isinstance(arguments[0], str):
            return arguments[0]
        raise PredicateError("exists is of a name")

    def _operand(self, value: object, depth: int) -> _Operand:
        if isinstance(value, str):
            return _variable(value)
        if not isinstance(value, (list, tuple)):
            self._nodes += 1
            return lambda _: value
        name, arguments = self._parts(value, depth)
        _check_count(name, arguments, 1)
        if name == "quote":
            constant = arguments[0]
            return lambda _: constant
        if name == "unquote" and isinstance(arguments[0], str):
            return _variable(arguments[0])
        raise PredicateError("an operand is a name, a value, or quote or unquote of one")

    def _matching(self, subject: _Operand, pattern: _Operand) -> Condition:
        expression = pattern({})
        if not isinstance(expression, str):
            raise PredicateError("the second operand of re_match is a quoted text")
        compiled = bounded_pattern(expression)
        self._time += _time_of(compiled.pattern)
        if self._time > _MAX_ALL_TIMES:
            raise PredicateError("the regular expressions of the condition could take too long together")

        def holds(values: Values) -> bool:
            text = _comparable(subject(values))
            return isinstance(text, str) and compiled.search(text[:_MAX_SUBJECT]) is not None

        return holds


def _check_count(name: str, arguments: Sequence[Any], count: int) -> None:
    if len(arguments) != count:
        raise PredicateError(f"{name} has {count} operands, not {len(arguments)}")


def _variable(name: str) -> _Operand:
    return lambda values: values.get(name, _MISSING)


def _logical(name: str, conditions: Sequence[Condition]) -> Condition:
    if name == "and":
        return lambda values: all(each(values) for each in conditions)
    if name == "or":
        return lambda values: any(each(values) for each in conditions)
    return lambda values: not any(each(values) for each in conditions)


def _comparison(name: str, left: _Operand, right: _Operand) -> Condition:
    compare = _COMPARISONS[name]

    def holds(values: Values) -> bool:
        first, second = _comparable(left(values)), _comparable(right(values))
        if first is _MISSING or second is _MISSING:
            return False
        if _kind(first) is not _kind(second):
            return name == "ne"
        try:
            return bool(compare(first, second))
        except TypeError:
            return False

    return holds


def _comparable(value: Any) -> Any:
    """A value, or the name of the object to which it refers."""
    if isinstance(value, Mapping) and "_object_name" in value:
        return value["_object_name"]
    return value


def _kind(value: object) -> type:
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def bounded_pattern(expression: str) -> re.Pattern[str]:
    """A regular expression whose time is bounded.

    Raises:
        PredicateError: it is no regular expression, or one that could take long.
    """
    if len(expression) > _MAX_PATTERN:
        raise PredicateError(f"the regular expression is longer than {_MAX_PATTERN} characters")
    plain = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "x", re.sub(r"\\\D", "x", expression))
    if re.search(r"\(\?(?!:)|\\\d|\)[*+?{]", plain):
        raise PredicateError("the regular expression repeats a group, refers to one, or looks ahead or behind")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a bracket within a set may mean something else one day
            compiled = re.compile(_searched(expression))
    except (re.error, OverflowError, RecursionError) as error:
        raise PredicateError(f"it is no regular expression: {printable(str(error))}") from None
    if _time_of(compiled.pattern) > _MAX_TIME:
        raise PredicateError("the regular expression could take too long: anchor it with ^, and repeat less")
    return compiled


def _searched(expression: str) -> str:
    """An expression without `.*` at its beginning: it finds the same, and a failing search begins at each place."""
    return re.sub(r"^(?:\.\*\??(?![?+*{]))+", "", expression)


def _time_of(expression: str) -> int:
    """As `nanoseconds_of`, which does not expect that alternatives that begin with `.*` are tried at each place."""
    return nanoseconds_of(f"(?:{expression})" if "|.*" in expression else expression, _MAX_SUBJECT)
