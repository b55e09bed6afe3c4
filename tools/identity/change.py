"""Changing a store's identity: only while no broker has it open, and only as the user who owns it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qstore.broker.process.data_dir import lock_path
from qstore.broker.process.pid_file import holder_of
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.cluster.identity import StoreIdentity
from qstore.store.environment import Environment
from qstore.tools.identity.look import check_directory


class NotToBeChangedError(Exception):
    """The store is in use, or belongs to another user. One line."""


@contextmanager
def held(environment: Environment, path: str) -> Iterator[StoreIdentity]:
    """The identity in the data directory `path`, while brokers are locked out.

    Raises:
        UnusableDirectoryError: there is none.
        NotToBeChangedError: it may not be changed now, or not by this user.
        StoreError: another process has the store open.
    """
    try:
        check_directory(environment.disk, path)
        _check_owner(path)
        _check_broker(path)
        lock = StoreDirectory(environment, path, "").lock()
    except OSError as error:
        raise NotToBeChangedError(f"{error.filename or path}: {error.strerror or error}") from error
    try:
        # A store that was just copied into place may not be synced yet; the mark must not become durable before it.
        os.sync()
        identity = StoreIdentity(environment, path)
        identity.finish_interrupted()
        yield identity
    finally:
        lock.release()


def _check_owner(path: str) -> None:
    """Files that root creates in a directory of the broker's own user would not be readable by the broker."""
    owner = Path(path).stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        raise NotToBeChangedError(
            f"{path}: the directory belongs to another user than root, and the broker could not read files that "
            "root writes "
            f"there; run this as that user: sudo -u '#{owner}' …"
        )


def _check_broker(path: str) -> None:
    lock = Path(lock_path(path))
    if lock.exists() and not lock.is_file():
        raise NotToBeChangedError(f"{lock}: this is not a lock file, so it is unknown whether a broker is running")
    holder = holder_of(str(lock))
    if holder is not None or _is_locked_by_qpidd(str(lock)):
        who = "a broker" if holder is None else f"process {holder}"
        raise NotToBeChangedError(f"{path}: {who} is using this directory; stop it first (qpidd --quit)")


def _is_locked_by_qpidd(path: str) -> bool:
    """Whether the lock file is locked in the way of Apache qpidd, with lockf(3), which `holder_of` cannot see."""
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
