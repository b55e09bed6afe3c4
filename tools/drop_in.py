"""Shared by the drop-in replacements for Apache's `qpid-store-chk` and `qpid-store-resize`.

Options are parsed with `optparse`, as in the originals, so abbreviations and usage errors are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from optparse import OptionParser, Values
from pathlib import Path
from typing import Final

from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.tools.console.text import one_line
from qstore.tools.entry import no_advice
from qstore.tools.store_chk.check import Show

EXIT_FAILED: Final = 1
_VERSION: Final = "1.0"  # of the originals


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
    work: Callable[[], str | None], *failures: type[Exception], advise: Callable[[OSError], str] = no_advice
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
        # Errors of reading always name the file, so an error without a name is an error of writing the output.
        problem = f"{error.filename or 'standard output'}: {error.strerror or error}{advise(error)}"
    if problem is None:
        return 0
    sys.stderr.write(f"{one_line(problem)}\n")
    return EXIT_FAILED
