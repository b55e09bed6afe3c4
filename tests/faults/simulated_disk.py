"""A `WritableDisk` in memory that crashes: what a process, a kernel and a drive may do to a store, under a seed.

What is written is volatile until it is synced:

    SIGKILL       the process is gone: every call that had returned is kept, and of one that had not, any part
    power loss    besides, of each sector that was written since the last sync of its file any version may be found, or
                  a torn one; and any of the changes to a directory since its last sync may be missing. What was written
                  before a SIGKILL and never synced is as volatile in the next life
    failed sync   the error is told once; which sectors reached the drive is anybody's guess, and what did not is gone
                  from memory too. The next sync succeeds
    full, or bad  a write fails, perhaps after a beginning of it was written. From the call `full_from` on all that
                  might need room fail, until it is set to None: only removing goes on

Calls that change something are counted, from 0: `create`, `lock` where it makes the file, `write`, `sync` (or
`finish_sync`), `make_directory`, `rename`, `remove`, `remove_directory`, `sync_directory`, and the batches of a
`SimulatedKeyValue`. One that is refused for its arguments is not. There are two ways to die at each of them:

    disk.kill_at = 7                      the process dies during call 7, by `Killed`, and so does each call after it,
                                          reading too, until `crash` begins a new life. (Closing a file, or letting go
                                          of a lock, stays allowed: `finally` blocks run.)
    disk.watch = lambda call: ...         sees each call before it is made; `call.killed(seed, power_loss=...)` is
                                          the disk that the next life finds if the process dies during this one. The
                                          process itself goes on: one run visits every kill point

The same seed and the same calls give the same end.

A file (`Inode`) has the content that reads see, the durable content, and the writes that lie between, oldest first.
Syncing applies those writes to the durable content. Only a power loss, or a sync that fails, looks at sectors: the
versions of a sector are what stood there durably, and what stood there after each of the writes that touched it.

A directory (`Folder`) likewise has its entries, its durable entries, and the changes between. A change sets or clears a
few names at once; the two halves of a rename from one directory to another bear the same number, and have the same fate
as long as neither directory is synced.

Copies share the bytes until one side writes.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Final, NamedTuple, NoReturn, TypeAlias

from qstore.store.disk import SyncGroup, WritableFile

Node: TypeAlias = "Inode | Folder"
Twins: TypeAlias = "dict[Node, Node]"


class Unsynced(NamedTuple):
    """A write that is not synced; one without data, where a file was allocated up to `offset`."""

    offset: int
    data: bytes


def _apply(content: bytearray, write: Unsynced) -> None:
    end = write.offset + len(write.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[write.offset : end] = write.data


class Inode:
    """A file's bytes.

    Attributes:
        content: what reads see.
        durable: what a power loss leaves for certain, where nothing was written since the last sync.
        pending: the writes since then, oldest first.
        settled: how many writes this file ever had that are pending no more.
        failures: how many syncs of it have failed.
        number: that of no other file.
    """

    __slots__ = ("_shared", "content", "durable", "failures", "number", "pending", "settled")
    _numbers = count(1)

    def __init__(self, size: int = 0) -> None:
        self.content = bytearray(size)
        self.durable = bytearray()
        self.pending: list[Unsynced] = [Unsynced(size, b"")] if size else []
        self.settled = self.failures = 0
        self.number = next(self._numbers)
        self._shared = False

    def write(self, offset: int, data: bytes) -> None:
        """Write in memory; nothing happens where `data` is empty, as with `pwrite`."""
        if data:
            self._own()
            self.pending.append(Unsynced(offset, data))
            _apply(self.content, self.pending[-1])

    def mark(self) -> int:
        """A sync that begins now covers the writes up to this number."""
        return self.settled + len(self.pending)

    def sync(self, mark: int) -> None:
        """The writes up to `mark` are durable."""
        covered = self._covered(mark)
        if covered:
            self._own()
            for write in covered:
                _apply(self.durable, write)

    def fail(self, mark: int, rng: random.Random, sector: int) -> None:
        """A sync of the writes up to `mark` failed: each sector holds any version, and so does the memory."""
        self.failures += 1
        covered = self._covered(mark)
        versions = self._versions(covered, sector, self._touched(covered, sector))
        durable = self.durable + bytes(len(self.content) - len(self.durable))
        likely = rng.choice((0.0, 0.5, 0.9))
        for number, seen in versions.items():
            reached = rng.choice(seen[1:]) if rng.random() < likely else seen[0]
            durable[number * sector : (number + 1) * sector] = reached
        del durable[len(self.content) :]
        self.durable, self.content, self._shared = durable, bytearray(durable), False
        for write in self.pending:
            _apply(self.content, write)

    def lose(self, rng: random.Random, sector: int, *, powersafe: bool) -> None:
        """The power is gone.

        The drive had taken the writes in order up to some point; but for stray sectors, from none to all of them, that
        hold any version, or the beginning of one and the end of another. The size is that of the same point. Without
        `powersafe`, a sector that was written since its last sync may hold garbage from its first byte on.
        """
        if self.pending:
            kept = self._survivors(rng, sector, powersafe=powersafe)
            self.content, self.durable, self._shared = kept, bytearray(kept), False
            self._covered(self.mark())

    def _survivors(self, rng: random.Random, sector: int, *, powersafe: bool) -> bytearray:
        count = len(self.pending)
        cut = rng.choice((0, count, rng.randint(0, count)))
        kept = bytearray(self.durable)
        for write in self.pending[:cut]:
            _apply(kept, write)
        size = len(kept)
        touched = self._touched(self.pending, sector)
        one = 1 / max(1, len(touched))
        strays, destroyed = rng.choice((0.0, one, 0.5, 1.0)), 0.0 if powersafe else rng.choice((0.0, one, 0.2))
        kept.extend(bytes(max(0, len(self.content) - size)))
        stray = {number for number in touched if strays and rng.random() < strays}
        for number, seen in self._versions(self.pending, sector, stray).items():
            found = rng.choice(seen)
            if rng.random() < 0.3:
                tear = rng.randrange(sector)
                found = found[:tear] + rng.choice(seen)[tear:]
            kept[number * sector : (number + 1) * sector] = found
        for number in touched if destroyed else ():
            if rng.random() < destroyed:
                kept[number * sector : (number + 1) * sector] = rng.randbytes(sector)
        del kept[size:]
        return kept

    def flip(self, offset: int, bit: int) -> None:
        """A bit goes bad, on the drive and for readers."""
        self._own()
        for content in (self.content, self.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def copy(self) -> Inode:
        """The same file, to go another way."""
        twin = Inode()
        twin.content, twin.durable = self.content, self.durable
        twin.pending, twin.settled, twin.number = self.pending.copy(), self.settled, self.number
        twin.failures = self.failures
        self._shared = twin._shared = True
        return twin

    def _covered(self, mark: int) -> list[Unsynced]:
        """The pending writes up to `mark`, which are pending no more."""
        count = max(0, mark - self.settled)
        covered = self.pending[:count]
        del self.pending[:count]
        self.settled += len(covered)
        return covered

    @staticmethod
    def _touched(writes: Sequence[Unsynced], sector: int) -> list[int]:
        """The sectors that `writes` touched."""
        found: set[int] = set()
        for offset, data in writes:
            if data:
                found.update(range(offset // sector, -(-(offset + len(data)) // sector)))
        return sorted(found)

    def _versions(self, writes: Sequence[Unsynced], sector: int, wanted: Collection[int]) -> dict[int, list[bytes]]:
        """For each sector of `wanted`, what stood there durably and after each of `writes` that touched it."""
        versions: dict[int, list[bytes]] = {}
        if not wanted:
            return versions
        content = bytearray(self.durable)
        for write in writes:
            _apply(content, write)
            for number in self._touched((write,), sector):
                if number in wanted:
                    here = slice(number * sector, (number + 1) * sector)
                    before = [bytes(self.durable[here]).ljust(sector, b"\0")]
                    versions.setdefault(number, before).append(bytes(content[here]).ljust(sector, b"\0"))
        return versions

    def _own(self) -> None:
        if self._shared:
            self.content, self.durable, self._shared = bytearray(self.content), bytearray(self.durable), False


class Change(NamedTuple):
    """What one call did to a directory.

    Attributes:
        number: the same for both halves of a rename from one directory to another.
        names: name -> what bears it now; None where nothing does.
    """

    number: int
    names: dict[str, Node | None]

    def apply(self, entries: dict[str, Node]) -> None:
        """Do it to `entries`."""
        for name, node in self.names.items():
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


class Folder:
    """A directory.

    Attributes:
        entries: name -> what bears it, as the process sees it.
        durable: the same, as a power loss leaves it if it loses all of `changes`.
        changes: what was done since the last sync, oldest first.
        database: the content of the key-value map that lives here, if there is one; always durable.
    """

    __slots__ = ("changes", "database", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[Change] = []
        self.database: dict[bytes, bytes] | None = None

    def change(self, number: int, names: dict[str, Node | None]) -> None:
        """Set or clear names, in memory."""
        self.changes.append(Change(number, names))
        self.changes[-1].apply(self.entries)

    def settle(self, name: str, node: Node) -> None:
        """Set a name durably, whatever becomes of the other changes."""
        for change in self.changes:
            change.names.pop(name, None)
        self.entries[name] = self.durable[name] = node

    def sync(self) -> None:
        """The changes are durable."""
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def fail(self, rng: random.Random) -> None:
        """A sync failed: some of the changes are durable, the others never will be, and a sync hereafter succeeds."""
        likely = rng.choice((0.0, 0.5, 0.9))
        for change in self.changes:
            if rng.random() < likely:
                change.apply(self.durable)
        self.changes.clear()

    def lose(self, rng: random.Random, kept: dict[int, bool]) -> None:
        """The power is gone: any of the changes are missing. `kept` remembers what was decided, by number."""
        count = len(self.changes)
        cut, strays = rng.choice((0, count, rng.randint(0, count))), rng.choice((0.0, 1 / max(1, count), 0.5))
        for position, change in enumerate(self.changes):
            if kept.setdefault(change.number, (position < cut) != (rng.random() < strays)):
                change.apply(self.durable)
        self.changes.clear()
        self.entries = self.durable.copy()

    def copy(self, twins: Twins) -> Folder:
        """The same directory with all that is below it, to go another way. `twins`: original -> copy."""
        twin = Folder()
        twins[self] = twin
        twin.entries = {name: _copy(node, twins) for name, node in self.entries.items()}
        twin.durable = {name: _copy(node, twins) for name, node in self.durable.items()}
        for number, names in self.changes:
            copied = {name: None if node is None else _copy(node, twins) for name, node in names.items()}
            twin.changes.append(Change(number, copied))
        twin.database = None if self.database is None else self.database.copy()
        return twin


def _copy(node: Node, twins: Twins) -> Node:
    if node not in twins:
        twins[node] = node.copy(twins) if isinstance(node, Folder) else node.copy()
    return twins[node]


# ---- directories and files by path, the space they take, and what a power loss leaves ----
# Methods that change something are whole steps: `SimulatedDisk` checks beforehand whether a step is allowed, or does
# only a part of it.


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


# ---- the disk, and the process that uses it ----

SECTOR: Final = 512


# Does any part of a call, or nothing of it, on a tree: the call's own (no twins), or a copy of it (original -> copy).
Partly: TypeAlias = Callable[[Tree, Twins, random.Random], None]


def takes_or_keeps(name: str) -> bool:
    """All but removing: some file systems need room to rename and to sync, too."""
    return name not in ("remove", "remove_directory")


def takes(name: str) -> bool:
    """What needs new room on every file system: files, directories, and the catalogue's batches."""
    return name in ("create", "lock", "make_directory", "batch", "checkpoint", "create database")


class Killed(BaseException):
    """The process died during a call."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is about to be made.

    Attributes:
        disk: the disk it is made on, as it is before the call.
        number: from 0, in this life.
        name: the method.
        path: the file or directory.
        partly: what is done of it when the process dies.
    """

    disk: SimulatedDisk
    number: int
    name: str
    path: str
    partly: Partly

    def killed(self, seed: int, *, power_loss: bool) -> SimulatedDisk:
        """What the next life finds if the process dies during this call. `disk` stays as it is."""
        twins: Twins = {}
        disk = self.disk.copy(seed, twins)
        self.partly(disk.tree, twins, disk.rng)
        disk.crash(power_loss=power_loss)
        return disk


class SimulatedDisk:
    """The disk, and the process that uses it.

    Args:
        seed: decides what a crash or a failure leaves.
        capacity: bytes that all files together may have.
        sector: bytes that the drive writes at once; a tear is within one.
        powersafe: without it, a power loss may turn any sector that is not synced into garbage, even where it was only
            written again with what it had.

    Attributes:
        rng: the source of every decision.
        tree: what is on the disk.
        life: how many processes died before this one.
        calls: how many changing calls this life has made.
        kill_at: number of the call during which it dies; None to live on.
        fail_at: call -> errno with which it fails. A write does so after a beginning of it; a sync loses pages.
        full_from: number of the call from which on the disk is full (ENOSPC); None while there is room.
        needs_room: whether a call, by its name, fails then.
        read_fails: (path, sector) that cannot be read: EIO. Stays over crashes.
        watch: told of each changing call before it is made.
        log: set it to a list, and each changing call is added to it.
        open_now, max_open: files open, now and at most, in this life.
        held: what is locked.
    """

    def __init__(self, seed: int = 0, *, capacity: int = 1 << 40, sector: int = SECTOR, powersafe: bool = True) -> None:
        self.rng = random.Random(seed)
        self.tree = Tree(capacity, sector, powersafe=powersafe)
        self.life = 0
        self.read_fails: set[tuple[str, int]] = set()
        self._begin_life()

    def _begin_life(self) -> None:
        self.calls = 0
        self.kill_at: int | None = None
        self.fail_at: dict[int, int] = {}
        self.full_from: int | None = None
        self.needs_room: Callable[[str], bool] = takes_or_keeps
        self.watch: Callable[[Call], object] | None = None
        self.log: list[str] | None = None
        self.open_now = self.max_open = 0
        self.held: set[Node] = set()
        self._dead = False

    # ---- what tests do to it ----

    def crash(self, *, power_loss: bool) -> None:
        """The process is gone, and with a power loss what was not synced; the next call is that of a new process."""
        if power_loss:
            self.tree.lose(self.rng)
        self.life += 1
        self._begin_life()

    def copy(self, seed: int, twins: Twins | None = None) -> SimulatedDisk:
        """The same disk, synced or not, under another seed, with no process: as a SIGKILL leaves it."""
        disk = SimulatedDisk(seed)
        disk.tree = self.tree.copy({} if twins is None else twins)
        disk.read_fails = set(self.read_fails)
        return disk

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """A bit of a file goes bad, on the drive and for readers."""
        self.tree.inode(path).flip(offset, bit)

    # ---- the reading half of the seam ----

    def open(self, path: str) -> SimulatedFile:
        """Open the regular file at `path` for reading."""
        self.check_alive(self.life)
        node = self.tree.node(path)
        if not isinstance(node, Inode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return SimulatedFile(self, path, node)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        self.check_alive(self.life)
        return sorted(self.tree.folder(directory).entries)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        self.check_alive(self.life)
        return isinstance(self.tree.find(path), Folder)

    def is_file(self, path: str) -> bool:
        """Whether `path` is a file."""
        self.check_alive(self.life)
        return isinstance(self.tree.find(path), Inode)

    def real_path(self, path: str) -> str:
        """`path` made absolute."""
        return "/" + "/".join(parts(path))

    def link_target(self, path: str) -> str | None:
        """None: there are no links here."""
        return None

    def version(self, path: str) -> str:
        """The file's number, and how often it was written."""
        node = self.tree.find(path)
        return f"{node.number}-{node.mark()}" if isinstance(node, Inode) else ""

    # ---- the writing half ----

    def create(self, path: str, size: int) -> SimulatedWritableFile:
        """A new file of `size` zero bytes. Where there is no room, or the call fails, an empty one may stay."""
        self.check_alive(self.life)
        self.tree.free_place(path)
        code = self.call("create", path, partial(_part_of_create, path=path, size=size))
        if code or size > self.tree.capacity - self.tree.used:
            if self.rng.random() < 0.5:
                self.tree.make_file(path, 0)
            refuse(code or errno.ENOSPC, path)
        return SimulatedWritableFile(self, path, self.tree.make_file(path, size))

    def open_writable(self, path: str) -> SimulatedWritableFile:
        """Open the regular file at `path` for reading and writing."""
        self.check_alive(self.life)
        return SimulatedWritableFile(self, path, self.tree.inode(path))

    def make_directory(self, path: str) -> None:
        """A new directory."""
        self.check_alive(self.life)
        self.tree.free_place(path)
        self._change("make_directory", path, lambda tree: tree.make_folder(path))

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name; a file, or an empty directory, that has it is replaced."""
        self.check_alive(self.life)
        moved = self.tree.node(source)
        parent, name = self.tree.place(target)
        replaced = parent.entries.get(name)
        if moved is replaced:
            return
        if isinstance(moved, Folder):
            if parts(target)[: len(parts(source))] == parts(source):
                refuse(errno.EINVAL, source)
            if isinstance(replaced, Inode):
                refuse(errno.ENOTDIR, source)
        if isinstance(replaced, Folder):
            if isinstance(moved, Inode):
                refuse(errno.EISDIR, source)
            if replaced.entries:
                refuse(errno.ENOTEMPTY, source)
        self._change("rename", source, lambda tree: tree.rename(source, target))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.check_alive(self.life)
        self.tree.inode(path)
        self._change("remove", path, lambda tree: tree.remove(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self.check_alive(self.life)
        if self.tree.folder(path).entries:
            refuse(errno.ENOTEMPTY, path)
        self._change("remove_directory", path, lambda tree: tree.remove(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable as they are now."""
        self.check_alive(self.life)
        folder = self.tree.folder(path)
        code = self.call("sync_directory", path, _nothing)
        if code:
            folder.fail(self.rng)
            refuse(code, path)
        folder.sync()

    def sync_all(self, files: Sequence[WritableFile], directories: Sequence[str] = ()) -> None:
        """One after the other."""
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def sync_each(self, groups: Sequence[SyncGroup]) -> list[OSError | None]:
        """One after the other."""
        errors: list[OSError | None] = []
        for files, directories in groups:
            try:
                self.sync_all(files, directories)
            except OSError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    def sync_during(self, files: Sequence[WritableFile], work: Callable[[], None]) -> OSError | None:
        """As late as it may be; what is not synced may be on the disk before."""
        work()
        try:
            self.sync_all(files)
        except OSError as error:
            return error
        return None

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free, and in all."""
        return max(0, self.tree.capacity - self.tree.used), self.tree.capacity

    def lock(self, path: str) -> SimulatedLock:
        """Take the lock that the file at `path`, made if need be, stands for. Raises BlockingIOError if it is held."""
        self.check_alive(self.life)
        parent, name = self.tree.place(path)
        if name not in parent.entries:
            code = self.call("lock", path, partial(_part_of_create, path=path, size=0))
            if code:
                refuse(code, path)
            self.tree.make_file(path, 0)
        return SimulatedLock(self, path, self.tree.inode(path))

    # ---- what files, locks and maps need of it ----

    def check_alive(self, life: int) -> None:
        """Raise Killed if the process that called in `life` is dead."""
        if self._dead or life != self.life:
            raise Killed("the process is dead")

    def call(self, name: str, path: str, partly: Partly) -> int:
        """One more changing call: the errno with which it is to fail, or 0. Raises Killed, after some part of it."""
        if self.watch is not None:
            self.watch(Call(self, self.calls, name, path, partly))
        if self.kill_at is not None and self.calls >= self.kill_at:
            self._dead = True
            partly(self.tree, {}, self.rng)
            raise Killed(f"during call {self.calls}: {name} {path}")
        if self.log is not None:
            self.log.append(f"{name} {path}")
        self.calls += 1
        if self.full_from is not None and self.calls > self.full_from and self.needs_room(name):
            return errno.ENOSPC
        return self.fail_at.get(self.calls - 1, 0)

    def _change(self, name: str, path: str, step: Callable[[Tree], None]) -> None:
        """A step that is done or not."""
        code = self.call(name, path, partial(_perhaps, step=step))
        if code:
            refuse(code, path)
        step(self.tree)


# ---- what is done of a call during which the process dies ----


def _nothing(tree: Tree, twins: Twins, rng: random.Random) -> None:
    """What is not synced stays so, and a power loss may leave all of it."""


def _perhaps(tree: Tree, twins: Twins, rng: random.Random, step: Callable[[Tree], None]) -> None:
    if rng.random() < 0.5:
        step(tree)


def _part_of_create(tree: Tree, twins: Twins, rng: random.Random, path: str, size: int) -> None:
    allocated = rng.choice((None, 0, size))
    if allocated is not None:
        tree.make_file(path, allocated if allocated <= tree.capacity - tree.used else 0)


def _part_of_write(tree: Tree, twins: Twins, rng: random.Random, inode: Inode, offset: int, data: bytes) -> None:
    """A beginning of it, which may be none or all."""
    there = twins.get(inode, inode)
    assert isinstance(there, Inode)
    count = rng.choice((0, rng.randint(0, len(data)), len(data)))
    tree.write(there, offset, data[: min(count, tree.room(there, offset, len(data)))])


# ---- files and locks ----


class SimulatedFile:
    """An open file of a `SimulatedDisk`, to read."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._size = len(inode.content)
        self._closed = False
        disk.open_now += 1
        disk.max_open = max(disk.max_open, disk.open_now)

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened, or as this handle's writes made it."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        self._check_open()
        if self._disk.read_fails:
            sector = self._disk.tree.sector
            for number in range(offset // sector, -(-(offset + length) // sector)):
                if (self._path, number) in self._disk.read_fails:
                    refuse(errno.EIO, self._path)
        with memoryview(self._inode.content) as content:
            return bytes(content[offset : offset + length])

    def close(self) -> None:
        """Let it go. Twice is allowed, and so it is when the process is dead."""
        if not self._closed:
            self._closed = True
            if self._life == self._disk.life:
                self._disk.open_now -= 1

    def _check_open(self) -> None:
        self._disk.check_alive(self._life)
        if self._closed:
            refuse(errno.EBADF, self._path)


class SimulatedWritableFile(SimulatedFile):
    """An open file of a `SimulatedDisk`, to read and write."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        super().__init__(disk, path, inode)
        self._told = inode.failures
        self.filled = 0

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, for every other page of the file: those are in memory."""
        self._check_open()
        return None if offset >> 12 & 1 else self.read(offset, length)

    def read_ahead(self, offset: int, length: int) -> None:
        """Which are in memory does not change."""
        self._check_open()

    def fill_ahead(self, offset: int) -> bool:
        """No content changes; at every other offset it is worth a sync."""
        self._check_open()
        return bool(offset >> 9 & 1)

    def has_unsynced_outside(self, offset: int, size: int) -> bool:
        """Whether a sync that only covers these bytes would leave out others that wait for one."""
        return any(
            not offset <= write.offset <= write.offset + len(write.data) <= offset + size
            for write in self._inode.pending
        )

    def fileno(self) -> int:
        """-1: there is no descriptor."""
        return -1

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """All of `content` at `offset`, in the page cache. Where that fails a beginning may be written."""
        self._check_open()
        disk, inode, data = self._disk, self._inode, bytes(content)
        code = disk.call("write", self._path, partial(_part_of_write, inode=inode, offset=offset, data=data))
        if code:
            _part_of_write(disk.tree, {}, disk.rng, inode, offset, data)
            refuse(code, self._path)
        room = disk.tree.room(inode, offset, len(data))
        disk.tree.write(inode, offset, data[:room])
        if room < len(data):
            refuse(errno.ENOSPC, self._path)
        if data:
            self._size = max(self._size, offset + len(data))

    def write_all(self, offset: int, pieces: Sequence[bytes], size: int) -> None:
        """As `write`."""
        data = b"".join(pieces)
        assert len(data) == size
        self.write(offset, data)

    def write_synced(self, offset: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
        """As `write_all`, and then as `sync`: nothing else may wait for that."""
        data = b"".join(pieces)
        assert len(data) == size
        self.write(offset, data)
        assert not self.has_unsynced_outside(offset, size)
        self.sync()

    def sync(self) -> None:
        """Make everything written so far durable."""
        self.finish_sync(self.begin_sync())

    def begin_sync(self) -> int:
        """Begin a sync of what is written by now, by any handle. Not a call that counts: `finish_sync` is."""
        self._check_open()
        return self._inode.mark()

    def finish_sync(self, token: int) -> None:
        """What was written before the `begin_sync` that gave `token` is durable now; or lost, where this fails."""
        self._check_open()
        inode = self._inode
        code = self._disk.call("sync", self._path, _nothing)
        if code:
            inode.fail(token, self._disk.rng, self._disk.tree.sector)
            self._told = inode.failures
            refuse(code, self._path)
        inode.sync(token)
        if self._told < inode.failures:  # of a sync by another handle: each is told once (errseq_t; fsync(2))
            self._told = inode.failures
            refuse(errno.EIO, self._path)


class SimulatedLock:
    """A lock of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        if inode in disk.held:
            refuse(errno.EAGAIN, path)
        disk.held.add(inode)
        self._held: set[Node] = disk.held  # of this life: the next one has its own
        self._inode = inode
        self._released = False

    def watch(self, directory: str) -> None:
        """Nobody else moves directories."""

    def is_in_place(self) -> bool:
        """Nobody else moves directories."""
        return True

    def release(self) -> None:
        """Let it go. Twice is allowed, and so it is when the process is dead."""
        if not self._released:
            self._released = True
            self._held.discard(self._inode)
