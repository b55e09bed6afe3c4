"""The grammar of selectors, and its parser, which creates the nodes while it reads.

    condition   = conjunction {OR conjunction}
    conjunction = negation {AND negation}
    negation    = {NOT} comparison
    comparison  = total [relation total | IS [NOT] NULL | [NOT] BETWEEN total AND total
                        | [NOT] IN "(" total {"," total} ")" | [NOT] LIKE string [ESCAPE string]]
    total       = product {("+" | "-") product}
    product     = factor {("*" | "/") factor}
    factor      = {"+" | "-"} (number | string | TRUE | FALSE | name | "(" condition ")")
    relation    = "<>" | "<=" | ">=" | "=" | "<" | ">"

That is the grammar of selectors. The SQL of AMQP's filter expressions has other tokens, and other nodes for names,
relations, IN and arithmetic: a `Dialect` has what differs.

Nested conditions do not use the interpreter's stack: rules are generators that yield the rules that they need, and get
back their nodes (`_node_of`). A general parser would take 45 ms to be imported at the broker's start.

Keywords are case-insensitive, names are not. A name begins with a letter, "_" or "$", and may have digits and "." after
it; in double quotes it may have any characters. Exact numbers are decimal, or octal (017), hexadecimal (0xF) or binary
(0b1) with 64 bits in two's complement, with an optional L at the end. Approximate numbers have a point, an exponent, or
an F or D at the end. Digits may be separated by "_".

Sources: JMS 1.1, 3.8.1.1; Apache Qpid C++, SelectorExpression and SelectorToken: forms of numbers, quoted names,
arithmetic on both sides of every operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from qstore.broker.model.arguments import shown
from qstore.broker.model.selectors.nodes import (
    AllOf,
    AnyOf,
    Between,
    Calculation,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Pattern,
    identifier,
)
from qstore.formats.named_tuple import NamedTuple

MAX_DEPTH: Final = 100
"""Maximum nesting of operators. A chain of AND, of OR, or of arithmetic of one rank counts once."""

MAX_PARENTHESES: Final = 1_000
"""Maximum nesting of parentheses; each takes some 4 µs and 800 bytes while it is read."""

MAX_TOKENS: Final = 4_000
"""Names, values, words and symbols: some 3 µs each, in which the broker serves nobody else."""

_MAX_DECIMAL: Final = 1 << 63  # with a minus
_MAX_DIGITS: Final = 40  # far more than 64 bits need
_MAX_OTHER: Final = (1 << 64) - 1
_BASES: Final = {"0x": 16, "0b": 2}

_TOKEN: Final = re.compile(
    r"""
    \s*(?:
    (?P<number>0x[0-9a-f][0-9a-f_]*(?:p[+-]?[0-9]+[fd]?|l?)
        |0b[01][01_]*l?
        |(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=e[+-]?[0-9]))(?:e[+-]?[0-9]+)?[fd]?
        |[0-9][0-9_]*[fd]
        |0[0-7_]*l?
        |[1-9][0-9_]*l?)
    |(?P<string>'(?:[^']|'')*'(?!'))
    |(?P<quoted>"(?:[^"]|"")*"(?!"))
    |(?P<name>[^\W\d][\w$.]*|\$[\w$.]*)
    |(?P<relation><>|<=|>=|=|<|>)
    |(?P<symbol>[-+*/(),])
    |(?P<end>\Z))
    """,
    re.IGNORECASE | re.VERBOSE,
)

_WORDS: Final = frozenset(
    ("and", "between", "escape", "false", "in", "is", "like", "not", "null", "or", "true")
)  # fmt: skip


class SelectorError(Exception):
    """A text is not a selector.

    Attributes:
        position: the first wrong character, counted from 1; None for the whole text.
        problem: the problem, as text.
    """

    def __init__(self, position: int | None, problem: str) -> None:
        super().__init__(position, problem)
        self.position, self.problem = position, problem


class Token(NamedTuple):
    """A token.

    Attributes:
        kind: the name of its group in `Dialect.tokens`; for a "symbol" the symbol, for a word the word in lower case;
            empty at the end.
        text: as given.
        position: of its first character, counted from 1.
    """

    kind: str
    text: str
    position: int


class Dialect(NamedTuple):
    """A language of conditions that has the grammar above.

    Attributes:
        tokens: matches a token, after white space; has the groups "name", "string", "relation", "symbol" and "end".
        words: names that are words of the language, in lower case.
        operands: kinds of tokens that are operands.
        operand: the node for such a token. Raises SelectorError.
        products: the symbols of a product's operators.
        comparison: the node for a relation of two operands.
        membership: the node for IN and NOT IN.
        calculation: the node for operands that are joined by signs of one rank.
    """

    tokens: re.Pattern[str]
    words: frozenset[str]
    operands: tuple[str, ...]
    operand: Callable[[Token], Node]
    products: tuple[str, ...]
    comparison: Callable[[Node, str, Node], Node]
    membership: Callable[[Node, list[Node], bool], Node]
    calculation: Callable[[Node, list[tuple[str, Node]]], Node]


Rule: TypeAlias = "Generator[Rule, Node, Node]"
"""A rule while it is read: yields those that it needs, gets their nodes, and returns its own."""


class _Reader:
    """Reads one selector.

    Attributes:
        token: the next token.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text, self._at = text, 0
        self._dialect = dialect
        self._left = MAX_TOKENS
        self._open = 0  # parentheses
        self.token = self._next()

    # ---- tokens ----

    def _next(self) -> Token:
        text = self._text
        found = self._dialect.tokens.match(text, self._at)
        if found is None:
            at = len(text) - len(text[self._at :].lstrip())
            character = text[at]
            is_open = character in "'\"["
            raise SelectorError(
                at + 1, "the quotes are not closed" if is_open else f"{shown(character)} is not expected here"
            )
        self._at = found.end()
        kind = found.lastgroup
        assert kind is not None
        taken, position = found[kind], found.start(kind) + 1
        self._left -= 1
        if self._left < 0 and kind != "end":
            raise SelectorError(position, f"more than {MAX_TOKENS:,} names, values and operators")
        if kind == "name" and taken.lower() in self._dialect.words:
            return Token(taken.lower(), taken, position)
        if kind == "end":
            return Token("", "", len(text) + 1)
        return Token(taken if kind == "symbol" else kind, taken, position)

    def take(self, *kinds: str) -> Token:
        """The next token, which must be of one of these kinds; without any, the text must have ended."""
        token = self.token
        if token.kind not in (kinds or ("",)):
            problem = f"{shown(token.text)} is not expected here" if token.kind else "unexpected end"
            raise SelectorError(token.position, problem)
        if token.kind:
            self.token = self._next()
        return token

    def takes(self, kind: str) -> bool:
        """Take the next token if it is of this kind. Returns whether it is."""
        if self.token.kind != kind:
            return False
        self.token = self._next()
        return True

    # ---- rules ----

    def condition(self) -> Rule:
        """condition, conjunction, negation."""
        one_of: list[Node] = []
        while True:
            all_of: list[Node] = []
            while True:
                negations = 0
                while self.takes("not"):
                    negations += 1
                node = yield self._comparison()
                for _ in range(negations):
                    node = _checked(Not(node))
                all_of.append(node)
                if not self.takes("and"):
                    break
            one_of.append(all_of[0] if len(all_of) == 1 else _checked(AllOf(all_of)))
            if not self.takes("or"):
                return one_of[0] if len(one_of) == 1 else _checked(AnyOf(one_of))

    def _comparison(self) -> Rule:
        left = yield self._total()
        kind = self.token.kind
        if kind == "relation":
            symbol = self.take("relation").text
            right = yield self._total()
            return _checked(self._dialect.comparison(left, symbol, right))
        if self.takes("is"):
            is_negated = self.takes("not")
            self.take("null")
            return _negated(IsNull(left), is_negated=is_negated)
        is_negated = self.takes("not")
        if not is_negated and kind not in ("between", "in", "like"):
            return left
        operator = self.take("between", "in", "like").kind
        if operator == "between":
            low = yield self._total()
            self.take("and")
            high = yield self._total()
            return _negated(Between(left, low, high), is_negated=is_negated)
        if operator == "like":
            return _negated(Like(left, self._pattern()), is_negated=is_negated)
        self.take("(")
        item = yield self._total()
        items = [item]
        while self.take(",", ")").kind == ",":
            item = yield self._total()
            items.append(item)
        return _checked(self._dialect.membership(left, items, is_negated))

    def _total(self) -> Rule:
        """total, product, factor."""
        products = self._dialect.products
        total: list[Node] = []
        signs: list[str] = []  # between the products
        while True:
            product: list[Node] = []
            between: list[str] = []
            while True:
                prefixes: list[str] = []
                while self.token.kind in ("+", "-"):
                    prefixes.append(self.take("+", "-").kind)
                if self.token.kind == "(":
                    self._open_parenthesis()
                    node = yield self.condition()
                    self.take(")")
                    self._open -= 1
                else:
                    node = self._operand()
                for sign in reversed(prefixes):
                    if sign == "-":
                        node = _checked(_negative(node))
                product.append(node)
                if self.token.kind not in products:
                    break
                between.append(self.take(*products).kind)
            total.append(self._calculation(product, between))
            if self.token.kind not in ("+", "-"):
                return self._calculation(total, signs)
            signs.append(self.take("+", "-").kind)

    def _open_parenthesis(self) -> None:
        token = self.take("(")
        self._open += 1
        if self._open > MAX_PARENTHESES:
            raise SelectorError(token.position, f"more than {MAX_PARENTHESES:,} parentheses are nested")

    def _operand(self) -> Node:
        return self._dialect.operand(self.take(*self._dialect.operands))

    def _calculation(self, operands: list[Node], symbols: list[str]) -> Node:
        if len(operands) == 1:
            return operands[0]
        return _checked(self._dialect.calculation(operands[0], list(zip(symbols, operands[1:], strict=True))))

    def _pattern(self) -> Pattern:
        pattern = unquoted(self.take("string"))
        if not self.takes("escape"):
            return Pattern(pattern, "")
        token = self.take("string")
        escape = unquoted(token)
        if len(escape) != 1 or escape in "%_":
            raise SelectorError(token.position, "ESCAPE must be followed by one character, other than % and _")
        return Pattern(pattern, escape)


def _checked(node: Node) -> Node:
    if node.depth > MAX_DEPTH:
        raise SelectorError(None, f"more than {MAX_DEPTH} operators are nested")
    return node


def _negated(node: Node, *, is_negated: bool) -> Node:
    return _checked(Not(_checked(node)) if is_negated else node)


def _negative(operand: Node) -> Node:
    constant = operand.constant if isinstance(operand, Literal) else None
    if isinstance(constant, (int, float)) and not isinstance(constant, bool):
        return Literal(-constant)
    return Negative(operand)


def unquoted(token: Token) -> str:
    """The content of a token in quotes, in which the quote is doubled."""
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def _number(token: Token) -> int | float:
    text = token.text.replace("_", "").lower()
    base = _BASES.get(text[:2], 8 if text[0] == "0" and text[1:].rstrip("l").isdigit() else 10)
    if base == 16 and "p" in text:
        number = _hexadecimal_float(text.rstrip("fd"))
    elif base == 10 and not text.rstrip("l").isdigit():
        number = float(text.rstrip("fd"))
    elif base == 10:
        number = int(text.rstrip("l")) if len(text) < _MAX_DIGITS else math.inf
        if number > _MAX_DECIMAL:
            raise SelectorError(token.position, "the number exceeds 64 bits with sign")
    else:
        number = int(text.rstrip("l"), base)
        if number > _MAX_OTHER:
            raise SelectorError(token.position, "the number exceeds 64 bits")
        number -= (number & _MAX_DECIMAL) << 1
    if math.isinf(number):
        raise SelectorError(token.position, "the number is too large")
    return number


def _hexadecimal_float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return math.inf


def _node_of(rule: Rule) -> Node:
    """Read a rule, and those that it needs."""
    under_way = [rule]
    node: Node | None = None
    while True:
        try:
            inner = under_way[-1].send(node)  # type: ignore[arg-type]  # None begins a rule
        except StopIteration as end:
            under_way.pop()
            node = end.value
            if not under_way:
                assert node is not None
                return node
        else:
            under_way.append(inner)
            node = None


def _operand(token: Token) -> Node:
    if token.kind == "number":
        return Literal(_number(token))
    if token.kind == "string":
        return Literal(unquoted(token))
    if token.kind == "name":
        return identifier(token.text)
    return identifier(unquoted(token)) if token.kind == "quoted" else Literal(token.kind == "true")


def _membership(operand: Node, items: list[Node], is_negated: bool) -> Node:
    return In(operand, items, is_negated=is_negated)


_SELECTORS: Final = Dialect(
    tokens=_TOKEN,
    words=_WORDS,
    operands=("number", "string", "true", "false", "name", "quoted"),
    operand=_operand,
    products=("*", "/"),
    comparison=Comparison,
    membership=_membership,
    calculation=Calculation,
)


def parse(text: str, dialect: Dialect = _SELECTORS) -> Node:
    """Parse a selector that is not blank, or a condition in another dialect. Raises SelectorError."""
    reader = _Reader(text, dialect)
    node = _node_of(reader.condition())
    reader.take()
    return node
