"""The order of a journal's files, and what is wrong with their headers."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.formats.rhm.file_header import FileHeader, decode_file_header, encode_file_header
from qstore.formats.rhm.geometry import DATA_OFFSET, SECTOR_SIZE, Geometry
from qstore.formats.rhm.records import Kind
from qstore.store.disk import OsDisk, OsWritableDisk
from qstore.store.journal.directory import open_journal
from qstore.store.journal.ring.files import Ring, read_ring
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.journal_history import (
    History,
    Recovered,
    expected_places,
    long_steps,
    readable,
    recover,
    replay,
)
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.support.profiles import today

SMALL = 1024


def ring_of(indicators: str) -> Ring:
    """The ring of a version-1 journal whose file headers have these indicators; "-" is a file never written."""
    geometry = Geometry(len(indicators), SMALL)
    disk = MemoryDisk()
    for number, indicator in enumerate(indicators):
        content = bytes(geometry.file_size)
        if indicator != "-":
            header = encode_file_header(FileHeader(1, int(indicator), number, DATA_OFFSET, logical_number=number))
            content = header + bytes(SMALL)
        disk.files[f"/{number}"] = content
    return read_ring(disk, sorted(disk.files), geometry)


@pytest.mark.parametrize(
    ("indicators", "order"),
    [
        ("00000000", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("11111111", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("11100000", [3, 4, 5, 6, 7, 0, 1, 2]),
        ("00011111", [3, 4, 5, 6, 7, 0, 1, 2]),
        ("10000000", [1, 2, 3, 4, 5, 6, 7, 0]),
        ("11111110", [7, 0, 1, 2, 3, 4, 5, 6]),
        ("000-----", [0, 1, 2]),
        ("0-------", [0]),
        ("0", [0]),
        ("01", [1, 0]),
    ],
)
def test_order_of_version_1(indicators: str, order: list[int]) -> None:
    ring = ring_of(indicators)
    assert ring.format == 1
    assert [file.number for file in ring.files] == order
    assert ring.damage == []


def test_a_journal_never_written() -> None:
    ring = ring_of("----")
    assert (ring.format, ring.files, ring.damage) == (None, [], [])


@pytest.mark.parametrize(
    ("flushes", "indicators", "order"),
    [
        ([5, 6, 8, 9], "0000", [0, 1, 2, 3]),
        ([12, 13, 8, 9], "1100", [2, 3, 0, 1]),
        ([12, 9, 10, 11], "1000", [1, 2, 3, 0]),
        # One flush entered several files: the last and the first, or all but one, or all.
        ([9, 12, 13, 9], "1110", [3, 0, 1, 2]),
        ([9, 9, 13, 9], "1110", [3, 0, 1, 2]),
        ([9, 9, 9, 9], "0000", [0, 1, 2, 3]),
        ([9, 9, 9, 9], "1100", [2, 3, 0, 1]),
        ([5, 5, 0, 0], "00--", [0, 1]),
    ],
)
def test_order_of_version_2(flushes: list[int], indicators: str, order: list[int]) -> None:
    geometry = Geometry(4, SMALL)
    disk = MemoryDisk()
    for number, (flush, indicator) in enumerate(zip(flushes, indicators, strict=True)):
        content = bytes(geometry.file_size)
        if indicator != "-":
            header = FileHeader(2, int(indicator), number, DATA_OFFSET, first_flush=flush, salt=number)
            content = encode_file_header(header) + bytes(SMALL)
        disk.files[f"/{number}"] = content
    ring = read_ring(disk, sorted(disk.files), geometry)
    assert [file.number for file in ring.files] == order
    assert ring.damage == []


# ---- one header harmed, anywhere ----

SEEDS = today(range(8), 2)
HISTORIES = [(version, seed) for version in (1, 2) for seed in SEEDS]


def history(version: int, seed: int) -> History:
    """A journal some laps old with messages in it, ended in whatever file it was."""
    for attempt in range(100):
        life = History(JournalBuilder(version, Geometry(4, 1536), seed=seed))
        for part in range(4 + seed):
            life.run(long_steps(seed + 10 * attempt + 100 * part, 50))
            life.run([("drain", 2)])
            life.run([("enqueue", number) for number in range(7, 14 + seed)])
        life.flush()
        if life.builder.position > 2 * life.builder.geometry.capacity:
            return life
    raise AssertionError("no journal came round twice")


def harm(builder: JournalBuilder, number: int, change: Callable[[bytearray], None]) -> None:
    sector = bytearray(builder.files[number][:SECTOR_SIZE])
    change(sector)
    builder.files[number][:SECTOR_SIZE] = sector


def zero(sector: bytearray) -> None:
    sector[:] = bytes(SECTOR_SIZE)


def garbage(sector: bytearray) -> None:
    sector[:] = bytes(range(256)) * 2


def other_version(sector: bytearray) -> None:
    sector[4] = 3


def record_in_its_place(sector: bytearray) -> None:
    sector[:4] = struct.pack("<I", Kind.ENQUEUE)


HARMS = [zero, garbage, other_version, record_in_its_place]


@pytest.mark.parametrize("change", HARMS)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seed", SEEDS)
def test_version_1_reads_on_without_a_header(seed: int, number: int, change: Callable[[bytearray], None]) -> None:
    """The header is reported, and every message is found."""
    life = history(1, seed)
    harm(life.builder, number, change)
    recovered = recover(life.builder.disk())
    assert recovered.places == expected_places(life.builder, life.live)
    assert f"{DIRECTORY}/{life.builder.name(number)}" in {damage.file for damage in recovered.damage}


@pytest.mark.parametrize("change", HARMS)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seed", SEEDS)
def test_version_2_loses_only_records_that_begin_in_the_file(
    seed: int, number: int, change: Callable[[bytearray], None]
) -> None:
    """Without the salt no record that begins there can be distinguished from an old one; all others are found."""
    life = history(2, seed)
    harm(life.builder, number, change)
    recovered = recover(life.builder.disk())
    rest = readable(life.builder, lambda record: record.file == number)
    assert recovered.places == expected_places(life.builder, replay(rest))
    assert f"{DIRECTORY}/{life.builder.name(number)}" in {damage.file for damage in recovered.damage}


@pytest.mark.parametrize(("version", "seed"), HISTORIES)
@pytest.mark.parametrize("number", range(4))
def test_a_missing_file(version: int, seed: int, number: int) -> None:
    life = history(version, seed)
    disk = life.builder.disk()
    del disk.files[f"{DIRECTORY}/{life.builder.name(number)}"]
    check_rest(life, recover(disk), number)


@pytest.mark.parametrize(("version", "seed"), HISTORIES)
@pytest.mark.parametrize("number", range(4))
def test_a_file_that_cannot_be_opened(version: int, seed: int, number: int) -> None:
    life = history(version, seed)
    disk = life.builder.disk()
    disk.unopenable.add(f"{DIRECTORY}/{life.builder.name(number)}")
    check_rest(life, recover(disk), number)


@pytest.mark.parametrize(("version", "seed"), HISTORIES)
@pytest.mark.parametrize("number", range(4))
def test_an_empty_file(version: int, seed: int, number: int) -> None:
    life = history(version, seed)
    disk = life.builder.disk()
    disk.files[f"{DIRECTORY}/{life.builder.name(number)}"] = b""
    check_rest(life, recover(disk), number)


def check_rest(life: History, recovered: Recovered, number: int) -> None:
    """Everything is found but the records that lie, whole or in part, in file `number`; that file is reported."""
    data_size, files = life.builder.geometry.data_size, life.builder.geometry.files

    def whole(record: PlacedRecord) -> bool:
        first, last = record.position // data_size, (record.position + record.used - 1) // data_size
        if life.builder.version == 1:  # nothing shows that the middle of a record is lost
            return number not in (first % files, last % files)
        return number not in {index % files for index in range(first, last + 1)}

    rest = readable(life.builder, lambda record: not whole(record))
    assert recovered.places == expected_places(life.builder, replay(rest))
    assert f"{DIRECTORY}/{life.builder.name(number)}" in {damage.file for damage in recovered.damage}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seed", range(4))
def test_a_file_cut_short(version: int, seed: int, number: int) -> None:
    """What stood in the file before the cut is found, and all that stood elsewhere."""
    life = history(version, seed)
    builder = life.builder
    disk = builder.disk()
    path = f"{DIRECTORY}/{builder.name(number)}"
    size = DATA_OFFSET + 640
    disk.files[path] = disk.files[path][:size]

    def whole(record: PlacedRecord) -> bool:
        places = map(builder.place, (record.position, record.position + record.used - 1))
        if version == 2:
            places = map(builder.place, range(record.position, record.position + record.used, 32))
        return all(file != number or offset < size for file, offset in [*places])

    recovered = recover(disk)
    rest = readable(builder, lambda record: not whole(record))
    assert recovered.places == expected_places(builder, replay(rest))
    first = recovered.damage[0]
    assert (first.file, first.offset) == (path, size)
    assert (
        first.what == f"file size is {size:,} bytes, but the journal's geometry requires {builder.geometry.file_size:,}"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_too_long_is_reported_and_read(version: int) -> None:
    life = history(version, 1)
    disk = life.builder.disk()
    path = f"{DIRECTORY}/{life.builder.name(2)}"
    disk.files[path] = bytes(disk.files[path]) + b"more"
    recovered = recover(disk)
    assert recovered.places == expected_places(life.builder, life.live)
    assert [(damage.file, damage.offset) for damage in recovered.damage] == [(path, life.builder.geometry.file_size)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", range(4))
def test_version_1_an_indicator_that_lies(seed: int, number: int) -> None:
    """The overwrite indicator of one file header is inverted: it is reported, and every message is found."""
    life = history(1, seed)
    life.builder.files[number][6] ^= 1
    recovered = recover(life.builder.disk())
    assert recovered.places == expected_places(life.builder, life.live)
    assert recovered.damage


@pytest.mark.parametrize(("version", "seed"), HISTORIES)
@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 3), (1, 3)])
def test_two_headers_exchanged(version: int, seed: int, one: int, other: int) -> None:
    life = history(version, seed)
    builder = life.builder
    if version == 2 and b"\0" * 8 in (builder.files[one][16:24], builder.files[other][16:24]):
        return  # no record begins in one of them: nothing there shows that its header is another's
    first, second = bytes(builder.files[one][:SECTOR_SIZE]), bytes(builder.files[other][:SECTOR_SIZE])
    builder.files[one][:SECTOR_SIZE], builder.files[other][:SECTOR_SIZE] = second, first
    recovered = recover(builder.disk())
    rest = readable(builder, lambda record: version == 2 and record.file in (one, other))
    assert recovered.places == expected_places(builder, replay(rest))
    assert {f"{DIRECTORY}/{builder.name(number)}" for number in (one, other)} <= {
        damage.file for damage in recovered.damage
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 3), (1, 3)])
def test_version_2_two_files_exchanged(seed: int, one: int, other: int) -> None:
    """Names got mixed up, in a backup perhaps: the headers tell which file is which."""
    life = history(2, seed)
    builder = life.builder
    builder.files[one], builder.files[other] = builder.files[other], builder.files[one]
    recovered = recover(builder.disk())
    assert [rid for rid, _, _ in recovered.places] == sorted(life.live)
    assert len(recovered.damage) == 2
    assert "file header states file number" in recovered.damage[0].what


@pytest.mark.parametrize(("queue_id", "incarnation"), [(8, 1), (7, 2)])
@pytest.mark.parametrize("number", range(4))
def test_version_2_a_file_of_another_journal(queue_id: int, incarnation: int, number: int) -> None:
    life = history(2, 3)
    stranger = JournalBuilder(2, life.builder.geometry, queue_id=queue_id, incarnation=incarnation, seed=9)
    stranger.enqueue_many(45, b"not ours")
    life.builder.files[number] = stranger.files[number]
    recovered = recover(life.builder.disk())
    check_rest(life, recovered, number)
    assert f"file of queue id {queue_id}, incarnation {incarnation} in the journal" in recovered.damage[0].what


def test_version_2_the_info_file_says_whose_journal_it_is() -> None:
    """Two files of four are another queue's: the majority does not tell."""
    builder = JournalBuilder(2, Geometry(4, SMALL), queue_id=7)
    stranger = JournalBuilder(2, Geometry(4, SMALL), queue_id=6, seed=9)
    for journal in (builder, stranger):
        journal.enqueue_many(30, b"x", flush_every=2)
    for mine in ((0, 1), (2, 3), (0, 3), (1,)):
        disk = builder.disk()
        for number in set(range(4)) - set(mine):
            disk.files[f"{DIRECTORY}/{builder.name(number)}"] = stranger.files[number]
        recovered = recover(disk)
        assert {file for _, file, _ in recovered.places} == set(mine)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("number", range(4))
def test_a_header_of_the_other_version(version: int, number: int) -> None:
    life = history(version, 2)
    other = JournalBuilder(3 - version, life.builder.geometry)
    other.enqueue_many(45, b"x")
    life.builder.files[number] = other.files[number]
    recovered = recover(life.builder.disk())
    check_rest(life, recovered, number)
    what = f"file header of version {3 - version} in a journal of version {version}"
    assert what in [damage.what for damage in recovered.damage]


def test_a_big_endian_journal_is_refused_by_name() -> None:
    builder = JournalBuilder(1, Geometry(4, SMALL))
    for file in builder.files:
        file[:16] = struct.pack(">IBBHQ", Kind.FILE, 1, 1, 0, 1)
    journal = open_journal(builder.disk(), DIRECTORY)
    assert journal.files.format is None
    assert {damage.what for damage in journal.damage} == {"file header of a big-endian writer"}
    assert len(journal.damage) == 4


def test_data_below_a_zeroed_header_are_noticed_in_a_large_file() -> None:
    """The newest file has just been entered: there is nothing in it but its first sectors."""
    for version in (1, 2):
        builder = JournalBuilder(version, Geometry.from_pages(4, 3))
        builder.enqueue_many(3 * 512 + 5, b"x" * 84)
        assert builder.position > builder.geometry.data_size
        header = decode_file_header(bytes(builder.files[1][:SECTOR_SIZE]))
        assert header is not None
        builder.files[1][:SECTOR_SIZE] = bytes(SECTOR_SIZE)
        recovered = recover(builder.disk())
        assert f"{DIRECTORY}/{builder.name(1)}" in {damage.file for damage in recovered.damage}
        assert len(recovered.places) == 3 * 512 + (5 if version == 1 else 0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("number", range(4))
def test_a_header_on_a_bad_sector(version: int, number: int) -> None:
    life = history(version, 2)
    disk = life.builder.disk()
    path = f"{DIRECTORY}/{life.builder.name(number)}"
    disk.bad_regions.append(BadRegion(path, 0, SECTOR_SIZE))
    recovered = recover(disk)
    rest = readable(life.builder, lambda record: version == 2 and record.file == number)
    assert recovered.places == expected_places(life.builder, replay(rest))
    assert any(damage.file == path and "Input/output error" in damage.what for damage in recovered.damage)


def test_version_1_without_any_header() -> None:
    """The records still tell which lap they are of."""
    for seed in range(8):
        life = history(1, seed)
        for number in range(4):
            harm(life.builder, number, garbage)
        recovered = recover(life.builder.disk())
        assert recovered.places == expected_places(life.builder, life.live)
        assert len(recovered.damage) >= 4


def test_the_info_file_says_which_version_it_is() -> None:
    builder = JournalBuilder(2, Geometry(4, SMALL))
    builder.enqueue_many(30, b"mine", flush_every=2)
    other = JournalBuilder(1, Geometry(4, SMALL))
    other.enqueue_many(30, b"other")
    builder.files[1:] = other.files[1:]
    assert {file for _, file, _ in recover(builder.disk()).places} == {0}


def test_version_2_the_first_file_lost_and_one_flush_after_it() -> None:
    builder = JournalBuilder(2, Geometry(4, SMALL))
    builder.enqueue_many(8, b"x" * 84)
    assert builder.position == SMALL
    kept = builder.enqueue(b"kept").header.rid
    builder.flush()
    harm(builder, 0, garbage)
    assert [rid for rid, _, _ in recover(builder.disk()).places] == [kept]


def test_version_2_a_file_from_a_later_day() -> None:
    """One file of a newer copy of the same journal among older ones: believed, it would hide all that follows it."""
    builder = JournalBuilder(2, Geometry(4, SMALL))
    builder.enqueue_many(30, b"x", flush_every=2)
    disk = builder.disk()
    builder.enqueue_many(60, b"x", flush_every=2)
    path = f"{DIRECTORY}/{builder.name(1)}"
    disk.files[path] = bytes(builder.files[1])
    recovered = recover(disk)
    assert {file for _, file, _ in recovered.places} == {0, 2, 3}
    assert any(damage.file == path and "first flush number" in damage.what for damage in recovered.damage)


def test_files_are_examined_without_reading_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 reports as data what is in the page cache: an idle journal would be read by samples at each start."""
    builder = JournalBuilder(2, Geometry(4, 4096))
    builder.enqueue(b"x")
    builder.flush()
    builder.write_to(tmp_path)
    done: list[object] = []
    advise, read = os.posix_fadvise, os.pread
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: (done.append(given[-1]), advise(*given)))
    monkeypatch.setattr(os, "pread", lambda *given: (done.append("read"), read(*given))[1])
    paths = sorted(str(path) for path in tmp_path.glob("*.jdat"))
    read_ring(OsDisk(), paths, builder.geometry)
    assert done.count(os.POSIX_FADV_RANDOM) == len(paths) == 4
    assert done[0] == os.POSIX_FADV_RANDOM


def test_only_what_may_be_data_is_read_of_an_idle_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block of a file that was just allocated is in the page cache: it is reported as data."""
    path = str(tmp_path / "JournalData.0000.jdat")
    geometry = Geometry(1, 1 << 20)
    with contextlib.closing(OsWritableDisk().create(path, geometry.file_size)) as file:
        if file.data_from(0) < file.size:
            pytest.skip("this file system does not distinguish allocated blocks from written ones")
        file.write(geometry.file_size - 1, b"\0")
    done: list[int] = []
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (done.append(given[2]), read(*given))[1])
    assert not read_ring(OsDisk(), [path], geometry).files
    assert done == [0, 1 << 20]


@pytest.mark.parametrize("place", [600, 5000, 20_000, 500_000, 1_030_000])
def test_data_in_a_file_without_a_header_is_found(tmp_path: Path, place: int) -> None:
    path = str(tmp_path / "JournalData.0000.jdat")
    geometry = Geometry(1, 1 << 20)
    with contextlib.closing(OsWritableDisk().create(path, geometry.file_size)) as file:
        file.write(place, b"x" * (16 << 10))  # as long as what lies between two samples
    assert [file.used for file in read_ring(OsDisk(), [path], geometry).files] == [True]


def test_a_file_of_which_only_the_header_can_be_read() -> None:
    builder = JournalBuilder(2, Geometry(2, 8192))
    builder.enqueue(b"x")
    builder.flush()
    disk = builder.disk()
    disk.bad_regions.append(BadRegion(f"{DIRECTORY}/{builder.name(0)}", 4000, 4096))
    disk.bad_regions.append(BadRegion(f"{DIRECTORY}/{builder.name(1)}", 4000, 4096))
    ring = read_ring(disk, [f"{DIRECTORY}/{builder.name(number)}" for number in range(2)], builder.geometry)
    assert [file.header is not None for file in ring.files] == [True, False]
