"""A process that works on a store is killed, again and again, and the store is looked at each time."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pytest

from store.check.check import ORPHAN, check_store
from store.disk import OsDisk
from store.journal.enqueue_map import LIVE
from store.offline import RecoveredStore, open_store
from tests.system.store_child import token_of
from tests.system.store_ledger import Found, Ledger, Message

ROOT: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 30.0
"""No test waits longer for what must happen."""
KILLS: Final = 50


class Run(NamedTuple):
    """One run of the child.

    Attributes:
        lines: what it said.
        status: how it ended.
        children: the processes that it had started.
        complaint: what it wrote to its standard error.
    """

    lines: list[dict[str, Any]]
    status: int
    children: list[int]
    complaint: str


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether the process is there; one that has ended and that nobody asked after is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    """Whether the process goes."""
    end = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.005)
    return not is_running(pid)


def run_child(path: Path, number: int, *, seconds: float, signal_number: int, first: str) -> Run:
    """Run the child, and send it a signal some seconds after its line `first`."""
    command = [sys.executable, "-m", "tests.system.store_child", str(path), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        said = b""
        latest = time.monotonic() + PATIENCE_SECONDS
        end: float | None = None
        while time.monotonic() < (latest if end is None else end):
            left = (latest if end is None else end) - time.monotonic()
            if select.select([child.stdout], [], [], max(0.0, left))[0]:
                more = os.read(child.stdout.fileno(), 1 << 20)
                said += more
                if not more:
                    break
            if end is None and f'"{first}":'.encode() in said:
                end = time.monotonic() + seconds
        children = children_of(child.pid)
        child.send_signal(signal_number)
        said += child.stdout.read()
        complaint = child.stderr.read().decode()
        status = child.wait(PATIENCE_SECONDS)
    whole = said[: said.rfind(b"\n") + 1].splitlines()
    return Run([orjson.loads(line) for line in whole], status, children, complaint)


def look(path: Path) -> tuple[Found, bool]:
    """What a store holds that nobody runs, data compared, and whether it was closed cleanly."""
    store = open_store(OsDisk(), str(path))
    try:
        recovered = store.recover()
        found = Found(queues_of(recovered), in_doubt_of(recovered), wiring_of(recovered))
        return found, bool(store.closed_cleanly)
    finally:
        store.close()


def queues_of(recovered: RecoveredStore) -> dict[str, list[Message]]:
    queues: dict[str, list[Message]] = {}
    for queue in recovered.queues:
        journal = queue.journal
        assert journal is not None
        rows = queues[queue.name] = []
        for rid, place, state, xid in queue.outstanding():
            data = journal.stream.read(*journal.data_of_enqueue(place))
            rows.append(Message(rid, token_of(data), state, None if xid is None else xid.hex()))
    return queues


def in_doubt_of(recovered: RecoveredStore) -> set[str]:
    return {each.xid.hex() for each in recovered.transactions if each.outcome.value == "in-doubt"}


def wiring_of(recovered: RecoveredStore) -> set[str]:
    wiring = recovered.store.wiring
    assert wiring is not None
    return {each.name for each in wiring.exchanges.values()} | {each.record.key for each in wiring.bindings}


def check(path: Path, *, changing: bool) -> None:
    """`qstore-check --paranoid` finds nothing that a crash does not explain.

    Args:
        path: the store directory.
        changing: whether a queue may have been being made or deleted: some files of its journal may be there.
    """
    store = open_store(OsDisk(), str(path))
    try:
        found = check_store(OsDisk(), store, paranoid=True)
        orphans = [each.journal.path for each in found.journals if each.role == ORPHAN and each.journal is not None]
        damage = [each for each in found.damage if not (changing and each.file.startswith(tuple(orphans)))]
        assert damage == []
    finally:
        store.close()


class Story:
    """Runs on one store, each checked against all that were before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        self.found: Found | None = None
        self.was_clean = False
        self.delivered: set[tuple[str, int]] = set()
        self.changing = False  # whether queues were made or deleted since the store was last opened
        self.opened = 0

    def add(self, run: Run) -> None:
        """What a run said must fit what it found, and what is there now."""
        for line in run.lines:
            if "opened" in line:
                self.check_opened(line)
                self.changing = False
            self.changing |= line.get("kind") in ("create-queue", "delete-queue")
            self.ledger.hear(line)
        assert [pid for pid in run.children if not gone(pid)] == []
        if not (self.path / "rhm").exists():
            assert all("started" in line for line in run.lines)
            return
        found, self.was_clean = look(self.path)
        self.ledger.settle(found)
        self.found = found
        check(self.path, changing=self.changing)
        assert not (self.path / "rhm" / "quarantine").exists()
        closing = next((line["closing"] for line in run.lines if "closing" in line), None)
        if closing is not None:
            self.delivered = {(queue, token) for queue, tokens in closing.items() for token in tokens}
        assert self.was_clean or not any(line.get("closed") for line in run.lines)

    def check_opened(self, line: dict[str, Any]) -> None:
        """What the store gave its process when it was opened is what was found before that."""
        self.opened += 1
        queues = {} if self.found is None else self.found.queues
        told = {
            name: [Message(rid, token, state, xid) for rid, token, state, xid, _ in rows]
            for name, rows in line["opened"].items()
        }
        assert told == queues
        assert set(line["in_doubt"]) == (set() if self.found is None else self.found.in_doubt)
        for name, rows in line["opened"].items():
            for _, token, state, _, redelivered in rows:
                delivered = (name, token) in self.delivered and state == LIVE
                assert redelivered == (delivered if self.was_clean else True), (name, token)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    yield Story(tmp_path / "store")


def test_a_process_killed_fifty_times(story: Story) -> None:
    source = random.Random(4)
    kills = clean = 0
    for number in range(1, KILLS + KILLS // 8 + 1):
        ends_well = number % 9 == 0
        if number % 4 == 1:
            moment = ("started", source.random() * 0.1)  # while it is opened
        else:
            moment = ("opened", source.random() * 0.2)
        if ends_well:
            moment = ("opened", source.random() * 0.1)
        how = signal.SIGTERM if ends_well else signal.SIGKILL
        run = run_child(story.path, number, seconds=moment[1], signal_number=how, first=moment[0])
        assert run.complaint == ""
        assert run.status == (0 if ends_well else -signal.SIGKILL)
        story.add(run)
        assert story.was_clean or not ends_well
        kills += not ends_well
        clean += ends_well
    print(kills, clean, story.opened, story.ledger.counts, len(story.ledger.there))
    assert kills >= KILLS
    assert story.ledger.counts["done"] > 10 * KILLS
