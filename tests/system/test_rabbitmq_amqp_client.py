"""RabbitMQ's own client for AMQP 1.0 (`rabbitmq-amqp-python-client`), unchanged, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Converter,
    Environment,
    Event,
    ExchangeCustomSpecification,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    Message,
    OutcomeState,
    QuorumQueueSpecification,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client.qpid.proton import ConnectionException

from tests.support.running_broker import BrokerMaker, RunningBroker

COUNT = 50


class AllCameError(Exception):
    """The consumer has got what it waits for."""


class Accepting(AMQPMessagingHandler):
    """Accepts messages; requeues the first one once."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[str] = []
        self.annotations: dict[str, Any] = {}
        self._has_requeued = False

    def on_amqp_message(self, event: Event) -> None:
        if not self._has_requeued:
            self._has_requeued = True
            self.delivery_context.requeue(event)
            return
        self.bodies.append(Converter.bytes_to_string(event.message.body))
        self.annotations = event.message.annotations
        self.delivery_context.accept(event)
        if len(self.bodies) == COUNT:
            raise AllCameError


@pytest.fixture
def broker(make_broker: BrokerMaker) -> RunningBroker:
    return make_broker("--auth", "no", "--rabbitmq-version", "4.3.0").start()


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[Connection]:
    environment = Environment(uri=f"amqp://guest:guest@127.0.0.1:{broker.port}/")
    connection = environment.connection()
    connection.dial()
    yield connection
    environment.close()


def test_the_steps_of_its_getting_started(connection: Connection) -> None:
    management = connection.management()
    management.declare_exchange(ExchangeSpecification(name="exchange"))
    management.declare_queue(QuorumQueueSpecification(name="queue", dead_letter_exchange="dead"))
    binding = management.bind(
        ExchangeToQueueBindingSpecification(source_exchange="exchange", destination_queue="queue", binding_key="key")
    )
    publisher = connection.publisher(AddressHelper.exchange_address("exchange", "key"))
    for number in range(COUNT):
        status = publisher.publish(Message(body=Converter.string_to_bytes(f"message {number}")))
        assert status.remote_state == OutcomeState.ACCEPTED
    publisher.close()
    assert management.queue_info("queue").message_count == COUNT
    handler = Accepting()
    consumer = connection.consumer(AddressHelper.queue_address("queue"), message_handler=handler)
    with pytest.raises(AllCameError):
        consumer.run()
    consumer.close()
    assert sorted(handler.bodies) == sorted(f"message {number}" for number in range(COUNT))
    assert handler.annotations == {"x-exchange": "exchange", "x-routing-key": "key"}
    management.unbind(binding)
    assert management.purge_queue("queue") == 0
    management.delete_exchange("exchange")
    management.delete_queue("queue")
    management.close()


def test_every_option_of_its_specifications(connection: Connection) -> None:
    management = connection.management()
    quorum = QuorumQueueSpecification(
        name="quorum", dead_letter_exchange="dead", max_len=5, overflow_behaviour="reject-publish", deliver_limit=10,
        dead_letter_strategy="at-least-once", quorum_initial_group_size=5, cluster_target_group_size=5,
        single_active_consumer=True,
    )  # fmt: skip
    stream = StreamSpecification(name="stream", max_len_bytes=1000, stream_filter_size_bytes=100, initial_group_size=5)
    for each in (quorum, stream):
        management.declare_queue(each)
        assert management.queue_info(each.name).name == each.name
    management.declare_exchange(ExchangeCustomSpecification(name="random", exchange_type="x-local-random"))
    management.delete_exchange("random")
    for each in (quorum, stream):
        management.delete_queue(each.name)
    management.close()


def test_direct_replies_have_the_address_of_rabbitmq(connection: Connection) -> None:
    options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.DirectReplyTo)
    consumer = connection.consumer(consumer_options=options)
    assert "/queues/amq.rabbitmq.reply-to." in consumer.address
    publisher = connection.publisher(consumer.address)
    status = publisher.publish(Message(body=Converter.string_to_bytes("reply")))
    assert status.remote_state == OutcomeState.ACCEPTED
    publisher.close()
    consumer.close()


def test_what_exists_otherwise_or_not_at_all_is_an_error(connection: Connection) -> None:
    management = connection.management()
    management.declare_queue(ClassicQueueSpecification(name="queue"))
    with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
        management.declare_queue(ClassicQueueSpecification(name="queue", max_len=3))
    with pytest.raises(ValidationCodeException, match="404"):
        management.queue_info("none")
    management.close()


def test_a_virtual_host_that_is_missing_is_an_error(broker: RunningBroker) -> None:
    environment = Environment(uri=f"amqp://guest:guest@127.0.0.1:{broker.port}/none")
    with pytest.raises(ConnectionException, match="disconnected"):
        environment.connection().dial()


def test_it_refuses_other_brokers(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    environment = Environment(uri=f"amqp://guest:guest@127.0.0.1:{broker.port}/")
    with pytest.raises(ValidationCodeException, match="non-RabbitMQ"):
        environment.connection().dial()
