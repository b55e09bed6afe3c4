"""Helpers of the tests of queues: clients, passing time, and ways in which a session ends."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.world import Client, World

OWNER, BESIDE = 1, 2
"""The channels of the two sessions of one connection."""


class Clients(NamedTuple):
    """Who takes part."""

    world: World
    here: Client
    there: Client


def clients(world: World | None = None, *, timeout: int = 0) -> Clients:
    """A connection with two sessions, the first of which outlives it for `timeout` seconds, and another with one."""
    world = world or World()
    here = world.open_client(name=b"owner", timeout=timeout)
    here.attach(b"beside", on=BESIDE)
    there = world.open_client(name=b"there")
    return Clients(world, here, there)


def arguments(values: dict[str, Any]) -> TypedMap:
    """A field table."""
    return typed_map(values)


def pass_time(world: World, seconds: float) -> None:
    """Let time go by, and the server look at what is due."""
    world.now += seconds
    world.sessions.on_timer(world.now)
    for queue in world.broker.default_host.idle_queues.take_due():
        asyncio.run(world.broker.default_host.topology.delete_if_unused(queue))
    world.run()


def bodies(world: World, name: str) -> list[bytes]:
    """The messages on a queue that are not acquired."""
    return [bytes(entry.message.body) for entry in world.broker.default_host.queues[name].available()]


# ---- ways in which the session on channel 1, `session`, ends ----


def detach(client: Client) -> None:
    """The client detaches it."""
    client.control("session.detach", on=1, name=b"session")


def lose(client: Client) -> None:
    """The connection is lost."""
    client.machine.closed()


def fail(client: Client) -> None:
    """A command of the client fails."""
    client.command("message.cancel", destination="unknown")
