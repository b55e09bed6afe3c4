"""The content of a message: bytes, or the pieces in which large content arrived.

Content that spans many frames is never joined: the pieces are stored as received, and sent or written one by one. So a
message takes its content's size in memory once, however large it is.

Small pieces cost more than their bytes, and a peer may send pieces of any size: they are collected into larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

_MIN_PIECE: Final = 16 * 1024  # bytes; smaller pieces are joined
_MAX_JOINED: Final = 0xFFFF - 12  # bytes up to which small pieces are joined: the payload of one frame


class LargeContent:
    """Content in pieces, larger than one frame. Immutable, and no piece is empty.

    Args:
        pieces: its bytes, in order.
        size: total bytes.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: tuple[bytes, ...], size: int) -> None:
        self.pieces, self._size = pieces, size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """The content as one copy."""
        return b"".join(self.pieces)


Content: TypeAlias = bytes | LargeContent
Buffer: TypeAlias = bytes | memoryview


def pieces_of(content: Content) -> tuple[bytes, ...]:
    """The pieces of content of either kind."""
    return (content,) if isinstance(content, bytes) else content.pieces


def content_of(pieces: Sequence[bytes]) -> Content:
    """The content consisting of these pieces, none of which is empty. Content that fits one frame is joined."""
    size = sum(map(len, pieces))
    if size <= _MAX_JOINED or len(pieces) == 1:
        return b"".join(pieces)
    return LargeContent(tuple(pieces), size)


class IncomingContent:
    """Content that is being received.

    Attributes:
        size: bytes received so far.
    """

    __slots__ = ("_pieces", "_small", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._small = bytearray()

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        self.size += len(piece)
        small = self._small
        if small and len(small) + len(piece) > _MAX_JOINED:
            self._keep_small()
        if len(piece) >= _MIN_PIECE and not self._small:
            self._pieces.append(piece)
        else:
            self._small += piece

    def _keep_small(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()

    def content(self) -> Content:
        """The content received so far; more may be added afterwards."""
        self._keep_small()
        return content_of(self._pieces)
