"""A FIFO in place of a file: opening it does not block, and an error says what is wrong.

Opening a FIFO for reading waits for a writer: a start would hang silently.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.process.held_files import PidFile, holder_of
from qstore.broker.security.users.user_file import UserFileError, Users
from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from tests.support import forked
from tests.support.opened_store import OpenedStore
from tests.support.profiles import today

SECONDS: Final = 60.0
_START: Final = """
import sys
from pathlib import Path
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from tests.support.opened_store import OpenedStore
try:
    OpenedStore(tool_environment(), Path(sys.argv[1])).store.close()
except StoreError as error:
    print(error)
"""


def run(*command: str) -> str:
    """What a command writes; it is ended, and the test fails, if it hangs."""
    found = forked.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert "Traceback" not in found.stderr, found.stderr
    return found.stdout + found.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"x")
    opened.flush(journal)
    opened.store.close()
    return path


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["IDENTITY", "MANIFEST-*", "OPTIONS-*", "*.log", "*.sst", "rocksdict-config.json"])
def test_in_the_catalogue(store: Path, name: str, tmp_path: Path) -> None:
    catalogue = store / "rhm/catalogue"
    if name == "*.sst":
        (catalogue / "000099.sst").touch()  # a store this small may have none
    found = sorted(catalogue.glob(name)) or [catalogue / name]
    fifo(found[-1])
    said = run(sys.executable, "-c", _START, str(store))
    (kept,) = (store / "rhm/quarantine").iterdir()  # the catalogue is restored from its second copy
    assert (kept / found[-1].name).is_fifo()
    assert said == ""
    for tool in ("qstore_check", "qstore_dump"):
        run(sys.executable, "-m", f"qstore.tools.{tool}", str(store))
    run(sys.executable, "-m", "qstore.tools.qstore_recover", str(store), str(tmp_path / "recovered"))


@pytest.mark.parametrize(
    "name",
    today(["rhm/STORE", "rhm/STORE.new", "rhm/delivered", "rhm/tpl/tpl.jinf", "rhm/jrnl/1/JournalData.0000.jdat"], 3),
)
def test_in_the_store(store: Path, name: str, tmp_path: Path) -> None:
    fifo(store / name)
    copy = tmp_path / "copy"
    for tool in ("qstore_check", "qstore_dump"):
        run(sys.executable, "-m", f"qstore.tools.{tool}", str(store))
    shutil.copytree(store, copy, copy_function=lambda source, target: _copied(Path(source), Path(target)))
    run(sys.executable, "-c", _START, str(copy))


def _copied(source: Path, target: Path) -> None:
    if source.is_fifo():
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)


def test_in_the_place_of_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fifo(path)
    for take in (lambda: OsWritableDisk().lock(str(path)), lambda: PidFile(str(path)), lambda: holder_of(str(path))):
        with pytest.raises(OSError, match="not a regular file"):
            take()
    store = tmp_path / "store"
    store.mkdir()
    fifo(store / "rhm.lock")
    with pytest.raises(StoreError, match="not a regular file"):
        OpenedStore(tool_environment(), store)


def test_in_the_place_of_the_user_file(tmp_path: Path) -> None:
    fifo(tmp_path / "users")
    with pytest.raises(UserFileError, match="not a user file: not a regular file"):
        Users(str(tmp_path / "users")).check()
    with pytest.raises(UserFileError):
        Users(str(tmp_path)).check()


@pytest.mark.parametrize("option", ["--log-to-file", "--config"])
def test_other_file_types_at_the_path_of_an_option(tmp_path: Path, option: str) -> None:
    fifo(tmp_path / "file")
    reported = run(
        sys.executable,
        "-m",
        "qstore.broker.process.qpidd",
        "--no-data-dir",
        "--port",
        "0",
        option,
        str(tmp_path / "file"),
    )
    assert str(tmp_path / "file") in reported
