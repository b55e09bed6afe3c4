"""Reads an ACL file of version 1, XML of the Java broker, and makes rules of it.

    access_control_list
        access/users/user                                   may do everything
        publish/exchanges/exchange                          name; users, or for each key:
            routing_keys/routing_key                        value, of which a `*` at the end stands for anything; users
        consume/queues/queue                                name or temporary; users
        create/queues/queue                                 name or temporary; users, or for each exchange:
            exchanges/exchange                              name; users, who may also bind the queue to it

What is not granted to publish, to consume and to create queues is denied; everything else is allowed, since version 1
does not know it. Temporary queues are those created as exclusive and auto-delete; to consume, which tells nothing but
the queue's name, those whose names begin with `tmp_` or `TempQueue`. Users without a realm have the broker's. The list
may stand anywhere in a file, as in the Java broker's configuration; a file that has two is for two virtual hosts, and
refused. Document types are refused.

Source: Qpid wiki, "Java XML ACLs".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.builder import MAX_RULES, Builder, TooManyError
from qstore.broker.security.acl.errors import AclFileError, Problem
from qstore.broker.security.acl.hosts import Resolve
from qstore.broker.security.acl.rules import Rule, RuleSet
from qstore.broker.security.acl.tables import PROPERTIES, Kind, Permission, Property

_LIST: Final = "access_control_list"
_MAX_DEPTH: Final = 32
_MAX_ELEMENTS: Final = 200_000
_TEMPORARY: Final = ("tmp_*", "TempQueue*")
_KEY_PREFIX: Final = Property("routingkey", Kind.KEY_PREFIX, "routingkey")
_SECTIONS: Final = ("access", "publish", "consume", "create")


@dataclass(slots=True)
class _Element:
    name: str
    line: int
    text: str = ""
    children: list[_Element] = field(default_factory=list)

    def all(self, path: str) -> Iterator[_Element]:
        """The elements on a path of names."""
        name, _, rest = path.partition("/")
        for child in self.children:
            if child.name == name:
                if rest:
                    yield from child.all(rest)
                else:
                    yield child

    def value(self, name: str) -> str | None:
        """The text of a child; None if there is none."""
        found = next(self.all(name), None)
        return None if found is None else found.text.strip()

    def lists(self) -> Iterator[_Element]:
        """The access control lists in it."""
        if self.name == _LIST:
            yield self
        else:
            for child in self.children:
                yield from child.lists()


def read(data: bytes, path: str, realm: str, find: Resolve) -> RuleSet:
    """Read the content of a file. Raises AclFileError."""
    try:
        root = _parse(data)
    except expat.ExpatError as error:
        reason = f"not well-formed XML: {expat.ErrorString(error.code) or 'error'}"
        raise AclFileError(path, [Problem(error.lineno, reason)]) from None
    except (_XmlError, ValueError, LookupError) as error:
        line = error.args[1] if isinstance(error, _XmlError) else 0
        raise AclFileError(path, [Problem(line, str(error.args[0]))]) from None
    lists = list(root.lists())
    if len(lists) != 1:
        raise AclFileError(path, [Problem(0, f"the file has {len(lists)} elements <{_LIST}>; it must have one")])
    builder = Builder(path, 1, find)
    with contextlib.suppress(TooManyError):
        _Converter(lists[0], realm, builder).convert()
    return builder.result()


class _XmlError(Exception):
    """The reason, and the line."""


def _parse(data: bytes) -> _Element:
    parser = expat.ParserCreate()
    top = _Element("", 0)
    open_elements = [top]
    count = 0

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > _MAX_DEPTH or count > _MAX_ELEMENTS:
            raise _XmlError("too many elements", parser.CurrentLineNumber)
        element = _Element(name, parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_name: str) -> None:
        open_elements.pop()

    def characters(text: str) -> None:
        open_elements[-1].text += text

    def refuse(*_declaration: object) -> None:
        raise _XmlError("a document type is not allowed", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    parser.StartDoctypeDeclHandler = refuse
    parser.Parse(data, True)
    return top


class _Converter:
    def __init__(self, source: _Element, realm: str, builder: Builder) -> None:
        self._source, self._realm, self._builder = source, realm, builder

    def convert(self) -> None:
        """Make the rules."""
        source = self._source
        for child in source.children:
            if child.name not in _SECTIONS:
                self._builder.complain(child.line, f"<{child.name}> is not one of {', '.join(_SECTIONS)}")
        for element in source.all("access/users"):
            self._allow(element, None, None)
        for exchange in source.all("publish/exchanges/exchange"):
            self._publish(exchange)
        for queue in source.all("consume/queues/queue"):
            for users in queue.all("users"):
                for name in self._names(queue):
                    self._allow(users, Action.CONSUME, ObjectType.QUEUE, name=name)
        for queue in source.all("create/queues/queue"):
            self._create(queue)
        end = source.line
        for action, object_type in (
            (Action.PUBLISH, ObjectType.EXCHANGE), (Action.CONSUME, ObjectType.QUEUE), (Action.CREATE, ObjectType.QUEUE)
        ):  # fmt: skip
            self._add(end, Permission.DENY, "all", None, action, object_type, ())
        self._add(end, Permission.ALLOW, "all", None, None, None, ())

    def _publish(self, exchange: _Element) -> None:
        name = exchange.value("name") or ""
        keys = list(exchange.all("routing_keys/routing_key"))
        for users in exchange.all("users"):
            self._allow(users, Action.PUBLISH, ObjectType.EXCHANGE, name=name)
        for key in keys:
            value = key.value("value")
            if value is None:
                self._builder.complain(key.line, "<routing_key> has no <value>")
                continue
            for users in key.all("users"):
                self._allow(users, Action.PUBLISH, ObjectType.EXCHANGE, key=value, name=name)

    def _create(self, queue: _Element) -> None:
        name = queue.value("name")
        for place in (queue, *queue.all("exchanges/exchange")):
            exchange = place.value("name") if place is not queue else None
            for users in place.all("users"):
                if next(queue.all("temporary"), None) is not None:
                    flags = {"autodelete": "true", "exclusive": "true"}
                    self._allow(users, Action.CREATE, ObjectType.QUEUE, **flags)
                if name is not None:
                    self._allow(users, Action.CREATE, ObjectType.QUEUE, name=name)
                if exchange is not None:
                    self._allow(users, Action.BIND, ObjectType.EXCHANGE, name=exchange)

    def _names(self, queue: _Element) -> Iterator[str]:
        if next(queue.all("temporary"), None) is not None:
            yield from _TEMPORARY
        name = queue.value("name")
        if name is not None:
            yield name

    def _allow(
        self,
        users: _Element,
        action: Action | None,
        object_type: ObjectType | None,
        key: str | None = None,
        **properties: str,
    ) -> None:
        given = [(PROPERTIES[name], value) for name, value in properties.items() if value]
        if key is not None:
            given.append((_KEY_PREFIX, key))
        for user in users.all("user"):
            name = user.text.strip()
            if not name:
                self._builder.complain(user.line, "<user> is empty")
                continue
            full = name if "@" in name else f"{name}@{self._realm}"
            self._add(user.line, Permission.ALLOW, full, frozenset((full,)), action, object_type, tuple(given))

    def _add(
        self,
        line: int,
        permission: Permission,
        subject: str,
        users: frozenset[str] | None,
        action: Action | None,
        object_type: ObjectType | None,
        properties: tuple[tuple[Property, str], ...],
    ) -> None:
        number = self._builder.next_number
        if number > MAX_RULES:
            self._builder.complain(line, f"more than {MAX_RULES:,} rules")
            raise TooManyError
        self._builder.add_rule(Rule(number, line, permission, subject, users, action, object_type, properties))
