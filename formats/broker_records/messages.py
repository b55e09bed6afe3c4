"""The message inside an enqueue record: `u32 header size | header | content`.

The header is decoded without the content, which may be large. It is that of a 0-10 message (its frames), or of a 0-9-1
message (`amqp_0_9_1_messages`), or a whole message of 1.0 (`amqp_1_0_messages`), distinguished by its first u32
(`formats/broker_records/README.md`, 1.1 to 1.7).
`formats.amqp_0_10.structs` has the fields as tables.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from qstore.formats.amqp_0_10.structs import (
    DELIVERY_PROPERTIES,
    MESSAGE_PROPERTIES,
    MESSAGE_TRANSFER,
    PackedStruct,
    Reader,
    encode_struct,
    known_flags,
    make_plan,
)
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.amqp_0_9_1_messages import MARK, decode_basic
from qstore.formats.broker_records.amqp_1_0_messages import MARK as SECTIONS_MARK
from qstore.formats.broker_records.amqp_1_0_messages import decode_sections
from qstore.formats.broker_records.message_header import MessageHeader, UnknownStruct
from qstore.formats.errors import BrokerRecordError

#: Bytes of the header size in front of every stored message.
HEADER_SIZE_BYTES: Final = 4

_FRAME: Final = struct.Struct(">BBHBBHI")
_METHOD_SEGMENT: Final = 1
_HEADER_SEGMENT: Final = 2
_FIRST_SEGMENT, _LAST_SEGMENT, _WHOLE_SEGMENT = 0x08, 0x04, 0x03
_TRANSFER: Final = 0x0401
_TRACK: Final = 1

_read_size: Final = struct.Struct(">I").unpack_from
# segment type, frame size; then class and code, the session header's length, (its sync bit), and the flags
_read_method_frame: Final = struct.Struct(">xBH8xHBxH").unpack_from
_METHOD_BYTES: Final = 18
# segment type, frame size
_read_frame: Final = struct.Struct(">xBH8x").unpack_from
_read_frame_and_struct_head: Final = struct.Struct(">xBH8xII").unpack_from
# size, then code and flags
_read_struct_head: Final = struct.Struct(">II").unpack_from

_STRUCTS: Final = {0x0401: DELIVERY_PROPERTIES, 0x0403: MESSAGE_PROPERTIES}
_MESSAGE_PROPERTIES_CODE: Final = 0x0403
_ALIKE_LIMIT: Final = 512  # maximum size of a cached transfer and its structs
_NO_FIELDS: Final[Mapping[str, Any]] = {}

# Where the readers put a field: its index in a MessageHeader. The types of the headers follow the headers.
_PLACE_OF: Final = {name: place for place, name in enumerate(MessageHeader._fields)} | {
    "application_headers": MessageHeader._fields.index("headers")
}
_EXCHANGE: Final = _PLACE_OF["exchange"]
_DESTINATION: Final = _PLACE_OF["destination"]
_HEADERS: Final = _PLACE_OF["headers"]
_HEADER_TYPES: Final = _PLACE_OF["header_types"]
_MESSAGE_PROPERTIES_PLACES: Final = tuple(_PLACE_OF[field.name] for field in MESSAGE_PROPERTIES.fields)
_UNKNOWN_STRUCTS: Final = _PLACE_OF["unknown_structs"]

# The fields of an empty MessageHeader, except for the headers, which get new dictionaries.
_BLANK_VALUES: Final[dict[str, Any]] = {
    "protocol": "0-10",
    "discard_unroutable": False,
    "immediate": False,
    "redelivered": False,
    "unknown_structs": (),
}
_BLANK: Final = tuple(_BLANK_VALUES.get(name) for name in MessageHeader._fields)
_new_tuple: Final = tuple.__new__


# ---------------------------------------------------------------------------------------------- decoding


def header_size(prefix: bytes) -> int:
    """Size of the header of a stored message in bytes; the content begins at 4 + that.

    Args:
        prefix: the first four bytes of the record's data, or more.

    Raises:
        BrokerRecordError: there are fewer than four.
    """
    if len(prefix) < HEADER_SIZE_BYTES:
        raise BrokerRecordError(f"a message of {len(prefix):,} bytes has no room for its header size", len(prefix))
    size: int = _read_size(prefix)[0]
    return size


def frames_problem(prefix: bytes, size: int) -> str | None:
    """A quick check of the frames in front of a stored message; returns the problem, None if they are valid.

    Sizes and segment types are checked, but no fields: a tenth of the cost of `decode_message_header`.

    Args:
        prefix: the first bytes of the record's data, at least the header.
        size: size of all the data in bytes.
    """
    try:
        (header,) = _read_size(prefix)
        end = HEADER_SIZE_BYTES + header
        if end > size:
            return f"a header of {header:,} bytes in {size:,} bytes of data"
        segment, frame = _read_frame(prefix, HEADER_SIZE_BYTES)
        if not prefix[4] and not segment and not frame:
            return None  # AMQP 1.0
        if prefix[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + len(MARK)] in (MARK, SECTIONS_MARK):
            return None  # AMQP 0-9-1, or 1.0 as this broker stores it
        if segment != _METHOD_SEGMENT:
            return f"the first frame is of type {segment}, not a method"
        if frame == header:
            return None
        segment, second = _read_frame(prefix, HEADER_SIZE_BYTES + frame)
    except struct.error:
        return f"{size:,} bytes of data do not contain the frames of a message"
    if segment != _HEADER_SEGMENT or frame + second != header:
        return f"frames of {frame} and {second} bytes in a header of {header}"
    return None


def decode_message_header(header: bytes) -> MessageHeader:
    """Decode the header of a stored message.

    Args:
        header: the `header_size` bytes that follow the size.

    Raises:
        BrokerRecordError: it is not the header of a message; the offset is within `header`.
    """
    begin = header[: len(MARK)]
    if begin in (b"\0\0\0\0", SECTIONS_MARK):
        return decode_sections(header)
    if begin == MARK:
        return decode_basic(header)
    values = _decode_cached(header) or _decode_fully(header)
    if values[_EXCHANGE] is None:
        values[_EXCHANGE] = values[_DESTINATION] or ""
    if values[_HEADERS] is None:
        values[_HEADERS], values[_HEADER_TYPES] = {}, {}
    return _new_tuple(MessageHeader, values)


def _decode_fully(header: bytes) -> list[Any]:
    """Decode a 0-10 header completely, without the cache."""
    values = list(_BLANK)
    try:
        end = _read_transfer(values, header)
        if end != len(header):
            segment, size = _read_frame(header, end)
            if segment != _HEADER_SEGMENT or end + size != len(header):
                raise BrokerRecordError(f"a frame of type {segment} and {size:,} bytes is not a header frame", end)
            _read_properties(values, header, end + _FRAME.size)
    except (IndexError, struct.error):
        raise BrokerRecordError("the header ends within a field", len(header)) from None
    except Amqp010Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
    return values


def _decode_cached(header: bytes) -> list[Any] | None:
    """Decode a header that begins with message-properties and whose other parts are in the cache.

    The messages of a queue differ in their message-properties (message id, headers), which most clients send first,
    while transfer and delivery-properties (exchange, routing key, delivery mode) are usually the same byte for byte.
    None: the header is not of that kind, or invalid.
    """
    try:
        transfer_end = header[2] << 8 | header[3]
        segment, size, struct_size, code_and_flags = _read_frame_and_struct_head(header, transfer_end)
        struct_at = transfer_end + _FRAME.size
        rest_at = struct_at + 4 + struct_size
        length = len(header)
        if (
            code_and_flags >> 16 != _MESSAGE_PROPERTIES_CODE
            or segment != _HEADER_SEGMENT
            or transfer_end + size != length
            or rest_at > length
            or transfer_end + length - rest_at > _ALIKE_LIMIT
        ):
            return None
        values = list(_decode_common(header[:transfer_end], header[rest_at:]))
        plan = _plan_struct(code_and_flags)
        offset = struct_at + 8
        if plan is None or struct_size < 4:
            return None
        for read in plan:
            offset = read(values, header, offset)
        return values if offset == rest_at else None
    except (IndexError, struct.error, Amqp010Error, BrokerRecordError):
        return None  # `_decode_fully` finds the error and its offset


@lru_cache(maxsize=512)
def _decode_common(transfer: bytes, structs: bytes) -> tuple[Any, ...]:
    """Decode a method frame and the structs after message-properties."""
    values = list(_BLANK)
    if _read_transfer(values, transfer) != len(transfer):
        raise BrokerRecordError("message.transfer is followed by another command", len(transfer))
    _read_properties(values, structs, 0)
    if values[_UNKNOWN_STRUCTS] or any(values[place] is not None for place in _MESSAGE_PROPERTIES_PLACES):
        raise BrokerRecordError("not common to messages")
    return tuple(values)


def _read_transfer(values: list[Any], header: bytes) -> int:
    """Decode the method frame; returns its end."""
    end: int
    segment, end, command, session_bytes, flags = _read_method_frame(header)
    if segment != _METHOD_SEGMENT or command != _TRANSFER or session_bytes != 1:
        raise BrokerRecordError("the first frame is not a message.transfer")
    offset = _METHOD_BYTES
    for read in _plan_transfer(flags):
        offset = read(values, header, offset)
    if offset != end:
        raise BrokerRecordError(f"message.transfer does not end with its frame of {end} bytes")
    return end


def _read_properties(values: list[Any], header: bytes, offset: int) -> None:
    """Decode the structs of the header frame, from `offset` to the header's end."""
    header_end = len(header)
    unknown: list[UnknownStruct] = []
    while offset < header_end:
        size, code_and_flags = _read_struct_head(header, offset)
        end: int = offset + 4 + size
        plan = _plan_struct(code_and_flags)
        if size < 4 or end > header_end:
            raise BrokerRecordError(f"a struct of {size:,} bytes does not fit the header frame", offset)
        if plan is None:
            unknown.append(UnknownStruct(code_and_flags >> 16, offset, 4 + size))
            offset = end
            continue
        field_offset = offset + 8
        for read in plan:
            field_offset = read(values, header, field_offset)
        if field_offset != end:
            _check_struct_end(offset, code_and_flags, field_offset, end)
        offset = end
    if unknown:
        values[_UNKNOWN_STRUCTS] = tuple(unknown)


def _check_struct_end(offset: int, code_and_flags: int, field_offset: int, end: int) -> None:
    """If a struct's known fields do not end where its size says, it is valid only with unknown ones after them."""
    packed = _STRUCTS[code_and_flags >> 16]
    unknown_flags = code_and_flags & 0xFFFF & ~known_flags(packed)
    if field_offset > end or not unknown_flags:
        raise BrokerRecordError(f"{packed.name} does not end where its size says", offset)


@lru_cache(maxsize=8)
def _plan_transfer(flags: int) -> tuple[Reader, ...]:
    return make_plan(MESSAGE_TRANSFER, flags, _PLACE_OF)


@lru_cache(maxsize=1024)
def _plan_struct(code_and_flags: int) -> tuple[Reader, ...] | None:
    """The readers for a struct with this code and these flags, None for an unknown struct."""
    packed = _STRUCTS.get(code_and_flags >> 16)
    return None if packed is None else make_plan(packed, code_and_flags & 0xFFFF, _PLACE_OF)


def struct_of(code: int) -> PackedStruct | None:
    """The struct with this code in a header segment; None if it is skipped as unknown."""
    return _STRUCTS.get(code)


def header_structs(header: bytes) -> bytes:
    """The structs in the header of a stored 0-10 message; empty for none. Raises BrokerRecordError."""
    try:
        _, size = _read_frame(header, 0)
        if size >= len(header):
            return b""
        segment, rest = _read_frame(header, size)
    except struct.error:
        raise BrokerRecordError("the header ends within a frame", len(header)) from None
    if segment != _HEADER_SEGMENT or size + rest != len(header):
        raise BrokerRecordError("the header does not consist of a method and a header frame")
    return header[size + _FRAME.size :]


# ---------------------------------------------------------------------------------------------- encoding


def encode_message(
    content: bytes,
    *,
    destination: str | None = "",
    delivery_properties: Mapping[str, Any] = _NO_FIELDS,
    message_properties: Mapping[str, Any] = _NO_FIELDS,
    channel: int = 0,
    sync: bool = False,
    last_segment: bool | None = None,
) -> bytes:
    """The data of an enqueue record for a 0-10 message, as qpidd stores a client's message.

    Args:
        content: the message's body.
        destination: of the transfer; the exchange must also be in the delivery properties, where the broker puts it on
            receipt.
        delivery_properties: field name (`structs.DELIVERY_PROPERTIES`) -> value.
        message_properties: field name (`structs.MESSAGE_PROPERTIES`) -> value.
        channel: channel of the transfer.
        sync: the transfer's sync bit.
        last_segment: whether the header frame is marked as the last segment; None to derive it from missing content.
            A client that sends an empty body has sent False.

    Raises:
        BrokerRecordError: a value does not fit its field, or the fields do not fit a frame.
    """
    try:
        structs = encode_struct(MESSAGE_PROPERTIES, message_properties) if message_properties else b""
        structs += encode_struct(DELIVERY_PROPERTIES, delivery_properties) if delivery_properties else b""
    except Amqp010Error as error:
        raise BrokerRecordError(error.what) from error
    return frame_message(
        structs, content, destination=destination, channel=channel, sync=sync, last_segment=last_segment
    )


def frame_message(
    structs: bytes,
    content: bytes,
    *,
    destination: str | None = "",
    channel: int = 0,
    sync: bool = False,
    last_segment: bool | None = None,
) -> bytes:
    """As `encode_message`, for the encoded structs of a header segment. Raises BrokerRecordError."""
    try:
        transfer = encode_struct(MESSAGE_TRANSFER, {"destination": destination})
    except Amqp010Error as error:
        raise BrokerRecordError(error.what) from error
    method = _TRANSFER.to_bytes(2, "big") + bytes([1, sync]) + transfer
    method_frame = _encode_frame(_FIRST_SEGMENT, _METHOD_SEGMENT, channel, method)
    is_last = not content if last_segment is None else last_segment
    header_frame = _encode_frame(_LAST_SEGMENT if is_last else 0, _HEADER_SEGMENT, channel, structs)
    size = len(method_frame) + len(header_frame)
    return b"".join([size.to_bytes(HEADER_SIZE_BYTES, "big"), method_frame, header_frame, content])


def _encode_frame(segment_flags: int, segment_type: int, channel: int, payload: bytes) -> bytes:
    size = _FRAME.size + len(payload)
    if size > 0xFFFF:
        raise BrokerRecordError(f"{len(payload):,} bytes do not fit a frame")
    flags = segment_flags | _WHOLE_SEGMENT
    return _FRAME.pack(flags, segment_type, size, 0, _TRACK, channel, 0) + payload
