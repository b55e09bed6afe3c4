"""Answers requests of QMF version 2.

    request                 content                                          reply
    ----------------------  -----------------------------------------------  ------------------------------------------
    _agent_locate_request   a condition, as a list; empty for all agents     _agent_locate_response, if it is fulfilled
    _query_request          _what, and _schema_id or _object_id, _where      _query_response, in portions
    _method_request         _object_id, _method_name, _arguments             _method_response

    _what       reply: a list of
    ----------  --------------------------------------
    OBJECT      objects, each with its values
    OBJECT_ID   ids of objects
    SCHEMA_ID   ids of classes of objects and of events
    SCHEMA      schemas

All portions but the last have the header `partial`. What cannot be done is answered by `_exception`, with a code
(`request`) and a text. A request without a reply-to is carried out and not answered. Subscriptions (`_subscribe_…`)
are refused, as by qpidd: consoles bind a queue instead, to which everything is published.

Sources: Qpid wiki, "QMF Map Message Protocol" (seed 004, lines 19258-19551); qpidd, ManagementAgent.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from qstore.broker.management.calls import all_of, call, check_query, may_see, prepare
from qstore.broker.management.events import EVENT_CLASSES, EventClass
from qstore.broker.management.objects.classes import ManagedObject, classes_named, find_object
from qstore.broker.management.objects.element import ManagedClass, Reference, carried
from qstore.broker.management.qmf2 import content
from qstore.broker.management.request import Request, UnknownObjectError, status_of, text_of
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotImplementedByBrokerError,
    UnauthorizedError,
)
from qstore.formats.plain import plain_value
from qstore.formats.qmf.predicate import PredicateError, parse_predicate
from qstore.formats.values import TypedMap, TypedValue, UntypedValueError
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.qmf2.sender import Sender
    from qstore.broker.management.registry import Registry
    from qstore.broker.management.turns import Turns
    from qstore.broker.model.caller import Caller

_PORTION: Final = 25
"""Elements of one reply, at most."""

Condition = Callable[[Mapping[str, Any]], bool]


class Requests:
    """Answers the requests to one broker.

    Args:
        managed: the broker.
        registry: its known objects.
        sender: sends replies.
        turns: when portions of a long reply are made.
    """

    def __init__(self, managed: ManagedBroker, registry: Registry, sender: Sender, turns: Turns) -> None:
        self._managed, self._registry, self._sender, self._turns = managed, registry, sender, turns

    async def carry_out(self, opcode: str, asked: TypedMap | Sequence[TypedValue], request: Request) -> None:
        """Carry out a request, and answer it.

        Raises:
            ModelError: it cannot be done (`refuse`).
        """
        if opcode == "_agent_locate_request":
            self._locate(asked, request)
            return
        values = asked if isinstance(asked, TypedMap) else TypedMap()
        if opcode == "_query_request":
            await self._query(values, request)
        elif opcode == "_method_request":
            await self._call(values, request)
        elif opcode.startswith("_subscribe_"):
            raise NotImplementedByBrokerError("subscriptions are not available: bind a queue to qmf.default.topic")
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

    def refuse(self, request: Request, error: ModelError) -> None:
        """Answer a request that has failed."""
        values = {"error_code": status_of(error), "error_text": text_of(error)}
        self._sender.reply(request, "_exception", {"_values": values})

    def _locate(self, asked: TypedMap | Sequence[TypedValue], request: Request) -> None:
        attributes = self._sender.attributes()
        if not isinstance(asked, TypedMap) and asked:
            fulfils = _condition([_plain(each) for each in asked])
            known = {name: each.value if isinstance(each, TypedValue) else each for name, each in attributes.items()}
            if not fulfils(known):
                return
        self._sender.reply(request, "_agent_locate_response", {"_values": attributes})

    # ---- queries ----

    async def _query(self, asked: TypedMap, request: Request) -> None:
        what = _text(asked, "_what")
        if what in ("SCHEMA_ID", "SCHEMA"):
            found, kind = self._schemas(asked, is_whole=what == "SCHEMA")
        elif what in ("OBJECT", "OBJECT_ID"):
            classes, found, kind = self._objects(asked, request.caller, is_whole=what == "OBJECT")
            await prepare(self._managed, classes)
        else:
            raise InvalidArgumentError(f"query of {printable(what)} is not supported, only of OBJECT, OBJECT_ID, "
                                       "SCHEMA and SCHEMA_ID")  # fmt: skip
        portion: list[dict[str, Any]] = []
        if request.reply_to is None:
            return
        for each in found:
            if self._turns.is_over:
                await self._turns.next()
            if each is None:
                continue
            if len(portion) >= _PORTION:
                self._sender.reply(request, "_query_response", portion, kind=kind, is_partial=True)
                portion = []
            portion.append(each)
        self._sender.reply(request, "_query_response", portion, kind=kind)

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
            identity = content.event_id(of) if isinstance(of, EventClass) else content.class_id(of)
            if selects is not None and not selects({**identity, "_hash_str": str(of.hash)}):
                return None
            if not is_whole:
                return identity
            return content.event_schema(of) if isinstance(of, EventClass) else content.class_schema(of)

        asked_for: list[ManagedClass | EventClass] = [*classes, *events]
        return (described(each) for each in asked_for), "_schema" if is_whole else "_schema_id"

    def _objects(
        self, asked: TypedMap, caller: Caller, *, is_whole: bool
    ) -> tuple[list[ManagedClass], Iterator[dict[str, Any] | None], str]:
        selects, managed = _where(asked), self._managed
        identity = _value(asked, "_object_id")
        if isinstance(identity, TypedMap):
            name = _text(identity, "_object_name")
            one = find_object(managed, name)
            if one is not None and not may_see(managed, one.of, one.target, caller):
                one = None
            classes = [] if one is None else [one.of]
            found = iter(() if one is None else (one,))
        else:
            package, class_name, _ = _class_key(asked)
            if not isinstance(_value(asked, "_schema_id"), TypedMap) and selects is None:
                raise InvalidArgumentError("the query has neither _object_id nor _schema_id nor _where")
            classes = classes_named(package, class_name)
            found = all_of(managed, classes, caller)
        described = (self._described(each, selects, is_whole=is_whole) for each in found)
        return classes, described, "_data" if is_whole else "_object_id"

    def _described(self, each: ManagedObject, selects: Condition | None, *, is_whole: bool) -> dict[str, Any] | None:
        identity = content.object_id(each.name)
        if not is_whole and selects is None:
            return identity
        of = each.of
        properties, statistics = of.values(each.target)
        if selects is not None and not selects(_selectable(each, properties, statistics)):
            return None
        if not is_whole:
            return identity
        times = (self._registry.known(each).created, self._managed.broker.clock(), 0.0)
        return content.data(of, identity, of.map_of(properties, statistics), times=times)

    # ---- methods ----

    async def _call(self, asked: TypedMap, request: Request) -> None:
        identity, method = _value(asked, "_object_id"), _value(asked, "_method_name")
        if not isinstance(identity, TypedMap) or not isinstance(method, str):
            raise InvalidArgumentError("the request has no _object_id, or no _method_name")
        name = _text(identity, "_object_name")
        each = find_object(self._managed, name)
        if each is None:
            raise UnknownObjectError(f"there is no object {printable(name)}")
        given = _value(asked, "_arguments")
        arguments = {key: typed.value for key, typed in given.entries} if isinstance(given, TypedMap) else {}
        results = await call(self._managed, each, method, arguments, request.caller)
        kinds = {argument.name: argument.type for argument in each.of.methods[method].arguments}
        told = {key: _result(kinds.get(key, ""), value) for key, value in results.items()}
        self._sender.reply(request, "_method_response", {"_arguments": told})


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
    """Package, name and hash that a query asks for; None for any."""
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
        raise InvalidArgumentError("_where is no list")
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
