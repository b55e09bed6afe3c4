"""Long work in small portions, of which the event loop does one at a time.

Each portion waits for its turn, and there is one turn in two iterations of the event loop, however many requests are
carried out at the same time. So nobody waits longer for one iteration than a portion takes, and a query of a console
that asks for much does not hold up the others' queries.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

PORTION_SECONDS: Final = 0.003
"""After so long a portion ends."""


class Turns:
    """The turns of one broker."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._ends = 0.0

    async def next(self) -> None:
        """Wait for the next turn. A portion of work may follow."""
        async with self._lock:
            await asyncio.sleep(0)
        self._ends = time.perf_counter() + PORTION_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the portion has taken long enough."""
        return time.perf_counter() >= self._ends
