"""The directory and the info file of a journal of version 1, qpidd's.

The directory is `jrnl/HHHH/<queue name>`, where HHHH distributes the queues by a hash of their names and the name is
used unchanged: one with slashes is a path (formats/rhm/README.md, 1.3). So a name may be impossible for a directory, or
lead out of the store; such a queue is refused.
"""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime
from typing import Final

from qstore.formats.amqp_0_10.types import encode_name
from qstore.formats.rhm.geometry import SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.wording import printable
from qstore.store.environment import Environment
from qstore.store.errors import StoreError

_HASH_DIRECTORIES: Final = 29
_HASH_FACTOR: Final = 33
_MAX_NAME: Final = 255  # bytes: of a queue, and of a directory
_MAX_LINE: Final = 1022  # maximum characters that qpidd reads of an info file's line
_READ_FIRST: Final = ("journal_version", "id_string")  # qpidd looks for these in any line, before the directory
_NANOSECONDS: Final = 1_000_000_000


# ---- the directory ----


def hash_directory(name: str) -> str:
    """The directory below `jrnl` for the queue `name`: a hash of its bytes, which are taken as signed."""
    value = 0
    for byte in encode_name(name).partition(b"\0")[0]:
        value = value * _HASH_FACTOR + (byte - 256 if byte > 127 else byte)
    return f"{(value & 0xFFFFFFFF) % _HASH_DIRECTORIES:04x}"


def journal_path(name: str) -> str:
    """The directory of a queue's journal, below `jrnl`.

    Raises:
        StoreError: no queue of version 1 can have that name.
    """
    size = len(encode_name(name))
    parts = [part for part in name.split("/") if part]
    if "\0" in name:
        reason = "it has a zero byte"
    elif not parts:
        reason = "no directory can have that name"
    elif size > _MAX_NAME:
        reason = f"it has {size:,} bytes, more than {_MAX_NAME:,}"
    elif "." in parts or ".." in parts:
        reason = "it would lead to a directory that is not the queue's own"
    else:
        return posixpath.join(hash_directory(name), *parts)
    shown = printable(name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…")
    raise StoreError(f'queue "{shown}": only version 2 can store it: version 1 names a directory after it; {reason}')


class JournalPlaces:
    """The directories of a store's journals, one for each queue."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The directory for the queue `name`, below `jrnl`.

        Raises:
            StoreError: the name cannot be a directory's, or another queue has that directory.
        """
        place = journal_path(name)
        if place in self._taken:
            raise StoreError(
                f'queue "{printable(name)}": only version 2 can store it: version 1 would use the directory of '
                f"another queue, jrnl/{printable(place)}"
            )
        self._taken.add(place)
        return place


def why_misread(name: str, directory: str) -> str | None:
    """Why qpidd would misread the info file of the queue `name` in `directory`; None if it would not.

    It searches each line for the names of the values, and nothing is escaped (formats/rhm/README.md, 4.2).
    """
    if any(each in name + directory for each in '"\n'):
        return "its name or directory holds a quote or the end of a line"
    if _READ_FIRST[0] in name or any(each in directory for each in _READ_FIRST):
        return "its name or directory holds the name of another value"
    if len(encode_name(directory)) > _MAX_LINE - len('    <directory value="/" />'):
        return "its directory is too long"
    return None


# ---- the info file ----


def version_1_info(
    environment: Environment, name: str, directory: str, base_name: str, geometry: Geometry, page: int, pages: int
) -> JournalInfo:
    """The info file of a new journal.

    Args:
        environment: provides the clock.
        name: the queue's, or that of the prepared list.
        directory: its path when qpidd opens it.
        base_name: the common prefix of its files' names.
        geometry: number and size of its files.
        page: bytes in a page of the write cache.
        pages: number of these. Recovery ignores both.
    """
    seconds, nanoseconds = divmod(environment.clock(), _NANOSECONDS)
    local = datetime.fromtimestamp(seconds, UTC).astimezone()
    return JournalInfo(
        1,
        name,
        base_name,
        geometry,
        directory=f"{directory}/",
        seconds=seconds,
        nanoseconds=nanoseconds,
        local_time=f"{local:%Y/%m/%d %H:%M:%S}.{nanoseconds:09}",
        write_page_sectors=page // SECTOR_SIZE,
        write_pages=pages,
    )
