"""The version-2 writer: bytes, flushes, steps, and its answers. What it takes is in `test_version_2_admission`."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.file_header import FileHeader, decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.records import COMMIT_DECISION, LAST_OF_FLUSH, MOVED, SEAL, Kind, RecordHeader, decode_record
from qstore.store.errors import JournalError, JournalFailedError
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.space import THRESHOLD_PERCENT
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_ring import CLOCK, MemoryRing

RING = Geometry(4, 4096)
BLOCKS = 4096 // BLOCK_SIZE


def records(ring: MemoryRing, start: int = 0) -> Iterator[tuple[int, RecordHeader, bytes, bytes]]:
    """Place, header, xid and data of all records from a place on."""
    place = start
    while place < ring.writer.batch.position:
        index = place // (ring.geometry.data_size // BLOCK_SIZE)
        salt = ring.writer.batch.salts[index]
        size = ring.geometry.capacity // 2
        header, xid, data = decode_record(ring.read(place, size), salt=salt)
        yield place, header, xid, data
        place += header.size // BLOCK_SIZE


def header_of(ring: MemoryRing, file: int) -> FileHeader:
    header = decode_file_header(bytes(ring.files[file][:DATA_OFFSET]))
    assert header is not None
    return header


def disk_of(ring: MemoryRing) -> MemoryDisk:
    builder = JournalBuilder(2, ring.geometry, alignment=ring.alignment)
    builder.files = ring.files
    return builder.disk()


def recovered(ring: MemoryRing) -> JournalRecovery:
    journal, recovery = open_journal(disk_of(ring), DIRECTORY), JournalRecovery()
    journal.walk(recovery)
    assert not journal.damage
    assert not recovery.damage
    return recovery


# ---- bytes ----


@pytest.mark.parametrize("alignment", [512, 4096])
def test_the_bytes_are_those_of_the_builder(alignment: int) -> None:
    geometry = Geometry(8, 65536)
    ring, builder = MemoryRing(geometry, alignment), JournalBuilder(2, geometry, alignment=alignment)
    rng = random.Random(5)
    writer = ring.writer
    live: list[int] = []
    for number in range(120 if alignment == 512 else 100):
        data = rng.randbytes(rng.choice((0, 10, 84, 85, 300, 9000)))
        kind, rid = rng.randrange(6), ring.rid + 1
        if kind < 3 or not live:
            ring.enqueue_data(data)
            builder.enqueue(data)
            live.append(rid)
        elif kind == 3:
            ring.dequeue(target := live.pop(rng.randrange(len(live))))
            builder.dequeue(target)
        elif kind == 4:
            ring.enqueue_data(data, b"x%d" % number)
            builder.enqueue(data, xid=b"x%d" % number)
            ring.end(b"x%d" % number, commits=bool(number % 2))
            (builder.commit if number % 2 else builder.abort)(b"x%d" % number)
        else:
            target = live.pop()
            ring.decide(b"y", target)
            builder.dequeue(target, xid=b"y", flags=COMMIT_DECISION)
            ring.end(b"y", commits=True)
            builder.commit(b"y")
        if rng.random() < 0.3:
            ring.drain()
            builder.flush()
    assert writer.seal()
    ring.drain()
    builder.seal()
    assert writer.batch.index >= 2, "several files"
    assert not writer.compactor.copied
    assert [bytes(file[DATA_OFFSET:]) for file in ring.files] == [bytes(file[DATA_OFFSET:]) for file in builder.files]
    for file in range(writer.batch.index + 1):
        mine, theirs = header_of(ring, file), decode_file_header(bytes(builder.files[file][:DATA_OFFSET]))
        assert theirs is not None
        for name in ("overwrite_indicator", "file_number", "first_record_offset", "first_flush", "salt", "queue_id"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert (mine.seconds, mine.nanoseconds) == divmod(CLOCK, 10**9)


def test_each_flush_ends_with_a_flagged_record_at_a_multiple_of_the_alignment() -> None:
    ring = MemoryRing(RING)
    ends = []
    for count in (1, 3, 4, 9, 1):
        for _ in range(count):
            ring.enqueue(1)
        ring.drain()
        ends.append(ring.writer.batch.position)
    assert [end % 4 for end in ends] == [0] * 5
    flagged = [(place, header) for place, header, _, _ in records(ring) if header.flags & LAST_OF_FLUSH]
    assert [place + header.size // BLOCK_SIZE for place, header in flagged] == ends
    assert [header.flush for _, header in flagged] == [1, 2, 3, 4, 5]
    assert [header.kind for _, header in flagged] == [Kind.FILLER, Kind.FILLER, Kind.ENQUEUE, Kind.FILLER, Kind.FILLER]


def test_at_a_large_alignment_the_header_counts() -> None:
    ring = MemoryRing(Geometry(4, 16384), 4096)
    ring.enqueue(1)
    ring.drain()
    assert ring.writer.batch.position * BLOCK_SIZE + DATA_OFFSET == 4096


def test_no_write_is_longer_than_a_page() -> None:
    ring = MemoryRing(Geometry(4, 65536), page=2048)
    ring.enqueue(100)
    ring.enqueue(600)
    ring.drain()
    sizes = [len(content) for step in ring.steps for _, _, content in step.writes]
    assert max(sizes) == 2048
    assert sum(sizes) == 700 * BLOCK_SIZE + 2 * 64


# ---- steps ----


def test_a_header_is_synced_before_anything_goes_into_its_file() -> None:
    ring = MemoryRing(RING)
    ring.enqueue(BLOCKS * 2 - 8)
    ring.enqueue(20)
    ring.drain()
    entered: set[int] = set()
    for step in ring.steps:
        touched = {file for file, offset, _ in step.writes if offset >= DATA_OFFSET}
        assert touched <= entered, "data before its file's header is synced"
        entered |= {file for file, offset, _ in step.writes if offset < DATA_OFFSET}
        assert set(step.files) == touched | {file for file, offset, _ in step.writes if offset < DATA_OFFSET}
    assert entered == {0, 1, 2}
    assert [step.files for step in ring.steps] == [(0,), (0, 1), (1, 2), (2,)]


def test_one_step_at_a_time_and_a_flush_is_synced_with_its_last() -> None:
    ring = MemoryRing(RING)
    writer = ring.writer
    assert writer.next_flush() is None
    ring.enqueue(2)
    assert (writer.batch_number, writer.synced) == (1, 0)
    assert ring.step()
    assert writer.is_under_way
    assert not ring.step()
    ring.enqueue(2)
    assert (writer.batch_number, writer.synced) == (2, 0)
    writer.flushed()
    assert writer.synced == 0, "the header is, the data is not"
    assert ring.step()
    writer.flushed()
    assert writer.synced == 1
    ring.drain()
    assert writer.synced == 2
    assert not writer.is_dirty


def test_unsynced_bytes() -> None:
    ring = MemoryRing(RING)
    writer = ring.writer
    assert (writer.unsynced, writer.is_dirty) == (0, False)
    ring.enqueue(3)
    assert (writer.unsynced, writer.is_dirty) == (3 * BLOCK_SIZE, True)
    ring.step()
    assert writer.unsynced == 4 * BLOCK_SIZE, "with its padding"
    ring.enqueue(2)
    assert writer.unsynced == 6 * BLOCK_SIZE
    writer.flushed()
    assert writer.unsynced == 6 * BLOCK_SIZE
    ring.step()
    writer.flushed()
    assert (writer.unsynced, writer.is_dirty) == (2 * BLOCK_SIZE, True)
    ring.drain()
    assert writer.unsynced == 0


# ---- files ----


def test_headers_alternate_between_the_two_places() -> None:
    ring = MemoryRing(RING)
    seen: list[tuple[int, int]] = []
    for _ in range(9 * BLOCKS):
        ring.enqueue(1)
        ring.dequeue(ring.rid)
        ring.drain()
        header = header_of(ring, 0)
        if not seen or seen[-1] != (header.slot, header.overwrite_indicator):
            seen.append((header.slot, header.overwrite_indicator))
    assert seen[:4] == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_first_record_offsets() -> None:
    ring = MemoryRing(Geometry(8, 2048))
    ring.enqueue(10)
    ring.enqueue(12)  # six blocks into file 1
    ring.enqueue(26)  # to the end of file 2
    ring.enqueue(40)  # over file 4, and eight blocks into file 5
    ring.enqueue(1)
    ring.drain()
    offsets = [header_of(ring, file).first_record_offset for file in range(6)]
    assert offsets == [0x200, 0x200 + 6 * 128, 0, 0x200, 0, 0x200 + 8 * 128]
    assert sorted(recovered(ring).messages.in_rid_order())


# ---- closing, and taking up ----


def test_a_seal_is_a_flush_of_its_own() -> None:
    ring = MemoryRing(RING)
    ring.enqueue(2)
    assert ring.writer.seal()
    ring.drain()
    *_, filler, seal = [header for _, header, _, _ in records(ring)]
    assert filler.flush == 1
    assert (seal.kind, seal.flags, seal.flush, seal.size) == (Kind.FILLER, SEAL | LAST_OF_FLUSH, 2, 512)


def test_the_first_flush_after_a_restart_is_a_filler_far_ahead() -> None:
    ring = MemoryRing(RING)
    ring.enqueue(2)
    ring.restart()
    assert not ring.step(), "nothing is written for a restart alone"
    ring.enqueue(1)
    ring.drain()
    found = [(header.kind, header.flush) for _, header, _, _ in records(ring)]
    assert found[2:] == [(Kind.FILLER, 65537), (Kind.ENQUEUE, 65538), (Kind.FILLER, 65538)]
    assert found[1] == (Kind.FILLER, 1)
    recovered(ring)


def test_seal_flushes_gathered_records() -> None:
    """Even where that is the very first flush."""
    ring = MemoryRing(RING)
    ring.enqueue(1)
    assert ring.writer.seal()
    assert ring.writer.batch_number == 3
    ring.drain()
    assert [header.flags & SEAL for _, header, _, _ in records(ring)][-1]


def test_a_journal_closed_again_unused_needs_no_second_seal() -> None:
    ring = MemoryRing(RING)
    assert ring.writer.seal(), "never written to"
    assert not ring.step()
    ring.enqueue(1)
    ring.restart(sealed=True)
    before = ring.writer.batch.position
    assert ring.writer.seal()
    assert not ring.step()
    ring.restart(sealed=False)
    assert ring.writer.seal(), "not sealed before: one filler does for restart and seal"
    ring.drain()
    assert ring.writer.batch.position == before + 4
    *_, last = [header for _, header, _, _ in records(ring)]
    assert (last.flags & SEAL, last.flush) == (SEAL, 65538)


# ---- relocation ----


def test_a_relocated_message_is_a_copy_that_is_flagged() -> None:
    ring = MemoryRing(RING)
    ring.enqueue_data(b"stuck")
    stuck = ring.rid
    while not ring.writer.compactor.copied:
        ring.enqueue(3)
        ring.dequeue(ring.rid)
        ring.drain()
    place = ring.writer.live[stuck] >> 24
    _, header, xid, data = next(records(ring, place))
    assert (header.kind, header.rid, header.flags & MOVED, xid, data) == (Kind.ENQUEUE, stuck, MOVED, b"", b"stuck")
    assert [rid for rid, _, _ in recovered(ring).messages.in_rid_order()] == [stuck]


def test_a_locked_message_is_relocated_with_its_dequeue_and_an_open_enqueue_with_its_xid() -> None:
    ring = MemoryRing(RING)
    ring.enqueue_data(b"locked")
    locked = ring.rid
    ring.dequeue_in(b"x", locked)
    ring.enqueue_data(b"open", b"x")
    opened = ring.rid
    while ring.writer.compactor.copied < 2:
        ring.enqueue(3)
        ring.dequeue(ring.rid)
        ring.drain()
    start = ring.writer.live[locked] >> 24
    copies = [(header.kind, xid, data) for _, header, xid, data in records(ring, start) if header.flags & MOVED]
    assert copies == [(Kind.ENQUEUE, b"", b"locked"), (Kind.DEQUEUE, b"x", b""), (Kind.ENQUEUE, b"x", b"open")]
    recovery = recovered(ring)
    (transaction,) = recovery.transactions
    assert {(each.rid, each.is_enqueue) for each in transaction} == {(locked, False), (opened, True)}
    ring.end(b"x", commits=True)
    ring.drain()
    assert [rid for rid, _, _ in recovered(ring).messages.in_rid_order()] == [opened]


# ---- answers ----


def test_dequeue_of_missing_or_locked_records_is_refused() -> None:
    ring = MemoryRing(RING)
    writer = ring.writer
    ring.enqueue(1)
    ring.enqueue(1, b"x")
    with pytest.raises(JournalError, match=r'^queue "q": record 0x63 does not exist and cannot be dequeued$'):
        writer.dequeue(3, 99)
    with pytest.raises(JournalError, match=r'^queue "q": record 0x2 is locked by an open transaction$'):
        writer.dequeue(3, 2)
    with pytest.raises(JournalError, match="locked by an open transaction"):
        writer.dequeue_in(b"other", 3, 2)
    writer.dequeue_in(b"x", 3, 2)
    with pytest.raises(JournalError, match="locked by an open transaction"):
        writer.dequeue_in(b"x", 4, 2)
    ring.rid = 10
    ring.end(b"x", commits=False)
    with pytest.raises(JournalError, match="record 0x2 does not exist"):
        writer.check_dequeue(2)
    writer.check_dequeue(1)


@pytest.mark.parametrize("commits", [True, False])
def test_no_outcome_without_a_transaction(commits: bool) -> None:
    with pytest.raises(JournalError, match=r'^queue "q": no transaction 78 is open$'):
        MemoryRing(RING).end(b"x", commits=commits)


def test_the_text_of_a_failure() -> None:
    ring = MemoryRing(RING)
    ring.enqueue(1)
    ring.step()
    ring.writer.failed(OSError(errno.ENOSPC, "No space left on device", "/store/file"))
    text = (
        'queue "q": a write or sync of /store/file failed: No space left on device; '
        "the journal accepts no more records until the store is opened again"
    )
    for _ in range(3):
        with pytest.raises(JournalFailedError) as raised:
            ring.enqueue(1)
        assert str(raised.value) == text
    assert ring.writer.failure is not None
    assert ring.writer.failure.__traceback__ is None, "or it would get longer each time, with what its frames hold"
    ring.writer.failed(OSError("another"))
    assert str(ring.writer.failure) == text, "the first one counts"
    assert ring.writer.next_flush() is None
    assert not ring.writer.is_under_way


def test_room_is_counted_as_the_threshold_does() -> None:
    ring = MemoryRing(Geometry(8, 65536))
    limit = 8 * 512 * THRESHOLD_PERCENT // 100
    for blocks in (1, 7, 20):
        ring.enqueue(blocks)
    assert ring.writer.records.room == limit - 28 - 3
    ring.dequeue(2)
    assert ring.writer.records.room == limit - 21 - 2
    ring.restart()
    assert ring.writer.records.room == limit - 21 - 2


# ---- what checks say ----


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_check_finds_nothing_wrong(seed: int, is_clean: bool) -> None:
    ring, rng = MemoryRing(Geometry(4, 8192), seed=seed), random.Random(seed)
    for _ in range(600):
        free = ring.free
        if rng.random() < 0.55 or not free:
            message = encode_message(rng.randbytes(rng.randrange(900)), destination="amq.direct")
            ring.enqueue_data(message, rng.choice((b"", b"", b"x")))
        else:
            ring.dequeue(rng.choice(free))
        if ring.writer.transactions and rng.random() < 0.1:
            ring.end(b"x", commits=rng.random() < 0.5)
        if rng.random() < 0.3:
            ring.drain()
        if rng.random() < 0.01:
            ring.restart(sealed=rng.random() < 0.5)
    if ring.writer.transactions:
        ring.end(b"x", commits=True)
    ring.drain()
    if is_clean:
        assert ring.writer.seal()
        ring.drain()
    assert ring.writer.compactor.copied + ring.counts["relocated"] > 0
    assert ring.laps > 4
    disk = disk_of(ring)
    checked = check_store(disk, open_store(disk, DIRECTORY), paranoid=True)
    assert checked.damage == []
    assert checked.records > 30
    assert {rid for rid, _, _ in recovered(ring).messages.in_rid_order()} == set(ring.writer.live)
