"""What the API tells of clients and of the heads of queues, beside what clients really do: values, not only fields."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from qstore.broker.client import Connection, Message
from qstore.broker.client.options import ConnectionOptions, parse_url
from qstore.tools.web.amqp import LoginError, Place, UserConnection
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.tools.web.console_runs import Client, console_on

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")

Rows = list[dict[str, Any]]
_MODES = ("confirm", "transactional", "prefetch_count", "global_prefetch_count")
_WORK = ("transactional", "messages_uncommitted", "acks_uncommitted")


def ignore(*_: object) -> None:
    """For messages that stay unacknowledged."""


@contextmanager
def connected(broker: RunningBroker, name: str, **more: Any) -> Iterator[pika.BlockingConnection]:
    given = {"heartbeat": 0, "client_properties": {"connection_name": name}, **more}
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, **given))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@contextmanager
def connected_by(broker: RunningBroker, protocol: str) -> Iterator[Connection]:
    properties = {"connection_name": protocol}
    with Connection(f"127.0.0.1:{broker.port}", protocol=protocol, client_properties=properties, heartbeat=30) as found:
        yield found


def named(name: str) -> Callable[[Rows], dict[str, Any] | None]:
    """Picks the row of a connection by the name that its client has given."""
    return lambda rows: next((row for row in rows if row["user_provided_name"] == name), None)


async def connection_row(client: Client, name: str) -> dict[str, Any]:
    row = named(name)(await client.becomes("connections", named(name)))
    assert row is not None
    return row


async def channel_rows(client: Client, name: str, wanted: int = 1) -> Rows:
    """The channels of a connection, once there are so many."""
    path = f"connections/{quote((await connection_row(client, name))['name'], safe='')}/channels"
    rows: Rows = await client.becomes(path, lambda rows: len(rows) == wanted)
    return sorted(rows, key=lambda row: row["number"])


def picked(rows: Rows, names: tuple[str, ...]) -> list[list[Any]]:
    return [[row[name] for name in names] for row in rows]


async def test_a_connection_shows_what_it_has_negotiated(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "limits", channel_max=7, frame_max=8192, heartbeat=42):
            row = await connection_row(client, "limits")
            assert (row["channel_max"], row["frame_max"], row["timeout"]) == (7, 8192, 42)
        for protocol in ("amqp0-10", "amqp1.0"):
            with connected_by(broker, protocol):
                row = await connection_row(client, protocol)
                assert row["channel_max"] > 0, protocol
                assert row["frame_max"] >= 4096, protocol
                assert row["timeout"] > 0, protocol


async def test_what_was_negotiated_is_not_older_than_the_connection(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        api = client.server._api
        await api.connection_rows()
        with connected(broker, "late", channel_max=7):
            while not any(
                "'late'" in str(each.get("remoteProperties")) for each in await api.collector.get("connection", 0)
            ):
                await asyncio.sleep(0.01)
            row = named("late")(await api.connection_rows(3600.0))
            assert row is not None
            assert row["channel_max"] == 7


@pytest.mark.parametrize(
    ("version", "protocol", "exchange"),
    [(ssl.TLSVersion.TLSv1_3, "tlsv1.3", "any"), (ssl.TLSVersion.TLSv1_2, "tlsv1.2", "ecdhe_ecdsa")],
)
async def test_an_encrypted_connection_shows_its_tls(
    make_broker: BrokerMaker, tmp_path: Path, version: ssl.TLSVersion, protocol: str, exchange: str
) -> None:
    certificates = Certificates(tmp_path)
    trust = ("--ssl-cert", certificates.server(), "--ssl-ca", certificates.trusted)
    encrypted = make_broker(*trust, "--ssl-port", "0", "--auth", "no").start()
    context = ssl.create_default_context(cafile=certificates.trusted)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ECDHE+AESGCM")
    context.load_cert_chain(certificates.client_of_domain("ann, of", "acme", "com"))
    async with console_on(f"127.0.0.1:{encrypted.port}") as client:
        with connected(encrypted, "tls", ssl_options=pika.SSLOptions(context, "127.0.0.1")):
            row = await connection_row(client, "tls")
            names = ("ssl", "ssl_protocol", "ssl_key_exchange", "ssl_hash", "peer_cert_subject")
            assert [row[name] for name in names] == [True, protocol, exchange, "aead", "CN=ann\\, of,DC=acme,DC=com"]
            assert row["ssl_cipher"] in ("aes_128_gcm", "aes_256_gcm")
            assert "O=trustme" in row["peer_cert_issuer"]
            first, last = (datetime.fromisoformat(each) for each in row["peer_cert_validity"].split(" - "))
            assert last - first == timedelta(days=2)
        with connected(encrypted, "plain"):
            row = await connection_row(client, "plain")
            assert [row[name] for name in (*names, "ssl_cipher", "peer_cert_validity")] == [False, *[None] * 6]


async def test_channels_show_their_modes_and_transactions(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "modes") as connection:
            plain, confirming, working = (connection.channel() for _ in range(3))
            plain.basic_qos(prefetch_count=5)
            plain.basic_qos(prefetch_count=7, global_qos=True)
            confirming.confirm_delivery()
            working.queue_declare("modes", auto_delete=True)
            working.basic_publish("", "modes", b"1")
            working.tx_select()
            working.basic_publish("", "modes", b"2")
            working.basic_publish("", "modes", b"3")
            method, _, _ = working.basic_get("modes")
            working.basic_ack(method.delivery_tag)
            working.basic_get("modes")  # answered after the acknowledgement
            rows = await channel_rows(client, "modes", 3)
            assert picked(rows, _MODES) == [[False, False, 5, 7], [True, False, 0, 0], [False, True, 0, 0]]
            assert picked(rows[2:], _WORK) == [[True, 2, 1]]
            working.tx_commit()
            client.server._api.collector.changed("session", "clientSession")
            assert picked(await channel_rows(client, "modes", 3), _WORK)[2] == [True, 0, 0]


@pytest.mark.parametrize("protocol", ["amqp0-10", "amqp1.0"])
async def test_sessions_of_other_protocols_show_their_transactions(broker: RunningBroker, protocol: str) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected_by(broker, protocol) as connection:
            address = f"work-{protocol}"
            outside = connection.session()
            outside.sender(f"{address}; {{create: always, delete: never}}").send(Message("1"), sync=True)
            work = connection.session(transactional=True)
            sender, receiver = work.sender(address), work.receiver(address)
            for content in "23":
                sender.send(Message(content), sync=protocol == "amqp1.0")
            receiver.fetch(timeout=PATIENCE_SECONDS)
            work.acknowledge(sync=True)
            names = ("confirm", *_WORK)
            rows = await channel_rows(client, protocol, 2)
            assert sorted(picked(rows, names)) == [[True, False, 0, 0], [True, True, 2, 1]]


async def test_a_consumer_shows_its_prefetch_and_whether_it_is_active(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "consumers") as connection:
            channel = connection.channel()
            channel.queue_declare("single", auto_delete=True, arguments={"x-single-active-consumer": True})
            channel.queue_declare("exclusive", auto_delete=True)
            channel.basic_consume("exclusive", ignore, consumer_tag="alone", exclusive=True)
            for tag, prefetch in (("first", 5), ("second", 9)):
                channel.basic_qos(prefetch_count=prefetch)
                channel.basic_consume("single", ignore, consumer_tag=tag)
            names = ("active", "activity_status", "prefetch_count", "exclusive")
            rows = await client.becomes("consumers", lambda rows: len(rows) == 3)
            assert {row["consumer_tag"]: [row[name] for name in names] for row in rows} == {
                "alone": [True, "up", 0, True],
                "first": [True, "single_active", 5, False],
                "second": [False, "waiting", 9, False],
            }
            found = {row["name"]: row for row in await client.get("queues")}
            assert (found["single"]["single_active_consumer_tag"], found["single"]["exclusive_consumer_tag"]) == (
                "first", None,
            )  # fmt: skip
            assert found["exclusive"]["single_active_consumer_tag"] is None
            assert (await client.get("queues/%2F/exclusive"))["exclusive_consumer_tag"] == "alone"
            channel.basic_cancel("first")
            row = await client.becomes("queues/%2F/single", lambda row: row["single_active_consumer_tag"] == "second")
            assert row["consumers"] == 1


async def test_a_window_of_credit_is_a_prefetch_and_credit_is_not(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "window") as declaring:
            declaring.channel().queue_declare("window")
            for protocol, expected in (("amqp0-10", 30), ("amqp1.0", 0)):
                with connected_by(broker, protocol) as connection:
                    receiver = connection.session().receiver("window", capacity=30)
                    assert receiver.capacity == 30
                    rows = await client.becomes("consumers", lambda rows: bool(rows))
                    assert picked(rows, ("prefetch_count", "active")) == [[expected, True]], protocol
                await client.becomes("consumers", lambda rows: rows == [])
            declaring.channel().queue_delete("window")


def publish_at(channel: BlockingChannel, queue: str, timestamp: int | None) -> None:
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(timestamp=timestamp))
    channel.queue_declare(queue, passive=True)


async def test_a_queue_shows_when_its_first_message_was_created(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "heads") as connection:
            channel = connection.channel()
            publish_at(channel, "dated", 1_700_000_000)
            publish_at(channel, "dated", 1_800_000_000)
            publish_at(channel, "undated", None)
            channel.queue_declare("empty")
            found = {row["name"]: row["head_message_timestamp"] for row in await client.get("queues")}
            assert [found[name] for name in ("dated", "undated", "empty")] == [1_700_000_000, None, None]
            assert (await client.get("queues/%2F/dated"))["head_message_timestamp"] == 1_700_000_000
            channel.basic_get("dated", auto_ack=True)
            await client.becomes("queues/%2F/dated", lambda row: row["head_message_timestamp"] == 1_800_000_000)
            for name in ("dated", "undated", "empty"):
                channel.queue_delete(name)


async def test_an_internal_exchange_is_shown_as_such(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "internal") as connection:
            channel = connection.channel()
            channel.exchange_declare("inside", "fanout", internal=True, arguments={"alternate-exchange": "amq.fanout"})
            row = await client.get("exchanges/%2F/inside")
            assert (row["internal"], row["arguments"]) == (True, {"alternate-exchange": "amq.fanout"})
            found = {row["name"]: row["internal"] for row in await client.get("exchanges")}
            assert (found["inside"], found["amq.topic"]) == (True, False)
            channel.exchange_delete("inside")


async def test_what_is_not_used_is_idle(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "idle") as connection:
            channel = connection.channel()
            publish_at(channel, "idle", None)
            row = await client.becomes("queues/%2F/idle", lambda row: "idle_since" in row)
            found = {each["name"]: each for each in await client.get("queues")}
            assert found["idle"]["idle_since"] == row["idle_since"]
            await client.becomes("channels", lambda rows: "idle_since" in rows[0])
            channel.basic_get("idle", auto_ack=True)
            await client.becomes("queues/%2F/idle", lambda row: "idle_since" not in row and not row["messages"])
            channel.queue_delete("idle")


async def test_prometheus_has_the_modes_of_channels(broker: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        with connected(broker, "measured") as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=11)
            channel.tx_select()
            channel.basic_publish("", "nowhere", b"x")
            channel.queue_declare("", exclusive=True)
            await channel_rows(client, "measured")
            text = (await client.ask("GET", "/metrics/per-object")).body.decode()
            values = {
                line.partition("{")[0]: line.rpartition(" ")[2] for line in text.splitlines() if "channel=" in line
            }
            assert values["rabbitmq_consumer_prefetch"] == "11.0"
            assert values["rabbitmq_channel_messages_uncommitted"] == "1.0"
            assert values["rabbitmq_channel_prefetch"] == "0.0"


async def test_visitors_have_the_protection_that_the_options_of_the_connection_require(broker: RunningBroker) -> None:
    """There are no layers of SASL in AMQP 0-9-1, over which they log in."""
    place = Place(parse_url(f"127.0.0.1:{broker.port}").endpoints[0], ConnectionOptions())
    connection = await UserConnection.log_in(place, None, "", "peer")
    await connection.close()
    with pytest.raises(LoginError, match="no login"):
        await UserConnection.log_in(place._replace(options=ConnectionOptions(sasl_min_ssf=1)), None, "", "peer")
