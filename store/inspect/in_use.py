"""Finds the process that has a store open, without touching its locks: a broker that starts meanwhile must not fail.

A qstore broker holds <store-dir>/rhm.lock and <data-dir>/lock with flock(2), qpidd holds <data-dir>/lock with lockf(3).
Linux lists both kinds, with the process and the file's inode, in /proc/locks:

    1: FLOCK  ADVISORY  WRITE 4711 fe:00:2156106 0 EOF

If that file is missing, or the process lives in another PID namespace, nothing is found.

Source: proc_locks(5).
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Final

from qstore.store.catalogue.store_directory import LOCK
from qstore.store.inspect.layout import StoreLayout

_LOCKS: Final = Path("/proc/locks")
_DATA_DIRECTORY_LOCK: Final = "lock"
_FIELDS: Final = 8


def holder_of_store(layout: StoreLayout) -> int | None:
    """The process that has the given store open; None if none is known."""
    part = layout.store_file or layout.catalogue or layout.environment or layout.pools
    if part is None:
        return None
    root = part if part == layout.pools else posixpath.dirname(part)
    above = Path(root).resolve().parent
    for name in (LOCK, _DATA_DIRECTORY_LOCK):
        holder = holder_of_lock(above / name)
        if holder is not None:
            return holder
    return None


def in_use_notice(layout: StoreLayout, holder: int) -> str:
    """The notice for readers of a store that the process `holder` has open."""
    return (
        f"{layout.path}: process {holder} has this store open (usually a broker) and may write while it is read: "
        "records that look torn, missing or not yet sealed are not signs of a crash; stop it for a reliable result"
    )


def holder_of_lock(path: Path) -> int | None:
    """The process that holds the lock on the file at `path`."""
    try:
        wanted = path.stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) < _FIELDS or fields[3] != "WRITE":  # a waiting process has "->" before these
            continue
        holder, (major, minor, inode) = int(fields[4]), fields[5].split(":")
        if holder <= 0 or int(inode) != wanted.st_ino:
            continue
        if os.makedev(int(major, 16), int(minor, 16)) == wanted.st_dev or _has_open(holder, wanted):
            return holder
    return None


def _has_open(process: int, wanted: os.stat_result) -> bool:
    """Whether a process has the file open: the device numbers of some file systems differ here."""
    try:
        with os.scandir(f"/proc/{process}/fd") as entries:
            return any(_is_same(entry, wanted) for entry in entries)
    except OSError:
        return False


def _is_same(entry: os.DirEntry[str], wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(entry.stat(), wanted)
    except OSError:  # it has just been closed
        return False
