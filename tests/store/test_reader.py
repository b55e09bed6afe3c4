"""The walk over a journal: what it hands over, where it ends, and what is left of former laps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.file_header import decode_file_header, encode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.records import SEAL, Kind, RecordHeader, encode_record
from qstore.store.journal.directory import open_journal
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.journal_history import (
    GEOMETRIES,
    History,
    end_of,
    expected_places,
    long_steps,
    recover,
    rids,
    surviving,
)
from tests.support.profiles import examples

BOTH = pytest.mark.parametrize("version", [1, 2])
SMALL = Geometry(4, 1024)


class EveryRecord:
    """A sink that keeps all records."""

    def __init__(self) -> None:
        self.records: list[tuple[RecordHeader, int, bytes]] = []
        self.damage: list[object] = []

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        raise AssertionError("every record was asked for")

    def dequeue(self, rid: int, dequeued_rid: int) -> None:
        raise AssertionError("every record was asked for")

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        self.records.append((header, place, xid))

    def damaged(self, damage: object) -> None:
        self.damage.append(damage)


@examples(100)
@given(st.sampled_from([1, 2]), GEOMETRIES, st.integers(0, 2**32))
def test_every_record_is_handed_over_as_it_was_written(version: int, geometry: Geometry, seed: int) -> None:
    history = History(JournalBuilder(version, geometry))
    history.run(long_steps(seed, 100))
    history.flush()
    journal = open_journal(history.builder.disk(), DIRECTORY)
    sink = EveryRecord()
    end = journal.walk(sink, every_record=True)
    expected = surviving(history.builder)
    assert [(kept.header.kind, kept.header.rid, kept.file, kept.offset, kept.xid) for kept in expected] == [
        (header.kind, header.rid, journal.stream.locate(place)[0].number, journal.stream.locate(place)[1], xid)
        for header, place, xid in sink.records
    ]
    assert sink.damage == []
    assert end is None or not end.torn


# ---- ends ----


@BOTH
def test_a_journal_never_written(version: int) -> None:
    recovered = recover(JournalBuilder(version, SMALL).disk())
    assert (recovered.places, recovered.end, recovered.damage) == ([], None, [])


@BOTH
@pytest.mark.parametrize("laps", [1, 2])
def test_a_journal_that_is_exactly_full(version: int, laps: int) -> None:
    """The last record ends at the end of the last file, and the next file is the oldest and holds messages."""
    builder = JournalBuilder(version, SMALL)
    for lap in range(laps):
        for _ in range(32):
            builder.enqueue(b"x" * 80)
        builder.flush()
        if lap < laps - 1:
            builder.records.clear()
    assert builder.position == laps * SMALL.capacity
    recovered = recover(builder.disk())
    assert recovered.damage == []
    assert recovered.places == [(record.header.rid, record.file, record.offset) for record in builder.records]
    assert end_of(recovered) == JournalEnd(
        SMALL.capacity, "the last file is full", False, None, False, laps if version == 2 else 0
    )


@BOTH
def test_full_in_the_middle_of_the_ring(version: int) -> None:
    """As above, but the last file written is not the last of the ring."""
    builder = JournalBuilder(version, SMALL)
    for flush in range(6):
        for _ in range(8):
            builder.enqueue(b"x" * 80)
        builder.flush()
        assert builder.position == 1024 * (flush + 1)
    recovered = recover(builder.disk())
    assert rids(recovered) == list(range(17, 49))
    assert (recovered.damage, end_of(recovered).torn) == ([], False)
    assert end_of(recovered).place == SMALL.capacity


@BOTH
@pytest.mark.parametrize("exact", [False, True])
def test_the_oldest_file_begins_no_record(version: int, exact: bool) -> None:
    """A giant record fills it: what is older cannot be whole, and reading begins in the next file that begins one.

    `exact`: the giant record ends where the file does, and the header says so as qpidd's resize tool writes it.
    """
    builder = JournalBuilder(version, SMALL, exact_fit_length=True)
    builder.enqueue(b"a" * 40)
    giant = builder.enqueue(b"G" * (2048 - 128 - 44 if exact else 2 * 1024 + 100))
    kept = [builder.enqueue(b"k%d" % number).header.rid for number in range(5)]
    builder.dequeue(1)
    builder.dequeue(giant.header.rid)
    builder.flush()
    while builder.position <= SMALL.capacity:
        kept.append(builder.enqueue(b"after").header.rid)
        builder.flush()
    header = decode_file_header(bytes(builder.files[1][:SECTOR_SIZE]))
    assert header is not None
    assert header.first_record_offset == (SMALL.file_size if exact else 0)
    recovered = recover(builder.disk())
    assert recovered.damage == []
    assert rids(recovered) == kept


@BOTH
def test_every_file_is_the_middle_of_a_giant_record(version: int) -> None:
    builder = JournalBuilder(version, SMALL)
    builder.enqueue(b"G" * 4 * SMALL.capacity)
    builder.flush()
    for file in builder.files:
        header = decode_file_header(bytes(file[:SECTOR_SIZE]))
        assert header is not None
        file[:SECTOR_SIZE] = encode_file_header(header._replace(first_record_offset=0))
    recovered = recover(builder.disk())
    assert recovered.places == []
    assert recovered.end is not None


@BOTH
def test_a_torn_record_whose_header_is_in_an_earlier_file(version: int) -> None:
    """formats/rhm/README.md, 7.1: the last file has a header of the new lap, and the record never got its end."""
    builder = JournalBuilder(version, SMALL)
    while builder.position < SMALL.capacity:
        old = builder.enqueue(b"old").header.rid
        builder.dequeue(old)
        builder.flush()
    kept = builder.enqueue(b"kept").header.rid
    builder.flush()
    torn = builder.enqueue(b"T" * 1800)
    before = [bytes(file) for file in builder.files]
    builder.flush()
    assert {file for part in builder.last_flush for file, _ in part} == {0, 1, 2}
    builder.files[1][SECTOR_SIZE:] = before[1][SECTOR_SIZE:]  # its header was written, and no more
    builder.files[2] = bytearray(before[2])
    recovered = recover(builder.disk())
    assert rids(recovered) == [kept]
    assert recovered.damage == []
    end = end_of(recovered)
    assert end.torn
    assert end.rid == torn.header.rid
    assert open_place(builder, end) == (torn.file, torn.offset)


def open_place(builder: JournalBuilder, end: JournalEnd) -> tuple[int, int]:
    file, offset = open_journal(builder.disk(), DIRECTORY).stream.locate(end.place)
    return file.number, offset


def position_of(builder: JournalBuilder, end: JournalEnd, least: int) -> int:
    """The position, from `least` on, that a walk's end means."""
    stream = open_journal(builder.disk(), DIRECTORY).stream
    if end.place == stream.size:
        return least - least % -builder.geometry.data_size
    file, offset = stream.locate(end.place)
    while builder.place(least) != (file.number, offset):
        least += BLOCK_SIZE
    return least


@BOTH
def test_writing_continues_after_a_crash(version: int) -> None:
    """Torn flush, restart at the end that was found, and so on: each time everything is found, nothing is damaged."""
    builder = JournalBuilder(version, Geometry(4, 4096))
    expected = []
    for turn in range(24):
        expected.append(builder.enqueue(b"kept %d" % turn).header.rid)
        builder.flush()
        flushed = builder.position
        before = [bytes(file) for file in builder.files]
        first = builder.enqueue(b"T" * (100 * turn)).header.rid
        builder.enqueue(b"lost" * 300)
        builder.flush()
        sectors = [sector for part in builder.last_flush for sector in part]
        kept_sectors = turn % len(sectors)
        for number, offset in sectors[kept_sectors:]:
            builder.files[number][offset : offset + SECTOR_SIZE] = before[number][offset : offset + SECTOR_SIZE]
        recovered = recover(builder.disk())
        assert recovered.damage == []
        assert [rid for rid in rids(recovered) if rid != first] == expected
        builder.restart(position_of(builder, end_of(recovered), flushed))
        if first in rids(recovered):
            builder.dequeue(first)
        if len(expected) > 3:
            builder.dequeue(expected.pop(0))
        builder.flush()
        again = recover(builder.disk())
        assert again.damage == []
        assert rids(again) == expected


def test_version_2_rest_of_a_torn_flush_stays_dead() -> None:
    """Its beginning was lost and the rest was not; the broker goes on where it began, up to a record of that rest."""
    builder = JournalBuilder(2, SMALL)
    kept = builder.enqueue(b"kept").header.rid
    builder.flush()
    for _ in range(2):
        builder.enqueue(b"x" * 468)
    before = bytes(builder.files[0])
    builder.flush()
    lost = builder.records[-2]
    builder.files[0][lost.offset : lost.offset + 512] = before[lost.offset : lost.offset + 512]
    assert rids(recover(builder.disk())) == [kept]
    builder.restart(lost.position)
    assert builder.position == lost.position + 512
    recovered = recover(builder.disk())
    assert rids(recovered) == [kept]
    assert (recovered.damage, end_of(recovered).torn) == ([], False)
    assert end_of(recovered).what == "enqueue record of an older flush"


@pytest.mark.parametrize("every_record", [False, True])
def test_version_2_a_plain_record_of_an_older_flush_ends_the_journal(every_record: bool) -> None:
    builder = JournalBuilder(2, SMALL, first_flush=70)
    first = builder.enqueue(b"first").header.rid
    builder.enqueue(b"older")
    builder.flush()
    salt = decode_file_header(bytes(builder.files[0][:SECTOR_SIZE]))
    assert salt is not None
    older = RecordHeader(Kind.ENQUEUE, 2, 0, 2, data_size=5, flush=69)
    builder.files[0][640:768] = encode_record(older, b"", b"older", salt=salt.salt)
    journal = open_journal(builder.disk(), DIRECTORY)
    sink = EveryRecord() if every_record else JournalRecovery()
    end = journal.walk(sink, every_record=every_record)
    assert end is not None
    assert end.place == 128
    if isinstance(sink, JournalRecovery):
        assert [rid for rid, _, _, _ in sink.outstanding(JournalFormat.VERSION_2)] == [first]


def test_version_2_a_flush_that_stops_between_records_is_torn() -> None:
    builder = JournalBuilder(2, SMALL)
    kept = builder.enqueue(b"kept" * 100).header.rid
    builder.enqueue(b"lost" * 100)
    builder.flush()
    second = builder.records[1]
    builder.files[0][second.offset :] = bytes(len(builder.files[0]) - second.offset)
    recovered = recover(builder.disk())
    assert rids(recovered) == [kept]
    assert (end_of(recovered).torn, end_of(recovered).rid) == (True, None)
    assert recovered.damage == []


@BOTH
def test_a_clean_close_is_reported(version: int) -> None:
    builder = JournalBuilder(version, Geometry(4, 4096))
    builder.enqueue(b"x")
    builder.seal()
    assert end_of(recover(builder.disk())).sealed == (version == 2)
    builder.enqueue(b"z" * 468)
    builder.flush()
    assert not end_of(recover(builder.disk())).sealed
    builder.enqueue(b"y", flags=SEAL)  # a flag of fillers, which means nothing here
    builder.enqueue(b"z" * 84)
    builder.flush()
    assert not end_of(recover(builder.disk())).sealed
    builder.seal()
    builder.restart()
    assert not end_of(recover(builder.disk())).sealed
    builder.enqueue(b"y" * 468, flags=SEAL)
    builder.flush()
    assert not end_of(recover(builder.disk())).sealed


def test_version_2_flush_numbers_beyond_32_bits() -> None:
    """The records carry the low 32 bits; a journal lives on past 2^32 flushes."""
    builder = JournalBuilder(2, SMALL, first_flush=2**32 - 3)
    for _ in range(12):
        builder.enqueue(b"x")
        builder.flush()
    builder.restart()
    for _ in range(3):
        builder.enqueue(b"y")
        builder.flush()
    recovered = recover(builder.disk())
    live = {record.header.rid: record.position for record in surviving(builder) if record.header.kind is Kind.ENQUEUE}
    assert recovered.places == expected_places(builder, live)
    assert end_of(recovered).flush == builder.flush_number - 1 > 2**32


# ---- what is left of former laps ----


@BOTH
@pytest.mark.parametrize("written", range(1, 9))
def test_records_of_the_former_lap_are_not_read_again(version: int, written: int) -> None:
    builder = JournalBuilder(version, SMALL)
    for _ in range(SMALL.capacity // 512):
        builder.enqueue(b"old" * 20)
        builder.dequeue(builder.next_rid - 1)
        builder.flush()
    new = []
    for _ in range(written):
        new.append(builder.enqueue(b"new").header.rid)
        builder.flush()
    recovered = recover(builder.disk())
    assert rids(recovered) == new
    assert recovered.damage == []
    assert not end_of(recovered).torn


@pytest.mark.parametrize("kind", [Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT])
def test_version_1_an_indicator_that_changes_anywhere(kind: Kind) -> None:
    """qpidd refuses the whole journal (0x0206); here the one record is damage."""
    builder = JournalBuilder(1, SMALL)
    first = builder.enqueue(b"first").header.rid
    header = RecordHeader(kind, 1, 0, 77, 0 if kind is Kind.ENQUEUE else 1)
    changed = builder.append(header, b"" if kind is Kind.ENQUEUE else b"x")
    last = builder.enqueue(b"last").header.rid
    builder.flush()
    builder.files[changed.file][changed.offset + 6] ^= 1
    recovered = recover(builder.disk())
    assert rids(recovered) == [first, last]
    (damage,) = recovered.damage
    assert (damage.offset, damage.what) == (changed.offset, f"{kind.label} record of another lap")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [9_000, 50_000, 1_100_000])
def test_large_and_small_records_in_turn(version: int, size: int) -> None:
    """Wherever the reader's window ends: within a large record, and the small ones behind it are still found."""
    builder = JournalBuilder(version, Geometry.from_pages(4, 24))
    expected = []
    while builder.position + size + 10_000 < builder.geometry.capacity:
        expected += [builder.enqueue(bytes(size)).header.rid, builder.enqueue(b"small" * len(expected)).header.rid]
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    assert recovery.damage == []
    assert end is not None
    assert not end.torn
    assert [rid for rid, *_ in recovery.messages.in_rid_order()] == expected
