"""A broker under a limit of its address space, `ulimit -v`: what only reserves addresses must not use it up.

glibc gives each thread an allocation arena of its own, and reserves 64 MiB of addresses for it, eight arenas for each
processor at most (mallopt(3), M_ARENA_MAX), and 8 MiB for its stack. With the threads of the catalogue that is more
than half a gigabyte, of which nothing is memory. A control group counts memory, so nothing need be done there.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h
_ARENAS: Final = 1
_STACK_BYTES: Final = 1 << 20  # of a thread
_ATTRIBUTE_BYTES: Final = 256  # more than a pthread_attr_t


def spare_addresses() -> None:
    """Reserve few addresses if they are limited. To be called before threads are started."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    threading.stack_size(_STACK_BYTES)
    import ctypes  # not needed otherwise

    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    with contextlib.suppress(AttributeError):  # another C library
        libc.mallopt(_ARENA_MAX, _ARENAS)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)
