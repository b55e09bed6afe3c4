"""Queues that record the brokers that messages have passed, and drop some: qpid.trace.id and qpid.trace.exclude."""

from __future__ import annotations

import pytest

from qstore.broker.model.queues.limits import TRACE
from qstore.broker.protocols.amqp_0_10.message import content_length_field
from qstore.formats.values import STR16, TypedValue, typed_map
from tests.broker.protocols.read_together import bodies, runs_on
from tests.broker.protocols.test_transfer_runs import PERSISTENT, TRANSIENT, TransferSide
from tests.broker.protocols.world import Client, World, header


def declare(client: Client, name: str, **arguments: str) -> None:
    given = {f"qpid.trace.{key}": TypedValue(STR16, value) for key, value in arguments.items()}
    client.declare(name, arguments=typed_map(given))


def publish(client: Client, exchange: str, trace: str | None, key: str = "") -> None:
    headers = {} if trace is None else {"application_headers": typed_map({TRACE: trace, "x": 1})}
    client.command("message.transfer", destination=exchange, header=header(headers, routing_key=key), body=b"body")


def traces(world: World, queue: str) -> list[str | None]:
    entries = world.broker.default_host.queues[queue].entries()
    return [entry.message.whole().header_text(TRACE) for entry in entries]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "here"),
        ("", "here"),
        ("a", "a,here"),
        ("a,b", "a,b,here"),
        ("a,here,b", "a,here,b"),
        ("there", "there,here"),
    ],
)
def test_the_queue_adds_its_name_once(world: World, before: str | None, after: str) -> None:
    client = world.open_client()
    declare(client, "q", id="here")
    publish(client, "", before, "q")
    assert traces(world, "q") == [after]


@pytest.mark.parametrize("argument", ["exclude", "excludes"])
def test_the_queue_drops_messages_that_have_passed_excluded_brokers(world: World, argument: str) -> None:
    client = world.open_client()
    declare(client, "q", **{argument: "c, b"})
    for trace in (None, "a", "b", "a,b", "bb", "c", ""):
        publish(client, "", trace, "q")
    assert traces(world, "q") == [None, "a", "bb", ""]


def test_other_queues_of_the_exchange_get_the_message_as_it_came(world: World) -> None:
    client = world.open_client()
    declare(client, "traced", id="here", exclude="far")
    client.declare("plain")
    for queue in ("traced", "plain"):
        client.command("exchange.bind", queue=queue, exchange="amq.fanout")
        world.run()
    publish(client, "amq.fanout", "a")
    publish(client, "amq.fanout", "far")
    assert traces(world, "traced") == ["a,here"]
    assert traces(world, "plain") == ["a", "far"]


def test_messages_of_transactions_are_traced(world: World) -> None:
    client = world.open_client()
    declare(client, "q", id="here", exclude="far")
    client.command("tx.select")
    publish(client, "", "a", "q")
    publish(client, "", "far", "q")
    client.command("tx.commit")
    world.run()
    assert traces(world, "q") == ["a,here"]


@pytest.mark.parametrize("value", ["a,b", "a b"])
def test_a_name_has_no_commas(world: World, value: str) -> None:
    client = world.open_client()
    declare(client, "q", id=value)
    assert client.failure()[0] == 542


# ---- runs ----


@pytest.mark.parametrize("spread", [0, 50])
@pytest.mark.parametrize("gives_length", [True, False])
@pytest.mark.parametrize("mode", [TRANSIENT, PERSISTENT])
def test_runs_stay_runs_on_traced_queues(spread: int, gives_length: bool, mode: int) -> None:
    sides = [TransferSide(reads_together=together) for together in (True, False)]
    for side in sides:
        declare(side.client, "traced", id="here", exclude="far")
        side.rest()
        side.publish("traced", bodies(3, spread=spread), mode, gives_length=gives_length)
        side.publish("traced", bodies(60, spread=spread), mode, gives_length=gives_length)
        side.rest()
    assert sum(count for _, count in runs_on(sides[0].queue("traced"))) >= 55
    found = []
    for side in sides:
        side.client.subscribe("traced")
        side.rest()
        deliveries = side.client.deliveries
        found.append([(each.header, each.body) for each in deliveries])
    assert found[0] == found[1]
    fields = [content_length_field(head) for head, _ in found[0]]
    lengths = [field and field.read(head, 0) for field, (head, _) in zip(fields, found[0], strict=True)]
    assert lengths == [len(body) if gives_length else None for _, body in found[0]]
    assert all(b"here" in head for head, _ in found[0])


@pytest.mark.parametrize("mode", [TRANSIENT, PERSISTENT])
def test_runs_stay_runs_on_the_other_queues_of_the_exchange(mode: int) -> None:
    side = TransferSide(reads_together=True)
    declare(side.client, "traced", id="here")
    declare(side.client, "nearby", exclude="here")
    for queue in ("traced", "nearby", "d", "t"):
        side.client.command("exchange.bind", queue=queue, exchange="amq.direct", binding_key="all")
        side.world.run()
    for count in (3, 60):
        side.send(side.transfers("all", bodies(count), mode, exchange="amq.direct"))
        side.rest()
    for queue in ("traced", "nearby", "d", "t"):
        assert side.queue(queue).message_count == 63
        assert sum(count for _, count in runs_on(side.queue(queue))) >= 55
    assert set(traces(side.world, "traced")) == {"here"}
    assert set(traces(side.world, "d")) == set(traces(side.world, "nearby")) == {None}
