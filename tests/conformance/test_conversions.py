"""Every row of the tables of conversions, for each pair of protocols: publisher and consumer on one queue.

The cases are the rows of the tables in `broker/protocols/amqp_1_0/README.md` and `amqp_0_9_1/README.md`: a row without
a probe here fails, and so does a probe without a row. A message is described in neutral words (`Sent`); a probe has
what the tables say that a consumer of another protocol gets instead. The clients of 0-10 and 1.0 are our own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import amqp
import pytest

from qstore.broker.client import Connection, Message
from qstore.broker.client.address import parse_address
from qstore.broker.client.message import (
    APP_ID,
    CONTENT_ENCODING,
    ROUTING_KEY,
    TIMESTAMP,
    decode_content,
    encode_content,
)
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker

ROOT: Final = Path(__file__).parents[2] / "broker" / "protocols"
PROTOCOLS: Final = ("0-10", "0-9-1", "1.0")
CELLS: Final = [(one, other) for one in PROTOCOLS for other in PROTOCOLS]

broker = pytest.fixture(one_broker, scope="module")


def rows_of(page: str) -> list[str]:
    """The first cells of the table of conversions."""
    table = (ROOT / page / "README.md").read_text().split("| neutral |", 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


ROWS: Final = list(dict.fromkeys([*rows_of("amqp_1_0"), *rows_of("amqp_0_9_1")]))


class Sent(NamedTuple):
    """A message in neutral words; None for what it does not have. Numbers of seconds, and a reply address as a pair."""

    content: Any = None
    exchange: str = ""
    key: str = ""
    persistent: bool = False
    priority: int | None = None
    ttl: float | None = None
    message_id: str | uuid.UUID | None = None
    correlation_id: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    reply_to: tuple[str, str] | None = None
    content_type: str | None = None
    encoding: str | None = None
    subject: str | None = None
    time: int | None = None
    headers: dict[str, Any] = {}  # noqa: RUF012 – never changed
    redelivered: bool = False


class Clients:
    """A client of each protocol."""

    def __init__(self, port: int) -> None:
        self.url = f"127.0.0.1:{port}"
        self.ours = {name: Connection.establish(self.url, protocol=f"amqp{name}").session() for name in ("0-10", "1.0")}
        self._basic = amqp.Connection(self.url)
        self._basic.connect()
        self.channel = self._basic.channel()

    def close(self) -> None:
        for session in self.ours.values():
            session.connection.close()
        self._basic.close()

    # ---- publishing ----

    def publish(self, protocol: str, queue: str, sent: Sent) -> None:
        if protocol == "0-9-1":
            self._publish_basic(queue, sent)
            return
        extra = {APP_ID: sent.app_id, CONTENT_ENCODING: sent.encoding}
        if protocol == "1.0" and sent.time is not None:
            extra["x-amqp-creation-time"] = 1000 * sent.time
        reply = None
        if sent.reply_to is not None:
            exchange, key = sent.reply_to
            reply = f"{exchange}/{key}; {{node: {{type: topic}}}}" if exchange else f"{key}; {{node: {{type: queue}}}}"
        message = Message(
            sent.content, durable=sent.persistent, priority=sent.priority, ttl=sent.ttl, id=sent.message_id,
            correlation_id=sent.correlation_id, user_id=sent.user_id, reply_to=reply, subject=sent.subject,
            content_type=sent.content_type,
            properties={**sent.headers, **{name: value for name, value in extra.items() if value is not None}},
        )  # fmt: skip
        address = f"{sent.exchange}/{sent.key}" if sent.exchange else queue
        sender = self.ours[protocol].sender(address)
        sender.send(message)
        sender.close()

    def _publish_basic(self, queue: str, sent: Sent) -> None:
        own_type, body = encode_content(sent.content)
        reply = None if sent.reply_to is None else "/".join(filter(None, sent.reply_to))
        properties = {
            "content_type": sent.content_type or own_type, "content_encoding": sent.encoding,
            "application_headers": sent.headers or None, "delivery_mode": 2 if sent.persistent else None,
            "priority": sent.priority, "correlation_id": sent.correlation_id, "reply_to": reply,
            "expiration": None if sent.ttl is None else str(int(1000 * sent.ttl)),
            "message_id": None if sent.message_id is None else str(sent.message_id), "timestamp": sent.time,
            "type": sent.subject, "user_id": sent.user_id, "app_id": sent.app_id,
        }  # fmt: skip
        message = amqp.Message(body, **{name: value for name, value in properties.items() if value is not None})
        self.channel.basic_publish(message, sent.exchange, sent.key if sent.exchange else queue)
        self.channel.queue_declare(queue, passive=True)  # its answer comes after the message

    # ---- consuming ----

    def consume(self, protocol: str, queue: str, *, is_done: bool = True) -> Sent:
        """Get the next message; it returns to the queue unless `is_done`."""
        if protocol == "0-9-1":
            return self._get_basic(queue, is_done=is_done)
        session = self.ours[protocol]
        receiver = session.receiver(queue)
        message = receiver.fetch(timeout=PATIENCE_SECONDS)
        if is_done:
            session.acknowledge(message)
        else:
            session.release(message)
        receiver.close()
        properties = dict(message.properties)
        properties.pop("x-amqp-first-acquirer", None)
        properties.pop("x-amqp-delivery-count", None)
        created = properties.pop("x-amqp-creation-time", None)
        reply = None if message.reply_to is None else parse_address(message.reply_to)
        return Sent(
            content=message.content or None, key=properties.pop(ROUTING_KEY, ""), persistent=message.durable,
            priority=message.priority, ttl=message.ttl, message_id=message.id, correlation_id=message.correlation_id,
            user_id=message.user_id, app_id=properties.pop(APP_ID, None),
            reply_to=None if reply is None else (reply.name, reply.subject) if reply.subject else ("", reply.name),
            content_type=message.content_type, subject=message.subject, redelivered=message.redelivered,
            encoding=properties.pop(CONTENT_ENCODING, None) or properties.pop("x-amqp-content-encoding", None),
            time=created // 1000 if created else properties.pop(TIMESTAMP, None), headers=properties,
        )  # fmt: skip

    def _get_basic(self, queue: str, *, is_done: bool) -> Sent:
        message = self.channel.basic_get(queue)
        assert message is not None
        tag, found = message.delivery_info["delivery_tag"], message.properties
        if is_done:
            self.channel.basic_ack(tag)
        else:
            self.channel.basic_reject(tag, requeue=True)
        reply = found.get("reply_to")
        name, slash, key = (reply or "").partition("/")
        body = message.body.encode() if isinstance(message.body, str) else message.body
        return Sent(
            content=decode_content(found.get("content_type"), body) or None,
            exchange=message.delivery_info["exchange"], key=message.delivery_info["routing_key"],
            persistent=found.get("delivery_mode") == 2, priority=found.get("priority"),
            ttl=None if "expiration" not in found else int(found["expiration"]) / 1000,
            message_id=found.get("message_id"), correlation_id=found.get("correlation_id"),
            user_id=found.get("user_id"), app_id=found.get("app_id"),
            reply_to=None if reply is None else (name, key) if slash else ("", name),
            content_type=found.get("content_type"), encoding=found.get("content_encoding"), subject=found.get("type"),
            time=found.get("timestamp"), headers=found.get("application_headers") or {},
            redelivered=message.delivery_info["redelivered"],
        )  # fmt: skip


@pytest.fixture(scope="module")
def clients(broker: RunningBroker) -> Iterator[Clients]:
    made = Clients(broker.port)
    yield made
    made.close()


@pytest.fixture
def queue(clients: Clients) -> str:
    name = f"q-{uuid.uuid4()}"
    clients.ours["0-10"].invoke("queue.declare", queue=name)
    return name


def carried(clients: Clients, queue: str, cell: tuple[str, str], **fields: Any) -> Sent:
    """What a consumer gets of a message with these fields."""
    clients.publish(cell[0], queue, Sent(**{"content": "x", **fields}))
    return clients.consume(cell[1], queue)


# ---- probes ----

Probe = Callable[[Clients, str, tuple[str, str]], None]
PROBES: Final[dict[str, Probe]] = {}


def probe(*rows: str) -> Callable[[Probe], Probe]:
    """Register the probe of a row of the tables."""

    def register(found: Probe) -> Probe:
        PROBES.update(dict.fromkeys(rows, found))
        return found

    return register


@probe("exchange, routing key")
def _routing(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    clients.ours["0-10"].invoke("exchange.bind", queue=queue, exchange="amq.direct", binding_key=queue)
    got = carried(clients, queue, cell, exchange="amq.direct", key=queue)
    if cell[1] == "1.0":
        assert got.subject == queue
    else:
        assert got.key == queue
        assert cell[1] == "0-10" or got.exchange == "amq.direct"


@probe("persistent")
def _persistent(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    for persistent in (True, False):
        assert carried(clients, queue, cell, persistent=persistent).persistent is persistent


@probe("priority")
def _priority(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    assert carried(clients, queue, cell, priority=7).priority == 7
    usual = carried(clients, queue, cell).priority
    assert usual in ((None, 0) if cell[0] == "0-9-1" and cell[1] != "1.0" else (None, 0, 4))
    if cell[0] != "0-10" and cell[1] == "0-10":
        assert carried(clients, queue, cell, priority=12).priority == 9


@probe("time to live")
def _ttl(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    left = carried(clients, queue, cell, ttl=100.0).ttl
    assert left is not None
    assert 0 < left <= 100
    assert carried(clients, queue, cell).ttl is None


@probe("message id, correlation id", "message id", "correlation id")
def _ids(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    known = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    got = carried(clients, queue, cell, message_id=known, correlation_id="c-1")
    assert (str(got.message_id), got.correlation_id) == (str(known), "c-1")
    if cell[0] != "0-10":  # whose ids are always UUIDs
        got = carried(clients, queue, cell, message_id="order 7")
        if cell[1] == "0-10":
            assert (got.message_id, got.headers) == (None, {"x-amqp-message-id": "order 7"})
        else:
            assert got.message_id == "order 7"


@probe("user id", "user id, app id", "app id")
def _user_and_app(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    got = carried(clients, queue, cell, user_id="anna", app_id="shop")
    assert got.user_id == "anna"
    if cell[0] == "1.0" and cell[1] != "1.0":
        assert (got.app_id, got.headers) in ((None, {"x-amqp-app-id": b"shop"}), (None, {"x-amqp-app-id": "shop"}))
    else:
        assert (got.app_id, got.headers) == ("shop", {})


@probe("reply address")
def _reply(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    assert carried(clients, queue, cell, reply_to=("", "answers")).reply_to == ("", "answers")
    assert carried(clients, queue, cell, reply_to=("amq.direct", "key")).reply_to == ("amq.direct", "key")


@probe("content type, encoding")
def _types(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    got = carried(clients, queue, cell, content=b"{}", content_type="application/json", encoding="gzip")
    assert (got.content, got.content_type, got.encoding) == (b"{}", "application/json", "gzip")


@probe("subject")
def _subject(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    got = carried(clients, queue, cell, subject="news")
    kept = {"qpid.subject": "news"} if cell == ("0-10", "0-9-1") else {}
    assert (got.subject, got.headers) == ("news", kept)


@probe("time")
def _time(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    sent = None if cell[0] == "0-10" else 1_700_000_000  # in 0-10 the broker sets it, if it is told to
    found = carried(clients, queue, cell, time=sent).time
    assert (found.timestamp() if hasattr(found, "timestamp") else found) == sent


@probe("headers")
def _headers(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    simple = {"text": "ä", "int": -5, "large": 1 << 40, "float": 2.5, "yes": True, "none": None, "bytes": b"\0\xff"}
    holders = {"map": {"a": 1}, "list": [1, "b"]}
    expected = {f"x-opt-{name}": value for name, value in holders.items()} if "1.0" in cell else holders
    got = carried(clients, queue, cell, headers={**simple, **holders})
    assert got.headers == {**simple, **expected}


@probe("content: bytes", "content")
def _bytes(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    for content in (b"\0\xff\x80", None, b"z" * 300_000):
        got = carried(clients, queue, cell, content=content)
        assert (got.content, got.content_type) == (content, None)


@probe("content: a map, a list", "content: a sequence")
def _holders(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    for content, kind in (
        ({"a": 1, "b": [True, None, 2.5, {"c": b"\0"}], "text": "ä"}, "amqp/map"),
        ([1, "two", [3.5], {"four": None}], "amqp/list"),
    ):
        got = carried(clients, queue, cell, content=content)
        assert (got.content, got.content_type) == (content, kind)


@probe("content: text, a number")
def _text(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    got = carried(clients, queue, cell, content="Grüße")
    assert (got.content, got.content_type) == ("Grüße", "text/plain")


@probe("delivery time")
def _delivery_time(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    due = {"x-opt-delivery-time": 1_000}  # in milliseconds since 1970: it is due
    given = {"x-amqp-message-annotations": due} if cell[0] == "1.0" else due
    assert carried(clients, queue, cell, headers=given).headers == due


@probe("group")
def _group(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    of_1_0 = {"x-amqp-group-id": "g", "x-amqp-group-sequence": 3}
    of_others = {"JMSXGroupID": "g", "JMSXGroupSeq": 3}
    got = carried(clients, queue, cell, headers=of_1_0 if cell[0] == "1.0" else of_others)
    assert got.headers == (of_1_0 if cell[1] == "1.0" else of_others)


@probe("deaths")
def _deaths(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    dying = f"{queue}.dying"
    to_queue = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    clients.channel.queue_declare(dying, arguments=to_queue)
    clients.publish(cell[0], dying, Sent("x"))
    clients.channel.basic_reject(clients.channel.basic_get(dying).delivery_info["delivery_tag"], requeue=False)
    headers = clients.consume(cell[1], queue).headers
    (death,) = headers["x-opt-deaths" if cell[1] == "1.0" else "x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (dying, "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [dying])
    assert (headers["x-first-death-queue"], headers["x-last-death-reason"]) == (dying, "rejected")


@probe("delivery count")
def _redelivered(clients: Clients, queue: str, cell: tuple[str, str]) -> None:
    clients.publish(cell[0], queue, Sent("x"))
    assert not clients.consume(cell[1], queue, is_done=False).redelivered
    assert clients.consume(cell[1], queue).redelivered


# ---- tests ----


def test_every_row_has_a_probe() -> None:
    assert set(ROWS) == set(PROBES)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: " to ".join(cell))
def test_row(clients: Clients, queue: str, cell: tuple[str, str], row: str) -> None:
    PROBES[row](clients, queue, cell)
