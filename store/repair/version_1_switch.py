"""Lets a journal of version 1 that was built anew, and the old one, change places (`version_1_resize` builds it).

Each file that stands in the way of another is moved first:

    1. the old files go where they are kept; the old info file, with its new place in it, is written there, and removed
       here last
    2. the new files come, the info file last

A crash within that leaves no journal under its own name, but both of them whole: the new one in `_resize.new`, or with
some files here already, and the old one in part here and in part where it is to be kept. What reads stores then has the
new one (`journal.directory`). The next run, with the same options, moves the old files back as long as the old info
file is here, and otherwise the new ones on (`settle`); so does a run that the disk stops, as far as it can.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from formats.rhm.errors import RhmError
from formats.rhm.geometry import Geometry
from formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf
from store.catalogue.store_directory import remove_tree
from store.disk import read_whole
from store.errors import StoreError
from store.journal.directory import DATA_SUFFIX, INFO_SUFFIX, RESIZING, data_path
from store.writable_disk import WritableDisk, write_new


class Target(NamedTuple):
    """Where everything goes.

    Attributes:
        directory: the journal's, as it was typed.
        kept: the directory in which the old files are kept: one in it, or itself.
        old_base, new_base, kept_base: base names: of the journal now, of the new one, of the old one where it is kept.
    """

    directory: str
    kept: str
    old_base: str
    new_base: str
    kept_base: str

    @property
    def building(self) -> str:
        """The directory in which the new journal is built."""
        return posixpath.join(self.directory, RESIZING)

    @property
    def stays(self) -> bool:
        """Whether the old files stay as they are."""
        return self.kept == self.directory and self.kept_base == self.old_base


def settle(disk: WritableDisk, target: Target) -> Geometry | None:
    """Undo, or finish, what an earlier run to the same target left when it was cut short.

    Returns:
        The geometry of the new journal, if it is in its place now and was not before.

    Raises:
        OSError: the disk does not do it.
    """
    directory = target.directory
    if not disk.is_directory(target.building):
        return None
    if _is_complete(disk, directory, target.old_base):
        made = data_path(directory, target.new_base, 0)
        if not target.stays:
            made = posixpath.join(directory, target.kept_base + INFO_SUFFIX)
        is_moved = target.kept == directory and disk.is_file(made)
        return _finish(disk, target) if is_moved else None
    if disk.is_file(posixpath.join(directory, target.old_base + INFO_SUFFIX)):
        _put_back(disk, target)
        return None
    return _finish(disk, target)


def _put_back(disk: WritableDisk, target: Target) -> None:
    """Move the old files back that are where they are kept, if that makes the old journal whole. Raises OSError."""
    info = _info(disk, target.directory, target.old_base)
    if info is None:
        return
    pairs = [
        (data_path(target.kept, target.kept_base, number), data_path(target.directory, target.old_base, number))
        for number in range(info.geometry.files)
    ]
    if not all(disk.is_file(kept) or disk.is_file(here) for kept, here in pairs):
        return
    for kept, here in pairs:
        if not disk.is_file(here):
            disk.rename(kept, here)
        elif disk.is_file(kept):  # the same file: a power loss can leave both names
            disk.remove(kept)
    disk.sync_directory(target.directory)
    kept_info = posixpath.join(target.kept, target.kept_base + INFO_SUFFIX)
    if disk.is_file(kept_info):
        disk.remove(kept_info)
    disk.sync_directory(target.kept)


def _finish(disk: WritableDisk, target: Target) -> Geometry | None:
    """Move the new files that are still where they were built, if the new journal is whole then. Raises OSError.

    Returns:
        The new journal's geometry; None if it cannot be made whole.
    """
    info = _info(disk, target.building, target.new_base) or _info(disk, target.directory, target.new_base)
    if info is None:
        return None
    places = [
        [data_path(where, target.new_base, number) for where in (target.building, target.directory)]
        for number in range(info.geometry.files)
    ]
    if not all(disk.is_file(new) or disk.is_file(here) for new, here in places):
        return None
    _bring(disk, info.geometry, target)
    return info.geometry


def check_place(disk: WritableDisk, target: Target) -> None:
    """Remove the beginning that an earlier run left.

    Raises:
        StoreError: it was cut short while it moved files; or files of the names that are to be made are there.
    """
    building = target.building
    if disk.is_directory(building):
        if not _is_complete(disk, target.directory, target.old_base):
            raise StoreError(
                f"{building}: an earlier run was cut short while it moved files; the new journal's are in {building}, "
                f"or in {target.directory} already, and the old one's there or in {target.kept}: move those of the new "
                f"one into {target.directory}, the .jinf file last, and remove {building}"
            )
        remove_tree(disk, building)
    made = {target.new_base} if target.new_base != target.old_base else set()
    if target.kept == target.directory and not target.stays:
        made.add(target.kept_base)
    for base in sorted(made):
        for name in _files_of(disk, target.directory, base):
            raise StoreError(f"{target.directory}: {name} is there already; choose another base name")


def _files_of(disk: WritableDisk, directory: str, base: str) -> list[str]:
    """The names in a directory of the files of one journal."""
    names = disk.names(directory)
    return [name for name in names if name.startswith(base + ".") and name.endswith((INFO_SUFFIX, DATA_SUFFIX))]


def _is_complete(disk: WritableDisk, directory: str, base_name: str) -> bool:
    """Whether the info file of a journal is there, and all files that it names."""
    info = _info(disk, directory, base_name)
    return info is not None and all(
        disk.is_file(data_path(directory, base_name, number)) for number in range(info.geometry.files)
    )


def _info(disk: WritableDisk, directory: str, base_name: str) -> JournalInfo | None:
    """What the info file of a journal says; None if there is none that can be read."""
    try:
        return decode_jinf(read_whole(disk, posixpath.join(directory, base_name + INFO_SUFFIX), MAX_JINF_SIZE + 1))
    except (OSError, RhmError):
        return None


def move(disk: WritableDisk, old: JournalInfo, geometry: Geometry, target: Target) -> None:
    """Let the new files take the places of the old ones, which are kept.

    Args:
        disk: where they are.
        old: the info file of the old journal.
        geometry: of the new one.
        target: where everything goes.

    Raises:
        OSError: the disk does not do it. What was moved is moved back or on, unless the disk does not do that either.
    """
    try:
        _set_aside(disk, old, target)
        _bring(disk, geometry, target)
    except OSError:
        with suppress(OSError):  # the next run does it
            if settle(disk, target) is not None:
                return
        with suppress(OSError):  # likewise
            if target.stays or _is_undone(disk, target):
                _give_back(disk, target)
        raise


def _is_undone(disk: WritableDisk, target: Target) -> bool:
    """Whether the old journal is whole in its place, and the new one where it was built."""
    new_info = posixpath.join(target.building, target.new_base + INFO_SUFFIX)
    return disk.is_file(new_info) and _is_complete(disk, target.directory, target.old_base)


def _give_back(disk: WritableDisk, target: Target) -> None:
    """The old journal is whole in its place: remove what was made for the new one. Raises OSError."""
    if target.stays:
        for name in _files_of(disk, target.directory, target.new_base):
            disk.remove(posixpath.join(target.directory, name))
    if disk.is_directory(target.building):
        remove_tree(disk, target.building)
    if target.kept != target.directory and disk.is_directory(target.kept) and not disk.names(target.kept):
        disk.remove_directory(target.kept)


def _set_aside(disk: WritableDisk, old: JournalInfo, target: Target) -> None:
    """Move the old files to where they are kept, the info file last."""
    directory = target.directory
    old_info = posixpath.join(directory, target.old_base + INFO_SUFFIX)
    if target.kept != directory:
        _empty_directory(disk, directory, target.kept)
    if not target.stays:
        for number in range(old.geometry.files):
            disk.rename(data_path(directory, target.old_base, number), data_path(target.kept, target.kept_base, number))
        info = replace(old, directory=target.kept, base_name=target.kept_base)
        write_new(disk, posixpath.join(target.kept, target.kept_base + INFO_SUFFIX), encode_jinf(info))
        disk.sync_directory(target.kept)
        disk.remove(old_info)
        disk.sync_directory(directory)


def _bring(disk: WritableDisk, geometry: Geometry, target: Target) -> None:
    """Move the new files from where they were built, the info file last; those that were moved already are there."""
    directory, building = target.directory, target.building
    for number in range(geometry.files):
        new = data_path(building, target.new_base, number)
        if disk.is_file(new):
            disk.rename(new, data_path(directory, target.new_base, number))
    disk.sync_directory(directory)
    name = target.new_base + INFO_SUFFIX
    if disk.is_file(posixpath.join(building, name)):
        disk.rename(posixpath.join(building, name), posixpath.join(directory, name))
        disk.sync_directory(directory)
    with suppress(OSError):  # it means nothing any more, and the next run does it
        remove_tree(disk, building)  # in which a power loss can leave names of files that were moved
        disk.sync_directory(directory)


def _empty_directory(disk: WritableDisk, parent: str, path: str) -> None:
    if not disk.is_directory(path):
        disk.make_directory(path)
        disk.sync_directory(parent)
        return
    for name in disk.names(path):
        below = posixpath.join(path, name)
        if disk.link_target(below) is not None or not disk.is_directory(below):
            disk.remove(below)
    disk.sync_directory(path)
