"""Arguments of exchanges and bindings, as clients see them: numbers, initial values, exclusive bindings."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.structs import MESSAGE_PROPERTIES, decode_struct, encode_struct
from qstore.formats.amqp_0_10.types import code_of
from qstore.formats.values import TypedMap, TypedValue, typed_map
from tests.broker.protocols.world import Client, Delivery, World, header
from tests.support.coded import coded

INT64 = code_of("int64")
NUMBERED = typed_map({"qpid.msg_sequence": 1})
INITIAL = typed_map({"qpid.ive": 1})
BOTH = typed_map({"qpid.msg_sequence": 1, "qpid.ive": 1})
ALONE = typed_map({"qpid.exclusive-binding": 1})


@pytest.fixture
def client() -> Client:
    return World().open_client()


def declare(client: Client, type_name: str, arguments: TypedMap, *queues: str, name: str = "x") -> None:
    """An exchange, to which these queues are bound with the key "k"."""
    client.command("exchange.declare", exchange=name, type=type_name, arguments=arguments)
    for queue in queues:
        client.declare(queue)
        bind(client, queue, exchange=name)


def bind(client: Client, queue: str, key: str = "k", *, exchange: str = "x", **arguments: Any) -> None:
    table = typed_map({name.replace("_", "-"): value for name, value in arguments.items()})
    client.command("exchange.bind", exchange=exchange, queue=queue, binding_key=key, arguments=table)
    client.sync()
    assert not client.exceptions


def send(client: Client, *bodies: bytes, exchange: str = "x", properties: dict[str, Any] | None = None) -> None:
    for body in bodies:
        content = header(properties or {}, routing_key="k")
        client.command("message.transfer", destination=exchange, header=content, body=body)
    client.sync()


def properties_of(delivery: Delivery) -> dict[str, Any]:
    """The message-properties that are present; they come after delivery-properties."""
    at = 4 + int.from_bytes(delivery.header[:4], "big")
    if at == len(delivery.header):
        return {}
    values = decode_struct(MESSAGE_PROPERTIES, delivery.header, at, len(delivery.header))
    return {name: value for name, value in values.items() if value is not None}


def received(client: Client, queue: str) -> list[tuple[bytes, TypedValue | None]]:
    """Bodies and numbers of what a queue has; None for a message without one."""
    client.subscribe(queue, to=f"from-{queue}-{client.sent[1]}")
    client.sync()
    found = []
    for delivery in client.deliveries:
        headers = properties_of(delivery).get("application_headers", TypedMap())
        found.append((delivery.body, headers.get("qpid.msg_sequence")))
    client.deliveries.clear()
    return found


def number(value: int) -> TypedValue:
    return coded(INT64, value)


class TestSequence:
    @pytest.mark.parametrize("type_name", ["direct", "topic", "fanout", "headers"])
    def test_messages_are_numbered_from_0_in_an_int64(self, client: Client, type_name: str) -> None:
        declare(client, type_name, NUMBERED)
        client.declare("q")
        bind(client, "q", x_match="all")
        send(client, b"1", b"2")
        assert received(client, "q") == [(b"1", number(0)), (b"2", number(1))]

    def test_other_exchanges_add_nothing(self, client: Client) -> None:
        declare(client, "direct", INITIAL, "q")
        send(client, b"1")
        assert received(client, "q") == [(b"1", None)]

    def test_other_properties_of_the_message_stay(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q")
        given = {
            "correlation_id": b"\x00\xff",
            "content_type": "text/plain",
            "user_id": b"me",
            "application_headers": TypedMap((("a", coded(code_of("uint8"), 1)), ("b", coded(0xF0, None)))),
        }
        send(client, b"body", properties=given)
        client.subscribe("q")
        (delivery,) = client.deliveries
        found = properties_of(delivery)
        headers = found.pop("application_headers")
        assert headers.entries == (*given.pop("application_headers").entries, ("qpid.msg_sequence", number(0)))  # type: ignore[attr-defined]
        assert found == given
        assert delivery.body == b"body"
        assert delivery.properties["routing_key"] == "k"

    def test_a_number_that_came_is_replaced(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q")
        send(client, b"1", properties={"application_headers": typed_map({"qpid.msg_sequence": "mine"})})
        assert received(client, "q") == [(b"1", number(0))]

    def test_a_message_without_any_header(self, client: Client) -> None:
        declare(client, "fanout", NUMBERED, "q")
        client.command("message.transfer", destination="x", header=None)
        assert received(client, "q") == [(b"", number(0))]

    def test_headers_that_cannot_be_read_end_the_session(self, client: Client) -> None:
        """Any other exchange passes them on: it does not look at them."""
        broken = bytearray(encode_struct(MESSAGE_PROPERTIES, {"application_headers": typed_map({"n": 1})}))
        broken[-1:] = b""
        broken[:4] = (len(broken) - 4).to_bytes(4, "big")
        declare(client, "direct", typed_map({}), "plain", name="plain")
        declare(client, "direct", NUMBERED, "q")
        content = header(routing_key="k") + bytes(broken)
        client.command("message.transfer", destination="plain", header=content)
        client.sync()
        assert client.world.broker.default_host.queues["plain"].message_count == 1
        at = client.command("message.transfer", destination="x", header=content)
        assert client.failure() == (ErrorCode.INVALID_ARGUMENT, at)

    def test_the_largest_header_has_room_for_a_number(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q", name="x" * 255)
        size = 65535 - 12 - 400 - len(header(routing_key="k"))
        filler = (size - 4).to_bytes(4, "big") + b"\x7f\x7f\0\0" + bytes(size - 8)
        content = header(routing_key="k") + filler
        client.command("message.transfer", destination="x" * 255, header=content)
        client.subscribe("q")
        (delivery,) = client.deliveries
        assert b"qpid.msg_sequence" in delivery.header

    def test_at_commit(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q")
        other = client.world.open_client(name=b"other")
        other.command("tx.select")
        send(other, b"in a transaction")
        send(client, b"outside of it")
        other.command("tx.commit")
        other.sync()
        assert received(client, "q") == [(b"outside of it", number(0)), (b"in a transaction", number(1))]

    def test_rolled_back_takes_no_number(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q")
        other = client.world.open_client(name=b"other")
        other.command("tx.select")
        send(other, b"never")
        other.command("tx.rollback")
        other.sync()
        send(client, b"1")
        assert received(client, "q") == [(b"1", number(0))]

    def test_immediate_messages_are_numbered_too(self, client: Client) -> None:
        declare(client, "direct", NUMBERED, "q")
        client.subscribe("q")
        client.publish("k", b"1", exchange="x", immediate=True)
        client.publish("k", b"2", exchange="x")
        client.sync()
        found = [properties_of(each)["application_headers"].get("qpid.msg_sequence") for each in client.deliveries]
        assert found == [number(0), number(1)]

    def test_rejected_messages_keep_their_number(self, client: Client) -> None:
        """The alternate exchange numbers what is sent to it, and not what reaches it in other ways."""
        declare(client, "direct", NUMBERED, name="x")
        declare(client, "fanout", NUMBERED, "dead", name="other")
        client.declare("q", alternate_exchange="other")
        bind(client, "q")
        send(client, b"first", b"second")
        client.subscribe("q", messages=2)
        client.command("message.reject", transfers=((0, 1),))
        client.sync()
        client.deliveries.clear()
        send(client, b"third", exchange="other")
        assert received(client, "dead") == [(b"first", number(0)), (b"second", number(1)), (b"third", number(0))]


class TestInitialValue:
    def test_late_binding_gets_the_last_message(self, client: Client) -> None:
        declare(client, "direct", BOTH, "early")
        send(client, b"1", b"2")
        client.declare("late")
        bind(client, "late")
        client.declare("other")
        bind(client, "other", "not k")
        assert received(client, "late") == [(b"2", number(1))]
        assert received(client, "other") == []
        assert received(client, "early") == [(b"1", number(0)), (b"2", number(1))]

    def test_a_subscriber_gets_it_without_asking_again(self, client: Client) -> None:
        declare(client, "direct", INITIAL)
        send(client, b"1")
        client.declare("q")
        client.subscribe("q")
        bind(client, "q")
        assert client.take() == [b"1"]

    def test_each_time_that_the_queue_is_bound_again(self, client: Client) -> None:
        declare(client, "direct", INITIAL, "q")
        send(client, b"1")
        bind(client, "q")
        client.command("exchange.unbind", exchange="x", queue="q", binding_key="k")
        bind(client, "q")
        assert received(client, "q") == [(b"1", None), (b"1", None)]

    def test_not_after_its_time(self, client: Client) -> None:
        declare(client, "direct", INITIAL)
        client.publish("k", b"1", exchange="x", ttl=1000)
        client.sync()
        for name in ("in time", "late"):
            client.declare(name)
            bind(client, name)
            client.world.now += 1.5
        counts = [client.world.broker.default_host.queues[name].message_count for name in ("in time", "late")]
        assert counts == [1, 0]

    def test_no_message_yet(self, client: Client) -> None:
        declare(client, "headers", INITIAL)
        client.declare("q")
        bind(client, "q", x_match="all")
        assert received(client, "q") == []

    def test_by_headers(self, client: Client) -> None:
        declare(client, "headers", INITIAL)
        send(client, b"red", properties={"application_headers": typed_map({"colour": "red"})})
        for name, colour in (("red", "red"), ("blue", "blue")):
            client.declare(name)
            bind(client, name, x_match="all", colour=colour)
        assert received(client, "red") == [(b"red", None)]
        assert received(client, "blue") == []

    def test_a_message_of_a_transaction_only_when_it_is_committed(self, client: Client) -> None:
        declare(client, "direct", INITIAL)
        other = client.world.open_client(name=b"other")
        other.command("tx.select")
        send(other, b"1")
        client.declare("before")
        bind(client, "before")
        other.command("tx.commit")
        other.sync()
        client.declare("after")
        bind(client, "after")
        assert received(client, "before") == []
        assert received(client, "after") == [(b"1", None)]


class TestExclusiveBinding:
    def test_every_message_goes_to_exactly_one_queue(self, client: Client) -> None:
        """The binding moves to and fro in one stream of commands with the messages."""
        for name in ("a", "b"):
            client.declare(name)
        bodies = [b"%d" % each for each in range(20)]
        expected: dict[str, list[bytes]] = {"a": [], "b": []}
        for at, body in enumerate(bodies):
            name = "ab"[at // 3 % 2]
            if at % 3 == 0:
                client.command("exchange.bind", exchange="amq.direct", queue=name, binding_key="k", arguments=ALONE)
            client.publish("k", body, exchange="amq.direct")
            expected[name].append(body)
        client.sync()
        for name in ("a", "b"):
            assert [body for body, _ in received(client, name)] == expected[name]

    def test_other_queues_are_not_bound_any_more(self, client: Client) -> None:
        for name in ("a", "b", "c"):
            client.declare(name)
            bind(client, name, exchange="amq.direct")
        client.command("exchange.bind", exchange="amq.direct", queue="c", binding_key="k", arguments=ALONE)
        client.sync()
        for name in ("a", "b", "c"):
            result = client.call("exchange.bound", exchange="amq.direct", queue=name, binding_key="k")
            assert result["queue_not_matched"] == (name != "c")

    def test_an_ordinary_binding_that_comes_later_stands_beside_it(self, client: Client) -> None:
        for name in ("a", "b"):
            client.declare(name)
        client.command("exchange.bind", exchange="amq.direct", queue="a", binding_key="k", arguments=ALONE)
        bind(client, "b", exchange="amq.direct")
        send(client, b"1", exchange="amq.direct")
        assert received(client, "a") == received(client, "b") == [(b"1", None)]

    @pytest.mark.parametrize("exchange", ["amq.topic", "amq.fanout"])
    def test_exclusive_bindings_mean_nothing_to_other_types(self, client: Client, exchange: str) -> None:
        for name in ("a", "b"):
            client.declare(name)
            client.command("exchange.bind", exchange=exchange, queue=name, binding_key="k", arguments=ALONE)
        send(client, b"1", exchange=exchange)
        assert received(client, "a") == received(client, "b") == [(b"1", None)]

    def test_a_key_whose_only_queue_goes_leads_nowhere(self, client: Client) -> None:
        client.declare("a")
        client.declare("b")
        bind(client, "a", exchange="amq.direct")
        client.command("exchange.bind", exchange="amq.direct", queue="b", binding_key="k", arguments=ALONE)
        client.command("queue.delete", queue="b")
        send(client, b"1", exchange="amq.direct")
        assert received(client, "a") == []
