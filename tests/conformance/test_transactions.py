"""Local transactions as clients see them: what is done together, when others see it, and what undoes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import Client, World
from tests.conformance.queue_clients import detach, fail, lose


def furnished() -> tuple[World, Client, Client]:
    """The queues `from`, with three messages, and `to`; a client with a transaction, and one without."""
    world = World()
    other, client = world.open_client(name=b"other"), world.open_client()
    other.declare("from")
    other.declare("to")
    other.publish("from", b"1", b"2", b"3")
    other.sync()
    client.command("tx.select")
    client.subscribe("from")
    return world, client, other


def moved(client: Client) -> None:
    """In the transaction: what is on `from` goes to `to`."""
    first, last = client.deliveries[0].number, client.deliveries[-1].number
    client.publish("to", *client.take())
    client.command("message.accept", transfers=((first, last),))
    client.sync()


def counts(other: Client) -> tuple[int, int]:
    """How many messages anybody could have from either queue."""
    found = [other.call("queue.query", queue=name)["message_count"] or 0 for name in ("from", "to")]
    return found[0], found[1]


def test_others_see_all_of_it_at_the_commit_and_nothing_before() -> None:
    world, client, other = furnished()
    moved(client)
    assert counts(other) == (0, 0)
    assert world.broker.default_host.queues["from"].acquired_count == 3
    number = client.command("tx.commit")
    client.sync()
    assert number in client.completed
    assert counts(other) == (0, 3)
    assert world.broker.default_host.queues["from"].acquired_count == 0


def test_rollback_discards_sent_messages_and_keeps_acquired_ones() -> None:
    """The messages stay the consumer's, unsettled: it accepts them in the next transaction, or lets go of them."""
    world, client, other = furnished()
    numbers = [delivery.number for delivery in client.deliveries]
    moved(client)
    client.command("tx.rollback")
    client.sync()
    assert counts(other) == (0, 0)
    assert world.broker.default_host.queues["from"].acquired_count == 3
    client.command("message.accept", transfers=((numbers[0], numbers[0]),))
    client.command("message.release", transfers=((numbers[1], numbers[2]),))
    client.command("tx.commit")
    client.sync()
    assert client.exceptions == []
    assert client.take() == [b"2", b"3"], "it has credit for what it has released"
    detach(client)
    client.sync()
    assert counts(other) == (2, 0)


@pytest.mark.parametrize("ending", [detach, lose, fail])
def test_a_session_that_ends_before_its_commit_has_done_nothing(ending: Callable[[Client], None]) -> None:
    world, client, other = furnished()
    moved(client)
    ending(client)
    world.run()
    assert counts(other) == (3, 0)
    other.subscribe("from")
    assert all(delivery.is_redelivered for delivery in other.deliveries)
    assert other.take() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["tx.commit", "tx.rollback"])
def test_another_one_begins_at_once(end: str) -> None:
    _, client, other = furnished()
    client.command(end)
    client.publish("to", b"4")
    client.sync()
    assert counts(other) == (0, 0)
    client.command("tx.commit")
    client.sync()
    assert counts(other) == (0, 1)


def test_queues_are_declared_and_deleted_outside_of_it() -> None:
    world, client, _ = furnished()
    client.declare("new")
    client.command("tx.rollback")
    client.sync()
    assert "new" in world.broker.default_host.queues


def test_a_message_that_no_queue_takes_does_not_spoil_it() -> None:
    _, client, other = furnished()
    client.publish("nowhere", b"x", exchange="amq.direct")
    client.publish("to", b"y")
    client.command("tx.commit")
    client.sync()
    assert client.exceptions == []
    assert counts(other)[1] == 1


def test_commit_without_select_is_refused() -> None:
    _, _, other = furnished()
    number = other.command("tx.commit")
    assert other.failure() == (ErrorCode.ILLEGAL_STATE, number)
