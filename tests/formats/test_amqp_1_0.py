"""Types, described types, frames and sections of AMQP 1.0: against the specification, known bytes, round trips."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import (
    BY_NAME,
    CHOICES,
    OUTCOMES,
    RESTRICTED,
    Composite,
    Field,
    FieldError,
    base_of,
    encode_composite,
    read_composite,
    section_list,
)
from qstore.formats.amqp_1_0.frames import AMQP, FRAME, SASL, Frame, decode_frame, encode_frame
from qstore.formats.amqp_1_0.neutral import is_simple, map_value, neutral_value, value_of
from qstore.formats.amqp_1_0.sections import (
    DATA,
    PROPERTIES,
    SECTIONS,
    VALUE,
    data_section,
    encode_section,
    has_too_many_values,
    section_value,
    split_sections,
)
from qstore.formats.amqp_1_0.values import (
    CONSTRUCTORS,
    MAX_DEPTH,
    Amqp10Error,
    Described,
    Value,
    encode_value,
    read_value,
)
from qstore.formats.values import MAX_VALUES, TYPES, Family, TypedArray, TypedMap, TypedValue

_FIXTURES = Path(__file__).parents[1] / "fixtures" / "amqp"


def types() -> dict[str, ElementTree.Element]:
    """Name -> type, of all parts of the specification."""
    found = {}
    for part in ("types", "transport", "messaging", "transactions", "security"):
        for element in ElementTree.parse(_FIXTURES / f"amqp.1-0.{part}.xml").iter():
            if element.tag.rpartition("}")[2] == "type":
                found[element.attrib["name"]] = element
    return found


SPECIFICATION = types()


def children(element: ElementTree.Element, tag: str) -> list[dict[str, str]]:
    return [each.attrib for each in element if each.tag.rpartition("}")[2] == tag]


# ---- against the specification ----


def test_constructors_are_those_of_the_specification() -> None:
    told = {}
    for name, element in SPECIFICATION.items():
        for encoding in children(element, "encoding"):
            code = int(encoding["code"], 16)
            told[code] = (name, encoding["category"], int(encoding["width"]))
    found = {
        code: (
            each.type_name,
            "fixed" if each.fixed is not None else "variable" if each.decode else "array" if each.type_name == "array"
            else "compound",
            each.prefix if each.fixed is None else each.fixed,
        )
        for code, each in CONSTRUCTORS.items()
    }  # fmt: skip
    assert found == told


def described() -> dict[str, ElementTree.Element]:
    return {name: each for name, each in SPECIFICATION.items() if each.attrib.get("class") == "composite"}


def test_described_types_are_those_of_the_specification() -> None:
    told = described()
    assert set(BY_NAME) == set(told)
    for name, element in told.items():
        (descriptor,) = children(element, "descriptor")
        high, low = (int(part, 16) for part in descriptor["code"].split(":"))
        assert (high, BY_NAME[name].code) == (0, low)
        assert descriptor["name"] == f"amqp:{name}:list"
        fields = children(element, "field")
        assert [each.name for each in BY_NAME[name].fields] == [each["name"].replace("-", "_") for each in fields]
        for own, given_field in zip(BY_NAME[name].fields, fields, strict=True):
            assert own.type_name == given_field["type"]
            assert own.is_mandatory == (given_field.get("mandatory") == "true")
            assert own.is_multiple == (given_field.get("multiple") == "true")
            assert own.default == default_of(own, given_field.get("default"))


def default_of(field: Field, text: str | None) -> Any:
    if text is None:
        return None
    if field.type_name in CHOICES:
        return CHOICES[field.type_name][text]
    return text == "true" if field.base == "boolean" else int(text)


def test_restricted_types_are_those_of_the_specification() -> None:
    for name, source in RESTRICTED.items():
        assert SPECIFICATION[name].attrib["source"] == source
    for name, choices in CHOICES.items():
        told = {each["name"]: each["value"] for each in children(SPECIFICATION[name], "choice")}
        assert {key: str(value).lower() for key, value in choices.items()} == told
    used = {field.type_name for kind in BY_NAME.values() for field in kind.fields}
    primitive = {each.type_name for each in CONSTRUCTORS.values()}
    assert {base_of(each) for each in used} <= primitive | set(BY_NAME) | {"*"}


def test_conditions_are_those_of_the_specification() -> None:
    told = [
        choice["value"]
        for name in ("amqp-error", "connection-error", "session-error", "link-error", "transaction-error")
        for choice in children(SPECIFICATION[name], "choice")
    ]
    assert [str(each) for each in Condition] == told


def test_sections_are_those_of_the_specification() -> None:
    told = {}
    for element in SPECIFICATION.values():
        if element.attrib.get("provides") == "section":
            (descriptor,) = children(element, "descriptor")
            told[int(descriptor["code"].rpartition(":")[2], 16)] = descriptor["name"]
    assert {code: f"amqp:{name}:{source}" for code, (name, source) in SECTIONS.items()} == told


# ---- values ----

_SIZES = {"ubyte": 8, "ushort": 16, "uint": 32, "ulong": 64}
_SIGNED = {"byte": 8, "short": 16, "int": 32, "long": 64, "timestamp": 64}

simple = st.one_of(
    st.just(Value("null", None)),
    st.booleans().map(lambda value: Value("boolean", value)),
    *(
        st.integers(0, (1 << bits) - 1).map(lambda value, name=name: Value(name, value))
        for name, bits in _SIZES.items()
    ),
    *(
        st.integers(-1 << bits - 1, (1 << bits - 1) - 1).map(lambda value, name=name: Value(name, value))
        for name, bits in _SIGNED.items()
    ),
    st.floats(width=32, allow_nan=False).map(lambda value: Value("float", value)),
    st.floats(allow_nan=False).map(lambda value: Value("double", value)),
    st.binary(min_size=4, max_size=4).map(lambda value: Value("decimal32", value)),
    st.binary(min_size=16, max_size=16).map(lambda value: Value("decimal128", value)),
    st.characters(exclude_categories=["Cs"]).map(lambda value: Value("char", value)),
    st.uuids().map(lambda value: Value("uuid", value)),
    st.binary(max_size=300).map(lambda value: Value("binary", value)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300).map(lambda value: Value("string", value)),
    st.text(st.characters(max_codepoint=127), max_size=20).map(lambda value: Value("symbol", value)),
)


@st.composite
def arrays(draw: st.DrawFn, depth: int = 0) -> Value:
    """Arrays of values of one type, containers among them, which may all have the same descriptor."""
    element = draw(simple)
    kinds = ["simple", "list", "map", "array"] if depth < 2 else ["simple"]
    match draw(st.sampled_from(kinds)):
        case "list":
            one = st.lists(simple, max_size=3).map(lambda items: Value("list", tuple(items)))
        case "map":
            one = st.lists(st.tuples(simple, simple), max_size=2).map(lambda pairs: Value("map", tuple(pairs)))
        case "array":
            one = arrays(depth + 1)
        case _:
            one = simple.filter(lambda value: value.type_name == element.type_name) | st.just(element)
    elements = draw(st.lists(one, max_size=3))
    if draw(st.booleans()):
        elements = [Value("described", Described(element, each)) for each in elements]
    return Value("array", tuple(elements))


values = st.recursive(
    simple | arrays(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(lambda items: Value("list", tuple(items))),
        st.lists(st.tuples(inner, inner), max_size=4).map(lambda pairs: Value("map", tuple(pairs))),
        st.tuples(simple, inner).map(lambda both: Value("described", Described(*both))),
    ),
    max_leaves=12,
)


@given(values)
def test_a_value_is_read_as_it_was_written(value: Value) -> None:
    encoded = encode_value(value)
    assert read_value(encoded, 0, len(encoded)) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (Value("uint", 0), "43"),
        (Value("uint", 255), "52ff"),
        (Value("uint", 256), "7000000100"),
        (Value("long", -1), "55ff"),
        (Value("ulong", 0), "44"),
        (Value("boolean", True), "41"),
        (Value("string", "é"), "a102c3a9"),
        (Value("symbol", "x"), "a30178"),
        (Value("list", ()), "45"),
        (Value("map", ()), "c10100"),
        (Value("array", (Value("symbol", "a"),)), "e00701b3" + "00000001" + "61"),
        (Value("array", (Value("uint", 1), Value("uint", 2))), "e00a0270" + "00000001" + "00000002"),
        (Value("array", ()), "e0020040"),
        (Value("array", (Value("boolean", True), Value("boolean", False))), "e0040256" + "0100"),
        (Value("array", (Value("list", (Value("uint", 0),)),)), "e00b01d0" + "00000005" + "00000001" + "43"),
        (Value("array", (Value("array", ()),)), "e00b01f0" + "00000005" + "00000000" + "40"),
        (Value("list", (Value("null", None),) * 255), "d000000103" + "000000ff" + "40" * 255),
        (Value("described", Described(Value("ulong", 0x24), Value("list", ()))), "00532445"),
    ],
)
def test_values_have_their_shortest_form(value: Value, encoded: str) -> None:
    assert encode_value(value).hex() == encoded


@pytest.mark.parametrize(
    "value",
    [
        Value("ubyte", 256),
        Value("byte", 128),
        Value("uint", -1),
        Value("symbol", "é"),
        Value("char", "ab"),
        Value("decimal32", b"x"),
        Value("nothing", 1),
        Value("array", (Value("uint", 1), Value("int", 1))),
        Value("array", (Value("nothing", 1),)),
        Value("array", (Value("described", Described(Value("uint", 1), Value("uint", 1))), Value("uint", 1))),
    ],
)
def test_values_that_do_not_fit_their_type_are_refused(value: Value) -> None:
    with pytest.raises(Amqp10Error):
        encode_value(value)


@given(values)
def test_a_neutral_value_has_a_counterpart(value: Value) -> None:
    neutral = neutral_value(value)
    encoded = encode_value(value_of(neutral))
    assert neutral_value(read_value(encoded, 0, len(encoded))[0]) == neutral


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_neutral_type_can_be_written(name: str) -> None:
    samples = {
        "NOTHING": None, "BOOLEAN": True, "INTEGER": 7, "FLOAT": 1.5, "DECIMAL": 2, "TIME": 1_700_000_000, "TEXT": "x",
        "BINARY": b"\xff", "UUID": uuid.UUID(int=5), "MAP": TypedMap(), "LIST": (), "STRUCT": b"ab", "OPAQUE": b"c",
    }  # fmt: skip
    kind = TYPES[name]
    if kind.family.name != "ARRAY":
        encode_value(value_of(TypedValue(kind, samples[kind.family.name])))


def test_an_array_of_another_protocol_becomes_a_list() -> None:
    array = TypedValue(TYPES["array"], TypedArray(TYPES["int32"], (1, -2)))
    assert value_of(array) == Value("list", (Value("int", 1), Value("int", -2)))


@pytest.mark.parametrize("name", sorted(TYPES))
def test_application_properties_hold_no_other_values(name: str) -> None:
    kind = TYPES[name]
    assert is_simple(TypedValue(kind, None)) is (kind.family not in (Family.MAP, Family.LIST, Family.ARRAY))


# ---- described types ----


def field_values(field: Field) -> st.SearchStrategy[Any]:
    if field.choices:
        found: st.SearchStrategy[Any] = st.sampled_from(sorted(field.choices))
    elif field.base == "*":
        found = simple.filter(lambda value: value.value is not None)
    elif field.base == "map":
        found = st.lists(st.tuples(simple, simple), max_size=2).map(tuple)
    elif field.base in BY_NAME:
        return composites(field.base)
    else:
        others: dict[str, st.SearchStrategy[Any]] = {
            "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
            "symbol": st.text(st.characters(max_codepoint=127), max_size=9),
            "binary": st.binary(max_size=9),
            "boolean": st.booleans(),
            "timestamp": st.integers(-5, 1 << 50),
            **{name: st.integers(0, (1 << bits) - 1) for name, bits in _SIZES.items()},
        }
        found = others[field.base]
    return st.lists(found, min_size=1, max_size=3).map(tuple) if field.is_multiple else found


def composites(name: str) -> st.SearchStrategy[Composite]:
    kind = BY_NAME[name]
    must = {each.name: field_values(each) for each in kind.fields if each.is_mandatory}
    may = {each.name: field_values(each) for each in kind.fields if not each.is_mandatory}
    return st.fixed_dictionaries(must, optional=may).map(lambda fields: Composite(name, fields))


@given(st.sampled_from(sorted(BY_NAME)).flatmap(composites))
def test_a_described_type_is_read_as_it_was_written(composite: Composite) -> None:
    encoded = encode_composite(*composite)
    expected = {**BY_NAME[composite.name].defaults, **composite.fields}
    assert read_composite(encoded, 0, len(encoded)) == (Composite(composite.name, expected), len(encoded))


def test_symbolic_descriptors_are_known() -> None:
    encoded = b"\0" + encode_value(Value("symbol", "amqp:accepted:list")) + b"\x45"
    assert read_composite(encoded, 0, len(encoded))[0] == Composite("accepted", {})


@pytest.mark.parametrize(
    ("encoded", "error"),
    [
        ("005310", Amqp10Error),  # nothing after the descriptor
        ("00531045", FieldError),  # open without container-id
        ("005310c0020143", FieldError),  # a container-id of type uint
        ("005315c0030342", Amqp10Error),  # ends within its fields
        ("00531045"[:-2] + "43", Amqp10Error),  # not a list
        ("0053ff45", Amqp10Error),  # not a known type
        ("005311c0080743434343434343", FieldError),  # a remote-channel of type uint
        ("005344c0030150" + "09", FieldError),  # a SASL code of 9
        ("005310c00401a101" + "ff", FieldError),  # a container-id that is not UTF-8
        ("005340c00a01" + "e00701b300000001" + "ff", FieldError),  # a mechanism that is not ASCII, in an array
        ("005340c00601" + "e003015001", FieldError),  # a mechanism that is a number, in an array
        ("005340c00401a301" + "ff", FieldError),  # a mechanism that is not ASCII, alone
        ("005324c0020140", FieldError),  # accepted has no fields
        ("005310c0050" + "2a1016141", Amqp10Error),  # the second field of two is missing
        ("005310c0050" + "1a1016141", Amqp10Error),  # a byte after the last field
        ("005314c003" + "01" + "5001", FieldError),  # a handle of type ubyte
        ("005325c00501" + "00532445", FieldError),  # an error that is an outcome
    ],
)
def test_invalid_described_types_are_refused(encoded: str, error: type[Exception]) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(error):
        read_composite(data, 0, len(data))


@given(st.sampled_from(sorted(BY_NAME)).flatmap(composites), st.data())
def test_damaged_described_types_raise_nothing_else(composite: Composite, data: st.DataObject) -> None:
    encoded = bytearray(encode_composite(*composite))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(encoded)))
    with contextlib.suppress(Amqp10Error):
        read_composite(bytes(encoded), 0, end)


def test_described_types_may_take_many_bytes() -> None:
    whole = Composite("properties", {"subject": "s" * 300, "group_id": "g"})
    encoded = encode_composite(*whole)
    assert encoded[:4] == b"\x00\x53\x73\xd0"
    assert read_composite(encoded, 0, len(encoded)) == (whole, len(encoded))


def test_described_types_are_nested_to_a_limit() -> None:
    """A source's default outcome may be of any type, another source too."""

    def sources(count: int) -> bytes:
        source = Composite("source", {})
        for _ in range(count):
            source = Composite("source", {"default_outcome": source})
        return encode_composite(*source)

    allowed = sources(MAX_DEPTH)
    assert read_composite(allowed, 0, len(allowed))[1] == len(allowed)
    for count in (MAX_DEPTH + 1, 200):
        refused = sources(count)
        with pytest.raises(Amqp10Error):
            read_composite(refused, 0, len(refused))


# ---- frames ----


@given(st.integers(0, 0xFFFF), st.binary(max_size=50), st.sampled_from([AMQP, SASL]), st.integers(0, 60))
def test_a_frame_is_read_as_it_was_written(channel: int, body: bytes, kind: int, cut: int) -> None:
    frame = encode_frame(channel, body, kind)
    expected = Frame(kind, channel, len(frame), body) if cut >= len(frame) else None
    assert decode_frame(frame[:cut], 0, 512) == expected


def test_an_extended_header_is_skipped() -> None:
    assert decode_frame(FRAME.pack(17, 4, 0, 3) + bytes(8) + b"x", 0, 512) == Frame(0, 3, 17, b"x")


@pytest.mark.parametrize(("size", "doff"), [(513, 2), (8, 1), (8, 0), (8, 3)])
def test_invalid_frames_are_refused(size: int, doff: int) -> None:
    with pytest.raises(Amqp10Error):
        decode_frame(FRAME.pack(size, doff, 0, 0), 0, 512)


# ---- sections ----


def test_sections_are_found() -> None:
    header = encode_composite("header", {"durable": True})
    annotations = encode_section(0x72, map_value(TypedMap((("x-a", TypedValue(TYPES["int8"], 1)),)), "symbol"))
    properties = encode_composite("properties", {"subject": "s"})
    body = data_section(300) + bytes(300) + data_section(2) + b"ab"
    found = split_sections(header + annotations + properties + body)
    assert (found.header, found.delivery, found.application) == ((0, len(header)), (0, 0), (0, 0))
    assert found.annotations == (len(header), len(header + annotations))
    assert found.properties == (len(header + annotations), len(header + annotations + properties))
    assert found.body_at == len(header + annotations + properties)
    assert split_sections(b"").body_at == 0
    first = header + annotations + properties + body[:50]
    assert split_sections(first, is_whole=False) == found


@pytest.mark.parametrize(
    "codes", [(DATA, 0x77), (0x77, 0x77), (0x76, DATA), (0x73, 0x70), (0x72, 0x72), (DATA, 0x74), (0x78, DATA), (0x79,)]
)
def test_sections_out_of_order_are_refused(codes: tuple[int, ...]) -> None:
    kinds = {"list": Value("list", ()), "map": Value("map", ()), "binary": Value("binary", b""), "*": Value("uint", 1)}
    data = b"".join(encode_section(code, kinds[SECTIONS.get(code, ("", "*"))[1]]) for code in codes)
    with pytest.raises(Amqp10Error):
        split_sections(data)
    split_sections(data, is_ordered=False)


def test_only_an_amqp_value_may_be_described_itself() -> None:
    own = Described(Value("symbol", "com.example:a"), Value("list", ()))
    value = Value("described", Described(Value("ulong", 7), Value("described", own)))
    split_sections(encode_section(VALUE, value))
    split_sections(b"\0\xa3\x11amqp:amqp-value:*" + encode_value(value))
    for data in (encode_section(0x76, value), b"\0\x53\x77" + b"\0\x53\x01" * 100 + b"\x40", b"\0\x53\x77\0\x45\x40"):
        with pytest.raises(Amqp10Error):
            split_sections(data)


def long_descriptor(code: int) -> bytes:
    return b"\0\x80" + code.to_bytes(8, "big")


def symbolic_descriptor(code: int) -> bytes:
    return b"\0" + encode_value(Value("symbol", f"amqp:{':'.join(SECTIONS[code])}"))


def short_descriptor(code: int) -> bytes:
    return bytes((0, 0x53, code))


@pytest.mark.parametrize("descriptor", [short_descriptor, long_descriptor, symbolic_descriptor])
def test_a_section_has_its_value_whatever_the_form_of_its_descriptor(descriptor: Callable[[int], bytes]) -> None:
    described = Value("described", Described(Value("symbol", "com.example:a"), Value("list", (Value("uint", 7),))))
    for value in (described, Value("string", "x")):
        data = descriptor(VALUE) + encode_value(value)
        assert split_sections(data).body_at == 0
        assert section_value(data, (0, len(data))) == value
    properties = descriptor(PROPERTIES) + encode_composite("properties", {"subject": "s"})[3:]
    assert section_list("properties", properties, 0, len(properties))["subject"] == "s"
    with pytest.raises(Amqp10Error):
        section_list("header", properties, 0, len(properties))


@pytest.mark.parametrize("code", [code for code, (_, source) in SECTIONS.items() if source != "*"])
def test_a_section_has_its_type(code: int) -> None:
    name = SECTIONS[code][0]
    with pytest.raises(Amqp10Error, match=f"section {name} is of type boolean"):
        split_sections(short_descriptor(code) + b"\x41")
    with pytest.raises(Amqp10Error, match="constructor is missing"):
        split_sections(b"\0" + encode_value(Value("ulong", code)) + b"\0\x53\x01" * (code == VALUE))


def test_a_message_has_a_limit_of_sections() -> None:
    split_sections(data_section(0) * MAX_VALUES)
    with pytest.raises(Amqp10Error):
        split_sections(data_section(0) * (MAX_VALUES + 1))
    split_sections(data_section(0) * (MAX_VALUES + 1), is_ordered=False)


@given(st.binary(max_size=60))
def test_hostile_sections_raise_nothing_else(data: bytes) -> None:
    for is_whole in (True, False):
        with contextlib.suppress(Amqp10Error):
            split_sections(data, is_whole=is_whole)


# ---- limits ----


def nested(depth: int) -> bytes:
    data = b"\x40"
    for _ in range(depth):
        data = b"\xd0" + (len(data) + 4).to_bytes(4, "big") + b"\0\0\0\1" + data
    return data


def test_nesting_has_a_limit() -> None:
    data = nested(20)
    assert read_value(data, 0, len(data))[1] == len(data)
    for data in (nested(1_000), b"\0" * 5_000, b"\0\x53\x10" * 2_000):
        with pytest.raises(Amqp10Error):
            read_value(data, 0, len(data))
        with pytest.raises(Amqp10Error):
            read_composite(data, 0, len(data))


def lists_of_nulls(outer: int, inner: int) -> bytes:
    one = b"\xd0" + (inner + 4).to_bytes(4, "big") + inner.to_bytes(4, "big") + b"\x40" * inner
    return b"\xd0" + (len(one) * outer + 4).to_bytes(4, "big") + outer.to_bytes(4, "big") + one * outer


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lists_of_nulls(1, MAX_VALUES + 1), True),
        (lists_of_nulls(100, 100), True),
        (lists_of_nulls(10, 100), False),
        (encode_value(Value("binary", bytes(100_000))), False),
        (encode_value(Value("array", tuple(Value("boolean", True) for _ in range(MAX_VALUES + 1)))), True),
        (b"\xf0\0\0\x20\0\0\0\0\x08\xd0" + bytes(0x1FFB), True),
        (b"\xf0\0\0\x04\0\0\0\0\x08\x70" + bytes(0x3FB) + b"\x40" * MAX_VALUES, True),
        (b"\xf0\0\0\x04\0\0\0\0\x08\x70" + bytes(0x3FB) + b"\x40" * (MAX_VALUES - 9), False),
        (b"\0\x44\x40" * (MAX_VALUES // 2 + 1), True),
        (b"\xff" + b"\x40" * (MAX_VALUES + 1), False),
    ],
)
def test_values_are_counted_before_they_are_decoded(data: bytes, expected: bool) -> None:
    assert has_too_many_values(data, 0, len(data)) is expected


def test_counting_takes_no_longer_than_its_limit() -> None:
    data = lists_of_nulls(1, 5_000_000)
    begin = time.process_time()
    assert has_too_many_values(data, 0, len(data))
    assert time.process_time() - begin < 0.05


def test_outcomes_are_described_types() -> None:
    assert set(OUTCOMES) <= set(BY_NAME)
