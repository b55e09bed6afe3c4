"""What the C library's allocator tells of this process: `mallinfo2` of glibc 2.33 and later, `mallinfo` of older ones.

Python keeps small objects in arenas of its own, which it maps without the allocator: they are not in these numbers.
Source: glibc, malloc.h and mallinfo(3).
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
