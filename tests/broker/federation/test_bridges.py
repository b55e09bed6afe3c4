"""Routes between brokers: what arrives, when it leaves its source, and which bindings follow."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from qstore.broker.federation.bridge import BridgeSettings
from qstore.broker.federation.federation import LinkSettings
from qstore.broker.federation.link import Link, LinkState, Remote, RemoteLogin, remotes_in
from qstore.broker.model.caller import BROKER
from qstore.broker.model.exchanges.failover import KnownHosts
from qstore.broker.model.queues.limits import TRACE
from qstore.broker.protocols.amqp_0_10.connection import control_frame
from qstore.broker.protocols.amqp_0_10.link_connection import LinkConnection, LinkSession
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from qstore.formats.values import typed_map
from tests.broker.federation.linked import Linked
from tests.broker.protocols.read_together import bodies, runs_on
from tests.broker.protocols.world import Client, World, header
from tests.support.compiled import replaces

PERSISTENT = {"delivery_mode": 2}


def queue(world: World, name: str, exchange: str = "", key: str = "", **arguments: object) -> Client:
    """A client that has declared a queue, and bound it."""
    client = world.open_client(name=f"of {name}".encode())
    if name not in world.broker.default_host.queues:
        client.declare(name)
    if exchange:
        client.command("exchange.bind", queue=name, exchange=exchange, binding_key=key,
                       arguments=typed_map(arguments) if arguments else None)  # fmt: skip
    world.run()
    return client


def on(world: World, name: str) -> list[bytes]:
    """The messages on a queue."""
    entries = world.broker.default_host.queues[name].entries()
    return [bytes(entry.message.whole().body) for entry in entries]


def keys(world: World, exchange: str) -> list[tuple[str, str]]:
    """The bindings of an exchange: queue and key."""
    return sorted((each.queue.name, each.key) for each in world.broker.default_host.exchanges[exchange].bindings)


# ---- static routes ----


def test_a_pull_route_brings_what_its_key_matches() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    queue(near, "here", "amq.fanout")
    linked.bridge(0, 1, "amq.topic", "amq.fanout", "a.#")
    client = far.open_client()
    client.publish("a.b", b"one", exchange="amq.topic")
    client.publish("b", b"other", exchange="amq.topic")
    linked.rest()
    assert on(near, "here") == [b"one"]


def test_a_push_route_sends_what_its_key_matches() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    queue(far, "there", "amq.fanout")
    linked.bridge(0, 1, "amq.topic", "amq.fanout", "a.#", source_is_local=True)
    client = near.open_client()
    client.publish("a.b", b"one", exchange="amq.topic")
    client.publish("b", b"other", exchange="amq.topic")
    linked.rest()
    assert on(far, "there") == [b"one"]


@pytest.mark.parametrize("is_push", [False, True])
def test_a_message_leaves_its_source_when_it_is_on_the_disk_of_its_destination(is_push: bool) -> None:
    linked = Linked("near", "far")
    source, destination = linked.worlds if is_push else reversed(linked.worlds)
    source.durable_queue("q")
    kept = destination.durable_queue("kept")
    queue(destination, "kept", "amq.fanout")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=is_push, sync=1)
    source.open_client().publish("q", b"one", **PERSISTENT)
    linked.rest()
    source.store.end_flush()
    linked.rest()
    assert kept.message_count == 1
    assert source.store.dequeued == []
    destination.store.end_flush()
    linked.rest()
    assert len(source.store.dequeued) == 1


def test_a_message_that_another_broker_pushes_is_accepted_when_it_is_on_the_disk() -> None:
    """That broker may wait for the acceptance, not for the completion."""
    linked = Linked("near", "far")
    source, destination = linked.worlds
    source.durable_queue("q")
    destination.durable_queue("kept")
    queue(destination, "kept", "amq.fanout")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=True, sync=1)
    (session,) = linked.wires[-1].far_machine.sessions.values()
    source.open_client().publish("q", b"one", **PERSISTENT)
    linked.rest()
    source.store.end_flush()
    linked.rest()
    assert session.accept_batch == 1
    accepted = session._accepted
    assert accepted < session.received
    destination.store.end_flush()
    linked.rest()
    assert session._accepted == session.received


@replaces
def test_another_broker_is_asked_to_answer_for_what_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """qpidd accepts nothing unless a command has the sync bit."""
    linked = Linked("near", "far")
    source, _ = linked.worlds
    source.durable_queue("q")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=True, sync=1)
    far, came = linked.wires[-1].far_machine, bytearray()
    receive = ServerConnection.receive

    def record(machine: ServerConnection, data: bytes) -> None:
        if machine is far:
            came.extend(data)
        receive(machine, data)

    monkeypatch.setattr(ServerConnection, "receive", record)
    source.open_client().publish("q", b"one", **PERSISTENT)
    linked.rest()
    source.store.end_flush()
    linked.rest()
    (session,) = far.sessions.values()
    command = encode_command("execution.sync", sync=True)
    (frame,) = encode_command_frames(session.channel, command, None, None, 4096)
    assert frame in came


@pytest.mark.parametrize("is_push", [False, True])
def test_a_message_that_the_destination_had_not_stored_comes_again(is_push: bool) -> None:
    linked = Linked("near", "far")
    source, destination = linked.worlds if is_push else reversed(linked.worlds)
    source.durable_queue("q")
    destination.durable_queue("kept")
    queue(destination, "kept", "amq.fanout")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=is_push, sync=1)
    source.open_client().publish("q", b"one", **PERSISTENT)
    linked.rest()
    source.store.end_flush()
    linked.rest()
    linked.wires[-1].cut()
    linked.rest()
    assert on(source, "q") == [b"one"]
    assert source.broker.default_host.queues["q"].available_count == 1
    linked.pass_time()
    linked.sync()
    assert on(source, "q") == []
    assert on(destination, "kept") == [b"one", b"one"]


def test_acknowledgements_are_batched_but_never_wait_for_more_messages() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    queue(near, "here", "amq.fanout")
    client = queue(far, "q")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, sync=50)
    for _ in range(3):
        client.publish("q", b"x")
    linked.rest()
    assert on(far, "q") == []
    assert len(on(near, "here")) == 3


def test_without_acknowledgements_a_message_leaves_its_source_when_it_is_sent() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    queue(near, "here", "amq.fanout")
    client = queue(far, "q")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True)
    client.publish("q", b"x")
    far.run()
    assert on(far, "q") == []


def test_a_bridge_without_its_source_begins_when_that_is_there() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    queue(near, "here", "amq.fanout")
    linked.bridge(0, 1, "late", "amq.fanout", source_is_queue=True)
    (bridge,) = linked.federations[0].bridges.values()
    assert not bridge.is_active
    assert "late" in bridge.last_error
    queue(far, "late").publish("late", b"one")
    linked.federations[0].start()
    linked.rest()
    assert bridge.is_active
    assert on(near, "here") == [b"one"]


def test_a_bridge_waits_for_the_exchange_of_its_destination() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    client = queue(far, "q")
    linked.bridge(0, 1, "q", "mine", source_is_queue=True)
    client.publish("q", b"one")
    linked.rest()
    assert on(far, "q") == [b"one"]
    near.open_client().command("exchange.declare", exchange="mine", type="fanout")
    near.run()
    queue(near, "here", "mine")
    linked.federations[0].start()
    linked.rest()
    assert on(near, "here") == [b"one"]


def test_a_pushed_message_is_followed_by_a_sync_since_qpidd_answers_only_to_that() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    client = queue(near, "q")
    queue(far, "kept", "amq.fanout")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=True, sync=10)
    (session,) = linked.wires[-1].near_machine.sessions.values()
    before = session.sent
    for number in range(3):
        client.publish("q", b"x")
        linked.rest()
        assert session.sent == before + 2 * (number + 1)
    (received,) = linked.wires[-1].far_machine.sessions.values()
    assert received.received == session.sent
    assert on(near, "q") == []


@pytest.mark.parametrize("is_push", [False, True])
def test_runs_pass_as_runs(is_push: bool) -> None:
    linked = Linked("near", "far")
    source, destination = linked.worlds if is_push else reversed(linked.worlds)
    client = queue(source, "q")
    queue(destination, "kept", "amq.fanout")
    linked.bridge(0, 1, "q", "amq.fanout", source_is_queue=True, source_is_local=is_push, sync=10)
    payload = encode_command("message.transfer", destination="")
    wanted = bodies(200)
    frames = [encode_command_frames(1, payload, header(routing_key="q"), body, 65535) for body in wanted]
    client.send(b"".join(b"".join(each) for each in frames))
    linked.rest()
    assert on(source, "q") == []
    kept = destination.broker.default_host.queues["kept"]
    assert sum(count for _, count in runs_on(kept)) > 150
    assert on(destination, "kept") == wanted


def test_closing_a_bridge_deletes_its_queue_at_the_source() -> None:
    linked = Linked("near", "far")
    far = linked.worlds[1]
    name = linked.bridge(0, 1, "amq.topic", "amq.topic", "a")
    assert len(far.broker.default_host.queues) == 1
    linked.do(linked.federations[0].delete_bridge(name, BROKER))
    assert far.broker.default_host.queues == {}
    assert linked.federations[0].bridges == {}


def test_closing_a_link_closes_its_bridges() -> None:
    linked = Linked("near", "far")
    linked.bridge(0, 1, "amq.topic", "amq.topic", "a")
    link = linked.federations[0].links["link-0-1"]
    linked.do(linked.federations[0].delete_link("link-0-1", BROKER))
    assert link.link.state is LinkState.CLOSED
    assert linked.federations[0].bridges == linked.federations[0].links == {}
    assert linked.worlds[1].broker.default_host.queues == {}


@pytest.mark.parametrize("seconds", [7, 120])
def test_links_have_the_heartbeats_of_the_option(seconds: int) -> None:
    linked = Linked("near", "far", link_heartbeat_seconds=seconds)
    linked.link(0, 1)
    connection = linked.federations[0].links["link-0-1"].connection
    assert connection is not None
    assert connection.heartbeat == seconds


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_a_link_that_is_lost_is_made_again_after_the_interval_of_the_option(seconds: float) -> None:
    linked = Linked("near", "far", link_maintenance_seconds=seconds)
    linked.link(0, 1)
    link = linked.federations[0].links["link-0-1"].link
    waits: list[float] = []
    link._call_later = lambda wait, _function: waits.append(wait) or Mock()
    link._lost(link._number, "Closed by peer")
    assert waits == [seconds]


def test_a_link_over_tls_learns_only_addresses_with_tls() -> None:
    link = Link(Mock(), Remote("one", 5671, "ssl"), Mock(), Mock())
    link.learn(remotes_in("amqp:tcp:one:5672,ssl:two:5671"))
    assert link.learned == (Remote("two", 5671, "ssl"),)


def test_a_port_of_very_many_digits_is_no_address() -> None:
    assert remotes_in("amqp:tcp:one:" + "1" * 5000) == []


def test_a_link_learns_the_addresses_that_the_other_broker_announces() -> None:
    linked = Linked("near", "far", known_hosts="amqp:tcp:one:5672,ssl:two:5671,rdma:three:5672")
    linked.link(0, 1)
    assert linked.federations[0].links["link-0-1"].link.learned == (Remote("one", 5672), Remote("two", 5671, "ssl"))


def test_a_link_learns_addresses_that_change() -> None:
    linked = Linked("near", "far")
    _, announced = (KnownHosts(world.broker, new_transfer) for world in linked.worlds)
    linked.link(0, 1)
    link = linked.federations[0].links["link-0-1"].link
    assert link.learned == ()
    announced.announce("amqp:tcp:one:5672,ssl:two:5671")
    linked.rest()
    assert link.learned == (Remote("one", 5672), Remote("two", 5671, "ssl"))
    announced.announce("amqp:tcp:three:5672")
    linked.rest()
    assert link.learned == (Remote("three", 5672),)
    linked.wires[-1].cut()
    linked.pass_time()
    assert link.state is LinkState.OPERATIONAL
    announced.announce("amqp:tcp:four:5672")
    linked.rest()
    assert link.learned == (Remote("four", 5672),)


def test_a_link_learns_no_addresses_that_others_send_to_its_queue() -> None:
    linked = Linked("near", "far")
    far = linked.worlds[1]
    KnownHosts(linked.worlds[0].broker, new_transfer)
    KnownHosts(far.broker, new_transfer).announce("amqp:tcp:one:5672")
    linked.link(0, 1)
    linked.rest()
    (name,) = [each for each in far.broker.default_host.queues if each.startswith("qpid.failover")]
    forged = header(
        {"application_headers": typed_map({"amq.failover": ["amqp:tcp:evil:5672"]})},
        routing_key=name, exchange="amq.failover",
    )  # fmt: skip
    client = far.open_client(name=b"of evil")
    client.command("message.transfer", header=forged, body=b"")
    linked.rest()
    assert linked.federations[0].links["link-0-1"].link.learned == (Remote("one", 5672),)


# ---- what the other broker may do ----


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("queue.delete", {"queue": "here"}),
        ("message.subscribe", {"queue": "here", "destination": "x"}),
        ("message.transfer", {"destination": "amq.direct"}),
        ("message.accept", {"transfers": ((0, 0),)}),
    ],
)
def test_the_other_broker_can_only_send_messages_to_the_exchange_of_the_route(
    command: str, values: dict[str, object]
) -> None:
    linked = Linked("near", "far")
    near, _ = linked.worlds
    queue(near, "here", "amq.direct")
    linked.bridge(0, 1, "amq.topic", "amq.topic", "a")
    wire = linked.wires[-1]
    (session,) = wire.far_machine.sessions.values()
    session.send_payload(encode_command(command, **values), *((b"", b"x") if command == "message.transfer" else ()))
    linked.rest()
    (bridge,) = linked.federations[0].bridges.values()
    assert "does not take this command" in bridge.last_error
    assert on(near, "here") == []
    assert "here" in near.broker.default_host.queues


@pytest.mark.parametrize("values", [{}, {"destination": "amq.direct"}])
def test_the_other_broker_can_send_no_messages_on_a_push_route(values: dict[str, object]) -> None:
    linked = Linked("near", "far")
    near, _ = linked.worlds
    queue(near, "here", "amq.direct")
    linked.bridge(0, 1, "amq.topic", "amq.topic", "a", source_is_local=True)
    (session,) = linked.wires[-1].far_machine.sessions.values()
    header = encode_struct(DELIVERY_PROPERTIES, {"routing_key": "here"})
    session.send_payload(encode_command("message.transfer", **values), header, b"x")
    linked.rest()
    (bridge,) = linked.federations[0].bridges.values()
    assert "does not take this command" in bridge.last_error
    assert on(near, "here") == []


def test_a_deleted_durable_push_route_takes_its_queue_with_it() -> None:
    linked = Linked("near", "far")
    near, federation = linked.worlds[0], linked.federations[0]
    login = RemoteLogin("ANONYMOUS")
    linked.do(federation.create_link(LinkSettings("l", Remote("here", 2), durable=True, login=login), BROKER))
    linked.rest()
    settings = BridgeSettings("b", "l", True, "amq.topic", "amq.fanout", "a.#", source_is_local=True)
    linked.do(federation.create_bridge(settings, BROKER))
    linked.rest()
    assert federation.bridges["b"].queue in near.broker.default_host.queues
    linked.do(federation.delete_bridge("b", BROKER))
    assert near.broker.default_host.queues == {}


def test_the_other_broker_cannot_attach_sessions() -> None:
    linked = Linked("near", "far")
    linked.link(0, 1)
    wire = linked.wires[-1]
    wire.far_machine.send_frame(control_frame(7, "session.attach", name=b"evil"))
    linked.rest()
    assert isinstance(wire.near_machine, LinkConnection)
    assert all(isinstance(each, LinkSession) for each in wire.near_machine.sessions.values())
    assert 7 not in wire.near_machine.sessions


# ---- dynamic routes ----


def test_bindings_are_announced_and_taken_back() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    client = queue(near, "here", "amq.topic", "a.*")
    linked.bridge(0, 1, "amq.topic", "amq.topic", dynamic=True)
    (name,) = far.broker.default_host.queues
    assert keys(far, "amq.topic") == [(name, "a.*")]
    client.command("exchange.bind", queue="here", exchange="amq.topic", binding_key="b")
    linked.rest()
    assert keys(far, "amq.topic") == [(name, "a.*"), (name, "b")]
    far.open_client().publish("a.x", b"one", exchange="amq.topic")
    linked.rest()
    assert on(near, "here") == [b"one"]
    client.command("exchange.unbind", queue="here", exchange="amq.topic", binding_key="a.*")
    linked.rest()
    assert keys(far, "amq.topic") == [(name, "b")]
    client.command("queue.delete", queue="here")
    linked.rest()
    assert keys(far, "amq.topic") == []


def test_a_key_is_wanted_as_long_as_one_queue_wants_it() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    linked.bridge(0, 1, "amq.direct", "amq.direct", dynamic=True)
    first, second = queue(near, "first", "amq.direct", "k"), queue(near, "second", "amq.direct", "k")
    linked.rest()
    assert len(keys(far, "amq.direct")) == 1
    first.command("queue.delete", queue="first")
    linked.rest()
    assert len(keys(far, "amq.direct")) == 1
    second.command("queue.delete", queue="second")
    linked.rest()
    assert keys(far, "amq.direct") == []


def test_bindings_reach_brokers_two_links_away() -> None:
    linked = Linked("a", "b", "c")
    a, b, c = linked.worlds
    linked.bridge(0, 1, "amq.topic", "amq.topic", dynamic=True)
    client = queue(a, "here", "amq.topic", "k")
    linked.bridge(1, 2, "amq.topic", "amq.topic", dynamic=True)
    assert [key for _, key in keys(c, "amq.topic")] == ["k"]
    c.open_client().publish("k", b"one", exchange="amq.topic")
    linked.rest()
    assert on(a, "here") == [b"one"]
    client.command("queue.delete", queue="here")
    linked.rest()
    assert keys(c, "amq.topic") == keys(b, "amq.topic") == []


def test_bindings_of_a_broker_that_is_lost_are_taken_back() -> None:
    linked = Linked("a", "b", "c")
    a, b, c = linked.worlds
    queue(a, "here", "amq.topic", "k")
    linked.bridge(0, 1, "amq.topic", "amq.topic", dynamic=True)
    linked.bridge(1, 2, "amq.topic", "amq.topic", dynamic=True)
    assert len(keys(c, "amq.topic")) == 1
    linked.wires[0].cut()
    linked.rest()
    assert keys(b, "amq.topic") == keys(c, "amq.topic") == []
    linked.pass_time()
    assert len(keys(b, "amq.topic")) == len(keys(c, "amq.topic")) == 1


@replaces
@pytest.mark.parametrize("way", ["remembered", "swept"])
def test_a_durable_route_takes_back_bindings_that_vanished_while_it_was_down(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    client = queue(near, "here", "amq.topic", "stays")
    for key in ("gone", "also.gone"):
        client.command("exchange.bind", queue="here", exchange="amq.topic", binding_key=key)
    federation, login = linked.federations[0], RemoteLogin("ANONYMOUS")
    linked.do(federation.create_link(LinkSettings("l", Remote("here", 2), durable=True, login=login), BROKER))
    linked.rest()
    settings = BridgeSettings("b", "l", True, "amq.topic", "amq.topic", dynamic=True)
    linked.do(federation.create_bridge(settings, BROKER))
    linked.sync()
    assert {key for _, key in keys(far, "amq.topic")} == {"stays", "gone", "also.gone"}
    queue(far, "other", "amq.topic", "of a client")
    linked.wires[-1].cut()
    linked.rest()
    if way == "remembered":  # as with a broker that cannot sweep
        monkeypatch.setattr("qstore.broker.protocols.amqp_0_10.link_connection.SWEEPS", "unknown")
    else:  # as after a restart
        federation.bridges["b"]._kept.clear()
    for key in ("gone", "also.gone"):
        client.command("exchange.unbind", queue="here", exchange="amq.topic", binding_key=key)
    client.command("exchange.bind", queue="here", exchange="amq.topic", binding_key="new")
    linked.rest()
    assert "gone" in {key for _, key in keys(far, "amq.topic")}
    linked.pass_time()
    linked.sync()
    assert {key for _, key in keys(far, "amq.topic")} == {"stays", "new", "of a client"}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_messages_come_once_and_do_not_return_around_a_circle(count: int) -> None:
    linked = Linked(*"abcd"[:count])
    for near in range(count):
        for far in {(near + 1) % count, (near - 1) % count} - {near}:
            linked.bridge(near, far, "amq.topic", "amq.topic", dynamic=True)
    for number, world in enumerate(linked.worlds):
        queue(world, f"q{number}", "amq.topic", "k")
    linked.rest()
    linked.worlds[0].open_client().publish("k", b"one", exchange="amq.topic")
    linked.rest()
    counts = [len(on(world, f"q{number}")) for number, world in enumerate(linked.worlds)]
    assert counts[0] == 1, "it has come back to its broker"
    assert all(1 <= each <= 2 for each in counts), "one by each way around the circle"
    assert count > 2 or counts == [1, 1]


def test_the_trace_has_the_names_of_the_brokers_that_were_passed() -> None:
    linked = Linked("a", "b", "c")
    a, _, c = linked.worlds
    queue(a, "here", "amq.fanout")
    linked.bridge(0, 1, "amq.fanout", "amq.fanout", dynamic=True)
    linked.bridge(1, 2, "amq.fanout", "amq.fanout", dynamic=True)
    c.open_client().publish("", b"one", exchange="amq.fanout")
    linked.rest()
    (entry,) = a.broker.default_host.queues["here"].entries()
    assert entry.message.header_text(TRACE) == "c,b"


def test_a_binding_without_a_key_is_taken_back() -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    linked.bridge(0, 1, "amq.fanout", "amq.fanout", dynamic=True)
    client = queue(near, "here", "amq.fanout")
    linked.rest()
    assert len(keys(far, "amq.fanout")) == 1
    client.command("exchange.unbind", queue="here", exchange="amq.fanout", binding_key="")
    linked.rest()
    assert keys(far, "amq.fanout") == []


@pytest.mark.parametrize("match", ["all", "any"])
def test_criteria_of_headers_are_announced(match: str) -> None:
    linked = Linked("near", "far")
    near, far = linked.worlds
    linked.bridge(0, 1, "amq.match", "amq.match", dynamic=True)
    queue(near, "one", "amq.match", "k", **{"x-match": match, "class": "first"})
    queue(near, "two", "amq.match", "k", **{"x-match": match, "class": "second"})
    linked.rest()
    assert len(keys(far, "amq.match")) == 2
    client = far.open_client()
    for value in ("first", "second", "third"):
        headers = {"application_headers": typed_map({"class": value})}
        client.command("message.transfer", destination="amq.match", header=header(headers), body=value.encode())
    linked.rest()
    assert (on(near, "one"), on(near, "two")) == ([b"first"], [b"second"])
