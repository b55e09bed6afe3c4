"""A checked store as JSON objects: the store, its journals, transactions, damage, notices."""

from __future__ import annotations

from typing import Any

from qstore.store.inspect.check.check import ORPHAN, QUEUE, JournalCheck, StoreCheck
from qstore.store.inspect.measure import Measurement
from qstore.store.journal.enqueue_map import LIVE, LOCKED, PENDING
from qstore.tools.dump.objects import transaction_object

Object = dict[str, Any]

_STATES = {LIVE: "outstanding", LOCKED: "in-doubt-dequeue", PENDING: "in-doubt-enqueue"}


def store_object(path: str, check: StoreCheck, *, paranoid: bool) -> Object:
    """The store as a whole."""
    queues = [journal for journal in check.journals if journal.role == QUEUE]
    return {
        "kind": "store",
        "path": path,
        "format": check.store.layout.kind.value,
        "paranoid": paranoid,
        "queues": len(queues),
        "orphans": sum(journal.role == ORPHAN for journal in check.journals),
        "records": check.records,
        "outstanding": sum(_measured(journal, "live") for journal in queues),
        "in_doubt": sum(_measured(journal, "locked") + _measured(journal, "pending") for journal in queues),
        "transactions": len(check.transactions),
        "damage": len(check.damage),
        "notices": len(check.notices),
    }


def _measured(journal: JournalCheck, name: str) -> int:
    return 0 if journal.measurement is None else int(getattr(journal.measurement, name))


def journal_object(check: JournalCheck) -> Object:
    """One journal; numbers are null if it could not be read."""
    journal, recovery, measurement, end = check.journal, check.queue.recovery, check.measurement, check.queue.end
    fields: Object = {
        "kind": "journal",
        "role": check.role,
        "queue": check.queue.name,
        "path": None if journal is None else journal.path,
        "format": None if journal is None else journal.format.label,
        "files": None if journal is None else journal.files.geometry.files,
        "file_size": None if journal is None else journal.files.geometry.file_size,
        "enqueues": None if recovery is None else recovery.enqueues,
        "dequeues": None if recovery is None else recovery.dequeues,
        "commits": None if recovery is None else recovery.commits,
        "aborts": None if recovery is None else recovery.aborts,
        "open_transactions": check.open_transactions,
        "highest_rid": None if recovery is None else recovery.highest_rid,
        "torn": None if end is None else end.torn,
        "sealed": None if end is None else end.sealed,
        "damage": check.damage,
    }
    fields.update(_MISSING if measurement is None else _measurement(measurement))
    return fields


_MISSING: Object = dict.fromkeys(
    (
        "outstanding",
        "in_doubt_enqueues",
        "in_doubt_dequeues",
        "capacity",
        "live_bytes",
        "live_share",
        "span",
        "limit",
        "used",
        "fill",
    )
) | {"near_threshold": False, "oldest": None}


def _measurement(measurement: Measurement) -> Object:
    threshold, oldest = measurement.threshold, measurement.oldest
    return {
        "outstanding": measurement.live,
        "in_doubt_enqueues": measurement.pending,
        "in_doubt_dequeues": measurement.locked,
        "capacity": measurement.capacity,
        "live_bytes": measurement.live_bytes,
        "live_share": round(measurement.live_share, 6),
        "span": measurement.span,
        "limit": None if threshold is None else threshold.limit,
        "used": None if threshold is None else threshold.used,
        "fill": None if threshold is None else threshold.fill,
        "near_threshold": threshold is not None and threshold.is_near,
        "oldest": None
        if oldest is None
        else {"rid": oldest.rid, "file": oldest.path, "offset": oldest.offset, "state": _STATES[oldest.state]},
    }


def notice_object(text: str) -> Object:
    """A notice."""
    return {"kind": "notice", "text": text}


def transactions_of(check: StoreCheck) -> list[Object]:
    """The open transactions."""
    return [transaction_object(transaction) for transaction in check.transactions]
