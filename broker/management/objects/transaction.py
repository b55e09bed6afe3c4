"""The class transaction: branches of distributed transactions, so that an operator can end those in doubt.

It is this broker's own: qpidd has none. A branch is named by its xid in hex. One that is in doubt waits for a
transaction manager that may never come back; then an operator decides for it (a heuristic decision), with the promise
of the protocol's own command: the method returns when the outcome is on the disk. With access rules, users see their
own branches, and those of others by `ACCESS TRANSACTION`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods import transactions
from qstore.broker.management.objects.element import ManagedClass, method, prop, stat, table

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.model.transactions.branch import Branch

_PACKAGE: Final = "qstore"


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Branch]]:
    return [(xid.hex(), branch) for xid, branch in managed.broker.distributed.branches.items()]


def _find(managed: ManagedBroker, key: str) -> Branch | None:
    try:
        return managed.broker.distributed.branches.get(bytes.fromhex(key))
    except ValueError:
        return None


TRANSACTION_CLASS: Final = ManagedClass(
    _PACKAGE,
    "transaction",
    (
        prop("xid", "lstr", "RC index", lambda branch: branch.xid.hex(), "Id of the branch, in hex"),
        prop("user", "lstr", "RO", of("user"), "The user that started it; empty if unknown"),
        prop("timeout", "uint32", "RO", of("timeout"), "Time after which it is rolled back unless prepared", "second"),
    ),
    (
        stat("state", "sstr", lambda branch: branch.state.name, "PREPARED is in doubt"),
        stat("associations", "uint32", of("associations"), "Sessions that are associated with it", "session"),
    ),
    table(
        (
            method("commit", "Commit a prepared branch, instead of its transaction manager", (), transactions.commit),
            method("rollback", "Roll a branch back, likewise", (), transactions.roll_back),
        )
    ),
    objects=_objects,
    seen_by=lambda managed, caller: managed.broker.distributed.seen_by(caller),
    find=_find,
)
