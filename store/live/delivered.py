"""The messages that had been delivered when a store was closed cleanly: they are redelivered with that mark.

After a crash that is unknown, and all messages are marked. The file `rhm/DELIVERED` is written before the clean mark is
set, and removed before that is cleared. It is one JSON object on one line:

    key       value
    --------  ----------------------------------------------------------------------------------------
    crc32c    8 hexadecimal digits: CRC-32C of the text of the same object without this key
    queues    queue id, as text -> the ascending record ids of delivered messages
    store_id  the store's

A damaged file counts as one that names every message.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import orjson

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.store_file import MAX_SIZE, StoreFileError, decode
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import Disk, read_whole
from qstore.store.inspect.layout import StoreLayout
from qstore.store.writable_disk import WritableDisk

NAME: Final = "DELIVERED"
_MAX_SIZE: Final = 1 << 30


class Delivered:
    """The messages that may have been delivered before the restart.

    Args:
        queues: queue id -> record ids; None for all messages.

    Attributes:
        queues: as above.
    """

    __slots__ = ("queues",)

    def __init__(self, queues: Mapping[int, Iterable[int]] | None) -> None:
        self.queues = None if queues is None else {queue: frozenset(rids) for queue, rids in queues.items()}

    def holds(self, queue_id: int, rid: int) -> bool:
        """Whether that message may have been delivered."""
        return self.queues is None or rid in self.queues.get(queue_id, ())

    def among(self, queue_id: int, rids: Sequence[int]) -> Sequence[int]:
        """Which of a queue's messages may have been delivered, by number from 0."""
        if self.queues is None:
            return range(len(rids))
        delivered = self.queues.get(queue_id)
        return [number for number, rid in enumerate(rids) if rid in delivered] if delivered else ()


def write_delivered(directory: StoreDirectory, store_id: UUID, queues: Mapping[int, Iterable[int]]) -> None:
    """Write the file. Raises OSError."""
    content: dict[str, Any] = {
        "queues": {str(queue): sorted(rids) for queue, rids in queues.items()},
        "store_id": str(store_id),
    }
    content["crc32c"] = f"{extend_crc32c(0, _text(content)):08x}"
    directory.replace(NAME, _text(content))


def read_delivered(disk: Disk, directory: StoreDirectory, store_id: UUID, *, was_clean: bool) -> Delivered:
    """Read the file of a store that was closed cleanly; no file means that nothing had been delivered."""
    return _read(disk, directory.root, store_id, was_clean=was_clean)


def delivered_of(disk: Disk, layout: StoreLayout) -> Delivered:
    """The messages that a start would mark as redelivered, of a store of any format; qpidd marks all of them."""
    if layout.store_file is not None:
        with contextlib.suppress(StoreFileError, OSError):
            mark = decode(read_whole(disk, layout.store_file, MAX_SIZE + 1))
            return _read(disk, posixpath.dirname(layout.store_file), mark.store_id, was_clean=mark.clean_close)
    return Delivered(None)


def _read(disk: Disk, root: str, store_id: UUID, *, was_clean: bool) -> Delivered:
    path = posixpath.join(root, NAME)
    if not was_clean:
        return Delivered(None)
    if not disk.is_file(path):
        return Delivered({})
    try:
        content = orjson.loads(read_whole(disk, path, _MAX_SIZE))
        crc = content.pop("crc32c")
        if crc != f"{extend_crc32c(0, _text(content)):08x}" or content["store_id"] != str(store_id):
            return Delivered(None)
        return Delivered({int(queue): rids for queue, rids in content["queues"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Delivered(None)


def add_delivered(
    disk: WritableDisk, directory: StoreDirectory, store_id: UUID, queues: Mapping[int, Iterable[int]]
) -> None:
    """Add messages to the file of a store that was closed cleanly. Raises OSError."""
    known = read_delivered(disk, directory, store_id, was_clean=True).queues
    if known is not None:
        both = {queue: {*known.get(queue, ()), *queues.get(queue, ())} for queue in {*known, *queues}}
        write_delivered(directory, store_id, both)


def remove_delivered(disk: WritableDisk, directory: StoreDirectory) -> None:
    """Remove the file, if it exists. Raises OSError."""
    path = directory.part(NAME)
    if disk.is_file(path):
        disk.remove(path)
        disk.sync_directory(directory.root)


def _text(content: Mapping[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
