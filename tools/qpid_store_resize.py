"""`qpid-store-resize`: resize a journal in qpidd's own format; a drop-in replacement for Apache's command.

Exit codes: 0 done; 1 not done, and nothing was changed, or the new journal is more than 80 % full, which standard error
states; 2 usage. Options are parsed with `optparse`, as in the original. The procedure, and where it differs, is
described in `store.repair.version_1_resize` and `tools.resize.drop_in`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from optparse import Values
from typing import Final

from qstore.formats.rhm.geometry import DEFAULT_FILES, MAX_FILES, MAX_PAGES
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError, advice
from qstore.tools.drop_in import JournalOptions, exit_code, shown
from qstore.tools.entry import run_drop_in
from qstore.tools.resize.drop_in import Resizer, Wanted
from qstore.tools.store_chk.errors import CheckError

NAME: Final = "qpid-store-resize"
_MIN_FILES: Final = 4
_DEFAULT_PAGES: Final = 24

_EPILOG: Final = """
Examples:
  qpid-store-resize -N 16 -s 48 /var/lib/qpidd/rhm/jrnl/000a/orders
  qpid-store-resize -b tpl -N 8 -s 24 /var/lib/qpidd/rhm/tpl

DIR is the directory of one journal of qpidd's legacystore, whose broker must
not be running. The old files are moved to DIR/bak, which is emptied first. For
stores of qstore's own see qstore-resize.

Exit codes: 0 done, 1 not done, or the new journal is more than 80 % full,
2 unusable options or no such journal.
"""


def parser() -> JournalOptions:
    """The options of the original command."""
    options = JournalOptions(NAME, _EPILOG)
    add = options.add_option
    add("-B", "--new-base-filename", dest="nbfn", help="base of the new journal's file names  [default: the same]")
    add(
        "-n",
        "--no-pushdown",
        dest="npd",
        action="store_true",
        help="leave the old files in DIR, instead of DIR/bak; goes with -B or -o",
    )
    add(
        "-N",
        "--num-jfiles",
        dest="njf",
        type="int",
        default=DEFAULT_FILES,
        help=f"number of files of the new journal, {_MIN_FILES} to {MAX_FILES}  [default: %default]",
    )
    add("-o", "--old-base-filename", dest="obfn", help="base to which the old files are renamed  [default: the same]")
    add("-q", "--quiet", action="store_true", help="print nothing but errors")
    add("-r", "--records", action="store_true", help="print every record, and those that remain")
    add(
        "-s",
        "--jfile-size-pgs",
        dest="jfs",
        type="int",
        default=_DEFAULT_PAGES,
        help=f"size of each new file in blocks of 64 KiB, 1 to {MAX_PAGES}  [default: %default]",
    )
    add("-v", "--verbose", action="store_true", help="print what is done")
    return options


def parse(arguments: Sequence[str]) -> Wanted:
    """Parse the options. Exits with code 2 if they are unusable."""
    options = parser()
    values, directory = options.read(arguments)
    problem = _problem(values)
    if problem is not None:
        options.error(problem)
    npd, show = bool(values.npd), shown(values)
    return Wanted(directory, values.bfn, values.nbfn, values.obfn, npd, values.njf, values.jfs, show)


def _problem(values: Values) -> str | None:
    """What is wrong with the options; None if nothing."""
    if values.npd and values.nbfn is None and values.obfn is None:
        return (
            "If (-n/--no-pushdown) is used, then at least one of (-B/--new-base-filename) and (-o/--old-base-filename)"
            " must be used."
        )
    if not _MIN_FILES <= values.njf <= MAX_FILES:
        return f"Number of files ({values.njf}) is out of range ({_MIN_FILES}-{MAX_FILES})"
    if not 1 <= values.jfs <= MAX_PAGES:
        return f"File size ({values.jfs}) is out of range (1-{MAX_PAGES})"
    for name in (values.bfn, values.nbfn, values.obfn):
        if name is not None and (not name or "/" in name or "\0" in name):
            return f"Base filename {name!r} is not a file name"
    if values.npd and (values.nbfn or values.bfn) == (values.obfn or values.bfn):
        return "With -n/--no-pushdown the old and the new files cannot have the same base name"
    return None


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    wanted = parse(arguments)
    work = Resizer(tool_environment(), sys.stdout.write, wanted).run
    return exit_code(work, CheckError, StoreError, advise=advice)


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
