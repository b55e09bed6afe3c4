"""From an option's value to a sync driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from store.sync.driver import SyncDriver, SyncDriverError
from store.sync.inline import InlineSync
from store.sync.process import HelperProcessSync
from store.sync.thread import ThreadSync

AUTO: Final = "auto"
_DRIVERS: Final[dict[str, Callable[[], SyncDriver]]] = {
    "process": HelperProcessSync,
    "thread": ThreadSync,
    "inline": InlineSync,
}
SYNC_DRIVERS: Final = (AUTO, *_DRIVERS)
"""The values that `choose_sync_driver` takes."""


def choose_sync_driver(name: str = AUTO) -> SyncDriver:
    """The driver of a name; `auto` is the helper process, and threads where no process can be started.

    Raises:
        SyncDriverError: the helper process that was asked for by name cannot be started.
        ValueError: there is no driver of that name.
    """
    if name == AUTO:
        try:
            return HelperProcessSync()
        except SyncDriverError:
            return ThreadSync()
    if name not in _DRIVERS:
        raise ValueError(f"sync driver {name!r} is not known: choose one of {', '.join(SYNC_DRIVERS)}")
    return _DRIVERS[name]()
