"""The one way to recover a journal: what it tells, and what it does when the system refuses to read on."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import qstore.store as store
from qstore.formats.rhm.close_record import SyncedJournal
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.damage import DamageKind
from qstore.store.journal.directory import data_path, open_journal
from qstore.store.journal.recovery import Outcome
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_recovery import recover_directory, recover_journal
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk, MemoryFile

RING = Geometry(4, 4096)
NOT_CLEAN, CLEAN = Closing(is_clean=False), Closing(is_clean=True)
XID, OTHER = b"transaction", b"another"


class RefusingDisk(MemoryDisk):
    """A disk that opens files a limited number of times; None for no limit."""

    def __init__(self, files: MemoryDisk, most: int | None = None) -> None:
        super().__init__(files.files)
        self._most = most
        self.opened = 0

    def open(self, path: str) -> MemoryFile:
        if self.opened == self._most:
            self.unopenable.add(path)
        self.opened += 1
        return super().open(path)


def filled() -> JournalBuilder:
    builder = JournalBuilder(2, RING)
    for _ in range(3):
        builder.enqueue(b"m" * 1500)
        builder.flush()
    builder.enqueue(b"open", xid=XID)
    builder.flush()
    return builder


def test_found_transactions_stay_unresolved() -> None:
    found = recover_directory(filled().disk(), DIRECTORY, "orders", NOT_CLEAN)
    assert (found.damage, found.messages, len(found.recovery.messages)) == ([], 4, 3)
    assert [each.xid for each in found.recovery.transactions] == [XID]
    assert found.end is not None
    assert found.flush == found.end.flush > 0
    found.journal.close()


def test_the_end_is_compared_with_how_the_store_was_closed() -> None:
    found = recover_directory(filled().disk(), DIRECTORY, "orders", CLEAN)
    assert [each.kind for each in found.damage] == [DamageKind.SEAL_MISSING]


@pytest.mark.parametrize(
    ("synced", "incarnation", "expected"),
    [
        (0, 1, None),
        (4, 1, None),
        (5, 1, DamageKind.SYNCED_FLUSHES_LOST),
        (5, 0, None),  # the journal is newer than the record
        (4, 2, DamageKind.OLD_INCARNATION),
    ],
)
def test_the_end_is_compared_with_how_far_the_journal_was_synced(
    synced: int, incarnation: int, expected: DamageKind | None
) -> None:
    """It has four flushes, and is of incarnation 1; the next flush may be torn."""
    closing = Closing(is_clean=False, synced=[SyncedJournal(7, 7, incarnation, synced)])
    builder = filled()
    journal = open_journal(builder.disk(), DIRECTORY)
    journal.path = "/store/jrnl/7"
    assert journal.info is not None
    journal.info = replace(journal.info, incarnation=1)
    found = recover_journal(journal, closing)
    assert found.flush == 4
    assert [each.kind for each in found.damage] == ([] if expected is None else [expected])
    journal.close()


def test_a_flush_that_was_synced_and_is_incomplete_is_a_loss() -> None:
    """That its first records are there does not hide it."""
    builder = filled()
    for _ in range(3):
        builder.enqueue(b"m" * 100)
    builder.flush()
    last = builder.records[-1]
    disk = builder.disk()
    content = bytearray(disk.files[data_path(DIRECTORY, builder.info.base_name, last.file)])
    content[last.offset + 40] ^= 1
    disk.files[data_path(DIRECTORY, builder.info.base_name, last.file)] = content
    for synced, expected in ((4, []), (5, [DamageKind.SYNCED_FLUSHES_LOST])):
        journal = open_journal(disk, DIRECTORY)
        journal.path = "/store/jrnl/7"
        closing = Closing(is_clean=False, synced=[SyncedJournal(7, 7, 1, synced)])
        assert [each.kind for each in recover_journal(journal, closing).damage] == expected
        journal.close()


def test_a_journal_without_a_readable_record_that_was_synced_is_lost() -> None:
    closing = Closing(is_clean=False, synced=[SyncedJournal(7, 7, 1, 3)])
    journal = open_journal(JournalBuilder(2, RING).disk(), DIRECTORY)
    journal.path = "/store/jrnl/7"
    assert [each.kind for each in recover_journal(journal, closing).damage] == [DamageKind.SYNCED_JOURNAL_BLANK]
    journal.close()


def test_prepared_list_gives_the_outcome_of_transactions() -> None:
    builder = JournalBuilder(2, RING, queue_name="TplStore", base_name=TPL_BASE_NAME)
    builder.enqueue(b"\1", xid=XID)
    prepare = builder.enqueue(b"\0", xid=OTHER)
    builder.dequeue(prepare.header.rid, xid=OTHER, flags=COMMIT_DECISION)
    builder.flush()
    found = recover_directory(builder.disk(), DIRECTORY, "TplStore", NOT_CLEAN)
    assert [(each.xid, each.two_phase, each.outcome) for each in found.prepared()] == [
        (XID, True, Outcome.IN_DOUBT),
        (OTHER, False, Outcome.COMMITTING),
    ]


def test_a_journal_that_cannot_be_read_leaves_no_file_open() -> None:
    builder = filled()
    counting = RefusingDisk(builder.disk())
    open_journal(counting, DIRECTORY).close()
    disk = RefusingDisk(builder.disk(), counting.opened + 1)  # the walk may open the first file, and not the second
    with pytest.raises(PermissionError):
        recover_directory(disk, DIRECTORY, "orders", NOT_CLEAN)
    assert disk.open_now == 0


def test_unreadable_file_is_damage_in_a_read_only_recovery() -> None:
    disk = filled().disk()
    journal = open_journal(disk, DIRECTORY)
    path = data_path(DIRECTORY, "JournalData", 1)
    disk.unopenable.add(path)
    found = recover_journal(journal, NOT_CLEAN, if_readable=True)
    assert [(each.file, each.kind) for each in found.damage] == [(path, DamageKind.JOURNAL_BREAKS_OFF)]
    assert (found.end, found.flush) == (None, 0)
    journal.close()


def test_damage_rules_are_applied_in_one_module() -> None:
    """What is damage is decided in one place: no other module puts the rules together."""
    rules = {"contradicted", "missing_seal"}
    users = set()
    for path in Path(store.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            called = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
            if called in rules:
                users.add(path.name)
    assert users == {"journal_recovery.py"}
