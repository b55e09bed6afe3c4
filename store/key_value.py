"""The ordered map under the catalogue, and RocksDB as one.

A `KeyValue` maps bytes to bytes in key order. It is changed in batches, each atomic and durable when `write` returns.
The catalogue needs no more, so tests can pass a map in memory or one on a simulated disk; one contract test covers all
of them.

`open_copy` reads a database that another process owns and never writes to it. rocksdict writes its configuration and
RocksDB its log even when they open a database read-only, so a private directory is opened instead of the real one:

    file              in the private directory   why
    ----------------  -------------------------  -------------------------------------------------------------------
    CURRENT           copy                       small, and replaced by rename
    MANIFEST-NNNNNN   copy                       grows while a broker runs; the copy does not change
    NNNNNN.log        copy                       the write-ahead log: synced batches that are not in a table yet
    NNNNNN.sst        symbolic link              can be large; written once, never changed, and not removed by a
                                                 database that is open read-only. A hard link would not cross file
                                                 systems, and would write to the source's inode
    all others        omitted                    logs, locks and options: not needed to read, or written at each open

`damage` reports what RocksDB ignores silently: a write-ahead log that is damaged before its end (opened up to the
damage) and a manifest that ends in the middle of a record (later tables may be missing).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from rocksdict import (
    AccessType,
    Checkpoint,
    DbClosedError,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from qstore.formats.named_tuple import NamedTuple
from qstore.store.errors import advice, disk_advice
from qstore.store.log_lines import LogLine, Outage

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_WRITE_BUFFER: Final = 1 << 20  # bytes in memory before a table is written; RocksDB's default is 64 MiB
_LOGS_KEPT: Final = 2  # RocksDB's own logs, of which it starts a new one at each open
_OPENING_THREADS: Final = 1  # a catalogue has few tables: to start RocksDB's 16 threads takes longer than they save


class CatalogueError(Exception):
    """The catalogue cannot be read or changed. The text is one line, with the path if there is one.

    Attributes:
        file: path of the database file concerned; None if it is unknown or no single file is concerned.
    """

    def __init__(self, text: str, file: str | None = None) -> None:
        super().__init__(text)
        self.file = file

    def problem(self, directory: str) -> str:
        """The text without the path of the catalogue, or of the file, that it begins with."""
        text = str(self).removeprefix(f"{directory}: ")
        return text if self.file is None else text.removeprefix(f"{self.file}: ")


class CatalogueDamagedError(CatalogueError):
    """The database does not exist, or its files are damaged: no process on any system could open it."""


class MapDamage(NamedTuple):
    """Damage in a map that was skipped while opening it: a one-line text, and the file, if known."""

    what: str
    file: str | None = None


class KeyValue(Protocol):
    """An ordered map from bytes to bytes. Every method raises CatalogueError if it fails."""

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """Damage that was found and skipped when the map was opened."""

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None if there is none."""

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order, as of the time of this call."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, or delete it if that is None: all or nothing, and durable on return."""

    def checkpoint(self, directory: str) -> None:
        """Copy the map into a new directory. The copy is durable except for the directory's name."""

    def close(self) -> None:
        """Close the map. May be called twice; no other call may follow."""


class RocksKeyValue:
    """A RocksDB database as a `KeyValue`: `open` for the store's own, `open_copy` for any other."""

    __slots__ = ("_damage", "_database", "_directory", "_private", "_synced")

    def __init__(
        self, database: Rdict, directory: Path, private: Path | None = None, damage: tuple[MapDamage, ...] = ()
    ) -> None:
        """Take over `database`, which errors call `directory`; `private` is removed at close."""
        self._database = database
        self._directory = directory
        self._private = private
        self._damage = damage
        self._synced = WriteOptions()
        self._synced.sync = True

    @classmethod
    def open(cls, directory: Path, *, create: bool = False) -> RocksKeyValue:
        """Open the database in `directory` for reading and writing, or create one there.

        Raises:
            CatalogueDamagedError: it does not exist, or its files are damaged.
            CatalogueError: RocksDB cannot open it, another process has it open, or it exists and `create` is given.
        """
        options = _options(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.create_if_missing(create)
        options.set_error_if_exists(create)
        try:
            # RocksDB would leave a log and a lock in a directory that turns out not to be a database.
            if not create:
                if directory.is_dir():
                    _check_files(directory)
                if not (directory / "CURRENT").is_file():
                    raise _without_current(directory)
            if create and not directory.exists():
                directory.mkdir(_DIRECTORY_MODE)  # one made by RocksDB would be as open as the umask permits
                directory.chmod(_DIRECTORY_MODE)
            return cls(Rdict(str(directory), options, access_type=AccessType.read_write()), directory)
        except CatalogueError:
            raise
        except OSError as error:
            raise CatalogueError(f"{directory}: {error.strerror or error}{advice(error)}") from error
        except Exception as error:
            kind = CatalogueError if create or _is_sound(directory) else CatalogueDamagedError
            raise kind(f"{directory}: RocksDB cannot open it: {_line(error)}") from error

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """Damage that was found and skipped when the database was opened: one line each."""
        return self._damage

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None if there is none."""
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise self._failed("read", error) from error
        return value

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order, as of the time of this call."""
        try:
            cursor = self._database.iter()
        except Exception as error:
            raise self._failed("read", error) from error
        return self._walk(cursor, prefix)

    def _walk(self, cursor: RdictIter, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            cursor.seek(prefix)
            while cursor.valid():
                key: bytes = cursor.key()
                if not key.startswith(prefix):
                    return
                yield key, cursor.value()
                cursor.next()
            # At a damaged block a cursor becomes invalid, as at the end; only its status distinguishes the two.
            cursor.status()
        except Exception as error:
            raise self._failed("read", error) from error

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, or delete it if that is None: all or nothing, and durable on return."""
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._database.write(batch, self._synced)
        except Exception as error:
            raise self._failed("write", error) from error

    def checkpoint(self, directory: str) -> None:
        """Copy the database into a new directory. Tables, which never change, are hard-linked on the same disk."""
        target = Path(directory)
        try:
            Checkpoint(self._database).create_checkpoint(directory)
            target.chmod(_DIRECTORY_MODE)
            for file in target.iterdir():
                file.chmod(_FILE_MODE)
        except Exception as error:
            raise self._failed(f"create a copy in {directory}", error) from error

    def close(self) -> None:
        """Close the database and remove the private copy, if it is one. May be called twice.

        Raises:
            CatalogueError: RocksDB's final write failed. The database is closed, and no batch is lost.
        """
        try:
            self._database.close()
        except DbClosedError:
            pass
        except Exception as error:
            raise self._failed("close", error) from error
        finally:
            if self._private is not None:
                _remove(self._private)

    def _failed(self, deed: str, error: Exception) -> CatalogueError:
        text = _line(error)
        if self._private is not None:
            text = text.replace(str(self._private), str(self._directory))
        file = _file_in(text, self._directory)
        return CatalogueError(f"{self._directory}: RocksDB cannot {deed}: {text}", file)


def _without_current(directory: Path) -> CatalogueDamagedError:
    text = f"{directory}: not a RocksDB database: the file CURRENT is missing"
    return CatalogueDamagedError(text, str(directory / "CURRENT"))


def open_copy(directory: Path) -> RocksKeyValue:
    """Open the database in `directory` for reading, without writing to it: see the table above.

    The private directory is created in the system's temporary directory, with mode 0700, and removed at close.

    Raises:
        CatalogueDamagedError: the database does not exist, or RocksDB cannot open its files.
        CatalogueError: the files cannot be read or copied.
    """
    import tempfile  # only tools open copies: with `shutil` and the compressions it is 3 ms of a broker's start

    try:
        private = Path(tempfile.mkdtemp(prefix="qstore-catalogue-"))
    except OSError as error:
        raise CatalogueError(f"{directory}: cannot create a private copy: {error}") from error
    try:
        damage = _copy(directory, private)
        database = _open_read_only(private, directory, damage)
    except BaseException as error:
        _remove(private)
        if isinstance(error, CatalogueError) or not isinstance(error, Exception):
            raise
        text = _line(error).replace(str(private), str(directory))
        file = _file_in(text, directory)
        raise CatalogueDamagedError(f"{directory}: RocksDB cannot open it: {text}", file) from error
    return RocksKeyValue(database, directory, private, tuple(damage))


def _check_files(directory: Path) -> None:
    """Refuse paths that RocksDB cannot open, or would block on: a directory, a FIFO, a broken link in place of a file.

    Also files that are larger than RocksDB makes them: it reads them whole, and readers copy them.

    Raises:
        CatalogueDamagedError: one of the database's files is not a regular file, or too large.
        OSError: the directory cannot be read.
    """
    for path in directory.iterdir():
        if not _OWN.fullmatch(path.name):
            continue
        if path.is_file():
            most = _MAX_COPIED if _LARGE.fullmatch(path.name) else _MAX_SMALL
            if _READ_WHOLE.fullmatch(path.name) and path.stat().st_size > most:
                what = f"{path.name} is too large: {path.stat().st_size:,} bytes"
                raise CatalogueDamagedError(f"{directory}: {what}", str(path))
        elif os.path.lexists(path):  # not just removed
            raise CatalogueDamagedError(f"{path}: not a regular file", str(path))


def _is_sound(directory: Path) -> bool:
    """Whether a database that cannot be opened is intact, or cannot be read at all at the moment.

    RocksDB's errors do not distinguish a held lock, a full disk or a missing permission from damage; opening a private
    copy does.
    """
    try:
        copy = open_copy(directory)
    except CatalogueDamagedError:
        return False
    except CatalogueError:
        return True
    copy.close()
    return not copy.damage


def _open_read_only(private: Path, directory: Path, damage: list[MapDamage]) -> Rdict:
    """Open the copy of `directory`: strictly, or else up to the damage in the write-ahead log, added to `damage`."""
    read_only = AccessType.read_only(error_if_log_file_exist=False)
    try:
        return Rdict(str(private), _options(DBRecoveryMode.tolerate_corrupted_tail_records()), access_type=read_only)
    except Exception as error:
        lenient = Rdict(str(private), _options(DBRecoveryMode.point_in_time()), access_type=read_only)
        line = _line(error)
        what = f"write-ahead log: {line}; changes from there on are missing"
        damage.append(MapDamage(what, _file_in(line, directory)))
        return lenient


def _options(wal_mode: DBRecoveryMode) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(_LOGS_KEPT)
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_file_opening_threads(_OPENING_THREADS)
    options.set_wal_recovery_mode(wal_mode)
    return options


def _file_in(text: str, directory: Path) -> str | None:
    """The file of the database in `directory` that a RocksDB error text names: the text is the only source."""
    found = _NAMED.search(text.replace(str(directory), ""))
    return None if found is None else str(directory / found[0])


def _line(error: Exception) -> str:
    """RocksDB's error text, which can have several lines, as one line."""
    return " ".join(str(error).split())


# ---------------------------------------------------------------------------------------------------------------

#: OS errors independent of the state of the files.
_PASSING: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ENOMEM}
)
_COPIED = re.compile(r"CURRENT|MANIFEST-\d+|\d+\.log", re.ASCII)
_LINKED = re.compile(r"\d+\.sst", re.ASCII)
_OWN = re.compile(
    r"CURRENT|IDENTITY|LOCK|LOG(?:\.old\.\d+)?|MANIFEST-\d+|OPTIONS-\d+|\d+\.(?:log|sst|dbtmp)|rocksdict-config\.json",
    re.ASCII,
)
_LARGE = re.compile(r"MANIFEST-\d+|\d+\.log", re.ASCII)
_READ_WHOLE = re.compile(r"CURRENT|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|\d+\.log|rocksdict-config\.json", re.ASCII)
_MAX_SMALL = 1 << 20  # bytes of a file that names others or has settings
_MAX_COPIED = 1 << 30  # RocksDB begins a new manifest at 1 GiB, and a new log at the size of its write buffer
_NAMED = re.compile(r"[0-9]{6}\.(?:sst|log)|MANIFEST-[0-9]{6}|CURRENT", re.ASCII)


def _copy(directory: Path, private: Path) -> list[MapDamage]:
    """Fill `private` as in the table above, and return the damage in the manifest."""
    damage = []
    try:
        source = Path(os.path.realpath(directory))  # `resolve` raises RuntimeError for a link that leads back
        names = sorted(entry.name for entry in source.iterdir())
        if "CURRENT" not in names:
            raise _without_current(directory)
        _check_files(source)
        for name in names:
            if _LINKED.fullmatch(name):
                _check_regular(source / name, (source / name).stat())
                (private / name).symlink_to(source / name)
            elif _COPIED.fullmatch(name):
                _copy_file(source / name, private / name)
        with (private / "CURRENT").open("rb") as file:
            current = file.read(64).decode("ascii", "replace").strip()
        if _COPIED.fullmatch(current) and current in names and not _ends_whole(private / current):
            what = f"{current}: ends in the middle of a record; tables written later may be missing"
            damage.append(MapDamage(what, str(directory / current)))
    except OSError as error:
        kind = CatalogueError if error.errno in _PASSING else CatalogueDamagedError
        text = f"{directory}: cannot be copied for reading: {error.strerror or error}{advice(error)}"
        raise kind(text, error.filename if isinstance(error.filename, str) else None) from error
    return damage


def _remove(private: Path) -> None:
    import shutil  # as in `open_copy`

    shutil.rmtree(private, ignore_errors=True)


def _copy_file(source: Path, target: Path) -> None:
    import shutil  # as in `open_copy`

    # O_NONBLOCK: a FIFO in a hostile tree must be refused, not block.
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as reader:
        _check_regular(source, os.fstat(descriptor))
        with target.open("xb") as writer:
            shutil.copyfileobj(reader, writer)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"not a regular file: {path}")


# The framing of RocksDB's manifest and write-ahead log ("Write Ahead Log File Format" in its wiki): blocks of 32 KiB
# hold fragments of u32 CRC, u16 length, u8 type, data; a rest of the block below 7 bytes is zeros. A record is
# one fragment of type 1 (full), or first (2), middle (3) and last (4).
_BLOCK = 32768
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)


def _ends_whole(manifest: Path) -> bool:
    """Whether the manifest ends at the end of a record. RocksDB takes a cut record for a torn tail and drops it."""
    whole = True
    with manifest.open("rb") as file:
        while block := file.read(_BLOCK):
            at = 0
            while at + _FRAGMENT.size <= len(block):
                _, length, kind = _FRAGMENT.unpack_from(block, at)
                if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
                    return whole  # preallocated zeros, or damage, which RocksDB reports itself
                whole = kind in (_FULL, _LAST)
                at += _FRAGMENT.size + length
            if at != len(block) and len(block) < _BLOCK:
                return False
    return whole


class WatchedKeyValue:
    """A `KeyValue` that logs failing writes.

    Args:
        inner: the map.
        log: receives log lines, from any thread.
    """

    __slots__ = ("_inner", "_outage")

    def __init__(self, inner: KeyValue, log: Callable[[LogLine], None]) -> None:
        self._inner = inner
        what = "the catalogue cannot be written, and queues, exchanges and bindings cannot be created or deleted"
        self._outage = Outage(what, "the catalogue can be written again", log)

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """See `KeyValue`."""
        return self._inner.damage

    def get(self, key: bytes) -> bytes | None:
        """See `KeyValue`."""
        return self._inner.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValue`."""
        return self._inner.items(prefix)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See `KeyValue`; a failure is logged."""
        try:
            self._inner.write(changes)
        except CatalogueError as error:
            self._outage.failed(str(error), f"{disk_advice()}, and restart the broker if it does not resume by itself")
            raise
        self._outage.worked()

    def checkpoint(self, directory: str) -> None:
        """See `KeyValue`."""
        self._inner.checkpoint(directory)

    def close(self) -> None:
        """See `KeyValue`."""
        self._inner.close()
