"""Who may change a store's identity, and when: nobody while a broker has it, and nobody but the user whose it is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.process.data_dir import lock_path
from broker.process.pid_file import holder_of
from store.catalogue.store_directory import StoreDirectory
from store.cluster.identity import StoreIdentity
from store.environment import Environment
from tools.identity.look import check_directory


class NotToBeChangedError(Exception):
    """The store is in use, or belongs to somebody else. One line."""


@contextmanager
def held(environment: Environment, path: str) -> Iterator[StoreIdentity]:
    """The identity in the data directory `path`, while no broker can begin to use it.

    Raises:
        UnusableDirectoryError: there is none.
        NotToBeChangedError: it may not be changed now, or not by this user.
        StoreError: another process has the store.
    """
    try:
        check_directory(environment.disk, path)
        _check_owner(path)
        _check_broker(path)
        lock = StoreDirectory(environment, path, "").lock()
    except OSError as error:
        raise NotToBeChangedError(f"{error.filename or path}: {error.strerror or error}") from error
    try:
        # A store that was just copied into place may still be on its way to the disk; a mark must not overtake it.
        os.sync()
        identity = StoreIdentity(environment, path)
        identity.settle()
        yield identity
    finally:
        lock.release()


def _check_owner(path: str) -> None:
    """What root makes in a directory of the broker's own user, the broker could not read."""
    owner = Path(path).stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        raise NotToBeChangedError(
            f"{path}: the directory belongs to another user than root, and the broker could not read what root "
            f"writes there; run this as that user: sudo -u '#{owner}' …"
        )


def _check_broker(path: str) -> None:
    lock = Path(lock_path(path))
    if lock.exists() and not lock.is_file():
        raise NotToBeChangedError(f"{lock}: this is no lock file, so nothing says whether a broker is running")
    holder = holder_of(str(lock))
    if holder is not None or _is_locked_by_qpidd(str(lock)):
        who = "a broker" if holder is None else f"process {holder}"
        raise NotToBeChangedError(f"{path}: {who} is running with this directory; end it first (qpidd --quit)")


def _is_locked_by_qpidd(path: str) -> bool:
    """Whether the lock file is locked as Apache qpidd does it, with lockf(3), which `holder_of` cannot see."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
