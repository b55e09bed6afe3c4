"""The class backup: snapshots of the store, which other processes read, as a backup of the running broker does.

The caller reads the files of the store itself (`store/live/snapshot` describes them), on this machine; so its
right to read messages is that to read these files. Whether it may ask for a snapshot is a matter of the access rules:
`ACCESS METHOD` with schemaclass=backup, and `UPDATE BROKER`.

A snapshot costs disk space, since journals grow while it exists. So it ends with the connection that has asked for it,
or when its console was silent for `LEASE_SECONDS`, and there are at most `MAX_SNAPSHOTS`.

The class is this broker's own: qpidd has none. There is one object, if there is a store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.management.schema import (
    BROKER,
    BROKER_NAME,
    BROKER_REFERENCE,
    ClassName,
    ManagedClass,
    arg,
    method,
    stat,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InternalError, NotFoundError, ResourceLimitExceededError

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.store_protocol import SharedSnapshot, Store

_LOG: Final = log_of("Store")
LEASE_SECONDS: Final = 30
MAX_SNAPSHOTS: Final = 4


@dataclass(slots=True)
class _Lease:
    """A snapshot, its owner, and its deadline."""

    snapshot: SharedSnapshot
    owner: str
    until: float


class Snapshots:
    """The snapshots of one store.

    Args:
        store: the store.
        clock: seconds.

    Attributes:
        taken: how many were taken so far.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._leases: dict[int, _Lease] = {}
        self._being_taken = 0
        self.taken = 0

    @property
    def count(self) -> int:
        """The number of snapshots."""
        return len(self._leases) + self._being_taken

    async def take(self, caller: Caller) -> tuple[int, SharedSnapshot]:
        """Take a snapshot. Returns its number, and where it is.

        Raises:
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot take it.
        """
        if self.count >= MAX_SNAPSHOTS:
            raise ResourceLimitExceededError(f"{MAX_SNAPSHOTS} snapshots are in use: wait until a backup has ended")
        ended: asyncio.Future[tuple[SharedSnapshot | None, Exception | None]]
        ended = asyncio.get_running_loop().create_future()

        def done(snapshot: SharedSnapshot | None, error: Exception | None) -> None:
            self._being_taken -= 1
            if not ended.done():
                ended.set_result((snapshot, error))
            elif snapshot is not None:
                snapshot.release()

        self._being_taken += 1
        self._store.share_snapshot(done)
        snapshot, error = await ended
        if snapshot is None:
            raise InternalError(str(error))
        self.taken += 1
        self._leases[self.taken] = _Lease(snapshot, caller.remote_host, self._clock() + LEASE_SECONDS)
        _LOG.info(f"Snapshot {self.taken} of the store was taken for {caller.remote_host} ({caller.user})")
        return self.taken, snapshot

    def copied(self, number: int, queue_ids: Iterable[int], caller: Caller) -> list[int]:
        """These queues' journals were read; the snapshot is still needed. Returns those overwritten before that.

        Raises:
            NotFoundError: the caller has no such snapshot, or not any more.
        """
        lease = self._of(number, caller)
        lease.until = self._clock() + LEASE_SECONDS
        return lease.snapshot.copied(queue_ids)

    def release(self, number: int, caller: Caller) -> None:
        """The snapshot is not needed any more. Raises NotFoundError."""
        self._of(number, caller)
        self._end(number)

    def disconnected(self, remote_host: str) -> None:
        """A client has gone, and so do its snapshots."""
        for number, lease in list(self._leases.items()):
            if lease.owner == remote_host:
                self._end(number)

    def on_timer(self) -> None:
        """Release those of consoles that were silent for too long."""
        now = self._clock()
        for number, lease in list(self._leases.items()):
            if lease.until < now:
                _LOG.warning(f"Snapshot {number} of the store is released: {lease.owner} was silent for too long")
                self._end(number)

    def _of(self, number: int, caller: Caller) -> _Lease:
        lease = self._leases.get(number)
        if lease is None or lease.owner != caller.remote_host:
            raise NotFoundError(f"there is no snapshot {number} of this connection: it was released")
        return lease

    def _end(self, number: int) -> None:
        self._leases.pop(number).snapshot.release()


async def begin(managed: ManagedBroker, snapshots: Snapshots, _arguments: Arguments, caller: Caller) -> Results:
    """Take a snapshot."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    number, snapshot = await snapshots.take(caller)
    return {
        "snapshot": number,
        "directory": snapshot.directory,
        "path": snapshot.name,
        "seconds": LEASE_SECONDS,
    }


async def copied(_managed: ManagedBroker, snapshots: Snapshots, arguments: Arguments, caller: Caller) -> Results:
    """Note which journals were read, and that the snapshot is still in use."""
    overtaken = snapshots.copied(arguments.count("snapshot"), arguments.numbers("queues"), caller)
    return {"overtaken": overtaken}


async def end(_managed: ManagedBroker, snapshots: Snapshots, arguments: Arguments, caller: Caller) -> Results:
    """Release the snapshot."""
    snapshots.release(arguments.count("snapshot"), caller)
    return {}


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Snapshots]]:
    return () if managed.snapshots is None else ((BROKER.name_of(BROKER_NAME), managed.snapshots),)


# fmt: off
BACKUP_CLASS: Final = ManagedClass(
    ClassName("qstore", "backup"),
    properties=(
        BROKER_REFERENCE,
    ),
    statistics=(
        stat("snapshots", "uint32", lambda view: view.count, "Snapshots of the store in use", "snapshot"),
        stat("snapshotsTaken", "count64", lambda view: view.taken, "Snapshots of the store taken so far", "snapshot"),
    ),
    methods=(
        method("begin", "Take a snapshot of the store; it ends with the connection, or if the caller is silent", (
            arg("snapshot", "uint32", "O", "Its number"),
            arg("directory", "lstr", "O", "The directory of the store"),
            arg("path", "lstr", "O", "Where in it the snapshot's own files are"),
            arg("seconds", "uint32", "O", "How long the caller may be silent"),
        ), begin),
        method("copied", "Note which journals were read, and that the snapshot is still in use", (
            arg("snapshot", "uint32", "I", "Its number"),
            arg("queues", "list", "I", "Numbers of the queues; 0 is the list of prepared transactions"),
            arg("overtaken", "list", "O", "Those that were overwritten before"),
        ), copied),
        method("end", "Release a snapshot", (arg("snapshot", "uint32", "I", "Its number"),), end),
    ),
    objects=_objects,
)
# fmt: on
