"""The data directory, used by one broker at a time.

DIR/lock    locked while a broker is running; contains its process id (`pid_file`)
DIR/…       the data of the broker and its store
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qstore.broker.process.pid_file import PidFile, holder_of
from qstore.formats.wording import printable

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
