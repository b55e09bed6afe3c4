"""The described types of AMQP 1.0: one table, and the reader and the writer derived from it.

Performatives, SASL frames, delivery states, termini and so on are lists with a descriptor, whose items are the fields
of the type in order; those at the end may be missing. In `TYPES` each field is

    name[!][*] type[=default]      ! mandatory; * multiple: null, one value, or an array

with the names of the specification. In Python, a value of such a type is a `Composite`: the name of the type, and a
dictionary of its fields, whose names have underscores. Fields that are absent are missing, or have their default. A
field has the Python value of its type (`values`), a tuple of them if it is multiple, a `Composite`, or, where any type
is possible or for the entries of a map, a `Value`.

Source: the AMQP 1.0 specification as XML, parts "transport", "messaging", "transactions" and "security".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qstore.formats.amqp_1_0.values import (
    MAX_DEPTH,
    Amqp10Error,
    Value,
    encode_value,
    read_value,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import with_article

ANY: Final = "*"

#: Restricted type -> the type that it restricts.
RESTRICTED: Final = {
    "address-string": "string",
    "annotations": "map",
    "delivery-number": "sequence-no",
    "delivery-tag": "binary",
    "fields": "map",
    "filter-set": "map",
    "handle": "uint",
    "ietf-language-tag": "symbol",
    "message-format": "uint",
    "milliseconds": "uint",
    "node-properties": "fields",
    "receiver-settle-mode": "ubyte",
    "role": "boolean",
    "sasl-code": "ubyte",
    "seconds": "uint",
    "sender-settle-mode": "ubyte",
    "sequence-no": "uint",
    "terminus-durability": "uint",
    "terminus-expiry-policy": "symbol",
    "transfer-number": "sequence-no",
}

#: Restricted type -> its possible values, by name.
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "role": {"sender": False, "receiver": True},
    "sender-settle-mode": {"unsettled": 0, "settled": 1, "mixed": 2},
    "receiver-settle-mode": {"first": 0, "second": 1},
    "terminus-durability": {"none": 0, "configuration": 1, "unsettled-state": 2},
    "terminus-expiry-policy": {name: name for name in ("link-detach", "session-end", "connection-close", "never")},
    "sasl-code": {"ok": 0, "auth": 1, "sys": 2, "sys-perm": 3, "sys-temp": 4},
}

#: Name, code and fields of each described type whose value is a list.
TYPES: Final[tuple[tuple[str, int, str], ...]] = (
    ("open", 0x10, (
        "container-id! string; hostname string; max-frame-size uint=4294967295; channel-max ushort=65535; "
        "idle-time-out milliseconds; outgoing-locales* ietf-language-tag; incoming-locales* ietf-language-tag; "
        "offered-capabilities* symbol; desired-capabilities* symbol; properties fields"
    )),
    ("begin", 0x11, (
        "remote-channel ushort; next-outgoing-id! transfer-number; incoming-window! uint; "
        "outgoing-window! uint; handle-max handle=4294967295; offered-capabilities* symbol; "
        "desired-capabilities* symbol; properties fields"
    )),
    ("attach", 0x12, (
        "name! string; handle! handle; role! role; snd-settle-mode sender-settle-mode=mixed; "
        "rcv-settle-mode receiver-settle-mode=first; source *; target *; unsettled map; "
        "incomplete-unsettled boolean=false; initial-delivery-count sequence-no; max-message-size ulong; "
        "offered-capabilities* symbol; desired-capabilities* symbol; properties fields"
    )),
    ("flow", 0x13, (
        "next-incoming-id transfer-number; incoming-window! uint; next-outgoing-id! transfer-number; "
        "outgoing-window! uint; handle handle; delivery-count sequence-no; link-credit uint; available uint; "
        "drain boolean=false; echo boolean=false; properties fields"
    )),
    ("transfer", 0x14, (
        "handle! handle; delivery-id delivery-number; delivery-tag delivery-tag; "
        "message-format message-format; settled boolean; more boolean=false; rcv-settle-mode receiver-settle-mode; "
        "state *; resume boolean=false; aborted boolean=false; batchable boolean=false"
    )),
    ("disposition", 0x15, (
        "role! role; first! delivery-number; last delivery-number; settled boolean=false; state *; "
        "batchable boolean=false"
    )),
    ("detach", 0x16, "handle! handle; closed boolean=false; error error"),
    ("end", 0x17, "error error"),
    ("close", 0x18, "error error"),
    ("error", 0x1D, "condition! symbol; description string; info fields"),
    ("received", 0x23, "section-number! uint; section-offset! ulong"),
    ("accepted", 0x24, ""),
    ("rejected", 0x25, "error error"),
    ("released", 0x26, ""),
    ("modified", 0x27, "delivery-failed boolean; undeliverable-here boolean; message-annotations fields"),
    ("source", 0x28, (
        "address *; durable terminus-durability=none; expiry-policy terminus-expiry-policy=session-end; "
        "timeout seconds=0; dynamic boolean=false; dynamic-node-properties node-properties; "
        "distribution-mode symbol; filter filter-set; default-outcome *; outcomes* symbol; capabilities* symbol"
    )),
    ("target", 0x29, (
        "address *; durable terminus-durability=none; expiry-policy terminus-expiry-policy=session-end; "
        "timeout seconds=0; dynamic boolean=false; dynamic-node-properties node-properties; capabilities* symbol"
    )),
    ("delete-on-close", 0x2B, ""),
    ("delete-on-no-links", 0x2C, ""),
    ("delete-on-no-messages", 0x2D, ""),
    ("delete-on-no-links-or-messages", 0x2E, ""),
    ("coordinator", 0x30, "capabilities* symbol"),
    ("declare", 0x31, "global-id *"),
    ("discharge", 0x32, "txn-id! *; fail boolean"),
    ("declared", 0x33, "txn-id! *"),
    ("transactional-state", 0x34, "txn-id! *; outcome *"),
    ("sasl-mechanisms", 0x40, "sasl-server-mechanisms!* symbol"),
    ("sasl-init", 0x41, "mechanism! symbol; initial-response binary; hostname string"),
    ("sasl-challenge", 0x42, "challenge! binary"),
    ("sasl-response", 0x43, "response! binary"),
    ("sasl-outcome", 0x44, "code! sasl-code; additional-data binary"),
    ("header", 0x70, (
        "durable boolean=false; priority ubyte=4; ttl milliseconds; first-acquirer boolean=false; "
        "delivery-count uint=0"
    )),
    ("properties", 0x73, (
        "message-id *; user-id binary; to *; subject string; reply-to *; correlation-id *; "
        "content-type symbol; content-encoding symbol; absolute-expiry-time timestamp; creation-time timestamp; "
        "group-id string; group-sequence sequence-no; reply-to-group-id string"
    )),
)  # fmt: skip

PERFORMATIVES: Final = frozenset(
    ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")
)
SASL_FRAMES: Final = frozenset(("sasl-mechanisms", "sasl-init", "sasl-challenge", "sasl-response", "sasl-outcome"))
OUTCOMES: Final = ("accepted", "rejected", "released", "modified")


class FieldError(Amqp10Error):
    """A field has a value that it cannot have, or is missing."""


class Field(NamedTuple):
    """A field.

    Attributes:
        name: its name in Python.
        type_name: its type, as the table names it.
        base: the primitive type; ANY; or the name of a type of the table.
        is_mandatory, is_multiple: as in the table.
        default: its value if it is absent.
        choices: its possible values; empty for all of its type.
    """

    name: str
    type_name: str
    base: str
    is_mandatory: bool
    is_multiple: bool
    default: Any
    choices: frozenset[Any]


class CompositeType(NamedTuple):
    """A described type.

    Attributes:
        name, code: as in the table.
        fields: its fields, in order.
        defaults: field -> its default, of those that have one.
        head: its encoded descriptor.
    """

    name: str
    code: int
    fields: tuple[Field, ...]
    defaults: dict[str, Any]
    head: bytes


class Composite(NamedTuple):
    """A value of a described type.

    Attributes:
        name: of the type.
        fields: field -> its value.
    """

    name: str
    fields: dict[str, Any]


def base_of(type_name: str) -> str:
    """The primitive type of a restricted one; the name itself for any other."""
    while type_name in RESTRICTED:
        type_name = RESTRICTED[type_name]
    return type_name


def _default_of(text: str, type_name: str, base: str) -> Any:
    if not text:
        return None
    if type_name in CHOICES:
        return CHOICES[type_name][text]
    return text == "true" if base == "boolean" else int(text)


def _field_of(text: str) -> Field:
    name, _, type_name = text.strip().partition(" ")
    type_name, _, default = type_name.partition("=")
    base = base_of(type_name)
    choices = frozenset(CHOICES.get(type_name, {}).values())
    is_multiple, name = name.endswith("*"), name.rstrip("*")
    return Field(
        name.rstrip("!").replace("-", "_"), type_name, base, name.endswith("!"), is_multiple,
        _default_of(default, type_name, base), choices,
    )  # fmt: skip


def _type_of(name: str, code: int, text: str) -> CompositeType:
    fields = tuple(_field_of(each) for each in text.split(";") if each)
    defaults = {each.name: each.default for each in fields if each.default is not None}
    return CompositeType(name, code, fields, defaults, bytes((0x00, 0x53, code)))


BY_CODE: Final = {code: _type_of(name, code, text) for name, code, text in TYPES}
BY_NAME: Final = {each.name: each for each in BY_CODE.values()}
_BY_SYMBOL: Final = {f"amqp:{each.name}:list": each for each in BY_CODE.values()}

_SMALL_ULONG: Final = 0x53
_EMPTY_LIST, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_NULL: Final = 0x40
_ARRAYS: Final = frozenset((0xE0, 0xF0))


# ---- reading ----


def read_type(data: bytes, at: int, end: int) -> tuple[CompositeType | None, int]:
    """The described type whose descriptor is at a position, and where its list begins; None for any other value.

    Raises:
        Amqp10Error: the descriptor is not valid.
    """
    if at + 3 < end and data[at] == 0 and data[at + 1] == _SMALL_ULONG:
        return BY_CODE.get(data[at + 2]), at + 3
    if at >= end or data[at] != 0:
        return None, at
    descriptor, list_at = read_value(data, at + 1, end, 1)
    if descriptor.type_name == "symbol":
        return _BY_SYMBOL.get(descriptor.value), list_at
    return (BY_CODE.get(descriptor.value) if descriptor.type_name == "ulong" else None), list_at


def read_composite(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Composite, int]:
    """Decode the value of a described type at a position. Returns it and its end.

    Raises:
        Amqp10Error: it is not one.
        FieldError: a field has a value that it cannot have, or is missing.
    """
    found, list_at = read_type(data, at, end)
    if found is None:
        raise Amqp10Error("not a known described type", at)
    return read_fields(found, data, list_at, end, depth)


def read_fields(kind: CompositeType, data: bytes, at: int, end: int, depth: int = 0) -> tuple[Composite, int]:
    """As `read_composite`, after the descriptor."""
    count, items_at, stop = list_bounds(kind.name, data, at, end)
    fields = dict(kind.defaults)
    if depth > MAX_DEPTH:
        raise Amqp10Error(f"values are nested more than {MAX_DEPTH} deep", at)
    if count > len(kind.fields):
        raise FieldError(f"{kind.name} has {count} fields, {len(kind.fields)} are known", at)
    at = items_at
    for field in kind.fields[:count]:
        if at >= stop:
            raise Amqp10Error(f"{kind.name} ends before its field {field.name}", at)
        if data[at] == _NULL:
            at += 1
            continue
        value, at = _read_field(kind, field, data, at, stop, depth + 1)
        fields[field.name] = value
    if at != stop:
        raise Amqp10Error(f"{kind.name} ends {stop - at} bytes before its size", at)
    for field in kind.fields:
        if field.is_mandatory and field.name not in fields:
            raise FieldError(f"{kind.name} has no field {field.name}", at)
    return Composite(kind.name, fields), stop


def list_bounds(name: str, data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """The number of items of a list, where they begin, and where they end. Raises Amqp10Error."""
    code = data[at] if at < end else -1
    if code == _EMPTY_LIST:
        return 0, at + 1, at + 1
    width = 1 if code == _LIST8 else 4 if code == _LIST32 else 0
    if not width:
        raise Amqp10Error(f"{name} is not a list", at)
    size_at = at + 1
    items_at = size_at + 2 * width
    stop = size_at + width + int.from_bytes(data[size_at : size_at + width], "big")
    if stop > end or items_at > stop:
        raise Amqp10Error(f"{name} needs {stop - at} bytes, {end - at} are left", at)
    return int.from_bytes(data[size_at + width : items_at], "big"), items_at, stop


def _read_field(kind: CompositeType, field: Field, data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    code = data[at]
    if field.base == ANY or field.base in BY_NAME:
        value, stop = _read_any(data, at, end, depth)
        if field.base != ANY and (not isinstance(value, Composite) or value.name != field.base):
            raise FieldError(f"{kind.name}: {field.name} is not {with_article(field.base)}", at)
        return value, stop
    if field.is_multiple and code in _ARRAYS:
        typed, stop = read_value(data, at, end, depth)
        return tuple(_checked(kind, field, each, at) for each in typed.value), stop
    typed, stop = read_value(data, at, end, depth)
    value = _checked(kind, field, typed, at)
    return ((value,) if field.is_multiple else value), stop


def _checked(kind: CompositeType, field: Field, typed: Value, at: int) -> Any:
    """The value of a field of a primitive type. Raises FieldError."""
    value = typed.value
    if typed.type_name != field.base:
        raise FieldError(f"{kind.name}: {field.name} is {with_article(typed.type_name)}, not {field.base}", at)
    if isinstance(value, bytes) and field.base in ("string", "symbol"):
        raise FieldError(f"{kind.name}: {field.name} is not text", at)
    if field.choices and value not in field.choices:
        raise FieldError(f"{kind.name}: {field.name} is {value!a:.64}", at)
    return value


def _read_any(data: bytes, at: int, end: int, depth: int) -> tuple[Composite | Value, int]:
    if data[at] == 0:
        found, list_at = read_type(data, at, end)
        if found is not None:
            return read_fields(found, data, list_at, end, depth)
    return read_value(data, at, end, depth)


def section_list(name: str, data: bytes, at: int, end: int) -> dict[str, Any]:
    """The fields of a section that is a list, header or properties. Raises as `read_composite`."""
    found, list_at = read_type(data, at, end)
    if found is None or found.name != name:
        raise Amqp10Error(f"not a section {name}", at)
    return read_fields(found, data, list_at, end)[0].fields


# ---- writing ----


def encode_composite(name: str, values: Mapping[str, Any]) -> bytes:
    """A value of a described type.

    Args:
        name: of the type.
        values: its fields; those that are None are absent.

    Raises:
        Amqp10Error: a value does not fit its field.
    """
    kind = BY_NAME[name]
    items: list[bytes] = []
    last = 0
    for field in kind.fields:
        value = values.get(field.name)
        if value is None or (field.is_multiple and not value and not field.is_mandatory):
            items.append(b"\x40")
            continue
        items.append(_encode_field(field, value))
        last = len(items)
    if not last:
        return kind.head + b"\x45"
    encoded = b"".join(items[:last])
    if len(encoded) < 0xFF:
        return kind.head + bytes((_LIST8, len(encoded) + 1, last)) + encoded
    return kind.head + bytes((_LIST32,)) + (len(encoded) + 4).to_bytes(4, "big") + last.to_bytes(4, "big") + encoded


def _encode_field(field: Field, value: Any) -> bytes:
    if isinstance(value, Composite):
        return encode_composite(value.name, value.fields)
    if isinstance(value, Value):
        return encode_value(value)
    if field.is_multiple:
        return encode_value(Value("array", tuple(Value(field.base, each) for each in value)))
    return encode_value(Value(field.base, value))
