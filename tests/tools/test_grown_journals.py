"""What the tools make of journals that have grown: files in another order than their numbers, and more than 64."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.formats.rhm.jinf import decode_jinf
from qstore.store.environment import tool_environment
from qstore.tools.qstore_check import command as check
from qstore.tools.qstore_dump import command as dump
from qstore.tools.qstore_recover import command as recover
from qstore.tools.qstore_resize import command as resize
from qstore.tools.qstore_size import command as size
from tests.support.opened_store import PARAMETERS, OpenedStore
from tests.support.quarantine_records import message

BODY = b"x" * 1000
GROWING = replace(PARAMETERS, auto_expand=True, disk_free_limit=0)


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, list[int]]:
    """A store with a queue that began to grow in the middle of its ring, as a crash leaves it."""
    path = tmp_path / "store"
    store = OpenedStore(tool_environment(), path, GROWING)
    journal = store.make_queue("q")
    waiting: list[int] = []
    for number in range(4500):
        waiting.append(store.enqueue(journal, message(b"%06d" % number + BODY)))
        if number < 300 and len(waiting) > 60:
            store.store.append.dequeue(journal, waiting.pop(0))
        if number % 9 == 0:
            store.flush(journal)
    store.flush(journal)
    store.store._opened.close()
    info = decode_jinf((path / "rhm/jrnl/1/JournalData.jinf").read_bytes())
    assert info.geometry.files > 64
    assert list(info.numbers) != sorted(info.numbers)
    return path, waiting


def run(command: object, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output[-2000:]
    return result.stdout


def test_checked(grown: tuple[Path, list[int]]) -> None:
    path, waiting = grown
    lines = [json.loads(line) for line in run(check, path, "--json").splitlines()]
    (journal,) = [line for line in lines if line.get("queue") == "q" and "outstanding" in line]
    assert (journal["outstanding"], journal["damage"]) == (len(waiting), 0)


def test_dumped(grown: tuple[Path, list[int]]) -> None:
    path, waiting = grown
    lines = [json.loads(line) for line in run(dump, path, "--json").splitlines()]
    found = {line["rid"]: line["message"]["body"] for line in lines if line.get("type") == "enqueue"}
    assert sorted(found)[-len(waiting) :] == waiting
    assert not [line for line in lines if line.get("kind") == "damage"]


def test_sized(grown: tuple[Path, list[int]]) -> None:
    assert "q" in run(size, "--from", grown[0])


@pytest.mark.parametrize("options", [(), ("--num-jfiles", 64, "--jfile-size-pgs", 4)], ids=str)
def test_resized(grown: tuple[Path, list[int]], options: tuple[object, ...]) -> None:
    path, waiting = grown
    run(resize, path, "q", *(options or ("--auto",)))
    again = OpenedStore(tool_environment(), path, GROWING)
    assert [each.rid for each in again.recovered()["q"]] == waiting
    journal = again.journal("q")
    for number in range(3000):
        again.enqueue(journal, message(b"%06d" % number + BODY))
    again.flush(journal)
    again.store.close()


def test_recovered(grown: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, waiting = grown
    run(recover, path, tmp_path / "new")
    again = OpenedStore(tool_environment(), tmp_path / "new", GROWING)
    assert len(again.recovered()["q"]) == len(waiting)
    again.store.close()
