"""Reads the Berkeley DB environment beside qpidd's journals: queues, exchanges, bindings, links.

The directory (`rhm/dat` or `qls/dat2`) is only ever read. Where the database files hold everything that was
committed, which the log tells (`formats.bdb.log`), they are read as they are. Otherwise, after a kill,
libdb's own recovery is run on a private copy: `db5.3_recover`, from Debian's package db5.3-util. Where that
program is missing or fails, the files are read as they are, and a notice says what that means.

Sources: formats page, sections 1, 10.1, 10.8 and 14.1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from formats.bdb import BdbError, Btree, LogSummary, Lsn, analyse_log, salvage, why_recovery
from store.disk import Disk, OsDisk, read_whole

#: The databases that hold the wiring; `config.db` and `mappings.db` are never written by qpidd.
TABLES = ("queues", "exchanges", "bindings", "general")

#: A larger database file than this is refused: a million bindings with arguments take a tenth of it.
LARGEST_DATABASE = 1 << 30
#: Likewise for one log file; libdb's default is 10 MiB.
LARGEST_LOG_FILE = 1 << 30

RECOVERY_TIMEOUT = 120.0  # seconds
_VERSION_TIMEOUT = 10.0  # seconds
_LOG_NAME = re.compile(r"log\.(\d{10})")
_COPY_CHUNK = 1 << 16  # bytes; chunks of zeros, most of a log, are not written
_LONGEST_COMPLAINT = 4096  # bytes read of what the recovery program says

Rows = tuple[tuple[bytes, bytes], ...]


class BerkeleyDamage(NamedTuple):
    """A damaged place: path of the file, offset in bytes, and one line that says what was wrong."""

    file: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class BerkeleyEnvironment:
    """What an environment holds: raw (key, value) pairs in the order of each database's cursor.

    Attributes:
        queues: key queue id, value of section 10.3.
        exchanges: key exchange id, value of section 10.4.
        bindings: key exchange id, value of section 10.5.
        general: key id, value of section 10.6.
        recovered: whether this was read from a recovered copy.
        complete: False where committed changes may be missing, since recovery was needed and could not be had.
        notices: one line each, for a person: what may be missing, and what to do.
        damage: what could not be read, or was lost.
    """

    queues: Rows
    exchanges: Rows
    bindings: Rows
    general: Rows
    recovered: bool
    complete: bool
    notices: tuple[str, ...]
    damage: tuple[BerkeleyDamage, ...]


class RecoveryError(Exception):
    """libdb's recovery was not possible: one line."""


@dataclass(slots=True)
class _Reading:
    """The environment's files as they are in one directory."""

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
    """Read the environment in `directory`, in its last committed state where that can be had.

    Args:
        disk: what `directory` is read through. Nothing is written there.
        directory: `rhm/dat` or `qls/dat2` of a store.
        recovery_timeout: seconds that libdb's recovery may take.

    Raises:
        OSError: `directory` itself cannot be listed. Whatever is wrong within it is in `damage`.
    """
    reading = _read_files(disk, directory)
    if reading.unreadable:
        return _environment(reading, [], [], complete=False)  # recovery of the others would leave them inconsistent
    if not reading.logs:
        return _environment(reading, [], [])
    summary, log_damage = _analyse_logs(reading)
    notices = [
        f"{reading.logs[number]}: the log breaks off at offset {error.offset} ({error.what}); "
        "what was written after it is lost, which is usual for uncommitted changes after a crash"
        for number, error in summary.torn
    ]
    reason = _why_recovery(reading, summary, log_damage)
    if reason is None:
        return _environment(reading, notices, log_damage)
    try:
        recovered = _recovered_reading(reading, summary, recovery_timeout)
    except RecoveryError as error:
        notices.append(
            f"{directory}: read without Berkeley DB recovery, which it needs ({reason}): {error}; "
            "the newest changes to queues, exchanges and bindings may be missing"
        )
        return _environment(reading, notices, log_damage, complete=False)
    # Recovery ends where the log breaks off, and takes back what it then knows nothing of.
    if log_damage and recovered.rows < reading.rows:
        notices.append(f"{directory}: the log is damaged; the database files, which hold more, were read as they are")
        return _environment(reading, notices, log_damage, complete=False)
    return _environment(recovered, notices, log_damage, recovered=True)


def _environment(
    reading: _Reading,
    notices: list[str],
    log_damage: list[BerkeleyDamage],
    *,
    recovered: bool = False,
    complete: bool = True,
) -> BerkeleyEnvironment:
    return BerkeleyEnvironment(
        **reading.tables,
        recovered=recovered,
        complete=complete,
        notices=tuple(notices),
        damage=tuple(reading.damage + log_damage),
    )


def _read_files(disk: Disk, directory: str, shown_as: str | None = None) -> _Reading:
    """Read the database files in `directory`; damage names them as if they were in `shown_as`."""
    reading = _Reading(disk, directory)
    for name in disk.names(directory):
        path = _join(directory, name)
        log_name = _LOG_NAME.fullmatch(name)
        if log_name is not None:
            reading.logs[int(log_name[1])] = path
        elif name.endswith(".db"):
            try:
                reading.databases[name] = _read_limited(disk, path, LARGEST_DATABASE)
            except OSError as error:
                reading.damage.append(BerkeleyDamage(_join(shown_as or directory, name), 0, _one_line(error)))
                reading.unreadable = True
    for table in TABLES:
        path = _join(shown_as or directory, f"{table}.db")
        reading.tables[table] = _rows(reading, f"{table}.db", path)
    return reading


def _rows(reading: _Reading, name: str, path: str) -> Rows:
    buffer = reading.databases.get(name)
    if buffer is None:
        if all(damage.file != path for damage in reading.damage):
            reading.damage.append(BerkeleyDamage(path, 0, "the file is missing"))
        return ()

    def on_damage(error: BdbError) -> None:
        reading.damage.append(BerkeleyDamage(path, error.offset, error.what))

    return tuple(salvage(buffer, on_damage))


def _analyse_logs(reading: _Reading) -> tuple[LogSummary, list[BerkeleyDamage]]:
    damage: list[BerkeleyDamage] = []

    def files() -> Iterator[tuple[int, bytes]]:
        for number, path in sorted(reading.logs.items()):
            try:
                data = _read_limited(reading.disk, path, LARGEST_LOG_FILE)
            except OSError as error:
                damage.append(BerkeleyDamage(path, 0, _one_line(error)))
                return
            yield number, data

    summary = analyse_log(files())
    for number, error in summary.damage:
        path = reading.logs.get(number, _join(reading.directory, f"log.{number:010}"))
        damage.append(BerkeleyDamage(path, error.offset, f"{error.what}; what the log holds behind it was not used"))
    return summary, damage


def _why_recovery(reading: _Reading, summary: LogSummary, log_damage: list[BerkeleyDamage]) -> str | None:
    for damage in log_damage + reading.damage:
        return f"{damage.file}: {damage.what}"
    trees: dict[str, Btree] = {}
    for name, buffer in reading.databases.items():
        try:
            trees[name] = Btree(buffer)
        except BdbError as error:
            return f"{name}: {error.what}"

    def page_lsn(name: str, number: int) -> Lsn | None:
        return trees[name].page_lsn(number) if name in trees else None

    return why_recovery(summary, page_lsn, {name: tree.newest_lsn() for name, tree in trees.items()})


def _recovered_reading(reading: _Reading, summary: LogSummary, timeout: float) -> _Reading:
    """Recover a private copy of the environment and read that.

    Raises:
        RecoveryError: it cannot be had.
    """
    # The log's names become paths of files that recovery opens, makes, renames.
    if any("/" in name for name in summary.names):
        raise RecoveryError("its log names files outside of its directory")
    program = find_recovery_program()
    if program is None:
        raise RecoveryError("install Debian's db5.3-util")
    try:
        with tempfile.TemporaryDirectory(prefix="qstore-berkeley-", ignore_cleanup_errors=True) as copy:
            _copy_environment(reading, summary.walked_files, Path(copy))
            _run_recovery(program, Path(copy), timeout)
            return _read_files(OsDisk(), copy, shown_as=reading.directory)
    except OSError as error:
        raise RecoveryError(f"recovery on a private copy was not possible: {_one_line(error)}") from error


def find_recovery_program() -> str | None:
    """Path of libdb 5.3's recovery program; None where there is none."""
    debian = shutil.which("db5.3_recover")
    if debian is not None:
        return debian
    other = shutil.which("db_recover")
    if other is None:
        return None
    try:
        version = subprocess.run(  # noqa: S603 - a program found on the PATH, no input of others
            [other, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return other if b" 5.3." in version.stdout + version.stderr else None


def _copy_environment(reading: _Reading, log_numbers: list[int], copy: Path) -> None:
    """Copy databases, then logs: of a broker that still runs, the log must be the newer of the two."""
    for name, buffer in reading.databases.items():
        (copy / name).write_bytes(buffer)
    for number in log_numbers:
        source = reading.disk.open(reading.logs[number])
        try:
            with (copy / f"log.{number:010}").open("wb") as target:
                for offset in range(0, source.size, _COPY_CHUNK):
                    chunk = source.read(offset, _COPY_CHUNK)
                    if chunk.count(0) != len(chunk):
                        target.seek(offset)
                        target.write(chunk)
                target.truncate(source.size)
        finally:
            source.close()


def _run_recovery(program: str, copy: Path, timeout: float) -> None:
    """Run recovery in `copy`. Raises RecoveryError with the program's first line, OSError."""
    environment: Mapping[str, str] = {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": str(copy)}
    complaints = copy / "complaints.txt"
    with complaints.open("wb") as output:
        try:
            result = subprocess.run(  # noqa: S603 - no shell; both arguments are our own paths
                [program, "-h", str(copy)],
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
            lines = output.read(_LONGEST_COMPLAINT).decode(errors="replace").splitlines()
        first = lines[0] if lines else f"exit status {result.returncode}"
        raise RecoveryError(f"{program} failed: {first.replace(str(copy) + '/', '')}")


def _read_limited(disk: Disk, path: str, limit: int) -> bytes:
    file = disk.open(path)
    size = file.size
    file.close()
    if size > limit:
        raise OSError(f"{size} bytes are more than the {limit} that are read at most")
    return read_whole(disk, path, limit)


def _join(directory: str, name: str) -> str:
    return os.path.join(directory, name)  # noqa: PTH118 - a `Disk` has `str` paths


def _one_line(error: OSError) -> str:
    return (error.strerror or str(error)).replace("\n", " ")
