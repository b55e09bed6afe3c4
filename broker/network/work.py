"""What takes time, beside the event loop's ticks: commands of the topology as tasks, checks of passwords in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from broker.log.logs import log_of
from broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from broker.model.memory import MemoryCeiling
from broker.security.mechanisms import Failure, PasswordCheck, Success

_LOG: Final = log_of("Network")


class Work:
    """What is under way.

    Args:
        loop: runs it.
        memory: is told when there was too little.
        password_checks: that run at one time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryCeiling, password_checks: int) -> None:
        self._loop, self._memory = loop, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self._password_checks = ThreadPoolExecutor(password_checks, "password-check")

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time, and call `done` with what went wrong."""
        task = self._loop.create_task(self._run(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            await work
        except ModelError as failed:
            error = failed.with_traceback(None)  # which would hold this frame, and it the error
        except MemoryError:
            self._memory.exhausted("A command")
            error = ResourceLimitExceededError("the broker is out of memory")
        except Exception as failed:
            _LOG.exception("A command has failed")
            error = InternalError(f"{type(failed).__name__}: {failed}")
        done(error)

    def check_password(self, check: PasswordCheck, done: Callable[[Success | Failure], None]) -> None:
        """Check a password beside the event loop, only so many at a time."""
        future = self._loop.run_in_executor(self._password_checks, check.run)
        future.add_done_callback(lambda each: done(each.result()))

    @property
    def is_under_way(self) -> bool:
        """Whether a task runs."""
        return bool(self._tasks)

    async def finish(self) -> None:
        """Wait for all tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Check no more passwords."""
        self._password_checks.shutdown(wait=False, cancel_futures=True)
