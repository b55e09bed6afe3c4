"""The class backup: snapshots of the store, from which backups of the running broker are made.

It is this broker's own: qpidd has none. There is one object, if there is a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods import backup
from qstore.broker.management.objects.element import ManagedClass, arg, method, stat, table
from qstore.broker.management.objects.names import BROKER, BROKER_NAME, BROKER_REFERENCE

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.snapshots import Snapshots


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Snapshots]]:
    return () if managed.snapshots is None else ((BROKER.name_of(BROKER_NAME), managed.snapshots),)


BACKUP_CLASS: Final = ManagedClass(
    "qstore",
    "backup",
    (BROKER_REFERENCE,),
    (
        stat("snapshots", "uint32", lambda view: view.count, "Snapshots of the store in use", "snapshot"),
        stat("snapshotsTaken", "count64", lambda view: view.taken, "Snapshots of the store taken so far", "snapshot"),
    ),
    table(
        (
            method(
                "begin",
                "Take a snapshot of the store; it ends with the connection, or if the caller is silent",
                (
                    arg("snapshot", "uint32", "O", "Its number"),
                    arg("directory", "lstr", "O", "The directory of the store"),
                    arg("path", "lstr", "O", "Where in it the snapshot's own files are"),
                    arg("seconds", "uint32", "O", "How long the caller may be silent"),
                ),
                backup.begin,
            ),
            method(
                "copied",
                "Note which journals were read, and that the snapshot is still in use",
                (
                    arg("snapshot", "uint32", "I", "Its number"),
                    arg("queues", "list", "I", "Numbers of the queues; 0 is the list of prepared transactions"),
                    arg("overtaken", "list", "O", "Those that were overwritten before that"),
                ),
                backup.copied,
            ),
            method(
                "end",
                "Release a snapshot",
                (arg("snapshot", "uint32", "I", "Its number"),),
                backup.end,
            ),
        )
    ),
    objects=_objects,
)
