"""The patterns of LIKE: "_" stands for one character, "%" for any number of them.

The parts between the "%" are searched from left to right, each at its first place after the one before, so that nothing
is tried twice. The time is linear in the length of the text for parts without "_"; for parts with "_" it is the length
of the text times that of the part, and for long ones that of the part in machine words. (A regular expression with
repeats may take exponential time; those here have none.)

Source: JMS 1.1, 3.8.1.1.
"""

from __future__ import annotations

import re
from typing import Final

_MAX_EXPRESSION: Final = 64  # characters of a part up to which an expression is faster than a loop
_WILD_WORK: Final = 32  # searching a part with "_" takes up to so many times as long as one without

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
        """How long it takes to search it, relative to a part without "_"."""
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
        """Where its first place between `begin` and `end` ends; -1 if there is none."""
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
        """How much `matches` reads at most, in characters compared one by one (`Candidate.work`)."""
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
