"""Slow consumers, alerts for messages, and defaults of queues on a broker that runs."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.support.running_broker import BrokerMaker, make_broker
from tests.system.shovels import PERSISTENT, channel_to, depth, wait_until

__all__ = ["make_broker"]


@pytest.mark.parametrize("policy", ["disconnect", "delete"])
def test_a_slow_consumer_is_disconnected_with_506(make_broker: BrokerMaker, policy: str) -> None:
    broker = make_broker().start()
    arguments = {"qpid.slow_consumer_policy": policy, "qpid.slow_consumer_count": 10}
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        channel, other = connection.channel(), connection.channel()
        channel.queue_declare("q", arguments=arguments)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None)
        for _ in range(20):
            other.basic_publish("", "q", b"x")
        with pytest.raises(ChannelClosedByBroker, match="Consuming too slow") as closed:
            channel.start_consuming()
        assert closed.value.reply_code == 506
        if policy == "disconnect":
            assert other.queue_declare("q", passive=True).method.message_count == 20
    assert f'Queue "q" has too much for its consumers, policy {policy}: 20 messages' in broker.log_text()
    if policy == "delete":
        wait_until(lambda: _is_gone(broker.port), "the queue is deleted")
    assert broker.stop() == 0


def _is_gone(port: int) -> bool:
    with channel_to(port) as channel:
        try:
            channel.queue_declare("q", passive=True)
        except ChannelClosedByBroker as error:
            return error.reply_code == 404
    return False


def test_cycle_and_alerts_of_messages_over_a_kill(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    watched = {"qpid.alert_message_size": 1000, "qpid.alert_message_age": 500, "qpid.alert_repeat_gap": 0}
    with channel_to(broker.port) as channel:
        channel.queue_declare("c", durable=True, arguments={
            "qpid.slow_consumer_policy": "cycle", "qpid.slow_consumer_count": 10,
        })  # fmt: skip
        channel.queue_declare("a", durable=True, arguments=watched)
        channel.confirm_delivery()
        for number in range(40):
            channel.basic_publish("", "c", b"%d" % number, PERSISTENT)
        channel.basic_publish("", "a", b"x" * 2000, PERSISTENT)
    assert 'Queue "a" has got a message of 2' in broker.log_text()
    wait_until(lambda: depth(broker.port, "c") == 10, "the oldest messages are removed")
    wait_until(lambda: 'The oldest message of queue "a" is older' in broker.log_text(), "an alert for its age")
    broker.kill()
    broker.start()
    assert (depth(broker.port, "c"), depth(broker.port, "a")) == (10, 1)
    seen = broker.log_text().count('The oldest message of queue "a"')
    wait_until(lambda: broker.log_text().count('The oldest message of queue "a"') > seen, "it ages after the restart")
    assert broker.stop() == 0


def test_durable_queues_flow_to_disk_by_default_if_the_option_says_so(make_broker: BrokerMaker) -> None:
    broker = make_broker("--default-queue-policy", "flow_to_disk", "--strict-durability", "yes").start()
    with channel_to(broker.port) as channel:
        channel.queue_declare("q", durable=True, arguments={"qpid.max_count": 5})
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.exchange_declare("transient", "direct")
        with pytest.raises(ChannelClosedByBroker, match="strict-durability"):
            channel.queue_bind("q", "transient", "k")
    broker.kill()
    broker.start()
    assert depth(broker.port, "q") == 50
    assert broker.stop() == 0
