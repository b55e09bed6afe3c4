"""Work that is done one piece after the other, each to its end.

Changes of the wiring wait for the disk between what they check and what they do, so no two may be under way at the same
time. And none may be broken off in between, when whoever asked for it is gone: the store would have what the model has
not. So each is a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class OneByOne:
    """Does one piece of work after the other, in the order in which they come."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def do(self, work: Callable[[], Coroutine[Any, Any, _Made]]) -> _Made:
        """Do this when all that came before it is done. It goes on if the caller is cancelled."""

        async def in_turn() -> _Made:
            async with self._lock:
                return await work()

        task = asyncio.create_task(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # an error has passed this frame, and holds it; it is held by the task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain where the caller was cancelled

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)
