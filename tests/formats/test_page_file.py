"""Extents of paging files: what was written is read; everything else is an error, never other messages."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.page_file import (
    HEADER_SIZE,
    MAX_COUNT,
    Extent,
    Paged,
    PageFileError,
    PayloadCompressor,
    encode_extent,
)

MESSAGES = [Paged((b"abc", b"", b"defg"), 7, 0.0), Paged((), 0, 12.5), Paged((b"x" * 1000,), 1000, 0.0)]
DATA = [(b"abcdefg", 0.0), (b"", 12.5), (b"x" * 1000, 0.0)]


def encoded(number: int = 5, compressor: PayloadCompressor | None = None, file: int = 77) -> bytes:
    parts, size = encode_extent(file, number, MESSAGES, compressor)
    content = b"".join(parts)
    assert len(content) == size
    return content


def read(content: bytes) -> list[tuple[bytes, float]]:
    extent = Extent(content, 77, 5)
    return [extent.message(index) for index in range(extent.count)]


@pytest.mark.parametrize("compressor", [None, PayloadCompressor()])
def test_messages_come_back(compressor: PayloadCompressor | None) -> None:
    content = encoded(compressor=compressor)
    assert read(content) == read(content + b"what was there before") == DATA
    assert (len(content) < 300) is (compressor is not None)


def test_where_everything_is() -> None:
    content = encoded()
    assert content[:4] == b"QPG1"
    assert [int.from_bytes(content[at : at + 8], "little") for at in (8, 16, 24, 32)] == [77, 5, 1055, 1055]
    assert int.from_bytes(content[40:44], "little") == 3
    assert HEADER_SIZE == 44
    assert len(content) == 44 + 3 * 16 + 1007


def test_as_many_messages_as_possible() -> None:
    parts, _ = encode_extent(1, 1, [Paged((b"m",), 1, 0.0)] * MAX_COUNT)
    extent = Extent(b"".join(parts), 1, 1)
    assert (extent.count, extent.message(MAX_COUNT - 1)) == (MAX_COUNT, (b"m", 0.0))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes are too short"),
        (bytes(4096), "no extent is here"),
        (encoded()[:-1], "no extent is here"),
        (encoded(number=4), "extent 4 of file 4d instead of 5 of 4d"),
        (encoded(file=78), "extent 5 of file 4e instead of 5 of 4d"),
    ],
)
def test_what_is_not_the_extent(content: bytes, why: str) -> None:
    with pytest.raises(PageFileError, match=why):
        read(content)


@given(st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_every_flipped_byte_is_noticed(at: int, mask: int, compresses: bool) -> None:
    content = bytearray(encoded(compressor=PayloadCompressor() if compresses else None))
    at %= len(content)
    content[at] ^= mask
    with pytest.raises(PageFileError):
        read(bytes(content))


class Bomb(PayloadCompressor):
    """Replaces a payload by another one."""

    def compress(self, parts: list[bytes], size: int) -> tuple[list[bytes], int]:
        frame = zstandard.ZstdCompressor().compress(bytes(1 << 26))
        return [frame], len(frame)


def test_a_payload_of_another_size_is_not_decompressed() -> None:
    with pytest.raises(PageFileError, match="has another size"):
        read(encoded(compressor=Bomb()))
