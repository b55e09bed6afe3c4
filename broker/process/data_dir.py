"""The data directory: what a broker keeps is below it, and one broker has it at a time.

DIR/lock    held while a broker runs, with its process id (`pid_file`)
DIR/…       what the broker and its store keep
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broker.process.pid_file import PidFile, holder_of
from formats.wording import printable

_LOCK: Final = "lock"
_MODE: Final = 0o700
_OTHERWISE: Final = "give another one with --data-dir, or --no-data-dir to keep nothing"

DAEMON_DATA_DIRECTORY: Final = "/var/lib/qpidd"
"""Qpid C++ Broker Book, 1.1.3.1 and 1.1.5; MRG 2 Messaging User Guide, 6.2."""


class DataDirectoryError(Exception):
    """The directory cannot be used. The text is one line for a person."""


def user_directory() -> str:
    """Where a broker that a person started keeps its data (MRG 2 Messaging User Guide, 6.2)."""
    try:
        return str(Path("~/.qpidd").expanduser())
    except RuntimeError:  # there is no home directory
        return DAEMON_DATA_DIRECTORY


def default_data_directory(*, is_daemon: bool) -> str:
    """The data directory of a broker that was not told one."""
    return DAEMON_DATA_DIRECTORY if is_daemon else user_directory()


def lock_path(directory: str) -> str:
    """The lock file of a data directory."""
    return str(Path(directory, _LOCK))


class DataDirectory:
    """Holds a data directory, which is made if there is none.

    Args:
        path: the directory.

    Raises:
        DataDirectoryError: another broker has it, or it cannot be made or written to.
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
                f"Cannot lock {printable(lock)}: Resource temporarily unavailable; {_who_has(lock)}"
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> DataDirectoryError:
        where = printable(str(error.filename or self.path))
        return DataDirectoryError(f"{where}: the data directory cannot be used: {error.strerror}; {_OTHERWISE}")

    def release(self) -> OSError | None:
        """Let it go. The lock file stays, and is nobody's. Returns why the process id stays in it, if it does."""
        return self._lock.release(remove=False)


def _who_has(lock: str) -> str:
    try:
        holder = holder_of(lock)
    except OSError:
        holder = None
    who = "another broker" if holder is None else f"process {holder}"
    return f"{who} has it: end that with --quit, or give another --data-dir"
