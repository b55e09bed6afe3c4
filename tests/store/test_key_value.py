"""RocksDB beyond the contract of a key-value map (`tests/faults`): private copies and damaged databases."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.store.key_value import CatalogueError, KeyValue, RocksKeyValue, open_copy
from tests.support.processes import PATIENCE_SECONDS
from tests.support.rocksdb_manifest import record_ends

ROOT = Path(__file__).parents[2]


KILLED = """
import os, sys
from pathlib import Path
from qstore.store.key_value import RocksKeyValue
first = RocksKeyValue.open(Path(sys.argv[1]), create=True)
for number in range(300):
    first.write({b"table %05d" % number: b"v" * 200})
first.close()
second = RocksKeyValue.open(Path(sys.argv[1]))
for number in range(10):
    second.write({b"log %05d" % number: b"w" * 200})
os._exit(0)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a process leaves that dies right after its last synced batch: 300 keys in a table, 10 in the log only."""
    directory = tmp_path_factory.mktemp("killed") / "catalogue"
    subprocess.run([sys.executable, "-c", KILLED, directory], cwd=ROOT, check=True, timeout=PATIENCE_SECONDS)
    return directory


@pytest.fixture
def database(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to damage, and a folder of one's own for temporary files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return Path(shutil.copytree(killed, tmp_path / "catalogue"))


def only(database: Path, pattern: str) -> Path:
    """The one file with content that `pattern` names."""
    (path,) = [path for path in database.glob(pattern) if path.stat().st_size]
    return path


def state(directory: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Everything that writing to a directory would change."""
    found = {".": (b"", directory.stat().st_mtime_ns, directory.stat().st_ctime_ns, 0)}
    for path in directory.rglob("*"):
        status = path.stat()
        found[path.name] = (path.read_bytes(), status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
    return found


def read_copy(database: Path) -> tuple[int, tuple[str, ...]]:
    """How many keys a copy has, and its damage."""
    copy = open_copy(database)
    try:
        return len(list(copy.items(b""))), tuple(found.what for found in copy.damage)
    finally:
        copy.close()


class TestOpenCopy:
    def test_it_sees_tables_and_the_log_and_leaves_no_trace(self, database: Path, tmp_path: Path) -> None:
        before = state(database)
        copy = open_copy(database)
        (private,) = (tmp_path / "scratch").iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert [key for key, _ in copy.items(b"log")] == [b"log %05d" % number for number in range(10)]
        assert copy.get(b"table 00299") == b"v" * 200
        assert copy.damage == ()
        copy.close()
        assert state(database) == before
        assert list((tmp_path / "scratch").iterdir()) == []

    def test_it_cannot_be_written(self, database: Path) -> None:
        copy = open_copy(database)
        with pytest.raises(CatalogueError, match=rf"{database}: RocksDB cannot write: .*read only"):
            copy.write({b"a": b"1"})
        copy.close()

    def test_a_read_only_tree_named_by_a_relative_path(self, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in (*database.iterdir(), database):
            path.chmod(0o555 if path.is_dir() else 0o444)
        monkeypatch.chdir(database.parent)
        try:
            assert read_copy(Path("catalogue")) == (310, ())
        finally:
            database.chmod(0o755)

    def test_while_the_owner_has_it_open(self, database: Path) -> None:
        owner = RocksKeyValue.open(database)
        owner.write({b"more": b"1"})
        assert read_copy(database) == (311, ())
        owner.close()

    def test_logs_locks_and_options_are_not_needed(self, database: Path) -> None:
        for path in database.iterdir():
            if path.name.startswith(("LOG", "LOCK", "OPTIONS", "IDENTITY", "rocksdict")):
                path.unlink()
        assert read_copy(database) == (310, ())

    def test_a_torn_tail_of_the_log_is_not_damage(self, database: Path) -> None:
        log = only(database, "*.log")
        os.truncate(log, log.stat().st_size - 30)
        assert read_copy(database) == (309, ())

    def test_a_log_damaged_before_its_end_is_read_up_to_there_and_reported(self, database: Path) -> None:
        flip(only(database, "*.log"), 600)
        count, damage = read_copy(database)
        assert 300 < count < 309
        assert len(damage) == 1
        assert damage[0].startswith("write-ahead log: Corruption")

    def test_a_log_damaged_before_its_end_is_not_opened_to_write(self, database: Path) -> None:
        flip(only(database, "*.log"), 600)
        with pytest.raises(CatalogueError, match=rf"^{database}: RocksDB cannot open it: Corruption"):
            RocksKeyValue.open(database)

    def test_a_manifest_cut_anywhere_is_never_taken_for_whole(self, database: Path) -> None:
        manifest = only(database, "MANIFEST-*")
        whole = manifest.read_bytes()
        ends = set(record_ends(whole))
        reported = 0
        for length in range(0, len(whole), 7):
            manifest.write_bytes(whole[:length])
            try:
                _, damage = read_copy(database)
            except CatalogueError:
                continue
            if length not in ends:
                assert len(damage) == 1
                assert damage[0].startswith(f"{manifest.name}: ends in the middle of a record")
                reported += 1
        assert reported

    def test_a_damaged_table_is_met_when_it_is_read_and_not_taken_for_its_end(self, database: Path) -> None:
        flip(only(database, "*.sst"), 1500)
        copy = open_copy(database)
        with pytest.raises(CatalogueError, match=rf"^{database}: RocksDB cannot read: Corruption.* {database}/"):
            list(copy.items(b""))
        failed = 0
        for number in range(300):
            try:
                assert copy.get(b"table %05d" % number) == b"v" * 200
            except CatalogueError:
                failed += 1
        assert 0 < failed < 100
        copy.close()

    def test_damaged_file_is_named_under_any_directory_name(self, database: Path, tmp_path: Path) -> None:
        """RocksDB names a file only in its messages, with the path."""
        path = tmp_path / "CURRENT" / "000001.sst"
        shutil.copytree(database, path)
        flip(only(path, "*.log"), 600)
        copy = open_copy(path)
        assert [found.file for found in copy.damage] == [None]  # of a log it does not say which
        copy.close()
        flip(only(path, "*.sst"), 1500)
        copy = open_copy(path)
        with pytest.raises(CatalogueError) as met:
            list(copy.items(b""))
        assert met.value.file == str(only(path, "*.sst"))
        copy.close()
        (path / "CURRENT").unlink()
        with pytest.raises(CatalogueError) as met:
            open_copy(path)
        assert met.value.file == str(path / "CURRENT")


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.log", "*.sst"])
def test_no_flipped_byte_goes_unnoticed(database: Path, pattern: str) -> None:
    path = only(database, pattern)
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 24 + 1):
        flip(path, at)
        try:
            _, damage = read_copy(database)
        except CatalogueError as error:
            damage = (str(error),)
        assert len(damage) == 1, at
        assert "\n" not in damage[0]
        path.write_bytes(whole)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def remove(database: Path, pattern: str) -> None:
    only(database, pattern).unlink()


def truncate(database: Path, pattern: str) -> None:
    os.truncate(only(database, pattern), 40)


def replace_by_fifo(database: Path, pattern: str) -> None:
    path = only(database, pattern)
    path.unlink()
    os.mkfifo(path)


def extend(database: Path, pattern: str) -> None:
    os.truncate(only(database, pattern), 1 << 40)  # it takes no more space


@pytest.mark.parametrize(
    ("damage", "pattern", "what"),
    [
        (remove, "CURRENT", "not a RocksDB database: the file CURRENT is missing"),
        (remove, "MANIFEST-*", "RocksDB cannot open it: .*MANIFEST"),
        (remove, "*.sst", "RocksDB cannot open it: .*sst"),
        (truncate, "MANIFEST-*", "RocksDB cannot open it: .*MANIFEST"),
        (truncate, "*.sst", "RocksDB cannot open it: .*sst"),
        (replace_by_fifo, "*.sst", "[A-Z0-9a-z./]+: not a regular file"),
        (replace_by_fifo, "*.log", "[A-Z0-9a-z./]+: not a regular file"),
        (replace_by_fifo, "CURRENT", "[A-Z0-9a-z./]+: not a regular file"),
        (extend, "CURRENT", r"CURRENT is too large: 1,099,511,627,776 bytes"),
        (extend, "*.log", r"\d+\.log is too large: 1,099,511,627,776 bytes"),
        (extend, "MANIFEST-*", r"MANIFEST-.* is too large: 1,099,511,627,776 bytes"),
    ],
)
def test_open_error_is_one_line_with_the_path(
    database: Path, damage: Callable[[Path, str], None], pattern: str, what: str
) -> None:
    damage(database, pattern)
    with pytest.raises(CatalogueError, match=f"^{database}(: |/){what}") as caught:
        open_copy(database)
    assert "\n" not in str(caught.value)
    assert "qstore-catalogue-" not in str(caught.value)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("opener", [open_copy, RocksKeyValue.open])
def test_path_without_a_database_is_refused_and_unchanged(opener: Callable[[Path], KeyValue], tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, Path(__file__)):
        with pytest.raises(CatalogueError, match=f"^{path}: "):
            opener(path)
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_private_copy_is_said(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(database / "missing"))
    with pytest.raises(CatalogueError, match=f"^{database}: cannot create a private copy: "):
        open_copy(database)


def test_creating_over_a_database_is_refused(database: Path) -> None:
    with pytest.raises(CatalogueError, match=f"^{database}: RocksDB cannot open it: .*exists"):
        RocksKeyValue.open(database, create=True)
