"""Makes a backup of a store: the bytes of its files, in chunks.

    1. the files of the source are cut into chunks of 4 MiB
    2. chunks that the repository does not have are compressed and written
    3. with `verify`, all of them are read back
    4. the manifest is written: only now there is a backup

An incremental backup writes only chunks that are new, like every backup; and it does not even read what cannot have
changed since the one before: journals with the same incarnation and last flush, and of a running store also data files
with the same header that were full. Both only if each data file is the same version of the same file: a store that was
restored from an older backup goes on with the same numbers and headers, and so does a new one at the same path.

After a kill the next backup finds the chunks that were written, and writes the others.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from qstore.store.backup.chunks import ChunkWriter, Effort
from qstore.store.backup.manifest import BackupFile, Manifest, read_manifest, write_manifest
from qstore.store.backup.repository import Repository, backup_names, check_mark, known_chunks
from qstore.store.backup.source import Source, SourceFile, SourceJournal
from qstore.store.backup.verify import verify_chunks
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.repair.stopped_store import told_errors

_NUMBER: Final = re.compile(r"[0-9]{6,12}")
_DATA_SUFFIX: Final = ".jdat"
_INLINE: Final = Effort()
_MAX_INFO: Final = 1 << 20  # bytes of a file that is read to see whether it has changed

#: Called with the name of each stage and its bytes, and then with numbers of bytes that are done.
Stage = Callable[[str, int], None]
Advance = Callable[[int], None]


class BackupResult(NamedTuple):
    """A backup that was made.

    Attributes:
        manifest: its manifest.
        written: bytes of new chunks, compressed.
        new, reused: bytes of files in chunks that were written, and in those that were there or not read again.
    """

    manifest: Manifest
    written: int
    new: int
    reused: int


class StoreBackup:
    """One backup. If its source was overtaken, `run` may be called again with another one.

    Args:
        environment: clock and random numbers.
        repository: where it goes, locked.
        software_version: recorded in it.
        effort: how much of the machine it may take.
        stage, advance: receive progress.
    """

    def __init__(
        self,
        environment: Environment,
        repository: Repository,
        software_version: str,
        *,
        effort: Effort = _INLINE,
        stage: Stage = lambda *_: None,
        advance: Advance = lambda _: None,
    ) -> None:
        self._environment, self._repository, self._software = environment, repository, software_version
        self._effort, self._stage, self._advance = effort, stage, advance
        self._reused = 0
        self._bases: list[_Base] = []
        self._attempt: _Attempt | None = None

    def run(self, source: Source, *, full: bool = False, verify: bool = False) -> BackupResult:
        """Make it.

        Args:
            source: the store.
            full: read everything, whatever flush numbers say.
            verify: read all of its chunks back before it counts.

        Raises:
            StoreError: it cannot be made; there is no new backup.
        """
        with told_errors(source.store):
            check_mark(self._repository, create=True)
            seconds = self._environment.clock() // 1_000_000_000
            manifest = Manifest(
                self._next_identity(seconds), seconds, self._software, source.store, source.kind, source.root
            )
            manifest.live, manifest.directories, manifest.links = source.is_live, source.directories, source.links
            self._repository.sync()  # of an attempt before: else its last chunks are not known
            self._bases = self._found_bases(manifest, source, full=full)
            self._attempt, self._reused = _Attempt(source, manifest, []), 0
            self._stage("backing up", source.size)
            known = known_chunks(self._repository, source.alive)
            with ChunkWriter(self._repository, known, self._effort, self._advance) as writer:
                writer.was_read, writer.alive = source.was_read, source.alive
                for part in source.parts():
                    self._part(part, self._attempt, writer)
                writer.finish()
                source.check()
            self._repository.sync()
            if verify:
                self._stage("verifying", manifest.size)
                verify_chunks(self._repository, manifest, self._advance)
            manifest.files.sort()
            write_manifest(self._repository, manifest)
            return BackupResult(manifest, writer.written, writer.new, self._reused + writer.reused)

    def _next_identity(self, seconds: int) -> str:
        """An id that follows those of all other backups: their order does not depend on clocks."""
        names = backup_names(self._repository)
        number = 1 + max((int(found[0]) for name in names if (found := _NUMBER.match(name))), default=0)
        moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
        return f"{number:06d}-{moment}-{self._environment.random_bits(16):04x}"

    def _found_bases(self, manifest: Manifest, source: Source, *, full: bool) -> list[_Base]:
        """What was backed up before of the same store: in an attempt that was overtaken, and in the latest backup."""
        bases = [] if self._attempt is None else [self._attempt.confirmed()]
        for identity in () if full else reversed(backup_names(self._repository)):
            source.alive()
            try:
                before = read_manifest(self._repository, identity)
            except StoreError:
                continue  # a damaged one is reported when it is verified
            if before.store == manifest.store and before.live == manifest.live:
                bases.append(_Base(before.id, {tuple(each) for each in before.journals}, _by_path(before.files)))
                break
        return bases

    # ---- files ----

    def _part(self, part: SourceJournal, attempt: _Attempt, writer: ChunkWriter) -> None:
        """Back up the files of a journal, or all others."""
        manifest, made = attempt.manifest, list[BackupFile]()
        attempt.parts.append((part, made))
        unchanged = self._unchanged(part, manifest)
        for file in part.files:
            old = unchanged.get(file.path) or self._same_file(file, manifest)
            if old is not None:
                made.append(old._replace(mark=file.mark, version=file.version))
                self._reused += file.size
                self._advance(file.size)
            else:
                made.append(BackupFile(file.path, file.size, [], file.mark, file.version))
                writer.write(file, made[-1].chunks)
        manifest.files += made
        if part.key is not None:
            manifest.journals.append(list(part.key))
        writer.end_of(part)

    def _unchanged(self, part: SourceJournal, manifest: Manifest) -> dict[str, BackupFile]:
        """The data files of a journal that was not written to since they were backed up, by path."""
        for base in self._bases:
            if part.key is not None and part.key in base.journals:
                found = {file.path: base.files.get(file.path) for file in part.files}
                if all(_is_unchanged(file, found[file.path]) for file in part.files):
                    manifest.based_on = manifest.based_on or base.id
                    return {path: old for path, old in found.items() if old and path.endswith(_DATA_SUFFIX)}
        return {}

    def _same_file(self, file: SourceFile, manifest: Manifest) -> BackupFile | None:
        """A file of an earlier backup that is marked as the same."""
        for base in self._bases if file.mark else ():
            old = base.files.get(file.path)
            if old is not None and old.mark == file.mark and _is_same_version(file, old):
                manifest.based_on = manifest.based_on or base.id
                return old
        return None


class _Base(NamedTuple):
    """What was backed up before: the id of the backup, if there is one, the keys of its journals, its files by path."""

    id: str | None
    journals: set[tuple[int, ...]]
    files: dict[str, BackupFile]


class _Attempt(NamedTuple):
    """A backup that was begun: its source, its manifest, and the files of each part so far."""

    source: Source
    manifest: Manifest
    parts: list[tuple[SourceJournal, list[BackupFile]]]

    def confirmed(self) -> _Base:
        """What of it another attempt can use."""
        parts = [(part, files) for part, files in self.parts if self.source.is_confirmed(part)]
        keys = {tuple[int, ...](part.key) for part, _ in parts if part.key is not None}
        return _Base(None, keys, _by_path([file for _, files in parts for file in files]))


def _by_path(files: Sequence[BackupFile]) -> dict[str, BackupFile]:
    return {file.path: file for file in files}


def _is_same_version(file: SourceFile, old: BackupFile) -> bool:
    """Whether a data file was neither written to nor replaced."""
    return old.size == file.size and old.version == file.version != ""


def _is_unchanged(file: SourceFile, old: BackupFile | None) -> bool:
    """Whether a file of a journal that was not written to is as it was: its info file, which is read, may not be."""
    if old is None or old.size != file.size:
        return False
    if posixpath.splitext(file.path)[1] == _DATA_SUFFIX:
        return _is_same_version(file, old)
    if file.size > _MAX_INFO:
        return False
    with file.open() as read:
        return [sha256(read(0, file.size)).hexdigest()] == old.chunks
