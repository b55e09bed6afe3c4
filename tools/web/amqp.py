"""What an HTTP request does to queues, exchanges, bindings and messages: over AMQP 0-9-1, as the request's own user.

The HTTP API is RabbitMQ's, and so are its words for these things: declarations, properties of messages, mandatory
publishing, `basic.get`. The broker checks each operation as it checks that of any client, and its reply codes say why
it refuses one. A connection serves one operation at a time, on a channel that is opened for it and closed after it.

`log_in` goes as far as connection.tune, which follows a successful login and precedes the choice of a virtual host: a
user needs no right in one to be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from qstore.broker.client.options import ConnectionOptions, Endpoint, client_context
from qstore.broker.security.sasl.simple import ANONYMOUS
from qstore.broker.security.sasl.table import Credentials, choose_mechanism
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    FRAME,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    encode_content,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import decode_method, encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, decode_header, encode_header
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, typed_map

OPERATION_SECONDS: Final = 30.0
"""Time limit of one operation."""
_MAX_FRAME: Final = 131_072
_CHANNEL: Final = 1
_CAPABILITIES: Final = typed_map(
    {
        "authentication_failure_close": True,
        "basic.nack": True,
        "publisher_confirms": True,
        "consumer_cancel_notify": True,
    }
)
OWN_PROPERTY: Final = "qstore.console"
"""The client property by which the connections of a console are known."""


class UnreachableError(Exception):
    """The broker cannot be reached, or has closed the connection. The text is one line for the user."""


class LoginError(Exception):
    """The broker has refused the user or the password."""


class RefusedError(Exception):
    """The broker has refused an operation.

    Attributes:
        code: its reply code.
        text: its text.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Got(NamedTuple):
    """A message from a queue.

    Attributes:
        exchange, routing_key, redelivered, properties: of the message.
        left: messages in the queue behind it.
        body: the beginning of its body.
        size: bytes of the whole body.
    """

    exchange: str
    routing_key: str
    redelivered: bool
    properties: Properties
    left: int
    body: bytes
    size: int


class _Arrived(NamedTuple):
    """A method from the broker, with its content."""

    name: str
    values: dict[str, Any]
    properties: Properties
    body: bytes
    size: int


class Place(NamedTuple):
    """Where the broker is.

    Attributes:
        endpoint: its host and port.
        options: how to connect: those of TLS and SASL count.
    """

    endpoint: Endpoint
    options: ConnectionOptions

    def tls(self) -> ssl.SSLContext | None:
        """For the connection; None for one in clear text. Raises MessagingError."""
        return client_context(self.options) if self.endpoint.is_encrypted else None


class UserConnection:
    """A connection of one user.

    Args:
        reader, writer: its socket.
        user: the user's name; None for one that is admitted without.

    Attributes:
        user: as above.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str | None) -> None:
        self._reader, self._writer, self.user = reader, writer, user
        self._lock = asyncio.Lock()
        self._keep = 0  # bytes of a message that are wanted

    @classmethod
    async def log_in(
        cls, place: Place, user: str | None, password: str, peer: str, *, admits_anonymous: bool = False
    ) -> UserConnection:
        """Connect, and log in; no virtual host is open yet.

        Args:
            place: the broker.
            user: the user's name; None to log in without.
            password: the password.
            peer: whom the connection serves, for the broker's list of connections.
            admits_anonymous: whether a broker that has no users lets everyone in.

        Raises:
            LoginError: user or password is wrong.
            UnreachableError: there is no broker.
        """
        endpoint = place.endpoint
        try:
            async with asyncio.timeout(place.options.connect_timeout):
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=place.tls())
                connection = cls(reader, writer, user)
                try:
                    await connection._authenticate(place, password, peer, admits_anonymous=admits_anonymous)
                except BaseException:
                    connection.abort()
                    raise
        except RefusedError as error:
            if error.code == ReplyCode.ACCESS_REFUSED:
                raise LoginError(error.text) from None
            raise UnreachableError(f"the broker at {endpoint} has refused the connection: {error.text}") from None
        except (OSError, EOFError, Amqp091Error) as error:
            raise UnreachableError(f"the broker at {endpoint} cannot be reached: {_reason(error)}") from None
        return connection

    async def _authenticate(self, place: Place, password: str, peer: str, *, admits_anonymous: bool) -> None:
        self._writer.write(PROTOCOL_HEADER)
        start = await self._expect("connection.start")
        offered = start.values["mechanisms"].decode("ascii", "replace").split()
        allowed, endpoint = place.options.sasl_mechanisms, place.endpoint
        min_ssf = 0 if endpoint.is_encrypted else place.options.sasl_min_ssf  # AMQP 0-9-1 has no layers of SASL
        if self.user is not None and admits_anonymous and offered == [ANONYMOUS]:
            self.user = None
        try:
            credentials = Credentials(self.user, password, host=endpoint.host, min_ssf=min_ssf)
            mechanism = choose_mechanism(offered, allowed, credentials)
            if mechanism is None:
                raise LoginError("the broker offers no login with passwords on this connection")
            response = mechanism.start()
        except ValueError as error:
            raise LoginError(str(error)) from None
        known = {"product": "qstore-console", "capabilities": _CAPABILITIES, OWN_PROPERTY: True, "peer": peer}
        self._send(
            "connection.start-ok",
            channel=0,
            client_properties=typed_map(known),
            mechanism=mechanism.name,
            response=response,
            locale="en_US",
        )
        while (arrived := await self._next()).name == "connection.secure":
            try:
                response = mechanism.step(arrived.values["challenge"])
            except ValueError as error:
                raise LoginError(str(error)) from None
            self._send("connection.secure-ok", channel=0, response=response)
        if arrived.name != "connection.tune":
            raise Amqp091Error(f"the broker has sent {arrived.name} instead of connection.tune")
        self._send("connection.tune-ok", channel=0, channel_max=_CHANNEL, frame_max=_MAX_FRAME, heartbeat=0)

    async def open(self, vhost: str) -> None:
        """Open a virtual host.

        Raises:
            RefusedError: the broker refuses it.
            UnreachableError: the connection is lost.
        """
        try:
            async with asyncio.timeout(OPERATION_SECONDS):
                self._send("connection.open", channel=0, virtual_host=vhost)
                await self._expect("connection.open-ok")
        except (OSError, EOFError, Amqp091Error) as error:
            self.abort()
            raise UnreachableError(f"the broker has closed the connection: {_reason(error)}") from None
        except RefusedError:
            self.abort()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection has not failed."""
        return not self._writer.is_closing() and not self._reader.at_eof()

    def abort(self) -> None:
        """Close the socket."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection in good order."""
        async with self._lock:
            if self.is_open:
                with contextlib.suppress(OSError, EOFError, Amqp091Error, RefusedError):
                    async with asyncio.timeout(1):
                        self._send("connection.close", channel=0, reply_code=200, reply_text="done")
                        await self._expect("connection.close-ok")
            self.abort()

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        """A channel for one operation, which has a time limit. Nothing else is done meanwhile.

        Raises:
            RefusedError: the broker has refused the operation.
            UnreachableError: the connection is lost.
        """
        async with self._lock:
            is_done = False
            try:
                async with asyncio.timeout(OPERATION_SECONDS):
                    await self._call("channel.open")
                    yield Channel(self)
                    await self._call("channel.close", reply_code=200)
                is_done = True
            except RefusedError:
                is_done = self.is_open
                raise
            except TimeoutError:
                raise UnreachableError(f"the broker has not answered within {OPERATION_SECONDS:g} s") from None
            except (OSError, EOFError, Amqp091Error) as error:
                raise UnreachableError(f"the broker has closed the connection: {_reason(error)}") from None
            finally:
                if not is_done:
                    self.abort()

    # ---- frames ----

    def _send(self, name: str, /, *, channel: int = _CHANNEL, **values: Any) -> None:
        self._writer.write(encode_frame(METHOD, channel, encode_method(name, **values)))

    def _publish(self, method: bytes, properties: Properties, body: bytes) -> None:
        header = encode_header(len(body), properties)
        self._writer.writelines(encode_content(_CHANNEL, method, header, body, _MAX_FRAME))

    async def _call(self, name: str, /, **values: Any) -> _Arrived:
        self._send(name, **values)
        return await self._expect(f"{name}-ok")

    async def _expect(self, *names: str) -> _Arrived:
        """The next method, which is one of these. Raises RefusedError if the broker closes something instead."""
        arrived = await self._next()
        if arrived.name not in names:
            raise Amqp091Error(f"the broker has sent {arrived.name} instead of {names[0]}")
        return arrived

    async def _next(self) -> _Arrived:
        await self._writer.drain()
        while True:
            arrived = await self._method()
            values = arrived.values
            if arrived.name == "channel.close":
                self._send("channel.close-ok")
                raise RefusedError(values["reply_code"], values["reply_text"])
            if arrived.name == "connection.close":
                self._send("connection.close-ok", channel=0)
                self._writer.close()
                raise RefusedError(values["reply_code"], values["reply_text"])
            if arrived.name not in ("connection.blocked", "connection.unblocked"):
                return arrived

    async def _method(self) -> _Arrived:
        _kind, payload = await self._frame(METHOD)
        method, values = decode_method(payload)
        if not method.has_content:
            return _Arrived(method.name, values, Properties(), b"", 0)
        _kind, payload = await self._frame(HEADER)
        size, properties = decode_header(payload)
        body, left = bytearray(), size
        while left:
            _kind, payload = await self._frame(BODY)
            left -= len(payload)
            if len(body) < self._keep:
                body += payload[: self._keep - len(body)]
        return _Arrived(method.name, values, properties, bytes(body), size)

    async def _frame(self, wanted: int) -> tuple[int, bytes]:
        while True:
            head = await self._reader.readexactly(FRAME.size)
            kind, _channel, size = FRAME.unpack(head)
            if size > _MAX_FRAME:
                raise Amqp091Error(f"a frame of {size} bytes, and at most {_MAX_FRAME} were agreed on")
            payload = (await self._reader.readexactly(size + 1))[:-1]
            if kind == wanted:
                return kind, payload
            if kind != HEARTBEAT:
                raise Amqp091Error(f"a frame of type {kind} instead of {wanted}")


def _reason(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "it has ended the connection"
    return str(error) or type(error).__name__


class Channel:
    """A channel, for one operation. Its methods raise as `UserConnection.channel`."""

    def __init__(self, connection: UserConnection) -> None:
        self._connection = connection

    async def call(self, name: str, /, **values: Any) -> Mapping[str, Any]:
        """Call a method, and return the values of its answer. Arguments may be a dict."""
        for key, value in values.items():
            if isinstance(value, dict):
                values[key] = typed_map(value)
        return (await self._connection._call(name, **values)).values

    async def publish(self, exchange: str, key: str, properties: Properties, body: bytes) -> bool:
        """Publish a message, and wait until the broker is responsible for it. Returns whether a queue has it."""
        wire = self._connection
        await wire._call("confirm.select")
        method = encode_method("basic.publish", exchange=exchange, routing_key=key, mandatory=True)
        wire._publish(method, properties, body)
        is_routed = True
        while (arrived := await wire._expect("basic.ack", "basic.nack", "basic.return")).name == "basic.return":
            is_routed = False
        if arrived.name == "basic.nack":
            raise RefusedError(ReplyCode.PRECONDITION_FAILED, "the broker has refused the message: a queue is full")
        return is_routed

    async def get(self, queue: str, count: int, keep: tuple[int, int], *, requeue: bool, reject: bool) -> list[Got]:
        """Take messages from a queue, and put them back or remove them.

        Args:
            queue: the queue.
            count: how many at most.
            keep: bytes of a body, and of all bodies together, that are wanted.
            requeue: whether they go back.
            reject: whether those that do not are rejected instead of accepted.
        """
        wire, found, tag = self._connection, list[Got](), 0
        each, left = keep
        while len(found) < count:
            wire._keep = min(each, left)
            wire._send("basic.get", queue=queue)
            name, values, properties, body, size = await wire._expect("basic.get-ok", "basic.get-empty")
            if name == "basic.get-empty":
                break
            left, tag = left - len(body), values["delivery_tag"]
            route = values["exchange"], values["routing_key"], bool(values["redelivered"])
            found.append(Got(*route, properties, values["message_count"], body, size))
        if found and (requeue or reject):
            wire._send("basic.nack", delivery_tag=tag, multiple=True, requeue=requeue)
        elif found:
            wire._send("basic.ack", delivery_tag=tag, multiple=True)
        return found


def table(values: Mapping[str, Any] | None) -> TypedMap:
    """Arguments or headers from JSON."""
    return typed_map(values or {})
