"""Both ends of a journal: what a crash can leave there, and what it cannot.

At the end of a journal there may be a torn record or flush. If nothing was ever written after the end, bytes that are
not a record may be left by a torn write, or by a damaged record: there is no way to tell. But a version-2 store that
was closed cleanly ends each journal with a seal.

A linearstore journal gives the files at its head back as soon as no message in them is needed: it removes the link, and
then the file. A file without a link, but with outstanding messages, has lost its link.
"""

from __future__ import annotations

from collections.abc import Iterator

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.zeros import is_zero
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.journal.directory import data_path
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import Line
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring


def torn_tail(journal: Journal, end: JournalEnd) -> str:
    """The notice for a journal whose last record or flush was torn by a crash."""
    file, offset = journal.stream.locate(min(end.place, journal.stream.size - 1))
    record = f" of record 0x{end.rid:x}" if end.rid is not None else ""
    if journal.is_single_file and end.rid is not None:
        return f"{file.path}: the record 0x{end.rid:x} at 0x{offset:x} is incomplete in this file; it is omitted"
    return f"{file.path}: torn tail{record} at 0x{offset:x}: {end.what}; recovery cuts it off"


def unexplained_end(journal: Journal, end: JournalEnd) -> Iterator[str]:
    """A notice, if there are bytes after the end of a journal where there should be none."""
    if end.torn or journal.format is JournalFormat.LINEAR or not journal.holds_everything:
        return
    if not is_zero(journal.stream.read(end.place, BLOCK_SIZE)):
        file, offset = journal.stream.locate(end.place)
        yield (
            f"{file.path}: the journal ends at 0x{offset:x}, but data follows that is not a valid record ({end.what}): "
            "the remains of a torn write, or a damaged record, which is lost"
        )


def missing_seal(journal: Journal, end: JournalEnd) -> Iterator[Damage]:
    """Damage, if a version-2 journal of a cleanly closed store, otherwise sound, does not end with a seal."""
    if journal.format is not JournalFormat.VERSION_2 or end.sealed:
        return
    files = journal.files
    if end.place < journal.stream.size:
        file, offset = journal.stream.locate(end.place)
        yield Damage(file.path, offset, end.rid, DamageKind.SEAL_MISSING, problem=end.what)
    else:
        assert isinstance(files, Ring)
        number = files.numbers[(files.place(files.files[-1]) + 1) % len(files.numbers)]
        path = data_path(journal.path, journal.base_name, number)
        yield Damage(path, files.geometry.header_size, None, DamageKind.SEAL_MISSING, problem=end.what)


def unlinked_head(journal: Journal, recovery: JournalRecovery) -> tuple[list[Damage], list[str]]:
    """Damage and notices about files at a line's head without a link; to be called after resolving transactions."""
    damage: list[Damage] = []
    notices: list[str] = []
    line = journal.files
    if not isinstance(line, Line) or not line.unlinked_head:
        return damage, notices
    needed = [place for _, place, _ in recovery.messages.in_place_order()][:1]
    needed += [each.place for transaction in recovery.transactions for each in transaction]
    first_needed = min(needed, default=journal.stream.size) // journal.stream.data_size
    for index, file in enumerate(line.files):
        if file.path not in line.unlinked_head:
            continue
        if index < first_needed:
            notices.append(f"{file.path}: file {file.number} was given back by its journal, but is not in the pool yet")
        else:
            damage.append(Damage(file.path, None, None, DamageKind.FILE_WITHOUT_LINK, Effect.READ_SINCE_NEEDED))
    return damage, notices
