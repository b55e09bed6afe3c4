"""`qpid-store-chk` on journals that were torn, flipped and forged: a report or one line, never a traceback."""

from __future__ import annotations

import random
import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import Geometry
from qstore.tools.drop_in import CheckError, Show
from qstore.tools.qpid_store_chk import Checker
from tests.support.fixtures import StoreFixture, journal_directory
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.memory_disk import MemoryDisk
from tests.support.profiles import examples
from tests.tools.store_chk_runs import Run, check, patch, path_of

GEOMETRY: Final = Geometry(4, 4096)
READ_LIMIT: Final = 2_000_000  # bytes: the journal has 18 KB, and its files are read in windows
SHOWN: Final = st.sampled_from(Show)


def wrapped_journal() -> JournalBuilder:
    """A ring that was written round more than once, with everything in it."""
    journal = JournalBuilder(1, GEOMETRY)
    chance = random.Random(7)
    for number in range(60):
        xid = b"" if number % 3 else b"xid %d" % (number % 6)
        record = journal.enqueue(chance.randbytes(chance.randrange(900)), xid=xid)
        if number > 4:
            journal.dequeue(record.header.rid - 7, xid=b"other" if number % 11 == 0 else b"")
        if number % 6 == 0:
            journal.commit(b"xid 0")
        if number % 6 == 3:
            journal.abort(b"xid 3")
    journal.flush()
    return journal


JOURNAL: Final = wrapped_journal()
FILES: Final = {path: bytes(content) for path, content in JOURNAL.disk().files.items()}
LAST_LAP: Final[list[PlacedRecord]] = JOURNAL.records[-20:]


def assert_reported(result: Run, disk: MemoryDisk) -> None:
    """It ended in one of the ways that the command has."""
    assert result.code in (0, 1)
    assert (result.code == 0) == (result.err == "")
    assert "\n" not in result.err
    assert "Traceback" not in result.out
    assert disk.bytes_read < READ_LIMIT


def test_the_journal_itself_can_be_read() -> None:
    result = check(MemoryDisk(FILES))
    assert (result.code, result.err) == (0, "")
    assert result.counted[0] > 10
    assert result.remaining
    assert result.incomplete


@examples(150)
@given(st.data(), SHOWN)
def test_random_bytes_anywhere(data: st.DataObject, show: Show) -> None:
    disk = MemoryDisk(FILES)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(sorted(FILES)))
        content = bytearray(disk.files[path])
        offset = data.draw(st.integers(0, len(content) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=64))
        content[offset : offset + len(noise)] = noise
        disk.files[path] = content
    assert_reported(check(disk, show), disk)


@examples(150)
@given(st.integers(0, 3), st.binary(min_size=1, max_size=48), st.integers(0, 47), SHOWN)
def test_forged_file_headers(number: int, noise: bytes, offset: int, show: Show) -> None:
    disk = patch(MemoryDisk(FILES), number, offset, noise)
    assert_reported(check(disk, show), disk)


@examples(200)
@given(
    st.sampled_from(LAST_LAP),
    st.sampled_from([b"RHMe", b"RHMd", b"RHMc", b"RHMa", b"RHMx", b"RHMf", b"RHMz", bytes(4)]),
    st.lists(st.sampled_from([0, 1, 32, 127, 4096, 1 << 20, 1 << 32, 1 << 63, (1 << 64) - 1]), min_size=3, max_size=3),
    SHOWN,
)
def test_forged_record_headers(record: PlacedRecord, magic: bytes, fields: list[int], show: Show) -> None:
    """Kinds and sizes that are not so, in a record that the walk reaches."""
    forged = magic + b"\1\0" + struct.pack("<H", record.header.flags) + struct.pack("<QQQ", *fields)
    disk = patch(MemoryDisk(FILES), record.file, record.offset, forged)
    assert_reported(check(disk, show), disk)


@examples(100)
@given(st.dictionaries(st.integers(0, 3), st.integers(0, GEOMETRY.file_size), max_size=4), SHOWN)
def test_files_cut_short(sizes: dict[int, int], show: Show) -> None:
    disk = MemoryDisk(FILES)
    for number, size in sizes.items():
        disk.files[path_of(number)] = FILES[path_of(number)][:size]
    assert_reported(check(disk, show), disk)


@examples(100)
@given(st.binary(max_size=1500), st.integers(0, 700))
def test_info_files_of_any_content(noise: bytes, offset: int) -> None:
    disk = MemoryDisk(FILES)
    path = f"{DIRECTORY}/JournalData.jinf"
    disk.files[path] = FILES[path][:offset] + noise + FILES[path][offset + len(noise) :]
    assert_reported(check(disk), disk)


@pytest.mark.parametrize("files", [1, 2, 5, 64])
@pytest.mark.parametrize("sectors", [1, 7, 9, 1 << 40, 1 << 48])
def test_info_files_that_lie_about_the_geometry(files: int, sectors: int) -> None:
    """Far too large files are those that are there, and the rest of them was never written."""
    disk = MemoryDisk(FILES)
    path = f"{DIRECTORY}/JournalData.jinf"
    content = FILES[path].replace(b'files value="4"', b'files value="%d"' % files)
    disk.files[path] = content.replace(b'sblks value="8"', b'sblks value="%d"' % sectors)
    assert_reported(check(disk), disk)


@examples(100)
@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=4096), SHOWN)
def test_files_of_noise_behind_a_good_header(first_record: int, noise: bytes, show: Show) -> None:
    disk = MemoryDisk(FILES)
    for number in range(4):
        patch(disk, number, 24, struct.pack("<Q", first_record if number % 2 else 0x200))
        patch(disk, number, 512, noise.ljust(4096, noise[-1:] or b"\xff"))
    assert_reported(check(disk, show), disk)


def test_a_file_of_fillers_only() -> None:
    disk = MemoryDisk(FILES)
    for number in range(4):
        patch(disk, number, 6, b"\0")
        patch(disk, number, 24, struct.pack("<Q", 0x200))
        patch(disk, number, 512, (b"RHMx" + b"\xff" * 124) * 32)
    result = check(disk)
    assert (result.code, result.counted) == (0, (0, 128))


def test_a_journal_that_changes_while_it_is_read() -> None:
    """What the walk met is gone when it is to be reported."""
    journal = JournalBuilder(1, Geometry(4, 1 << 17))
    journal.enqueue_many(2000, b"m")
    disk = MemoryDisk({path: bytearray(content) for path, content in journal.disk().files.items()})

    def write(text: str) -> None:
        if text.startswith(" === REPORT"):
            for number in range(4):
                file = disk.files[path_of(number)]
                assert isinstance(file, bytearray)
                file[:] = bytes(len(file))

    with pytest.raises(CheckError, match="changed while it was read"):
        Checker(disk, write, Show.DOTS).run(DIRECTORY, "JournalData", None)
    assert disk.open_now == 0


def test_every_flipped_bit_of_a_real_journal(dtx: StoreFixture) -> None:
    """One bit of each of the bytes that hold something, in the journal with transactions in doubt."""
    directory = journal_directory(dtx.path, "d.q1")
    files = {f"{DIRECTORY}/{path.name}": path.read_bytes() for path in directory.iterdir()}
    used = files[path_of(0)].rstrip(b"\0")
    for offset in range(0, len(used), 5):
        disk = MemoryDisk(files)
        patch(disk, 0, offset, bytes([used[offset] ^ 1 << offset % 8]))
        assert_reported(check(disk, Show.DOTS), disk)
