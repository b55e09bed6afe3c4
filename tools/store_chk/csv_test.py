"""The expectations of a test harness for a journal: one line of a file of comma-separated values.

Columns, from 0: 0 test number; 5 number of messages; 7, 8 smallest and largest message size; 9, 10 the same for
transaction ids; 11 whether messages are dequeued; 12 transient; 13 external; 20 comment. Others are ignored. A line
counts if it has a comment and its numbers are numbers; of several with the same test number the first. Cells are
separated by commas, quotes included. Sizes are compared if smallest and largest are the same and not 0; the size of
data only if there are data.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qstore.formats.rhm.records import EXTERNAL, TRANSIENT, Kind, RecordHeader
from qstore.store.disk import Disk, read_whole
from qstore.tools.store_chk.errors import CheckError

MAX_CSV_SIZE: Final = 1 << 24  # bytes: such files have a few hundred lines
_LAST_COLUMN: Final = 20
_FALSE: Final = (b"FALSE", b"0")


class CsvFileError(Exception):
    """The file, or the test in it, does not exist: one line."""


class CsvTest(NamedTuple):
    """The expectations of one test.

    Attributes:
        number: of the test.
        messages: number of enqueues.
        message_size, xid_size: bytes; 0 or less if they are not compared.
        is_dequeued: whether the journal may contain dequeues.
        is_transient, is_external: the flags of every enqueue.
    """

    number: int
    messages: int
    message_size: int
    xid_size: int
    is_dequeued: bool
    is_transient: bool
    is_external: bool

    def check_record(self, header: RecordHeader) -> None:
        """Compare a record with the test.

        Raises:
            CheckError: it differs.
        """
        if header.kind is Kind.DEQUEUE and not self.is_dequeued:
            self._fail(f"WARNING: Dequeue record rid={header.rid} found in non-dequeue test - ignoring.")
        if header.kind is not Kind.ENQUEUE:
            return
        if bool(header.flags & EXTERNAL) != self.is_external:
            self._fail(f"External flag mismatch: expected {self.is_external}")
        if self.message_size > 0 and header.stored_size not in (0, self.message_size):
            self._fail(f"Message length mismatch: expected {self.message_size}; found {header.stored_size}")
        if self.xid_size > 0 and header.xid_size != self.xid_size:
            self._fail(f"Message XID mismatch: expected {self.xid_size}; found {header.xid_size}")
        if bool(header.flags & TRANSIENT) != self.is_transient:
            self._fail(f"Transaction mismatch: expected {self.is_transient}")

    def check_count(self, enqueues: int) -> None:
        """Compare the number of enqueues in the journal with the test.

        Raises:
            CheckError: it differs.
        """
        if enqueues != self.messages:
            self._fail(f"Incorrect number of messages: expected {self.messages}, found {enqueues}")

    def _fail(self, what: str) -> None:
        raise CheckError(f"[CSV {self.number}] {what}")


def read_test(disk: Disk, path: str, number: int) -> CsvTest:
    """The test called `number` in the file at `path`.

    Raises:
        CsvFileError: there is no such file, or no such test in it.
    """
    try:
        content = read_whole(disk, path, MAX_CSV_SIZE)
    except (OSError, ValueError):
        raise CsvFileError(f'ERROR: Unable to open CSV file "{path}"') from None
    for line in content.split(b"\n"):
        test = _parsed(line)
        if test is not None and test.number == number:
            return test
    raise CsvFileError(f'ERROR: Test {number} not found in CSV file "{path}"')


def _parsed(line: bytes) -> CsvTest | None:
    cells = line.split(b",", _LAST_COLUMN + 1)
    if len(cells) <= _LAST_COLUMN:
        return None
    try:
        number, messages, least, most, least_xid, most_xid = (int(cells[column]) for column in (0, 5, 7, 8, 9, 10))
    except ValueError:
        return None
    return CsvTest(
        number=number,
        messages=messages,
        message_size=least if least == most else 0,
        xid_size=least_xid if least_xid == most_xid else 0,
        is_dequeued=cells[11] not in _FALSE,
        is_transient=cells[12] not in _FALSE,
        is_external=cells[13] not in _FALSE,
    )
