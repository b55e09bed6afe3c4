"""Problems of a run: lines for standard error."""

from __future__ import annotations

from typing import Final

_MAX_LINES: Final = 100  # lines that are stored: a forged journal may have any number of problems


class Problems:
    """Collects problems; any problem makes the exit code 1.

    Attributes:
        count: number of problems.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Add a problem at `where`: a file, or a file and an offset."""
        self.count += 1
        if len(self._lines) < _MAX_LINES:
            self._lines.append(f"{where}: {what}")

    def add_os_error(self, error: OSError, where: str) -> None:
        """Add an error of a system call; the error may name the path."""
        self.add(str(error.filename or where), error.strerror or str(error))

    def lines(self) -> list[str]:
        """One line for each, up to a limit."""
        left_out = self.count - len(self._lines)
        return self._lines if not left_out else [*self._lines, f"and {left_out} more"]
