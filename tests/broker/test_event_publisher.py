"""Events for many consoles: published together, in order, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management import publisher
from qstore.broker.management.outbox import TOPIC, VERSION_1
from qstore.broker.management.publisher import grouped
from qstore.broker.model.events import ClientConnect, ClientDisconnect, Event, QueueDeclare, QueueDelete
from qstore.formats.qmf.v1 import MAGIC
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import Somebody, Wired, wired
from tests.support.management_console import Console, take

_CONSOLES = 40
_CLIENTS = 500


def disconnected(number: int) -> Event:
    return ClientDisconnect(f"192.0.2.1:{number}", "guest", EMPTY_MAP)


def declared(name: str) -> Event:
    return QueueDeclare("192.0.2.1:5", "guest", name, False, False, False, "", EMPTY_MAP, True)


def deleted(name: str) -> Event:
    return QueueDelete("192.0.2.1:5", "guest", name)


def play(scene: Callable[[Wired, Console], Awaitable[None]]) -> None:
    """A scene with many queues that are bound for all events of both versions."""

    async def on_stage() -> None:
        async with wired() as stage:
            console = Console(stage)
            await console.open()
            for number in range(_CONSOLES):
                await stage.topology.declare_queue(f"console-{number}")
                await stage.topology.bind(f"console-{number}", TOPIC, "agent.ind.event.#")
                await stage.topology.bind(f"console-{number}", VERSION_1, "console.event.#")
            await console.settle()
            for queue in stage.broker.default_host.queues.values():
                queue.purge()
            await scene(stage, console)

    asyncio.run(on_stage())


def told(console: Console) -> list[dict[str, Any]]:
    """The values of the events that one console got, in order."""
    return [each["_values"] for reply in take(console.events) for each in reply.content]


def test_many_clients_that_leave_at_once_cost_few_messages() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        outbox = console.agent._outbox
        before = outbox.copies
        for number in range(_CLIENTS):
            stage.broker.events.emit(disconnected(number))
        await console.settle()
        sent = (outbox.copies - before) / _CONSOLES
        assert 1 < sent < _CLIENTS / 10
        assert [each["rhost"] for each in told(console)] == [f"192.0.2.1:{number}" for number in range(_CLIENTS)]
        version_1 = b"".join(
            bytes(body)
            for entry in stage.broker.default_host.queues["console-7"].available()
            if isinstance(body := entry.message.body, bytes) and body.startswith(MAGIC)
        )
        assert version_1.count(b"clientDisconnect") == _CLIENTS
        assert outbox.lost == 0

    play(scene)


def test_events_of_one_queue_keep_their_order() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for _ in range(20):
            await stage.topology.declare_queue("q", caller=Somebody())
            await stage.topology.delete_queue("q", caller=Somebody())
        await console.settle()
        assert ["disp" in each for each in told(console)] == [True, False] * 20

    play(scene)


def test_after_a_pause_events_are_published_at_once_again() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for number in (1, 2):
            stage.broker.events.emit(disconnected(number))
            assert len(told(console)) == 1
            stage.broker.events.emit(disconnected(-number))
            assert told(console) == []
            await console.settle()
            assert len(told(console)) == 1

    play(scene)


def test_waiting_events_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "_MAX_WAITING", 10)

    async def scene(stage: Wired, console: Console) -> None:
        for number in range(_CLIENTS):
            stage.broker.events.emit(disconnected(number))
            assert len(console.agent._events._waiting) <= 10
        await console.settle()
        assert [each["rhost"] for each in told(console)] == [f"192.0.2.1:{number}" for number in range(_CLIENTS)]

    play(scene)


def test_the_last_console_leaves_while_events_wait() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        stage.broker.events.emit(disconnected(1))
        stage.broker.events.emit(disconnected(2))
        for exchange in (TOPIC, VERSION_1):
            for binding in list(stage.broker.default_host.exchanges[exchange].bindings):
                stage.broker.default_host.exchanges[exchange].remove(binding)
        await console.settle()
        assert len(told(console)) == 1
        assert not console.agent._events._is_pausing

    play(scene)


_EVENTS = st.one_of(
    st.builds(declared, st.sampled_from("abc")),
    st.builds(deleted, st.sampled_from("abc")),
    st.builds(disconnected, st.integers(0, 3)),
    st.builds(lambda number: ClientConnect(f"192.0.2.1:{number}", "guest", EMPTY_MAP), st.integers(0, 3)),
)


def names(event: Event) -> set[str]:
    return {value for value in event if isinstance(value, str)} - {"", "guest"}


@given(st.lists(_EVENTS, max_size=30))
def test_groups_keep_the_order_of_events_that_name_the_same(events: list[Event]) -> None:
    timed = [(event, float(at)) for at, event in enumerate(events)]
    found = [each for _, group in grouped(timed) for each in group]
    assert sorted(found, key=lambda each: each[1]) == timed
    for first, (event, raised) in enumerate(found):
        for other, then in found[first + 1 :]:
            assert raised < then or not names(event) & names(other)
