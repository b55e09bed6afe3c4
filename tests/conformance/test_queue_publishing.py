"""Options of a published message: discard-unroutable and immediate; the broker's own timestamp; and messages larger
than a queue."""

from __future__ import annotations

import pytest

from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import BYTES, MESSAGES, Client, World, header
from tests.conformance.queue_clients import Clients, arguments, bodies, clients

ALL = ((0, 1000),)


def with_alternate(timestamp: bool = False) -> Clients:
    """An exchange `x` to which queues can be bound, and a queue `dead` on its alternate exchange."""
    found = clients(World(BrokerSettings(auth=False, enable_timestamp=timestamp)))
    here = found.here
    here.declare("dead")
    here.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.command("exchange.declare", exchange="x", type="direct", alternate_exchange="amq.fanout")
    here.declare("q")
    here.command("exchange.bind", queue="q", exchange="x", binding_key="k")
    here.sync()
    return found


# ---- discard-unroutable ----


@pytest.mark.parametrize("accept_mode", [0, 1])
@pytest.mark.parametrize("discard", [False, True])
def test_unroutable_message_goes_to_the_alternate_exchange_unless_it_may_be_discarded(
    accept_mode: int, discard: bool
) -> None:
    world, here, _there = with_alternate()
    for key, body in (("k", b"wanted"), ("nobody", b"unwanted")):
        head = header(routing_key=key, discard_unroutable=discard)
        here.command("message.transfer", destination="x", accept_mode=accept_mode, header=head, body=body)
    here.sync()
    assert bodies(world, "q") == [b"wanted"]
    assert bodies(world, "dead") == ([] if discard else [b"unwanted"])
    assert not here.exceptions


@pytest.mark.parametrize("discard", [False, True])
def test_without_an_alternate_exchange_it_is_dropped_and_completed(discard: bool) -> None:
    _world, here, _there = clients()
    (number,) = here.publish("nobody", b"m", exchange="amq.direct", discard_unroutable=discard)
    here.sync()
    assert number in here.completed
    assert not here.exceptions


def test_rejected_message_is_not_unroutable() -> None:
    world, here, _there = with_alternate()
    here.declare("r", alternate_exchange="amq.fanout")
    here.publish("r", b"m", discard_unroutable=True)
    here.subscribe("r")
    assert here.take() == [b"m"]
    here.command("message.reject", transfers=ALL)
    here.sync()
    assert bodies(world, "dead") == [b"m"]


# ---- immediate ----


def send_immediate(client: Client, *contents: bytes, discard: bool = False) -> None:
    client.publish("k", *contents, exchange="x", immediate=True, discard_unroutable=discard)
    client.sync()


def test_without_a_consumer_it_is_as_if_no_queue_wanted_it() -> None:
    world, here, _there = with_alternate()
    send_immediate(here, b"1")
    send_immediate(here, b"2", discard=True)
    here.publish("k", b"plain", exchange="x")
    here.sync()
    assert bodies(world, "q") == [b"plain"]
    assert bodies(world, "dead") == [b"1"]
    assert not here.exceptions
    assert here.completed >= set(range(here.sent[1]))


def test_with_a_consumer_that_has_credit_it_is_delivered() -> None:
    world, here, there = with_alternate()
    there.subscribe("q", messages=2)
    send_immediate(here, b"1", b"2", b"3")
    assert there.take() == [b"1", b"2"]
    assert bodies(world, "q") == []
    assert bodies(world, "dead") == [b"3"]


@pytest.mark.parametrize("lacking", [MESSAGES, BYTES])
def test_a_consumer_without_credit_cannot_take_it(lacking: int) -> None:
    world, here, there = with_alternate()
    credit = {"messages": 0} if lacking == MESSAGES else {"size": 0}
    there.subscribe("q", **credit)
    send_immediate(here, b"1")
    there.flow("q", lacking, 1000)
    there.sync()
    send_immediate(here, b"2")
    assert there.take() == [b"2"]
    assert bodies(world, "dead") == [b"1"]


def test_a_consumer_that_only_looks_on_does_not_take_it() -> None:
    world, here, there = with_alternate()
    there.subscribe("q", acquire_mode=1)
    send_immediate(here, b"1")
    assert there.take() == []
    assert bodies(world, "dead") == [b"1"]


def test_a_session_that_is_detached_takes_nothing() -> None:
    world, here, _there = with_alternate()
    away = world.open_client(name=b"away", timeout=60)
    away.subscribe("q")
    away.machine.closed()
    send_immediate(here, b"1")
    assert bodies(world, "dead") == [b"1"]
    assert bodies(world, "q") == []


def test_an_immediate_message_needs_a_consumer_on_each_queue() -> None:
    world, here, there = with_alternate()
    here.declare("q2")
    here.command("exchange.bind", queue="q2", exchange="x", binding_key="k")
    there.subscribe("q")
    send_immediate(here, b"1")
    assert there.take() == []
    there.subscribe("q2")
    send_immediate(here, b"2")
    assert there.take() == [b"2", b"2"]
    assert bodies(world, "dead") == [b"1"]


def test_immediate_in_a_transaction() -> None:
    world, here, there = with_alternate()
    here.command("tx.select")
    send_immediate(here, b"1")
    there.subscribe("q")
    send_immediate(here, b"2")
    here.command("tx.commit")
    here.sync()
    assert there.take() == [b"2"]
    assert bodies(world, "dead") == [b"1"]


def test_other_messages_of_that_connection_need_no_consumer() -> None:
    world, here, _there = with_alternate()
    send_immediate(here, b"1")
    here.publish("k", b"2", exchange="x")
    here.sync()
    assert bodies(world, "q") == [b"2"]


# ---- the time ----


def sent(world: World, name: str) -> list[int | None]:
    """The times that the messages of a queue have, as a consumer gets them."""
    client = world.open_client(name=b"reader of " + name.encode())
    client.subscribe(name)
    client.sync()
    return [delivery.properties.get("timestamp") for delivery in client.deliveries]


def test_each_message_has_the_time_at_which_it_came() -> None:
    world, here, _there = with_alternate(timestamp=True)
    begin = int(world.now)
    here.publish("q", b"1")
    here.publish("q", b"2", timestamp=77)  # what its sender says does not count
    world.now += 0.5
    here.publish("q", b"3", priority=7)
    world.now += 10
    here.publish("q", b"4")
    here.publish("q", b"5", ttl=60_000)
    here.command("message.transfer", destination="amq.fanout", header=None, body=b"bare")
    here.sync()
    assert sent(world, "q") == [begin, begin, begin, begin + 10, begin + 10]
    assert sent(world, "dead") == [begin + 10]


def test_timestamps_of_senders_are_kept_without_the_option() -> None:
    world, here, _there = with_alternate()
    here.publish("q", b"1")
    here.publish("q", b"2", timestamp=77)
    here.sync()
    assert sent(world, "q") == [None, 77]


def test_everything_else_of_a_message_stays_as_it_was() -> None:
    world, here, _there = with_alternate(timestamp=True)
    head = header({"content_type": "text/plain"}, routing_key="q", priority=3, delivery_mode=2)
    here.command("message.transfer", destination="", header=head, body=b"m")
    here.subscribe("q")
    here.sync()
    (delivery,) = here.deliveries
    expected = {"routing_key": "q", "priority": 3, "delivery_mode": 2, "exchange": "", "timestamp": int(world.now)}
    assert {name: value for name, value in delivery.properties.items() if value is not False} == expected
    assert delivery.header.endswith(header({"content_type": "text/plain"}))


def test_the_time_is_kept_with_the_message() -> None:
    world = World(BrokerSettings(auth=False, enable_timestamp=True))
    world.durable_queue("q")
    client = world.open_client()
    client.publish("q", b"m", delivery_mode=2)
    client.sync()
    (data,) = world.store.enqueued
    kept = restore_message(data)
    (live,) = [entry.message for entry in world.broker.default_host.queues["q"].entries()]
    assert kept.header == live.header  # type: ignore[attr-defined]


# ---- more than a queue holds ----


@pytest.mark.parametrize("values", [{"qpid.max_count": 2}, {"qpid.max_count": "2"}])
def test_publisher_to_a_full_queue_gets_an_error(values: dict[str, object]) -> None:
    world, here, there = clients()
    here.declare("small", arguments=arguments({**values, "qpid.policy_type": "reject"}))
    there.publish("small", b"1", b"2", b"3")
    assert there.failure()[0] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert bodies(world, "small") == [b"1", b"2"]


def test_the_size_of_a_message_is_that_of_its_header_and_content() -> None:
    world, here, there = clients()
    here.declare("sample")
    there.publish("sample", b"1")
    there.sync()
    (sample,) = world.broker.default_host.queues["sample"].entries()
    size = len(sample.message.header) + 1  # type: ignore[attr-defined]
    here.declare("small", arguments=arguments({"qpid.max_size": 2 * size}))
    there.publish("small", b"1", b"2", b"3")
    assert there.failure()[0] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert bodies(world, "small") == [b"1", b"2"]
