"""Extents of paging files: what was written is read; everything else is an error, never other messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import independent_crc32c
from qstore.formats.page_file import (
    HEADER_SIZE,
    MAX_COUNT,
    Extent,
    Group,
    PageFileError,
    PayloadCompressor,
    encode_extent,
)

MESSAGES = [((b"abc", b"", b"defg"), 7, 0.0), ((), 0, 12.5), ((b"x" * 1000,), 1000, 0.0)]
DATA = [(b"abcdefg", 0.0), (b"", 12.5), (b"x" * 1000, 0.0)]


def group_of(messages: Iterable[tuple[tuple[bytes, ...], int, float]]) -> Group:
    group = Group()
    for message in messages:
        group.add(*message)
    return group


def encoded(number: int = 5, compressor: PayloadCompressor | None = None, file: int = 77) -> bytes:
    parts, size = encode_extent(file, number, group_of(MESSAGES), compressor)
    content = b"".join(parts)
    assert len(content) == size
    return content


def read(content: bytes) -> list[tuple[bytes, float]]:
    extent = Extent(content, 77, 5)
    parts = [extent.data[begin:end] for begin, end in pairwise(extent.ends)]
    return list(zip(parts, extent.expiries, strict=True))


@pytest.mark.parametrize("compressor", [None, PayloadCompressor()])
def test_messages_come_back(compressor: PayloadCompressor | None) -> None:
    content = encoded(compressor=compressor)
    assert read(content) == DATA
    assert (len(content) < 300) is (compressor is not None)


def test_layout() -> None:
    content = encoded()
    assert content[:4] == b"QPG2"
    assert int.from_bytes(content[4:8], "little") == 3
    assert [int.from_bytes(content[at : at + 8], "little") for at in (8, 16, 24, 32)] == [77, 5, 1055, 1055]
    assert [int.from_bytes(content[at : at + 8], "little") for at in (40, 48, 56)] == [7, 0, 1000]
    assert struct.unpack("<3d", content[64:88]) == (0.0, 12.5, 0.0)
    assert HEADER_SIZE == 40
    assert len(content) == 40 + 3 * 16 + 1007 + 4
    assert int.from_bytes(content[-4:], "little") == independent_crc32c(content[:-4])


def test_the_checksum_of_a_large_extent_is_that_of_its_parts() -> None:
    parts, size = encode_extent(77, 5, group_of([((b"x" * (1 << 20), b"y" * 100), (1 << 20) + 100, 3.5)]))
    assert max(map(len, parts)) == 1 << 20  # it is not copied
    assert size == sum(map(len, parts))
    assert read(b"".join(parts)) == [(b"x" * (1 << 20) + b"y" * 100, 3.5)]


def test_as_many_messages_as_possible() -> None:
    parts, _ = encode_extent(77, 5, group_of([((b"m",), 1, 0.0)] * MAX_COUNT))
    assert read(b"".join(parts)) == [(b"m", 0.0)] * MAX_COUNT


def test_damage_with_a_sound_checksum() -> None:
    for at, value, why in ((4, 70, "70 messages in a payload of 1,055 bytes"), (48, 1, "messages of 1,056 bytes")):
        content = encoded()[:-4]
        content = content[:at] + bytes((value,)) + content[at + 1 :]
        with pytest.raises(PageFileError, match=why):
            read(content + independent_crc32c(content).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes are too short"),
        (bytes(4096), "no extent is here"),
        (encoded()[:-1], "no extent is here"),
        (encoded() + b"x", "no extent is here"),
        (encoded(number=4), "extent 4 of file 4d instead of 5 of 4d"),
        (encoded(file=78), "extent 5 of file 4e instead of 5 of 4d"),
    ],
)
def test_invalid_extent_is_refused(content: bytes, why: str) -> None:
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
