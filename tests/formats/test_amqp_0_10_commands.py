"""Controls, commands and structs of AMQP 0-10: against the specification, known bytes, round trips, refusals."""

from __future__ import annotations

import uuid
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10 import codes, frames, structs
from qstore.formats.amqp_0_10.commands import (
    BY_NAME,
    COMMAND_BY_CODE,
    COMMANDS,
    CONTROL_BY_CODE,
    CONTROLS,
    Command,
    decode_command,
    decode_control,
    decode_result,
    decode_struct,
    encode_command,
    encode_completed,
    encode_control,
    encode_result,
)
from qstore.formats.amqp_0_10.frames import COMMAND, HEADER, decode_frame, encode_frame
from qstore.formats.amqp_0_10.maps import TooManyValuesError
from qstore.formats.amqp_0_10.structs import MAX_PLANS, BranchId, FieldDecoder, PackedStruct, ReplyTo, encode_struct
from qstore.formats.amqp_0_10.types import TABLE, Amqp010Error
from qstore.formats.values import EMPTY_MAP, MAX_VALUES, TypedMap, typed_map
from tests.formats.amqp_0_10_specification import SpecifiedCommand, SpecifiedStruct, SpecifiedType, specification
from tests.formats.amqp_0_10_values import BY_TYPE, RESULTS, fields_of
from tests.support.coded import coded_array
from tests.support.fixtures import StoreOpener, records_of, written_files

STRUCTS = [
    value
    for value in vars(structs).values()
    if isinstance(value, PackedStruct) and value is not structs.MESSAGE_TRANSFER
]
ALL = CONTROLS + COMMANDS
NAMES = [command.name for command in ALL]


def encode(command: Command, values: dict[str, Any], *, sync: bool = False) -> bytes:
    """The payload of a control or a command."""
    if command.is_control:
        return encode_control(command.name, **values)
    return encode_command(command.name, sync=sync, **values)


def decode(command: Command, payload: bytes) -> tuple[Command, bool, dict[str, Any]]:
    """What a payload holds, read as the kind that `command` is. Controls have no sync."""
    if command.is_control:
        control, values = decode_control(payload)
        return control, False, values
    return decode_command(payload)


# ---- the specification ----


def test_every_control_and_command_is_in_the_table_as_it_is_specified() -> None:
    tables = [
        SpecifiedCommand(
            command.name,
            command.code,
            command.is_control,
            tuple((field.name, field.type_name) for field in command.packed.fields),
            None if command.result is None else command.result.name,
            command.has_content,
        )
        for command in ALL
    ]
    assert tables == list(specification().commands)
    assert (len(CONTROLS), len(COMMANDS)) == (25, 59)


def test_controls_and_commands_are_packed_as_they_travel() -> None:
    for command in ALL:
        packed = command.packed
        assert (packed.name, packed.code, packed.size_width, packed.pack) == (command.name, None, 0, 2)


def test_every_struct_is_in_the_tables_as_it_is_specified() -> None:
    tables = [
        SpecifiedStruct(
            packed.name,
            packed.code,
            packed.size_width,
            packed.pack,
            tuple((field.name, field.type_name) for field in packed.fields),
        )
        for packed in STRUCTS
    ]
    assert sorted(tables, key=str) == sorted(specification().structs, key=str)
    assert {packed.name for packed in RESULTS} < {packed.name for packed in STRUCTS}


def test_every_type_is_in_the_table_as_it_is_specified() -> None:
    tables = tuple(SpecifiedType(row.name, row.code, row.fixed, row.prefix) for row in TABLE)
    assert tables == specification().types


def test_the_tables_are_found_by_name_and_code() -> None:
    assert list(BY_NAME.values()) == list(ALL)
    assert list(CONTROL_BY_CODE) == [control.code for control in CONTROLS]
    assert list(COMMAND_BY_CODE) == [command.code for command in COMMANDS]
    for found in (BY_NAME, CONTROL_BY_CODE, COMMAND_BY_CODE):
        assert all(key in (command.name, command.code) for key, command in found.items())


def test_every_type_of_a_field_is_tried_here() -> None:
    used = {field.type_name for packed in [*STRUCTS, *(command.packed for command in ALL)] for field in packed.fields}
    assert used == set(BY_TYPE)


# ---- known bytes, made by hand from the specification ----

XID = BranchId(0x01020304, b"global", b"b")
KNOWN = [
    ("connection.heartbeat", False, {}, "010a 0000"),
    (
        "connection.start",
        False,
        {"server_properties": EMPTY_MAP, "mechanisms": ("PLAIN",), "locales": ()},
        "0101 0700 00000004 00000000 0000000c 95 00000001 0005 504c41494e 00000005 95 00000000",
    ),
    (
        "connection.tune-ok",
        False,
        {"channel_max": 0x7FFF, "max_frame_size": 0xFFFF, "heartbeat": 120},
        "0106 0700 7fff ffff 0078",
    ),
    ("connection.open", False, {"virtual_host": "", "insist": True}, "0107 0500 00"),
    ("connection.close", False, {"reply_code": 501, "reply_text": "no"}, "010b 0300 01f5 02 6e6f"),
    ("session.attach", False, {"name": b"s\xff", "force": True}, "0201 0300 0002 73ff"),
    ("session.detached", False, {"name": b"s", "code": 3}, "0204 0300 0001 73 03"),
    ("session.command-point", False, {"command_id": 5, "command_offset": 0}, "0207 0300 00000005 0000000000000000"),
    ("session.completed", False, {"commands": ((0, 2), (4, 4))}, "020a 0100 0010 00000000 00000002 00000004 00000004"),
    ("session.completed", False, {"commands": (), "timely_reply": True}, "020a 0300 0000"),
    ("session.flush", False, {"expected": True, "completed": True}, "020c 0500"),
    ("execution.sync", True, {}, "0301 0101 0000"),
    (
        "execution.exception",
        False,
        {"error_code": 404, "command_id": 9, "class_code": 8, "command_code": 1, "description": "é"},
        "0303 0100 2f00 0194 00000009 08 01 0002 c3a9",
    ),
    (
        "message.transfer",
        True,
        {"destination": "amq.direct", "accept_mode": 1},
        "0401 0101 0300 0a 616d712e646972656374 01",
    ),
    ("message.accept", False, {"transfers": ((7, 9),)}, "0402 0100 0100 0008 00000007 00000009"),
    ("message.flow", False, {"destination": "d", "unit": 1, "value": 0xFFFFFFFF}, "040a 0100 0700 01 64 01 ffffffff"),
    (
        "message.subscribe",
        False,
        {"queue": "q", "exclusive": True, "resume_ttl": 1, "arguments": EMPTY_MAP},
        "0407 0100 d100 01 71 0000000000000001 00000004 00000000",
    ),
    (
        "dtx.start",
        False,
        {"xid": XID, "resume": True},
        "0602 0100 0500 00000011 0604 0700 01020304 06 676c6f62616c 01 62",
    ),
    ("queue.declare", True, {"queue": "q", "durable": True, "auto_delete": True}, "0801 0101 2900 01 71"),
    ("exchange.query", False, {"name": "x"}, "0703 0100 0100 01 78"),
    ("file.qos", False, {"global": True}, "0901 0100 0400"),
    ("file.return", False, {"reply_code": 312}, "090a 0100 0100 0138"),
]


@pytest.mark.parametrize(("name", "sync", "values", "known"), KNOWN)
def test_known_bytes(name: str, sync: bool, values: dict[str, Any], known: str) -> None:
    command = BY_NAME[name]
    payload = bytes.fromhex(known)
    assert encode(command, values, sync=sync).hex() == payload.hex()
    found, found_sync, found_values = decode(command, payload)
    assert (found, found_sync) == (command, sync)
    absent = {field.name: False if field.type_name == "bit" else None for field in command.packed.fields}
    assert found_values == absent | values
    assert list(found_values) == list(absent)


def test_known_results() -> None:
    raw = bytes.fromhex("0801 c500 01 71 00000003 00000001")
    values = {"queue": "q", "durable": True, "message_count": 3, "subscriber_count": 1}
    for name in ("queue.query", "queue-query-result"):
        assert encode_result(name, **values) == raw
    packed, found = decode_result(raw)
    assert packed is structs.QUEUE_QUERY_RESULT
    assert found == {"alternate_exchange": None, "exclusive": False, "auto_delete": False, "arguments": None} | values


def test_known_structs() -> None:
    values = {"message_id": uuid.UUID(int=5), "reply_to": ReplyTo(None, "k"), "application_headers": EMPTY_MAP}
    properties = bytes.fromhex("00000022 0403 0a01" + "00" * 15 + "05" + "0004 0200 01 6b" + "00000004 00000000")
    assert encode_struct(structs.MESSAGE_PROPERTIES, values) == properties
    found = decode_struct(structs.MESSAGE_PROPERTIES, b"ab" + properties + b"c", 2, 2 + len(properties))
    assert {name: value for name, value in found.items() if value is not None} == values
    # One flag byte and a size; and neither, where every field is there.
    assert encode_struct(structs.SESSION_HEADER, {"sync": True}) == b"\1\1"
    assert decode_struct(structs.SESSION_HEADER, b"\1\0") == {"sync": False}
    fragment = bytes.fromhex("00000007 0010 0000000000000001 0000000000000002")
    assert encode_struct(structs.COMMAND_FRAGMENT, {"command_id": 7, "byte_ranges": ((1, 2),)}) == fragment
    assert decode_struct(structs.COMMAND_FRAGMENT, fragment) == {"command_id": 7, "byte_ranges": ((1, 2),)}


# ---- round trips ----


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_controls_and_commands_come_back_as_they_were(name: str, data: st.DataObject) -> None:
    command = BY_NAME[name]
    values = data.draw(fields_of(command.packed))
    sync = not command.is_control and data.draw(st.booleans())
    payload = encode(command, values, sync=sync)
    assert decode(command, payload) == (command, sync, values)
    given_only = {name: value for name, value in values.items() if value is not None and value is not False}
    assert encode(command, given_only, sync=sync) == payload


@pytest.mark.parametrize("packed", STRUCTS, ids=lambda packed: packed.name)
@given(data=st.data())
def test_structs_come_back_as_they_were(packed: PackedStruct, data: st.DataObject) -> None:
    values = data.draw(fields_of(packed))
    before, after = data.draw(st.binary(max_size=5)), data.draw(st.binary(max_size=5))
    raw = encode_struct(packed, values)
    assert decode_struct(packed, raw) == values
    assert decode_struct(packed, before + raw + after, len(before), len(before) + len(raw)) == values


@pytest.mark.parametrize("packed", RESULTS, ids=lambda packed: packed.name)
@given(data=st.data())
def test_results_come_back_as_they_were(packed: PackedStruct, data: st.DataObject) -> None:
    values = data.draw(fields_of(packed))
    raw = encode_result(packed.name, **values)
    assert raw == encode_struct(packed, values)[4:]
    assert decode_result(raw) == (packed, values)
    carried = encode_command("execution.result", command_id=1, value=raw)
    assert decode_command(carried)[2] == {"command_id": 1, "value": raw}


def test_more_patterns_of_flags_than_are_kept_are_read_alike() -> None:
    packed = structs.DELIVERY_PROPERTIES
    decoder = FieldDecoder(packed)
    patterns = 1 << len(packed.fields)
    for pattern in [*range(patterns), *range(patterns)]:
        values: dict[str, Any] = {}
        for index, (name, type_name) in enumerate(packed.fields):
            present = bool(pattern >> index & 1)
            value = {"bit": True, "str8": name, "str16": name}.get(type_name, index)
            values[name] = value if present else False if type_name == "bit" else None
        raw = encode_struct(packed, values)
        assert decoder.decode(raw, 6, len(raw)) == values
    assert len(decoder) == MAX_PLANS


def test_messages_that_qpidd_stored(open_fixture: StoreOpener) -> None:
    """The frames of each stored message are read whole, and made again byte by byte."""
    coded = {packed.code: packed for packed in STRUCTS if packed.code is not None}
    messages = 0
    for file in written_files(open_fixture("legacy-a-clean").path):
        for record in records_of(file):
            raw = record.data[4 : 4 + int.from_bytes(record.data[:4], "big")]
            if not raw.startswith(b"\x0b\x01"):
                continue
            transfer = decode_frame(raw)
            assert transfer is not None
            header = decode_frame(raw, 12 + len(transfer.payload))
            assert header is not None
            assert (transfer.segment_type, header.segment_type) == (COMMAND, HEADER)
            command, sync, values = decode_command(transfer.payload)
            assert command.name == "message.transfer"
            segment = _reencode_segment(coded, header.payload)
            made = [encode_command(command.name, sync=sync, **values), segment]
            assert raw == b"".join(
                encode_frame(*frame[:4], payload) for frame, payload in zip((transfer, header), made, strict=True)
            )
            messages += 1
    assert messages == 154


def _reencode_segment(coded: dict[int, PackedStruct], segment: bytes) -> bytes:
    """A header segment, each struct of it decoded and encoded again."""
    parts, offset = [], 0
    while offset < len(segment):
        end = offset + 4 + int.from_bytes(segment[offset : offset + 4], "big")
        packed = coded[int.from_bytes(segment[offset + 4 : offset + 6], "big")]
        parts.append(encode_struct(packed, decode_struct(packed, segment, offset, end)))
        offset = end
    return b"".join(parts)


def test_decoded_values_belong_to_the_caller() -> None:
    first, second = (decode_command(encode_command("queue.purge", queue=queue))[2] for queue in ("a", "b"))
    assert (first, second) == ({"queue": "a"}, {"queue": "b"})
    second["queue"] = second["more"] = "c"
    assert decode_command(encode_command("queue.purge"))[2] == {"queue": None}
    assert decode_command(encode_command("queue.purge", queue="a"))[2] == {"queue": "a"}


# ---- what is taken ----


def test_plain_python_values_are_taken() -> None:
    arguments = {"qpid.max_count": 5, "x": ["a", None]}
    payload = encode_command("queue.declare", queue="q", arguments=arguments)
    assert decode_command(payload)[2]["arguments"] == typed_map(arguments)
    assert encode_control("session.attach", name="s") == encode_control("session.attach", name=b"s")
    assert encode_command("dtx.end", xid=(1, b"a", b"b")) == encode_command("dtx.end", xid=BranchId(1, b"a", b"b"))
    start = encode_control("connection.start", mechanisms=["PLAIN", "ANONYMOUS"], locales=["en_US"])
    assert decode_control(start)[1]["mechanisms"] == ("PLAIN", "ANONYMOUS")


def test_controls_have_a_limit_of_values() -> None:
    few = typed_map({str(n): n for n in range(MAX_VALUES)})
    assert decode_control(encode_control("connection.start-ok", client_properties=few))[1]["client_properties"] == few
    many = encode_control(
        "connection.start-ok", client_properties=typed_map({str(n): n for n in range(MAX_VALUES + 1)})
    )
    with pytest.raises(TooManyValuesError):
        decode_control(many)
    for end in (MAX_VALUES + 1, len(many) - 1):
        with pytest.raises(Amqp010Error):
            decode_control(many[:end])


def test_names_that_are_not_utf8_come_back() -> None:
    queue = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert decode_command(encode_command("queue.purge", queue=queue))[2] == {"queue": queue}
    hosts = encode_control("connection.open-ok", known_hosts=[queue])
    assert b"caf\xe9" in hosts
    assert decode_control(hosts)[1] == {"known_hosts": (queue,)}


@pytest.mark.parametrize("array", ["00000000", "00000005 f0 00000000", "00000005 31 00000000"])
def test_empty_array_of_any_type_is_empty_text(array: str) -> None:
    assert decode_control(bytes.fromhex("0108 0100" + array))[1] == {"known_hosts": ()}


@pytest.mark.parametrize("array", ["00000008 80 00000001 02 6869", "00000009 90 00000001 0002 6869",
                                   "00000008 85 00000001 02 6869"])  # fmt: skip
def test_an_array_of_any_short_text_or_bytes_is_text(array: str) -> None:
    """Clients that do not tell text from bytes send what they have: the Python client under Python 2."""
    assert decode_control(bytes.fromhex("0108 0100" + array))[1] == {"known_hosts": ("hi",)}


# ---- what is refused ----


@pytest.mark.parametrize(
    ("what", "payload"),
    [
        ("unknown control code", ""),
        ("unknown control code", "01"),
        ("unknown control code", "0100 0000"),
        ("unknown control code", "010d 0000"),
        ("unknown control code", "0301 0000"),  # a command
        ("undefined flags", "010a"),
        ("undefined flags", "010a 00"),
        ("undefined flags", "010a 0100"),
        ("undefined flags", "020a 0400"),
        ("undefined flags", "020a 0001"),
        ("2 bytes follow", "010a 0000 0000"),
        ("ends within channel_max", "0106 0700 7f"),
        ("ends within max_frame_size", "0106 0700 7fff"),
        ("ends within virtual_host", "0107 0100 05 61"),
        ("ends within name", "0202 0100 0005 61"),
        ("not complete pairs", "020b 0100 0004 00000000"),
        ("ends within commands", "020b 0100 00"),
        ("array of str16 contains", "0108 0100 0000000d 31 00000001 0000000000000001"),
        ("vbin32 needs", "0103 0100 ffffffff 61"),
        ("map needs", "0101 0100 ffffffff 00000000"),
    ],
)
def test_invalid_control_is_refused(what: str, payload: str) -> None:
    with pytest.raises(Amqp010Error, match=what) as caught:
        decode_control(bytes.fromhex(payload))
    assert 0 <= caught.value.offset <= len(bytes.fromhex(payload))


@pytest.mark.parametrize(
    ("what", "payload"),
    [
        ("unknown command code", ""),
        ("unknown command code", "010a 0000"),  # a control
        ("unknown command code", "0304 0100 0000"),
        ("not a session header", "0301"),
        ("not a session header", "0301 01"),
        ("not a session header", "0301 0000 0000"),
        ("not a session header", "0301 0102 0000"),
        ("not a session header", "0301 0200 0000"),
        ("undefined flags", "0301 0100"),
        ("undefined flags", "0402 0100 0200"),
        ("1 bytes follow", "0301 0101 0000 00"),
        ("xid extends beyond", "0605 0100 0100 000000ff 0604 0000"),
        ("not that of xid", "0605 0100 0100 00000004 0603 0000"),
        ("header", "0605 0100 0100 00000001 0604 0000"),
        ("undefined flags", "0605 0100 0100 00000004 0604 0800"),
        ("follow the fields of xid", "0605 0100 0100 00000006 0604 0000 0000"),
        ("vbin8 needs", "0605 0100 0100 00000006 0604 0200 05 61"),
    ],
)
def test_invalid_command_is_refused(what: str, payload: str) -> None:
    with pytest.raises(Amqp010Error, match=what):
        decode_command(bytes.fromhex(payload))


@pytest.mark.parametrize("raw", ["", "08", "0802 0000", "0403 0000", "0801", "0801 0000 00", "0801 8000 000000"])
def test_invalid_result_is_refused(raw: str) -> None:
    with pytest.raises(Amqp010Error):
        decode_result(bytes.fromhex(raw))


@pytest.mark.parametrize(
    ("raw", "offset", "end"),
    [
        ("00000004 0604 0000", 0, 7),
        ("00000004 0604 0000", 0, 9),
        ("00000004 0604 0000", 5, None),
        ("00000004 0604 0000", -8, None),
        ("00000005 0604 0000", 0, None),
        ("00000003 0604 0000", 0, None),
        ("00000002 0604", 0, None),
        ("", 0, None),
    ],
)
def test_invalid_struct_is_refused(raw: str, offset: int, end: int | None) -> None:
    with pytest.raises(Amqp010Error):
        decode_struct(structs.XID, bytes.fromhex(raw), offset, end)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queue.nothing", {}),
        ("connection.heartbeat", {}),
        ("queue.declare", {"name": "q"}),
        ("queue.declare", {"queue": "x" * 256}),
        ("queue.declare", {"queue": "\ud800"}),
        ("queue.declare", {"queue": 5}),
        ("queue.declare", {"arguments": 5}),
        ("queue.declare", {"arguments": [("a", 1)]}),
        ("queue.declare", {"arguments": {5: 1}}),
        ("queue.declare", {"arguments": {"a": {1, 2}}}),
        ("message.flow", {"unit": 256}),
        ("message.flow", {"unit": -1}),
        ("message.flow", {"value": "1"}),
        ("message.flow", {"value": 2**32}),
        ("message.accept", {"transfers": 5}),
        ("message.accept", {"transfers": ((1,),)}),
        ("message.accept", {"transfers": ((1, 2**32),)}),
        ("message.accept", {"transfers": ((1, 2),) * 8192}),
        ("dtx.forget", {"xid": 5}),
        ("dtx.forget", {"xid": (1, b"")}),
        ("dtx.forget", {"xid": (1, b"", bytes(256))}),
        ("execution.result", {"value": 5}),
    ],
)
def test_commands_that_cannot_be_encoded_are_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(Amqp010Error):
        encode_command(name, **values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("execution.sync", {}),
        ("connection.nothing", {}),
        ("connection.heartbeat", {"sync": True}),
        ("connection.start", {"mechanisms": "PLAIN"}),
        ("connection.start", {"mechanisms": [5]}),
        ("connection.start", {"mechanisms": 5}),
        ("connection.start", {"mechanisms": ["x" * 65536]}),
        ("session.expected", {"fragments": [1]}),
        ("session.expected", {"fragments": coded_array(0x31, ("x",))}),
        ("session.expected", {"fragments": TypedMap()}),
    ],
)
def test_controls_that_cannot_be_encoded_are_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(Amqp010Error):
        encode_control(name, **values)


def test_results_and_structs_that_cannot_be_encoded_are_refused() -> None:
    for name in ("execution.sync", "message-properties"):
        with pytest.raises(Amqp010Error, match="no command or result"):
            encode_result(name)
    with pytest.raises(Amqp010Error, match="every field"):
        encode_struct(structs.COMMAND_FRAGMENT, {"command_id": 7})
    with pytest.raises(Amqp010Error, match="no field a, b"):
        encode_struct(structs.XID, {"b": None, "a": None})


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=5), st.booleans())
def test_completed_is_encoded_as_any_control(ranges: list[tuple[int, int]], timely_reply: bool) -> None:
    expected = encode_control("session.completed", commands=ranges, timely_reply=timely_reply)
    assert encode_completed(ranges, timely_reply=timely_reply) == expected


def test_completed_of_too_many_ranges() -> None:
    with pytest.raises(Amqp010Error):
        encode_completed([(1, 2)] * 8192, timely_reply=False)
    with pytest.raises(Amqp010Error):
        encode_completed([(1, 1 << 32)], timely_reply=False)


# ---- the enumerations of AMQP 0-10 against the specification ----


ENUMERATIONS: dict[str, type[IntEnum]] = {
    "connection.close-code": codes.CloseCode,
    "session.detach-code": codes.DetachCode,
    "execution.error-code": codes.ErrorCode,
    "message.accept-mode": codes.AcceptMode,
    "message.acquire-mode": codes.AcquireMode,
    "message.reject-code": codes.RejectCode,
    "message.delivery-mode": codes.DeliveryMode,
    "message.delivery-priority": codes.DeliveryPriority,
    "message.flow-mode": codes.FlowMode,
    "message.credit-unit": codes.CreditUnit,
    "dtx.xa-status": codes.XaStatus,
    "file.return-code": codes.ReturnCode,
    "stream.return-code": codes.ReturnCode,
}

OF_FRAMES = {
    "segment-type": {
        "control": frames.CONTROL,
        "command": frames.COMMAND,
        "header": frames.HEADER,
        "body": frames.BODY,
    },
    "track": {"control": frames.TRACK_CONTROL, "command": frames.TRACK_COMMAND},
}


def test_every_choice_of_the_specification_is_there() -> None:
    assert set(ENUMERATIONS) | set(OF_FRAMES) == set(specification().choices)
    defined = {
        value for value in vars(codes).values() if isinstance(value, type) and value.__module__ == codes.__name__
    }
    assert defined == set(ENUMERATIONS.values())


@pytest.mark.parametrize("domain", ENUMERATIONS)
def test_names_and_numbers_are_the_specifications(domain: str) -> None:
    members = [(member.name.lower().replace("_", "-"), member.value) for member in ENUMERATIONS[domain]]
    assert members == list(specification().choices[domain].items())


def test_segment_types_tracks_and_the_smallest_maximum_are_the_specifications() -> None:
    for domain, numbers in OF_FRAMES.items():
        assert numbers == specification().choices[domain]
    assert specification().constants == {"MIN-MAX-FRAME-SIZE": frames.MIN_MAX_FRAME_SIZE}
