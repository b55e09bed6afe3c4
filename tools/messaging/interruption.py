"""Ctrl-C while messages are received: between two of them, so that none is acknowledged that was not printed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """What SIGINT asks for. The first one is noted, and ends a wait; one more ends everything at once.

    Attributes:
        is_asked: there was one.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._is_waiting = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """SIGINT is handled here."""
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait that may be given up at any point: raises KeyboardInterrupt if it is to be."""
        self._is_waiting = True
        try:
            if self.is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        is_impatient, self.is_asked = self.is_asked, True
        if is_impatient or self._is_waiting:
            raise KeyboardInterrupt
