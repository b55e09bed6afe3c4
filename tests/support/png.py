"""Reading a PNG that a browser wrote: 8 bits a channel, with or without alpha, not interlaced."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from typing import NamedTuple

Colour = tuple[int, int, int]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {2: 3, 6: 4}


class Picture(NamedTuple):
    """The rows of a picture, each with `channels` bytes a pixel."""

    width: int
    height: int
    channels: int
    rows: list[bytes]

    def at(self, x: int, y: int) -> Colour:
        start = x * self.channels
        red, green, blue = self.rows[y][start : start + 3]
        return red, green, blue

    def colours(self) -> Counter[Colour]:
        """How many pixels have each colour."""
        found: Counter[Colour] = Counter()
        for row in self.rows:
            found.update(zip(*(row[channel :: self.channels] for channel in range(3)), strict=True))
        return found


def read_png(data: bytes) -> Picture:
    assert data.startswith(_SIGNATURE)
    place, packed, header = len(_SIGNATURE), b"", b""
    while place < len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        content = data[place + 8 : place + 8 + size]
        (checksum,) = struct.unpack_from(">I", data, place + 8 + size)
        assert zlib.crc32(kind + content) == checksum
        header = content if kind == b"IHDR" else header
        packed += content if kind == b"IDAT" else b""
        place += size + 12
    width, height, depth, colour_type, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    channels = _CHANNELS[colour_type]
    return Picture(width, height, channels, _rows(zlib.decompress(packed), width * channels, height, channels))


def _rows(plain: bytes, length: int, height: int, channels: int) -> list[bytes]:
    rows, before = [], bytes(length)
    for start in range(0, height * (length + 1), length + 1):
        before = _unfiltered(plain[start], plain[start + 1 : start + 1 + length], before, channels)
        rows.append(before)
    return rows


def _unfiltered(method: int, row: bytes, above: bytes, channels: int) -> bytes:
    """A row without its filter (PNG specification, section 9)."""
    if method == 0:
        return row
    if method == 2:
        return bytes((value + up) & 0xFF for value, up in zip(row, above, strict=True))
    done = bytearray(channels) + bytearray(len(row))
    for place, value in enumerate(row):
        left, up = done[place], above[place]
        corner = above[place - channels] if place >= channels else 0
        guess = {1: left, 3: (left + up) >> 1, 4: _paeth(left, up, corner)}[method]
        done[place + channels] = (value + guess) & 0xFF
    return bytes(done[channels:])


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
