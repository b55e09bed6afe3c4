"""A lock file that contains the id of the process that holds it.

The file is locked (flock(2)) as long as the process is alive; the kernel releases the lock however the process ends. An
unlocked file is stale, whatever it contains: it never has to be removed by hand, and a process id that the system has
reused is never mistaken for the broker's.
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

    def release(self, *, remove: bool) -> OSError | None:
        """Unlock the file, even if the file system fails.

        Args:
            remove: whether to remove the file; otherwise it is emptied.

        Returns:
            The error if the file could not be removed or emptied, which is harmless, since it is unlocked.
        """
        try:
            if remove:
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
