"""The tools on journals that have grown: files in another order than their numbers, and more than 64."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.store.environment import tool_environment
from qstore.tools.qstore_check import command as check
from qstore.tools.qstore_dump import command as dump
from qstore.tools.qstore_recover import command as recover
from qstore.tools.qstore_resize import command as resize
from qstore.tools.qstore_size import command as size
from tests.support.opened_store import GROWING, JOURNAL, OpenedStore, make_grown_store, message


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, list[int]]:
    path = tmp_path / "store"
    return path, make_grown_store(path)


def run(command: object, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output[-2000:]
    return result.stdout


def test_checked(grown: tuple[Path, list[int]]) -> None:
    path, waiting = grown
    (path / JOURNAL / "JournalData.jinf.new").write_bytes(b"{")  # what a kill may leave
    lines = [json.loads(line) for line in run(check, path, "--json").splitlines()]
    (journal,) = [line for line in lines if line.get("queue") == "q" and "outstanding" in line]
    assert (journal["outstanding"], journal["damage"]) == (len(waiting), 0)
    reported = [line for line in lines if line["kind"] in ("damage", "notice")]
    assert ["not closed cleanly" in line["text"] for line in reported] == [True]


def test_dumped(grown: tuple[Path, list[int]]) -> None:
    path, waiting = grown
    lines = [json.loads(line) for line in run(dump, path, "--json").splitlines()]
    found = {line["rid"]: line["message"]["body"] for line in lines if line.get("type") == "enqueue"}
    assert sorted(found)[-len(waiting) :] == waiting
    assert not [line for line in lines if line.get("kind") == "damage"]


def test_sized(grown: tuple[Path, list[int]]) -> None:
    lines = [json.loads(line) for line in run(size, "--from", grown[0], "--json").splitlines()]
    (queue,) = [line for line in lines if line.get("queue") == "q"]
    assert queue["geometry"]["num_jfiles"] > 64


@pytest.mark.parametrize("options", [("--auto",), ("--num-jfiles", 64, "--jfile-size-pgs", 4)], ids=str)
def test_resized(grown: tuple[Path, list[int]], options: tuple[object, ...]) -> None:
    path, waiting = grown
    run(resize, path, "q", *options)
    again = OpenedStore(tool_environment(), path, GROWING)
    assert [each.rid for each in again.recovered()["q"]] == waiting
    journal = again.journal("q")
    for number in range(3000):
        again.enqueue(journal, message(b"%d" % number + b"x" * 1000))
    again.flush(journal)
    again.store.close()


def test_recovered(grown: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, waiting = grown
    run(recover, path, tmp_path / "new")
    again = OpenedStore(tool_environment(), tmp_path / "new", GROWING)
    found = [each.data for each in again.recovered()["q"]]
    assert len(found) == len(waiting)
    assert [int(data[data.index(b"x" * 1000) - 6 :][:6]) for data in found[-100:]] == list(range(4400, 4500))
    again.store.close()
