"""Every state that a kill leaves of `qstore-quarantine inject`, as the commands tell it; `test_quarantine_crashes` has
the calls of the disk one by one.

No entry is lost from the index, with whatever else stands in it. What is said to be injected is in the queue, what is
said not to be is not, and of the rest it is said that nobody knows; that is not injected once more without a word.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.repair.quarantine import INDEX
from qstore.tools import qstore_quarantine
from tests.faults.copied_states import CopyingDisk
from tests.support.opened_store import Kept, OpenedStore, enqueue, make_quarantine, message
from tests.tools.test_quarantine import Line, Run, make_store, messages

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

BODIES: Final = {1: [b"a", b"b"], 2: [b"c"], 3: [b"d"], 4: [b"e"]}
WISHED: Final = (1, 2, 4)
STRANGE: Final = b'{"number":5, "queue":\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a store and a quarantine, of whose index a line is damaged."""
    path = tmp_path / "root"
    path.mkdir()
    make_store(path / "store", "orders")
    kept = [
        Kept(b"".join(enqueue("version 2", message(body), rid) for rid, body in enumerate(bodies, 1)))
        for bodies in BODIES.values()
    ]
    index = make_quarantine(path / "quarantine", kept) / INDEX
    index.write_bytes(index.read_bytes() + STRANGE)
    return path


def inject(root: Path, *numbers: int, options: tuple[str, ...] = ()) -> Run:
    return Run("inject", root / "quarantine", *numbers, "--store", root / "store", "--json", *options)


def listed(root: Path) -> tuple[dict[int, Line], Line]:
    """The entries, all of which must be there, and the summary."""
    *lines, summary = Run("list", root / "quarantine", "--json").lines
    entries = {line["number"]: line for line in lines if line["kind"] == "entry"}
    assert entries.keys() == BODIES.keys()
    assert [line["line"] for line in lines if line["kind"] == "damage"] == [len(BODIES) + 1]
    assert (root / "quarantine" / INDEX).read_bytes().endswith(STRANGE)
    return entries, summary


def in_queue(root: Path) -> Counter[bytes]:
    copy = root.parent / "copy"
    shutil.copytree(root / "store", copy)
    found = Counter(data for data, _ in messages(copy)["orders"])
    shutil.rmtree(copy)
    return found


def states_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    disk = CopyingDisk(root, root.parent / "states")
    with monkeypatch.context() as patch:
        patch.setattr(qstore_quarantine, "tool_environment", lambda: tool_environment()._replace(disk=disk))
        assert inject(root, *WISHED).code == 0
    return disk.states


def test_each_state(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for state in states_of(root, monkeypatch):
        entries, summary = listed(state)
        there = in_queue(state)
        reported: Counter[str] = Counter()
        for number, bodies in BODIES.items():
            injected = entries[number]["injected"]
            known = "not" if injected is None else "yes" if injected["is_known"] else "unknown"
            copies = {there[message(body)] for body in bodies}
            assert copies <= {"not": {0}, "yes": {1}, "unknown": {0, 1}}[known], (state, number)
            assert len(copies) == 1, (state, number)
            reported[known] += 1
            seen[known] += number in WISHED
        assert (summary["entries"], summary["injected"], summary["unknown"]) == (
            4,
            reported["yes"],
            reported["unknown"],
        )
        text = Run("list", state / "quarantine").text
        assert ("an interrupted injection may have taken place" in text) == (reported["unknown"] > 0), state
        again = {line["number"]: line for line in inject(state, *WISHED).lines}
        for number in WISHED:
            before = entries[number]["injected"]
            assert (again[number]["failure"] is None) == (before is None), (state, number)
            if before is not None and not before["is_known"]:
                assert "and may have taken place" in again[number]["failure"]
        assert max(in_queue(state).values()) == 1, state
    assert seen["not"]
    assert seen["yes"]
    assert seen["unknown"]


def test_a_mark_that_cannot_be_made_behind_an_injection(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages are in the queue: this is reported, and they are not injected again unasked."""
    renames: list[str] = []

    class Failing(OsWritableDisk):
        def rename(self, source: str, target: str) -> None:
            renames.append(target)
            if sum(each.endswith(INDEX) for each in renames) == 2 and target.endswith(INDEX):
                raise OSError(errno.EIO, os.strerror(errno.EIO), target)
            super().rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(qstore_quarantine, "tool_environment", lambda: tool_environment()._replace(disk=Failing()))
        run = inject(root, 1, 3)
    assert (run.code, run.out, run.err.count("\n")) == (2, b"", 1)
    assert f"{INDEX}: cannot be rewritten: Input/output error; the messages of entries 1, 3 are in " in run.err
    assert all(in_queue(root)[message(body)] == 1 for body in (*BODIES[1], *BODIES[3]))
    _, summary = listed(root)
    assert (summary["injected"], summary["unknown"]) == (0, 2)
    assert [line["kind"] for line in inject(root, 1, 3).lines] == ["refused", "refused"]


def test_into_a_store_that_has_not_got_its_name(root: Path) -> None:
    """It is whole: the start gives it its name, and so does this."""
    (root / "store/rhm").rename(root / "store/rhm.new")
    assert inject(root, 2).code == 0
    assert in_queue(root)[message(b"c")] == 1
    opened = OpenedStore(tool_environment(), root / "store")
    data: dict[str, list[Any]] = dict(opened.recovered_data())
    assert opened.store.close()
    assert len(data["orders"]) == 2
