"""The identity of a broker: a permanent id, and the number of its starts. Both are in a file of its data directory.

    .mbrokerdata    ID STARTS BANK    as qpidd's, whose third number is not used here; 0600

Objects that do not survive a restart have the number of starts in their id, so that a console does not take one for
another. A broker without a data directory, or one whose file cannot be written, has a new id at each start.

Source: qpidd, ManagementAgent.cpp (the file's name and content).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
from pathlib import Path
from typing import Final, Self
from uuid import UUID, uuid4, uuid5

from qstore.broker.log.logs import log_of
from qstore.formats.named_tuple import NamedTuple

_LOG: Final = log_of("Management")
_FILE: Final = ".mbrokerdata"
_NAMESPACE: Final = UUID("8d1b0f6e-6a0c-5d0b-9a57-0f4f5a3f7c11")
_MAX_STARTS: Final = 0xFFF
_MAX_BYTES: Final = 200


class Identity(NamedTuple):
    """The identity of a broker.

    Attributes:
        instance: its id.
        starts: how often it was started: 1 to 4095, then 1 again.
    """

    instance: UUID
    starts: int

    @property
    def system(self) -> UUID:
        """The id of the machine."""
        return uuid5(_NAMESPACE, platform.node())

    @classmethod
    def new(cls) -> Self:
        """A new one."""
        return cls(uuid4(), 1)

    @classmethod
    def of(cls, directory: str | None) -> Self:
        """The one in a data directory, started once more."""
        if directory is None:
            return cls.new()
        path = Path(directory) / _FILE
        found = _read(path)
        identity = cls.new() if found is None else cls(found[0], found[1] % _MAX_STARTS + 1)
        try:
            _write(path, f"{identity.instance} {identity.starts} 10\n")
        except OSError as error:
            _LOG.warning("%s: the broker's id cannot be written: %s", path, error.strerror)
        return identity


def _read(path: Path) -> tuple[UUID, int] | None:
    try:
        with open(path, "rb", opener=_open_file) as file:
            parts = file.read(_MAX_BYTES).split()
        return UUID(parts[0].decode("ascii")), max(0, int(parts[1]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, IndexError) as error:
        _LOG.warning("%s: the broker's id cannot be read; a new one is created: %s", path, error)
        return None


def _open_file(path: str, flags: int) -> int:
    """Open a regular file: the start must not wait for a writer of a FIFO."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def _write(path: Path, text: str) -> None:
    """Replace the file, whatever happens."""
    new = path.with_name(path.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    descriptor = os.open(new, flags, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(path)
    with contextlib.suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
