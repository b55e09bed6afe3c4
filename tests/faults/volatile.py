"""What a file and a directory are while they are not synced, and what a crash makes of them.

A file has the content that reads see, the durable content, and the writes that lie between, oldest first. Syncing
applies those writes to the durable content. Only a power loss, or a sync that fails, looks at sectors: the versions of
a sector are what stood there durably, and what stood there after each of the writes that touched it.

A directory likewise has its entries, its durable entries, and the changes between. A change sets or clears a few names
at once; the two halves of a rename from one directory to another bear the same number, and have the same fate as long
as neither directory is synced.

Copies share the bytes until one side writes.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

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
        """A bit goes bad, on the drive and for whoever reads."""
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
