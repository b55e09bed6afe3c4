"""Slow work outside the event loop's ticks: topology commands run as tasks. Logins are checked by `login_checks`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.memory import MemoryCeiling
from qstore.broker.network.login_checks import LoginChecks
from qstore.broker.settings import BrokerSettings

_LOG: Final = log_of("Network")


class Work:
    """The slow work in progress.

    Args:
        loop: the event loop.
        memory: gets reports of failed allocations.
        settings: the limits of password checks.

    Attributes:
        logins: checks the passwords of clients.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryCeiling, settings: BrokerSettings) -> None:
        self._loop, self._memory = loop, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self.logins = LoginChecks(loop, settings)

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine as a task, and call `done` with its error, or None."""
        task = self._loop.create_task(self._run(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            await work
        except ModelError as failed:
            error = failed.with_traceback(None)  # avoids a reference cycle of traceback, frame and error
        except MemoryError:
            self._memory.exhausted("A command")
            error = ResourceLimitExceededError("the broker is out of memory")
        except Exception as failed:
            _LOG.exception("Unhandled exception in a command")
            error = InternalError(f"{type(failed).__name__}: {failed}")
        done(error)

    @property
    def is_under_way(self) -> bool:
        """Whether any task is running."""
        return bool(self._tasks)

    async def finish(self) -> None:
        """Wait for all tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel the waiting password checks, and accept no more."""
        self.logins.close()
