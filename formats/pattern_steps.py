"""How long a regular expression may take, which is known before it is used.

Python's matcher backtracks: `(a+)+$` takes years for 40 characters. The estimate multiplies the ways in which the parts
of a sequence can match a name of MAX_NAME characters:

    a character, a class, an assertion            1
    a repetition of one of these                  as many as there are counts; 1 at the end, where nothing can fail
    alternatives                                  the sum of theirs
    a repetition of anything with several ways    too many, unless it is an optional part
    an expression that does not begin with ^      MAX_NAME, for the places to begin; 1 if it begins with `.*`

What is matched in the event loop is refused if it could take more than MAX_STEPS.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NAME: Final = 255
MAX_STEPS: Final = 200_000
"""About a millisecond for a name that was made to be slow, some microseconds for others."""
_MAX_DEPTH: Final = 20
_TOO_MANY: Final = 1 << 40
_COUNTS: Final = re.compile(r"\{(\d{0,6})(,?)(\d{0,6})\}")
_GROUP: Final = re.compile(r"\(\?(?:P<\w+>|:|=|!|<=|<!|>|[aimsux]+(?:-[imsx]+)?(:|\)))|\(")


def steps_of(text: str) -> int:
    """The estimated steps of a valid expression, at most a large number."""
    scanner = _Scanner(text)
    ways = scanner.alternatives(0)
    return min(ways * (1 if scanner.is_anchored else MAX_NAME), _TOO_MANY)


class _Scanner:
    """Estimates one expression, which `re` has found to be valid."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.is_anchored = True  # every alternative of the whole begins with ^ or .*

    def alternatives(self, depth: int) -> int:
        """The ways of everything up to the end of the group."""
        if depth > _MAX_DEPTH:
            return _TOO_MANY
        ways = self._sequence(depth)
        while self._at < len(self._text) and self._text[self._at] == "|":
            self._at += 1
            ways += self._sequence(depth)
        return ways

    def _sequence(self, depth: int) -> int:
        text, ways, last = self._text, 1, 1
        if not depth and not text.startswith(("^", r"\A", ".*"), self._at):
            self.is_anchored = False
        while self._at < len(text) and text[self._at] not in "|)":
            inner = self._item(depth)
            least, most = self._repetition()
            if most == 1 and least == 1:
                last = inner
            elif most <= 1:
                last = inner + 1
            elif inner == 1:
                last = most - least + 1
            elif most > 1:
                last = _TOO_MANY
            ways = min(ways * last, _TOO_MANY)
            if not depth and least <= 1 and most > 1 and inner == 1 and self._at == len(text):
                ways = max(1, ways // last)  # nothing after it can fail
        return ways

    def _item(self, depth: int) -> int:
        """One character, class, assertion or group. Returns its ways."""
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
        return 1

    def _group(self, depth: int) -> int:
        opened = _GROUP.match(self._text, self._at)
        if opened is None or (self._text.startswith("(?", self._at) and opened.end() == self._at + 1):
            self._at = len(self._text)  # a conditional, a comment or a back reference
            return _TOO_MANY
        self._at = opened.end()
        if opened.group(1) == ")":  # flags for the whole
            return 1
        ways = self.alternatives(depth + 1)
        self._at += 1
        return ways

    def _repetition(self) -> tuple[int, int]:
        """The least and the most times that the item may occur."""
        text, at = self._text, self._at
        if at == len(text):
            return 1, 1
        counts = _COUNTS.match(text, at)
        if counts is not None and (counts.group(1) or counts.group(2)):
            self._at = counts.end()
            least = int(counts.group(1) or 0)
            most = int(counts.group(3) or MAX_NAME) if counts.group(2) else least
            bounds = least, max(min(most, MAX_NAME + least), least)
        elif text[at] in "*+?":
            self._at += 1
            bounds = (1 if text[at] == "+" else 0), (1 if text[at] == "?" else MAX_NAME)
        else:
            return 1, 1
        if self._at < len(text) and text[self._at] in "?+":  # lazy or possessive
            self._at += 1
        return bounds
