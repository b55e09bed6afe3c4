"""Typed values of any protocol: arguments, headers and stored records.

The type is part of the value, so that each protocol writes back the same value, including width and encoding. A
protocol's own table defines the code of each of these types (`formats.amqp_0_10.types`); nothing else, in particular
not the broker's model, depends on codes.

    family       Python value
    -----------  --------------------------------------------------------------------------------------------
    NOTHING      None
    BOOLEAN      bool
    INTEGER      int
    FLOAT        float
    DECIMAL      decimal.Decimal
    TIME         int: seconds since 1970
    TEXT         str; bytes if the bytes are not text of that encoding
    BINARY       bytes
    UUID         uuid.UUID
    MAP          `TypedMap`
    LIST         tuple of `TypedValue`
    ARRAY        `TypedArray`
    STRUCT       bytes, the code of the struct first
    OPAQUE       bytes of a type that the protocol's specification does not define

The names are those of AMQP 0-10 if it has the type.

Source: the AMQP specifications as XML, their lists of types.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from typing import Any, Final

from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import with_article


class Family(Enum):
    """The kind of Python value of a type."""

    NOTHING = auto()
    BOOLEAN = auto()
    INTEGER = auto()
    FLOAT = auto()
    DECIMAL = auto()
    TIME = auto()
    TEXT = auto()
    BINARY = auto()
    UUID = auto()
    MAP = auto()
    LIST = auto()
    ARRAY = auto()
    STRUCT = auto()
    OPAQUE = auto()


@dataclass(frozen=True, slots=True, eq=False)
class ValueType:
    """A type of values. There is one object for each type: they are compared by identity.

    Attributes:
        name: as tools show it.
        family: see the module's table.
    """

    name: str
    family: Family

    def __repr__(self) -> str:
        return self.name


_NAMES: Final = {
    Family.NOTHING: "void",
    Family.BOOLEAN: "boolean bit",
    Family.INTEGER: "int8 uint8 int16 uint16 int32 uint32 int64 uint64",
    Family.FLOAT: "float double",
    Family.DECIMAL: "dec32 dec64",
    Family.TIME: "datetime",
    Family.TEXT: "char char-utf32 str8-latin str8 str8-utf16 str16-latin str16 str16-utf16",
    Family.BINARY: "bin8 bin16 bin32 bin40 bin64 bin72 bin128 bin256 bin512 bin1024 vbin8 vbin16 vbin32",
    Family.UUID: "uuid",
    Family.MAP: "map",
    Family.LIST: "list",
    Family.ARRAY: "array",
    Family.STRUCT: "struct32",
}

#: Name -> type. Types that a protocol's specification does not define are only in that protocol's own table.
TYPES: Final = {name: ValueType(name, family) for family, names in _NAMES.items() for name in names.split()}

VOID: Final = TYPES["void"]
BOOLEAN: Final = TYPES["boolean"]
INT32: Final = TYPES["int32"]
INT64: Final = TYPES["int64"]
UINT32: Final = TYPES["uint32"]
UINT64: Final = TYPES["uint64"]
DOUBLE: Final = TYPES["double"]
DEC64: Final = TYPES["dec64"]
STR16: Final = TYPES["str16"]
VBIN16: Final = TYPES["vbin16"]
VBIN32: Final = TYPES["vbin32"]
UUID: Final = TYPES["uuid"]
MAP: Final = TYPES["map"]
LIST: Final = TYPES["list"]
ARRAY: Final = TYPES["array"]


class TypedValue(NamedTuple):
    """A value with its type."""

    type: ValueType
    value: Any


class TypedArray(NamedTuple):
    """An array: values of one type."""

    type: ValueType
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TypedMap:
    """A field table: names and typed values in wire order.

    Attributes:
        entries: the pairs; a name may occur twice, as on the wire.
        bare: it is empty, and encoded without even a count of its entries.
    """

    entries: tuple[tuple[str, TypedValue], ...] = ()
    bare: bool = False

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def get(self, name: str) -> TypedValue | None:
        """The last value under `name`, as a reader that fills a dictionary would see it."""
        own_name: str
        value: TypedValue
        for own_name, value in reversed(self.entries):
            if own_name == name:
                return value
        return None


#: The table without entries, as brokers write it.
MAX_VALUES: Final = 4_096
"""Values that a peer may put into one map, list or table, those of its inner ones included: they take some 2 µs each to
decode in pure Python, and 64 KiB have room for 65,000."""

EMPTY_MAP: Final = TypedMap()


class UntypedValueError(FormatError):
    """A Python value for which there is no type."""

    format_name = "AMQP"


def is_utf8(text: str) -> bool:
    """Whether the bytes of text that was decoded with `surrogateescape` were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def typed_value(value: Any) -> TypedValue:
    """`value` with the type that a broker gives it (formats/broker_records/README.md, 2.3).

    Text becomes str16, bytes vbin16 (vbin32 if longer), int int64 (uint64 if larger), Decimal dec64, dict map.

    Raises:
        UntypedValueError: there is no type for such a value.
    """
    match value:
        case TypedValue():
            return value
        case TypedMap():
            return TypedValue(MAP, value)
        case None:
            return TypedValue(VOID, None)
        case bool():
            return TypedValue(BOOLEAN, value)
        case int():
            return TypedValue(UINT64 if value >> 63 > 0 else INT64, value)
        case float():
            return TypedValue(DOUBLE, value)
        case Decimal():
            return TypedValue(DEC64, value)
        case str():
            return TypedValue(STR16, value)
        case bytes():
            return TypedValue(VBIN32 if len(value) > 0xFFFF else VBIN16, value)
        case uuid.UUID():
            return TypedValue(UUID, value)
        case Mapping():
            return TypedValue(MAP, typed_map(value))
        case list() | tuple():
            return TypedValue(LIST, tuple(typed_value(item) for item in value))
    raise UntypedValueError(f"no AMQP type can carry {with_article(type(value).__name__)}")


def typed_map(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> TypedMap:
    """A field table of Python values (see `typed_value`), in their order.

    qpidd writes the tables it creates itself in ascending byte order of the names: pass them sorted for that.
    """
    pairs = values.items() if isinstance(values, Mapping) else values
    return TypedMap(tuple((name, typed_value(value)) for name, value in pairs))
