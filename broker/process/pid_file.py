"""A file with the number of the process that holds it.

The file is locked (flock(2)) as long as the process lives, and the lock goes with it, however it ends. So a file that
is not locked belongs to nobody, whatever stands in it: nothing ever has to be removed by hand, and a number that is
used again for another process is never taken for the broker's.
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
_PAUSE_SECONDS: Final = 0.01  # whoever only looks holds the lock for microseconds
_NUMBER: Final = re.compile(rb"[0-9]{1,10}")
_MAX_BYTES: Final = 64
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # a FIFO is refused, and not waited for


class PidFile:
    """Holds the file.

    Args:
        path: the file. It is made, if there is none, readable by all whom the process's umask lets read.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made or locked.
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
        raise BlockingIOError(f"{self.path}: it is removed again and again")

    def release(self, *, remove: bool) -> OSError | None:
        """Let it go, whatever state the file system is in.

        Args:
            remove: whether the file goes, too; else it is left without a number.

        Returns:
            Why the file is still there, or the number in it. That does no harm: the file is nobody's.
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
    """Raise OSError where a FIFO or a device is in the place of the file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _is_at(descriptor: int, path: str) -> bool:
    """Whether a file that was opened is still the one at its path: who held it before may have removed it."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def holder_of(path: str) -> int | None:
    """The number of the process that holds a file; None if none does, or there is no file. Raises OSError."""
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
            time.sleep(_PAUSE_SECONDS)  # it was locked just now, and the number comes next
        else:
            return None
        finally:
            os.close(descriptor)
    raise OSError(0, "it is locked by a process that does not tell its number", path)
