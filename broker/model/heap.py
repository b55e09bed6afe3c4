"""Returns memory of removed messages to the system.

glibc keeps freed memory, and gives back only free memory at the end of its heap, where a single block in use prevents
that. So the memory of a paged-out backlog of 5,000,000 messages, about 28 bytes each, stayed with the process after it
was drained. `malloc_trim` returns every free page.

It blocks the event loop for about 0.07 ms for each MiB returned, and so does `mallinfo`, which counts free chunks, for
0.13 µs for each. So both are called rarely, and take a small share of this thread's processor time:

    step        when                                                                      then not again for
    ----------  ------------------------------------------------------------------------  ------------------------------
    resident    each call of `look`                                                       -
    allocated   `STEP` more is resident than the minimum                                  5,000 times as long as it took
    trim        `STEP` is free, and the resident memory not in use exceeds its minimum    300 times as long as it took
                since the last trim by `STEP`

A trim that returned little, because the free pieces are smaller than a page, counts as the second.

The allocator's figures come from `mallinfo2` in glibc 2.33 and later, and from `mallinfo` in older ones; other
libraries have neither. Python keeps small objects in arenas of its own, which it maps without the allocator: they are
not in these figures. Source: glibc, malloc.h, mallinfo(3) and malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from qstore.broker.model.memory import resident_bytes
from qstore.formats.named_tuple import NamedTuple

STEP: Final = 4 << 20
"""Least bytes for which a trim pays off."""

_PAUSE_ALLOCATED: Final = 5000
_PAUSE_TRIM: Final = 300

_FIELDS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Allocated(NamedTuple):
    """The allocator's figures, under glibc's names; None if unavailable."""

    arena: int | None = None
    ordblks: int | None = None
    hblks: int | None = None
    hblkhd: int | None = None
    uordblks: int | None = None
    fordblks: int | None = None
    keepcost: int | None = None


class _Information(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class _OldInformation(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint) for name in _FIELDS)  # 32 bits: these wrap at 4 GiB


def allocated() -> Allocated:
    """The allocator's figures now."""
    mallinfo = _function()
    if mallinfo is None:
        return Allocated()
    found = mallinfo()
    return Allocated(*(int(getattr(found, name)) for name in Allocated._fields))


@cache
def _function() -> Callable[[], Any] | None:
    library = ctypes.CDLL(None)
    for name, result in (("mallinfo2", _Information), ("mallinfo", _OldInformation)):
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = (), result
            return function  # type: ignore[no-any-return]
    return None


def trim() -> None:
    """Return all free pages to the system, even between pages in use; does nothing if the library cannot."""
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(ctypes.c_size_t(0))


def leave_code() -> None:
    """Unmap the pages of code that is in files; they stay in the page cache. Does nothing where that is impossible.

    Nobody writes to these pages, so that nothing is lost; pages with relocated addresses are not among them.
    """
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is None:
        return
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return
    for line in lines:  # begin-end permissions offset device inode path: proc_pid_maps(5)
        addresses, permissions, _, _, inode = line.split(maxsplit=5)[:5]
        if permissions == b"r-xp" and inode != b"0":
            begin, end = (int(address, 16) for address in addresses.split(b"-"))
            function(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


class Heap:
    """The memory of this process.

    Args:
        resident: returns the resident bytes.
        figures: returns the allocator's figures.
        give_back: returns free memory to the system.
        clock: returns seconds.
        cost: returns seconds of processor time.
    """

    __slots__ = (
        "_clock",
        "_cost",
        "_figures",
        "_give_back",
        "_least_resident",
        "_least_unused",
        "_not_before",
        "_resident",
    )

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        figures: Callable[[], Allocated] = allocated,
        give_back: Callable[[], None] = trim,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._resident, self._figures, self._give_back, self._clock, self._cost = (
            resident,
            figures,
            give_back,
            clock,
            cost,
        )
        self._least_resident = resident()
        self._least_unused = self._unused(figures(), self._least_resident)
        self._not_before = clock()

    def look(self) -> bool:
        """Return free memory if there is enough of it. Call this about every second. Returns whether it was tried."""
        resident = self._resident()
        self._least_resident = min(self._least_resident, resident)
        if resident - self._least_resident < STEP or self._clock() < self._not_before:
            return False
        began = self._cost()
        known = self._figures()
        unused = self._unused(known, resident)
        self._least_unused = min(self._least_unused, unused)
        if min(known.fordblks or 0, unused - self._least_unused) < STEP:
            self._pause(began, _PAUSE_ALLOCATED)
            return False
        began = self._cost()
        self._give_back()
        left = self._resident()
        self._least_unused = self._unused(self._figures(), left)
        self._pause(began, _PAUSE_TRIM if resident - left >= STEP // 2 else _PAUSE_ALLOCATED)
        return True

    @staticmethod
    def _unused(known: Allocated, resident: int) -> int:
        """Resident bytes that the allocator does not count as in use: free ones, and memory mapped by others."""
        return resident - (known.uordblks or 0) - (known.hblkhd or 0)

    def _pause(self, began: float, factor: int) -> None:
        self._not_before = self._clock() + (self._cost() - began) * factor
