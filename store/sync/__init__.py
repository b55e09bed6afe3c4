"""Sync drivers, which call `fdatasync` for the store, and the choice among them.

| module | content |
|---|---|
| `driver` | the `SyncDriver` protocol and its error |
| `io_uring` | threads of the kernel write and wait, and a helper process for many at once: the default if it is there |
| `process` | a separate helper process waits: the default elsewhere; `helper` is its program |
| `threads` | threads of the process wait, or the caller: tools, simulated disks |
| `supervision` | from an option's value to a driver, which is replaced when it dies |
"""

from __future__ import annotations

from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError
from qstore.store.sync.io_uring import IoUringSync
from qstore.store.sync.process import HelperProcessSync
from qstore.store.sync.supervision import SYNC_DRIVERS, choose_sync_driver
from qstore.store.sync.threads import InlineSync, ThreadSync

__all__ = [
    "SYNC_DRIVERS",
    "Completion",
    "FileWrite",
    "HelperProcessSync",
    "InlineSync",
    "IoUringSync",
    "SyncDriver",
    "SyncDriverError",
    "ThreadSync",
    "choose_sync_driver",
]
