"""What would become of a journal that is given another geometry: whether everything fits, and what would if not.

What counts is what recovery finds before anything is resolved: every message that is there, and all that open
transactions enqueue and dequeue, since whether they were prepared is told elsewhere. Whether that fits is a matter of
`space`: enqueues of so many messages must have been possible in the new ring, and all that is to come for them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from formats.catalogue import QueueEntry
from formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, Geometry
from formats.rhm.jinf import JournalInfo
from formats.wording import printable
from store.disk import Disk
from store.errors import StoreDamagedError
from store.inspect.sizing import MAX_PAGES
from store.journal.directory import NotAJournalError
from store.recovery.close_record import Closing
from store.recovery.journal_content import JournalContent, content_of, fitting_geometry, larger_files
from store.recovery.journal_recovery import RecoveredJournal, recover_directory

#: Says what geometry a journal is to have: called with its name and what it has; None to leave it as it is.
Choose = Callable[[str, Geometry], Geometry | None]


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """What is to become of one journal.

    Attributes:
        name: the queue's, or "TplStore".
        source: the journal, which is sound.
        info: what its info file says.
        before, after: its geometry; the same where nothing is to be done.
        live_bytes: bytes of blocks of all that is kept.
        fits: whether all of that fits into `after`.
        would_fit: if not, geometries into which it would, the nearest ones; none if the largest is too small.
        entry: the queue's in the catalogue; None for the prepared list.
    """

    name: str
    source: RecoveredJournal
    info: JournalInfo
    before: Geometry
    after: Geometry
    live_bytes: int
    fits: bool
    would_fit: tuple[Geometry, ...]
    entry: QueueEntry | None

    @property
    def is_change(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    @property
    def messages(self) -> int:
        """Messages that move, those that open transactions enqueue included."""
        return self.source.messages

    @property
    def transactions(self) -> int:
        """Open transactions that move."""
        return len(self.source.recovery.transactions)


def plan_of(source: RecoveredJournal, name: str, entry: QueueEntry | None, choose: Choose) -> JournalPlan:
    """What becomes of a journal, whose files are closed.

    Args:
        source: the journal.
        name: the queue's, or "TplStore".
        entry: the queue's in the catalogue; None for the prepared list.
        choose: says what it is to be.
    """
    content = content_of(source.journal, source.recovery, is_prepared_list=entry is None)
    source.journal.close()
    info = source.journal.info
    assert info is not None  # it is damage if there is none
    before = source.journal.files.geometry
    after = choose(name, before) or before
    alignment = info.flush_alignment
    fits = after == before or content.fits(after, alignment)
    would_fit = () if fits else larger_geometries(content, after, alignment)
    return JournalPlan(name, source, info, before, after, content.blocks * BLOCK_SIZE, fits, would_fit, entry)


def read_journal(disk: Disk, path: str, name: str, closing: Closing) -> RecoveredJournal:
    """Recover a journal of version 2 that is sound.

    Args:
        disk: where it is.
        path: its directory.
        name: the queue's, or "TplStore".
        closing: how the store was closed.

    Raises:
        StoreDamagedError: it is damaged.
        OSError: it cannot be read.
    """
    if not disk.is_directory(path):
        raise _refused(path, f'"{printable(name)}" has no journal')
    try:
        found = recover_directory(disk, path, name, closing)
    except NotAJournalError as error:
        raise _refused(path, f"there is no journal: {error}") from None
    if found.damage:
        found.journal.close()
        raise _refused(found.damage[0].where, found.damage[0].what)
    return found


def _refused(where: str, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{where}: {what}; nothing is resized: start the broker, which saves what can be read of a damaged "
        "journal, or see qstore-recover"
    )


def larger_geometries(content: JournalContent, geometry: Geometry, alignment: int) -> tuple[Geometry, ...]:
    """Geometries into which `content` fits though it does not into `geometry`: more files, or as many larger ones.

    Returns:
        At most one of either kind; one that is more of both where neither does; none where the largest is too small.
    """

    def fits(candidate: Geometry) -> bool:
        return content.fits(candidate, alignment)

    more = (Geometry(files, geometry.data_size) for files in range(geometry.files + 1, MAX_FILES + 1))
    found = [*islice(filter(fits, more), 1), *islice(larger_files(geometry, MAX_PAGES, fits), 1)]
    if not found:
        largest = fitting_geometry(content, geometry, alignment)
        return () if largest is None else (largest,)
    return tuple(found)
