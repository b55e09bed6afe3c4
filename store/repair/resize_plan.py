"""Plans another geometry for a journal: whether everything fits, and what would fit if not.

The content is what recovery finds before anything is resolved: every existing message, and the enqueues and dequeues of
all open transactions, since whether they were prepared is stored elsewhere. The rules of `space` decide whether it
fits: it must have been possible to enqueue these messages in the new ring, with room for everything still to come for
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from qstore.formats.catalogue import QueueEntry
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, MAX_PAGES, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.wording import printable
from qstore.store.disk import Disk
from qstore.store.errors import StoreDamagedError
from qstore.store.journal.directory import NotAJournalError
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_content import JournalContent, content_of, fitting_geometry, larger_files
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_directory

#: Chooses a journal's geometry: called with its name and its present one; None to leave it unchanged.
Choose = Callable[[str, Geometry], Geometry | None]


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """The plan for one journal.

    Attributes:
        name: the queue's, or "TplStore".
        source: the journal, which is sound.
        info: its info file.
        before, after: its geometries; the same if nothing is to be done.
        live_bytes: bytes of blocks of everything that is kept.
        fits: whether that fits into `after`.
        would_fit: if not, the nearest geometries into which it would; none if the largest is too small.
        entry: the queue's entry in the catalogue; None for the prepared list.
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
        """Number of messages to move, those that open transactions enqueue included."""
        return self.source.messages

    @property
    def transactions(self) -> int:
        """Number of open transactions to move."""
        return len(self.source.recovery.transactions)


def plan_of(source: RecoveredJournal, name: str, entry: QueueEntry | None, choose: Choose) -> JournalPlan:
    """Plan a journal, whose files are closed.

    Args:
        source: the journal.
        name: the queue's, or "TplStore".
        entry: the queue's entry in the catalogue; None for the prepared list.
        choose: chooses the new geometry.
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
    """Recover a sound journal of version 2.

    Args:
        disk: reads it.
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
        f"{where}: {what}; nothing was changed: start the broker, which rebuilds damaged journals from their "
        "readable content, or use qstore-recover"
    )


def larger_geometries(content: JournalContent, geometry: Geometry, alignment: int) -> tuple[Geometry, ...]:
    """Geometries into which `content` fits though not into `geometry`: more files, or the same number of larger ones.

    Returns:
        At most one of either kind; one with more and larger files if neither suffices; none if the largest is too
        small.
    """

    def fits(candidate: Geometry) -> bool:
        return content.fits(candidate, alignment)

    more = (Geometry(files, geometry.data_size) for files in range(geometry.files + 1, MAX_FILES + 1))
    found = [*islice(filter(fits, more), 1), *islice(larger_files(geometry, MAX_PAGES, fits), 1)]
    if not found:
        largest = fitting_geometry(content, geometry, alignment)
        return () if largest is None else (largest,)
    return tuple(found)
