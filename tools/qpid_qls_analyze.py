"""`qpid-qls-analyze`: show the journals of a linearstore; a drop-in replacement for Apache's command.

Exit codes: 0 the store was read, whatever remains in it; 1 something in it could not be read, or contradicts itself;
2 usage. Long options may be abbreviated, as in the original. The output, and where it differs from the original's, is
described in `tools.qls_analyze`.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Final

from qstore.store.disk import OsDisk
from qstore.tools.console.text import one_line
from qstore.tools.entry import run_drop_in
from qstore.tools.qls_analyze.analysis import Analysis, OutputError, is_store
from qstore.tools.qls_analyze.problems import Problems
from qstore.tools.qls_analyze.show import Show

NAME: Final = "qpid-qls-analyze"
VERSION: Final = "1.0"  # of the original
EXIT_FAILED: Final = 1

_EPILOG: Final = """
Examples:
  qpid-qls-analyze /var/lib/qpidd/qls
  qpid-qls-analyze --show-recovered-recs --txn /var/lib/qpidd/qls
  qpid-qls-analyze --efp --stats /tmp/copied-store/qls

Nothing is ever written to the store. In a copy of a store, whose links are
broken, the files are found by their names. For decoded messages and damage
see qstore-dump and qstore-check.

Exit codes: 0 everything was read, 1 something could not be read, 2 unusable
options or no such store.
"""

_OPTIONS: Final = (
    ("--efp", "pools", "analyze the empty file pools (EFP) and show what is in them"),
    ("--show-recovered-recs", "recovered", "show the records that remain, and those of open transactions"),
    ("--show-recovery-recs", "walked", "show the records as they are read, but no fillers"),
    ("--show-all-recs", "fillers", "show all records as they are read"),
    ("--show-xids", "xids", "show transaction ids (xids), not only their sizes, where records are shown"),
    ("--show-data", "data", "show the data, not only its size, where records are shown"),
    ("--stats", "counts", "show for each journal how many records of which kind were read"),
    ("--txtest", "test_texts", "show the text of qpid-txtest messages as their data, where records are shown"),
    ("--txn", "resolved", "show what remains when the open transactions are resolved"),
)


def parser() -> ArgumentParser:
    """The options of the original command."""
    options = ArgumentParser(
        prog=NAME,
        description="Qpid Linear Store Analyzer",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    options.add_argument("directory", metavar="DIR", help="the qls directory of a Qpid Linear Store (QLS)")
    for option, destination, text in _OPTIONS:
        options.add_argument(option, dest=destination, action="store_true", help=text)
    options.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return options


def parse(arguments: Sequence[str]) -> tuple[Show, str]:
    """What to show, and the directory as an absolute path. Exits with code 2 if they are unusable."""
    options = parser()
    values: Namespace = options.parse_args(list(arguments))
    directory: str = values.directory
    disk = OsDisk()
    try:
        exists = bool(directory) and os.path.lexists(directory)
        usable = exists and is_store(disk, directory)
    except (OSError, ValueError) as error:
        options.error(one_line(f'Journal path "{directory}" cannot be read: {getattr(error, "strerror", error)}'))
    if not exists:
        options.error(one_line(f'Journal path "{directory}" does not exist'))
    if not usable:
        below = os.path.join(directory, "qls")  # noqa: PTH118 (as it was typed)
        hint = f"; try {below}" if is_store(disk, below) else ""
        options.error(one_line(f'"{directory}" is no linearstore: neither jrnl2 nor tpl2 nor pNNN is in it{hint}'))
    shown = {destination: getattr(values, destination) for _, destination, _ in _OPTIONS}
    shown["walked"] |= shown["fillers"]
    return Show(**shown), os.path.abspath(directory)  # noqa: PTH100 (Path.resolve would follow links)


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    show, directory = parse(arguments)
    problems = Problems()
    try:
        Analysis(OsDisk(), sys.stdout.write, show, problems).run(directory)
        sys.stdout.flush()
    except OutputError as error:
        problems.add("standard output", str(error))
    except OSError as error:
        problems.add_os_error(error, "standard output")
    for line in problems.lines():
        sys.stderr.write(f"{NAME}: {one_line(line)}\n")
    return EXIT_FAILED if problems.count else 0


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
