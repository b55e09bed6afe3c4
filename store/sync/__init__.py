"""Who waits for `fdatasync`: the sync drivers, and the choice among them.

| module | what is there |
|---|---|
| `driver` | the `SyncDriver` protocol and its error |
| `inline` | waits itself: tools, simulated disks |
| `thread` | threads of its own |
| `process` | a helper process of its own: what a broker takes |
| `helper` | the program that this process runs |
| `idle` | the broker itself, when it has nothing else to do |
| `choice` | from an option's value to a driver |
"""

from __future__ import annotations

from store.sync.choice import SYNC_DRIVERS, choose_sync_driver
from store.sync.driver import Completion, SyncDriver, SyncDriverError
from store.sync.inline import InlineSync
from store.sync.process import HelperProcessSync
from store.sync.thread import ThreadSync

__all__ = [
    "SYNC_DRIVERS",
    "Completion",
    "HelperProcessSync",
    "InlineSync",
    "SyncDriver",
    "SyncDriverError",
    "ThreadSync",
    "choose_sync_driver",
]
