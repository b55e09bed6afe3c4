"""Everything from outside that a running store uses, in one place, so that a test can hand in all of it.

disk          files and directories
key-value     the map under the catalogue, by the path of its directory
driver        who waits for the disk
background    where the catalogue's changes are made, off the event loop
clock         nanoseconds since the epoch
random        bits
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from store.background import Background, InlineBackground, ThreadBackground
from store.key_value import KeyValue, RocksKeyValue
from store.sync import SyncDriver, choose_sync_driver
from store.sync.inline import InlineSync
from store.writable_disk import OsWritableDisk, WritableDisk


class OpenKeyValue(Protocol):
    """Opens the map in a directory."""

    def __call__(self, path: str, *, create: bool) -> KeyValue:
        """The map in the directory `path`, or with `create` a new one. Raises CatalogueError."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a running store uses from outside.

    Attributes:
        disk: files and directories.
        open_key_value: opens the catalogue's map.
        make_driver: makes a sync driver, by the name that the option gives.
        make_background: makes what catalogue changes are run by.
        clock: gives the time as nanoseconds since the epoch.
        random_bits: gives that many random bits.
    """

    disk: WritableDisk
    open_key_value: OpenKeyValue
    make_driver: Callable[[str], SyncDriver]
    make_background: Callable[[], Background]
    clock: Callable[[], int]
    random_bits: Callable[[int], int]


def _open_rocks(path: str, *, create: bool) -> KeyValue:
    return RocksKeyValue.open(Path(path), create=create)


def system_environment() -> Environment:
    """That of a broker."""
    return Environment(
        OsWritableDisk(), _open_rocks, choose_sync_driver, ThreadBackground, time.time_ns, secrets.randbits
    )


def tool_environment() -> Environment:
    """That of a tool, which waits for everything itself."""
    return Environment(
        OsWritableDisk(), _open_rocks, lambda _: InlineSync(), InlineBackground, time.time_ns, secrets.randbits
    )
