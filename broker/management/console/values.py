"""Objects, events, agents and errors, as a console receives them, and their decoding from an answer's maps.

A map that lacks what the protocol requires, or has something else there, is refused with `AnswerError`; anything else
in it is ignored. Times are nanoseconds since 1970.

Source: Qpid wiki, "QMFv2 Map Message Protocol", its message body formats.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from qstore.broker.client.errors import MessagingError
from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap
from qstore.formats.wording import printable

# ---- errors, besides those of the connection (`client.errors`) ----


class ManagementError(MessagingError):
    """Base class of a console's errors. The text is one line for the user."""


class NoAgentError(ManagementError):
    """The broker has no management by QMF version 2."""


class NoAnswerError(ManagementError):
    """No answer arrived in time."""


class NoObjectError(ManagementError):
    """No object, or no class, has this name."""


class AgentError(ManagementError):
    """The agent has refused a request.

    Attributes:
        code: its number for the reason; 0 if it gave none.
        values: all of its values.
    """

    def __init__(self, text: str, code: int = 0, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.values = {} if values is None else values


class AnswerError(ManagementError):
    """An answer violates the protocol, or is too large."""


# ---- values ----


#: Severity of an event -> its name, as syslog numbers them.
SEVERITIES: Final = ("emergency", "alert", "critical", "error", "warning", "notice", "inform", "debug")


class ObjectId(NamedTuple):
    """Identifies an object.

    Attributes:
        name: its name within its agent.
        agent: the agent's name; empty if it is not given.
        epoch: the agent's epoch; None for an object that outlives its agent.
    """

    name: str
    agent: str = ""
    epoch: int | None = None

    def as_map(self) -> dict[str, Any]:
        """As requests have it."""
        found: dict[str, Any] = {"_object_name": self.name}
        if self.agent:
            found["_agent_name"] = self.agent
        if self.epoch is not None:
            found["_agent_epoch"] = self.epoch
        return found


class SchemaId(NamedTuple):
    """Identifies a class of objects or events.

    Attributes:
        package, name: of the class.
        is_event: whether it is one of events.
        hash: of its schema; None if it is not given.
    """

    package: str
    name: str
    is_event: bool = False
    hash: uuid.UUID | None = None

    def as_map(self) -> dict[str, Any]:
        """As requests have it."""
        found = {"_package_name": self.package, "_class_name": self.name}
        found |= {"_type": "_event" if self.is_event else "_data"}
        return found if self.hash is None else {**found, "_hash": self.hash}


class Answer:
    """The content of a message with a list, whose typed values are decoded on demand.

    Args:
        body: the encoded list.
    """

    __slots__ = ("_body", "_typed")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._typed: tuple[Any, ...] | None = None

    def typed(self, index: int) -> TypedMap:
        """One of the list's maps, with the types of its values."""
        if self._typed is None:
            try:
                self._typed = read_value(BY_NAME["list"], self._body, 0, len(self._body))[0]
            except Amqp010Error as error:
                raise AnswerError(f"the answer is not a list: {error.what}") from None
        found = self._typed[index].value
        assert isinstance(found, TypedMap)
        return found


class Data:
    """An object, or a part of an answer that is not one.

    Attributes:
        object_id: identifies it; None for values without an object.
        schema_id: its class; None if it is not given.
        values: its properties and statistics.
        created, updated, deleted: when; 0 if it was not, or is not given.
    """

    __slots__ = ("_source", "created", "deleted", "object_id", "schema_id", "updated", "values")

    def __init__(
        self,
        values: dict[str, Any],
        object_id: ObjectId | None = None,
        schema_id: SchemaId | None = None,
        times: tuple[int, int, int] = (0, 0, 0),
        source: tuple[Answer, int] | None = None,
    ) -> None:
        self.values, self.object_id, self.schema_id = values, object_id, schema_id
        self.created, self.updated, self.deleted = times
        self._source = source

    @property
    def typed_values(self) -> TypedMap:
        """Its values with their types on the wire; empty for data that was not received."""
        if self._source is None:
            return TypedMap(())
        answer, index = self._source
        typed = answer.typed(index).get("_values")
        return typed.value if typed is not None and isinstance(typed.value, TypedMap) else TypedMap(())

    @property
    def class_name(self) -> str:
        """The name of its class; empty if it is not given."""
        return "" if self.schema_id is None else self.schema_id.name

    @property
    def key(self) -> str:
        """Its name among the objects of its class: what follows the package and the class in its object's name."""
        return "" if self.object_id is None else key_of(self.object_id.name)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A value; `default` if it has none of that name."""
        return self.values.get(name, default)

    def __repr__(self) -> str:
        return f"Data({self.class_name}, {self.key!r}, {self.values!r})"


class Event(NamedTuple):
    """An event.

    Attributes:
        schema_id: its class.
        values: its arguments.
        agent: the name of the agent that has raised it.
        timestamp: when.
        severity: 0 (emergency) to 7 (debug); see `SEVERITIES`.
    """

    schema_id: SchemaId
    values: dict[str, Any]
    agent: str
    timestamp: int
    severity: int

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.schema_id.name

    @property
    def severity_name(self) -> str:
        """The name of its severity."""
        return SEVERITIES[self.severity] if 0 <= self.severity < len(SEVERITIES) else str(self.severity)


class AgentInfo(NamedTuple):
    """An agent.

    Attributes:
        name: its name, which requests go to.
        vendor, product, instance: the name's parts.
        epoch: how many times it has begun.
        heartbeat_interval: seconds between its heartbeats.
        timestamp: when it said so.
        attributes: all of its attributes.
    """

    name: str
    vendor: str
    product: str
    instance: str
    epoch: int
    heartbeat_interval: int
    timestamp: int
    attributes: dict[str, Any]


def key_of(object_name: str) -> str:
    """What follows the package and the class in an object's name; the name if it has no such form."""
    parts = object_name.split(":", 2)
    return parts[2] if len(parts) == 3 else object_name


# ---- reading ----

_NESTED: Final = (bytes, dict, list)


def texts(value: Any) -> Any:
    """A value in which binary is text, if it is UTF-8: agents in C++ send text as binary."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {name: texts(each) if isinstance(each, _NESTED) else each for name, each in value.items()}
    if isinstance(value, list):
        return [texts(each) if isinstance(each, _NESTED) else each for each in value]
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """A map. Raises AnswerError if `value`, which is described by `what`, is none."""
    if not isinstance(value, dict):
        raise AnswerError(f"{what} must be a map")
    return value


def text(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text; `default` if it is not there. Raises AnswerError for anything else."""
    value = values.get(name)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise AnswerError(f"{name} must be a string")
    return value


def count(values: Mapping[str, Any], name: str) -> int:
    """A number; 0 if it is not there. Raises AnswerError for anything else."""
    value = values.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise AnswerError(f"{name} must be an integer")
    return value


def read_object_id(value: object) -> ObjectId:
    """An object's identity. Raises AnswerError."""
    values = mapping(value, "an object's identity")
    epoch = None if values.get("_agent_epoch") is None else count(values, "_agent_epoch")
    return ObjectId(text(values, "_object_name"), text(values, "_agent_name", ""), epoch)


def read_schema_id(value: object) -> SchemaId:
    """A class's identity. Raises AnswerError."""
    values = mapping(value, "a schema's identity")
    found = values.get("_hash")
    if found is not None and not isinstance(found, uuid.UUID):
        raise AnswerError("a schema's hash must be a UUID")
    kind = text(values, "_type", "_data")
    return SchemaId(text(values, "_package_name", ""), text(values, "_class_name"), kind == "_event", found)


def read_data(value: object, source: tuple[Answer, int] | None = None) -> Data:
    """An object. Raises AnswerError."""
    values = mapping(value, "an object")
    identity, schema = values.get("_object_id"), values.get("_schema_id")
    return Data(
        texts(mapping(values.get("_values"), "an object's values")),
        None if identity is None else read_object_id(identity),
        None if schema is None else read_schema_id(schema),
        (count(values, "_create_ts"), count(values, "_update_ts"), count(values, "_delete_ts")),
        source,
    )


def read_event(value: object, agent: str) -> Event:
    """An event of an agent. Raises AnswerError."""
    values = mapping(value, "an event")
    schema = read_schema_id(values.get("_schema_id"))
    arguments = texts(mapping(values.get("_values"), "an event's values"))
    return Event(schema, arguments, agent, count(values, "_timestamp"), count(values, "_severity"))


def read_agent(value: object) -> AgentInfo:
    """An agent, by a locate response or a heartbeat. Raises AnswerError."""
    values = texts(mapping(mapping(value, "an agent").get("_values"), "an agent's values"))
    return AgentInfo(
        text(values, "_name"),
        text(values, "_vendor", ""),
        text(values, "_product", ""),
        text(values, "_instance", ""),
        count(values, "_epoch"),
        count(values, "_heartbeat_interval"),
        count(values, "_timestamp"),
        values,
    )


def read_exception(value: object) -> AgentError:
    """Why an agent has refused a request. Raises AnswerError."""
    values = texts(mapping(mapping(value, "an exception").get("_values"), "an exception's values"))
    words = values.get("error_text")
    shown = words if isinstance(words, str) else ", ".join(f"{name}: {each}" for name, each in values.items())
    code = values.get("error_code")
    return AgentError(printable(shown) or "no reason given", code if isinstance(code, int) else 0, values)
