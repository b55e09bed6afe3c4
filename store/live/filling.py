"""Prepares journal files for small flushes, when nothing waits for the disk.

The first write to a block that is only allocated makes the next sync wait for the file system's own journal too, which
takes about as long again (`WritableFile.fill_ahead`). So zeros are written over many such blocks at once. If that were
part of a flush, one message in some hundred would wait two or three times as long as the others. So after a flush for
which the event loop itself has waited, it is done when the messages are delivered and confirmed:

    the event loop   writes the zeros to the page cache, since only one thread writes to a journal
    the background   opens the file once more, and syncs it

An error of that sync is ignored: the journal's own descriptor gets it with the next flush, because each open file
description is told of a write-back error (errseq_t; fsync(2)). And the next flush syncs the zeros too, if the
background has not done it yet.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial

from qstore.store.disk import WritableDisk
from qstore.store.environment import Background
from qstore.store.live.queue_journal import QueueJournal


def fill_ahead(journal: QueueJournal, disk: WritableDisk, background: Background) -> None:
    """Prepare the blocks after the journal's last step, if it was small and they need it."""
    if journal.is_deleted or journal.writer.is_under_way:
        return
    path = journal.storage.fill_ahead()
    if path:
        background.run(partial(_sync, disk, path), _ignore, _ignore)


def _sync(disk: WritableDisk, path: str) -> None:
    with closing(disk.open_writable(path)) as file:
        file.sync()


def _ignore(_: Exception | None) -> None:
    """What is not synced yet is synced by the next flush."""
