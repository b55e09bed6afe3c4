"""What is wrong with an ACL file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = 100  # characters of a line
_TOLD = 5  # problems in the text of an error


class Problem(NamedTuple):
    """Something in a file that is wrong, or has no effect.

    Attributes:
        line: the number of its line, counted from 1; 0 for the file.
        reason: what is wrong.
        text: the line.
    """

    line: int
    reason: str
    text: str = ""

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        line = f": {shown!a}" if shown else ""
        return f"line {self.line}: {self.reason}{line}" if self.line else f"{self.reason}{line}"


class AclFileError(Exception):
    """An ACL file cannot be used. The text is one line.

    Attributes:
        path: the file.
        problems: all that is wrong with it, in the order of its lines.
    """

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        more = len(problems) - _TOLD
        texts = [*map(str, problems[:_TOLD]), *([f"and {more} more"] if more > 0 else [])]
        super().__init__(f"{path}: {'; '.join(texts)}")
        self.path, self.problems = path, tuple(problems)
