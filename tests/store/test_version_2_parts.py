"""The parts of a version-2 writer: what each keeps by itself, and that they do not reach into one another."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

import qstore.store.journal
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.store.journal.write.flushes import Flush, FlushQueue, Pieces
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import FileRing, RingSpace
from tests.support.memory_ring import MemoryRing

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
    assert [(file, offset) for file, offset, _ in first.writes] == [(0, DATA_OFFSET + 3 * BLOCK_SIZE), (1, 0)]
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
        for file, offset, content in step.writes:
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
