r"""The quarantine: damaged data that could not be saved, kept unchanged, with an index.

    <directory>/index.jsonl      one JSON object a line, by number
                NNNNNN.raw       the bytes of one entry, 000001.raw and so on; mode 0600
                index.jsonl.new  an index being written; renamed when it is complete and synced
                index.lock       locked while entries are marked

No file name is derived from the data. The index is described in `formats.quarantine_index`.

Readers of a damaged index get each unusable line as an `IndexProblem`, and all others.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final

from qstore.formats.quarantine_index import (
    MAX_RAW_FILES,
    IndexProblem,
    Injection,
    QuarantineEntry,
    decode_index,
    encode_entry,
    marked,
    raw_name,
)
from qstore.store.disk import Disk, DiskLock, ReadableFile, WritableDisk, WritableFile
from qstore.store.unfinished import RECOVERING, Unfinished

INDEX: Final = "index.jsonl"
_NEW, _LOCK = "index.jsonl.new", "index.lock"
RAW_NAME: Final = re.compile(r"[0-9]{6}\.raw", re.ASCII)
_MAX_INDEX: Final = 1 << 32  # bytes
_CHUNK: Final = 1 << 20
_GATHERED: Final = 1 << 16


class QuarantineError(Exception):
    """An error in one line: the cause, the place, and the advice."""


# ---------------------------------------------------------------------------------------------- writing


class QuarantineWriter:
    """Writes a quarantine. The directory is created with the first entry.

    Args:
        disk: the disk for it.
        directory: its path; its parent exists.

    Attributes:
        entries: number of entries.
    """

    def __init__(self, disk: WritableDisk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self.entries = 0
        self._begun = False
        self._gathered = bytearray()
        self._written = 0

    def add(
        self,
        queue: str,
        file: str,
        offset: int,
        raw: bytes | Iterable[bytes],
        what: str,
        rid: int | None = None,
        *,
        salt: int | None = None,
    ) -> int:
        """Add an entry; its bytes are synced, and the index will be by `close`.

        Args:
            queue: the queue's name, or a substitute.
            file: path of the file with the bytes.
            offset: their offset in it.
            raw: the bytes, as one or in chunks.
            what: their defect, in one line.
            rid: their record id, if known.
            salt: version 2: that of the file's header, if known.

        Returns:
            The entry's number.

        Raises:
            OSError: it cannot be written, or `raw` cannot be read; there is no such entry then.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        number = self.entries + 1
        name = raw_name(number) if number <= MAX_RAW_FILES else None
        chunks = (raw,) if isinstance(raw, bytes) else raw
        size, digest = self._keep(name, chunks)
        entry = QuarantineEntry(number, queue, file, offset, size, name, what, rid, digest, salt)
        self._gathered += encode_entry(entry)
        self.entries = number
        if len(self._gathered) >= _GATHERED:
            self._write_gathered()
        return number

    def close(self) -> None:
        """Write the index, and make all of it durable. Raises OSError."""
        if not self._begun:
            return
        self._write_gathered(sync=True)
        self._disk.rename(self._path(_NEW), self._path(INDEX))
        self._disk.sync_directory(self._directory)
        self._disk.sync_directory(posixpath.dirname(self._directory.rstrip("/")) or ".")

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)

    def _begin(self) -> None:
        if not self._disk.is_directory(self._directory):
            self._disk.make_directory(self._directory)
        elif self._disk.is_file(self._path(INDEX)):
            raise FileExistsError(errno.EEXIST, "a quarantine already exists", self._path(INDEX))
        self._disk.create(self._path(_NEW), 0).close()

    def _keep(self, name: str | None, chunks: Iterable[bytes]) -> tuple[int, str]:
        """Write the bytes of an entry, or only read them. Returns their number and digest."""
        digest, size = sha256(), 0
        if name is None:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
            return size, digest.hexdigest()
        file = self._disk.create(self._path(name), 0)
        try:
            for chunk in chunks:
                digest.update(chunk)
                file.write(size, chunk)
                size += len(chunk)
            file.sync()
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self._disk.remove(self._path(name))
            raise
        file.close()
        return size, digest.hexdigest()

    def _write_gathered(self, *, sync: bool = False) -> None:
        file = self._disk.open_writable(self._path(_NEW))
        try:
            file.write(self._written, bytes(self._gathered))
            if sync:
                file.sync()
        finally:
            file.close()
        self._written += len(self._gathered)
        self._gathered.clear()


# ---------------------------------------------------------------------------------------------- reading


class Quarantine:
    """An existing quarantine.

    Args:
        disk: reads it.
        directory: its path.

    Raises:
        QuarantineError: it is not a quarantine, or cannot be read.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        if not disk.is_directory(directory):
            raise QuarantineError(f"{directory}: no such directory")
        mark = posixpath.join(posixpath.dirname(disk.real_path(directory)), RECOVERING)
        if disk.is_file(mark):  # the next run of that recovery removes it, including its marks
            raise QuarantineError(Unfinished.BEGUN_RECOVERY.notice(mark))
        if not disk.is_file(self.path(INDEX)):
            raise QuarantineError(
                f"{directory}: there is no {INDEX} here, so it was not written by qstore-recover; use qstore-check and "
                "qstore-dump to read the whole journals that a store has in rhm/quarantine"
            )

    def path(self, name: str) -> str:
        """The path of a file of it."""
        return posixpath.join(self.directory, name)

    def entries(self) -> Iterator[QuarantineEntry | IndexProblem]:
        """All entries, by number, and the unusable parts of the index. Raises QuarantineError."""
        return decode_index(self.chunks())

    def find(self, numbers: Iterable[int]) -> dict[int, QuarantineEntry]:
        """Number -> entry, of those that exist. Raises QuarantineError."""
        wanted = set(numbers)
        found = (each for each in self.entries() if isinstance(each, QuarantineEntry))
        return {entry.number: entry for entry in found if entry.number in wanted}

    def raw_names(self) -> list[str]:
        """The existing files of entries, whatever is in the index. Raises QuarantineError."""
        try:
            return [name for name in self._disk.names(self.directory) if RAW_NAME.fullmatch(name)]
        except OSError as error:
            raise _unreadable(self.directory, error) from error

    def raw(self, entry: QuarantineEntry) -> Iterator[bytes]:
        """The bytes of an entry, in chunks, up to the size in the index. Raises QuarantineError."""
        if entry.raw is None:
            raise QuarantineError(f"entry {entry.number}: its bytes were not stored here; they are in {entry.file}")
        path = self.path(entry.raw)
        try:
            file = self._open(path)
            try:
                for offset in range(0, min(file.size, entry.size), _CHUNK):
                    yield file.read(offset, min(_CHUNK, entry.size - offset))
            finally:
                file.close()
        except OSError as error:
            raise _unreadable(path, error) from error

    def size_problem(self, entry: QuarantineEntry) -> str | None:
        """Why the bytes of an entry cannot be the original ones, from their size; None if they can."""
        if entry.raw is None:
            return f"entry {entry.number}: its bytes were not stored here; they are in {entry.file}"
        path = self.path(entry.raw)
        try:
            file = self._open(path)
        except OSError as error:
            return str(_unreadable(path, error))
        size = file.size
        file.close()
        return None if size == entry.size else f"{path}: {size:,} bytes, but the index states {entry.size:,}"

    def raw_problem(self, entry: QuarantineEntry) -> str | None:
        """As `size_problem`, by comparing all bytes."""
        problem = self.size_problem(entry)
        if problem is not None:
            return problem
        digest = sha256()
        try:
            for chunk in self.raw(entry):
                digest.update(chunk)
        except QuarantineError as error:
            return str(error)
        if digest.hexdigest() != entry.sha256:
            return f"{self.path(raw_name(entry.number))}: the bytes have changed (SHA-256 mismatch)"
        return None

    def _open(self, path: str) -> ReadableFile:
        """A file of the quarantine itself; links are refused."""
        if self._disk.link_target(path) is not None:
            raise OSError(errno.ELOOP, "it is a symbolic link", path)
        return self._disk.open(path)

    def chunks(self) -> Iterator[bytes]:
        """The raw index, in chunks. Raises QuarantineError."""
        path = self.path(INDEX)
        try:
            file = self._open(path)
            try:
                if file.size > _MAX_INDEX:
                    raise QuarantineError(f"{path}: {file.size:,} bytes are too large for the index of a quarantine")
                for offset in range(0, file.size, _CHUNK):
                    yield file.read(offset, _CHUNK)
            finally:
                file.close()
        except OSError as error:
            raise _unreadable(path, error) from error


class QuarantineMarks:
    """Marks entries of a quarantine as injected, under an exclusive lock.

    Args:
        disk: the disk with it.
        directory: its path.

    Raises:
        QuarantineError: another process marks entries, or it is not writable.
    """

    def __init__(self, disk: WritableDisk, directory: str) -> None:
        self._disk, self._quarantine = disk, Quarantine(disk, directory)
        path = self._quarantine.path(_LOCK)
        try:
            self._lock: DiskLock = disk.lock(path)
        except BlockingIOError:
            raise QuarantineError(f"{directory}: another process injects from it; try again later") from None
        except OSError as error:
            raise QuarantineError(f"{path}: cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def mark(self, injections: Mapping[int, Injection | None]) -> None:
        """Record for some entries where they were injected, or that they were not, atomically.

        Raises:
            QuarantineError: the index cannot be read or written. It has its old or its new content.
        """
        index, new = self._quarantine.path(INDEX), self._quarantine.path(_NEW)
        try:
            if self._disk.is_file(new):
                self._disk.remove(new)
            self._rewrite(new, self._quarantine.chunks(), injections)
            self._disk.rename(new, index)
            self._disk.sync_directory(self._quarantine.directory)
        except OSError as error:
            raise QuarantineError(f"{index}: cannot be rewritten: {error.strerror}") from error

    def _rewrite(self, path: str, chunks: Iterable[bytes], injections: Mapping[int, Injection | None]) -> None:
        file = self._disk.create(path, 0)
        try:
            _write_all(file, marked(chunks, injections))
            file.sync()
        finally:
            file.close()


def _write_all(file: WritableFile, pieces: Iterable[bytes]) -> None:
    gathered, at = bytearray(), 0
    for piece in pieces:
        gathered += piece
        if len(gathered) >= _GATHERED:
            file.write(at, bytes(gathered))
            at += len(gathered)
            gathered.clear()
    file.write(at, bytes(gathered))


def _unreadable(path: str, error: OSError) -> QuarantineError:
    return QuarantineError(f"{path}: cannot be read: {error.strerror or error}")
