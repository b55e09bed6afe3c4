"""Topology and branches in doubt as JSON objects, and back.

    kind         fields
    -----------  -------------------------------------------------------------------------------------------------
    exchange     name, durable, type, arguments, alternate_exchange, auto_delete
    queue        name, arguments, alternate_exchange, owner, auto_delete
    binding      exchange, queue, key, arguments
    link         name, type ("link.v2", "link"), host, port, transport, durable, mechanism, user; password, if asked for
    bridge       name, type ("bridge.v2", "bridge"), link_name, link_host, link_port, durable, source, destination, key,
                 source_is_queue, source_is_local, tag, excludes, dynamic, sync, credit
    object       name, type, properties
    transaction  xid, in hex; state ("in-doubt")

Arguments are typed values (`typed_json`). An object that has no exact form in JSON, such as one with an argument that
occurs twice, has a field `record_base64` instead of its other fields: the bytes of its record
(formats/broker_records/README.md, 4). Absent fields have their defaults, so that a line can be written by hand.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Final, TypeAlias

from orjson import JSONDecodeError, loads

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    decode_binding,
    decode_exchange,
    decode_general,
    decode_queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
)
from qstore.formats.values import TypedMap
from qstore.tools.console.text import escape_name, unescape_name
from qstore.tools.interchange.items import InterchangeError, ItemSink
from qstore.tools.interchange.typed_json import NoJsonFormError, table_from_json, table_to_json

MAX_XID: Final = 1024  # bytes: three times what AMQP allows

Record: TypeAlias = Queue | Exchange | Binding | Link | Bridge | GeneralObject

_TITLES: Final[dict[type[Record], str]] = {
    Queue: "queue",
    Exchange: "exchange",
    Binding: "binding",
    Link: "link",
    Bridge: "bridge",
    GeneralObject: "object",
}
_TYPES: Final = {title: record for record, title in _TITLES.items()}
_ENCODE: Final[dict[str, Callable[[Any], bytes]]] = {
    "queue": encode_queue,
    "exchange": encode_exchange,
    "binding": encode_binding,
    "link": encode_general,
    "bridge": encode_general,
    "object": encode_general,
}
_DECODE: Final[dict[str, Callable[[bytes], Record]]] = {
    "queue": decode_queue,
    "exchange": decode_exchange,
    "binding": decode_binding,
    "link": decode_general,
    "bridge": decode_general,
    "object": decode_general,
}
#: Field of a record -> its name in JSON, if it is another one.
_NAMES: Final = {"kind": "type", "queue_name": "queue"}
_LEFT_OUT: Final = frozenset(("queue_id",))
#: What a line may leave out.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "queue": {"arguments": TypedMap()},
    "exchange": {"arguments": TypedMap(), "durable": True},
    "binding": {"arguments": TypedMap(), "queue_id": 0, "key": ""},
    "link": {"password": "", "durable": True, "kind": "link.v2", "transport": "tcp", "mechanism": "", "user": ""},
    "bridge": {"kind": "bridge.v2"},
    "object": {"properties": TypedMap()},
}


# ---- writing ----


def record_object(record: Record, *, with_passwords: bool = False) -> dict[str, Any]:
    """The JSON object of a record, without the exchange of a binding."""
    title = _TITLES[type(record)]
    if isinstance(record, Link) and not with_passwords:
        record = replace(record, password="")
    if isinstance(record, Binding):
        record = replace(record, queue_id=0)
    try:
        fields = {"kind": title} | {
            _NAMES.get(field.name, field.name): _to_json(getattr(record, field.name))
            for field in fields_of(record)
            if field.name not in _LEFT_OUT
        }
        if isinstance(record, Link) and not with_passwords:
            del fields["password"]
        if read_record(fields) == record:
            return fields
    except (NoJsonFormError, InterchangeError):
        pass
    name = record.queue_name if isinstance(record, Binding) else record.name
    encoded = base64.b64encode(_ENCODE[title](record)).decode()
    return {"kind": title, "name": escape_name(name or ""), "record_base64": encoded}


def _to_json(value: Any) -> Any:
    if isinstance(value, TypedMap):
        return table_to_json(value)
    return escape_name(value) if isinstance(value, str) else value


class ObjectWriter(ABC):
    """Writes everything but messages as JSON objects.

    Args:
        with_passwords: whether to write the passwords of links.
    """

    def __init__(self, *, with_passwords: bool) -> None:
        self._with_passwords = with_passwords

    @abstractmethod
    def write_object(self, fields: dict[str, Any]) -> None:
        """Write one object."""

    def queue(self, queue: Queue) -> None:
        """Write a queue."""
        self.write_object(record_object(queue))

    def exchange(self, exchange: Exchange) -> None:
        """Write an exchange."""
        self.write_object(record_object(exchange))

    def binding(self, exchange: str, binding: Binding) -> None:
        """Write a binding."""
        self.write_object({**record_object(binding), "exchange": escape_name(exchange)})

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Write a link, a bridge or another object."""
        self.write_object(record_object(general, with_passwords=self._with_passwords))

    def branch(self, xid: bytes) -> None:
        """Write a branch in doubt."""
        self.write_object({"kind": "transaction", "xid": xid.hex(), "state": "in-doubt"})


# ---- reading ----


def read_record(fields: Mapping[str, Any]) -> Record:
    """The record of a JSON object. Raises InterchangeError."""
    title = fields["kind"]
    encoded = fields.get("record_base64")
    try:
        if encoded is None:
            return _from_json(title, fields)
        record = _DECODE[title](base64.b64decode(encoded, validate=True))
        if type(record) is not _TYPES[title]:
            raise InterchangeError(f"record_base64 is not that of a {title}")
        return record
    except BrokerRecordError as error:
        where = "" if encoded is None else "record_base64: "
        raise InterchangeError(f"this {title} is not valid: {where}{error.what}") from None
    except (TypeError, binascii.Error, ValueError) as error:
        raise InterchangeError(f"this {title} is not valid: {error}") from None


def _from_json(title: str, fields: Mapping[str, Any]) -> Record:
    make, values = _TYPES[title], dict(_DEFAULTS[title])
    for field in fields_of(make):
        name = _NAMES.get(field.name, field.name)
        if name in fields and field.name not in _LEFT_OUT:
            values[field.name] = _read(field.name, str(field.type), fields[name])
    record = make(**values)
    _ENCODE[title](record)  # everything fits its field
    return record


def _read(name: str, annotation: str, value: Any) -> Any:
    """The value of a field, which is annotated so."""
    if annotation == "TypedMap":
        return table_from_json(value)
    if value is None and annotation.endswith("| None"):
        return None
    expected = {"str": str, "int": int, "bool": bool}[annotation.partition(" ")[0]]
    if type(value) is not expected:
        raise TypeError(f"{name} is not {'a text' if expected is str else f'of type {expected.__name__}'}")
    return unescape_name(value) if isinstance(value, str) else value


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object in `line`. Raises InterchangeError."""
    try:
        fields = loads(line)
    except JSONDecodeError as error:
        raise InterchangeError(f"this is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InterchangeError("this is not a JSON object")
    return fields


def pass_object(fields: Mapping[str, Any], sink: ItemSink) -> None:
    """Pass the item of a JSON object that is no message to `sink`. Raises InterchangeError."""
    kind = fields.get("kind")
    if kind == "transaction":
        sink.branch(read_xid(fields.get("xid")))
        return
    if kind not in _TYPES:
        raise InterchangeError(f"{str(kind)[:40]!r} is not a kind of object in an export")
    record = read_record(fields)
    if isinstance(record, Queue):
        sink.queue(record)
    elif isinstance(record, Exchange):
        sink.exchange(record)
    elif isinstance(record, Binding):
        exchange = fields.get("exchange")
        if not isinstance(exchange, str):
            raise InterchangeError("a binding does not name its exchange")
        sink.binding(unescape_name(exchange), record)
    else:
        sink.other(record)


def read_xid(text: Any) -> bytes:
    """A transaction's id, in hex. Raises InterchangeError."""
    try:
        xid = bytes.fromhex(text)
    except (TypeError, ValueError):
        xid = b""
    if not xid or len(xid) > MAX_XID:
        raise InterchangeError("the id of a transaction is not in hexadecimal, empty or too long")
    return xid
