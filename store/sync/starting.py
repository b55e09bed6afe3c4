"""Starts a sync driver while a store is recovered: the helper process takes as long as some ten thousand records."""

from __future__ import annotations

from collections.abc import Callable

from qstore.store.environment import Background
from qstore.store.sync.driver import SyncDriver


class StartingDriver:
    """A sync driver that is being started.

    Args:
        background: starts it. It is closed when the driver is taken.
        make: makes it, and waits until it has started.
    """

    __slots__ = ("_background", "_errors", "_is_taken", "_started")

    def __init__(self, background: Background, make: Callable[[], SyncDriver]) -> None:
        self._background, self._is_taken = background, False
        self._started: list[SyncDriver] = []
        self._errors: list[Exception] = []
        background.run(make, self._started.append, self._errors.append)

    def take(self) -> SyncDriver:
        """The driver, which the caller closes. Raises what `make` has raised."""
        self._is_taken = True
        self._finish()
        if self._errors:
            raise self._errors[0]
        return self._started.pop()

    def close(self) -> None:
        """Close the driver, unless it was taken."""
        if not self._is_taken:
            self._finish()
            for driver in self._started:
                driver.close()

    def _finish(self) -> None:
        self._background.wait()
        self._background.collect()
        self._background.close()
