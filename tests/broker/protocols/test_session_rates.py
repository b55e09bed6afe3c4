"""`--max-session-rate`: a session publishes no more messages a second than that, in each protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import CREDIT, MESSAGES, Client, Clockwork, World

TRANSIENT = Properties(delivery_mode=1)


def at_rate(rate: int) -> Clockwork:
    return Clockwork(BrokerSettings(auth=False, max_session_rate=rate))


class Publisher(Protocol):
    """A client of some protocol with sessions, numbered from 1."""

    def publish(self, count: int, on: int = 1) -> None:
        """Send so many messages to q, in one read."""


class Transfers:
    def __init__(self, world: World) -> None:
        self.client = world.open_client()
        self.client.attach(b"second", on=2)
        self.client.declare("q")

    def publish(self, count: int, on: int = 1) -> None:
        send, sent = self.client.send, bytearray()
        self.client.send = sent.extend  # type: ignore[assignment, method-assign]
        self.client.publish("q", *[b"x"] * count, on=on)
        self.client.send = send  # type: ignore[method-assign]
        self.client.send(bytes(sent))


class Basic:
    def __init__(self, world: World) -> None:
        self.client = BasicClient(world).open(1, 2)
        self.client.call("queue.declare", queue="q")

    def publish(self, count: int, on: int = 1) -> None:
        self.client.send(self.client.message("q", b"x", TRANSIENT, channel=on) * count)


class Links:
    def __init__(self, world: World) -> None:
        world.open_client().declare("q")
        self.client = LinksClient(world).open(1, 2).sender("q", channel=1).sender("q", channel=2)

    def publish(self, count: int, on: int = 1) -> None:
        send, sent = self.client.send, bytearray()
        self.client.send = sent.extend  # type: ignore[assignment, method-assign]
        for _ in range(count):
            self.client.publish(channel=on, settled=True)
        self.client.send = send  # type: ignore[method-assign]
        self.client.send(bytes(sent))


def started(kind: Callable[[World], Publisher], rate: int) -> tuple[Clockwork, Publisher]:
    world = at_rate(rate)
    return world, kind(world)


KINDS = pytest.mark.parametrize("kind", [Transfers, Basic, Links])


@KINDS
def test_a_session_is_held_to_its_rate(kind: Callable[[World], Publisher]) -> None:
    world, publisher = started(kind, 100)
    publisher.publish(100)
    publisher.publish(0)
    world.run()
    assert world.count() == 100, "a second's worth at once"
    if not isinstance(publisher, Links):  # whose credit was 100
        publisher.publish(400)
        for second in range(1, 5):
            world.wait(0.5)
            assert world.count() == pytest.approx(100 * second + 50, abs=2)
            world.wait(0.5)
            assert world.count() == pytest.approx(100 * second + 100, abs=2)
    world.wait(100)
    assert world.count() == (100 if isinstance(publisher, Links) else 500), "nothing is lost"


def test_a_link_has_credit_for_a_second_at_most() -> None:
    world, publisher = started(Links, 50)
    assert isinstance(publisher, Links)
    link = publisher.client.machine.sessions[1].links[0]
    assert link.credit == 50  # type: ignore[union-attr]
    publisher.publish(50)
    world.wait(10)
    assert world.count() == 50
    assert link.credit == 50, "it gets more as its messages are taken"  # type: ignore[union-attr]


@KINDS
@pytest.mark.parametrize("rate", [1, 7, 1_000, 40_000])
def test_time_that_passes_is_not_saved_beyond_the_burst(kind: Callable[[World], Publisher], rate: int) -> None:
    world, publisher = started(kind, rate)
    burst = {1: 1, 7: 7, 1_000: 300, 40_000: 4_000}[rate]
    world.wait(3_600)
    for _ in range(0, 2 * burst + 2, 50):
        publisher.publish(min(50, rate))
    world.run()
    assert world.count() == (burst if kind is not Links else min(burst, world.count()))
    assert world.count() <= burst


@KINDS
def test_sessions_have_a_rate_each(kind: Callable[[World], Publisher]) -> None:
    world, publisher = started(kind, 20)
    publisher.publish(20, on=1)
    publisher.publish(20, on=2)
    world.run()
    assert world.count() == 20, "what follows on the connection waits until the first has a message left"
    world.wait(0.06)
    assert world.count() == 40


@KINDS
def test_without_the_option_nothing_waits(kind: Callable[[World], Publisher]) -> None:
    world, publisher = started(kind, 0)
    publisher.publish(900)
    world.run()
    assert world.count() == 900
    assert not world.timers


@pytest.mark.parametrize("kind", [Transfers, Basic])
def test_messages_are_taken_in_runs_as_far_as_they_may(kind: Callable[[World], Publisher]) -> None:
    world, publisher = started(kind, 200)
    publisher.publish(300)
    world.run()
    queue: Any = world.broker.default_host.queues["q"]
    assert world.count() == 200
    world.wait(1)
    assert world.count() == 300
    assert queue.messages_enqueued == 300


def test_a_client_of_the_broker_itself_has_no_rate() -> None:
    world = at_rate(5)
    client = world.connect()
    client.machine.publisher.is_internal = True
    client.negotiate()
    client.attach(b"s")
    client.declare("q")
    client.publish("q", *[b"x"] * 50)
    client.sync()
    assert world.count() == 50


def test_what_the_broker_sends_is_not_counted() -> None:
    world = at_rate(100)
    publisher = Basic(world)
    publisher.publish(100)
    publisher.client.method("basic.consume", 2, queue="q", consumer_tag="c", no_ack=True)
    world.wait(0.011)
    assert len(publisher.client.take("basic.deliver")) == 100


# ---- credit ----


def obeying(world: World, *, timeout: int = 0, announced: int = 1, point: int = 0) -> Client:
    """A client that waits for the credit that it is given."""
    client = world.connect()
    client.send(PROTOCOL_HEADER)
    properties = typed_map({"qpid.session_flow": announced})
    client.control("connection.start-ok", client_properties=properties, mechanism="ANONYMOUS", locale="en_US")
    client.control("connection.tune-ok", channel_max=100, max_frame_size=65535, heartbeat=0)
    client.control("connection.open", virtual_host="")
    client.attach(b"session", timeout=timeout, point=point)
    return client


def credit(client: Client) -> int:
    """The credit that has come since the last time."""
    client.sync()
    flows = [each for each in client.all if each.name == "message.flow"]
    client.all.clear()
    assert all((each.values["destination"], each.values["unit"]) == ("", MESSAGES) for each in flows)
    return sum(each.values["value"] for each in flows)


def test_a_client_that_obeys_flow_control_gets_credit() -> None:
    world = at_rate(1_000)
    client = obeying(world)
    mode = next(each for each in client.all if each.name == "message.set-flow-mode")
    assert (mode.values["destination"], mode.values["flow_mode"]) == ("", CREDIT)
    client.declare("q")
    left = credit(client)
    assert left == 300
    published = 0
    for _ in range(100):
        client.publish("q", *[b"x"] * left)
        published += left
        world.wait(0.01)
        assert not client.machine.is_paused, "its other input is not delayed"
        left = credit(client)
    assert world.count() == published
    assert published == pytest.approx(1_300, abs=80)


def test_a_client_at_rest_gets_no_more_credit() -> None:
    world = at_rate(10)
    client = obeying(world)
    assert credit(client) == 10
    world.wait(1_000)
    assert credit(client) == 0
    assert not world.timers


def test_more_than_the_credit_pauses_the_input() -> None:
    world = at_rate(10)
    client = obeying(world)
    client.declare("q")
    client.publish("q", *[b"x"] * 25)
    client.sync()
    assert world.count() == 11
    assert client.machine.is_paused
    world.wait(2)
    assert world.count() == 25


def test_a_session_that_is_attached_again_gets_no_more_than_before() -> None:
    world = at_rate(100)
    client = obeying(world, timeout=100)
    client.declare("q")
    assert credit(client) == 100
    client.publish("q", *[b"x"] * 60)
    client.control("session.detach", on=1, name=b"session")
    client.sync()
    other = obeying(world, timeout=100, point=client.sent[1])
    assert credit(other) == 40
    other.machine.closed()
    world.wait(5)


def test_other_clients_get_no_credit() -> None:
    world = at_rate(100)
    for client in (world.open_client(), obeying(world, announced=0)):
        assert not [each for each in client.all if each.name.startswith("message.")]
        client.machine.closed()


def test_a_session_that_ends_with_messages_left_stops_the_timer() -> None:
    world = at_rate(10)
    client = obeying(world)
    client.declare("q")
    credit(client)
    client.publish("q", *[b"x"] * 10)
    client.sync()
    assert world.timers
    client.machine.dismantle()
    world.wait(10)
    assert not world.timers
    assert credit(client) == 0
