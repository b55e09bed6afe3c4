"""One run of `qpid-store-chk`: analysis, walk, report, in the order in which they are printed.

Nothing is printed before the analysis has succeeded. An error during the walk ends the output there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from enum import Enum
from typing import NamedTuple, TypeAlias

from qstore.store.disk import Disk
from qstore.tools.store_chk.analysis import analyse, file_lines, info_lines
from qstore.tools.store_chk.csv_test import CsvTest, read_test
from qstore.tools.store_chk.errors import CheckError
from qstore.tools.store_chk.maps import Maps
from qstore.tools.store_chk.report import Counts, report_lines
from qstore.tools.store_chk.text import file_header_text
from qstore.tools.store_chk.walk import FileEntered, FirstRecord, Record, StrayHeader, Torn, Truncated, Walk

#: Takes text for standard output, which may be buffered until `flush` or a line's end.
Write: TypeAlias = Callable[[str], object]


class Show(Enum):
    """How much is shown of the walk."""

    NOTHING = "nothing, the rest of the output included"
    DOTS = "a dot for each file"
    FILES = "the name of each file"
    RECORDS = "each record"


class CsvSelection(NamedTuple):
    """A test in a file of tests: the file's path, the test's number."""

    path: str
    number: int


class Checker:
    """Runs one check.

    Args:
        disk: where to read.
        write: takes standard output.
        show: how much of the walk is shown.
    """

    def __init__(self, disk: Disk, write: Write, show: Show) -> None:
        self._disk = disk
        self._write = write
        self._show = show
        self._counts = Counts()
        self._maps = Maps()
        self._test: CsvTest | None = None

    def run(self, directory: str, base_name: str, csv: CsvSelection | None) -> str | None:
        """Check the journal `base_name` in `directory`.

        Returns:
            What is wrong with the journal's end; None if nothing.

        Raises:
            CheckError: the check cannot continue, or the journal differs from what the test expects.
            CsvFileError: the test cannot be read.
            OSError: a file of the journal cannot be read.
        """
        analysis = analyse(self._disk, directory, base_name)
        if csv is not None:
            self._test = read_test(self._disk, csv.path, csv.number)
        for lines in (info_lines(analysis), file_lines(analysis)):
            for line in lines:
                self._line(line)
        if analysis.is_empty:
            self._check_count()
            self._finish(None)
            return None
        with closing(Walk(self._disk, analysis)) as walk:
            torn = self._walk(walk)
            self._finish(walk)
        return torn

    # ---- the walk ----

    def _walk(self, walk: Walk) -> str | None:
        """Walk, count and match; returns what is wrong with the journal's end, None if nothing."""
        torn = None
        self._begin()
        try:
            for event in walk.events():
                match event:
                    case FileEntered():
                        self._entered(event)
                    case FirstRecord():
                        self._detail(f" * fro ok: 0x{event.offset:x}")
                    case StrayHeader():
                        self._counts.records += 1
                        self._detail(f" > {event.text}  ")
                    case Record():
                        self._take(walk, event)
                    case Torn():
                        torn = event.message
                    case Truncated():
                        self._counts.records += 1
            self._check_count()
        except (CheckError, OSError):
            if self._show is Show.DOTS:
                self._text("\n")
            raise
        self._text("\n")  # ends the line of dots; after names or records it leaves a blank line
        return torn

    def _take(self, walk: Walk, record: Record) -> None:
        self._counts.records += 1
        warning = "WARNING: OWI mismatch - could be overwrite boundary."
        if not record.is_overwritten:
            if self._test is not None:
                self._test.check_record(record.header)
            try:
                warning = self._maps.apply(record, walk.read_xid(record))
            except CheckError as error:
                raise CheckError(f"{error} ({walk.where(record)})") from None
            self._counts.add(record.header)
        if self._show is Show.RECORDS:
            self._line(f" > {walk.text(record)}  " + (f" ({warning})" if warning else ""))

    def _check_count(self) -> None:
        if self._test is not None:
            self._test.check_count(self._counts.enqueues)

    def _finish(self, walk: Walk | None) -> None:
        if self._show is Show.NOTHING:
            return
        for line in report_lines(self._counts, self._maps, walk):
            self._line(line)

    # ---- output ----

    def _begin(self) -> None:
        if self._show is Show.DOTS:
            self._text("Recovering journals")
        elif self._show is Show.FILES:
            self._line("Recovering journals...")

    def _entered(self, event: FileEntered) -> None:
        file = event.file
        if self._show is Show.DOTS:
            self._text(" .")
        elif self._show is Show.FILES:
            self._line(f"* Reading {file.path}")
        header = "0x00000000: <empty>" if file.header is None else file_header_text(file.header, file.flags)
        self._detail(f"{file.path} :  {header}")

    def _detail(self, line: str) -> None:
        if self._show is Show.RECORDS:
            self._line(line)

    def _line(self, line: str) -> None:
        self._text(f"{line}\n")

    def _text(self, text: str) -> None:
        if self._show is not Show.NOTHING:
            self._write(text)
