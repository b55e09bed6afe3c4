"""Queues whose messages go to paging files: paged ones, those that flow to disk, large messages, a full disk."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.arguments import read_arguments
from qstore.broker.model.residency.paging_directory import PagingDirectory, Run, run_here
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.values import typed_map
from tests.support.paging_disk import MemoryPagingDisk
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.served import Served, client, served

BODY = b"." * 1000


@asynccontextmanager
async def paged(disk: MemoryPagingDisk, run: Run = run_here, **settings: Any) -> AsyncIterator[tuple[Served, RawPeer]]:
    """A broker without a store, with paging files, and a client."""
    async with served(**settings) as found:
        directory = PagingDirectory(disk, "/paging", run, random_bits=random.Random(5).getrandbits)
        directory.prepare()
        found.broker.queue_factory.use_paging(directory, 0)
        peer = await client(RawPeer, found.port)
        try:
            yield found, peer
        finally:
            peer.close()


def publish(peer: RawPeer, queue: str, first: int, last: int, body: bytes = BODY) -> None:
    for number in range(first, last):
        peer.publish(queue, b"%06d" % number + body, durable=False)
        if number % 200 == 0:
            peer.sync()
    peer.sync()


def consumed(peer: RawPeer, queue: str, count: int) -> list[int]:
    peer.subscribe(queue, destination=queue)
    deliveries = peer.take(count)
    peer.accept(deliveries, sync=True)
    return [int(delivery.body[:6]) for delivery in deliveries]


@pytest.mark.parametrize(
    "arguments",
    [
        {"qpid.paging": True},
        {"qpid.paging": True, "qpid.compress": "zstd", "qpid.page_factor": 16, "qpid.max_pages_loaded": 2},
        {"qpid.policy_type": "flow_to_disk", "qpid.max_size": 1_000_000},
        {"qpid.policy_type": "flow-to-disk", "qpid.max_count": 700},
        {"qpid.policy_type": "flow_to_disk", "qpid.max_count": 700, "qpid.priorities": 3},
    ],
)
async def test_a_backlog_is_on_the_disk_and_comes_back(arguments: dict[str, Any]) -> None:
    disk = MemoryPagingDisk()
    async with paged(disk, queue_limit_bytes=2 << 20) as (found, peer):
        await client(peer.declare, "q", durable=False, arguments=arguments)
        await client(publish, peer, "q", 0, 5000)
        queue = found.broker.default_host.queues["q"]
        assert queue.message_count == 5000
        entries = 280 * 5000 if "qpid.priorities" in arguments else 0
        assert queue.memory < (2 << 20) + entries
        assert disk.size > (100_000 if "qpid.compress" in arguments else 2_500_000)
        assert await client(consumed, peer, "q", 5000) == list(range(5000))
        assert not disk.contents
        assert queue.residency is not None
        assert queue.residency.messages_out == queue.residency.messages_in


async def test_messages_of_a_level_are_written_and_read_back_together() -> None:
    """One write a level for each turn of the event loop, or for each 50 messages if a turn has more of them."""
    disk, levels, count = MemoryPagingDisk(), 5, 6000
    async with paged(disk, queue_limit_bytes=1 << 20) as (found, peer):
        turns, ended = itertools.count(), found.broker.tick.ended
        found.broker.tick.ended = lambda: (next(turns), ended())[1]
        arguments = {"qpid.policy_type": "flow_to_disk", "qpid.max_size": 1 << 20, "qpid.priorities": levels}
        await client(peer.declare, "q", durable=False, arguments=arguments)
        order = sorted(range(count), key=lambda number: (-(number % levels), number))
        for first in range(0, count, 200):
            await client(
                peer.publish_all,
                [
                    peer.transfer_frames("q", b"%06d" % number + BODY, durable=False, priority=2 + number % levels)
                    for number in range(first, first + 200)
                ],
            )
            await client(peer.sync)
        residency = found.broker.default_host.queues["q"].residency
        assert residency is not None
        assert residency.messages_out > count // 2
        assert disk.writes <= levels * (next(turns) + count // 50)  # most turns have a hundred messages
        assert await client(consumed, peer, "q", count) == order
        assert disk.reads <= disk.writes


def later(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """As a thread does it: not at once."""
    asyncio.get_running_loop().call_soon(lambda: done(work()))


@pytest.mark.parametrize("has_cache", [False, True])
async def test_the_system_reads_ahead_while_the_disk_is_slow(*, has_cache: bool) -> None:
    for arguments in ({}, {"qpid.priorities": 2}):
        disk = MemoryPagingDisk()
        disk.has_cache = has_cache
        async with paged(disk, later, queue_limit_bytes=1 << 20) as (_, peer):
            flows = {"qpid.policy_type": "flow_to_disk", "qpid.max_size": 1 << 20, **arguments}
            await client(peer.declare, "q", durable=False, arguments=flows)
            await client(publish, peer, "q", 0, 5000)
            assert await client(consumed, peer, "q", 5000) == list(range(5000))
            assert bool(disk.read_ahead) is not has_cache


async def test_a_deleted_queue_takes_its_file_with_it() -> None:
    disk = MemoryPagingDisk()
    async with paged(disk) as (_, peer):
        await client(peer.declare, "q", durable=False, arguments={"qpid.paging": 1})
        await client(publish, peer, "q", 0, 3000)
        assert len(disk.contents) == 1
        await client(peer.call, "queue.delete", queue="q")
        await client(peer.sync)
        assert not disk.contents
        assert not disk.open_files


async def test_a_purge_empties_the_file() -> None:
    disk = MemoryPagingDisk()
    async with paged(disk) as (found, peer):
        await client(peer.declare, "q", durable=False, arguments={"qpid.paging": 1})
        for _ in range(3):
            await client(publish, peer, "q", 0, 3000)
            assert disk.size > 1 << 20
            await client(peer.call, "queue.purge", queue="q")
            await client(peer.sync)
            assert (found.broker.default_host.queues["q"].memory, disk.contents) == (0, {})


async def test_the_ceiling_lets_messages_of_all_queues_go_out() -> None:
    disk = MemoryPagingDisk()
    async with paged(disk, memory_bytes=8 << 20, queue_limit_bytes=0) as (found, peer):
        for name in ("a", "b", "c"):
            await client(peer.declare, name, durable=False)
            await client(publish, peer, name, 0, 8000)
        assert found.broker.held_memory() < 8 << 20
        assert disk.size > 12 << 20
        for name in ("b", "a", "c"):
            assert await client(consumed, peer, name, 8000) == list(range(8000))
        assert not disk.contents


# ---- large messages ----


async def test_large_messages_leave_memory_unless_they_are_consumed_at_once() -> None:
    disk = MemoryPagingDisk()
    async with paged(disk, staging_bytes=100_000) as (found, peer):
        await client(peer.declare, "q", durable=False)
        queue = found.broker.default_host.queues["q"]
        for number in range(3):
            await client(publish, peer, "q", 2 * number, 2 * number + 1, b"x" * 150_000)
            await client(publish, peer, "q", 2 * number + 1, 2 * number + 2, b"x" * 90_000)
        assert 270_000 < queue.memory < 300_000
        assert 450_000 < disk.size < 500_000
        assert await client(consumed, peer, "q", 6) == list(range(6))
        assert not disk.contents
        await client(publish, peer, "q", 6, 7, b"x" * 150_000)
        assert [int(each.body[:6]) for each in await client(peer.take, 1)] == [6]
        assert not disk.contents


# ---- a disk that is full, or fails ----


@pytest.mark.parametrize("limit", [{"qpid.max_count": 1500}, {"qpid.max_size": 1 << 20}])
def test_messages_that_cannot_go_to_disk_are_refused(limit: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        disk = MemoryPagingDisk()
        async with paged(disk) as (found, peer):
            await client(peer.declare, "q", durable=False, arguments={"qpid.policy_type": "flow_to_disk", **limit})
            await client(publish, peer, "q", 0, 4000)
            disk.write_error = errno.ENOSPC
            with pytest.raises(SessionEndedError, match="Maximum depth exceeded"):
                await client(publish, peer, "q", 4000, 9000)
            queue = found.broker.default_host.queues["q"]
            kept = queue.message_count
            assert 4000 <= kept < 9000
            assert queue.memory < 8 << 20
            disk.write_error = 0
            await asyncio.sleep(1.1)  # it is tried again every second
            other = await client(RawPeer, found.port)
            await client(publish, other, "q", kept, kept + 2000)
            assert await client(consumed, other, "q", kept + 2000) == list(range(kept + 2000))
            other.close()

    asyncio.run(test())
    assert caplog.text.count("cannot be paged out") == 1


def test_unreadable_paged_messages_are_skipped_and_purgeable(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        disk = MemoryPagingDisk()
        async with paged(disk) as (found, peer):
            await client(peer.declare, "q", durable=False, arguments={"qpid.paging": 1})
            await client(publish, peer, "q", 0, 5000)
            (content,) = disk.contents.values()
            content[5000] ^= 1
            await client(peer.subscribe, "q")
            deliveries = await client(peer.take_all)
            await client(peer.accept, deliveries, sync=True)
            await client(peer.sync)
            numbers = [int(delivery.body[:6]) for delivery in deliveries]
            queue = found.broker.default_host.queues["q"]
            lost = 5000 - len(numbers)
            assert 0 < lost < 200
            assert numbers == sorted(set(numbers))
            assert queue.message_count == lost
            await client(peer.call, "queue.purge", queue="q")
            await client(peer.sync)
            assert (queue.message_count, disk.contents) == (0, {})

    asyncio.run(test())
    assert "the checksum does not match" in caplog.text


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"qpid.max_pages_loaded": 3}, "qpid.max_pages_loaded is 3, but qpid.paging is not given"),
        ({"qpid.page_factor": 3, "qpid.paging": False}, "qpid.page_factor is 3, but qpid.paging is not given"),
        ({"qpid.paging": 1, "qpid.priorities": 3}, "qpid.paging and qpid.priorities cannot be given"),
        ({"qpid.paging": 1, "qpid.last_value_queue_key": "k"}, "qpid.paging and qpid.last_value_queue_key cannot"),
        (
            {"qpid.paging": 1, "qpid.group_header_key": "k", "qpid.shared_msg_group": 1},
            "qpid.paging and qpid.group_header_key cannot",
        ),
        ({"qpid.paging": 1, "qpid.page_factor": "x"}, "qpid.page_factor is 'x', not a whole number"),
        ({"qpid.paging": 1, "qpid.page_factor": 1 << 15}, "not a whole number from 0 to 16384"),
        ({"qpid.compress": "lz4"}, "qpid.compress is 'lz4', not one of none, zstd"),
        ({"qpid.compress": 1}, "qpid.compress is 1, not one of none, zstd"),
    ],
)
def test_arguments_that_are_not_valid(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        read_arguments(typed_map(arguments))


def test_arguments() -> None:
    read = read_arguments(typed_map({"qpid.paging": 1, "qpid.max_pages_loaded": 7, "qpid.page_factor": "3"}))
    assert (read.pages, read.page_bytes, read.compresses) == (7, 12_288, False)
    read = read_arguments(typed_map({"qpid.paging": True, "qpid.page_factor": 0, "qpid.compress": b"zstd"}))
    assert (read.pages, read.page_bytes, read.compresses) == (4, 4096, True)
    assert read_arguments(typed_map({"qpid.max_pages_loaded": 0})).pages == 0


def test_without_a_directory_the_log_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served() as found:
            assert found.broker.queue_factory.restore is restore_message
            peer = await client(RawPeer, found.port)
            await client(peer.declare, "paged", durable=False, arguments={"qpid.paging": 1})
            arguments = {"qpid.policy_type": "flow_to_disk", "qpid.max_count": 3}
            await client(peer.declare, "flows", durable=False, arguments=arguments)
            with pytest.raises(SessionEndedError, match="Maximum depth exceeded"):
                await client(publish, peer, "flows", 0, 5)
            peer.close()

    asyncio.run(test())
    assert caplog.text.count("its messages stay in memory, since there is no directory for them") == 2
