r"""Reads lines of version 3, and makes statements as those of version 2 of them.

    CONFIG NAME=true|false ...
    GROUP NAME MEMBER ...
    [NUMBER] [ACL] PERMISSION SUBJECT ACTION [OBJECT [PROPERTY=VALUE ...]]

Numbers grow from rule to rule. Keywords and names of properties are of any case; the latter may have underscores.
Strings stand in `'` or `"`, or without them where they have no space, `=`, `#` or quote. What follows `#` outside of
quotes is a comment. A line continues on the next one if its last character but white space is `\`. `=` may have white
space around it.

CONFIG defaultallow and defaultdeny say what is decided without a matching rule. What else CONFIG has (transitive,
expand, controlled) makes rules of other rules, which this broker does not: it is warned of.

Source: Qpid wiki, "Andrew Kennedy's Proposal For ACL v3".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from qstore.broker.security.acl.builder import Builder, Statement
from qstore.broker.security.acl.tables import ALL, PROPERTIES, Kind, Permission

_TOKEN: Final = re.compile(r"""[\x00-\x20]*(?:"([^"]*)"|'([^']*)'|(=)|(\#.*)|([^\x00-\x20"'=#]+)|(.))""", re.DOTALL)
_PERMISSIONS: Final = frozenset(each.value for each in Permission)
_KEYWORDS: Final = frozenset(("acl", "group", "config", "quota"))
_DEFAULTS: Final = {"defaultallow": Permission.ALLOW, "defaultdeny": Permission.DENY}
_EVERYBODY: Final = frozenset((ALL, "any"))


class _Token(NamedTuple):
    text: str
    is_quoted: bool

    @property
    def is_equals(self) -> bool:
        return self.text == "=" and not self.is_quoted

    @property
    def keyword(self) -> str:
        """What it is in rules, if it is a keyword."""
        return "" if self.is_quoted else self.text.lower().replace("_", "-")


class _TokenError(Exception):
    pass


def begins(words: Sequence[str]) -> bool:
    """Whether a file whose first line has these words is of version 3."""
    if not words:
        return False
    word = words[0]
    lower = word.lower().replace("_", "-")
    is_keyword = lower in _KEYWORDS or lower in _PERMISSIONS
    return word.isdigit() or word[0] in "'\"" or (is_keyword and word not in ("acl", "group", "quota"))


def read(lines: Sequence[str], builder: Builder) -> None:
    """Add the statements to a builder. Raises TooManyError."""
    last = -1
    for number, text in _joined(lines):
        try:
            tokens = list(_tokens(text))
            if not tokens:
                continue
            if tokens[0].text.isdigit() and not tokens[0].is_quoted:
                rule = int(tokens.pop(0).text[:20])
                if rule <= last:
                    raise _TokenError(f"rule {rule} follows rule {last}: numbers must grow")
                last = rule
            if tokens and tokens[0].keyword == "config":
                _configure(tokens[1:], number, text, builder)
                continue
            builder.add(Statement(number, text, _words(tokens)))
        except _TokenError as error:
            builder.complain(number, str(error), text)


def _joined(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, and the numbers of the first ones."""
    begun: list[str] = []
    first = 1
    for number, line in enumerate(lines, 1):
        if not begun:
            first = number
        stripped = line.rstrip()
        if stripped.endswith("\\") and not _has_comment(stripped):
            begun.append(stripped[:-1])
            continue
        yield first, " ".join([*begun, line])
        begun = []
    if begun:
        yield first, " ".join(begun)


def _has_comment(line: str) -> bool:
    return any(match.group(4) for match in _TOKEN.finditer(line))


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text.rstrip()):
        double, single, equals, comment, word, other = match.groups()
        if comment:
            return
        if other:
            raise _TokenError(f"unexpected character {other!a}")
        if double is not None or single is not None:
            yield _Token(double if double is not None else single, is_quoted=True)
        else:
            yield _Token(equals or word, is_quoted=False)


def _words(tokens: Sequence[_Token]) -> list[str]:
    """The words of version 2."""
    if not tokens:
        raise _TokenError("a number without a rule")
    first = tokens[0].keyword
    if first in ("group", "quota"):
        return [first, *(each.text for each in tokens[1:])]
    rest = list(tokens[1:] if first == "acl" else tokens)
    if first != "acl" and first not in _PERMISSIONS:
        raise _TokenError(f'"{tokens[0].text}" is not ACL, GROUP, QUOTA, CONFIG or a permission')
    words = [each.keyword or each.text for each in rest[:1]]
    words += [ALL if each.keyword in _EVERYBODY else each.text for each in rest[1:2]]
    words += [ALL if each.keyword in _EVERYBODY else each.keyword or each.text for each in rest[2:4]]
    return ["acl", *words, *_properties(rest[4:])]


def _properties(tokens: Sequence[_Token]) -> Iterator[str]:
    for name, equals, value in _triples(tokens):
        if not equals.is_equals or name.is_equals or value.is_equals:
            raise _TokenError(f'"{name.text}" is not followed by = and a value')
        given = name.text.lower().replace("_", "")
        kind = PROPERTIES[given].kind if given in PROPERTIES else Kind.TEXT
        yield f"{given}={value.text.lower() if kind in (Kind.FLAG, Kind.POLICY) else value.text}"


def _triples(tokens: Sequence[_Token]) -> Iterator[tuple[_Token, _Token, _Token]]:
    if len(tokens) % 3:
        raise _TokenError("a property is not NAME=VALUE")
    for start in range(0, len(tokens), 3):
        yield tokens[start], tokens[start + 1], tokens[start + 2]


def _configure(tokens: Sequence[_Token], line: int, text: str, builder: Builder) -> None:
    for name, equals, value in _triples(tokens):
        given, flag = name.keyword, value.text.lower()
        if not equals.is_equals or flag not in ("true", "false"):
            raise _TokenError(f'"{name.text}" is not followed by =true or =false')
        if given not in _DEFAULTS:
            builder.warn(line, f"CONFIG {name.text} has no effect", text)
        elif flag == "true":
            builder.default = _DEFAULTS[given]
