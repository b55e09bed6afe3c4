"""The tree of a simulated disk: directories and files by path, the space they take, and what a power loss leaves.

Nothing here knows of processes. Methods that change something are whole steps; who checks beforehand that a step is
allowed, or does only a part of it, is `simulated_disk`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from functools import lru_cache
from typing import NoReturn

from tests.faults.volatile import Folder, Inode, Node, Twins


class Tree:
    """What is on the disk, and in the page cache before it.

    Args:
        capacity: bytes that all files together may have.
        sector: bytes that the drive writes at once.
        powersafe: see `Inode.lose`.

    Attributes:
        used: bytes that all files together have.
    """

    def __init__(self, capacity: int, sector: int, *, powersafe: bool) -> None:
        self.capacity = capacity
        self.sector = sector
        self.powersafe = powersafe
        self.used = 0
        self._root = Folder()
        self._changes = 0

    # ---- finding ----

    def node(self, path: str) -> Node:
        """What is at `path`. Raises OSError."""
        node: Node = self._root
        for part in parts(path):
            if not isinstance(node, Folder):
                refuse(errno.ENOTDIR, path)
            if part not in node.entries:
                refuse(errno.ENOENT, path)
            node = node.entries[part]
        return node

    def find(self, path: str) -> Node | None:
        """What is at `path`, if anything."""
        try:
            return self.node(path)
        except OSError:
            return None

    def inode(self, path: str) -> Inode:
        """The file at `path`. Raises OSError."""
        node = self.node(path)
        if not isinstance(node, Inode):
            refuse(errno.EISDIR, path)
        return node

    def folder(self, path: str) -> Folder:
        """The directory at `path`. Raises OSError."""
        node = self.node(path)
        if not isinstance(node, Folder):
            refuse(errno.ENOTDIR, path)
        return node

    def place(self, path: str) -> tuple[Folder, str]:
        """The directory that `path` is in, and its name there, whether it exists or not. Raises OSError."""
        names = parts(path)
        if not names:
            refuse(errno.EBUSY, path)
        parent: Node = self._root
        for name in names[:-1]:
            if not isinstance(parent, Folder):
                refuse(errno.ENOTDIR, path)
            if name not in parent.entries:
                refuse(errno.ENOENT, path)
            parent = parent.entries[name]
        if not isinstance(parent, Folder):
            refuse(errno.ENOTDIR, path)
        return parent, names[-1]

    def free_place(self, path: str) -> tuple[Folder, str]:
        """The same where nothing is yet. Raises FileExistsError, OSError."""
        if not parts(path):
            refuse(errno.EEXIST, path)
        parent, name = self.place(path)
        if name in parent.entries:
            refuse(errno.EEXIST, path)
        return parent, name

    # ---- changing ----

    def make_file(self, path: str, size: int) -> Inode:
        """A new file of `size` zero bytes."""
        inode = Inode(size)
        self._set(path, inode)
        self.used += size
        return inode

    def make_folder(self, path: str) -> None:
        """A new directory."""
        self._set(path, Folder())

    def remove(self, path: str) -> None:
        """Remove the file or directory at `path`."""
        self._free(self.node(path))
        self._set(path, None)

    def rename(self, source: str, target: str) -> None:
        """Move what is at `source`, replacing what is at `target`: one change, in one directory or two."""
        moved = self.node(source)
        from_parent, from_name = self.place(source)
        to_parent, to_name = self.place(target)
        self._free(to_parent.entries.get(to_name))
        self._changes += 1
        if from_parent is to_parent:
            from_parent.change(self._changes, {from_name: None, to_name: moved})
        else:
            to_parent.change(self._changes, {to_name: moved})
            from_parent.change(self._changes, {from_name: None})

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        """Write to a file for which there is room."""
        before = len(inode.content)
        inode.write(offset, data)
        self.used += len(inode.content) - before

    def room(self, inode: Inode, offset: int, length: int) -> int:
        """How many of `length` bytes at `offset` fit on the disk."""
        grows = max(0, offset + length - len(inode.content))
        return max(0, length - max(0, grows - (self.capacity - self.used)))

    def _set(self, path: str, node: Node | None) -> None:
        parent, name = self.place(path)
        self._changes += 1
        parent.change(self._changes, {name: node})

    def _free(self, node: Node | None) -> None:
        if isinstance(node, Inode):
            self.used -= len(node.content)

    # ---- crashing and copying ----

    def lose(self, rng: random.Random) -> None:
        """The power is gone: what is not synced is there or not."""
        kept: dict[int, bool] = {}
        self._root.lose(rng, kept)
        seen: set[Node] = {self._root}
        folders, self.used = [self._root], 0
        for folder in folders:
            for name, node in list(folder.entries.items()):
                if isinstance(node, Inode):
                    if node not in seen:
                        node.lose(rng, self.sector, powersafe=self.powersafe)
                        self.used += len(node.content)
                elif node in seen:  # both ends of a move: a directory has one name, unlike a file
                    del folder.entries[name], folder.durable[name]
                else:
                    node.lose(rng, kept)
                    folders.append(node)
                seen.add(node)

    def copy(self, twins: Twins) -> Tree:
        """The same tree, to go another way. `twins`: original -> copy."""
        twin = Tree(self.capacity, self.sector, powersafe=self.powersafe)
        twin._root, twin._changes, twin.used = self._root.copy(twins), self._changes, self.used
        return twin


@lru_cache(maxsize=4096)
def parts(path: str) -> tuple[str, ...]:
    """The names in a path, from the root."""
    return tuple(name for name in posixpath.normpath(posixpath.join("/", path)).split("/") if name)


def refuse(code: int, path: str) -> NoReturn:
    """Raise the OSError of that errno."""
    raise OSError(code, os.strerror(code), path)
