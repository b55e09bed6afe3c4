"""Every state that a kill leaves of a start that repairs: journals and catalogues built anew, queues made again.

Whenever it is killed, the next start comes to the same store as one that was left in peace; nothing is missing, nothing
is there twice. And nothing that was lost is denied: what the killed start had not told yet the next one tells. Each day
has its part of the states: see `tests/support/profiles.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange
from qstore.store.environment import tool_environment
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level, LogLine
from tests.faults.copied_states import CopyingDisk
from tests.support.dump import Dump, dump
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore, enqueued, message
from tests.support.planted_damage import check
from tests.support.profiles import today
from tests.support.recover_runs import invoke

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

BRANCHES: Final = [b"branch 1", b"branch 2"]
QUEUES: Final = [f"queue-{number}" for number in range(3)]
Damaging = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three queues with four messages each, bound to an exchange, and two transactions in doubt in two of them."""
    path = tmp_path_factory.mktemp("original") / "store"
    opened = OpenedStore(tool_environment(), path)
    store, calls = opened.store, Calls()
    store.changes.create_exchange(Exchange("shop", True, "direct"), calls)
    opened.wait(calls)
    journals = [opened.make_queue(name) for name in QUEUES]
    for journal in journals:
        for number in range(4):
            opened.enqueue(journal, message(b"%s %d" % (journal.name.encode(), number)))
            opened.flush(journal)
        calls.clear()
        store.changes.create_binding(1, Binding(journal.queue_id, journal.name, journal.name), calls)
        opened.wait(calls)
    for xid in BRANCHES:
        branch = [enqueued(journal, message(xid + journal.name.encode())) for journal in journals[:2]]
        calls.clear()
        store.transactions.prepare(xid, branch, [], calls)
        opened.wait(calls)
    store._opened.close()  # a broker that was killed
    return path


# ---- damage ----


def flip(name: str, path: Path, at: int = 512 + 100) -> None:
    """A bit of a record."""
    content = bytearray((path / name).read_bytes())
    content[at] ^= 1
    (path / name).write_bytes(content)


def journal_damaged(path: Path) -> None:
    flip("rhm/jrnl/1/JournalData.0000.jdat", path)


def list_damaged(path: Path) -> None:
    at = (path / "rhm/tpl/tpl.0000.jdat").read_bytes().index(BRANCHES[0])
    flip("rhm/tpl/tpl.0000.jdat", path, at)


def journal_removed(path: Path) -> None:
    shutil.rmtree(path / "rhm/jrnl/1")


def journal_emptied(path: Path) -> None:
    for file in (path / "rhm/jrnl/1").iterdir():
        file.unlink()
    (path / "rhm/jrnl/1/strange").write_bytes(b"?")


def list_removed(path: Path) -> None:
    shutil.rmtree(path / "rhm/tpl")


def catalogue_removed(path: Path) -> None:
    shutil.rmtree(path / "rhm/catalogue")


def catalogue_and_copy_removed(path: Path) -> None:
    catalogue_removed(path)
    (path / "rhm/topology").unlink()


def catalogue_and_copy_damaged(path: Path) -> None:
    (path / "rhm/catalogue/CURRENT").write_bytes(b"?")
    content = (path / "rhm/topology").read_bytes()
    (path / "rhm/topology").write_bytes(content[:60] + bytes(len(content) - 60))


def queue_lost(path: Path, *, info: bool = False) -> None:
    """The catalogue and its copy are as they were before the last queue."""
    opened = OpenedStore(tool_environment(), path)
    opened.recovered()
    journal = opened.journal("queue-1")
    kept = path.parent / f"{path.name}-kept"
    shutil.copytree(journal.directory, kept)
    calls = Calls()
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls)
    opened.store._opened.close()
    kept.rename(journal.directory)
    if info:
        flip("rhm/jrnl/2/JournalData.jinf", path, 20)


def journal_copied(path: Path) -> None:
    shutil.copytree(path / "rhm/jrnl/1", path / "rhm/jrnl/9")


def everything(path: Path) -> None:
    for each in (journal_damaged, list_damaged, catalogue_removed, journal_copied):
        each(path)


CASES: Final[dict[str, Damaging]] = {
    "journal damaged": journal_damaged,
    "journal removed": journal_removed,
    "journal emptied": journal_emptied,
    "list damaged": list_damaged,
    "list removed": list_removed,
    "catalogue removed": catalogue_removed,
    "catalogue and copy removed": catalogue_and_copy_removed,
    "catalogue and copy damaged": catalogue_and_copy_damaged,
    "queue lost": queue_lost,
    "queue lost, info damaged": partial(queue_lost, info=True),
    "journal copied": journal_copied,
    "everything": everything,
}


# ---- what is there ----


@dataclass(frozen=True)
class Start:
    """What a start has reported, and what it has left.

    Attributes:
        critical: its critical lines, without the paths of what was kept.
        content: messages, topology and transactions.
        kept: what is in `quarantine` and `orphans`, and the journals' directories.
        told: what the tools then tell.
    """

    critical: set[str]
    content: list[str]
    kept: dict[str, list[str]]
    told: tuple[int, list[str], list[str]]


def content(path: Path) -> list[str]:
    """All that would be delivered or is known, by the dump."""
    shown = dump(path, "--outstanding", "--json")
    kinds = ("message", "queue", "exchange", "binding", "transaction")
    return sorted(str({**line, "rid": 0}) for kind in kinds for line in shown.lines(kind))


def bodies(shown: Dump) -> list[str]:
    return sorted(line["body_sha256"] for line in shown.lines("message"))


def critical(lines: list[LogLine], path: Path) -> set[str]:
    """The critical lines; whatever place of its own each run has is left out."""
    return {line.text.replace(str(path), "") for line in lines if line.level is Level.CRITICAL}


def started(path: Path, **changes: Any) -> Start:
    lines: list[LogLine] = []
    environment = tool_environment()._replace(**changes)
    MessageStore.open(environment, str(path), PARAMETERS, "0.1.0", log=lines.append).close()
    return Start(critical(lines, path), content(path), kept(path), told(path))


def kept(path: Path) -> dict[str, list[str]]:
    parts = [path / "rhm" / part for part in ("quarantine", "orphans", "resized", "jrnl", ".")]
    found = {part.name: sorted(os.listdir(part)) for part in parts if part.is_dir()}
    return {**found, "jrnl": [str(len(found["jrnl"]))]}  # numbers that a killed start has taken are not taken again


def told(path: Path) -> tuple[int, list[str], list[str]]:
    """What `qstore-check` says, without the place."""
    found = check(path)
    return (
        found.code,
        sorted(line["what"].replace(str(path), "") for line in found.lines("damage")),
        sorted(line["text"].replace(str(path), "") for line in found.lines("notice")),
    )


@pytest.mark.parametrize("damage", [pytest.param(CASES[name], id=name) for name in today(list(CASES), 6)])
def test_a_start_that_repairs(original: Path, tmp_path: Path, damage: Damaging) -> None:
    path = tmp_path / "store"
    shutil.copytree(original, path)
    damage(path)
    readable = bodies(dump(path, "--outstanding", "--json"))
    in_peace = tmp_path / "in peace"
    shutil.copytree(path, in_peace)
    expected = started(in_peace)
    assert expected.critical
    repaired = bodies(dump(in_peace, "--outstanding", "--json"))
    assert set(readable) <= set(repaired)  # a queue that is made again was left out before, and told

    states: list[tuple[Path, set[str]]] = []
    lines: list[LogLine] = []
    disk = CopyingDisk(path, tmp_path / "states", lambda state: states.append((state, critical(lines, path))))
    MessageStore.open(tool_environment()._replace(disk=disk), str(path), PARAMETERS, "0.1.0", log=lines.append).close()
    assert len(states) > 2
    for state, already_reported in today(states, 2):
        shown = dump(state, "--outstanding", "--json")
        checked = check(state)
        found = bodies(shown)
        assert found == repaired or (found == readable and checked.code == 1), state
        assert shown.code <= checked.code <= 1, state
        assert checked.code == 1 or already_reported == expected.critical, state
        recovery = invoke(state, tmp_path / "recovered", "--orphans", "report")
        assert recovery.report.code in (0, 1)
        assert recovery.summary["messages"] + recovery.summary["in_doubt"] == len(found), state
        shutil.rmtree(tmp_path / "recovered")
        again = started(state)
        assert already_reported | again.critical == expected.critical, state
        assert again.content == expected.content, state
        assert again.kept == expected.kept, state
        assert again.told == expected.told, state


@pytest.mark.parametrize("removed", [0, 2, 4], ids=["no file gone", "some files gone", "all files gone"])
def test_a_journal_that_was_withdrawn(original: Path, tmp_path: Path, removed: int) -> None:
    """It was empty and its queue refused: nothing is ever lost with it, whenever the start that makes it anew dies."""
    path = tmp_path / "store"
    shutil.copytree(original, path)
    opened = OpenedStore(tool_environment(), path)
    opened.recovered()
    directory = Path(opened.make_queue("refused").directory)
    opened.store._opened.close()
    (directory / "deleted").touch()
    (directory / "JournalData.jinf").unlink()
    for file in sorted(directory.glob("*.jdat"))[:removed]:
        file.unlink()
    before = content(path)
    assert told(path)[:2] == (0, [])
    lines: list[LogLine] = []
    disk = CopyingDisk(path, tmp_path / "states")
    MessageStore.open(tool_environment()._replace(disk=disk), str(path), PARAMETERS, "0.1.0", log=lines.append).close()
    assert critical(lines, path) == set()
    assert len(disk.states) > 2
    for state in today(disk.states, 2):
        assert told(state)[:2] == (0, []), state
        assert content(state) == before, state
        again = started(state)
        assert again.critical == set(), state
        assert again.content == before, state
        assert "quarantine" not in again.kept, state
