"""Publishers that are faster than the disk, and what is done about them: they are not read until it has caught up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broker.model.turn import Turn


class Reader(Protocol):
    """A connection, as pressure sees it."""

    def stop_reading(self, reason: object) -> None:
        """Read nothing for this reason."""

    def go_on_reading(self, reason: object) -> None:
        """The reason is gone."""

    def catch_up(self) -> None:
        """Go on with what was read."""


class Pressure:
    """Stops and starts the connections that write to journals.

    A journal takes so much that is not on the disk, and then makes the whole broker wait. So when it has half of that,
    all connections that have written to it lately are stopped, until what it has now is on the disk.

    Args:
        turn: what the event loop's turn has gathered.
        call_soon: has a function called in the event loop's next turn.
    """

    def __init__(self, turn: Turn, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn, self._call_soon = turn, call_soon
        self._writers: dict[Any, dict[Reader, None]] = {}  # by journal, lately
        self._full: dict[Any, None] = {}

    def after(self, connection: Reader, journals: Iterable[Any]) -> None:
        """A connection has written to `journals`: stop it, and others that do, if too much waits for the disk."""
        for journal in journals:
            writers = self._writers.setdefault(journal, {})
            writers[connection] = None
            if journal in self._full:
                connection.stop_reading(journal)
            elif journal.unsynced > journal.bound // 2:
                self._full[journal] = None
                for each in writers:
                    each.stop_reading(journal)
                self._turn.when_synced(partial(self._ease, journal))

    def holds(self, reasons: Set[object]) -> bool:
        """Whether one of the reasons for not reading is a journal."""
        return any(journal in reasons for journal in self._full)

    def _ease(self, journal: Any, _error: Exception | None) -> None:
        """What the journal had is on the disk, or never will be: go on with those who were stopped."""
        del self._full[journal]
        for connection in self._writers.pop(journal, ()):
            connection.go_on_reading(journal)
            self._call_soon(connection.catch_up)  # not now, while a turn may be ending

    def forget(self) -> None:
        """Some time has gone by: whoever has not written lately is not stopped."""
        self._writers = {journal: writers for journal, writers in self._writers.items() if journal in self._full}
