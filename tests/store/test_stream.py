"""A journal's data areas as one stream."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import DATA_OFFSET, Geometry
from qstore.store.journal import stream as stream_module
from qstore.store.journal.ring.files import RingFile
from qstore.store.journal.stream import JournalStream
from tests.support.compiled import replaces
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.support.profiles import examples

GEOMETRY = Geometry(4, 2048)


def make(order: list[int], sizes: dict[int, int] | None = None) -> tuple[JournalStream, bytes, MemoryDisk]:
    """A stream over files of random bytes, and what it should read as. A size of -1 is a missing file."""
    rng = random.Random(1)
    disk = MemoryDisk()
    files, expected = [], b""
    for number in order:
        size = (sizes or {}).get(number, GEOMETRY.file_size)
        content = rng.randbytes(GEOMETRY.file_size + 100)[: max(size, 0)]
        if size >= 0:
            disk.files[f"/{number}"] = content
        files.append(RingFile(number, f"/{number}", size, None, used=True))
        expected += content[DATA_OFFSET : GEOMETRY.file_size].ljust(GEOMETRY.data_size, b"\0")
    return JournalStream(disk, files, GEOMETRY), expected, disk


READS = st.lists(st.tuples(st.integers(0, 4 * 2048 - 1), st.integers(0, 5000), st.sampled_from("rwa")), max_size=30)


@examples(150)
@given(READS, st.permutations(range(4)), st.sampled_from([256, 1000, 4096, 1 << 20]))
def test_reads_are_slices_of_the_data_areas(
    reads: list[tuple[int, int, str]], order: list[int], window_size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "WINDOW_SIZE", window_size)
        stream, expected, disk = make(order, {1: -1, 2: 1500, 3: 5000})
        assert stream.size == len(expected)
        for place, length, how in reads:
            if how == "r":
                assert stream.read(place, length) == expected[place : place + length]
            elif how == "a":
                assert stream.read_aside(place, length) == expected[place : place + length]
            else:
                window, at = stream.window(place, min(length, window_size))
                available = min(length, window_size, len(expected) - place)
                assert window[at : at + available] == expected[place : place + available]
        stream.close()
    assert disk.open_now == 0
    assert disk.max_open <= 2


def test_locate() -> None:
    stream, _, _ = make([2, 3, 0, 1])
    assert [(stream.locate(place)[0].number, stream.locate(place)[1]) for place in (0, 2047, 2048, 8191)] == [
        (2, 512),
        (2, 2559),
        (3, 512),
        (1, 2559),
    ]


def test_closing_and_reading_on() -> None:
    stream, expected, disk = make([0, 1, 2, 3])
    assert stream.read(0, 8192) == expected
    stream.close()
    stream.close()
    assert disk.open_now == 0
    assert stream.read(100, 300) == expected[100:400]
    stream.close()


@replaces
def test_reading_aside_leaves_the_window() -> None:
    """Looking at a far tail costs a few bytes, and what is read on from stays at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "WINDOW_SIZE", 512)
        stream, expected, disk = make([0, 1, 2, 3])
        stream.read(0, 128)
        before = disk.bytes_read
        assert stream.read_aside(7000, 12) == expected[7000:7012]
        assert disk.bytes_read == before + 12
        assert stream.read(128, 128) == expected[128:256]
        assert disk.bytes_read == before + 12
        stream.close()


def test_bad_sectors_read_as_zeros_and_are_reported() -> None:
    stream, expected, disk = make([0, 1, 2, 3])
    disk.bad_regions += [BadRegion("/1", 512 + 600, 512 + 601), BadRegion("/1", 512 + 1024, 512 + 1025)]
    disk.bad_regions += [BadRegion("/3", 2559, 2560)]
    content = bytearray(expected)
    content[2048 + 512 : 2048 + 1536] = bytes(1024)
    content[3 * 2048 + 1536 :] = bytes(512)
    assert stream.read(0, 8192) == content
    assert stream.read(2048, 2048) == content[2048:4096]  # once more, and told once
    unreadable = stream.unreadable()
    assert [(damage.file, damage.offset) for damage in unreadable] == [("/1", 1024), ("/3", 2048)]
    assert unreadable[0].what == "1,024 bytes cannot be read: Input/output error"
    assert stream.unreadable() == []
    stream.close()


# ---- as the drop-ins for qpidd's readers ask for it ----


@examples(100)
@given(READS, st.lists(st.sampled_from([512, 1024, 2048]), min_size=4, max_size=4), st.sampled_from([64, 700, 1 << 16]))
def test_files_may_differ_in_size(reads: list[tuple[int, int, str]], sizes: list[int], window_size: int) -> None:
    whole, _, disk = make([0, 1, 2, 3], {2: 1500})
    stream = JournalStream(disk, whole.files, GEOMETRY, sizes=sizes, window_size=window_size, max_open=1)
    pieces = [whole.read(number * GEOMETRY.data_size, size) for number, size in enumerate(sizes)]
    whole.close()
    disk.max_open = 0
    expected = b"".join(pieces)
    assert stream.size == len(expected)
    for place, length, _ in reads:
        assert stream.read(place % len(expected), length) == expected[place % len(expected) :][:length]
        file, offset = stream.locate(place % len(expected))
        index = stream.index(place % len(expected))
        assert file is stream.files[index]
        assert offset == place % len(expected) - stream.begin(index) + DATA_OFFSET
    assert stream.index(stream.size) == len(sizes)
    stream.close()
    assert disk.max_open <= 1


def test_only_bytes_in_the_files_are_backed() -> None:
    stream, _, _ = make([0, 1, 2, 3], {1: 1500, 3: -1})
    data, cut = GEOMETRY.data_size, 1500 - DATA_OFFSET
    assert stream.is_backed(0, data + cut)
    assert not stream.is_backed(0, data + cut + 1)
    assert not stream.is_backed(data + cut, 1)
    assert stream.is_backed(2 * data, data)
    assert not stream.is_backed(3 * data - 1, 2)
    assert not stream.is_backed(stream.size, 1)
    assert stream.is_backed(stream.size, 0)


def test_strict_stream_raises_only_for_the_requested_range() -> None:
    lenient, expected, disk = make([0, 1, 2, 3])
    stream = JournalStream(disk, lenient.files, GEOMETRY, is_strict=True)
    disk.bad_regions.append(BadRegion("/1", DATA_OFFSET + 512, DATA_OFFSET + 1024))
    data = GEOMETRY.data_size
    assert stream.read(0, data + 512) == expected[: data + 512]
    assert stream.read(data + 1024, 3000) == expected[data + 1024 : data + 4024]
    with pytest.raises(OSError, match="Input/output error"):
        stream.read(data + 500, 100)
    with pytest.raises(OSError, match="Input/output error"):
        stream.window(data + 500, 100)
    assert not stream.has_unreadable
    stream.close()
    assert disk.open_now == 0
