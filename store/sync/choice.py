"""From an option's value to a sync driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from qstore.store.sync.driver import SyncDriver, SyncDriverError
from qstore.store.sync.inline import InlineSync
from qstore.store.sync.io_uring import IoUringSync
from qstore.store.sync.process import HelperProcessSync
from qstore.store.sync.thread import ThreadSync

AUTO: Final = "auto"
_DRIVERS: Final[dict[str, Callable[[], SyncDriver]]] = {
    "io-uring": IoUringSync,
    "process": HelperProcessSync,
    "thread": ThreadSync,
    "inline": InlineSync,
}
SYNC_DRIVERS: Final = (AUTO, *_DRIVERS)
"""The values accepted by `choose_sync_driver`."""


def choose_sync_driver(name: str = AUTO) -> SyncDriver:
    """Start the named driver; `auto` is the first of io_uring, a helper process and threads that can be started.

    Raises:
        SyncDriverError: io_uring or the helper process, requested by name, cannot be started.
        ValueError: the name is unknown.
    """
    if name == AUTO:
        for start in (IoUringSync, HelperProcessSync):
            with contextlib.suppress(SyncDriverError):
                return start()
        return ThreadSync()
    if name not in _DRIVERS:
        raise ValueError(f"sync driver {name!r} is unknown: choose one of {', '.join(SYNC_DRIVERS)}")
    return _DRIVERS[name]()
