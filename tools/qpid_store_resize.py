"""`qpid-store-resize`: resize a journal in qpidd's own format; a drop-in replacement for Apache's command.

Exit codes: 0 done; 1 not done, and nothing was changed, or the new journal is more than 80 % full, which standard error
states; 2 usage. Options are parsed with `optparse`, as in the original. The procedure, and where it differs, is
described in `store.repair.version_1_resize` and below.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from optparse import Values
from pathlib import Path
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, DEFAULT_FILES, MAX_FILES, MAX_PAGES, Geometry
from qstore.store.catalogue.store_directory import remove_tree
from qstore.store.environment import Environment, tool_environment
from qstore.store.errors import StoreError, StoreLockedError, advice
from qstore.store.journal.directory import data_path
from qstore.store.repair.version_1_resize import (
    BuiltFile,
    Target,
    Version1Content,
    build,
    check_fit,
    check_place,
    finish_interrupted,
    move,
    read_content,
)
from qstore.tools.drop_in import CheckError, JournalOptions, Show, exit_code, run_drop_in, shown
from qstore.tools.qpid_store_chk import (
    Analysis,
    FileEntered,
    FirstRecord,
    Maps,
    Record,
    StrayHeader,
    Walk,
    analyse,
    file_header_text,
    file_lines,
    info_lines,
    xid_text,
)

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
        help="leave the old files in DIR, instead of DIR/bak; requires -B or -o",
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


# ---- one run ----
#
# The listing of the old journal comes from the walk of `qpid-store-chk`; the records to copy are those that recovery
# finds (`store.repair.version_1_resize`). The two agree on every intact journal, except for transient messages, which
# are not copied, and for one whose oldest file is filled by a giant message, where the original finds nothing.
#
# The original moves the old files first and then checks whether the records fit. Here everything is built before a
# file is moved, and the lines about the files are printed afterwards.

PUSHDOWN: Final = "bak"
_FULL_PERCENT: Final = 80


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command line.

    Attributes:
        directory: the journal's directory, as typed.
        base_name: base name of the journal.
        new_base_name, old_base_name: of the new journal, and of the preserved old one; None for the same.
        no_pushdown: the old files stay in the directory.
        files: number of files.
        pages: size of each file in pages of 64 KiB.
        show: how much is shown.
    """

    directory: str
    base_name: str
    new_base_name: str | None
    old_base_name: str | None
    no_pushdown: bool
    files: int
    pages: int
    show: Show

    @property
    def target(self) -> Target:
        """Destinations of the new and the old files."""
        kept = self.directory if self.no_pushdown else posixpath.join(self.directory, PUSHDOWN)
        new, old = self.new_base_name or self.base_name, self.old_base_name or self.base_name
        return Target(self.directory, kept, self.base_name, new, old)


class Resizer:
    """Runs one resize.

    Args:
        environment: disk and clock.
        write: takes standard output.
        wanted: the options.
    """

    def __init__(self, environment: Environment, write: Callable[[str], object], wanted: Wanted) -> None:
        self._environment, self._disk = environment, environment.disk
        self._write, self._wanted = write, wanted
        self._verbose = wanted.show is Show.FILES

    def run(self) -> str | None:
        """Resize the journal.

        Returns:
            A warning if the new journal is nearly full, otherwise None.

        Raises:
            CheckError, StoreError: it cannot be done, and nothing was changed.
            OSError: something cannot be read or written.
        """
        wanted, target = self._wanted, self._wanted.target
        geometry = Geometry.from_pages(wanted.files, wanted.pages)
        with without_broker(wanted.directory):
            if finish_interrupted(self._disk, target) == geometry:
                self._line("An earlier run was cut short when it had built the new journal, which is in its place now.")
                return None
            check_place(self._disk, target)
            if self._verbose:
                self._lines(_option_lines(wanted))
            analysis = analyse(self._disk, wanted.directory, wanted.base_name)
            self._lines([*file_lines(analysis)])
            maps = self._walk(analysis)
            if self._verbose:
                self._lines([*info_lines(analysis)])
            content = read_content(self._disk, wanted.directory, wanted.base_name)
            with closing(content.journal):
                self._show_remaining(content, analysis, maps)
                check_fit(content, geometry)
                was_there = self._disk.is_directory(target.kept)
                built = build(self._environment, content, geometry, target)
            self._give_to_owner(target, geometry)
            move(self._disk, content.info, geometry, target)
        self._report_files(content, built, was_there=was_there)
        self._line(f"Transferred {content.records} records to new journal.")
        return _warning(content, built, geometry)

    def _give_to_owner(self, target: Target, geometry: Geometry) -> None:
        """Set the owner before the move: a run that finishes an interrupted one does not know it. Raises OSError."""
        try:
            owner = Path(data_path(target.directory, target.old_base, 0)).stat()
            _give_to(owner, target, geometry.files)
        except OSError:
            with suppress(OSError):  # the next run finishes it
                remove_tree(self._disk, target.building)
            raise

    # ---- the old journal ----

    def _walk(self, analysis: Analysis) -> Maps:
        """Show the files, or the records, as they are read. An early end does not matter: recovery reads on."""
        maps, show = Maps(), self._wanted.show
        if analysis.is_empty or show is Show.NOTHING:
            return maps
        if show is Show.DOTS:
            self._write("Recovering journals")
        elif self._verbose:
            self._line("Recovering journals...")
        with closing(Walk(self._disk, analysis)) as walk, suppress(CheckError):
            for event in walk.events():
                if isinstance(event, FileEntered):
                    self._entered(event)
                elif show is Show.RECORDS:
                    self._detail(walk, event, maps)
        self._line("")
        return maps

    def _entered(self, event: FileEntered) -> None:
        file, show = event.file, self._wanted.show
        if show is Show.DOTS:
            self._write(" .")
        elif self._verbose:
            self._line(f"* Reading {file.path}")
        else:
            header = "0x00000000: <empty>" if file.header is None else file_header_text(file.header, file.flags)
            self._line(f"{file.path} :  {header}")

    def _detail(self, walk: Walk, event: object, maps: Maps) -> None:
        if isinstance(event, FirstRecord):
            self._line(f" * fro ok: 0x{event.offset:x}")
        elif isinstance(event, StrayHeader):
            self._line(f" > {event.text}  ")
        elif isinstance(event, Record):
            warning = "WARNING: OWI mismatch - could be overwrite boundary."
            if not event.is_overwritten:
                warning = maps.apply(event, walk.read_xid(event))
            self._line(f" > {walk.text(event)}  " + (f" ({warning})" if warning else ""))

    def _show_remaining(self, content: Version1Content, analysis: Analysis, maps: Maps) -> None:
        """Show the number of remaining records; with -r also the records, at which the original fails."""
        enqueued, transactions = content.enqueued, content.open_transactions
        if self._wanted.show is not Show.RECORDS or analysis.is_empty:
            self._line(_count_line(enqueued, "enqueued records", "."))
            self._line(_count_line(transactions, "outstanding transactions", "."))
            return
        with closing(Walk(self._disk, analysis)) as walk:
            with suppress(CheckError):
                for _ in walk.events():  # so that it knows its files
                    pass
            self._line(_count_line(enqueued, "enqueued records", ":"))
            for _, place, _ in maps.enqueued.in_rid_order():
                self._line(f"   {walk.text(walk.record_at(place))}")
            self._line(_count_line(transactions, "outstanding transactions", ":"))
            for transaction in maps.transactions.values():
                first = walk.record_at(transaction.places[0])
                self._line(f"  xid={xid_text(walk.read_xid(first), first.header.xid_size)}:")
                for place in transaction.places:
                    self._line(f"   {walk.text(walk.record_at(place))}")

    # ---- report of what was done ----

    def _report_files(self, content: Version1Content, built: list[BuiltFile], *, was_there: bool) -> None:
        if not self._verbose:
            return
        wanted, target = self._wanted, self._wanted.target
        if not wanted.no_pushdown:
            text = f"* Pushdown directory {target.kept} exists, deleting content"
            self._line(text if was_there else f"* Creating new pushdown directory {target.kept}")
        if wanted.old_base_name is not None:
            self._line(f"* Renaming old journal files using base name {wanted.old_base_name}")
        if content.enqueued:
            self._line(f"* Assembling {content.enqueued} records from emap")
        if content.open_transactions:
            self._line(f"* Assembling {content.open_transactions} records from tmap")
        self._line("* Transferring records to new journal files")
        for number, file in enumerate(built):
            fillers = f" + {file.fillers} filler(s)" if file.fillers else ""
            text = f"{file.records} records{fillers}" if file.records else "empty"
            self._line(f"* Opening file {data_path(target.directory, target.new_base, number)}   ({text})")

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        if self._wanted.show is not Show.NOTHING:
            self._write(f"{line}\n")


def _count_line(count: int, what: str, end: str) -> str:
    return f"{count} {what} found{end}" if count else f"No {what} found."


def _option_lines(wanted: Wanted) -> list[str]:
    return [
        f"Journal dir: {wanted.directory}",
        f"Options: Base filename: {wanted.base_name}",
        f"         New base filename: {wanted.new_base_name}",
        f"         Old base filename: {wanted.old_base_name}",
        f"         Pushdown: {wanted.no_pushdown or None}",
        f"         No. journal files: {wanted.files}",
        f"         Journal file size: {wanted.pages} 64kiB blocks",
        "         Show records flag: None",
        "         Verbose flag: True",
        "",
    ]


def _warning(content: Version1Content, built: list[BuiltFile], geometry: Geometry) -> str | None:
    used = (content.blocks + sum(file.fillers for file in built)) * BLOCK_SIZE + DATA_OFFSET
    percent = 100 * used / geometry.capacity
    if percent <= _FULL_PERCENT:
        return None
    return (
        f"WARNING: Journal {content.info.queue_name} is {percent:2.1f}% full and will likely not allow enqueuing of "
        "new records until some existing records are dequeued."
    )


def _give_to(owner: os.stat_result, target: Target, files: int) -> None:
    """Give the new files to the owner of the old ones, as far as permitted: qpidd may run as another user."""
    paths = [data_path(target.building, target.new_base, number) for number in range(files)]
    for path in [*paths, posixpath.join(target.building, f"{target.new_base}.jinf")]:
        with suppress(PermissionError):
            os.chown(path, owner.st_uid, owner.st_gid)
            Path(path).chmod(owner.st_mode & 0o777)


# ---- qpidd's lock ----
#
# Such a journal is at `<data-dir>/rhm/...`, in a linearstore at `<data-dir>/qls/...`. A broker locks `<data-dir>/lock`
# while it runs: qpidd with lockf(3), qstore's with flock(2). If the store is not in the data directory, a running
# broker cannot be detected.

_ROOTS: Final = ("rhm", "qls")
_LOCK: Final = "lock"


@contextmanager
def without_broker(directory: str) -> Iterator[None]:
    """Keep brokers out while the block runs.

    Args:
        directory: the journal's directory, or another one below `rhm` or `qls`.

    Raises:
        StoreLockedError: a broker has the store open.
        OSError: the lock cannot be examined.
    """
    path = _lock_path(directory)
    if path is None:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise StoreLockedError(f"{path}: a broker has the store open; stop it first") from None
        yield
    finally:
        os.close(descriptor)


def _lock_path(directory: str) -> str | None:
    for above in Path(directory).resolve().parents:
        if above.name in _ROOTS:
            path = above.parent / _LOCK
            return str(path) if path.is_file() else None
    return None


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
