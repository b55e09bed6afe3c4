"""AMQP 0-10 under hostile bytes and values: a clear refusal or a value that encodes again, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10.commands import (
    BY_NAME,
    COMMANDS,
    CONTROLS,
    Command,
    decode_command,
    decode_control,
    decode_result,
    decode_struct,
    encode_command,
    encode_control,
    encode_result,
)
from qstore.formats.amqp_0_10.frames import FRAME, decode_frame, encode_command_frames, encode_frame
from qstore.formats.amqp_0_10.structs import (
    COMMAND_FRAGMENT,
    DELIVERY_PROPERTIES,
    FILE_PROPERTIES,
    FRAGMENT_PROPERTIES,
    MESSAGE_PROPERTIES,
    REPLY_TO,
    STREAM_PROPERTIES,
    XID,
    PackedStruct,
    encode_struct,
)
from qstore.formats.amqp_0_10.types import Amqp010Error
from tests.formats.amqp_0_10_values import RESULTS, fields_of
from tests.support.profiles import examples

STRUCTS = (
    COMMAND_FRAGMENT, DELIVERY_PROPERTIES, FILE_PROPERTIES, FRAGMENT_PROPERTIES, MESSAGE_PROPERTIES, REPLY_TO,
    STREAM_PROPERTIES, XID,
)  # fmt: skip
ODD_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
    | st.lists(st.integers() | st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.integers(), st.integers() | st.just({1}), max_size=2)
    | st.tuples(st.tuples(st.integers(), st.integers()))
    | st.builds(object) | st.just("\ud800") | st.just("x" * 70_000)
)  # fmt: skip


def mutations(raw: bytes) -> st.SearchStrategy[bytes]:
    """`raw` with some bytes changed, put in or taken out, and perhaps cut short."""
    change = st.tuples(st.integers(0, max(len(raw) - 1, 0)), st.integers(0, 2), st.sampled_from([0, 1, 2, 4, 127, 255])
                       | st.integers(0, 255))  # fmt: skip

    def apply(changes: list[tuple[int, int, int]], length: int) -> bytes:
        changed = bytearray(raw)
        for position, kind, value in changes:
            changed[position : position + (kind != 1)] = b"" if kind == 2 else bytes([value])
        return bytes(changed[:length])

    return st.builds(apply, st.lists(change, max_size=4), st.integers(0, len(raw) + 4))


def decode_or_refuse(decode: Callable[[bytes], Any], raw: bytes) -> Any:
    """What `decode` makes of the bytes, None for a refusal; anything else raised is a bug."""
    try:
        return decode(raw)
    except Amqp010Error as error:
        refusal = error
    assert 0 <= refusal.offset <= len(raw), refusal
    return None


def check_payload(raw: bytes) -> None:
    """As a control and as a command: refused, or the values are whole and can be sent again."""
    as_control = decode_or_refuse(decode_control, raw)
    if as_control is not None:
        control, values = as_control
        again = encode_control(control.name, **values)
        assert str(decode_control(again)) == str(as_control)
    as_command = decode_or_refuse(decode_command, raw)
    if as_command is not None:
        command, sync, values = as_command
        again = encode_command(command.name, sync=sync, **values)
        assert str(decode_command(again)) == str(as_command)
    assert as_control is None or as_command is None


@examples(600)
@given(st.data())
def test_hostile_payloads_are_read_or_refused(data: st.DataObject) -> None:
    command: Command = data.draw(st.sampled_from(CONTROLS + COMMANDS))
    values = data.draw(fields_of(command.packed))
    payload = encode_control(command.name, **values) if command.is_control else encode_command(command.name, **values)
    check_payload(data.draw(mutations(payload)))


@given(st.sampled_from(CONTROLS + COMMANDS), st.binary(max_size=40))
def test_any_bytes_after_a_code_are_read_or_refused(command: Command, raw: bytes) -> None:
    code = command.code.to_bytes(2, "big")
    for hostile in (raw, code + raw, code + b"\1\0" + raw, code + b"\1\0\xff\0" + raw, code + b"\xff\0" + raw):
        check_payload(hostile)


@examples(300)
@given(st.data())
def test_hostile_results_are_read_or_refused(data: st.DataObject) -> None:
    packed: PackedStruct = data.draw(st.sampled_from(RESULTS))
    raw = encode_result(packed.name, **data.draw(fields_of(packed)))
    found = decode_or_refuse(decode_result, data.draw(mutations(raw)))
    if found is not None:
        assert str(decode_result(encode_result(found[0].name, **found[1]))) == str(found)


@examples(300)
@given(st.data())
def test_hostile_structs_are_read_or_refused(data: st.DataObject) -> None:
    packed: PackedStruct = data.draw(st.sampled_from(STRUCTS))
    raw = data.draw(mutations(encode_struct(packed, data.draw(fields_of(packed)))))
    found = decode_or_refuse(lambda hostile: decode_struct(packed, hostile), raw)
    if found is not None:
        assert str(decode_struct(packed, encode_struct(packed, found))) == str(found)


@given(st.data())
def test_no_truncation_of_a_payload_passes_for_a_whole_one(data: st.DataObject) -> None:
    command: Command = data.draw(st.sampled_from(COMMANDS))
    payload = encode_command(command.name, **data.draw(fields_of(command.packed)))
    for length in range(len(payload)):
        with pytest.raises(Amqp010Error):
            decode_command(payload[:length])


@examples(300)
@given(st.data())
def test_hostile_frames_are_read_or_refused(data: st.DataObject) -> None:
    contents = st.binary(max_size=60)
    sent = encode_command_frames(3, data.draw(contents), data.draw(contents), data.draw(contents), 40)
    raw = data.draw(mutations(b"".join(sent)))
    offset = 0
    while True:
        frame = decode_or_refuse(partial(decode_frame, offset=offset, max_frame=40), raw)
        if frame is None:
            break
        end = offset + FRAME.size + len(frame.payload)
        assert encode_frame(*frame) == raw[offset:end]
        offset = end
    assert offset <= len(raw)


@examples(300)
@given(st.data())
def test_values_of_any_kind_are_encoded_or_refused(data: st.DataObject) -> None:
    command: Command = data.draw(st.sampled_from(CONTROLS + COMMANDS))
    names = [field.name for field in command.packed.fields]
    values: dict[str, Any] = {name: data.draw(ODD_VALUES) for name in names}
    encode: Callable[..., bytes] = encode_control if command.is_control else encode_command
    decode: Callable[[bytes], Any] = decode_control if command.is_control else decode_command
    try:
        payload = encode(command.name, **values)
    except Amqp010Error:
        return
    assert set(decode(payload)[-1]) == set(names)


# A size or a count that claims gigabytes, in each kind of field that has one.
FORGED = [
    ("connection.start", "0101 0100 ffffffff ffffffff"),
    ("connection.start", "0101 0100 00000004 ffffffff"),
    ("connection.start", "0101 0200 ffffffff 95 ffffffff"),
    ("connection.start", "0101 0200 00000005 95 ffffffff"),
    ("connection.start", "0101 0200 00000005 f0 ffffffff"),
    ("connection.secure", "0103 0100 ffffffff"),
    ("session.expected", "0208 0200 00000005 f1 ffffffff"),
    ("session.expected", "0208 0200 00000005 aa 0000ffff"),
    ("session.completed", "020a 0100 fff8"),
    ("execution.result", "0302 0100 0200 ffffffff"),
    ("execution.exception", "0303 0100 4000 ffffffff 00000001"),
    ("dtx.start", "0602 0100 0100 ffffffff 0604 0700"),
    ("queue.declare", "0801 0100 4000 0000000b 00000001 01 61 a9 ffffffff"),
    ("queue.declare", "0801 0100 4000 0000000f 00000001 01 61 a9 00000004 ffffffff"),
]


@pytest.mark.parametrize(("name", "payload"), FORGED)
def test_forged_sizes_and_counts_take_no_memory(name: str, payload: str) -> None:
    raw = bytes.fromhex(payload)
    decode: Callable[[bytes], Any] = decode_control if BY_NAME[name].is_control else decode_command
    decode_or_refuse(decode, raw)  # makes the plan, which is kept
    tracemalloc.start()
    try:
        with pytest.raises(Amqp010Error):
            decode(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000


@pytest.mark.parametrize("name", ["queue.declare", "message.subscribe", "exchange.bind"])
def test_nesting_without_end_is_refused(name: str) -> None:
    value = b""
    for _ in range(3000):
        inner = b"\0\0\0\1\xa9" + value if value else b""
        value = len(inner).to_bytes(4, "big") + inner
    entry = b"\1a\xa9" + value
    arguments = (4 + len(entry)).to_bytes(4, "big") + b"\0\0\0\1" + entry
    empty = encode_command(name, arguments={})
    with pytest.raises(Amqp010Error, match="nested more than"):
        decode_command(empty[:6] + arguments)
