"""AMQP 1.0: filters on properties, selectors of durable subscriptions, message groups, annotations of outcomes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.protocols.amqp_1_0.filters import MAX_ENTRIES, read_sql_filter
from qstore.broker.protocols.amqp_1_0.message import GROUP_HEADER, GROUP_SEQUENCE_HEADER, SectionMessage
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_1_0.composites import Composite, encode_composite, section_list
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    data_section,
    encode_section,
    section_value,
    split_sections,
)
from qstore.formats.amqp_1_0.values import Described, Value, plain_key
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.sections_peer import address

PROPERTIES = "amqp:properties-filter"
APPLICATION = "amqp:application-properties-filter"
ID = UUID("00000000-0000-0000-0000-000000000007")


def filter_set(**filters: tuple[object, dict[str, Value] | Value]) -> tuple[tuple[Value, Value], ...]:
    """A filter set: of each filter the descriptor and the entries."""
    found = []
    for name, (descriptor, entries) in filters.items():
        value = entries
        if isinstance(value, dict):
            value = Value("map", tuple((Value("symbol", key), each) for key, each in value.items()))
        kind = Value("ulong" if isinstance(descriptor, int) else "symbol", descriptor)
        found.append((Value("symbol", name), Value("described", Described(kind, value))))
    return tuple(found)


def message(name: str, *, application: dict[str, Value] | None = None, **properties: Any) -> bytes:
    """A message whose body is its name."""
    content = encode_composite("header", {}) + (encode_composite("properties", properties) if properties else b"")
    if application:
        pairs = tuple((Value("string", key), value) for key, value in application.items())
        content += encode_section(APPLICATION_PROPERTIES, Value("map", pairs))
    return content + data_section(len(name)) + name.encode()


MESSAGES = {
    "plain": message("plain"),
    "order": message("order", subject="order.new", message_id=Value("string", "17"), group_sequence=5),
    "invoice": message("invoice", subject="invoice.new", message_id=Value("ulong", 17), content_type="text/plain"),
    "uuid": message("uuid", subject="&x", correlation_id=Value("uuid", ID), user_id=b"ann", creation_time=1000),
    "red": message("red", application={"colour": Value("string", "red"), "size": Value("int", 3)}),
    "blue": message("blue", application={"colour": Value("symbol", "blue"), "size": Value("double", 3.0)}),
    "truth": message(
        "truth", application={"colour": Value("boolean", True), "size": Value("ubyte", 1), "a [b]": Value("int", 1)}
    ),
}


@pytest.fixture
def client(world: World) -> LinksClient:
    make_queue(world)
    client = LinksClient(world).open()
    client.call("attach", name="s", handle=0, role=False, target=Composite("target", {"address": address("q")}))
    return client


def attach(client: LinksClient, filters: tuple[tuple[Value, Value], ...], handle: int = 1) -> None:
    source = Composite("source", {"address": address("q"), "filter": filters})
    client.do("attach", name=f"r{handle}", handle=handle, role=True, source=source, snd_settle_mode=1)
    client.credit(100, handle)


def selected(client: LinksClient, filters: tuple[tuple[Value, Value], ...]) -> list[str]:
    attach(client, filters)
    for each in MESSAGES.values():
        client.publish(message=each, settled=True)
    return [bytes(each.content).rpartition(b"\xa0")[2][1:].decode() for each in client.messages()]


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ({"subject": Value("string", "order.new")}, ["order"]),
        ({"subject": Value("string", "&p:in")}, ["invoice"]),
        ({"subject": Value("string", "&s:.new")}, ["order", "invoice"]),
        ({"subject": Value("string", "&&x")}, ["uuid"]),
        ({"subject": Value("null", None)}, ["plain", "red", "blue", "truth"]),
        ({"message-id": Value("ulong", 17)}, ["invoice"]),
        ({"message-id": Value("string", "17")}, ["order"]),
        ({"correlation-id": Value("uuid", ID)}, ["uuid"]),
        ({"user-id": Value("binary", b"ann")}, ["uuid"]),
        ({"content-type": Value("symbol", "&p:text/")}, ["invoice"]),
        ({"creation-time": Value("timestamp", 1000)}, ["uuid"]),
        ({"group-sequence": Value("uint", 5)}, ["order"]),
        ({"subject": Value("string", "&s:.new"), "message-id": Value("ulong", 17)}, ["invoice"]),
    ],
)
def test_properties_are_compared(client: LinksClient, entries: dict[str, Value], names: list[str]) -> None:
    assert selected(client, filter_set(f=(PROPERTIES, entries))) == names


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ({"colour": Value("string", "red")}, ["red"]),
        ({"colour": Value("string", "&s:ue")}, ["blue"]),
        ({"colour": Value("boolean", True)}, ["truth"]),
        ({"size": Value("long", 3)}, ["red", "blue"]),
        ({"size": Value("boolean", True)}, []),
        ({"size": Value("float", 1.0)}, ["truth"]),
        ({"other": Value("null", None), "colour": Value("string", "red")}, ["red"]),
    ],
)
def test_application_properties_are_compared(client: LinksClient, entries: dict[str, Value], names: list[str]) -> None:
    assert selected(client, filter_set(f=(APPLICATION, entries))) == names


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("properties.subject LIKE '%.new' AND p.group_sequence >= 5", ["order"]),
        ("p.message_id = 17", ["invoice"]),
        ("p.message_id = '17'", ["order"]),
        ("p.message_id <> '17'", ["invoice"]),
        (f"p.correlation_id = '{ID}'", ["uuid"]),
        ("p.user_id = 0x616E6E", ["uuid"]),
        ("p.content_type IN ('text/html', 'text/plain')", ["invoice"]),
        ("p.creation_time < UTC() - 1", ["uuid"]),
        ("p.subject > 'i'", ["order", "invoice"]),
        ("header.priority = 4 AND NOT h.durable AND p.subject IS NULL", ["plain", "red", "blue", "truth"]),
        ('colour = "red"', ["red"]),
        ("application_properties.colour != 'red'", ["blue", "truth"]),
        ("a.colour = [colour] AND colour >= 'blue'", ["red", "blue"]),
        ("[a [[b]]] IS NOT NULL", ["truth"]),
        ("size / 2 = 1.5", ["red", "blue"]),
        ("-size % 2 = -1", ["red", "truth"]),
        ("size NOT IN (1, TRUE, p.subject)", ["red", "blue"]),
        ("colour", ["truth"]),
    ],
)
def test_conditions_in_sql_select(client: LinksClient, condition: str, names: list[str]) -> None:
    assert selected(client, filter_set(f=("amqp:sql-filter", Value("string", condition)))) == names


def test_conditions_in_sql_select_messages_of_other_protocols(world: World, client: LinksClient) -> None:
    filters = filter_set(
        f=(0x120, Value("string", "p.content_type = 'text/plain' AND p.reply_to LIKE '%back' AND n = 1"))
    )
    attach(client, filters)
    publisher = BasicClient(world).open()
    for number in (1, 2):
        headers = typed_map({"n": number})
        publisher.publish("q", b"x", Properties(content_type="text/plain", reply_to="back", headers=headers))
    publisher.sync()
    assert len(client.messages()) == 1


def test_a_message_of_another_protocol_is_converted_once_for_all_fields_of_a_condition(world: World) -> None:
    queue = make_queue(world, "converted")
    publisher = BasicClient(world).open()
    publisher.publish("converted", bytes(100_000), Properties(content_type="text/plain"))
    publisher.sync()
    ((entry,), works) = (queue.entries(), [])
    for condition in ("p.to = 'x'", "p.to = 'x' OR p.subject = 'x' OR p.reply_to = 'x'"):
        candidate = Candidate(entry.message, is_redelivered=False)
        assert not read_sql_filter(condition).matches(candidate)
        works.append(candidate.work - len(condition))
    assert works[0] == works[1] > 0


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "unexpected end"),
        ("p.subject =", "unexpected end"),
        ("p.invalid = 1", "there is no field 'p.invalid'"),
        ("header.ttl = 1", "there is no field 'header.ttl'"),
        ("my.key = 1", "'.' is not expected here"),
        ("1key = 1", "'1' is not expected here"),
        ("data = 0x1", "'0' is not expected here"),
        ("upper = 1", "'upper' is not expected here"),
        ("size BETWEEN 1 AND 2", "'BETWEEN' is not expected here"),
        ("a = [b", "the quotes are not closed"),
        ("a = 'b", "the quotes are not closed"),
        ("a LIKE 0x48", "'0x48' is not expected here"),
        (f"a = {'9' * 500}", "the number is too large"),
        (f"a = {'9' * 310}", "the number is too large"),
        ("a" * 8193, "has 8193 characters, more than 8192"),
    ],
)
def test_conditions_that_are_not_sql_are_refused(client: LinksClient, condition: str, problem: str) -> None:
    client.take()
    attach(client, filter_set(f=("amqp:sql-filter", Value("string", condition))))
    (detach,) = client.take("detach")
    error = detach.fields["error"].fields
    assert (error["condition"], problem in error["description"]) == ("amqp:invalid-field", True), error


def test_a_selector_and_sql_of_equal_texts_are_different_conditions(client: LinksClient) -> None:
    condition = Value("string", "colour < 'green'")  # strings are ordered in SQL only
    attach(client, filter_set(f=("apache.org:selector-filter:string", condition)), 2)
    assert selected(client, filter_set(f=("amqp:sql-filter", condition))) == ["blue"]


def test_filters_and_a_selector_must_all_match(client: LinksClient) -> None:
    filters = filter_set(
        a=(0x174, {"colour": Value("string", "&p:")}),
        b=(0x173, {"subject": Value("null", None)}),
        c=("apache.org:selector-filter:string", Value("string", "size > 2")),
        d=("amqp:sql-filter", Value("string", "colour <= 'blue'")),
    )
    assert selected(client, filters) == ["blue"]


def test_the_answer_has_the_filters(client: LinksClient) -> None:
    filters = filter_set(f=(PROPERTIES, {"subject": Value("string", "a")}))
    client.take()
    attach(client, filters)
    (answer,) = client.take("attach")
    assert answer.fields["source"].fields["filter"] == filters


def test_consumers_with_other_filters_get_the_others(world: World, client: LinksClient) -> None:
    attach(client, filter_set(f=(APPLICATION, {"colour": Value("string", "red")})), 2)
    attach(client, filter_set(f=(APPLICATION, {"colour": Value("string", "blue")})), 3)
    client.take()
    for each in ("blue", "red", "plain"):
        client.publish(message=MESSAGES[each], settled=True)
    assert sorted(each.fields["handle"] for each in client.messages()) == [2, 3]
    assert world.broker.default_host.queues["q"].message_count == 1


@pytest.mark.parametrize(
    ("descriptor", "entries"),
    [
        (PROPERTIES, {"colour": Value("string", "a")}),
        (PROPERTIES, {"subject": Value("string", "&q:a")}),
        (PROPERTIES, {"subject": Value("list", ())}),
        (APPLICATION, {f"k{number}": Value("int", 1) for number in range(MAX_ENTRIES + 1)}),
        (APPLICATION, Value("string", "a")),
    ],
)
def test_a_filter_that_is_not_valid_is_refused(
    client: LinksClient, descriptor: str, entries: dict[str, Value] | Value
) -> None:
    client.take()
    attach(client, filter_set(f=(descriptor, entries)))
    assert client.error("detach") == "amqp:invalid-field"


def test_messages_of_other_protocols_are_compared_as_they_would_be_delivered(world: World, client: LinksClient) -> None:
    attach(
        client, filter_set(f=(PROPERTIES, {"subject": Value("string", "t")}), g=(APPLICATION, {"a": Value("int", 1)}))
    )
    client.take()
    basic = BasicClient(world).open()
    for type_, number in (("t", 1), ("t", 2), ("u", 1)):
        basic.publish("q", b"%d" % number, Properties(type=type_, headers=typed_map({"a": number})))
    basic.sync()
    assert [each.content[-1:] for each in client.messages()] == [b"1"]


# ---- message groups ----


def test_group_id_and_sequence_are_headers_elsewhere(world: World, client: LinksClient) -> None:
    client.publish(message=message("x", group_id="g", group_sequence=3), settled=True)
    client.publish(message=message("y", subject="s"), settled=True)
    basic = BasicClient(world).open()
    found = basic.call("basic.get", queue="q", no_ack=True)
    assert found.properties is not None
    assert found.properties.headers is not None
    assert plain_map(found.properties.headers) == {GROUP_HEADER: "g", GROUP_SEQUENCE_HEADER: 3}
    other = basic.call("basic.get", queue="q", no_ack=True)
    assert other.properties is not None
    assert not other.properties.headers


def test_headers_of_a_group_are_properties_here(world: World, client: LinksClient) -> None:
    basic = BasicClient(world).open()
    headers = {GROUP_HEADER: "g", GROUP_SEQUENCE_HEADER: 3, "own": 1}
    basic.publish("q", b"x", Properties(headers=typed_map(headers)))
    basic.sync()
    attach(client, ())
    (found,) = client.messages()
    sections = split_sections(found.content)
    fields = section_list("properties", found.content, *sections.properties)
    assert (fields["group_id"], fields["group_sequence"]) == ("g", 3)
    names = [plain_key(key) for key, _ in section_value(found.content, sections.application).value]
    assert names == ["own"]


def test_a_queue_with_groups_takes_those_of_its_messages(world: World, client: LinksClient) -> None:
    basic = BasicClient(world).open()
    arguments = {"qpid.group_header_key": GROUP_HEADER, "qpid.shared_msg_group": 1}
    basic.call("queue.declare", queue="grouped", arguments=arguments)
    target = Composite("target", {"address": address("grouped")})
    client.call("attach", name="s2", handle=9, role=False, target=target)
    for number in range(4):
        client.publish(message=message(str(number), group_id="ab"[number % 2]), handle=9, settled=True)
    source = Composite("source", {"address": address("grouped")})
    for handle in (4, 5):
        client.do("attach", name=f"g{handle}", handle=handle, role=True, source=source)
        client.credit(2, handle)
        client.sync()
    got = [(each.fields["handle"], each.content[-1:]) for each in client.messages()]
    assert sorted(got) in (
        [(4, b"0"), (4, b"1")],
        [(4, b"0"), (4, b"2"), (5, b"1"), (5, b"3")],
        [(4, b"0"), (4, b"1"), (4, b"2"), (4, b"3")],
    )
    groups = {body: handle for handle, body in got}
    assert groups.get(b"0") == groups.get(b"2", groups.get(b"0"))
    assert isinstance(next(iter(world.broker.default_host.queues["grouped"].entries())).message, SectionMessage)


# ---- selectors of durable subscriptions ----


def subscribe(client: LinksClient, selector: str | None, handle: int = 1, *capabilities: str) -> None:
    found = () if selector is None else filter_set(s=("apache.org:selector-filter:string", Value("string", selector)))
    source = {"address": address("amq.topic"), "durable": 2, "expiry_policy": "never", "filter": found}
    client.do(
        "attach",
        name="sub",
        handle=handle,
        role=True,
        source=Composite("source", source | {"capabilities": capabilities}),
    )
    client.credit(10, handle)
    client.sync()


def published(client: LinksClient) -> None:
    client.call("attach", name="t", handle=8, role=False, target=Composite("target", {"address": address("amq.topic")}))
    for each in ("red", "blue", "plain"):
        client.publish(message=MESSAGES[each], handle=8, settled=True)
    client.sync()


def test_a_durable_subscription_collects_what_its_selector_matches(world: World, client: LinksClient) -> None:
    subscribe(client, "size = 3")
    client.call("detach", handle=1, closed=False)
    published(client)
    queue = world.broker.default_host.queues["test_sub"]
    assert queue.message_count == 2
    subscribe(client, "size = 3")
    assert world.broker.default_host.queues["test_sub"] is queue
    assert len(client.messages()) == 2


@pytest.mark.parametrize("other", ["size = 4", None])
def test_another_selector_begins_the_subscription_anew(world: World, client: LinksClient, other: str | None) -> None:
    subscribe(client, "size = 3")
    client.call("detach", handle=1, closed=False)
    published(client)
    subscribe(client, other)
    assert world.broker.default_host.queues["test_sub"].message_count == 0
    assert client.messages() == []


def test_another_selector_is_refused_while_the_subscription_is_used(client: LinksClient) -> None:
    subscribe(client, "size = 3", 1, "shared")
    client.take()
    subscribe(client, "size = 4", 2, "shared")
    assert client.error("detach") == "amqp:resource-locked"


# ---- annotations of the outcome modified ----


def annotated(**fields: Any) -> Composite:
    annotations = ((Value("symbol", "x-opt-why"), Value("string", "late")), (Value("symbol", "x-n"), Value("uint", 7)))
    return Composite("modified", {"message_annotations": annotations, **fields})


def annotations_of(content: bytes) -> dict[str, Any]:
    bounds = split_sections(content).annotations
    found = section_value(content, bounds).value if bounds[1] else ()
    return {plain_key(key): value.value for key, value in found}


def receive(client: LinksClient, handle: int = 1, queue: str = "q") -> None:
    client.do(
        "attach", name=f"r{handle}", handle=handle, role=True, source=Composite("source", {"address": address(queue)})
    )
    client.credit(1, handle)


@pytest.mark.parametrize("count", [1, 1500])
def test_annotations_of_modified_are_kept_with_the_message(world: World, client: LinksClient, count: int) -> None:
    for _ in range(count):
        client.publish(message=message("x", subject="s"), settled=True)
        client.sync()
    client.do("attach", name="r", handle=1, role=True, source=Composite("source", {"address": address("q")}))
    client.credit(count, 1)
    assert len(client.messages()) == count
    client.settle(annotated(delivery_failed=True), 0, count - 1)
    receive(client, 2)
    (found,) = client.messages()
    assert annotations_of(found.content) == {"x-opt-why": "late", "x-n": 7}
    assert found.header["delivery_count"] == 1
    client.settle(Composite("accepted", {}), found.id)
    client.sync()
    queue = world.broker.default_host.queues["q"]
    queue.purge()
    assert (queue.message_count, queue.message_bytes) == (0, 0)
    assert queue.totals.bytes == 0


def test_a_dead_letter_has_the_annotations_of_modified(world: World, client: LinksClient) -> None:
    basic = BasicClient(world).open()
    basic.call("queue.declare", queue="dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    basic.call("queue.declare", queue="live", arguments=to_dead)
    basic.publish("live", b"x")
    receive(client, 1, "live")
    client.messages()
    client.settle(annotated(undeliverable_here=True), 0)
    client.sync()
    found = basic.call("basic.get", queue="dead", no_ack=True)
    assert found.properties is not None
    assert found.properties.headers is not None
    headers = plain_map(found.properties.headers)
    assert (headers["x-opt-why"], headers["x-n"], headers["x-death"][0]["reason"]) == ("late", 7, "rejected")


def test_annotations_that_are_too_long_leave_the_message_as_it_is(client: LinksClient) -> None:
    client.max_frame = 100_000
    client.publish(message=message("x", subject="s"), settled=True)
    receive(client)
    client.messages()
    large = ((Value("symbol", "x-large"), Value("string", "x" * 66_000)),)
    client.settle(Composite("modified", {"message_annotations": large}), 0)
    client.sync()
    client.credit(1, 1, seen=1)
    (found,) = client.messages()
    assert annotations_of(found.content) == {}
