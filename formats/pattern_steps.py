"""How long a regular expression may take, which is known before it is used.

Python's matcher backtracks: `(a+)+$` takes years for 40 characters. There are two estimates:

**Steps** multiply the ways in which the parts of a sequence can match a text of a given length, `MAX_NAME` characters
unless something else is said:

    a character, a class, an assertion            1
    a repetition of one of these                  as many as there are counts; 1 at the end, where nothing can fail
    alternatives                                  the sum of theirs
    a repetition of anything with several ways    too many, unless it is an optional part
    an expression that does not begin with ^      the length, for the places to begin; 1 if it begins with `.*`

**Nanoseconds** sum up what each part takes in all ways of the parts before it, which tells `a.*b` from `a.*[bc]` and
`a?a?a?a?a?a?b`: in steps they differ little, in time by a factor of 50. The times of the parts are measured ones of
CPython 3.11, on a slow machine with texts that were made to be slow.
"""

from __future__ import annotations

import re
from typing import Final

from qstore.formats.named_tuple import NamedTuple

MAX_NAME: Final = 255
MAX_STEPS: Final = 200_000
"""About a millisecond for a name that was made to be slow, some microseconds for others."""
_MAX_DEPTH: Final = 20
_TOO_MANY: Final = 1 << 40
_COUNTS: Final = re.compile(r"\{(\d{0,6})(,?)(\d{0,6})\}")
_GROUP: Final = re.compile(r"\(\?(?:P<\w+>|:|=|!|<=|<!|>|[aimsux]+(?:-[imsx]+)?(:|\)))|\(")
_ITEM_NS: Final = 6
_BRANCH_NS: Final = 9
_REPETITION_NS: Final = 18
_COUNT_NS: Final = 1
_SLOW_COUNT_NS: Final = 4  # lazy, or in any case
_LAST_LITERAL_NS: Final = 1
"""A greedy repetition looks for the character behind it by itself; if that is the last, nothing else is tried."""


class _Cost(NamedTuple):
    """The ways in which a part can match, and the nanoseconds to try all of them once."""

    ways: int
    time: int


_NEVER_ENDS: Final = _Cost(_TOO_MANY, _TOO_MANY)


def steps_of(text: str, length: int = MAX_NAME) -> int:
    """The estimated steps of a valid expression for a text of so many characters, at most a large number."""
    scanner = _Scanner(text, length)
    ways = scanner.alternatives(0).ways
    return min(ways * (1 if scanner.is_anchored else length), _TOO_MANY)


def nanoseconds_of(text: str, length: int) -> int:
    """The estimated time of a valid expression, likewise."""
    scanner = _Scanner(text, length)
    time = scanner.alternatives(0).time
    return min(time * (1 if scanner.is_anchored else length), _TOO_MANY)


class _Scanner:
    """Estimates one expression, which `re` has found to be valid."""

    def __init__(self, text: str, length: int) -> None:
        self._text, self._length, self._at = text, length, 0
        self.is_anchored = True  # every alternative of the whole begins with ^ or .*
        self._ignores_case = False

    def alternatives(self, depth: int) -> _Cost:
        """The cost of everything up to the end of the group."""
        if depth > _MAX_DEPTH:
            return _NEVER_ENDS
        ways, time = self._sequence(depth)
        while self._at < len(self._text) and self._text[self._at] == "|":
            self._at += 1
            more = self._sequence(depth)
            ways, time = ways + more.ways, time + more.time + _BRANCH_NS
        return _Cost(ways, min(time, _TOO_MANY))

    def _sequence(self, depth: int) -> _Cost:
        text, ways, time = self._text, 1, 0
        if not depth and not text.startswith(("^", r"\A", ".*"), self._at):
            self.is_anchored = False
        is_behind_repetition = False
        while self._at < len(text) and text[self._at] not in "|)":
            begin, before = self._at, ways
            inner = self._item(depth)
            is_literal = self._at == begin + 1 and text[begin] not in ".^$" and not self._ignores_case
            least, most, is_lazy = self._repetition()
            if most == 1 and least == 1:
                last, taken = inner.ways, inner.time
                if is_literal and is_behind_repetition and (self._at == len(text) or text[self._at] in "|)"):
                    taken = _LAST_LITERAL_NS
            elif most <= 1:
                last, taken = inner.ways + 1, inner.time + _BRANCH_NS
            elif inner.ways == 1:
                last = most - least + 1
                is_slow = is_lazy or self._ignores_case
                each = _SLOW_COUNT_NS if is_slow else _COUNT_NS
                taken = _REPETITION_NS + most * (each if inner.time <= _ITEM_NS else inner.time + each)
            else:
                last = taken = _TOO_MANY
            is_behind_repetition = most > 1 and not is_lazy
            ways, time = min(ways * last, _TOO_MANY), min(time + before * taken, _TOO_MANY)
            if not depth and least <= 1 and most > 1 and inner.ways == 1 and self._at == len(text):
                ways = max(1, ways // last)  # nothing after it can fail
        return _Cost(ways, time)

    def _item(self, depth: int) -> _Cost:
        """One character, class, assertion or group."""
        text, first = self._text, self._text[self._at]
        if first == "\\":
            self._at += 2
        elif first == "[":
            self._at += 2 if text.startswith("^", self._at + 1) else 1
            self._at += 1  # a `]` here is a character
            while self._at < len(text) and text[self._at] != "]":
                self._at += 2 if text[self._at] == "\\" else 1
            self._at += 1
        elif first == "(":
            return self._group(depth)
        else:
            self._at += 1
        return _Cost(1, _ITEM_NS)

    def _group(self, depth: int) -> _Cost:
        opened = _GROUP.match(self._text, self._at)
        if opened is None or (self._text.startswith("(?", self._at) and opened.end() == self._at + 1):
            self._at = len(self._text)  # a conditional, a comment or a back reference
            return _NEVER_ENDS
        self._at = opened.end()
        self._ignores_case |= opened.group(1) is not None
        if opened.group(1) == ")":  # flags for the whole
            return _Cost(1, 0)
        inside = self.alternatives(depth + 1)
        self._at += 1
        return inside._replace(time=inside.time + _ITEM_NS)

    def _repetition(self) -> tuple[int, int, bool]:
        """The least and the most times that the item may occur, and whether the least are tried first."""
        text, at = self._text, self._at
        if at == len(text):
            return 1, 1, False
        counts = _COUNTS.match(text, at)
        if counts is not None and (counts.group(1) or counts.group(2)):
            self._at = counts.end()
            least = int(counts.group(1) or 0)
            most = int(counts.group(3) or self._length) if counts.group(2) else least
            least, most = least, max(min(most, self._length + least), least)
        elif text[at] in "*+?":
            self._at += 1
            least, most = (1 if text[at] == "+" else 0), (1 if text[at] == "?" else self._length)
        else:
            return 1, 1, False
        is_lazy = text.startswith("?", self._at)
        if self._at < len(text) and text[self._at] in "?+":  # lazy or possessive
            self._at += 1
        return least, most, is_lazy
