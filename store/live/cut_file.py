"""The description of a snapshot as a file, for another process that reads the journals itself, in JSON.

key                 value
------------------  --------------------------------------------------------------------------------------------
format, version     "qstore-cut", 1
store_id            the store's id, in hex
software            the version that last marked the store
journals            those of the queues, by number, and last the prepared list. Each has

queue_id        the queue's number; 0 for the prepared list
directory       below the root of the store: jrnl/7
base_name       the common prefix of its files' names
files, size     number of its files, and bytes of data in each
cut             null for a queue that was being created, or: first file, end, flush, whether it is whole, origin
and lap of the ring, blocks that were free; see `journal.write.space.Cut`
ring            the numbers of its files in their order; null for 0, 1, 2 and so on
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final, NamedTuple
from uuid import UUID

from orjson import dumps, loads

from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_RING_FILES, Geometry
from qstore.formats.rhm.jinf import is_plain_ring
from qstore.store.journal.write.space import Cut, FileRing, Pin
from qstore.store.live.snapshot import JournalSnapshot, Snapshot
from qstore.store.unfinished import LIST

_FORMAT: Final = "qstore-cut"
_VERSION: Final = 1
_DIRECTORY: Final = re.compile(r"jrnl/[0-9]{1,20}|" + LIST)
_BASE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_NUMBER: Final = 1 << 63


class CutDescription(NamedTuple):
    """A snapshot, as another process sees it.

    Attributes:
        store_id: the store's id.
        software: the version that last marked it.
        journals: those of the queues, and last the prepared list.
        free: queue id -> blocks that could be written at the cut without overwriting anything of the snapshot.
    """

    store_id: UUID
    software: str
    journals: list[JournalSnapshot]
    free: dict[int, int]


def encode_cut(snapshot: Snapshot, root: str) -> bytes:
    """Describe a snapshot of the store in `root`."""
    return dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "store_id": snapshot.store_id.hex,
            "software": snapshot.software_version,
            "journals": [_fields(journal, root) for journal in snapshot.all_journals],
        }
    )


def _fields(journal: JournalSnapshot, root: str) -> dict[str, Any]:
    cut, numbers = journal.cut, journal.ring.numbers
    found = None
    if cut is not None:
        blocks = journal.geometry.data_size // BLOCK_SIZE
        free = (cut.first + journal.geometry.files) * blocks - cut.end
        found = [cut.first, cut.end, cut.flush, int(cut.is_whole), *cut.ring.start, free]
    return {
        "queue_id": journal.queue_id,
        "directory": journal.directory.removeprefix(root + "/"),
        "base_name": journal.base_name,
        "files": journal.geometry.files,
        "size": journal.geometry.data_size,
        "cut": found,
        "ring": None if is_plain_ring(tuple(numbers)) else numbers,
    }


def decode_cut(content: bytes, root: str) -> CutDescription:
    """A description of a snapshot of the store in `root`, checked. Raises ValueError."""
    try:
        fields = loads(content)
        if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
            raise ValueError("it is of another version")
        free: dict[int, int] = {}
        journals = [_journal(each, root, free) for each in fields["journals"]]
        if not journals or any(not each.queue_id for each in journals[:-1]) or journals[-1].queue_id:
            raise ValueError("the prepared list is missing")
        return CutDescription(UUID(hex=fields["store_id"]), str(fields["software"]), journals, free)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it lacks something: {error}") from None


def _journal(fields: dict[str, Any], root: str, free: dict[int, int]) -> JournalSnapshot:
    directory, base_name, files, ring = (fields[name] for name in ("directory", "base_name", "files", "ring"))
    if not _DIRECTORY.fullmatch(directory) or not _BASE_NAME.fullmatch(base_name):
        raise ValueError("a journal is not where it must be")
    queue_id, size = _number(fields["queue_id"]), _number(fields["size"])
    if not 1 < _number(files) <= MAX_RING_FILES or not size or size % BLOCK_SIZE:
        raise ValueError("a journal has no such size")
    numbers = range(files) if ring is None else [_number(each) for each in ring]
    if len(numbers) != files or len(set(numbers)) != files or max(numbers) >= MAX_RING_FILES:
        raise ValueError("a journal does not have the files of its ring")
    cut = fields["cut"]
    if cut is not None:
        first, end, flush, is_whole, origin, lap, room = (int(each) for each in cut)
        if not 0 <= first <= _MAX_NUMBER or not 0 <= end <= _MAX_NUMBER or abs(origin) > _MAX_NUMBER:
            raise ValueError("a journal has no such extent")
        free[queue_id] = room
        cut = Cut(first, end, flush, bool(is_whole), FileRing(numbers, origin, lap), Pin(first))
    return JournalSnapshot(queue_id, posixpath.join(root, directory), base_name, Geometry(files, size), cut)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("a number is none")
    return value
