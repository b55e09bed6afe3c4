"""The result of a recovery as JSON objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qstore.store.inspect.offline import RecoveredTransaction
from qstore.store.journal.recovery import Outcome
from qstore.store.repair.recover.build import Recovery
from qstore.store.repair.recover.plan import Orphan, PlannedQueue
from qstore.tools.check.objects import notice_object
from qstore.tools.dump.objects import damage_object, transaction_object

Object = dict[str, Any]

_RESOLVED = {Outcome.COMMITTING: "commit", Outcome.ABORTING: "rollback"}


def objects(recovery: Recovery) -> Iterator[Object]:
    """All objects; the summary is the last."""
    plan = recovery.plan
    for queue in plan.queues:
        yield queue_object(recovery, queue)
    for name, what in plan.lost_exchanges:
        yield {"kind": "exchange", "name": name, "what": what}
    for binding in plan.lost_bindings:
        yield {"kind": "binding", **binding._asdict()}
    for transaction in plan.transactions:
        yield resolved_object(transaction)
    for orphan in plan.orphans:
        yield orphan_object(orphan)
    for damage in recovery.damage:
        yield damage_object(damage)
    for notice in plan.notices:
        yield notice_object(notice)
    yield summary_object(recovery)


def queue_object(recovery: Recovery, planned: PlannedQueue) -> Object:
    """A queue of the new store."""
    built = recovery.built.get(planned.name)
    geometry = planned.queue.geometry if built is None else built.geometry
    journal = planned.found.journal
    stretches = [] if journal is None else recovery.salvage.stretches.get(journal.path, [])
    return {
        "kind": "queue",
        "name": planned.name,
        "number": planned.queue.number,
        "journal": None if journal is None else journal.path,
        "format": None if journal is None else journal.format.label,
        "messages": planned.deliverable if built is None else built.messages - built.in_doubt,
        "in_doubt": planned.in_doubt if built is None else built.in_doubt,
        "torn_tail": _torn_tail(planned),
        "quarantined": [stretch._asdict() for stretch in stretches],
        "geometry": {"files": geometry.files, "file_size": geometry.file_size},
    }


def _torn_tail(planned: PlannedQueue) -> Object | None:
    end, journal = planned.found.end, planned.found.journal
    if end is None or journal is None or not end.torn:
        return None
    file, offset = journal.stream.locate(min(end.place, journal.stream.size - 1))
    return {"file": file.path, "offset": offset, "rid": end.rid, "what": end.what}


def resolved_object(transaction: RecoveredTransaction) -> Object:
    """A transaction that was open: its state, and how it was resolved, if it was."""
    fields = transaction_object(transaction)
    fields["resolved"] = None
    if transaction.resolved_from is not None:
        fields["state"] = transaction.resolved_from.value
        fields["resolved"] = _RESOLVED[transaction.outcome]
    return fields


def orphan_object(orphan: Orphan) -> Object:
    """Content that belongs to no queue."""
    journal, transaction = orphan.found.journal, orphan.transaction
    return {
        "kind": "orphan",
        "what": orphan.what,
        "queue": orphan.found.name,
        "journal": None if journal is None else journal.path,
        "messages": orphan.messages,
        "xid": None if transaction is None else transaction.xid.hex(),
        "recovered_into": orphan.becomes,
    }


def summary_object(recovery: Recovery) -> Object:
    """The totals."""
    queues = [queue_object(recovery, queue) for queue in recovery.plan.queues]
    return {
        "kind": "summary",
        "queues": len(queues),
        "exchanges": len(recovery.plan.exchanges),
        "bindings": len(recovery.plan.bindings),
        "messages": sum(queue["messages"] for queue in queues),
        "in_doubt": sum(queue["in_doubt"] for queue in queues),
        "transactions_in_doubt": len(recovery.plan.in_doubt),
        "damage": len(recovery.damage),
        "lost": recovery.lost,
        "quarantined": recovery.salvage.entries,
    }
