"""Backpressure: publishers that outrun the disk are not read until it has caught up; rarely if it is nearly full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from qstore.broker.model.tick import Tick

_TIGHT: Final = "tight"  # a reason for not reading


class Reader(Protocol):
    """A connection that can stop and resume reading."""

    def stop_reading(self, reason: object) -> None:
        """Stop reading until this reason is removed."""

    def resume_reading(self, reason: object) -> None:
        """Remove a reason; resume reading if it was the last."""

    def catch_up(self) -> None:
        """Process the data that was already read."""

    def watch_disk(self, *, is_short: bool) -> None:
        """The disk is short for what the client publishes, or no longer."""


class Pressure:
    """Stops and resumes the connections that write to journals.

    At its limit of unsynced bytes a journal blocks the whole broker. So at half of the limit, all connections that have
    recently written to the journal are stopped, until the bytes that are unsynced now have been synced.

    A journal is tight if it is nearly full, and the disk has no room for it to grow. Its publishers are read only once
    in an interval of the timer, so that consumers can catch up before messages are refused.

    Args:
        tick: the event loop tick.
        call_soon: schedules a function for the next iteration of the event loop.
    """

    def __init__(self, tick: Tick, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._tick, self._call_soon = tick, call_soon
        self._writers: dict[Any, dict[Reader, None]] = {}  # journal -> connections that have recently written to it
        self._full: dict[Any, None] = {}
        self._tight: dict[Any, int] = {}  # journals that are tight -> messages enqueued so far
        self._held: dict[Reader, None] = {}  # their publishers that are not read
        self._told: dict[Reader, set[Any]] = {}  # publishers that know that the disk is short -> for which journals

    def after(self, connection: Reader, journals: Iterable[Any]) -> None:
        """A connection has written to `journals`: stop the writers of each journal with too many unsynced bytes."""
        for journal in journals:
            writers = self._writers.setdefault(journal, {})
            writers[connection] = None
            if journal in self._full:
                connection.stop_reading(journal)
            elif journal.unsynced > journal.bound // 2:
                self._full[journal] = None
                for each in writers:
                    each.stop_reading(journal)
                self._tick.when_synced(partial(self._resume, journal))
            if journal.is_tight:
                self._hold_publisher(connection, journal)

    def _hold_publisher(self, connection: Reader, journal: Any) -> None:
        """A connection has written to a tight journal: stop it if it has published."""
        enqueued = journal.enqueues + journal.transaction_enqueues
        if self._tight.get(journal) != enqueued:
            self._tight[journal] = enqueued
            self._held[connection] = None
            connection.stop_reading(_TIGHT)
            if connection not in self._told:
                self._told[connection] = set()
                connection.watch_disk(is_short=True)
            self._told[connection].add(journal)

    def holds(self, reasons: Set[object]) -> bool:
        """Whether one of the reasons for not reading is a journal's backlog, or that one is tight."""
        return _TIGHT in reasons or any(journal in reasons for journal in self._full)

    def _resume(self, journal: Any, _error: Exception | None) -> None:
        """The journal's backlog is synced, or its sync has failed: resume the stopped connections."""
        del self._full[journal]
        for connection in self._writers.pop(journal, ()):
            connection.resume_reading(journal)
            self._call_soon(connection.catch_up)  # deferred, since a tick may be ending now

    def on_timer(self) -> None:
        """Called at intervals: forget the recent writers of journals that are not full, and resume publishers."""
        self._tight = {journal: enqueued for journal, enqueued in self._tight.items() if journal.is_tight}
        for connection in list(self._held):
            self._call_soon(connection.catch_up)
            connection.resume_reading(_TIGHT)
            del self._held[connection]
        for connection, journals in list(self._told.items()):
            if self._tight.keys().isdisjoint(journals):
                del self._told[connection]
                connection.watch_disk(is_short=False)
        self._writers = {journal: writers for journal, writers in self._writers.items() if journal in self._full}

    def forget(self, connection: Reader) -> None:
        """A connection is closed."""
        self._told.pop(connection, None)
        self._held.pop(connection, None)
