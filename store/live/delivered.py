"""The messages that had been delivered when a store was closed cleanly: they are redelivered, and marked so.

After a crash this is unknown, and all messages are marked. The file `rhm/DELIVERED` is written before the clean mark is
set, and removed before that is cleared. It is one JSON object on one line:

    key       value
    --------  ----------------------------------------------------------------------------------------
    crc32c    8 hexadecimal digits: CRC-32C of the text of the same object without this key
    runs      queue id, as text -> the runs of delivered messages, one after another: the record ids of the first and
              the last of each; all messages of the queue in between were delivered, too
    queues    in files of older versions: queue id, as text -> the ascending record ids of delivered messages
    store_id  the store's

After a crash all messages of a queue are marked: a clean close then records millions of them as one run.

If the file is damaged, all messages are marked.
"""

from __future__ import annotations

import contextlib
import posixpath
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import gt
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.store_file import MAX_SIZE, StoreFileError, decode
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import Disk, WritableDisk, read_whole
from qstore.store.live.queue_journal import QueueJournal

if TYPE_CHECKING:
    from qstore.store.inspect.layout import StoreLayout

NAME: Final = "DELIVERED"
_MAX_SIZE: Final = 1 << 30
MAX_RUNS: Final = 1 << 18
"""Runs of one queue: beyond this, undelivered messages are marked too, so that memory stays small."""


class Delivered:
    """The messages that may have been delivered before the restart.

    Args:
        runs: queue id -> the runs, in order: the first record id, the last, and so on; None for all messages.

    Attributes:
        runs: as above.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Mapping[int, Sequence[int]] | None) -> None:
        self.runs = None if runs is None else {queue: array("Q", each) for queue, each in runs.items()}

    def holds(self, queue_id: int, rid: int) -> bool:
        """Whether the message may have been delivered."""
        return self.runs is None or bool(self.among(queue_id, (rid,)))

    def among(self, queue_id: int, rids: Sequence[int]) -> Sequence[int]:
        """Which of a queue's messages, by ascending record id, may have been delivered, by number from 0."""
        if self.runs is None:
            return range(len(rids))
        runs = self.runs.get(queue_id)
        if not runs or not rids:
            return ()
        at = bisect_left(runs, rids[0]) & -2  # the first run that ends there or later
        found: list[int] = []
        while at < len(runs) and runs[at] <= rids[-1]:
            begin, end = bisect_left(rids, runs[at]), bisect_right(rids, runs[at + 1])
            if end - begin == len(rids):
                return range(len(rids))
            found += range(begin, end)
            at += 2
        return found


def runs_of(rids: Iterable[int], on_queue: Iterable[int] | None = None, most: int = MAX_RUNS) -> array[int]:
    """The runs of delivered messages of one queue.

    Args:
        rids: their record ids, in any order.
        on_queue: the ascending record ids of all messages on the queue, if known: runs are longer then.
        most: maximum number of runs; the last one has the rest.
    """
    known = array("Q", rids)
    if any(map(gt, known, islice(known, 1, None))):
        known = array("Q", sorted(known))
    runs = array("Q")
    following = iter(known)
    wanted = next(following, 0)
    is_in = False
    for rid in known if on_queue is None else on_queue:
        while wanted and wanted < rid:
            wanted = next(following, 0)
        if rid != wanted or not wanted:
            is_in = False
        elif (is_in and (on_queue is not None or rid <= runs[-1] + 1)) or len(runs) == 2 * most:
            runs[-1] = rid
        else:
            runs.extend((rid, rid))
            is_in = True
    return runs


def merged_runs(*several: Sequence[int]) -> array[int]:
    """The union of runs of one queue that were collected separately."""
    pairs = sorted(pair for runs in several for pair in zip(runs[::2], runs[1::2], strict=True))
    merged = array("Q")
    for first, last in pairs:
        if merged and first <= merged[-1] + 1:
            merged[-1] = max(merged[-1], last)
        else:
            merged.extend((first, last))
    return merged


def delivered_runs(
    delivered: Mapping[int, Iterable[int]], journals: Mapping[int, QueueJournal]
) -> dict[int, Sequence[int]]:
    """Queue id -> the runs of its delivered messages, given their record ids."""
    known = {queue_id: journals[queue_id].writer.records for queue_id in delivered if queue_id in journals}
    return {queue_id: runs_of(delivered[queue_id], records.rids()) for queue_id, records in known.items()}


def write_delivered(directory: StoreDirectory, store_id: UUID, runs: Mapping[int, Sequence[int]]) -> None:
    """Write the file. Raises OSError."""
    content: dict[str, Any] = {
        "runs": {str(queue): list(each) for queue, each in runs.items() if each},
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
        runs = {int(queue): runs_of(rids) for queue, rids in content.get("queues", {}).items()}
        runs |= {int(queue): _checked(each) for queue, each in content.get("runs", {}).items()}
        return Delivered(runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return Delivered(None)


def _checked(runs: Sequence[int]) -> array[int]:
    """Check runs that were read. Raises ValueError: they are not valid."""
    if len(runs) % 2 or list(runs) != sorted(runs):
        raise ValueError("invalid runs")
    return array("Q", runs)


def add_delivered(
    disk: WritableDisk, directory: StoreDirectory, store_id: UUID, queues: Mapping[int, Iterable[int]]
) -> None:
    """Add messages to the file of a store that was closed cleanly. Raises OSError."""
    known = read_delivered(disk, directory, store_id, was_clean=True).runs
    if known is not None:
        added = {queue: runs_of(rids) for queue, rids in queues.items()}
        both = {queue: merged_runs(known.get(queue, ()), added.get(queue, ())) for queue in {*known, *added}}
        write_delivered(directory, store_id, both)


def remove_delivered(disk: WritableDisk, directory: StoreDirectory) -> None:
    """Remove the file, if it exists. Raises OSError."""
    path = directory.part(NAME)
    if disk.is_file(path):
        disk.remove(path)
        disk.sync_directory(directory.root)


def _text(content: Mapping[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
