"""A broker under a limit of its address space, `ulimit -v`: what only reserves addresses must not use it up.

glibc gives each thread an allocation arena of its own, and reserves 64 MiB of addresses for it, eight arenas for each
processor at most (mallopt(3), M_ARENA_MAX). With the threads of the catalogue that is more than half a gigabyte, of
which nothing is memory. A control group counts memory, so nothing need be done there.
"""

from __future__ import annotations

import resource
import threading
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h
_ARENAS: Final = 2
_STACK_BYTES: Final = 1 << 20  # of a thread of the broker, instead of 8 MiB


def spare_addresses() -> None:
    """Reserve few addresses if they are limited. To be called before threads are started."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    threading.stack_size(_STACK_BYTES)
    import ctypes  # not needed otherwise

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library
        mallopt(_ARENA_MAX, _ARENAS)
