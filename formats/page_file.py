"""Paging files: where a broker keeps messages that no journal has, while they are out of memory.

A paging file belongs to one queue of one process, and is worthless afterwards. It is an array of *pages* of 4,096 bytes
times the queue's page factor. Messages are written in groups, each to a run of free pages, its *extent*; a group is
read and verified as a whole. Numbers are little endian.

    offset  size  field
         0     4  magic       "QPG1"
         4     4  checksum    CRC-32C of the bytes from 8 to the end of the payload, as stored
         8     8  file        random, another one for each file
        16     8  number      of the extent, never used twice in a file
        24     8  size        bytes of the payload
        32     8  stored      bytes of it in the file: less than `size` if it is compressed, as one Zstandard frame
        40     4  count       messages: 1 to 4,095
        44        the payload: for each message u64 bytes of data and f64 expiry (seconds since 1970, 0 for never); then
                  the data of all of them, one after another

So what an earlier extent left, or another file, is never taken for the messages that should be there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import zstandard

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError

PAGE_UNIT: Final = 4096  # bytes: a page is a multiple of it
MAX_COUNT: Final = 4095  # messages in an extent
_MAGIC: Final = b"QPG1"
_HEADER: Final = struct.Struct("<4sIQQQQI")
HEADER_SIZE: Final = _HEADER.size
_COVERED_FROM: Final = 8
MESSAGE: Final = struct.Struct("<Qd")
_LEVEL: Final = 1
_MIN_COMPRESSED: Final = 512  # bytes of payload worth compressing
MAX_COMPRESSED: Final = 1 << 24  # larger payloads are stored as they are


class PageFileError(FormatError):
    """Bytes that are not the expected extent of a paging file."""

    format_name = "paging file"


class Paged(NamedTuple):
    """A message in an extent.

    Attributes:
        parts: its data in parts.
        size: bytes of these.
        expires_at: seconds since 1970; 0.0 for never.
    """

    parts: Sequence[bytes]
    size: int
    expires_at: float


class PayloadCompressor:
    """Compresses payloads. One thread may use it at a time."""

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context = zstandard.ZstdCompressor(level=_LEVEL)

    def compress(self, parts: list[bytes], size: int) -> tuple[list[bytes], int]:
        """The payload as it is stored: smaller, or else as it is. Returns its parts, and their bytes."""
        if _MIN_COMPRESSED <= size <= MAX_COMPRESSED:
            frame = self._context.compress(b"".join(parts))
            if len(frame) < size:
                return [frame], len(frame)
        return parts, size


def encode_extent(
    file: int, number: int, messages: Sequence[Paged], compressor: PayloadCompressor | None = None
) -> tuple[list[bytes], int]:
    """An extent in parts, and the bytes of these.

    Args:
        file: the file's random number.
        number: the extent's.
        messages: 1 to 4,095.
        compressor: compresses the payload; None to store it as it is.
    """
    assert 0 < len(messages) <= MAX_COUNT
    table = chain.from_iterable((each.size, each.expires_at) for each in messages)
    parts = [struct.pack(f"<{'Qd' * len(messages)}", *table), *chain.from_iterable(each.parts for each in messages)]
    size = stored = len(parts[0]) + sum(each.size for each in messages)
    if compressor is not None:
        parts, stored = compressor.compress(parts, size)
    covered = _HEADER.pack(_MAGIC, 0, file, number, size, stored, len(messages))[_COVERED_FROM:]
    crc = extend_crc32c(0, covered)
    for part in parts:
        crc = extend_crc32c(crc, part)
    return [_MAGIC + crc.to_bytes(4, "little") + covered, *parts], HEADER_SIZE + stored


class Extent:
    """The messages of an extent that was read back, and verified.

    Args:
        content: what was read, from the beginning of its first page on; more may follow.
        file: the file's random number.
        number: the extent's.

    Raises:
        PageFileError: it is not that extent, or damaged.
    """

    __slots__ = ("_at", "_payload", "_table", "count")

    def __init__(self, content: bytes, file: int, number: int) -> None:
        try:
            magic, check, of_file, of_number, size, stored, self.count = _HEADER.unpack_from(content)
        except struct.error:
            raise PageFileError(f"{len(content)} bytes are too short for an extent") from None
        end = HEADER_SIZE + stored
        if magic != _MAGIC or end > len(content):
            raise PageFileError("no extent is here")
        if extend_crc32c(0, content[_COVERED_FROM:end]) != check:
            raise PageFileError("the checksum does not match", 4, fails_checksum=True)
        if (of_file, of_number) != (file, number):
            raise PageFileError(f"extent {of_number} of file {of_file:x} instead of {number} of {file:x}", 8)
        payload = content[HEADER_SIZE:end]
        if stored != size:
            payload = _restored(payload, size)
        self._payload = payload
        self._table = struct.unpack_from(f"<{'Qd' * self.count}", payload)
        at, places = MESSAGE.size * self.count, []
        for length in self._table[::2]:
            places.append(at)
            at += length
        if at != size:
            raise PageFileError(f"messages of {at} bytes in a payload of {size}", HEADER_SIZE)
        self._at = places

    def message(self, index: int) -> tuple[bytes, float]:
        """The data of a message, and when it expires."""
        at = self._at[index]
        return self._payload[at : at + self._table[2 * index]], self._table[2 * index + 1]


def _restored(frame: bytes, size: int) -> bytes:
    try:
        if size > MAX_COMPRESSED or zstandard.get_frame_parameters(frame).content_size != size:
            raise PageFileError("the compressed payload has another size", HEADER_SIZE)
        return zstandard.ZstdDecompressor(max_window_size=MAX_COMPRESSED).decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise PageFileError(f"the payload cannot be decompressed: {error}", HEADER_SIZE) from None
