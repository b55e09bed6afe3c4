"""The version-2 writer: bytes, flushes, steps, its answers, and which records it admits."""

from __future__ import annotations

import ast
import errno
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.store.journal
from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.file_header import FileHeader, decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, PAGE_SIZE, Geometry
from qstore.formats.rhm.headers import FIXED_SIZE, data_crc
from qstore.formats.rhm.records import COMMIT_DECISION, LAST_OF_FLUSH, MOVED, SEAL, Kind, RecordHeader, decode_record
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.compaction import MAX_COPIED_BLOCKS, Compactor
from qstore.store.journal.write.flushes import Flush, FlushQueue, Pieces
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import (
    THRESHOLD_PERCENT,
    FileRing,
    RingSpace,
    enqueue_limit,
    over_threshold,
    threshold,
)
from tests.support.compiled import replaces
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_ring import CLOCK, MemoryRing
from tests.support.profiles import examples, today

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
    sizes = [len(write.content) for step in ring.steps for write in step.writes]
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
        touched = {write.file for write in step.writes if write.offset >= DATA_OFFSET}
        assert touched <= entered, "data before its file's header is synced"
        entered |= {write.file for write in step.writes if write.offset < DATA_OFFSET}
        assert set(step.files) == touched | {write.file for write in step.writes if write.offset < DATA_OFFSET}
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


def test_the_filler_precedes_the_first_record_after_a_transaction_was_undone() -> None:
    """As at a start that rolls back: what it releases does not open the fast path."""
    ring = MemoryRing(Geometry(8, 65536))
    ring.enqueue(1)
    first = ring.rid
    ring.enqueue(1, b"x")
    ring.restart()
    assert not ring.writer.undo(b"x", 8)
    ring.dequeue(first)
    ring.drain()
    found = [(header.kind, header.flush) for _, header, _, _ in records(ring)]
    assert found[3:] == [(Kind.FILLER, 65537), (Kind.DEQUEUE, 65538), (Kind.FILLER, 65538)]
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


@pytest.mark.parametrize(("pages", "kept"), [(8, 9), (1, 1)], ids=["usual files", "the smallest files"])
def test_a_short_length_counts_on_an_empty_journal_of_long_files(pages: int, kept: int) -> None:
    """So that the next message takes the fast path; in the smallest journals each block of room is needed."""
    ring = MemoryRing(Geometry(4, pages * PAGE_SIZE))
    ring.enqueue(9)
    ring.drain()
    ring.dequeue(ring.rid)
    assert ring.writer.records.largest == 9
    ring.drain()
    assert ring.writer.records.largest == kept
    ring.enqueue(300)
    ring.drain()
    ring.dequeue(ring.rid)
    ring.drain()
    assert ring.writer.records.largest <= max(1, pages * PAGE_SIZE // BLOCK_SIZE // 256)


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


@pytest.mark.parametrize(
    ("files", "percent"), [(4, 80), (64, 80), (160, 80), (161, 80.12), (320, 90), (640, 95), (65_536, 95)]
)
def test_a_long_ring_leaves_few_files_free(files: int, percent: float) -> None:
    geometry = Geometry(files, 524_288)
    space = RingSpace(geometry, 512, MAX_COPIED_BLOCKS)
    assert space.threshold / (files * space.file) == pytest.approx(percent / 100, abs=1e-4)
    assert (enqueue_limit(geometry, JournalFormat.VERSION_2) or 0) // BLOCK_SIZE == space.threshold
    assert files == 4 or space.compacts(space.threshold + space.reserve, 100, 0), "or another rule would decide"


def test_a_long_ring_that_is_full_can_be_used_and_emptied_in_any_order() -> None:
    """Beyond 80 %, where compaction frees few blocks with each pass, there is room for each dequeue nevertheless."""
    ring, rng = MemoryRing(Geometry(320, 65536)), random.Random(42)
    while ring.enqueue(rng.choice((2, 9, 30, 400))):
        if ring.rid % 50 == 0:
            ring.drain()
    ring.drain()
    space, records = ring.writer.space, ring.writer.records
    assert space.threshold - records.room > 0.89 * space.files * space.file
    for number in range(1500):
        ring.dequeue(rng.choice(ring.free))
        ring.enqueue(rng.choice((2, 9, 30)))
        if number % 20 == 0:
            ring.drain()
    left = list(ring.free)
    rng.shuffle(left)
    for number, rid in enumerate(left):
        ring.dequeue(rid)
        if number % 50 == 0:
            ring.drain()
    ring.drain()
    assert not ring.writer.live
    assert ring.writer.compactor.copied > 0


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


# ---- the parts of a version-2 writer: what each keeps by itself, and that they do not reach into one another ----


PARTS = (
    "flushes",
    "space",
    "live_records",
    "compaction",
    "version_2_writer",
)
FOLDER = Path(qstore.store.journal.__file__).parent / "write"


def reaches(source: str) -> list[str]:
    """Private names that are used of another object, and classes that inherit from one of another module."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qstore.store.")
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found += [f"{node.name}({base})" for base in map(ast.unparse, node.bases) if base in imported]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            found += [] if ast.unparse(node.value) == "self" else [ast.unparse(node)]
    return found


@pytest.mark.parametrize("part", PARTS)
def test_no_part_inherits_from_another_or_uses_its_private_names(part: str) -> None:
    assert reaches((FOLDER / f"{part}.py").read_text()) == []


def test_the_check_itself_finds_both() -> None:
    source = "from qstore.store.journal.x import Base\n"
    source += "class A(Base):\n    def f(self):\n        return self._a, self.b._c"
    assert reaches(source) == ["A(Base)", "self.b._c"]


# ---- live records ----


@pytest.mark.parametrize("seed", range(6))
def test_the_records_account_is_that_of_a_reopened_journal(seed: int) -> None:
    """Whatever was enqueued, dequeued, committed, aborted and copied; and the oldest file is the same."""
    ring, rng = MemoryRing(Geometry(4, 16384), seed=seed), random.Random(seed)
    for number in range(1500):
        chance, free = rng.random(), ring.free
        xid = rng.choice((b"", b"", b"one", b"two" * 100))
        if chance < 0.5 or not free:
            ring.enqueue(rng.randint(1 + len(xid) // 100, 9), xid)
        elif chance < 0.95:
            target = rng.choice(free[1:] or free)
            ring.dequeue_in(xid, target) if xid and chance < 0.6 else ring.dequeue(target)
        elif ring.writer.transactions:
            ring.end(rng.choice(list(ring.writer.transactions)), commits=rng.random() < 0.5)
        if number % 3 == 0:
            ring.drain()
        writer, space = ring.writer, RingSpace(ring.geometry, ring.alignment, 128)
        kept, fresh = writer.records, LiveRecords(writer.batch, space, dict(writer.live), writer.transactions)
        for name in ("room", "blocks", "messages", "outcomes", "escorts", "locked", "pending"):
            assert getattr(kept, name) == getattr(fresh, name), (number, name)
        assert kept.largest >= fresh.largest
        if not writer.is_dirty:
            assert writer.space.oldest == space.oldest
    assert ring.writer.compactor.copied > 50
    assert ring.laps > 5


# ---- flushes ----


def test_a_flush_is_synced_with_its_last_step_and_the_next_one_follows() -> None:
    queue = FlushQueue(Geometry(4, 512), FileRing(range(4)), page=65536, synced=6, place=3)
    assert queue.next_step() is None
    assert (queue.is_empty, queue.last, queue.synced_place) == (True, 6, 3)
    queue.add(Flush(7, 3, 6, [bytes(3 * BLOCK_SIZE)], {1: (0, b"header")}, {}, [], {}))
    queue.add(Flush(8, 6, 7, [bytes(BLOCK_SIZE)], {}, {}, [], {}))
    assert (queue.is_empty, queue.last) == (False, 8)
    first = queue.next_step()
    assert first is not None
    assert [(write.file, write.offset) for write in first.writes] == [(0, DATA_OFFSET + 3 * BLOCK_SIZE), (1, 0)]
    assert queue.next_step() is None, "one step at a time"
    assert queue.step_synced() is None
    assert queue.synced == 6
    assert queue.next_step() is not None
    flush = queue.step_synced()
    assert flush is not None
    assert (flush.number, queue.synced, queue.synced_place, queue.is_empty) == (7, 7, 6, False)
    assert queue.next_step() is not None
    queue.step_lost()
    assert (queue.is_under_way, queue.is_empty, queue.last) == (False, False, 8)


@pytest.mark.parametrize(
    ("start", "blocks", "is_joined"), [(3, 20, False), (0, 20, True), (3, 61, False), (3, 62, True)]
)
def test_many_pieces_are_joined_only_where_the_flush_enters_a_file(start: int, blocks: int, is_joined: bool) -> None:
    queue = FlushQueue(Geometry(4, 8192), FileRing(range(4)), page=65536, synced=6, place=start)
    pieces = [bytes([number]) * (BLOCK_SIZE // 4) for number in range(4 * blocks)]
    entered = {index: (0, b"header") for index in range(2) if start <= 64 * index < start + blocks}
    queue.add(Flush(7, start, start + blocks, pieces, entered, {}, [], {}))
    files = [bytearray(DATA_OFFSET + 8192) for _ in range(2)]
    joined = True
    while step := queue.next_step():
        for write in step.writes:
            file, offset, content = write.file, write.offset, write.content
            joined = joined and not isinstance(content, Pieces)
            files[file][offset : offset + len(content)] = bytes(content)
        queue.step_synced()
    stream = files[0][DATA_OFFSET:] + files[1][DATA_OFFSET:]
    assert stream[start * BLOCK_SIZE :][: blocks * BLOCK_SIZE] == b"".join(pieces)
    assert joined is is_joined


# ---- admission ----


def test_breaking_a_pin_does_not_count_open_dequeues_twice() -> None:
    """A ring with a pin takes, once it is broken, what the same ring without one takes."""
    ring = MemoryRing(Geometry(8, 512 * BLOCK_SIZE), page=32768)
    ring.enqueue(500)
    ring.drain()
    pin = ring.writer.cut().pin
    ring.dequeue(1)
    targets = []
    for number in range(800):
        assert ring.enqueue(1)
        targets.append(ring.rid)
        if number % 50 == 0:
            ring.drain()
    for target in targets[:10]:
        ring.dequeue_in(b"x" * 60 * BLOCK_SIZE, target)
    ring.drain()
    while pin.holds:
        ring.rid += 1
        ring.writer.enqueue(ring.rid, (bytes(6000),), 6000, 0)
        ring.dequeue(ring.rid)
        ring.drain()


# ---- admission to a version-2 journal: dequeues, commits and aborts always; enqueues up to 80 % of the ring ----
# The rings here have legal proportions: files of many flushes, records of at most a fifth of a file.


ORDERS: Final = ("first", "last", "any", "stuck")


def history(ring: MemoryRing, rng: random.Random, operations: int, order: str, largest: int, alone: float) -> None:
    """Random records; nothing but enqueues, and dequeues of transactions, may be refused."""
    share = 0.5
    for _ in range(operations):
        writer = ring.writer
        if rng.random() < 0.03:
            share = rng.choice((0.1, 0.5, 0.5, 0.9))
        chance, free = rng.random(), ring.free
        xid = rng.choice((b"one", b"two", b"three"))
        if chance < 0.03 and writer.transactions:
            xid = rng.choice(list(writer.transactions))
            ring.end(xid, commits=rng.random() < 0.5)
        elif chance < 0.06 and free:
            ring.dequeue_in(xid, rng.choice(free))
        elif rng.random() < share:
            ring.enqueue(rng.choice((1, rng.randint(1, largest), largest)), xid if chance < 0.15 else b"")
        elif len(free) > (order == "stuck"):
            at = {"first": 0, "last": -1, "any": rng.randrange(len(free)), "stuck": min(1, len(free) - 1)}[order]
            ring.dequeue(free[at])
        if rng.random() < alone:
            ring.drain()
        elif rng.random() < 0.2:
            if ring.writer.is_under_way:
                ring.writer.flushed()
            else:
                ring.step()
        if rng.random() < 0.003:
            ring.restart(sealed=rng.random() < 0.5)


def empty(ring: MemoryRing, rng: random.Random) -> None:
    """End all transactions and dequeue all messages, each in a flush of its own, with a few restarts."""
    for xid in list(ring.writer.transactions):
        ring.end(xid, commits=False)
        ring.drain()
    for target in rng.sample(ring.free, len(ring.free)):
        ring.dequeue(target)
        ring.drain()
        if rng.random() < 0.02:
            ring.restart()
    assert not ring.writer.live


@examples(60)
@given(
    files=st.sampled_from([4, 4, 5, 6, 8, 16]),
    flushes=st.sampled_from([16, 17, 20, 32, 64]),
    alignment=st.sampled_from([512, 512, 512, 4096]),
    page=st.sampled_from([1024, 4096, 32768]),
    part=st.sampled_from([5, 5, 10, 40, 1000]),
    order=st.sampled_from(ORDERS),
    alone=st.sampled_from([0, 0.05, 0.3, 1]),
    seed=st.integers(0, 1 << 30),
)
def test_dequeues_and_outcomes_always_fit(
    files: int, flushes: int, alignment: int, page: int, part: int, order: str, alone: float, seed: int
) -> None:
    geometry = Geometry(files, flushes * alignment)
    ring, rng = MemoryRing(geometry, alignment, page), random.Random(seed)
    history(ring, rng, 500, order, max(1, geometry.data_size // BLOCK_SIZE // part), alone)
    empty(ring, rng)


def test_the_histories_are_hard_enough() -> None:
    """Full rings, relocation, many laps; and transactions' dequeues are hardly ever refused."""
    total: Counter[str] = Counter()
    laps = 0.0
    for seed in range(24):
        ring, rng = MemoryRing(Geometry(4 + seed % 3, 512 * 128), 512, 32768), random.Random(seed)
        history(ring, rng, 1500, ORDERS[seed % 4], (102, 20, 5)[seed % 3], 0.3)
        laps += ring.laps
        ring.restart()
        empty(ring, rng)
        total += ring.counts
    assert laps > 150
    assert total["relocated"] > 1000
    assert total["refused"] > 1000
    assert total["refused in transactions"] < total["dequeues in transactions"] // 50


# ---- the threshold ----


def filled(geometry: Geometry, blocks: int) -> MemoryRing:
    ring = MemoryRing(geometry, 512, 32768)
    while ring.enqueue(blocks):
        if ring.rid % 64 == 0:
            ring.drain()
    return ring


@pytest.mark.parametrize("blocks", [1, 2, 5, 9, 16, 50, 102])
@pytest.mark.parametrize("files", [4, 5, 6, 8])
def test_an_empty_ring_takes_enqueues_up_to_the_threshold(files: int, blocks: int) -> None:
    geometry = Geometry(files, 65536)
    ring = filled(geometry, blocks)
    live, count = ring.fill - len(ring.free), len(ring.free)
    found = threshold(geometry, JournalFormat.VERSION_2, oldest=0, end=0, live=count, live_bytes=live * BLOCK_SIZE)
    assert found is not None
    assert found.limit == enqueue_limit(geometry, JournalFormat.VERSION_2)
    assert found.used <= found.limit
    if files > 4 or not 4 < blocks < 12:
        assert found.room < (blocks + 1) * BLOCK_SIZE
    else:  # the smallest ring of all: the module docstring of `space`
        assert found.used > 0.91 * found.limit


def test_the_error_of_a_full_journal() -> None:
    ring = filled(Geometry(4, 65536), 100)
    with pytest.raises(JournalFullError) as caught:
        ring.do(lambda rid: ring.writer.enqueue(rid, (b"x" * 9000,), 9000, 0))
    assert str(caught.value) == (
        'Enqueue capacity threshold exceeded on queue "q". Consume messages; or stop the broker and enlarge the '
        "journal: qstore-resize DATA-DIR QUEUE --num-jfiles 8; or declare queues with a larger qpid.file_count or "
        "qpid.file_size (RHM_IORES_ENQCAPTHRESH)"
    )


def test_the_remedy_stays_within_the_largest_journal() -> None:
    assert "--num-jfiles 64;" in str(over_threshold("q", 40, 1))
    assert "--jfile-size-pgs 48;" in str(over_threshold("q", 64, 24))


def test_room_comes_back_with_dequeues() -> None:
    ring = filled(Geometry(6, 65536), 10)
    assert not ring.enqueue(10)
    ring.dequeue(ring.free[3])
    assert ring.enqueue(10)
    assert not ring.enqueue(10)


# ---- a message that is not dequeued ----


RINGS = [(4, 64, 3), (4, 512, 1), (4, 512, 20), (5, 64, 12), (8, 128, 9), (16, 64, 2)]
TRAFFIC = ["first in, first out", "last in, first out", "any order"]


@pytest.mark.parametrize(("traffic", "shape"), today([*product(TRAFFIC, RINGS)], 9))
def test_a_stuck_oldest_message_does_not_stop_the_ring(traffic: str, shape: tuple[int, int, int]) -> None:
    """At the threshold, enqueue and dequeue for 50 laps: no dequeue is refused, and the ring stays well filled."""
    files, file_blocks, blocks = shape
    ring = filled(Geometry(files, file_blocks * BLOCK_SIZE), blocks)
    stuck, rng = ring.free[0], random.Random(1)
    messages = ring.free[1:]
    count = len(messages)
    while ring.laps < 51:
        at = {"first in, first out": 0, "last in, first out": -1, "any order": rng.randrange(len(messages))}[traffic]
        ring.dequeue(messages.pop(at))
        if rng.random() < 0.3:
            ring.drain()
        if ring.enqueue(blocks):
            messages.append(ring.rid)
    assert stuck in ring.writer.live
    assert ring.writer.compactor.copied >= 40
    # Where four files are full to more than three, compaction has no room to begin: new messages wait for old ones.
    dense = (files, blocks, traffic) == (4, 20, "last in, first out")
    assert len(messages) > (2 if dense else count * 0.6)


# ---- other limits ----


def test_an_idle_journal_does_not_relocate() -> None:
    ring = filled(Geometry(4, 65536), 5)
    ring.drain()
    assert not ring.step()


def test_records_larger_than_the_ring_are_refused() -> None:
    ring = MemoryRing(Geometry(4, 65536))
    assert not ring.enqueue(4 * 512)
    assert not ring.enqueue(1 << 24)
    assert ring.enqueue(100)


def test_a_transaction_is_admitted_whole_or_not() -> None:
    ring = filled(Geometry(6, 65536), 10)
    for target in ring.free[:4]:
        ring.dequeue(target)
    ring.drain()
    size = 10 * BLOCK_SIZE - FIXED_SIZE - 1
    with pytest.raises(JournalFullError, match="Enqueue capacity threshold"):
        ring.writer.admit_transaction(b"x", [size] * 5, 0)
    ring.do(lambda rid: ring.writer.admit_transaction(b"x", [size] * 3, 2))
    for _ in range(3):
        ring.do(lambda rid: ring.writer.enqueue_in(b"x", rid, (bytes(size),), size, data_crc((bytes(size),))))
    ring.do(lambda rid: ring.writer.admit_transaction(b"y", [], 5))


@replaces
def test_what_is_to_be_copied_is_counted_again_only_where_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that waits for room asks again and again, and the oldest file can have thousands of records."""
    counted: list[int] = []
    count = Compactor._count

    def noted(self: Compactor) -> None:
        counted.append(1)
        count(self)

    monkeypatch.setattr(Compactor, "_count", noted)
    answers: Counter[bool] = Counter()
    asked = 0
    for seed in range(12):
        rng = random.Random(seed)
        ring = MemoryRing(Geometry(rng.choice((3, 4, 8)), 16384), seed=seed)
        live: list[int] = []
        xids: list[bytes] = []
        for number in range(1500):
            blocks = rng.randrange(1, 12)
            if rng.random() < 0.55 and ring.enqueue(blocks):
                live.append(ring.rid)
            elif live and rng.random() < 0.1:
                xids.append(b"x%d" % number)
                ring.dequeue_in(xids[-1], live.pop(0))
            elif live:
                ring.dequeue(live.pop(0 if rng.random() < 0.7 else rng.randrange(len(live))))
            if xids and rng.random() < 0.1 and xids[0] in ring.writer.transactions:
                ring.end(xids.pop(0), commits=True)
            if number % 7:
                continue
            compactor = ring.writer.compactor
            answer, before = compactor.can_copy(), len(counted)
            assert compactor.can_copy() == answer
            assert len(counted) == before
            kept = compactor._to_copy_blocks, compactor._counted_at, compactor._counted_live
            compactor._counted_live = 1 << 60  # as if very much had been removed since
            assert compactor.can_copy() == answer
            del counted[before:]
            compactor._to_copy_blocks, compactor._counted_at, compactor._counted_live = kept
            asked, answers[answer] = asked + 1, answers[answer] + 1
    assert min(answers.values()) > asked / 20
