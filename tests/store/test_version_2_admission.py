"""Admission to a version-2 journal: dequeues, commits and aborts always; enqueues up to 80 % of the ring.

The rings here have legal proportions: files of many flushes, records of at most a fifth of a file.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import FIXED_SIZE, data_crc
from qstore.store.errors import JournalFullError
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import enqueue_limit, over_threshold, threshold
from tests.support.memory_ring import MemoryRing
from tests.support.profiles import examples, today

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
        "qpid.file_size"
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
