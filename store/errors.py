"""Errors of a store and of its journals, and advice for those of the disk."""

from __future__ import annotations

import errno
import os
from typing import Final

_ADVICE: Final = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space or raise the quota",
    errno.EROFS: "remount it read-write",
    errno.EIO: "the disk is failing: see the kernel log",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def advice(error: OSError) -> str:
    """Advice about an OSError, to append to its own text; empty if there is none."""
    if error.errno in (errno.EACCES, errno.EPERM):
        runs = f"this process runs as user id {os.geteuid()}"
        return f"; {runs}: check the owner and the mode of the path and of its content"
    text = _ADVICE.get(error.errno or 0)
    return "" if text is None else f"; {text}"


class StoreError(Exception):
    """An error in one line: the cause, the place, and the advice."""


class StoreLockedError(StoreError):
    """Another process has locked the store."""


class StoreDamagedError(StoreError):
    """The store is damaged, and the option on-damage is set to refuse it."""


class NameTakenError(StoreError):
    """The store already has an object of this kind and name."""


class JournalError(Exception):
    """A journal's writer refuses an operation. Nothing of it was written."""


class JournalFullError(JournalError):
    """There is no room for the record, and none will be until messages are dequeued."""


class ThresholdError(JournalFullError):
    """An enqueue exceeds the threshold or the limit on one record; dequeues are still accepted."""


class JournalPinnedError(JournalFullError):
    """There is no room but by breaking a pin, and the journal can grow: add files, or break it, and retry."""


class RecordTooLongError(ThresholdError):
    """A record is longer than any journal can have."""


class JournalBusyError(JournalError):
    """There is no room for the record until the write batch is flushed: flush, and retry."""


class JournalFailedError(JournalError):
    """A write or a sync failed earlier: the journal accepts no records until the store is opened again."""


_DISK_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is exhausted: free some space",
    errno.EROFS: "the file system is read-only (see the kernel log): repair it, and restart the broker",
    errno.EIO: "the disk is failing (see the kernel log): replace it, and restart the broker",
}


_OTHERWISE: Final = "check whether the disk is full, read-only or failing"


def disk_advice(error: OSError | None = None) -> str:
    """Advice about a failing disk; `error` is the OSError, if there is one."""
    return _OTHERWISE if error is None or error.errno is None else _DISK_ADVICE.get(error.errno, _OTHERWISE)
