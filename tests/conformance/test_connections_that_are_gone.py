"""A broker keeps nothing of connections that are gone, and not only when a garbage collector finds the time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.broker.protocols.world import Client, World
from tests.support.compiled import replaces
from tests.support.garbage import no_collector
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.served import client as blocking
from tests.support.served import served


def _nothing(_client: Client) -> None:
    pass


def _consume(client: Client) -> None:
    client.declare("q")
    client.subscribe("q")
    client.publish("q", b"1", b"2")
    assert client.take() == [b"1", b"2"]
    client.command("message.accept", transfers=((0, 0),))


def _fail_at_once(client: Client) -> None:
    client.command("message.cancel", destination="unknown")


def _fail_later(client: Client) -> None:
    client.command("queue.declare", queue="amq.mine")


def _commit(client: Client) -> None:
    client.declare("q")
    client.command("tx.select")
    client.publish("q", b"1")
    client.command("tx.commit")


def _break_the_rules(client: Client) -> None:
    client.control("session.completed", on=1, commands=((0, 999),))


LIVES: Final = (_nothing, _consume, _fail_at_once, _fail_later, _commit, _break_the_rules)


@replaces
@pytest.mark.parametrize("live", LIVES)
def test_the_machines_are_freed_at_once(live: Callable[[Client], None]) -> None:
    world = World()
    client = world.open_client()
    live(client)
    client.sync()
    machine: Any = client.machine
    kept = [weakref.ref(each) for each in (machine, *machine.sessions.values())]
    with no_collector():
        machine.dismantle()
        world.run()
        world.machines.clear()
        del client, machine
        assert [each() for each in kept] == [None] * len(kept)


def _leave(peer: RawPeer) -> None:
    """A declaration that cannot be done, a transfer that is not complete, and no more than that is said."""
    with peer:
        with pytest.raises(SessionEndedError):
            peer.call("queue.declare", queue="amq.mine")
        peer.send_bytes(peer.transfer_frames("q", b"x" * 9_000)[:5_000])


@replaces
async def test_the_sockets_end_is_freed_at_once_too() -> None:
    async with served() as found:
        peers = [await blocking(RawPeer, found.port) for _ in range(3)]
        kept = [weakref.ref(each) for each in found.server.clients.connections]
        with no_collector():
            for peer in peers:
                await blocking(_leave, peer)
            await found.until(lambda: not found.server.clients.connections)
            await found.until(lambda: not any(each() for each in kept))
