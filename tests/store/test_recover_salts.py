"""The salt of a version-2 file whose header is lost, told from its records; and when it is not told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.file_header import encode_file_header
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.records import SALT
from qstore.store.disk import OsDisk
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import RingFile
from qstore.store.repair.recover.salts import _salt_that_adds, restore_salts
from tests.support.journal_builder import JournalBuilder

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
    strange = replace(file.header, file_number=3, salt=file.header.salt ^ 1)
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
