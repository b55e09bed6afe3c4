"""`qpid-store-chk` as tests run it: the whole command on a directory, or its checker on a journal in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.tools.drop_in import CheckError, Show
from qstore.tools.qpid_store_chk import Checker, run
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk
from tests.tools.drop_in_runs import DropInRun, outcome

BLOCKS: Final = 32  # of the data area of a small file
SMALL: Final = Geometry(4, BLOCKS * BLOCK_SIZE)


class Run(DropInRun):
    """What one run gave."""

    @property
    def is_complete(self) -> bool:
        """Whether it printed its last line."""
        return self.lines[-1:] != [] and self.lines[-1].endswith(" journal records processed.")

    @property
    def counted(self) -> tuple[int, int]:
        """Enqueues and records, as the last line has them."""
        words = self.lines[-1].split()
        assert words[1:2] + words[3:] == ["enqueues,", "journal", "records", "processed."]
        return int(words[0]), int(words[2])

    @property
    def walked(self) -> list[str]:
        """What was printed between the analysis and the report."""
        begin = self.lines.index("", next(i for i, line in enumerate(self.lines) if line.startswith("Journal files")))
        end = self.lines.index(" === REPORT ====") if " === REPORT ====" in self.lines else len(self.lines)
        return [line for line in self.lines[begin:end] if line]

    @property
    def records(self) -> list[str]:
        """The records that were printed on the way, warnings left out."""
        return [line[3:].partition("  (")[0].rstrip() for line in self.walked if line.startswith(" > ")]

    @property
    def warnings(self) -> list[str]:
        """The warnings behind records."""
        found = (line.partition("  (")[2] for line in self.walked if line.startswith(" > "))
        return [warning.removesuffix(")") for warning in found if warning]

    @property
    def remaining(self) -> list[str]:
        """The lines of the remaining enqueued records."""
        return self._block("Remaining enqueued records (sorted by rid): ", "WARNING: Enqueue-Dequeue mismatch")

    @property
    def incomplete(self) -> list[str]:
        """The lines of the open transactions, blank ones left out."""
        return self._block("Incomplete transactions: ", "WARNING: Incomplete transactions found")

    def _block(self, first: str, last: str) -> list[str]:
        if first not in self.lines:
            return []
        begin = self.lines.index(first) + 1
        end = next(i for i, line in enumerate(self.lines) if line.startswith(last))
        return [line for line in self.lines[begin:end] if line]


def command(*arguments: str | os.PathLike[str]) -> Run:
    """Run the command in this process. An exception that it lets out is raised here."""
    return Run(*outcome(run, arguments))


def written(journal: JournalBuilder, directory: Path) -> Path:
    """The journal, flushed and written into `directory`."""
    journal.flush()
    journal.write_to(directory)
    return directory


def check(journal: JournalBuilder | MemoryDisk, show: Show = Show.RECORDS, base_name: str = "JournalData") -> Run:
    """Check a journal in memory; a builder's is flushed first. Exit codes are the command's."""
    if isinstance(journal, JournalBuilder):
        journal.flush()
        disk = journal.disk()
    else:
        disk = journal
    out: list[str] = []
    try:
        problem = Checker(disk, out.append, show).run(DIRECTORY, base_name, None)
    except (CheckError, OSError) as error:
        problem = str(error)
    assert disk.open_now == 0
    return Run(0 if problem is None else 1, "".join(out), problem or "")


def filling(blocks: int) -> bytes:
    """Data of an enqueue that fills `blocks` blocks."""
    return b"d" * (blocks * BLOCK_SIZE - 44)


def path_of(number: int) -> str:
    """The path of a file of a journal in memory."""
    return f"{DIRECTORY}/JournalData.{number:04x}.jdat"


def patch(disk: MemoryDisk, number: int, offset: int, content: bytes) -> MemoryDisk:
    """Write into a file of a journal in memory."""
    file = bytearray(disk.files[path_of(number)])
    file[offset : offset + len(content)] = content
    disk.files[path_of(number)] = file
    return disk
