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
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.damage_campaign.reading import Seen, look
from tests.support.damage_campaign.stores import QSTORE, CampaignStore, campaign_stores
from tests.support.fixtures import StoreOpener
from tests.support.profiles import today
from tests.support.recover_faults import sync_at_once

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


@pytest.fixture(autouse=True)
def spared(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_at_once(monkeypatch)


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
    if (seen.content, seen.recovered) != (before.content, before.recovered):
        assert seen.code in (1, 2), (seen.code, seen.told)
        assert seen.recover_code in (1, 2), seen.told
    if seen.lenient != before.lenient:
        assert seen.lenient is None or seen.critical
    if seen.refusing != before.refusing:
        assert seen.refusing is None
    for line in seen.told:
        assert "None" not in f"{line['file']} {line['what']} {line['consequence']}", line
        assert line["file"].startswith(str(root)), line
    assert not any("None" in line for line in seen.critical)
