"""A `WritableDisk` in memory that crashes: what a process, a kernel and a drive may do to a store, under a seed.

What is written is volatile until it is synced; `volatile` says how.

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
    disk.watch = lambda call: ...         is told of each call before it is made; `call.killed(seed, power_loss=...)` is
                                          the disk that the next life finds if the process dies during this one. The
                                          process itself goes on: one run visits every kill point

The same seed and the same calls give the same end.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tests.faults.tree import Tree, parts, refuse
from tests.faults.volatile import Folder, Inode, Node, Twins

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
        """A bit of a file goes bad, on the drive and for whoever reads."""
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

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, for every other page of the file: those are in memory."""
        self._check_open()
        return None if offset >> 12 & 1 else self.read(offset, length)

    def read_ahead(self, offset: int, length: int) -> None:
        """Which are in memory does not change."""
        self._check_open()

    def fill_ahead(self, offset: int) -> bool:
        """No content changes, but it is worth a sync."""
        self._check_open()
        return True

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

    def release(self) -> None:
        """Let it go. Twice is allowed, and so it is when the process is dead."""
        if not self._released:
            self._released = True
            self._held.discard(self._inode)
