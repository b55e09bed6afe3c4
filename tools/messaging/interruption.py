"""Ctrl-C while receiving: takes effect between two messages, so that only printed messages are acknowledged."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Handles SIGINT: the first one is recorded and ends a wait, the second one raises KeyboardInterrupt anywhere.

    Attributes:
        is_requested: whether SIGINT was received.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._is_waiting = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle SIGINT in this block."""
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that may be interrupted at any point: the first SIGINT raises KeyboardInterrupt."""
        self._is_waiting = True
        try:
            if self.is_requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self.is_requested = self.is_requested, True
        if is_second or self._is_waiting:
            raise KeyboardInterrupt
