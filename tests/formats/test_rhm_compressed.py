"""Compressed content comes back as stored; broken content is reported and costs no memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.errors import RhmError
from qstore.formats.rhm.compressed import MAX_CONTENT_SIZE, PREFIX_SIZE, ZSTD, Compressor, Decompressor
from tests.support.format_pages import section

HEADER = b"header of a message"
CONTENT = b'{"order": 17, "item": "screw", "count": 100}' * 20


def data_of(content: bytes, header: bytes = HEADER) -> bytes:
    return struct.pack(">I", len(header)) + header + content


def stored(frame: bytes, size: int, method: int = ZSTD) -> bytes:
    return data_of(struct.pack("<BQ", method, size) + frame)


def compressed(content: bytes) -> bytes:
    found = Compressor().compress(data_of(content))
    assert found is not None
    return found


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=40), st.integers(30, 500))
def test_compressed_data_is_restored(header: bytes, piece: bytes, count: int) -> None:
    data = data_of(piece * count, header)
    found = Compressor().compress(data)
    assert found is not None
    assert found[: 4 + len(header)] == data[: 4 + len(header)]
    if len(found) < len(data):
        assert Decompressor().restore(found) == data


def test_layout() -> None:
    found = compressed(CONTENT)
    start = 4 + len(HEADER)
    assert found[start] == ZSTD == 1
    assert int.from_bytes(found[start + 1 : start + 9], "little") == len(CONTENT)
    assert zstandard.get_frame_parameters(found[start + PREFIX_SIZE :]).content_size == len(CONTENT)
    assert f"{MAX_CONTENT_SIZE:,}" in section("rhm", "8.8")


@pytest.mark.parametrize("data", [b"", b"\0\0", data_of(b""), struct.pack(">I", 100) + b"short"])
def test_data_without_content_is_not_compressed(data: bytes) -> None:
    assert Compressor().compress(data) is None


def test_large_content_is_not_compressed() -> None:
    assert Compressor().compress(data_of(bytes(MAX_CONTENT_SIZE))) is not None
    assert Compressor().compress(data_of(bytes(MAX_CONTENT_SIZE + 1))) is None


def frame_of(size: int, stated: int | None) -> bytes:
    """A frame of zeros, written in pieces, that states no size or another one than it has."""
    compressor = zstandard.ZstdCompressor(write_content_size=stated is not None).compressobj(
        size=-1 if stated is None else stated
    )
    return compressor.compress(bytes(size)) + compressor.flush()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0", "too short for the size of a message header"),
        (struct.pack(">I", 1 << 31) + b"x" * 40, "a header of 2,147,483,648 bytes"),
        (data_of(b"\1\0\0"), "a header of 19 bytes in 26 bytes"),
        (stored(b"x" * 20, 100, method=2), "unknown method 2"),
        (stored(b"x" * 20, MAX_CONTENT_SIZE + 1), "the limit is 16,777,216"),
        (stored(b"x" * 20, 1 << 63), "the limit is 16,777,216"),
        (stored(b"x" * 20, 20), "content of 20 bytes compressed to 20"),
        (stored(b"", 0), "content of 0 bytes compressed to 0"),
        (stored(b"no frame", 100), "cannot be restored"),
        (stored(frame_of(1000, None), 1000), "according to its frame"),
        (stored(frame_of(1000, 1000), 999), "but 1,000 according to its frame"),
        (stored(frame_of(1 << 26, None), 1 << 20), "according to its frame"),
        (compressed(CONTENT) + b"more", "cannot be restored"),
        (compressed(CONTENT)[:-1], "cannot be restored"),
    ],
)
def test_broken_data_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(RhmError, match=why):
        Decompressor().restore(data)


def test_a_bomb_allocates_no_more_than_the_limit() -> None:
    bomb = frame_of(1 << 26, 1 << 26)
    for size in (1 << 26, MAX_CONTENT_SIZE, len(bomb) + 1):
        tracemalloc.start()
        try:
            with pytest.raises(RhmError):
                Decompressor().restore(stored(bomb, size))
            assert tracemalloc.get_traced_memory()[1] < 2 * MAX_CONTENT_SIZE
        finally:
            tracemalloc.stop()


@given(st.data())
def test_flipped_bytes_never_pass_unnoticed_or_escape(draws: st.DataObject) -> None:
    """A frame has no checksum of its own: the record's covers it. Whatever comes out has the size that was stated."""
    data = bytearray(compressed(CONTENT))
    for _ in range(draws.draw(st.integers(1, 3))):
        data[draws.draw(st.integers(0, len(data) - 1))] ^= draws.draw(st.integers(1, 255))
    try:
        restored = Decompressor().restore(bytes(data))
    except RhmError:
        return
    (header,) = struct.unpack_from(">I", data)
    assert len(restored) == 4 + header + int.from_bytes(data[4 + header + 1 : 4 + header + 9], "little")
