"""`qstore-recover` as tests run it, what the store that it built must hold, and disks that fail or die under it.

Record ids are new in a recovered store, so messages are told apart by their bodies.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner

from qstore.store.disk import OsFile, OsWritableDisk, OsWritableFile
from qstore.store.environment import tool_environment
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level, LogLine
from qstore.tools.dump.dump import level
from qstore.tools.qstore_recover import command
from tests.support import forked
from tests.support.dump import ROOT, Dump, Line, dump
from tests.support.fixtures import Snapshot, snapshot
from tests.support.opened_store import PARAMETERS
from tests.support.planted_damage import IN_DOUBT, LEFT, XIDS, History, Original, Plant
from tests.support.processes import PATIENCE_SECONDS

COMMAND: Final = (sys.executable, "-m", "qstore.tools.qstore_recover")


@dataclass(frozen=True)
class Recovery:
    """One run.

    Attributes:
        path: DEST.
        report: what the command wrote.
    """

    path: Path
    report: Dump

    @property
    def summary(self) -> Line:
        """The last line of the report."""
        (line,) = self.report.lines("summary")
        assert self.report.lines()[-1] == line
        return line

    def queue(self, name: str) -> Line:
        """What the report says of one queue."""
        (line,) = [line for line in self.report.lines("queue") if line["name"] == name]
        return line

    def dump(self) -> Dump:
        """What the new store holds, which must be sound."""
        shown = dump(self.path, "--outstanding", "--json")
        assert shown.lines("damage") == []
        assert shown.code == 0, shown.errors
        return shown

    def loss(self) -> str:
        """All that the report says of what is not as it was, as one text."""
        kinds = ("damage", "orphan", "exchange", "binding", "transaction", "queue")
        return "\n".join(str(line) for kind in kinds for line in self.report.lines(kind))


def invoke(source: Path, path: Path, *options: str) -> Recovery:
    """Recover with `--json` in this process. An exception that is let out is raised here."""
    arguments = [os.fspath(source), os.fspath(path), "--json", *options]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    report = Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)
    report.assert_no_traceback()
    return Recovery(path, report)


def recover(source: Path, path: Path, *options: str) -> Recovery:
    """As `invoke`. SOURCE must stay as it was, and DEST is made whole or not at all."""
    before = snapshot(source) if source.exists() else {}
    there = os.path.lexists(path)
    recovery = invoke(source, path, *options)
    assert (snapshot(source) if source.exists() else {}) == before
    if recovery.report.code == 2 and not there:
        assert not os.path.lexists(path)
    if path.parent.is_dir():
        assert [name for name in os.listdir(path.parent) if name.startswith(f"{path.name}.")] == []
    return recovery


def run_recover(*arguments: str | bytes | os.PathLike[str]) -> Dump:
    """Run the command as a process of its own."""
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    finished = forked.run(
        [*COMMAND, *arguments], cwd=ROOT, env=variables, capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    return Dump(finished.returncode, finished.stdout, finished.stderr)


# ---- what must be the same ----

Facts = dict[str, list[str]]


def facts(shown: Dump) -> Facts:
    """Everything that a dump shows but record ids: kind -> what it says, in order; topology sorted.

    What recovery does not keep is not there: transactions that are not in doubt.
    """
    found: Facts = {kind: sorted(map(str, shown.lines(kind))) for kind in ("exchange", "queue", "binding")}
    found["message"] = sorted((str({**line, "rid": 0}) for line in shown.lines("message")), key=_queue_of)
    in_doubt = [line for line in shown.lines("transaction") if line["state"] == IN_DOUBT]
    found["transaction"] = sorted(str(line) for line in in_doubt)
    return found


def as_qpidd_delivers(shown: Dump) -> Dump:
    """A dump of our own store with the messages of its priority queues in qpidd's order; ours is that of record ids."""
    levels: dict[str, int] = {}
    for line in shown.lines("queue"):
        arguments = line["arguments"] or {}
        given = arguments.get("qpid.priorities", arguments.get("x-qpid-priorities"))
        if given is not None:
            levels[line["name"]] = int(given)
    texts: list[bytes] = []
    for queue, found in groupby(map(_parsed, shown.out.splitlines(keepends=True)), key=lambda each: each[0]):
        group = [(line, text) for _, line, text in found]
        if queue in levels:
            group.sort(key=lambda each: -level(each[0]["priority"] or 0, levels[queue]))
        texts += [text for _, text in group]
    return Dump(shown.code, b"".join(texts), shown.err)


def _parsed(text: bytes) -> tuple[str | None, Line, bytes]:
    """The queue of a message's line, None of any other; the line; and its text."""
    line: Line = json.loads(text)
    return (line["queue"] if line["kind"] == "message" else None), line, text


def _queue_of(message: str) -> str:
    """What messages are sorted by: the order within a queue stays."""
    return message[: message.index("'rid'")]


def outside(root: Path, path: Path) -> Snapshot:
    """All that is below `root` but not in `path`; the directories' times are left out."""
    found: Snapshot = {}
    for here, directories, files in os.walk(root):
        directories[:] = [name for name in directories if Path(here, name) != path]
        for name in (*directories, *files):
            below = Path(here, name)
            status = below.lstat()
            if below.is_symlink():
                found[str(below)] = (status.st_mode, 0, 0, os.readlink(below))
            elif below.is_dir():
                found[str(below)] = (status.st_mode, 0, 0, "")
            else:
                digest = hashlib.sha256(below.read_bytes()).hexdigest()
                found[str(below)] = (status.st_mode, status.st_size, status.st_mtime_ns, digest)
    return found


# ---- stores with known histories ----


def expected_states(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Name -> state of what a recovered store holds: of transactions only those in doubt are left."""
    states = {**LEFT, **changes}
    return {
        name: state for name, state in states.items() if state is not None and (state == IN_DOUBT or name not in XIDS)
    }


def states(original: Original, shown: Dump) -> dict[str, str]:
    """Name -> state of the messages and transactions of a recovered store; each in its queue and in order."""
    found: dict[str, str] = {}
    for history in original.histories.values():
        names = names_of(history)
        lines = shown.messages(history.queue)
        for line in lines:
            found[names.get(line["body"], f"{history.queue}: {line['body'][:40]!r}")] = line["state"]
        places = [history.messages.index(names[line["body"]]) for line in lines if line["body"] in names]
        assert places == sorted(places), f"{history.queue} is out of order"
        assert len(set(places)) == len(places), f"{history.queue} has a message twice"
    xids = {xid.hex(): name for name, xid in XIDS.items()}
    for line in shown.lines("transaction"):
        xid = str(line["xid"])
        found[xids.get(xid, xid)] = line["state"]
    return found


def names_of(history: History) -> dict[str, str]:
    """Body -> name of the messages of a history."""
    rids = {name: history.records[name].header.rid for name in history.messages}
    return {history.bodies[rid]: name for name, rid in rids.items()}


def examine_recovery(original: Original, plant: Plant, path: Path) -> Recovery:
    """Plant the damage in a copy below `path`, recover it, and assert that just the losses of `plant` are reported."""
    planted = original.copy(path / "store")
    plant.do(planted)
    recovery = recover(planted.path, path / "recovered")
    report = recovery.report
    expected = expected_states(plant.changes)
    assert states(original, recovery.dump()) == expected
    # Whatever the readers find is told, with its place.
    reported = {(line["file"], line["offset"], line["what"]) for line in report.lines("damage")}
    found = dump(planted.path, "--outstanding", "--json").lines("damage")
    of_journals = [line for line in found if "message header cannot" not in line["what"]]
    assert [line for line in of_journals if (line["file"], line["offset"], line["what"]) not in reported] == []
    if not found and not plant.changes:
        assert report.code == 0, report.text
    if any(name not in expected for name in expected_states({})) and found:
        assert report.code == 1, report.text
    assert recovery.summary["messages"] == sum(line["messages"] for line in report.lines("queue"))
    return recovery


# ---- in the broker's store ----


def stored(path: Path) -> dict[str, list[bytes]]:
    """Queue -> the messages that the broker's store offers, in order; it opens without a warning."""
    lines: list[LogLine] = []
    with MessageStore.open(tool_environment(), str(path), PARAMETERS, "0.1.0", log=lines.append) as store:
        found = {queue.record.name: [each.data for each in store.messages(queue)] for queue in store.recovered_queues}
        store.end_recovery()
    assert [line.text for line in lines if line.level in (Level.WARNING, Level.CRITICAL)] == []
    return found


# ---- disks that fail or die ----


DISK_CALLS: Final = (
    "create",
    "open_writable",
    "make_directory",
    "rename",
    "remove",
    "remove_directory",
    "sync_directory",
)
FILE_CALLS: Final = ("write", "sync")


class BadRegion(NamedTuple):
    """Bytes `start` to `end` of a file, which the system cannot read."""

    file: str
    start: int
    end: int


def break_reading(monkeypatch: pytest.MonkeyPatch, *regions: BadRegion) -> None:
    """Reads that touch one of the regions fail with EIO."""
    read = OsFile.read

    def bad_read(self: OsFile, offset: int, length: int) -> bytes:
        for file, start, end in regions:
            if self._path == file and offset < end and start < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return read(self, offset, length)

    monkeypatch.setattr(OsFile, "read", bad_read)


def limit_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """New files may have `size` bytes in all; what is larger is not made."""
    create, used = OsWritableDisk.create, [0]

    def bounded(self: OsWritableDisk, path: str, count: int) -> OsWritableFile:
        if used[0] + count > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        used[0] += count
        return create(self, path, count)

    monkeypatch.setattr(OsWritableDisk, "create", bounded)


def allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """New files have their size, and no blocks until they are written: most of a small store's are never."""

    def enlarge(descriptor: int, offset: int, length: int) -> None:
        os.truncate(descriptor, max(os.fstat(descriptor).st_size, offset + length))

    monkeypatch.setattr(os, "posix_fallocate", enlarge)


class Killed(BaseException):
    """The process is gone: whatever would go on is not to do anything any more."""


class MortalDisk:
    """Counts the calls that change something, and dies at one of them: it and all later ones do nothing but raise.

    Attributes:
        calls: how many there were.
        last: the call at which it dies; None for never.
    """

    def __init__(self, last: int | None = None) -> None:
        self.calls = 0
        self.last = last

    @contextmanager
    def in_use(self) -> Iterator[MortalDisk]:
        """Everything that is written goes this way."""
        with pytest.MonkeyPatch.context() as patch:
            for holder, names in ((OsWritableDisk, DISK_CALLS), (OsWritableFile, FILE_CALLS)):
                for name in names:
                    patch.setattr(holder, name, self._mortal(getattr(holder, name)))
            yield self

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.last is not None and self.calls >= self.last:
                raise Killed
            return call(*arguments, **named)

        return counted
