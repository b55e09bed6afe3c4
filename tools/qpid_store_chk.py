"""`qpid-store-chk`: check a journal of qpidd and show what remains in it; a drop-in replacement for Apache's command.

Exit codes: 0 the journal was read, whatever remains in it; 1 it could not be read, or differs from what a test
expects; 2 usage. Options are parsed with `optparse`, so abbreviations and usage errors are those of the original.
The output, and where it differs from the original's, is described in `tools.store_chk`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from qstore.store.disk import OsDisk
from qstore.tools.console.text import one_line
from qstore.tools.drop_in import EXIT_FAILED, JournalOptions, exit_code, shown
from qstore.tools.entry import run_drop_in
from qstore.tools.store_chk.check import Checker, CsvSelection
from qstore.tools.store_chk.csv_test import CsvFileError
from qstore.tools.store_chk.errors import CheckError

NAME: Final = "qpid-store-chk"

_EPILOG: Final = """
Examples:
  qpid-store-chk /var/lib/qpidd/rhm/jrnl/000a/orders
  qpid-store-chk -r -b tpl /var/lib/qpidd/rhm/tpl

DIR is the directory of one journal. Nothing is ever written to it. For a
whole store, decoded messages and damage see qstore-dump.

Exit codes: 0 the journal was read, 1 it was not, or differs from what a test
expects, 2 unusable options or no such journal.
"""


def parser() -> JournalOptions:
    """The options of the original command."""
    options = JournalOptions(NAME, _EPILOG)
    add = options.add_option
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


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    values, directory = parser().read(arguments)
    csv = None if values.csvfn is None or values.tnum is None else CsvSelection(values.csvfn, values.tnum)
    checker = Checker(OsDisk(), sys.stdout.write, shown(values))
    try:
        return exit_code(lambda: checker.run(directory, values.bfn, csv), CheckError)
    except CsvFileError as error:
        sys.stdout.write(f"{one_line(str(error))}\n")
        return EXIT_FAILED


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
