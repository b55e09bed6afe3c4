"""`qpid-store-chk`: check one journal of qpidd and show what remains in it; a drop-in for qpidd's own command.

Exit codes: 0 the journal was read, whatever remains in it; 1 it could not be, or is not as a test expects; 2 usage.
Options are read with `optparse`, as the original's were: they abbreviate as its do, and the usage errors are the same.
What the output is, and where it is another than the original's, is told in `tools.store_chk`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from optparse import OptionParser, Values
from pathlib import Path
from typing import Final

from formats.rhm.jinf import DEFAULT_BASE_NAME
from store.disk import OsDisk
from tools.console.text import one_line
from tools.entry import run_drop_in
from tools.store_chk.check import Checker, CsvSelection, Show
from tools.store_chk.csv_test import CsvFileError
from tools.store_chk.errors import CheckError

NAME: Final = "qpid-store-chk"
VERSION: Final = "1.0"  # of the original
EXIT_FAILED: Final = 1

_EPILOG: Final = """
Examples:
  qpid-store-chk /var/lib/qpidd/rhm/jrnl/000a/orders
  qpid-store-chk -r -b tpl /var/lib/qpidd/rhm/tpl

DIR is the directory of one journal. Nothing is ever written to it. For a
whole store, decoded messages and damage see qstore-dump.

Exit codes: 0 the journal was read, 1 it was not, or is not as a test expects,
2 unusable options or no such journal.
"""


class _Parser(OptionParser):
    """A parser whose epilog keeps its lines."""

    def format_epilog(self, _formatter: object) -> str:
        """The epilog as it is."""
        return self.epilog or ""


def parser() -> OptionParser:
    """The options of the command: the original's."""
    options = _Parser(prog=NAME, usage="%prog [options] DIR", version=f"%prog {VERSION}", epilog=_EPILOG)
    add = options.add_option
    add(
        "-b",
        "--base-filename",
        dest="bfn",
        default=DEFAULT_BASE_NAME,
        help="base of the journal's file names: tpl for the transaction prepared list  [default: %default]",
    )
    add(
        "-c",
        "--csv-filename",
        dest="csvfn",
        help="file of comma-separated values with what a test expects; goes with -t",
    )
    add("-q", "--quiet", action="store_true", help="print nothing but errors")
    add(
        "-r",
        "--records",
        action="store_true",
        help="print every record on the way, not only what remains",
    )
    add(
        "-t",
        "--test-num",
        dest="tnum",
        type="int",
        help="number of the test in that file; goes with -c",
    )
    add("-v", "--verbose", action="store_true", help="print the name of each file on the way")
    return options


def parse(arguments: Sequence[str]) -> tuple[Values, str]:
    """The options and the directory. Ends the process with exit code 2 where they cannot be used."""
    options = parser()
    values, positional = options.parse_args(list(arguments))
    if not positional:
        options.error("No journal directory argument")
    if len(positional) > 1:
        options.error(f"Too many positional arguments: {positional}")
    (directory,) = positional
    if values.quiet and values.records:
        options.error("Quiet (-q/--quiet) and record (-r/--records) options are mutually exclusive")
    if values.quiet and values.verbose:
        options.error("Quiet (-q/--quiet) and verbose (-v/--verbose) options are mutually exclusive")
    if not _exists(directory):
        options.error(f'Journal path "{directory}" does not exist')
    return values, directory


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError:
        return False
    return bool(path)


def _show(values: Values) -> Show:
    if values.quiet:
        return Show.NOTHING
    if values.records:
        return Show.RECORDS
    return Show.FILES if values.verbose else Show.DOTS


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    values, directory = parse(arguments)
    csv = None if values.csvfn is None or values.tnum is None else CsvSelection(values.csvfn, values.tnum)
    checker = Checker(OsDisk(), sys.stdout.write, _show(values))
    try:
        problem = checker.run(directory, values.bfn, csv)
        sys.stdout.flush()
    except CsvFileError as error:
        sys.stdout.write(f"{one_line(str(error))}\n")
        return EXIT_FAILED
    except CheckError as error:
        problem = str(error)
    except OSError as error:
        # Reading always names its file; what has no name is what was written to.
        problem = f"{error.filename or 'standard output'}: {error.strerror or error}"
    if problem is None:
        return 0
    sys.stderr.write(f"{one_line(problem)}\n")
    return EXIT_FAILED


def main() -> None:
    """The console script."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
