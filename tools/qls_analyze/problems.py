"""What a run could not do as it should: lines for standard error."""

from __future__ import annotations

from typing import Final

_MOST: Final = 100  # lines that are kept: a forged journal may have any number of problems


class Problems:
    """Gathers problems; any makes the exit code 1.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Something is wrong at `where`: a file, or a file and an offset."""
        self.count += 1
        if len(self._lines) < _MOST:
            self._lines.append(f"{where}: {what}")

    def add_os_error(self, error: OSError, where: str) -> None:
        """The system refused something; the error may name the path."""
        self.add(str(error.filename or where), error.strerror or str(error))

    def lines(self) -> list[str]:
        """One line for each, up to a limit."""
        left_out = self.count - len(self._lines)
        return self._lines if not left_out else [*self._lines, f"and {left_out} more"]
