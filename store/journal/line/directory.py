"""The directory of one linearstore journal, opened for reading: its links, and the files that they refer to."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence

from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk
from qstore.store.journal.directory import NotAJournalError
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import read_line
from qstore.store.journal.line.pool import PooledFile, linear_file_names


def open_line(
    disk: Disk,
    directory: str,
    name: str | None,
    taken: Mapping[str, PooledFile],
    unlinked: Sequence[PooledFile] = (),
    queues: Collection[str] = (),
    *,
    follow_links: bool = True,
    waiting: Sequence[PooledFile] = (),
) -> Journal:
    """Open a linearstore journal.

    Args:
        disk: reads it.
        directory: the journal's directory; it may be missing, and then only `unlinked` is read.
        name: the queue's name; None to use that of most files.
        taken: the store's taken files by name.
        unlinked: taken files that name this queue and that no journal links.
        queues: the names of the store's queues.
        follow_links: whether links may point to files that are not among `taken`. If the whole store is available they
            may not: they would point into the store that this one was copied from.
        waiting: files in the pools that name this queue.

    Raises:
        OSError: the directory cannot be read, and `unlinked` is empty.
    """
    damage: list[Damage] = []
    paths = []
    for file_name in _linked_names(disk, directory, unlinked, damage):
        link = posixpath.join(directory, file_name)
        target = disk.link_target(link)
        if file_name in taken:
            paths.append(taken[file_name].path)
        elif disk.is_file(link) and (follow_links or target is None):
            paths.append(link)
        else:
            damage.append(_broken_link(link, target))
    line = read_line(
        disk, paths, directory, name, [file.path for file in unlinked], queues, [file.path for file in waiting]
    )
    damage.extend(line.damage)
    title = name or line.queue_name or posixpath.basename(directory)
    journal = Journal(disk, title, directory, "", None, line, damage)
    journal.notices.extend(line.notices)
    return journal


def _broken_link(link: str, target: str | None) -> Damage:
    if not target:
        return Damage(link, None, None, DamageKind.LINK_IS_NONE)
    return Damage(link, None, None, DamageKind.LINK_LEADS_OUT, target=target)


def _linked_names(disk: Disk, directory: str, unlinked: Sequence[PooledFile], damage: list[Damage]) -> list[str]:
    try:
        return linear_file_names(disk.names(directory)) if disk.is_directory(directory) else []
    except OSError as error:
        if not unlinked:
            raise
        kind, effect = DamageKind.DIRECTORY_UNREADABLE, Effect.FOUND_BY_HEADERS
        damage.append(Damage(directory, None, None, kind, effect, reason=error.strerror))
        return []


def open_linear_file(disk: Disk, path: str) -> Journal:
    """Open one linearstore file on its own, as a journal of that file alone.

    Raises:
        NotAJournalError: it was never written to, or is not a journal file.
    """
    line = read_line(disk, [path], posixpath.dirname(path), None)
    if not line.files:
        what = line.damage[0].what if line.damage else "an empty file of the pool: no journal has written to it"
        raise NotAJournalError(f"{path}: {what}")
    # A single file can only be compared with its own size.
    return Journal(disk, line.queue_name or posixpath.basename(path), path, "", None, line, line.damage)
