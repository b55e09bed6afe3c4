"""QMF version 2: requests are answered, and unsolicited publications encoded, as maps and lists.

    request                 content                                          reply
    ----------------------  -----------------------------------------------  ------------------------------------------
    _agent_locate_request   a condition, as a list; empty for all agents     _agent_locate_response, if it is fulfilled
    _query_request          _what, and _schema_id or _object_id, _where      _query_response, in portions
    _method_request         _object_id, _method_name, _arguments             _method_response
    _subscribe_…            see `subscriptions`

    _what       reply: a list of
    ----------  --------------------------------------
    OBJECT      objects, each with its values
    OBJECT_ID   ids of objects
    SCHEMA_ID   ids of classes of objects and of events
    SCHEMA      schemas

All portions but the last have the header `partial`. A request that fails is answered by `_exception`, with a code
(`request`) and a text. A request without a reply-to is carried out and not answered.

    key on qmf.default.topic
    ---------------------------------------------------------------    ---------------------------------------------
    agent.ind.data.PACKAGE.CLASS.VENDOR.PRODUCT.INSTANCE               objects that have changed
    agent.ind.event.PACKAGE.EVENT.SEVERITY.VENDOR.PRODUCT.INSTANCE     an event
    agent.ind.heartbeat.VENDOR.PRODUCT.INSTANCE                        a heartbeat, which expires after two intervals

A dot within a part is written `_`. Nothing is encoded for which no queue is bound.

    schema id    {_package_name, _class_name, _type: _data or _event, _hash}
    object id    {_object_name}: without the agent, which is the sender, as qpidd's
    data         {_object_id, _schema_id, _values, _create_ts, _update_ts, _delete_ts}
    event        {_schema_id, _values, _timestamp, _severity}
    schema       {_schema_id, _properties: [...], _methods: [...]} of a class, {_schema_id, _properties} of an event
    property     {_name, _type, _subtype, _access, _index, _optional, _unit, _desc, _references}; of an event and of a
                 method's argument {_name, _type, _subtype, _dir, _desc}
    method       {_name, _desc, _arguments: [...]}

Times are nanoseconds since 1970; `_delete_ts` of objects that exist is 0. `_type` is the type in version 2, `_subtype`
that in the schema. A statistic is a property with `_statistic`, which qpidd's agents do not send.

Sources: Qpid wiki, "QMF Map Message Protocol" (seed 004, lines 19258-19551); qpidd, ManagementAgent.cpp and
qmf/Schema.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from qstore.broker.management.classes import (
    ManagedObject,
    all_of,
    call,
    check_query,
    classes_named,
    find_object,
    prepare,
)
from qstore.broker.management.events import EVENT_CLASSES, EventClass
from qstore.broker.management.outbox import TOPIC
from qstore.broker.management.proxies import Proxies, Query
from qstore.broker.management.request import Request, UnknownObjectError, status_of, text_of
from qstore.broker.management.schema import ManagedClass, Reference, carried
from qstore.broker.management.subscriptions import Subscriptions
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    UnauthorizedError,
)
from qstore.broker.model.message import CORRELATION_ID_HEADER, NewMessage
from qstore.formats.plain import plain_value
from qstore.formats.qmf.predicate import Condition, PredicateError, parse_predicate
from qstore.formats.qmf.v1 import QMF_TYPES
from qstore.formats.values import UINT64, TypedMap, TypedValue, UntypedValueError, typed_map, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from uuid import UUID

    from qstore.broker.management.events import EventClass, Timed
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.publisher import Known, Registry
    from qstore.broker.management.remote_agents import RemoteAgents
    from qstore.broker.management.request import Request
    from qstore.broker.management.schema import Argument, ManagedClass, Property, Statistic
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.events import Event

_VENDOR, _PRODUCT = "apache.org", "qpidd"
_APP_ID: Final = b"qmf2"
_PORTION: Final = 25
"""Objects, schemas or events in one message, at most."""
_PORTION_VALUES: Final = 500
"""Values of those of other agents in one message: to encode them takes some milliseconds."""


class Qmf2:
    """Version 2, as one broker speaks it.

    Args:
        managed: the broker.
        registry: its known objects.
        outbox: puts messages on queues.
        agents: the attached agents.

    Attributes:
        name: the agent's name.
        subscriptions: those of consoles.
        proxies: the attached agents.
    """

    def __init__(self, managed: ManagedBroker, registry: Registry, outbox: Outbox, agents: RemoteAgents) -> None:
        self._managed, self._registry, self._outbox = managed, registry, outbox
        instance = managed.identity.instance
        self.name = f"{_VENDOR}:{_PRODUCT}:{instance}"
        self._suffix = f"{_part(_VENDOR)}.{_PRODUCT}.{instance}"
        self.subscriptions = Subscriptions(managed, self)
        self.proxies = Proxies(managed, agents, outbox, self)

    # ---- requests ----

    async def carry_out(self, opcode: str, asked: TypedMap | Sequence[TypedValue], request: Request) -> None:
        """Carry out a request, and answer it.

        Raises:
            ModelError: it cannot be done (`refuse`).
        """
        if opcode == "_agent_locate_request":
            await self._locate(asked, request)
            return
        values = asked if isinstance(asked, TypedMap) else TypedMap()
        if opcode == "_query_request":
            await self._query(values, request)
        elif opcode == "_method_request":
            await self._call(values, request)
        elif opcode == "_subscribe_request":
            self.reply(request, "_subscribe_response", self.subscriptions.subscribe(values, request))
        elif opcode == "_subscribe_refresh_indication":
            self.reply(request, "_subscribe_response", self.subscriptions.refresh(values, request))
        elif opcode == "_subscribe_cancel_indication":
            self.subscriptions.cancel(values, request)
        else:
            raise InvalidArgumentError(f"unknown opcode: {printable(opcode)}")

    def check(self, opcode: str, asked: TypedMap | Sequence[TypedValue], caller: Caller) -> None:
        """Raise UnauthorizedError if this is a query that the caller may not make: it ends the session, as in qpidd."""
        if opcode != "_query_request" or not isinstance(asked, TypedMap):
            return
        if _text(asked, "_what") not in ("OBJECT", "OBJECT_ID"):
            return
        identity = _value(asked, "_object_id")
        name = _text(identity, "_object_name") if isinstance(identity, TypedMap) else ""
        class_name = None if name else _class_key(asked)[1]
        try:
            check_query(self._managed, caller, name, class_name or "")
        except UnauthorizedError as error:
            raise UnauthorizedError(text_of(error)) from None

    def refuse(self, request: Request, error: ModelError, agent: str = "") -> None:
        """Answer a request that has failed, of another agent if that is given."""
        values = {
            "error_code": status_of(error),
            "error_text": text_of(error),
            "error_class": type(error).__name__,  # the codes of qpidd do not tell who may not from what is wrong
        }
        self.reply(request, "_exception", {"_values": values}, agent=agent)

    # ---- for agents of version 1 (`proxies`) ----

    def heartbeat(self, key: str, values: Mapping[str, Any], now: float) -> None:
        """Send a heartbeat of another agent."""
        headers, expires_at = {"method": "indication", "qmf.agent": values["_name"]}, now + 2 * self._managed.interval
        self._send(TOPIC, key, "_agent_heartbeat_indication", {"_values": values}, headers, expires_at=expires_at)

    def announcements(self, key: str, kind: str, agent: str) -> Portions:
        """Objects or events that another agent publishes with a key; `kind` is their content."""
        headers = {"method": "indication", "qmf.content": kind, "qmf.agent": agent}
        return Portions(lambda portion, _is_partial: self._send(TOPIC, key, "_data_indication", portion, headers))

    @staticmethod
    def read_query(asked: TypedMap) -> Query:
        """A query. Raises InvalidArgumentError."""
        what = _text(asked, "_what")
        if what not in ("OBJECT", "OBJECT_ID", "SCHEMA", "SCHEMA_ID"):
            raise InvalidArgumentError("a query is of OBJECT, OBJECT_ID, SCHEMA or SCHEMA_ID")
        identity = _value(asked, "_object_id")
        name = _text(identity, "_object_name") if isinstance(identity, TypedMap) else None
        is_of_classes, is_whole = what.startswith("SCHEMA"), not what.endswith("_ID")
        return Query(is_of_classes, is_whole, *_class_key(asked), name, _where(asked))

    @staticmethod
    def read_call(asked: TypedMap) -> tuple[str, str, dict[str, Any]]:
        """The name of an object, a method, and its arguments. Raises InvalidArgumentError."""
        identity, method = _value(asked, "_object_id"), _value(asked, "_method_name")
        if not isinstance(identity, TypedMap) or not isinstance(method, str):
            raise InvalidArgumentError("the request has no _object_id, or no _method_name")
        given = _value(asked, "_arguments")
        arguments = {key: each.value for key, each in given.entries} if isinstance(given, TypedMap) else {}
        return _text(identity, "_object_name"), method, arguments

    async def _locate(self, asked: TypedMap | Sequence[TypedValue], request: Request) -> None:
        has_condition = not isinstance(asked, TypedMap) and bool(asked)
        fulfils = _condition([_plain(each) for each in asked]) if has_condition else None  # type: ignore[arg-type]
        for attributes in chain((self._attributes(),), self.proxies.attributes()):
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            known = {name: each.value if isinstance(each, TypedValue) else each for name, each in attributes.items()}
            if fulfils is None or fulfils(known):
                self.reply(request, "_agent_locate_response", {"_values": attributes}, agent=attributes["_name"])

    def reply(
        self,
        request: Request,
        opcode: str,
        values: Mapping[str, Any] | Sequence[Any],
        *,
        kind: str = "",
        is_partial: bool = False,
        agent: str = "",
    ) -> None:
        """Send a reply, of another agent if that is given, unless the request has no reply address."""
        if request.reply_to is None:
            return
        is_indication = opcode in ("_exception", "_data_indication")
        headers: dict[str, Any] = {"method": "indication" if is_indication else "response"}
        if agent:
            headers["qmf.agent"] = agent
        if kind:
            headers["qmf.content"] = kind
        if is_partial:
            headers["partial"] = None
        if request.typed_id is not None:
            headers[CORRELATION_ID_HEADER] = request.typed_id
        self._send(
            request.reply_to.exchange, request.reply_to.routing_key, opcode, values, headers,
            correlation_id=request.correlation_id, reply_for=request.caller,
        )  # fmt: skip

    # ---- queries ----

    async def _query(self, asked: TypedMap, request: Request) -> None:
        what = _text(asked, "_what")
        if what in ("SCHEMA_ID", "SCHEMA"):
            found, kind = self._schemas(asked, is_whole=what == "SCHEMA")
        elif what in ("OBJECT", "OBJECT_ID"):
            selection = self.selection(asked, request.caller)
            found, kind = map(selection.described, selection.objects), selection.kind
            await prepare(self._managed, selection.classes)
        else:
            raise InvalidArgumentError(f"query of {printable(what)} is not supported, only of OBJECT, OBJECT_ID, "
                                       "SCHEMA and SCHEMA_ID")  # fmt: skip
        if request.reply_to is None:
            return
        answer = self.answer(request, kind)
        for each in found:
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            if each is not None:
                answer.add(each)
        answer.flush()

    def answer(self, request: Request, kind: str, agent: str = "") -> Portions:
        """The answer to a query, of another agent if that is given; `kind` is its content."""

        def send(portion: list[dict[str, Any]], is_partial: bool) -> None:
            self.reply(request, "_query_response", portion, kind=kind, is_partial=is_partial, agent=agent)

        return Portions(send)

    def _schemas(self, asked: TypedMap, *, is_whole: bool) -> tuple[Iterator[dict[str, Any] | None], str]:
        package, name, wanted = _class_key(asked)
        classes = [each for each in classes_named(package, name) if wanted in (None, each.hash)]
        events = [
            each
            for each in EVENT_CLASSES
            if package in (None, each.package)
            and (name is None or name.lower() == each.name.lower())
            and wanted in (None, each.hash)
        ]
        selects = _where(asked)

        def described(of: ManagedClass | EventClass) -> dict[str, Any] | None:
            identity = _event_id(of) if isinstance(of, EventClass) else _class_id(of)
            if selects is not None and not selects({**identity, "_hash_str": str(of.hash)}):
                return None
            if not is_whole:
                return identity
            return _event_schema(of) if isinstance(of, EventClass) else _class_schema(of)

        asked_for: list[ManagedClass | EventClass] = [*classes, *events]
        return (described(each) for each in asked_for), "_schema" if is_whole else "_schema_id"

    def selection(self, asked: TypedMap, caller: Caller) -> Selection:
        """The objects that a query is about. Raises ModelError: it cannot be made, or the caller may not make it."""
        what, managed = _text(asked, "_what"), self._managed
        if what not in ("OBJECT", "OBJECT_ID"):
            raise InvalidArgumentError("a subscription is to OBJECT or OBJECT_ID")
        self.check("_query_request", asked, caller)
        condition, identity = _where(asked), _value(asked, "_object_id")
        objects: Iterable[ManagedObject]
        if isinstance(identity, TypedMap):
            name = _text(identity, "_object_name")
            one = find_object(managed, name)
            if one is not None and not one.of.is_seen_by(managed, caller, one.target):
                one = None
            classes = [] if one is None else [one.of]
            objects = () if one is None else (one,)
        else:
            package, class_name, _ = _class_key(asked)
            if not isinstance(_value(asked, "_schema_id"), TypedMap) and condition is None:
                raise InvalidArgumentError("the query has neither _object_id nor _schema_id nor _where")
            classes = classes_named(package, class_name)
            objects = all_of(managed, classes, caller)
        return Selection(self, classes, objects, condition, is_whole=what == "OBJECT")

    def indications(self, request: Request, kind: str) -> Portions:
        """Indications to the reply-to of a request; `kind` is their content."""
        return Portions(lambda portion, _is_partial: self.reply(request, "_data_indication", portion, kind=kind))

    def deleted(self, of: ManagedClass, name: str) -> dict[str, Any]:
        """An object that is gone."""
        now = self._managed.broker.clock()
        return _data(of, _object_id(name), {}, times=(0.0, now, now))

    # ---- methods ----

    async def _call(self, asked: TypedMap, request: Request) -> None:
        name, method, arguments = self.read_call(asked)
        each = find_object(self._managed, name)
        if each is None:
            raise UnknownObjectError(f"there is no object {printable(name)}")
        results = await call(self._managed, each, method, arguments, request.caller)
        kinds = {argument.name: argument.type for argument in each.of.methods[method].arguments}
        encoded = {key: _result(kinds.get(key, ""), value) for key, value in results.items()}
        self.reply(request, "_method_response", {"_arguments": encoded})

    # ---- unsolicited publications ----

    def changes_of(self, of: ManagedClass) -> Changes2 | None:
        """Where the changed objects of a class go; None if no queue is bound for them."""
        key = f"agent.ind.data.{_part(of.package)}.{of.name}.{self._suffix}"
        return Changes2(self, key, of) if self._outbox.is_heard(TOPIC, key) else None

    def publish_events(self, of: EventClass, events: Sequence[Timed]) -> None:
        """Publish events of a class, if a queue is bound for them."""
        key = f"agent.ind.event.{_part(of.package)}.{of.name}.{of.word}.{self._suffix}"
        if not self._outbox.is_heard(TOPIC, key):
            return
        headers = {"method": "indication", "qmf.content": "_event"}
        for at in range(0, len(events), _PORTION):
            objects = [_event_data(of, event, raised) for event, raised in events[at : at + _PORTION]]
            self._send(TOPIC, key, "_data_indication", objects, headers)

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if a queue is bound for it."""
        key = f"agent.ind.heartbeat.{self._suffix}"
        if self._outbox.is_heard(TOPIC, key):
            values, expires_at = {"_values": self._attributes()}, now + 2 * self._managed.interval
            headers = {"method": "indication"}
            self._send(TOPIC, key, "_agent_heartbeat_indication", values, headers, expires_at=expires_at)

    def _attributes(self) -> dict[str, Any]:
        """The identity of the agent."""
        managed = self._managed
        return {
            "_vendor": _VENDOR,
            "_product": _PRODUCT,
            "_instance": str(managed.identity.instance),
            "_name": self.name,
            "_timestamp": _nanoseconds(managed.broker.clock()),
            "_heartbeat_interval": managed.interval,
            "_epoch": managed.identity.starts,
        }

    def _send(
        self,
        exchange: str,
        key: str,
        opcode: str,
        values: Mapping[str, Any] | Sequence[Any],
        headers: Mapping[str, Any],
        *,
        correlation_id: bytes | None = None,
        expires_at: float = 0.0,
        reply_for: Caller | None = None,
    ) -> None:
        new = NewMessage(
            key,
            typed_map({"qmf.opcode": opcode, "qmf.agent": self.name, **headers}),
            content=typed_value(values),
            exchange=exchange,
            app_id=_APP_ID,
            correlation_id=correlation_id,
            expires_at=expires_at,
        )
        self._outbox.send(new, reply_for=reply_for)


_Values: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Properties and statistics."""


class Selection:
    """The objects of a query.

    Attributes:
        classes: of which classes they are.
        objects: these, before the condition of the query.
        is_whole: whether they are described with their values, not by their ids alone.
        kind: the content of messages about them.
    """

    def __init__(
        self,
        codec: Qmf2,
        classes: Sequence[ManagedClass],
        objects: Iterable[ManagedObject],
        condition: Condition | None,
        *,
        is_whole: bool,
    ) -> None:
        self._codec, self._condition = codec, condition
        self.classes, self.objects, self.is_whole = classes, objects, is_whole
        self.kind = "_data" if is_whole else "_object_id"

    def selects(self, each: ManagedObject, values: _Values) -> bool:
        """Whether an object with these values fulfils the condition."""
        return self._condition is None or bool(self._condition(_selectable(each, *values)))

    def describe(self, each: ManagedObject, values: _Values) -> dict[str, Any]:
        """An object with these values."""
        identity, codec = _object_id(each.name), self._codec
        if not self.is_whole:
            return identity
        times = (codec._registry.known(each).created, codec._managed.broker.clock(), 0.0)
        return _data(each.of, identity, each.of.map_of(*values), times=times)

    def described(self, each: ManagedObject) -> dict[str, Any] | None:
        """An object; None if it does not fulfil the condition."""
        if not self.is_whole and self._condition is None:
            return _object_id(each.name)
        values = each.of.values(each.target)
        return self.describe(each, values) if self.selects(each, values) else None


class Portions:
    """Descriptions that are sent in portions.

    Args:
        send: sends a portion; it is told whether more follow.
    """

    def __init__(self, send: Callable[[list[dict[str, Any]], bool], None]) -> None:
        self._send = send
        self._portion: list[dict[str, Any]] = []
        self._values = 0

    def add(self, described: dict[str, Any], values: int = 0) -> None:
        """Send one, soon; `values` is how many it has, if a peer has chosen that."""
        if len(self._portion) >= _PORTION or self._values + values > _PORTION_VALUES:
            self._send(self._portion, True)
            self._portion, self._values = [], 0
        self._portion.append(described)
        self._values += values

    def flush(self, *, is_needed: bool = True) -> None:
        """Send the rest; if needed, even without any."""
        if self._portion or is_needed:
            self._send(self._portion, False)
            self._portion, self._values = [], 0


class Changes2:
    """The changed objects of a class, on their way to a key."""

    def __init__(self, codec: Qmf2, key: str, of: ManagedClass) -> None:
        self._codec, self._key, self._of = codec, key, of
        self._objects: list[dict[str, Any]] = []

    def add(self, known: Known, deleted: float, *, has_properties: bool, has_statistics: bool) -> None:  # noqa: ARG002
        """Publish an object as last looked at: the whole of it, whatever has changed."""
        assert known.values is not None
        of, times = self._of, (known.created, self._codec._managed.broker.clock(), deleted)
        self._objects.append(_data(of, _object_id(known.name), of.map_of(*known.values), times=times))
        if len(self._objects) >= _PORTION:
            self.flush()

    def flush(self) -> None:
        """Publish the rest."""
        if self._objects:
            headers = {"method": "indication", "qmf.content": "_data"}
            self._codec._send(TOPIC, self._key, "_data_indication", self._objects, headers)
            self._objects = []


def _part(name: str) -> str:
    """A name as a part of a routing key."""
    return name.replace(".", "_")


# ---- reading requests ----


def _result(kind: str, value: Any) -> Any:
    return value if kind in ("", "map", "list") else carried(kind, value)


def _selectable(each: ManagedObject, properties: Sequence[Any], statistics: Sequence[Any]) -> dict[str, Any]:
    """The values of an object, as a condition sees them: references by their names."""
    names = (*(row.name for row in each.of.properties), *(row.name for row in each.of.statistics))
    values = {name: _comparable(value) for name, value in zip(names, (*properties, *statistics), strict=True)}
    values |= {"_object_name": each.name, "_package_name": each.of.package, "_class_name": each.of.name}
    return {name: value for name, value in values.items() if value is not None}


def _comparable(value: Any) -> Any:
    if isinstance(value, Reference):
        return value.name
    return str(value) if isinstance(value, UUID) else value


def _class_key(asked: TypedMap) -> tuple[str | None, str | None, Any]:
    """Package, name and hash in a query; None for any."""
    schema = _value(asked, "_schema_id")
    if not isinstance(schema, TypedMap):
        return None, None, None
    package, name, wanted = _value(schema, "_package_name"), _value(schema, "_class_name"), _value(schema, "_hash")
    return (
        package if isinstance(package, str) and package else None,
        name if isinstance(name, str) and name else None,
        wanted,
    )


def _where(asked: TypedMap) -> Condition | None:
    given = _value(asked, "_where")
    if given is None or given == ():
        return None
    if not isinstance(given, tuple):
        raise InvalidArgumentError("_where must be a list")
    return _condition([_plain(each) for each in given])


def _condition(given: list[Any]) -> Condition:
    try:
        return parse_predicate(given)
    except PredicateError as error:
        raise InvalidArgumentError(str(error)) from None


def _plain(typed: TypedValue) -> Any:
    try:
        return plain_value(typed.value)
    except UntypedValueError as error:
        raise InvalidArgumentError(str(error)) from None


def _value(values: TypedMap, name: str) -> Any:
    typed = values.get(name)
    value = None if typed is None else typed.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _text(values: TypedMap, name: str) -> str:
    value = _value(values, name)
    return value if isinstance(value, str) else ""


# ---- values ----


def _nanoseconds(seconds: float) -> TypedValue:
    """A time."""
    return TypedValue(UINT64, max(0, round(seconds * 1e9)))


def _schema_id(package: str, name: str, kind: str, class_hash: UUID) -> dict[str, Any]:
    return {"_package_name": package, "_class_name": name, "_type": kind, "_hash": class_hash}


def _class_id(of: ManagedClass) -> dict[str, Any]:
    """The id of a class of objects."""
    return _schema_id(of.package, of.name, "_data", of.hash)


def _event_id(of: EventClass) -> dict[str, Any]:
    """The id of a class of events."""
    return _schema_id(of.package, of.name, "_event", of.hash)


def _object_id(name: str) -> dict[str, Any]:
    """The id of an object."""
    return {"_object_name": name}


def _data(
    of: ManagedClass, identity: Mapping[str, Any], values: Mapping[str, Any], *, times: tuple[float, float, float]
) -> dict[str, Any]:
    """An object.

    Args:
        of: its class.
        identity: its id.
        values: by name.
        times: when it was created, looked at, and deleted, in seconds since 1970; 0 for not.
    """
    created, updated, deleted = times
    return {
        "_object_id": identity,
        "_schema_id": _class_id(of),
        "_values": values,
        "_create_ts": _nanoseconds(created),
        "_update_ts": _nanoseconds(updated),
        "_delete_ts": _nanoseconds(deleted),
    }


def _event_data(of: EventClass, event: Event, now: float) -> dict[str, Any]:
    """An event."""
    return {
        "_schema_id": _event_id(of),
        "_values": {
            argument.name: carried(argument.type, value)
            for argument, value in zip(of.arguments, of.values(event), strict=True)
        },
        "_timestamp": _nanoseconds(now),
        "_severity": of.number,
    }


# ---- schemas ----


def _class_schema(of: ManagedClass) -> dict[str, Any]:
    """The schema of a class of objects."""
    return {
        "_schema_id": _class_id(of),
        "_properties": [_property(each) for each in of.properties] + [_statistic(each) for each in of.statistics],
        "_methods": [
            {
                "_name": each.name,
                **_described(each.description),
                "_arguments": [_argument(one) for one in each.arguments],
            }
            for each in of.methods.values()
        ],
    }


def _event_schema(of: EventClass) -> dict[str, Any]:
    """The schema of a class of events."""
    return {"_schema_id": _event_id(of), "_properties": [_argument(each) for each in of.arguments]}


def _typed(name: str, kind: str) -> dict[str, Any]:
    return {"_name": name, "_type": QMF_TYPES[kind].kind, "_subtype": kind}


def _described(text: str) -> dict[str, Any]:
    return {"_desc": text} if text else {}


def _property(of: Property) -> dict[str, Any]:
    more = {"_unit": of.unit, "_references": of.references}
    return {
        **_typed(of.name, of.type),
        "_access": of.access,
        "_index": of.is_index,
        "_optional": of.is_optional,
        **{name: value for name, value in more.items() if value},
        **_described(of.description),
    }


def _statistic(of: Statistic) -> dict[str, Any]:
    unit = {"_unit": of.unit} if of.unit else {}
    return {**_typed(of.name, of.type), "_access": "RO", "_statistic": True, **unit, **_described(of.description)}


def _argument(of: Argument) -> dict[str, Any]:
    direction = {"_dir": of.direction} if of.direction else {}
    return {**_typed(of.name, of.type), **direction, **_described(of.description)}
