"""What a backup is made of: a tree of files, read in pieces, by several threads.

`stopped` and `running` find it in a store that is not running, and in the snapshot of one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from qstore.store.backup.manifest import BackupLink

#: Reads bytes of an open file: (offset, number). Raises OSError, StoreError.
Read: TypeAlias = Callable[[int, int], bytes]


class SourceFile(NamedTuple):
    """A file.

    Attributes:
        path: its path below the root.
        size: its bytes.
        open: opens it; raises OSError.
        mark: with the same path, mark and version it is the same as in an earlier backup; empty if nothing tells that.
        version: see `store.disk.Disk.version`; empty for a file that is read in any case.
    """

    path: str
    size: int
    open: Callable[[], AbstractContextManager[Read]]
    mark: str = ""
    version: str = ""


class SourceJournal(NamedTuple):
    """The data files of one journal, or any other files.

    Attributes:
        key: number of its directory (0: the prepared list), incarnation and last flush, if it is known that it has the
            same content as in an earlier backup with these numbers and the same versions of its files; None if not.
        files: its files.
        queue_id: the number of its queue, if the store is running (0: the prepared list); None for other files.
    """

    key: tuple[int, int, int] | None
    files: Sequence[SourceFile]
    queue_id: int | None = None


class Source(Protocol):
    """A store at one moment.

    Attributes:
        store, kind, root: as of a `Manifest`.
        is_live: whether the store is running.
        directories: those below the root, each after the one that it is in.
        links: the symbolic links.
        size: bytes of all files.
    """

    store: str
    kind: str
    root: str
    is_live: bool
    directories: list[str]
    links: list[BackupLink]
    size: int

    def parts(self) -> Iterable[SourceJournal]:
        """All files, in the order in which they are to be read. Raises StoreError, OSError."""

    def was_read(self, part: SourceJournal) -> None:
        """All files of a part were read, and none of it is needed any more. Raises StoreError, OSError."""

    def alive(self) -> None:
        """The backup is still being made: called at least every few seconds. Raises StoreError."""

    def is_confirmed(self, part: SourceJournal) -> bool:
        """Whether what was read of it is known to be right, even if the source turns out to be overtaken."""

    def check(self) -> None:
        """Everything was read. Raises StoreError if it was not a store at one moment."""
