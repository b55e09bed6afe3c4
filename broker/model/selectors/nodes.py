"""The nodes of a compiled selector. Each evaluates itself, in three-valued logic: None is NULL, or unknown.

- An unknown operand makes an operator unknown, except IS NULL, and AND and OR if the other operand decides.
- Numbers compare with numbers. Strings and booleans compare with their own kind, by = and <> only. Any other comparison
  is false, whatever the operator.
- Exact numbers have 64 bits with sign, a larger result becomes approximate. Division of exact numbers truncates.
  Division by zero is unknown, and so is arithmetic with operands that are not numbers.
- `x NOT IN (...)` is false if a value in the list is of another kind than x, and none equals it.
- Where a condition is expected, a value that is not a boolean is unknown. A message matches if the selector is true.

**Patterns of LIKE**: "_" matches one character, "%" any number of them. The parts between the "%" are searched from
left to right, each at its first place after the previous one, without backtracking. The time is linear in the length of
the text for parts without "_"; for parts with "_" it is the length of the text times that of the part, or for long ones
that of the part in machine words. (A regular expression with repeats may take exponential time; those used here have
none.)

**Names:**

    name                        alias             value
    --------------------------  ----------------  -----------------------------------------------------------------
    amqp.absolute_expiry_time   JMSExpiration     milliseconds since 1970; 0 if the message does not expire
    amqp.correlation_id         JMSCorrelationID  string
    amqp.creation_time          JMSTimestamp      milliseconds since 1970: timestamp of the delivery-properties; or 0
    amqp.delivery_mode          JMSDeliveryMode   'PERSISTENT' or 'NON_PERSISTENT'
    amqp.durable                                  boolean: whether it is persistent
    amqp.jms_type                                 string: the application header jms-type
    amqp.message_id             JMSMessageID      string; a UUID without "ID:"
    amqp.priority               JMSPriority       0 to 9
    amqp.redelivered            JMSRedelivered    boolean: whether it was delivered before
    amqp.reply_to               JMSReplyTo        string: exchange/key, or the only one given
    amqp.subject                JMSType           string: the routing key; on the default exchange the application
                                                  header qpid.subject
    amqp.to                     JMSDestination    string: the address that an AMQP 1.0 sender has set; else the
                                                  exchange, or on the default exchange the routing key

All other names that begin with "amqp." are NULL. Every other name is an application header; a name in double quotes may
have any characters. Absent properties and headers are NULL, and so are empty strings in this table.

Sources: JMS 1.1, 3.8.1; Apache Qpid C++, Selector (rules for types that do not compare, and for NOT IN; the table of
identifiers) and MessageTransfer. In Qpid, names that begin with "JMS" and have no row are NULL; here they are headers,
such as JMSXGroupID. `durable` is in Qpid's table, but not implemented there.
"""

from __future__ import annotations

import operator
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.selectors.candidate import Candidate, Value, as_string, fitting

if TYPE_CHECKING:
    from qstore.broker.model.message import MessageId

_MAX_EXPRESSION: Final = 64
"""Characters of a part up to which a regular expression searches for it. In 1,000 characters that nearly match
everywhere it takes 43 µs and the loop 93; for a part of 256 it takes 136 and the loop 102 (tests.bench.bench_tricks).
"""
_WILD_WORK: Final = 32  # searching a part with "_" takes up to this many times as long as one without

_ANY: Final = None  # in a part: any one character


class Part:
    """The characters between two "%"; None stands for any one character."""

    __slots__ = ("_accepting", "_expression", "_literal", "_masks", "characters", "length")

    def __init__(self, characters: list[str | None]) -> None:
        self.characters, self.length = characters, len(characters)
        self._literal = None if _ANY in characters else "".join(each for each in characters if each is not None)
        self._expression: re.Pattern[str] | None = None
        if self._literal is None and self.length <= _MAX_EXPRESSION:
            written = "".join("." if each is _ANY else re.escape(each) for each in characters)
            self._expression = re.compile(written, re.DOTALL)
        self._accepting = 1 << self.length >> 1
        self._masks: dict[str | None, int] = {}  # character -> its places in the part, as bits; None: any other
        for place, character in enumerate(characters):
            if character is not _ANY:
                self._masks[character] = self._masks.get(character, 0) | 1 << place
        wild = sum(1 << place for place, character in enumerate(characters) if character is _ANY)
        self._masks = {character: mask | wild for character, mask in self._masks.items()}
        self._masks[_ANY] = wild

    @property
    def work(self) -> int:
        """The cost of a search for it, relative to a part without "_"."""
        return 1 if self._literal is not None else _WILD_WORK

    def is_at(self, text: str, begin: int) -> bool:
        """Whether the text continues with the part at `begin`."""
        if self._literal is not None:
            return text.startswith(self._literal, begin)
        if begin + self.length > len(text):
            return False
        for place, character in enumerate(self.characters):
            if character is not _ANY and text[begin + place] != character:
                return False
        return True

    def find(self, text: str, begin: int, end: int) -> int:
        """The end of its first occurrence between `begin` and `end`; -1 if there is none."""
        if self._literal is not None:
            at = text.find(self._literal, begin, end)
            return at if at < 0 else at + self.length
        if self._expression is not None:
            found = self._expression.search(text, begin, end)
            return -1 if found is None else found.end()
        # Bit n of the state: the last n+1 characters are the first n+1 of the part (the algorithm "shift-and").
        state, others, masks = 0, self._masks[_ANY], self._masks
        for at in range(begin, end):
            state = (state << 1 | 1) & masks.get(text[at], others)
            if state & self._accepting:
                return at + 1
        return -1


class Pattern:
    """A pattern.

    Args:
        pattern: the pattern.
        escape: the character before a "_", "%" or itself that stands for itself; "" for none.
    """

    __slots__ = ("_parts", "_work")

    def __init__(self, pattern: str, escape: str = "") -> None:
        parts: list[list[str | None]] = [[]]
        is_escaped = False
        for character in pattern:
            if character == escape and not is_escaped:
                is_escaped = True
                continue
            if character == "%" and not is_escaped:
                if parts[-1] or len(parts) == 1:
                    parts.append([])
            else:
                parts[-1].append(_ANY if character == "_" and not is_escaped else character)
            is_escaped = False
        self._parts = [Part(part) for part in parts]
        self._work = sum(part.work for part in self._parts[1:-1])

    def work(self, text: str) -> int:
        """The most that `matches` reads, in characters compared one by one (`Candidate.work`)."""
        return len(text) * self._work // _WILD_WORK

    def matches(self, text: str) -> bool:
        """Whether all of the text matches."""
        parts = self._parts
        first, last = parts[0], parts[-1]
        if not first.is_at(text, 0):
            return False
        if len(parts) == 1:
            return first.length == len(text)
        at, end = first.length, len(text) - last.length
        for part in parts[1:-1]:
            at = part.find(text, at, end)
            if at < 0:
                return False
        return at <= end and last.is_at(text, end)


# ---- nodes ----

#: Symbol -> its relation of two numbers.
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


class Node:
    """A part of a selector.

    Attributes:
        depth: the number of nested nodes, itself included.
    """

    __slots__ = ("depth",)

    def __init__(self, operands: Sequence[Node] = ()) -> None:
        self.depth: int = 1 + max((each.depth for each in operands), default=0)

    @abstractmethod
    def value(self, candidate: Candidate) -> Value:
        """Its value for a message."""

    def truth(self, candidate: Candidate) -> bool | None:
        """Its value as a condition: None for unknown, and for a value that is not a boolean."""
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
        return candidate.memoized(self._get)


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


class SqlComparison(Node):
    """One of `RELATIONS`, in the SQL of AMQP: strings are ordered, too, and values of different kinds are `<>`."""

    __slots__ = ("_for_all_kinds", "_is_unequal", "_left", "_relation", "_right")

    def __init__(self, left: Node, symbol: str, right: Node) -> None:
        super().__init__((left, right))
        self._left, self._right = left, right
        self._relation = RELATIONS[symbol]
        self._for_all_kinds, self._is_unequal = symbol in _FOR_ALL_KINDS, symbol == "<>"

    def value(self, candidate: Candidate) -> Value:
        """Whether the relation holds."""
        left, right = self._left.value(candidate), self._right.value(candidate)
        if left is None or right is None:
            return None
        if not _are_alike(left, right):
            return self._is_unequal
        if isinstance(left, bool) and not self._for_all_kinds:
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


class SqlIn(Node):
    """IN, or NOT IN, in the SQL of AMQP: it is unknown only if the operand is."""

    __slots__ = ("_is_negated", "_items", "_operand")

    def __init__(self, operand: Node, items: list[Node], *, is_negated: bool) -> None:
        super().__init__((operand, *items))
        self._operand, self._items, self._is_negated = operand, items, is_negated

    def value(self, candidate: Candidate) -> Value:
        """Whether the operand equals one of the items."""
        value = self._operand.value(candidate)
        if value is None:
            return None
        for each in self._items:
            item = each.value(candidate)
            if item is not None and _are_alike(value, item) and value == item:
                return not self._is_negated
        return self._is_negated


class Like(Node):
    """LIKE; unknown if the operand is not a string."""

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
    """Operands joined by + and -, or by *, / and %, evaluated from left to right.

    Args:
        truncates: division of exact numbers truncates; else its result is approximate.
    """

    __slots__ = ("_first", "_rest", "_truncates")

    def __init__(self, first: Node, rest: list[tuple[str, Node]], *, truncates: bool = True) -> None:
        super().__init__((first, *(each for _, each in rest)))
        self._first, self._rest, self._truncates = first, rest, truncates

    def value(self, candidate: Candidate) -> Value:
        """The result; None if an operand is not a number."""
        result = self._first.value(candidate)
        for symbol, node in self._rest:
            operand = node.value(candidate)
            if not _is_number(result) or not _is_number(operand):
                return None
            result = calculated(result, symbol, operand, truncates=self._truncates)
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


def calculated(left: Any, symbol: str, right: Any, *, truncates: bool = True) -> Value:
    """The result of one arithmetic operation on numbers.

    None for a division by zero, and for a remainder (%) of approximate numbers. A remainder has the sign of `left`.
    """
    if symbol == "%":
        if right == 0 or type(left) is not int or type(right) is not int:
            return None
        remainder = abs(left) % abs(right)
        return -remainder if left < 0 else remainder
    if symbol == "/":
        if right == 0:
            return None
        if truncates and type(left) is int and type(right) is int:
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


# ---- names ----

_PREFIX: Final = "amqp."


def _absolute_expiry_time(candidate: Candidate) -> Value:
    return int(candidate.message.expires_at * 1000)


def _correlation_id(candidate: Candidate) -> Value:
    return _id(candidate.properties.correlation_id)


def _creation_time(candidate: Candidate) -> Value:
    return int((candidate.properties.created_at or 0) * 1000)


def _delivery_mode(candidate: Candidate) -> Value:
    return "PERSISTENT" if candidate.message.is_persistent else "NON_PERSISTENT"


def _durable(candidate: Candidate) -> Value:
    return candidate.message.is_persistent


def _jms_type(candidate: Candidate) -> Value:
    return _text(candidate.header("jms-type"))


def _message_id(candidate: Candidate) -> Value:
    return _id(candidate.properties.message_id)


def _priority(candidate: Candidate) -> Value:
    return candidate.message.handling.priority


def _redelivered(candidate: Candidate) -> Value:
    return candidate.is_redelivered


def _reply_to(candidate: Candidate) -> Value:
    reply_to = candidate.properties.reply_to
    return None if reply_to is None else "/".join(each for each in reply_to if each) or None


def _subject(candidate: Candidate) -> Value:
    message = candidate.message
    if message.exchange:
        return message.routing_key or None
    return candidate.properties.subject or _text(candidate.header("qpid.subject"))


def _to(candidate: Candidate) -> Value:
    return candidate.properties.to or candidate.message.exchange or candidate.message.routing_key or None


def _nothing(_candidate: Candidate) -> Value:
    return None


def _id(value: MessageId | None) -> Value:
    """An id as a string."""
    if value is None or isinstance(value, (str, bytes)):
        return as_string(value) if value else None
    return str(value)


def _text(value: Value) -> Value:
    """A header as a string; None if it is neither a string nor a whole number."""
    if isinstance(value, str):
        return value or None
    return str(value) if type(value) is int else None


_PROPERTIES: Final[dict[str, tuple[str, Callable[[Candidate], Value]]]] = {
    "absolute_expiry_time": ("JMSExpiration", _absolute_expiry_time),
    "correlation_id": ("JMSCorrelationID", _correlation_id),
    "creation_time": ("JMSTimestamp", _creation_time),
    "delivery_mode": ("JMSDeliveryMode", _delivery_mode),
    "durable": ("", _durable),
    "jms_type": ("", _jms_type),
    "message_id": ("JMSMessageID", _message_id),
    "priority": ("JMSPriority", _priority),
    "redelivered": ("JMSRedelivered", _redelivered),
    "reply_to": ("JMSReplyTo", _reply_to),
    "subject": ("JMSType", _subject),
    "to": ("JMSDestination", _to),
}
_BY_NAME: Final = {_PREFIX + name: get for name, (_, get) in _PROPERTIES.items()} | {
    alias: get for alias, get in _PROPERTIES.values() if alias
}


def identifier(name: str) -> Node:
    """The node for a name."""
    get = _BY_NAME.get(name)
    if get is not None:
        return Property(get)
    return Property(_nothing) if name.startswith(_PREFIX) else Header(name)
