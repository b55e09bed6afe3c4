"""Results of queue.query and message.acquire."""

from __future__ import annotations

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import Client
from tests.conformance.queue_clients import arguments, clients


def counts(client: Client) -> tuple[int, int]:
    """Messages and subscriptions."""
    found = client.call("queue.query", queue="q")
    return found["message_count"], found["subscriber_count"]


def test_all_fields() -> None:
    _world, here, there = clients()
    values = arguments({"qpid.max_count": 5, "anything": "kept"})
    here.declare("q", durable=True, exclusive=True, auto_delete=True, alternate_exchange="amq.topic", arguments=values)
    here.publish("q", b"1", b"2")
    here.subscribe("q", messages=1)
    expected = {
        "queue": "q",
        "alternate_exchange": "amq.topic",
        "durable": True,
        "exclusive": True,
        "auto_delete": True,
        "arguments": values,
        "message_count": 1,
        "subscriber_count": 1,
    }
    assert there.call("queue.query", queue="q") == expected


def test_a_plain_one() -> None:
    _world, here, _there = clients()
    here.declare("q")
    found = here.call("queue.query", queue="q")
    assert {name: value for name, value in found.items() if value and name != "arguments"} == {"queue": "q"}
    assert found["alternate_exchange"] is None


def test_a_missing_queue_is_not_an_error() -> None:
    _world, here, _there = clients()
    assert not any(here.call("queue.query", queue="q").values())
    assert not here.exceptions


def test_messages_that_a_consumer_holds_do_not_count() -> None:
    _world, here, there = clients()
    here.declare("q")
    here.publish("q", b"1", b"2", b"3")
    assert counts(here) == (3, 0)
    there.subscribe("q", messages=2)
    assert counts(here) == (1, 1)
    there.command("message.accept", transfers=((0, 0),))
    assert counts(here) == (1, 1)
    there.command("message.release", transfers=((1, 1),))
    there.sync()
    assert counts(here) == (2, 1)
    there.command("message.cancel", destination="q")
    there.sync()
    assert counts(here) == (2, 0)


def test_messages_that_are_only_shown_count_until_they_are_acquired() -> None:
    _world, here, there = clients()
    here.declare("q")
    here.publish("q", b"1", b"2", b"3")
    there.subscribe("q", acquire_mode=1)
    assert there.take() == [b"1", b"2", b"3"]
    assert counts(here) == (3, 1)
    assert there.call("message.acquire", transfers=((0, 0), (2, 2)))["transfers"] == ((0, 0), (2, 2))
    assert counts(here) == (1, 1)


def test_acquire_returns_only_free_messages() -> None:
    _world, here, there = clients()
    here.declare("q")
    here.publish("q", *(b"%d" % number for number in range(5)))
    for client in (here, there):
        client.subscribe("q", to="look", acquire_mode=1)
        client.sync()
    assert here.call("message.acquire", transfers=((1, 2),))["transfers"] == ((1, 2),)
    assert there.call("message.acquire", transfers=((0, 4),))["transfers"] == ((0, 0), (3, 4))
    assert not there.call("message.acquire", transfers=((0, 4), (17, 99)))[
        "transfers"
    ]  # it has some, others are unknown
    here.command("message.release", transfers=((1, 2),))
    here.sync()
    assert there.call("message.acquire", transfers=((1, 1),))["transfers"] == ((1, 1),)


def test_acquired_messages_can_be_settled() -> None:
    world, here, _there = clients()
    here.declare("q")
    here.publish("q", b"1", b"2", b"3")
    here.subscribe("q", acquire_mode=1)
    here.take()
    here.call("message.acquire", transfers=((0, 1),))
    here.command("message.accept", transfers=((0, 0),))
    here.sync()
    assert world.broker.default_host.queues["q"].message_count == 2
    here.control("session.detach", on=1, name=b"owner")
    here.sync()
    (second, third) = world.broker.default_host.queues["q"].entries()
    assert (second.is_redelivered, third.is_redelivered) == (True, False)


def test_a_purge_keeps_acquired_messages() -> None:
    world, here, there = clients()
    here.declare("q")
    here.publish("q", b"1", b"2", b"3")
    there.subscribe("q", messages=1)
    here.command("queue.purge", queue="q")
    here.sync()
    assert counts(here) == (0, 1)
    assert world.broker.default_host.queues["q"].message_count == 1


def test_no_name() -> None:
    _world, here, there = clients()
    here.command("queue.purge", queue="")
    assert here.failure()[0] == ErrorCode.ILLEGAL_ARGUMENT
    there.command("queue.declare", queue="")
    assert there.failure()[0] == ErrorCode.INVALID_ARGUMENT
