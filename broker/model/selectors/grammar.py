"""The grammar of selectors, and its parser, which creates the nodes while it reads, without recursion.

Keywords are case-insensitive, names are not. A name begins with a letter, "_" or "$", and may have digits and "." after
it; in double quotes it may have any characters. Exact numbers are decimal, or octal (017), hexadecimal (0xF) or binary
(0b1) with 64 bits in two's complement, with an optional L at the end. Approximate numbers have a point, an exponent, or
an F or D at the end. Digits may be separated by "_".

Sources: JMS 1.1, 3.8.1.1; Apache Qpid C++, SelectorExpression and SelectorToken: forms of numbers, quoted names,
arithmetic on both sides of every operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

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

MAX_DEPTH: Final = 100
"""Maximum nesting of operators. A chain of AND, of OR, or of arithmetic of one rank counts once."""

_MAX_DECIMAL: Final = 1 << 63  # with a minus
_MAX_DIGITS: Final = 40  # far more than 64 bits need
_MAX_OTHER: Final = (1 << 64) - 1
_BASES: Final = {"0x": 16, "0b": 2}

_GRAMMAR: Final = r"""
?start: any_of
?any_of: all_of ("OR"i all_of)*
?all_of: negation ("AND"i negation)*
?negation: "NOT"i negation -> not_
    | comparison
?comparison: total
    | total RELATION total -> compare
    | total "IS"i "NULL"i -> is_null
    | total "IS"i "NOT"i "NULL"i -> is_not_null
    | total "BETWEEN"i total "AND"i total -> between
    | total "NOT"i "BETWEEN"i total "AND"i total -> not_between
    | total "IN"i "(" total ("," total)* ")" -> in_
    | total "NOT"i "IN"i "(" total ("," total)* ")" -> not_in
    | total "LIKE"i STRING ("ESCAPE"i STRING)? -> like
    | total "NOT"i "LIKE"i STRING ("ESCAPE"i STRING)? -> not_like
?total: product ((PLUS | MINUS) product)*
?product: factor ((TIMES | OVER) factor)*
?factor: MINUS factor -> negative
    | PLUS factor -> positive
    | NUMBER -> number
    | STRING -> string
    | "TRUE"i -> true
    | "FALSE"i -> false
    | NAME -> name
    | QUOTED_NAME -> quoted_name
    | "(" any_of ")"
RELATION: "<>" | "<=" | ">=" | "=" | "<" | ">"
PLUS: "+"
MINUS: "-"
TIMES: "*"
OVER: "/"
NUMBER: /0x[0-9a-f][0-9a-f_]*(?:p[+-]?[0-9]+[fd]?|l?)
    |0b[01][01_]*l?
    |(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=e[+-]?[0-9]))(?:e[+-]?[0-9]+)?[fd]?
    |[0-9][0-9_]*[fd]
    |0[0-7_]*l?
    |[1-9][0-9_]*l?/ix
STRING: /'(?:[^']|'')*'(?!')/
QUOTED_NAME: /"(?:[^"]|"")*"(?!")/
NAME: /[^\W\d][\w$.]*|\$[\w$.]*/i
%ignore /\s+/
"""


class SelectorError(Exception):
    """A text is not a selector.

    Attributes:
        position: the first wrong character, counted from 1; None for the whole text.
        problem: the problem, as text.
    """

    def __init__(self, position: int | None, problem: str) -> None:
        super().__init__(position, problem)
        self.position, self.problem = position, problem


#: Rule of the grammar -> creates its node from the nodes and named tokens that the parser has read for it.
_RULES: Final[dict[str, Callable[[list[Any]], Node]]] = {
    "any_of": AnyOf,
    "all_of": AllOf,
    "not_": lambda found: Not(found[0]),
    "compare": lambda found: Comparison(found[0], str(found[1]), found[2]),
    "is_null": lambda found: IsNull(found[0]),
    "is_not_null": lambda found: Not(IsNull(found[0])),
    "between": lambda found: Between(found[0], found[1], found[2]),
    "not_between": lambda found: Not(Between(found[0], found[1], found[2])),
    "in_": lambda found: In(found[0], found[1:], is_negated=False),
    "not_in": lambda found: In(found[0], found[1:], is_negated=True),
    "like": lambda found: Like(found[0], _pattern(found[1:])),
    "not_like": lambda found: Not(Like(found[0], _pattern(found[1:]))),
    "total": lambda found: _calculation(found),
    "product": lambda found: _calculation(found),
    "negative": lambda found: _negative(found[1]),
    "positive": lambda found: found[1],
    "number": lambda found: Literal(_number(found[0])),
    "string": lambda found: Literal(_unquoted(found[0])),
    "true": lambda _: Literal(True),
    "false": lambda _: Literal(False),
    "name": lambda found: identifier(str(found[0])),
    "quoted_name": lambda found: identifier(_unquoted(found[0])),
}


class _NodeMaker(Transformer[Token, Node]):
    """The rules as the parser requires them: a method for each."""

    def __init__(self) -> None:
        super().__init__()
        for rule, make in _RULES.items():
            setattr(self, rule, partial(_made, make))


def _made(make: Callable[[list[Any]], Node], found: list[Any]) -> Node:
    node = make(found)
    if node.depth > MAX_DEPTH:
        raise SelectorError(None, f"more than {MAX_DEPTH} operators are nested")
    return node


def _calculation(found: list[Any]) -> Node:
    return Calculation(found[0], list(zip(map(str, found[1::2]), found[2::2], strict=True)))


def _negative(operand: Node) -> Node:
    constant = operand.constant if isinstance(operand, Literal) else None
    if isinstance(constant, (int, float)) and not isinstance(constant, bool):
        return Literal(-constant)
    return Negative(operand)


def _position(token: Token) -> int:
    return (token.start_pos or 0) + 1


def _unquoted(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def _pattern(found: list[Token]) -> Pattern:
    escape = _unquoted(found[1]) if len(found) > 1 else ""
    if len(found) > 1 and (len(escape) != 1 or escape in "%_"):
        raise SelectorError(_position(found[1]), "ESCAPE must be followed by one character, other than % and _")
    return Pattern(_unquoted(found[0]), escape)


def _number(token: Token) -> int | float:
    text = token.replace("_", "").lower()
    base = _BASES.get(text[:2], 8 if text[0] == "0" and text[1:].rstrip("l").isdigit() else 10)
    if base == 16 and "p" in text:
        number = _hexadecimal_float(text.rstrip("fd"))
    elif base == 10 and not text.rstrip("l").isdigit():
        number = float(text.rstrip("fd"))
    elif base == 10:
        number = int(text.rstrip("l")) if len(text) < _MAX_DIGITS else math.inf
        if number > _MAX_DECIMAL:
            raise SelectorError(_position(token), "the number exceeds 64 bits with sign")
    else:
        number = int(text.rstrip("l"), base)
        if number > _MAX_OTHER:
            raise SelectorError(_position(token), "the number exceeds 64 bits")
        number -= (number & _MAX_DECIMAL) << 1
    if math.isinf(number):
        raise SelectorError(_position(token), "the number is too large")
    return number


def _hexadecimal_float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return math.inf


_PARSER: Final = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_NodeMaker())


def parse(text: str) -> Node:
    """Parse a selector that is not blank. Raises SelectorError."""
    try:
        return _PARSER.parse(text)  # type: ignore[return-value]  # the result of the transformer
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise SelectorError(len(text) + 1, "unexpected end") from None
        raise SelectorError(_position(error.token), f"{shown(str(error.token))} is not expected here") from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        character = text[at]
        problem = "the quotes are not closed" if character in "'\"" else f"{shown(character)} is not expected here"
        raise SelectorError(at + 1, problem) from None
