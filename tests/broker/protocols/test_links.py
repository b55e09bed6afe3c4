"""AMQP 1.0: connections, sessions and links, and what their errors end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.arguments import OF_SUBSCRIPTION
from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.broker.model.errors import ResourceLockedError
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_1_0.addresses import Node, NodeKind, node_of, target_of
from qstore.broker.protocols.amqp_1_0.assembly import usual_transfer
from qstore.broker.protocols.amqp_1_0.attaching import Attach
from qstore.broker.protocols.amqp_1_0.links import CREDIT, MAX_UNSETTLED, Delivery, OutgoingLink
from qstore.broker.protocols.amqp_1_0.message import SectionMessage
from qstore.broker.protocols.amqp_1_0.session import WINDOW, Session
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.security.authentication import Authentication, LoginOptions
from qstore.broker.security.sasl.scram import ScramClient
from qstore.broker.security.users.user_file import Users
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_1_0.composites import BY_NAME, Composite, encode_composite, read_fields
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, FRAME, HEARTBEAT_FRAME, SASL_HEADER
from qstore.formats.amqp_1_0.sections import MESSAGE_ANNOTATIONS, PROPERTIES, VALUE, data_section, encode_section
from qstore.formats.amqp_1_0.values import Amqp10Error, Described, Value
from qstore.formats.values import STR16, TypedMap, TypedValue
from qstore.tools.qstore_passwd import command as qstore_passwd
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.sections_peer import ACCEPTED, REJECTED, RELEASED, address, content

MODIFIED = Composite("modified", {"delivery_failed": True})
TRANSIENT: dict[str, Any] = {"durable": False}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> LinksClient:
    make_queue(world)
    return LinksClient(world).open()


def names(client: LinksClient) -> list[str]:
    return [each.name for each in client.take()]


# ---- opening ----


def test_sasl_comes_before_amqp(world: World) -> None:
    client = LinksClient(world)
    client.send(SASL_HEADER)
    client.sync()
    (offered,) = client.take()
    assert (client.headers, offered.name) == ([SASL_HEADER], "sasl-mechanisms")
    assert "ANONYMOUS" in offered.fields["sasl_server_mechanisms"]
    assert client.call("sasl-init", mechanism="ANONYMOUS").fields["code"] == 0
    client.start()
    assert [each.name for each in client.take()][-1] == "open"
    assert (client.headers, client.machine.user) == ([SASL_HEADER, AMQP_HEADER], "anonymous@QPID")


def test_everything_may_be_sent_at_once(world: World) -> None:
    make_queue(world)
    client = LinksClient(world)
    begin = {"next_outgoing_id": 5, "incoming_window": 10, "outgoing_window": 10}
    target = Composite("target", {"address": Value("string", "q")})
    data = SASL_HEADER + client.encode("sasl-init", mechanism="PLAIN", initial_response=b"\0guest\0guest")
    data += AMQP_HEADER + client.encode("open", container_id="c") + client.encode("begin", 3, **begin)
    data += client.encode("attach", 3, name="l", handle=4, role=False, target=target, initial_delivery_count=9)
    for at in range(0, len(data), 7):
        client.send(data[at : at + 7])
    client.sync()
    client.world.run()
    client.sync()
    assert names(client) == ["sasl-mechanisms", "sasl-outcome", "open", "begin", "attach", "flow"]


def test_scram_proves_both_ends(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert CliRunner().invoke(qstore_passwd, ["--stdin", str(users), "ann"], input="secret\n").exit_code == 0
    world = World(BrokerSettings(auth=True), Authentication(LoginOptions(), Users(str(users))))
    client = LinksClient(world)
    client.send(SASL_HEADER)
    client.sync()
    assert "SCRAM-SHA-256" in client.take()[0].fields["sasl_server_mechanisms"]
    mechanism = ScramClient("SCRAM-SHA-256", "ann", "secret")
    client.do("sasl-init", mechanism="SCRAM-SHA-256", initial_response=mechanism.start())
    for _ in range(2):
        for check, done in client.host.checks:
            done(check.run())
        client.host.checks.clear()
        client.sync()
        for each in client.take("sasl-challenge"):
            client.do("sasl-response", response=mechanism.step(each.fields["challenge"]))
    client.sync()
    (outcome,) = client.take()
    assert (outcome.fields["code"], client.machine.user, mechanism.is_complete) == (0, "ann@QPID", True)


def test_a_failed_login_is_an_outcome(world: World) -> None:
    client = LinksClient(world)
    client.send(SASL_HEADER)
    outcome = client.call("sasl-init", mechanism="NONSENSE")
    assert (outcome.name, outcome.fields["code"], client.host.is_closed) == ("sasl-outcome", 1, True)


@pytest.mark.parametrize("header", [b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x01\x01\x00"])
def test_another_header_is_answered_with_that_of_sasl(world: World, header: bytes) -> None:
    client = LinksClient(world)
    client.send(header)
    client.sync()
    assert (client.headers, client.host.is_closed) == ([SASL_HEADER], True)


def test_without_sasl_only_anonymous_clients_come_in() -> None:
    world = World(BrokerSettings(auth=True, sasl_mechanisms=("PLAIN",)))
    world.authentication.mechanisms = lambda _link, **_: ("PLAIN",)  # type: ignore[method-assign]
    client = LinksClient(world)
    client.send(AMQP_HEADER)
    client.sync()
    assert (client.headers, client.host.is_closed) == ([SASL_HEADER], True)


def test_open_says_what_the_broker_accepts(world: World) -> None:
    client = LinksClient(world).start()
    (opened,) = client.take()
    fields = opened.fields
    assert fields["max_frame_size"] == 131_072
    assert fields["idle_time_out"] == 60_000
    assert fields["offered_capabilities"] == ("ANONYMOUS-RELAY", "DELAYED_DELIVERY")


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"max_frame_size": 511}, "amqp:invalid-field"),
        ({"idle_time_out": 10}, "amqp:not-allowed"),
        ({"hostname": "vhost:nowhere"}, "amqp:not-found"),
    ],
)
def test_open_is_answered_and_then_refused(world: World, fields: dict[str, Any], condition: str) -> None:
    client = LinksClient(world).start(**fields)
    client.sync()
    assert [each.name for each in client.received] == ["open", "close"]
    assert client.error("close") == condition
    client.do("close")
    client.sync()
    assert client.host.is_closed


@pytest.mark.parametrize("fields", [{"hostname": "vhost:nowhere"}, {"idle_time_out": 10}], ids=str)
def test_open_is_refused_without_a_frame_as_by_rabbitmq(fields: dict[str, Any]) -> None:
    """Its client for Python connects again for ever after a close."""
    client = LinksClient(World(BrokerSettings(auth=False, rabbitmq_version="4.1.0"))).start(**fields)
    client.sync()
    assert client.received == []
    assert client.host.is_closed


def test_a_refused_client_is_told_why(world: World) -> None:
    client = LinksClient(world, refusal="too many").start()
    assert client.error("close") == "amqp:unauthorized-access"


def test_a_host_name_selects_the_virtual_host(world: World) -> None:
    asyncio.run(world.broker.virtual_hosts.create("other"))
    assert LinksClient(world).open(hostname="vhost:other").machine.vhost == "other"
    assert LinksClient(world).open(hostname="other").machine.vhost == "other"
    assert LinksClient(world).open(hostname="broker.example.com").machine.vhost == "/"
    assert LinksClient(world).open().machine.vhost == "/"


def test_idle_connections_get_heartbeats_and_silent_ones_are_closed(world: World) -> None:
    client = LinksClient(world).open(idle_time_out=10_000)
    for _ in range(12):
        world.now += 0.5
        client.machine.on_timer(world.now)
        client.sync()
    assert names(client) == [""]
    world.now += 115
    client.send(HEARTBEAT_FRAME)
    client.machine.on_timer(world.now)
    world.now += 119
    client.machine.on_timer(world.now)
    assert client.machine.phase is Phase.OPEN
    world.now += 2
    client.machine.on_timer(world.now)
    assert client.error("close") == "amqp:resource-limit-exceeded"
    assert client.host.is_closed


def test_close_is_answered(client: LinksClient) -> None:
    client.do("close")
    client.sync()
    assert (names(client), client.host.is_closed) == (["close"], True)


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (FRAME.pack(200_000, 2, 0, 0), "amqp:decode-error"),
        (FRAME.pack(12, 2, 0, 0) + b"\0\x53\x99\x45", "amqp:decode-error"),
        (FRAME.pack(12, 2, 0, 0) + b"\0\x53\x11\x45", "amqp:invalid-field"),
        (FRAME.pack(12, 2, 7, 0) + b"\0\x53\x17\x45", "amqp:connection:framing-error"),
        (FRAME.pack(12, 2, 0, 0) + b"\0\x53\x70\x45", "amqp:connection:framing-error"),
        (AMQP_HEADER, "amqp:connection:framing-error"),
        (LinksClient.encode("flow", 9, incoming_window=1, next_outgoing_id=0, outgoing_window=1), "amqp:not-allowed"),
        (LinksClient.encode("open", container_id="again"), "amqp:illegal-state"),
        (LinksClient.encode("begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1), "amqp:not-allowed"),
    ],
)
def test_an_invalid_frame_closes_the_connection(client: LinksClient, data: bytes, condition: str) -> None:
    client.send(data)
    client.send(client.encode("end"))
    assert client.error("close") == condition
    client.do("close")
    client.sync()
    assert client.host.is_closed


# ---- links ----


@pytest.mark.parametrize(
    ("node", "options", "condition"),
    [
        ("nowhere", {}, "amqp:not-found"),
        ("nowhere", {"receives": True}, "amqp:not-found"),
        ("/queues/nowhere", {}, "amqp:not-found"),
        ("/exchanges/nowhere/k", {}, "amqp:not-found"),
        ("/queues/a/b", {}, "amqp:invalid-field"),
        ("/queues/%zz", {}, "amqp:invalid-field"),
        ("/queues/%ff", {}, "amqp:invalid-field"),
        ("/exchanges/amq.topic", {"receives": True}, "amqp:invalid-field"),
        (None, {"receives": True}, "amqp:invalid-field"),
        ("q", {"receives": True, "terminus": {"distribution_mode": "other"}}, "amqp:not-implemented"),
        ("q", {"terminus": {"dynamic": True}}, "amqp:invalid-field"),
        ("amq.topic", {"terminus": {"capabilities": ("queue",)}}, "amqp:not-found"),
    ],
)
def test_a_link_that_cannot_be_is_detached_with_a_condition(
    client: LinksClient, node: str | None, options: dict[str, Any], condition: str
) -> None:
    came = client.attach(node, **options)
    assert [each.name for each in came] == ["attach", "detach"]
    assert came[0].fields.get("source" if options.get("receives") else "target") is None
    assert came[1].fields["error"].fields["condition"] == condition
    client.do("detach", handle=0, closed=True)
    client.sender("q")  # the handle is free again


def test_unknown_filters_are_refused_by_name(client: LinksClient) -> None:
    unknown = ((Value("symbol", "x"), Value("described", Described(Value("symbol", "a:b"), Value("string", "c")))),)
    client.attach("q", 4, receives=True, terminus={"filter": unknown})
    client.do("detach", handle=4, closed=True)
    came = client.attach("q", 5, receives=True, terminus={"filter": unknown})
    assert came[1].fields["error"].fields["condition"] == "amqp:not-implemented"


@pytest.mark.parametrize(
    ("performative", "fields", "condition"),
    [
        ("detach", {"handle": 7}, "amqp:session:unattached-handle"),
        ("flow", {"handle": 7, "incoming_window": 1, "next_outgoing_id": 0, "outgoing_window": 1},
         "amqp:session:unattached-handle"),
        ("attach", {"name": "n", "handle": 0, "role": False}, "amqp:session:handle-in-use"),
        ("attach", {"name": "n", "handle": 1 << 31, "role": False}, "amqp:not-allowed"),
    ],
)  # fmt: skip
def test_an_error_of_a_session_ends_it_alone(
    client: LinksClient, performative: str, fields: dict[str, Any], condition: str
) -> None:
    client.do("begin", 1, next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    client.sender("q", channel=1)
    client.sender("q")
    client.take()
    client.do(performative, **fields)
    assert client.error("end") == condition
    client.publish()  # in flight: ignored
    client.do("end")
    client.publish(channel=1, **TRANSIENT)
    assert client.outcomes() == [(0, 0, "accepted")]
    client.do("begin", next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    assert names(client) == ["begin"]


def test_detach_and_end_are_answered(client: LinksClient) -> None:
    client.sender("q")
    client.do("detach", handle=0, closed=True)
    (came,) = client.take()
    assert (came.name, came.fields["closed"]) == ("detach", True)
    client.do("end")
    assert names(client) == ["end"]


# ---- sending to the broker ----


def test_a_message_is_accepted_when_it_is_on_the_disk(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    for _ in range(3):
        client.publish()
    assert client.outcomes() == []
    world.store.end_flush()
    assert client.outcomes() == [(0, 2, "accepted")]


def test_outcomes_may_come_in_another_order(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    client.publish()
    client.publish(durable=False)
    client.publish()
    client.publish(durable=False, settled=True)
    client.publish(durable=False)
    assert client.outcomes() == [(1, 1, "accepted"), (4, 4, "accepted")]
    world.store.end_flush()
    assert client.outcomes() == [(0, 0, "accepted"), (2, 2, "accepted")]


def test_a_failed_write_is_rejected(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    client.publish()
    client.publish()
    client.sync()
    world.store.end_flush(OSError("the disk is gone"))
    assert client.outcomes() == [(0, 1, "rejected")]
    world.store.failing = world.store.FullError("no room")
    client.publish()
    assert client.outcomes() == [(2, 2, "rejected")]


def test_a_full_queue_rejects(world: World) -> None:
    make_queue(world, "full", arguments={"qpid.max_count": 1, "qpid.flow_stop_count": 0})
    client = LinksClient(world).open().sender("full")
    for _ in range(2):
        client.publish(durable=False)
    (accepted, rejected) = client.take("disposition")
    assert accepted.fields["state"].name == "accepted"
    assert rejected.fields["state"].fields["error"].fields["condition"] == "amqp:resource-limit-exceeded"


def test_a_message_of_many_frames(world: World, client: LinksClient) -> None:
    client.sender("q")
    body = bytes(range(256)) * 400
    client.publish(body, durable=False)
    assert client.outcomes() == [(0, 0, "accepted")]
    other = LinksClient(world).open().receiver("q")
    (found,) = other.messages()
    assert found.content.endswith(body)


def test_links_of_one_session_may_send_their_frames_in_turns(world: World, client: LinksClient) -> None:
    make_queue(world, "other")
    client.sender("q", 0).sender("other", 1)
    ours = client.transfers(0, 0, content(b"a" * 9_000, durable=False))
    theirs = client.transfers(1, 1, content(b"b" * 9_000, durable=False))
    for pair in zip(ours, theirs, strict=True):
        for frame in pair:
            client.send(frame)
    assert client.outcomes() == [(0, 1, "accepted")]
    assert [queue.message_bytes for queue in map(world.broker.default_host.queues.get, ("q", "other")) if queue] == [
        9_015, 9_015,
    ]  # fmt: skip


def test_an_aborted_message_is_gone(world: World, client: LinksClient) -> None:
    client.sender("q")
    first, *_ = client.transfers(0, 0, content(b"a" * 9_000, durable=False))
    client.send(first)
    client.do("transfer", handle=0, aborted=True)
    client.sent[0] = 1
    client.publish(durable=False)
    assert client.outcomes() == [(1, 1, "accepted")]
    assert world.broker.default_host.queues["q"].message_count == 1
    assert client.machine.assembler.pending_bytes == 0


def test_a_message_that_is_too_large_detaches_its_link() -> None:
    world = World(BrokerSettings(auth=False, max_message_bytes=5_000))
    make_queue(world)
    client = LinksClient(world).open()
    (attached, _) = client.attach("q")
    assert attached.fields["max_message_size"] == 5_000
    client.publish(bytes(20_000))
    assert client.error("detach") == "amqp:link:message-size-exceeded"
    client.do("detach", handle=0, closed=True)
    client.sender("q", 0)
    client.publish(b"x", durable=False)
    assert client.outcomes() == [(1, 1, "accepted")]
    assert client.machine.assembler.pending_bytes == 0


def test_credit_is_renewed_and_must_not_be_exceeded(client: LinksClient) -> None:
    client.attach("q")
    for _ in range(CREDIT // 2 + 1):
        client.publish(durable=False)
    flows = client.take("flow")
    assert [each.fields["link_credit"] for each in flows] == [CREDIT]
    assert flows[0].fields["delivery_count"] == CREDIT // 2 + 1
    data = b"".join(
        frame
        for number in range(CREDIT // 2 + 1, 3 * CREDIT)
        for frame in client.transfers(0, number, content(b"x", durable=False))
    )
    client.machine.assembler.max_at_once = 1 << 30
    client.send(data)
    assert client.error("detach") == "amqp:link:transfer-limit-exceeded"


def test_no_credit_is_given_while_messages_wait_for_the_disk(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open()
    client.attach("d")
    for _ in range(CREDIT):
        client.publish()
    assert client.take("flow") == []
    world.store.end_flush()
    assert client.take("flow")[-1].fields["link_credit"] == CREDIT


def test_the_window_is_renewed_and_must_not_be_exceeded(client: LinksClient) -> None:
    client.sender("q")
    client.machine.assembler.max_at_once = 1 << 30
    part = client.encode("transfer", 0, b"x", handle=0, more=True)
    client.send(client.encode("transfer", 0, b"x", handle=0, more=True, delivery_id=0, delivery_tag=b"0"))
    client.send(part * (WINDOW // 2))
    assert client.take("flow")[-1].fields["incoming_window"] == WINDOW
    client.send(part * (WINDOW + 1))
    assert client.error("end") == "amqp:session:window-violation"
    assert client.machine.assembler.pending_bytes == 0


def test_invalid_messages_are_rejected_and_others_go_on(client: LinksClient) -> None:
    client.sender("q")
    client.publish(message=b"nonsense")
    client.publish(durable=False)
    client.publish(durable=False, message_format=7)
    found = client.take("disposition")
    assert [each.fields["state"].name for each in found] == ["rejected", "accepted", "rejected"]
    conditions = [each.fields["state"].fields["error"].fields["condition"] for each in (found[0], found[2])]
    assert conditions == ["amqp:decode-error", "amqp:not-implemented"]


@pytest.mark.parametrize(
    "sections",
    [
        data_section(100_000) + bytes(100_000) + b"\xff" * 80_000,
        b"\0\x53\x75\xb0\x40\0\0\0" + bytes(150_000),
        (data_section(0) + data_section(1) + b"x") * 20_000,
    ],
    ids=["garbage after the body", "a size beyond the end", "very many sections"],
)
def test_the_sections_of_a_large_message_are_checked(client: LinksClient, sections: bytes) -> None:
    client.max_frame = 60_000
    client.sender("q")
    begin = time.process_time()
    client.publish(message=sections)
    assert time.process_time() - begin < 0.2
    assert [each[2] for each in client.outcomes()] == ["rejected"]


def test_large_messages_of_any_sections_are_accepted_and_restored(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open()
    client.max_frame = 60_000
    client.sender("d")
    header = encode_composite("header", {"durable": True})
    one, value = data_section(70_000) + b"x" * 70_000, encode_section(VALUE, Value("string", "y" * 150_000))
    annotations = encode_section(
        MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-a"), Value("binary", bytes(99_000))),))
    )
    bodies = (one, one + one, value, annotations + one, encode_section(0x71, Value("map", ())) + one + one)
    for body in bodies:
        client.publish(message=header + body)
    write(world, client)
    client.receiver("d", 1)
    restored = [restore_message(each) for each in world.store.enqueued]
    for each, delivered, body in zip(restored, client.messages(), bodies, strict=True):
        assert isinstance(each, SectionMessage)
        assert (
            delivered.body
            == body.removeprefix(encode_section(0x71, Value("map", ())))
            == (each.header[each.sections.header[1] :] + bytes(each.body))
        )


def test_a_message_that_expired_before_1970_has_expired(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    client.publish(absolute_expiry_time=-1)
    client.publish(durable=False)
    write(world, client)
    assert sorted(client.outcomes()) == [(0, 0, "accepted"), (1, 1, "accepted")]
    assert len(client.receiver("d", 1).messages()) == 1
    (stored,) = world.store.enqueued
    assert restore_message(stored).expires_at == 0.001


def test_a_value_that_is_described_itself_is_a_body(client: LinksClient) -> None:
    point = Described(Value("symbol", "com.example:point:list"), Value("list", (Value("uint", 1),)))
    section = encode_section(VALUE, Value("described", point))
    client.sender("q").publish(message=encode_composite("header", {"durable": False}) + section)
    assert client.outcomes() == [(0, 0, "accepted")]
    assert [each.body for each in client.receiver("q", 1).messages()] == [section]


def test_consumers_of_other_protocols_do_not_get_a_value_with_very_many_others(
    world: World, client: LinksClient
) -> None:
    client.max_frame = 60_000
    nulls = Value("list", tuple(Value("null", None) for _ in range(200_000)))
    client.sender("q").publish(message=encode_section(VALUE, nulls))
    client.publish(b"next", durable=False)
    assert [each[2] for each in client.outcomes()] == ["accepted"]
    other = world.open_client(name=b"other")
    begin = time.process_time()
    other.subscribe("q")
    other.sync()
    assert time.process_time() - begin < 0.3
    assert other.take() == [b"next"]
    assert len(client.receiver("q", 1).messages()) == 1


def test_an_error_of_a_settled_message_detaches_the_link(client: LinksClient) -> None:
    client.sender("q")
    client.publish(message=b"nonsense", settled=True)
    assert client.error("detach") == "amqp:decode-error"


# ---- addresses ----


@pytest.mark.parametrize(
    ("target", "properties", "outcome", "arrives"),
    [
        ("q", {}, "accepted", True),
        ("/queues/q", {}, "accepted", True),
        ("/queues/%71", {}, "accepted", True),
        ("amqps://127.0.0.1:5671/q", {}, "accepted", True),
        ("amqp://host/queues/%71", {}, "accepted", True),
        ("amqp://host/amq.topic/a.b", {}, "accepted", True),
        ("amqp://host/exchanges/amq.topic/a.b", {}, "accepted", True),
        ("amq.topic/a.b", {}, "accepted", True),
        ("amq.topic/c", {}, "accepted", False),
        ("amq.topic", {"subject": "a.x"}, "accepted", True),
        ("/exchanges/amq.topic/a.b", {}, "accepted", True),
        ("/exchanges/amq.topic/a%2Eb", {}, "accepted", True),
        ("/exchanges/amq.topic/c", {}, "released", False),
        ("/exchanges/amq.topic", {"subject": "a.x"}, "released", False),
        (None, {"to": Value("string", "q")}, "accepted", True),
        (None, {"to": Value("string", "/queues/q")}, "accepted", True),
        (None, {"to": Value("string", "amqp://host/q")}, "accepted", True),
        (None, {"to": Value("string", "amqp://host/nowhere")}, "rejected", False),
        (None, {"to": Value("string", "amqp://q")}, "rejected", False),
        (None, {"to": Value("string", "amqp://host/queues/nowhere")}, "released", False),
        (None, {"to": Value("string", "amqp://host/amqp://host/q")}, "rejected", False),
        (None, {"to": Value("string", "/queues/nowhere")}, "released", False),
        (None, {"to": Value("string", "/exchanges/amq.topic/a.z")}, "accepted", True),
        (None, {"to": Value("string", "nowhere")}, "rejected", False),
        (None, {}, "rejected", False),
    ],
)
def test_addresses_of_qpidd_and_of_rabbitmq(
    world: World, client: LinksClient, target: str | None, properties: dict[str, Any], outcome: str, arrives: bool
) -> None:
    bind(world, "q", "amq.topic", "a.*")
    client.sender(target)
    client.publish(durable=False, **properties)
    assert client.outcomes() == [(0, 0, outcome)]
    assert world.broker.default_host.queues["q"].message_count == arrives


def test_a_queue_may_be_named_like_a_url(world: World, client: LinksClient) -> None:
    name = "amqp://host/q"
    make_queue(world, name)
    client.sender(name)
    client.publish(durable=False)
    assert client.outcomes() == [(0, 0, "accepted")]
    assert world.broker.default_host.queues[name].message_count == 1


# ---- receiving ----


def test_messages_come_as_credit_allows(world: World, client: LinksClient) -> None:
    fill(world, 5)
    client.receiver("q", credit=2)
    found = client.messages()
    assert [(each.id, each.body[-1:]) for each in found] == [(0, b"0"), (1, b"1")]
    assert [each.fields["settled"] for each in found] == [False, False]
    client.credit(2, seen=1)  # one of them is on its way
    assert [each.id for each in client.messages()] == [2]
    client.credit(10, seen=3)
    assert [each.id for each in client.messages()] == [3, 4]


@pytest.mark.parametrize(
    ("state", "left", "again", "count"),
    [
        (ACCEPTED, 0, False, 0),
        (REJECTED, 0, False, 0),
        (RELEASED, 1, True, 0),
        (MODIFIED, 1, True, 1),
        (Composite("modified", {}), 1, True, 0),
        (Composite("modified", {"undeliverable_here": True}), 0, False, 0),
        (None, 1, True, 0),
    ],
)
def test_outcomes(
    world: World, client: LinksClient, state: Composite | None, left: int, again: bool, count: int
) -> None:
    fill(world, 1)
    client.receiver("q")
    (first,) = client.messages()
    assert (first.header["first_acquirer"], first.header["delivery_count"]) == (True, 0)
    client.settle(state, first.id)
    found = client.messages()
    assert bool(found) is again
    assert world.broker.default_host.queues["q"].message_count == left
    if again:
        assert found[0].header["delivery_count"] == count


def test_a_range_is_settled_at_once_and_others_stay(world: World, client: LinksClient) -> None:
    fill(world, 6)
    client.receiver("q")
    assert len(client.messages()) == 6
    client.settle(ACCEPTED, 1, 3)
    client.settle(ACCEPTED, 0xFFFFFF00, 0)
    client.settle(ACCEPTED, 4, 0x7FFFFFF0)
    client.sync()
    assert (len(client.machine.sessions[0].unsettled), world.broker.default_host.queues["q"].message_count) == (0, 0)


@pytest.mark.parametrize("state", [ACCEPTED, REJECTED, RELEASED, MODIFIED, None])
@pytest.mark.parametrize("settled", [True, False])
def test_very_many_are_settled_in_turns(
    world: World, client: LinksClient, state: Composite | None, settled: bool
) -> None:
    fill(world, 2_500)
    client.receiver("q", credit=3_000)
    assert len(client.messages()) == 2_500
    client.credit(0, seen=2_500)
    client.take()
    before = world.broker.tick.turns.portions
    client.settle(state, 0, 2_499, settled=settled)
    client.sync()
    queue, unsettled = world.broker.default_host.queues["q"], client.machine.sessions[0].unsettled
    if state is None and not settled:
        assert (len(unsettled), queue.message_count) == (2_500, 2_500)
        return
    assert world.broker.tick.turns.portions - before >= 3
    is_gone = state in (ACCEPTED, REJECTED)
    assert (len(unsettled), queue.acquired_count, queue.message_count) == (0, 0, 0 if is_gone else 2_500)
    if not settled:
        told = [(each.fields["first"], each.fields.get("last")) for each in client.take("disposition")]
        assert (told[0][0], told[-1][1]) == (0, 2_499)
    client.credit(3, seen=2_500)
    assert [each.body[-1:] for each in client.messages()] == ([] if is_gone else [b"0", b"1", b"2"])


def test_other_annotations_of_modified_are_refused_by_name(world: World, client: LinksClient) -> None:
    fill(world, 1)
    client.receiver("q")
    client.messages()
    annotations = ((Value("symbol", "a"), Value("uint", 1)),)
    client.settle(Composite("modified", {"message_annotations": annotations}), 0)
    assert client.error("detach") == "amqp:not-implemented"


def test_the_broker_settles_last_if_it_is_asked_to(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    client.publish()
    client.sync()
    world.store.end_flush()
    client.receiver("d", 1, rcv_settle_mode=1)
    (found,) = client.messages()
    client.take()
    client.settle(ACCEPTED, found.id, settled=False)
    assert client.outcomes() == []
    world.store.end_flush()
    (answer,) = client.take("disposition")
    assert (answer.fields["role"], answer.fields["settled"], answer.fields["first"]) == (False, True, found.id)


def test_outcomes_are_settled_if_the_link_of_a_sender_cannot_be_resumed(client: LinksClient) -> None:
    """Azure's clients ask for the receiver settle mode second, and ignore what is not settled."""
    (attached, *_) = client.attach("q", 0, rcv_settle_mode=1)
    assert attached.fields["rcv_settle_mode"] == 0
    client.publish(b"x", durable=False)
    (found,) = client.take("disposition")
    assert (found.fields["settled"], found.fields["state"].name) == (True, "accepted")


def test_settled_messages_leave_the_queue_when_they_are_sent(world: World, client: LinksClient) -> None:
    fill(world, 2)
    client.receiver("q", snd_settle_mode=1)
    assert [each.fields["settled"] for each in client.messages()] == [True, True]
    assert world.broker.default_host.queues["q"].message_count == 0


def test_a_browser_leaves_the_messages(world: World, client: LinksClient) -> None:
    fill(world, 2)
    client.receiver("q", terminus={"distribution_mode": "copy"})
    assert len(client.messages()) == 2
    client.settle(ACCEPTED, 0, 1)
    client.sync()
    assert world.broker.default_host.queues["q"].message_count == 2


def test_drain_sends_what_there_is_and_takes_the_rest_of_the_credit(world: World, client: LinksClient) -> None:
    fill(world, 3)
    client.receiver("q", credit=0)
    client.credit(10, drain=True)
    client.sync()
    assert [each.name for each in client.received] == ["transfer"] * 3 + ["flow"]
    (flow,) = client.take("flow")
    assert (flow.fields["delivery_count"], flow.fields["link_credit"], flow.fields["drain"]) == (10, 0, True)
    fill(world, 1)
    client.messages()
    client.credit(1, seen=10)
    assert len(client.messages()) == 1


def test_echo_is_answered(client: LinksClient) -> None:
    client.receiver("q", credit=0)
    client.credit(7, echo=True)
    (flow,) = client.take("flow")
    assert (flow.fields["link_credit"], flow.fields["available"]) == (7, 0)
    client.do("flow", incoming_window=9, next_incoming_id=0, next_outgoing_id=0, outgoing_window=1, echo=True)
    (flow,) = client.take("flow")
    assert "handle" not in flow.fields


def test_nothing_is_sent_beyond_the_window(world: World, client: LinksClient) -> None:
    fill(world, 5)
    client.receiver("q", credit=0)
    client.credit(5, incoming_window=2)
    assert len(client.messages()) == 2
    client.credit(3, seen=2, next_incoming_id=2, incoming_window=2)
    assert len(client.messages()) == 2
    client.credit(1, seen=4, next_incoming_id=4, incoming_window=100)
    assert len(client.messages()) == 1


def test_a_large_message_waits_for_the_window_between_its_frames(world: World, client: LinksClient) -> None:
    client.sender("q")
    body = bytes(range(256)) * 100
    client.publish(body, durable=False)
    client.publish(b"last", durable=False)
    client.receiver("q", 1, credit=0)
    client.take()
    client.credit(5, 1, incoming_window=3)
    client.sync()
    assert [each.fields["more"] for each in client.received if each.name == "transfer"] == [True] * 3
    seen = 3
    while len([each for each in client.received if each.name == "transfer" and not each.fields["more"]]) < 2:
        client.credit(5, 1, next_incoming_id=seen, incoming_window=2)
        client.sync()
        seen += 2
        assert seen < 50
    large, small = client.deliveries()
    assert large.content.endswith(body)
    assert small.content.endswith(b"last")


def test_a_link_that_is_detached_amid_a_large_message_frees_the_others(world: World, client: LinksClient) -> None:
    client.sender("q")
    client.publish(bytes(30_000), durable=False)
    fill(world, 1)
    client.receiver("q", 1, credit=0)
    client.credit(1, 1, incoming_window=3)
    client.sync()
    client.do("detach", handle=1, closed=True)
    client.take()
    client.receiver("q", 2, credit=0)
    client.credit(5, 2, next_incoming_id=3)
    assert len(client.messages()) == 2


def test_what_is_unsettled_returns_with_the_link_the_session_and_the_connection(world: World) -> None:
    queue = make_queue(world)
    fill(world, 1)
    counts = []
    for end in ("detach", "end", "close", ""):
        client = LinksClient(world).open().receiver("q")
        (found,) = client.messages()
        counts.append(found.header["delivery_count"])
        if end:
            client.do(end, **({"handle": 0, "closed": True} if end == "detach" else {}))
        else:
            client.machine.dismantle()
        client.sync()
        assert (queue.message_count, queue.acquired_count) == (1, 0)
    last = LinksClient(world).open().receiver("q")
    assert [*counts, last.messages()[0].header["delivery_count"]] == [0, 0, 0, 0, 1]


def test_a_deleted_queue_detaches_its_links(world: World, client: LinksClient) -> None:
    client.receiver("q")
    maker = world.open_client(name=b"deleter")
    maker.command("queue.delete", queue="q")
    maker.sync()
    assert client.error("detach") == "amqp:resource-deleted"


def test_a_ttl_ends_and_consumers_get_what_is_left(world: World, client: LinksClient) -> None:
    client.sender("q")
    client.publish(durable=False, header={"ttl": 10_000})
    client.publish(durable=False, header={"ttl": 1_000})
    client.publish(durable=False, absolute_expiry_time=int((world.now + 5) * 1000))
    client.sync()
    world.now += 2
    client.receiver("q", 1)
    assert [each.header.get("ttl") for each in client.messages()] == [8_000, 3_000]


# ---- subscriptions and nodes ----


def selector(text: str) -> tuple[tuple[Value, Value], ...]:
    descriptor = Value("symbol", "apache.org:selector-filter:string")
    return ((Value("symbol", "s"), Value("described", Described(descriptor, Value("string", text)))),)


def key_filter(text: str) -> tuple[tuple[Value, Value], ...]:
    descriptor = Value("ulong", 0x0000468C00000001)
    return ((Value("symbol", "k"), Value("described", Described(descriptor, Value("string", text)))),)


def test_a_selector_chooses(world: World, client: LinksClient) -> None:
    client.sender("q")
    for subject in ("a", "b", "a"):
        client.publish(subject.encode(), durable=False, subject=subject)
    client.receiver("q", 1, terminus={"filter": selector("amqp.subject = 'a'")})
    assert [each.body[-1:] for each in client.messages()] == [b"a", b"a"]


def test_a_message_above_the_size_that_a_link_accepts_is_left_to_others(world: World, client: LinksClient) -> None:
    client.sender("q")
    for body in (b"a", b"b" * 2_000, b"c"):
        client.publish(body, durable=False)
    client.receiver("q", 1, max_message_size=1_000)
    assert [each.body[-1:] for each in client.messages()] == [b"a", b"c"]
    client.receiver("q", 2, max_message_size=0)  # no limit
    assert [each.body[-1:] for each in client.messages()] == [b"b"]


def test_a_message_of_just_the_size_that_a_link_accepts_comes(world: World, client: LinksClient) -> None:
    client.sender("q").receiver("q", 1)
    for _ in range(3):
        client.publish(b"x" * 600, durable=False)
    size = len(client.messages()[0].content)
    client.do("detach", handle=1, closed=True)
    client.take()
    client.receiver("q", 1, max_message_size=size + 1)  # its header says that it was delivered before
    client.receiver("q", 2, max_message_size=size - 10)
    assert {each.fields["handle"] for each in client.messages()} == {1}


def test_a_wrong_selector_is_refused(client: LinksClient) -> None:
    came = client.attach("q", 1, receives=True, terminus={"filter": selector("a = ")})
    assert came[1].fields["error"].fields["condition"] == "amqp:invalid-field"


@pytest.mark.parametrize(
    ("source", "filters", "expected"),
    [
        ("amq.topic", (), [b"a.b", b"c"]),
        ("amq.topic/a.*", (), [b"a.b"]),
        ("amq.topic", key_filter("c"), [b"c"]),
        ("amq.fanout", (), [b"a.b", b"c"]),
        ("amq.direct/c", (), [b"c"]),
        ("amq.match", (), [b"a.b", b"c"]),
    ],
)
def test_a_subscription_gets_what_matches(
    world: World, client: LinksClient, source: str, filters: Any, expected: list[bytes]
) -> None:
    client.receiver(source, 1, terminus={"filter": filters})
    client.sender(source.partition("/")[0])
    for key in ("a.b", "c"):
        client.publish(key.encode(), durable=False, subject=key)
    assert [each.body.rpartition(b"\xa0")[2][1:] for each in client.messages()] == expected
    assert "test_link-1" in world.broker.default_host.queues
    client.do("detach", handle=1, closed=True)
    client.sync()
    assert "test_link-1" not in world.broker.default_host.queues


def test_a_durable_subscription_outlives_its_link_until_it_is_closed(world: World) -> None:
    durable = {"durable": 2, "expiry_policy": "never"}
    client = LinksClient(world).open()
    (attached,) = client.attach("amq.fanout", 1, receives=True, terminus=durable)
    assert attached.fields["source"].fields["expiry_policy"] == "never"
    client.do("detach", handle=1, closed=False)
    client.take()
    client.sender("amq.fanout")
    client.publish(b"kept", durable=False)
    client.do("close")
    client.sync()
    other = LinksClient(world).open().receiver("amq.fanout", 1, terminus=durable)
    assert len(other.messages()) == 1
    other.do("detach", handle=1, closed=True)
    other.sync()
    assert "test_link-1" not in world.broker.default_host.queues


def test_shared_subscriptions_share_their_messages(world: World) -> None:
    first = LinksClient(world).open()
    shared = {"capabilities": ("shared", "topic")}
    for handle in (1, 2):
        first.receiver("amq.fanout", handle, terminus=shared, name=f"sub|{handle}")
    first.sender("amq.fanout")
    for _ in range(4):
        first.publish(durable=False)
    handles = [each.fields["handle"] for each in first.messages()]
    assert sorted(handles) == [1, 1, 2, 2]


@pytest.mark.parametrize("name", ["$management", "qmf.default.direct", "qmf.default.direct/broker"])
def test_a_queue_gets_no_requests_to_management(world: World, name: str) -> None:
    """They may have passwords, and whoever may declare queues could declare one of that name."""
    host = world.broker.default_host
    exchange, _, key = name.partition("/")
    make_queue(world, name)
    for text in (name, f"amqp://host/{name}"):
        assert node_of(host, text) == Node(NodeKind.QUEUE, name), "there is no management"
    host.exchanges[exchange] = DirectExchange(exchange)
    for text in (name, f"amqp://host/{name}"):
        assert node_of(host, text) == target_of(host, text) == Node(NodeKind.EXCHANGE, exchange, key or None)
    assert node_of(host, name, ("queue",)) == Node(NodeKind.QUEUE, name)


def test_a_dynamic_node_ends_with_its_link(world: World, client: LinksClient) -> None:
    (attached,) = client.attach(None, 1, receives=True, terminus={"dynamic": True})
    name = attached.fields["source"].fields["address"].value
    assert name in world.broker.default_host.queues
    client.sender(name)
    client.publish(durable=False)
    client.credit(1, 1)
    assert len(client.messages()) == 1
    client.do("detach", handle=1, closed=True)
    client.sync()
    assert name not in world.broker.default_host.queues


def test_nodes_are_created_on_demand(world: World, client: LinksClient) -> None:
    properties = ((Value("symbol", "qpid.max_count"), Value("uint", 7)),)
    terminus = {"capabilities": ("create-on-demand", "queue"), "dynamic_node_properties": properties}
    (attached, _) = client.attach("new", terminus=terminus)
    assert attached.fields["target"].fields["capabilities"] == ("create-on-demand", "queue")
    assert world.broker.default_host.queues["new"].arguments.get("qpid.max_count") is not None
    client.attach("news", 1, terminus={"capabilities": ("create-on-demand", "topic")})
    assert world.broker.default_host.exchanges["news"].type_name == "topic"
    (attached, _) = client.attach("amqps://host:5671/newest", 2, terminus={"capabilities": ("create-on-demand",)})
    assert attached.fields["target"].fields["address"].value == "amqps://host:5671/newest"
    assert "newest" in world.broker.default_host.queues


def test_a_node_that_two_clients_make_at_the_same_time_is_that_of_the_first(world: World) -> None:
    """It ends with the link of the first, whatever the second has asked for."""
    first, second = LinksClient(world).open(), LinksClient(world).open()
    policy = Value("described", Described(Value("ulong", 0x2B), Value("list", ())))
    properties = ((Value("symbol", "lifetime-policy"), policy),)
    own = {"address": address("new"), "capabilities": ("create-on-demand", "queue")}
    kept, passing = ({**own, "dynamic_node_properties": each} for each in ((), properties))
    for client, terminus in ((first, kept), (second, passing)):
        client.do(
            "attach", name="l", handle=0, role=False, initial_delivery_count=0, source=Composite("source", {}),
            target=Composite("target", terminus),
        )  # fmt: skip
    assert first.take()[0].fields["target"].fields["capabilities"] == own["capabilities"]
    assert not second.take()[0].fields["target"].fields["dynamic_node_properties"]
    second.do("detach", handle=0, closed=True)
    second.sync()
    assert "new" in world.broker.default_host.queues


@pytest.mark.parametrize("is_other", [True, False], ids=["a queue", "a subscription"])
def test_a_subscription_takes_only_a_subscription_that_is_made_at_the_same_time(world: World, is_other: bool) -> None:
    session, topology = session_of(LinksClient(world).open()), world.broker.default_host.topology
    attach = Attach(session, {"handle": 0, "name": "l", "role": True})
    attach.terminus = {"capabilities": ("shared", "global"), "durable": 0, "expiry_policy": "session-end", "timeout": 0}
    attach.node = Node(NodeKind.EXCHANGE, "amq.topic")
    arguments = TypedMap() if is_other else TypedMap(((OF_SUBSCRIPTION, TypedValue(STR16, "yes")),))

    async def both() -> tuple[Queue, BaseException | None]:
        made = topology.declare_queue("l", auto_delete=True, arguments=arguments, caller=session)
        queue, error = await asyncio.gather(made, attach.make_subscription(), return_exceptions=True)
        assert isinstance(queue, Queue)
        return queue, error

    queue, error = asyncio.run(both())
    assert isinstance(error, ResourceLockedError) == is_other
    assert attach.owned == ([] if is_other else [queue])


# ---- permissions ----


class Rules:
    """Refuses some actions, and to publish with the key `secret`."""

    checks_publish = True

    def __init__(self, *refused: Action) -> None:
        self._refused = refused

    def allows(self, _caller: Any, action: Action, kind: ObjectType, _name: str, _properties: Any) -> bool:
        return action not in self._refused or kind is ObjectType.CONNECTION

    def publishing(self, _caller: Any, _exchange: str, routing_key: str) -> Publishing:
        return Publishing.REFUSED if routing_key == "secret" else Publishing.ALWAYS

    def allows_forwarding(self, _caller: Any, _exchange: str, _pattern: str) -> bool:
        return True


def restricted(world: World, *refused: Action) -> LinksClient:
    """A client whose rules refuse some actions, and to publish with the key `secret`."""
    make_queue(world, "secret")
    world.broker.authorization.authorizer = Rules(*refused)
    return LinksClient(world).open()


@pytest.mark.parametrize("target", ["secret", "/queues/secret", "amq.direct/secret", "/exchanges/amq.direct/secret"])
def test_a_link_to_what_a_user_may_not_publish_to_is_refused(world: World, target: str) -> None:
    came = restricted(world).attach(target)
    assert came[-1].fields["error"].fields["condition"] == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("target", "properties"),
    [
        ("amq.direct", {"subject": "secret"}),
        (None, {"to": Value("string", "secret")}),
        (None, {"to": Value("string", "/queues/secret")}),
        (None, {"to": Value("string", "amq.direct/secret")}),
    ],
)
def test_a_message_that_a_user_may_not_publish_ends_the_link(
    world: World, target: str | None, properties: dict[str, Any]
) -> None:
    client = restricted(world).sender(target)
    client.publish(durable=False, **properties)
    client.publish(durable=False, **{**properties, "subject": "other"})
    assert client.error("detach") == "amqp:unauthorized-access"
    assert client.outcomes() == []
    assert world.broker.default_host.queues["secret"].message_count == 0


@pytest.mark.parametrize(
    ("refused", "source", "terminus"),
    [
        (Action.CONSUME, "q", {}),
        (Action.CONSUME, "q", {"distribution_mode": "copy"}),
        (Action.CONSUME, "amq.topic", {}),
        (Action.CREATE, "amq.topic", {}),
        (Action.BIND, "amq.topic", {}),
        (Action.CREATE, None, {"dynamic": True}),
        (Action.CREATE, "new", {"capabilities": ("create-on-demand",)}),
        (Action.CREATE, "new", {"capabilities": ("create-on-demand", "topic")}),
    ],
)
def test_what_a_source_needs_is_authorized_as_the_user(
    world: World, refused: Action, source: str | None, terminus: dict[str, Any]
) -> None:
    make_queue(world)
    queues = set(world.broker.default_host.queues) | {"secret"}
    client = restricted(world, refused)
    came = client.attach(source, receives=True, terminus=terminus)
    assert came[-1].fields["error"].fields["condition"] == "amqp:unauthorized-access"
    client.sync()
    assert set(world.broker.default_host.queues) == queues
    assert set(world.broker.default_host.exchanges) == {"", *STANDARD_EXCHANGES}


def test_a_durable_subscription_is_deleted_as_its_user(world: World) -> None:
    client = restricted(world, Action.DELETE)
    client.receiver("amq.fanout", terminus={"durable": 2, "expiry_policy": "never"})
    client.do("detach", handle=0, closed=True)
    assert client.error("detach") == "amqp:unauthorized-access"
    assert "test_link-0" in world.broker.default_host.queues


def test_user_ids_of_others_are_rejected() -> None:
    world = World(BrokerSettings(auth=True))
    make_queue(world)
    client = LinksClient(world).open().sender("q")
    client.publish(durable=False, user_id=b"other")
    client.publish(durable=False, user_id=b"anonymous")
    assert [each[2] for each in client.outcomes()] == ["rejected", "accepted"]


def test_properties_in_the_second_piece_do_not_hide_a_user_id() -> None:
    world = World(BrokerSettings(auth=True))
    make_queue(world)
    client = LinksClient(world).open().sender("q")
    first = encode_section(
        MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-a"), Value("binary", bytes(50_000))),))
    )
    rest = encode_composite("properties", {"user_id": b"other"}) + data_section(40_000) + bytes(40_000)
    client.max_frame = len(first) + 100
    client.publish(message=first + rest)
    assert [each[2] for each in client.outcomes()] == ["rejected"]


def test_properties_that_cannot_be_decoded_do_not_hide_a_user_id() -> None:
    world = World(BrokerSettings(auth=True))
    make_queue(world)
    client = LinksClient(world).open().sender("q")
    fields = Value("list", (Value("null", None), Value("binary", b"other"), Value("null", None), Value("uint", 7)))
    client.publish(message=encode_section(PROPERTIES, fields) + data_section(1) + b"x")
    assert [each[2] for each in client.outcomes()] == ["rejected"]


# ---- limits ----


@pytest.mark.parametrize(
    "fields",
    [
        {"delivery_tag": bytes(33)},
        {"delivery_tag": b"1", "state": Value("list", tuple(Value("null", None) for _ in range(100_000)))},
    ],
    ids=["tag", "state"],
)
def test_a_transfer_that_would_keep_much_is_refused_at_once(client: LinksClient, fields: dict[str, Any]) -> None:
    client.machine.assembler.max_frame = 1 << 20
    client.sender("q")
    frame = client.encode("transfer", 0, b"x", handle=0, delivery_id=0, more=True, **fields)
    begin = time.process_time()
    client.send(frame)
    assert time.process_time() - begin < 0.1
    assert client.error("close") == "amqp:invalid-field"


def test_many_links_end_in_turns(world: World) -> None:
    make_queue(world)
    client = LinksClient(world).open()
    for handle in range(600):
        client.do(
            "attach", name=f"l{handle}", handle=handle, role=True, target=Composite("target", {}),
            source=Composite("source", {"address": Value("string", "q")}),
        )  # fmt: skip
    client.sync()
    client.do("end")
    client.sync()
    assert world.broker.default_host.queues["q"].consumer_count == 0


def test_a_performative_with_very_many_values_is_refused_at_once(client: LinksClient) -> None:
    client.machine.assembler.max_frame = 1 << 20
    nulls = Value("list", tuple(Value("null", None) for _ in range(100_000)))
    frame = client.encode("attach", 0, name="n", handle=0, role=False, properties=((Value("symbol", "x"), nulls),))
    begin = time.process_time()
    client.send(frame)
    assert time.process_time() - begin < 0.1
    assert client.error("close") == "amqp:invalid-field"


# ---- what a session keeps ----


@pytest.mark.parametrize("own", [{"dynamic": True}, {"address": Value("string", "amq.topic")}])
def test_a_queue_of_a_link_ends_if_the_session_has_ended_before_it_was_made(world: World, own: dict[str, Any]) -> None:
    client = LinksClient(world).open()
    source = Composite("source", own)
    client.do("attach", name="l", handle=0, role=True, source=source, target=Composite("target", {}))
    client.machine.closed()
    world.run()
    assert world.broker.default_host.queues == {}


@pytest.mark.parametrize("closes", [False, True])
def test_the_queues_of_many_subscriptions_end_with_them(world: World, closes: bool) -> None:
    client = LinksClient(world).open()
    source = Composite("source", {"address": Value("string", "amq.topic")})
    for handle in range(300):
        client.do("attach", name=f"l{handle}", handle=handle, role=True, source=source, target=Composite("target", {}))
        client.sync()
    assert len(world.broker.default_host.queues) == 300
    if closes:
        client.machine.closed()
    else:
        client.do("end")
    client.sync()
    assert world.broker.default_host.queues == {}


def test_presettled_messages_are_forgotten_when_they_are_done(client: LinksClient) -> None:
    client.sender("q")
    for number in range(400):
        client.publish(settled=number % 2 == 0, **TRANSIENT)
    client.sync()
    assert session_of(client)._presettled.beyond == []


def test_failed_presettled_messages_have_no_outcome(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    client.publish(settled=True)
    client.publish()
    client.publish(settled=True)
    client.sync()
    world.store.end_flush(OSError("the disk is gone"))
    assert client.outcomes() == [(1, 1, "rejected")]
    assert session_of(client)._outcomes == {}


def test_a_blocked_link_drains_once_however_often_it_is_asked(world: World, client: LinksClient) -> None:
    fill(world, 5)
    client.receiver("q", credit=0)
    for _ in range(100):
        client.credit(10, incoming_window=0, drain=True)
    client.sync()
    assert len(session_of(client)._drains) == 1
    client.credit(10, incoming_window=100, drain=True)
    assert len(client.messages()) == 5
    assert {each.fields["link_credit"] for each in client.take("flow")} == {0}


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, REJECTED, MODIFIED])
def test_unsettled_messages_are_limited_and_settling_continues(
    world: World, client: LinksClient, state: Composite
) -> None:
    fill(world, 9)
    client.receiver("q", credit=2)
    client.sync()
    nearly_fill(client, room=1)
    client.credit(100)
    assert len(client.messages()) == 3
    client.settle(state, 0, 1)
    assert len(client.messages()) == 2
    client.do("detach", handle=0, closed=True)
    assert session_of(client).can_send


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, None])
def test_a_full_session_continues_after_settlement_in_turns(
    world: World, client: LinksClient, state: Composite | None
) -> None:
    fill(world, 1_300)
    client.receiver("q", credit=1_200)
    assert len(client.messages()) == 1_200
    nearly_fill(client, room=0)
    client.credit(10_000, seen=1_200)
    client.receiver("q", 1)
    assert client.messages() == []
    if state is None:
        client.do("detach", handle=0, closed=True)
    else:
        client.settle(state, 0, 1_199)
    assert len(client.messages()) >= 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("supported-dist-modes", Value("uint", 5)),
        ("lifetime-policy", Value("uint", 5)),
        ("durable", Value("string", "false")),
        ("auto-delete", Value("string", "no")),
        ("exclusive", Value("string", "no")),
    ],
)
def test_node_properties_that_are_not_known_refuse_the_link(client: LinksClient, name: str, value: Value) -> None:
    wanted = {"dynamic": True, "dynamic_node_properties": ((Value("symbol", name), value),)}
    assert [each.name for each in client.attach(None, receives=True, terminus=wanted)] == ["attach", "detach"]
    client.do("detach", handle=0, closed=True)
    client.sender("q")


def test_a_node_that_is_made_exclusive_is_consumed_by_its_maker_only(world: World) -> None:
    properties = ((Value("symbol", "exclusive"), Value("boolean", True)),)
    wanted = {"capabilities": ("create-on-demand",), "dynamic_node_properties": properties}
    maker, other = LinksClient(world).open(), LinksClient(world).open()
    maker.attach("mine", receives=True, terminus=wanted)
    assert world.broker.default_host.queues["mine"].owner is not None
    for handle, terminus in enumerate(({}, wanted)):
        came = other.attach("mine", receives=True, handle=handle, terminus=terminus)
        assert came[1].fields["error"].fields["condition"] == "amqp:resource-locked"
    assert [each.name for each in other.attach("mine", 5)] == ["attach", "flow"]


def test_a_subscription_leaves_a_queue_that_has_its_name_by_chance(world: World) -> None:
    make_queue(world, "orders")
    client = LinksClient(world).open()
    wanted = {"durable": 1, "capabilities": ("shared", "global")}
    came = client.attach("amq.topic", receives=True, name="orders", terminus=wanted)
    assert came[1].fields["error"].fields["condition"] == "amqp:resource-locked"
    client.do("detach", handle=0, closed=True)
    client.receiver("orders", 1)
    client.receiver("amq.topic", 2, name="others", terminus=wanted)
    client.receiver("amq.topic", 3, name="others|2", terminus=wanted)
    client.do("detach", handle=1, closed=True)
    client.do("detach", handle=2, closed=True)
    client.sync()
    assert set(world.broker.default_host.queues) == {"orders", "others"}
    client.do("detach", handle=3, closed=True)
    client.sync()
    assert set(world.broker.default_host.queues) == {"orders"}


ANNOTATED = Composite("modified", {"message_annotations": ((Value("symbol", "x"), Value("uint", 1)),)})


def test_a_default_outcome_with_annotations_is_refused(client: LinksClient) -> None:
    came = client.attach("q", receives=True, terminus={"default_outcome": ANNOTATED})
    assert came[1].fields["error"].fields["condition"] == "amqp:not-implemented"


def test_a_refused_outcome_releases_the_messages_of_all_its_links(world: World, client: LinksClient) -> None:
    client.receiver("q", 0, credit=1)
    client.receiver("q", 1, credit=1)
    fill(world, 2)
    assert len(client.messages()) == 2
    client.settle(ANNOTATED, 0, 1)
    assert [each.fields["handle"] for each in client.take("detach")] == [0, 1]
    assert world.broker.default_host.queues["q"].available_count == 2


@pytest.mark.parametrize("default", [RELEASED, ACCEPTED])
def test_detach_with_many_unsettled_messages_is_answered_after_turns(
    world: World, client: LinksClient, default: Composite
) -> None:
    fill(world, 3_000)
    client.receiver("q", credit=3_000, terminus={"default_outcome": default})
    assert len(client.messages()) == 3_000
    client.do("detach", handle=0, closed=True)
    assert len(session_of(client).unsettled) >= 2_000
    assert names(client) == ["detach"]
    assert session_of(client).unsettled == {}
    queue = world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.available_count) == ((3_000, 3_000) if default is RELEASED else (0, 0))
    client.sender("q")


def test_an_attached_link_gets_no_credit_while_too_many_messages_wait(world: World) -> None:
    world.durable_queue("d")
    client = LinksClient(world).open().sender("d")
    for _ in range(CREDIT):
        client.publish()
    assert [each.name for each in client.attach("d", 1)] == ["attach"]
    world.store.end_flush()
    assert {each.fields["handle"] for each in client.take("flow")} == {0, 1}


@given(st.data())
def test_usual_transfers_are_read_as_all_others(data: st.DataObject) -> None:
    flag = st.one_of(st.none(), st.booleans())
    number = st.one_of(st.integers(0, 300), st.integers(0, (1 << 32) - 1))
    fields = {
        "handle": data.draw(number), "delivery_id": data.draw(number),
        "delivery_tag": data.draw(st.binary(max_size=40)),
        "message_format": data.draw(st.one_of(st.none(), number)), "settled": data.draw(flag), "more": data.draw(flag),
        "batchable": data.draw(st.sampled_from((None, None, None, True))),
    }  # fmt: skip
    encoded = encode_composite("transfer", fields)
    kind, place = BY_NAME["transfer"], data.draw(st.integers(3, len(encoded) - 1))
    damaged = bytearray(encoded + b"content")
    if data.draw(st.booleans()):
        damaged[place] = data.draw(st.integers(0, 255))
    whole = bytes(damaged)
    usual = usual_transfer(whole, 3, len(whole))
    try:
        composite, end = read_fields(kind, whole, 3, len(whole))
    except Amqp10Error:
        assert usual is None
        return
    assert usual in (None, (composite.fields, end))
    if fields["batchable"] is None and damaged == encoded + b"content":
        assert usual is not None


@pytest.mark.parametrize("cut", [*range(1, 20), None])
def test_a_transfer_that_ends_early_is_not_usual(cut: int | None) -> None:
    encoded = encode_composite(
        "transfer", {"handle": 1, "delivery_id": 1 << 20, "delivery_tag": b"1", "message_format": 0}
    )
    assert (usual_transfer(encoded[:cut], 3, len(encoded[:cut])) is None) == (cut is not None and cut < len(encoded))


def test_names_of_dynamic_nodes_are_not_for_clients(client: LinksClient) -> None:
    _, detached = client.attach("amq.dyn-x", 3, terminus={"capabilities": ("create-on-demand", "queue")})
    assert detached.fields["error"].fields["condition"] in ("amqp:not-allowed", "amqp:unauthorized-access")


def small_client(world: World) -> LinksClient:
    """A client that accepts frames of 512 bytes."""
    client = LinksClient(world)
    client.max_frame = 512
    return client.open()


def largest_frame(client: LinksClient) -> int:
    """The size of the largest frame that waits to be read, which is left there."""
    client.world.run()
    data, sizes = bytes(client.host.output), [0]
    while data:
        sizes.append(int.from_bytes(data[:4], "big"))
        data = data[sizes[-1] :]
    return max(sizes)


def test_errors_fit_the_frames_of_the_client(world: World) -> None:
    client = small_client(world)
    client.attach("n" * 250 + "\u00e9" * 5, receives=False)
    client.do("detach", handle=0, closed=True)
    client.do("attach", name="x", handle=1, role=True, source=Composite("source", {"address": address("n" * 200)}))
    client.do("attach", name="y", handle=2, role=True, source=Composite("source", {"dynamic": True, **FILTER}))
    assert 256 < largest_frame(client) <= 512
    client.take()
    client.machine.force_close("\u00e9" * 600)
    assert 256 < largest_frame(client) <= 512
    assert client.error("close") == "amqp:connection:forced"


FILTER = {"filter": ((Value("symbol", "f"), Value("described", Described(address("n" * 250), address("n" * 250)))),)}


def test_outcomes_fit_the_frames_of_the_client(world: World) -> None:
    make_queue(world, "n" * 250)
    client = small_client(world).sender(None)
    client.publish(to=address("\u00e9" * 300), durable=False)
    assert 256 < largest_frame(client) <= 512
    assert [each[2] for each in client.outcomes()] == ["rejected"]
    client.publish(to=address("n" * 250), durable=False)
    client.attach("n" * 250, 1, receives=True, rcv_settle_mode=1)
    client.credit(1, 1)
    client.messages()
    error = Composite("error", {"condition": "c" * 300, "description": "d" * 1_000})
    client.settle(Composite("rejected", {"error": error}), 0, settled=False)
    assert 16 < largest_frame(client) <= 512
    assert [each[2] for each in client.outcomes() if each[2] != "accepted"] == ["rejected"]


@pytest.mark.parametrize(("size", "ends"), [(20, ["attach"]), (300, ["attach", "detach"]), (600, ["end"])])
def test_a_link_whose_answer_exceeds_the_frames_of_the_client_is_refused(
    world: World, size: int, ends: list[str]
) -> None:
    """The session ends if not even the name of the link can be sent."""
    queue = make_queue(world, "q" * 200)
    client = small_client(world)
    client.do(
        "attach", name="n" * size, handle=0, role=True, target=Composite("target", {}),
        source=Composite("source", {"address": address("q" * 200)}),
    )  # fmt: skip
    assert largest_frame(client) <= 512
    came = client.take()
    assert [each.name for each in came] == ends
    assert queue.consumer_count == (size == 20)
    if size > 20:
        assert came[-1].fields["error"].fields["condition"] == "amqp:frame-size-too-small"


def test_messages_that_begin_like_the_last_one_are_read_as_all_others(world: World, client: LinksClient) -> None:
    """Those that consist of the same sections and one of data are not decoded again."""
    start = encode_composite("header", {"durable": False, "priority": 7}) + encode_composite(
        "properties", {"subject": "s"}
    )
    data = data_section(300) + bytes(300)
    others = [
        start + data_section(3) + b"abc",
        start + data,
        start + data_section(0),
        start + data_section(3) + b"abc" + data_section(1) + b"x",  # two sections
        start + encode_section(VALUE, Value("string", "x")),
        start + data_section(4) + b"abc",  # it is cut
        start + data[:-1],
        start + b"\0St\xc1\1\0" + data_section(1) + b"x",  # application properties
        start,
    ]
    client.sender("q")
    for each in others * 2:
        client.publish(message=each)
    outcomes = {n: name for first, last, name in client.outcomes() for n in range(first, last + 1)}
    assert [number % len(others) for number, name in outcomes.items() if name == "rejected"] == [5, 6, 5, 6]
    client.receiver("q", 1)
    found = [each.content for each in client.messages()]
    assert [each[each.index(b"\0Ss") :] for each in found] == 2 * [
        each[each.index(b"\0Ss") :] for number, each in enumerate(others) if number not in (5, 6)
    ]


def test_anycast_and_multicast_choose_between_queue_and_exchange(world: World, client: LinksClient) -> None:
    """As clients of Artemis ask for them."""
    for name, capability in (("a", "anycast"), ("m", "multicast")):
        handle = len(session_of(client).links) + 3
        (attached, _) = client.attach(name, handle, terminus={"capabilities": ("create-on-demand", capability)})
        assert capability in attached.fields["target"].fields["capabilities"]
    host = world.broker.default_host
    assert ("a" in host.queues, "m" in host.exchanges, "m" in host.queues) == (True, True, False)


# ---- helpers ----


def write(world: World, client: LinksClient) -> None:
    """Let the disk write all that waits for it."""
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        client.sync()


def session_of(client: LinksClient) -> Session:
    session = client.machine.all_sessions[0]
    assert isinstance(session, Session)
    return session


def nearly_fill(client: LinksClient, *, room: int) -> None:
    """Leave room for some unsettled deliveries: the others are of a browser."""
    session = session_of(client)
    link = OutgoingLink(
        session, 99, "browser", session.virtual_host.queues["q"],
        acquires=False, settles=False, selector=None, no_local=False, max_message=1 << 62, default=RELEASED,
    )  # fmt: skip
    entry = next(iter(session.unsettled.values())).entry
    count = MAX_UNSETTLED - len(session.unsettled) - room
    session.unsettled = dict.fromkeys(range(-count, 0), Delivery(link, entry)) | session.unsettled
    session.can_send = bool(room)


def fill(world: World, count: int) -> None:
    """Messages on the queue q."""
    sender = LinksClient(world).open().sender("q")
    for number in range(count):
        sender.publish(b"%d" % number, durable=False)
        if number % 400 == 399:
            sender.sync()  # it gets credit
    sender.sync()


def bind(world: World, queue: str, exchange: str, key: str) -> None:
    client = world.open_client(name=b"binder")
    client.command("exchange.bind", queue=queue, exchange=exchange, binding_key=key)
    client.sync()


def test_messages_for_a_link_that_was_just_detached_do_not_end_the_session(world: World) -> None:
    make_queue(world)
    client = LinksClient(world).open().sender("q").sender("q", 1)
    client.publish(message=b"\0", settled=True)
    client.publish(b"2")
    client.publish(b"3", 1)
    client.sync()
    assert client.error("detach") == "amqp:decode-error"
    assert client.outcomes() == [(2, 2, "accepted")]


@pytest.mark.parametrize("name", ["q", "new"])
def test_properties_of_a_node_are_answered_only_if_it_was_made_with_them(world: World, name: str) -> None:
    make_queue(world)
    given = ((Value("symbol", "x-max-length"), Value("long", 5)),)
    client = LinksClient(world).open()
    terminus = {"capabilities": ("create-on-demand",), "dynamic_node_properties": given}
    (attached, _) = client.attach(name, terminus=terminus)
    assert attached.fields["target"].fields.get("dynamic_node_properties", ()) == (given if name == "new" else ())


def test_a_durable_subscription_whose_link_is_refused_leaves_no_queue(world: World) -> None:
    durable = {"durable": 2, "expiry_policy": "never"}
    small = LinksClient(world).open(max_frame_size=512)
    wide = {"address": address("amq.topic"), "filter": selector("a = '" + "x" * 400 + "'")}
    came = small.attach("amq.topic", receives=True, terminus={**wide, **durable})
    assert came[-1].fields["error"].fields["condition"] == "amqp:frame-size-too-small"
    came = restricted(world, Action.BIND).attach("amq.topic", receives=True, terminus=durable)
    assert came[-1].fields["error"].fields["condition"] == "amqp:unauthorized-access"
    world.run()
    assert [name for name in world.broker.default_host.queues if name.startswith("test")] == []


def test_a_durable_subscription_stays_if_another_link_to_it_is_refused(world: World) -> None:
    durable = {"durable": 2, "expiry_policy": "never"}
    client = LinksClient(world).open().receiver("amq.topic", terminus=durable)
    client.call("detach", handle=0, closed=False)
    small = LinksClient(world).open(max_frame_size=512)
    wide = {"filter": selector("a = '" + "x" * 400 + "'"), **durable}
    came = small.attach("amq.topic", receives=True, terminus=wide)
    assert came[-1].fields["error"].fields["condition"] == "amqp:frame-size-too-small"
    world.run()
    assert "test_link-0" in world.broker.default_host.queues
