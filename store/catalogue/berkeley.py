"""Reads the Berkeley DB environment next to qpidd's journals: queues, exchanges, bindings, links.

The directory (`rhm/dat` or `qls/dat2`) is only ever read. If the database files hold everything that was committed,
which the log shows (`formats.bdb.log`), they are read directly. Otherwise, after a kill, libdb's own recovery is run on
a private copy: `db5.3_recover`, from Debian's package db5.3-util. If that program is missing or cannot be run, the
files are read as they are, and a notice explains the consequences.

A file that no crash leaves like this is damage: broken metadata, a partial page, the file of another store, or one that
is older than the log's last checkpoint; and so is an environment at which recovery fails. If the log reaches back to
the beginning, everything is read from it even then.

Sources: formats/bdb/README.md, 1 and 5; formats/rhm/README.md, 1.3; formats/qls/README.md, 1.1.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qstore.formats.bdb import BdbError, Btree, LogSummary, Lsn, analyse_log, contradictions, salvage, why_recovery
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.zeros import is_zero
from qstore.store.disk import Disk, OsDisk, read_whole

# ---- libdb's own recovery, on a copy ----

RECOVERY_TIMEOUT: Final = 120.0  # seconds
_VERSION_TIMEOUT: Final = 10.0  # seconds
_COPY_CHUNK: Final = 1 << 16  # bytes; chunks of zeros, most of a log, are not written
_MAX_COMPLAINT: Final = 4096  # maximum bytes read of the recovery program's output


class RecoveryError(Exception):
    """libdb's recovery could not be run to its end: the program, time or disk space is missing. One line."""


class RecoveryFailedError(RecoveryError):
    """libdb's recovery fails, or would fail, because of the environment."""


def find_recovery_program() -> str | None:
    """Path of libdb 5.3's recovery program; None if it is missing."""
    debian = shutil.which("db5.3_recover")
    if debian is not None:
        return debian
    other = shutil.which("db_recover")
    if other is None:
        return None
    try:
        version = subprocess.run(  # noqa: S603 - a program found on the PATH, without external input
            [other, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return other if b" 5.3." in version.stdout + version.stderr else None


def copy_environment(disk: Disk, databases: Mapping[str, bytes], logs: Mapping[int, str], copy: Path) -> None:
    """Copy databases, then logs: if a broker is running, the log must be the newer of the two.

    Args:
        disk: reads the logs.
        databases: name of a database file -> its bytes.
        logs: number of a log file -> its path.
        copy: an empty directory.

    Raises:
        OSError: a log cannot be read, or the copy cannot be written.
    """
    for name, buffer in databases.items():
        (copy / name).write_bytes(buffer)
    for number, path in logs.items():
        source = disk.open(path)
        try:
            with (copy / f"log.{number:010}").open("wb") as target:
                for offset in range(0, source.size, _COPY_CHUNK):
                    chunk = source.read(offset, _COPY_CHUNK)
                    if not is_zero(chunk):
                        target.seek(offset)
                        target.write(chunk)
                target.truncate(source.size)
        finally:
            source.close()


def run_recovery(program: str, copy: Path, timeout: float, *, log_alone: bool) -> None:
    """Run recovery in `copy`.

    Args:
        program: path of the program.
        copy: a directory with an environment, which is changed.
        timeout: time limit in seconds.
        log_alone: there are no database files: they are rebuilt from the beginning of the log.

    Raises:
        RecoveryFailedError: it fails.
        RecoveryError: it takes too long.
        OSError: it cannot be run.
    """
    environment: Mapping[str, str] = {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": str(copy)}
    complaints = copy / "complaints.txt"
    with complaints.open("wb") as output:
        try:
            result = subprocess.run(  # noqa: S603 - no shell; both arguments are internal paths
                [program, "-h", str(copy), *(["-c"] if log_alone else [])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RecoveryError(f"{program} did not end within {timeout:g} seconds") from None
    if result.returncode != 0:
        with complaints.open("rb") as output:
            lines = output.read(_MAX_COMPLAINT).decode(errors="replace").splitlines()
        first = lines[0] if lines else f"exit status {result.returncode}"
        raise RecoveryFailedError(f"{program} failed: {first.replace(str(copy) + '/', '')}")


# ---- reading an environment ----

#: The databases that hold the topology; `config.db` and `mappings.db` are never written by qpidd.
TABLES = ("queues", "exchanges", "bindings", "general")

#: Larger database files are refused: a million bindings with arguments take a tenth of it.
MAX_DATABASE = 1 << 30
#: Likewise for one log file; libdb's default is 10 MiB.
MAX_LOG_FILE = 1 << 30

_LOG_NAME = re.compile(r"log\.(\d{10})")

_MISSING: Final = "there is no such file"

Rows = tuple[tuple[bytes, bytes], ...]


class BerkeleyDamage(NamedTuple):
    """A damaged place.

    Attributes:
        file: path of the file.
        offset: in bytes; None if the whole file is meant.
        what: the damage, in one line.
        is_healed: whether all of its content is known nevertheless, from the log.
    """

    file: str
    offset: int | None
    what: str
    is_healed: bool = False


@dataclass(frozen=True, slots=True)
class BerkeleyEnvironment:
    """The content of an environment: raw (key, value) pairs in the order of each database's cursor.

    Attributes:
        queues: key queue id, value of formats/broker_records/README.md, 4.2.
        exchanges: key exchange id, value of 4.3 there.
        bindings: key exchange id, value of 4.4 there.
        general: key id, value of 4.5 there.
        recovered: whether this was read from a recovered copy.
        complete: False if committed changes may be missing, because recovery was needed but not possible.
        notices: one line each for the user: possible losses, and the advice.
        damage: unreadable or lost parts.
    """

    queues: Rows
    exchanges: Rows
    bindings: Rows
    general: Rows
    recovered: bool
    complete: bool
    notices: tuple[str, ...]
    damage: tuple[BerkeleyDamage, ...]


@dataclass(slots=True)
class _Reading:
    """The unmodified files of an environment in one directory."""

    disk: Disk
    directory: str
    databases: dict[str, bytes] = field(default_factory=dict)  # file name -> bytes
    logs: dict[int, str] = field(default_factory=dict)  # number of a log file -> its path
    tables: dict[str, Rows] = field(default_factory=dict)
    damage: list[BerkeleyDamage] = field(default_factory=list)
    unreadable: bool = False  # the system refused one of the database files

    @property
    def rows(self) -> int:
        return sum(len(rows) for rows in self.tables.values())


def read_environment(disk: Disk, directory: str, *, recovery_timeout: float = RECOVERY_TIMEOUT) -> BerkeleyEnvironment:
    """Read the environment in `directory`, in its last committed state if possible.

    Args:
        disk: reads `directory`. Nothing is written there.
        directory: `rhm/dat` or `qls/dat2` of a store.
        recovery_timeout: seconds that libdb's recovery may take.

    Raises:
        OSError: `directory` itself cannot be listed. All problems within it are in `damage`.
    """
    reading = _read_files(disk, directory)
    if not reading.logs:
        return _environment(reading, [], [], complete=not reading.unreadable)
    summary, log_damage = _analyse_logs(reading)
    notices = [
        f"{reading.logs[number]}: the log breaks off at offset {error.offset} ({error.what}); "
        "later entries are lost, which is usual for uncommitted changes after a crash"
        for number, error in summary.torn
    ]
    wrong = _wrong_files(reading, summary)
    reason = _why_recovery(reading, summary, log_damage, wrong)
    if reason is None:
        return _environment(reading, notices, log_damage)
    return _Recovering(reading, summary, notices, log_damage, wrong, recovery_timeout).all(reason)


def _environment(
    reading: _Reading,
    notices: list[str],
    damage: list[BerkeleyDamage],
    *,
    recovered: bool = False,
    complete: bool = True,
    is_healed: bool = False,
) -> BerkeleyEnvironment:
    found = [each._replace(is_healed=is_healed) for each in dict.fromkeys(reading.damage + damage)]
    return BerkeleyEnvironment(
        **reading.tables, recovered=recovered, complete=complete, notices=tuple(notices), damage=tuple(found)
    )


@dataclass(slots=True)
class _Recovering:
    """An environment that cannot be read directly, and the ways of reading it.

    Recovery needs all database files as a crash left them. If one is not, but the log reaches back to the beginning,
    the files are rebuilt from the log alone, and nothing is missing; otherwise the others are recovered without it, and
    its readable part is added.

    Attributes:
        reading: the unmodified files.
        summary: the summary of the log.
        notices: the notices so far.
        log_damage: damage to the log.
        wrong: damage to database files that a crash does not explain.
        timeout: seconds for each recovery.
    """

    reading: _Reading
    summary: LogSummary
    notices: list[str]
    log_damage: list[BerkeleyDamage]
    wrong: list[BerkeleyDamage]
    timeout: float

    def all(self, reason: str) -> BerkeleyEnvironment:
        """Read as much as possible. `reason` states why recovery is needed."""
        if self.reading.unreadable:
            self.wrong.extend(self.reading.damage)
        try:
            if not self.wrong:
                return self._recovered()
            return self._made_anew(self.wrong) or self._recovered_in_part()
        except RecoveryError as error:
            notice = (
                f"{self.reading.directory}: read without the required Berkeley DB recovery ({reason}): {error}; "
                "the newest changes to queues, exchanges and bindings may be missing"
            )
            damage = [*self.wrong, *self.log_damage]
            if isinstance(error, RecoveryFailedError):
                damage.append(self._failed(error))
            return _environment(self.reading, [*self.notices, notice], damage, complete=False)

    def _failed(self, error: RecoveryFailedError) -> BerkeleyDamage:
        return BerkeleyDamage(self.reading.directory, None, f"Berkeley DB recovery is needed: {error}")

    def _recovered(self) -> BerkeleyEnvironment:
        """Recover files as a crash left them."""
        try:
            recovered = self._run(self.reading.databases)
        except RecoveryFailedError as error:
            made = self._made_anew([self._failed(error)])
            if made is None:
                raise
            return made
        if recovered.damage and (made := self._made_anew(recovered.damage)) is not None:
            return made
        # Recovery ends at the break in the log, and undoes changes that it does not find there.
        if self.log_damage and recovered.rows < self.reading.rows:
            return self._as_they_are()
        return _environment(recovered, self.notices, self.log_damage, recovered=True)

    def _as_they_are(self) -> BerkeleyEnvironment:
        notice = (
            f"{self.reading.directory}: the log is damaged; the database files, which hold more, were read unrecovered"
        )
        damage = [*self.wrong, *self.log_damage]
        return _environment(self.reading, [*self.notices, notice], damage, complete=False)

    def _made_anew(self, wrong: list[BerkeleyDamage]) -> BerkeleyEnvironment | None:
        """Recover from the log alone, because of the damage `wrong`; None if the log is incomplete."""
        if self.log_damage or self.summary.walked_files[:1] != [1]:
            return None
        try:
            made = self._run({})
        except RecoveryFailedError:
            return None
        is_whole = not any(self.summary.end < lsn for lsn in self._newest_changes())
        if made.damage or not (
            is_whole or all(set(self.reading.tables[each]) <= set(made.tables[each]) for each in TABLES)
        ):
            return None
        return _environment(made, self.notices, wrong, recovered=True, is_healed=is_whole)

    def _newest_changes(self) -> Iterator[Lsn]:
        """The newest changes in the files that belong to this log."""
        for name, tree in _trees(self.reading).items():
            if self.summary.file_ids.get(name) == tree.metadata.file_id:
                yield tree.newest_change()[1]

    def _recovered_in_part(self) -> BerkeleyEnvironment:
        """Recover without the damaged files; their readable part is added."""
        names = {posixpath.basename(damage.file) for damage in self.wrong}
        others = {name: content for name, content in self.reading.databases.items() if name not in names}
        recovered = self._run(others)
        if self.log_damage and recovered.rows < sum(
            len(rows) for table, rows in self.reading.tables.items() if f"{table}.db" not in names
        ):
            return self._as_they_are()
        for table in TABLES:
            if f"{table}.db" in names:
                rows = (*self.reading.tables[table], *recovered.tables[table])
                recovered.tables[table] = tuple(dict.fromkeys(rows))
        recovered.damage = [each for each in recovered.damage if posixpath.basename(each.file) not in names]
        known = [each for each in self.reading.damage if posixpath.basename(each.file) in names]
        return _environment(recovered, self.notices, [*known, *self.wrong, *self.log_damage], recovered=True)

    def _run(self, databases: Mapping[str, bytes]) -> _Reading:
        """Recover a private copy of the log and these database files, and read it; of the log alone if there are none.

        Raises:
            RecoveryError: it is not possible.
        """
        # The names in the log become paths of files that recovery opens, creates or renames.
        if any("/" in name for name in self.summary.names):
            raise RecoveryFailedError("its log names files outside of its directory")
        program = find_recovery_program()
        if program is None:
            raise RecoveryError("install Debian's db5.3-util")
        try:
            with tempfile.TemporaryDirectory(prefix="qstore-berkeley-", ignore_cleanup_errors=True) as copy:
                logs = {number: self.reading.logs[number] for number in self.summary.walked_files}
                copy_environment(self.reading.disk, databases, logs, Path(copy))
                run_recovery(program, Path(copy), self.timeout, log_alone=not databases)
                return _read_files(OsDisk(), copy, shown_as=self.reading.directory)
        except OSError as error:
            raise RecoveryError(f"recovery on a private copy was not possible: {_one_line(error)}") from error


def _read_files(disk: Disk, directory: str, shown_as: str | None = None) -> _Reading:
    """Read the database files in `directory`; damage refers to them as if they were in `shown_as`."""
    reading = _Reading(disk, directory)
    for name in disk.names(directory):
        path = _join(directory, name)
        log_name = _LOG_NAME.fullmatch(name)
        if log_name is not None:
            reading.logs[int(log_name[1])] = path
        elif name.endswith(".db"):
            try:
                reading.databases[name] = _read_limited(disk, path, MAX_DATABASE)
            except OSError as error:
                reading.damage.append(BerkeleyDamage(_join(shown_as or directory, name), None, _one_line(error)))
                reading.unreadable = True
    for table in TABLES:
        path = _join(shown_as or directory, f"{table}.db")
        reading.tables[table] = _rows(reading, f"{table}.db", path)
    for name in reading.databases.keys() - {f"{table}.db" for table in TABLES}:
        _rows(reading, name, _join(shown_as or directory, name))  # to find damage: recovery needs all of them
    return reading


def _rows(reading: _Reading, name: str, path: str) -> Rows:
    buffer = reading.databases.get(name)
    if buffer is None:
        if all(damage.file != path for damage in reading.damage):
            reading.damage.append(BerkeleyDamage(path, None, _MISSING))
        return ()

    def on_damage(error: BdbError) -> None:
        reading.damage.append(BerkeleyDamage(path, error.offset, error.what))

    return tuple(salvage(buffer, on_damage))


def _analyse_logs(reading: _Reading) -> tuple[LogSummary, list[BerkeleyDamage]]:
    damage: list[BerkeleyDamage] = []

    def files() -> Iterator[tuple[int, bytes]]:
        for number, path in sorted(reading.logs.items()):
            try:
                data = _read_limited(reading.disk, path, MAX_LOG_FILE)
            except OSError as error:
                damage.append(BerkeleyDamage(path, None, _one_line(error)))
                return
            yield number, data

    summary = analyse_log(files())
    for number, error in summary.damage:
        path = reading.logs.get(number, _join(reading.directory, f"log.{number:010}"))
        damage.append(BerkeleyDamage(path, error.offset, f"{error.what}; later log entries were not used"))
    return summary, damage


def _trees(reading: _Reading) -> dict[str, Btree]:
    """The database files with readable metadata."""
    trees = {}
    for name, buffer in reading.databases.items():
        with contextlib.suppress(BdbError):
            trees[name] = Btree(buffer)
    return trees


def _wrong_files(reading: _Reading, summary: LogSummary) -> list[BerkeleyDamage]:
    """Database files that no crash leaves like this: they are renamed after their metadata is synced.

    Inconsistent pages are normal before recovery.
    """
    trees = _trees(reading)
    wrong = []
    for name, buffer in reading.databases.items():
        path = _join(reading.directory, name)
        if name not in trees:
            try:
                Btree(buffer)
            except BdbError as error:
                wrong.append(BerkeleyDamage(path, error.offset, error.what))
        elif len(buffer) % trees[name].metadata.page_size:
            what = f"{len(buffer):,} bytes are not a whole number of pages of {trees[name].metadata.page_size:,} bytes"
            wrong.append(BerkeleyDamage(path, len(buffer), what))
    missing = {f"{table}.db" for table in TABLES} - reading.databases.keys() if not reading.unreadable else set()
    wrong.extend(BerkeleyDamage(_join(reading.directory, name), None, _MISSING) for name in sorted(missing))
    found = contradictions(
        summary,
        lambda name, number: trees[name].page_lsn(number),
        {name: tree.newest_change() for name, tree in trees.items()},
        {name: tree.metadata.file_id for name, tree in trees.items()},
    )
    for each in found:
        path = _join(reading.directory, each.name)
        at = None if each.page is None else each.page * trees[each.name].metadata.page_size
        broken = [damage for damage in reading.damage if damage.file == path]
        wrong.extend(broken if broken and at is not None else [BerkeleyDamage(path, at, each.what)])
    return wrong


def _why_recovery(
    reading: _Reading, summary: LogSummary, log_damage: list[BerkeleyDamage], wrong: list[BerkeleyDamage]
) -> str | None:
    for damage in [*wrong, *log_damage, *reading.damage]:
        return f"{damage.file}: {damage.what}"
    trees = _trees(reading)
    return why_recovery(summary, lambda name, number: trees[name].page_lsn(number) if name in trees else None)


def _read_limited(disk: Disk, path: str, limit: int) -> bytes:
    file = disk.open(path)
    size = file.size
    file.close()
    if size > limit:
        raise OSError(f"{size:,} bytes exceed the maximum of {limit:,}")
    return read_whole(disk, path, limit)


def _join(directory: str, name: str) -> str:
    return os.path.join(directory, name)  # noqa: PTH118 - a `Disk` has `str` paths


def _one_line(error: OSError) -> str:
    return (error.strerror or str(error)).replace("\n", " ")
