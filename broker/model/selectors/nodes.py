"""The nodes of a compiled selector. Each evaluates itself, in three-valued logic: None is NULL, or unknown.

- Anything unknown makes an operator unknown, but for IS NULL, and for AND and OR whose other side decides.
- Numbers compare with numbers. Strings and booleans compare with their own kind, by = and <> only. Any other comparison
  is false, whatever the operator.
- Exact numbers have 64 bits with sign, a larger result becomes approximate. Division of exact numbers truncates.
  Division by zero is unknown, and so is arithmetic with what is not a number.
- `x NOT IN (...)` is false if a value in the list is of another kind than x, and none equals it.
- Where a condition is expected, what is not a boolean is unknown. A message is selected if the whole is true.

Sources: JMS 1.1, 3.8.1; Apache Qpid C++, Selector: types that do not compare, and NOT IN, are as there.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from qstore.broker.model.selectors.candidate import Candidate, Value, fitting
from qstore.broker.model.selectors.like import Pattern

#: Symbol -> what it tells of two numbers.
RELATIONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FOR_ALL_KINDS: Final = ("=", "<>")


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def _are_alike(left: Value, right: Value) -> bool:
    """Whether two values can be equal: both are numbers, strings, or booleans."""
    return type(left) is type(right) or (_is_number(left) and _is_number(right))


class Node(ABC):
    """A part of a selector.

    Attributes:
        depth: how many nodes are above each other, itself included.
    """

    __slots__ = ("depth",)

    def __init__(self, operands: Sequence[Node] = ()) -> None:
        self.depth: int = 1 + max((each.depth for each in operands), default=0)

    @abstractmethod
    def value(self, candidate: Candidate) -> Value:
        """Its value for a message."""

    def truth(self, candidate: Candidate) -> bool | None:
        """Its value as a condition: None for unknown, and for what is not a boolean."""
        value = self.value(candidate)
        return value if isinstance(value, bool) else None


class Literal(Node):
    """A constant."""

    __slots__ = ("constant",)

    def __init__(self, constant: Value) -> None:
        super().__init__()
        self.constant = constant

    def value(self, _candidate: Candidate) -> Value:
        """The constant."""
        return self.constant


class Header(Node):
    """An application header."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def value(self, candidate: Candidate) -> Value:
        """The header's value."""
        return candidate.header(self._name)


class Property(Node):
    """A property of the message."""

    __slots__ = ("_get",)

    def __init__(self, get: Callable[[Candidate], Value]) -> None:
        super().__init__()
        self._get = get

    def value(self, candidate: Candidate) -> Value:
        """The property's value."""
        return candidate.told_by(self._get)


class AllOf(Node):
    """Conditions joined by AND."""

    __slots__ = ("_operands",)

    def __init__(self, operands: list[Node]) -> None:
        super().__init__(operands)
        self._operands = operands

    def value(self, candidate: Candidate) -> Value:
        """False if one is false, otherwise unknown if one is unknown."""
        result: bool | None = True
        for operand in self._operands:
            truth = operand.truth(candidate)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result


class AnyOf(Node):
    """Conditions joined by OR."""

    __slots__ = ("_operands",)

    def __init__(self, operands: list[Node]) -> None:
        super().__init__(operands)
        self._operands = operands

    def value(self, candidate: Candidate) -> Value:
        """True if one is true, otherwise unknown if one is unknown."""
        result: bool | None = False
        for operand in self._operands:
            truth = operand.truth(candidate)
            if truth is True:
                return True
            if truth is None:
                result = None
        return result


class Not(Node):
    """A negated condition."""

    __slots__ = ("_operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__((operand,))
        self._operand = operand

    def value(self, candidate: Candidate) -> Value:
        """The opposite; unknown stays unknown."""
        truth = self._operand.truth(candidate)
        return None if truth is None else not truth


class IsNull(Node):
    """IS NULL, which is never unknown."""

    __slots__ = ("_operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__((operand,))
        self._operand = operand

    def value(self, candidate: Candidate) -> Value:
        """Whether the operand is NULL, or unknown."""
        return self._operand.value(candidate) is None


class Comparison(Node):
    """One of `RELATIONS`."""

    __slots__ = ("_for_all_kinds", "_left", "_relation", "_right")

    def __init__(self, left: Node, symbol: str, right: Node) -> None:
        super().__init__((left, right))
        self._left, self._right = left, right
        self._relation = RELATIONS[symbol]
        self._for_all_kinds = symbol in _FOR_ALL_KINDS

    def value(self, candidate: Candidate) -> Value:
        """Whether the relation holds; false for operands that do not compare."""
        left, right = self._left.value(candidate), self._right.value(candidate)
        if left is None or right is None:
            return None
        if not _are_alike(left, right) or not (self._for_all_kinds or _is_number(left)):
            return False
        return self._relation(left, right)


class Between(Node):
    """BETWEEN, of numbers; false for others."""

    __slots__ = ("_high", "_low", "_operand")

    def __init__(self, operand: Node, low: Node, high: Node) -> None:
        super().__init__((operand, low, high))
        self._operand, self._low, self._high = operand, low, high

    def value(self, candidate: Candidate) -> Value:
        """Whether the operand is at least `low` and at most `high`."""
        value: Any = self._operand.value(candidate)
        low: Any = self._low.value(candidate)
        high: Any = self._high.value(candidate)
        if value is None or low is None or high is None:
            return None
        if not (_is_number(value) and _is_number(low) and _is_number(high)):
            return False
        return bool(low <= value <= high)


class In(Node):
    """IN, or NOT IN."""

    __slots__ = ("_is_negated", "_items", "_operand", "_strings")

    def __init__(self, operand: Node, items: list[Node], *, is_negated: bool) -> None:
        super().__init__((operand, *items))
        self._operand, self._items, self._is_negated = operand, items, is_negated
        constants = [each.constant for each in items if isinstance(each, Literal)]
        strings = [each for each in constants if isinstance(each, str)]
        self._strings = frozenset(strings) if len(strings) == len(items) else None

    def value(self, candidate: Candidate) -> Value:
        """Whether the operand equals one of the items."""
        value = self._operand.value(candidate)
        if value is None:
            return None
        if self._strings is not None:
            return isinstance(value, str) and (value in self._strings) is not self._is_negated
        has_unknown = has_others = False
        for each in self._items:
            item = each.value(candidate)
            if item is None:
                has_unknown = True
            elif not _are_alike(value, item):
                has_others = True
            elif value == item:
                return not self._is_negated
        if has_unknown:
            return None
        return self._is_negated and not has_others


class Like(Node):
    """LIKE; unknown for what is not a string."""

    __slots__ = ("_operand", "_pattern")

    def __init__(self, operand: Node, pattern: Pattern) -> None:
        super().__init__((operand,))
        self._operand, self._pattern = operand, pattern

    def value(self, candidate: Candidate) -> Value:
        """Whether the operand matches the pattern."""
        value = self._operand.value(candidate)
        if not isinstance(value, str):
            return None
        candidate.work += self._pattern.work(value)
        return self._pattern.matches(value)


class Calculation(Node):
    """Operands joined by + and -, or by * and /, evaluated from left to right."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: Node, rest: list[tuple[str, Node]]) -> None:
        super().__init__((first, *(each for _, each in rest)))
        self._first, self._rest = first, rest

    def value(self, candidate: Candidate) -> Value:
        """The result; None if an operand is not a number."""
        result = self._first.value(candidate)
        for symbol, node in self._rest:
            operand = node.value(candidate)
            if not _is_number(result) or not _is_number(operand):
                return None
            result = calculated(result, symbol, operand)
        return result


class Negative(Node):
    """A negative number."""

    __slots__ = ("_operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__((operand,))
        self._operand = operand

    def value(self, candidate: Candidate) -> Value:
        """The number, negated; None if it is not a number."""
        value = self._operand.value(candidate)
        return calculated(0, "-", value) if type(value) is int else -value if isinstance(value, float) else None


def calculated(left: Any, symbol: str, right: Any) -> Value:
    """The result of one arithmetic operation on numbers; None for a division by zero."""
    if symbol == "/":
        if right == 0:
            return None
        if type(left) is int and type(right) is int:
            quotient = abs(left) // abs(right)
            return fitting(quotient if (left < 0) is (right < 0) else -quotient)
        result = left / right
    elif symbol == "*":
        result = left * right
    elif symbol == "+":
        result = left + right
    else:
        result = left - right
    return fitting(result) if isinstance(result, int) else float(result)
