"""Runs the catalogue's changes, and what goes with them, beside the event loop: one after the other, in order.

A change of the catalogue waits for the disk. A session waits for it too, but the event loop must not, so the change is
made by a thread; what comes of it is called from the loop's own thread again, in `collect`. Tools and simulations use
the inline variant, which does the work at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

Result = TypeVar("Result")

_Finish: TypeAlias = Callable[[], None]


class Background(Protocol):
    """Where work is done that the event loop must not wait for."""

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` after all that was given before; from `collect` call `done` with its result, or `failed`."""

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something to do; -1 where there never is one."""

    def collect(self) -> None:
        """Call `done` or `failed` of all work that is finished."""

    @property
    def is_busy(self) -> bool:
        """Whether any work is not done, or nobody was told yet."""

    @property
    def finished(self) -> int:
        """How much work is done. May be asked for by any thread."""

    def wait(self) -> None:
        """Wait until all work is done. `collect` is called by somebody later."""

    def close(self) -> None:
        """Wait for all work, and end. Twice is allowed."""


class InlineBackground:
    """A `Background` that does the work at once."""

    def __init__(self) -> None:
        self._finished: deque[_Finish] = deque()
        self.finished = 0

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` now."""
        self._finished.append(_outcome(work, done, failed))
        self.finished += 1

    def fileno(self) -> int:
        """No descriptor."""
        return -1

    def collect(self) -> None:
        """Call `done` or `failed` of all work that is finished."""
        while self._finished:
            self._finished.popleft()()

    @property
    def is_busy(self) -> bool:
        """Whether nobody was told yet of something that is done."""
        return bool(self._finished)

    def wait(self) -> None:
        """Nothing is ever waited for."""

    def close(self) -> None:
        """Nothing to end."""


class ThreadBackground:
    """A `Background` with a thread of its own."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], _Finish] | None] = queue.SimpleQueue()
        self._finished: deque[_Finish] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._idle = threading.Condition()
        self._outstanding = 0
        self.finished = 0
        self._given = self._heard = 0  # pieces of work, and those whose event was read; of the caller's thread
        self._thread = threading.Thread(target=self._loop, name="qstore-catalogue", daemon=True)
        self._thread.start()

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Have the thread do `work`."""
        self._given += 1
        with self._idle:
            self._outstanding += 1
        self._work.put(lambda: _outcome(work, done, failed))

    def fileno(self) -> int:
        """Readable when something is finished."""
        return self._event

    def collect(self) -> None:
        """Call `done` or `failed` of all work that is finished."""
        if self._heard < self._given:  # else nothing is on its way, and no call of the system is needed to know it
            with contextlib.suppress(BlockingIOError):
                self._heard += os.eventfd_read(self._event)
        while self._finished:  # also what is left where somebody who was called has raised
            self._finished.popleft()()

    @property
    def is_busy(self) -> bool:
        """Whether any work is not done, or nobody was told yet."""
        with self._idle:
            return self._outstanding > 0 or bool(self._finished)

    def wait(self) -> None:
        """Wait until the thread has nothing to do."""
        with self._idle:
            self._idle.wait_for(lambda: self._outstanding == 0)

    def close(self) -> None:
        """Wait for all work, and end the thread."""
        if self._event < 0:
            return
        self._work.put(None)
        self._thread.join()
        os.close(self._event)
        self._event = -1

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            self._finished.append(work())
            self.finished += 1
            os.eventfd_write(self._event, 1)
            with self._idle:
                self._outstanding -= 1
                self._idle.notify_all()


def _outcome(
    work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
) -> _Finish:
    """Do the work, and say what is to be called."""
    try:
        result = work()
    except Exception as error:
        return partial(failed, error)
    return lambda: done(result)
