"""Paging files: where a broker keeps messages that no journal has, while they are out of memory.

A paging file belongs to one queue of one process, and is worthless afterwards. It is an array of *pages* of 4,096 bytes
times the queue's page factor. Messages are written in groups, each to a run of free pages, its *extent*; a group is
read and verified as a whole. Numbers are little endian.

    offset  size  field
         0     4  magic       "QPG2"
         4     4  count       messages: 1 to 4,095
         8     8  file        random, another one for each file
        16     8  number      of the extent, never used twice in a file
        24     8  size        bytes of the payload
        32     8  stored      bytes of it in the file: less than `size` if it is compressed, as one Zstandard frame
        40        the payload: for each message u64 bytes of data, then for each f64 expiry (seconds since 1970, 0 for
                  never); then the data of all of them, one after another
       end     4  checksum    CRC-32C of everything before it, so that that of the whole extent is a constant

So data of an earlier extent, or of another file, are never taken for the expected messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import zstandard

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import FormatError

PAGE_UNIT: Final = 4096  # bytes: a page is a multiple of it
MAX_COUNT: Final = 4095  # messages in an extent
_MAGIC: Final = b"QPG2"
_HEADER: Final = struct.Struct("<4sIQQQQ")
HEADER_SIZE: Final = _HEADER.size
CHECKSUM_SIZE: Final = 4
_MESSAGE_SIZE: Final = 16  # bytes of a message's size and expiry
_VERIFIED: Final = 0x48674BC7
"""CRC-32C of anything with its own CRC-32C after it. So data are verified without a copy."""
_MAX_JOINED: Final = 1 << 20  # bytes of an extent that are copied to be written at once
_LEVEL: Final = 1
_MIN_COMPRESSED: Final = 512  # bytes of payload worth compressing
MAX_COMPRESSED: Final = 1 << 24  # larger payloads are stored as they are


class PageFileError(FormatError):
    """Bytes that are not the expected extent of a paging file."""

    format_name = "paging file"


class Group:
    """The messages of a new extent.

    Attributes:
        parts: the data of all of them, in parts.
        size: bytes of these.
        sizes: bytes of each message.
        expiries: seconds since 1970; 0.0 for never.
    """

    __slots__ = ("expiries", "parts", "size", "sizes")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.sizes: list[int] = []
        self.expiries: list[float] = []

    def add(self, parts: Sequence[bytes], size: int, expires_at: float) -> None:
        """Add a message of `size` bytes."""
        self.parts.extend(parts)
        self.size += size
        self.sizes.append(size)
        self.expiries.append(expires_at)


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
    file: int, number: int, group: Group, compressor: PayloadCompressor | None = None
) -> tuple[list[bytes], int]:
    """An extent in parts, few of them unless it is large, and the bytes of these.

    Args:
        file: the file's random number.
        number: the extent's.
        group: 1 to 4,095 messages.
        compressor: compresses the payload; None to store it as it is.
    """
    count = len(group.sizes)
    assert 0 < count <= MAX_COUNT
    table = struct.pack(f"<{count}Q{count}d", *group.sizes, *group.expiries)
    parts = [table, *group.parts]
    size = stored = len(table) + group.size
    if compressor is not None:
        parts, stored = compressor.compress(parts, size)
    parts.insert(0, _HEADER.pack(_MAGIC, count, file, number, size, stored))
    if stored <= _MAX_JOINED:
        parts = [b"".join(parts)]
    crc = 0
    for part in parts:
        crc = extend_crc32c(crc, part)
    parts.append(crc.to_bytes(CHECKSUM_SIZE, "little"))
    return parts, HEADER_SIZE + stored + CHECKSUM_SIZE


class Extent:
    """The messages of an extent that was read back, and verified.

    Args:
        content: the bytes of the extent.
        file: the file's random number.
        number: the extent's.

    Attributes:
        data: has the data of all messages, one after another.
        ends: where the first one begins in `data`, then where each of them ends.
        expiries: when each of them expires: seconds since 1970, 0.0 for never.

    Raises:
        PageFileError: it is not that extent, or damaged.
    """

    __slots__ = ("data", "ends", "expiries")

    def __init__(self, content: bytes, file: int, number: int) -> None:
        length = len(content)
        if length < HEADER_SIZE + CHECKSUM_SIZE:
            raise PageFileError(f"{length:,} bytes are too short for an extent")
        magic, count, of_file, of_number, size, stored = _HEADER.unpack_from(content)
        if magic != _MAGIC or HEADER_SIZE + stored + CHECKSUM_SIZE != length:
            raise PageFileError("no extent is here")
        if extend_crc32c(0, content) != _VERIFIED:
            raise PageFileError("the checksum does not match", length - CHECKSUM_SIZE, fails_checksum=True)
        if (of_file, of_number) != (file, number):
            raise PageFileError(f"extent {of_number} of file {of_file:x} instead of {number} of {file:x}", 8)
        data, at = content, HEADER_SIZE
        if stored != size:
            data, at = _restored(content[HEADER_SIZE:-CHECKSUM_SIZE], size), 0
        begin = at + _MESSAGE_SIZE * count
        if begin > at + size:
            raise PageFileError(f"{count:,} messages in a payload of {size:,} bytes", 4)
        sizes = struct.unpack_from(f"<{count}Q", data, at)
        self.data = data
        self.ends: list[int] = list(accumulate(sizes, initial=begin))
        self.expiries: tuple[float, ...] = struct.unpack_from(f"<{count}d", data, begin - 8 * count)
        if self.ends[-1] != at + size:
            raise PageFileError(f"messages of {self.ends[-1] - at:,} bytes in a payload of {size:,}", HEADER_SIZE)


def _restored(frame: bytes, size: int) -> bytes:
    try:
        if size > MAX_COMPRESSED or zstandard.get_frame_parameters(frame).content_size != size:
            raise PageFileError("the compressed payload has another size", HEADER_SIZE)
        return zstandard.ZstdDecompressor(max_window_size=MAX_COMPRESSED).decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise PageFileError(f"the payload cannot be decompressed: {error}", HEADER_SIZE) from None
