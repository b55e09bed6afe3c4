"""The data of one stored message as it was enqueued, read in ranges: compressed content is restored when it is read."""

from __future__ import annotations

from collections.abc import Callable

from qstore.formats.rhm.compressed import CompressedLayout, Decompressor, compressed_layout


class MessageData:
    """The data of a compressed message, as they were enqueued.

    The message's header is read without restoring the content.

    Args:
        read: reads a range of the data as they are stored: offset, length.
        size: bytes of these.
        decompressor: restores the content.

    Attributes:
        size: bytes of the data as they were enqueued.

    Raises:
        RhmError: they are damaged; `read` raises it too.
    """

    __slots__ = ("_content", "_decompressor", "_layout", "_read", "_stored", "size")

    def __init__(self, read: Callable[[int, int], bytes], size: int, decompressor: Decompressor) -> None:
        self._read, self._stored, self._decompressor = read, size, decompressor
        self._layout: CompressedLayout = compressed_layout(read, size)
        self._content: bytes | None = None
        self.size = self._layout.size

    @property
    def start(self) -> int:
        """Bytes before the content."""
        return self._layout.start

    def read(self, offset: int, length: int) -> bytes:
        """A range of the data as they were enqueued; `offset` + `length` are at most `size`."""
        start, end = self._layout.start, offset + length
        if end <= start:
            return self._read(offset, length)
        if self._content is None:
            self._content = self._decompressor.content(self._read, self._layout, self._stored)
        head = self._read(offset, start - offset) if offset < start else b""
        return head + self._content[max(offset - start, 0) : end - start]

    def whole(self) -> bytes:
        """All of the data as they were enqueued."""
        return self.read(0, self.size)
