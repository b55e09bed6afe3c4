"""Recovery of a journal: its report, unreadable regions, and lost file headers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.store as store
from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.close_record import SyncedJournal
from qstore.formats.rhm.file_header import encode_file_header
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.rhm.records import COMMIT_DECISION, SALT
from qstore.store.damage import DamageKind
from qstore.store.disk import OsDisk
from qstore.store.journal.directory import data_path, open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.ring.files import RingFile
from qstore.store.journal.stream import BadRegions
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_recovery import recover_directory, recover_journal
from qstore.store.repair.recover.salts import _salt_that_adds, restore_salts
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
    journal.info = journal.info._replace(incarnation=1)
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


# ---- the salt of a file whose header is lost ----


GEOMETRY = Geometry(4, 8192)


@given(salt=st.integers(0, (1 << 64) - 1), crc=st.integers(0, (1 << 32) - 1))
def test_a_salt_of_32_bits_does_as_well(salt: int, crc: int) -> None:
    added = extend_crc32c(crc, SALT.pack(salt)) ^ extend_crc32c(crc, SALT.pack(0))
    found = _salt_that_adds(added)
    assert found < 1 << 32
    assert extend_crc32c(crc, SALT.pack(found)) == extend_crc32c(crc, SALT.pack(salt))


def journal_with(path: Path, messages: list[bytes], *without_header: int) -> Journal:
    builder = JournalBuilder(2, GEOMETRY, queue_id=7, queue_name="q")
    for message in messages:
        builder.enqueue(message)
    builder.flush()
    builder.write_to(path)
    for number in without_header:
        file = path / f"JournalData.{number:04x}.jdat"
        content = file.read_bytes()
        file.write_bytes(bytes(FILE_HEADER_SIZE) + content[FILE_HEADER_SIZE:])
    return open_journal(OsDisk(), str(path))


def outstanding(journal: Journal) -> list[bytes]:
    recovery = JournalRecovery()
    journal.walk(recovery)
    found = []
    for _, place, _, _ in recovery.outstanding(journal.format):
        found.append(b"".join(journal.data_chunks(*journal.data_of_enqueue(place))))
    return found


MESSAGES = [bytes([65 + number]) * (300 + 37 * number) for number in range(20)]


@pytest.mark.parametrize("lost", [(0,), (1,)], ids=str)
def test_nothing_is_lost(lost: tuple[int, ...], tmp_path: Path) -> None:
    sound = journal_with(tmp_path / "sound", MESSAGES)
    assert len(sound.files.files) == 2
    journal = journal_with(tmp_path / "journal", MESSAGES, *lost)
    assert outstanding(journal) != MESSAGES
    restore_salts(journal)
    assert outstanding(journal) == MESSAGES
    assert [damage.consequence[:12] for damage in journal.damage] == ["no data loss"] * len(lost)


def test_a_header_of_another_file_costs_the_records_that_its_own_salt_verified(tmp_path: Path) -> None:
    """Its checksum holds, but its number and its salt are not the file's: it is not used, and the salt is gone."""
    sound = journal_with(tmp_path / "journal", MESSAGES)
    (file,) = [file for file in sound.files.files if file.number == 1]
    assert isinstance(file, RingFile)
    assert file.header is not None
    strange = file.header._replace(file_number=3, salt=file.header.salt ^ 1)
    content = Path(file.path).read_bytes()
    Path(file.path).write_bytes(encode_file_header(strange) + content[FILE_HEADER_SIZE:])
    journal = open_journal(OsDisk(), str(tmp_path / "journal"))
    assert [(damage.file, damage.costs) for damage in journal.damage] == [(file.path, True)]
    assert 0 < len(outstanding(journal)) < len(MESSAGES)
    restore_salts(journal)
    assert [damage.costs for damage in journal.damage] == [False]
    assert outstanding(journal) == MESSAGES


def test_a_single_record_proves_nothing(tmp_path: Path) -> None:
    journal = journal_with(tmp_path / "journal", [b"a" * 7000, b"b" * 6000, b"c" * 100], 1)
    before = outstanding(journal)
    (file,) = [file for file in journal.files.files if file.number == 1]
    damage = list(journal.damage)
    restore_salts(journal)
    if file.header is None:
        assert journal.damage == damage
        assert outstanding(journal) == before


def test_forged_records_within_a_message_do_not_count(tmp_path: Path) -> None:
    """Blocks of a journal of another salt, carried as a message's body."""
    forged = JournalBuilder(2, GEOMETRY, queue_id=7, queue_name="q")
    for number in range(3):
        forged.enqueue(b"forged %d" % number)
    forged.flush()
    data = forged.contents()["JournalData.0000.jdat"][FILE_HEADER_SIZE : FILE_HEADER_SIZE + 512]
    body = bytes(96) + bytes(data)  # so that they begin with a block
    messages = [*MESSAGES[:14], body, *MESSAGES[14:], body, *MESSAGES]
    journal = journal_with(tmp_path / "journal", messages, 0)
    restore_salts(journal)
    assert outstanding(journal) == messages


# ---- regions of a journal that cannot be read: runs of sectors, joined ----


SECTORS = 40


@given(st.lists(st.tuples(st.integers(0, SECTORS * SECTOR_SIZE - 1), st.integers(1, 4000)), max_size=20))
def test_as_a_set_of_sectors(regions: list[tuple[int, int]]) -> None:
    bad, expected = BadRegions(), set[int]()
    for begin, size in regions:
        bad.add(1, begin, begin + size, "why")
        expected.update(range(begin // SECTOR_SIZE, -(-(begin + size) // SECTOR_SIZE)))
    assert bool(bad) == bool(expected)
    reported = [each for run in bad.take_new() for each in range(run.begin // SECTOR_SIZE, run.end // SECTOR_SIZE)]
    assert reported == sorted(expected)
    assert list(bad.take_new()) == []
    for sector in range(SECTORS + 10):
        assert bad.touches(1, sector * SECTOR_SIZE, (sector + 1) * SECTOR_SIZE) == (sector in expected)
    assert not bad.touches(2, 0, SECTORS * SECTOR_SIZE)
