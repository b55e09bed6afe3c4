"""Streams over the three protocols, on a disk that waits: offsets, runs and single messages, filters, names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qstore.broker.model.errors import InternalError, NotImplementedByBrokerError
from qstore.broker.model.events import (
    Event,
    QueueThresholdCrossedDownward,
    QueueThresholdCrossedUpward,
    QueueThresholdExceeded,
)
from qstore.broker.model.queues.consumers import TAKEN
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.stream import MAX_GAPS, PASSED_AT_ONCE, Stream
from qstore.broker.model.run import MessageRun, RunEntry
from qstore.broker.model.settlement import Selection
from qstore.formats.amqp_0_9_1.methods import AMQP_0_8, AMQP_0_9, AMQP_0_9_1, Version
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.structs import MESSAGE_PROPERTIES, decode_struct
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.sections import section_value, split_sections
from qstore.formats.amqp_1_0.values import Value, plain_key
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.test_links_filters import filter_set
from tests.broker.protocols.world import SlowStore, World, header

OFFSET = "x-stream-offset"
ACCEPTED = Composite("accepted", {})


@pytest.fixture
def world() -> World:
    return World()


def with_headers(**headers: Any) -> Properties:
    return Properties(
        delivery_mode=2, headers=typed_map({name.replace("_", "-"): value for name, value in headers.items()})
    )


def filled(world: World, bodies: list[bytes], properties: Properties = PERSISTENT, **arguments: Any) -> Stream:
    """A stream with messages of AMQP 0-9-1, which were read together, and are on the disk."""
    stream = world.stream("s", **arguments)
    publish(world, bodies, properties)
    return stream


def publish(world: World, bodies: list[bytes], properties: Properties = PERSISTENT) -> None:
    client = BasicClient(world).open()
    client.send(b"".join(client.message("s", body, properties) for body in bodies))
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def forget(stream: Stream) -> None:
    """Close all segments, and have their messages in the journal only."""
    for segment in stream.log.segments:
        segment.close()
        segment.drop_parts()


def texts(count: int, *, is_even: bool = True) -> list[bytes]:
    return [b"%03d" % number + b"." * (0 if is_even else number % 7) for number in range(count)]


def read_basic(
    world: World,
    count: int,
    offset: Any = "first",
    *,
    prefetch: int = 1000,
    version: Version = AMQP_0_9_1,
    **arguments: Any,
) -> list[tuple[int, bytes]]:
    client = BasicClient(world, version=version).open()
    client.method("basic.qos", prefetch_count=prefetch)
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    client.method("basic.consume", queue="s", consumer_tag="t", arguments=typed_map({OFFSET: offset, **given}))
    client.sync()
    found = client.take("basic.deliver")
    assert len(found) == count
    tags = [each.values["delivery_tag"] for each in found]
    assert tags == list(range(1, count + 1))
    result = [(each.properties.headers.get(OFFSET).value, each.body) for each in found]
    client.method("channel.close")
    client.sync()
    return result


def read_transfers(world: World, offset: Any = "first", **values: Any) -> list[tuple[int, bytes]]:
    client = world.open_client(name=f"reader-{len(world.machines)}".encode())
    client.subscribe("s", arguments={OFFSET: offset}, **values)
    client.sync()
    assert not client.exceptions
    return [(offset_in(each.header), each.body) for each in client.deliveries]


def offset_in(segment: bytes) -> int:
    """The offset in the application headers of a header segment."""
    at = 4 + int.from_bytes(segment[:4], "big")
    found = decode_struct(MESSAGE_PROPERTIES, segment, at, len(segment))["application_headers"].get(OFFSET)
    assert found is not None
    offset: int = found.value
    return offset


def read_links(world: World, offset: Any = "first", **filters: Value) -> list[tuple[int, bytes]]:
    client = LinksClient(world).open()
    spec = Value("string", offset) if isinstance(offset, str) else Value("ulong", offset)
    given = {"offset": ("rabbitmq:stream-offset-spec", spec)}
    given |= {name: (f"rabbitmq:{name.replace('_', '-')}", value) for name, value in filters.items()}
    client.receiver("s", credit=1000, terminus={"filter": filter_set(**given)})
    return [parsed(each.content) for each in client.messages()]


def parsed(content: bytes) -> tuple[int, bytes]:
    sections = split_sections(content)
    annotations = {plain_key(key): each.value for key, each in section_value(content, sections.annotations).value}
    return annotations[OFFSET], content[sections.body_at :]


def test_a_stream_knows_which_messages_are_on_the_disk(world: World) -> None:
    """It stores no marks of the others, and drops nothing for them."""
    stream = filled(world, texts(10))
    assert stream.synced == stream.log.end == 10
    client = BasicClient(world).open()
    client.send(b"".join(client.message("s", body, PERSISTENT) for body in texts(40)))
    client.sync()
    assert stream.log.end == 50
    assert stream.synced == 10
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    assert stream.synced == 50


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("is_read_back", [True, False])
@pytest.mark.parametrize("properties", [PERSISTENT, with_headers(a=1, x_stream_offset=5)])
def test_messages_of_a_run_have_their_offsets(is_even: bool, is_read_back: bool, properties: Properties) -> None:
    world = World()
    bodies = texts(40, is_even=is_even)
    stream = filled(world, bodies, properties)
    assert any(part.run is not None for segment in stream.log.segments for part in segment.parts or ())
    if is_read_back:
        forget(stream)
    expected = list(enumerate(bodies))
    assert read_basic(world, 40) == expected
    assert read_basic(world, 33, 7) == expected[7:]
    assert read_basic(world, 3, prefetch=3) == expected[:3]
    assert read_transfers(world) == expected
    assert read_transfers(world, 12) == expected[12:]


@pytest.mark.parametrize("version", [AMQP_0_8, AMQP_0_9], ids=lambda version: version.name)
def test_clients_of_older_versions_read_within_the_limit_of_their_channel(world: World, version: Version) -> None:
    filled(world, texts(40))
    assert read_basic(world, 3, prefetch=3, version=version) == list(enumerate(texts(3)))
    client = BasicClient(world, version=version).open()
    client.method("basic.consume", queue="s")
    client.sync()
    assert "consumer prefetch count is not set" in client.last().values["reply_text"]


def test_messages_of_transfers_are_read_by_all(world: World) -> None:
    stream = world.stream("s")
    client = world.open_client()
    for body in texts(20):
        client.command("message.transfer", header=header(routing_key="s", delivery_mode=2), body=body)
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    expected = list(enumerate(texts(20)))
    for _ in range(2):
        assert read_transfers(world) == expected
        assert read_transfers(world, acquire_mode=1) == expected
        assert read_transfers(world, accept_mode=1) == expected
        assert read_basic(world, 20) == expected
        assert [offset for offset, _ in read_links(world)] == list(range(20))
        forget(stream)
    assert stream.message_count == 20


def test_links_have_the_filters_of_rabbitmq(world: World) -> None:
    stream = filled(world, [b"none"])
    for value, body in (("a", b"a1"), ("b", b"b1"), ("a", b"a2")):
        publish(world, [body], with_headers(x_stream_filter_value=value))
    assert [offset for offset, _ in read_links(world)] == [0, 1, 2, 3]
    for is_read_back in (False, True):
        assert [each for each, _ in read_links(world, stream_filter=Value("string", "a"))] == [1, 3]
        both = Value("list", (Value("string", "b"), Value("string", "c")))
        assert [each for each, _ in read_links(world, stream_filter=both)] == [2]
        wanted = {"stream_filter": both, "stream_match_unfiltered": Value("boolean", True)}
        assert [each for each, _ in read_links(world, **wanted)] == [0, 2]
        assert [each for each, _ in read_links(world, 2, **wanted)] == [2]
        if not is_read_back:
            forget(stream)


def test_a_time_of_links_is_in_milliseconds(world: World) -> None:
    filled(world, [b"old"])
    world.now += 100
    publish(world, [b"new"])
    client = LinksClient(world).open()
    at = Value("timestamp", int((world.now - 50) * 1000))
    client.receiver("s", terminus={"filter": filter_set(offset=("rabbitmq:stream-offset-spec", at))})
    assert [parsed(each.content)[0] for each in client.messages()] == [1]


def test_a_durable_link_has_its_offset_kept_until_it_is_closed(world: World) -> None:
    stream = filled(world, texts(10))
    terminus = {"durable": 2, "expiry_policy": "never"}
    spec = {"filter": filter_set(offset=("rabbitmq:stream-offset-spec", Value("string", "first")))}

    def read(client: LinksClient) -> list[int]:
        client.receiver("s", credit=4, terminus={**terminus, **spec}, name="mine")
        found = client.messages()
        client.settle(ACCEPTED, found[0].id, found[1].id)
        client.sync()
        return [parsed(each.content)[0] for each in found]

    client = LinksClient(world).open(container_id="box")
    assert read(client) == [0, 1, 2, 3]
    assert list(stream.tracked) == ["box_mine"]
    client.do("detach", handle=0, closed=False)
    assert client.take("detach")
    assert read(client) == [2, 3, 4, 5]
    client.do("detach", handle=0, closed=True)
    assert client.take("detach")
    assert not stream.tracked
    assert read(client) == [0, 1, 2, 3]


def test_a_subscription_settles_offsets_of_its_name(world: World) -> None:
    stream = filled(world, texts(30))
    client = world.open_client()
    arguments = {OFFSET: "first", "x-stream-consumer-name": "n"}
    client.subscribe("s", arguments=arguments, messages=20)
    client.sync()
    assert len(client.deliveries) == 20
    client.command("message.accept", transfers=((0, 11),))
    client.command("message.release", transfers=((12, 12),))
    client.command("message.accept", transfers=((13, 19),))
    client.sync()
    assert stream.tracked["n"].offset == 12
    client.command("message.cancel", destination="s")
    client.subscribe("s", arguments=arguments, messages=1, to="again")
    client.sync()
    assert client.deliveries[-1].body == b"012"


def test_a_stream_takes_messages_of_fanouts_and_of_transient_runs(world: World) -> None:
    stream = world.stream("s")
    client = BasicClient(world).open()
    client.call("queue.declare", queue="other")
    for queue in ("s", "other"):
        client.call("queue.bind", queue=queue, exchange="amq.fanout")
    transient = Properties(delivery_mode=1)
    client.send(b"".join(client.message("", body, transient, exchange="amq.fanout") for body in texts(20)))
    client.send(client.message("", b"single", transient, exchange="amq.fanout"))
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    assert stream.message_count == world.broker.default_host.queues["other"].message_count == 21
    assert len(world.store.enqueued) == 21
    forget(stream)
    assert read_basic(world, 21)[-1] == (20, b"single")


def test_nothing_is_delivered_before_it_is_on_the_disk(world: World) -> None:
    stream = filled(world, texts(5))
    client = BasicClient(world).open()
    client.method("basic.qos", prefetch_count=100)
    client.method("basic.consume", queue="s", consumer_tag="t", arguments=typed_map({OFFSET: "first"}))
    client.send(client.message("s", b"late", PERSISTENT))
    client.sync()
    assert len(client.take("basic.deliver")) == 5
    assert stream.log.end == 6
    world.store.end_flush()
    assert [each.body for each in client.take("basic.deliver")] == [b"late"]


def test_with_deliver_before_sync_messages_are_delivered_while_they_are_written(world: World) -> None:
    world.stream("s", {"qpid.deliver_before_sync": 1})
    client = BasicClient(world).open()
    client.method("basic.qos", prefetch_count=100)
    client.method("basic.consume", queue="s", consumer_tag="t", arguments=typed_map({OFFSET: "first"}))
    client.send(client.message("s", b"early", PERSISTENT))
    client.sync()
    assert world.store.flushes
    assert [each.body for each in client.take("basic.deliver")] == [b"early"]


@pytest.mark.parametrize(
    "asked",
    [
        {"qpid.alert_count": 1000, "qpid.alert_count_down": 1990},  # not below: half of the other
        {"qpid.alert_count": 1995, "qpid.alert_count_down": 1990},
        {"qpid.alert_size": 7000, "qpid.alert_size_down": 6990},
    ],
)
def test_alerts_are_raised_when_a_stream_fills_up_and_when_retention_has_emptied_it(
    world: World, asked: dict[str, int]
) -> None:
    events: list[Event] = []
    world.broker.events.listen(events.append)
    alerts = (QueueThresholdExceeded, QueueThresholdCrossedUpward, QueueThresholdCrossedDownward)
    stream = world.stream("s", asked, max_length_bytes=4000)
    publish(world, texts(2000))
    assert [type(each) for each in events if isinstance(each, alerts)] == list(alerts[:2])
    events.clear()
    work = world.broker.streams.look()
    assert work is not None
    world._do(work, lambda _: None)
    world.run()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    (down,) = [each for each in events if isinstance(each, alerts)]
    assert isinstance(down, QueueThresholdCrossedDownward)
    assert down.messages <= 1990
    assert stream.message_count < 1000


def test_a_message_that_cannot_be_read_back_is_left_out(world: World) -> None:
    stream = filled(world, texts(10))
    forget(stream)
    world.store.unreadable.add(stream.log.segments[0].rids[4])
    assert [offset for offset, _ in read_basic(world, 9)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_retention_drops_segments_in_turns_once_the_marks_are_stored(world: World) -> None:
    stream = filled(world, texts(2000), max_length_bytes=20_000)
    work = world.broker.streams.look()
    assert work is not None
    assert stream.log.begin == 0
    world._do(work, lambda _: None)
    world.run()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    begin = stream.log.begin
    assert begin > 500
    assert stream.message_bytes <= 20_000
    assert stream.message_count == 2000 - begin
    assert stream.acquired_count == 0
    assert sorted(world.store.dequeued) == list(range(1, begin + 1))
    assert read_basic(world, 1, 3, prefetch=1) == [(begin, texts(2000)[begin])]


@pytest.mark.parametrize(("kept", "passed"), [("1h", 0), ("1h", 3601), (None, 0)])
def test_what_a_name_has_not_accepted_stays_if_the_stream_is_declared_so(kept: str | None, passed: int) -> None:
    world = World()
    more = {} if kept is None else {"stream_keep_unread": kept}
    stream = filled(world, texts(1500), max_length_bytes=10_000, **more)
    client = BasicClient(world).open()
    client.method("basic.qos", prefetch_count=300)
    arguments = typed_map({OFFSET: 100, "x-stream-consumer-name": "n"})
    client.method("basic.consume", queue="s", consumer_tag="t", arguments=arguments)
    client.sync()
    client.method("basic.ack", delivery_tag=200, multiple=True)
    client.method("basic.cancel", consumer_tag="t")
    client.sync()
    world.now += passed
    is_kept = kept is not None and not passed
    assert stream.to_drop() == (stream.log.at(300).first if is_kept else stream.log.segments[-2].first)


def test_a_stream_is_neither_moved_nor_purged_nor_has_it_an_alternate_exchange(world: World) -> None:
    stream = filled(world, texts(5))
    with pytest.raises(NotImplementedByBrokerError, match="cannot be purged or moved"):
        Selection(stream)
    client = world.open_client()
    client.command("queue.purge", queue="s")
    client.sync()
    assert "cannot be purged" in client.exceptions[0]["description"]
    assert stream.message_count == 5
    world.broker.queue_factory._store = world.store  # type: ignore[assignment]
    client = world.open_client(name=b"other")
    arguments = {"x-queue-type": "stream"}
    client.command("queue.declare", queue="t", durable=True, alternate_exchange="amq.fanout", arguments=arguments)
    client.sync()
    assert "a stream cannot be with an alternate exchange" in client.exceptions[0]["description"]


@pytest.mark.parametrize(
    "arguments", [{"qpid.last_value_queue_key": "k"}, {"qpid.paging": 1}, {"qpid.policy_type": "ring"}, {"no-local": 1}]
)
def test_other_kinds_are_refused(world: World, arguments: dict[str, Any]) -> None:
    world.broker.queue_factory._store = world.store  # type: ignore[assignment]
    client = world.open_client()
    given = {"x-queue-type": "stream", **arguments}
    client.command("queue.declare", queue="t", durable=True, arguments=given)
    client.sync()
    assert re.search("a stream cannot be|a stream drops", client.exceptions[0]["description"])


def test_a_consumer_that_does_not_number_runs_gets_single_messages(world: World) -> None:
    stream = filled(world, texts(20))

    class Taker:
        kind, has_credit, acquires, destination, is_waiting = "all", True, True, "t", False
        arguments = typed_map({OFFSET: "first"})

        def __init__(self) -> None:
            self.offsets: list[Any] = []

        def deliver(self, entry: Entry) -> int:
            self.offsets.append(entry.message.headers().get(OFFSET))
            return TAKEN

        def room_for(self, run: MessageRun) -> int:
            return run.count

        def deliver_run(self, run: RunEntry) -> int:
            raise AssertionError("a run without offsets")

    taker: Any = Taker()
    stream.add_consumer(taker)
    stream.wake(taker)
    world.run()
    assert [each.value for each in taker.offsets] == list(range(20))


@pytest.mark.parametrize("tag", ["", "\udcff"])
def test_a_tag_that_cannot_be_stored_is_no_name(world: World, tag: str) -> None:
    filled(world, texts(2))
    client = world.open_client()
    arguments = {"x-stream-automatic-offset-tracking": True}
    client.subscribe("s", arguments=arguments, to=tag)
    client.sync()
    assert "not a name of at most 255 characters" in client.exceptions[0]["description"]


class Taker:
    """A consumer that takes all single messages.

    Attributes:
        entries: what it got.
    """

    kind, has_credit, acquires, destination, is_waiting = "all", True, True, "t", False

    def __init__(self, **arguments: Any) -> None:
        given = {f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.arguments = typed_map({OFFSET: "first", **given})
        self.entries: list[Entry] = []

    @property
    def offsets(self) -> list[int]:
        return [entry.position - 1 for entry in self.entries]

    def deliver(self, entry: Entry) -> int:
        self.entries.append(entry)
        return TAKEN

    def room_for(self, _run: MessageRun) -> int:
        return 0

    def queue_deleted(self) -> None:
        """Its stream was deleted."""


def subscribed(world: World, stream: Stream, priority: int = 0, **arguments: Any) -> Any:
    """A consumer that has got what it gets now."""
    taker: Any = Taker(**arguments)
    stream.add_consumer(taker, priority)
    stream.wake(taker)
    world.run()
    return taker


def test_acceptances_beyond_very_many_gaps_are_forgotten(world: World) -> None:
    count = 2 * MAX_GAPS + 100
    stream = world.stream("s")
    taker = subscribed(world, stream, consumer_name="n")
    tracked = stream.tracked["n"]
    for offset in range(1, count, 2):
        tracked.passed(offset, 1)
    assert len(tracked.done.beyond) == MAX_GAPS
    for offset in range(0, count, 2):
        tracked.passed(offset, 1)
    assert tracked.offset == 2 * MAX_GAPS + 1
    stream.remove_consumer(taker)
    assert not tracked.done.beyond


def test_the_next_consumer_gets_what_was_accepted_after_something_that_was_not(world: World) -> None:
    stream = filled(world, texts(6), single_active_consumer=True)
    first = subscribed(world, stream)
    second = subscribed(world, stream)
    assert (first.offsets, second.offsets) == ([0, 1, 2, 3, 4, 5], [])
    for number in (0, 1, 3, 4):
        stream.accepted(first.entries[number])
    stream.remove_consumer(first)
    world.run()
    assert second.offsets == [2, 3, 4, 5]


def test_a_consumer_that_becomes_active_late_continues_from_the_offset_of_its_name(world: World) -> None:
    """Another name was active in between, of a higher priority."""
    stream = filled(world, texts(6), single_active_consumer=True)
    first = subscribed(world, stream, consumer_name="n")
    last = subscribed(world, stream, consumer_name="n")
    other = subscribed(world, stream, 5, consumer_name="other")
    for entry in first.entries[:4]:
        stream.accepted(entry)
    stream.remove_consumer(first)
    world.run()
    stream.remove_consumer(other)
    world.run()
    assert (other.offsets, last.offsets) == ([0, 1, 2, 3, 4, 5], [4, 5])


def test_messages_that_consumers_pass_count_towards_the_deliveries_of_a_turn(world: World) -> None:
    stream = world.stream("s")
    for number in range(300):
        publish(world, [b"x"], with_headers(x_stream_filter_value=f"v{number}"))
    takers: list[Any] = [Taker(filter="other") for _ in range(100)]
    for taker in takers:
        stream.add_consumer(taker)
        stream.wake(taker)
    world.broker.tick.deliveries = 1000
    stream.dispatch()
    passed = sum(reader.next_offset for reader in stream.readers.values())
    assert 1000 <= passed <= 1000 + PASSED_AT_ONCE
    world.run()
    assert {reader.next_offset for reader in stream.readers.values()} == {300}


def test_a_segment_that_is_cut_while_it_is_read_keeps_its_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has dequeued a part of it, and then failed."""
    bodies = texts(20)
    stream = filled(world, bodies, max_length_bytes=100)
    forget(stream)
    read: list[Any] = []
    monkeypatch.setattr(SlowStore, "read_runs", lambda _self, *arguments: read.append(arguments))
    taker = subscribed(world, stream)
    assert len(read) == 1
    monkeypatch.undo()
    (first, *_) = stream.log.segments
    world.store.most_of_run = 3
    dequeue_run = SlowStore.dequeue_run

    def failing(store: SlowStore, journal: object, target: int, count: int) -> int:
        if target > 1:
            raise store.FailedError("broken")
        return dequeue_run(store, journal, target, count)

    monkeypatch.setattr(SlowStore, "dequeue_run", failing)
    with pytest.raises(InternalError):
        stream._drop_first(first)
    assert stream.log.begin == 3
    world.store.read_runs(*read[0])
    world.run()
    assert [(entry.position - 1, entry.message.body) for entry in taker.entries] == list(enumerate(bodies))[3:]


def test_what_is_to_leave_stays_for_a_name_that_comes_before_it_has_begun_to(world: World) -> None:
    stream = filled(world, texts(1500), max_length_bytes=10_000, stream_keep_unread="1h")
    work = world.broker.streams.look()
    assert work is not None
    subscribed(world, stream, consumer_name="n")
    world._do(work, lambda _: None)
    world.run()
    assert stream.log.begin == 0


def test_a_consumer_that_comes_while_messages_leave_begins_with_the_first_that_stays(world: World) -> None:
    stream = filled(world, texts(2000), max_length_bytes=10_000)
    stream.begin_drop(stream.to_drop())
    assert stream.is_dropping
    taker: Any = Taker()
    stream.add_consumer(taker)
    assert stream.readers[taker].next_offset == stream.kept_from > stream.log.begin
