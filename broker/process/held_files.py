"""The files that a running broker holds locked: its pid file, and the lock of its data directory.

A pid file contains the id of the process that holds it. It is locked (flock(2)) as long as the process is alive; the
kernel releases the lock however the process ends. An unlocked file is stale, whatever it contains: it never has to be
removed by hand, and a process id that the system has reused is never mistaken for the broker's.

A data directory is used by one broker at a time:

    DIR/lock    a pid file, held while a broker is running
    DIR/…       the data of the broker and its store
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from pathlib import Path
from typing import Final

from qstore.formats.wording import printable

_RETRIES: Final = 20
_PAUSE_SECONDS: Final = 0.01  # `holder_of` holds the lock for microseconds
_NUMBER: Final = re.compile(rb"[0-9]{1,10}")
_MAX_BYTES: Final = 64
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # refuse a FIFO instead of blocking on it


class PidFile:
    """A locked pid file.

    Args:
        path: the file; created if it does not exist, with mode 0644 less the umask.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be created or locked.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = self._take()
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            os.close(self._descriptor)
            raise

    def _take(self) -> int:
        for tries_left in reversed(range(_RETRIES)):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS | os.O_NOFOLLOW, 0o644)
            try:
                _check_regular(descriptor, self.path)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, self.path):
                    return descriptor
            except BlockingIOError:
                if not tries_left:
                    os.close(descriptor)
                    raise
                time.sleep(_PAUSE_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise BlockingIOError(f"{self.path}: the file was removed repeatedly while being locked")

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still at its path: nobody has moved or replaced it or its directory."""
        try:
            return _is_at(self._descriptor, self.path)
        except OSError:
            return False

    def release(self, *, remove: bool) -> OSError | None:
        """Unlock the file, even if the file system fails.

        Args:
            remove: whether to remove the file, unless another is at its path now; otherwise it is emptied.

        Returns:
            The error if the file could not be removed or emptied, which is harmless, since it is unlocked.
        """
        try:
            if remove:
                if _is_at(self._descriptor, self.path):
                    Path(self.path).unlink(missing_ok=True)
            else:
                os.ftruncate(self._descriptor, 0)
        except OSError as error:
            return OSError(error.errno, error.strerror, self.path)
        finally:
            os.close(self._descriptor)
        return None


def _check_regular(descriptor: int, path: str) -> None:
    """Raise OSError for a FIFO or a device."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one at its path: its previous holder may have removed it."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def holder_of(path: str) -> int | None:
    """The id of the process that holds a file; None if none does or the file does not exist. Raises OSError."""
    for _ in range(_RETRIES):
        try:
            descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return None
        try:
            _check_regular(descriptor, path)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            number = os.pread(descriptor, _MAX_BYTES, 0).strip()
            if _NUMBER.fullmatch(number):
                return int(number)
            time.sleep(_PAUSE_SECONDS)  # locked just now: the holder is about to write its process id
        else:
            return None
        finally:
            os.close(descriptor)
    raise OSError(0, "locked by another process, but contains no process id", path)


# ---- the data directory ----

_LOCK: Final = "lock"
_MODE: Final = 0o700
_OTHERWISE: Final = "choose another with --data-dir, or --no-data-dir to store nothing"

DAEMON_DATA_DIRECTORY: Final = "/var/lib/qpidd"
"""Qpid C++ Broker Book, 1.1.3.1 and 1.1.5; MRG 2 Messaging User Guide, 6.2."""


class DataDirectoryError(Exception):
    """The directory cannot be used. The text is one line for the user."""


def user_directory() -> str:
    """The default data directory of a broker in the foreground (MRG 2 Messaging User Guide, 6.2)."""
    try:
        return str(Path("~/.qpidd").expanduser())
    except RuntimeError:  # no home directory
        return DAEMON_DATA_DIRECTORY


def default_data_directory(*, is_daemon: bool) -> str:
    """The data directory without --data-dir."""
    return DAEMON_DATA_DIRECTORY if is_daemon else user_directory()


def lock_path(directory: str) -> str:
    """The path of a data directory's lock file."""
    return str(Path(directory, _LOCK))


class DataDirectory:
    """A locked data directory, created if it does not exist.

    Args:
        path: the directory.

    Raises:
        DataDirectoryError: another broker uses it, or it cannot be created or written to.
    """

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).absolute())
        try:
            if not Path(self.path).is_dir():
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
                Path(self.path).mkdir(mode=_MODE)
        except OSError as error:
            raise self._unusable(error) from error
        lock = lock_path(self.path)
        try:
            self._lock = PidFile(lock)
        except BlockingIOError:
            raise DataDirectoryError(
                f"Cannot lock {printable(lock)}: Resource temporarily unavailable; {_describe_holder(lock)}"
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> DataDirectoryError:
        where = printable(str(error.filename or self.path))
        return DataDirectoryError(f"{where}: the data directory cannot be used: {error.strerror}; {_OTHERWISE}")

    def release(self) -> OSError | None:
        """Unlock it; the lock file remains. Returns the error if the process id could not be erased from it."""
        return self._lock.release(remove=False)


def _describe_holder(lock: str) -> str:
    try:
        holder = holder_of(lock)
    except OSError:
        holder = None
    who = "another broker" if holder is None else f"process {holder}"
    return f"{who} is using it: shut it down with --quit, or choose another directory with --data-dir"
