"""The content of a data directory: the identity, the store, its backups. Nothing is written."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.cluster.identity import (
    STORE_ROOTS,
    Backup,
    ClusterIds,
    IdentityError,
    State,
    backups_in,
    read_identity,
    stores_in,
)
from qstore.store.cluster.rules import Member
from qstore.store.disk import Disk
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.inspect.layout import StoreKind, UnusableInputError, find_layout


class UnusableDirectoryError(Exception):
    """The data directory does not exist or cannot be read. One line."""


class Look(NamedTuple):
    """The content of a data directory.

    Attributes:
        path: the data directory.
        identity: the store's cluster identity.
        roots: names of the stores in it: `rhm`, `qls`.
        kind: format of the first of them; None if there is none, or it is unknown.
        closed_cleanly: version 2: the mark in the STORE file; None for other formats, or if the file has none.
        backups: stores that were discarded, the newest last.
        notices: one line each, for the user.
    """

    path: str
    identity: ClusterIds
    roots: list[str]
    kind: StoreKind | None
    closed_cleanly: bool | None
    backups: list[Backup]
    notices: list[str]

    @property
    def member(self) -> Member:
        """The same data as input for the rules."""
        return Member(self.path, self.identity, bool(self.roots))


def look(environment: Environment, path: str) -> Look:
    """Read the data directory `path`.

    Raises:
        UnusableDirectoryError: there is none, or its identity cannot be read.
    """
    disk = environment.disk
    try:
        check_directory(disk, path)
        identity, roots, backups = read_identity(disk, path), stores_in(disk, path), backups_in(disk, path)
        kind, closed_cleanly, notices = _look_at_store(environment, path) if roots else (None, None, [])
    except IdentityError as error:
        advice = "; if its store is the one to start from, qpid-cluster-store -c --cluster-id UUID rewrites it"
        raise UnusableDirectoryError(f"{error}{advice}") from None
    except OSError as error:
        raise UnusableDirectoryError(f"{error.filename or path}: {error.strerror or error}") from error
    notices += _notices(path, identity, roots, closed_cleanly)
    return Look(path, identity, roots, kind, closed_cleanly, backups, notices)


def check_directory(disk: Disk, path: str) -> None:
    """Check that `path` can be a data directory. For the store directory inside it, the report would be "empty".

    Raises:
        UnusableDirectoryError: it is not one.
        OSError: it cannot be read.
    """
    if not disk.is_directory(path):
        raise UnusableDirectoryError(
            f"{path}: there is no such directory; name the data directory of the store's broker"
        )
    real = disk.real_path(path)
    if posixpath.basename(real) in (*STORE_ROOTS, "cluster") and not stores_in(disk, path):
        raise UnusableDirectoryError(f"{path}: name the data directory that contains it, {posixpath.dirname(real)}")


def _look_at_store(environment: Environment, path: str) -> tuple[StoreKind | None, bool | None, list[str]]:
    try:
        kind = find_layout(environment.disk, path).kind
        mark = StoreDirectory(environment, path, "").read_mark() if kind is StoreKind.VERSION_2 else None
    except UnusableInputError as error:
        return None, None, [str(error)]
    except StoreError as error:
        return StoreKind.VERSION_2, None, [str(error)]
    return kind, None if mark is None else mark.clean_close, []


def _notices(path: str, identity: ClusterIds, roots: list[str], closed_cleanly: bool | None) -> list[str]:
    found = []
    if len(roots) > 1:
        found.append(f"{path}: there are two stores, {' and '.join(roots)}; the status applies to both")
    if identity.state is State.CLEAN and closed_cleanly is False:
        found.append(
            f"{path}: marked clean, but its broker did not close it: it crashed as the last one running, or has used "
            "the store since without the cluster"
        )
    return found
