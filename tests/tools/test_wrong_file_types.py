"""Something else in place of a file or a directory of a store: every file, every kind, every tool.

A careless restore, a mount or an attacker leaves a directory where a file was, a file where a directory was, a socket,
a FIFO, a link that leads nowhere or back to itself, a file that may not be read, or an empty one. Each tool says in one
line what is wrong and where, or reports damage with the path; none hangs, lets an exception out, or says that nothing
was lost where something is.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from qstore.store.environment import tool_environment
from tests.support.damage_campaign.reading import Seen, look
from tests.support.damage_campaign.stores import QSTORE, CampaignStore, campaign_stores
from tests.support.dump import ROOT
from tests.support.fixtures import StoreOpener
from tests.support.opened_store import OpenedStore
from tests.support.planted_damage import check
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

FILES: Final = (
    "rhm",
    "rhm/STORE",
    "rhm/CLOSED",
    "rhm/SYNCED",
    "rhm/DELIVERED",
    "rhm/topology",
    "rhm/catalogue",
    "rhm/catalogue/CURRENT",
    "rhm/catalogue/MANIFEST",
    "rhm/catalogue/OPTIONS",
    "rhm/catalogue/IDENTITY",
    "rhm/catalogue/LOCK",
    "rhm/catalogue/LOG",
    "rhm/catalogue/rocksdict-config.json",
    "rhm/catalogue/sst",
    "rhm/catalogue/log",
    "rhm/jrnl",
    "rhm/jrnl/1",
    "rhm/jrnl/1/JournalData.jinf",
    "rhm/jrnl/1/JournalData.0000.jdat",
    "rhm/jrnl/1/JournalData.0003.jdat",
    "rhm/tpl",
    "rhm/tpl/tpl.jinf",
    "rhm/tpl/tpl.0000.jdat",
    "rhm.lock",
    "rhm.new",
    "rhm.snapshots",
    "rhm/SYNCED.new",
    "rhm/orphans",
    "rhm/quarantine",
    "rhm/jrnl/99",
)


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: Final[dict[str, Callable[[Path], object]]] = {
    "directory": make_directory,
    "empty directory": Path.mkdir,
    "file": lambda path: path.write_bytes(b"something else\n" * 100),
    "empty file": Path.touch,
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nowhere": lambda path: path.symlink_to("/nonexistent/target"),
}
CASES: Final = [(name, kind) for name in FILES for kind in KINDS]


@pytest.fixture(scope="module")
def store(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, CampaignStore]:
    made = campaign_stores(tmp_path_factory.mktemp("stores"), open_fixture)[QSTORE]
    return {each.clean: each for each in made if each.older}  # the last of each


@pytest.fixture(scope="module")
def undamaged(store: dict[bool, CampaignStore], tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Seen]:
    scratch = tmp_path_factory.mktemp("undamaged") / "scratch"
    return {clean: look(each.path, scratch, is_version_2=True) for clean, each in store.items()}


def place(root: Path, name: str) -> Path:
    """The path of a file, some of which have numbers in their names."""
    directory, _, last = name.rpartition("/")
    patterns = {"MANIFEST": "MANIFEST-*", "OPTIONS": "OPTIONS-*", "sst": "*.sst", "log": "*.log"}
    found = sorted((root / directory).glob(patterns[last])) if last in patterns else []
    return found[-1] if found else root / name


def put(path: Path, kind: str) -> None:
    """That in place of what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    KINDS[kind](path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("name", "kind"), today(CASES, 40))
def test_something_else_in_place_of_a_file(
    store: dict[bool, CampaignStore], undamaged: dict[bool, Seen], tmp_path: Path, name: str, kind: str, clean: bool
) -> None:
    root = tmp_path / "store"
    shutil.copytree(store[clean].path, root, symlinks=True)
    put(place(root, name), kind)
    seen, before = look(root, tmp_path / "scratch", is_version_2=True), undamaged[clean]
    assert seen.faults == []
    if (name, kind) == ("rhm", "empty directory"):  # where a new store is made
        assert (seen.code, seen.recover_code, seen.lenient) == (2, 2, [])
        return
    if (seen.content, seen.recovered) != (before.content, before.recovered):
        assert seen.code in (1, 2), (seen.code, seen.reported)
        assert seen.recover_code in (1, 2), seen.reported
    if seen.lenient is None:
        assert seen.code != 0 or name in IN_THE_WAY, "qstore-check sees nothing, and the broker does not start"
    elif seen.lenient != before.lenient:
        assert seen.critical
    if seen.refusing != before.refusing:
        assert seen.refusing is None
    for line in seen.reported:
        assert "None" not in f"{line['file']} {line['what']} {line['consequence']}", line
        assert line["file"].startswith(str(root)), line
    assert not any("None" in line for line in seen.critical)


IN_THE_WAY: Final = ("rhm.lock",)
"""Files outside a store that keep a broker from starting, which it reports."""


@pytest.mark.parametrize("kind", ["directory", "file", "FIFO", "socket", "link to itself", "empty file"])
@pytest.mark.parametrize("name", ["rhm/topology", "rhm/CLOSED", "rhm/SYNCED", "rhm/DELIVERED", "rhm/catalogue/LOCK"])
def test_broker_replaces_paths_of_any_file_type(
    store: dict[bool, CampaignStore], tmp_path: Path, name: str, kind: str
) -> None:
    root = tmp_path / "store"
    shutil.copytree(store[True].path, root, symlinks=True)
    put(place(root, name), kind)
    for _ in range(2):
        opened = OpenedStore(tool_environment(), root)
        found = opened.recovered_data()
        assert found["orders"] != []
        assert opened.store.close()
    assert check(root).code == 0


# ---- what may not be read ----

START: Final = """
import sys
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import StoreParameters
try:
    MessageStore.open(tool_environment(), sys.argv[1], StoreParameters(), "0.1.0", log=print).close()
except StoreError as error:
    sys.exit(f"start: {error}")
"""
COMMANDS: Final = {
    "check": ("-m", "qstore.tools.qstore_check"),
    "recover": ("-m", "qstore.tools.qstore_recover"),
    "start": ("-c", START),
}
POWERLESS: Final = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Before a command: root, but not above permissions."""
READ: Final = [name for name in FILES if (name.startswith("rhm/") or name == "rhm") and "99" not in name]


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root may read everything")
@pytest.mark.parametrize("name", today(READ, 3))
def test_a_file_that_may_not_be_read_is_named(store: dict[bool, CampaignStore], tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    shutil.copytree(store[False].path, root, symlinks=True)
    path = place(root, name)
    if not path.exists():
        return
    path.chmod(0)
    for title, command in COMMANDS.items():
        more = [os.fspath(tmp_path / "recovered")] if title == "recover" else []
        finished = subprocess.run(
            [*POWERLESS, sys.executable, *command, os.fspath(root), *more],
            cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        said = finished.stdout + finished.stderr
        assert "Traceback" not in said, said
        assert "None" not in finished.stderr, said
        if finished.returncode == 2 or (title == "start" and finished.returncode):
            assert len(finished.stderr.strip().splitlines()) == 1, said
            assert os.fspath(root) in finished.stderr
            assert "ermission denied" in finished.stderr, said
        elif finished.returncode == 1:
            assert path.name in said, said
    if path.exists():  # a start may have moved it aside
        path.chmod(0o700)


def test_the_path_of_a_catalogue_file_is_said_once(store: dict[bool, CampaignStore], tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(store[True].path, path, symlinks=True)
    current = path / "rhm/catalogue/CURRENT"
    current.unlink()
    current.symlink_to("/dev/zero")
    (line,) = [each for each in check(path).lines("damage") if each["file"] == str(current)]
    assert line["what"] == "not a regular file"
