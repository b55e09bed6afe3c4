"""AMQP 1.0: runs that were read back from the disk, or came over another protocol. A client cannot tell these.

Two brokers do the same; the store of one of them reads messages singly, and its messages were published one by one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from qstore.broker.model.queues.entry import HELD
from qstore.broker.model.run import RunEntry
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    encode_section,
)
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.values import STR16, TypedValue, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.read_together import Side, runs_on
from tests.support.profiles import seeds_of_the_day
from tests.support.sections_peer import ACCEPTED, REJECTED, RELEASED, Delivered, content

FAILED = Composite("modified", {"delivery_failed": True})
DURABLE = encode_composite("header", {"durable": True})
COUNT = 40


class LinksSide(Side):
    """A broker whose queue `d` has messages of any protocol, and a client of AMQP 1.0 that consumes them."""

    def __init__(self, *, reads_together: bool) -> None:
        super().__init__(reads_together=reads_together)
        self.client = LinksClient(self.world).open(container_id="consumer")
        self._link = LinksClient(self.world).open().sender("d")
        self._link.sent[0] = 1000
        self._basic = BasicClient(self.world).open()
        self._transfers = self.world.open_client()
        self._publishers = (self._link, self._basic, self._transfers)

    def rest(self) -> None:
        super().rest()
        for each in self._publishers:
            each.sync()  # type: ignore[attr-defined]

    def publish(self, messages: list[bytes]) -> None:
        """Over AMQP 1.0."""
        frames = []
        for message in messages:
            number = self._link.sent[0]
            self._link.sent[0] = number + 1
            frames.append(
                b"".join(self._link.transfers(0, number, message, delivery_tag=b"%08d" % number, message_format=0))
            )
        self.send_by(self._link, frames)

    def publish_basic(self, bodies: list[bytes], **properties: Any) -> None:
        given = Properties(delivery_mode=2, **properties)
        self.send_by(self._basic, [self._basic.message("d", body, given) for body in bodies])

    def publish_transfers(self, bodies: list[bytes], **properties: Any) -> None:
        self._transfers.publish("d", *bodies, delivery_mode=2, **properties)
        self.rest()

    def send_by(self, client: Any, frames: list[bytes]) -> None:
        for data in [b"".join(frames)] if self.reads_together else frames:
            client.send(data)
        self.rest()

    def read_back(self) -> None:
        """All messages leave memory; consumers have them read back."""
        self.rest()
        self.page_out()

    def consume(self, credit: int = 1000, **fields: Any) -> list[tuple[dict[str, Any], bytes]]:
        self.client.receiver("d", credit=credit, **fields)
        return self.messages()

    def messages(self) -> list[tuple[dict[str, Any], bytes]]:  # type: ignore[override]
        self.rest()
        return [(each.fields, each.content) for each in self.client.deliveries()]

    @property
    def held(self) -> int:
        """Messages that are unsettled in runs."""
        return self.client.machine.sessions[0].held_runs.count


@pytest.fixture
def sides() -> tuple[LinksSide, LinksSide]:
    """One that reads together, and one that does not."""
    return LinksSide(reads_together=True), LinksSide(reads_together=False)


def numbered(count: int = COUNT, begin: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(begin, begin + count)]


def value_of(kind: str, value: Any) -> bytes:
    return encode_section(VALUE, Value(kind, value))


BODIES = {
    "data": lambda number: encode_section(DATA, Value("binary", b"%06d" % number)),
    "long data": lambda number: encode_section(DATA, Value("binary", b"%0400d" % number)),
    "two data": lambda number: encode_section(DATA, Value("binary", b"%06d" % number)) * 2,
    "string": lambda number: value_of("string", f"{number:06}"),
    "ulong": lambda number: value_of("ulong", 1 << 40 | number),
    "sequence": lambda number: encode_section(SEQUENCE, Value("list", (Value("ulong", 1 << 40 | number),))),
    "with footer": lambda number: (
        encode_section(DATA, Value("binary", b"%06d" % number))
        + encode_section(FOOTER, Value("map", ((Value("symbol", "f"), Value("int", 1 << 20 | number)),)))
    ),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("is_annotated", [False, True])
def test_runs_that_were_read_back_stay_together(
    sides: tuple[LinksSide, LinksSide], kind: str, is_annotated: bool
) -> None:
    before = DURABLE
    if is_annotated:
        before += encode_section(MESSAGE_ANNOTATIONS, Value("map", ((Value("symbol", "x-a"), Value("string", "b")),)))
        before += encode_composite("properties", {"subject": "s", "content_type": "text/plain"})
        before += encode_section(APPLICATION_PROPERTIES, Value("map", ((Value("string", "k"), Value("int", 1)),)))
    found = []
    for side in sides:
        side.publish([before + BODIES[kind](number) for number in range(COUNT)])
        side.read_back()
        found.append(side.consume())
        assert side.held == (COUNT if side.reads_together else 0)
    assert len(found[0]) == COUNT
    assert found[0] == found[1]


def test_messages_that_were_published_singly_come_back_as_a_run() -> None:
    side = LinksSide(reads_together=True)
    for body in numbered():
        side.publish([content(body)])
    side.read_back()
    assert [message[-6:] for _, message in side.consume()] == numbered()
    assert runs_on(side.queue("d")) == [(HELD, COUNT)]


def test_a_message_with_a_further_section_is_in_no_run_with_those_without(sides: tuple[LinksSide, LinksSide]) -> None:
    """Its other bytes before the body are equal, and so is its size: the sections would be hidden in a body."""
    plain = DURABLE + encode_section(DATA, Value("binary", b"." * 50))
    section = encode_section(APPLICATION_PROPERTIES, Value("map", ((Value("string", "k"), Value("int", 7)),)))
    own = DURABLE + section + encode_section(DATA, Value("binary", b"." * (50 - len(section))))
    assert len(plain) == len(own)
    for side in sides:
        side.publish([plain] * 10 + [own] * 2 + [plain] * 10)
        side.read_back()
        entries = [entry.message.whole() for entry in side.queue("d").entries()]
        assert [number for number, message in enumerate(entries) if "k" in message.properties().headers] == [10, 11]
    for side in sides:
        side.read_back()
        side.consume()
        assert side.held == (20 if side.reads_together else 0)


def test_a_run_that_was_read_back_is_stored_as_its_messages_are() -> None:
    side = LinksSide(reads_together=True)
    side.publish([content(body, subject="s") for body in numbered()])
    stored = side.world.store.enqueued
    side.read_back()
    side.consume()
    (part,) = [part for part in side.queue("d").order.parts() if isinstance(part, RunEntry)]
    whole = part.run
    annotated = whole.like(whole.template.with_headers({"x-a": TypedValue(STR16, "b")}))
    for run, first, count in ((whole, 0, COUNT), (whole.beginning(9), 0, 9), (whole.part(9, 9), 9, 9)):
        head, field, _ = run.stored_form()
        assert field is None
        assert [head + run.bodies.body(number) for number in range(count)] == stored[first : first + count]
        assert run.size(0, count) == sum(run.message(number).size for number in range(count))
    single = whole.message(3).with_headers({"x-a": TypedValue(STR16, "b")})
    assert b"".join(single.stored_form()[0]) == annotated.stored_form()[0] + annotated.bodies.body(3)
    assert annotated.size(0, 1) == single.size


def test_a_run_of_one_size_ends_before_another_size(sides: tuple[LinksSide, LinksSide]) -> None:
    found = []
    for side in sides:
        side.publish([content(b"a" * size) for size in (100,) * 10 + (101,) * 10 + (256,) * 10])
        side.read_back()
        found.append(side.consume())
    assert found[0] == found[1]
    assert sides[0].held == 30


def test_those_that_expire_are_single(sides: tuple[LinksSide, LinksSide]) -> None:
    found = []
    for side in sides:
        side.publish([content(b"a" * 100, header={"ttl": 60_000})] * 10)
        side.read_back()
        found.append(side.consume())
        assert side.held == 0
    assert len(found[0]) == 10
    assert found[0] == found[1]


@pytest.mark.parametrize(("settled", "mode"), [(True, 1), (False, 0)])
def test_the_redelivered_mark_of_a_run_is_that_of_single_messages(
    sides: tuple[LinksSide, LinksSide], settled: bool, mode: int
) -> None:
    """Also when it was read back meanwhile."""
    for side in sides:
        side.publish([content(body) for body in numbered()])
        lost = LinksClient(side.world).open().receiver("d", credit=COUNT // 2)
        assert [mark_of(each.content) for each in lost.messages()] == [(True, 0)] * (COUNT // 2)
        lost.machine.closed()
        side.rest()
    for side in sides:
        side.read_back()
    found = [side.consume(snd_settle_mode=mode) for side in sides]
    assert found[0] == found[1]
    assert [message[-6:] for _, message in found[0]] == numbered()
    assert {fields["settled"] for fields, _ in found[0]} == {settled}
    half = COUNT // 2
    assert [mark_of(message) for _, message in found[0]] == [(False, 1)] * half + [(True, 0)] * half
    if not settled:
        assert (sides[0].held, sides[1].held) == (COUNT, 0)


def mark_of(message: bytes) -> tuple[bool, int]:
    """First acquirer, and delivery count."""
    fields = Delivered({}, message).header
    return fields.get("first_acquirer", False), fields.get("delivery_count", 0)


CONVERTED = {
    "basic": lambda side, bodies: side.publish_basic(bodies),
    "basic with headers": lambda side, bodies: side.publish_basic(
        bodies, headers=typed_map({"a": 1, "b": "c"}), message_id="m", reply_to="r", priority=3, content_type="text/x"
    ),
    "basic map": lambda side, bodies: side.publish_basic(bodies, content_type="amqp/map"),
    "transfer": lambda side, bodies: side.publish_transfers(bodies),
    "large basic": lambda side, bodies: side.publish_basic([body * 100 for body in bodies]),
}


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.parametrize("is_read_back", [False, True])
@pytest.mark.parametrize("mode", [0, 1])
def test_runs_of_other_protocols_are_converted_together(
    sides: tuple[LinksSide, LinksSide], kind: str, is_read_back: bool, mode: int
) -> None:
    found = []
    for side in sides:
        CONVERTED[kind](side, numbered())
        if is_read_back:
            side.read_back()
        found.append(side.consume(snd_settle_mode=mode))
    assert len(found[0]) == COUNT
    assert found[0] == found[1]
    if mode == 0 and is_read_back:
        assert sides[0].held == (0 if kind == "basic map" else COUNT)
    sides[0].client.settle(ACCEPTED, 0, 10 * COUNT)
    sides[0].rest()
    assert sides[0].queue("d").message_count == 0
    assert sorted(sides[0].world.store.dequeued) == list(range(1, COUNT + 1))


def test_a_map_of_another_protocol_is_converted_by_itself(sides: tuple[LinksSide, LinksSide]) -> None:
    entry = b"\x01k\x21" + (5).to_bytes(4)  # a key, and an int32
    body = (4 + len(entry)).to_bytes(4) + (1).to_bytes(4) + entry
    found = []
    for side in sides:
        side.publish_basic([body] * 10, content_type="amqp/map")
        side.read_back()
        found.append(side.consume())
        assert side.held == 0
    assert found[0] == found[1]
    value = Value("map", ((Value("string", "k"), Value("int", 5)),))
    assert all(message.endswith(encode_section(VALUE, value)) for _, message in found[0])


def test_a_run_is_for_no_client_whose_messages_are_smaller(sides: tuple[LinksSide, LinksSide]) -> None:
    for side in sides:
        side.publish_basic([b"x" * 300] * COUNT)
        side.publish([content(b"x" * 300)] * COUNT)
        side.read_back()
        assert side.consume(max_message_size=300) == []
        side.client.receiver("d", 1, credit=1000, max_message_size=400)
        assert len(side.messages()) == 2 * COUNT


@pytest.mark.parametrize("seed", seeds_of_the_day(6))
def test_no_client_can_tell_runs_that_were_read_back(seed: int) -> None:
    sides = LinksSide(reads_together=True), LinksSide(reads_together=False)
    found: list[list[Any]] = [[], []]
    held = 0
    for index, side in enumerate(sides):
        chosen = random.Random(seed)
        seen = published = 0
        open_ones: list[int] = []
        side.client.receiver("d", credit=0)
        for _ in range(60):
            what = chosen.choice(("publish", "publish", "page out", "credit", "credit", "settle", "settle", "look"))
            if what == "publish":
                count = chosen.randrange(1, 50)
                bodies = numbered(count, published)
                published += count
                size = chosen.choice((1, 1, 20))
                bodies = [body * size for body in bodies]
                how = chosen.choice(("links", "links", "basic", "transfers"))
                if how == "links":
                    side.publish([content(body) for body in bodies])
                elif how == "basic":
                    side.publish_basic(bodies)
                else:
                    side.publish_transfers(bodies)
            elif what == "page out":
                side.page_out()
            elif what == "credit":
                side.client.credit(chosen.randrange(1, 80), seen=seen)
            elif what == "settle" and open_ones:
                first = chosen.choice(open_ones)
                last = first + chosen.randrange(60)
                state = chosen.choice((ACCEPTED, ACCEPTED, RELEASED, FAILED, REJECTED))
                side.client.settle(state, first, last)
                open_ones = [each for each in open_ones if not first <= each <= last]
            elif what == "look" and chosen.random() < 0.1:
                found[index].append([bytes(e.message.whole().body) for e in side.queue("d").entries()])
            came = side.messages()
            held = max(held, side.held)
            seen += len(came)
            open_ones += [fields["delivery_id"] for fields, _ in came]
            found[index].append(came)
        found[index].append(side.state())
    assert held > 10
    assert found[0] == found[1]
