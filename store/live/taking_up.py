"""Resumes journals: from a journal's directory to a `QueueJournal` that accepts records."""

from __future__ import annotations

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.formats.wording import printable
from qstore.store.environment import Environment
from qstore.store.journal.write.flushes import JournalOwner
from qstore.store.journal.write.space import FileRing
from qstore.store.journal.write.storage import JournalStorage
from qstore.store.journal.write.version_2_writer import WriterState, open_writer
from qstore.store.live.queue_journal import QueueJournal


def journal_info(
    environment: Environment,
    name: str,
    geometry: Geometry,
    alignment: int,
    *,
    queue_id: int = 0,
    incarnation: int = 0,
    record: bytes = b"",
    base_name: str = DEFAULT_BASE_NAME,
) -> JournalInfo:
    """The info file of a new journal."""
    seconds, nanoseconds = divmod(environment.clock(), 1_000_000_000)
    return JournalInfo(
        2,
        name,
        base_name,
        geometry,
        seconds=seconds,
        nanoseconds=nanoseconds,
        queue_id=queue_id,
        incarnation=incarnation,
        queue_record=record,
        flush_alignment=alignment,
        creation_headers=True,
    )


def take_up(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    geometry: Geometry,
    state: WriterState,
    *,
    bound: int,
) -> QueueJournal:
    """Resume an existing journal, ready to accept records.

    Args:
        environment: disk, clock and so on.
        directory: the journal's.
        info: the content of its info file.
        geometry: number and size of its files.
        state: its content.
        bound: maximum unsynced bytes, and of one write: the more, the larger the folios of the page cache.
    """
    ring = FileRing(info.numbers_of(geometry.files), state.origin, state.lap)
    storage = JournalStorage(environment.disk, directory, info.base_name, geometry, ring)
    title = f'queue "{printable(info.queue_name)}"'
    writer = open_writer(
        JournalOwner(title, info.queue_id, info.incarnation),
        geometry,
        ring,
        alignment=info.flush_alignment,
        page=bound,
        state=state,
        read=storage.read,
        salt=lambda: environment.random_bits(64),
        clock=environment.clock,
    )
    return QueueJournal(
        info.queue_id,
        info.queue_name,
        directory,
        info.base_name,
        geometry,
        writer,
        storage,
        bound,
        info.initial_files,
    )
