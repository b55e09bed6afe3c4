"""The server with real sockets: connections that are accepted, refused and closed, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import qstore.broker.network.server
import qstore.broker.network.socket_connection
from qstore.broker.model.broker import Broker
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.network.server import Server
from qstore.formats.amqp_0_10.codes import CloseCode
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.values import typed_map
from tests.broker.wired_broker import Somebody
from tests.support.compiled import replaces
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawConnection, RawPeer
from tests.support.running_broker import allow_open_files
from tests.support.served import SETTINGS, Served, client, served


def is_closed(connection: RawConnection) -> bool:
    """Whether the broker closes the socket without a word."""
    try:
        connection.receive()
    except PeerGoneError:
        return True
    return False


def read_to_the_end(peer: RawPeer) -> ConnectionClosedError | PeerGoneError:
    """How the connection ends, once all that comes before is read."""
    try:
        while True:
            peer.process()
    except (ConnectionClosedError, PeerGoneError) as ended:
        return ended


# ---- who is let in ----


async def test_no_more_connections_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qstore.broker.network.socket_connection, "_REFUSAL_SECONDS", 0.1)
    async with served(max_connections=2, negotiate_seconds=1000.0) as found:
        first, second = await client(RawPeer, found.port), await client(RawPeer, found.port)
        third = await client(RawConnection, found.port)
        with third:
            assert await client(is_closed, third)
        await client(first.sync)
        await client(second.sync)
        assert len(found.server.clients.connections) == 2
        await client(first.end)
        await found.until(lambda: len(found.server.clients.connections) == 1)
        with await client(RawPeer, found.port) as fourth:
            await client(fourth.sync)
        second.close()


@replaces
async def test_a_connection_beyond_the_limit_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(max_connections=1) as found:
        with await client(RawPeer, found.port) as first:
            with pytest.raises(ConnectionClosedError) as ended:
                await client(RawPeer, found.port)
            assert ended.value.args[0] == CloseCode.CONNECTION_FORCED
            assert "limit of connections is reached" in ended.value.args[1]
            await found.until(lambda: not found.server.clients.refused)
            monkeypatch.setattr(qstore.broker.network.socket_connection, "_MAX_REFUSED", 1)
            with await client(RawConnection, found.port), await client(RawConnection, found.port) as fourth:
                assert await client(is_closed, fourth)
                assert len(found.server.clients.refused) == 1
            await client(first.sync)


@pytest.mark.parametrize("is_on", [True, False])
async def test_small_segments_go_out_at_once_or_not(is_on: bool) -> None:
    async with served(tcp_nodelay=is_on) as found:
        with await client(RawPeer, found.port) as peer:
            transport: Any = found.connection_of(peer)._transport
            own = transport.get_extra_info("socket")
            assert bool(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is is_on


async def test_slow_reader_gets_bytes_in_order() -> None:
    """What the socket takes is sent at once; the rest, and all that follows, by the transport."""
    async with served() as found:
        with await client(RawPeer, found.port) as peer:
            await client(peer.sync)  # so that it has read what was sent before
            connection = found.connection_of(peer)
            transport: Any = connection._transport
            parts = [bytes([number]) * 400_000 for number in range(20)]
            for part in parts:
                connection.write(part)
            assert transport.get_write_buffer_size() > 0
            received = bytearray()
            while len(received) < 8_000_000:
                received += await client(peer.socket.recv, 1_000_000)
            assert received.startswith(b"".join(parts))
            await found.until(lambda: not transport.get_write_buffer_size())
            connection.write(b"more")
            assert transport.get_write_buffer_size() == 0, "sent at once"
            while not received.endswith(b"more"):
                received += await client(peer.socket.recv, 1_000_000)


@pytest.mark.parametrize("seconds", [0.05, 0.0])
async def test_expired_messages_are_purged_periodically(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    looks: list[None] = []
    monkeypatch.setattr(qstore.broker.network.server, "_TIMER_SECONDS", 0.01)
    async with served(queue_purge_seconds=seconds) as found:
        ticks: list[float] = []
        monkeypatch.setattr(found.broker, "expire", lambda: looks.append(None))
        monkeypatch.setattr(found.server.protocols, "on_timer", ticks.append)
        await found.until(lambda: len(ticks) > 20)
        if seconds:
            await found.until(lambda: len(looks) >= 2)
    assert bool(looks) is bool(seconds)


async def test_a_client_that_does_not_open_its_connection_in_time() -> None:
    async with served(negotiate_seconds=0.1) as found:
        with await client(RawPeer, found.port) as opened:
            with await client(RawConnection, found.port) as silent:
                assert await client(is_closed, silent)
            with await client(RawConnection, found.port) as half:
                await client(half.exchange_headers)
                await client(half.expect, "connection.start")
                assert await client(is_closed, half)
            await client(opened.sync)
            assert len(found.server.clients.connections) == 1


async def test_a_client_of_another_protocol_gets_our_header() -> None:
    async with served() as found:
        with await client(RawConnection, found.port) as stranger:
            assert await client(stranger.exchange_headers, b"AMQP\x02\x01\x00\x00") == PROTOCOL_HEADER
            assert await client(is_closed, stranger)
        with await client(RawConnection, found.port) as browser:
            assert await client(browser.exchange_headers, b"GET / HTTP/1.1\r\n\r\n") == PROTOCOL_HEADER
        await found.until(lambda: not found.server.clients.connections)


async def test_log_names_clients_and_why_they_left(caplog: pytest.LogCaptureFixture) -> None:
    def lines(begin: str) -> list[str]:
        return [record.getMessage().removeprefix(begin) for record in caplog.records]

    async with served(max_connections=1) as found:
        for category in ("Network", "Protocol", "Model"):
            caplog.set_level("DEBUG", category)
        with await client(RawConnection, found.port) as stranger:
            address = "{}:{}".format(*stranger.socket.getsockname())
            begin = f"Client {address}: "
            await client(stranger.exchange_headers, b"AMQP\x02\x01\x00\x00")
            assert await client(is_closed, stranger)
        await found.until(lambda: not found.server.clients.connections)
        client_kind, offered = (
            "an AMQP 1.0 client that requests TLS",
            "AMQP 0-10, AMQP 0-9-1, AMQP 1.0, AMQP 0-9, AMQP 0-8",
        )
        why = f"Refused {client_kind} from {address}: this broker supports {offered}"
        assert lines(begin) == ["connected", why, "disconnected"]
        caplog.clear()
        with await client(RawPeer, found.port) as peer:
            begin = "Client {}:{}: ".format(*peer.socket.getsockname())
            with await client(RawConnection, found.port) as other:
                refused = "Client max connection count limit exceeded: 1; {}:{} is refused"
                await found.until(lambda: len(caplog.records) == 4)
                assert refused.format(*other.socket.getsockname()) == lines(begin)[-1]
                assert lines(begin)[:2] == ["connected", "connection opened by anonymous@QPID"]
                assert lines(begin)[2].startswith('session "')
        await found.until(lambda: not found.server.clients.connections)
        caplog.clear()
        topology = found.broker.default_host.topology
        await topology.declare_exchange("e", "topic")
        await topology.declare_queue("q", caller=Somebody("me"))
        await topology.bind("q", "e", "a.#")
        await topology.unbind("q", "e", "a.#")
        await topology.delete_queue("q")
        await topology.delete_exchange("e")
        assert [text for text in lines("") if not text.startswith("Client ")] == [
            'Exchange "e" of type topic created', 'Queue "q" created by "me", transient',
            'Queue "q" bound to "e" with key "a.#"', 'Queue "q" unbound from "e" with key "a.#"',
            'Queue "q" deleted', 'Statistics of deleted queue "q": nothing was counted',
            'Exchange "e" deleted', 'Statistics of deleted exchange "e": nothing was counted',
        ]  # fmt: skip


async def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = SETTINGS.__class__(port=taken.getsockname()[1], interfaces=("127.0.0.1",), auth=False)
        server = Server(Broker(settings, None, asyncio.get_running_loop().call_soon), settings)
        with pytest.raises(OSError, match="address already in use"):
            await server.listen()
        await server.close()


def test_as_many_clients_as_may_connect_can_come_at_once() -> None:
    """A busy event loop accepts no connections: clients beyond the backlog try again seconds later."""

    async def test() -> None:
        async with served() as found:
            with contextlib.ExitStack() as opened:
                for _ in range(found.server.settings.max_connections):
                    opened.enter_context(socket.create_connection(("127.0.0.1", found.port), timeout=0.5))
                await found.until(
                    lambda: len(found.server.clients.connections) == found.server.settings.max_connections
                )

    allow_open_files(2_000)
    asyncio.run(test())


# ---- who is thrown out ----


async def stuck(found: Served, *, heartbeat: int = 0) -> RawPeer:
    """A client that is sent more than its socket takes, and does not read."""
    peer = await client(RawPeer, found.port, receive_buffer=4096)
    machine: Any = found.connection_of(peer)._machine
    machine.heartbeat = heartbeat
    await client(peer.declare, "much", durable=False)
    await client(peer.publish_all, [peer.transfer_frames("much", bytes(60_000), durable=False)] * 400)
    await client(peer.sync)
    await client(peer.subscribe, "much")
    await found.until(lambda: not machine.can_send)
    return peer


async def test_a_finished_client_that_does_not_read_is_closed() -> None:
    """Its socket cannot be closed before what waits for it is sent, which never happens."""
    async with served() as found:
        peer = await stuck(found)
        connection = found.connection_of(peer)
        connection.resume_reading(connection)  # as when what it says came before it got stuck
        await client(peer.send_bytes, bytes(12))  # no frame
        machine: Any = connection._machine
        await found.until(lambda: machine.phase.name == "CLOSED")
        assert connection in found.server.clients.connections
        connection.on_timer(time.monotonic())
        connection.on_timer(time.monotonic() + 11)
        await found.until(lambda: not found.server.clients.connections)
        peer.close()


async def test_a_client_that_has_ended_its_side_and_does_not_read_is_closed() -> None:
    """Without heartbeats, nothing else would ever end its connection."""
    async with served() as found:
        peer = await stuck(found)
        connection = found.connection_of(peer)
        connection.resume_reading(connection)  # as when it has ended before it got stuck
        peer.socket.shutdown(socket.SHUT_WR)
        transport: Any = connection._transport
        await found.until(transport.is_closing)
        connection.on_timer(time.monotonic())
        assert connection in found.server.clients.connections
        connection.on_timer(time.monotonic() + 11)
        await found.until(lambda: not found.server.clients.connections)
        peer.close()


async def test_silence_does_not_count_while_the_broker_does_not_read() -> None:
    async with served() as found:
        with await client(RawPeer, found.port) as peer:
            connection = found.connection_of(peer)
            machine: Any = connection._machine
            machine.heartbeat = 1
            reason = object()
            connection.stop_reading(reason)
            now = time.monotonic()
            for seconds in range(10):
                connection.on_timer(now + seconds)
            assert machine.phase.name == "OPEN"
            connection.resume_reading(reason)
            connection.on_timer(now + 10)
            assert machine.phase.name == "OPEN"
            connection.on_timer(now + 13)
            assert machine.phase.name == "CLOSED"
            assert "nothing received for" in str(await client(read_to_the_end, peer))


async def test_a_silent_client_that_does_not_read_counts_as_dead() -> None:
    async with served() as found:
        peer = await stuck(found, heartbeat=1)
        connection = found.connection_of(peer)
        now = time.monotonic()
        for seconds in (0, 1, 2, 3, 4):
            connection.on_timer(now + seconds)
        connection.on_timer(now + 60)
        await found.until(lambda: not found.server.clients.connections)
        peer.close()


# ---- the end ----


async def test_clients_get_a_close_when_the_broker_stops() -> None:
    async with served() as found:
        peers = [await client(RawPeer, found.port) for _ in range(3)]
        waiting = [asyncio.create_task(client(read_to_the_end, peer)) for peer in peers]
        await asyncio.sleep(0)
        await found.server.close()
        for ended in await asyncio.gather(*waiting):
            assert isinstance(ended, ConnectionClosedError)
            assert ended.args[0] == CloseCode.CONNECTION_FORCED
        assert not found.server.clients.connections
        with pytest.raises(PeerGoneError):
            await client(RawConnection, found.port)
        for peer in peers:
            peer.close()


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    """Clients that are in the middle of everything, and one that never answers."""
    before = asyncio.all_tasks()
    async with served(tmp_path) as found:
        peer, silent = await client(RawPeer, found.port), await client(RawPeer, found.port)
        await client(peer.declare, "kept")
        await client(silent.declare, "mine", durable=False, exclusive=True, auto_delete=True)
        await client(silent.subscribe, "mine")
        await client(silent.sync)
        await client(peer.send_command, "tx.select")
        await client(peer.publish, "kept", b"1")
        await client(peer.send_command, "tx.commit")
        for number in range(20):
            await client(peer.send_command, "queue.declare", queue=f"q{number}", durable=True)
        await found.server.close()
        assert asyncio.all_tasks() == before
        assert not found.server.clients.connections
        assert found.broker.tick.workers == {}
        peer.close()
        silent.close()
    async with served(tmp_path) as found:
        assert found.broker.default_host.queues["kept"].message_count == 1
        assert "mine" not in found.broker.default_host.queues


async def test_the_store_is_closed_after_the_last_client_is_gone(tmp_path: Path) -> None:
    """One that does not read is thrown out before: what its session held is given back in time, and nothing is done
    to a store that is closed."""
    async with served(tmp_path) as found:
        peer = await stuck(found)
        await found.server.close()
        assert not found.server.clients.connections
        assert found.broker.default_host.queues["much"].acquired_count == 0
        connections: Any = found.server.protocols.find(PROTOCOL_HEADER)
        assert len(connections.sessions) == 0
        peer.close()


async def test_many_queues_that_expire_together_are_deleted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as found:
        host, loop = found.broker.default_host, asyncio.get_running_loop()
        for number in range(5 * DELETED_AT_ONCE):
            await host.topology.declare_queue(f"q{number}", arguments=typed_map({"x-expires": 60_000}))
        begun: list[int] = [0]
        run = found.server.work.run

        def counting(*arguments: Any) -> None:
            begun[-1] += 1
            run(*arguments)

        def next_turn() -> None:
            begun.append(0)
            if host.queues:
                loop.call_soon(next_turn)

        monkeypatch.setattr(found.server.work, "run", counting)
        now = host.idle_queues._monotonic()
        monkeypatch.setattr(host.idle_queues, "_monotonic", lambda: now + 120.0)
        loop.call_soon(next_turn)
        await found.until(lambda: not host.queues)
        assert sum(begun) == 5 * DELETED_AT_ONCE
        assert max(begun) <= DELETED_AT_ONCE


@replaces
async def test_a_connection_that_does_not_end_does_not_hold_up_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged and given up: what its session held is released, and the store is closed."""
    monkeypatch.setattr("qstore.broker.network.server._CLOSE_SECONDS", 0.1)
    monkeypatch.setattr("qstore.broker.network.server._ABORT_SECONDS", 0.1)
    async with served(tmp_path) as found:
        peer = await stuck(found)
        connection = found.connection_of(peer)
        transport: Any = connection._transport
        connection._transport = Mock(wraps=transport, abort=Mock(), close=Mock())
        address = connection.address
        async with asyncio.timeout(20):
            await found.server.close()
        assert f"Client {address}: the connection has not ended: it is given up" in caplog.messages
        assert not found.server.clients.connections
        assert found.broker.default_host.queues["much"].acquired_count == 0
        transport.abort()
        peer.close()
