"""Durable queues whose messages are out of memory, on a store: order, restarts, unreadable records."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.errors import InternalError, ModelError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.stretch import PORTIONS
from qstore.broker.model.settlement import Selection
from qstore.broker.model.transactions.branch import Branch, Status
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.values import typed_map
from qstore.store.disk import OsFile, OsWritableFile
from qstore.store.journal.write import version_2_writer
from qstore.store.live.queue_journal import QueueJournal
from tests.broker.wired_broker import Wired, wired
from tests.support.compiled import is_compiled
from tests.support.processes import PATIENCE_SECONDS

COUNT = 1500


class Reader:
    """Takes messages, and accepts them."""

    def __init__(self, queue: Queue, credit: int) -> None:
        self.acquires, self.is_waiting, self.credit = True, False, credit
        self.cursor: Any = None
        self.queue = queue
        self.bodies: list[bytes] = []
        self.expiries: list[float] = []
        self.redelivered = 0

    kind = "takes all"

    @property
    def has_credit(self) -> bool:
        return self.credit > 0

    def deliver(self, entry: Entry) -> int:
        if not self.credit:
            return REFUSED
        try:
            message = entry.message.whole()
        except InternalError:
            return NOT_FOR_ME
        self.credit -= 1
        self.redelivered += entry.is_redelivered
        self.bodies.append(bytes(message.body))
        self.expiries.append(message.expires_at)
        self.queue.dequeue(entry)
        return TAKEN

    def queue_deleted(self) -> None:
        raise AssertionError("deleted")

    def fail(self, error: Exception) -> None:
        raise error


def body(number: int) -> bytes:
    return b"%d" % number


async def made(world: Wired, budget: int) -> tuple[Queue, Residency]:
    arguments = typed_map({"qpid.file_count": 8, "qpid.file_size": 4})
    await world.topology.declare_queue("q", durable=True, arguments=arguments)
    queue = world.broker.default_host.queues["q"]
    assert queue.residency is not None
    queue.residency.budget = budget
    return queue, queue.residency


async def publish(world: Wired, first: int, count: int) -> None:
    for start in range(first, first + count, 50):
        await world.publish("", "q", *map(body, range(start, min(start + 50, first + count))))


async def taken(world: Wired, queue: Queue, count: int) -> Reader:
    reader = Reader(queue, count)
    queue.add_consumer(reader)
    queue.wake(reader)
    for _ in range(2000):
        if len(reader.bodies) == count:
            break
        await asyncio.sleep(0.005)
    await world.synced()
    queue.remove_consumer(reader)
    return reader


@pytest.mark.parametrize("is_cached", [True, False])
async def test_paged_out_messages_come_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    if not is_cached:
        monkeypatch.setattr(OsWritableFile, "read_cached", lambda *_: None)
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, COUNT)
        residency.relieve(1 << 30, is_urgent=True)
        assert residency.messages_out - residency.messages_in == COUNT == queue.message_count
        assert queue.memory <= 30 * COUNT
        assert (await taken(world, queue, 700)).bodies == [body(number) for number in range(700)]
        await publish(world, COUNT, 300)
        residency.relieve(1 << 30, is_urgent=True)
        assert queue.purge(100)[0] == 100
    async with wired(tmp_path / "data") as world:
        queue = world.broker.default_host.queues["q"]
        reader = await taken(world, queue, COUNT + 300 - 800)
        assert reader.bodies == [body(number) for number in range(800, COUNT + 300)]
        assert (queue.message_count, queue.message_bytes) == (0, 0)


async def test_stored_messages_that_are_not_next_rest_in_the_journal(tmp_path: Path) -> None:
    """Beyond some bytes, in a queue that has room for all of them in memory; and they come back in order."""
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1 << 30)
        assert residency.rest_at == PORTIONS.rest_unserved
        residency.rest_at = 2000 * MESSAGE_OVERHEAD
        await publish(world, 0, 1600)
        assert residency.messages_out == 0
        await publish(world, 1600, 3000)
        away = residency.messages_out
        assert away % PORTIONS.largest == 0
        assert 4600 - PORTIONS.window - PORTIONS.largest < away <= 4600 - PORTIONS.window
        assert queue.memory < away * 32 + (PORTIONS.window + PORTIONS.largest) * (MESSAGE_OVERHEAD + 4)
        assert len(queue.journal.writer.records.resting) == away
        assert (await taken(world, queue, 4600)).bodies == [body(number) for number in range(4600)]
        assert (queue.memory, residency.memory_out) == (0, 0)


async def test_fewer_messages_stay_in_memory_while_nobody_takes_them(tmp_path: Path) -> None:
    """A consumer that keeps pace with publishers takes them from memory."""
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1 << 30)
        reader = Reader(queue, 0)
        queue.add_consumer(reader)
        residency.rest_at = 2000 * MESSAGE_OVERHEAD
        await publish(world, 0, 4000)
        assert residency.rest_at < queue.memory < PORTIONS.rest
        assert residency.messages_out == 0
        queue.remove_consumer(reader)
        await publish(world, 4000, 50)
        assert residency.messages_out > 4000 - PORTIONS.window - 2 * PORTIONS.largest
        assert (await taken(world, queue, 4050)).bodies == [body(number) for number in range(4050)]


async def test_unstored_or_browsed_messages_do_not_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it searched for what could, again and again."""
    walks: list[Entry] = []
    fold_from = Residency._fold_from

    def counted(self: Residency, entry: Entry, *rest: Any, **options: Any) -> int:
        walks.append(entry)
        return fold_from(self, entry, *rest, **options)

    monkeypatch.setattr(Residency, "_fold_from", counted)
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1 << 30)
        residency.rest_at = 1000
        for start in range(0, 6000, 20):
            await world.publish("", "q", *map(body, range(start, start + 20)), persistent=False)
        assert residency.messages_out == 0
        assert is_compiled or 0 < len(walks) < 5
        queue.purge(0)
        queue.message_ttl = 1000.0
        await publish(world, 0, 3000)
        assert residency.messages_out == 0
        queue.message_ttl = None
        await publish(world, 3000, 600)
        assert residency.messages_out > 2000
        assert (await taken(world, queue, 3600)).bodies == [body(number) for number in range(3600)]


async def test_a_start_reads_only_the_index(tmp_path: Path) -> None:
    count = 4200  # beyond what is resumed with all records awake
    async with wired(tmp_path / "data") as world:
        queue, _ = await made(world, 1 << 30)
        await publish(world, 0, count)
        size = queue.message_bytes
        queue.acquire(queue.order.first)  # delivered, and given back by the restart
    async with wired(tmp_path / "data") as world:
        queue = world.broker.default_host.queues["q"]
        residency = queue.residency
        assert residency is not None
        assert (residency.messages_out, residency.messages_in, queue.message_count) == (count, 0, count)
        assert abs(queue.message_bytes - size) <= 3 * count  # as estimated by the first
        assert all(isinstance(each.keys, range) for each in residency._stretches)
        assert [each.rid for each in queue.entries()] == sorted(each.rid for each in queue.entries())
        reader = await taken(world, queue, count)
        assert reader.bodies == [body(number) for number in range(count)]
        assert reader.redelivered == 1
        assert (queue.message_count, queue.message_bytes, queue.memory) == (0, 0, 0)


@pytest.mark.parametrize("commits", [False, True])
async def test_start_reads_only_messages_of_branches_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """And keeps only their records apart: those of all other messages are in packed arrays."""
    monkeypatch.setattr(version_2_writer, "MAX_AWAKE", 10)
    xids = [encode_dtx_xid(1, b"%d" % number, b"") for number in range(2)]
    async with wired(tmp_path / "data") as world:
        queue, _ = await made(world, 1 << 30)
        await publish(world, 0, 30)
        entries = list(queue.entries())
        await prepared(world, xids[0], queue, [entries[0], entries[7], entries[29]], range(30, 32))
        await publish(world, 32, 30)
        await prepared(world, xids[1], queue, [entries[8]], range(62, 64))
    async with wired(tmp_path / "data") as world:
        queue = world.broker.default_host.queues["q"]
        records = queue.journal.writer.records
        assert (len(records.live), len(records.resting)) == (4 + 4, 60)  # what was enqueued, the dequeues; the rest
        assert queue.residency is not None
        assert (queue.residency.messages_out, queue.residency.messages_in) == (56, 0)
        assert queue.message_count == 64
        free = [number for number in range(62) if number not in (0, 7, 8, 29, 30, 31)]
        assert (await taken(world, queue, 20)).bodies == [body(number) for number in free[:20]]
        for xid in xids:
            await ended(world.broker.distributed.find(xid), commits=commits)
        held = (30, 31, 62, 63) if commits else (0, 7, 8, 29)
        left = [body(number) for number in sorted([*free[20:], *held])]
        assert (await taken(world, queue, len(left))).bodies == left
        assert (queue.message_count, queue.memory, records.messages, records.room) == (0, 0, 0, records_room(queue))
    async with wired(tmp_path / "data") as world:
        assert world.broker.default_host.queues["q"].message_count == 0
        assert not world.broker.distributed.branches


def records_room(queue: Queue) -> int:
    """The blocks that enqueues may fill in an empty journal."""
    threshold: int = queue.journal.writer.space.threshold
    return threshold


async def prepared(world: Wired, xid: bytes, queue: Queue, accepted: list[Entry], published: range) -> None:
    """A prepared branch that accepts some messages and publishes others."""
    branch = world.broker.distributed.start(xid)
    for entry in accepted:
        assert queue.acquire(entry)
        branch.work.accept(queue, entry)
    for number in published:
        branch.work.publish(world.message("q", body(number)), world.broker.default_host.exchanges[""])
    world.broker.distributed.leave(branch, has_failed=False)
    await done(branch.prepare)


async def ended(branch: Branch, *, commits: bool) -> None:
    await done(partial(branch.commit, one_phase=False) if commits else branch.roll_back)


async def done(act: Callable[[Callable[[Status, ModelError | None], None]], None]) -> None:
    """Do something with a branch, until it is on the disk."""
    future: asyncio.Future[tuple[Status, ModelError | None]] = asyncio.get_running_loop().create_future()
    act(lambda status, error: future.set_result((status, error)))
    assert await future == (Status.OK, None)


async def test_a_filter_passes_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many portions its walk is in, and whether messages are in memory or not, which does not change."""
    count, passed = 600, 0
    since, load = Fifo.since, QueueJournal.load
    loads: list[int] = []

    def counting(fifo: Fifo, last: Entry | None, position: int) -> Iterator[Entry]:
        nonlocal passed
        for entry in since(fifo, last, position):
            passed += 1
            yield entry

    def loading(journal: QueueJournal, rid: int) -> bytes:
        loads.append(rid)
        return load(journal, rid)

    monkeypatch.setattr(Fifo, "since", counting)
    monkeypatch.setattr(QueueJournal, "load", loading)
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1 << 30)
        await publish(world, 0, count)
        residency.relieve(1 << 30, is_urgent=True)
        memory = queue.memory
        await publish(world, count, 100)
        ends = lambda message: message.whole().body.endswith(b"7")  # noqa: E731
        selection = Selection(queue, 0, ends, seconds=0.0)  # one message at once
        found: list[bytes] = []
        while not selection.is_over:
            for entry in selection.portion():
                assert queue.acquire(entry, is_consumed=False)
                found.append(bytes(entry.message.whole().body))  # type: ignore[attr-defined]
                queue.dequeue(entry)
            await asyncio.sleep(0)
        assert found == [body(number) for number in range(count + 100) if number % 10 == 7]
        assert passed <= 2 * (count + 100)
        assert len(loads) == count
        assert queue.memory - 100 * 330 < 2 * memory
        left = [body(number) for number in range(count + 100) if number % 10 != 7]
        assert (await taken(world, queue, len(left))).bodies == left


async def test_a_start_discards_nothing_of_a_ring_that_is_full_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_2_writer, "MAX_AWAKE", 10)
    limits: dict[str, int] = {}
    async with wired(tmp_path / "data") as world:
        for first in (1, 33, 65, 97):  # others are not estimated by it: there is more room after their records
            bodies = [b"." * first, *(b"." * (1 + number * 37 % 128) for number in range(1, 40))]
            name, plain = f"ring-{first:02}", f"same-{first:02}"
            await world.topology.declare_queue(plain, durable=True)
            await world.publish("", plain, *bodies)
            limits[name] = world.broker.default_host.queues[plain].message_bytes
            arguments = typed_map({"qpid.policy_type": "ring", "qpid.max_size": limits[name]})
            await world.topology.declare_queue(name, durable=True, arguments=arguments)
            await world.publish("", name, *bodies)
    async with wired(tmp_path / "data") as world:
        rings = {name: world.broker.default_host.queues[name] for name in limits}
        assert {name: ring.message_count for name, ring in rings.items()} == dict.fromkeys(limits, 40)
        assert {name: ring.message_bytes for name, ring in rings.items()} == limits


async def test_paged_out_message_keeps_its_expiry(tmp_path: Path) -> None:
    """What is stored is in whole seconds."""
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, 40)
        for entry in queue.entries():
            entry.message.expires_at = 4e9 + 0.25
        residency.relieve(1 << 30, is_urgent=True)
        assert residency.messages_out == 40
        expiries = [entry.message.whole().expires_at for entry in queue.entries()]
        queue.acquire(queue.order.first)  # that one stays
        reader = await taken(world, queue, 39)
        expiries += reader.expiries
        assert expiries == [4e9 + 0.25] * 79


async def test_a_message_that_cannot_be_read_stays_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, 200)
        residency.relieve(1 << 30, is_urgent=True)
        journal = queue.journal
        rid = next(iter(queue.entries())).rid
        packed = journal.writer.records.where(rid)
        ((_, offset, _),) = journal.storage._pieces(packed >> 24, 1)
        read = OsFile.read

        def read_badly(file: OsFile, at: int, length: int) -> bytes:
            if at <= offset < at + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), "the journal")
            return read(file, at, length)

        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(OsFile, "read", read_badly)
            patched.setattr(OsWritableFile, "read_cached", lambda *_: None)
            reader = await taken(world, queue, 199)
            assert reader.bodies == [body(number) for number in range(1, 200)]
        assert f"record 0x{rid:x} cannot be read back" in caplog.text
        assert queue.message_count == 1
        assert [bytes(entry.message.whole().body) for entry in queue.entries()] == [body(0)]
        assert queue.purge() == (1, True)


def flip_a_bit(queue: Queue, rid: int) -> None:
    """In the stored data of a message."""
    packed = queue.journal.writer.records.where(rid)
    ((number, offset, _),) = queue.journal.storage._pieces(packed >> 24, 1)
    file = queue.journal.storage.file(number)
    file.write(offset + 40, bytes((file.read(offset + 40, 1)[0] ^ 4,)))


@pytest.mark.parametrize("is_cached", [True, False])
async def test_order_and_marks_of_a_recovered_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Messages that are held, released, dequeued, expired or damaged lie between those that are read back."""
    monkeypatch.setattr(version_2_writer, "MAX_AWAKE", 10)
    count = 1400
    cached = (lambda file, *extent: file.read(*extent)) if is_cached else (lambda *_: None)
    monkeypatch.setattr(OsWritableFile, "read_cached", cached)
    async with wired(tmp_path / "data") as world:
        queue, _ = await made(world, 1 << 30)
        await publish(world, 0, count)
        for number, entry in enumerate(list(queue.entries())):
            if number in (3, 700):
                queue.acquire(entry)  # delivered: marked by the restart
            elif number % 100 == 50:
                queue.acquire(entry)
                queue.dequeue(entry)
        await world.synced()
    async with wired(tmp_path / "data") as world:
        queue = world.broker.default_host.queues["q"]
        left = [number for number in range(count) if number % 100 != 50]
        entries = {bytes(each.message.whole().body): each for each in queue.entries()}
        assert list(entries) == [body(number) for number in left]
        held, released, expired, damaged = (entries[body(number)] for number in (5, 6, 600, 900))
        assert queue.acquire(held)
        assert queue.acquire(released)
        assert queue.acquire(expired)
        expired.message.expires_at = 1.0
        queue.release(expired, is_redelivered=False)
        assert queue.residency is not None
        queue.residency.relieve(1 << 30, is_urgent=True)
        flip_a_bit(queue, damaged.rid)
        del entries
        queue.release(released, is_redelivered=True)
        reader = await taken(world, queue, len(left) - 3)
        assert reader.bodies == [body(number) for number in left if number not in (5, 600, 900)]
        assert reader.redelivered == 3
        queue.release(held, is_redelivered=False)
        assert (await taken(world, queue, 1)).bodies == [body(5)]
        assert queue.message_count == 1
        assert queue.purge() == (1, True)


async def test_a_dispatch_is_unfinished_while_its_messages_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that flushes a subscription does not get the answer that there is nothing."""
    monkeypatch.setattr(OsWritableFile, "read_cached", lambda *_: None)
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, 100)
        residency.relieve(1 << 30, is_urgent=True)
        reader = Reader(queue, 100)
        queue.add_consumer(reader)
        queue.wake(reader)
        queue.dispatch()
        assert (queue.is_unfinished, reader.bodies) == (True, [])
        for _ in range(5000):
            if not queue.is_unfinished:
                break
            await asyncio.sleep(0.002)
        await world.synced()
        assert (queue.is_unfinished, len(reader.bodies)) == (False, 100)


async def test_a_dispatch_is_unfinished_when_its_messages_were_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the system's memory, so that the read ends within the dispatch."""
    monkeypatch.setattr(OsWritableFile, "read_cached", lambda self, *extent: self.read(*extent))
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, 100)
        residency.relieve(1 << 30, is_urgent=True)
        reader = Reader(queue, 200)
        queue.add_consumer(reader)
        queue.wake(reader)
        queue.dispatch()
        assert not residency.messages_out - residency.messages_in
        assert (queue.is_unfinished, reader.bodies) == (True, [])
        await world.synced()
        assert (queue.is_unfinished, len(reader.bodies)) == (False, 100)


async def test_message_read_for_a_consumer_stays_until_taken(tmp_path: Path) -> None:
    """Even if the budget is smaller than that: it would be read and go out again, for ever."""
    async with wired(tmp_path / "data") as world:
        queue, residency = await made(world, 1)
        await publish(world, 0, 1100)
        residency.relieve(1 << 30, is_urgent=True)
        reader = Reader(queue, 1)
        queue.add_consumer(reader)
        queue.wake(reader)
        await asyncio.wait_for(world.synced(), 20)
        for credit, count in ((0, 1), (5, 6), (2000, 1100)):
            reader.credit += credit
            queue.wake(reader)
            for _ in range(5000):
                if len(reader.bodies) == count:
                    break
                await asyncio.sleep(0.002)
            assert len(reader.bodies) == count
            assert residency.messages_out < 3 * 1100
        assert reader.bodies == [body(number) for number in range(1100)]


async def test_slow_consumers_of_large_messages_do_not_fill_memory(tmp_path: Path) -> None:
    size, count = 64 << 10, 400
    async with wired(tmp_path / "data") as world:
        arguments = typed_map({"qpid.file_count": 8, "qpid.file_size": 128})
        await world.topology.declare_queue("q", durable=True, arguments=arguments)
        queue = world.broker.default_host.queues["q"]
        residency = queue.residency
        assert residency is not None
        residency.budget = 2 << 20
        reader = Reader(queue, 0)
        queue.add_consumer(reader)
        most = 0
        for number in range(count):
            await world.publish("", "q", b"%08d" % number + bytes(size))
            if number % 10 == 0:  # it takes fewer than come
                reader.credit += 1
                queue.wake(reader)
            async with asyncio.timeout(PATIENCE_SECONDS):  # what it waits for may be read by a thread
                while reader.credit:
                    await asyncio.sleep(0.001)
            most = max(most, queue.memory)
        assert residency.messages_out > 0
        assert residency.messages_in > 0
        assert most < 16 << 20  # of 25 MiB: what is read ahead, and a stretch
        reader.credit = count
        queue.wake(reader)
        for _ in range(2000):
            if len(reader.bodies) == count:
                break
            await asyncio.sleep(0.005)
        assert [int(each[:8]) for each in reader.bodies] == list(range(count))
