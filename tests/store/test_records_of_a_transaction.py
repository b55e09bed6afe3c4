"""The records of a transaction over several journals are appended in one go: as if they were appended one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.errors import JournalBusyError, JournalFullError
from qstore.store.journal.write.flushes import MessageData
from qstore.store.journal.write.version_2_writer import Version2Writer
from tests.support.memory_ring import MemoryRing

_TRANSACTIONS = 400


def _append_in_one_go(ring: MemoryRing, xid: bytes, messages: list[MessageData], targets: list[int]) -> None:
    rids = range(ring.rid + 1, ring.rid + 1 + len(messages) + len(targets))
    ring.rid += len(rids)
    ring.writer.append_admitted(xid, list(rids), messages, targets, [])


def _append_one_by_one(ring: MemoryRing, xid: bytes, messages: list[MessageData], targets: list[int]) -> None:
    for parts, size, crc in messages:
        ring.do(lambda rid, parts=parts, size=size, crc=crc: ring.writer.enqueue_in(xid, rid, parts, size, crc))
    for target in targets:
        ring.dequeue_in(xid, target)


def _state(writer: Version2Writer) -> dict[str, object]:
    records, space, batch = writer.records, writer.space, writer.batch
    held = Counter(space._held)  # and what is counted when the batch is flushed
    held.update(batch._placed)
    held[batch.index] += batch.placed
    return {
        "live": list(writer.live.items()),
        "transactions": {xid: (each.enqueues, each.dequeues) for xid, each in writer.transactions.items()},
        "locked": (records.locked, records.pending),
        "sizes": (records.room, records.escorts, records.outcomes, records.messages, records.largest),
        "held": {index: count for index, count in held.items() if count},
        "ends": (writer.batch.position, space.oldest, writer._enqueue_end, writer._dequeue_end),
    }


@pytest.mark.parametrize("seed", range(2))
def test_appending_at_once_equals_appending_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    rings = MemoryRing(Geometry(8, 65536), seed=seed), MemoryRing(Geometry(8, 65536), seed=seed)
    crossed, whole, at_once, file = 0, 0, 0, rings[0].writer.space.file
    for number in range(_TRANSACTIONS):
        xid = b"transaction %d" % number
        bodies = [rng.randbytes(rng.randrange(2000)) for _ in range(rng.randrange(1, 8))]
        messages: list[MessageData] = [((body,), len(body), data_crc((body,))) for body in bodies]
        free = rings[0].free
        targets = rng.sample(free, min(len(free), rng.choice((0, 3, 8))))
        first = rings[0].writer.batch.position
        needs_no_check = not targets and rings[0].writer.has_room_at_once(xid, messages)
        at_once += needs_no_check
        rings[0].rid += needs_no_check  # as `do` takes one
        for ring in rings[needs_no_check:]:
            ring.do(
                lambda _, ring=ring, targets=targets, bodies=bodies, xid=xid: ring.writer.admit_transaction(
                    xid, [len(body) for body in bodies], len(targets)
                )
            )
        _append_in_one_go(rings[0], xid, messages, targets)
        _append_one_by_one(rings[1], xid, messages, targets)
        is_within = first // file == (rings[0].writer.batch.position - 1) // file
        whole, crossed = whole + is_within, crossed + (not is_within)
        choices = rng.random() < 0.3, rng.random() < 0.6, rng.random() < 0.9  # flush, commit, end
        for ring in rings:
            if choices[0]:
                ring.drain()
            if choices[2]:
                ring.end(xid, commits=choices[1])
            if not choices[2] and number % 4 == 3:
                for each in list(ring.writer.transactions):
                    ring.end(each, commits=False)
            while len(ring.free) > 60:
                ring.dequeue(ring.free[0])
            ring.rid = max(each.rid for each in rings)
        assert _state(rings[0].writer) == _state(rings[1].writer)
    for ring in rings:
        ring.drain()
    assert _state(rings[0].writer) == _state(rings[1].writer)
    assert rings[0].files == rings[1].files
    assert whole > 10 * crossed > 0
    assert at_once > _TRANSACTIONS // 10
    assert rings[0].laps > 1


@pytest.mark.parametrize("seed", range(2))
def test_an_outcome_in_steps_is_as_one_in_one_go(seed: int) -> None:
    """Commits remove what was dequeued after their sync, aborts take back what was synced before their record."""
    rng = random.Random(seed)
    rings = MemoryRing(Geometry(8, 65536), seed=seed), MemoryRing(Geometry(8, 65536), seed=seed)
    steps = 0
    for number in range(150):
        xid = b"transaction %d" % number
        bodies = [rng.randbytes(rng.randrange(900)) for _ in range(rng.randrange(12))]
        messages: list[MessageData] = [((body,), len(body), data_crc((body,))) for body in bodies]
        free = rings[0].free
        targets = rng.sample(free, min(len(free), rng.randrange(12)))
        if not messages and not targets:
            continue
        commits = rng.random() < 0.6
        sizes, count = [len(body) for body in bodies], len(targets)
        for ring in rings:
            ring.do(lambda _, args=(xid, sizes, count), ring=ring: ring.writer.admit_transaction(*args))
            _append_in_one_go(ring, xid, messages, list(targets))
            ring.drain()
        if commits:
            rings[0].end(xid, commits=True)
            rings[1].do(lambda rid, xid=xid: rings[1].writer.commit(xid, rid, removes=False))
            for ring in rings:
                ring.drain()
            while rings[1].writer.remove_left(1):
                steps += 1
        else:
            while rings[1].writer.undo(xid, 1):
                steps += 1
            for ring in rings:
                ring.end(xid, commits=False)
        for ring in rings:
            ring.drain()
            while len(ring.free) > 60:
                ring.dequeue(ring.free[0])
            ring.drain()
            ring.rid = max(each.rid for each in rings)
        assert _state(rings[0].writer) == _state(rings[1].writer)
    assert rings[0].files == rings[1].files
    assert rings[0].laps > 0
    assert steps > 100


def test_commit_leftovers_go_before_compaction_and_the_seal() -> None:
    ring = MemoryRing(Geometry(4, 65536))
    for _ in range(100):
        ring.enqueue(8)
    ring.drain()
    targets, kept = ring.free[:80], ring.free[80:]
    for target in targets:
        ring.dequeue_in(b"x", target)
    escorts = set(ring.writer.transactions[b"x"].dequeues.values())
    ring.do(lambda rid: ring.writer.commit(b"x", rid, removes=False))
    assert ring.writer.records.left
    while ring.laps < 2:
        ring.enqueue(8)
        ring.drain()
        for each in ring.free:
            if each not in kept and each not in targets and each not in escorts:
                ring.dequeue(each)
    assert not ring.writer.records.left
    ring.restart(sealed=True)
    assert set(ring.free) >= set(kept)
    assert not set(ring.free) & set(targets)


def test_the_last_record_of_a_flush_is_flagged_whichever_it_is() -> None:
    for count in (0, 2):
        ring, twin = MemoryRing(Geometry(8, 65536)), MemoryRing(Geometry(8, 65536))
        for each, append in ((ring, _append_in_one_go), (twin, _append_one_by_one)):
            for _ in range(2):
                each.enqueue(1)
            messages: list[MessageData] = [((b"x" * 300,), 300, data_crc((b"x" * 300,)))]
            each.writer.admit_transaction(b"x", [300], count)
            append(each, b"x", messages, [1, 2][:count])
            each.drain()
        assert ring.files == twin.files


@pytest.mark.parametrize("seed", range(3))
def test_room_without_a_check_is_room_by_all_rules(seed: int) -> None:
    rng = random.Random(seed)
    ring = MemoryRing(Geometry(6, 65536), seed=seed)
    longest = rng.choice((100, 1500))
    answers: Counter[bool] = Counter()
    refused = 0
    for number in range(600):
        xid = b"transaction %d" % number
        sizes = [rng.randrange(longest) for _ in range(rng.randrange(1, 12))]
        messages: list[MessageData] = [((bytes(size),), size, data_crc((bytes(size),))) for size in sizes]
        has_room = ring.writer.has_room_at_once(xid, messages)
        answers[has_room] += 1
        try:
            ring.writer.admit_transaction(xid, sizes, 0)
        except JournalFullError:
            assert not has_room
            refused += 1
            for rid in ring.free[:30]:
                ring.dequeue(rid)
            ring.drain()
            continue
        except JournalBusyError:
            assert not has_room
            ring.drain()
            continue
        _append_in_one_go(ring, xid, messages, [])
        if rng.random() < 0.8:
            ring.end(xid, commits=rng.random() < 0.9)
        if rng.random() < 0.1:
            ring.drain()
    assert refused
    assert answers[False]
    assert answers[True]


def test_room_without_a_check_includes_the_outcome() -> None:
    ring = MemoryRing(Geometry(6, 65536))
    ring.enqueue(25)
    tiny: MessageData = ((b"x",), 1, data_crc((b"x",)))
    large: MessageData = ((b"x" * 2000,), 2000, data_crc((b"x" * 2000,)))
    longest: MessageData = ((b"x" * 4000,), 4000, data_crc((b"x" * 4000,)))
    writer = ring.writer
    assert not writer.has_room_at_once(b"x", [tiny] * 5)
    assert writer.has_room_at_once(b"x", [tiny] * 5 + [large])
    assert not writer.has_room_at_once(b"x", [longest])  # no record was as long before
    assert not writer.has_room_at_once(b"x", [large] * 40)  # beyond the end of the file
    room = writer.records.room
    writer.records.room = 16 + writer.records.outcome_blocks(b"x")
    assert not writer.has_room_at_once(b"x", [large])
    writer.records.room += 1
    assert writer.has_room_at_once(b"x", [large])
    writer.records.room = room
    writer.failed(OSError(5, "fails"))
    assert not writer.has_room_at_once(b"x", [large])
