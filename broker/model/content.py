"""The content of a message: bytes, or, if there is much of it, the pieces that it came in.

Content that came in many frames is never put together: what came is kept as it came, and whoever sends it or writes it
takes one piece after the other. So a message costs its content once, however large it is.

Pieces that are small cost more than their bytes, and a peer may send them as small as it likes: they are gathered until
they are worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

_WORTH_KEEPING: Final = 16 * 1024  # bytes of a piece that is kept as it came
_GATHERED: Final = 0xFFFF - 12  # bytes that are gathered from small ones: what one frame holds


class LargeContent:
    """Content in pieces, more than one frame holds. It never changes, and no piece of it is empty.

    Args:
        pieces: its bytes, in order.
        size: how many they are.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: tuple[bytes, ...], size: int) -> None:
        self.pieces, self._size = pieces, size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """All of it, copied together."""
        return b"".join(self.pieces)


Content: TypeAlias = bytes | LargeContent
Buffer: TypeAlias = bytes | memoryview


def pieces_of(content: Content) -> tuple[bytes, ...]:
    """The pieces of content of either kind."""
    return (content,) if isinstance(content, bytes) else content.pieces


def content_of(pieces: Sequence[bytes]) -> Content:
    """Content in these pieces, none of which is empty: what one frame holds is put together."""
    size = sum(map(len, pieces))
    if size <= _GATHERED or len(pieces) == 1:
        return b"".join(pieces)
    return LargeContent(tuple(pieces), size)


class Gathering:
    """Content that comes in.

    Attributes:
        size: bytes that have come.
    """

    __slots__ = ("_pieces", "_small", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._small = bytearray()

    def add(self, piece: bytes) -> None:
        """More of it has come."""
        self.size += len(piece)
        small = self._small
        if small and len(small) + len(piece) > _GATHERED:
            self._keep_small()
        if len(piece) >= _WORTH_KEEPING and not self._small:
            self._pieces.append(piece)
        else:
            self._small += piece

    def _keep_small(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()

    def content(self) -> Content:
        """All that has come; it may go on."""
        self._keep_small()
        return content_of(self._pieces)
