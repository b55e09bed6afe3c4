"""What recovery makes of a journal: the outcome of each record, and the messages, as columns.

The store's own recovery (`store.journal.recovery`) decides what is left: which messages a restart would deliver or
holds for a branch in doubt, where their records are, and how open transactions end. It gets the records from the walk
that reads them (`records.read_stretch`), or from rows of the table of records (`replayed`). What an analysis wants
beyond that is when each message came and went, also of those that are gone. So each operation has a *time*, a position
in the journal:

    enqueue, dequeue                      its own position
    in a committed transaction            the position of the commit
    open, and rolled forward or in doubt  `AT_THE_END`, after everything
    rolled back, or never prepared        none: no effect

and a message came at the least time of its enqueues, and went at the greatest of its dequeues. These are aggregations
over columns, which Arrow does: a record costs 0.5 µs, and 3.5 µs as a Python object.

Memory is that of the columns of one journal, without bodies: 130 bytes for each record, and as much again for what is
made of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from qstore.formats.rhm.records import COMMIT_DECISION, MOVED, TRANSIENT, Kind, RecordHeader
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, OpenTransaction, Outcome
from qstore.store.recovery.prepared import prepared_transactions
from qstore.tools.spark.columns import signed

AT_THE_END: Final = 1 << 61  # a position after the end of every journal
PREPARED_LIST: Final = "TplStore"  # name of the prepared list in the table of records
#: Columns that identify a journal.
JOURNAL: Final = ("store", "format", "queue", "journal")
#: Columns of the records that recovery needs.
NEEDED: Final = (*JOURNAL, "position", "type", "rid", "dequeued_rid", "xid", "prepared", "flags", "size")

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
COMMITTING: Final = Outcome.COMMITTING.value
ABORTING: Final = Outcome.ABORTING.value
IN_DOUBT: Final = Outcome.IN_DOUBT.value
UNPREPARED: Final = Outcome.UNPREPARED.value
#: Outcomes of an operation that is undone.
UNDONE: Final = (ABORTED, ABORTING, UNPREPARED)

OUTSTANDING: Final = "outstanding"
IN_DOUBT_ENQUEUE: Final = "in-doubt-enqueue"
IN_DOUBT_DEQUEUE: Final = "in-doubt-dequeue"
DEQUEUED: Final = "dequeued"
_STATES: Final = {LIVE: OUTSTANDING, LOCKED: IN_DOUBT_DEQUEUE, PENDING: IN_DOUBT_ENQUEUE}

_LONG, _STRING, _BOOLEAN = pa.int64(), pa.string(), pa.bool_()
#: The outcome of a record. branch: of an operation in doubt. ended: the position of the commit or abort.
OUTCOME: Final = pa.schema([("fate", _STRING), ("time", _LONG), ("branch", _LONG), ("ended", _LONG)])
#: The messages of a journal. state: null if the journal has only dequeues of it. position: of the record that counts.
MESSAGES: Final = pa.schema([
    ("rid", _LONG), ("state", _STRING), ("position", _LONG), ("size", _LONG), ("added", _LONG), ("removed", _LONG),
    ("branch", _LONG), ("enqueues", _LONG), ("dequeues", _LONG), ("transactional", _BOOLEAN), ("timestamp", _LONG),
    ("added_flush", _LONG), ("removed_flush", _LONG), ("dequeue_position", _LONG), ("last_position", _LONG),
])  # fmt: skip
#: Those that recovery keeps; delivery: sorts them in recovery order.
KEPT: Final = pa.schema([
    ("rid", _LONG), ("state", _STRING), ("xid", _STRING), ("position", _LONG), ("size", _LONG), ("delivery", _LONG),
])  # fmt: skip
#: The open transactions of a prepared list. two_phase: dtx, local, or null if only a dequeue is left.
PREPARED: Final = pa.schema([("xid", _STRING), ("two_phase", _STRING), ("outcome", _STRING), ("branch", _LONG)])

_PORTION: Final = 1 << 18  # records whose messages are made at once
_MODULUS: Final = 1 << 64
_FLAGS: Final = {"moved": MOVED, "transient": TRANSIENT, "commit": COMMIT_DECISION}
_KINDS: Final = {kind.label: kind for kind in (Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT)}
_NULL: Final = pa.scalar(None, _LONG)


class Decision(NamedTuple):
    """What recovery does with a transaction that is open in the prepared list.

    Attributes:
        outcome: the value of an `Outcome`.
        branch: its number: the position of its last record in the list.
        two_phase: dtx or local; None if only its decision is left.
    """

    outcome: str
    branch: int
    two_phase: str | None


def replayed(records: Any) -> JournalRecovery:
    """Recovery of the rows of one journal.

    Args:
        records: columns position, type, rid, dequeued_rid, xid and flags, in any order.
    """
    recovery = JournalRecovery()
    ordered = records.take(pc.sort_indices(records["position"]))
    names = ("type", "rid", "dequeued_rid", "xid", "flags", "position")
    for name, rid, target, xid, flags, place in zip(*(ordered[each].to_pylist() for each in names), strict=True):
        kind = _KINDS.get(name)
        if kind is None:
            continue  # damage
        own, dequeued = rid % _MODULUS, (rid if target is None else target) % _MODULUS
        if xid is None and not flags and kind is Kind.ENQUEUE:
            recovery.enqueue(own, place, 0)
        elif xid is None and kind is Kind.DEQUEUE:
            recovery.dequeue(own, dequeued, place)
        else:
            bits = sum(bit for flag, bit in _FLAGS.items() if flags and flag in flags)
            under = b"" if xid is None else bytes.fromhex(xid)
            recovery.record(RecordHeader(kind, 2, bits, own, len(under), 1, dequeued), place, under)
    return recovery


# ---- the prepared list ----


def decisions(recovery: JournalRecovery, records: Any) -> dict[str, Decision]:
    """The transactions that are open in a prepared list: xid -> what becomes of them.

    Args:
        recovery: of the list; nothing is resolved.
        records: of the list: columns position and prepared.
    """
    prepared = dict(zip(records["position"].to_pylist(), records["prepared"].to_pylist(), strict=True))
    operations = {transaction.xid: list(transaction) for transaction in recovery.transactions}
    two_phase = {
        each.place: prepared[each.place] == "dtx" for every in operations.values() for each in every if each.is_enqueue
    }
    found = {}
    for each in prepared_transactions(recovery.transactions, two_phase):
        prepares = [operation.place for operation in operations[each.xid] if operation.is_enqueue]
        kind = prepared[prepares[-1]] if prepares else None
        last = max(operation.place for operation in operations[each.xid])
        found[each.xid.hex()] = Decision(each.outcome.value, last, kind)
    return found


def prepared_table(decided: Mapping[str, Decision]) -> Any:
    """The rows of `PREPARED`."""
    rows = [(xid, each.two_phase, each.outcome, each.branch) for xid, each in decided.items()]
    return table_of(rows, PREPARED)


# ---- a queue's journal ----


def outcomes(records: Any, decided: Mapping[str, Decision], left_open: Iterable[OpenTransaction]) -> list[Any]:
    """The columns of `OUTCOME`: null for other records than operations, and outside of transactions.

    Args:
        records: of a queue's journal, in order: columns position, type, xid, flags.
        decided: the open transactions of the store's prepared list.
        left_open: what recovery made of those that the journal leaves open.
    """
    count = records.num_rows
    positions = one(records["position"])
    xids = one(records["xid"])
    if xids.null_count == count:
        return [pa.nulls(count, _STRING), positions, pa.nulls(count, _LONG), pa.nulls(count, _LONG)]
    outcome_of = {each.xid.hex(): each.outcome.value for each in left_open}
    rows = pc.indices_nonzero(pc.is_valid(xids))
    some = records.select(["type", "xid", "flags", "position"]).take(rows)
    found: list[tuple[Any, ...]] = [(None, place, None, None) for place in some["position"].to_pylist()]
    pending: dict[str, list[int]] = {}
    columns = (some[name].to_pylist() for name in ("type", "xid", "flags", "position"))
    for index, (kind, xid, flags, place) in enumerate(zip(*columns, strict=True)):
        if kind in ("commit", "abort"):
            fate = COMMITTED if kind == "commit" else ABORTED
            for each in pending.pop(xid, ()):
                found[each] = (fate, place if kind == "commit" else None, None, place)
        elif kind in ("enqueue", "dequeue") and not (kind == "enqueue" and "transient" in flags):
            pending.setdefault(xid, []).append(index)
    for xid, indexes in pending.items():
        outcome = outcome_of.get(xid, UNPREPARED)
        branch = decided[xid].branch if outcome == IN_DOUBT else None
        time = AT_THE_END if outcome in (COMMITTING, IN_DOUBT) else None
        for each in indexes:
            found[each] = (outcome, time, branch, None)
    where = pc.index_in(pa.array(range(count), _LONG), pc.cast(rows, _LONG))
    spread = table_of(found, OUTCOME).take(where)
    fate, time, branch, ended = (one(column) for column in spread.columns)
    return [fate, pc.if_else(pc.is_valid(where), time, positions), branch, ended]


def has_flag(records: Any, flag: str) -> Any:
    """For each record whether it has a flag."""
    return pc.fill_null(pc.match_substring(pc.binary_join(one(records["flags"]), ","), flag), False)


def targets(records: Any) -> Any:
    """For each record its own id, or of a dequeue that of its message."""
    is_dequeue = pc.equal(one(records["type"]), "dequeue")
    return pc.if_else(is_dequeue, pc.coalesce(one(records["dequeued_rid"]), one(records["rid"])), one(records["rid"]))


def messages(records: Any, found: Sequence[Any], recovery: JournalRecovery) -> Any:
    """The rows of `MESSAGES`.

    Args:
        records: of a queue's journal: columns position, type, rid, dequeued_rid, xid, flags, size, flush, timestamp.
        found: their outcomes.
        recovery: of the journal, resolved.
    """
    there = kept_places(recovery)
    count = -(-records.num_rows // _PORTION)
    if count <= 1:
        return _messages(records, found, there)
    # The messages of a large journal in portions: 0.2 GiB of memory instead of 0.7 for each million of records.
    rids = targets(records)
    portion = pc.subtract(rids, pc.multiply(pc.divide(rids, count), count))
    parts = []
    for number in range(-count + 1, count):  # the remainder of a negative number is negative
        rows = pc.indices_nonzero(pc.fill_null(pc.equal(portion, number), number == 0))
        if len(rows):
            parts.append(_messages(records.take(rows), [column.take(rows) for column in found], there))
    return pa.concat_tables(parts).combine_chunks()


def _messages(records: Any, found: Sequence[Any], there: Any) -> Any:
    """The rows of `MESSAGES` of some record ids. there: the messages that recovery keeps."""
    kinds = one(records["type"])
    is_enqueue, is_dequeue = pc.equal(kinds, "enqueue"), pc.equal(kinds, "dequeue")
    _, times, branches, _ = found
    counts = pc.and_(pc.or_(pc.and_not(is_enqueue, has_flag(records, "transient")), is_dequeue), pc.is_valid(times))
    is_moved = pc.and_(is_enqueue, has_flag(records, "moved"))
    is_certain = pc.is_null(branches)
    positions, flushes = one(records["position"]), one(records["flush"])

    def where(condition: Any, values: Any) -> Any:
        return pc.if_else(condition, values, _NULL)

    leaves, comes = pc.and_(is_dequeue, is_certain), pc.and_(is_enqueue, is_certain)
    columns = {
        "rid": targets(records),
        "added": where(comes, times),
        "branch": where(pc.and_not(is_enqueue, is_certain), branches),
        "moved": where(is_moved, positions),
        "place": where(is_enqueue, positions),
        "removed": where(leaves, times),
        "locked": where(pc.and_not(is_dequeue, is_certain), branches),
        "size": where(is_enqueue, one(records["size"])),
        "timestamp": where(is_enqueue, one(records["timestamp"])),
        "added_flush": where(is_enqueue, flushes),
        "removed_flush": where(leaves, flushes),
        "dequeue_position": where(is_dequeue, positions),
        "last_position": positions,
        "enqueues": pc.cast(pc.and_not(is_enqueue, is_moved), _LONG),
        "dequeues": pc.cast(is_dequeue, _LONG),
        "transactional": pc.is_valid(one(records["xid"])),
    }
    of = pa.table(columns).filter(counts).group_by("rid", use_threads=False).aggregate(_AGGREGATES)
    index = pc.index_in(one(of["rid"]), there["rid"])
    state, place = one(there["state"]).take(index), one(there["position"]).take(index)
    is_there = pc.is_valid(index)
    added = one(of["added_min"])
    gone = pc.if_else(pc.is_valid(added), DEQUEUED, pa.scalar(None, _STRING))
    is_pending = pc.is_valid(one(of["branch_max"]))
    values = {
        "rid": of["rid"],
        "state": pc.coalesce(state, gone),
        "position": pc.coalesce(place, one(of["moved_max"]), one(of["place_min"])),
        "size": of["size_max"],
        "added": pc.if_else(pc.is_valid(added), added, where(is_pending, AT_THE_END)),
        "removed": where(pc.invert(is_there), one(of["removed_max"])),
        "branch": pc.coalesce(one(of["locked_max"]), one(of["branch_max"])),
        "enqueues": of["enqueues_sum"],
        "dequeues": of["dequeues_sum"],
        "transactional": of["transactional_any"],
        "timestamp": of["timestamp_min"],
        "added_flush": of["added_flush_min"],
        "removed_flush": where(pc.invert(is_there), one(of["removed_flush_max"])),
        "dequeue_position": of["dequeue_position_min"],
        "last_position": of["last_position_max"],
    }
    return pa.table([values[name] for name in MESSAGES.names], schema=MESSAGES)


_AGGREGATES: Final = [
    ("added", "min"), ("branch", "max"), ("moved", "max"), ("place", "min"), ("removed", "max"), ("locked", "max"),
    ("size", "max"), ("timestamp", "min"), ("added_flush", "min"), ("removed_flush", "max"),
    ("dequeue_position", "min"), ("last_position", "max"), ("enqueues", "sum"), ("dequeues", "sum"),
    ("transactional", "any"),
]  # fmt: skip


def kept_places(recovery: JournalRecovery) -> Any:
    """The messages that recovery keeps: rid, position, state."""
    kept_ones = list(recovery.outstanding(JournalFormat.VERSION_2))
    rids, places, states, _ = zip(*kept_ones, strict=True) if kept_ones else ((), (), (), ())
    if rids and rids[-1] >> 63:
        rids = tuple(map(signed, rids))
    names = pa.array([_STATES.get(state) for state in range(max(_STATES) + 1)], _STRING)
    state = names.take(pa.array(states, _LONG))
    return pa.table({"rid": pa.array(rids, _LONG), "position": pa.array(places, _LONG), "state": state})


def kept(every: Any, decided: Mapping[str, Decision], *, by_position: bool) -> Any:
    """The rows of `KEPT`, of those of `MESSAGES`.

    Args:
        every: the messages.
        decided: the open transactions of the store's prepared list.
        by_position: whether recovery delivers in the order of positions, not of record ids.
    """
    there = every.filter(pc.fill_null(pc.not_equal(every["state"], DEQUEUED), False))
    numbers = pa.array([each.branch for each in decided.values()], _LONG)
    xids = pa.array(list(decided), _STRING).take(pc.index_in(one(there["branch"]), numbers))
    delivery = there["position"] if by_position else there["rid"]
    columns = [there["rid"], there["state"], xids, there["position"], there["size"], delivery]
    return pa.table(columns, schema=KEPT)


# ---- columns ----


def one(column: Any) -> Any:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.nulls(0, column.type)
    )


def table_of(rows: Sequence[tuple[Any, ...]], schema: Any) -> Any:
    """Rows as a table."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
