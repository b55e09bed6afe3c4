"""One linearstore journal's directory, opened for reading: its links, and the files that they mean."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from store.damage import Damage
from store.disk import Disk
from store.file_pool import PooledFile, linear_file_names
from store.journal.directory import NotAJournalError
from store.journal.journal import Journal
from store.journal.line import read_line


def open_line(
    disk: Disk,
    directory: str,
    name: str | None,
    taken: Mapping[str, PooledFile],
    unlinked: Sequence[PooledFile] = (),
) -> Journal:
    """Open a linearstore journal.

    Args:
        disk: where to read.
        directory: the journal's directory; it may be gone, and then `unlinked` is all there is.
        name: the queue's name; None to take that of most files.
        taken: the store's taken files by name.
        unlinked: taken files that name this queue and that no journal links.

    Raises:
        OSError: the directory cannot be read.
    """
    damage: list[Damage] = []
    paths = []
    for file_name in linear_file_names(disk.names(directory)) if disk.is_directory(directory) else ():
        link = posixpath.join(directory, file_name)
        if file_name in taken:
            paths.append(taken[file_name].path)
        elif disk.is_file(link):
            paths.append(link)
        else:
            what = f"link to a file that is not in the store ({disk.link_target(link) or 'no regular file'})"
            damage.append(Damage(link, None, None, what, "records that stood in it are lost"))
    line = read_line(disk, paths, directory, name, [file.path for file in unlinked])
    damage.extend(line.damage)
    title = name or line.queue_name or posixpath.basename(directory)
    journal = Journal(disk, title, directory, "", None, line, damage)
    journal.notices.extend(line.notices)
    return journal


def open_linear_file(disk: Disk, path: str) -> Journal:
    """Open one linearstore file by itself, as a journal of that file alone.

    Raises:
        NotAJournalError: it was never written to, or is no journal file.
    """
    line = read_line(disk, [path], posixpath.dirname(path), None)
    if not line.files:
        what = line.damage[0].what if line.damage else "an empty file of the pool: no journal has written to it"
        raise NotAJournalError(f"{path}: {what}")
    # Alone, the file has no size that it should have but its own.
    return Journal(disk, line.queue_name or posixpath.basename(path), path, "", None, line, line.damage)
