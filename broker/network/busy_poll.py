"""How busy the event loop is: whether it may wait for the disk, and whether it polls instead of sleeping.

**An idle loop** may wait for the disk itself (`Store.drained`): that saves two context switches. It is idle if it has
slept for `IDLE_GAP`, and has since had no more input than `FEW`. Two, because an acknowledgement often comes right
before the next message: when that one made the loop count as busy, a client with a consumer waited 0.26 ms for each
confirm instead of 0.16 (compiled; `tests/bench/bench_latency`, one at a time, consumed).

It is idle, too, if all its input came from peers that send nothing more before the disk is done, however many they are.
They would fall into two groups otherwise, one of which is served while the other one waits for the disk. Now the next
messages gather while the loop waits: so fewer syncs are shared by more of them, and none needs another thread.

**Busy polling**: for a moment after a tick, the event loop polls for input instead of sleeping. A client that
waits for each answer sends its next message within microseconds. To sleep and to be woken meanwhile takes longer than
that: two context switches, in a virtual machine an exit to its host, and cold caches afterwards. So polling takes less
processor time, too (`tests/bench/bench_peers`, row "sync durable").

It pays only while input arrives that soon. So each gap between a tick's end and the next input is counted, polled or
not: one that is shorter than `WINDOW` adds one to a score, which is at most 8, and a longer one takes two from it. Only
while the score is positive does the loop poll. An idle broker polls once and then sleeps; one whose input comes at
longer intervals stops polling after four of them. The worst case is two short gaps and a long one, again and again:
after one tick in three the loop polls for a whole `WINDOW`, and no input arrives. With a single processor none polls:
that would keep the client from running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

WINDOW: Final = 0.0001
"""Seconds of polling after a tick; and the longest gap that counts for it."""

IDLE_GAP: Final = 0.000_04
"""Seconds without work after which the event loop has slept."""
FEW: Final = 2
"""Inputs after a sleep that leave the event loop idle."""

_MAX_SCORE: Final = 8
_MIN_SCORE: Final = -8


class BusyPoll:
    """Keeps an event loop awake while that pays, and knows whether it is idle.

    Args:
        call_soon: schedules a function for the next iteration of the event loop, which then does not sleep.
        clock: returns seconds.
        processors: how many this process may use.
    """

    __slots__ = (
        "_call_soon", "_clock", "_ended", "_inputs", "_is_allowed", "_is_polling", "_last_work", "_others", "_score",
        "_seen",
    )  # fmt: skip

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        clock: Callable[[], float] = time.perf_counter,
        processors: int | None = None,
    ) -> None:
        self._call_soon, self._clock = call_soon, clock
        self._is_allowed = (len(os.sched_getaffinity(0)) if processors is None else processors) > 1
        self._ended = 0.0  # when the last tick ended; 0 since input has arrived
        self._score = 0
        self._is_polling = False
        self._last_work = 0.0
        self._inputs = 0  # since the loop has slept
        self._others = 0  # those of them after which no peer waits for the disk
        self._seen = 0  # inputs that were divided between these and the rest

    def is_idle(self, waiting: int, flushes: int) -> bool:
        """Whether the event loop has nothing else to do than the current work, which ends now.

        Args:
            waiting: how many peers have sent input since the last call, and send nothing more before the disk is done.
            flushes: how many flushes are waited for, with that of this tick.
        """
        self._last_work = self._clock()
        fresh, self._seen = self._inputs - self._seen, self._inputs
        self._others += max(0, fresh - waiting)
        return not self._others or (fresh > 0 and self._inputs <= FEW and flushes <= 1)

    def worked(self) -> None:
        """The event loop has done some work without input."""
        self._last_work = self._clock()

    def begins(self) -> None:
        """Input has arrived."""
        now = self._clock()
        if now - self._last_work > IDLE_GAP:
            self._inputs, self._others, self._seen = 1, 0, 0
        else:
            self._inputs += 1
        self._last_work = now
        ended = self._ended
        if ended:
            self._ended = 0.0
            if now - ended < WINDOW:
                self._score = min(self._score + 1, _MAX_SCORE)
            else:
                self._score = max(self._score - 2, _MIN_SCORE)

    def ends(self) -> None:
        """A tick has ended, and nothing is being waited for but input."""
        self._ended = self._clock()
        if self._score > 0 and not self._is_polling and self._is_allowed:
            self._call_soon(self._poll)
            self._is_polling = True

    def _poll(self) -> None:
        ended = self._ended
        if ended and self._clock() - ended < WINDOW:
            self._call_soon(self._poll)
        else:
            self._is_polling = False
