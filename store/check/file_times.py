"""The times in the headers of a journal's files, which a writer makes one after another."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from formats.qls.file_header import FileHeader as LinearHeader
from formats.rhm.file_header import FileHeader as RingHeader
from store.journal.files import JournalFile
from store.journal.journal import Journal


def times_that_run_back(journal: Journal) -> list[str]:
    """One line for each file whose header is older than that of the file before it: no damage, if a clock was set."""
    notices = []
    with_headers = [file for file in journal.files.files if file.header is not None]
    for earlier, later in pairwise(with_headers):
        if _time(later) < _time(earlier):
            seconds = _time(earlier)[0] - _time(later)[0]
            notices.append(
                f"{later.path}: file header is {seconds} s older than that of the file before it; "
                "the clock was set back, or the header altered; nothing depends on it"
            )
    return notices


def _time(file: JournalFile[Any]) -> tuple[int, int]:
    header: RingHeader | LinearHeader | None = file.header
    assert header is not None
    return header.seconds, header.nanoseconds
