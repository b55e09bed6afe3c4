"""Runs that consumers of another protocol, with a selector, or of a link that can be resumed get together.

They get the bytes that they would if each message was converted, examined and sent by itself. Two brokers get the same
messages; before anybody consumes, one of them makes single messages of its runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.run import RunEntry
from qstore.broker.protocols.consumer import HeldRuns
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import APPLICATION_PROPERTIES, data_section, encode_section
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.test_links_filters import filter_set
from tests.broker.protocols.test_links_resumed import KEPT
from tests.broker.protocols.test_streams import forget, parsed
from tests.broker.protocols.world import BYTES, CREDIT, MESSAGES, UNLIMITED, WINDOW, World, header
from tests.support.sections_peer import ACCEPTED, RELEASED, address

COUNT: Final = 24
PROTOCOLS: Final = ("0-9-1", "0-10", "1.0")
_RED = "colour = 'red'"


def texts(count: int, size: int) -> list[bytes]:
    return [b"%02d" % number + bytes(size - 2) for number in range(count)]


# ---- publishers ----


def publish_basic(world: World, bodies: list[bytes], colour: str, fields: dict[str, Any]) -> None:
    client = BasicClient(world).open()
    kind, subject = fields.get("content_type"), (fields.get("subject") or "")[:200] or None
    properties = Properties(
        delivery_mode=2, content_type=kind, priority=fields.get("priority"), message_id=fields.get("message_id"),
        reply_to=fields.get("reply_to"), type=subject, headers=typed_map({"colour": colour, "n": 5}),
    )  # fmt: skip
    client.send(b"".join(client.message("q", body, properties) for body in bodies))
    client.sync()


def publish_transfers(world: World, bodies: list[bytes], colour: str, fields: dict[str, Any]) -> None:
    client = world.open_client(name=b"p%d" % len(world.machines))
    payload = encode_command("message.transfer", destination="")
    given = {"application_headers": typed_map({"colour": colour, "n": 5}), "content_type": fields.get("content_type")}
    delivery = {"routing_key": "q", "delivery_mode": 2, "priority": fields.get("priority")}
    head = header(
        {name: value for name, value in given.items() if value is not None},
        **{name: value for name, value in delivery.items() if value is not None},
    )
    client.send(b"".join(b"".join(encode_command_frames(1, payload, head, body, 65535)) for body in bodies))
    client.sync()


def publish_links(world: World, bodies: list[bytes], colour: str, fields: dict[str, Any]) -> None:
    client = LinksClient(world).open().sender("q")
    reply = fields.get("reply_to")
    own = {"subject": fields.get("subject"), "content_type": fields.get("content_type")}
    if fields.get("message_id") is not None:
        own["message_id"] = Value("string", fields["message_id"])
    if reply is not None:
        own["reply_to"] = address(reply)
    before = encode_composite("header", {"durable": True, "priority": fields.get("priority")})
    before += encode_composite("properties", {name: value for name, value in own.items() if value is not None})
    headers = ((Value("string", "colour"), Value("string", colour)), (Value("string", "n"), Value("int", 5)))
    before += encode_section(APPLICATION_PROPERTIES, Value("map", headers))
    frames = [
        b"".join(client.transfers(0, number, before + data_section(len(body)) + body, message_format=0))
        for number, body in enumerate(bodies, 1000)
    ]
    client.send(frames[0])
    client.send(b"".join(frames[1:]))
    client.sync()


PUBLISH: Final = {"0-9-1": publish_basic, "0-10": publish_transfers, "1.0": publish_links}


# ---- consumers ----


def basic_held(client: BasicClient) -> HeldRuns:
    return client.machine.channels[1].held_runs


def consume_basic(world: World, selector: str, credit: int, settles: bool) -> tuple[BasicClient, HeldRuns]:
    client = BasicClient(world).open(frame_max=0)
    client.method("basic.qos", prefetch_count=0 if settles else credit)
    arguments = {"x-filter-jms-selector": selector} if selector else {}
    client.method("basic.consume", queue="q", no_ack=settles, consumer_tag="c", arguments=typed_map(arguments))
    return client, basic_held(client)


def consume_transfers(world: World, selector: str, credit: int, settles: bool) -> tuple[Any, HeldRuns]:
    client = world.open_client(name=b"c")
    client.host.output.clear()
    arguments = {"x-apache-selector": selector} if selector else {}
    client.command(
        "message.subscribe", queue="q", destination="q", accept_mode=int(settles), arguments=typed_map(arguments)
    )
    client.command("message.set-flow-mode", destination="q", flow_mode=WINDOW if credit % 2 else CREDIT)
    client.flow("q", MESSAGES, credit)
    client.flow("q", BYTES, UNLIMITED if credit >= 100 else credit * 200)
    return client, client.session(b"c").deliveries.held


def consume_links(
    world: World,
    selector: str,
    credit: int,
    settles: bool,
    terminus: dict[str, Any] | None = None,
    *,
    emulates: bool = False,
) -> tuple[LinksClient, HeldRuns]:
    client = LinksClient(world).open()
    client.machine.is_emulating = emulates
    source: dict[str, Any] = {"address": address("q"), **(terminus or {})}
    if selector:
        source["filter"] = filter_set(f=("apache.org:selector-filter:string", Value("string", selector)))
    client.do(
        "attach", name="l", handle=0, role=True, source=Composite("source", source), target=Composite("target", {}),
        snd_settle_mode=int(settles),
    )  # fmt: skip
    client.credit(credit)
    return client, client.machine.sessions[0].held_runs


CONSUME: Final[dict[str, Callable[..., tuple[Any, HeldRuns]]]] = {
    "0-9-1": consume_basic, "0-10": consume_transfers, "1.0": consume_links,
}  # fmt: skip


# ---- both brokers ----


def rest(world: World) -> None:
    world.run()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def queue_of(world: World) -> Queue:
    return world.broker.default_host.queues["q"]


def filled(parts: list[tuple[str, int, int, str, dict[str, Any]]], *, in_runs: bool, returned: bool = False) -> World:
    """A broker with messages: of each part the protocol, how many, their size, a header, and properties."""
    world = World()
    world.durable_queue("q")
    for protocol, count, size, colour, fields in parts:
        PUBLISH[protocol](world, texts(count, size), colour, fields)
        rest(world)
    if returned:
        client, _ = consume_links(world, "", 1000, settles=False)
        client.messages()
        client.settle(RELEASED, 0, 1000)
        client.do("detach", handle=0, closed=True)
        rest(world)
    if not in_runs:
        queue = queue_of(world)
        for part in list(queue.order.parts()):
            if isinstance(part, RunEntry):
                queue.order.unfold_run(part)
    return world


def output(world: World, client: Any) -> bytes:
    """What the broker sends, until everything is on the disk."""
    rest(world)
    sent = bytes(client.host.output)
    client.host.output.clear()
    return sent


_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 9),
        "content_type": st.sampled_from(["text/plain", "amqp/map", "amqp/list", "x"]),
        "message_id": st.sampled_from(["m", "0a1b2c3d-0000-4000-8000-000000000001"]),
        "subject": st.sampled_from(["news", "x" * 300]),
        "reply_to": st.sampled_from(["q", "amq.topic/a", "nowhere"]),
    },
)
_PARTS = st.lists(
    st.tuples(
        st.sampled_from(PROTOCOLS), st.integers(1, 20), st.sampled_from([2, 100, 300]),
        st.sampled_from(["red", "red", "blue"]), _FIELDS,
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("spread", [0, 5])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_gets_messages_with_several_routing_keys_as_if_each_was_by_itself(protocol: str, spread: int) -> None:
    sent = []
    for in_runs in (True, False):
        world = World()
        world.durable_queue("q")
        client = BasicClient(world).open()
        client.call("queue.bind", queue="q", exchange="amq.fanout")
        bodies = [bytes([number]) * (9 + number % (spread + 1)) for number in range(40)]
        frames = [
            client.message("key" * (1 + number % 3), body, Properties(delivery_mode=2), exchange="amq.fanout")
            for number, body in enumerate(bodies)
        ]
        client.send(b"".join(frames))
        rest(world)
        queue = queue_of(world)
        runs = [part for part in queue.order.parts() if isinstance(part, RunEntry)]
        assert sum(run.count for run in runs) > 25
        for run in [] if in_runs else runs:
            queue.order.unfold_run(run)
        consumer, held = CONSUME[protocol](world, "", 100, settles=False)
        sent.append(output(world, consumer))
        assert bool(held.count) == (in_runs and protocol == "0-9-1")
    assert sent[0] == sent[1]
    assert sent[0].count(b"keykeykey") == 13


@given(
    parts=_PARTS, protocol=st.sampled_from(PROTOCOLS), selector=st.sampled_from(["", "", _RED, "colour <> 'green'"]),
    credit=st.sampled_from([7, 30, 100]), settles=st.booleans(), returned=st.booleans(),
)  # fmt: skip
def test_a_client_gets_the_bytes_that_it_would_get_singly(
    parts: list[tuple[str, int, int, str, dict[str, Any]]], protocol: str, selector: str, credit: int, settles: bool,
    returned: bool,
) -> None:  # fmt: skip
    found = []
    for in_runs in (True, False):
        world = filled(parts, in_runs=in_runs, returned=returned)
        client, _ = CONSUME[protocol](world, selector, credit, settles=settles)
        queue = queue_of(world)
        sent = output(world, client)
        found.append((sent, queue.available_count, queue.acquired_count, sorted(world.store.dequeued)))
    assert found[0] == found[1]


@pytest.mark.parametrize("selector", ["", _RED])
@pytest.mark.parametrize("consumer", PROTOCOLS)
@pytest.mark.parametrize("publisher", PROTOCOLS)
def test_runs_stay_together_between_all_protocols(publisher: str, consumer: str, selector: str) -> None:
    world = filled([(publisher, COUNT, 300, "red", {"priority": 6})], in_runs=True)
    client, held = CONSUME[consumer](world, selector, 100, settles=False)
    assert len(output(world, client)) > COUNT * 300
    assert held.count >= COUNT - 2  # the first ones may have been read singly
    assert queue_of(world).acquired_count == COUNT


@pytest.mark.parametrize("consumer", PROTOCOLS)
def test_runs_that_do_not_match_are_left_to_others(consumer: str) -> None:
    parts = [(publisher, COUNT, 100, colour, {}) for publisher in PROTOCOLS for colour in ("blue", "red")]
    world = filled(parts, in_runs=True)
    client, _ = CONSUME[consumer](world, _RED, 1000, settles=False)
    output(world, client)
    assert (queue_of(world).acquired_count, queue_of(world).available_count) == (3 * COUNT, 3 * COUNT)
    other, _ = CONSUME["1.0"](world, "", 1000, settles=False)
    assert [each.content[-100:] for each in (output_of(other))] == 3 * texts(COUNT, 100)


def output_of(client: LinksClient) -> list[Any]:
    rest(client.world)
    return client.messages()


def test_a_selector_for_redelivered_messages_divides_runs() -> None:
    world = filled([("1.0", COUNT, 100, "red", {})], in_runs=True)
    client, held = consume_links(world, "amqp.redelivered = TRUE", 100, settles=False)
    assert (output_of(client), held.count) == ([], 0)
    other, _ = consume_links(world, "", 10, settles=False)
    assert len(output_of(other)) == 10
    other.machine.closed()
    assert [each.content[-100:] for each in output_of(client)] == texts(10, 100)


def test_deliveries_in_runs_of_a_link_are_resumed() -> None:
    """Also parts of them, and single ones between."""
    world = filled([("1.0", COUNT, 100, "red", {})], in_runs=True)
    client, held = consume_links(world, "", COUNT, settles=False, terminus=KEPT)
    found = output_of(client)
    assert (len({each.fields["delivery_tag"] for each in found}), held.count) == (COUNT, COUNT - 1)
    assert client.machine.sessions[0].suspended_count == COUNT
    client.settle(ACCEPTED, 3, 5)
    client.settle(ACCEPTED, 9, 9)
    rest(world)
    client.machine.closed()
    rest(world)
    assert queue_of(world).acquired_count == COUNT - 4
    again = LinksClient(world).open()
    unsettled = Value(
        "map", tuple((Value("binary", each.fields["delivery_tag"]), Value("null", None)) for each in found)
    )
    again.do(
        "attach", name="l", handle=0, role=True, source=Composite("source", {"address": address("q"), **KEPT}),
        target=Composite("target", {}), unsettled=unsettled,
    )  # fmt: skip
    again.credit(100)
    resumed = [each for each in output_of(again) if each.fields.get("resume")]
    wanted = [number for number in range(COUNT) if number not in (3, 4, 5, 9)]
    assert [each.fields["delivery_tag"] for each in resumed] == [
        found[number].fields["delivery_tag"] for number in wanted
    ]
    again.settle(ACCEPTED, 0, COUNT)
    rest(world)
    assert queue_of(world).message_count == 0


def test_runs_of_a_link_that_is_closed_for_good_return() -> None:
    world = filled([("0-10", COUNT, 100, "red", {})], in_runs=True)
    client, held = consume_links(world, "", COUNT, settles=False, terminus=KEPT)
    assert len(output_of(client)) == COUNT
    assert held.count >= COUNT - 2
    client.do("detach", handle=0, closed=True)
    rest(world)
    assert (queue_of(world).available_count, held.count) == (COUNT, 0)


# ---- streams ----


def stream(publisher: str, fields: dict[str, Any], *, together: bool, is_read_back: bool) -> World:
    """A stream `q` with messages that were read together, or one by one."""
    world = World()
    world.store.reads_runs = together
    found = world.stream("q")
    bodies = texts(_AT_ONCE, 100)
    for part in [bodies] * 3 if together else [[body] for body in 3 * bodies]:
        PUBLISH[publisher](world, part, "red", fields)
        rest(world)
    if is_read_back:
        forget(found)
    return world


_AT_ONCE: Final = 70
_LONG: Final = 128  # the first offset that AMQP 1.0 does not shorten
_BEGIN: Final = {
    begin: {"filter": filter_set(offset=("rabbitmq:stream-offset-spec", Value("ulong", begin)))} for begin in (0, _LONG)
}


@pytest.mark.parametrize("begin", list(_BEGIN))
@pytest.mark.parametrize("is_emulating", [False, True])
@pytest.mark.parametrize("is_read_back", [False, True])
@pytest.mark.parametrize("publisher", PROTOCOLS)
@pytest.mark.parametrize("fields", [{}, {"subject": "news", "content_type": "amqp/map", "priority": 6}])
def test_messages_of_a_stream_have_their_offsets_in_runs(
    publisher: str, is_read_back: bool, is_emulating: bool, begin: int, fields: dict[str, Any]
) -> None:
    found, offsets = [], []
    for together in (True, False):
        world = stream(publisher, fields, together=together, is_read_back=is_read_back)
        client, held = consume_links(world, "", 1000, settles=False, terminus=_BEGIN[begin], emulates=is_emulating)
        found.append(output(world, client))
        if together and (publisher == "1.0" or not fields):
            assert held.count >= 3 * _AT_ONCE - _LONG - 2
        elif not together:
            assert held.count == 0
        client.feed(found[-1])
        offsets.append([parsed(each.content)[0] for each in client.deliveries()])
        client.settle(ACCEPTED, 0, 1000)
        rest(world)
        assert client.machine.sessions[0].unsettled_count == 0
    assert offsets[0] == offsets[1] == list(range(begin, 3 * _AT_ONCE))
    if begin:
        assert found[0] == found[1]
