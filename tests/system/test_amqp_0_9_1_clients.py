"""The clients of RabbitMQ, unchanged, against a real broker: pika, aio-pika, py-amqp, kombu and amqpstorm; and with
clients of AMQP 0-10 on the same queues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import aio_pika
import amqp
import amqpstorm
import kombu
import pika
import pika.exceptions
import pytest
from kombu.mixins import ConsumerProducerMixin
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel

from qstore import Connection, Message
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker

DURABLE = pika.BasicProperties(delivery_mode=2, headers={"number": 7}, message_id="m", content_type="text/plain")

broker = pytest.fixture(scope="module")(one_broker)


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid4()}"


@pytest.fixture
def channel(broker: RunningBroker) -> Iterator[BlockingChannel]:
    """A channel of pika's blocking adapter."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        yield connection.channel()


# ---- pika ----


@pytest.mark.core
def test_pika_publishes_with_confirms_and_consumes(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, DURABLE)
    channel.basic_qos(prefetch_count=3)
    found = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=PATIENCE_SECONDS):
        assert method is not None
        assert (properties.headers, properties.message_id) == ({"number": 7}, "m")
        found.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == 20:
            break
    channel.cancel()
    assert found == list(range(20))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_pika_receives_unroutable_messages_back(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", queue, b"back", DURABLE, mandatory=True)
    assert caught.value.messages[0].body == b"back"
    channel.queue_declare(queue, arguments={"qpid.max_count": 1, "qpid.flow_stop_count": 0})
    channel.basic_publish("", queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"2")


def test_pika_gives_messages_back(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"x", DURABLE)
    method, _, _ = channel.basic_get(queue)
    assert not method.redelivered
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (method.redelivered, body) == (True, b"x")
    channel.basic_reject(method.delivery_tag, requeue=False)
    assert channel.basic_get(queue) == (None, None, None)


def test_pika_retries_over_dead_letter_exchanges(channel: BlockingChannel, queue: str) -> None:
    """A message is rejected, waits on a queue without consumers, and comes back when its time is over."""
    waiting = f"{queue}.waiting"
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": 30}
    channel.queue_declare(waiting, durable=True, arguments=back)
    away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": waiting}
    channel.queue_declare(queue, durable=True, arguments=away)
    channel.basic_publish("", queue, b"job", DURABLE)
    for method, properties, body in channel.consume(queue, inactivity_timeout=PATIENCE_SECONDS):
        assert (method is not None, body) == (True, b"job")
        deaths = {each["reason"]: each["count"] for each in properties.headers.get("x-death", ())}
        if deaths == {"expired": 2, "rejected": 2}:
            channel.basic_ack(method.delivery_tag)
            break
        channel.basic_nack(method.delivery_tag, requeue=False)
    channel.cancel()
    assert properties.headers["number"] == 7
    assert properties.headers["x-first-death-queue"] == queue


def test_pika_binds_exchanges_to_exchanges(channel: BlockingChannel, queue: str) -> None:
    for name, kind in (("source", "topic"), ("destination", "fanout")):
        channel.exchange_declare(f"{queue}.{name}", kind, durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, f"{queue}.destination")
    channel.exchange_bind(f"{queue}.destination", f"{queue}.source", "orders.#")
    channel.confirm_delivery()
    channel.basic_publish(f"{queue}.source", "orders.new", b"order", DURABLE, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(f"{queue}.source", "others", b"other", DURABLE, mandatory=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (f"{queue}.source", "orders.new", b"order")
    channel.exchange_unbind(f"{queue}.destination", f"{queue}.source", "orders.#")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(f"{queue}.source", "orders.new", b"order", DURABLE, mandatory=True)


def test_pika_gets_direct_replies(broker: RunningBroker, channel: BlockingChannel, queue: str) -> None:
    """From itself, and from a responder of AMQP 0-10, which has the reply address resolved."""
    channel.queue_declare(queue)
    replies: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *each: replies.append(each[3]), auto_ack=True)
    for number in (b"1", b"2"):
        channel.basic_publish("", queue, number, pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    channel.basic_publish("", properties.reply_to, b"reply to " + body)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        request = session.receiver(queue).fetch(timeout=PATIENCE_SECONDS)
        session.sender(str(request.reply_to)).send(Message(b"reply to " + request.content))
        session.acknowledge()
    end = time.monotonic() + PATIENCE_SECONDS
    while len(replies) < 2 and time.monotonic() < end:
        channel.connection.process_data_events(0.1)
    assert replies == [b"reply to 1", b"reply to 2"]


def test_pika_hands_over_a_queue_with_a_single_active_consumer(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-single-active-consumer": True, "x-max-priority": 5})
    given: list[tuple[str, bytes]] = []
    for tag, priority in (("first", 0), ("low", -1), ("high", 2)):
        channel.basic_consume(
            queue, lambda _, method, __, body: given.append((method.consumer_tag, body)), auto_ack=True,
            consumer_tag=tag, arguments={"x-priority": priority},
        )  # fmt: skip
    for number, successor in enumerate(("first", "high", "low")):
        channel.basic_publish("", queue, b"%d" % number)
        end = time.monotonic() + PATIENCE_SECONDS
        while len(given) <= number and time.monotonic() < end:
            channel.connection.process_data_events(0.1)
        channel.basic_cancel(successor)
    assert given == [("first", b"0"), ("high", b"1"), ("low", b"2")]


def test_pika_gets_a_cancel_when_its_queue_is_deleted(channel: BlockingChannel, queue: str) -> None:
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.queue_declare(queue)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="me")
    channel.connection.channel().queue_delete(queue)
    channel.connection.process_data_events(PATIENCE_SECONDS)
    assert [each.method.consumer_tag for each in cancelled] == ["me"]


def test_pika_gets_the_reason_of_a_refusal(channel: BlockingChannel, queue: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="it is 'classic', 'quorum' or 'stream'") as caught:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "delayed"})
    assert caught.value.reply_code == 406
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.connection.channel().queue_declare(queue, passive=True)
    assert caught.value.reply_code == 404
    parameters = pika.ConnectionParameters("127.0.0.1", channel.connection._impl.params.port, "other")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*vhost 'other' not found"):
        pika.BlockingConnection(parameters)


def test_pika_uses_a_quorum_queue(channel: BlockingChannel, queue: str) -> None:
    dead = f"{queue}.dead"
    channel.queue_declare(dead, durable=True, arguments={"x-queue-type": "quorum"})
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"poison", DURABLE)
    for count in (None, 1):
        method, properties, _ = channel.basic_get(queue)
        assert (properties.headers or {}).get("x-delivery-count") == count
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert channel.basic_get(queue)[0] is None
    _, properties, body = channel.basic_get(dead, auto_ack=True)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"poison", "delivery_limit")
    channel.queue_delete(dead)


def test_pika_declares_an_exchange_before_its_alternate_exchange(channel: BlockingChannel, queue: str) -> None:
    later = f"{queue}.later"
    channel.confirm_delivery()
    channel.exchange_declare(queue, "direct", durable=True, arguments={"alternate-exchange": later})
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(queue, "k", b"too early", DURABLE, mandatory=True)
    channel.queue_declare(queue, durable=True)
    for _ in range(2):
        channel.exchange_declare(later, "fanout", durable=True)
        channel.queue_bind(queue, later)
        channel.basic_publish(queue, "k", b"there", DURABLE, mandatory=True)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"there"
        channel.exchange_delete(later)


def test_pika_gets_an_error_for_immediate(broker: RunningBroker, queue: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.queue_declare(queue)
    method = pika.spec.Basic.Publish(routing_key=queue, immediate=True)
    channel._impl._send_method(method, (pika.BasicProperties(), b"x"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"540.*immediate=true"):
        connection.process_data_events(PATIENCE_SECONDS)


def test_pika_uses_transactions(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    channel.basic_publish("", queue, b"never", DURABLE)
    channel.tx_rollback()
    channel.basic_publish("", queue, b"once", DURABLE)
    channel.tx_commit()
    assert channel.basic_get(queue)[2] == b"once"
    assert channel.basic_get(queue)[2] is None


def test_pika_without_blocking(broker: RunningBroker, queue: str) -> None:
    """The asyncio adapter."""

    async def test() -> list[bytes]:
        loop = asyncio.get_running_loop()
        opened, done, found = loop.create_future(), loop.create_future(), []
        connection = AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port), on_open_callback=opened.set_result,
            on_close_callback=lambda *_: done.done() or done.set_result(None),
        )  # fmt: skip
        await opened
        channel_opened = loop.create_future()
        channel = connection.channel(on_open_callback=channel_opened.set_result)
        await channel_opened
        declared = loop.create_future()
        channel.queue_declare(queue, callback=declared.set_result)
        await declared

        def received(*delivery: Any) -> None:
            found.append(delivery[-1])
            if len(found) == 3:
                connection.close()

        channel.basic_consume(queue, received, auto_ack=True)
        for number in range(3):
            channel.basic_publish("", queue, b"%d" % number)
        await asyncio.wait_for(done, PATIENCE_SECONDS)
        return found

    assert asyncio.run(test()) == [b"0", b"1", b"2"]


def test_pika_with_its_own_loop(broker: RunningBroker, queue: str) -> None:
    """The select adapter: confirms, a prefetch limit, and acknowledgements of several messages at once."""
    found: list[bytes] = []
    confirmed: list[int] = []
    failed: list[BaseException] = []

    def opened(connection: SelectConnection) -> None:
        connection.channel(on_open_callback=on_channel)

    def on_channel(channel: Channel) -> None:
        channel.basic_qos(prefetch_count=4)
        channel.confirm_delivery(lambda frame: confirmed.append(frame.method.delivery_tag))
        channel.queue_declare(queue, durable=True, callback=lambda _: publish(channel))

    def publish(channel: Channel) -> None:
        channel.basic_consume(queue, received)
        for number in range(12):
            channel.basic_publish("", queue, b"%d" % number, DURABLE)

    def received(channel: Channel, method: Any, _properties: Any, body: bytes) -> None:
        found.append(body)
        if len(found) % 4 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(found) == 12:
            channel.queue_declare(queue, passive=True, callback=lambda _: channel.connection.close())

    def closed(connection: SelectConnection, reason: BaseException) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            failed.append(reason)
        connection.ioloop.stop()

    connection = SelectConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port), opened, on_close_callback=closed,
        on_open_error_callback=closed,
    )  # fmt: skip
    connection.ioloop.call_later(PATIENCE_SECONDS, connection.ioloop.stop)
    connection.ioloop.start()
    connection.ioloop.close()
    assert (found, failed) == ([b"%d" % number for number in range(12)], [])
    assert max(confirmed) == 12
    assert connection.is_closed


def test_a_large_message(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    body = bytes(range(256)) * 20_000
    channel.basic_publish("", queue, body, DURABLE)
    channel.basic_publish("", queue, b"next", DURABLE)
    assert channel.basic_get(queue, auto_ack=True)[2] == body
    assert channel.basic_get(queue, auto_ack=True)[2] == b"next"


# ---- the others ----


def test_aio_pika(broker: RunningBroker, queue: str) -> None:
    async def test() -> None:
        connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{broker.port}/")
        async with connection:
            channel = await connection.channel(on_return_raises=True)
            await channel.set_qos(prefetch_count=2)
            exchange = await channel.declare_exchange(f"x-{queue}", aio_pika.ExchangeType.TOPIC, auto_delete=True)
            declared = await channel.declare_queue(queue, durable=True)
            await declared.bind(exchange, "order.*")
            persistent = aio_pika.DeliveryMode.PERSISTENT
            await asyncio.gather(*(
                exchange.publish(aio_pika.Message(b"%d" % number, delivery_mode=persistent), "order.new")
                for number in range(20)
            ))  # fmt: skip
            with pytest.raises(aio_pika.exceptions.PublishError):
                await exchange.publish(aio_pika.Message(b"x"), "other", mandatory=True)
            found = set()
            async with declared.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        found.add(int(message.body))
                    if len(found) == 20:
                        break
            assert found == set(range(20))
            transactional = await connection.channel(publisher_confirms=False)
            async with transactional.transaction():
                await transactional.default_exchange.publish(aio_pika.Message(b"tx"), queue)
            held = await declared.get(timeout=PATIENCE_SECONDS)
            assert held.body == b"tx"
            assert (await declared.delete(if_unused=True, if_empty=True)).message_count == 0

    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE_SECONDS))


def test_a_client_that_knows_only_amqplain(broker: RunningBroker) -> None:
    """As php-amqplib."""
    login = amqp.sasl.AMQPLAIN("anybody", "any")
    with amqp.Connection(f"127.0.0.1:{broker.port}", authentication=login) as connection:
        assert connection.channel().queue_declare("", exclusive=True).queue


def test_py_amqp(broker: RunningBroker, queue: str) -> None:
    with amqp.Connection(f"127.0.0.1:{broker.port}", confirm_publish=True) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, auto_delete=False)
        for number in range(3):
            channel.basic_publish(amqp.Message(b"%d" % number, delivery_mode=2), routing_key=queue)
        found: list[Any] = []

        def received(message: amqp.Message) -> None:
            found.append(message.body)
            channel.basic_ack(message.delivery_tag)

        channel.basic_consume(queue, callback=received)
        while len(found) < 3:
            connection.drain_events(timeout=PATIENCE_SECONDS)
        assert found == ["0", "1", "2"] or found == [b"0", b"1", b"2"]


@pytest.mark.parametrize("product", ["py-amqp", "somebody's"])
def test_py_amqp_changes_running_consumers_unless_it_has_another_name(
    broker: RunningBroker, queue: str, product: str
) -> None:
    named = {"product": product}
    with amqp.Connection(f"127.0.0.1:{broker.port}", client_properties=named) as connection:
        channel = connection.channel()
        channel.queue_declare(queue)
        for number in range(5):
            channel.basic_publish(amqp.Message(f"{number}"), routing_key=queue)
        found: list[Any] = []
        channel.basic_qos(0, 1, False)
        channel.basic_consume(queue, callback=found.append)
        channel.basic_qos(0, 3, False)
        wanted = 3 if product == "py-amqp" else 1
        while len(found) < wanted:
            connection.drain_events(timeout=PATIENCE_SECONDS)
        assert channel.queue_declare(queue, passive=True).message_count == 5 - wanted
        if product == "py-amqp":
            channel.basic_qos(0, 1, False)
            channel.basic_ack(found[0].delivery_tag)
            assert channel.queue_declare(queue, passive=True).message_count == 5 - wanted


def test_kombu(broker: RunningBroker, queue: str) -> None:
    exchange = kombu.Exchange(f"x-{queue}", "direct", durable=True)
    bound = kombu.Queue(queue, exchange, routing_key="k")
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{broker.port}//") as connection:
        producer = connection.Producer(serializer="json")
        for number in range(3):
            producer.publish({"n": number}, exchange=exchange, routing_key="k", declare=[bound], retry=True)
        found: list[int] = []

        def received(body: Any, message: Any) -> None:
            found.append(body["n"])
            message.ack()

        with connection.Consumer(bound, callbacks=[received]):
            while len(found) < 3:
                connection.drain_events(timeout=PATIENCE_SECONDS)
        assert found == [0, 1, 2]


def test_kombu_s_simple_queue(broker: RunningBroker, queue: str) -> None:
    with (
        kombu.Connection(f"amqp://guest:guest@127.0.0.1:{broker.port}//") as connection,
        connection.SimpleQueue(queue) as simple,
    ):
        for number in range(3):
            simple.put({"n": number})
        assert len(simple) == 3
        message = simple.get(timeout=PATIENCE_SECONDS)
        message.requeue()
        found = []
        for _ in range(3):
            message = simple.get(timeout=PATIENCE_SECONDS)
            found.append(message.payload["n"])
            message.ack()
        assert sorted(found) == [0, 1, 2]
        with pytest.raises(simple.Empty):
            simple.get_nowait()


def test_kombu_s_mixin_answers_requests(broker: RunningBroker, queue: str) -> None:
    """Two consumers on one channel with a prefetch count of 1 each: a request is held until the other one is there."""

    class Server(ConsumerProducerMixin):
        def __init__(self, connection: Any) -> None:
            self.connection, self.held = connection, {}

        def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803 – kombu's name
            return [
                Consumer([kombu.Queue(f"{queue}.{name}")], on_message=self.on_request, prefetch_count=1)
                for name in ("a", "b")
            ]

        def on_request(self, message: Any) -> None:
            self.held[message.delivery_info["routing_key"][-1]] = message
            if len(self.held) < 2:
                return
            for name, each in sorted(self.held.items()):
                reply = {"is": name, "to": each.payload}
                self.producer.publish(reply, exchange="", routing_key=each.properties["reply_to"])
                each.ack()
            self.held.clear()

    url = f"amqp://guest:guest@127.0.0.1:{broker.port}//"
    with kombu.Connection(url, heartbeat=4) as served, kombu.Connection(url) as connection:
        server = Server(served)
        thread = threading.Thread(target=server.run)
        thread.start()
        replies = connection.SimpleQueue(f"{queue}.replies", no_ack=True)
        producer = connection.Producer()
        for number, name in enumerate("aaabbb"):
            declared = kombu.Queue(f"{queue}.{name}")
            producer.publish(
                number, exchange="", routing_key=declared.name, declare=[declared], reply_to=f"{queue}.replies"
            )
        found = [replies.get(timeout=PATIENCE_SECONDS).payload for _ in range(6)]
        server.should_stop = True
        thread.join(PATIENCE_SECONDS)
    assert [each["is"] for each in found] == list("ababab")
    assert [each["to"] for each in found] == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("size", [131_064, 131_065, 131_072, 131_073, 500_000])
def test_amqpstorm_cuts_bodies_at_the_size_of_a_frame(broker: RunningBroker, queue: str, size: int) -> None:
    with (
        amqpstorm.Connection("127.0.0.1", "guest", "guest", port=broker.port) as connection,
        connection.channel() as channel,
    ):
        channel.confirm_deliveries()
        channel.queue.declare(queue, durable=True)
        for _ in range(3):
            assert channel.basic.publish(bytes(size), queue, properties={"delivery_mode": 2})
        assert len(channel.basic.get(queue, auto_decode=False).body) == size


def test_amqpstorm(broker: RunningBroker, queue: str) -> None:
    with (
        amqpstorm.Connection("127.0.0.1", "guest", "guest", port=broker.port) as connection,
        connection.channel() as channel,
    ):
        channel.confirm_deliveries()
        channel.queue.declare(queue, durable=True)
        message = amqpstorm.Message.create(channel, "hello", {"delivery_mode": 2})
        assert message.publish(queue)
        assert channel.basic.get(queue, auto_decode=True).body == "hello"
        assert channel.queue.delete(queue)["message_count"] == 0


# ---- with AMQP 0-10 ----


def test_messages_cross_between_the_protocols(broker: RunningBroker, channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        delivery_mode=2, headers={"n": 7, "t": "text"}, correlation_id="c", reply_to="answers", type="order",
        content_type="text/plain", priority=3, message_id="m-1", app_id="shop",
    )  # fmt: skip
    channel.basic_publish("", queue, b"from 0-9-1", properties)
    with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
        message = session.receiver(queue).fetch(timeout=PATIENCE_SECONDS)
        assert message.content in ("from 0-9-1", b"from 0-9-1")
        assert (message.properties["n"], message.properties["t"]) == (7, "text")
        assert (message.subject, message.correlation_id, message.priority) == ("order", "c", 3)
        assert message.properties["x-amqp-message-id"] == "m-1"
        session.acknowledge()
        sender = session.sender(queue)
        sender.send(Message({"a": 1}, subject="s", properties={"n": 8}, durable=True, correlation_id="d"))
    method, found, body = channel.basic_get(queue, auto_ack=True)
    assert method.routing_key == queue
    assert (found.content_type, found.type, found.correlation_id, found.delivery_mode) == ("amqp/map", "s", "d", 2)
    assert found.headers["n"] == 8
    assert body


def test_many_channels_at_once(broker: RunningBroker, queue: str) -> None:
    """Threads with a connection each, which publish to and consume from one queue."""
    count, threads, found, lock = 50, 4, [], threading.Lock()

    def work(number: int) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
            for each in range(count):
                channel.basic_publish("", queue, b"%d.%d" % (number, each), DURABLE)
            for _ in range(count):
                _, _, body = channel.basic_get(queue, auto_ack=True)
                with lock:
                    found.append(body)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert sorted(found) == sorted(b"%d.%d" % (number, each) for number in range(threads) for each in range(count))
