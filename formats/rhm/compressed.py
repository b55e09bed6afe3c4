"""Compressed content in an enqueue record of version 2, flagged COMPRESSED (formats/rhm/README.md, 8.8).

The header of the message stays readable without decompressing anything; a reader knows the size of the content before
it allocates memory for it, and never allocates more than `MAX_CONTENT_SIZE`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import zstandard

from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple

ZSTD: Final = 1  # the only method
MAX_CONTENT_SIZE: Final = 1 << 24  # bytes; larger content is never compressed
_LEVEL: Final = 1

_HEADER_SIZE: Final = struct.Struct(">I")  # of the message in the record
PREFIX: Final = struct.Struct("<BQ")  # method, size of the content
PREFIX_SIZE: Final = PREFIX.size


class CompressedLayout(NamedTuple):
    """Where the content is in the data of a compressed message.

    Attributes:
        start: bytes before the prefix: the message's header and its size.
        content_size: bytes of the content as it was enqueued.
    """

    start: int
    content_size: int

    @property
    def size(self) -> int:
        """Bytes of the data as it was enqueued."""
        return self.start + self.content_size


def compressed_layout(read: Callable[[int, int], bytes], size: int) -> CompressedLayout:
    """The layout of compressed data.

    Args:
        read: reads a range of the data: offset, length.
        size: bytes of all the data.

    Raises:
        RhmError: it is not valid; offsets are within the data.
    """
    if size < HEADER_SIZE_BYTES:
        raise RhmError(f"compressed data of {size:,} bytes, too short for the size of a message header", 0)
    (header,) = _HEADER_SIZE.unpack(read(0, HEADER_SIZE_BYTES))
    start = HEADER_SIZE_BYTES + header
    if start + PREFIX_SIZE > size:
        raise RhmError(f"a header of {header:,} bytes in {size:,} bytes of compressed data", 0)
    method, content_size = PREFIX.unpack(read(start, PREFIX_SIZE))
    if method != ZSTD:
        raise RhmError(f"content compressed by the unknown method {method}", start)
    if content_size > MAX_CONTENT_SIZE:
        raise RhmError(f"compressed content of {content_size:,} bytes; the limit is {MAX_CONTENT_SIZE:,}", start + 1)
    compressed = size - start - PREFIX_SIZE
    if compressed >= content_size:
        raise RhmError(f"content of {content_size:,} bytes compressed to {compressed:,}", start + 1)
    return CompressedLayout(start, content_size)


class Decompressor:
    """Restores the content of compressed messages. One thread may use it at a time.

    The context of the library, some hundred KiB, is created with the first use.
    """

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context: zstandard.ZstdDecompressor | None = None

    def restore(self, data: bytes) -> bytes:
        """The data of a message as it was enqueued.

        Args:
            data: the data of a record flagged COMPRESSED.

        Raises:
            RhmError: it is damaged, or was never valid; offsets are within the data.
        """

        def read(offset: int, length: int) -> bytes:
            return data[offset : offset + length]

        layout = compressed_layout(read, len(data))
        return data[: layout.start] + self.content(read, layout, len(data))

    def content(self, read: Callable[[int, int], bytes], layout: CompressedLayout, size: int) -> bytes:
        """The content of a message as it was enqueued.

        Args:
            read: reads a range of the data: offset, length.
            layout: their layout.
            size: bytes of all the data.

        Raises:
            RhmError: as `restore`.
        """
        if self._context is None:
            self._context = zstandard.ZstdDecompressor(max_window_size=MAX_CONTENT_SIZE)
        at, expected = layout.start + PREFIX_SIZE, layout.content_size
        frame = read(at, size - at)
        try:
            stated = zstandard.get_frame_parameters(frame).content_size
            if stated != expected:  # the library would allocate the size in the frame
                raise RhmError(f"compressed content of {expected:,} bytes, but {stated:,} according to its frame", at)
            content = self._context.decompress(frame, max_output_size=expected, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise RhmError(f"compressed content cannot be restored: {error}", at) from None
        if len(content) != expected:
            raise RhmError(f"compressed content has {len(content):,} bytes instead of {expected:,}", at)
        return content


class Compressor:
    """Compresses the content of messages. One thread may use it at a time."""

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context = zstandard.ZstdCompressor(level=_LEVEL)

    def compress(self, data: bytes) -> bytes | None:
        """The data to store with the flag COMPRESSED; None if there is no content, or too much.

        Args:
            data: the data of a message.
        """
        if len(data) < HEADER_SIZE_BYTES:
            return None
        start = HEADER_SIZE_BYTES + _HEADER_SIZE.unpack_from(data)[0]
        content = memoryview(data)[start:]
        if not 0 < len(content) <= MAX_CONTENT_SIZE:
            return None
        return b"".join((data[:start], PREFIX.pack(ZSTD, len(content)), self._context.compress(content)))
