"""`qpid-qls-analyze` as tests run it: the whole command on a directory, or its analysis on a disk in memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from qstore.tools.qpid_qls_analyze import Analysis, Problems, Show, run
from tests.support.linear_builder import DIRECTORY, LinearBuilder, make_tree
from tests.support.memory_disk import MemoryDisk
from tests.tools.drop_in_runs import DropInRun, outcome

RECOVERY: Final = "Transaction reconciliation report:"


class Run(DropInRun):
    """What one run gave."""

    @property
    def is_complete(self) -> bool:
        """Whether all reports were printed."""
        return self.out.endswith("\n\n") and RECOVERY in self.lines

    @property
    def problems(self) -> list[str]:
        """The lines of standard error without the program's name."""
        lines = self.err.splitlines()
        assert all(line.startswith("qpid-qls-analyze: ") for line in lines)
        return [line.removeprefix("qpid-qls-analyze: ") for line in lines]

    def walked(self, name: str = "q") -> list[str]:
        """What was printed while a journal was read, fillers' lines too."""
        first = f"Recovering {name}... "
        begin = next(index for index, line in enumerate(self.lines) if line.startswith(first))
        lines = [self.lines[begin].removeprefix(first), *self.lines[begin + 1 :]]
        return lines[: lines.index("done")]

    def report(self, name: str = "q") -> list[str]:
        """The lines of a journal's report below its title, counts left out."""
        begin = self.lines.index(f'Journal "{name}":') + 2
        if ":" in self.lines[begin] and "count: " in self.lines[begin]:
            begin = self.lines.index("", begin) + 1
        return self.lines[begin : self.lines.index("", begin)]

    def counts(self, name: str = "q") -> dict[str, int]:
        """Label → count in a journal's report."""
        begin = self.lines.index(f'Journal "{name}":') + 2
        lines = self.lines[begin : self.lines.index("", begin)]
        return {label: int(count) for label, count in (line.split(": ") for line in lines)}

    def files(self, name: str = "q") -> list[tuple[str, int]]:
        """Number and count of enqueued records of each file in a journal's report."""
        rows = [line.split() for line in self.report(name) if line.endswith(".jrnl ")]
        return [(row[0], int(row[1])) for row in rows]

    @property
    def reconciliation(self) -> list[str]:
        """The lines of the reconciliation report, blank ones and underlines left out."""
        begin = self.lines.index(RECOVERY) + 1
        ends = (index for index in range(begin, len(self.lines)) if self.lines[index].startswith('Journal "'))
        lines = self.lines[begin : next(ends, len(self.lines))]
        return [line for line in lines if line.strip("=-")]


def command(*arguments: str | os.PathLike[str]) -> Run:
    """Run the command in this process. An exception that it lets out is raised here."""
    return Run(*outcome(run, arguments))


def written(directory: Path, *journals: LinearBuilder) -> Path:
    """A store of these journals below `directory`, their links dangling; returns its `qls`."""
    for journal in journals:
        journal.write(directory)
    return make_tree(directory)


def analysed(disk: MemoryDisk, show: Show | None = None, root: str = "/store/qls") -> Run:
    """Analyse a store in memory."""
    problems = Problems()
    out: list[str] = []
    Analysis(disk, out.append, show or Show(), problems).run(root)
    assert disk.open_now == 0
    err = "".join(f"qpid-qls-analyze: {line}\n" for line in problems.lines())
    return Run(1 if problems.count else 0, "".join(out), err)


def filling(blocks: int) -> bytes:
    """Data of an enqueue that fills `blocks` blocks."""
    return b"d" * (blocks * 128 - 64)


def fields(line: str) -> str:
    """A record's line without the file's number, offset, and checksums."""
    text = line.split(": ", 1)[1]
    while " cs=0x" in text:
        before, _, after = text.partition(" cs=0x")
        text = before + after[8:]
    return text


# ---- small journals ----

U64: Final = struct.Struct("<Q")
SHOW: Final = Show(walked=True, fillers=True, recovered=True, counts=True)
FILLERS: Final = "filler records required for DBLK alignment to"
TRUNCATED: Final = "[Truncated, no more files in journal]"


def journal(*sizes: int, first_number: int = 1) -> LinearBuilder:
    """Enqueues that take these numbers of blocks, in files of 32 blocks."""
    builder = LinearBuilder("q", data_size=4, first_number=first_number)
    for rid, size in enumerate(sizes, start=1):
        builder.enqueue(rid, filling(size))
    return builder


def analyse(builder: LinearBuilder) -> Run:
    return analysed(builder.disk(), SHOW)


def met(run: Run) -> list[str]:
    """File and offset of each line of the walk, the records' kinds, and their rids."""
    found = []
    for line in run.walked():
        place, _, rest = line.partition(": [")
        if rest:
            found.append(f"{place} {rest[0]} {rest.partition('rid=0x')[2].partition(']')[0]}".rstrip())
    return found


def path_of(builder: LinearBuilder, index: int) -> str:
    return f"{DIRECTORY}/{builder.names()[index]}"


def journal_of_three() -> LinearBuilder:
    """Two enqueues at 0x1000 and 0x1080 (three blocks), a transaction's dequeue at 0x1200, its commit at 0x1280."""
    builder = LinearBuilder("q", data_size=4)
    builder.enqueue(1, b"a")
    builder.enqueue(2, b"b" * 300)
    builder.dequeue(3, 1, xid=b"x")
    builder.commit(4, b"x")
    builder.flush()
    return builder
