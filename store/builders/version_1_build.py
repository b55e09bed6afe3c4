"""Builds a whole store of version 1, qpidd's legacystore, from the recovered content of any other store.

    rhm/dat     queues, exchanges, bindings and general objects with their ids, as qpidd's database files
    rhm/jrnl    a journal for each queue with its outstanding messages, in order
    rhm/tpl     a prepare record for each transaction in doubt; missing if there is none, as in qpidd

Decided transactions are applied: the messages of committed ones are present, those of aborted ones are not. Those in
doubt stay so: their records are open in the journals.

Record ids are kept, since in version 1 a message has the same one on all of its queues, and qpidd continues above the
highest that it finds. All messages get new ids only if one has an id that qpidd cannot have assigned: 0, or one of the
upper half, which its comparison takes for the past.

As with `store_build`, the caller chooses the queues and their numbers.

The database files (formats/bdb/README.md, 1, and formats/broker_records/README.md, 4). Ids are u64, little endian;
qpidd creates the other files of an environment at its next start.

    queues.db      id -> queue
    exchanges.db   id -> exchange
    bindings.db    id of the exchange -> binding, several for one id, sorted
    general.db     id -> link, bridge or another object
    config.db      empty; so is mappings.db, which permits several records for one key
    log.0000000001 an empty log

A journal's directory is `jrnl/HHHH/<queue name>`, where HHHH distributes the queues by a hash of their names and the
name is used unchanged: one with slashes is a path (formats/rhm/README.md, 1.3). So a name may be impossible for a
directory, or lead out of the store; such a queue is refused.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from qstore.formats.amqp_0_10.types import encode_name
from qstore.formats.bdb.writer import FILE_ID_SIZE, encode_btree, encode_empty_log
from qstore.formats.broker_records.topology import (
    DEFAULT_HOST,
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    split_name,
)
from qstore.formats.rhm.geometry import SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME, JournalInfo
from qstore.formats.wording import printable
from qstore.store.builders.journal_build import fits, legal_geometry
from qstore.store.builders.store_build import (
    BuildWatcher,
    JournalSource,
    QueueToBuild,
    build_prepared_list,
    build_queue,
)
from qstore.store.disk import WritableDisk, write_new
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.live.queue_journal import TPL_NAME
from qstore.store.parameters import StoreParameters

# ---- the catalogue ----

_KEY: Final = struct.Struct("<Q")


def encode_databases(
    queues: Mapping[int, Queue],
    exchanges: Mapping[int, Exchange],
    bindings: Iterable[tuple[int, Binding]],
    general: Mapping[int, Link | Bridge | GeneralObject],
    random_bits: Callable[[int], int],
) -> dict[str, bytes]:
    """The contents of the database files and of the log, by name.

    Args:
        queues: id -> record. No id is 0.
        exchanges: id -> record.
        bindings: pairs of exchange id and record. Duplicates count once.
        general: id -> record.
        random_bits: returns random bits, for the files' ids.
    """
    rows: dict[str, Iterable[tuple[int, bytes]]] = {
        "queues": ((number, encode_queue(record)) for number, record in queues.items()),
        "exchanges": ((number, encode_exchange(record)) for number, record in exchanges.items()),
        "bindings": {(number, encode_binding(record)) for number, record in bindings},
        "general": ((number, encode_general(record)) for number, record in general.items()),
        "config": (),
        "mappings": (),
    }
    files = {
        f"{name}.db": encode_btree(
            [(_KEY.pack(number), record) for number, record in pairs],
            random_bits(8 * FILE_ID_SIZE).to_bytes(FILE_ID_SIZE, "little"),
            sorted_duplicates=name in ("bindings", "mappings"),
        )
        for name, pairs in rows.items()
    }
    return files | {"log.0000000001": encode_empty_log()}


def write_databases(disk: WritableDisk, directory: str, files: Mapping[str, bytes]) -> None:
    """Create `directory` with the database files in it, all synced except for its own name. Raises OSError."""
    disk.make_directory(directory)
    for name, content in files.items():
        write_new(disk, posixpath.join(directory, name), content)
    disk.sync_directory(directory)


# ---- a journal's directory and info file ----

_HASH_DIRECTORIES: Final = 29
_HASH_FACTOR: Final = 33
_MAX_NAME: Final = 255  # bytes: of a queue, and of a directory
_MAX_LINE: Final = 1022  # maximum characters that qpidd reads of an info file's line
_READ_FIRST: Final = ("journal_version", "id_string")  # qpidd looks for these in any line, before the directory
_NANOSECONDS: Final = 1_000_000_000


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
    if split_name(name)[0] != DEFAULT_HOST:
        reason = "it has no virtual hosts"
    elif "\0" in name:
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


# ---- the store ----

_PAST: Final = 1 << 63  # from this value on, a record id counts as older than 1


def highest_kept_rid(sources: Iterable[JournalSource]) -> int | None:
    """The highest record id of the messages in `sources`, 0 for none; None if the ids cannot be kept."""
    highest = 0
    for journal, recovery in sources:
        for rid, *_ in recovery.outstanding(journal.format):
            if not 0 < rid < _PAST:
                return None
            highest = max(highest, rid)
    return highest


class _RecordIds:
    """New record ids, above those of the messages."""

    def __init__(self, highest: int) -> None:
        self._last = highest

    def take(self) -> int:
        self._last += 1
        return self._last


class Version1Build:
    """A store being built.

    Args:
        environment: disk, clock and random numbers.
        directory: the store directory, in which `rhm` is created.
        parameters: the prepared list's geometry, and the cache sizes in info files.
        watcher: receives progress reports.
        destination: the path of `directory` when qpidd opens it; `directory` itself by default.
        highest_rid: the result of `highest_kept_rid` for all queues; None: messages get new record ids.

    Attributes:
        notices: one line each for the user.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(
        self,
        environment: Environment,
        directory: str,
        parameters: StoreParameters,
        watcher: BuildWatcher,
        *,
        destination: str | None = None,
        highest_rid: int | None = None,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._parameters, self._watcher = parameters, watcher
        self._root = posixpath.join(directory, "rhm")
        self._final_root = posixpath.join(destination or directory, "rhm")
        self._keep_rids = highest_rid is not None
        self._rids = _RecordIds(highest_rid or 0)
        self._queues: dict[int, Queue] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._bindings: list[tuple[int, Binding]] = []
        self._general: dict[int, Link | Bridge | GeneralObject] = {}
        self._places = JournalPlaces()
        self._made_in: dict[str, None] = {}  # parents of new directories, to be synced
        self.notices: list[str] = []
        self._make_directory(self._root)
        self._make_directory(posixpath.join(self._root, "jrnl"))

    # ---- journals ----

    def prepared_list(self, prepared: Mapping[bytes, str]) -> None:
        """Add a prepare record for each transaction in doubt; qpidd's have no user. Raises StoreError, OSError."""
        if not prepared:
            return
        parameters = self._parameters
        info = version_1_info(
            self._environment,
            TPL_NAME,
            posixpath.join(self._final_root, "tpl"),
            TPL_BASE_NAME,
            parameters.tpl_geometry,
            parameters.tpl_page_bytes,
            parameters.tpl_wcache_num_pages,
        )
        build_prepared_list(
            self._environment, posixpath.join(self._root, "tpl"), info, dict.fromkeys(prepared, ""), self._rids
        )

    def queue(self, queue: QueueToBuild) -> None:
        """Add a queue with its messages.

        Raises:
            StoreError: its name cannot be that of a directory, another queue has that directory, or its messages do
                not fit into the largest journal.
            OSError: it cannot be created.
        """
        place = self._places.take(queue.record.name)
        directory = posixpath.join(self._root, "jrnl", place)
        info = self._info(queue, posixpath.join(self._final_root, "jrnl", place))
        self._make_parents(directory)
        result = build_queue(
            self._environment,
            directory,
            info,
            queue,
            self._watcher,
            lambda most: fits(most, legal_geometry(queue.geometry)),
            message_rids=None if self._keep_rids else self._rids,
            removal_rids=self._rids,
        )
        self._queues[queue.number] = queue.record
        self._watcher.built(queue, result)

    def _info(self, queue: QueueToBuild, directory: str) -> JournalInfo:
        name, parameters = queue.record.name, self._parameters
        misread = why_misread(name, directory)
        if misread is not None:
            self.notices.append(f'queue "{printable(name)}": qpidd cannot read the info file of its journal: {misread}')
        return version_1_info(
            self._environment,
            name,
            directory,
            DEFAULT_BASE_NAME,
            queue.geometry,
            parameters.page_bytes,
            parameters.wcache_num_pages,
        )

    def _make_parents(self, directory: str) -> None:
        """Create the missing directories above a journal's."""
        above = posixpath.dirname(directory)
        missing = []
        while not self._disk.is_directory(above):
            missing.append(above)
            above = posixpath.dirname(above)
        for path in reversed(missing):
            self._make_directory(path)
        self._made_in.setdefault(posixpath.dirname(directory))

    def _make_directory(self, path: str) -> None:
        self._disk.make_directory(path)
        self._made_in.setdefault(posixpath.dirname(path))

    # ---- topology ----

    def exchange(self, number: int, exchange: Exchange) -> None:
        """Add an exchange."""
        self._exchanges[number] = exchange

    def binding(self, exchange_id: int, binding: Binding) -> None:
        """Add a binding of an existing exchange and queue. Duplicates count once."""
        self._bindings.append((exchange_id, binding))

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None:
        """Add a link, a bridge or another object."""
        self._general[number] = general

    def finish(self) -> None:
        """Write the databases, and sync the names of all new files and directories. Raises OSError."""
        files = encode_databases(
            self._queues, self._exchanges, self._bindings, self._general, self._environment.random_bits
        )
        write_databases(self._disk, posixpath.join(self._root, "dat"), files)
        self._made_in.setdefault(self._root)
        for directory in reversed(self._made_in):
            self._disk.sync_directory(directory)
