"""The files of a linearstore's partitions: taken ones and unused ones (formats/qls/README.md, 3.4).

A journal's directory holds links to the files that it took, and the links are absolute: on another machine, or in a
copy, they point nowhere or, worse, into another store. So a link's file is looked up by its name, which is a UUID,
among the taken files of the store itself.

A crash between taking a file and linking it, or between removing a link and giving the file back, leaves a taken file
that no journal links. A file that was written to and belongs in the middle or at the end of its journal's line is
different: its link was lost.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qstore.formats.qls.file_header import FILE_HEADER_SIZE
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk

PARTITION_NAME: Final = re.compile(r"p[0-9]{3}")
_POOL_NAME: Final = re.compile(r"(?P<kib>[0-9]{1,9})k")
_FILE_NAME: Final = re.compile(r".{36}\.jrnl", re.DOTALL)
KIB: Final = 1024


def linear_file_names(names: Iterable[str]) -> list[str]:
    """The names in a directory that a linearstore takes for journal files."""
    return [name for name in names if _FILE_NAME.fullmatch(name)]


def pool_data_size(path: str) -> int | None:
    """Bytes of data area of a taken file according to its pool's directory name; None if it is not in a pool."""
    directory, _, in_use = posixpath.dirname(path).rpartition("/")
    found = _POOL_NAME.fullmatch(posixpath.basename(directory)) if in_use == "in_use" else None
    return None if found is None else int(found["kib"]) * KIB


class PooledFile(NamedTuple):
    """A file of a pool.

    Attributes:
        path: where it is.
        partition: number of its partition.
        file_size: size in bytes according to its pool's directory name.
    """

    path: str
    partition: int
    file_size: int


@dataclass(slots=True)
class FilePool:
    """The files of a store's partitions, by name.

    Attributes:
        taken: those in the `in_use` directories.
        linked: the names of those that a journal's directory links to, or holds itself.
        waiting: the unused files in the pools.
        returned: those being returned to a pool.
        damage: directories that could not be listed.
    """

    taken: dict[str, PooledFile] = field(default_factory=dict)
    linked: set[str] = field(default_factory=set)
    waiting: list[PooledFile] = field(default_factory=list)
    returned: list[PooledFile] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


def read_file_pool(disk: Disk, root: str) -> FilePool:
    """List the partitions of the linearstore whose directory is `root`; no file is opened."""
    pool = FilePool()
    for partition in _names(disk, root, pool):
        if not PARTITION_NAME.fullmatch(partition) or not _is_directory(disk, posixpath.join(root, partition), pool):
            continue
        above = posixpath.join(root, partition, "efp")
        for size in _names(disk, above, pool) if _is_directory(disk, above, pool) else ():
            found = _POOL_NAME.fullmatch(size)
            if found is not None:
                file_size = int(found["kib"]) * KIB + FILE_HEADER_SIZE
                _read_one(disk, posixpath.join(above, size), int(partition[1:]), file_size, pool)
    return pool


def _read_one(disk: Disk, directory: str, partition: int, file_size: int, pool: FilePool) -> None:
    def files(below: str) -> Iterator[tuple[str, PooledFile]]:
        where = posixpath.join(directory, below) if below else directory
        if _is_directory(disk, where, pool):
            for name in linear_file_names(_names(disk, where, pool)):
                yield name, PooledFile(posixpath.join(where, name), partition, file_size)

    pool.waiting.extend(file for _, file in files(""))
    pool.returned.extend(file for _, file in files("returned"))
    for name, file in files("in_use"):
        first = pool.taken.setdefault(name, file)
        if first is not file:
            kind, partition = DamageKind.POOL_FILE_TWICE, first.partition
            pool.damage.append(Damage(file.path, None, None, kind, partition=partition))


def _is_directory(disk: Disk, path: str, pool: FilePool) -> bool:
    try:
        return disk.is_directory(path)
    except OSError as error:
        kind, effect = DamageKind.PATH_UNREADABLE, Effect.POOL_FILES_NOT_FOUND
        pool.damage.append(Damage(path, None, None, kind, effect, reason=error.strerror))
        return False


def _names(disk: Disk, directory: str, pool: FilePool) -> list[str]:
    try:
        return disk.names(directory)
    except OSError as error:
        kind, effect = DamageKind.DIRECTORY_UNREADABLE, Effect.POOL_FILES_NOT_FOUND
        pool.damage.append(Damage(directory, None, None, kind, effect, reason=error.strerror))
        return []
