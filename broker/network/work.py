"""Slow work outside the event loop's ticks: topology commands run as tasks, password checks in threads.

A failed login is answered a fixed time after its check was requested. So guessing passwords is slow, and the time does
not tell whether the user exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.memory import MemoryCeiling
from qstore.broker.security.sasl.exchange import Answer, Failure, PasswordCheck
from qstore.broker.settings import BrokerSettings

_LOG: Final = log_of("Network")


class Work:
    """The slow work in progress.

    Args:
        loop: the event loop.
        memory: gets reports of failed allocations.
        settings: the limits of password checks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryCeiling, settings: BrokerSettings) -> None:
        self._loop, self._memory = loop, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self._password_checks = ThreadPoolExecutor(settings.password_checks, "password-check")
        self._failed_login_seconds = settings.failed_login_seconds

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

    def check_password(self, check: PasswordCheck, done: Callable[[Answer], None]) -> None:
        """Check a password in a thread of the pool, and call `done` with the result in the event loop."""
        began = self._loop.time()

        def checked(future: asyncio.Future[Answer]) -> None:
            answer = _answer(future)
            if isinstance(answer, Failure):
                self._loop.call_at(began + self._failed_login_seconds, done, answer)
            else:
                done(answer)

        self._loop.run_in_executor(self._password_checks, check.run).add_done_callback(checked)

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
        self._password_checks.shutdown(wait=False, cancel_futures=True)


def _answer(future: asyncio.Future[Answer]) -> Answer:
    """The result of a check; an unhandled exception in it, which is a defect, lets nobody in."""
    try:
        return future.result()
    except asyncio.CancelledError:
        return Failure("the broker is shutting down")
    except Exception as error:
        _LOG.exception("Unhandled exception in a password check")
        return Failure(f"internal error: {type(error).__name__}")
