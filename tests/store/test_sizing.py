"""The published sizing formulas: the examples' own numbers, and what must hold for every workload."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import BLOCK_SIZE, DEFAULT_FILES, MAX_FILES, MAX_PAGES, PAGE_SIZE, Geometry, padded
from qstore.formats.rhm.records import TAIL_SIZE
from qstore.store.errors import JournalFullError
from qstore.store.inspect.sizing import (
    MAX_DEPTH,
    MAX_RING,
    JournalTooLargeError,
    LineSize,
    MessageProfile,
    RecordSize,
    RingSize,
    Sizing,
    Transactions,
    Workload,
    footprint,
    record_size,
    ring_for,
    size_for,
    size_journal,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import Threshold, threshold
from qstore.store.journal.write.version_1_writer import Version1Writer
from tests.support.memory_ring import MemoryRing
from tests.support.profiles import examples

V1, V2, LINEAR = JournalFormat.VERSION_1, JournalFormat.VERSION_2, JournalFormat.LINEAR
RINGS = st.sampled_from([V1, V2])


def example(**changes: object) -> Sizing:
    """The published examples' queue: messages of 150 bytes with headers of 75, 25,000 of them."""
    values: dict[str, object] = {"message_size": 150, "header_size": 75, "depth": 25_000, **changes}
    return size_journal(Workload(**values))  # type: ignore[arg-type]


# ---- the examples of MRG 2 Messaging User Guide, 6.4 ----


@pytest.mark.parametrize("journal_format", [V1, V2])
def test_pv_1_without_transactions(journal_format: JournalFormat) -> None:
    sizing = example(journal_format=journal_format)
    assert sizing.enqueue == RecordSize(269, 384, 512)
    assert sizing.end is None
    assert sizing.bytes_per_message == 384
    assert sizing.journal.footprint == 9_600_000
    assert sizing.journal.recommended == 19_200_000
    assert sizing.journal.pages == 293
    assert sizing.journal.choice == RingSize(8, 37)
    assert sizing.journal.choice.capacity == 19_398_656


@pytest.mark.parametrize("journal_format", [V1, V2])
def test_pv_2_distributed_transactions(journal_format: JournalFormat) -> None:
    sizing = example(transactions=Transactions.DISTRIBUTED, xid_size=53, journal_format=journal_format)
    assert sizing.enqueue == RecordSize(322, 384, 512)
    assert sizing.end == RecordSize(97, 128, 512)  # the text prints 43 for the xid, which makes 87 [C14]
    assert record_size(87, journal_format) == RecordSize(87, 128, 512)
    assert sizing.bytes_per_message == 1024
    assert sizing.journal.footprint == 25_600_000
    assert sizing.journal.recommended == 51_200_000
    assert sizing.journal.pages == 782
    assert sizing.journal.choice == RingSize(8, 98)
    assert sizing.journal.choice.capacity == 51_380_224


def test_pv_2_with_the_depth_that_the_text_also_names() -> None:
    sizing = example(depth=20_000, transactions=Transactions.DISTRIBUTED, xid_size=53)
    assert sizing.journal.footprint == 20_480_000  # [C15]


def test_pv_3_local_transactions() -> None:
    sizing = example(transactions=Transactions.LOCAL)
    assert sizing.enqueue == RecordSize(293, 384, 512)
    assert sizing.dequeue == RecordSize(68, 128, 512)
    assert sizing.end == RecordSize(68, 128, 512)


@pytest.mark.parametrize(
    ("encoded", "blocks", "flushed"),
    [
        (1, 128, 512), (128, 128, 512), (129, 256, 512), (269, 384, 512), (322, 384, 512), (384, 384, 512),
        (512, 512, 512), (640, 640, 1024),
    ],
)  # fmt: skip
def test_pv_4_rounding(encoded: int, blocks: int, flushed: int) -> None:
    assert record_size(encoded, V1) == record_size(encoded, V2) == RecordSize(encoded, blocks, flushed)
    assert record_size(encoded, LINEAR) == RecordSize(encoded, blocks, 4096)


def test_pv_5_geometry() -> None:
    """C13: "the default size for a journal is 1.5 megabytes" is that of a file; the journal has eight."""
    assert RingSize(8, 24).capacity == 12_582_912
    assert RingSize(1, 24).capacity == 1_572_864
    assert RingSize(4, 1).capacity == 262_144
    assert RingSize(1, MAX_PAGES).capacity == 2_147_483_648
    assert RingSize(MAX_FILES, MAX_PAGES).capacity == MAX_RING == 137_438_953_472
    assert RingSize(12, 20).capacity == 15_728_640
    assert RingSize(12, 20).geometry == Geometry.from_pages(12, 20)


# ---- what the vectors leave open ----


def test_dequeues_are_shown_and_counted_on_demand() -> None:
    assert example().dequeue == RecordSize(44, 128, 512)
    assert example(count_dequeues=True).journal.footprint == 25_000 * (384 + 128)


def test_dequeues_in_transactions_come_with_the_commits_that_end_them() -> None:
    sizing = example(transactions=Transactions.DISTRIBUTED, xid_size=53, count_dequeues=True)
    assert sizing.journal.footprint == 25_000 * (512 + 512 + 512 + 512)


def test_a_commit_for_each_transaction() -> None:
    """A transaction is padded as a whole: 4 records of 384 bytes make three flush units, and the commit one."""
    sizing = example(transactions=Transactions.LOCAL, transaction_depth=4)
    assert sizing.journal.footprint == 25_000 // 4 * (4 * 384 + 512)
    assert sizing.bytes_per_message == 512


def test_the_last_transaction_may_be_smaller() -> None:
    sizing = example(depth=10, transactions=Transactions.LOCAL, transaction_depth=4)
    assert sizing.journal.footprint == 2 * (4 * 384 + 512) + (1024 + 512)
    alone = example(depth=1, transactions=Transactions.LOCAL, transaction_depth=1000)
    assert alone.journal.footprint == 512 + 512


def test_records_of_one_block_need_more_than_double_in_version_2() -> None:
    """The threshold counts a block for each dequeue; double the blocks would be reached at 80 % of the depth."""
    workload = {"message_size": 20, "header_size": 60, "depth": 25_000}
    old = example(**workload, journal_format=V1).journal
    new = example(**workload, journal_format=V2).journal
    assert old.footprint == new.footprint == 25_000 * 128
    assert old.recommended == 2 * old.footprint
    assert new.recommended == 25_000 * 256 * 100 // 80
    assert new.held is not None
    assert new.held >= 25_000


def test_linearstore_takes_a_sector_for_each_record_that_is_flushed_alone() -> None:
    sizing = example(journal_format=LINEAR)
    assert sizing.enqueue == RecordSize(40 + 75 + 150 + 24, 384, 4096)
    assert sizing.dequeue == RecordSize(64, 128, 4096)
    assert sizing.journal.footprint == 25_000 * 4096
    assert sizing.journal.held is None
    assert sizing.journal.choice == LineSize(98, 2_097_152)
    in_transactions = example(transactions=Transactions.DISTRIBUTED, xid_size=53, journal_format=LINEAR)
    assert in_transactions.end == RecordSize(32 + 53 + 24, 128, 4096)
    assert in_transactions.journal.footprint == 25_000 * (4096 + 4096)
    assert example(journal_format=LINEAR, count_dequeues=True).journal.footprint == 25_000 * (4096 + 4096)


def test_a_measured_mix_of_plain_and_transactional_messages() -> None:
    profile = MessageProfile(Fraction(1000, 3), transactional=Fraction(1, 4), xid_size=26)
    plain, transactional = 75, 25
    assert footprint(profile, 100, V1) == plain * 1000 // 3 + transactional * (512 + 512)


def test_size_for_uses_the_pool_s_own_file_size() -> None:
    profile = MessageProfile(Fraction(4096))
    assert size_for(profile, 100, LINEAR, 65_536).choice == LineSize(13, 65_536)


# ---- workloads that cannot be ----


@pytest.mark.parametrize(
    "changes",
    [
        {"message_size": -1},
        {"header_size": -1},
        {"depth": 0},
        {"depth": MAX_DEPTH + 1},
        {"transaction_depth": 0, "transactions": Transactions.LOCAL},
        {"transactions": Transactions.DISTRIBUTED},
        {"transactions": Transactions.DISTRIBUTED, "xid_size": 0},
        {"transactions": Transactions.DISTRIBUTED, "xid_size": 1 << 30},
        {"transactions": Transactions.LOCAL, "xid_size": 24},
        {"xid_size": 53},
        {"transaction_depth": 2},
    ],
    ids=str,
)
def test_contradictions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        example(**changes)


# ---- the choice of files ----


@pytest.mark.parametrize(
    ("size", "ring"),
    [
        (0, RingSize(8, 1)),
        (1, RingSize(8, 1)),
        (8 * PAGE_SIZE, RingSize(8, 1)),
        (8 * PAGE_SIZE + 1, RingSize(8, 2)),
        (8 * MAX_PAGES * PAGE_SIZE, RingSize(8, MAX_PAGES)),
        (8 * MAX_PAGES * PAGE_SIZE + 1, RingSize(9, 29_128)),
        (MAX_RING, RingSize(64, MAX_PAGES)),
    ],
)
def test_ring_for_edges(size: int, ring: RingSize) -> None:
    assert ring_for(size) == ring


def test_too_large_a_journal_is_refused_with_the_maximum() -> None:
    with pytest.raises(JournalTooLargeError, match=r"64 files of 32768 pages, 137,438,953,472 bytes"):
        ring_for(MAX_RING + 1)
    with pytest.raises(JournalTooLargeError, match=r"for 178,956,970 such messages") as caught:
        example(depth=10**12)
    assert "9,600,000" not in str(caught.value)
    assert MAX_RING // (2 * 384) == 178_956_970
    assert example(depth=178_956_970).journal.choice == RingSize(64, MAX_PAGES)
    with pytest.raises(JournalTooLargeError, match=r"for 178,956,970 such messages"):
        example(depth=178_956_971)


def test_one_message_too_large_for_any_ring() -> None:
    with pytest.raises(JournalTooLargeError, match=r"for 0 such messages"):
        example(depth=1, message_size=MAX_RING)


@given(st.integers(0, MAX_RING))
def test_the_ring_is_the_smallest_of_its_kind(size: int) -> None:
    ring = ring_for(size)
    assert DEFAULT_FILES <= ring.files <= MAX_FILES
    assert 1 <= ring.pages <= MAX_PAGES
    assert ring.capacity >= size
    assert ring.pages == 1 or RingSize(ring.files, ring.pages - 1).capacity < size
    assert ring.files == DEFAULT_FILES or RingSize(ring.files - 1, MAX_PAGES).capacity < size


SIZES = st.one_of(st.integers(0, 600), st.integers(0, 1 << 21))
DEPTHS = st.one_of(st.integers(1, 50), st.integers(1, 10_000))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    transactions = draw(st.sampled_from(Transactions))
    return Workload(
        message_size=draw(SIZES),
        header_size=draw(st.integers(0, 300)),
        depth=draw(DEPTHS),
        transactions=transactions,
        xid_size=draw(st.integers(1, 600)) if transactions is Transactions.DISTRIBUTED else None,
        transaction_depth=1 if transactions is Transactions.NONE else draw(st.integers(1, 100)),
        count_dequeues=draw(st.booleans()),
        journal_format=draw(st.sampled_from(JournalFormat)),
    )


@given(workloads())
def test_the_recommended_journal_holds_the_recommended_size_and_the_depth(workload: Workload) -> None:
    sizing = size_journal(workload)
    journal = sizing.journal
    assert journal.recommended >= 2 * journal.footprint
    assert journal.choice.capacity >= journal.recommended
    assert journal.footprint >= workload.depth * sizing.enqueue.blocks
    assert sizing.enqueue.blocks == padded(sizing.enqueue.encoded)
    if workload.journal_format is LINEAR:
        assert journal.held is None
        assert journal.choice.capacity - 2_097_152 < journal.recommended
    else:
        assert journal.choice == ring_for(journal.recommended)
        assert journal.held is not None
        assert journal.held >= workload.depth


@given(RINGS, st.integers(1, 1000), st.integers(1, 5000))
def test_more_messages_never_need_less(journal_format: JournalFormat, depth: int, more: int) -> None:
    profile = MessageProfile(Fraction(500), Fraction(1, 3), 24, 7, count_dequeues=True)
    assert footprint(profile, depth, journal_format) <= footprint(profile, depth + more, journal_format)


# ---- what was really in use ----


class Step(NamedTuple):
    """A step of a queue's history: what happens, to which message, in blocks, in which transaction."""

    what: str
    rid: int = 0
    blocks: int = 0
    xid: bytes = b""


def enqueued(writer: Version1Writer, step: Step) -> None:
    size = step.blocks * BLOCK_SIZE - rhm_overhead(step.xid)
    writer.enqueue(step.rid, [bytes(size)], xid=step.xid)


def rhm_overhead(xid: bytes) -> int:
    return 32 + TAIL_SIZE + len(xid)


def play(writer: Version1Writer, step: Step) -> None:
    """Do one step. Raises JournalFullError."""
    if step.what == "enqueue":
        enqueued(writer, step)
    elif step.what == "dequeue":
        writer.dequeue(step.rid + (1 << 40), step.rid, xid=step.xid)
    elif step.what == "commit":
        writer.commit(step.rid, step.xid)
    elif step.what == "abort":
        writer.abort(step.rid, step.xid)
    else:
        while writer.next_flush() is not None:
            writer.flushed()


class Past:
    """The life of a queue on a version-1 journal: what was done, what it used at most, the messages at most."""

    def __init__(self, geometry: Geometry, rng: random.Random, steps: int) -> None:
        self.geometry = geometry
        self.steps: list[Step] = []
        self.peak = Threshold(1, 0)
        self.depth = 0
        self.sizes: list[int] = []
        self._writer = Version1Writer("q", geometry, page=4096, clock=lambda: 5)
        self._places: dict[int, int] = {}  # of live records
        self._open: dict[bytes, tuple[list[int], list[int]]] = {}
        self._rid = 0
        share, lag = 0.6, rng.choice((0.0, 0.2, 1.0))
        for _ in range(steps):
            if rng.random() < 0.03:
                share = rng.choice((0.2, 0.5, 0.9))
            self._step(rng, share, lag)

    def _step(self, rng: random.Random, share: float, lag: float) -> None:
        chance = rng.random()
        xid = rng.choice((b"", b"", b"", b"one", b"two"))
        held = {rid for came, went in self._open.values() for rid in (*came, *went)}
        free = [rid for rid in self._places if rid not in held]
        self._rid += 1
        if chance < 0.1:
            self._do(Step("flush"))
        elif chance < 0.2 and self._open:
            xid = rng.choice(list(self._open))
            what = rng.choice(("commit", "commit", "abort"))
            if self._do(Step(what, self._rid, 0, xid)):
                came, went = self._open.pop(xid)
                for rid in went if what == "commit" else came:
                    del self._places[rid]
        elif rng.random() < share:
            blocks = rng.choice((1, 2, rng.randint(3, 40), 120))
            begin = self._writer.position
            if self._do(Step("enqueue", self._rid, blocks, xid)):
                self._places[self._rid] = begin * BLOCK_SIZE
                self.sizes.append(blocks * BLOCK_SIZE)
                if xid:
                    self._open.setdefault(xid, ([], []))[0].append(self._rid)
        elif free:
            rid = free[0] if rng.random() >= lag else rng.choice(free[-20:])
            if self._do(Step("dequeue", rid, 0, xid)):
                if xid:
                    self._open.setdefault(xid, ([], []))[1].append(rid)
                else:
                    del self._places[rid]
        self._measure()

    def _do(self, step: Step) -> bool:
        """Whether the journal took it: what was refused is not in the history."""
        try:
            play(self._writer, step)
        except JournalFullError:
            return False
        self.steps.append(step)
        return True

    def _measure(self) -> None:
        found = threshold(
            self.geometry, V1, oldest=min(self._places.values(), default=None),
            end=self._writer.position * BLOCK_SIZE, live=0, live_bytes=0,
        )  # fmt: skip
        assert found is not None
        self.peak = max(self.peak, found, key=lambda each: each.used)
        self.depth = max(self.depth, len(self._places))


def advised(used: int, depth: int, sizes: list[int], journal_format: JournalFormat) -> RingSize:
    profile = MessageProfile(Fraction(sum(sizes), len(sizes)))
    choice = size_for(profile, max(depth, 1), journal_format, used=used).choice
    assert isinstance(choice, RingSize)
    return choice


@examples(25)
@given(st.integers(0, 1 << 32), st.integers(4, 9), st.integers(1, 9))
def test_a_history_never_fills_the_advised_journal(seed: int, files: int, pages: int) -> None:
    """Version 1: the oldest message holds back everything after it, so live bytes say little."""
    past = Past(Geometry.from_pages(files, pages), random.Random(seed), 600)
    choice = advised(past.peak.used, past.depth, past.sizes or [BLOCK_SIZE], V1)
    writer = Version1Writer("q", choice.geometry, page=4096, clock=lambda: 5)
    for step in past.steps:
        play(writer, step)
    if past.peak.is_near:
        assert choice.capacity > past.geometry.capacity


def test_a_journal_that_was_nearly_full_is_not_advised_to_shrink() -> None:
    """7 files of 5 pages at 97.8 % of their limit, with messages that take half of that: 8 of 4 pages were advised."""
    geometry = Geometry.from_pages(7, 5)
    used = int(0.978 * (geometry.capacity - geometry.data_size * 7 // 5))
    found = Threshold(geometry.capacity * 4 // 5, used)
    assert found.is_near
    footprint_only = advised(0, 820, [1152], V1)
    assert footprint_only.capacity < geometry.capacity
    choice = advised(used, 820, [1152], V1)
    assert choice.capacity > geometry.capacity
    limit = choice.capacity * 4 // 5
    assert not Threshold(limit, used).is_near


@examples(25)
@given(st.integers(0, 1 << 32), st.integers(4, 9), st.integers(1, 3))
def test_a_history_never_fills_the_advised_ring(seed: int, files: int, pages: int) -> None:
    """Version 2: large messages at the peak, small ones otherwise, so the mean size says little."""
    rng, geometry = random.Random(seed), Geometry.from_pages(files, pages)
    ring, steps, used, depth, sizes = MemoryRing(geometry), [], 0, 0, []
    live: dict[int, int] = {}
    share = 0.5
    for index in range(700):
        if rng.random() < 0.03:
            share = rng.choice((0.2, 0.5, 0.95))
        if rng.random() < share:
            blocks = rng.choice((1, 2, 60 if share > 0.9 else 3))
            if ring.enqueue(blocks):
                live[ring.rid] = blocks * BLOCK_SIZE
                steps.append((index, ring.rid, blocks))
                sizes.append(blocks * BLOCK_SIZE)
        elif live:
            rid = rng.choice(list(live))
            ring.dequeue(rid)
            del live[rid]
            steps.append((index, rid, 0))
        found = threshold(geometry, V2, oldest=None, end=0, live=len(live), live_bytes=sum(live.values()))
        assert found is not None
        used, depth = max(used, found.used), max(depth, len(live))
    choice = advised(used, depth, sizes or [BLOCK_SIZE], V2)
    again, rids = MemoryRing(choice.geometry), {}
    for _, rid, blocks in steps:
        if blocks:
            assert again.enqueue(blocks)
            rids[rid] = again.rid
        else:
            again.dequeue(rids.pop(rid))
    limit = choice.capacity * 4 // 5
    assert not Threshold(limit, used).is_near
