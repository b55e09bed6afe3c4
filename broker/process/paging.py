"""The directory for paging files of a broker process: locked, and the threads that read there and remove files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from qstore.broker.model.residency.paging_directory import PagingDirectory
from qstore.broker.process.os_paging_disk import OsPagingDisk
from qstore.broker.process.pid_file import PidFile
from qstore.formats.wording import printable

NAME: Final = "paging"  # in the data directory
_LOCK: Final = "paging.lock"
_THREADS: Final = 2


class PagingError(Exception):
    """The directory cannot be used. The text is one line for the user."""


class Paging:
    """The directory, and the threads that work there.

    Args:
        path: the directory, created if it does not exist.
        loop: the event loop.

    Attributes:
        directory: the directory.

    Raises:
        PagingError: it cannot be used, or another broker uses it.
    """

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(_THREADS, "paging")
        self.directory = PagingDirectory(OsPagingDisk(), path, self._run)
        shown = printable(path)
        try:
            Path(path).mkdir(0o700, parents=True, exist_ok=True)
            self._lock = PidFile(str(Path(path, _LOCK)))
        except BlockingIOError:
            raise PagingError(f"{shown}: another broker has its paging files there; see --paging-dir") from None
        except OSError as error:
            raise PagingError(f"{shown}: the paging directory cannot be used: {error.strerror}") from error
        try:
            self.directory.prepare()
        except OSError as error:
            self._lock.release(remove=True)
            raise PagingError(f"{shown}: the paging directory cannot be used: {error.strerror}") from error

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def finished(future: Future[Any]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.result())

        self._threads.submit(work).add_done_callback(finished)

    def close(self) -> None:
        """Remove files, as long as that does not take long, and unlock the directory."""
        self._threads.shutdown(cancel_futures=True)
        self.directory.close()
        self._lock.release(remove=True)
