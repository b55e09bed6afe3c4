"""Values of AMQP 1.0 as typed values that any protocol can write (`formats.values`), and these as values of AMQP 1.0.

    AMQP 1.0                                neutral
    --------------------------------------  -------------------------------------------------------------
    null, boolean, uuid, float, double      the same
    ubyte, ushort, uint, ulong              uint8, uint16, uint32, uint64
    byte, short, int, long                  int8, int16, int32, int64
    timestamp                               int64: milliseconds, unchanged
    char                                    char-utf32
    string, symbol                          str16; vbin32 if it has more than 65,535 bytes
    binary                                  vbin16, or vbin32
    decimal32, decimal64, decimal128        vbin16: IEEE 754, unchanged
    list, array                             list
    map                                     map; a key that is not text is converted to the text of its plain value
    described                               the described value, without its descriptor

In the other direction, types that the table does not name have these counterparts:

    neutral                                 AMQP 1.0
    --------------------------------------  -------------------------------------------------------------
    boolean, bit                            boolean
    datetime                                timestamp
    other text; text that cannot be decoded string; binary
    dec32, dec64                            string
    array                                   list
    other binary types, structs and so on   binary

Source: the AMQP 1.0 specification as XML, part "types"; qpidd translates stored 1.0 messages likewise.
"""

from __future__ import annotations

from typing import Any, Final

from qstore.formats.amqp_1_0.values import Described, Value, plain_key
from qstore.formats.values import (
    LIST,
    MAP,
    STR16,
    TYPES,
    VBIN16,
    VBIN32,
    Family,
    TypedArray,
    TypedMap,
    TypedValue,
    ValueType,
)

_LONG: Final = 0xFFFF
_SAME: Final = {
    name: TYPES[neutral]
    for name, neutral in (
        ("null", "void"),
        ("boolean", "boolean"),
        ("ubyte", "uint8"),
        ("ushort", "uint16"),
        ("uint", "uint32"),
        ("ulong", "uint64"),
        ("byte", "int8"),
        ("short", "int16"),
        ("int", "int32"),
        ("long", "int64"),
        ("timestamp", "int64"),
        ("float", "float"),
        ("double", "double"),
        ("char", "char-utf32"),
        ("uuid", "uuid"),
    )
}


def neutral_value(value: Value) -> TypedValue:
    """A value of AMQP 1.0 as a neutral one. Every decoded value has one."""
    name, content = value
    same = _SAME.get(name)
    if same is not None:
        return TypedValue(same, content)
    if isinstance(content, Described):
        return neutral_value(content.value)
    if name == "map":
        return TypedValue(MAP, neutral_map(content))
    if name in ("list", "array"):
        return TypedValue(LIST, tuple(map(neutral_value, content)))
    if isinstance(content, str):
        raw = content.encode("utf-8", "surrogatepass")
        return TypedValue(VBIN32, raw) if len(raw) > _LONG else TypedValue(STR16, content)
    return TypedValue(VBIN32 if len(content) > _LONG else VBIN16, content)


def neutral_map(entries: tuple[tuple[Value, Value], ...]) -> TypedMap:
    """The entries of a map as a neutral field table."""
    pairs: list[tuple[str, Any]] = [(plain_key(key), neutral_value(each)) for key, each in entries]
    return TypedMap(tuple(pairs))


# ---- the other direction ----

_BACK: Final = {neutral: name for name, neutral in _SAME.items() if name != "timestamp"}


def value_of(typed: TypedValue) -> Value:
    """A neutral value as a value of AMQP 1.0. Every one has such a form."""
    kind, content = typed.type, typed.value
    family = kind.family
    if content is None or family is Family.NOTHING:
        return Value("null", None)
    if family is Family.MAP:
        return map_value(content)
    if family is Family.LIST:
        return Value("list", tuple(map(value_of, content)))
    if family is Family.ARRAY:
        assert isinstance(content, TypedArray)
        return Value("list", tuple(value_of(TypedValue(content.type, each)) for each in content.values))
    name = _BACK.get(kind)
    if name is not None and not (isinstance(content, bytes) and name == "char"):
        return Value(name, content)
    return _of_family(kind, content)


def _of_family(kind: ValueType, content: Any) -> Value:
    match kind.family:
        case Family.BOOLEAN:
            return Value("boolean", bool(content))
        case Family.TIME:
            milliseconds = int(content) * 1000
            fits = abs(milliseconds) < 1 << 63
            return Value("timestamp", milliseconds) if fits else Value("string", str(content))
        case Family.INTEGER | Family.FLOAT | Family.DECIMAL:
            return Value("string", str(content))
    return Value("binary", content) if isinstance(content, bytes) else Value("string", str(content))


def map_value(entries: TypedMap, key_type: str = "string") -> Value:
    """A neutral field table as a map; its keys are strings, or symbols for annotations."""
    return Value("map", tuple((Value(key_type, name), value_of(typed)) for name, typed in entries.entries))


def is_simple(typed: TypedValue) -> bool:
    """Whether a value may be an application property: all but maps, lists and arrays."""
    return typed.type.family not in (Family.MAP, Family.LIST, Family.ARRAY)
