"""Which of several dirty stores to start from: the content of each, and when it was last written.

All members of a cluster perform the same operations on their stores in the same order, so the store of the broker that
ran longest is the most complete. The indicator is the time of the last write to a journal: it depends on the hosts'
clocks, and `cp` without `-p` or `-a` loses it. The number of messages is no indicator, because later ones may have been
consumed. The decision is the operator's.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from qstore.store.disk import Disk
from qstore.store.inspect.offline import open_store


class Candidate(NamedTuple):
    """A store that could be the one to start from.

    Attributes:
        path: the data directory.
        last_write: latest write to its journals, UTC; None if it has none.
        queues: number of queues.
        messages: number of messages that would be delivered.
        transactions: number of open transactions.
        damage: number of damaged places.
    """

    path: str
    last_write: datetime | None
    queues: int
    messages: int
    transactions: int
    damage: int


def candidate(disk: Disk, path: str) -> Candidate:
    """Read the store in a data directory. Raises UnusableInputError, OSError."""
    store = open_store(disk, path)
    try:
        recovered = store.recover()
        files = [file.path for journal in store.all_journals() for file in journal.files.files]
        return Candidate(
            path,
            _last_write(files),
            len(recovered.queues),
            sum(queue.deliverable for queue in recovered.queues),
            len(recovered.transactions),
            len(store.damage),
        )
    finally:
        store.close()


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """The latest first; among those written at the same time the one with less damage."""
    first = datetime.min.replace(tzinfo=UTC)
    return sorted(candidates, key=lambda each: (each.last_write or first, -each.damage), reverse=True)


def _last_write(files: list[str]) -> datetime | None:
    return datetime.fromtimestamp(max(Path(file).stat().st_mtime for file in files), UTC) if files else None
