"""The C library's allocator: what it tells of this process, and how it returns free memory to the system.

It tells with `mallinfo2` in glibc 2.33 and later, and with `mallinfo` in older ones; other libraries have neither.

Python keeps small objects in arenas of its own, which it maps without the allocator: they are not in these numbers.
Source: glibc, malloc.h, mallinfo(3) and malloc_trim(3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

_FIELDS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Allocated(NamedTuple):
    """What is told of it, as in the C library; None if it does not tell."""

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
    _fields_ = tuple((name, ctypes.c_uint) for name in _FIELDS)  # from 4 GiB on these begin again at 0


def allocated() -> Allocated:
    """What the allocator tells now."""
    ask = _function()
    if ask is None:
        return Allocated()
    found = ask()
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
    """Return all free pages to the system, also those between others that are in use; nothing if the library cannot."""
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(ctypes.c_size_t(0))
