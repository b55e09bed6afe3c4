"""Sync drivers, which call `fdatasync` for the store, and the choice among them.

| module | content |
|---|---|
| `driver` | the `SyncDriver` protocol and its error |
| `inline` | the caller waits: tools, simulated disks |
| `thread` | separate threads wait |
| `io_uring` | threads of the kernel write and wait: the broker's default, where the system has it |
| `kernel_ring` | the queues of io_uring |
| `process` | a separate helper process waits: the default elsewhere |
| `helper` | the program of this process |
| `idle` | the broker itself waits when it has nothing else to do |
| `choice` | from an option's value to a driver |
| `starting` | starts one while a store is recovered |
"""

from __future__ import annotations

from qstore.store.sync.choice import SYNC_DRIVERS, choose_sync_driver
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError
from qstore.store.sync.inline import InlineSync
from qstore.store.sync.io_uring import IoUringSync
from qstore.store.sync.process import HelperProcessSync
from qstore.store.sync.thread import ThreadSync

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
