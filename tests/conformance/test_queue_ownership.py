"""An exclusive queue belongs to its session: no other may use it, and it is free when that session ends."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.conformance.queue_clients import BESIDE, Clients, bodies, clients, pass_time

REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("queue.declare", {"queue": "q"}),
    ("queue.declare", {"queue": "q", "exclusive": True}),
    ("queue.declare", {"queue": "q", "exclusive": True, "passive": True}),
    ("queue.delete", {"queue": "q"}),
    ("queue.purge", {"queue": "q"}),
    ("exchange.bind", {"queue": "q", "exchange": "amq.direct", "binding_key": "k"}),
    ("exchange.unbind", {"queue": "q", "exchange": "amq.fanout", "binding_key": ""}),
    ("message.subscribe", {"queue": "q", "destination": "d"}),
)


def owned(*, timeout: int = 0, **values: Any) -> Clients:
    found = clients(timeout=timeout)
    found.here.declare("q", exclusive=True, **values)
    found.here.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
    found.here.publish("q", b"m")
    found.here.sync()
    return found


@pytest.mark.parametrize("is_same_connection", [True, False])
@pytest.mark.parametrize(("name", "values"), REFUSED, ids=[f"{name} {[*values][1:]}" for name, values in REFUSED])
def test_other_sessions_may_not_use_it(name: str, values: dict[str, Any], is_same_connection: bool) -> None:
    world, here, there = owned()
    client, channel = (here, BESIDE) if is_same_connection else (there, 1)
    client.command(name, on=channel, **values)
    assert client.failure()[0] == ErrorCode.RESOURCE_LOCKED
    queue = world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.consumer_count) == (1, 0)
    assert queue.owner is here.session(b"owner")


def test_anybody_may_see_that_it_is_there_and_send_to_it() -> None:
    world, _here, there = owned()
    there.declare("q", passive=True)
    assert there.call("queue.query", queue="q")["exclusive"]
    assert not there.call("exchange.bound", exchange="amq.fanout", queue="q")["queue_not_matched"]
    there.publish("q", b"more")
    there.sync()
    assert not there.exceptions
    assert bodies(world, "q") == [b"m", b"more"]


def test_its_owner_may_do_everything() -> None:
    world, here, _there = owned()
    for again in ({}, {"exclusive": True}, {"exclusive": True, "passive": True}):
        here.declare("q", **again)
    here.command("queue.purge", queue="q")
    here.subscribe("q")
    here.command("exchange.unbind", queue="q", exchange="amq.fanout", binding_key="")
    here.command("queue.delete", queue="q")
    here.sync()
    assert "q" not in world.broker.default_host.queues


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("ending", ["detach", "failure", "lost"])
def test_it_is_free_when_its_session_ends(durable: bool, ending: str) -> None:
    world, here, there = owned(durable=durable)
    if ending == "detach":
        here.control("session.detach", on=1, name=b"owner")
    elif ending == "failure":
        here.command("queue.delete", queue="absent")
    else:
        here.machine.closed()
    world.run()
    assert world.broker.default_host.queues["q"].owner is None
    there.declare("q", exclusive=True)
    there.subscribe("q")
    assert there.take() == [b"m"]


@pytest.mark.parametrize("auto_delete", [False, True])
def test_a_session_that_is_only_detached_keeps_it(auto_delete: bool) -> None:
    world, here, there = owned(timeout=60, auto_delete=auto_delete)
    here.machine.closed()
    pass_time(world, 59)
    there.command("queue.declare", queue="q")
    assert there.failure()[0] == ErrorCode.RESOURCE_LOCKED
    back = world.connect()
    back.negotiate()
    back.control("session.attach", on=5, name=b"owner")
    back.sync()
    assert world.broker.default_host.queues["q"].owner is back.session(b"owner")
    back.machine.closed()
    pass_time(world, 61)
    assert ("q" in world.broker.default_host.queues) is not auto_delete
    if not auto_delete:
        assert world.broker.default_host.queues["q"].owner is None


def test_anybody_may_browse_it() -> None:
    world, _, there = owned()
    there.subscribe("q", acquire_mode=1)
    there.sync()
    assert bodies(world, "q") == [b"m"]
    assert world.broker.default_host.queues["q"].consumer_count == 1


@pytest.mark.parametrize("mode", [0, 1], ids=["consumed", "browsed"])
def test_one_that_is_in_use_does_not_become_exclusive(mode: int) -> None:
    world, here, there = clients()
    here.declare("q")
    here.subscribe("q", acquire_mode=mode)
    there.command("queue.declare", queue="q", exclusive=True)
    assert there.failure()[0] == ErrorCode.RESOURCE_LOCKED
    assert world.broker.default_host.queues["q"].owner is None


def test_an_unused_queue_becomes_exclusive() -> None:
    world, here, there = clients()
    here.declare("q")
    there.declare("q", exclusive=True)
    assert world.broker.default_host.queues["q"].owner is there.session(b"there")
    here.command("queue.declare", queue="q")
    assert here.failure()[0] == ErrorCode.RESOURCE_LOCKED
