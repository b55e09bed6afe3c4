"""The version-1 writer: against an independent layout, against the reader, against qpidd's own journals.

`Life` drives a writer and, with whatever the writer took, a `JournalBuilder`; it keeps a model of what is enqueued and
open. Each step's writes go into images of the files, which are what a crash leaves.
"""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import decode_jinf
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind, RecordHeader
from qstore.store.damage import Damage
from qstore.store.disk import OsDisk
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.space import reserve_blocks
from qstore.store.journal.write.version_1_writer import OpenTransaction, Version1State, Version1Writer, state_of
from qstore.tools.qstore_check import command
from tests.support.compiled import replaces
from tests.support.fixtures import StoreFixture
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.profiles import examples, today
from tests.support.version_1_life import BILLION, SECONDS, Life, apply

ACTIONS = (
    "enqueue", "enqueue", "enqueue", "enqueue", "dequeue", "oldest", "oldest", "oldest", "large", "transient",
    "enqueue_in", "enqueue_in", "dequeue_in", "commit", "abort", "flush", "flush", "flush", "drain", "restart", "crash",
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 999)), min_size=10, max_size=80)
GEOMETRIES = st.builds(Geometry, st.integers(2, 6), st.sampled_from([512, 1024, 1536, 2048, 4096]))
PAGES = st.sampled_from([512, 1024, 4096])


@examples(400)
@given(GEOMETRIES, PAGES, STEPS)
def test_any_life(geometry: Geometry, page: int, steps: list[tuple[str, int]]) -> None:
    life = Life(geometry, page)
    life.run(steps * 3)
    life.restart(0)


def long_life(seed: int, geometry: Geometry, *, count: int = 1500, prefix: bytes = b"") -> Life:
    rng = random.Random(seed)
    life = Life(geometry, 1024)
    life.prefix = prefix
    life.run([(rng.choice(ACTIONS), rng.randrange(1000)) for _ in range(count)])
    return life


@pytest.mark.parametrize("seed", range(4))
def test_long_lives_go_round_many_times(seed: int) -> None:
    life = long_life(seed, Geometry(3 + seed, 1024 + 512 * seed))
    life.restart(0)
    assert life.laps + life.builder.position // life.geometry.capacity >= 15
    assert life.refused["threshold"] >= 10


def test_a_journal_can_be_full() -> None:
    """In some lives a file is to be entered that holds messages; `Life` judges when that is so."""
    assert sum(long_life(seed, Geometry(4, 512), count=400).refused["full"] for seed in range(8)) >= 10


@replaces
@pytest.mark.parametrize("laps", range(6))
def test_a_crash_after_any_sector_of_a_flush(laps: int) -> None:
    """A flush of several files: what was flushed before is there, nothing is half done, and the journal goes on."""
    life = Life(Geometry(6, 2048), 1024)
    for number in range(laps * 5):
        life.run([("enqueue", number + 9), ("large", 1 + number % 4), ("drain", number % 3), ("flush", 0)])
    life.run([("enqueue", 50), ("enqueue", 20), ("enqueue_in", 200), ("dequeue_in", 0), ("flush", 0)])
    before = copy.deepcopy(life)
    life.run([("large", 2), ("enqueue", 40), ("oldest", 0), ("commit", 0), ("large", 3), ("enqueue_in", 99)])
    assert len(life.states) == 7
    unwritten = copy.deepcopy(life)
    life.flush()
    assert sum(old != new for old, new in zip(before.images, life.images, strict=True)) >= 3
    sectors = (life.builder.position - before.builder.position) // SECTOR_SIZE + 2
    for left in range(sectors + 1):
        crashed = copy.deepcopy(unwritten)
        crashed.cut(left, 1)
        crashed.run([("enqueue", 20), ("oldest", 0), ("flush", 0), ("enqueue", 9)])
        crashed.cut(left % 3, 1)
        crashed.restart(1)


# ---- single rules ----


def drain(writer: Version1Writer, images: list[bytearray]) -> None:
    while (step := writer.next_flush()) is not None:
        apply(images, step)
        writer.flushed()


def make(
    geometry: Geometry, page: int = 4096, state: Version1State | None = None
) -> tuple[Version1Writer, list[bytearray]]:
    writer = Version1Writer("orders", geometry, page=page, clock=lambda: SECONDS * BILLION + 5, state=state)
    return writer, [bytearray(geometry.file_size) for _ in range(geometry.files)]


@pytest.mark.parametrize("flush_every", [None, 4, 64])
def test_the_threshold_of_the_formats_page(flush_every: int | None) -> None:
    """4 files of 512 blocks take exactly 1536 messages of one block; flushes of whole sectors change nothing."""
    writer, images = make(Geometry(4, 512 * BLOCK_SIZE))
    for rid in range(1, 1537):
        writer.enqueue(rid, [b"x" * 84])
        if flush_every is not None and rid % flush_every == 0:
            drain(writer, images)
    with pytest.raises(
        JournalFullError, match=r'^Enqueue capacity threshold exceeded on queue "orders"\. .*--num-jfiles 8;'
    ):
        writer.enqueue(1537, [b""])
    assert writer.position == 1536
    assert writer.counts == (512, 512, 512, 0)
    drain(writer, images)
    for rid in range(1, 512):
        writer.dequeue(rid + 2000, rid)
    with pytest.raises(JournalFullError, match="threshold"):
        writer.enqueue(3000, [b""])
    assert writer.counts == (1, 512, 512, 0)


def test_full_leaves_nothing_behind() -> None:
    """Dequeues and outcomes go on past the threshold, up to the first file that holds messages."""
    writer, images = make(Geometry(4, 512))
    writer.enqueue(1, [b"stays"])
    for rid in range(2, 13):
        writer.enqueue(rid, [b""], xid=b"x" if rid == 2 else b"")
    with pytest.raises(JournalFullError, match="threshold"):
        writer.enqueue(99, [b""])
    for rid in range(3, 7):
        writer.dequeue(rid + 100, rid)
    assert writer.position == 16
    drain(writer, images)
    before, counts = [bytes(image) for image in images], writer.counts
    for operation in (
        lambda: writer.enqueue(200, [b""]),
        lambda: writer.dequeue(201, 1),
        lambda: writer.dequeue(202, 1, xid=b"y"),
        lambda: writer.commit(203, b"x"),
        lambda: writer.abort(204, b"x"),
    ):
        with pytest.raises(JournalFullError, match=r'^Journal full on queue "orders"\.$'):
            operation()
    assert (writer.position, writer.counts, writer.is_dirty, writer.next_flush()) == (16, counts, False, None)
    assert before == [bytes(image) for image in images]


@pytest.mark.parametrize(("blocks", "fits"), [(12, True), (13, False), (40, False)])
def test_a_record_never_runs_into_its_own_beginning(blocks: int, fits: bool) -> None:
    """Two files of eight blocks, taken up in the middle of the first; no message holds any back."""
    xid = b"z" * (blocks * BLOCK_SIZE - 36)
    writer, _ = make(Geometry(2, 1024), state=Version1State(4, {}, {xid: OpenTransaction()}))
    if fits:
        writer.commit(1, xid)
        assert writer.position == 16
        return
    with pytest.raises(JournalFullError, match=r"^Journal full"):
        writer.commit(1, xid)
    assert (writer.position, writer.is_dirty) == (4, False)


def test_invalid_operations_are_refused_and_append_nothing() -> None:
    """formats/rhm/README.md, 3.6; nothing of what is refused is appended."""
    writer, _ = make(Geometry(4, 4096))
    writer.enqueue(1, [b"a", b"b"])
    writer.enqueue(2, [b"c"])
    writer.enqueue(3, [b"d"], xid=b"x")
    writer.dequeue(4, 1, xid=b"x")
    writer.dequeue(5, 3, xid=b"x")
    position = writer.position
    for operation, what in (
        (lambda: writer.enqueue(2, [b"again"]), "record 0x2 is already enqueued"),
        (lambda: writer.enqueue(3, [b"again"]), "record 0x3 is already enqueued"),
        (lambda: writer.dequeue(10, 9), "no record 0x9 to dequeue"),
        (lambda: writer.dequeue(10, 9, xid=b"x"), "no record 0x9 to dequeue"),
        (lambda: writer.dequeue(10, 3), "no record 0x3 to dequeue"),
        (lambda: writer.dequeue(10, 3, xid=b"y"), "no record 0x3 to dequeue"),
        (lambda: writer.dequeue(10, 1), "record 0x1 is locked by transaction 78"),
        (lambda: writer.dequeue(10, 1, xid=b"x"), "record 0x1 is locked by transaction 78"),
        (lambda: writer.dequeue(10, 1, xid=b"y"), "record 0x1 is locked by transaction 78"),
        (lambda: writer.dequeue(10, 3, xid=b"x"), "record 0x3 is locked by transaction 78"),
        (lambda: writer.commit(10, b"y"), "no transaction 79 is open"),
        (lambda: writer.abort(10, b"y"), "no transaction 79 is open"),
    ):
        with pytest.raises(JournalError, match=what):
            operation()
        assert writer.position == position
    writer.abort(6, b"x")
    writer.dequeue(7, 1)
    with pytest.raises(JournalError, match="no record 0x3"):
        writer.dequeue(8, 3)
    assert writer.counts == (1, 0, 0, 0)


def test_after_a_failure_it_takes_nothing() -> None:
    writer, images = make(Geometry(4, 4096))
    writer.enqueue(1, [b"a"])
    drain(writer, images)
    assert writer.synced == 1
    writer.enqueue(2, [b"b"], xid=b"x")
    assert writer.next_flush() is not None
    writer.enqueue(3, [b"c"])
    writer.failed(OSError(errno.EIO, "Input/output error", "/j/JournalData.0000.jdat"))
    text = (
        'queue "orders": a write or sync of /j/JournalData.0000.jdat failed: Input/output error; the journal accepts no'
    )
    for operation in (
        lambda: writer.enqueue(4, [b""]),
        lambda: writer.dequeue(5, 1),
        lambda: writer.commit(6, b"x"),
        lambda: writer.abort(7, b"x"),
    ):
        with pytest.raises(JournalFailedError, match=text):
            operation()
    assert writer.failure is not None
    assert writer.failure.__traceback__ is None, "or it would get longer each time, with what its frames hold"
    writer.flushed()
    writer.failed(OSError(errno.ENOSPC, "No space left on device"))
    assert "Input/output" in str(writer.failure)
    assert (writer.next_flush(), writer.synced, writer.is_dirty) == (None, 1, False)


def test_a_page_is_whole_sectors() -> None:
    for page in (0, 100, 513):
        with pytest.raises(ValueError, match="multiple of 512"):
            make(Geometry(4, 1024), page)


def test_external_records() -> None:
    """The record has the data's size only; they are elsewhere."""
    builder = JournalBuilder(1, Geometry(4, 1024))
    builder.enqueue(rid=1, size=2**40, flags=EXTERNAL)
    builder.enqueue(b"data", rid=2, xid=b"x", flags=TRANSIENT)
    builder.flush()
    writer, images = make(builder.geometry)
    writer.enqueue(1, (), external_size=2**40)
    writer.enqueue(2, [b"data"], xid=b"x", transient=True)
    drain(writer, images)
    assert images[0][DATA_OFFSET:] == builder.files[0][DATA_OFFSET:]


def test_first_step_syncs_the_recovered_file() -> None:
    """A journal that ends with a file was perhaps never synced there, though its next record goes into another."""
    writer, _ = make(Geometry(4, 512), state=Version1State(8))
    writer.enqueue(1, [b"a"])
    step = writer.next_flush()
    assert step is not None
    assert ([write.file for write in step.writes], step.files) == ([2], (1, 2))
    writer.flushed()
    step = writer.next_flush()
    assert step is not None
    assert step.files == (2,)


def test_the_reserve() -> None:
    """20 % rounded up, but at least a file."""
    assert reserve_blocks(Geometry(4, 512 * 128)) == 512
    assert reserve_blocks(Geometry(8, 3072 * 512)) == 19661
    assert reserve_blocks(Geometry(5, 512)) == 4


# ---- taking up ----


def test_the_prepared_list_is_kept_whole() -> None:
    builder = JournalBuilder(1, Geometry(4, 1024), queue_name="TplStore", base_name="tpl")
    builder.enqueue(b"\1", rid=1, xid=b"a")
    builder.enqueue(b"\0", rid=2, xid=b"b")
    builder.dequeue(2, rid=3, xid=b"b", flags=COMMIT_DECISION)
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    state = state_of(journal, recovery, end)
    assert state == Version1State(
        builder.position // BLOCK_SIZE, {1: 0, 2: 0}, {b"a": OpenTransaction({1}), b"b": OpenTransaction({2}, {2})}
    )
    assert state_of(journal, recovery, end, {b"b"}).transactions.keys() == {b"b"}
    assert state_of(journal, JournalRecovery(), None) == Version1State()


def test_a_dropped_lock_gives_way() -> None:
    builder = JournalBuilder(1, Geometry(4, 2048))
    builder.enqueue(b"m", rid=1)
    builder.enqueue(b"n", rid=2, xid=b"a")
    builder.dequeue(1, rid=3, xid=b"a")
    builder.dequeue(1, rid=4, xid=b"b")
    builder.enqueue(b"again", rid=1, xid=b"b")
    builder.dequeue(77, rid=5, xid=b"b")
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    state = state_of(journal, recovery, journal.walk(recovery))
    assert state.transactions == {b"a": OpenTransaction({2}), b"b": OpenTransaction(set(), {1})}
    writer, _ = make(builder.geometry, state=state)
    writer.commit(10, b"a")
    writer.commit(11, b"b")
    assert writer.counts == (1, 0, 0, 0)


def test_a_lost_header_is_refused() -> None:
    life = long_life(3, Geometry(4, 1024), count=200)
    life.flush()
    life.images[1][:4] = b"RHM?"
    journal = open_journal(life.disk(), DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    with pytest.raises(JournalError, match=r"0001\.jdat: version-1 header is missing"):
        state_of(journal, recovery, end)


# ---- qpidd's own journals, and the judge ----


def journals_of(store: StoreFixture) -> Iterator[Journal]:
    for info in sorted(store.path.rglob("*.jinf")):
        yield open_journal(OsDisk(), str(info.parent))


class Replay:
    """A `RecordSink` that gives the records of a journal of qpidd's to a writer; fillers tell where it was flushed.

    Of a journal that went round, the beginning is gone: messages that were enqueued there are known by their dequeues,
    and counted to the file that was overwritten last.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal, self.records = journal, 0
        self.kinds: set[Kind] = set()
        found = Listed()
        end = journal.walk(found, every_record=True)
        assert end is not None
        geometry, files = journal.files.geometry, journal.files.files
        self.headers = [header for file in files if (header := file.header) is not None]
        first = self.headers[0].overwrite_indicator * geometry.files + self.headers[0].file_number
        base = first * geometry.data_size
        self.images = [bytearray(image) for image in originals(journal)]
        for place in range(found.first, end.place, BLOCK_SIZE):
            number, offset = (base + place) // geometry.data_size % geometry.files, place % geometry.data_size
            self.images[number][DATA_OFFSET + offset : DATA_OFFSET + offset + BLOCK_SIZE] = bytes(BLOCK_SIZE)
            if offset == 0:
                self.images[number][:DATA_OFFSET] = bytes(DATA_OFFSET)
        self._times = iter(self.headers[1 if found.first else 0 :])
        gone = dict.fromkeys(found.dequeued - found.enqueued, self.headers[-1].file_number)
        state = Version1State((base + found.first) // BLOCK_SIZE, gone)
        self.writer = Version1Writer(journal.name, geometry, page=32768, clock=self._clock, state=state)
        journal.walk(self, every_record=True)
        drain(self.writer, self.images)
        for place in range(end.place, self.writer.position * BLOCK_SIZE - base, BLOCK_SIZE):
            assert end.torn, "fillers go where a record was torn, and nowhere else"
            number, offset = (base + place) // geometry.data_size % geometry.files, place % geometry.data_size
            block = slice(DATA_OFFSET + offset, DATA_OFFSET + offset + BLOCK_SIZE)
            self.images[number][block] = originals(journal)[number][block]
        assert next(self._times, None) is None

    def _clock(self) -> int:
        header = next(self._times)
        return header.seconds * BILLION + header.nanoseconds

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        self.records += 1
        self.kinds.add(header.kind)
        if header.kind is Kind.FILLER:
            drain(self.writer, self.images)
        elif header.kind is Kind.ENQUEUE:
            data = self.journal.stream.read(*self.journal.data_of_enqueue(place))
            self.writer.enqueue(header.rid, [data], xid=xid, transient=bool(header.flags & TRANSIENT))
        elif header.kind is Kind.DEQUEUE:
            decision = bool(header.flags & COMMIT_DECISION)
            self.writer.dequeue(header.rid, header.dequeued_rid, xid=xid, commit_decision=decision)
        elif header.kind is Kind.COMMIT:
            self.writer.commit(header.rid, xid)
        else:
            self.writer.abort(header.rid, xid)

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        raise AssertionError

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        raise AssertionError

    def damaged(self, damage: Damage) -> None:
        raise AssertionError(damage)


class Listed:
    """A `RecordSink` that lists what is enqueued and dequeued, and where the first record stands."""

    def __init__(self) -> None:
        self.enqueued: set[int] = set()
        self.dequeued: set[int] = set()
        self.first = -1

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        if self.first < 0:
            self.first = place
        if header.kind is Kind.ENQUEUE:
            self.enqueued.add(header.rid)
        elif header.kind is Kind.DEQUEUE:
            self.dequeued.add(header.dequeued_rid)

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        raise AssertionError

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        raise AssertionError

    def damaged(self, damage: Damage) -> None:
        raise AssertionError(damage)


def originals(journal: Journal) -> list[bytes]:
    geometry = journal.files.geometry
    return [
        Path(journal.path, f"{journal.base_name}.{number:04x}.jdat").read_bytes() for number in range(geometry.files)
    ]


def test_writer_reproduces_journals_of_qpidd(legacy_store: StoreFixture) -> None:
    """Each journal of each store anew from its own records: the same bytes, headers and splits and fillers included."""
    kinds: set[Kind] = set()
    records = 0
    for journal in journals_of(legacy_store):
        if journal.files.format is None:
            continue
        replay = Replay(journal)
        assert [bytes(image) for image in replay.images] == originals(journal), journal.path
        kinds |= replay.kinds
        records += replay.records
        journal.close()
    assert kinds >= {Kind.ENQUEUE, Kind.FILLER}
    assert records >= 50


@pytest.mark.parametrize("seed", today(range(8), 4))
def test_the_check_finds_no_damage(seed: int, tmp_path: Path) -> None:
    """`qstore-check` on a journal's directory, info file included, after a life with crashes and restarts."""
    life = long_life(seed, Geometry(5, 4096), count=300 + 100 * seed, prefix=encode_message(b""))
    life.flush()
    directory = tmp_path / "q"
    directory.mkdir()
    for path, content in life.disk().files.items():
        (directory / Path(path).name).write_bytes(content)
    info = decode_jinf((directory / "JournalData.jinf").read_bytes())
    assert (info.version, info.geometry) == (1, life.geometry)
    for options in ([], ["--paranoid"]):
        result = CliRunner().invoke(command, [*options, str(directory)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
