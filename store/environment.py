"""Everything external that a running store uses, in one value, so that a test can replace all of it.

    disk          files and directories
    key-value     opens the map under the catalogue by the path of its directory
    driver        performs `fdatasync`
    background    makes the catalogue's changes, and does the work that belongs to them, off the event loop
    clock         nanoseconds since the epoch
    random        bits

A change of the catalogue waits for the disk. A session waits for it too, but the event loop must not, so a thread makes
the change, one after another; its result is delivered on the loop's thread, in `Background.collect`. Tools and
simulations use the inline variant, which does the work at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from qstore.formats.named_tuple import NamedTuple
from qstore.store.disk import OsWritableDisk, WritableDisk
from qstore.store.key_value import KeyValue, RocksKeyValue, open_copy
from qstore.store.sync import SyncDriver, choose_sync_driver
from qstore.store.sync.threads import InlineSync

Result = TypeVar("Result")
Item = TypeVar("Item")

_Finish: TypeAlias = Callable[[], None]

#: Does work of one kind together: for each item its result, or its error.
Together: TypeAlias = Callable[[Sequence[Item]], Sequence[Result | Exception]]

MAX_TOGETHER: Final = 128
"""Items that are done together."""


class Background(Protocol):
    """Runs work that the event loop must not wait for."""

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` after all earlier work; `collect` then calls `done` with its result, or `failed` with its error."""

    def run_together(
        self,
        together: Together[Item, Result],
        item: Item,
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """As `run`: `together` does this item, with others that were given directly before and after it, if they wait.

        An error is its result for an item; one that it raises is that of all of them.
        """

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has results to deliver; -1 if there is none."""

    def collect(self) -> None:
        """Call `done` or `failed` for all finished work."""

    @property
    def is_busy(self) -> bool:
        """Whether any work is unfinished, or its result not delivered yet."""

    @property
    def finished(self) -> int:
        """Number of finished pieces of work. Thread-safe."""

    def wait(self) -> None:
        """Wait until all work is finished. The caller delivers the results later, with `collect`."""

    def close(self) -> None:
        """Wait for all work and stop. May be called twice."""


class InlineBackground:
    """A `Background` that does the work at once, on the caller's thread."""

    def __init__(self) -> None:
        self._finished: deque[_Finish] = deque()
        self.finished = 0

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do `work` now; the result is delivered by `collect`."""
        self._finished.append(_outcome(work, done, failed))
        self.finished += 1

    def run_together(
        self,
        together: Together[Item, Result],
        item: Item,
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Do the item now, alone."""
        self._finished += do_together([SharedWork(together, item, done, failed)])
        self.finished += 1

    def fileno(self) -> int:
        """Always -1."""
        return -1

    def collect(self) -> None:
        """Call `done` or `failed` for all finished work."""
        while self._finished:
            self._finished.popleft()()

    @property
    def is_busy(self) -> bool:
        """Whether a result has not been delivered yet."""
        return bool(self._finished)

    def wait(self) -> None:
        """Return at once: work never waits."""

    def close(self) -> None:
        """Nothing to stop."""


class ThreadBackground:
    """A `Background` with its own thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], _Finish] | SharedWork | None] = queue.SimpleQueue()
        self._finished: deque[_Finish] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._idle = threading.Condition()
        self._outstanding = 0
        self.finished = 0
        self._given = self._heard = 0  # work submitted, and completion events read; caller's thread only
        self._thread = threading.Thread(target=self._loop, name="qstore-catalogue", daemon=True)
        self._thread.start()

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Hand `work` to the thread."""
        self._put(lambda: _outcome(work, done, failed))

    def run_together(
        self,
        together: Together[Item, Result],
        item: Item,
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Hand the item to the thread."""
        self._put(SharedWork(together, item, done, failed))

    def _put(self, work: Callable[[], _Finish] | SharedWork) -> None:
        self._given += 1
        with self._idle:
            self._outstanding += 1
        self._work.put(work)

    def fileno(self) -> int:
        """A descriptor that is readable when work has finished."""
        return self._event

    def collect(self) -> None:
        """Call `done` or `failed` for all finished work."""
        if self._heard < self._given:  # otherwise nothing is pending: avoid the system call
            with contextlib.suppress(BlockingIOError):
                self._heard += os.eventfd_read(self._event)
        while self._finished:  # includes results left over when an earlier callback raised
            self._finished.popleft()()

    @property
    def is_busy(self) -> bool:
        """Whether any work is unfinished, or its result not delivered yet."""
        with self._idle:
            return self._outstanding > 0 or bool(self._finished)

    def wait(self) -> None:
        """Wait until the thread is idle."""
        with self._idle:
            self._idle.wait_for(lambda: self._outstanding == 0)

    def close(self) -> None:
        """Wait for all work, and stop the thread."""
        if self._event < 0:
            return
        self._work.put(None)
        self._thread.join()
        os.close(self._event)
        self._event = -1

    def _loop(self) -> None:
        work = self._work.get()
        while work is not None:
            following = None
            if isinstance(work, SharedWork):
                group, following = self._gathered(work)
                finished = do_together(group)
            else:
                finished = [work()]
            self._finished += finished
            self.finished += len(finished)
            os.eventfd_write(self._event, len(finished))
            with self._idle:
                self._outstanding -= len(finished)
                self._idle.notify_all()
            work = self._work.get() if following is None else following

    def _gathered(self, first: SharedWork) -> tuple[list[SharedWork], Callable[[], _Finish] | SharedWork | None]:
        """The waiting work that is done together with `first`, and the work after it; None if that is unknown."""
        group = [first]
        while len(group) < MAX_TOGETHER:
            try:
                following = self._work.get_nowait()
            except queue.Empty:
                break
            if not isinstance(following, SharedWork) or following.together != first.together:
                if following is None:
                    self._work.put(None)  # the end
                return group, following
            group.append(following)
        return group, None


class SharedWork(NamedTuple):
    """An item that is done together with others."""

    together: Together[Any, Any]
    item: Any
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


def do_together(group: Sequence[SharedWork]) -> list[_Finish]:
    """Do the work of a group; the callbacks to call with the results."""
    results: Sequence[Any]
    try:
        results = group[0].together([each.item for each in group])
    except Exception as error:
        results = [error] * len(group)
    return [
        partial(each.failed if isinstance(result, Exception) else each.done, result)
        for each, result in zip(group, results, strict=True)
    ]


def _outcome(
    work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
) -> _Finish:
    """Do the work and return the callback to call with its result."""
    try:
        result = work()
    except Exception as error:
        return partial(failed, error)
    return lambda: done(result)


class OpenKeyValue(Protocol):
    """Opens the map in a directory."""

    def __call__(self, path: str, *, create: bool) -> KeyValue:
        """Open the map in the directory `path`, or create it there. Raises CatalogueError."""


class Environment(NamedTuple):
    """The external services of a running store.

    Attributes:
        disk: files and directories.
        open_key_value: opens the catalogue's map.
        make_driver: creates a sync driver by the name that the option gives.
        make_background: creates the runner of catalogue changes.
        clock: returns nanoseconds since the epoch.
        random_bits: returns that many random bits.
        monotonic: returns nanoseconds of a clock that is never stepped, for durations.
    """

    disk: WritableDisk
    open_key_value: OpenKeyValue
    make_driver: Callable[[str], SyncDriver]
    make_background: Callable[[], Background]
    clock: Callable[[], int]
    random_bits: Callable[[int], int]
    monotonic: Callable[[], int] = time.monotonic_ns


def _open_rocks(path: str, *, create: bool) -> KeyValue:
    return RocksKeyValue.open(Path(path), create=create)


def system_environment() -> Environment:
    """The environment of a broker."""
    return Environment(
        OsWritableDisk(), _open_rocks, choose_sync_driver, ThreadBackground, time.time_ns, secrets.randbits
    )


def tool_environment() -> Environment:
    """The environment of a tool, which waits for the disk itself."""
    return Environment(
        OsWritableDisk(), _open_rocks, lambda _: InlineSync(), InlineBackground, time.time_ns, secrets.randbits
    )


def dry_run_environment() -> Environment:
    """The environment of a tool that only plans: the catalogue is copied first, so that the store is not written to."""

    def open_to_read(path: str, *, create: bool) -> KeyValue:
        assert not create
        return open_copy(Path(path))

    return tool_environment()._replace(open_key_value=open_to_read)
