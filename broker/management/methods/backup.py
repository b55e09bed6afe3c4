"""Methods by which a backup of the running store is made: a snapshot is taken, read by the caller, and released.

The caller reads the files of the store itself (`store/live/shared_snapshot` describes them), on this machine; so its
right to read messages is that to read these files. That it may ask for a snapshot is a matter of the access rules:
`ACCESS METHOD` with schemaclass=backup, and `UPDATE BROKER`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.management.methods.arguments import count, numbers
from qstore.broker.management.snapshots import LEASE_SECONDS
from qstore.broker.model.authorization import Action, ObjectType

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.management.snapshots import Snapshots
    from qstore.broker.model.caller import Caller


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
    overtaken = snapshots.copied(count(arguments, "snapshot"), numbers(arguments, "queues"), caller)
    return {"overtaken": overtaken}


async def end(_managed: ManagedBroker, snapshots: Snapshots, arguments: Arguments, caller: Caller) -> Results:
    """Release the snapshot."""
    snapshots.release(count(arguments, "snapshot"), caller)
    return {}
