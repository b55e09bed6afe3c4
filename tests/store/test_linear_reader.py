"""Reading the records of a linearstore journal: what is good, what is torn, what is damage."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qstore.formats.qls.records import SECTOR_SIZE, TAIL_SIZE, encode_header
from qstore.formats.rhm.records import EXTERNAL, TRANSIENT
from qstore.store.damage import Damage
from qstore.store.journal.directory import open_line
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, Outcome
from tests.support.linear_builder import DIRECTORY, LinearBuilder, PlacedRecord
from tests.support.memory_disk import MemoryDisk

XID = b"x" * 24


def read(builder: LinearBuilder, disk: MemoryDisk | None = None) -> tuple[Journal, JournalRecovery, JournalEnd | None]:
    journal = open_line(disk or builder.disk(), DIRECTORY, "q", {})
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    return journal, recovery, end


def live(recovery: JournalRecovery, outcomes: dict[bytes, Outcome] | None = None) -> list[tuple[int, int]]:
    recovery.resolve(outcomes or {})
    return [(rid, state) for rid, _, state in recovery.messages.in_rid_order()]


def rids(recovery: JournalRecovery) -> list[int]:
    return [rid for rid, _ in live(recovery)]


def flip(builder: LinearBuilder, position: int, bit: int = 0) -> None:
    index, offset = builder.place(position)
    byte = builder.files()[index][offset]
    builder.patch(index, offset, bytes([byte ^ 1 << bit]))


def some_records() -> tuple[LinearBuilder, list[PlacedRecord]]:
    """Three messages, each in a flush of its own but the first two; the third is larger than a file."""
    builder = LinearBuilder("q")
    records = [builder.enqueue(1, b"one" * 50), builder.enqueue(2, b"two" * 500)]
    builder.flush()
    records.append(builder.enqueue(3, b"three" * 4000))
    builder.flush()
    records.append(builder.enqueue(4, b"four"))
    builder.flush()
    return builder, records


# ---- good journals ----


def test_messages_of_all_sizes() -> None:
    builder = LinearBuilder("q")
    sizes = [0, 1, 24, 64, 128, 4096, 8191, 8192, 30_000]
    for rid, size in enumerate(sizes, 1):
        builder.enqueue(rid, bytes(size))
        builder.flush()
    journal, recovery, end = read(builder)
    assert (journal.damage, recovery.damage, journal.notices) == ([], [], [])
    assert end is not None
    assert not end.torn
    for rid, place, _ in recovery.messages.in_rid_order():
        data_place, size = journal.data_of_enqueue(place)
        assert size == sizes[rid - 1]
        assert b"".join(journal.data_chunks(data_place, size)) == bytes(size)


@pytest.mark.parametrize("size", [9_000, 50_000, 1_100_000])
def test_large_and_small_records_in_turn(size: int) -> None:
    builder = LinearBuilder("q", 512)
    count = 3_000_000 // size * 2
    for rid in range(1, count + 1):
        builder.enqueue(rid, bytes(size) if rid % 2 else b"small" * rid, xid=XID if rid % 3 == 0 else b"")
    builder.commit(count + 1, XID)
    _, recovery, end = read(builder)
    assert recovery.damage == []
    assert end is not None
    assert not end.torn
    assert rids(recovery) == list(range(1, count + 1))


def test_transactions() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(1, b"old")
    builder.enqueue(2, b"older")
    builder.dequeue(10, 1, XID)
    builder.enqueue(11, b"new", XID)
    assert live(read(builder)[1]) == [(1, LIVE), (2, LIVE)]
    assert live(read(builder)[1], {XID: Outcome.IN_DOUBT}) == [(1, LOCKED), (2, LIVE), (11, PENDING)]
    assert live(read(builder)[1], {XID: Outcome.COMMITTING}) == [(2, LIVE), (11, LIVE)]
    builder.commit(12, XID)
    assert live(read(builder)[1]) == [(2, LIVE), (11, LIVE)]


def test_transient_and_external_records() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(1, b"lost on purpose", flags=TRANSIENT)
    placed = builder.enqueue(2, b"")
    builder.append(placed.header._replace(rid=3, flags=EXTERNAL, data_size=5000))
    builder.enqueue(4, b"after it")
    journal, recovery, _ = read(builder)
    assert (rids(recovery), recovery.damage, recovery.transients) == ([2, 3, 4], [], 1)
    place = recovery.messages.get(3)
    assert place is not None
    assert journal.data_of_enqueue(place.place)[1] == 0


# ---- the end ----


@given(st.data())
def test_a_torn_last_flush_is_no_damage(data: st.DataObject) -> None:
    """Cut at any byte of the last record, and whatever stood there before behind the cut."""
    builder, records = some_records()
    last = builder.enqueue(5, b"five" * data.draw(st.sampled_from([1, 100, 1000, 3000])))
    builder.flush()
    keep = data.draw(st.integers(0, last.used - 1))
    former = data.draw(st.sampled_from([b"\0", b"\xff", b"QLSe", b"QLSx"]))
    # The tail's last bytes may be those that stood there before: then nothing is torn.
    assume(not (former == b"\0" and keep >= last.used - 8))
    for position in range(last.position + keep, builder.position):
        index, offset = builder.place(position)
        builder.patch(index, offset, bytes([former[position % len(former)]]))
    journal, recovery, end = read(builder)
    assert (journal.damage, recovery.damage) == ([], [])
    assert rids(recovery) == [record.header.rid for record in records]
    assert end is not None
    assert end.place >= last.position  # fillers of any age are passed over


def test_the_former_life_of_a_file_ends_the_journal() -> None:
    """Whole records with good checksums and another serial stand behind the end."""
    builder, records = some_records()
    former = LinearBuilder("q", seed=9)
    for rid in range(50, 60):
        former.enqueue(rid, b"former")
    index, offset = builder.place(builder.position)
    builder.patch(index, offset, former.files()[0][offset : 4096 + 8192])
    _, recovery, end = read(builder)
    assert (recovery.damage, rids(recovery)) == ([], [record.header.rid for record in records])
    assert end is not None
    assert not end.torn


# ---- damage ----


@given(st.data())
def test_a_flipped_bit_is_found_and_costs_its_record_only(data: st.DataObject) -> None:
    builder, records = some_records()
    hit = data.draw(st.sampled_from(records[:-1]))
    flip(builder, hit.position + data.draw(st.integers(0, hit.used - 1)), data.draw(st.integers(0, 7)))
    _, recovery, _ = read(builder)
    damage = recovery.damage[0]
    index, offset = builder.place(hit.position)
    flags_only = "unknown flags" in damage.what
    assert (damage.file, damage.offset) == (f"{DIRECTORY}/{builder.names()[index]}", offset + (6 if flags_only else 0))
    assert rids(recovery) == [record.header.rid for record in records if record is not hit]
    assert len(recovery.damage) == 1


def test_a_zeroed_sector() -> None:
    builder, _ = some_records()
    builder.patch(0, 4096, bytes(512))
    _, recovery, _ = read(builder)
    assert rids(recovery) == [3, 4] or rids(recovery) == [2, 3, 4]
    assert [entry.offset for entry in recovery.damage] == [4096]


def test_records_in_a_body_are_never_taken_for_records() -> None:
    """A message holds another journal, and that message's own record is damaged."""
    inner = LinearBuilder("q", seed=3)
    for rid in range(100, 110):
        inner.enqueue(rid, b"inner")
    builder = LinearBuilder("q")
    builder.enqueue(1, b"first")
    outer = builder.enqueue(2, bytes(128 - 40) + inner.files()[0][4096 : 4096 + 2560])
    builder.enqueue(3, b"last")
    flip(builder, outer.position + 16)
    _, recovery, _ = read(builder)
    assert rids(recovery) == [1, 3]
    assert [entry.rid for entry in recovery.damage] == [outer.header.rid ^ 1]


def test_a_damaged_length_hides_no_record() -> None:
    """The record claims to reach into the fillers before record 3: record 2 is there all the same."""
    builder, records = some_records()
    flip(builder, records[0].position + 33, 3)
    _, recovery, _ = read(builder)
    assert rids(recovery) == [2, 3, 4]
    assert [entry.rid for entry in recovery.damage] == [1]


def test_a_copy_of_the_journal_in_a_body_is_never_taken_for_records() -> None:
    """With the file's own serial, and that message's own record is damaged."""
    builder = LinearBuilder("q")
    for rid in range(1, 6):
        builder.enqueue(rid, b"%d" % rid)
    copy = builder.files()[0][4096 : 4096 + 640]
    outer = builder.enqueue(6, bytes(128 - 40) + copy)
    builder.enqueue(7, b"last")
    flip(builder, outer.position + 16, 6)
    _, recovery, _ = read(builder)
    assert rids(recovery) == [1, 2, 3, 4, 5, 7]
    assert len(recovery.damage) == 1


def test_dequeue_of_a_missing_record_is_unfounded() -> None:
    builder = LinearBuilder("q")
    builder.enqueue(5, b"m")
    builder.dequeue(6, 4)
    builder.enqueue(7, b"m")
    journal, recovery, _ = read(builder)
    assert journal.holds_everything
    assert [(entry.rid, entry.dequeued_rid) for entry in recovery.unfounded] == [(6, 4)]
    assert (recovery.enqueues, recovery.dequeues) == (2, 1)


# ---- a writer that had to wait ----


@pytest.mark.parametrize("sectors", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("data_size", [8, 64])
def test_tail_that_covers_only_bytes_after_a_wait_is_accepted(sectors: int, data_size: int) -> None:
    builder = LinearBuilder("q", data_size)
    builder.enqueue(1, b"before")
    waited_at = sectors * SECTOR_SIZE - builder.position
    placed = builder.enqueue(2, bytes(range(256)) * 100, waited_at=waited_at)
    builder.enqueue(3, b"after")
    journal, recovery, _ = read(builder)
    assert (recovery.damage, rids(recovery)) == ([], [1, 2, 3])
    assert journal.continued == {placed.position}
    (notice,) = journal.notices
    assert f"at 0x{placed.offset:x} covers only its later part" in notice


def test_such_a_record_is_not_good_if_a_bit_of_its_later_part_flips() -> None:
    builder = LinearBuilder("q", 64)
    placed = builder.enqueue(2, b"m" * 20_000, waited_at=2 * SECTOR_SIZE)
    builder.enqueue(3, b"after")
    flip(builder, placed.position + 3 * SECTOR_SIZE)
    _, recovery, _ = read(builder)
    assert rids(recovery) == [3]
    assert recovery.damage[0].what == "enqueue record fails its checksum"


def test_nor_with_a_serial_of_a_file_that_it_does_not_reach() -> None:
    builder = LinearBuilder("q", 64)
    placed = builder.enqueue(2, b"m" * 20_000, waited_at=2 * SECTOR_SIZE)
    builder.enqueue(3, b"after")
    flip(builder, placed.position + placed.used - TAIL_SIZE + 8)
    assert rids(read(builder)[1]) == [3]


# ---- hostile bytes ----


@given(st.binary(max_size=4000), st.integers(0, 8191))
def test_any_bytes_anywhere(content: bytes, at: int) -> None:
    builder, _ = some_records()
    disk = builder.disk()
    for name in builder.names()[:2]:
        file = bytearray(disk.files[f"{DIRECTORY}/{name}"])
        end = min(at + len(content), len(file))
        file[at:end] = content[: end - at]
        disk.files[f"{DIRECTORY}/{name}"] = file
    journal, recovery, _ = read(builder, disk)
    assert all(isinstance(entry, Damage) for entry in journal.damage + recovery.damage)
    assert set(rids(recovery)) <= {1, 2, 3, 4}
    assert disk.open_now <= 2


def test_overlapping_forged_records_do_not_take_forever() -> None:
    """Each block claims to begin a record that reaches to the end, with the right serial: bytes read stay bounded."""
    builder = LinearBuilder("q", 512)
    builder.enqueue(1, b"m")
    builder.flush()
    serial = builder.headers[0].serial
    size = builder.data_size - builder.position
    for offset in range(0, size, 128):
        if offset + 200 > size:
            break
        forged = builder.records[0].header._replace(serial=serial, data_size=size - offset - 200)
        builder.patch(0, 4096 + builder.position + offset, encode_header(forged))
    disk = builder.disk()
    _, recovery, _ = read(builder, disk)
    assert rids(recovery) == [1]
    assert disk.bytes_read < 100 * builder.data_size
