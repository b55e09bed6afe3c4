"""Exports as JSON lines, plain or compressed with zstd: reading and writing.

The first line is the header, the last one counts and proves what came before:

    {"kind": "end", "messages": 27, "lines": 41, "sha256": "..."}

`lines` counts all lines but itself, `sha256` is that of their bytes. So a file that was cut anywhere, or changed, is
refused; one that was edited on purpose is accepted on demand, and then needs no last line.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, BinaryIO, Final, TypeAlias

from orjson import OPT_APPEND_NEWLINE, JSONDecodeError, dumps, loads

from qstore.formats.amqp_0_10.maps import MAX_DEPTH
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, encode_message, header_size
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
    without_passwords,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.values import (
    BOOLEAN,
    DOUBLE,
    INT64,
    LIST,
    STR16,
    VOID,
    Family,
    TypedArray,
    TypedMap,
    TypedValue,
    UntypedValueError,
    ValueType,
    typed_value,
)
from qstore.store.errors import StoreError
from qstore.store.importing.intake import MAX_RID, ImportedMessage
from qstore.tools.console.rows import escaped_line
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.dump.messages import BodyForm, decode_message, message_object
from qstore.tools.dump.rows import STATES
from qstore.tools.interchange.items import ExportHeader, InterchangeError, ItemSink, ReadExport, read_header


class ObjectWriter(ABC):
    """Writes everything but messages as JSON objects.

    Args:
        with_passwords: whether to write the passwords of links, and those in URIs.

    Attributes:
        hidden: the number of records whose passwords are left out.
    """

    def __init__(self, *, with_passwords: bool) -> None:
        self._with_passwords, self.hidden = with_passwords, 0

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
        if not self._with_passwords:
            self.hidden += without_passwords(general) != general
        self.write_object(record_object(general, with_passwords=self._with_passwords))

    def branch(self, xid: bytes) -> None:
        """Write a branch in doubt."""
        self.write_object({"kind": "transaction", "xid": xid.hex(), "state": "in-doubt"})


MAX_LINE: Final = 1 << 29  # bytes: a message is in memory as a whole


MAX_OBJECT_LINE: Final = 1 << 24  # bytes of a line that is not a message


_BATCH: Final = 1 << 18  # bytes gathered before a write


_MESSAGE_BEGINS: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"message"').match


_LONGEST_BEGIN: Final = 200  # bytes within which a long line must say that it is a message


class JsonLinesWriter(ObjectWriter):
    """Writes an export.

    Args:
        stream: takes it.
        with_passwords: whether to write the passwords of links.
    """

    def __init__(self, stream: BinaryIO, *, with_passwords: bool = False) -> None:
        super().__init__(with_passwords=with_passwords)
        self._stream = stream
        self._gathered, self._digest = bytearray(), sha256()
        self._lines = self._messages = 0

    def begin(self, header: ExportHeader) -> None:
        """Write the beginning."""
        self.write_object(header.as_object())

    def message(self, message: ImportedMessage) -> None:
        """Write a message."""
        line = message_line(message)
        if len(line) > MAX_LINE:
            text = f"a line of {len(line):,} bytes is over the limit of {MAX_LINE:,}: use an archive (.tar.zst)"
            raise InterchangeError(f'queue "{escape_name(message.queue)}", record 0x{message.rid:x}: {text}')
        self._messages += 1
        self._line(line)

    def finish(self) -> None:
        """Write the end."""
        self._flush()
        end = {"kind": "end", "messages": self._messages, "lines": self._lines, "sha256": self._digest.hexdigest()}
        self._stream.write(dumps(end, option=OPT_APPEND_NEWLINE))

    def write_object(self, fields: dict[str, Any]) -> None:
        """Write one object."""
        self._line(dumps(fields, option=OPT_APPEND_NEWLINE))

    def _line(self, line: bytes) -> None:
        self._lines += 1
        self._gathered += line
        if len(self._gathered) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._gathered)
        self._stream.write(self._gathered)
        self._gathered = bytearray()


def read_json_lines(stream: BinaryIO, sink: ItemSink, *, is_edited: bool = False) -> ReadExport:
    """Read an export.

    Args:
        stream: the bytes, decompressed.
        sink: takes the items.
        is_edited: whether the file was edited, and its last line, if it has one, is not compared with it.

    Raises:
        InterchangeError: it is not valid; the text has the number of the line.
        OSError: it cannot be read.
    """
    digest, messages, number = sha256(), 0, 0
    header: ExportHeader | None = None
    for number, line in enumerate(_lines(stream), 1):
        try:
            if not line.endswith(b"\n") and not is_edited:
                raise InterchangeError("the line is cut off: the file is not complete")
            fields = parse_object(line)
            if header is None:
                header = read_header(fields)
            elif fields.get("kind") == "message":
                messages += 1
                sink.message(read_message(fields, line))
            elif fields.get("kind") == "end":
                if not is_edited:
                    _check_end(fields, messages, number - 1, digest.hexdigest())
                if stream.read(1):
                    raise InterchangeError("something follows the last line of the export")
                return ReadExport(header, digest.hexdigest())
            else:
                pass_object(fields, sink)
        except (InterchangeError, StoreError) as error:
            raise InterchangeError(f"line {number}: {error}") from None
        digest.update(line)
    if header is None:
        raise InterchangeError("the file is empty: it is not an export")
    if not is_edited:
        text = "the last line is missing: the file is not complete; --edited imports it nevertheless"
        raise InterchangeError(f"line {number}: {text}")
    return ReadExport(header, digest.hexdigest())


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(MAX_OBJECT_LINE):
        number += 1
        if len(line) == MAX_OBJECT_LINE and not line.endswith(b"\n"):
            if not _MESSAGE_BEGINS(line[:_LONGEST_BEGIN]):
                raise InterchangeError(
                    f"line {number}: the line is longer than {MAX_OBJECT_LINE:,} bytes, and does not begin as a "
                    'message ("kind" has to be its first field): this is not an export'
                )
            line = _rest_of_message(stream, bytearray(line), number)
        yield line


def _rest_of_message(stream: BinaryIO, line: bytearray, number: int) -> bytes:
    while part := stream.readline(MAX_OBJECT_LINE):
        line += part
        if len(line) > MAX_LINE:
            raise InterchangeError(f"line {number}: the message is longer than {MAX_LINE:,} bytes")
        if part.endswith(b"\n"):
            break
    return bytes(line)


def _check_end(fields: dict[str, Any], messages: int, lines: int, digest: str) -> None:
    if (fields.get("messages"), fields.get("lines"), fields.get("sha256")) != (messages, lines, digest):
        text = "the file does not have the content that its last line states: it was changed or damaged"
        raise InterchangeError(f"{text}; --edited imports it nevertheless")


# ---- topology and branches in doubt ----
#
#     kind         fields
#     -----------  -------------------------------------------------------------------------------------------------
#     exchange     name, durable, type, arguments, alternate_exchange, auto_delete
#     queue        name, arguments, alternate_exchange, owner, auto_delete
#     binding      exchange, queue, key, arguments
#     link         name, type ("link.v2", "link"), host, port, transport, durable, mechanism, user; password, if asked
#                  for
#     bridge       name, type ("bridge.v2", "bridge"), link_name, link_host, link_port, durable, source, destination,
#                  key, source_is_queue, source_is_local, tag, excludes, dynamic, sync, credit
#     object       name, type, properties
#     transaction  xid, in hex; state ("in-doubt")
#
# Arguments are typed values (see below). An object that has no exact form in JSON, such as one with an argument that
# occurs twice, has a field `record_base64` instead of its other fields: the bytes of its record
# (formats/broker_records/README.md, 4). Absent fields have their defaults, so that a line can be written by hand.

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
    if isinstance(record, Link | GeneralObject) and not with_passwords:
        record = without_passwords(record)
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


# ---- messages ----
#
# A line has the fields that `qstore-dump --outstanding --json` shows, and these:
#
#     redelivered     whether the message may have been delivered before
#     header_base64   the header as it is stored, of 1.0 with the whole message; null if it cannot be decoded, and then
#                     the body is all of the data
#     body, body_base64   the body; of a 1.0 message its readable part, as it is in the header too
#
# Where there is a header, the readable fields must agree with it, so that a change of one is never ignored silently. To
# change them, remove `header_base64`: then the header is made from the readable fields, for 0-10 only. In `headers`, a
# value is typed as described below, or plain, with its type in `header_types`.

_STATES: Final = {name: state for state, name in STATES.items()}


_BACKSLASH: Final = 0x5C


_DELIVERY: Final = ("priority", "delivery_mode")


_OF_DELIVERY: Final = ("ttl", "timestamp", "expiration")


_TEXTS: Final = ("content_type", "content_encoding")


_OCTETS: Final = ("correlation_id", "user_id", "app_id")


def message_fields(message: ImportedMessage) -> dict[str, Any]:
    """The object of a message, before names are escaped."""
    data = message.data
    decoded = decode_message(data)
    xid = message.xid or None
    fields = message_object(message.queue, message.rid, STATES[message.state], xid, decoded, BodyForm.TEXT)
    fields["redelivered"] = message.is_redelivered
    if decoded.header is None:
        fields["header_base64"] = None
    else:
        header = data[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + header_size(data)]
        fields["header_base64"] = base64.b64encode(header).decode()
    return fields


def message_line(message: ImportedMessage) -> bytes:
    """The line of a message."""
    fields = message_fields(message)
    try:
        line = dumps(fields, option=OPT_APPEND_NEWLINE)
        if _BACKSLASH in line and b"\\\\x" in line:
            line = escaped_line(fields)
    except TypeError:
        line = escaped_line(fields)
    return line


# ---- reading ----


def read_message(fields: dict[str, Any], line: bytes) -> ImportedMessage:
    """The message of a line.

    Args:
        fields: the object on the line.
        line: the line itself.

    Raises:
        InterchangeError: it is not valid, or its fields contradict each other.
    """
    state, xid = _STATES.get(fields.get("state", "outstanding")), fields.get("xid")
    queue, rid, redelivered = fields.get("queue"), fields.get("rid", 0), fields.get("redelivered", False)
    if not isinstance(queue, str) or not queue:
        raise InterchangeError("a message does not name its queue")
    if state is None or not isinstance(redelivered, bool) or type(rid) is not int or not 0 <= rid <= MAX_RID:
        raise InterchangeError("a message's rid, state or redelivered is not valid")
    if (xid is None) is not (STATES[state] == "outstanding"):
        raise InterchangeError(f"a message in state {STATES[state]} {'lacks' if xid is None else 'has'} an xid")
    try:
        data, is_made = _data(fields)
    except (TypeError, ValueError, binascii.Error, BrokerRecordError, UntypedValueError) as error:
        raise InterchangeError(f"a message is not valid: {error}") from None
    except (AttributeError, KeyError):
        raise InterchangeError(
            "a message is not valid: properties, headers or reply_to are not what they must be"
        ) from None
    named = b"" if xid is None else read_xid(xid)
    message = ImportedMessage(unescape_name(queue), rid, state, named, redelivered, data)
    if not is_made:
        _check(message, fields, line)
    return message


def _check(message: ImportedMessage, fields: dict[str, Any], line: bytes) -> None:
    """Check that the readable fields are those of the header and the body."""
    expected = message_line(message)
    if expected == line:
        return
    wanted = loads(expected)
    for name, value in fields.items():
        if name in wanted and wanted[name] != value:
            how = "remove header_base64 and body_sha256 to have a changed message imported as its fields say"
            raise InterchangeError(f"{name} does not agree with header_base64 or the body: {how}")


def _data(fields: dict[str, Any]) -> tuple[bytes, bool]:
    """The data of a message, and whether its header was made from the readable fields."""
    if "header_base64" not in fields:
        return _made(fields), True
    encoded = fields["header_base64"]
    if encoded is None:
        return _body(fields), False
    header = base64.b64decode(encoded, validate=True)
    size = len(header).to_bytes(HEADER_SIZE_BYTES, "big")
    return (size + header, False) if header[:4] == b"\0\0\0\0" else (size + header + _body(fields), False)


def _body(fields: dict[str, Any]) -> bytes:
    encoded, text = fields.get("body_base64"), fields.get("body", "")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    if not isinstance(text, str):
        raise TypeError("body is not a text")
    return text.encode()


def _made(fields: dict[str, Any]) -> bytes:
    """A message of AMQP 0-10 from the readable fields."""
    if fields.get("protocol", "0-10") != "0-10":
        raise ValueError(f"a message of AMQP {fields['protocol']} needs its header_base64")
    properties = fields.get("properties") or {}
    delivery = {name: fields[name] for name in _DELIVERY if fields.get(name) is not None}
    delivery |= {name: properties[name] for name in _OF_DELIVERY if properties.get(name) is not None}
    delivery["exchange"] = unescape_name(fields.get("exchange") or "")
    delivery.setdefault("delivery_mode", 2)
    if fields.get("routing_key") is not None:
        delivery["routing_key"] = unescape_name(fields["routing_key"])
    body = _body(fields)
    given: dict[str, Any] = {"content_length": len(body)}
    given |= {name: properties[name] for name in _TEXTS if properties.get(name) is not None}
    given |= {name: properties[name].encode() for name in _OCTETS if properties.get(name) is not None}
    if fields.get("message_id") is not None:
        given["message_id"] = uuid.UUID(fields["message_id"])
    reply_to = properties.get("reply_to")
    if reply_to is not None:
        given["reply_to"] = (unescape_name(reply_to["exchange"] or ""), unescape_name(reply_to["routing_key"] or ""))
    if fields.get("headers"):
        given["application_headers"] = _headers(fields["headers"], fields.get("header_types") or {})
    return encode_message(
        body, destination=delivery["exchange"], delivery_properties=delivery, message_properties=given
    )


def _headers(headers: dict[str, Any], types: dict[str, Any]) -> TypedMap:
    return TypedMap(tuple((unescape_name(name), _header(value, types.get(name))) for name, value in headers.items()))


def _header(value: Any, named: Any) -> TypedValue:
    """A header: typed by itself, or plain with the name of its type."""
    if named is None or isinstance(value, dict | list):
        return value_from_json(value)
    kind = type_named(named)
    if kind.family is Family.BINARY and isinstance(value, str):
        return TypedValue(kind, value.encode())
    return value_from_json({"type": named, "value": value})


# ---- typed values (`formats.values`) ----
#
#     type                   JSON
#     ---------------------  ---------------------------------------------------------------------
#     void, boolean          null, true, false
#     int64, double          number; a double always has a point or an exponent
#     str16                  text
#     list                   array, within an object or another array
#     map                    {"type": "map", "value": {name: value}}
#     array                  {"type": "array", "of": type, "values": [...]}
#     other numbers, text    {"type": type, "value": ...}; a decimal and a uuid as text
#     bytes of any type      {"type": type, "base64": ...}
#
# A table of arguments or headers is an object {name: value}. What has no such form (a name that occurs twice, NaN) is
# refused with `NoJsonFormError`: the caller then writes the bytes of the whole record. Names are escaped as
# `tools.console.text` describes.

_PLAIN: Final = frozenset((VOID, BOOLEAN, INT64, STR16))


_EXPECTED: Final = {
    Family.NOTHING: type(None),
    Family.BOOLEAN: bool,
    Family.INTEGER: int,
    Family.TIME: int,
    Family.TEXT: str,
}


class NoJsonFormError(Exception):
    """A value that has no form in JSON from which it could be read back."""


# ---- writing ----


def table_to_json(table: TypedMap) -> dict[str, Any]:
    """A table as an object. Raises NoJsonFormError."""
    entries = {escape_name(name): value_to_json(value) for name, value in table.entries}
    if table.bare or len(entries) != len(table.entries):
        raise NoJsonFormError
    return entries


def value_to_json(typed: TypedValue) -> Any:
    """A typed value. Raises NoJsonFormError."""
    kind, value = typed
    if isinstance(value, bytes):
        return {"type": kind.name, "base64": base64.b64encode(value).decode()}
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NoJsonFormError from None
    if kind in _PLAIN:
        return value
    if kind is LIST:
        return [value_to_json(each) for each in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoJsonFormError
        return value if kind is DOUBLE else {"type": kind.name, "value": value}
    if isinstance(value, TypedMap):
        return {"type": kind.name, "value": table_to_json(value)}
    if isinstance(value, TypedArray):
        values = [value_to_json(TypedValue(value.type, each)) for each in value.values]
        return {"type": kind.name, "of": value.type.name, "values": values}
    if isinstance(value, uuid.UUID | Decimal):
        return {"type": kind.name, "value": str(value)}
    if isinstance(value, bool | int | str):
        return {"type": kind.name, "value": value}
    raise NoJsonFormError


# ---- reading ----


def table_from_json(value: Any, depth: int = 0) -> TypedMap:
    """A table. Raises InterchangeError."""
    if not isinstance(value, dict):
        raise InterchangeError("a table of names and values is not a JSON object")
    _check_depth(depth)
    return TypedMap(tuple((unescape_name(name), value_from_json(each, depth + 1)) for name, each in value.items()))


def value_from_json(value: Any, depth: int = 0) -> TypedValue:
    """A typed value. Raises InterchangeError."""
    _check_depth(depth)
    if isinstance(value, list):
        return TypedValue(LIST, tuple(value_from_json(each, depth + 1) for each in value))
    if not isinstance(value, dict):
        return typed_value(value)
    kind = type_named(value.get("type"))
    try:
        return TypedValue(kind, _value(kind, value, depth))
    except (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error):
        raise InterchangeError(f"a value of type {kind.name} is not valid") from None


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InterchangeError(f"values are nested more than {MAX_DEPTH} deep")


def type_named(name: Any) -> ValueType:
    """The type of AMQP 0-10 with that name. Raises InterchangeError."""
    found = BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        shown = printable(str(name), 40)
        raise InterchangeError(f'{shown!r} is not a type: a value that is an object has a "type" of AMQP 0-10')
    return found.value_type


def _value(kind: ValueType, fields: dict[str, Any], depth: int) -> Any:
    family = kind.family
    if "base64" in fields:
        return base64.b64decode(fields["base64"], validate=True)
    if family is Family.ARRAY:
        of = type_named(fields["of"])
        return TypedArray(of, tuple(_element(of, each, depth + 1) for each in fields["values"]))
    value = fields["value"]
    if family is Family.MAP:
        return table_from_json(value, depth + 1)
    if family is Family.UUID:
        return uuid.UUID(value)
    if family is Family.DECIMAL:
        return Decimal(value)
    if family is Family.FLOAT:
        return float(value)
    if type(value) is not _EXPECTED.get(family):
        raise TypeError
    return value


def _element(of: ValueType, value: Any, depth: int) -> Any:
    """An element of an array, which is written like a value of its type."""
    read = value_from_json(value, depth)
    if read.type is not of:
        raise TypeError
    return read.value
