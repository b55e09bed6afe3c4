"""The application's message as sections of AMQP 1.0.

    attribute                       AMQP 1.0
    durable, priority, ttl          header; ttl is in seconds here and in milliseconds in AMQP
    redelivered                     header: delivery-count is more than 0
    subject, id, correlation_id,    properties. An id may be text, a UUID, bytes or a number
    user_id, content_type
    reply_to                        properties: a name, or `name/subject`
    properties                      application-properties; maps and lists, which these cannot have, are
                                    message-annotations: `x-opt-` and the name

    content         body
    bytes, None     data
    str             amqp-value, a string; data if the message has a content type of its own
    dict            amqp-value, a map
    list, tuple     amqp-value, a list

Other fields are among the properties, under the names that qpid::messaging gives them (`_FIELDS`, `_HEADER_FIELDS`);
annotations are as well, or with the option `nest_annotations` in maps of their own. A received value has the content
type that the table of conversions gives it (`protocols/amqp_1_0/README.md`): text/plain, amqp/map or amqp/list.

Source: docs/amqp-1.0.txt of Qpid C++; AMQP 1.0, part "messaging", section 3.2.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from qstore.broker.client.address import Address, format_address, parse_address
from qstore.broker.client.errors import ContentError
from qstore.broker.client.message import (
    APP_ID,
    CONTENT_ENCODING,
    LIST,
    MAP,
    ROUTING_KEY,
    TEXT,
    TIMESTAMP,
    Message,
    check_numbers,
    milliseconds,
)
from qstore.formats.amqp_0_10.maps import python_value
from qstore.formats.amqp_1_0.composites import encode_composite, section_list
from qstore.formats.amqp_1_0.neutral import is_simple, map_value, neutral_map, neutral_value, value_of
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    begin_section,
    data_section,
    encode_section,
    section_value,
    section_value_at,
    split_sections,
)
from qstore.formats.amqp_1_0.values import Amqp10Error, Value, find_payload, read_value
from qstore.formats.errors import FormatError
from qstore.formats.values import TypedMap, TypedValue, typed_value

_PREFIX: Final = "x-amqp-"
DELIVERY: Final = "x-amqp-delivery-annotations"
ANNOTATIONS: Final = "x-amqp-message-annotations"
_APP_ID: Final = "x-amqp-app-id"
_COMPLEX: Final = "x-opt-"

#: Property -> field of the section properties.
_FIELDS: Final = {
    f"{_PREFIX}{name}": name.replace("-", "_")
    for name in (
        "to", "content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence",
        "reply-to-group-id",
    )
}  # fmt: skip
#: Likewise, of the section header.
_HEADER_FIELDS: Final = {f"{_PREFIX}{name}": name.replace("-", "_") for name in ("first-acquirer", "delivery-count")}
_ADDRESSES: Final = frozenset(("to", "reply_to"))
_NOT_SENT: Final = frozenset((ROUTING_KEY, TIMESTAMP))


# ---- encoding ----


def encode_message(message: Message, subject: str | None) -> tuple[bytes, bytes]:
    """The section header of a message, and its other sections.

    Args:
        message: the message to send.
        subject: its subject, or the address's if the message has none.

    Raises:
        ContentError: a part of it cannot be encoded, or its ttl or priority is out of range.
    """
    check_numbers(message.ttl, message.priority)
    header = {
        "durable": message.durable,
        "priority": message.priority,
        "ttl": milliseconds(message.ttl),
        "delivery_count": 1 if message.redelivered else None,
    }
    fields: dict[str, Any] = {
        "message_id": _id_value(message.id),
        "user_id": _octets(message.user_id),
        "subject": subject,
        "reply_to": None if message.reply_to is None else Value("string", _plain_address(message.reply_to)),
        "correlation_id": _id_value(message.correlation_id),
    }
    maps: dict[str, list[tuple[str, TypedValue]]] = {DELIVERY: [], ANNOTATIONS: [], "": []}
    try:
        fields["content_type"], body = _body_of(message)
        for name, value in message.properties.items():
            _add_property(name, value, header, fields, maps)
        head = encode_composite("header", header)
        parts = [
            _section(DELIVERY_ANNOTATIONS, maps[DELIVERY], "symbol"),
            _section(MESSAGE_ANNOTATIONS, maps[ANNOTATIONS], "symbol"),
            encode_composite("properties", fields) if any(each is not None for each in fields.values()) else b"",
            _section(APPLICATION_PROPERTIES, maps[""], "string"),
            body,
        ]
    except FormatError as error:
        raise ContentError(f"the message cannot be encoded: {error.what}") from None
    except (TypeError, AttributeError) as error:
        raise ContentError(f"the message cannot be encoded: {error}") from None
    return head, b"".join(parts)


def _add_property(
    name: str,
    value: Any,
    header: dict[str, Any],
    fields: dict[str, Any],
    maps: dict[str, list[tuple[str, TypedValue]]],
) -> None:
    """Add a property to where it belongs."""
    if not isinstance(name, str):
        raise ContentError(f"{name!r} is not a valid name: it must be text")
    if name in _NOT_SENT:
        return
    if name == CONTENT_ENCODING:
        fields["content_encoding"] = value
    elif name in _FIELDS:
        field = _FIELDS[name]
        fields[field] = Value("string", value) if field in _ADDRESSES else value
    elif name in _HEADER_FIELDS:
        header[_HEADER_FIELDS[name]] = value
    elif name in maps and name:
        maps[name] += typed_value(value).value.entries
    else:
        typed = typed_value(_octets(value) if name == APP_ID else value)
        if name == APP_ID:
            maps[""].append((_APP_ID, typed))
        elif is_simple(typed):
            maps[""].append((name, typed))
        else:
            maps[ANNOTATIONS].append((name if name.startswith("x-") else _COMPLEX + name, typed))


def _section(code: int, entries: list[tuple[str, TypedValue]], key_type: str) -> bytes:
    return encode_section(code, map_value(TypedMap(tuple(entries)), key_type)) if entries else b""


def _body_of(message: Message) -> tuple[str | None, bytes]:
    """The content type and the body of a message. Raises FormatError."""
    own_type = message.content_type
    raw = None if own_type in (MAP, LIST) else message.raw_body
    content = message.content if raw is None else None
    if raw is not None:
        return own_type, data_section(len(raw)) + raw
    if isinstance(content, str) and own_type in (None, TEXT):
        try:
            content.encode()
        except UnicodeEncodeError:
            own_type = TEXT
        else:
            return None, encode_section(VALUE, Value("string", content))
    if isinstance(content, (str, bytes, bytearray, memoryview)) or content is None:
        data = message.body
        return own_type, data_section(len(data)) + data
    if isinstance(content, (Mapping, list, tuple)):
        return (None if own_type in (MAP, LIST) else own_type), encode_section(VALUE, value_of(typed_value(content)))
    raise ContentError(f"content cannot be a {type(content).__name__}: use str, bytes, dict, list or None")


def _id_value(value: object) -> Value | None:
    match value:
        case None:
            return None
        case uuid.UUID():
            return Value("uuid", value)
        case str():
            return Value("string", value)
        case bytes():
            return Value("binary", value)
        case int() if 0 <= value < 1 << 64:
            return Value("ulong", value)
    raise ContentError(f"{value!r} cannot be the id of a message: use text, a UUID, bytes or a number")


def _octets(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _plain_address(text: str) -> str:
    """An address as AMQP 1.0 has it: name, or `name/subject`."""
    address = parse_address(text)
    return address.name if address.subject is None else f"{address.name}/{address.subject}"


# ---- decoding ----


def decode_sections(data: bytes, *, nests: bool) -> dict[str, Any]:
    """Decode a received message: attribute of `Message` -> value.

    Args:
        data: its sections.
        nests: whether annotations are in maps of their own.

    Raises:
        ContentError: the bytes are not a message.
    """
    try:
        sections = split_sections(data)
        header = section_list("header", data, *sections.header) if sections.header[1] else {}
        fields = section_list("properties", data, *sections.properties) if sections.properties[1] else {}
        properties = _map_of(data, sections.application)
        annotations = _map_of(data, sections.annotations)
        delivery = _map_of(data, sections.delivery)
        found = _decode_body(data, sections.body_at, fields.get("content_type"))
    except Amqp10Error as error:
        raise ContentError(f"the message cannot be decoded: {error.what}") from None
    app_id = properties.pop(_APP_ID, None)
    for name, entries in ((DELIVERY, delivery), (ANNOTATIONS, annotations)):
        if nests and entries:
            properties[name] = entries
        elif not nests:
            properties = {**entries, **properties}
    extra = {name: header.get(field) for name, field in _HEADER_FIELDS.items()}
    extra |= {name: _python(fields.get(field)) for name, field in _FIELDS.items()}
    properties.update((name, value) for name, value in extra.items() if value)
    if app_id is not None:
        properties[APP_ID] = _text(app_id)
    ttl = header.get("ttl")
    return {
        **found,
        "subject": fields.get("subject"),
        "reply_to": _reply_to(_python(fields.get("reply_to"))),
        "properties": properties,
        "durable": bool(header.get("durable")),
        "ttl": None if ttl is None else ttl / 1000,
        "priority": header.get("priority"),
        "id": _python(fields.get("message_id")),
        "correlation_id": _text(_python(fields.get("correlation_id"))),
        "user_id": _text(fields.get("user_id")),
        "redelivered": bool(header.get("delivery_count")),
    }


def _map_of(data: bytes, bounds: tuple[int, int]) -> dict[str, Any]:
    """The entries of a section that is a map; empty if there is none."""
    if not bounds[1]:
        return {}
    return {name: python_value(typed) for name, typed in neutral_map(section_value(data, bounds).value).entries}


def _decode_body(data: bytes, at: int, content_type: str | None) -> dict[str, Any]:
    """The body sections: content type, content and body, as far as they are known."""
    end = len(data)
    pieces: list[bytes] = []
    items: list[Any] | None = None
    while at < end:
        code, constructor, value_at = begin_section(data, at, end)
        start, stop = find_payload(constructor, data, value_at, end)
        if code == DATA:
            pieces.append(data[start:stop])
        elif code in (VALUE, SEQUENCE):
            value = _python(read_value(data, section_value_at(data, at, end), end)[0])
            if code == VALUE:
                return _value_slots(value, content_type)
            items = [*(items or ()), *value]
        at = stop
    if items is not None:
        return _value_slots(items, content_type)
    return {"content_type": content_type, "_body": b"".join(pieces)}


def _value_slots(value: Any, content_type: str | None) -> dict[str, Any]:
    kind = MAP if isinstance(value, dict) else LIST if isinstance(value, list) else None
    body: bytes | None = None
    if kind is None and value is not None and not isinstance(value, bytes):
        kind, body = TEXT, str(value).encode("utf-8", "surrogateescape")
    return {"content_type": content_type or kind, "_content": value, "_body": body}


def _python(value: Any) -> Any:
    """The Python value of a field that may be of any type."""
    if not isinstance(value, Value):
        return value
    return value.value if isinstance(value.value, str) else python_value(neutral_value(value))


def _text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _reply_to(address: object) -> str | None:
    """An address of AMQP 1.0 in the syntax of addresses."""
    if not isinstance(address, str) or not address:
        return None
    if address.startswith("/"):
        return format_address(Address(address))
    name, _, subject = address.partition("/")
    return format_address(Address(name, subject or None))
