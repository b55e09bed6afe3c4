"""The server with real sockets: clients that do not read, commands that take time, and disks that are slow or fail.

Clients that outpace the broker are throttled; others go on, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from qstore.broker.network import server, socket_connection
from qstore.broker.network.socket_connection import SocketConnection
from qstore.broker.protocols.output import ROOM
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.store.disk import OsWritableDisk
from tests.support.basic_peer import BasicPeer
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.served import Served, client, served

MANY: Final = 400
BODY: Final = 60_000
READ: Final = 1 << 20  # what the broker may have taken from a socket, and be stopped only then


def unsent(connection: SocketConnection) -> int:
    transport: Any = connection._transport
    return int(transport.get_write_buffer_size())


class Sender:
    """A client that sends on and on, in its own thread.

    Attributes:
        begun: how many frames went out, whole or in part.
        left: what is left of the last one.
    """

    def __init__(self, peer: RawPeer, frames: list[bytes]) -> None:
        self.peer, self.frames = peer, frames
        self.begun, self.left = 0, b""
        self._must_end = threading.Event()
        self._task = asyncio.create_task(client(self._send))

    def _send(self) -> None:
        self.peer.socket.settimeout(0.1)
        for frame in self.frames:
            self.begun += 1
            self.left = frame
            while self.left:
                try:
                    self.left = self.left[self.peer.socket.send(self.left) :]
                except TimeoutError:
                    if self._must_end.is_set():
                        self.peer.socket.settimeout(PATIENCE_SECONDS)
                        return
        raise AssertionError("the broker takes all there is")

    async def stop(self) -> None:
        """Send no more, once the socket takes no more."""
        self._must_end.set()
        await self._task
        self.peer.sent += self.begun

    async def finish(self) -> None:
        """Send the rest of the last frame, and wait until the broker has done all."""
        await client(self.peer.send_bytes, self.left)
        await client(self.peer.sync)


def is_read(connection: SocketConnection) -> bool:
    transport: Any = connection._transport
    return bool(transport.is_reading())


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


async def test_client_that_does_not_read_costs_little() -> None:
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
        assert 0 < most <= socket_connection._HIGH_WATER + ROOM + 2 * BODY
        left = found.broker.default_host.queues["much"].message_count
        assert left > MANY // 2
        assert not is_read(connection)
        deliveries = await client(slow.take, MANY)
        assert [delivery.body for delivery in deliveries] == bodies
        await client(slow.sync)
        assert found.broker.default_host.queues["much"].is_empty
        for peer in (slow, helper):
            peer.close()


async def test_input_of_a_client_that_does_not_read_waits() -> None:
    """Not only messages: results of commands fill the socket, too."""
    async with served() as found:
        helper = await other(found)
        slow = await client(RawPeer, found.port, receive_buffer=4096)
        queries = b"".join(slow.command_frames("queue.query", queue="other") for _ in range(200))
        connection = found.connection_of(slow)
        sender = Sender(slow, [queries] * 2000)
        machine: Any = connection._machine
        await found.until(lambda: not machine.can_send)
        most = 0
        for _ in range(10):
            await works(found, helper)
            most = max(most, unsent(connection))
        assert 0 < most <= socket_connection._HIGH_WATER + 4 * READ
        await sender.stop()
        for peer in (slow, helper):
            peer.close()


# ---- commands that take time ----


async def test_a_connection_waits_for_its_declaration_and_the_others_do_not() -> None:
    async with served() as found:
        helper, peer = await other(found), await client(RawPeer, found.port)
        go_on = asyncio.Event()
        before = asyncio.create_task(found.broker.default_host.topology.changes.do(go_on.wait))
        declaration = peer.command_frames("queue.declare", queue="new")
        bodies = [number.to_bytes(4, "big") * (BODY // 4) for number in range(MANY)]
        frames = [peer.transfer_frames("new", body, durable=False) for body in bodies]
        await client(peer.send_bytes, declaration)
        peer.sent += 1
        sender = Sender(peer, frames)
        connection = found.connection_of(peer)
        machine: Any = connection._machine
        await found.until(lambda: machine.is_paused and not is_read(connection))
        for _ in range(5):
            await works(found, helper)
        await sender.stop()
        assert len(machine._assembler._rest) <= READ
        assert "new" not in found.broker.default_host.queues
        go_on.set()
        await before
        await sender.finish()
        await client(peer.publish_all, frames[sender.begun :])
        await client(peer.sync)
        queue = found.broker.default_host.queues["new"]
        assert [entry.message.body for entry in queue.entries()] == bodies
        for each in (peer, helper):
            each.close()


async def test_a_client_that_goes_while_its_declaration_runs(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        helper, peer = await other(found), await client(RawPeer, found.port)
        go_on = asyncio.Event()
        before = asyncio.create_task(found.broker.default_host.topology.changes.do(go_on.wait))
        await client(peer.send_command, "queue.declare", queue="kept", durable=True)
        await client(peer.send_command, "queue.declare", queue="mine", exclusive=True, auto_delete=True)
        machine: Any = found.connection_of(peer)._machine
        await found.until(lambda: machine.is_paused)
        peer.close()
        await client(helper.sync)
        go_on.set()
        await before
        await found.until(
            lambda: "kept" in found.broker.default_host.queues and len(found.server.clients.connections) == 1
        )
        await found.until(lambda: not found.server.work.is_under_way)
        assert "mine" not in found.broker.default_host.queues
        await works(found, helper)
        helper.close()


# ---- the disk ----


@pytest.mark.parametrize("publishers", [1, 8])
async def test_publishers_are_stopped_while_the_disk_is_slow(tmp_path: Path, publishers: int) -> None:
    async with served(tmp_path) as found:
        helper = await other(found)
        peers = [await client(RawPeer, found.port) for _ in range(publishers)]
        await client(helper.declare, "q", arguments={"qpid.file_count": 32, "qpid.file_size": 64})
        queue = found.broker.default_host.queues["q"]
        bodies = [number.to_bytes(4, "big") * (10_000 // 4) for number in range(3000)]
        frames = [helper.transfer_frames("q", body) for body in bodies]
        found.driver.is_held = True
        senders = [Sender(peer, frames) for peer in peers]
        connections = [found.connection_of(peer) for peer in peers]
        await found.until(lambda: not any(is_read(connection) for connection in connections))
        for _ in range(5):
            await works(found, helper)  # transient messages, meanwhile
        for sender in senders:
            await sender.stop()
        assert queue.journal.bound // 2 < queue.journal.unsynced <= queue.journal.bound
        for connection in connections:  # and that they are not heard is not held against them
            machine: Any = connection._machine
            machine.heartbeat = 1
            for seconds in range(0, 30, 3):
                connection.on_timer(time.monotonic() + seconds)
            assert connection in found.server.clients.connections
            machine.heartbeat = 0
        for peer in peers:
            assert peer.completed.below <= 0
        found.driver.let_go()
        for sender in senders:
            await sender.finish()
            assert sender.peer.completed.below == sender.peer.sent == sender.begun + 1
        assert queue.message_count == sum(sender.begun for sender in senders)
        assert found.broker.tick.flushes_under_way == 0
        for peer in (*peers, helper):
            peer.close()


async def test_input_is_read_while_a_flush_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on when a half of the bound is free again, not only when everything is synced."""
    async with served(tmp_path) as found:
        peer = await client(RawPeer, found.port)
        await client(peer.declare, "q", arguments={"qpid.file_count": 32, "qpid.file_size": 64})
        journal, pressure = found.broker.default_host.queues["q"].journal, found.server.clients.pressure
        connection, resume = found.connection_of(peer), pressure._resume
        unsynced: list[int] = []  # each time that reading goes on

        def resumes(resumed: Any) -> None:
            unsynced.append(resumed.unsynced)
            resume(resumed)

        monkeypatch.setattr(pressure, "_resume", resumes)
        found.driver.is_held = True
        sender = Sender(peer, [peer.transfer_frames("q", bytes(10_000))] * 3000)

        def has_gone_on() -> bool:
            if not is_read(connection):
                found.driver.do_step()
            return len(unsynced) > 3 and any(unsynced)

        await found.until(has_gone_on)
        assert max(unsynced) <= journal.bound // 2
        await sender.stop()
        found.driver.let_go()
        await sender.finish()
        assert peer.completed.below == peer.sent
        peer.close()


async def test_nothing_is_promised_or_delivered_before_it_is_on_the_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        helper, peer = await other(found), await client(RawPeer, found.port)
        await client(helper.declare, "q")
        await client(helper.subscribe, "q", "durable")
        await client(helper.sync)
        found.driver.is_held = True
        first = await client(peer.publish, "q", b"1")
        sync = await client(peer.send_command, "execution.sync")
        await found.until(lambda: found.broker.default_host.queues["q"].message_count == 1)
        for _ in range(3):
            await works(found, helper)
        while await client(peer.process, 0.05):
            assert first not in peer.completed
        assert not helper.deliveries
        found.driver.let_go()
        await client(peer.wait_for, sync)
        assert first in peer.completed
        (delivery,) = await client(helper.take, 1)
        assert (delivery.body, delivery.destination) == (b"1", "durable")
        found.driver.is_held = True
        accept = await client(helper.accept, [delivery])
        await found.until(lambda: found.broker.default_host.queues["q"].is_empty)
        while await client(helper.process, 0.05):
            assert accept not in helper.completed
        found.driver.let_go()
        await client(helper.wait_for, accept)
        for each in (peer, helper):
            each.close()


async def test_a_failing_disk_ends_the_sessions_that_wait_for_it_and_no_others(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        helper, peer = await other(found), await client(RawPeer, found.port)
        await client(peer.declare, "bad")
        await client(peer.declare, "good")
        await client(helper.subscribe, "bad", "bad")
        await client(helper.subscribe, "good", "good")
        await client(helper.sync)
        found.driver.failing.append(found.broker.default_host.queues["bad"].journal.directory)
        both = [peer.transfer_frames("good", b"1"), peer.transfer_frames("bad", b"2")]
        await client(peer.publish_all, both)
        with pytest.raises(SessionEndedError) as caught:
            await client(peer.sync)
        assert caught.value.code == ErrorCode.INTERNAL_ERROR
        assert 3 not in peer.completed  # the second of them
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


async def test_publishers_are_slowed_down_while_a_journal_cannot_grow(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        publisher, consumer = await other(found), await client(RawPeer, found.port)
        await client(publisher.declare, "q")
        journal = found.broker.default_host.queues["q"].journal
        journal.is_tight, journal.low_room, journal.runs_low = True, 1 << 40, lambda _: None
        connection = found.connection_of(publisher)
        await client(publisher.publish, "q", b"first")
        await found.until(lambda: not is_read(connection))
        await client(consumer.subscribe, "q")
        (first,) = await client(consumer.take, 1)
        await client(consumer.accept, [first], sync=True)
        assert is_read(found.connection_of(consumer))
        await client(publisher.sync)  # it is read again after a while
        await client(publisher.publish, "q", b"second")
        await found.until(lambda: not is_read(connection))
        journal.is_tight = False
        await client(publisher.sync)
        await client(publisher.publish, "q", b"third")
        await client(publisher.sync)
        assert is_read(connection)
        assert found.server.clients.pressure._tight == {}
        for peer in (publisher, consumer):
            peer.close()


async def test_messages_that_are_gathered_for_a_tight_journal_are_those_of_their_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TIMER_SECONDS", 60)  # who is held back stays so
    async with served(tmp_path) as found:
        for name in ("q", "r"):
            await found.broker.default_host.topology.declare_queue(name, durable=True)
        queue = found.broker.default_host.queues["q"]
        publisher, consumer = await client(BasicPeer, found.port), await client(BasicPeer, found.port)
        await client(publisher.call, "confirm.select")
        ends = [found.connection_of(peer) for peer in (publisher, consumer)]
        burst = b"".join(publisher.message(name) for _ in range(30) for name in ("q", "r"))
        journal = queue.journal
        for number in range(1, 4):
            await client(publisher.socket.sendall, burst)
            await found.until(lambda count=number * 30: queue.message_count == count)  # type: ignore[misc]
            await found.until(lambda: is_read(ends[0]))
        journal.is_tight, journal.low_room, journal.runs_low = True, 1 << 40, lambda _: None
        await client(publisher.socket.sendall, burst)
        await found.until(lambda: queue.message_count == 120)
        assert not is_read(ends[0])
        await client(consumer.call, "basic.get", queue="q", no_ack=True)
        assert is_read(ends[1])
        for peer in (publisher, consumer):
            peer.socket.close()


def test_a_full_disk_refuses_with_the_reason_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without limits of its own, on a disk without room for more files: first slow, then refused in words."""
    monkeypatch.setattr(OsWritableDisk, "space", lambda _self, _path: (4 << 20, 100 << 20))
    monkeypatch.setattr(server, "_TIMER_SECONDS", 0.02)  # slow, but not for so long
    confirmed = 0

    def publish(port: int) -> SessionEndedError:
        nonlocal confirmed
        peer = RawPeer(port)
        peer.declare("q")
        try:
            for number in range(100):
                peer.publish("q", b"%06d" % number + bytes(150_000))
                peer.sync()
                confirmed = number + 1
        except SessionEndedError as ended:
            return ended
        finally:
            peer.close()
        raise AssertionError("nothing is refused")

    async def fill() -> None:
        async with served(tmp_path) as found:
            ended = await client(publish, found.port)
            assert ended.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
            assert (
                'Enqueue capacity threshold exceeded on queue "q". Consume messages: its journal cannot grow'
                in ended.text
            )
            assert "the disk has 4 MiB free, and keeps 5 % of 100 MiB free" in ended.text
            assert found.broker.default_host.queues["q"].message_count == confirmed

    async def drain() -> None:
        async with served(tmp_path) as found:
            peer = await client(RawPeer, found.port)
            await client(peer.subscribe, "q")
            deliveries = await client(peer.take, confirmed)
            assert [int(each.body[:6]) for each in deliveries] == list(range(confirmed))
            await client(peer.accept, deliveries, sync=True)
            await client(peer.publish, "q", b"again")  # there is room
            await client(peer.sync)
            peer.close()

    asyncio.run(fill())
    assert confirmed >= 8  # 80 % of 4 files of 512 KiB
    asyncio.run(drain())


async def test_clients_of_amqp_0_9_1_are_blocked_while_the_disk_is_short(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        await found.broker.default_host.topology.declare_queue("q", durable=True)
        journal = found.broker.default_host.queues["q"].journal
        journal.is_tight, journal.low_room, journal.runs_low = True, 1 << 40, lambda _: None
        reported: list[str] = []

        def publish() -> None:
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", found.port)) as connection:
                connection.add_on_connection_blocked_callback(lambda _, frame: reported.append(frame.method.reason))
                connection.add_on_connection_unblocked_callback(lambda _, _frame: reported.append("unblocked"))
                channel = connection.channel()
                channel.confirm_delivery()
                for _ in range(3):
                    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
                    connection.process_data_events(0.1)
                journal.is_tight = False
                for _ in range(300):
                    if reported[-1:] != ["unblocked"]:
                        connection.process_data_events(0.1)

        await client(publish)
        reason, end = reported
        assert reason.startswith("The disk of the broker is nearly full (--disk-free-limit)")
        assert end == "unblocked"
        await found.until(lambda: not found.server.clients.connections)
        assert found.server.clients.pressure._notified == {}
