"""What the drop-in replacements for Apache's store tools share.

    options       those of the commands on one journal, parsed with `optparse`, as in the originals, so that
                  abbreviations and usage errors are the same
    exit codes    1 after any error, with one line on standard error; 2 for unusable options
    bytes, times  as text, by the rules of the originals
    transactions  the pending operations of those that are open
    walk          what follows a record's header, read when it is needed

Both walks, over a ring of files (`qpid_store_chk`) and over a line of them (`qpid_qls_analyze`), are `JournalWalk`s;
where records begin and where a journal ends follows the rules of their originals, which differ from those of recovery.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from optparse import OptionParser, Values
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeAlias

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.stream import JournalStream
from qstore.tools.console.command import EXIT_FAILED, os_error_text
from qstore.tools.console.text import one_line

_VERSION: Final = "1.0"  # of the originals


class Show(Enum):
    """How much is shown of the walk."""

    NOTHING = "nothing, the rest of the output included"
    DOTS = "a dot for each file"
    FILES = "the name of each file"
    RECORDS = "each record"


class CheckError(Exception):
    """The check cannot continue: one line that says what is wrong and where. The exit code is 1."""


class JournalOptions(OptionParser):
    """Options of a command on one journal, starting with `-b`; the epilog's line breaks are preserved.

    Args:
        name: the command's name.
        epilog: text after the options in the help.
    """

    def __init__(self, name: str, epilog: str) -> None:
        super().__init__(prog=name, usage="%prog [options] DIR", version=f"%prog {_VERSION}", epilog=epilog)
        self.add_option(
            "-b",
            "--base-filename",
            dest="bfn",
            default=DEFAULT_BASE_NAME,
            help="base of the journal's file names: tpl for the transaction prepared list  [default: %default]",
        )

    def format_epilog(self, _formatter: object) -> str:
        """Return the epilog without reformatting."""
        return self.epilog or ""

    def read(self, arguments: Sequence[str]) -> tuple[Values, str]:
        """Parse the options and the directory. Exits with code 2 if they are unusable."""
        values, positional = self.parse_args(list(arguments))
        if not positional:
            self.error("No journal directory argument")
        if len(positional) > 1:
            self.error(f"Too many positional arguments: {positional}")
        (directory,) = positional
        if values.quiet and values.records:
            self.error("Quiet (-q/--quiet) and record (-r/--records) options are mutually exclusive")
        if values.quiet and values.verbose:
            self.error("Quiet (-q/--quiet) and verbose (-v/--verbose) options are mutually exclusive")
        if not _exists(directory):
            self.error(f'Journal path "{directory}" does not exist')
        return values, directory


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except (OSError, ValueError):
        return False
    return bool(path)


def shown(values: Values) -> Show:
    """Output level selected by -q, -r and -v."""
    if values.quiet:
        return Show.NOTHING
    if values.records:
        return Show.RECORDS
    return Show.FILES if values.verbose else Show.DOTS


def exit_code(
    work: Callable[[], str | None], *failures: type[Exception], advise: Callable[[OSError], str] = lambda _: ""
) -> int:
    """Run `work`, which returns an error text or None, and print that error on standard error.

    Args:
        work: the command's work.
        failures: exception types, in addition to OSError, that are reported in one line.
        advise: returns advice to append to the text of an OSError.
    """
    try:
        problem = work()
        sys.stdout.flush()
    except failures as error:
        problem = str(error)
    except OSError as error:
        problem = os_error_text(error, advise)
    if problem is None:
        return 0
    sys.stderr.write(f"{one_line(problem)}\n")
    return EXIT_FAILED


def run_drop_in(work: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a console script that replaces one of Apache's: names are raw bytes; a closed pipe is not reported.

    Args:
        work: takes the arguments and writes to `sys.stdout` and `sys.stderr`; returns the exit code.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent; the exit code still reports the result
            stream = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
            setattr(sys, name, stream)
        # Names are bytes: those that cannot be decoded are written unchanged.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    code = work(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # Buffered output cannot be written; Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


# ---- bytes and times as text ----
#
# A transaction id, or data, that is all printable (ASCII from blank to tilde) and shorter than 50 bytes is printed
# unchanged; of a longer one the first and the last 25 bytes are shown. Otherwise each unprintable byte is written
# `\xx`, two hex digits: up to 50 bytes everything is shown, of more the first and the last 10. Long values are read in
# parts, and only a little if the first bytes are not printable, as in messages.

_SHORT: Final = 50  # bytes: longer values are cut in the middle
_PRINTABLE_ENDS: Final = 25  # bytes shown at either end of printable values ...
_ESCAPED_ENDS: Final = 10  # ... and of others
_CHUNK: Final = 1 << 16  # bytes examined at once

# The Gregorian calendar, including weekdays, repeats after 400 years. datetime ends with the year 9999, but forged
# headers may have later years.
_CYCLE_YEARS, _CYCLE_SECONDS = 400, 146_097 * 86_400


#: Returns `length` bytes from `offset` of a value.
Read = Callable[[int, int], bytes]


class Rendering(NamedTuple):
    """The formatting of arbitrary bytes.

    Attributes:
        printable: the bytes that are printed unchanged if there are no others.
        escaped: the text for each byte.
    """

    printable: bytes
    escaped: Sequence[str]

    def is_printable(self, read: Read, size: int) -> bool:
        """Whether the `size` bytes that `read` returns are all printable."""
        # Messages begin with their header: most are recognized by their first bytes.
        if read(0, min(size, _SHORT)).strip(self.printable):
            return False
        chunks = (read(offset, min(_CHUNK, size - offset)) for offset in range(_SHORT, size, _CHUNK))
        return not any(chunk.strip(self.printable) for chunk in chunks)

    def shortened(self, read: Read, size: int, *, is_printable: bool) -> str:
        """The bytes, or the first and the last of them."""
        whole, ends = (_SHORT - 1, _PRINTABLE_ENDS) if is_printable else (_SHORT, _ESCAPED_ENDS)
        return self.text(read(0, size)) if size <= whole else self.ends(read, size, ends)

    def ends(self, read: Read, size: int, ends: int = _PRINTABLE_ENDS) -> str:
        """The first and the last of the bytes."""
        return f"{self.text(read(0, ends))} ... {self.text(read(size - ends, ends))}"

    def text(self, content: bytes) -> str:
        """All of some bytes."""
        return "".join(map(self.escaped.__getitem__, content))


def rendering_of(printable: bytes) -> Rendering:
    r"""The formatting that writes all but these bytes as `\xx`."""
    return Rendering(printable, [chr(byte) if byte in printable else f"\\{byte:02x}" for byte in range(256)])


def time_text(seconds: int, nanoseconds: int) -> str:
    """A time in UTC: `Tue Nov 14 22:13:20.000000000 2023`."""
    cycles, rest = divmod(seconds, _CYCLE_SECONDS)
    time = datetime.fromtimestamp(rest, UTC)
    return f"{time:%a %b %d %H:%M:%S}.{nanoseconds:09d} {time.year + cycles * _CYCLE_YEARS}"


# ---- open transactions ----

ENQUEUE: Final = 1  # marks an enqueue among the records of a transaction
_WHOLE_XID: Final = 128  # bytes: a transaction id up to that size is stored as a whole
_XID_ENDS: Final = 1 << 15  # bytes at either end that identify a larger one: a forged one may have gigabytes

#: The size of a transaction id, and itself or a digest of it.
Xid: TypeAlias = tuple[int, bytes]


class OpenTransaction(NamedTuple):
    """The pending operations of one transaction, in journal order: three arrays of the same length.

    Attributes:
        places: where the records are.
        rids: of an enqueue, its own; of a dequeue, the one that it removes.
        marks: ENQUEUE, combined with other properties of a record.
    """

    places: array[int]
    rids: array[int]
    marks: bytearray

    def operations(self) -> Iterator[tuple[int, int, int]]:
        """Place, rid and marks of each record."""
        return zip(*self, strict=True)


class Transactions(dict[Xid, OpenTransaction]):
    """The open transactions, in the order of their first records."""

    def wait(self, xid: Xid, place: int, rid: int, marks: int) -> None:
        """Add a pending operation to its transaction."""
        transaction = self.get(xid)
        if transaction is None:
            transaction = self[xid] = OpenTransaction(array("Q"), array("Q"), bytearray())
        transaction.places.append(place)
        transaction.rids.append(rid)
        transaction.marks.append(marks)


def xid_key(read: Read, size: int) -> Xid:
    """Identifies a transaction id in few bytes, however large it is."""
    if size <= _WHOLE_XID:
        return size, read(0, size)
    head = read(0, min(size, _XID_ENDS))
    return size, hashlib.sha256(head + read(max(size - _XID_ENDS, 0), min(size, _XID_ENDS))).digest()


# ---- walks ----


class PlacedRecord(Protocol):
    """A record of a walk: where it begins in the stream of the journal's files, and its header."""

    @property
    def place(self) -> int: ...
    @property
    def header(self) -> RecordHeader: ...


class JournalWalk:
    """A walk over the records of one journal.

    Args:
        stream: the data areas of the journal's files.
    """

    def __init__(self, stream: JournalStream) -> None:
        self._stream = stream

    def close(self) -> None:
        """Close all file descriptors."""
        self._stream.close()

    def read_xid(self, record: PlacedRecord) -> Read:
        """Reads from the record's transaction id."""
        return self._read_at(record.place + record.header.header_size)

    def read_data(self, record: PlacedRecord) -> Read:
        """Reads from the data of an enqueue."""
        return self._read_at(record.place + record.header.header_size + record.header.xid_size)

    def _read_at(self, begin: int) -> Read:
        return lambda offset, length: self._stream.read_aside(begin + offset, length)
