"""Messages of AMQP 1.0 that 0-9-1 consumers get in runs: the same as if each was converted by itself."""

from __future__ import annotations

import pytest

from qstore.broker.model.run import RunEntry
from qstore.broker.protocols.amqp_0_9_1.consumer import BasicConsumer
from qstore.broker.protocols.amqp_0_9_1.message import as_basic, run_as_basic
from qstore.formats.amqp_1_0.composites import encode_composite
from qstore.formats.amqp_1_0.sections import APPLICATION_PROPERTIES, VALUE, data_section, encode_section
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.kernels.bodies import Bodies
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.compiled import replaces

COUNT = 40
HEADER = encode_composite("header", {"durable": True, "priority": 7})
PROPERTIES = encode_composite(
    "properties", {"message_id": Value("string", "m"), "subject": "news", "content_type": "text/x"}
)
APPLICATION = encode_section(APPLICATION_PROPERTIES, Value("map", ((Value("string", "n"), Value("int", 5)),)))


def data(text: bytes) -> bytes:
    return data_section(len(text)) + text


def two(text: bytes) -> bytes:
    """Two data sections, which together are as long as one with 5 bytes more."""
    return data(text[:5]) + data(text[5:])


def value(text: bytes) -> bytes:
    return encode_section(VALUE, Value("string", text.decode()))


def publish(world: World, bodies: list[bytes]) -> None:
    """Publish messages that are read together: the first by itself, and then the others, which are like it."""
    client, head = LinksClient(world).open().sender("q"), HEADER + PROPERTIES + APPLICATION
    frames = [
        b"".join(client.transfers(0, number, head + body, message_format=0)) for number, body in enumerate(bodies, 1000)
    ]
    client.send(frames[0])
    client.send(b"".join(frames[1:]))
    client.sync()


def runs_on(world: World) -> list[RunEntry]:
    parts = world.broker.default_host.queues["q"].order.parts()
    return [part for part in parts if isinstance(part, RunEntry)]


def bodies_of(count: int, size: int) -> list[bytes]:
    return [b"%04d" % number + bytes(size - 4) for number in range(count)]


@pytest.mark.parametrize("size", [4, 200, 255, 256, 1024])
def test_a_run_has_what_each_message_has_alone(size: int) -> None:
    world = World()
    make_queue(world)
    publish(world, [data(body) for body in bodies_of(COUNT, size)])
    (run,) = runs_on(world)
    assert run.count == COUNT - 1
    found = run_as_basic(run.run)
    assert found is not None
    message, bodies, field = found
    assert field is None
    for number in range(run.count):
        alone = as_basic(run.run.message(number))
        assert alone is not None
        assert (message.header, message.routed) == (alone.header, alone.routed)
        assert bodies.body(number) == alone.body == bodies_of(COUNT, size)[number + 1]


@pytest.mark.parametrize("odd", [0, 20, COUNT - 1])
def test_a_run_in_which_one_has_two_sections_is_converted_singly(odd: int) -> None:
    world = World()
    make_queue(world)
    texts = bodies_of(COUNT, 95)
    sent = [data(text) for text in texts]
    texts[odd] = texts[odd][:90]
    sent[odd] = two(texts[odd])
    assert len({*map(len, sent)}) == 1
    publish(world, sent)
    client = BasicClient(world).open()
    client.call("basic.consume", queue="q", no_ack=True)
    assert [each.body for each in client.take("basic.deliver")] == texts


@pytest.mark.parametrize("size", [100, 1024])
@pytest.mark.parametrize("number", [0, 7, COUNT - 2])
@pytest.mark.parametrize("at", [0, 1])
def test_all_messages_of_a_run_must_have_one_data_section(size: int, number: int, at: int) -> None:
    """Those that are read back from the disk may have something else."""
    world = World()
    make_queue(world)
    publish(world, [data(text) for text in bodies_of(COUNT, size)])
    (entry,) = runs_on(world)
    run, whole = entry.run, entry.run.bodies
    place = whole.at + whole.start(number) + at
    changed = whole.data[:place] + b"\x09" + whole.data[place + 1 :]
    bodies = Bodies(changed, whole.at, whole.starts, whole.gap, whole.smallest, whole.largest)
    assert run.contents is not None
    assert run.template.contents_of(whole, run.lead) is not None
    assert run.template.contents_of(bodies, run.lead) is None


def test_values_are_converted_singly() -> None:
    world = World()
    make_queue(world)
    texts = [b"%04d" % number for number in range(COUNT)]
    publish(world, [value(text) for text in texts])
    assert all(run_as_basic(run.run) is None for run in runs_on(world))
    client = BasicClient(world).open()
    client.call("basic.consume", queue="q", no_ack=True)
    assert [each.body for each in client.take("basic.deliver")] == texts


@replaces
@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_gets_them_in_runs(no_ack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world, taken = World(), []
    make_queue(world)
    texts = bodies_of(COUNT, 100)
    publish(world, [data(text) for text in texts])
    deliver_run = BasicConsumer.deliver_run

    def counting(consumer: BasicConsumer, run: RunEntry) -> int:
        taken.append(run.count)
        return deliver_run(consumer, run)

    monkeypatch.setattr(BasicConsumer, "deliver_run", counting)
    client = BasicClient(world).open()
    client.call("basic.consume", queue="q", no_ack=no_ack)
    found = client.take("basic.deliver")
    assert [each.body for each in found] == texts
    assert all(each.properties == found[0].properties for each in found)
    assert sum(taken) >= COUNT - 1
    if not no_ack:
        client.method("basic.nack", delivery_tag=COUNT, multiple=True, requeue=True)
        again = client.take("basic.deliver")
        assert ([each.body for each in again], {each.values["redelivered"] for each in again}) == (texts, {True})
