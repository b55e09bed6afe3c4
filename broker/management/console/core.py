"""The core of a console: requests and their answers, over a session of the client.

A request goes to an agent by its name, or to the broker's own by `broker`, on the exchange `qmf.default.direct`; the
answers come to the console's own queue, with the request's correlation id. An answer may be several messages: all but
the last have the header `partial`. Several requests may wait at the same time: each takes all answers that have
come, and leaves those to other requests for them.

What an answer may take is limited: a message by the connection's `max_message_bytes`, prefetched messages by
`CAPACITY`, answers for requests that do not fetch them by `MAX_WAITING`, and the objects of a query by `MAX_OBJECTS`.

Like the client's core, this waits only by the client's driver, so that both of its interfaces use it.

Sources: Qpid wiki, "QMFv2 Map Message Protocol"; the keys as qpidd's agent has them.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.client.core_connection import ConnectionCore
from qstore.broker.client.core_receiver import ReceiverCore
from qstore.broker.client.core_sender import SenderCore
from qstore.broker.client.core_session import SessionCore
from qstore.broker.client.driver import Driver
from qstore.broker.client.errors import ConnectionClosedError, ConnectionFailedError, ContentError, NotFound
from qstore.broker.client.message import APP_ID, Message
from qstore.broker.management.console import version_1
from qstore.broker.management.console.errors import AnswerError, NoAgentError, NoAnswerError
from qstore.broker.management.console.values import Data, ObjectId, read_exception

DIRECT: Final = "qmf.default.direct"
TOPIC: Final = "qmf.default.topic"
VERSION_1: Final = "qpid.management"
REPLIES_1: Final = "amq.direct"
"""Where replies of version 1 come from."""
_LINK: Final = "{node: {type: topic}, link: {reliability: unreliable}}"
BROKER: Final = "broker"
"""The key of the broker's own agent."""
PACKAGE: Final = "org.apache.qpid.broker"
LOCATE_KEY: Final = "console.request.agent_locate"
CAPACITY: Final = 20
"""Messages that are prefetched."""
MAX_OBJECTS: Final = 1_000_000
"""Objects of one query."""
MAX_WAITING: Final = 64 << 20
"""Bytes of answers that nobody has fetched."""
DEFAULT_TIMEOUT: Final = 60.0
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Of one answer; a connection that a console opens has this as its `max_message_bytes`."""


class Reply(NamedTuple):
    """A message of an answer.

    Attributes:
        message: the message.
        opcode: what it is; empty for one of version 1.
        is_last: whether no other follows.
    """

    message: Message
    opcode: str
    is_last: bool


class Request:
    """A request that waits for its answer.

    Attributes:
        number: its number, which is its correlation id.
        agent: whom it was sent to, for errors.
        arrived: messages that have come for it.
        size: their bytes.
        is_dropped: whether too many of them were not fetched.
        wire: the session on which it was sent.
    """

    def __init__(self, number: int, agent: str, wire: object) -> None:
        self.number, self.agent = number, agent
        self.arrived: deque[Message] = deque()
        self.size = 0
        self.is_dropped = False
        self.wire = wire

    def add(self, message: Message) -> None:
        """A message has come."""
        if not self.is_dropped:
            self.arrived.append(message)
            self.size += len(message.body)

    def take(self) -> Message:
        """Fetch the first message."""
        message = self.arrived.popleft()
        self.size -= len(message.body)
        return message

    def drop(self) -> None:
        """Keep none of its messages, since too many are not fetched."""
        self.arrived.clear()
        self.size, self.is_dropped = 0, True


class ConsoleCore:
    """A console on one connection.

    Args:
        connection: the connection.
        timeout: seconds that an answer may take, and each further message of it.
    """

    _opened: SessionCore | None = None
    _replies: ReceiverCore
    _direct: SenderCore
    _topic: SenderCore

    def __init__(self, connection: ConnectionCore, timeout: float) -> None:
        self._connection, self.timeout = connection, timeout
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._version_1: SenderCore | None = None
        self._key = f"console.{uuid.uuid4()}"
        self._reply_to = f"{DIRECT}/{self._key}; {{node: {{type: topic}}}}"

    @property
    def queue(self) -> str:
        """The name of its queue for answers."""
        return self._key

    async def open(self) -> None:
        """Open its session, and its queue for answers.

        Raises:
            NoAgentError: the broker has no management.
            MessagingError: the connection or the session has failed.
        """
        session = await self._connection.session(None, is_transactional=False)
        link = f"{{node: {{type: topic}}, link: {{name: '{self._key}', reliability: unreliable}}}}"
        try:
            self._replies = await session.receiver(f"{DIRECT}/{self._key}; {link}", CAPACITY)
            self._direct = await session.sender(f"{DIRECT}; {_LINK}", CAPACITY)
            self._topic = await session.sender(f"{TOPIC}; {_LINK}", CAPACITY)
        except NotFound:
            await session.close(session.driver.now())
            raise NoAgentError(
                f"the broker has no exchange {DIRECT}: management by QMF version 2 is switched off there"
            ) from None
        self._opened = session

    @property
    def _session(self) -> SessionCore:
        if self._opened is None:
            raise ConnectionClosedError("the console is not open: use it in a with block, or call open() first")
        return self._opened

    async def close(self) -> None:
        """Close its session, if it is open."""
        if self._opened is not None:
            await self._session.close(self._session.driver.now() + self.timeout)

    @property
    def driver(self) -> Driver:
        """The driver of its connection."""
        return self._connection.driver

    # ---- requests ----

    async def send(
        self, opcode: str, content: Mapping[str, Any] | list[Any], agent: str, *, to_all: bool = False
    ) -> Request:
        """Send a request to an agent, or to all agents. It has to be ended by `end`."""
        request = self._begin(agent)
        key = LOCATE_KEY if to_all else agent
        message = Message(
            content,
            subject=key,
            reply_to=self._reply_to,
            correlation_id=str(request.number),
            properties={"method": "request", "qmf.opcode": opcode, APP_ID: "qmf2"},
        )
        await self._put(self._topic if to_all else self._direct, message, request)
        return request

    async def send_version_1(self, opcode: str, content: bytes, agent: str) -> Request:
        """Send a request of version 1, which the broker's own agent takes. It has to be ended by `end`.

        Raises:
            NoAgentError: the broker has no management by version 1.
        """
        if self._version_1 is None:
            try:
                self._version_1 = await self._session.sender(f"{VERSION_1}; {_LINK}", CAPACITY)
            except NotFound:
                raise NoAgentError(f"the broker has no exchange {VERSION_1}") from None
        commands, key = self._session.commands, self._key
        await commands.retry(lambda: commands.invoke("exchange.bind", queue=key, exchange=REPLIES_1, binding_key=key))
        request = self._begin(agent)
        body = version_1.request(opcode, request.number, content)
        await self._put(self._version_1, Message(body, subject=agent, reply_to=self._reply_to), request)
        return request

    def _begin(self, agent: str) -> Request:
        commands = self._session.commands
        self._replies.check()
        request = Request(next(self._numbers), agent, commands.wire)
        self._requests[request.number] = request
        return request

    async def _put(self, sender: SenderCore, message: Message, request: Request) -> None:
        try:
            await sender.send(message, sync=False, timeout=self.timeout)
        except BaseException:
            self.end(request)
            raise

    def end(self, request: Request) -> None:
        """Forget a request: what still comes for it is ignored."""
        self._requests.pop(request.number, None)

    # ---- answers ----

    async def next_message(self, request: Request, timeout: float | None = None) -> Message:
        """The next message of the answer to a request.

        Raises:
            NoAnswerError: none came in time.
            AnswerError: too much has come, or what cannot be read.
            MessagingError: the connection or the session has failed.
        """
        seconds = self.timeout if timeout is None else timeout
        commands, replies = self._session.commands, self._replies
        deadline = self._session.driver.now() + seconds
        while not request.arrived:
            replies.check()
            if request.is_dropped:
                raise AnswerError(f"more than {MAX_WAITING >> 20} MiB of answers were not fetched")
            if commands.wire is not request.wire:
                raise ConnectionFailedError("the connection was lost, and with it the answer to a request")
            message = replies.try_fetch()
            if message is not None:
                self._take(message)
                continue
            if not await commands.wait(lambda: self._is_decided(request), deadline):
                raise NoAnswerError(f"no answer from the agent {request.agent} within {seconds:g} seconds")
        return request.take()

    def _is_decided(self, request: Request) -> bool:
        """Whether something has come, or nothing can come any more."""
        replies = self._replies
        is_lost = replies.failure is not None or self._session.commands.wire is not request.wire
        return bool(request.arrived or replies.incoming or request.is_dropped) or is_lost

    def _take(self, message: Message) -> None:
        """Leave a message for the request that it answers."""
        try:
            identity: Any = message.correlation_id
        except ContentError as error:
            raise AnswerError(str(error)) from None
        if identity is None:
            sequence = version_1.sequence_of(message.body)
            identity = None if sequence is None else str(sequence)
        request = self._requests.get(int(identity)) if isinstance(identity, str) and _is_number(identity) else None
        if request is None:
            return
        request.add(message)
        if sum(each.size for each in self._requests.values()) > MAX_WAITING:
            max(self._requests.values(), key=lambda each: each.size).drop()
        self._session.driver.changed()

    async def next_reply(self, request: Request, expected: str, timeout: float | None = None) -> Reply:
        """The next message of an answer of version 2.

        Raises:
            AgentError: the agent has refused the request.
            AnswerError: it is another message than `expected`.
            MessagingError: as `next_message`.
        """
        message = await self.next_message(request, timeout)
        try:
            headers = message.properties
            opcode = headers.get("qmf.opcode")
            if opcode == "_exception":
                raise read_exception(message.content)
        except ContentError as error:
            raise AnswerError(str(error)) from None
        if opcode != expected:
            raise AnswerError(f"the agent {request.agent} has answered {opcode!r} instead of {expected}")
        return Reply(message, expected, "partial" not in headers)

    # ---- streams ----

    async def subscribe(self, keys: tuple[str, ...]) -> ReceiverCore:
        """A receiver for what agents publish by these keys.

        Its queue is a ring: a console that is too slow misses the oldest indications.
        """
        bindings = ", ".join(f"{{exchange: '{TOPIC}', key: '{key}'}}" for key in keys)
        declare = f"{{arguments: {{qpid.policy_type: ring, qpid.max_size: {MAX_WAITING}}}}}"
        link = f"reliability: unreliable, x-declare: {declare}, x-bindings: [{bindings}]"
        return await self._session.receiver(f"{TOPIC}; {{node: {{type: topic}}, link: {{{link}}}}}", CAPACITY)


def object_name(target: Data | ObjectId | str) -> ObjectId:
    """The object that is meant: by itself, its identity, its whole name, CLASS:KEY, or `broker`.

    Raises:
        AnswerError: it is data that is no object.
    """
    if isinstance(target, Data):
        if target.object_id is None:
            raise AnswerError("these values are no object of an agent")
        return target.object_id
    if isinstance(target, ObjectId):
        return target
    if target == BROKER:
        target = "broker:amqp-broker"
    return ObjectId(target if "." in target.partition(":")[0] else f"{PACKAGE}:{target}")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20
