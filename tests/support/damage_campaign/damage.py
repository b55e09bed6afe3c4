"""Random damage to a copy of a store: what a bad disk, a bad copy, a careless hand or a partial restore does.

    bit flip          one bit, mostly where something is written
    zeroed sectors    1 to 8 sectors of 512 bytes
    zeroed file       all of it
    zeroed files      all files of a directory that have anything in them
    garbage           up to 4 KiB are overwritten with random bytes
    truncated         cut off anywhere, or to nothing
    deleted           the file is gone; a linearstore's link, or the file that it leads to
    swapped           two files of the same kind have each other's content
    older file        the content that the file had at an earlier moment
    older directory   all files of the directory as they were then; what is newer is gone

What is hit is chosen by kind of file: journals, the prepared list, their info files, the catalogue (RocksDB or Berkeley
DB), and what lies beside these (STORE and so on).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from qstore.formats.rhm.geometry import SECTOR_SIZE
from qstore.tools.generate.damage import flip, patch, replace_with, resize, zero
from tests.support.damage_campaign.stores import LEGACYSTORE, LINEARSTORE, QSTORE, CampaignStore

_MAX_SECTORS: Final = 8
_MAX_GARBAGE: Final = 4096  # bytes
_ANYWHERE: Final = 0.15  # how often a place is chosen without regard to what is written there


class FileKind(StrEnum):
    """What a file is for."""

    JOURNAL = "journal"
    PREPARED_LIST = "prepared list"
    INFO = "info file"
    CATALOGUE = "catalogue"
    BESIDE = "beside"


class DamageKind(StrEnum):
    """What is done to it."""

    FLIP = "bit flip"
    SECTORS = "zeroed sectors"
    ZEROED = "zeroed file"
    ZEROED_ALL = "zeroed files"
    GARBAGE = "garbage"
    TRUNCATED = "truncated"
    DELETED = "deleted"
    SWAPPED = "swapped"
    OLDER = "older file"
    OLDER_ALL = "older directory"


class Damaged(NamedTuple):
    """What was done.

    Attributes:
        store: to a copy of this one.
        path: the copy.
        file_kind, kind: what was hit, and how.
        text: the same in words, with files and offsets.
    """

    store: CampaignStore
    path: Path
    file_kind: FileKind
    kind: DamageKind
    text: str


#: Locks, which nobody reads, and the files of RocksDB that it only writes for people to read.
_NOBODY_READS: Final = frozenset({"lock", "LOCK", "LOG", "IDENTITY", "rhm.lock"})
_SUFFIXES: Final = frozenset({".jdat", ".jrnl"})
_WEIGHTS: Final = {
    FileKind.JOURNAL: 45,
    FileKind.PREPARED_LIST: 15,
    FileKind.INFO: 8,
    FileKind.CATALOGUE: 24,
    FileKind.BESIDE: 8,
}


def kinds_of_files(store: CampaignStore) -> dict[FileKind, list[PurePosixPath]]:
    """The files and links below a store's directory, by kind; the names are relative to it."""
    found: dict[FileKind, list[PurePosixPath]] = {}
    prepared = {os.path.basename(path) for path in (store.path / "qls/tpl2").glob("*.jrnl")}
    for path in sorted(store.path.rglob("*")):
        name = PurePosixPath(path.relative_to(store.path))
        if (path.is_file() or path.is_symlink()) and not _is_unread(store.format, name):
            found.setdefault(_kind_of(store.format, name, prepared), []).append(name)
    return found


def _is_unread(format_: str, name: PurePosixPath) -> bool:
    below = {QSTORE: "rhm", LEGACYSTORE: "rhm", LINEARSTORE: "qls"}[format_]
    return name.parts[0] != below or name.name in _NOBODY_READS or name.name.startswith("LOG.old")


def _kind_of(format_: str, name: PurePosixPath, prepared: set[str]) -> FileKind:
    if name.suffix == ".jinf":
        return FileKind.INFO
    if name.suffix in _SUFFIXES:
        is_prepared = name.parts[1] in ("tpl", "tpl2") or name.name in prepared
        return FileKind.PREPARED_LIST if is_prepared else FileKind.JOURNAL
    return FileKind.CATALOGUE if name.parts[1] in ("catalogue", "dat", "dat2") else FileKind.BESIDE


def damage(store: CampaignStore, path: Path, source: random.Random) -> Damaged:
    """Copy a store to `path`, and damage the copy."""
    shutil.copytree(store.path, path, copy_function=os.link, symlinks=True)
    files = kinds_of_files(store)
    kinds = [kind for kind in FileKind if kind in files]
    file_kind = source.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
    possible = [kind for kind in DamageKind if store.older or kind not in (DamageKind.OLDER, DamageKind.OLDER_ALL)]
    while True:  # some files cannot have some damage: an empty one no flipped bit
        kind, name = source.choice(possible), source.choice(files[file_kind])
        text = _Hand(store, path, source, files[file_kind]).do(kind, name)
        if text is not None:
            return Damaged(store, path, file_kind, kind, text)


class _Hand:
    """Does the damage. Each way gives what it did in words, or None if it cannot be done to that file."""

    def __init__(
        self, store: CampaignStore, path: Path, source: random.Random, same_kind: Sequence[PurePosixPath]
    ) -> None:
        self._store, self._path, self._source, self._same_kind = store, path, source, same_kind

    def do(self, kind: DamageKind, name: PurePosixPath) -> str | None:
        """That damage to that file."""
        if (self._path / name).is_symlink() and kind is not DamageKind.DELETED:
            return None
        ways: dict[DamageKind, Callable[[PurePosixPath], str | None]] = {
            DamageKind.FLIP: self._flip,
            DamageKind.SECTORS: self._zero_sectors,
            DamageKind.ZEROED: self._zero,
            DamageKind.ZEROED_ALL: self._zero_all,
            DamageKind.GARBAGE: self._overwrite,
            DamageKind.TRUNCATED: self._truncate,
            DamageKind.DELETED: self._delete,
            DamageKind.SWAPPED: self._swap,
            DamageKind.OLDER: self._go_back,
            DamageKind.OLDER_ALL: self._all_go_back,
        }
        return ways[kind](name)

    def _own(self, name: PurePosixPath) -> Path:
        """The path of a file that is this copy's alone."""
        path = self._path / name
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        return path

    def _offset(self, name: PurePosixPath) -> int:
        """A place in a file, mostly where it is not all zeros."""
        content = (self._path / name).read_bytes()
        sectors = range(0, len(content), SECTOR_SIZE)
        written = [each for each in sectors if content[each : each + SECTOR_SIZE].strip(b"\0")]
        if not written or self._source.random() < _ANYWHERE:
            return self._source.randrange(len(content))
        sector = self._source.choice(written)
        return sector + self._source.randrange(min(SECTOR_SIZE, len(content) - sector))

    def _size(self, name: PurePosixPath) -> int:
        return (self._path / name).stat().st_size

    def _flip(self, name: PurePosixPath) -> str | None:
        if not self._size(name):
            return None
        offset, bit = self._offset(name), self._source.randrange(8)
        flip(self._own(name), offset, 1 << bit)
        return f"{name}: bit {bit} of 0x{offset:x} is flipped"

    def _zero_sectors(self, name: PurePosixPath) -> str | None:
        if not self._size(name):
            return None
        offset = self._offset(name) // SECTOR_SIZE * SECTOR_SIZE
        count = self._source.randint(1, _MAX_SECTORS)
        zero(self._own(name), offset, count * SECTOR_SIZE)
        return f"{name}: {count} sectors from 0x{offset:x} on are zeroed"

    def _zero(self, name: PurePosixPath) -> str | None:
        if not self._size(name):
            return None
        zero(self._own(name), 0, self._size(name))
        return f"{name}: zeroed"

    def _zero_all(self, name: PurePosixPath) -> str | None:
        names = self._neighbours(name)
        for each in names:
            zero(self._own(each), 0, self._size(each))
        return f"{name.parent}: all {len(names)} files are zeroed"

    def _neighbours(self, name: PurePosixPath) -> list[PurePosixPath]:
        """The files of one journal or catalogue."""
        here = [each for each in self._same_kind if each.parent == name.parent]
        return [each for each in here if not (self._path / each).is_symlink()]

    def _overwrite(self, name: PurePosixPath) -> str | None:
        if not self._size(name):
            return None
        offset = self._offset(name)
        count = min(self._source.randint(1, _MAX_GARBAGE), self._size(name) - offset)
        patch(self._own(name), offset, self._source.randbytes(count))
        return f"{name}: {count} random bytes from 0x{offset:x} on"

    def _truncate(self, name: PurePosixPath) -> str | None:
        if not self._size(name):
            return None
        size = self._source.choice((0, self._offset(name), self._offset(name) // SECTOR_SIZE * SECTOR_SIZE))
        resize(self._own(name), size)
        return f"{name}: truncated to {size} bytes"

    def _delete(self, name: PurePosixPath) -> str:
        (self._path / name).unlink()
        return f"{name}: deleted"

    def _swap(self, name: PurePosixPath) -> str | None:
        content = (self._path / name).read_bytes()
        others = [
            each
            for each in self._same_kind
            if not (self._path / each).is_symlink() and (self._path / each).read_bytes() != content
        ]
        if not others:
            return None
        other = self._source.choice(others)
        one, two = self._own(name), self._own(other)
        content = one.read_bytes()
        replace_with(one, two)
        two.write_bytes(content)
        return f"{name} and {other}: swapped"

    def _go_back(self, name: PurePosixPath) -> str | None:
        older = self._source.choice(self._store.older)
        if not (older / name).is_file() or (older / name).read_bytes() == (self._path / name).read_bytes():
            return None
        replace_with(self._own(name), older / name)
        return f"{name}: as it was at the moment {older.name}"

    def _all_go_back(self, name: PurePosixPath) -> str | None:
        older = self._source.choice(self._store.older)
        if not (older / name.parent).is_dir():
            return None
        for each in self._neighbours(name):
            (self._path / each).unlink()
        for file in (older / name.parent).iterdir():
            if file.is_file() and not os.path.lexists(self._path / name.parent / file.name):
                shutil.copyfile(file, self._path / name.parent / file.name)
        return f"{name.parent}: as it was at the moment {older.name}"
