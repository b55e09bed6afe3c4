"""What a running store says when it cannot do what it was asked."""

from __future__ import annotations

import errno
import os
from typing import Final

_ADVICE: Final = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room, or have the quota raised",
    errno.EROFS: "mount it for writing",
    errno.EIO: "the disk fails: see the kernel's log",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def advice(error: OSError) -> str:
    """What to do about an error of the system, to follow the error's own text; empty where nothing is known."""
    if error.errno in (errno.EACCES, errno.EPERM):
        runs = f"this process runs as user id {os.geteuid()}"
        return f"; {runs}: check the owner and the mode of the path, and of what is in it"
    text = _ADVICE.get(error.errno or 0)
    return "" if text is None else f"; {text}"


class StoreError(Exception):
    """One line: what, where, and what to do."""


class StoreLockedError(StoreError):
    """Another process has the store."""


class StoreDamagedError(StoreError):
    """The store is damaged, and the option on-damage says to refuse it."""


class NameTakenError(StoreError):
    """The store has an object of this kind and name."""
