"""A queue with `no-local` drops messages from its owner's connection, and keeps all others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.queue_clients import BESIDE, Clients, arguments, bodies, clients, pass_time


def furnished(value: Any = "true", *, how: str = "exclusive", timeout: int = 0) -> Clients:
    """A queue that the first session owns: declared so, or by an exclusive subscription without credit."""
    found = clients(timeout=timeout)
    found.here.declare("q", exclusive=how == "exclusive", arguments=arguments({"no-local": value}))
    if how == "subscription":
        found.here.subscribe("q", messages=0, exclusive=True)
    return found


@pytest.mark.parametrize("how", ["exclusive", "subscription"])
@pytest.mark.parametrize("value", ["true", 1, 0, ""])
def test_messages_of_the_owners_connection_are_dropped(how: str, value: Any) -> None:
    world, here, there = furnished(value, how=how)
    here.publish("q", b"own")
    here.publish("q", b"beside", on=BESIDE)
    there.publish("q", b"other")
    here.publish("q", b"own again", delivery_mode=2)
    world.run()
    assert bodies(world, "q") == [b"other"]
    assert here.call("queue.query", queue="q")["message_count"] == 1
    assert not here.exceptions


def test_messages_of_others_are_kept() -> None:
    world, here, there = furnished()
    here.declare("plain")
    for queue in ("q", "plain"):
        here.command("exchange.bind", queue=queue, exchange="amq.fanout", binding_key="")
    here.publish("", b"own", exchange="amq.fanout")
    here.sync()
    there.publish("", b"other", exchange="amq.fanout")
    world.run()
    assert bodies(world, "plain") == [b"own", b"other"]
    assert bodies(world, "q") == [b"other"]


def test_without_an_owner_it_is_a_queue_like_others() -> None:
    _world, here, _there = clients()
    here.declare("q", arguments=arguments({"no-local": 1}))
    here.subscribe("q")  # which is not exclusive
    here.publish("q", b"1")
    assert here.take() == [b"1"]


def test_own_messages_are_dropped_on_any_way_and_when_the_publisher_is_gone() -> None:
    world, here, there = furnished()
    here.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
    there.declare("holding", alternate_exchange="amq.fanout")
    there.publish("holding", b"a")
    here.publish("holding", b"b")
    there.publish("holding", b"c")
    there.machine.closed()
    here.command("queue.delete", queue="holding", on=BESIDE)
    here.sync()
    assert bodies(world, "q") == [b"a", b"c"]


def test_a_rejected_message_of_the_owners_connection_is_dropped() -> None:
    world, here, there = furnished()
    here.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
    there.declare("source", alternate_exchange="amq.fanout")
    here.publish("source", b"own")
    there.publish("source", b"other")
    there.subscribe("source")
    assert there.take() == [b"own", b"other"]
    there.command("message.reject", transfers=((0, 1),))
    there.sync()
    assert bodies(world, "q") == [b"other"]
    assert world.broker.default_host.queues["source"].is_empty


def test_in_a_transaction() -> None:
    world, here, there = furnished()
    for client in (here, there):
        client.command("tx.select")
        client.publish("q", b"own" if client is here else b"other")
        client.command("tx.commit")
        client.sync()
    assert bodies(world, "q") == [b"other"]


def test_the_connection_that_a_session_has_now_is_the_local_one() -> None:
    world, here, there = furnished(timeout=60)
    here.publish("q", b"1")
    here.machine.closed()
    pass_time(world, 1)
    there.publish("q", b"2")
    back = world.connect()
    back.negotiate()
    back.control("session.attach", on=5, name=b"owner")
    back.sync()
    back.attach(b"another", on=6)
    back.publish("q", b"3", on=6)
    there.publish("q", b"4")
    world.run()
    assert bodies(world, "q") == [b"2", b"4"]


def test_dropped_messages_do_not_go_to_the_alternate_exchange() -> None:
    world, here, there = furnished()
    there.declare("dead")
    there.command("exchange.declare", exchange="x", type="fanout", alternate_exchange="amq.fanout")
    there.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.command("exchange.bind", queue="q", exchange="x", binding_key="")
    here.publish("", b"own", exchange="x")
    world.run()
    assert bodies(world, "q") == bodies(world, "dead") == []
