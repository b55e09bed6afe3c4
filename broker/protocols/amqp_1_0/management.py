"""The node `/management`, as RabbitMQ 4 has it: queues, exchanges and bindings over a pair of links.

A client attaches one link to it and one from it, with the same name. A request is a message whose properties are like
those of HTTP: `to` is the path, `subject` the method, and `message-id` returns as the correlation-id of the answer,
whose subject is the status.

    PUT     /queues/NAME                                        declares a queue: 201, or 200 if it existed
    GET     /queues/NAME                                        its properties: 200
    DELETE  /queues/NAME                                        200, with the number of its messages
    DELETE  /queues/NAME/messages                               purges it: 200, likewise
    PUT     /exchanges/NAME                                     declares an exchange: 204
    DELETE  /exchanges/NAME                                     204
    POST    /bindings                                           binds a queue or an exchange: 204
    GET     /bindings?src=NAME&dstq=NAME&key=KEY                bindings: 200; dste is an exchange
    DELETE  /bindings/src=NAME;dstq=NAME;key=KEY;args=          204; likewise

Names are percent-encoded. An error has the status 400 (what was asked for is not valid), 403 (not allowed), 404 (does
not exist) or 409 (exists with other properties, or is locked), and its text as the body. Every operation is authorized
as its user. Arguments are those of AMQP 0-9-1.

Source: RabbitMQ, "AMQP 1.0", and the clients of RabbitMQ 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model import errors
from qstore.broker.model.arguments import ALTERNATE, QUEUE_TYPE, shown
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, ModelError, NotFoundError
from qstore.broker.model.message import Content
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import purge
from qstore.broker.model.topology.checks import check_owner
from qstore.broker.protocols.amqp_0_9_1.arguments import (
    alternate_of,
    binding_arguments,
    exchange_name,
    queue_arguments,
    with_exchange_name,
)
from qstore.broker.protocols.amqp_1_0.addresses import decoded
from qstore.broker.protocols.amqp_1_0.errors import ConditionError
from qstore.broker.protocols.amqp_1_0.fetched import QueuelessLink
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import encode_composite, section_list
from qstore.formats.amqp_1_0.frames import FRAME, encode_frame
from qstore.formats.amqp_1_0.neutral import map_value, neutral_map
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    VALUE,
    begin_section,
    encode_section,
    has_too_many_values,
    section_value,
)
from qstore.formats.amqp_1_0.values import Value, encode_value, find_payload
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.route import Binding
    from qstore.broker.protocols.amqp_1_0.session import Session

ADDRESS: Final = "/management"

MAX_REQUEST: Final = 65_536
"""Bytes of a request."""

MAX_WAITING: Final = 1_000
"""Answers that may wait for the client's credit."""

MAX_ANSWERS: Final = 1 << 20
"""Bytes of answers that may wait, and of the bindings in one answer."""

LISTED_AT_ONCE: Final = 50
"""Bindings that are encoded in one turn: some 2 ms in pure Python."""

EXAMINED_AT_ONCE: Final = 5_000
"""Bindings that are compared with what was asked for in one turn: likewise."""

_STATUS: Final[dict[type[errors.ModelError], int]] = {
    errors.UnauthorizedError: 403,
    errors.NotAllowedError: 403,
    errors.NotFoundError: 404,
    errors.ResourceDeletedError: 404,
    errors.ResourceLockedError: 409,
    errors.PreconditionFailedError: 409,
    errors.InternalError: 500,
}
_TAG: Final = b"\0"
_MAX_SECTIONS: Final = 16
_ROOM: Final = 64  # bytes of a frame before its content
_NULL: Final = Value("null", None)

Body = Mapping[str, Value]


class AnswerLink(QueuelessLink):
    """A link on which the client receives answers. They are sent settled.

    Args:
        session, handle, name, max_message: as of `QueuelessLink`.
    """

    __slots__ = ("_bytes", "_waiting")

    def __init__(self, session: Session, handle: int, name: str, max_message: int) -> None:
        super().__init__(session, handle, name, max_message)
        self._waiting: deque[bytes] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether too many answers wait."""
        return len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_ANSWERS

    def add(self, answer: bytes) -> None:
        """Send an answer when there is credit for it."""
        self._waiting.append(answer)
        self._bytes += len(answer)
        self.wake()

    def on_credit(self, *, is_draining: bool) -> None:
        """As `QueuelessLink.on_credit`."""
        self.wake()
        if is_draining:
            self.session.give_back(self)

    def wake(self) -> None:
        """As `QueuelessLink.wake`."""
        session = self.session
        while self._waiting and self.credit > 0 and session.can_send and self.is_attached:
            answer = self._waiting.popleft()
            self._bytes -= len(answer)
            self._send(answer)
            self.credit -= 1
            self.delivery_count = (self.delivery_count + 1) & 0xFFFFFFFF

    def _send(self, answer: bytes) -> None:
        session = self.session
        number = session.next_delivery
        session.next_delivery = number + 1
        most = session.connection.max_frame - FRAME.size - _ROOM
        fields = {
            "handle": self.handle, "delivery_id": number & 0xFFFFFFFF, "delivery_tag": _TAG, "message_format": 0,
            "settled": True,
        }  # fmt: skip
        for at in range(0, len(answer), most):
            more = at + most < len(answer)
            transfer = encode_composite("transfer", {**fields, "more": more or None})
            session.connection.send_frame(encode_frame(session.channel, transfer + answer[at : at + most]))
            session.sent_frame()


class Request(NamedTuple):
    """A request.

    Attributes:
        method, path: as above.
        message_id: that of its message.
        body: the entries of the map in it.
    """

    method: str
    path: str
    message_id: Value | None
    body: Body


class Answer(NamedTuple):
    """An answer: its status, and what it says, as a value or its encoding."""

    status: int
    body: Value | bytes = Value("null", None)


def read_request(content: Content) -> Request:
    """The request in a message. Raises Amqp10Error or InvalidArgumentError."""
    if len(content) > MAX_REQUEST:
        raise InvalidArgumentError(f"a request of more than {MAX_REQUEST:,} bytes")
    data = content if isinstance(content, bytes) else b"".join(content.pieces)
    fields: dict[str, Any] = {}
    body, at, end = Value("null", None), 0, len(data)
    for _ in range(_MAX_SECTIONS):  # RabbitMQ's client for Python sends a body without content before the properties
        if at >= end:
            break
        code, constructor, value_at = begin_section(data, at, end)
        following = find_payload(constructor, data, value_at, end)[1]
        if code == PROPERTIES:
            fields = section_list("properties", data, at, following)
        elif code == VALUE and not has_too_many_values(data, at, following):
            body = section_value(data, (at, following))
        at = following
    to = fields.get("to")
    path = to.value if isinstance(to, Value) and isinstance(to.value, str) else ""
    entries = {str(key.value): value for key, value in body.value} if body.type_name == "map" else {}
    message_id = fields.get("message_id")
    return Request(str(fields.get("subject") or ""), path, message_id, entries)


def answer_of(request: Request, answer: Answer) -> bytes:
    """An answer as a message."""
    properties = {"subject": str(answer.status), "correlation_id": request.message_id}
    version = Value("map", ((Value("string", "http:response"), Value("string", "1.1")),))
    sections = encode_composite("properties", properties) + encode_section(APPLICATION_PROPERTIES, version)
    body = answer.body
    if isinstance(body, bytes):
        return sections + encode_section(VALUE, _NULL)[:-1] + body
    return sections + encode_section(VALUE, body)


def refusal_of(error: Exception) -> Answer:
    """The answer that says that a request has failed."""
    status = _STATUS.get(type(error), 400) if isinstance(error, ModelError) else 400
    return Answer(status, Value("string", str(error)[:1024]))


def _text(text: str) -> Value:
    return Value("string", text)


def _map(**entries: Value) -> Value:
    return Value("map", tuple((_text(name), value) for name, value in entries.items()))


class Operation:
    """One request of a session while it is carried out.

    Args:
        session: the session.
        request: the request.

    Attributes:
        answer: the answer, once it is known.
    """

    def __init__(self, session: Session, request: Request) -> None:
        self._session, self._request = session, request
        self._topology = session.virtual_host.topology
        self.answer = Answer(204)

    def work(self, done: Callable[[ModelError | None], None]) -> Coroutine[Any, Any, None] | None:
        """Find out what is to be done. Returns the work; None if `done` was called, or will be.

        Raises:
            ModelError: the request is refused.
        """
        path, _, query = self._request.path.partition("?")
        parts = path.strip("/").split("/")
        match self._request.method, parts[0], [decoded(part) for part in parts[1:]]:
            case "PUT", "queues", [name]:
                return self._declare_queue(name)
            case "GET", "queues", [name]:
                self.answer = Answer(200, self._described(self._queue(name)))
            case "DELETE", "queues", [name]:
                return self._delete_queue(name)
            case "DELETE", "queues", [name, "messages"]:
                self._purge(name, done)
                return None
            case "PUT", "exchanges", [name]:
                return self._declare_exchange(name)
            case "DELETE", "exchanges", [name]:
                return self._delete_exchange(name)
            case "POST", "bindings", []:
                return self._bind()
            case "GET", "bindings", []:
                self._list_bindings(_named(query, "&"), done)
                return None
            case "DELETE", "bindings", [_]:
                return self._unbind(_named(parts[1], ";"))
            case _:
                raise InvalidArgumentError(f"{self._request.method:.16} {path:.256} is not an operation")
        done(None)
        return None

    # ---- the body ----

    def _flag(self, name: str, *, default: bool = False) -> bool:
        value = self._request.body.get(name)
        if value is None or value.value is None:
            return default
        if value.type_name != "boolean":
            raise InvalidArgumentError(f"{name} is not a boolean")
        return bool(value.value)

    def _string(self, name: str, default: str = "") -> str:
        value = self._request.body.get(name)
        if value is None or value.value is None:
            return default
        if not isinstance(value.value, str):
            raise InvalidArgumentError(f"{name} is not a string")
        return value.value

    def _arguments(self) -> TypedMap:
        value = self._request.body.get("arguments")
        if value is None or value.value is None:
            return EMPTY_MAP
        if value.type_name != "map":
            raise InvalidArgumentError("arguments are not a map")
        return neutral_map(value.value)

    # ---- queues ----

    def _queue(self, name: str) -> Queue:
        """A queue that the user may see. Raises ModelError."""
        session = self._session
        session.broker.authorization.check(session, Action.ACCESS, ObjectType.QUEUE, name)
        queue = session.virtual_host.queues.get(name)
        if queue is None:
            raise NotFoundError(f"no queue '{name[:256]}' in vhost '{session.virtual_host.name}'")
        return queue

    def _check_names(self, *known: str) -> None:
        """Refuse names in the body that would have no effect. Raises InvalidArgumentError."""
        for name in self._request.body:
            if name not in known:
                raise InvalidArgumentError(f"{shown(name)} is unknown; the body may have {', '.join(known)}")

    async def _declare_queue(self, name: str) -> None:
        session = self._session
        self._check_names("durable", "exclusive", "auto_delete", "arguments")
        exclusive = self._flag("exclusive")
        arguments = queue_arguments(self._arguments())
        existed = name in session.virtual_host.queues
        queue = await self._topology.declare_queue(
            name,
            durable=self._flag("durable", default=True) and not exclusive,
            exclusive=exclusive,
            auto_delete=self._flag("auto_delete"),
            arguments=arguments,
            caller=session,
            is_exact=True,
        )
        if queue.owner is session and not session.is_open:  # it has ended meanwhile
            session.disown(queue)
        elif queue.owner is session and queue not in session.owned:
            session.owned.append(queue)
        self.answer = Answer(200 if existed else 201, self._described(queue))

    def _described(self, queue: Queue) -> Value:
        """A queue as RabbitMQ describes it."""
        kind = queue.arguments.get(QUEUE_TYPE)
        node = Value("string", self._session.connection.host_name)
        return _map(
            name=_text(queue.name),
            vhost=_text(self._session.virtual_host.name),
            durable=Value("boolean", queue.durable),
            auto_delete=Value("boolean", queue.auto_delete),
            exclusive=Value("boolean", queue.owner is not None),
            type=_text(str(kind.value) if kind is not None else "classic"),
            arguments=map_value(queue.arguments),
            leader=node,
            replicas=Value("list", (node,)),
            message_count=Value("ulong", queue.available_count),
            consumer_count=Value("uint", queue.consumer_count),
        )

    async def _delete_queue(self, name: str) -> None:
        queue = self._session.virtual_host.queues.get(name)
        count = 0 if queue is None else queue.available_count
        try:
            await self._topology.delete_queue(name, caller=self._session)
        except NotFoundError:
            count = 0
        self.answer = Answer(200, _map(message_count=Value("ulong", count)))

    def _purge(self, name: str, done: Callable[[ModelError | None], None]) -> None:
        queue, session = self._queue(name), self._session
        session.broker.authorization.check(session, Action.PURGE, ObjectType.QUEUE, name)
        check_owner(queue, session)

        def purged(count: int, error: Exception | None) -> None:
            self.answer = Answer(200, _map(message_count=Value("ulong", count)))
            done(None if error is None else errors.InternalError(str(error)))

        work = purge(session.broker, session, queue, purged)
        if work is not None:
            session.broker.tick.turns.do(session, work)

    # ---- exchanges and bindings ----

    async def _declare_exchange(self, name: str) -> None:
        self._check_names("type", "durable", "auto_delete", "internal", "arguments")
        arguments = self._arguments()
        await self._topology.declare_exchange(
            exchange_name(name),
            self._string("type", "direct"),
            durable=self._flag("durable", default=True),
            auto_delete=self._flag("auto_delete"),
            internal=self._flag("internal"),
            alternate=alternate_of(arguments),
            arguments=with_exchange_name(arguments, ALTERNATE),
            caller=self._session,
            is_exact=True,
        )

    async def _delete_exchange(self, name: str) -> None:
        try:
            await self._topology.delete_exchange(exchange_name(name), is_awaited=True, caller=self._session)
        except NotFoundError:
            return

    def _binding_arguments(self, source: str) -> TypedMap:
        exchange = self._session.virtual_host.exchanges.get(source)
        return binding_arguments("" if exchange is None else exchange.routing_type, self._arguments())

    async def _bind(self) -> None:
        self._check_names("source", "binding_key", "destination_queue", "destination_exchange", "arguments")
        source, key, session = exchange_name(self._string("source")), self._string("binding_key"), self._session
        arguments = self._binding_arguments(source)
        queue, exchange = self._string("destination_queue"), exchange_name(self._string("destination_exchange"))
        if queue:
            await self._topology.bind(queue, source, key, arguments, caller=session)
        else:
            await session.virtual_host.exchange_bindings.bind(source, exchange, key, arguments, caller=session)

    async def _unbind(self, named: dict[str, str]) -> None:
        source, key, session = exchange_name(named.get("src", "")), named.get("key", ""), self._session
        queue = named.get("dstq", "")
        try:
            if queue and queue in session.virtual_host.queues:
                await self._topology.unbind(queue, source, key, caller=session)
            else:  # RabbitMQ's client for Python names exchanges by dstq, too
                exchange = exchange_name(named.get("dste", queue))
                await session.virtual_host.exchange_bindings.unbind(source, exchange, key, EMPTY_MAP, caller=session)
        except NotFoundError:
            return

    def _list_bindings(self, named: dict[str, str], done: Callable[[ModelError | None], None]) -> None:
        session, source = self._session, exchange_name(named.get("src", ""))
        session.broker.authorization.check(session, Action.ACCESS, ObjectType.EXCHANGE, source)
        exchange = session.virtual_host.exchanges.get(source)
        bindings: list[Binding] = []
        if exchange is not None and "dstq" in named:
            queue = session.virtual_host.queues.get(named["dstq"])
            bindings = [] if queue is None else exchange.bindings_of(queue)
        elif exchange is not None:
            bindings = list(exchange.bindings)
        session.connection.pause()  # later requests follow
        session.broker.tick.turns.do(session, self._guarded(self._listing(source, bindings, named.get("key"), done)))

    def _guarded(self, work: Iterator[None]) -> Iterator[None]:
        try:
            yield from work
        finally:
            self._session.connection.unpause()

    def _listing(
        self, source: str, bindings: list[Binding], key: str | None, done: Callable[[ModelError | None], None]
    ) -> Iterator[None]:
        """Encode the bindings with a key, or with any, in turns."""
        found: list[bytes] = []
        size = listed = 0
        error: ModelError | None = None
        for number, binding in enumerate(bindings, 1):
            if key in (None, binding.key):
                found.append(encode_value(_described_binding(source, binding)))
                size += len(found[-1])
                if size > MAX_ANSWERS:
                    error = InvalidArgumentError(f"bindings of more than {MAX_ANSWERS:,} bytes: name a queue or a key")
                    break
            if len(found) - listed >= LISTED_AT_ONCE or not number % EXAMINED_AT_ONCE:
                listed = len(found)
                yield
        head = b"\xd0" + (size + 4).to_bytes(4, "big") + len(found).to_bytes(4, "big")
        self.answer = Answer(200, head + b"".join(found))
        done(error)


def _described_binding(source: str, binding: Binding) -> Value:
    return _map(
        source=_text(source),
        destination_queue=_text(binding.queue.name),
        binding_key=_text(binding.key),
        arguments=map_value(binding.arguments),
    )


def _named(text: str, separator: str) -> dict[str, str]:
    """The parts NAME=VALUE of a text. Raises InvalidArgumentError."""
    pairs = (each.partition("=") for each in text.split(separator) if each)
    return {name: decoded(value) for name, _, value in pairs}


def do_request(session: Session, name: str, content: Content) -> None:
    """Carry out a request that came on the link with a name, and send the answer.

    Raises:
        Amqp10Error, ModelError: there is nowhere to send an answer to, or it is not a request.
    """
    links = [each for each in session.links.values() if isinstance(each, AnswerLink)]
    link = next((each for each in links if each.name == name), links[0] if links else None)
    if link is None:
        raise NotFoundError(f"there is no link from {ADDRESS} for the answer")
    if link.is_full:
        raise errors.ResourceLimitExceededError(f"{MAX_WAITING:,} answers wait for credit")
    request = read_request(content)
    operation = Operation(session, request)

    def done(error: Exception | None) -> None:
        if not session.is_open or not link.is_attached:
            return
        answer = answer_of(request, operation.answer if error is None else refusal_of(error))
        if len(answer) <= link.max_message:
            link.add(answer)
        else:
            text = f"the answer has {len(answer):,} bytes; the max-message-size of the link is {link.max_message:,}"
            session.fail_link(link.handle, ConditionError(Condition.MESSAGE_SIZE_EXCEEDED, text))

    try:
        work = operation.work(partial(done))
    except ModelError as error:
        done(error)
        return
    if work is not None:
        session.run(work, done)
