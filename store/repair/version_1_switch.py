"""Switches a rebuilt journal of version 1 and the old one (`version_1_resize` builds it).

Files are moved before others take their names:

    1. the old files are moved to their kept place; the old info file, with its new path in it, is written there, and
       removed here last
    2. the new files are moved in, the info file last

After a crash in between no journal is complete under its own name, but both exist completely: the new one in
`_resize.new`, or with some files already here, and the old one partly here and partly in its kept place. Readers of
stores then use the new one (`journal.directory`). The next run, with the same options, moves the old files back if the
old info file is here, and otherwise the new ones on (`finish_interrupted`); so does a run that the disk stops, as far
as it can.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf
from qstore.store.catalogue.store_directory import remove_tree
from qstore.store.disk import WritableDisk, read_whole, write_new
from qstore.store.errors import StoreError
from qstore.store.journal.directory import DATA_SUFFIX, INFO_SUFFIX, RESIZING, data_path


class Target(NamedTuple):
    """The paths of everything.

    Attributes:
        directory: the journal's, as given by the user.
        kept: the directory for the old files: a subdirectory, or itself.
        old_base, new_base, kept_base: base names: of the present journal, of the new one, of the kept old one.
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
        """Whether the old files are not moved."""
        return self.kept == self.directory and self.kept_base == self.old_base


def finish_interrupted(disk: WritableDisk, target: Target) -> Geometry | None:
    """Undo, or finish, an interrupted run with the same target.

    Returns:
        The geometry of the new journal, if it is in place now and was not before.

    Raises:
        OSError: the disk fails.
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
    """Move the old files back from their kept place, if that makes the old journal complete. Raises OSError."""
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
        elif disk.is_file(kept):  # the same file: a power failure can leave both names
            disk.remove(kept)
    disk.sync_directory(target.directory)
    kept_info = posixpath.join(target.kept, target.kept_base + INFO_SUFFIX)
    if disk.is_file(kept_info):
        disk.remove(kept_info)
    disk.sync_directory(target.kept)


def _finish(disk: WritableDisk, target: Target) -> Geometry | None:
    """Move the new files that are still where they were built, if that completes the new journal. Raises OSError.

    Returns:
        The new journal's geometry; None if it cannot be completed.
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
    """Remove the incomplete result of an earlier run.

    Raises:
        StoreError: the earlier run was interrupted while it moved files; or files with the new names exist.
    """
    building = target.building
    if disk.is_directory(building):
        if not _is_complete(disk, target.directory, target.old_base):
            raise StoreError(
                f"{building}: an earlier run was interrupted while it moved files; those of the new journal are in "
                f"{building} or already in {target.directory}, and those of the old one there or in {target.kept}: "
                f"move the new ones into {target.directory}, the .jinf file last, and remove {building}"
            )
        remove_tree(disk, building)
    made = {target.new_base} if target.new_base != target.old_base else set()
    if target.kept == target.directory and not target.stays:
        made.add(target.kept_base)
    for base in sorted(made):
        for name in _files_of(disk, target.directory, base):
            raise StoreError(f"{target.directory}: {name} already exists; choose another base name")


def _files_of(disk: WritableDisk, directory: str, base: str) -> list[str]:
    """The names in a directory of the files of one journal."""
    names = disk.names(directory)
    return [name for name in names if name.startswith(base + ".") and name.endswith((INFO_SUFFIX, DATA_SUFFIX))]


def _is_complete(disk: WritableDisk, directory: str, base_name: str) -> bool:
    """Whether the info file of a journal and all of its files exist."""
    info = _info(disk, directory, base_name)
    return info is not None and all(
        disk.is_file(data_path(directory, base_name, number)) for number in range(info.geometry.files)
    )


def _info(disk: WritableDisk, directory: str, base_name: str) -> JournalInfo | None:
    """The info file of a journal; None if it is missing or unreadable."""
    try:
        return decode_jinf(read_whole(disk, posixpath.join(directory, base_name + INFO_SUFFIX), MAX_JINF_SIZE + 1))
    except (OSError, RhmError):
        return None


def move(disk: WritableDisk, old: JournalInfo, geometry: Geometry, target: Target) -> None:
    """Replace the old files, which are kept, by the new ones.

    Args:
        disk: the disk with them.
        old: the info file of the old journal.
        geometry: of the new one.
        target: the paths.

    Raises:
        OSError: the disk fails. Moved files are moved back or on, unless the disk refuses that too.
    """
    try:
        _set_aside(disk, old, target)
        _bring(disk, geometry, target)
    except OSError:
        with suppress(OSError):  # the next run repeats it
            if finish_interrupted(disk, target) is not None:
                return
        with suppress(OSError):  # likewise
            if target.stays or _is_undone(disk, target):
                _give_back(disk, target)
        raise


def _is_undone(disk: WritableDisk, target: Target) -> bool:
    """Whether the old journal is complete in its place, and the new one where it was built."""
    new_info = posixpath.join(target.building, target.new_base + INFO_SUFFIX)
    return disk.is_file(new_info) and _is_complete(disk, target.directory, target.old_base)


def _give_back(disk: WritableDisk, target: Target) -> None:
    """Remove the files of the new journal: the old one is complete in its place. Raises OSError."""
    if target.stays:
        for name in _files_of(disk, target.directory, target.new_base):
            disk.remove(posixpath.join(target.directory, name))
    if disk.is_directory(target.building):
        remove_tree(disk, target.building)
    if target.kept != target.directory and disk.is_directory(target.kept) and not disk.names(target.kept):
        disk.remove_directory(target.kept)


def _set_aside(disk: WritableDisk, old: JournalInfo, target: Target) -> None:
    """Move the old files to their kept place, the info file last."""
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
    """Move the new files from where they were built, the info file last; some may be in place already."""
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
    with suppress(OSError):  # it has no meaning any more, and the next run removes it
        remove_tree(disk, building)  # a power failure can leave names of moved files in it
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
