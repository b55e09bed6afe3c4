"""Waits until several things are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Waits until several things are done."""

    def __init__(self) -> None:
        self._left = 0
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None

    def one_more(self) -> Callable[[Exception | None], None]:
        """What is to be called when one more is done."""
        self._left += 1
        return self._done

    def cancel_one(self) -> None:
        """One of them was not begun."""
        self._left -= 1

    def _done(self, error: Exception | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left and self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def all(self) -> None:
        """Wait for all, and for others to be served. Raises the first error."""
        if self._left:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        else:
            await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
