"""Messages as JSON lines, and back.

A line has the fields that `qstore-dump --outstanding --json` shows, and these:

    redelivered     whether the message may have been delivered before
    header_base64   the header as it is stored, of 1.0 with the whole message; null if it cannot be decoded, and then
                    the body is all of the data
    body, body_base64   the body; of a 1.0 message its readable part, as it is in the header too

Where there is a header, the readable fields must agree with it, so that a change of one is never ignored silently. To
change them, remove `header_base64`: then the header is made from the readable fields, for 0-10 only. In `headers`, a
value is typed as in `typed_json`, or plain, with its type in `header_types`.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Any, Final

from orjson import OPT_APPEND_NEWLINE, dumps, loads

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, encode_message, header_size
from qstore.formats.values import Family, TypedMap, TypedValue, UntypedValueError
from qstore.store.importing.intake import MAX_RID, ImportedMessage
from qstore.tools.console.json_lines import escaped_line
from qstore.tools.console.text import unescape_name
from qstore.tools.dump.dump import STATES
from qstore.tools.dump.messages import decode_message, message_object
from qstore.tools.dump.selection import BodyForm
from qstore.tools.interchange.items import InterchangeError
from qstore.tools.interchange.objects import read_xid
from qstore.tools.interchange.typed_json import type_named, value_from_json

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
    told: dict[str, Any] = {"content_length": len(body)}
    told |= {name: properties[name] for name in _TEXTS if properties.get(name) is not None}
    told |= {name: properties[name].encode() for name in _OCTETS if properties.get(name) is not None}
    if fields.get("message_id") is not None:
        told["message_id"] = uuid.UUID(fields["message_id"])
    reply_to = properties.get("reply_to")
    if reply_to is not None:
        told["reply_to"] = (unescape_name(reply_to["exchange"] or ""), unescape_name(reply_to["routing_key"] or ""))
    if fields.get("headers"):
        told["application_headers"] = _headers(fields["headers"], fields.get("header_types") or {})
    return encode_message(body, destination=delivery["exchange"], delivery_properties=delivery, message_properties=told)


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
