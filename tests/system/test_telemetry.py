"""`qpidd --telemetry` with a collector of OTLP over HTTP on loopback, and clients of AMQP 0-9-1 and 0-10."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pika
import pytest

from qstore.broker.client import Connection, Message
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, make_broker

__all__ = ["make_broker"]

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"


class Collector:
    """Takes traces.

    Attributes:
        url: where.
        spans: what has come.
        status: what it answers.
    """

    def __init__(self) -> None:
        collector, self.spans, self.status = self, list[Any](), 200
        self.resources = list[dict[str, str]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                import gzip

                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.status == 200:
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
                        collector.resources.append(attributes)
                        collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def wait(self, wanted: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not wanted():
            assert time.monotonic() < end, [span.name for span in self.spans]
            time.sleep(0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def basic(port: int) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def publish(channel: Any, headers: dict[str, Any], body: bytes = b"hello", mode: int = 2) -> None:
    properties = pika.BasicProperties(headers=headers, delivery_mode=mode, message_id="m1")
    channel.basic_publish("", "orders", body, properties)


def test_a_sampled_message_of_0_9_1_is_traced_until_it_is_settled(
    make_broker: BrokerMaker, collector: Collector
) -> None:
    broker = make_broker("--telemetry", collector.url).start()
    with basic(broker.port) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        publish(channel, {"traceparent": SAMPLED, "tracestate": "vendor=a", "other": 1})
        publish(channel, {"traceparent": UNSAMPLED})
        publish(channel, {"traceparent": "nonsense"})
        publish(channel, {})
        for number, (method, _, _) in enumerate(channel.consume("orders"), 1):
            channel.basic_ack(method.delivery_tag)
            if number == 4:
                break
        channel.cancel()
    collector.wait(lambda: len(collector.spans) == 3)
    (publishing,), (delivery,), (settlement,) = (
        collector.named(f"{each}") for each in ("publish amq.default", "deliver orders", "settle orders")
    )
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert publishing.parent_span_id.hex() == delivery.parent_span_id.hex() == PARENT
    assert settlement.parent_span_id == delivery.span_id
    assert {span.trace_state for span in collector.spans} == {"vendor=a"}
    assert publishing.start_time_unix_nano <= publishing.end_time_unix_nano <= settlement.end_time_unix_nano
    assert delivery.start_time_unix_nano <= delivery.end_time_unix_nano <= settlement.start_time_unix_nano
    found = attributes(publishing)
    assert found.items() >= {
        "messaging.system": "qstore", "messaging.operation.name": "publish", "messaging.operation.type": "receive",
        "messaging.destination.name": "amq.default:orders", "messaging.message.id": "m1",
        "messaging.rabbitmq.destination.routing_key": "orders", "messaging.message.body.size": 5,
        "network.peer.address": "127.0.0.1", "qstore.virtual_host": "/", "qstore.persistent": True,
    }.items()  # fmt: skip
    assert attributes(delivery)["messaging.destination.name"] == "amq.default:orders:orders"
    assert attributes(delivery)["qstore.outcome"] == attributes(settlement)["qstore.outcome"] == "accepted"
    assert collector.resources[0]["service.name"] == "qstore"


def test_messages_that_are_not_settled_by_their_client_are_traced(
    make_broker: BrokerMaker, collector: Collector
) -> None:
    broker = make_broker("--telemetry", f"{collector.url}/v1/traces").start()
    with basic(broker.port) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        channel.confirm_delivery()
        for _ in range(3):
            publish(channel, {"traceparent": SAMPLED}, mode=1)
        with pytest.raises(pika.exceptions.NackError):
            publish(channel, {"traceparent": SAMPLED}, mode=1)
        assert channel.basic_get("orders", auto_ack=True)[0] is not None
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)
        method, _, _ = channel.basic_get("orders")
        channel.basic_nack(method.delivery_tag)
        transaction = connection.channel()
        transaction.tx_select()
        method, _, _ = transaction.basic_get("orders")
        transaction.basic_ack(method.delivery_tag)
        transaction.tx_commit()
    collector.wait(lambda: len(collector.named("deliver orders")) == 4)
    outcomes = sorted(attributes(span)["qstore.outcome"] for span in collector.named("deliver orders"))
    assert outcomes == ["accepted", "rejected", "released", "removed"]
    refused = [span.status.message for span in collector.named("publish amq.default") if span.status.code]
    assert len(refused) == 1
    assert "orders" in refused[0]


def test_runs_of_0_10_keep_their_messages_and_sampled_ones_are_traced_across_a_restart(
    make_broker: BrokerMaker, collector: Collector
) -> None:
    broker = make_broker("--telemetry", collector.url).start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        sender = session.sender("orders; {create: always, node: {durable: true}}")
        for number in range(300):
            headers = {"traceparent": SAMPLED} if 100 <= number < 110 else {}
            sender.send(Message(str(number).encode(), durable=True, properties=headers), sync=False)
        session.sync()
    collector.wait(lambda: len(collector.named("publish amq.default")) == 10)
    broker.kill()
    broker.start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        receiver = session.receiver("orders", capacity=100)
        bodies = []
        for _ in range(300):
            bodies.append(int(receiver.fetch(10).content))
            session.acknowledge()
    assert bodies == list(range(300))
    collector.wait(lambda: len(collector.named("settle orders")) == 10)
    deliveries = collector.named("deliver orders")
    assert {span.parent_span_id.hex() for span in deliveries} == {PARENT}
    assert {span.parent_span_id for span in collector.named("settle orders")} == {span.span_id for span in deliveries}


def test_a_limit_holds_whatever_publishers_ask_for(make_broker: BrokerMaker, collector: Collector) -> None:
    broker = make_broker("--telemetry", collector.url, "--telemetry-limit", "5").start()
    began = time.time()
    with basic(broker.port) as connection:
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.confirm_delivery()
        for _ in range(200):
            publish(channel, {"traceparent": SAMPLED}, mode=1)
        assert channel.queue_declare("orders", passive=True).method.message_count == 200
    broker.stop()
    assert 0 < len(collector.spans) <= 5 * (time.time() - began + 2)  # the first and the last second are parts


def test_a_broker_without_a_collector_serves_and_stops_as_always(
    make_broker: BrokerMaker, collector: Collector
) -> None:
    collector.status = 503
    broker = make_broker("--telemetry", collector.url, "--telemetry-limit", "100000").start()
    with basic(broker.port) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        for _ in range(20_000):
            publish(channel, {"traceparent": SAMPLED, "x": "y" * 200}, mode=1)
        channel.confirm_delivery()
        publish(channel, {"traceparent": SAMPLED})
        assert channel.queue_declare("orders", passive=True).method.message_count == 20_001
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < PATIENCE_SECONDS / 2


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:4318", "this is not a URL like http://localhost:4318/v1/traces"),
        ("http://me:secret@localhost", "the URL has a password; use OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_unusable_addresses_are_refused_at_the_start(make_broker: BrokerMaker, url: str, why: str) -> None:
    broker = make_broker("--telemetry", url)
    broker.launch()
    assert broker.stop(0) == 1
    log = Path(broker.log).read_text()
    assert why in log
    assert "secret" not in log
