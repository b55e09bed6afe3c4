"""Both ends of a journal: what a crash leaves there, and what none can.

At the end of a journal there may be a torn record or flush. Where nothing was ever written behind the end, bytes that
are no record may be what a torn write left, or a record that was damaged: nothing tells. But a version-2 store that was
closed cleanly ends each journal with a seal.

A linearstore journal gives the files at its head back as soon as no message in them is needed: it removes the link, and
then the file. A file that no link leads to, and whose messages are outstanding, has lost its link.
"""

from __future__ import annotations

from collections.abc import Iterator

from formats.rhm.geometry import BLOCK_SIZE
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.journal.directory import data_path
from store.journal.format import JournalFormat
from store.journal.journal import Journal
from store.journal.line.files import Line
from store.journal.reader import JournalEnd
from store.journal.recovery import JournalRecovery


def torn_tail(journal: Journal, end: JournalEnd) -> str:
    """The notice for a journal whose last record or flush was cut short by a crash."""
    file, offset = journal.stream.locate(min(end.place, journal.stream.size - 1))
    record = f" of record 0x{end.rid:x}" if end.rid is not None else ""
    if journal.is_single_file and end.rid is not None:
        return f"{file.path}: the record 0x{end.rid:x} at 0x{offset:x} is not whole in this file; it is left out"
    return f"{file.path}: torn tail{record} at 0x{offset:x}: {end.what}; recovery cuts it off"


def unexplained_end(journal: Journal, end: JournalEnd) -> Iterator[str]:
    """A notice, if there are bytes behind the end of a journal where there should be none."""
    if end.torn or journal.format is JournalFormat.LINEAR or not journal.holds_everything:
        return
    if journal.stream.read(end.place, BLOCK_SIZE).strip(b"\0"):
        file, offset = journal.stream.locate(end.place)
        yield (
            f"{file.path}: the journal ends at 0x{offset:x}, before bytes that are no record of it ({end.what}): "
            "what a torn write left, or a record that was damaged; what stood there is lost"
        )


def missing_seal(journal: Journal, end: JournalEnd) -> Iterator[Damage]:
    """Damage, if a version-2 journal of a store that was closed cleanly, otherwise sound, does not end with a seal."""
    if journal.format is not JournalFormat.VERSION_2 or end.sealed:
        return
    files = journal.files
    if end.place < journal.stream.size:
        file, offset = journal.stream.locate(end.place)
        yield Damage(file.path, offset, end.rid, DamageKind.SEAL_MISSING, problem=end.what)
    else:
        path = data_path(journal.path, journal.base_name, (files.files[-1].number + 1) % files.geometry.files)
        yield Damage(path, files.geometry.header_size, None, DamageKind.SEAL_MISSING, problem=end.what)


def unlinked_head(journal: Journal, recovery: JournalRecovery) -> tuple[list[Damage], list[str]]:
    """Damage and notices about files at a line's head that no link leads to; once transactions are resolved."""
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
            notices.append(
                f"{file.path}: file {file.number}, which its journal had given back, was on its way to the pool"
            )
        else:
            damage.append(Damage(file.path, None, None, DamageKind.FILE_WITHOUT_LINK, Effect.READ_SINCE_NEEDED))
    return damage, notices
