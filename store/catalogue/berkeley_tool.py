"""Runs libdb's own recovery, `db5.3_recover` (Debian: db5.3-util), on a private copy of a Berkeley DB environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from qstore.formats.zeros import is_zero
from qstore.store.disk import Disk

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
