"""Measurements of a journal, against what its builder wrote."""

from __future__ import annotations

import posixpath
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry, padded
from qstore.formats.rhm.records import EXTERNAL, MOVED, TRANSIENT
from qstore.store.disk import OsDisk
from qstore.store.inspect.measure import Measurement, Spread, measure
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_file, open_journal
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, Outcome
from qstore.store.journal.write.space import Threshold
from tests.support.fixtures import StoreFixture, StoreOpener, set_writable
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.journal_history import GEOMETRIES, STEPS, History, Step, long_steps
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.support.profiles import examples

VERSIONS = [1, 2]
RING = Geometry.from_pages(4, 1)


def measured(builder: JournalBuilder, outcomes: dict[bytes, Outcome] | None = None) -> Measurement:
    """The measurement of a builder's journal."""
    return measured_on(builder.disk(), outcomes)


def measured_on(disk: MemoryDisk, outcomes: dict[bytes, Outcome] | None = None) -> Measurement:
    return measured_journal(open_journal(disk, DIRECTORY), outcomes)


def measured_journal(journal: Journal, outcomes: dict[bytes, Outcome] | None = None) -> Measurement:
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    recovery.resolve(outcomes or {})
    result = measure(journal, recovery, end)
    journal.close()
    return result


def message(header: int, body: int) -> bytes:
    """A record's data whose message has a header and a body of these sizes."""
    return header.to_bytes(4, "big") + bytes(header) + bytes(body)


# ---- sizes ----


def test_spread() -> None:
    spread = Spread()
    assert spread.mean == 0
    spread.add([])
    assert spread == Spread()
    spread.add([5, 3])
    spread.add([4])
    assert spread == Spread(3, 3, 5, 12)
    assert spread.mean == 4
    larger = Spread()
    larger.add([7])
    larger.add([9, 8])
    assert (larger.least, larger.largest) == (7, 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_exact_bytes(version: int) -> None:
    builder = JournalBuilder(version, RING)
    builder.enqueue(message(75, 150))  # 273 → 384
    builder.enqueue(message(0, 0))  # 48 → 128
    builder.enqueue(message(100, 3000), xid=b"x" * 24)  # 3172 → 3200
    builder.commit(b"x" * 24)
    gone = builder.enqueue(message(9, 9999))
    builder.dequeue(gone.header.rid)
    builder.flush()
    found = measured(builder)
    assert (found.live, found.locked, found.pending, found.depth) == (3, 0, 0, 3)
    assert found.records == Spread(3, 128, 3200, 384 + 128 + 3200)
    assert found.live_bytes == 3712
    assert found.data == Spread(3, 4, 3104, 229 + 4 + 3104)
    assert found.headers == Spread(3, 0, 100, 175)
    assert found.xids == Spread(1, 24, 24, 24)
    assert found.xid_share * 3 == 1
    assert found.capacity == 4 * PAGE_SIZE
    assert found.end == builder.position
    assert found.span == builder.position
    assert found.live_share == 3712 / 262_144
    assert found.span_share == builder.position / 262_144


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_message_s_header(version: int) -> None:
    data = encode_message(b"content", destination="amq.direct", delivery_properties={"routing_key": "k"})
    builder = JournalBuilder(version, RING)
    builder.enqueue(data)
    builder.flush()
    assert measured(builder).headers.mean == len(data) - len(b"content") - 4


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0", b"\0\0\0\1", b"\xff\xff\xff\xff" + bytes(100)])
def test_data_that_hold_no_message_have_no_header(data: bytes) -> None:
    builder = JournalBuilder(1, RING)
    builder.enqueue(data)
    builder.flush()
    found = measured(builder)
    assert found.headers == Spread()
    assert found.data == Spread(1, len(data), len(data), len(data))


def test_external_data_are_not_there() -> None:
    builder = JournalBuilder(1, RING)
    builder.enqueue(flags=EXTERNAL, size=100_000)
    builder.flush()
    found = measured(builder)
    assert found.records == Spread(1, 128, 128, 128)
    assert found.data == Spread(1, 0, 0, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_records_longer_than_the_window_and_over_file_ends(version: int) -> None:
    builder = JournalBuilder(version, Geometry.from_pages(8, 24))
    sizes = [5_000_000, 0, 1_500_000, 3]
    for size in sizes:
        builder.enqueue(message(10, size))
    builder.flush()
    found = measured(builder)
    assert found.records.total == sum(padded(32 + 14 + size + 12) for size in sizes)
    assert found.headers == Spread(4, 10, 10, 40)


def test_more_records_than_are_summed_up_at_once() -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 64))
    first = builder.enqueue(message(60, 1000))
    builder.flush()
    builder.enqueue_many(10_000, message(50, 20))
    found = measured(builder)
    assert found.records == Spread(10_001, 128, first.size, first.size + 10_000 * 128)
    assert found.headers == Spread(10_001, 50, 60, 500_060)
    assert found.oldest is not None
    assert found.oldest.rid == first.header.rid


# ---- states, and the oldest record ----


def test_records_in_doubt_count_and_may_be_the_oldest() -> None:
    builder = JournalBuilder(1, RING)
    taken = builder.enqueue(message(1, 1))
    builder.enqueue(message(1, 1))
    builder.dequeue(taken.header.rid, xid=b"branch")
    builder.enqueue(message(1, 1), xid=b"branch")
    builder.flush()
    found = measured(builder, {b"branch": Outcome.IN_DOUBT})
    assert (found.live, found.locked, found.pending, found.depth) == (1, 1, 1, 3)
    assert found.oldest is not None
    assert (found.oldest.rid, found.oldest.state) == (taken.header.rid, LOCKED)
    assert found.xids == Spread(1, 6, 6, 6)


def test_an_enqueue_in_doubt_as_the_oldest() -> None:
    builder = JournalBuilder(2, RING)
    builder.enqueue(message(1, 1), xid=b"branch")
    builder.enqueue(message(1, 1))
    builder.flush()
    found = measured(builder, {b"branch": Outcome.IN_DOUBT})
    assert found.oldest is not None
    assert found.oldest.state == PENDING
    assert measured(builder).pending == 0  # never prepared: dropped
    assert measured(builder).depth == 1


def test_transient_records_do_not_count() -> None:
    builder = JournalBuilder(1, RING)
    builder.enqueue(message(1, 1), flags=TRANSIENT)
    kept = builder.enqueue(message(1, 1))
    builder.flush()
    found = measured(builder)
    assert found.depth == 1
    assert found.oldest is not None
    assert found.oldest.offset == kept.offset


def test_the_oldest_is_the_first_by_place_not_by_rid() -> None:
    builder = JournalBuilder(2, RING)
    moved = builder.enqueue(message(1, 1))
    second = builder.enqueue(message(1, 1))
    builder.flush()
    builder.enqueue(message(1, 1), rid=moved.header.rid, flags=MOVED)
    builder.flush()
    found = measured(builder)
    assert found.oldest is not None
    assert found.oldest == (second.header.rid, second.position, f"{DIRECTORY}/{builder.name(0)}", second.offset, LIVE)
    assert found.span == builder.position - second.position


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrapped_ring(version: int) -> None:
    """After several laps what is left begins in one file and goes on into others, the first again among them."""
    builder = JournalBuilder(version, RING)
    live: deque[PlacedRecord] = deque()
    while builder.position < 5 * builder.geometry.capacity + 10_000:
        live.append(builder.enqueue(message(10, 900)))  # 958 → 1024
        builder.flush()
        if len(live) > 100:
            builder.dequeue(live.popleft().header.rid)
            builder.flush()
    found = measured(builder)
    assert found.depth == 100
    oldest = live[0]
    assert oldest.file > builder.place(builder.position)[0]
    assert found.oldest == (oldest.header.rid, found.oldest and found.oldest.place, *on_disk(oldest), LIVE)
    assert found.span == builder.position - oldest.position == 100 * 1536
    assert found.capacity == 262_144
    assert found.live_bytes == 100 * 1024


def on_disk(record: PlacedRecord) -> tuple[str, int]:
    """Path and offset of a record."""
    return f"{DIRECTORY}/JournalData.{record.file:04x}.jdat", record.offset


# ---- nothing, and less than everything ----


@pytest.mark.parametrize("version", VERSIONS)
def test_a_journal_never_written_to(version: int) -> None:
    found = measured(JournalBuilder(version, RING))
    assert (found.depth, found.live_bytes, found.span, found.end, found.oldest) == (0, 0, 0, 0, None)
    assert found.records == found.data == found.headers == found.xids == Spread()
    assert (found.live_share, found.span_share, found.xid_share) == (0, 0, 0)
    assert found.capacity == 262_144
    assert found.threshold is not None
    assert found.threshold.used == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_drained_journal(version: int) -> None:
    builder = JournalBuilder(version, RING)
    for _ in range(3):
        builder.enqueue(message(1, 1))
    for rid in (1, 2, 3):
        builder.dequeue(rid)
    builder.flush()
    found = measured(builder)
    assert (found.depth, found.span, found.end) == (0, 0, builder.position)


def test_a_single_file_is_not_a_ring() -> None:
    builder = JournalBuilder(1, RING)
    builder.enqueue(message(1, 1))
    builder.flush()
    found = measured_journal(open_file(builder.disk(), f"{DIRECTORY}/{builder.name(0)}"))
    assert found.threshold is None
    assert found.capacity == PAGE_SIZE
    assert found.depth == 1


def test_a_journal_whose_reading_broke_off() -> None:
    """The walk has no end then; the last record's is taken."""
    builder = JournalBuilder(1, RING)
    last = [builder.enqueue(message(1, 1)) for _ in range(5)][-1]
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    journal.walk(recovery)
    found = measure(journal, recovery, None)
    assert found.end == last.position + last.size
    assert found.span == found.end


def test_a_header_that_cannot_be_read_any_more() -> None:
    """After the walk the sector went bad: it reads as zeros, and the measurement goes on."""
    builder = JournalBuilder(1, Geometry.from_pages(4, 64))
    for _ in range(3):
        builder.enqueue(message(10, 1_200_000))
    builder.flush()
    disk = builder.disk()
    journal = open_journal(disk, DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    record = builder.records[0]
    path = f"{DIRECTORY}/{builder.name(record.file)}"
    disk.bad_regions.append(BadRegion(path, record.offset, record.offset + 512))
    found = measure(journal, recovery, end)
    assert found.depth == 3
    assert found.records.least == 128
    assert found.records.largest == builder.records[1].size
    assert len(journal.stream.unreadable()) == 1
    journal.close()


def test_sizes_that_changed_under_the_reader_do_no_harm() -> None:
    builder = JournalBuilder(1, Geometry.from_pages(4, 64))
    builder.enqueue(message(10, 1_200_000))
    builder.enqueue(message(10, 1_200_000))
    builder.flush()
    disk = builder.disk()
    journal = open_journal(disk, DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    content = bytearray(disk.files[f"{DIRECTORY}/{builder.name(0)}"])
    content[512 + 16 : 512 + 32] = b"\xff" * 16  # xid size and data size
    disk.files[f"{DIRECTORY}/{builder.name(0)}"] = content
    journal.stream.close()
    found = measure(journal, recovery, end)
    assert found.depth == 2
    assert found.headers.count == 1


# ---- the threshold ----


def test_the_example_of_four_files_of_512_blocks() -> None:
    """formats/rhm/README.md, 3.5: exactly 1536 messages of a block are accepted."""
    builder = JournalBuilder(1, RING)
    for count, near, room in ((1228, False, 308), (4, True, 304), (300, True, 4), (4, True, 0)):
        builder.enqueue_many(count, b"\0\0\0\0", flush_every=count)
        found = measured(builder).threshold
        assert found is not None
        assert (found.is_near, found.room) == (near, room * BLOCK_SIZE)
        assert found.is_reached == (room == 0)


def test_version_1_gains_room_by_whole_files() -> None:
    builder = JournalBuilder(1, RING)
    builder.enqueue_many(1024, b"\0\0\0\0")
    for rid in range(1, 512):
        builder.dequeue(rid)
    builder.flush()
    before = measured(builder)
    assert before.threshold == Threshold(1536 * BLOCK_SIZE, 1536 * BLOCK_SIZE)  # 511 dequeues, one filler
    assert before.threshold.is_reached
    assert before.oldest is not None
    assert (before.oldest.rid, before.oldest.offset) == (512, 512 + 511 * BLOCK_SIZE)
    builder.dequeue(512)
    builder.flush()
    after = measured(builder).threshold
    assert after == Threshold(1536 * BLOCK_SIZE, 1024 * BLOCK_SIZE + 512)


def test_version_2_gains_room_with_each_dequeue() -> None:
    builder = JournalBuilder(2, RING)
    builder.enqueue_many(819, b"\0\0\0\0")
    found = measured(builder).threshold
    assert found == Threshold(209_715, 819 * 2 * BLOCK_SIZE)
    assert found.is_reached
    builder.dequeue(400)
    builder.flush()
    found = measured(builder).threshold
    assert found == Threshold(209_715, 818 * 2 * BLOCK_SIZE)
    assert not found.is_reached
    assert found.is_near


# ---- whole lives ----


@examples(150)
@given(st.sampled_from(VERSIONS), GEOMETRIES, STEPS)
def test_a_journal_s_life(version: int, geometry: Geometry, steps: list[Step]) -> None:
    check_life(version, geometry, steps * 3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_a_long_life(version: int, seed: int) -> None:
    check_life(version, Geometry(4, 2048), long_steps(seed))


def check_life(version: int, geometry: Geometry, steps: list[Step]) -> None:
    """Measure a journal after any life against the model of what is in it."""
    history = History(JournalBuilder(version, geometry))
    history.run(steps)
    history.flush()
    builder = history.builder
    found = measured(builder)
    records = {record.position: record for record in builder.records}
    live = [records[position] for position in sorted(history.live.values())]
    assert found.depth == found.live == len(live)
    assert found.live_bytes == sum(record.size for record in live)
    assert found.data.total == sum(record.header.data_size for record in live)
    assert found.xids.total == sum(len(record.xid) for record in live)
    if not live:
        assert found.oldest is None
        return
    oldest = live[0]
    assert found.oldest is not None
    assert (found.oldest.rid, found.oldest.offset) == (oldest.header.rid, oldest.offset)
    assert posixpath.basename(found.oldest.path) == builder.name(oldest.file)
    assert found.span == builder.position - oldest.position
    assert found.threshold is not None
    if version == 2:
        assert found.threshold.used == found.live_bytes + len(live) * BLOCK_SIZE
    else:
        in_file = oldest.position % geometry.data_size
        assert found.threshold.used == builder.position - oldest.position + in_file


# ---- stores that qpidd wrote ----


def queues_of(store: StoreFixture) -> Iterator[tuple[str, Journal, Measurement]]:
    for queue in open_store(OsDisk(), str(store.path)).recover().queues:
        assert queue.journal is not None
        assert queue.recovery is not None
        yield queue.name, queue.journal, measure(queue.journal, queue.recovery, queue.end)
        queue.journal.close()


def test_real_stores(qpidd_store: StoreFixture) -> None:
    expected = {queue["name"]: queue for queue in qpidd_store.recovered["queues"]}
    names = []
    for name, journal, found in queues_of(qpidd_store):
        names.append(name)
        reported = expected[name]
        # What is in doubt the linearstore commits (formats/qls/README.md, 5).
        committed = found.pending if journal.format is JournalFormat.LINEAR else 0
        assert found.live + committed == reported["message_count"]
        assert found.headers.count == found.depth
        if found.depth == len(reported["messages"]):
            bodies = sum(body["body_len"] for body in reported["messages"])
            assert found.data.total == bodies + found.headers.total + 4 * found.depth
        assert found.live_bytes <= found.span <= found.capacity
        if journal.format is JournalFormat.LINEAR:
            assert found.threshold is None
            assert found.capacity == len(journal.files.files) * journal.files.geometry.data_size
        else:
            assert found.threshold is not None
            assert not found.threshold.is_reached
    assert sorted(names) == sorted(expected)


@pytest.mark.parametrize(
    ("store", "count", "span", "capacity"),
    [("legacy-e-wrap-clean", 17, 136_704, 4 * 65_536), ("linear-e-wrap-clean", 65, 1_253_376, 20 * 65_536)],
)
def test_a_message_that_was_never_consumed(
    open_fixture: StoreOpener, store: str, count: int, span: int, capacity: int
) -> None:
    """The first message of "e.pinned" holds back all that was written after it."""
    ((_, journal, found),) = (entry for entry in queues_of(open_fixture(store)) if entry[0] == "e.pinned")
    assert found.oldest is not None
    assert found.oldest.place == 0
    assert found.oldest.offset == journal.files.geometry.header_size
    assert found.oldest.path == journal.files.files[0].path
    assert (found.depth, found.span, found.capacity) == (count, span, capacity)


def test_a_line_with_a_missing_file_has_less_capacity(open_fixture: StoreOpener, tmp_path: Path) -> None:
    """A file that is lost from the middle has no room for anything."""
    source = open_fixture("linear-e-wrap-clean").path
    shutil.copytree(source, tmp_path / "store", symlinks=True)
    set_writable(tmp_path / "store", writable=True)
    journals = {name: journal for name, journal, _ in queues_of(StoreFixture("", tmp_path / "store", {}))}
    Path(journals["e.pinned"].files.files[5].path).unlink()
    ((_, journal, found),) = (
        entry for entry in queues_of(StoreFixture("", tmp_path / "store", {})) if entry[0] == "e.pinned"
    )
    assert len(journal.files.files) == 19
    assert found.capacity == 19 * 65_536
    assert found.end == 1_253_376 - 65_536
