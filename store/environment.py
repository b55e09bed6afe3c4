"""Everything external that a running store uses, in one value, so that a test can replace all of it.

disk          files and directories
key-value     opens the map under the catalogue by the path of its directory
driver        performs `fdatasync`
background    makes the catalogue's changes, off the event loop
clock         nanoseconds since the epoch
random        bits
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from qstore.store.background import Background, InlineBackground, ThreadBackground
from qstore.store.key_value import KeyValue, RocksKeyValue, open_copy
from qstore.store.sync import SyncDriver, choose_sync_driver
from qstore.store.sync.inline import InlineSync
from qstore.store.writable_disk import OsWritableDisk, WritableDisk


class OpenKeyValue(Protocol):
    """Opens the map in a directory."""

    def __call__(self, path: str, *, create: bool) -> KeyValue:
        """Open the map in the directory `path`, or create it there. Raises CatalogueError."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The external services of a running store.

    Attributes:
        disk: files and directories.
        open_key_value: opens the catalogue's map.
        make_driver: creates a sync driver by the name that the option gives.
        make_background: creates the runner of catalogue changes.
        clock: returns nanoseconds since the epoch.
        random_bits: returns that many random bits.
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
    """The environment of a broker."""
    return Environment(
        OsWritableDisk(), _open_rocks, choose_sync_driver, ThreadBackground, time.time_ns, secrets.randbits
    )


def tool_environment() -> Environment:
    """The environment of a tool, which waits for the disk itself."""
    return Environment(
        OsWritableDisk(), _open_rocks, lambda _: InlineSync(), InlineBackground, time.time_ns, secrets.randbits
    )


def dry_run_environment() -> Environment:
    """The environment of a tool that only plans: the catalogue is copied first, so that the store is not written to."""

    def open_to_read(path: str, *, create: bool) -> KeyValue:
        assert not create
        return open_copy(Path(path))

    return replace(tool_environment(), open_key_value=open_to_read)
