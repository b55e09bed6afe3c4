"""What a journal writer asks for: writes, and then a sync of the files that they touched.

A writer is a state machine without I/O. Whoever owns the files asks it for the next step, does the writes in order,
has each file named in the step synced, and says `flushed`; or `failed`, after which the writer takes nothing more.
One step is under way at a time. A flush is one step, or several where it enters a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from formats.rhm.geometry import MAX_FILES


class Write(NamedTuple):
    """Bytes for one file of the journal.

    Attributes:
        file: the file's number in the ring.
        offset: bytes from the file's start.
        content: what goes there.
    """

    file: int
    offset: int
    content: bytes | memoryview


class Step(NamedTuple):
    """What is written, in order, and then synced.

    Attributes:
        writes: the writes; none is longer than a page of the write cache.
        files: numbers of the files that are to be synced when all is written.
    """

    writes: Sequence[Write]
    files: tuple[int, ...]


class JournalError(Exception):
    """A journal does not do what it was asked. Nothing of the operation was written."""


class JournalFullError(JournalError):
    """There is no room for the record, and none will be until messages are dequeued."""


class ThresholdError(JournalFullError):
    """An enqueue is more than the journal takes, by its threshold or by the limit on one record; dequeues go on."""


def over_threshold(title: str, files: int, pages: int) -> ThresholdError:
    """The error of an enqueue that would take a ring above its threshold: first qpidd's sentence, then what to do.

    Args:
        title: names the journal: `queue "orders"`.
        files: those of its ring.
        pages: of 64 KiB, in each file; 0 for less than one.
    """
    larger = f"--num-jfiles {min(2 * files, MAX_FILES)}" if files < MAX_FILES else f"--jfile-size-pgs {2 * pages or 1}"
    return ThresholdError(
        f"Enqueue capacity threshold exceeded on {title}. Consume messages; or stop the broker and enlarge the "
        f"journal: qstore-resize DATA-DIR QUEUE {larger}; or declare queues with a larger qpid.file_count or "
        "qpid.file_size"
    )


class JournalBusyError(JournalError):
    """There is no room for the record until what was gathered is flushed: flush, and ask again."""


class JournalFailedError(JournalError):
    """A write or a sync failed before: the journal takes no records until the store is opened again."""
