"""Where a journal of version 1, qpidd's, has to be, and what its info file says.

The directory is `jrnl/HHHH/<queue name>`, where HHHH spreads the queues by a hash of their names and the name stands as
it is: one with slashes is a path (formats/rhm/README.md, 1.3). So a name may be none that a directory can have, or
lead out of the store; such a queue is refused.
"""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime
from typing import Final

from formats.amqp_0_10.types import encode_name
from formats.rhm.geometry import SECTOR_SIZE, Geometry
from formats.rhm.jinf import JournalInfo
from formats.wording import printable
from store.environment import Environment
from store.errors import StoreError

_HASH_DIRECTORIES: Final = 29
_HASH_FACTOR: Final = 33
_LONGEST_NAME: Final = 255  # bytes: of a queue, and of a directory
_LONGEST_LINE: Final = 1022  # characters of an info file's line that qpidd reads
_READ_FIRST: Final = ("journal_version", "id_string")  # in any line, before the directory
_NANOSECONDS: Final = 1_000_000_000


# ---- where it is ----


def hash_directory(name: str) -> str:
    """The directory below `jrnl` for the queue `name`: a hash of its bytes, which count as signed."""
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
        reason = "no directory can be called so"
    elif size > _LONGEST_NAME:
        reason = f"it has {size} bytes, more than {_LONGEST_NAME}"
    elif "." in parts or ".." in parts:
        reason = "it would lead to a directory that is not the queue's own"
    else:
        return posixpath.join(hash_directory(name), *parts)
    shown = printable(name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…")
    raise StoreError(f'queue "{shown}": only version 2 can have it: version 1 names its directory so, and {reason}')


class JournalPlaces:
    """The directories of a store's journals, each of which one queue has."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The directory for the queue `name`, below `jrnl`.

        Raises:
            StoreError: there is none for such a name, or another queue has it.
        """
        place = journal_path(name)
        if place in self._taken:
            raise StoreError(
                f'queue "{printable(name)}": only version 2 can have it: version 1 would keep it in the directory of '
                f"another queue, jrnl/{printable(place)}"
            )
        self._taken.add(place)
        return place


def why_misread(name: str, directory: str) -> str | None:
    """Why qpidd would not read the info file of the queue `name` in `directory` as it is meant; None if it does.

    It searches each line for the names of the values, and nothing is escaped (formats/rhm/README.md, 4.2).
    """
    if any(each in name + directory for each in '"\n'):
        return "its name or directory holds a quote or the end of a line"
    if _READ_FIRST[0] in name or any(each in directory for each in _READ_FIRST):
        return "its name or directory holds the name of another value"
    if len(encode_name(directory)) > _LONGEST_LINE - len('    <directory value="/" />'):
        return "its directory is too long"
    return None


# ---- its info file ----


def version_1_info(
    environment: Environment, name: str, directory: str, base_name: str, geometry: Geometry, page: int, pages: int
) -> JournalInfo:
    """The info file of a journal that is made now.

    Args:
        environment: has the clock.
        name: the queue's, or that of the prepared list.
        directory: where qpidd will find it.
        base_name: what its files' names begin with.
        geometry: number and size of its files.
        page: bytes of a page of the write cache.
        pages: their number. Both mean nothing at recovery.
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
