"""Allocations that fail in the server and in the event loop: the work is done later, or undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from qstore.broker.model.tick import Tick
from qstore.broker.network import clients as clients_module
from qstore.broker.network import server as server_module
from qstore.broker.network.listeners import Listeners
from qstore.broker.security.authentication import LoginAttempt
from tests.support.compiled import replaces
from tests.support.raw_peer import PeerGoneError, RawConnection, RawPeer
from tests.support.served import Served, client, served


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


class FailsOnce:
    """A function, or method, whose first call gets no memory."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.has_failed = False

    def __call__(self, *arguments: Any) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise MemoryError
        return self._function(*arguments)

    def __get__(self, instance: object, _owner: type | None = None) -> Callable[..., Any]:
        return lambda *arguments: self(instance, *arguments)


class Stingy:
    """An event loop that has no memory for the first call of one of its methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self.method = FailsOnce(getattr(loop, name))
        setattr(self, name, self.method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "_PUBLISHER_HOLD", 0.0)
    monkeypatch.setattr(server_module, "_TIMER_SECONDS", 0.002)


def report(found: Served) -> None:
    """Report failures of the event loop to the server, as a broker does."""
    asyncio.get_running_loop().set_exception_handler(found.server._log_defect)


async def check_served(found: Served) -> None:
    with await client(RawPeer, found.port) as peer:
        await client(peer.declare, "q", durable=False)
        await found.until(lambda: not found.broker.memory.is_exhausted)
        await client(peer.publish, "q", b"message", durable=False)
        await client(peer.sync)


def check_refused(connecting: FailsOnce) -> None:
    """A client whose connection cannot be made is disconnected, and the next one is served."""

    async def test() -> None:
        async with served() as found:
            with pytest.raises(PeerGoneError):
                await client(RawPeer, found.port)
            assert connecting.has_failed
            await check_served(found)

    run(test())


def test_a_connection_without_memory_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = FailsOnce(server_module.SocketConnection)
    monkeypatch.setattr(server_module, "SocketConnection", connect)
    check_refused(connect)


def test_a_client_that_has_not_logged_in_is_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with connection.close, which might come before all that it expects first."""
    start = FailsOnce(LoginAttempt.start)
    monkeypatch.setattr(LoginAttempt, "start", start)
    check_refused(start)


@pytest.fixture
def accept(monkeypatch: pytest.MonkeyPatch) -> FailsOnce:
    """What makes a connection: if it fails, uvloop does not accept the client, and no other one."""
    accept = FailsOnce(Listeners._connect)
    monkeypatch.setattr(Listeners, "_connect", accept)
    return accept


def test_a_socket_that_stopped_accepting_listens_again(accept: FailsOnce) -> None:
    async def test() -> None:
        async with served() as found:
            report(found)
            with await client(RawConnection, found.port) as stuck, pytest.raises(PeerGoneError):
                await client(stuck.receive)
            assert accept.has_failed
            await check_served(found)

    run(test())


def test_a_waiting_client_reveals_that_nothing_is_accepted(accept: FailsOnce) -> None:
    """The failure could not even be reported."""

    async def test() -> None:
        async with served() as found:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            with await client(RawConnection, found.port) as stuck:
                await found.until(lambda: accept.has_failed)
                await check_served(found)
                with pytest.raises(PeerGoneError):
                    await client(stuck.receive)

    run(test())


def test_the_timer_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    monkeypatch.setattr(server_module.Heap, "look", lambda _heap: looks.append(None))

    async def test() -> None:
        async with served() as found:
            report(found)
            on_timer = FailsOnce(found.server.protocols.on_timer)
            monkeypatch.setattr(found.server.protocols, "on_timer", on_timer)
            await found.until(lambda: on_timer.has_failed)
            looks.clear()
            await found.until(lambda: len(looks) >= 3)
            await check_served(found)

    run(test())


def test_an_event_loop_that_cannot_set_the_timer_ends_the_broker() -> None:
    async def test() -> None:
        async with served() as found:
            failures: list[str] = []
            found.server.failed = failures.append
            stingy: Any = Stingy(found.server.loop, "call_later")
            found.server.loop = stingy
            await found.until(lambda: bool(failures))
            assert failures == ["The event loop ran out of memory"]

    run(test())


@replaces
def test_publishers_that_could_not_be_resumed_are_later(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, size = 8 << 20, 60_000
    count = 3 * limit // size

    async def test() -> None:
        async with served(memory_bytes=limit) as found:
            peer = await client(RawPeer, found.port)
            await client(peer.declare, "q", durable=False)
            await client(peer.sync)
            report(found)
            monkeypatch.setattr(clients_module, "_PUBLISHER_HOLD", 3600.0)
            frames = peer.transfer_frames("q", bytes(size), durable=False)
            sending = asyncio.create_task(client(peer.publish_all, [frames] * count))
            await found.until(lambda: bool(found.server.clients.held_publishers))
            stingy: Any = Stingy(found.server.clients.loop, "call_soon")
            found.server.clients.loop = stingy
            consumer = await client(RawPeer, found.port)
            await client(consumer.subscribe, "q", accept_mode=1)
            assert len(await client(consumer.take, count)) == count
            await sending
            await client(peer.sync)
            assert stingy.method.has_failed
            for each in (peer, consumer):
                each.close()

    run(test())


def test_a_tick_that_the_event_loop_had_no_memory_for_is_scheduled_again() -> None:
    scheduled: list[Callable[[], None]] = []
    tick = Tick(FailsOnce(scheduled.append), None)
    with pytest.raises(MemoryError):
        tick.schedule()
    tick.schedule()
    tick.schedule()
    assert len(scheduled) == 1
