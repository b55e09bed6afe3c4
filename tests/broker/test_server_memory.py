"""Short memory, with real sockets: publishers wait, consumers go on, and excess is refused."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.broker.model.memory import State
from qstore.broker.network import clients as clients_module
from qstore.broker.network import server as server_module
from qstore.broker.protocols.amqp_0_10.publishing import TransferReader
from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode
from tests.support.compiled import replaces
from tests.support.raw_peer import ConnectionClosedError, RawPeer, SessionEndedError
from tests.support.served import Served, client, served

LIMIT: Final = 8 << 20  # between short and full there is room for several reads
BODY: Final = 60_000
READ: Final = 1 << 18  # bytes of one read of a socket, at most
MANY: Final = 3 * LIMIT // BODY


def frames_of(peer: RawPeer, name: str, count: int = MANY) -> list[bytes]:
    bodies = [number.to_bytes(4, "big") * (BODY // 4) for number in range(count)]
    return [peer.transfer_frames(name, body, durable=False) for body in bodies]


async def with_queue(found: Served, name: str) -> RawPeer:
    peer = await client(RawPeer, found.port)
    await client(peer.declare, name, durable=False)
    await client(peer.sync)
    return peer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher is read again at each tick, and there are many."""
    monkeypatch.setattr(clients_module, "_PUBLISHER_HOLD", 0.0)
    monkeypatch.setattr(server_module, "_TIMER_SECONDS", 0.002)


@replaces
async def test_publishers_are_stopped_and_go_on_when_there_is_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "_PUBLISHER_HOLD", 3600.0)  # not even for one read meanwhile
    async with served(memory_bytes=LIMIT) as found:
        peer = await with_queue(found, "q")
        sending = asyncio.create_task(client(peer.publish_all, frames_of(peer, "q")))
        connection = found.connection_of(peer)
        await found.until(lambda: connection in found.server.clients.held_publishers)
        assert found.broker.memory.state is State.SHORT
        consumer = await client(RawPeer, found.port)  # while memory is short
        await client(consumer.subscribe, "q", accept_mode=1)
        deliveries = await client(consumer.take, MANY)
        await sending
        await client(peer.sync)
        assert [int.from_bytes(each.body[:4], "big") for each in deliveries] == list(range(MANY))
        await found.until(lambda: not found.server.clients.held_publishers)
        for each in (peer, consumer):
            each.close()


@pytest.mark.usefixtures("quick")
async def test_without_consumers_publishers_are_refused_in_the_end() -> None:
    async with served(memory_bytes=LIMIT) as found:
        peer, other = await with_queue(found, "q"), await with_queue(found, "other")
        with pytest.raises(SessionEndedError) as refusal:
            await client(lambda: (peer.publish_all(frames_of(peer, "q")), peer.sync()))
        assert refusal.value.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
        held = found.broker.held_memory()
        assert LIMIT <= held < LIMIT + READ + 2 * BODY
        await client(other.sync)  # all but publishing goes on
        count = found.broker.default_host.queues["q"].message_count
        await client(other.subscribe, "q", accept_mode=1)
        assert len(await client(other.take, count)) == count > 0
        await found.until(lambda: found.broker.memory.state is State.AMPLE)
        await client(other.publish, "other", b"again", durable=False)
        await client(other.sync)
        for each in (peer, other):
            each.close()


@pytest.mark.usefixtures("quick")
async def test_messages_that_leave_memory_are_taken_though_it_is_full(tmp_path: Path) -> None:
    """Those of plain durable queues: their journals have them. All others are refused."""
    async with served(tmp_path, memory_bytes=LIMIT) as found:
        filler = await with_queue(found, "q")
        await client(filler.declare, "plain")
        await client(filler.declare, "levels", arguments={"qpid.priorities": 3})
        for queue in ("plain", "q"):
            await client(filler.call, "exchange.bind", queue=queue, exchange="amq.direct", binding_key="both")
        with pytest.raises(SessionEndedError):
            await client(lambda: (filler.publish_all(frames_of(filler, "q")), filler.sync()))
        filler.close()
        bodies = [number.to_bytes(4, "big") * (BODY // 4) for number in range(MANY)]
        with await client(RawPeer, found.port) as peer:
            frames = [peer.transfer_frames("plain", body) for body in bodies]
            await client(lambda: (peer.publish_all(frames), peer.sync()))
            assert found.broker.memory.state is State.FULL
            assert found.broker.held_memory() < LIMIT + LIMIT // 4 + READ + 2 * BODY
            await client(peer.subscribe, "plain", accept_mode=1)
            assert [each.body for each in await client(peer.take, MANY)] == bodies
        for queue, options in (
            ("plain", {"durable": False}),
            ("levels", {}),
            ("both", {"exchange": "amq.direct"}),
            ("in a transaction", {}),
        ):
            with await client(RawPeer, found.port) as peer:
                if queue == "in a transaction":
                    queue = "plain"
                    await client(peer.call, "tx.select")
                peer.publish(queue, b"m", **options)
                with pytest.raises(SessionEndedError, match="the broker's memory is full"):
                    await client(peer.sync)


@pytest.mark.usefixtures("quick")
async def test_a_connection_that_publishes_and_consumes_gets_on() -> None:
    """What it has accepted is read, though it is a publisher: else nothing would ever make room."""
    async with served(memory_bytes=LIMIT) as found:
        peer = await with_queue(found, "q")
        frames = frames_of(peer, "q", int(LIMIT * 0.93) // BODY)
        await client(lambda: (peer.publish_all(frames), peer.sync()))
        assert found.broker.memory.state is State.SHORT
        await client(peer.subscribe, "q")
        for _ in frames:
            (delivery,) = await client(peer.take, 1)
            await client(peer.accept, [delivery])
            await client(peer.publish, "q", b"small", durable=False)
        await client(peer.sync)
        await found.until(lambda: found.broker.memory.state is State.AMPLE)
        peer.close()


@replaces
def test_an_allocation_that_fails_closes_that_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = TransferReader.read

    def fail(self: TransferReader, header: bytes, body: Any, *others: Any) -> Any:
        if body == b"large":
            raise MemoryError
        return read(self, header, body, *others)

    monkeypatch.setattr(TransferReader, "read", fail)
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        async with served(memory_bytes=LIMIT) as found:
            peer, other = await with_queue(found, "q"), await with_queue(found, "other")
            with pytest.raises(ConnectionClosedError) as refusal:
                await client(lambda: (peer.publish("q", b"large", durable=False), peer.sync()))
            assert refusal.value.args[0] == CloseCode.CONNECTION_FORCED
            await found.until(lambda: found.broker.memory.state is State.AMPLE)
            await client(other.publish, "other", b"small", durable=False)
            await client(other.sync)
            assert found.broker.default_host.queues["other"].message_count == 1
            for each in (peer, other):
                each.close()

    asyncio.run(test())
    lines = [record for record in caplog.records if record.levelno >= logging.CRITICAL]
    assert len(lines) == 1
    assert "out of memory" in lines[0].getMessage()
    assert lines[0].exc_info is None


async def test_freed_memory_is_looked_for_again_and_again(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    looks: list[None] = []
    monkeypatch.setattr(server_module.Heap, "look", lambda _heap: looks.append(None))
    async with served() as found:
        await found.until(lambda: len(looks) >= 3)


async def test_an_event_loop_that_runs_out_of_memory_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions and who knows of them are uncertain then: nothing is trusted, and nothing goes on."""
    async with served(memory_bytes=LIMIT) as found:
        failures: list[str] = []
        found.server.failed = failures.append
        peer = await with_queue(found, "q")

        def fail() -> None:
            monkeypatch.undo()
            raise MemoryError

        monkeypatch.setattr(found.broker.tick, "_dispatch", fail)
        await client(peer.publish, "q", b"message", durable=False)
        await found.until(lambda: bool(failures))
        assert failures == ["The event loop ran out of memory"]
        peer.close()
