"""One connection of a client library, in the few words that the interoperability tests need.

A link subscribes to routing keys of `amq.topic`, consumes from queues, publishes, and gets what arrives. Each library
is a class of some lines below; `LINKS` has their names, which are those of the test clients (IOP-35).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

TOPIC: Final = "amq.topic"
DIRECT: Final = "amq.direct"


class Mail(NamedTuple):
    """A message. A reply address is a routing key of `amq.topic`."""

    headers: Mapping[str, str | int]
    body: bytes = b""
    correlation_id: str = ""
    reply_to: str = ""


class Link(ABC):
    """A connection. `host` is an address or a name, `vhost` a virtual host, empty for the default one."""

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        self.host, self.port, self.vhost = host, port, vhost

    @abstractmethod
    def subscribe(self, key: str) -> None:
        """Get the messages with a routing key of the topic exchange from now on."""

    @abstractmethod
    def consume(self, queue: str) -> None:
        """Get the messages of a queue from now on."""

    @abstractmethod
    def send(self, exchange: str, key: str, mail: Mail) -> None:
        """Publish."""

    @abstractmethod
    def receive(self, seconds: float) -> Mail | None:
        """The next message; None if none comes in time."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def _reply(key: str) -> str | None:
    return f"{TOPIC}/{key}" if key else None


def _key(reply: object) -> str:
    return str(reply or "").partition(";")[0].strip().removeprefix(f"{TOPIC}/")


def _mail(headers: Mapping[str, Any] | None, body: object, correlation_id: object, reply: object) -> Mail:
    content = body.encode() if isinstance(body, str) else bytes(body or b"")  # type: ignore[call-overload]
    is_bytes = isinstance(correlation_id, bytes | memoryview)  # of 0-10
    identity = bytes(correlation_id).decode() if is_bytes else str(correlation_id or "")  # type: ignore[arg-type]
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in (headers or {}).items()}
    return Mail(plain, content, identity, _key(reply))


# ---- AMQP 0-9-1 ----


class Pika(Link):
    """pika."""

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        import pika

        super().__init__(host, port, vhost)
        self._make = pika.BasicProperties
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost or "/"))
        self._channel = self._connection.channel()
        self._found: deque[Mail] = deque()

    def declare(self, queue: str) -> None:
        """Create a queue, bound to the direct exchange with its name (IOP-44)."""
        self._channel.queue_declare(queue, auto_delete=True)
        self._channel.queue_bind(queue, DIRECT, queue)

    def subscribe(self, key: str) -> None:
        queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(queue, TOPIC, key)
        self.consume(queue)

    def consume(self, queue: str) -> None:
        self._channel.basic_consume(queue, self._arrived, auto_ack=True)

    def _arrived(self, _channel: object, _method: object, found: Any, body: bytes) -> None:
        self._found.append(_mail(found.headers, body, found.correlation_id, found.reply_to))

    def send(self, exchange: str, key: str, mail: Mail) -> None:
        properties = self._make(
            headers=dict(mail.headers), correlation_id=mail.correlation_id or None, reply_to=_reply(mail.reply_to)
        )
        self._channel.basic_publish(exchange, key, mail.body, properties)

    def receive(self, seconds: float) -> Mail | None:
        end = time.monotonic() + seconds
        while not self._found and (left := end - time.monotonic()) >= 0:
            self._connection.process_data_events(left)
        return self._found.popleft() if self._found else None

    def close(self) -> None:
        self._connection.close()


class PyAmqp(Link):
    """amqp, the library below Celery."""

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        import amqp

        super().__init__(host, port, vhost)
        self._make = amqp.Message
        self._connection = amqp.Connection(f"{host}:{port}", virtual_host=vhost or "/")
        self._connection.connect()
        self._channel = self._connection.channel()
        self._found: deque[Mail] = deque()

    def subscribe(self, key: str) -> None:
        queue = self._channel.queue_declare("", exclusive=True).queue
        self._channel.queue_bind(queue, TOPIC, key)
        self.consume(queue)

    def consume(self, queue: str) -> None:
        self._channel.basic_consume(queue, no_ack=True, callback=self._arrived)

    def _arrived(self, message: Any) -> None:
        found = message.properties
        mail = _mail(found.get("application_headers"), message.body, found.get("correlation_id"), found.get("reply_to"))
        self._found.append(mail)

    def send(self, exchange: str, key: str, mail: Mail) -> None:
        given = {"correlation_id": mail.correlation_id, "reply_to": _reply(mail.reply_to)}
        properties = {name: value for name, value in given.items() if value}
        message = self._make(mail.body, application_headers=dict(mail.headers), **properties)
        self._channel.basic_publish(message, exchange, key)

    def receive(self, seconds: float) -> Mail | None:
        end = time.monotonic() + seconds
        while not self._found and (left := end - time.monotonic()) > 0:
            try:
                self._connection.drain_events(left)
            except TimeoutError:
                break
        return self._found.popleft() if self._found else None

    def close(self) -> None:
        self._connection.close()


class Storm(Link):
    """AMQPStorm."""

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        import amqpstorm

        super().__init__(host, port, vhost)
        self._connection = amqpstorm.Connection(host, "guest", "guest", port=port, virtual_host=vhost or "/")
        self._channel = self._connection.channel()
        self._found: deque[Mail] = deque()

    def subscribe(self, key: str) -> None:
        queue = self._channel.queue.declare("", exclusive=True)["queue"]
        self._channel.queue.bind(queue, TOPIC, key)
        self.consume(queue)

    def consume(self, queue: str) -> None:
        self._channel.basic.consume(self._arrived, queue, no_ack=True)

    def _arrived(self, message: Any) -> None:
        found = message.properties
        body = message._body  # as it came: `body` is text where it can be
        mail = _mail(found.get("headers"), body, found.get("correlation_id"), found.get("reply_to"))
        self._found.append(mail)

    def send(self, exchange: str, key: str, mail: Mail) -> None:
        given = {"correlation_id": mail.correlation_id, "reply_to": _reply(mail.reply_to)}
        properties: dict[str, Any] = {name: value for name, value in given.items() if value}
        properties["headers"] = dict(mail.headers)
        self._channel.basic.publish(mail.body, key, exchange, properties=properties)

    def receive(self, seconds: float) -> Mail | None:
        end = time.monotonic() + seconds
        while True:
            self._channel.process_data_events()
            if self._found or time.monotonic() >= end:
                return self._found.popleft() if self._found else None
            time.sleep(0.002)

    def close(self) -> None:
        self._connection.close()


# ---- our own client: AMQP 0-10 and 1.0 ----


class Own(Link):
    """qstore.Connection."""

    protocol = "amqp0-10"

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        from qstore import Connection, Message
        from qstore.broker.client import Empty

        super().__init__(host, port, vhost)
        self._message, self._empty = Message, Empty
        options = {"virtual_host": vhost} if vhost else {}
        self._connection = Connection.establish(f"{host}:{port}", protocol=self.protocol, **options)
        self._session = self._connection.session()
        self._senders: dict[str, Any] = {}

    def subscribe(self, key: str) -> None:
        self._session.receiver(f"{TOPIC}/{key}", capacity=50)

    def consume(self, queue: str) -> None:
        self._session.receiver(f"{queue}; {{node: {{type: queue}}}}", capacity=50)

    def send(self, exchange: str, key: str, mail: Mail) -> None:
        address = f"{exchange}/{key}; {{node: {{type: topic}}}}"
        if address not in self._senders:
            self._senders[address] = self._session.sender(address)
        message = self._message(
            mail.body, properties=dict(mail.headers), correlation_id=mail.correlation_id or None,
            reply_to=f"{TOPIC}/{mail.reply_to}; {{node: {{type: topic}}}}" if mail.reply_to else None,
        )  # fmt: skip
        self._senders[address].send(message)

    def receive(self, seconds: float) -> Mail | None:
        try:
            message = self._session.next_receiver(seconds).fetch(0)
        except self._empty:
            return None
        self._session.acknowledge(message)
        return _mail(message.properties, message.content, message.correlation_id, message.reply_to)

    def close(self) -> None:
        self._connection.close()


class OwnLinks(Own):
    """The same over AMQP 1.0."""

    protocol = "amqp1.0"


# ---- AMQP 1.0 ----


class Proton(Link):
    """Qpid Proton."""

    def __init__(self, host: str, port: int, vhost: str = "") -> None:
        from proton import Message, Timeout
        from proton.utils import BlockingConnection

        super().__init__(host, port, vhost)
        self._message, self._timeout = Message, Timeout
        options = {"virtual_host": vhost} if vhost else {}
        self._connection = BlockingConnection(f"amqp://{host}:{port}", timeout=60, **options)
        self._receivers: list[Any] = []
        self._senders: dict[str, Any] = {}

    def subscribe(self, key: str) -> None:
        self._receivers.append(self._connection.create_receiver(f"{TOPIC}/{key}", credit=50))

    def consume(self, queue: str) -> None:
        self._receivers.append(self._connection.create_receiver(f"/queues/{queue}", credit=50))

    def send(self, exchange: str, key: str, mail: Mail) -> None:
        address = f"/exchanges/{exchange}/{key}"
        if address not in self._senders:
            self._senders[address] = self._connection.create_sender(address)
        message = self._message(
            body=mail.body, properties=dict(mail.headers), correlation_id=mail.correlation_id or None,
            reply_to=_reply(mail.reply_to), inferred=True,
        )  # fmt: skip
        self._senders[address].send(message)

    def receive(self, seconds: float) -> Mail | None:
        end = time.monotonic() + seconds
        while True:
            for receiver in self._receivers:
                if receiver.fetcher.has_message:
                    message = receiver.receive(0)
                    receiver.accept()
                    body = message.body
                    content = bytes(body) if isinstance(body, bytes | memoryview | bytearray) else body
                    return _mail(message.properties, content, message.correlation_id, message.reply_to)
            left = end - time.monotonic()
            if left <= 0:
                return None
            try:
                self._connection.wait(self._has_message, timeout=left)
            except self._timeout:
                return None

    def _has_message(self) -> bool:
        return any(each.fetcher.has_message for each in self._receivers)

    def close(self) -> None:
        self._connection.close()


#: Name of a client -> its library.
LINKS: Final[Mapping[str, Callable[..., Link]]] = {
    "qstore-0-10": Own,
    "qstore-1-0": OwnLinks,
    "pika": Pika,
    "py-amqp": PyAmqp,
    "amqpstorm": Storm,
    "proton": Proton,
}
