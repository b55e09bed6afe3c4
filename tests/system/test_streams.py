"""Streams over AMQP 0-9-1 with pika, against a real broker: offsets, kills, retention, names."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from qstore.formats.broker_records.topology import encode_map
from qstore.formats.values import typed_map
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, one_broker

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)  # pika takes it for UTC
STREAM = {"x-queue-type": "stream"}
PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"number": 7})

broker = pytest.fixture(scope="module")(one_broker)


@pytest.fixture
def stream() -> str:
    return f"stream-{uuid4()}"


@contextmanager
def opened(broker: RunningBroker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        yield connection.channel()


@pytest.fixture
def channel(broker: RunningBroker) -> Iterator[BlockingChannel]:
    with opened(broker) as found:
        yield found


def declare(channel: BlockingChannel, stream: str, **arguments: Any) -> None:
    more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(stream, durable=True, arguments={**STREAM, **more})


def publish(channel: BlockingChannel, stream: str, bodies: list[bytes], **headers: Any) -> None:
    """Publish, and wait for the confirm of the last message; and so of all."""
    properties = pika.BasicProperties(delivery_mode=2, headers={"number": 7, **headers})
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", stream, body, properties)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def read(
    channel: BlockingChannel,
    stream: str,
    count: int,
    offset: Any = "first",
    *,
    prefetch: int = 100,
    acks: bool = True,
    tag: str = "",
    patience: float = PATIENCE_SECONDS,
    **arguments: Any,
) -> list[tuple[int, bytes]]:
    """The offsets and bodies of the next messages from there on: that many, or fewer if no more come for so long."""
    more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    given = {**more} if offset is None else {"x-stream-offset": offset, **more}
    channel.basic_qos(prefetch_count=prefetch)
    found: list[tuple[int, bytes]] = []
    if not tag:
        for method, properties, body in channel.consume(stream, arguments=given, inactivity_timeout=patience):
            if method is None:
                break
            found.append((properties.headers["x-stream-offset"], body))
            if acks:
                channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
        return found

    def received(_: object, method: Any, properties: Any, body: bytes) -> None:
        found.append((properties.headers["x-stream-offset"], body))
        if acks and len(found) <= count:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(stream, received, consumer_tag=tag, arguments=given)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    channel.basic_cancel(tag)
    return found[:count]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stores_offset(broker: RunningBroker, offset: int) -> bool:
    """Whether the catalogue has this offset for the name of a stream's consumer: it is stored twice a second."""
    (rhm,) = broker.data_directory.glob("**/rhm")
    encoded = encode_map(typed_map({"offset": offset}))
    item = encoded[encoded.index(b"offset") :]
    for path in rhm.rglob("*"):
        if path.is_file() and "jrnl" not in path.parts:
            with suppress(FileNotFoundError):  # the catalogue has replaced it
                if item in path.read_bytes():
                    return True
    return False


@pytest.mark.core
def test_messages_of_a_stream_are_read_again_and_again_with_their_offsets(
    channel: BlockingChannel, stream: str
) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 50))
    expected = list(enumerate(numbers(0, 50)))
    for _ in range(3):
        assert read(channel, stream, 50) == expected
    assert channel.queue_declare(stream, passive=True).method.message_count == 50


@pytest.mark.parametrize(
    ("offset", "first"),
    [
        ("first", 0),
        ("last", 19),
        (7, 7),
        (LONG_AGO, 0),
        ("1Y", 0),
        (30, 20),
        (None, 20),
        ("next", 20),
    ],
)
def test_a_consumer_begins_where_it_asks(channel: BlockingChannel, stream: str, offset: Any, first: int) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 20))
    if first == 20:
        channel.basic_qos(prefetch_count=10)
        found: list[int] = []
        given = {} if offset is None else {"x-stream-offset": offset}
        channel.basic_consume(
            stream, lambda _c, _m, properties, _b: found.append(properties.headers["x-stream-offset"]), arguments=given
        )
        publish(channel, stream, [b"later"])
        end = time.monotonic() + PATIENCE_SECONDS
        while not found and time.monotonic() < end:
            channel.connection.process_data_events(0.1)
        assert found == [20]
        return
    assert read(channel, stream, 20 - first, offset) == list(enumerate(numbers(0, 20)))[first:]


def test_a_time_finds_what_came_after_it(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 3))
    time.sleep(5)
    moment = time.time() - 2.5  # far enough from both for an interval of whole seconds, and a busy machine
    between = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    publish(channel, stream, numbers(3, 6))
    assert read(channel, stream, 3, f"{round(time.time() - moment)}s") == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert read(channel, stream, 3, between.replace(tzinfo=None)) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert len(read(channel, stream, 6, "5m")) == 6


def test_credit_is_the_prefetch_count(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 30))
    assert [offset for offset, _ in read(channel, stream, 9, acks=False, prefetch=8, patience=1)] == list(range(8))
    assert len(read(channel, stream, 30, prefetch=8)) == 30


def test_rejected_messages_stay_and_return_credit(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 10))
    channel.basic_qos(prefetch_count=2)
    found = []
    for method, _, body in channel.consume(
        stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_SECONDS
    ):
        found.append(body)
        channel.basic_nack(method.delivery_tag, requeue=len(found) % 2 == 0)
        if len(found) == 10:
            break
    channel.cancel()
    assert found == numbers(0, 10)
    assert len(read(channel, stream, 10)) == 10


def test_messages_that_are_published_while_consumers_read_reach_all_of_them(
    broker: RunningBroker, channel: BlockingChannel, stream: str
) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 300))
    results: dict[int, list[tuple[int, bytes]]] = {}

    def reading(number: int) -> None:
        with opened(broker) as own:
            results[number] = read(own, stream, 600, prefetch=20 + number * 100)

    threads = [threading.Thread(target=reading, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    publish(channel, stream, numbers(300, 600))
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert all(results[number] == list(enumerate(numbers(0, 600))) for number in range(3))


def test_transient_and_large_messages_are_kept_too(make_broker: BrokerMaker, stream: str) -> None:
    broker = make_broker().start()
    large = b"l" * 300_000
    with opened(broker) as channel:
        declare(channel, stream)
        channel.confirm_delivery()
        for body in (b"a", large, b"b"):
            channel.basic_publish("", stream, body, pika.BasicProperties(delivery_mode=1))
    broker.kill()
    broker.start()
    with opened(broker) as channel:
        assert read(channel, stream, 3) == [(0, b"a"), (1, large), (2, b"b")]


@pytest.mark.core
def test_what_was_confirmed_survives_kills_with_its_offset(make_broker: BrokerMaker, stream: str) -> None:
    broker = make_broker().start()
    with opened(broker) as channel:
        declare(channel, stream)
    done = 0
    for _ in range(3):
        with opened(broker) as channel:
            publish(channel, stream, numbers(done, done + 700))
            done += 700
            assert read(channel, stream, 20, done - 20) == list(enumerate(numbers(0, done)))[-20:]
        broker.kill()
        broker.start()
    with opened(broker) as channel:
        assert read(channel, stream, done, prefetch=500) == list(enumerate(numbers(0, done)))


def test_retention_drops_the_oldest_and_offsets_stay(make_broker: BrokerMaker, stream: str) -> None:
    broker = make_broker().start()
    body = b"x" * 1000
    with opened(broker) as channel:
        declare(channel, stream, max_length_bytes=100_000)
        publish(channel, stream, [b"%d " % number + body for number in range(400)])

        def first() -> int:
            return read(channel, stream, 1)[0][0]

        until(lambda: first() > 200)
        until(lambda: channel.queue_declare(stream, passive=True).method.message_count < 130)
        begin = first()
    broker.kill()
    broker.start()
    with opened(broker) as channel:
        at_kill, begin = begin, read(channel, stream, 1)[0][0]
        assert begin >= at_kill  # more may have left before the kill
        found = read(channel, stream, 400 - begin)
        assert [offset for offset, _ in found] == list(range(begin, 400))
        assert all(text.startswith(b"%d " % offset) for offset, text in found)
        publish(channel, stream, [b"400 "])
        assert read(channel, stream, 1, "last") == [(400, b"400 ")]
    assert broker.stop() == 0
    broker.start()
    with opened(broker) as channel:
        assert read(channel, stream, 1, "last") == [(400, b"400 ")]


def test_messages_older_than_the_age_leave(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream, max_age="2s")
    publish(channel, stream, numbers(0, 5))
    time.sleep(1.2)
    publish(channel, stream, numbers(5, 6))  # the last segment stays
    until(lambda: channel.queue_declare(stream, passive=True).method.message_count == 1)
    assert read(channel, stream, 1) == [(5, b"5")]


def test_the_offset_of_a_name_is_kept_over_kills(make_broker: BrokerMaker, stream: str) -> None:
    broker = make_broker().start()
    with opened(broker) as channel:
        declare(channel, stream)
        publish(channel, stream, numbers(0, 100))
        assert [each for each, _ in read(channel, stream, 30, tag="one", stream_consumer_name="n")] == list(range(30))
        assert read(channel, stream, 1, None, tag="two", stream_consumer_name="n") == [(30, b"30")]
        tracked = {"stream_automatic_offset_tracking": True}
        assert [each for each, _ in read(channel, stream, 5, 50, tag="three", **tracked)] == list(range(50, 55))
    time.sleep(1.2)
    broker.kill()
    broker.start()
    with opened(broker) as channel:
        assert read(channel, stream, 1, "first", tag="four", stream_consumer_name="n") == [(31, b"31")]
        assert read(channel, stream, 1, "first", tag="three", **tracked) == [(55, b"55")]


def test_one_consumer_of_a_name_is_active_and_the_next_one_continues(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 10))
    found: dict[str, list[int]] = {"a": [], "b": []}

    def consume(tag: str) -> None:
        def received(_: object, method: Any, properties: Any, _body: bytes) -> None:
            found[tag].append(properties.headers["x-stream-offset"])
            if tag == "b" or len(found[tag]) <= 4:
                channel.basic_ack(method.delivery_tag)

        arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "group"}
        channel.basic_consume(stream, received, consumer_tag=tag, arguments=arguments)

    channel.basic_qos(prefetch_count=3)
    consume("a")
    consume("b")
    channel.connection.sleep(0.5)
    assert found == {"a": list(range(7)), "b": []}
    channel.basic_cancel("a")
    channel.connection.sleep(0.5)
    assert found["b"] == list(range(4, 10))


def test_filters_deliver_the_messages_with_a_value(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, [b"a1", b"a2"], **{"x-stream-filter-value": "a"})
    publish(channel, stream, [b"b1"], **{"x-stream-filter-value": "b"})
    publish(channel, stream, [b"none"])
    publish(channel, stream, [b"a3"], **{"x-stream-filter-value": "a"})

    def bodies(wanted: Any, **arguments: Any) -> list[bytes]:
        return [body for _, body in read(channel, stream, 5, stream_filter=wanted, patience=1, **arguments)]

    assert bodies("a") == [b"a1", b"a2", b"a3"]
    assert bodies(["b", "c"]) == [b"b1"]
    assert bodies("b", stream_match_unfiltered=True) == [b"b1", b"none"]


def test_what_streams_cannot_do_is_refused_by_name(
    broker: RunningBroker, channel: BlockingChannel, stream: str
) -> None:
    declare(channel, stream)
    publish(channel, stream, [b"x"])

    def refused(code: int, text: str, action: Callable[[BlockingChannel], object]) -> None:
        def acting() -> None:
            with opened(broker) as own:
                action(own)
                own.connection.process_data_events(PATIENCE_SECONDS)

        with pytest.raises((pika.exceptions.ChannelClosed, pika.exceptions.ConnectionClosed)) as caught:
            acting()
        assert caught.value.reply_code == code
        assert text in caught.value.reply_text

    def consumed(own: BlockingChannel, prefetch: int, *, acks: bool = True, **arguments: Any) -> None:
        own.basic_qos(prefetch_count=prefetch)
        own.basic_consume(stream, lambda *_: None, auto_ack=not acks, arguments=arguments)

    refused(406, "consumer prefetch count is not set for stream", lambda own: consumed(own, 0))
    refused(540, "automatic acknowledgement not supported by stream", lambda own: consumed(own, 5, acks=False))
    refused(540, "basic.get not supported by stream", lambda own: own.basic_get(stream))
    refused(540, "queue.purge not supported by stream", lambda own: own.queue_purge(stream))
    refused(406, "x-stream-offset", lambda own: consumed(own, 5, **{"x-stream-offset": "soon"}))
    refused(406, "x-stream-filter", lambda own: consumed(own, 5, **{"x-stream-filter": 5}))
    for what, values in (
        ("exclusive", {"exclusive": True, "durable": True}),
        ("auto-delete", {"auto_delete": True, "durable": True}),
        ("non-durable", {}),
    ):
        refused(406, what, lambda own, given=values: own.queue_declare(f"{stream}-2", arguments=STREAM, **given))  # type: ignore[misc]
    for argument in (
        {"x-message-ttl": 1}, {"x-dead-letter-exchange": "d"}, {"x-max-priority": 5}, {"x-expires": 1000},
        {"x-max-length": 5}, {"x-overflow": "reject-publish"}, {"x-max-age": "5 minutes"}, {"x-max-age": 5},
    ):  # fmt: skip
        (name,) = argument
        refused(
            406,
            name,
            lambda own, given=argument: own.queue_declare(f"{stream}-2", durable=True, arguments={**STREAM, **given}),  # type: ignore[misc]
        )
    refused(406, "x-max-age", lambda own: own.queue_declare(f"{stream}-2", arguments={"x-max-age": "5m"}))

    def committed(own: BlockingChannel) -> None:
        own.tx_select()
        own.basic_publish("", stream, b"y")
        own.tx_commit()

    refused(406, "takes no messages of transactions", committed)
    assert len(read(channel, stream, 2, patience=1)) == 1


def test_a_deleted_stream_ends_its_consumers_and_leaves_nothing(channel: BlockingChannel, stream: str) -> None:
    declare(channel, stream)
    publish(channel, stream, numbers(0, 5))
    assert len(read(channel, stream, 5, tag="t", stream_consumer_name="n")) == 5
    channel.queue_delete(stream)
    time.sleep(1.2)
    declare(channel, stream)
    publish(channel, stream, [b"new"])
    assert read(channel, stream, 1, "first", tag="t", stream_consumer_name="n") == [(0, b"new")]
