"""AMQP 1.0: messages that differ only in their bodies are published together, with the same effect as one by one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from qstore.broker.model.run import MIN_RUN, RunEntry
from qstore.broker.protocols.amqp_1_0.links import CREDIT
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import MESSAGE_ANNOTATIONS, VALUE, encode_section
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.values import TypedValue
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import World
from tests.support.profiles import seeds_of_the_day
from tests.support.sections_peer import address, content

FIRST = 1_000
"""A delivery-id whose encoding has a fixed size."""


def started(*queues: str, first: int = FIRST) -> tuple[World, LinksClient]:
    """A client with a link to each of these durable queues."""
    world = World()
    client = LinksClient(world).open()
    client.sent[0] = first
    for handle, name in enumerate(queues):
        world.durable_queue(name)
        target = Composite("target", {"address": address(name)})
        client.call("attach", name=name, handle=handle, role=False, target=target)
    client.take()
    return world, client


def frames(client: LinksClient, message: bytes, count: int, handle: int = 0, **fields: Any) -> list[bytes]:
    """The frames of equal messages, with tags of one size."""
    found = []
    for _ in range(count):
        number = client.sent[0]
        client.sent[0] = number + 1
        found += client.transfers(handle, number, message, delivery_tag=b"%08d" % number, message_format=0, **fields)
    return found


def finish(world: World, client: LinksClient) -> None:
    """Let the disk do everything."""
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        client.sync()


def runs_on(world: World, name: str = "q") -> list[int]:
    """The sizes of the runs on a queue."""
    parts = world.broker.default_host.queues[name].order.parts()
    return [part.count for part in parts if isinstance(part, RunEntry)]


def test_messages_that_were_read_together_are_a_run() -> None:
    world, client = started("q")
    before = client.machine.assembler.frames, client.machine.assembler.messages
    client.send(b"".join(frames(client, content(b"x" * 100), 50)))
    client.sync()
    assert (client.machine.assembler.frames, client.machine.assembler.messages) == (before[0] + 50, before[1] + 50)
    assert runs_on(world) == [48]  # the first ones are read singly
    assert client.outcomes() == []
    finish(world, client)
    assert client.outcomes() == [(FIRST, FIRST + 49, "accepted")]
    assert len(world.store.enqueued) == 50
    first, last = (restore_message(world.store.enqueued[number]) for number in (0, 49))
    assert first.stored_form()[0][0] == last.stored_form()[0][0]
    assert (bytes(last.content()), last.routing_key) == (b"x" * 100, "q")  # type: ignore[arg-type]


def test_bodies_of_a_run_are_their_own() -> None:
    world, client = started("q")
    data = b"".join(frame for n in range(30) for frame in frames(client, content(b"%04d" % n), 1))
    client.send(data)
    finish(world, client)
    assert runs_on(world) == [28]
    client.do("attach", name="r", handle=5, role=True, source=Composite("source", {"address": address("q")}))
    client.credit(100, 5)
    assert [each.content[-4:] for each in client.messages()] == [b"%04d" % n for n in range(30)]


@pytest.mark.parametrize("kind", ["binary", "string"])
@pytest.mark.parametrize("size", [10, 255, 256, 1000])
def test_values_of_bytes_or_text_are_runs(kind: str, size: int) -> None:
    world, client = started("q")
    value = b"v" * size if kind == "binary" else "v" * size
    message = encode_composite("header", {"durable": True}) + encode_section(VALUE, Value(kind, value))
    client.send(b"".join(frames(client, message, 20)))
    finish(world, client)
    assert runs_on(world) == [18]
    restored = restore_message(world.store.enqueued[10]).content()
    assert (restored.value if isinstance(restored, TypedValue) else restored) in (value, b"v" * size)


def test_other_values_are_taken_singly() -> None:
    world, client = started("q")
    message = encode_composite("header", {"durable": True}) + encode_section(VALUE, Value("ulong", 1 << 40))
    client.send(b"".join(frames(client, message, 20)))
    finish(world, client)
    assert (runs_on(world), world.broker.default_host.queues["q"].message_count) == ([], 20)


def test_consumers_of_other_protocols_get_them() -> None:
    world, client = started("q")
    client.send(b"".join(frames(client, content(b"body"), 20)))
    finish(world, client)
    basic = BasicClient(world).open()
    basic.call("basic.consume", queue="q", no_ack=True)
    finish(world, client)
    assert [each.body for each in basic.take("basic.deliver")] == [b"body"] * 20


@pytest.mark.parametrize(
    "second",
    [
        content(b"x" * 101),
        content(b"x" * 100, durable=False),
        content(b"x" * 100, header={"ttl": 5000}),
        content(b"x" * 100, subject="s"),
        content(b"x" * 100) + content(b"")[-5:],
        encode_composite("header", {"durable": True})
        + encode_section(
            MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-opt-delivery-delay"), Value("uint", 9)),))
        )
        + content(b"x" * 100)[-105:],
    ],
    ids=["size", "durable", "ttl", "subject", "sections", "delay"],
)
def test_a_run_ends_where_messages_differ(second: bytes) -> None:
    world, client = started("q")
    data = [*frames(client, content(b"x" * 100), 10), *frames(client, second, 1)]
    data += frames(client, content(b"x" * 100), 10)
    client.send(b"".join(data))
    finish(world, client)
    assert max(runs_on(world)) < 10
    told = client.outcomes()
    assert sorted(n for first, last, _ in told for n in range(first, last + 1)) == list(range(FIRST, FIRST + 21))
    assert {name for _, _, name in told} == {"accepted"}


@pytest.mark.parametrize("delay", [Value("string", "soon"), Value("int", -5), Value("uint", 9)])
def test_messages_with_a_delivery_time_are_taken_singly(delay: Value) -> None:
    world, client = started("q")
    asyncio.run(world.broker.default_host.topology.open_schedule())
    annotations = encode_section(MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-opt-delivery-delay"), delay),)))
    message = encode_composite("header", {}) + annotations + content(b"x")[-6:]
    client.send(b"".join(frames(client, message, 20)))
    finish(world, client)
    told = client.outcomes()
    assert {name for _, _, name in told} == {"rejected" if delay.type_name == "string" else "accepted"}
    assert sum(last - first + 1 for first, last, _ in told) == 20
    assert runs_on(world) == []


def test_a_gap_in_the_delivery_ids_ends_the_session() -> None:
    world, client = started("q")
    data = frames(client, content(b"x"), 10)
    client.sent[0] += 1
    client.send(b"".join(data + frames(client, content(b"x"), 10)))
    finish(world, client)
    assert client.error("end") == "amqp:invalid-field"
    assert world.broker.default_host.queues["q"].message_count == 10


def test_a_run_keeps_within_credit_and_window() -> None:
    world, client = started("q")
    client.send(b"".join(frames(client, content(b"x"), CREDIT + 1)))
    finish(world, client)
    assert client.error("detach") == "amqp:link:transfer-limit-exceeded"
    assert world.broker.default_host.queues["q"].message_count == CREDIT


def test_a_settled_run_is_not_answered() -> None:
    world, client = started("q")
    client.send(b"".join(frames(client, content(b"x"), 20, settled=True)))
    finish(world, client)
    assert (client.outcomes(), world.broker.default_host.queues["q"].message_count) == ([], 20)


def test_a_run_that_cannot_be_stored_is_rejected_singly() -> None:
    world, client = started("q")
    client.send(b"".join(frames(client, content(b"x"), 1)))
    finish(world, client)
    client.take()
    world.store.failing = world.store.FullError("full")
    client.send(b"".join(frames(client, content(b"x"), 10)))
    finish(world, client)
    assert {name for _, _, name in client.outcomes()} == {"rejected"}
    assert world.broker.default_host.queues["q"].message_count == 1


def test_credit_and_window_are_renewed() -> None:
    world, client = started("q")
    sent = 0
    for _ in range(12):
        client.send(b"".join(frames(client, content(b"x"), 500)))
        sent += 500
        finish(world, client)
    assert world.broker.default_host.queues["q"].message_count == sent
    flow = [each for each in client.take("flow") if each.fields.get("handle") == 0][-1]
    assert flow.fields["delivery_count"] + flow.fields["link_credit"] >= sent + CREDIT // 2
    assert flow.fields["next_incoming_id"] == sent


def test_delivery_ids_wrap() -> None:
    world, client = started("q", first=(1 << 32) - 10)
    found = []
    for _ in range(20):
        number = client.sent[0]
        client.sent[0] += 1
        found += client.transfers(0, number & 0xFFFFFFFF, content(b"x"), delivery_tag=b"%010d" % number)
    client.send(b"".join(found))
    finish(world, client)
    assert world.broker.default_host.queues["q"].message_count == 20
    assert next(first for first, _, _ in client.outcomes()) == (1 << 32) - 10


def history(seed: int, *, at_once: bool) -> tuple[list[bytes], list[bytes], list[Any]]:
    """Random messages, read together or frame by frame: what is on two queues, and all that was told."""
    chance = random.Random(seed)
    world, client = started("q", "p", first=chance.choice((0, 100, 250, 65_000)))
    told: list[Any] = []
    for _ in range(chance.randrange(1, 6)):
        data: list[bytes] = []
        for _ in range(chance.randrange(1, 5)):
            size = chance.choice((0, 3, 100, 254, 255, 256, 257, 1000))
            message = content(
                bytes(size), durable=chance.random() < 0.8, header={"priority": chance.choice((None, 4, 7))}
            )
            count, handle = chance.randrange(1, 3 * MIN_RUN), chance.randrange(2)
            data += frames(client, message, count, handle, settled=chance.choice((None, False, True)))
        if at_once:
            cut = chance.randrange(len(b"".join(data)) + 1)
            whole = b"".join(data)
            client.send(whole[:cut])
            client.send(whole[cut:])
        else:
            chance.randrange(len(b"".join(data)) + 1)
            for each in data:
                client.send(each)
        finish(world, client)
        told += client.outcomes()
    queues = world.broker.default_host.queues
    found = [[entry.message.stored_form() for entry in list(queues[name].entries())] for name in ("q", "p")]
    q, p = ([b"".join(parts) for parts, _, _ in each] for each in found)
    settled = sorted(n for first, last, _ in told for n in range(first, last + 1))
    return q, p, settled


@pytest.mark.parametrize("seed", seeds_of_the_day(40))
def test_together_has_the_effect_of_one_by_one(seed: int) -> None:
    assert history(seed, at_once=True) == history(seed, at_once=False)


def test_histories_have_runs() -> None:
    world, client = started("q")
    for message in (content(b"a"), content(b"bb"), content(b"a")):
        client.send(b"".join(frames(client, message, 2 * MIN_RUN)))
    assert sum(runs_on(world)) > 2 * MIN_RUN


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_run_leaves_memory_and_comes_back(is_stored: bool) -> None:
    world, client = started()
    queue = world.paged_queue("q")
    target = Composite("target", {"address": address("q")})
    client.call("attach", name="q", handle=0, role=False, target=target)
    client.take()
    data = [frame for n in range(60) for frame in frames(client, content(b"%04d" % n, durable=is_stored), 1)]
    client.send(b"".join(data))
    finish(world, client)
    assert queue.residency is not None
    queue.residency.relieve(1 << 30, is_urgent=True)
    assert (queue.residency.messages_out > 0) is is_stored  # the others have no paging file here
    client.do("attach", name="r", handle=5, role=True, source=Composite("source", {"address": address("q")}))
    client.credit(100, 5)
    finish(world, client)
    found = client.messages()
    assert [each.content[-4:] for each in found] == [b"%04d" % n for n in range(60)]
    client.settle(Composite("accepted", {}), found[0].id, found[-1].id)
    finish(world, client)
    assert (queue.message_count, queue.message_bytes) == (0, 0)


def test_a_ring_displaces_messages_of_a_run() -> None:
    world, client = started()
    basic = BasicClient(world).open()
    basic.call("queue.declare", queue="ring", arguments={"x-max-length": 7})
    client.call("attach", name="l", handle=0, role=False, target=Composite("target", {"address": address("ring")}))
    client.send(b"".join(frame for n in range(40) for frame in frames(client, content(b"%04d" % n), 1)))
    finish(world, client)
    left = [bytes(entry.message.content())[-4:] for entry in world.broker.default_host.queues["ring"].entries()]  # type: ignore[arg-type]
    assert left == [b"%04d" % n for n in range(33, 40)]


def test_a_run_is_put_on_all_queues_of_an_exchange() -> None:
    world, client = started("a", "b")
    basic = BasicClient(world).open()
    for name in ("a", "b"):
        basic.call("queue.bind", queue=name, exchange="amq.fanout", routing_key="")
    client.call(
        "attach", name="f", handle=5, role=False, target=Composite("target", {"address": address("amq.fanout")})
    )
    client.take()
    first = client.sent[0]
    client.send(b"".join(frames(client, content(b"x", subject="s"), 40, 5)))
    finish(world, client)
    assert [world.broker.default_host.queues[name].message_count for name in ("a", "b")] == [40, 40]
    assert runs_on(world, "a") == runs_on(world, "b") == [38]
    assert client.outcomes() == [(first, first + 39, "accepted")]
