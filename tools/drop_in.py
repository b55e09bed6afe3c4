"""What the drop-ins for qpidd's `qpid-store-chk` and `qpid-store-resize` share.

Options are read with `optparse`, as the originals' were: they abbreviate in the same way, and usage errors are the
same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from optparse import OptionParser, Values
from pathlib import Path
from typing import Final

from formats.rhm.jinf import DEFAULT_BASE_NAME
from tools.console.text import one_line
from tools.entry import no_advice
from tools.store_chk.check import Show

EXIT_FAILED: Final = 1
_VERSION: Final = "1.0"  # of the originals


class JournalOptions(OptionParser):
    """The options of a command on one journal, of which `-b` is the first; the epilog keeps its lines.

    Args:
        name: the command's.
        epilog: follows the options in the help.
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
        """The epilog as it is."""
        return self.epilog or ""

    def read(self, arguments: Sequence[str]) -> tuple[Values, str]:
        """The options and the directory. Ends the process with exit code 2 where they cannot be used."""
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
    """How much is shown, by -q, -r and -v."""
    if values.quiet:
        return Show.NOTHING
    if values.records:
        return Show.RECORDS
    return Show.FILES if values.verbose else Show.DOTS


def exit_code(
    work: Callable[[], str | None], *failures: type[Exception], advise: Callable[[OSError], str] = no_advice
) -> int:
    """Do the work, which says what is wrong (None if nothing is), and tell that on standard error.

    Args:
        work: what is to be done.
        failures: the errors, besides OSError, that end it with one line.
        advise: what to add to the reason of an OSError.
    """
    try:
        problem = work()
        sys.stdout.flush()
    except failures as error:
        problem = str(error)
    except OSError as error:
        # Reading always names its file; what has no name is what was written to.
        problem = f"{error.filename or 'standard output'}: {error.strerror or error}{advise(error)}"
    if problem is None:
        return 0
    sys.stderr.write(f"{one_line(problem)}\n")
    return EXIT_FAILED
