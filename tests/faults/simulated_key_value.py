"""A `KeyValue` on a simulated disk: atomic synced batches that share the disk's crashes and kills.

The content belongs to a directory of the disk, so it follows that when it is renamed and is gone with it. As RocksDB
does, a database has a file `CURRENT`, without which it is none. What `write` returned from, and a new database that
`open` returned, no crash takes away; a batch during which the process dies is there wholly or not at all. (The
directory above is as durable as it is: a database goes with it.)

A batch that fails may be found by the next `open`, or not. Until then reads see the database without it, and nothing
more is written, as with RocksDB after a failure of its log.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from functools import partial

from qstore.store.key_value import CatalogueDamagedError, CatalogueError, MapDamage
from tests.faults.simulated_disk import Folder, Inode, SimulatedDisk, Tree, Twins


class SimulatedKeyValue:
    """A map on a `SimulatedDisk`; see `open`."""

    def __init__(self, disk: SimulatedDisk, path: str, folder: Folder) -> None:
        assert folder.database is not None
        self.damage: tuple[MapDamage, ...] = ()
        self._disk = disk
        self._life = disk.life
        self._held = disk.held
        self._path = path
        self._folder = folder
        self._seen = folder.database.copy()
        self._failed = ""
        self._closed = False
        disk.held.add(folder)

    @classmethod
    def open(cls, disk: SimulatedDisk, path: str | os.PathLike[str], *, create: bool = False) -> SimulatedKeyValue:
        """Open the database in the directory `path`, or make a new one there.

        Raises:
            CatalogueDamagedError: there is none.
            CatalogueError: it is open already, or with `create` there is one.
        """
        path = os.fspath(path)
        disk.check_alive(disk.life)
        if create:
            _create(disk, path)
        folder = disk.tree.find(path)
        if not isinstance(folder, Folder) or folder.database is None or "CURRENT" not in folder.entries:
            raise CatalogueDamagedError(f"{path}: not a RocksDB database: the file CURRENT is missing")
        if folder in disk.held:
            raise CatalogueError(f"{path}: RocksDB cannot open it: IO error: lock hold by current process")
        return cls(disk, path, folder)

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`, None where there is none."""
        self._check_open("read")
        return self._seen.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order, as they are at the time of this call."""
        self._check_open("read")
        return iter(sorted((key, value) for key, value in self._seen.items() if key.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, or delete it where that is None: all or nothing, on the disk at return."""
        self._check_open("write")
        if self._failed:
            raise CatalogueError(self._failed)
        perhaps = partial(_perhaps_written, folder=self._folder, changes=dict(changes))
        code = self._disk.call("batch", self._path, perhaps)
        if code:
            perhaps(self._disk.tree, {}, self._disk.rng)
            self._failed = f"{self._path}: RocksDB cannot write: IO error: {os.strerror(code)}"
            raise CatalogueError(self._failed)
        assert self._folder.database is not None
        for content in (self._seen, self._folder.database):
            _apply(content, changes)

    def checkpoint(self, directory: str) -> None:
        """Make a copy of the map as it is, in a new directory. It is durable but for the directory's name."""
        self._check_open("make a copy")
        try:
            self._disk.tree.free_place(directory)
        except OSError as error:
            raise CatalogueError(f"{self._path}: RocksDB cannot create a copy in {directory}: {error}") from error
        partly = partial(_part_of_checkpoint, path=directory, content=self._seen.copy())
        code = self._disk.call("checkpoint", directory, partly)
        if code:
            _part_of_checkpoint(self._disk.tree, {}, self._disk.rng, directory, None)
            what = f"RocksDB cannot create a copy in {directory}: IO error: {os.strerror(code)}"
            raise CatalogueError(f"{self._path}: {what}")
        _make_checkpoint(self._disk.tree, directory, self._seen.copy())

    def close(self) -> None:
        """Let it go. Twice is allowed, and so it is when the process is dead."""
        if not self._closed:
            self._closed = True
            self._held.discard(self._folder)

    def _check_open(self, deed: str) -> None:
        self._disk.check_alive(self._life)
        if self._closed:
            raise CatalogueError(f"{self._path}: RocksDB cannot {deed}: the database is closed")


def _create(disk: SimulatedDisk, path: str) -> None:
    found = disk.tree.find(path)
    if isinstance(found, Inode) or (isinstance(found, Folder) and "CURRENT" in found.entries):
        raise CatalogueError(f"{path}: RocksDB cannot open it: Invalid argument: exists (error_if_exists is true)")
    try:
        disk.tree.place(path)
    except OSError as error:
        raise CatalogueError(f"{path}: RocksDB cannot open it: IO error: {error.strerror}") from error
    code = disk.call("create database", path, partial(_part_of_database, path=path))
    if code:
        _part_of_database(disk.tree, {}, disk.rng, path)
        raise CatalogueError(f"{path}: RocksDB cannot open it: IO error: {os.strerror(code)}")
    _make_database(disk.tree, path)


def _make_database(tree: Tree, path: str) -> None:
    _make_folder(tree, path)
    folder = tree.folder(path)
    folder.database = {}
    folder.settle("CURRENT", Inode())


def _make_folder(tree: Tree, path: str) -> None:
    parent, name = tree.place(path)
    parent.settle(name, parent.entries.get(name) or Folder())


def _part_of_database(tree: Tree, twins: Twins, rng: random.Random, path: str) -> None:
    """Nothing, a directory that is not a database yet, or all of it."""
    part = rng.randrange(3)
    if part == 1:
        _make_folder(tree, path)
    elif part == 2:
        _make_database(tree, path)


def _make_checkpoint(tree: Tree, path: str, content: dict[bytes, bytes]) -> None:
    """Its directory is renamed from one with a suffix, so it is whole where it is there."""
    tree.make_folder(path)
    folder = tree.folder(path)
    folder.database = content
    folder.settle("CURRENT", Inode())


def _part_of_checkpoint(
    tree: Tree, twins: Twins, rng: random.Random, path: str, content: dict[bytes, bytes] | None
) -> None:
    """Nothing; a directory of another name; or, if it does not fail, all of it."""
    part = rng.randrange(2 if content is None else 3)
    if part == 1 and tree.find(path + ".tmp") is None:
        tree.make_folder(path + ".tmp")
    elif part == 2 and content is not None:
        _make_checkpoint(tree, path, content)


def _perhaps_written(
    tree: Tree, twins: Twins, rng: random.Random, folder: Folder, changes: Mapping[bytes, bytes | None]
) -> None:
    there = twins.get(folder, folder)
    assert isinstance(there, Folder)
    if rng.random() < 0.5 and there.database is not None:
        _apply(there.database, changes)


def _apply(content: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
