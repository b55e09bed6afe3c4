"""Bindings between exchanges, as general objects: qpidd has no record for them, and ignores objects of unknown kinds.

    kind         "exchange-binding"
    name         a JSON list of source, destination and key, and, if there are arguments, the CRC-32C of their map:
                 unique among the bindings of a store
    properties   source, destination, key: text (bytes, if they are not UTF-8); arguments: a map

The exchanges are identified by name, so that tools can copy these objects from one store to another like all others.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import Bridge, GeneralObject, Link
from qstore.formats.checksum import extend_crc32c
from qstore.formats.values import EMPTY_MAP, MAP, STR16, VBIN16, TypedMap, TypedValue

KIND: Final = "exchange-binding"


class ExchangeBinding(NamedTuple):
    """A binding of an exchange to another one: `destination` gets messages of `source`."""

    source: str
    destination: str
    key: str
    arguments: TypedMap = EMPTY_MAP


def general_of(binding: ExchangeBinding) -> GeneralObject:
    """The general object for a binding.

    Raises:
        BrokerRecordError: its arguments cannot be encoded.
    """
    parts: list[object] = [binding.source, binding.destination, binding.key]
    if binding.arguments.entries:
        try:
            parts.append(extend_crc32c(0, encode_map(binding.arguments)))
        except Amqp010Error as error:
            raise BrokerRecordError(f"arguments: {error.what}") from error
    named = (("source", binding.source), ("destination", binding.destination), ("key", binding.key))
    entries = [(name, _typed(value)) for name, value in named]
    entries.append(("arguments", TypedValue(MAP, binding.arguments)))
    return GeneralObject(KIND, json.dumps(parts), TypedMap(tuple(entries)))


def exchange_binding_of(record: Link | Bridge | GeneralObject) -> ExchangeBinding | None:
    """The binding that a general object stands for; None if it is another object, or is not complete."""
    if not isinstance(record, GeneralObject) or record.kind != KIND:
        return None
    found = {name: _text(record.properties.get(name)) for name in ("source", "destination", "key")}
    source, destination, key = found["source"], found["destination"], found["key"]
    if not source or not destination or key is None:
        return None
    typed = record.properties.get("arguments")
    arguments = typed.value if typed is not None and isinstance(typed.value, TypedMap) else EMPTY_MAP
    return ExchangeBinding(source, destination, key, arguments)


def _typed(name: str) -> TypedValue:
    raw = name.encode("utf-8", "surrogateescape")
    try:
        return TypedValue(STR16, raw.decode())
    except UnicodeDecodeError:
        return TypedValue(VBIN16, raw)


def _text(typed: TypedValue | None) -> str | None:
    if typed is None:
        return None
    value = typed.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None
