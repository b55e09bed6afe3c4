"""The requests of a journal writer: writes, and then a sync of the files that they touched.

A writer is a state machine without I/O. Its owner asks it for the next step, does the writes in order, syncs each file
named in the step, and calls `flushed`; or `failed`, after which the writer accepts nothing more. One step is under way
at a time. A flush is one step, or several if it enters a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qstore.formats.rhm.geometry import MAX_FILES


class Pieces:
    """Bytes in many pieces, which are written one after the other, without being joined.

    Attributes:
        pieces: the pieces.
        size: bytes of all of them.
    """

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes], size: int) -> None:
        self.pieces, self.size = pieces, size

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


class Write(NamedTuple):
    """Bytes for one file of the journal.

    Attributes:
        file: the file's number in the ring.
        offset: bytes from the file's start.
        content: the bytes to write.
    """

    file: int
    offset: int
    content: bytes | memoryview | Pieces


class Step(NamedTuple):
    """Writes to do in order, and files to sync then.

    Attributes:
        writes: the writes; none is longer than the write cache.
        files: numbers of the files to sync when all is written.
    """

    writes: Sequence[Write]
    files: tuple[int, ...]


class JournalError(Exception):
    """A journal refuses an operation. Nothing of it was written."""


class JournalFullError(JournalError):
    """There is no room for the record, and none will be until messages are dequeued."""


class ThresholdError(JournalFullError):
    """An enqueue exceeds the threshold or the limit on one record; dequeues are still accepted."""


class JournalPinnedError(JournalFullError):
    """There is no room but by breaking a pin, and the journal can grow: add files, or break it, and retry."""


class RecordTooLongError(ThresholdError):
    """A record is longer than any journal can have."""


def threshold_error(title: str, reason: str) -> ThresholdError:
    """The error of an enqueue that would take a ring above its threshold: first qpidd's sentence, then `reason`.

    Args:
        title: the journal's name: `queue "orders"`.
        reason: why there is no room, and what to do.
    """
    return ThresholdError(f"Enqueue capacity threshold exceeded on {title}. {reason}")


def over_threshold(title: str, files: int, pages: int) -> ThresholdError:
    """The same for a ring of fixed size: how to enlarge it.

    Args:
        title: the journal's name.
        files: number of files in its ring.
        pages: size of each file in pages of 64 KiB; 0 for less than one.
    """
    return threshold_error(
        title,
        "Consume messages; or stop the broker and enlarge the journal: qstore-resize DATA-DIR QUEUE "
        f"{twice(files, pages)}; or declare queues with a larger qpid.file_count or qpid.file_size",
    )


def twice(files: int, pages: int) -> str:
    """The option with which qstore-resize makes a ring of such a size twice as large."""
    return f"--num-jfiles {min(2 * files, MAX_FILES)}" if files < MAX_FILES else f"--jfile-size-pgs {2 * pages or 1}"


class JournalBusyError(JournalError):
    """There is no room for the record until the write batch is flushed: flush, and retry."""


class JournalFailedError(JournalError):
    """A write or a sync failed earlier: the journal accepts no records until the store is opened again."""
