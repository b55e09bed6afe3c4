"""Stores that cannot be opened are refused with one line, unchanged, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import rocksdict

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm import store_file
from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import system_environment, tool_environment
from qstore.store.errors import StoreDamagedError, StoreError, StoreLockedError
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from tests.support import forked
from tests.support.fixtures import StoreOpener
from tests.support.forked import Forked
from tests.support.processes import children_of
from tests.support.profiles import today

ROOT: Final = Path(__file__).parents[2]
GEOMETRY: Final = Geometry.from_pages(4, 1)
PARAMETERS: Final = StoreParameters(
    auto_expand=False, num_jfiles=4, jfile_size_pgs=1, tpl_num_jfiles=4, tpl_jfile_size_pgs=1
)
REFUSE: Final = StoreParameters(tpl_num_jfiles=4, tpl_jfile_size_pgs=1, on_damage=OnDamage.REFUSE)
NOBODY: Final = 65534


def ignore(line: LogLine) -> None:
    """No log."""


def make_store(path: Path) -> Path:
    """A store with two queues, closed cleanly."""
    made: list[QueueJournal | None] = []
    with MessageStore.open(tool_environment(), str(path), PARAMETERS, "0.1.0", log=ignore) as store:
        for name in ("orders", "bills"):
            store.changes.create_queue(Queue(name), GEOMETRY, lambda journal, error: made.append(journal))
        store.collect()
    assert None not in made
    return path


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """`surroundings` collects garbage many times: what all tests before have left in memory is not looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    """Everything at a path, but for the lock and for the files that RocksDB replaces whenever it is opened."""
    found: dict[str, tuple[int, bytes]] = {}
    for each in [path, *path.rglob("*")] if path.exists() else []:
        name = str(each.relative_to(path))
        if name != "rhm.lock" and "/catalogue/" not in name:
            is_file = each.is_file() and not each.is_symlink()
            found[name] = (each.lstat().st_mode, each.read_bytes() if is_file else b"")
    return found


def surroundings() -> tuple[list[str], set[int], int]:
    """What this process holds: descriptors, children, threads."""
    gc.collect()
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
    names = [name for name in descriptors if "/catalogue/LOG" not in name]  # RocksDB renames it, even while it is open
    return sorted(names), set(children_of(os.getpid())), threading.active_count()


def refusal(path: Path, parameters: StoreParameters = PARAMETERS) -> tuple[type[StoreError], str]:
    """How opening the store is refused; the text with STORE for the path. Nothing may be left of the attempt."""
    before, held = tree(path), surroundings()
    with pytest.raises(StoreError) as caught:
        MessageStore.open(system_environment(), str(path), parameters, "0.1.0", log=ignore)
    kind, text = type(caught.value), str(caught.value)
    del caught
    assert surroundings() == held
    assert tree(path) == before
    assert "\n" not in text
    return kind, text.replace(str(path), "STORE")


# ---- another process, a path that is none ----


def test_two_processes_on_one_store(store: Path) -> None:
    program = (
        "import sys\n"
        "from qstore.store.environment import tool_environment\n"
        "from qstore.store.live.message_store import MessageStore\n"
        "from qstore.store.parameters import StoreParameters\n"
        "store = MessageStore.open(tool_environment(), sys.argv[1], StoreParameters(), '0.1.0', log=lambda _: None)\n"
        "print('open', flush=True)\nsys.stdin.readline()\nprint(store.close(), flush=True)\n"
    )
    with Forked([sys.executable, "-c", program, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        for _ in range(2):
            assert refusal(store) == (StoreLockedError, "Data directory is locked by another process.")
        other.stdin.write(b"\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"True\n"
    MessageStore.open(system_environment(), str(store), PARAMETERS, "0.1.0", log=ignore).close()


def test_twice_in_one_process(store: Path) -> None:
    with MessageStore.open(tool_environment(), str(store), PARAMETERS, "0.1.0", log=ignore):
        assert refusal(store) == (StoreLockedError, "Data directory is locked by another process.")


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    expected = "STORE: the store directory cannot be used: it is not a directory"
    assert refusal(tmp_path / "file") == (StoreError, expected)


def test_no_directory_above(tmp_path: Path) -> None:
    text = "STORE: the store directory cannot be used: No such file or directory"
    assert refusal(tmp_path / "nowhere" / "store") == (StoreError, text)
    assert os.listdir(tmp_path) == []


# ---- what is there is no store, or a damaged one ----


def other_version(rhm: Path) -> None:
    text = (rhm / "STORE").read_text()
    (rhm / "STORE").write_text(text.replace('"version": 2', '"version": 4'))


def other_mark(rhm: Path) -> None:
    text = (rhm / "STORE").read_text()
    (rhm / "STORE").write_text(text.replace('"clean_close": true', '"clean_close": false'))


def no_catalogue(rhm: Path) -> None:
    shutil.rmtree(rhm / "catalogue")


def empty_catalogue(rhm: Path) -> None:
    shutil.rmtree(rhm / "catalogue")
    (rhm / "catalogue").mkdir()


def foreign_database(rhm: Path) -> None:
    no_catalogue(rhm)
    database = rocksdict.Rdict(str(rhm / "catalogue"), rocksdict.Options(raw_mode=True))
    database[b"key"] = b"value"
    database.close()


def foreign_catalogue(rhm: Path) -> None:
    other = make_store(rhm.parents[1] / "other")
    no_catalogue(rhm)
    shutil.copytree(other / "rhm" / "catalogue", rhm / "catalogue")


def damaged_table(rhm: Path) -> None:
    for table in (rhm / "catalogue").glob("*.sst"):
        table.write_bytes(bytes(range(256)) * 8)


def no_manifest(rhm: Path) -> None:
    for manifest in (rhm / "catalogue").glob("MANIFEST-*"):
        manifest.unlink()


def rhm_is_a_file(rhm: Path) -> None:
    shutil.rmtree(rhm)
    rhm.write_bytes(b"content")


def junk(rhm: Path) -> None:
    shutil.rmtree(rhm)
    rhm.mkdir()
    (rhm / "letter.txt").write_bytes(b"content")


CATALOGUE: Final = "STORE/rhm/catalogue: "


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (other_version, StoreError, "STORE/rhm/STORE: STORE file: unknown store format version 4; this software"),
        (other_mark, StoreError, "STORE/rhm/STORE: STORE file: close_record can only be true, in a store that was"),
        (lambda rhm: (rhm / "STORE").write_bytes(b""), StoreError, "STORE/rhm/STORE: STORE file: not JSON: Input is"),
        (lambda rhm: (rhm / "STORE").write_bytes(b"{}" * 9999), StoreError, "STORE/rhm/STORE: STORE file: 4,097 bytes"),
        (
            lambda rhm: (rhm / "STORE").unlink(),
            StoreError,
            "STORE/rhm: the STORE file is missing; inspect it with qstore-check STORE",
        ),
        (foreign_catalogue, StoreError, CATALOGUE + "the catalogue is that of another store"),
        (rhm_is_a_file, StoreError, "STORE/rhm: this is not a store, but a file; move it elsewhere first"),
        (junk, StoreError, "STORE/rhm: this is not a store: it has neither a STORE file nor a dat directory"),
    ],
)
def test_directory_that_is_not_a_store_is_refused(
    store: Path, change: Callable[[Path], None], kind: type[StoreError], text: str
) -> None:
    change(store / "rhm")
    for _ in range(2):
        assert refusal(store)[0] is kind
        assert refusal(store)[1].startswith(text)


RESTORED: Final = (
    "; the store is not opened, because on-damage is refuse: see qstore-check STORE, "
    "and start with --on-damage quarantine to restore what can be saved"
)


@pytest.mark.parametrize("has_copy", [True, False], ids=["with its second copy", "without"])
@pytest.mark.parametrize(
    ("change", "text"),
    today(
        [
            (no_catalogue, "the catalogue is missing"),
            (empty_catalogue, "not a RocksDB database: the file CURRENT is missing"),
            (no_manifest, "RocksDB cannot open it: IO error: No such file or directory"),
            (damaged_table, "RocksDB cannot open it: Corruption: "),
            (foreign_database, "no readable meta entry: this is not a catalogue, or"),
        ],
        3,
    ),
)
def test_a_damaged_catalogue(store: Path, change: Callable[[Path], None], text: str, has_copy: bool) -> None:
    """Refused where that is asked for; else restored, or built anew from the journals."""
    change(store / "rhm")
    if not has_copy:
        (store / "rhm" / "topology").unlink()
    for _ in range(2):
        kind, told = refusal(store, REFUSE)
        assert kind is StoreDamagedError
        assert told.startswith(CATALOGUE + text)
        assert told.endswith(RESTORED)
    with MessageStore.open(tool_environment(), str(store), PARAMETERS, "0.1.0", log=ignore) as opened:
        assert [queue.record.name for queue in opened.recovered_queues] == ["orders", "bills"]


def test_a_fifo_in_the_catalogue_is_not_waited_for(store: Path) -> None:
    table = next((store / "rhm" / "catalogue").glob("MANIFEST-*"))
    table.unlink()
    os.mkfifo(table)
    kind, told = refusal(store, REFUSE)
    assert (kind, "not a regular file" in told) == (StoreDamagedError, True)


@pytest.mark.parametrize("change", [other_mark, lambda rhm: (rhm / "STORE").unlink()], ids=["damaged", "gone"])
def test_a_damaged_store_file_names_the_next_step(store: Path, change: Callable[[Path], None]) -> None:
    change(store / "rhm")
    advice = "inspect it with qstore-check STORE, and recover a sound store from it with qstore-recover STORE DEST"
    assert refusal(store)[1].endswith(f"; {advice}")


def test_a_catalogue_that_is_open_elsewhere(store: Path) -> None:
    database = rocksdict.Rdict(str(store / "rhm" / "catalogue"), rocksdict.Options(raw_mode=True))
    kind, text = refusal(store)
    assert kind is StoreError
    assert text.startswith(CATALOGUE + "RocksDB cannot open it: IO error: ")
    assert "LOCK" in text
    database.close()
    MessageStore.open(tool_environment(), str(store), PARAMETERS, "0.1.0", log=ignore).close()


def test_a_linearstore(open_fixture: StoreOpener, tmp_path: Path) -> None:
    shutil.copytree(open_fixture("linear-a-clean").path, tmp_path / "store", symlinks=True)
    (tmp_path / "store").chmod(0o700)
    kind, text = refusal(tmp_path / "store")
    assert (kind, text) == (
        StoreError,
        "STORE: this is a linearstore; qstore-recover creates a store from it without changing it",
    )


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("tpl", "STORE/rhm/tpl: the transaction prepared list is missing: transactions in doubt are dropped"),
        ("jrnl/1", 'STORE/rhm/jrnl/1: queue "orders" has no journal: its messages are lost'),
        ("jrnl/2", 'STORE/rhm/jrnl/2: queue "bills" has no journal: its messages are lost'),
    ],
)
def test_a_journal_that_is_lost(store: Path, lost: str, text: str) -> None:
    """When it is noticed, other journals are open already."""
    shutil.rmtree(store / "rhm" / lost)
    expected = text + "; the store is not opened (on-damage is refuse): run qstore-check"
    assert refusal(store, REFUSE) == (StoreDamagedError, expected)


def test_nothing_stays_open_where_the_end_of_opening_fails(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read and the helper process runs when the clean mark cannot be taken away, or no ids be reserved."""

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    for name in (
        "qstore.store.catalogue.store_directory.StoreDirectory.mark",
        "qstore.store.catalogue.catalogue.Catalogue.reserve_rids",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            before = surroundings()
            with pytest.raises(
                StoreError,
                match=r"^somewhere: the store cannot be opened: No space left on device; free some space on that disk$",
            ):
                MessageStore.open(system_environment(), str(store), PARAMETERS, "0.1.0", log=ignore)
            assert surroundings() == before
    MessageStore.open(tool_environment(), str(store), PARAMETERS, "0.1.0", log=ignore).close()


# ---- a full disk, a disk that is not written to ----


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Path]:
    """A small file system of one's own, where that is allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_full_disk_at_start(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "200k") as small:
        kind, text = refusal_of_new(small / "store")
        assert kind is StoreError
        where = "STORE/rhm.new/tpl/tpl.0002.jdat: "
        expected = "a store cannot be created here: No space left on device; free some space on that disk"
        assert text == where + expected
        assert os.listdir(small / "store") == ["rhm.lock"]
        subprocess.run(["mount", "-o", "remount,size=2m", small], check=True)
        MessageStore.open(tool_environment(), str(small / "store"), PARAMETERS, "0.1.0", log=ignore).close()


def refusal_of_new(path: Path) -> tuple[type[StoreError], str]:
    """As `refusal`, where the directory itself is made."""
    path.mkdir(0o700)
    return refusal(path)


def test_a_full_disk_when_a_queue_is_made(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "1500k") as small:
        store = MessageStore.open(system_environment(), str(small / "store"), PARAMETERS, "0.1.0", log=ignore)
        made: list[tuple[QueueJournal | None, Exception | None]] = []
        for name in ("one", "two", "three"):
            geometry = GEOMETRY if name != "two" else Geometry.from_pages(64, 1)
            store.changes.create_queue(Queue(name), geometry, lambda *result: made.append(result))
        while len(made) < 3:
            store.collect(1.0)
        assert [journal is not None for journal, _ in made] == [True, False, True]
        error = made[1][1]
        assert isinstance(error, StoreError)
        where, _, rest = str(error).partition("/rhm/jrnl/2/JournalData.")
        assert where == f'queue "two" cannot be created: {small}/store'
        assert rest.endswith(".jdat: No space left on device; free some space, or choose a smaller journal")
        assert sorted(os.listdir(small / "store" / "rhm" / "jrnl")) == ["1", "3"]
        assert store.close()
        lines: list[LogLine] = []
        store = MessageStore.open(tool_environment(), str(small / "store"), PARAMETERS, "0.1.0", log=lines.append)
        assert [queue.record.name for queue in store.recovered_queues] == ["one", "three"]
        assert store.close()


def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "2m") as small:
        make_store(small / "store")
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        text = "STORE: the store directory cannot be used: Read-only file system; remount it read-write"
        expected = (StoreError, text)
        assert refusal(small / "store") == expected
        assert refusal(small / "new") == expected


# ---- permissions ----

UNPRIVILEGED: Final = """
import os, pickle, sys  # rocksdict imports pickle when it opens, and then nothing of Python's may be readable
from qstore.store.environment import tool_environment
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import StoreParameters
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({0})
    os.setuid({0})
try:
    MessageStore.open(tool_environment(), "store", StoreParameters(), "0.1.0", log=lambda line: None).close()
    print("opened")
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
print(len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize(
    ("path", "mode", "text"),
    [
        ("", 0o500, "StoreError: store: the store directory cannot be used: Permission denied"),
        ("rhm.lock", 0o000, "StoreError: store: the store directory cannot be used: Permission denied"),
        ("rhm", 0o000, "StoreError: store/rhm: the store cannot be opened: Permission denied"),
        ("rhm", 0o500, "StoreError: store/rhm/STORE.new: the store cannot be opened: Permission denied"),
        ("rhm/STORE", 0o000, "StoreError: store/rhm/STORE: cannot be read: Permission denied"),
        ("rhm/tpl", 0o000, "StoreError: store/rhm/tpl: the store cannot be opened: Permission denied"),
        ("rhm/jrnl/2", 0o000, "StoreError: store/rhm/jrnl/2: the store cannot be opened: Permission denied"),
        ("rhm/catalogue", 0o000, "StoreError: store/rhm/catalogue: "),
    ],
)
def test_missing_permissions(store: Path, path: str, mode: int, text: str) -> None:
    """Another user's, or one's own with the wrong mode."""
    if not path:
        shutil.rmtree(store / "rhm")
        (store / "rhm.lock").unlink()
    store.parent.chmod(0o755)
    if os.geteuid() == 0:
        for each in (store, *store.rglob("*")):
            os.chown(each, NOBODY, NOBODY)
    (store / path).chmod(mode)
    before = tree(store)
    command = [sys.executable, "-c", UNPRIVILEGED.format(NOBODY), str(store.parent)]
    done = forked.run(command, capture_output=True, check=True, text=True)
    said, descriptors = done.stdout.splitlines()
    assert said.startswith(text)
    assert "this process runs as user id" in said
    assert done.stderr == ""
    assert int(descriptors) == 4  # the three that it was started with, and the one that lists them
    assert tree(store) == before


def test_the_store_file_of_these_tests_is_valid(store: Path) -> None:
    """Else the tests above would change nothing."""
    content = (store / "rhm" / "STORE").read_bytes()
    assert store_file.decode(content).clean_close
    assert b'"version": 2' in content
    assert b'"clean_close": true' in content
