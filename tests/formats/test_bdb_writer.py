"""Database files that are written: read back by the reader, and by Berkeley DB's own programs where they are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.bdb import Btree, analyse_log, salvage
from qstore.formats.bdb.log import log_records
from qstore.formats.bdb.pages import HEADER, INTERNAL_TYPES, BdbError, Lsn, MetadataFlag, PageType
from qstore.formats.bdb.writer import FILE_ID_SIZE, QPIDD_PAGE_SIZE, encode_btree, encode_empty_log
from tests.formats.bdb_files import Log
from tests.support.fixtures import StoreFixture
from tests.support.profiles import examples

Pairs = list[tuple[bytes, bytes]]

FILE_ID = bytes(range(FILE_ID_SIZE))
PAGE_SIZES = [512, 4096, 32768]
needs_programs = pytest.mark.skipif(
    shutil.which("db5.3_verify") is None, reason="needs db5.3_verify and db5.3_dump: Debian's db5.3-util"
)


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def written(pairs: Pairs, *, duplicates: bool = False, page_size: int = 512) -> bytes:
    return encode_btree(pairs, FILE_ID, sorted_duplicates=duplicates, page_size=page_size)


def read(buffer: bytes) -> Pairs:
    damage: list[BdbError] = []
    pairs = list(salvage(buffer, damage.append))
    assert damage == []
    assert list(Btree(buffer).items()) == pairs
    return pairs


def levels(buffer: bytes) -> dict[PageType, int]:
    """Type of page -> the highest level on which there is one."""
    tree = Btree(buffer)
    found: dict[PageType, int] = {}
    for number in range(1, tree.pages.page_count):
        page = tree.pages.page(number)
        found[page.type] = max(page.level, found.get(page.type, 0))
    return found


def deep(count: int) -> Pairs:
    return [(key(number), b"v" * (number % 50)) for number in range(1, count)]


def duplicates(count: int, size: int = 20) -> Pairs:
    return [(key(number), b"%08d" % at + b"d" * size) for at in range(count) for number in (1, 4)]


def alike(count: int) -> Pairs:
    """Values that differ only at their ends, which no page has room for."""
    return [(key(2), b"q" * 1500 + b"%05d" % at) for at in range(count)]


CASES: dict[str, tuple[Pairs, bool]] = {
    "nothing": ([], False),
    "nothing, of several": ([], True),
    "one": ([(key(1), b"")], False),
    "every size": ([(key(size), b"s" * size) for size in range(1, 1200)], False),
    "large keys": ([(b"k" * size, b"v") for size in range(1, 1200)], False),
    "deep": (deep(6000), False),
    "chains": ([(key(number), b"c" * 40_000) for number in range(20)], False),
    "few of one key": (duplicates(3), True),
    "many of one key": (duplicates(3000), True),
    "large ones of one key": (duplicates(300, 1200), True),
    "alike": (alike(400), True),
    "one and several": ([*duplicates(40), (key(2), b""), (key(3), b"x" * 9000)], True),
    "empty values": ([(key(number), b"") for number in range(500)] + [(key(3), b"a")], True),
}
cases = pytest.mark.parametrize(("pairs", "several"), CASES.values(), ids=CASES)


# ---- what is written is read ----


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@cases
def test_written_pairs_are_read_back(pairs: Pairs, several: bool, page_size: int) -> None:
    assert read(written(pairs, duplicates=several, page_size=page_size)) == sorted(pairs)


@examples(200)
@given(st.dictionaries(st.binary(max_size=300), st.binary(max_size=1500), max_size=60), st.sampled_from([512, 1024]))
def test_any_keys_and_values(content: dict[bytes, bytes], page_size: int) -> None:
    pairs = list(content.items())
    assert read(written(pairs, page_size=page_size)) == sorted(pairs)


@examples(200)
@given(st.sets(st.tuples(st.sampled_from([b"", b"a", b"b"]), st.binary(max_size=400)), max_size=200))
@example({(b"a", b"x" * size) for size in range(200)})
def test_any_values_of_a_few_keys(content: set[tuple[bytes, bytes]]) -> None:
    assert read(written(list(content), duplicates=True)) == sorted(content)


def test_trees_have_as_many_levels_as_they_need() -> None:
    assert levels(written([])) == {PageType.LEAF: 1}
    assert levels(written(deep(100)))[PageType.INTERNAL] == 2
    assert levels(written(deep(6000)))[PageType.INTERNAL] == 3
    assert levels(written([(key(number), b"v" * 100) for number in range(6000)]))[PageType.INTERNAL] == 4
    assert levels(written(deep(6000), page_size=QPIDD_PAGE_SIZE))[PageType.INTERNAL] == 2


def test_values_of_one_key_get_a_tree_from_a_quarter_of_a_page_on() -> None:
    assert PageType.DUPLICATE_LEAF not in levels(written(duplicates(3), duplicates=True))
    assert levels(written(duplicates(4), duplicates=True))[PageType.DUPLICATE_LEAF] == 1
    assert levels(written(duplicates(3000), duplicates=True))[PageType.INTERNAL] >= 3


def test_large_values_go_to_an_overflow_chain() -> None:
    """The sizes at which db5.3_load changes over."""
    for page_size, largest in ((512, 111), (4096, 1007)):
        assert PageType.OVERFLOW not in levels(written([(key(1), b"x" * largest)], page_size=page_size))
        assert PageType.OVERFLOW in levels(written([(key(1), b"x" * (largest + 1))], page_size=page_size))


def test_internal_pages_have_two_children_at_least() -> None:
    for count in range(2, 400):
        tree = Btree(written([(key(number), b"v" * 100) for number in range(count)]))
        pages = [tree.pages.page(number) for number in range(1, tree.pages.page_count)]
        assert all(page.entries >= 2 for page in pages if page.type in INTERNAL_TYPES)


def test_trees_of_values_count_them() -> None:
    """The root says how many there are in the place of the page before it, as the library has it."""
    buffer = written(duplicates(1000), duplicates=True)
    roots = []
    for number in range(2, len(buffer) // 512):
        fields = HEADER["<"].unpack_from(buffer, 512 * number)
        if fields[8] == PageType.INTERNAL and fields[3]:
            roots.append(fields[3])
    assert roots == [1000, 1000]


def test_the_metadata_are_those_of_qpidd() -> None:
    metadata = Btree(written(duplicates(10), duplicates=True, page_size=QPIDD_PAGE_SIZE)).metadata
    assert metadata.flags == MetadataFlag.DUPLICATES | MetadataFlag.SORTED_DUPLICATES
    assert (metadata.root_page, metadata.page_size, metadata.file_id) == (1, QPIDD_PAGE_SIZE, FILE_ID)


def test_an_empty_file_equals_qpidds_but_for_log_and_id(legacy_store: StoreFixture) -> None:
    """config.db and mappings.db are never written to; of a page, what is above the header is not cleared."""
    for name, several in (("config.db", False), ("mappings.db", True)):
        theirs = (legacy_store.path / "rhm" / "dat" / name).read_bytes()
        ours = encode_btree([], theirs[52:72], sorted_duplicates=several)
        assert len(ours) == len(theirs)
        assert ours[8:512] == theirs[8:512]
        assert ours[4096 + 8 : 4096 + 26] == theirs[4096 + 8 : 4096 + 26]


def test_no_page_belongs_to_a_log() -> None:
    assert Btree(written(deep(1000))).newest_change()[1] == Lsn(0, 1)


# ---- what is not written ----


def test_a_key_is_there_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        written([(b"a", b"1"), (b"b", b""), (b"a", b"2")])
    with pytest.raises(ValueError, match="twice"):
        written([(b"a", b"1"), (b"a", b"2"), (b"a", b"1")], duplicates=True)


@pytest.mark.parametrize("page_size", [0, 256, 1000, 65536])
def test_page_sizes_are_legal(page_size: int) -> None:
    with pytest.raises(ValueError, match="page"):
        written([], page_size=page_size)


def test_a_file_id_has_twenty_bytes() -> None:
    with pytest.raises(ValueError, match="id"):
        encode_btree([], b"short")


# ---- the log ----


def test_a_new_log_is_sound_and_empty() -> None:
    log = encode_empty_log()
    assert list(log_records(log)) == []
    summary = analyse_log([(1, log)])
    assert (summary.damage, summary.torn, summary.doubts) == ([], [], [])
    assert log == Log().build()[: len(log)]


def test_a_new_log_begins_as_qpidds_does(legacy_store: StoreFixture) -> None:
    log = encode_empty_log()
    assert (legacy_store.path / "rhm" / "dat" / "log.0000000001").read_bytes()[: len(log)] == log


# ---- Berkeley DB itself ----


@needs_programs
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@cases
def test_berkeley_db_verifies_and_reads_it(pairs: Pairs, several: bool, page_size: int, tmp_path: Path) -> None:
    path = tmp_path / "written.db"
    path.write_bytes(written(pairs, duplicates=several, page_size=page_size))
    verified = subprocess.run(["db5.3_verify", path], capture_output=True, check=False)
    assert verified.returncode == 0, verified.stderr.decode()
    dumped = subprocess.run(["db5.3_dump", path], capture_output=True, check=True).stdout.decode()
    lines = [bytes.fromhex(line) for line in dumped.splitlines() if line.startswith(" ")]
    assert list(zip(lines[::2], lines[1::2], strict=True)) == sorted(pairs)


@needs_programs
@pytest.mark.skipif(shutil.which("db5.3_load") is None, reason="needs db5.3_load: Debian's db5.3-util")
@cases
def test_berkeley_db_continues_writing_it(pairs: Pairs, several: bool, tmp_path: Path) -> None:
    """Into full pages, so that they split; nothing of what was there is lost."""
    path = tmp_path / "written.db"
    path.write_bytes(written(pairs, duplicates=several))
    new = [(key(number) + b"new", b"n" * 90) for number in range(0, 6000, 3)]
    head = ["VERSION=3", "format=bytevalue", "type=btree", *(["duplicates=1", "dupsort=1"] if several else [])]
    rows = [f" {value.hex()}" for pair in new for value in pair]
    text = "\n".join([*head, "HEADER=END", *rows, "DATA=END", ""])
    subprocess.run(["db5.3_load", path], input=text.encode(), check=True)
    subprocess.run(["db5.3_verify", path], check=True, capture_output=True)
    assert read(path.read_bytes()) == sorted(pairs + new)
