"""The kernels in Python: no loop looks at single bytes, and the part common to all messages is made once."""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FIXED_SIZE, HEADER_2, record_blocks
from qstore.formats.rhm.records import PADDING, SALT, TAIL

MAX_COUNT: Final = 1 << 24  # messages of one call

_MAX_U32: Final = (1 << 32) - 1
_MAX_U64: Final = (1 << 64) - 1
_TAG: Final = struct.Struct(">Q")


def count_alike(data: bytes, at: int, end: int, prefix: bytes, stride: int, end_byte: int) -> int:
    """The number of consecutive messages of a buffer that begin and end alike.

    Args:
        data: the buffer.
        at: where the first of them begins.
        end: all of them end here, or before.
        prefix: the bytes with which each begins; at most `stride`.
        stride: bytes of each.
        end_byte: the byte with which each ends; any, if 0.

    Raises:
        ValueError: this is not a range of the buffer, or there is no such message.
    """
    if not 0 <= at <= end <= len(data):
        raise ValueError(f"no range of {len(data)} bytes: {at} to {end}")
    if not max(len(prefix), 1) <= stride or not 0 <= end_byte <= 0xFF:
        raise ValueError(f"no message of {stride} bytes begins with {len(prefix)} and ends with byte {end_byte}")
    count = (end - at) // stride
    if end_byte and count:
        last = data[at + stride - 1 : at + count * stride : stride]
        count -= len(last.lstrip(bytes([end_byte])))
    stop = at + count * stride
    startswith = data.startswith
    for begin in range(at, stop, stride):
        if not startswith(prefix, begin):
            return (begin - at) // stride
    return count


def encode_records(
    first_word: int,
    rid: int,
    low_number: int,
    head: bytes,
    head_crc: int,
    data: bytes,
    at: int,
    stride: int,
    size: int,
    count: int,
    salt: bytes,
) -> bytes:
    """The version-2 records that enqueue the messages of a run, outside of transactions.

    Args:
        first_word: the first word of their headers.
        rid: the record id of the first; those of the others follow.
        low_number: the low half of their flush's number.
        head: the bytes before the body in each message's data.
        head_crc: its `data_crc`.
        data: the buffer with the bodies.
        at: where the first of them begins.
        stride: bytes from one to the next.
        size: bytes of each.
        count: their number.
        salt: the salt of the file in which they begin.

    Raises:
        ValueError: the run is not in the buffer.
        OverflowError: a number does not fit into its field.
    """
    _check_run(data, at, stride, size, count)
    _check_numbers(first_word, rid, low_number, count, salt)
    if not 0 <= head_crc <= _MAX_U32:
        raise OverflowError(f"no CRC-32C: {head_crc}")
    stored = len(head) + size
    padding = PADDING * (record_blocks(stored) * BLOCK_SIZE - FIXED_SIZE - stored)
    pack, pack_tail, check = HEADER_2.pack, TAIL.pack, extend_crc32c
    pieces: list[bytes] = []
    for begin in range(at, at + count * stride, stride):
        body = data[begin : begin + size]
        header = pack(first_word, rid, 0, low_number, stored)
        pieces += (header, head, body, pack_tail(check(head_crc, body + header + salt), rid), padding)
        rid += 1
    return b"".join(pieces)


def encode_dequeues(first_word: int, rid: int, low_number: int, target: int, count: int, salt: bytes) -> bytes:
    """The version-2 records that remove messages with consecutive record ids, outside of transactions.

    Args:
        first_word: the first word of their headers.
        rid: the record id of the first; those of the others follow.
        low_number: the low half of their flush's number.
        target: the first message.
        count: their number.
        salt: the salt of the file in which the records are.

    Raises:
        ValueError, OverflowError: as `encode_records`.
    """
    _check_count(count)
    _check_numbers(first_word, rid, low_number, count, salt)
    if not 0 <= target <= _MAX_U64 - count:
        raise OverflowError(f"no record ids: {count} from {target} on")
    padding = PADDING * (BLOCK_SIZE - FIXED_SIZE)
    pack, pack_tail, check = HEADER_2.pack, TAIL.pack, extend_crc32c
    pieces: list[bytes] = []
    for number in range(rid, rid + count):
        header = pack(first_word, number, 0, low_number, target)
        pieces += (header, pack_tail(check(0, header + salt), number), padding)
        target += 1
    return b"".join(pieces)


def write_deliveries(
    template: bytes,
    tag_at: int,
    first_tag: int,
    data: bytes,
    at: int,
    stride: int,
    size: int,
    count: int,
    tail: bytes,
) -> bytes:
    """The messages of a run as a consumer gets them: of each the template with its number, the body, and the tail.

    Args:
        template: the bytes before each body.
        tag_at: where in it the number is, 8 bytes, big endian; negative if there is none.
        first_tag: the number of the first; those of the others follow.
        data: the buffer with the bodies.
        at: where the first of them begins.
        stride: bytes from one to the next.
        size: bytes of each.
        count: their number.
        tail: the bytes after each body.

    Raises:
        ValueError: the run is not in the buffer, or the number not in the template.
        OverflowError: a number has more than 64 bits.
    """
    _check_run(data, at, stride, size, count)
    begins = range(at, at + count * stride, stride)
    if tag_at < 0:
        between = tail + template
        return template + between.join([data[begin : begin + size] for begin in begins]) + tail if count else b""
    if tag_at + _TAG.size > len(template):
        raise ValueError(f"no number of 8 bytes at {tag_at} of {len(template)} bytes")
    if not 0 <= first_tag <= _MAX_U64 - count:
        raise OverflowError(f"no numbers of 64 bits: {count} from {first_tag} on")
    tags = struct.pack(f">{count}Q", *range(first_tag, first_tag + count))
    before, after = template[:tag_at], template[tag_at + _TAG.size :]
    pieces = [b""] * (4 * count)
    pieces[::4] = [before, *[tail + before] * (count - 1)][:count]
    pieces[1::4] = [tags[begin : begin + 8] for begin in range(0, 8 * count, 8)]
    pieces[2::4] = [after] * count
    pieces[3::4] = [data[begin : begin + size] for begin in begins]
    pieces.append(tail if count else b"")
    return b"".join(pieces)


def _check_run(data: bytes, at: int, stride: int, size: int, count: int) -> None:
    """Raise ValueError unless the bodies are in the buffer."""
    _check_count(count)
    if at < 0 or size < 0 or stride < 1 or (count and at + (count - 1) * stride + size > len(data)):
        raise ValueError(f"no run of {count} × {size} bytes, one every {stride}, from {at} of {len(data)} bytes on")


def _check_count(count: int) -> None:
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"no run of {count}: there are at most {MAX_COUNT}")


def _check_numbers(first_word: int, rid: int, low_number: int, count: int, salt: bytes) -> None:
    if len(salt) != SALT.size:
        raise ValueError(f"no salt of 8 bytes: {len(salt)}")
    if not (0 <= first_word <= _MAX_U64 and 0 <= rid <= _MAX_U64 - count and 0 <= low_number <= _MAX_U32):
        raise OverflowError(f"no header: 0x{first_word:x}, record ids {rid} to {rid + count}, flush 0x{low_number:x}")
