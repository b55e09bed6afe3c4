"""Runs coroutines one at a time, each to completion.

A change of the topology waits for the disk between its checks and its effects, so no two may overlap. Nor may one be
cancelled half-way when its client disconnects: the store and the model would differ. So each runs in its own task.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class SerialExecutor:
    """Runs coroutines serially, in the order of the calls."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def do(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `work` after all earlier work is done. It continues even if the caller is cancelled."""

        async def in_turn() -> _Result:
            async with self._lock:
                return await work()

        task = asyncio.create_task(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # breaks a cycle: the task references its exception, whose traceback references this frame

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn if the caller was cancelled

    async def finish(self) -> None:
        """Wait until no work is pending."""
        while self._under_way:
            await asyncio.wait(self._under_way)


class Changing(Protocol):
    """Makes changes one at a time."""

    @property
    def changes(self) -> SerialExecutor:
        """What runs them."""


_ChangingT = TypeVar("_ChangingT", bound=Changing)


def serialized(
    change: Callable[Concatenate[_ChangingT, _Params], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_ChangingT, _Params], Coroutine[Any, Any, _Result]]:
    """Run a change after all earlier ones, to completion even if the caller is cancelled."""

    @functools.wraps(change)
    async def in_turn(self: _ChangingT, /, *arguments: _Params.args, **named: _Params.kwargs) -> _Result:
        return await self.changes.do(lambda: change(self, *arguments, **named))

    return in_turn
