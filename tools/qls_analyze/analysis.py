"""One run of `qpid-qls-analyze`: everything in the order in which it is printed."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from qstore.store.disk import Disk
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_journals
from qstore.store.journal.line.pool import PARTITION_NAME, FilePool, read_file_pool
from qstore.tools.qls_analyze.files import read_files
from qstore.tools.qls_analyze.journal import Journal
from qstore.tools.qls_analyze.pools import pool_lines, read_partitions
from qstore.tools.qls_analyze.problems import Problems
from qstore.tools.qls_analyze.reconciliation import reconciliation_lines, resolve
from qstore.tools.qls_analyze.show import Show
from qstore.tools.qls_analyze.walk import WalkError

#: Takes text for standard output.
Write: TypeAlias = Callable[[str], object]

_PREPARED_LIST: Final = "tpl2"
_JOURNALS: Final = "jrnl2"
_PARTS: Final = (_JOURNALS, _PREPARED_LIST, "dat2")


class OutputError(Exception):
    """Standard output cannot be written to."""


def is_store(disk: Disk, root: str) -> bool:
    """Whether `root` is the `qls` directory of a store. Raises OSError if it cannot be read."""
    if not disk.is_directory(root):
        return False
    names = [name for name in disk.names(root) if name in _PARTS or PARTITION_NAME.fullmatch(name)]
    return any(disk.is_directory(posixpath.join(root, name)) for name in names)


class Analysis:
    """Runs one analysis.

    Args:
        disk: where to read.
        write: takes standard output.
        show: what is shown.
        problems: collects problems.
    """

    def __init__(self, disk: Disk, write: Write, show: Show, problems: Problems) -> None:
        self._disk = disk
        self._write = write
        self._show = show
        self._problems = problems

    def run(self, root: str) -> None:
        """Analyse the store whose `qls` directory is `root`, an absolute path.

        Raises:
            OutputError: standard output cannot be written to.
        """
        partitions, warnings = read_partitions(self._disk, root, self._problems) if self._show.pools else ([], [])
        self._print(warnings, root)
        prepared_list, queues = self._journals(root)
        journals = queues if prepared_list is None else [prepared_list, *queues]
        for journal in journals:
            self._recover(journal)
        self._print(pool_lines(partitions) if self._show.pools else [""], root)
        self._print(reconciliation_lines(prepared_list, queues), root)
        if self._show.resolved:
            resolve(prepared_list, queues)
        for journal in journals:
            self._print(journal.report(), journal.name)
            journal.close()

    # ---- journals ----

    def _journals(self, root: str) -> tuple[Journal | None, list[Journal]]:
        """The prepared list, if there is one, and the queues' journals; their files' headers are read."""
        pool, layout = FilePool(), StoreLayout(StoreKind.LINEAR, root)
        try:
            pool = read_file_pool(self._disk, root)
        except OSError as error:
            self._problems.add_os_error(error, root)
        try:
            if self._disk.is_directory(posixpath.join(root, _JOURNALS)):
                find_journals(self._disk, posixpath.join(root, _JOURNALS), layout)
        except OSError as error:
            self._problems.add_os_error(error, root)
        for damage in (*pool.damage, *layout.damage):
            self._problems.add(damage.file, damage.what)

        def journal(name: str, directory: str, *, is_prepared_list: bool) -> Journal:
            files = read_files(self._disk, directory, pool.taken, self._problems)
            return Journal(
                self._disk, name, files, is_prepared_list=is_prepared_list, show=self._show, problems=self._problems
            )

        directory = posixpath.join(root, _PREPARED_LIST)
        prepared_list = None
        if self._disk.is_directory(directory):
            prepared_list = journal(_PREPARED_LIST, directory, is_prepared_list=True)
        return prepared_list, [
            journal(place.name, place.directory, is_prepared_list=False) for place in layout.journals
        ]

    def _recover(self, journal: Journal) -> None:
        self._text(f"Recovering {journal.name}... ")
        for line in journal.recover():
            self._text(f"{line}\n")
        self._text("done\n\n" if self._show.walked else "done\n")
        journal.close()

    # ---- output ----

    def _print(self, lines: Iterable[str], where: str) -> None:
        """Print lines; if they end because a journal cannot be read any more, that is noted."""
        for line in self._guarded(lines, where):
            self._text(f"{line}\n")

    def _guarded(self, lines: Iterable[str], where: str) -> Iterator[str]:
        try:
            yield from lines
        except WalkError as error:
            self._problems.add(error.where, error.what)
        except OSError as error:
            self._problems.add_os_error(error, where)

    def _text(self, text: str) -> None:
        try:
            self._write(text)
        except OSError as error:
            raise OutputError(error.strerror or str(error)) from error
