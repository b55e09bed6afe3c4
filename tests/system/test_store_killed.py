"""A process that works on a store is killed, again and again, and the store is checked each time."""

from __future__ import annotations

import contextlib
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

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import RecoveredStore, open_store
from qstore.store.journal.recovery import LIVE
from tests.support.processes import PATIENCE_SECONDS, children_of, goes
from tests.support.profiles import is_nightly
from tests.system.store_child import GEOMETRY, token_of
from tests.system.store_ledger import Found, Ledger, Message

ROOT: Final = Path(__file__).parents[2]
KILLS: Final = 50 if is_nightly() else 12
MORE_RUNS: Final = 20  # at most: more than a store needs that does anything at all


class Run(NamedTuple):
    """One run of a child.

    Attributes:
        lines: what it said.
        status: how it ended, as `os.waitpid` tells it.
        children: the processes that it had started.
    """

    lines: list[dict[str, Any]]
    status: int
    children: list[int]


class Program:
    """The program that runs the children."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.system.store_child"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0)

    def run(
        self, path: Path, number: int, *, seconds: float, signal_number: int, first: str, grace: float | None = None
    ) -> Run:
        """Run a child, send it a signal some seconds after its line `first`, and kill it after `grace` seconds more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number} {path}\n".encode())
        said = b""
        while f'"{first}":'.encode() not in said and b'"ended":' not in said:
            said += self._read_on()
        said += self._read_for(seconds)
        pid = next(orjson.loads(line)["started"] for line in said.splitlines() if b'"started":' in line)
        children = children_of(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        if grace is not None:
            said += self._read_for(grace)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while b'"ended":' not in said:
            said += self._read_on()
        *lines, torn, ended = said[:-1].split(b"\n")
        del torn
        return Run([orjson.loads(line) for line in lines], orjson.loads(ended)["ended"], children)

    def _read_for(self, seconds: float) -> bytes:
        """What comes in that time."""
        said, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            said += self._read(left)
        return said

    def _read_on(self) -> bytes:
        """What comes next."""
        more = self._read(PATIENCE_SECONDS)
        assert more, "the program says nothing any more"
        return more

    def _read(self, seconds: float) -> bytes:
        """What comes next; nothing if that takes too long."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return b""
        more = os.read(self._process.stdout.fileno(), 1 << 20)
        assert more, "the program has ended"
        return more

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def look(path: Path) -> tuple[Found, bool]:
    """What a closed store holds, data compared, and whether it was closed cleanly."""
    store = open_store(OsDisk(), str(path))
    try:
        recovered = store.recover()
        found = Found(queues_of(recovered), in_doubt_of(recovered), topology_of(recovered))
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


def topology_of(recovered: RecoveredStore) -> set[str]:
    topology = recovered.store.topology
    assert topology is not None
    return {each.name for each in topology.exchanges.values()} | {each.record.key for each in topology.bindings}


def check(path: Path) -> None:
    """`qstore-check --paranoid` finds nothing that a crash does not explain."""
    store = open_store(OsDisk(), str(path))
    try:
        assert check_store(OsDisk(), store, paranoid=True).damage == []
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
        self.opened = 0

    def add(self, run: Run) -> None:
        """What a run said must fit what it found, and what is there now."""
        for line in run.lines:
            if "opened" in line:
                self.check_opened(line)
            self.ledger.hear(line)
        assert [pid for pid in run.children if not goes(pid)] == []
        if not (self.path / "rhm").exists():
            assert all("started" in line for line in run.lines)
            return
        found, self.was_clean = look(self.path)
        self.ledger.settle(found)
        self.found = found
        check(self.path)
        assert not (self.path / "rhm" / "quarantine").exists()
        assert not (self.path / "rhm" / "orphans").exists()
        closing = next((line["closing"] for line in run.lines if "closing" in line), None)
        if closing is not None:
            self.delivered = {(queue, token) for queue, tokens in closing.items() for token in tokens}
        assert self.was_clean or not any(line.get("closed") for line in run.lines)

    def check_opened(self, line: dict[str, Any]) -> None:
        """What the store gave its process when it was opened is what was found before that."""
        self.opened += 1
        queues = {} if self.found is None else self.found.queues
        reported = {
            name: [Message(rid, token, state, xid) for rid, token, state, xid, _ in rows]
            for name, rows in line["opened"].items()
        }
        assert reported == queues
        assert set(line["in_doubt"]) == (set() if self.found is None else self.found.in_doubt)
        for name, rows in line["opened"].items():
            for _, token, state, _, redelivered in rows:
                delivered = (name, token) in self.delivered and state == LIVE
                assert redelivered == (delivered if self.was_clean else True), (name, token)


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.close()


def test_a_store_that_was_made_and_never_used(tmp_path: Path) -> None:
    """As a kill leaves it right after it got its name."""
    path = tmp_path / "store"
    path.mkdir()
    StoreDirectory(tool_environment(), str(path), "0.1.0").create(GEOMETRY, 512)
    found, was_clean = look(path)
    assert (found, was_clean) == (Found({}, set(), set()), False)
    check(path)


@pytest.mark.core
def test_a_process_killed_many_times(program: Program, tmp_path: Path) -> None:
    source, story = random.Random(4), Story(tmp_path / "store")
    kills = relocated = helpers = 0
    number = 0
    while kills < KILLS:
        number += 1
        first, longest = ("started", 0.08) if number % 4 == 1 else ("opened", 0.12)
        how, grace = signal.SIGKILL, None
        if number % 9 == 0:
            how = signal.SIGTERM
        elif number % 9 == 4:  # while it is being closed
            how, grace = signal.SIGTERM, source.random() * 0.03
        seconds = source.random() * longest
        run = program.run(story.path, number, seconds=seconds, signal_number=how, first=first, grace=grace)
        assert not any("failed" in line for line in run.lines), run.lines[-1]
        assert run.status == signal.SIGKILL or (run.status == 0 and how == signal.SIGTERM)
        story.add(run)
        assert story.was_clean or number % 9
        kills += run.status == signal.SIGKILL
        helpers += len(run.children)
        relocated += sum(line.get("relocated", 0) for line in run.lines)
    longest = 0.12
    counts = story.ledger.counts
    # On a busy machine little was done until now: longer runs, of those that fill their journals if they can.
    for _ in range(MORE_RUNS):
        if helpers >= KILLS // 2 and counts["done"] > 100 * KILLS and counts["refused"] and relocated:
            break
        number, longest = number + 3 - (number + 1) % 3, min(2 * longest, PATIENCE_SECONDS)
        how = signal.SIGKILL if relocated else signal.SIGTERM  # only a run that is closed says how many it has copied
        run = program.run(story.path, number, seconds=longest, signal_number=how, first="opened")
        story.add(run)
        helpers += len(run.children)
        relocated += sum(line.get("relocated", 0) for line in run.lines)
    assert helpers >= KILLS // 2  # the processes that wait for the disk are gone, each of them
    assert relocated > 0
    assert counts["done"] > 100 * KILLS
    assert counts["refused"] > 0
