"""Runs of messages beside the same messages one by one: bytes, counters and refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.broker_records.topology import Queue
from qstore.formats.kernels.bodies import SizeField
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.records import LAST_OF_FLUSH, decode_record
from qstore.formats.values import EMPTY_MAP, TypedMap
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError
from qstore.store.journal.write.flushes import RecordBuffer
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, RingSpace
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.sync.threads import InlineSync
from tests.faults.journal_simulation import rows_of
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import PATH, TinyParameters, simulated_environment
from tests.support.bodies import joined
from tests.support.memory_ring import MemoryRing
from tests.support.opened_store import COMPRESSES
from tests.support.profiles import examples

pytestmark = pytest.mark.usefixtures("tiny_blocks")

HEAD: Final = b"head"
_FIELD: Final = SizeField(len(HEAD), 4, 7)

# ---- the writer ----


def append_all(ring: MemoryRing, count: int, append: Callable[[int, int], int]) -> int:
    """Have `append` a record id, and how many were appended so far, until all are. Returns how many were taken."""
    done = several = 0

    def append_some(rid: int) -> None:
        nonlocal several
        several = append(rid, done)

    while done < count:
        try:
            ring.do(append_some)
        except JournalFullError:
            return done
        assert 1 <= several <= count - done
        ring.rid += several - 1
        done += several
    return done


def field_for(bodies: list[bytes]) -> SizeField | None:
    """The field in the head of messages with these bodies, if their sizes differ."""
    return None if len({*map(len, bodies)}) == 1 else _FIELD


def head_for(field: SizeField | None) -> bytes:
    """The head of a run with that field, which has any value in it."""
    return HEAD if field is None else HEAD + b"\xff" * field.width + HEAD


def message(body: bytes, field: SizeField | None) -> bytes:
    """The data of a message."""
    return HEAD + body if field is None else HEAD + (len(body) + 7).to_bytes(4) + HEAD + body


class Ring:
    """A ring that takes messages in runs, or the same one by one."""

    def __init__(self, geometry: Geometry, alignment: int, *, in_runs: bool) -> None:
        self.ring, self.in_runs = MemoryRing(geometry, alignment), in_runs

    def enqueue(self, bodies: list[bytes], gap: int) -> list[int]:
        """Returns the record ids."""
        ring, writer, before = self.ring, self.ring.writer, self.ring.rid
        run, field = joined(bodies, 1 + gap, before=gap), field_for(bodies)
        if not self.in_runs:
            for body in bodies:
                if not ring.enqueue_data(message(body, field)):
                    break
            else:
                return list(range(before + 1, ring.rid + 1))
            return list(range(before + 1, ring.rid))

        def append(rid: int, done: int) -> int:
            return writer.enqueue_run(rid, head_for(field), field, run, done, len(bodies) - done)

        done = append_all(ring, len(bodies), append)
        return list(range(before + 1, before + 1 + done))

    def dequeue(self, target: int, count: int) -> None:
        if self.in_runs:
            append = lambda rid, done: self.ring.writer.dequeue_run(rid, target + done, count - done)  # noqa: E731
            assert append_all(self.ring, count, append) == count
        else:
            for number in range(count):
                self.ring.dequeue(target + number)


OPERATIONS = st.one_of(
    st.tuples(st.just("run"), st.sampled_from([0, 0, 60, 100, 300, 1500]), st.sampled_from([1, 2, 3, 20, 70])),
    st.tuples(st.just("uneven run"), st.sampled_from([0, 60, 100, 700]), st.sampled_from([2, 3, 20, 70])),
    st.tuples(st.just("similar run"), st.sampled_from([0, 30, 100, 700]), st.sampled_from([2, 3, 20, 70])),
    st.tuples(st.just("single"), st.integers(0, 400), st.just(0)),
    st.tuples(st.just("dequeue"), st.integers(0, 1 << 16), st.integers(1, 60)),
    st.tuples(st.just("dequeue the last"), st.integers(0, 20), st.integers(1, 60)),
    st.tuples(st.just("transaction"), st.integers(0, 1 << 16), st.integers(0, 1)),
    st.tuples(st.just("end"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("drain"), st.just(0), st.just(0)),
)


@examples(150)
@given(
    operations=st.lists(OPERATIONS, max_size=60),
    files=st.sampled_from([3, 4, 8]),
    blocks=st.sampled_from([32, 64, 256]),
    alignment=st.sampled_from([512, 512, 4096]),
)
@example([("run", 100, 70), ("drain", 0, 0), ("dequeue", 0, 70), ("drain", 0, 0)] * 6, 4, 64, 512)
@example([("run", 60, 70), ("dequeue the last", 5, 20), ("drain", 0, 0)] * 8, 4, 64, 512)
@example([("uneven run", 100, 70), ("drain", 0, 0), ("dequeue", 0, 70), ("drain", 0, 0)] * 6, 4, 256, 512)
@example([("similar run", 30, 70), ("drain", 0, 0), ("dequeue", 0, 70), ("drain", 0, 0)] * 6, 4, 256, 512)
@example([("similar run", 30, 70), ("similar run", 100, 70), ("drain", 0, 0)] * 9, 4, 64, 512)
def test_a_journal_of_runs_is_that_of_the_same_messages_one_by_one(
    operations: list[tuple[str, int, int]], files: int, blocks: int, alignment: int
) -> None:
    """Byte by byte; and so are the account, and where each message is."""
    geometry = Geometry(files, blocks * 128)
    rings = [Ring(geometry, alignment, in_runs=in_runs) for in_runs in (True, False)]
    live: set[int] = set()
    for number, (kind, what, count) in enumerate(operations):
        transactions = rings[0].ring.writer.transactions
        rows = rows_of(sorted(rid for rid in live if not rings[0].ring.writer.records.is_locked(rid)))
        if kind.endswith("run"):
            each = {"run": 0, "similar run": 1, "uneven run": 37}[kind]
            bodies = [
                bytes([number % 251, index]) + bytes(what + each * (index * index % 11)) for index in range(count)
            ]
            found = [ring.enqueue(bodies, what % 7) for ring in rings]
            assert found[0] == found[1]
            live.update(found[0])
            rings[0].ring.rid = rings[1].ring.rid
        elif kind == "single":
            taken = [ring.ring.enqueue_data(bytes(what)) for ring in rings]
            assert taken[0] is taken[1]
            if taken[0]:
                live.add(rings[0].ring.rid)
        elif kind.startswith("dequeue") and rows:
            first, end = rows[what % len(rows)] if kind == "dequeue" else rows[-1]
            first = first + what % (end - first) if kind == "dequeue" else max(first, end - 1 - what)
            count = min(count, end - first)
            for ring in rings:
                ring.dequeue(first, count)
            live.difference_update(range(first, first + count))
        elif kind == "transaction" and rows:
            first, end = rows[what % len(rows)]
            for ring in rings:
                ring.ring.dequeue_in(b"xid", first + what % (end - first))
        elif kind == "end" and transactions:
            gone = set(transactions[b"xid"].dequeues) if count else set()
            for ring in rings:
                ring.ring.end(b"xid", commits=bool(count))
            live -= gone
        elif kind == "step":
            for ring in rings:
                if ring.ring.writer.is_under_way:
                    ring.ring.writer.flushed()
                else:
                    ring.ring.step()
        elif kind == "drain":
            for ring in rings:
                ring.ring.drain()
        check_alike(*(ring.ring for ring in rings), live)
    for ring in rings:
        ring.ring.drain()
    assert [bytes(file) for file in rings[0].ring.files] == [bytes(file) for file in rings[1].ring.files]


def check_alike(runs: MemoryRing, singles: MemoryRing, live: set[int]) -> None:
    mine, theirs = runs.writer, singles.writer
    assert mine.batch.records.part(0, 1 << 30) == theirs.batch.records.part(0, 1 << 30)
    assert (runs.rid, mine.batch.position, mine.batch.placed) == (
        singles.rid,
        theirs.batch.position,
        theirs.batch.placed,
    )
    for name in ("room", "messages", "blocks", "largest", "escorts"):
        assert getattr(mine.records, name) == getattr(theirs.records, name), name
    rids = sorted(live)
    assert list(mine.records.where_all(rids)) == [mine.records.where(rid) for rid in rids]
    assert list(mine.records.where_all(rids)) == list(theirs.records.where_all(rids))
    assert set(mine.records.rids()) == set(theirs.records.rids())
    assert (mine.space.oldest, mine.synced) == (theirs.space.oldest, theirs.synced)
    held = [{index: count for index, count in each.space._held.items() if count} for each in (mine, theirs)]
    assert held[0] == held[1]


@given(
    place=st.integers(0, 200), blocks=st.integers(1, 90), count=st.integers(1, 60), before=st.integers(0, 3)
)  # fmt: skip
def test_records_in_a_row_are_counted_in_each_file_that_they_touch(
    place: int, blocks: int, count: int, before: int
) -> None:
    space, wanted = RingSpace(Geometry(4, 32 * 128), 512, 128), {place // 32: before}
    counts = dict(wanted)
    space.count_run(counts, place, blocks, count)
    for number in range(count):
        first = place + number * blocks
        for index in range(first // 32, (first + blocks - 1) // 32 + 1):
            wanted[index] = wanted.get(index, 0) + 1
    assert counts == wanted
    held = dict(counts)
    space._held.update(held)
    space.release_counted(counts)
    assert set(space._held.values()) == {0}


def test_a_run_takes_no_memory_for_each_message_even_when_it_is_copied_forward() -> None:
    ring = Ring(Geometry(4, 512 * 128), 512, in_runs=True)
    writer = ring.ring.writer
    kept = ring.enqueue([b"kept"] * 300, 1)
    for _ in range(40):
        gone = ring.enqueue([b"gone"] * 100, 1)
        ring.dequeue(gone[0], 100)
        ring.ring.drain()
    assert writer.compactor.copied > 600
    assert len(writer.live) == 1, "the message that entered the first file"
    assert len(writer.records.resting._chunks) < 40
    for rid in kept:
        packed = writer.records.where(rid)
        assert packed is not None
        salt = writer.batch.salts[(packed >> SIZE_BITS) // 512]
        header, _, data = decode_record(ring.ring.read(packed >> SIZE_BITS, (packed & SIZE_MASK) * 128), salt=salt)
        assert (header.rid, data) == (rid, b"headkept")


def test_messages_of_similar_sizes_take_as_little() -> None:
    """They are a run in the index where their records have as many blocks."""
    ring = Ring(Geometry(4, 512 * 128), 512, in_runs=True)
    rids = ring.enqueue([b"body" + bytes(number % 10) for number in range(100)], 1)
    resting = ring.ring.writer.records.resting
    assert resting.has_run(range(rids[1], rids[-1] + 1)), "all but the message that entered the first file"
    others = ring.enqueue([b"body" + bytes(number) for number in range(100)], 1)
    assert not resting.has_run(range(others[0], others[-1] + 1))


def test_dequeues_end_at_the_first_message_that_is_missing_or_held() -> None:
    ring = Ring(Geometry(4, 512 * 128), 512, in_runs=True)
    writer = ring.ring.writer
    ring.enqueue([b"body"] * 60, 1)
    ring.ring.dequeue(20)
    ring.ring.dequeue_in(b"xid", 40)
    writer.enqueue_in(b"other", 80, (b"", b"pending"), 7, data_crc((b"pending",)))
    ring.ring.rid = 80
    assert writer.dequeue_run(81, 1, 60) == 19
    for held in (1, 20, 40, 80, 199):
        with pytest.raises(JournalError, match=f"record 0x{held:x} (does not exist|is locked)"):
            writer.dequeue_run(100, held, 20)
    assert writer.dequeue_run(101, 25, 60) == 15
    assert writer.dequeue_run(116, 41, 60) == 20
    assert sorted(writer.records.rids()) == [21, 22, 23, 24, 40, 62, 80], "with the dequeue of the transaction"


# ---- the bytes of the batch ----


@pytest.mark.parametrize("size", [0, 50, 500, 9000])
@pytest.mark.parametrize("count", [1, 2, 7, 64, 65, 300])
@pytest.mark.parametrize("more", [0, 150])
def test_the_last_record_of_a_run_is_flagged(size: int, count: int, more: int) -> None:
    """Whether the run is copied into the buffer or not; and of dequeues likewise."""
    bodies = [bytes([number % 251]) * (size + more * (number % 3)) for number in range(count)]
    blocks = [-(-(len(body) + len(HEAD) + 44) // 128) for body in bodies]
    for with_dequeues in (False, True):
        buffer = RecordBuffer()
        buffer.append_run(5, 7, HEAD, None, joined(bodies), 0, count, sum(blocks), blocks[-1], b"saltsalt")
        if with_dequeues:
            buffer.append_dequeues(1000, 7, 5, count, b"saltsalt")
        assert not buffer.is_empty
        buffer.flag_last()
        content, at, found = b"".join(buffer.take()), 0, []
        while at < len(content):
            header, _, data = decode_record(content, at, salt=int.from_bytes(b"saltsalt", "little"))
            found.append((header.rid, header.flags, data, header.dequeued_rid))
            at += header.size
        wanted = [(5 + number, 0, HEAD + body, 0) for number, body in enumerate(bodies)]
        if with_dequeues:
            wanted += [(1000 + number, 0, b"", 5 + number) for number in range(count)]
        wanted[-1] = (wanted[-1][0], LAST_OF_FLUSH, *wanted[-1][2:])
        assert found == wanted


# ---- the store ----


class Store:
    """A store in small that takes messages in runs, or the same one by one."""

    def __init__(self, *, in_runs: bool) -> None:
        self.in_runs, self.disk = in_runs, SimulatedDisk(1)
        rng = random.Random(2)
        environment = simulated_environment(self.disk, rng, InlineSync)
        self.store = MessageStore.open(environment, PATH, TinyParameters(), "test", log=lambda _: None)
        self.store.end_recovery()

    def make(self, name: str, arguments: TypedMap = EMPTY_MAP) -> QueueJournal:
        made: list[Any] = []
        self.store.changes.create_queue(Queue(name, arguments), Geometry(6, 8192), lambda *each: made.append(each[0]))
        while not made:
            self.store.start()
            self.store.collect(None)
        assert isinstance(made[0], QueueJournal)
        return made[0]

    def enqueue(self, journal: QueueJournal, bodies: list[bytes]) -> list[int]:
        append, field, rids = self.store.append, field_for(bodies), list[int]()
        run = joined(bodies)
        while len(rids) < len(bodies):
            done = len(rids)
            try:
                if self.in_runs:
                    rid, several = append.enqueue_run(journal, head_for(field), field, run, done, len(bodies) - done)
                else:
                    parts = (message(bodies[done], field),)
                    rid, several = append.enqueue(journal, parts, len(parts[0]), data_crc(parts)), 1
            except JournalFullError:
                break
            assert 1 <= several <= len(bodies) - done
            rids += range(rid, rid + several)
        return rids

    def dequeue(self, journal: QueueJournal, target: int, count: int) -> None:
        done = 0
        while done < count:
            if self.in_runs:
                several = self.store.append.dequeue_run(journal, target + done, count - done)
            else:
                self.store.append.dequeue(journal, target + done)
                several = 1
            assert 1 <= several <= count - done
            done += several

    def files(self) -> dict[str, bytes]:
        """All files of journals."""
        found = {}
        for name in self.disk.names(f"{PATH}/rhm/jrnl"):
            for file in self.disk.names(f"{PATH}/rhm/jrnl/{name}"):
                found[f"{name}/{file}"] = bytes(self.disk.tree.inode(f"{PATH}/rhm/jrnl/{name}/{file}").content)
        return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("arguments", [EMPTY_MAP, COMPRESSES], ids=["plain", "compressed"])
def test_a_store_of_runs_is_that_of_the_same_messages_one_by_one(seed: int, arguments: TypedMap) -> None:
    """All that limits a run is passed: files, rings, blocks of record ids, and what may be unsynced."""
    stores = [Store(in_runs=True), Store(in_runs=False)]
    pairs = [tuple(store.make(name, arguments) for store in stores) for name in ("first", "second")]
    rng, live = random.Random(seed), [list[int](), list[int]()]
    for _ in range(150):
        which = rng.randrange(2)
        chance, pair, rids = rng.random(), pairs[which], live[which]
        if chance < 0.45 or not rids:
            size = rng.choice((1, 20, 100, 700))
            more, count = rng.choice((0, 0, 50)), rng.choice((1, 2, 10, 60))
            bodies = [bytes([rng.randrange(256)]) * (size + rng.randint(0, more)) for _ in range(count)]
            found = [store.enqueue(journal, bodies) for store, journal in zip(stores, pair, strict=True)]
            assert found[0] == found[1]
            rids += found[0]
            if found[0]:
                assert [stores[0].store.read is not None, pair[0].load(found[0][-1])] == [
                    True,
                    pair[1].load(found[0][-1]),
                ]
        elif chance < 0.85:
            first, end = rng.choice(rows_of(rids))
            first = rng.choice((first, rng.randrange(first, end)))
            count = rng.randint(1, end - first)
            for store, journal in zip(stores, pair, strict=True):
                store.dequeue(journal, first, count)
            gone = range(first, first + count)
            live[which] = [rid for rid in rids if rid not in gone]
        else:
            for store in stores:
                store.store.start()
                store.store.collect()
        for name in ("enqueues", "dequeues", "gathered", "unsynced", "depth", "waits", "shortages"):
            assert getattr(pair[0], name) == getattr(pair[1], name), name
    assert sum(journal.waits for journal in pairs[0]) > 5
    assert stores[0].store._ids.next == stores[1].store._ids.next > 500
    for store in stores:
        assert store.store.close()
    files = [store.files() for store in stores]
    assert files[0].keys() == files[1].keys()
    for name, content in files[0].items():
        assert content == files[1][name], name


@pytest.mark.parametrize("seed", range(4))
def test_the_same_messages_of_a_run_go_to_all_of_several_journals(seed: int) -> None:
    store, rng, taken, shortened, refused = Store(in_runs=True), random.Random(seed), 0, 0, 0
    crossed = 0
    journals = [store.make("first"), store.make("second")]
    for _ in range(150):
        size, count = rng.choice((1, 20, 100, 700)), rng.choice((1, 2, 10, 60))
        more = rng.choice((0, 0, 200))
        bodies = [bytes([rng.randrange(256)]) * (size + rng.randint(0, more)) for _ in range(count)]
        before = [(each.enqueues, each.unsynced) for each in journals]
        field = field_for(bodies)
        least = rng.choice((2, 4, 30))
        run = len(head_for(field)), joined(bodies, 2), count
        fits = [each.writer.admitted_of_run(*run) for each in journals]
        fast = min([each.writer.taken_of_run(*run) for each in journals])
        rids, appended = store.store.append.enqueue_run_to_all(
            journals, head_for(field), field, joined(bodies, 2), count, least
        )
        assert appended == 0 or least <= appended <= min(fits)
        if not rids:
            refused += 1
            assert appended == 0
            assert [(each.enqueues, each.unsynced) for each in journals] == before
            count, field = 1, None
            rids = [store.enqueue(journal, bodies[:1])[0] for journal in journals]
        else:
            taken += 1
            shortened += appended < count
            crossed += appended > fast
            count = appended
        for journal, first in zip(journals, rids, strict=True):
            assert [journal.load(first + number) for number in range(count)] == [
                message(body, field) for body in bodies[:count]
            ]
            if rng.random() < 0.8:
                store.dequeue(journal, first, count)
        if rng.random() < 0.3:
            store.store.start()
            store.store.collect()
        assert len({each.enqueues for each in journals}) == 1
    assert taken > 10
    assert shortened > 1
    assert crossed > 3
    assert refused > 3
    assert store.store.close()


def test_runs_that_are_not_in_the_buffer_are_refused() -> None:
    store = Store(in_runs=True)
    journal = store.make("queue")
    enqueue = partial(store.store.append.enqueue_run, journal, HEAD, None, joined([bytes(9)] * 10))
    for first, count in ((-1, 1), (10, 1), (1, 10), (0, 0), (5, -1)):
        with pytest.raises(ValueError, match="no run of"):
            enqueue(first, count)
    with pytest.raises(ValueError, match="no messages"):
        store.store.append.dequeue_run(journal, 1, 0)
    assert (journal.enqueues, journal.unsynced) == (0, 0)
    assert [enqueue(0, 10)[1], enqueue(1, 9)[1]] == [1, 9], "a file is entered by one message"


def test_a_failed_journal_refuses_runs() -> None:
    store = Store(in_runs=True)
    journal = store.make("queue")
    (rid, *_) = store.enqueue(journal, [b"body"] * 5)
    journal.writer.failed(OSError(5, "broken"))
    with pytest.raises(JournalFailedError):
        store.enqueue(journal, [b"body"] * 5)
    with pytest.raises(JournalFailedError):
        store.dequeue(journal, rid, 5)
