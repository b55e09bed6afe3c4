"""Which of several dirty stores to start from: what each holds, and when it was last written.

All members of a cluster do the same to their stores in the same order, so the one whose broker lived longest has it
all. What tells is the time of the last write to a journal: it depends on the hosts' clocks, and `cp` without `-p` or
`-a` loses it. How many messages there are is no measure: later ones may have been consumed. A person decides.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from store.disk import Disk
from store.inspect.offline import open_store


class Candidate(NamedTuple):
    """A store that might be the one to start from.

    Attributes:
        path: the data directory.
        last_write: of its journals, UTC; None if it has none.
        queues: how many.
        messages: how many would be delivered.
        transactions: how many are open.
        damage: how many damages were found.
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
    """The latest first; of those written at the same time the one with less damage."""
    first = datetime.min.replace(tzinfo=UTC)
    return sorted(candidates, key=lambda each: (each.last_write or first, -each.damage), reverse=True)


def _last_write(files: list[str]) -> datetime | None:
    return datetime.fromtimestamp(max(Path(file).stat().st_mtime for file in files), UTC) if files else None
