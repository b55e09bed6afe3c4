"""Methods, properties, tables and frames of AMQP 0-9-1: against the specification, known bytes, round trips."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.amqp_0_9_1 import tables
from qstore.formats.amqp_0_9_1.codes import HARD_ERRORS, Amqp091Error, ContentClassError, ReplyCode
from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    FRAME_END,
    FRAME_MIN_SIZE,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    Frame,
    decode_frame,
    encode_content,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import (
    AMQP_0_8,
    AMQP_0_8_PUBLISHED,
    AMQP_0_9,
    BY_NAME,
    METHODS,
    PUBLISH,
    Method,
    Publish,
    Version,
    ack_head,
    count_acks,
    decode_ack,
    decode_method,
    decode_publish,
    deliver_start,
    encode_ack,
    encode_ack_frame,
    encode_deliver,
    encode_get_ok,
    encode_method,
    encode_nack,
    encode_routed,
    multiple_acks,
)
from qstore.formats.amqp_0_9_1.properties import (
    PROPERTIES,
    Handling,
    Properties,
    body_size,
    decode_header,
    encode_header,
    has_too_many_headers,
    read_handling,
    user_id_of,
    with_reply_to,
)
from qstore.formats.amqp_0_9_1.tables import MAX_DEPTH, decode_fields, encode_fields, encode_table, make_fields
from qstore.formats.values import TYPES, TypedArray, TypedMap, TypedValue, typed_map
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS, TABLES, TEXT, decode_table, fields_of
from tests.support.coded import NESTED, amount_of
from tests.support.compiled import replaces

SPECIFICATIONS = Path(__file__).parents[1] / "fixtures" / "amqp"
SPECIFICATION = SPECIFICATIONS / "amqp-0-9-1-stripped.xml"
#: What the XML calls otherwise: names of AMQP 0-9.
RENAMED = {
    "basic.recover": "basic.recover-async", "basic.recover-sync": "basic.recover",
    "basic.recover-sync-ok": "basic.recover-ok",
}  # fmt: skip


# ---- the specification ----


def specified(
    path: Path = SPECIFICATION, renamed: Mapping[str, str] = RENAMED
) -> Iterator[tuple[str, int, tuple[tuple[str, str], ...], bool]]:
    root = ElementTree.parse(path).getroot()
    types = {each.get("name"): each.get("type") for each in root.iter("domain")} | {"queue name": "shortstr"}
    for each in root.iter("class"):
        for method in each.iter("method"):
            name = f"{each.get('name')}.{method.get('name')}"
            fields = tuple(
                (
                    re.sub("[- ]", "_", str(field.get("name"))),
                    str(types.get(kind := field.get("domain") or field.get("type"), kind)),
                )
                for field in method.iter("field")
            )
            code = int(str(each.get("index"))) << 16 | int(str(method.get("index")))
            yield renamed.get(name, name), code, fields, method.get("content") == "1"


def test_every_method_is_in_the_table_as_it_is_specified() -> None:
    table = {(each.name, each.code, each.fields, each.has_content) for each in METHODS if not each.is_extension}
    assert table == set(specified())
    assert len(BY_NAME) == len(METHODS) == len({each.code for each in METHODS})


@pytest.mark.parametrize(
    ("version", "file", "renamed", "unused"),
    [
        (AMQP_0_9, "amqp-0-9-qpid-stripped.xml", RENAMED, {"redirect", "ping", "pong", "resume", "ok"}),
        (AMQP_0_8, "amqp-0-8-qpid-stripped.xml", {}, {"redirect", "alert"}),
    ],
)
def test_every_method_of_an_older_version_is_in_its_table(
    version: Version, file: str, renamed: Mapping[str, str], unused: set[str]
) -> None:
    """But for those of classes that are not implemented, and those that clients do not send.

    Clients of AMQP 0-8 can unbind queues, which RabbitMQ had added.
    """
    path = SPECIFICATIONS / file
    classes = {
        int(str(each.get("index"))): each.get("name") for each in ElementTree.parse(path).getroot().iter("class")
    }
    assert {number: classes[number] for number in version.missing} == version.missing
    expected = {
        (name, code, fields)
        for name, code, fields, _ in specified(path, renamed)
        if code >> 16 not in version.missing and name.partition(".")[2] not in unused
    }
    table = {(each.name, each.code, each.fields) for each in version.by_code.values()}
    added = {each for each in table - expected if version is AMQP_0_8 and each[0].startswith("queue.unbind")}
    assert table - added == expected
    assert version.by_name == {each.name: each for each in version.by_code.values()}


def test_amqp_0_8_as_it_was_published_differs_in_two_methods() -> None:
    """The bytes are those of amqplib 1.0.2."""
    changed = {*AMQP_0_8_PUBLISHED.by_code.values()} ^ {*AMQP_0_8.by_code.values()}
    assert {each.name.partition("-")[0] for each in changed} == {"basic.consume", "basic.recover"}
    method, values = decode_method(b"\0\x3c\0\x14\0\1\1q\1c\4", AMQP_0_8_PUBLISHED)
    assert (method.name, values["queue"], values["exclusive"], "arguments" in values) == (
        "basic.consume",
        "q",
        True,
        False,
    )
    assert decode_method(b"\0\x3c\0\x64\1", AMQP_0_8_PUBLISHED)[0].name == "basic.recover-async"


def test_properties_are_those_of_the_specification() -> None:
    root = ElementTree.parse(SPECIFICATION).getroot()
    basic = next(each for each in root.iter("class") if each.get("name") == "basic")
    specified = [(str(each.get("name")).replace("-", "_"), each.get("domain")) for each in basic.findall("field")]
    assert [tuple(each) for each in PROPERTIES] == specified
    assert tuple(name for name, _ in PROPERTIES) == Properties._fields


def test_reply_codes_are_those_of_the_specification() -> None:
    root = ElementTree.parse(SPECIFICATION).getroot()
    codes = {}
    for each in root.iter("constant"):
        if each.get("class") is None and each.get("name") != "reply-success":
            continue  # of frames
        codes[str(each.get("name")).upper().replace("-", "_")] = int(str(each.get("value"))), each.get("class")
    assert codes.pop("REPLY_SUCCESS") == (ReplyCode.SUCCESS, None)
    codes["NO_ROUTE"] = (312, "soft-error")  # only in the specification's text
    assert {each.name: int(each) for each in ReplyCode if each} == {
        "SUCCESS": 200, **{name: code for name, (code, _) in codes.items()}
    }  # fmt: skip
    assert {each.name for each in HARD_ERRORS} == {name for name, (_, kind) in codes.items() if kind == "hard-error"}


# ---- known bytes ----


def test_bytes_of_a_declaration() -> None:
    table = typed_map({"x-max-priority": TypedValue(TYPES["int32"], 10)})
    payload = encode_method("queue.declare", queue="jobs", durable=True, nowait=True, arguments=table)
    arguments = b"\x0ex-max-priorityI\x00\x00\x00\x0a"
    assert payload == b"\x00\x32\x00\x0a\x00\x00\x04jobs\x12" + len(arguments).to_bytes(4, "big") + arguments


def test_bytes_of_a_published_message() -> None:
    properties = Properties(content_type="text/plain", delivery_mode=2, priority=4)
    parts = encode_content(
        1, encode_method("basic.publish", exchange="x", routing_key="key", mandatory=True),
        encode_header(5, properties), b"hello", FRAME_MIN_SIZE,
    )  # fmt: skip
    assert b"".join(parts) == (
        b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x28\x00\x00\x01x\x03key\x01\xce"
        b"\x02\x00\x01\x00\x00\x00\x1b\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x98\x00\x0atext/plain\x02\x04\xce"
        b"\x03\x00\x01\x00\x00\x00\x05hello\xce"
    )
    assert HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"t\x01", TypedValue(TYPES["boolean"], True)),
        (b"s\xff\xfe", TypedValue(TYPES["int16"], -2)),
        (b"U\xff\xfe", TypedValue(TYPES["int16"], -2)),
        (b"L\xff\xff\xff\xff\xff\xff\xff\xfe", TypedValue(TYPES["int64"], -2)),
        (b"D\x02\xff\xff\xff\x85", TypedValue(TYPES["dec32"], Decimal("-1.23"))),
        (b"S\x00\x00\x00\x02\xc3\xa4", TypedValue(TYPES["str16"], "ä")),
        (b"S\x00\x00\x00\x01\xe4", TypedValue(TYPES["vbin32"], b"\xe4")),
        (b"x\x00\x00\x00\x01\xe4", TypedValue(TYPES["vbin32"], b"\xe4")),
        (b"A\x00\x00\x00\x03Vt\x00", TypedValue(TYPES["list"], (
            TypedValue(TYPES["void"], None), TypedValue(TYPES["boolean"], False)))),
        (b"F\x00\x00\x00\x03\x01aV", TypedValue(TYPES["map"], typed_map({"a": None}))),
    ],
)  # fmt: skip
def test_bytes_of_values(raw: bytes, value: TypedValue) -> None:
    entry = b"\x01k" + raw
    assert decode_table(len(entry).to_bytes(4, "big") + entry) == TypedMap((("k", value),))


@pytest.mark.parametrize(
    ("name", "value", "raw"),
    [
        ("uint64", 2**63 - 1, b"l\x7f" + b"\xff" * 7),
        ("uint64", 2**63, b"S\x00\x00\x00\x139223372036854775808"),
        ("dec64", Decimal("1.5"), b"D\x01\x00\x00\x00\x0f"),
        ("dec64", Decimal(2**31), b"S\x00\x00\x00\x0a2147483648"),
        ("dec64", Decimal("NaN"), b"S\x00\x00\x00\x03NaN"),
        ("uuid", uuid.UUID(int=1), b"S\x00\x00\x00\x2400000000-0000-0000-0000-000000000001"),
        ("str8-latin", b"\xe4", b"S\x00\x00\x00\x01\xe4"),
        ("bin16", b"ab", b"x\x00\x00\x00\x02ab"),
        ("struct32", b"ab", b"x\x00\x00\x00\x02ab"),
        ("char", "c", b"S\x00\x00\x00\x01c"),
        ("array", TypedArray(TYPES["uint8"], (1, 2)), b"A\x00\x00\x00\x04B\x01B\x02"),
        ("bit", True, b"t\x01"),
    ],
)
def test_values_of_other_protocols(name: str, value: Any, raw: bytes) -> None:
    entry = b"\x01k" + raw
    assert encode_table(TypedMap((("k", TypedValue(TYPES[name], value)),))) == len(entry).to_bytes(4, "big") + entry


def test_every_type_of_the_other_protocols_can_be_written() -> None:
    samples: dict[str, Any] = {
        "NOTHING": None, "BOOLEAN": True, "INTEGER": 1, "FLOAT": 1.0, "DECIMAL": Decimal(1), "TIME": 1, "TEXT": "a",
        "BINARY": b"a", "UUID": uuid.UUID(int=1), "MAP": TypedMap(), "LIST": (), "ARRAY": TypedArray(TYPES["int8"], ()),
        "STRUCT": b"a", "OPAQUE": b"a",
    }  # fmt: skip
    for each in TYPES.values():
        raw = encode_table(TypedMap((("k", TypedValue(each, samples[each.family.name])),)))
        assert len(decode_table(raw)) == 1


# ---- round trips ----


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(data=st.data())
def test_methods_are_decoded_as_they_were_encoded(method: Method, data: st.DataObject) -> None:
    values = data.draw(fields_of(method.fields))
    assert decode_method(encode_method(method.name, **values)) == (method, values)


@given(TABLES)
def test_tables_are_decoded_as_they_were_encoded(table: TypedMap) -> None:
    raw = encode_table(table)
    assert decode_table(raw) == table
    assert encode_table(decode_table(raw)) == raw


@given(st.integers(0, 2**64 - 1), PROPERTY_SETS)
def test_properties_are_decoded_as_they_were_encoded(size: int, properties: Properties) -> None:
    payload = encode_header(size, properties)
    assert decode_header(payload) == (size, properties)
    assert body_size(payload) == size
    direct = properties.reply_to == "amq.rabbitmq.reply-to"
    expected = Handling(properties.delivery_mode == 2, properties.priority, properties.expiration, direct)
    assert read_handling(payload) == expected
    assert user_id_of(payload) == properties.user_id
    assert decode_header(with_reply_to(payload, "r")) == (size, properties._replace(reply_to="r"))


@given(PROPERTY_SETS)
def test_a_content_header_is_read_to_its_end_and_no_further(properties: Properties) -> None:
    payload = encode_header(1, properties)
    for end in range(14, len(payload)):
        for read in (decode_header, read_handling):
            with pytest.raises(Amqp091Error):
                read(payload[:end])
    for read in (decode_header, read_handling):
        with pytest.raises(Amqp091Error):
            read(payload + b"\0")


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"\0\x3c\0\0" + bytes(8), Amqp091Error),  # no flags
        (b"\0\x32\0\0" + bytes(10), ContentClassError),
        (b"\0\x3c\0\1" + bytes(10), Amqp091Error),  # a weight
        (b"\0\x3c\0\0" + bytes(8) + b"\0\1", Amqp091Error),  # more flags follow
        (b"\0\x3c\0\0" + bytes(8) + b"\0\2", Amqp091Error),  # a property that is not defined
    ],
)
def test_content_headers_of_anything_else_are_refused(header: bytes, error: type[Exception]) -> None:
    with pytest.raises(Amqp091Error) as caught:
        body_size(header)
    assert type(caught.value) is error


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 255))
def test_bits_that_follow_each_other_share_octets(bits: list[bool], octet: int) -> None:
    """Section 4.2.5.2: up to eight in each octet, the first in the lowest bit."""
    fields = make_fields(" ".join([f"bit{n}:bit" for n in range(len(bits))] + ["octet:octet"]))
    values = {**{f"bit{n}": each for n, each in enumerate(bits)}, "octet": octet}
    packed = sum(each << n for n, each in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")
    assert encode_fields(fields, values) == packed + bytes((octet,))
    assert decode_fields(fields, packed + bytes((octet,)), 0) == values


@given(fields_of(BY_NAME["basic.publish"].fields))
def test_the_short_cut_for_publishing_reads_the_same(values: dict[str, Any]) -> None:
    payload = encode_method("basic.publish", **values)
    assert payload.startswith(PUBLISH)
    expected = Publish(values["exchange"], values["routing_key"], values["mandatory"], values["immediate"])
    assert decode_publish(payload) == expected


@given(TEXT, st.integers(0, 2**64 - 1), st.booleans(), TEXT, TEXT, st.integers(1, 2**16 - 1))
def test_the_short_cuts_for_delivering_and_confirming_write_the_same(
    tag: str, number: int, flag: bool, exchange: str, key: str, channel: int
) -> None:
    start = deliver_start(tag.encode("utf-8", "surrogateescape"))
    assert encode_deliver(start, number, flag, encode_routed(exchange, key)) == encode_method(
        "basic.deliver", consumer_tag=tag, delivery_tag=number, redelivered=flag, exchange=exchange, routing_key=key
    )
    assert encode_get_ok(number, flag, encode_routed(exchange, key), 7) == encode_method(
        "basic.get-ok", delivery_tag=number, redelivered=flag, exchange=exchange, routing_key=key, message_count=7
    )
    acknowledgement = encode_method("basic.ack", delivery_tag=number, multiple=flag)
    assert encode_ack(number, multiple=flag) == acknowledgement
    frame = encode_frame(METHOD, channel, acknowledgement)
    assert encode_ack_frame(ack_head(channel), number, multiple=flag) == frame
    assert decode_ack(acknowledgement) == (number, flag)
    for wrong in (acknowledgement[:-1], acknowledgement + b"\0"):
        with pytest.raises(Amqp091Error):
            decode_ack(wrong)
    assert encode_nack(number) == encode_method("basic.nack", delivery_tag=number)


@given(st.sampled_from([METHOD, HEADER, BODY, HEARTBEAT]), st.integers(0, 0xFFFF), st.binary(max_size=50))
def test_frames_are_decoded_as_they_were_encoded(kind: int, channel: int, payload: bytes) -> None:
    raw = encode_frame(kind, channel, payload)
    assert decode_frame(b"?" + raw + b"?", 1, len(raw)) == Frame(kind, channel, payload)
    for cut in range(len(raw)):
        assert decode_frame(raw[:cut], 0, len(raw)) is None


@given(st.integers(0, 30_000))
def test_content_is_split_into_frames_of_the_maximum_size(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    parts = encode_content(7, encode_method("basic.publish"), encode_header(size, Properties()), body[:size], 4096)
    raw, at, frames = b"".join(parts), 0, []
    while (frame := decode_frame(raw, at, 4096)) is not None:
        frames.append(frame)
        at += OVERHEAD + len(frame.payload)
    assert at == len(raw)
    assert [frame.type for frame in frames] == [METHOD, HEADER] + [BODY] * -(-size // (4096 - OVERHEAD))
    assert b"".join(frame.payload for frame in frames[2:]) == body[:size]


# ---- refusals ----


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"\x07\x00\x00\x00\x00\x00\x00\xce", "unknown frame type 7"),
        (b"\x01\x00\x00\x00\x00\x00\x00\xcd", "ends with 0xcd"),
        (b"\x01\x00\x00\xff\xff\xff\xff", "a frame of 4294967303 bytes; the maximum is 4096"),
        (b"AMQP\x00\x00\x09\x01", "unknown frame type 65"),
    ],
)
def test_frames_that_are_refused(raw: bytes, what: str) -> None:
    with pytest.raises(Amqp091Error, match=what):
        decode_frame(raw, 0, 4096)


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"\x00\x3c", "too short"),
        (b"\x00\x3c\x00\x63", "no method 99 of class 60"),
        (b"\x00\x3c\x00\x50\x00\x00", "a number needs 8 bytes, 2 are left"),
        (b"\x00\x5a\x00\x0a\x00", "1 bytes follow the fields"),
        (b"\x00\x14\x00\x0a\x05abc", "a short string extends"),
    ],
)
def test_methods_that_are_refused(payload: bytes, what: str) -> None:
    with pytest.raises(Amqp091Error, match=what):
        decode_method(payload)


def test_frames_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(Amqp091Error, match="on channel 65536 does not fit"):
        encode_frame(METHOD, 0x10000, b"")
    header = encode_header(1, Properties(headers=typed_map({"k": "v" * FRAME_MIN_SIZE})))
    with pytest.raises(Amqp091Error, match=f"does not fit a frame of {FRAME_MIN_SIZE}"):
        encode_content(1, encode_method("basic.publish"), header, b"x", FRAME_MIN_SIZE)
    with pytest.raises(Amqp091Error, match="there is no method"):
        encode_method("basic.nonsense")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (b"\x02k", "ends within an entry"),
        (b"\x01k", "ends within an entry"),
        (b"\x01kI\0\0\0", "a value of type I extends beyond"),
        (b"\x01kS\0\0\0\x02a", "a string needs 6 bytes, 5 are left"),
        (b"\x01kF\0\0\0\x04\x01kV", "a table needs 8 bytes, 7 are left"),
        (b"\x01kA\0\0\0\x02V\x7f", "unknown type code 0x7f"),
        (b"\x01kZ", "unknown type code 0x5a"),
    ],
)
def test_tables_that_are_refused(entry: bytes, what: str) -> None:
    """By the reader and by the check without values alike (`decode_table`)."""
    with pytest.raises(Amqp091Error, match=what):
        decode_table(len(entry).to_bytes(4, "big") + entry)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"queue": "q" * 256}, "too long for a short string"),
        ({"queue": 1}, "a shortstr cannot carry an int"),
        ({"ticket": 70_000}, "a short cannot carry an int"),
        ({"other": 1}, "no field other"),
        ({"arguments": typed_map({"x" * 256: 1})}, "too long for a table"),
        ({"arguments": TypedMap((("x", TypedValue(TYPES["int8"], 1000)),))}, "int8 cannot carry this int"),
    ],
)
def test_values_that_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(Amqp091Error, match=what):
        encode_method("queue.declare", **values)


def test_tables_may_not_be_nested_without_end() -> None:
    raw = b"\x00\x00\x00\x00"
    for _ in range(MAX_DEPTH - 1):
        entry = b"\x01kF" + raw
        raw = len(entry).to_bytes(4, "big") + entry
    assert encode_table(decode_table(raw)) == raw
    entry = b"\x01kF" + raw
    with pytest.raises(Amqp091Error, match="nested more than 32 deep"):
        decode_table(len(entry).to_bytes(4, "big") + entry)
    with pytest.raises(Amqp091Error, match="nested more than 32 deep"):
        encode_table(TypedMap((("k", TypedValue(TYPES["map"], decode_table(raw))),)))


@given(st.data())
def test_damaged_bytes_are_refused_or_read_in_bounds(data: st.DataObject) -> None:
    table = data.draw(TABLES)
    whole = data.draw(st.sampled_from([
        encode_method("queue.declare", queue="q", arguments=table),
        encode_header(9, Properties(content_type="a", headers=table, priority=1, expiration="100")),
        encode_method("basic.publish", exchange="x", routing_key="k"),
    ]))  # fmt: skip
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at in data.draw(st.lists(st.integers(0, len(whole)), max_size=3)):
        if at < len(damaged):
            damaged[at] = data.draw(st.sampled_from([0, 1, 65, 70, 127, 255]))
    for decode in (decode_method, decode_header, decode_table, decode_publish, _handling):
        assert 0 <= _refused_at(decode, bytes(damaged)) <= len(damaged) + 1


def _refused_at(decode: Callable[[bytes], object], raw: bytes) -> int:
    """The offset of the error; 0 if there is none."""
    try:
        decode(raw)
    except Amqp091Error as error:
        return error.offset
    return 0


def _handling(payload: bytes) -> None:
    body_size(payload)
    read_handling(payload)


@replaces
@given(st.dictionaries(st.text("abc", max_size=3), NESTED, max_size=5))
def test_values_are_counted_without_being_decoded(values: dict[str, Any]) -> None:
    raw, amount = encode_table(typed_map(values)), amount_of(values)
    with patch.object(tables, "MAX_VALUES", amount):
        assert not tables.has_too_many_values(raw, 0, len(raw))
    if not amount:
        return
    with patch.object(tables, "MAX_VALUES", amount - 1):
        assert tables.has_too_many_values(raw, 0, len(raw))
        for others in (Properties(), Properties(content_type="a", content_encoding="b", priority=1)):
            assert has_too_many_headers(encode_header(1, others._replace(headers=typed_map(values))))
            assert not has_too_many_headers(encode_header(1, others))
        if len(raw) > amount - 1:
            with pytest.raises(Amqp091Error, match="a table has more than"):
                decode_method(encode_method("queue.declare", arguments=typed_map(values)))


@pytest.mark.parametrize("entry", [b"\x01k", b"\x05k", b"\x01kZ"])
def test_what_is_no_table_has_no_values(entry: bytes) -> None:
    assert not tables.has_too_many_values(len(entry).to_bytes(4, "big") + entry, 0, 4 + len(entry))


# ---- acknowledgements that follow each other ----


def _ack_frame(tag: int, channel: int = 1, *, multiple: bool = False, end: int = FRAME_END) -> bytes:
    return encode_frame(METHOD, channel, encode_method("basic.ack", delivery_tag=tag, multiple=multiple))[:-1] + bytes(
        (end,)
    )


@given(
    first=st.one_of(
        st.integers(1, 600), st.integers((1 << 32) - 5, 1 << 32), st.integers((1 << 64) - 300, (1 << 64) - 1)
    ),
    count=st.integers(1, 600),
    other=st.sampled_from(["tag", "multiple", "channel", "end", "cut", "none"]),
    more=st.binary(max_size=50),
)
@example(first=(1 << 64) - 2, count=2, other="tag", more=b"")
@example(first=255, count=2, other="none", more=b"")
@example(first=256, count=256, other="cut", more=bytes(50))
def test_acks_are_counted_up_to_the_first_that_is_not_the_next(first: int, count: int, other: str, more: bytes) -> None:
    count = min(count, (1 << 64) - first)
    data = b"".join(map(_ack_frame, range(first, first + count)))
    following = min(first + count, (1 << 64) - 1)
    last = {
        "tag": _ack_frame(first),
        "multiple": _ack_frame(following, multiple=True),
        "channel": _ack_frame(following, 2),
        "end": _ack_frame(following, end=0),
        "cut": _ack_frame(following)[:20],
        "none": b"",
    }[other]
    if last and other != "cut":
        last += _ack_frame(min(following + 1, (1 << 64) - 1))
    before = b"before"
    data = before + data + last
    assert count_acks(data + more, len(before), len(data)) == (first, count)


@given(
    tags=st.lists(st.integers(1, (1 << 64) - 2), min_size=1, max_size=20, unique=True).map(sorted),
    other=st.sampled_from(["lower", "same", "all", "single", "bits", "channel", "end", "cut", "none"]),
    more=st.binary(max_size=50),
)
def test_acks_with_multiple_are_found_as_long_as_they_ascend(tags: list[int], other: str, more: bytes) -> None:
    following = tags[-1] + 1
    last = {
        "lower": _ack_frame(tags[-1] - 1, multiple=True),
        "same": _ack_frame(tags[-1], multiple=True),
        "all": _ack_frame(0, multiple=True),
        "single": _ack_frame(following),
        "bits": _ack_frame(following, multiple=True)[:-2] + bytes((3, 0xCE)),
        "channel": _ack_frame(following, 2, multiple=True),
        "end": _ack_frame(following, multiple=True, end=0),
        "cut": _ack_frame(following, multiple=True)[:20],
        "none": b"",
    }[other]
    before = b"before"
    data = before + b"".join(_ack_frame(tag, multiple=True) for tag in tags) + last
    assert multiple_acks(data + more, len(before), len(data)) == tags
    assert multiple_acks(_ack_frame(tags[0]), 0, 21) == []
