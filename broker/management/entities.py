"""AMQP Management 1.0: the managed objects as entities that clients create, read, update, delete and query.

A request is a message to the node `$management`, and its answer one to its reply-to, with the correlation-id of the
request, or its message-id if it has none. Both have a map (or null) as their body.

    application property     of the request
    -----------------------  ---------------------------------------------------------------------------------------
    operation                one of the table below, or a method of the entity; its arguments are the body
    type, name or identity   the entity; or `org.amqp.management` and `self`, this node
    entityType               the type that a query is about; all without it
    offset, count            the part of its results that a query wants

    operation                body                      answer
    -----------------------  ------------------------  -------------------------------------------------------------
    QUERY                    attributeNames: a list;   attributeNames, and results: a list of lists of values, null
                             all if it is empty        for attributes that an entity has not
    CREATE                   attributes                201, the attributes of the entity
    READ                                               its attributes
    UPDATE                   attributes; others stay   its attributes; only of entities that can be changed (`KINDS`)
    DELETE                   options                   204
    GET-TYPES                                          each type, with an empty list: none extends another
    GET-ATTRIBUTES                                     each type, with its attributes
    GET-OPERATIONS                                     each type, with its methods, each with its arguments
    GET-ANNOTATIONS                                    each type, with an empty list
    GET-MGMT-NODES                                     an empty list: no other node is known here

The type of an entity is PACKAGE.CLASS of its class of managed objects (`classes`), its identity the name of the object,
and its attributes are `name`, `identity`, `type`, and the class's properties and statistics; a property `type` is the
attribute `qpid-type`. A reference is the identity of another entity. An entity is created and deleted as by the methods
of the broker, and with the same permissions (`objects/broker`). A name stands for an entity that the user may see. That
of a binding, EXCHANGE/QUEUE/KEY, only creates and deletes it, and is all that CREATE answers: read it by its identity.

The answer has the application properties statusCode and statusDescription:

    200, 201, 204   done, created, done without a body
    400             the request is not valid, or several entities have the name
    403             its user may not
    404             there is no such entity
    409             there is one already, or it is in use
    501             no such operation, or none for this type
    500             all others

Sources: OASIS, "AMQP Management 1.0", working draft 9, as Apache Qpid Dispatch 1.19 (management/client.py, agent.py)
and Qpid Broker-J (whose attribute `qpid-type` this is) implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.management.classes import (
    CLASSES,
    ManagedObject,
    all_of,
    call,
    check_query,
    find_object,
    prepare,
)
from qstore.broker.management.objects.access import TYPES
from qstore.broker.management.objects.broker import HOST_PROPERTY
from qstore.broker.management.request import Request, UnknownMethodError
from qstore.broker.management.schema import BROKER, BROKER_NAME, ManagedClass, Property, Reference, Statistic, carried
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    ResourceLockedError,
    UnauthorizedError,
)
from qstore.broker.model.message import CORRELATION_ID_HEADER, Message, NewMessage
from qstore.formats.amqp_1_0.neutral import value_of
from qstore.formats.amqp_1_0.values import Value, encode_value
from qstore.formats.broker_records.topology import DEFAULT_HOST, full_name, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import INT32, LIST, STR16, TypedMap, TypedValue, typed_map, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.model.caller import Caller

MAX_ANSWER: Final = 1 << 20
"""Bytes of the results of a query in one answer."""

MakeAnswer: TypeAlias = Callable[[NewMessage, bytes], Message]
"""Encodes a message whose body is a value of AMQP 1.0, encoded. The other one says all else."""

_OK, _CREATED, _NO_CONTENT = 200, 201, 204
_SELF: Final = "org.amqp.management"
_NAME, _IDENTITY, _TYPE = "name", "identity", "type"
_OF_ALL: Final = (_NAME, _IDENTITY, _TYPE)
_OWN_TYPE: Final = "qpid-type"
_NULL: Final = Value("null", None)

_STATUS: Final = (
    (NotImplementedByBrokerError, 501),
    (UnknownMethodError, 501),
    (NotFoundError, 404),
    (UnauthorizedError, 403),
    (NotAllowedError, 403),
    (PreconditionFailedError, 409),
    (ResourceLockedError, 409),
    (InvalidArgumentError, 400),
)


class Kind(NamedTuple):
    """How entities of a type are created and deleted.

    Attributes:
        type: the type for the methods `create` and `delete` of the broker.
        name: the attribute with the name for them.
        given: attributes that these methods know by another name.
        variant: the attribute with another such type; empty for none.
        parts: the attributes that make up the name of a binding.
        has_host: whether the key of the object is a full name, with its virtual host.
        differs_by_arguments: whether objects may differ only in their arguments.
    """

    type: str
    name: str = _NAME
    given: Mapping[str, str] = {}
    variant: str = ""
    parts: tuple[str, ...] = ()
    has_host: bool = False
    differs_by_arguments: bool = False


_DECLARED: Final = {"autoDelete": "auto-delete", "altExchange": "alternate-exchange", _OWN_TYPE: "exchange-type"}

#: Type of an entity -> how it is created and deleted; those of `objects/access.TYPES` can be updated.
KINDS: Final = {
    "org.apache.qpid.broker.queue": Kind("queue", given=_DECLARED, has_host=True),
    "org.apache.qpid.broker.exchange": Kind("exchange", given=_DECLARED, has_host=True),
    "org.apache.qpid.broker.binding": Kind("binding", parts=("exchangeRef", "queueRef", "bindingKey")),
    "org.apache.qpid.broker.link": Kind("link"),
    "org.apache.qpid.broker.bridge": Kind("bridge"),
    "qstore.exchange_binding": Kind(
        "exchange_binding", parts=("exchangeRef", "destinationRef", "bindingKey"), differs_by_arguments=True
    ),
    "qstore.virtual_host": Kind("vhost"),
    "qstore.policy": Kind("policy", given={"applyTo": "apply-to"}, variant="kind"),
    "qstore.user": Kind("user"),
    "qstore.permission": Kind("permission", name="user"),
    "qstore.topicPermission": Kind("topic-permission", name="user"),
    "qstore.parameter": Kind("parameter"),
    "qstore.globalParameter": Kind("global-parameter"),
}


class _Type:
    """A type of entities.

    Attributes:
        of: the class of objects.
        name: its name.
        rows: the rows of its properties and statistics, by attribute.
        attributes: the names of all attributes.
    """

    def __init__(self, of: ManagedClass) -> None:
        self.of, self.name = of, f"{of.package}.{of.name}"
        rows: list[Property | Statistic] = [*of.properties, *of.statistics]
        self.rows = {_OWN_TYPE if row.name == _TYPE else row.name: row for row in rows}
        self.attributes = (*_OF_ALL, *(name for name in self.rows if name != _NAME))

    def values(self, each: ManagedObject, names: Iterable[str]) -> list[Value]:
        """Attributes of an entity."""
        view = self.of.look(each.target)
        return [self._value(each, view, name) for name in names]

    def _value(self, each: ManagedObject, view: Any, name: str) -> Value:
        if name == _IDENTITY:
            return _shown(each.name)
        if name == _TYPE:
            return Value("string", self.name)
        row = self.rows.get(name)
        if row is None:
            return _shown(each.key) if name == _NAME else _NULL
        value = row.read(view)
        if isinstance(value, Reference):
            return _shown(value.name)
        return _NULL if value is None else value_of(carried(row.type, value))

    def neutral(self, each: ManagedObject, name: str) -> TypedValue | None:
        """An attribute as an argument of a method; None if the entity has no such attribute."""
        row = self.rows.get(name)
        value = None if row is None else row.read(self.of.look(each.target))
        if row is None or value is None:
            return None
        return TypedValue(STR16, value.name) if isinstance(value, Reference) else carried(row.type, value)


_TYPES: Final = {each.name: each for each in map(_Type, CLASSES)}


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        operation, entity_type, type, name, identity: as above; empty for none.
        offset, most: the part of the results; None for all.
        body: its map; empty for any other body.
    """

    operation: str
    entity_type: str
    type: str
    name: str
    identity: str
    offset: int
    most: int | None
    body: TypedMap


def read_asked(headers: TypedMap, body: TypedMap) -> Asked:
    """What a message with these application properties asks for. Raises InvalidArgumentError."""
    operation, entity_type = _header(headers, "operation"), _header(headers, "entityType")
    return Asked(
        operation, entity_type, _header(headers, _TYPE), _header(headers, _NAME), _header(headers, _IDENTITY),
        _number(headers, "offset") or 0, _number(headers, "count") or None, body,
    )  # fmt: skip


def _header(headers: TypedMap, name: str) -> str:
    typed = headers.get(name)
    if typed is None or typed.value is None:
        return ""
    if not isinstance(typed.value, str):
        raise InvalidArgumentError(f"the application property {name} is not a string")
    return typed.value


def _number(headers: TypedMap, name: str) -> int | None:
    typed = headers.get(name)
    if typed is None or typed.value is None:
        return None
    if type(typed.value) is not int or typed.value < 0:
        raise InvalidArgumentError(f"the application property {name} is not an integer from 0")
    return typed.value


class Entities:
    """The node for management of one broker.

    Args:
        managed: the broker.
        outbox: puts answers on queues.
        make_answer: encodes them.
    """

    def __init__(self, managed: ManagedBroker, outbox: Outbox, make_answer: MakeAnswer) -> None:
        self._managed, self._outbox, self._make_answer = managed, outbox, make_answer

    async def carry_out(self, asked: Asked, request: Request) -> None:
        """Carry out a request, and answer it. Raises ModelError: it cannot be done (`refuse`)."""
        status, body = _OK, b""
        if asked.operation == "QUERY":
            body = await self._query(asked, request)
        elif asked.operation in _LISTED:
            body = encode_value(_LISTED[asked.operation](_types(asked.entity_type)))
        elif asked.operation == "GET-MGMT-NODES":
            body = encode_value(Value("list", ()))
        elif asked.operation == "CREATE":
            status, body = _CREATED, await self._create(asked, request)
        elif asked.type == _SELF or asked.identity == "self":
            raise UnknownMethodError(f"the node for management has no operation {printable(asked.operation)}")
        elif asked.operation == "READ":
            body = self._described(await self._found(asked, request))
        elif asked.operation == "UPDATE":
            body = await self._update(asked, request)
        elif asked.operation == "DELETE":
            await self._delete(asked, request)
            status, body = _NO_CONTENT, _map({})
        else:
            body = await self._call(asked, request)
        self._answer(request, status, "", body)

    def refuse(self, request: Request, error: ModelError) -> None:
        """Answer a request that has failed."""
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        self._answer(request, status, str(error)[:1024], encode_value(_NULL))

    def _answer(self, request: Request, status: int, text: str, body: bytes) -> None:
        if request.reply_to is None:
            return
        headers = {"statusCode": TypedValue(INT32, status), "statusDescription": text or "OK"}
        if request.typed_id is not None:
            headers[CORRELATION_ID_HEADER] = typed_value(request.typed_id)
        new = NewMessage(
            request.reply_to.routing_key, typed_map(headers), exchange=request.reply_to.exchange,
            correlation_id=request.correlation_id,
        )  # fmt: skip
        self._outbox.send(new, reply_for=request.caller, make=lambda: self._make_answer(new, body))

    # ---- finding ----

    async def _query(self, asked: Asked, request: Request) -> bytes:
        managed, caller = self._managed, request.caller
        types = _types(asked.entity_type)
        check_query(managed, caller, "", types[0].of.name if asked.entity_type else "")
        names = _texts(asked.body, "attributeNames") or [name for each in types for name in each.attributes]
        names = list(dict.fromkeys(names))  # each once: an answer is no larger than the entities are
        classes = [each.of for each in types]
        await prepare(managed, classes)
        rows: list[bytes] = []
        size, last = 0, None if asked.most is None else asked.offset + asked.most
        for number, each in enumerate(all_of(managed, classes, caller)):
            if number == last:
                break
            if managed.slices.is_over:
                await managed.slices.next()
            if number < asked.offset:
                continue
            rows.append(encode_value(Value("list", tuple(_type_of(each).values(each, names)))))
            size += len(rows[-1])
            if size > MAX_ANSWER:
                text = f"the results of the query have more than {MAX_ANSWER:,} bytes: give offset and count, "
                raise InvalidArgumentError(f"{text}or fewer attributeNames")
        return _map({"attributeNames": encode_value(_strings(names)), "results": _list(rows)})

    async def _found(self, asked: Asked, request: Request) -> ManagedObject:
        """The entity that a request is about, which its user may ask for. Raises ModelError."""
        managed, caller = self._managed, request.caller
        if asked.identity:
            check_query(managed, caller, asked.identity, "")
            found = find_object(managed, asked.identity)
            if found is not None and asked.type and asked.type != _type_of(found).name:
                found = None
        else:
            if not asked.type or not asked.name:
                raise InvalidArgumentError("the request has neither an identity nor a type and a name")
            of = _type(asked.type)
            check_query(managed, caller, of.of.prefix + asked.name, of.of.name)
            named = await self._named(of, asked.name, caller, {})
            if len(named) > 1:
                text = f"there are several entities {printable(asked.name)} of type {of.name}: give the identity"
                raise InvalidArgumentError(text)
            found = named[0] if named else None
        if found is None or not found.of.is_seen_by(managed, caller, found.target):
            what = printable(asked.identity or asked.name)
            raise NotFoundError(f"there is no entity {what}{f' of type {printable(asked.type)}' if asked.type else ''}")
        await prepare(managed, [found.of])
        return found

    async def _named(
        self, of: _Type, name: str, caller: Caller, given: Mapping[str, TypedValue]
    ) -> list[ManagedObject]:
        """The entities with a name that a caller may see: that of its key, or else those with this attribute.

        Only those that have the given attributes, as far as they are part of what identifies them.
        """
        managed = self._managed
        target = of.of.target(managed, name)
        if target is not None and of.of.is_seen_by(managed, caller, target):
            return [ManagedObject(of.of, name, target)]
        if _NAME not in of.rows:
            return []
        await prepare(managed, [of.of])
        wanted = {row.name: given[row.name].value for row in of.of.properties if row.is_index and row.name in given}
        found: list[ManagedObject] = []
        for each in all_of(managed, [of.of], caller):
            if managed.slices.is_over:
                await managed.slices.next()
            if of.values(each, (_NAME,)) == [Value("string", name)]:
                view = of.of.look(each.target)
                if all(of.rows[index].read(view) == value for index, value in wanted.items()):
                    found.append(each)
        return found

    def _described(self, each: ManagedObject) -> bytes:
        """The attributes that an entity has."""
        of = _type_of(each)
        values = zip(of.attributes, of.values(each, of.attributes), strict=True)
        return _map({name: encode_value(value) for name, value in values if value is not _NULL})

    # ---- changing ----

    async def _create(self, asked: Asked, request: Request) -> bytes:
        kind_name = asked.type or _text(asked.body, _TYPE)
        name = asked.name or _text(asked.body, _NAME)
        if not kind_name or not name:
            raise InvalidArgumentError("the request has no type, or no name")
        of = _type(kind_name)
        kind, given = _kind(of, "created"), _given(of, asked.body)
        await self._put(of, name, given, request)
        host = _text(asked.body, HOST_PROPERTY) or DEFAULT_HOST
        usual = {"vhost": TypedValue(STR16, DEFAULT_HOST), kind.variant: TypedValue(STR16, kind.type)}
        named = await self._named(of, full_name(host, name) if kind.has_host else name, request.caller, usual | given)
        if len(named) != 1:  # one without a name of its own, or that its user may not see
            return _map({_TYPE: _string(of.name), _NAME: _string(name)})
        await prepare(self._managed, [of.of])
        return self._described(named[0])

    async def _update(self, asked: Asked, request: Request) -> bytes:
        found = await self._found(asked, request)
        of = _type_of(found)
        kind = _kind(of, "updated")
        if kind.type not in TYPES:
            raise NotImplementedByBrokerError(f"entities of type {of.name} cannot be updated")
        names, back = TYPES[kind.type][0], {other: own for own, other in kind.given.items()}
        read = {name: of.neutral(found, back.get(name, name)) for name in (*names, kind.variant)}
        kept = {name: value for name, value in read.items() if value is not None}
        given = {  # a client may send back what it has read
            name: value
            for name, value in _given(of, asked.body).items()
            if name in names or value != of.neutral(found, name)
        }
        await self._put(of, self._address_of(of, found)[1], {**kept, **given}, request)
        return self._described(await self._found(asked, request))

    async def _put(self, of: _Type, name: str, given: Mapping[str, TypedValue], request: Request) -> None:
        """Create an entity, or change it if it is one that can be changed. Raises ModelError."""
        kind = _kind(of, "created")
        variant = given.get(kind.variant)
        type_name = kind.type if variant is None else variant.value
        properties = TypedMap(tuple((key, value) for key, value in given.items() if key != kind.variant))
        await self._do(request, "create", {_TYPE: type_name, _NAME: name, "properties": properties})

    async def _delete(self, asked: Asked, request: Request) -> None:
        options = {key: typed for key, typed in asked.body.entries if key not in _OF_ALL}
        kind = _kind(_type(asked.type), "deleted") if asked.type else None
        if kind is not None and kind.parts and asked.name and not asked.identity:
            type_name, name = kind.type, asked.name  # a binding is named as when it is created
        else:
            found = await self._found(asked, request)
            of = _type_of(found)
            kind = _kind(of, "deleted")
            host, name = self._address_of(of, found)
            variant = of.neutral(found, kind.variant)
            type_name = kind.type if variant is None else variant.value
            for each in TYPES[kind.type][1] if kind.type in TYPES else ():
                value = of.neutral(found, each)
                if value is not None:
                    options[each] = value
            arguments = of.neutral(found, "arguments") if kind.differs_by_arguments else None
            options |= {} if arguments is None else dict(arguments.value.entries)
            if host != DEFAULT_HOST:
                options[HOST_PROPERTY] = TypedValue(STR16, host)
        await self._do(request, "delete", {_TYPE: type_name, _NAME: name, "options": TypedMap(tuple(options.items()))})

    def _address_of(self, of: _Type, each: ManagedObject) -> tuple[str, str]:
        """The virtual host and the name of an entity for the methods `create` and `delete` of the broker.

        Raises:
            InvalidArgumentError: these methods would take the name for that of another binding.
        """
        kind = _kind(of, "changed")
        if kind.parts:
            texts = [str(typed.value) for part in kind.parts if (typed := of.neutral(each, part)) is not None]
            names = [split_name(text.split(":", 2)[2]) for text in texts[:-1]]
            if any("/" in name for _, name in names):
                raise InvalidArgumentError("a name with a slash: only the commands of AMQP can delete this binding")
            return names[0][0], "/".join([*(name for _, name in names), texts[-1]])
        if kind.has_host:
            return split_name(each.key)
        typed = of.neutral(each, kind.name)
        return DEFAULT_HOST, each.key if typed is None else str(typed.value)

    async def _do(self, request: Request, method: str, arguments: Mapping[str, Any]) -> None:
        """Call a method of the broker. Raises ModelError."""
        broker = find_object(self._managed, BROKER.name_of(BROKER_NAME))
        assert broker is not None
        await call(self._managed, broker, method, arguments, request.caller)

    async def _call(self, asked: Asked, request: Request) -> bytes:
        found = await self._found(asked, request)
        arguments = {key: typed.value for key, typed in asked.body.entries}
        results = await call(self._managed, found, asked.operation, arguments, request.caller)
        kinds = {argument.name: argument.type for argument in found.of.methods[asked.operation].arguments}
        typed = {
            key: typed_value(value) if kinds.get(key, "") in ("", "map", "list") else carried(kinds[key], value)
            for key, value in results.items()
        }
        return _map({key: encode_value(value_of(each)) for key, each in typed.items()})


# ---- types ----


def _type(name: str) -> _Type:
    """The type with a name. Raises NotFoundError."""
    found = _TYPES.get(name)
    if found is None:
        raise NotFoundError(f"there are no entities of type {printable(name)}")
    return found


def _types(name: str) -> Sequence[_Type]:
    """The type with a name; all types if it is empty. Raises NotFoundError."""
    return [_type(name)] if name else list(_TYPES.values())


def _type_of(each: ManagedObject) -> _Type:
    return _TYPES[f"{each.of.package}.{each.of.name}"]


def _kind(of: _Type, what: str) -> Kind:
    """How entities of a type are created and deleted. Raises NotImplementedByBrokerError: they cannot be."""
    found = KINDS.get(of.name)
    if found is None:
        raise NotImplementedByBrokerError(f"entities of type {of.name} cannot be {what}")
    return found


def _operations(of: _Type) -> Value:
    methods = {
        name: _strings([argument.name for argument in method.arguments if argument.direction != "O"])
        for name, method in of.of.methods.items()
    }
    return Value("map", tuple((Value("string", name), arguments) for name, arguments in methods.items()))


def _each(describe: Callable[[_Type], Value]) -> Callable[[Iterable[_Type]], Value]:
    return lambda types: Value("map", tuple((Value("string", each.name), describe(each)) for each in types))


_LISTED: Final[Mapping[str, Callable[[Iterable[_Type]], Value]]] = {
    "GET-TYPES": _each(lambda _each: Value("list", ())),
    "GET-ATTRIBUTES": _each(lambda each: _strings(each.attributes)),
    "GET-OPERATIONS": _each(_operations),
    "GET-ANNOTATIONS": _each(lambda _each: Value("list", ())),
}


# ---- bodies ----


def _given(of: _Type, body: TypedMap) -> dict[str, TypedValue]:
    """The attributes in a request, by the names that the methods of the broker know; `arguments` as such."""
    kind = _kind(of, "changed")
    given: dict[str, TypedValue] = {}
    for name, typed in body.entries:
        if name == "arguments" and isinstance(typed.value, TypedMap) and kind.type not in TYPES:
            given |= dict(typed.value.entries)
        elif name not in _OF_ALL:
            given[kind.given.get(name, name)] = typed
    return given


def _text(body: TypedMap, name: str) -> str:
    typed = body.get(name)
    return typed.value if typed is not None and isinstance(typed.value, str) else ""


def _texts(body: TypedMap, name: str) -> list[str]:
    """A list of texts; empty if it is not given. Raises InvalidArgumentError."""
    typed = body.get(name)
    if typed is None or typed.value is None:
        return []
    if typed.type is not LIST or not all(isinstance(each.value, str) for each in typed.value):
        raise InvalidArgumentError(f"{name} is not a list of strings")
    return [each.value for each in typed.value]


def _strings(texts: Iterable[str]) -> Value:
    return Value("list", tuple(Value("string", text) for text in texts))


def _shown(text: str) -> Value:
    """A name that may have been text that cannot be encoded."""
    return value_of(carried("lstr", text))


def _string(text: str) -> bytes:
    return encode_value(Value("string", text))


def _map(entries: Mapping[str, bytes]) -> bytes:
    """A map with values that are encoded."""
    return _holder(0xD1, [part for name, value in entries.items() for part in (_string(name), value)])


def _list(values: Sequence[bytes]) -> bytes:
    """A list of values that are encoded."""
    return _holder(0xD0, values)


def _holder(code: int, parts: Sequence[bytes]) -> bytes:
    content = b"".join(parts)
    return bytes((code,)) + (len(content) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big") + content
