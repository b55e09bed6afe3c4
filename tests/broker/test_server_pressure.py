"""The server with real sockets: clients that do not read, commands that take time, and disks that are slow or fail.

Whoever is too fast is stopped; the others go on, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from broker import server as server_module
from broker.protocols.amqp_0_10.server_connection import ROOM
from broker.server import SocketConnection
from formats.amqp_0_10.codes import ErrorCode
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.served import Served, client, served

MANY: Final = 400
BODY: Final = 60_000
READ: Final = 1 << 20  # what the broker may have taken from a socket, and be stopped only then


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def unsent(connection: SocketConnection) -> int:
    transport: Any = connection._transport
    return int(transport.get_write_buffer_size())


def send_until_full(peer: RawPeer, frames: list[bytes]) -> int:
    """Send until the socket takes no more, for a while; how many of the frames went out whole or in part.

    What is left of the last frame is `peer.left_over`.
    """
    peer.socket.settimeout(0.3)
    for number, frame in enumerate(frames):
        at = 0
        while at < len(frame):
            try:
                at += peer.socket.send(frame[at:])
            except TimeoutError:
                peer.socket.settimeout(30)
                peer.sent += number + 1
                peer.left_over = frame[at:]  # type: ignore[attr-defined]
                return number + 1
    raise AssertionError("the broker takes all there is")


async def works(found: Served, peer: RawPeer, name: str = "other") -> None:
    """Another client is served: it publishes, and gets what it has published."""
    await client(peer.publish, name, b"hello", durable=False)
    (delivery,) = await client(peer.take, 1)
    assert delivery.body == b"hello"
    await client(peer.accept, [delivery])
    await client(peer.sync)


async def other(found: Served) -> RawPeer:
    peer = await client(RawPeer, found.port)
    await client(peer.declare, "other", durable=False)
    await client(peer.subscribe, "other")
    await client(peer.sync)
    return peer


# ---- clients that do not read ----


def test_a_client_that_does_not_read_costs_little_and_stops_nobody() -> None:
    async def test() -> None:
        async with served() as found:
            helper = await other(found)
            await client(helper.declare, "much", durable=False)
            bodies = [number.to_bytes(4, "big") * (BODY // 4) for number in range(MANY)]
            frames = [helper.transfer_frames("much", body, durable=False) for body in bodies]
            await client(helper.publish_all, frames)
            await client(helper.sync)
            slow = await client(RawPeer, found.port, receive_buffer=4096)
            await client(slow.subscribe, "much", accept_mode=1)
            connection = found.connection_of(slow)
            machine: Any = connection._machine
            await found.until(lambda: not machine.can_send)
            most = 0
            for _ in range(20):
                await works(found, helper)
                most = max(most, unsent(connection))
            assert 0 < most <= server_module._HIGH_WATER + ROOM + 2 * BODY
            left = found.broker.queues["much"].message_count
            assert left > MANY // 2
            transport: Any = connection._transport
            assert not transport.is_reading()
            deliveries = await client(slow.take, MANY)
            assert [delivery.body for delivery in deliveries] == bodies
            await client(slow.sync)
            assert found.broker.queues["much"].is_empty
            for peer in (slow, helper):
                peer.close()

    run(test())


def test_one_that_asks_for_much_and_does_not_read_is_not_read() -> None:
    """Not only messages: results of commands fill the socket, too."""

    async def test() -> None:
        async with served() as found:
            helper = await other(found)
            slow = await client(RawPeer, found.port, receive_buffer=4096)
            queries = b"".join(slow.command_frames("queue.query", queue="other") for _ in range(200))
            connection = found.connection_of(slow)
            await client(send_until_full, slow, [queries] * 2000)
            most = 0
            for _ in range(10):
                await works(found, helper)
                most = max(most, unsent(connection))
            assert 0 < most <= server_module._HIGH_WATER + 16 * READ
            for peer in (slow, helper):
                peer.close()

    run(test())


# ---- commands that take time ----


def test_a_connection_waits_for_its_declaration_and_the_others_do_not() -> None:
    async def test() -> None:
        async with served() as found:
            helper, peer = await other(found), await client(RawPeer, found.port)
            go_on = asyncio.Event()
            before = asyncio.create_task(found.broker.wiring._changes.do(go_on.wait))
            declaration = peer.command_frames("queue.declare", queue="new")
            bodies = [number.to_bytes(4, "big") * (BODY // 4) for number in range(MANY)]
            frames = [peer.transfer_frames("new", body, durable=False) for body in bodies]
            await client(peer.send_bytes, declaration)
            peer.sent += 1
            begun = await client(send_until_full, peer, frames)
            connection = found.connection_of(peer)
            machine: Any = connection._machine
            assert machine.is_paused
            assert len(machine._assembler._rest) <= READ
            for _ in range(5):
                await works(found, helper)
            assert "new" not in found.broker.queues
            go_on.set()
            await before
            left: Any = peer
            await client(peer.send_bytes, left.left_over)
            await client(peer.publish_all, frames[begun:])
            await client(peer.sync)
            queue = found.broker.queues["new"]
            assert [entry.message.body for entry in queue.entries()] == bodies
            for each in (peer, helper):
                each.close()

    run(test())


def test_a_client_that_goes_while_its_declaration_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as found:
            helper, peer = await other(found), await client(RawPeer, found.port)
            go_on = asyncio.Event()
            before = asyncio.create_task(found.broker.wiring._changes.do(go_on.wait))
            await client(peer.send_command, "queue.declare", queue="kept", durable=True)
            await client(peer.send_command, "queue.declare", queue="mine", exclusive=True, auto_delete=True)
            machine: Any = found.connection_of(peer)._machine
            await found.until(lambda: machine.is_paused)
            peer.close()
            await found.until(lambda: len(found.server.connections) == 1 or True)
            go_on.set()
            await before
            await found.until(lambda: "kept" in found.broker.queues and len(found.server.connections) == 1)
            await found.until(lambda: not found.server._tasks)
            assert "mine" not in found.broker.queues
            await works(found, helper)
            helper.close()

    run(test())


# ---- the disk ----


@pytest.mark.parametrize("publishers", [1, 3])
def test_publishers_are_stopped_while_the_disk_is_slow(tmp_path: Path, publishers: int) -> None:
    async def test() -> None:
        async with served(tmp_path) as found:
            helper = await other(found)
            peers = [await client(RawPeer, found.port) for _ in range(publishers)]
            await client(helper.declare, "q")
            queue = found.broker.queues["q"]
            bodies = [number.to_bytes(4, "big") * (10_000 // 4) for number in range(2000)]
            frames = [helper.transfer_frames("q", body) for body in bodies]
            found.driver.is_held = True
            begun = await asyncio.gather(*(client(send_until_full, peer, frames) for peer in peers))
            assert queue.journal.unsynced <= queue.journal.bound
            connections = [found.connection_of(peer) for peer in peers]
            for connection in connections:  # and that they are not heard is not held against them
                machine: Any = connection._machine
                machine.heartbeat = 1
                for seconds in range(0, 30, 3):
                    connection.tick(time.monotonic() + seconds)
                assert connection in found.server.connections
                machine.heartbeat = 0
            for peer in peers:
                assert peer.completed.below <= 0
            for _ in range(5):
                await works(found, helper)  # transient messages, meanwhile
            at_most = [count for count in begun]
            found.driver.let_go()
            for peer, count in zip(peers, at_most, strict=True):
                stopped: Any = peer
                await client(peer.send_bytes, stopped.left_over)
                await client(peer.sync)
                assert peer.completed.below == peer.sent == count + 1
            assert queue.message_count == sum(begun)
            assert found.broker.turn.flushes_under_way == 0
            for peer in (*peers, helper):
                peer.close()

    run(test())


def test_nothing_is_promised_or_delivered_before_it_is_on_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as found:
            helper, peer = await other(found), await client(RawPeer, found.port)
            await client(helper.declare, "q")
            await client(helper.subscribe, "q", "durable")
            await client(helper.sync)
            found.driver.is_held = True
            first = await client(peer.publish, "q", b"1")
            sync = await client(peer.send_command, "execution.sync")
            await found.until(lambda: found.broker.queues["q"].message_count == 1)
            for _ in range(3):
                await works(found, helper)
            assert not await client(peer.process, 0.05)
            assert not helper.deliveries
            found.driver.let_go()
            await client(peer.wait_for, sync)
            assert first in peer.completed
            (delivery,) = await client(helper.take, 1)
            assert (delivery.body, delivery.destination) == (b"1", "durable")
            found.driver.is_held = True
            accept = await client(helper.accept, [delivery])
            await found.until(lambda: found.broker.queues["q"].is_empty)
            assert not await client(helper.process, 0.05)
            found.driver.let_go()
            await client(helper.wait_for, accept)
            for each in (peer, helper):
                each.close()

    run(test())


def test_a_disk_that_fails_ends_the_sessions_that_wait_for_it_and_no_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as found:
            helper, peer = await other(found), await client(RawPeer, found.port)
            await client(peer.declare, "bad")
            await client(peer.declare, "good")
            await client(helper.subscribe, "bad", "bad")
            await client(helper.subscribe, "good", "good")
            await client(helper.sync)
            found.driver.failing.append(f"/{found.broker.queues['bad'].journal.queue_id:04x}".rstrip())
            name = found.broker.queues["bad"].journal.directory
            found.driver.failing[:] = [str(getattr(name, "path", name))]
            both = [peer.transfer_frames("good", b"1"), peer.transfer_frames("bad", b"2")]
            await client(peer.publish_all, both)

            def ended() -> SessionEndedError:
                with pytest.raises(SessionEndedError) as caught:
                    while True:
                        peer.process()
                return caught.value

            assert (await client(ended)).code == ErrorCode.INTERNAL_ERROR
            assert peer.sent - 1 not in peer.completed
            (delivery,) = await client(helper.take, 1)
            assert delivery.body == b"1"
            await works(found, helper)
            again = await client(RawPeer, found.port)
            await client(again.publish, "bad", b"3")
            await client(again.publish, "good", b"4")
            with pytest.raises(SessionEndedError, match="bad"):
                await client(again.sync)
            for each in (peer, helper, again):
                each.close()

    run(test())
