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

The messages of a journal are independent of each other, so those of a large one are made in portions by record id
(`portions`). Outcomes are found while the journal is read (`Fates`): only operations of open transactions are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from qstore.formats.named_tuple import NamedTuple
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
    fates = Fates()
    ended = fates.add(records)
    return spread(records, pa.concat_tables([ended, fates.rest(decided, left_open)]))


#: The outcomes of operations in transactions; target: as of `targets`.
FATES: Final = pa.schema([("position", _LONG), ("target", _LONG), *OUTCOME])


class Fates:
    """The outcomes of a journal's operations in transactions, found while it is read: rows of `FATES`."""

    def __init__(self) -> None:
        self._open: dict[str, list[tuple[int, int]]] = {}

    def add(self, records: Any) -> Any:
        """The operations that the next records, in order, commit or abort."""
        rows = pc.indices_nonzero(pc.is_valid(one(records["xid"])))
        if not len(rows):
            return FATES.empty_table()
        some = records.select(["type", "xid", "flags", "position", "rid", "dequeued_rid"]).take(rows)
        columns = [some[name].to_pylist() for name in ("type", "xid", "flags", "position")]
        found: list[tuple[Any, ...]] = []
        for kind, xid, flags, place, target in zip(*columns, targets(some).to_pylist(), strict=True):
            if kind == "commit":
                found += [(own, of, COMMITTED, place, None, place) for own, of in self._open.pop(xid, ())]
            elif kind == "abort":
                found += [(own, of, ABORTED, None, None, place) for own, of in self._open.pop(xid, ())]
            elif kind in ("enqueue", "dequeue") and not (kind == "enqueue" and "transient" in flags):
                self._open.setdefault(xid, []).append((place, target))
        return table_of(found, FATES)

    def rest(self, decided: Mapping[str, Decision], left_open: Iterable[OpenTransaction]) -> Any:
        """Those that the journal leaves open; arguments as of `outcomes`."""
        outcome_of = {each.xid.hex(): each.outcome.value for each in left_open}
        found: list[tuple[Any, ...]] = []
        for xid, operations in self._open.items():
            outcome = outcome_of.get(xid, UNPREPARED)
            branch = decided[xid].branch if outcome == IN_DOUBT else None
            time = AT_THE_END if outcome in (COMMITTING, IN_DOUBT) else None
            found += [(own, of, outcome, time, branch, None) for own, of in operations]
        return table_of(found, FATES)


def spread(records: Any, fates: Any) -> list[Any]:
    """The columns of `OUTCOME` of some records, of which `fates` has the operations in transactions."""
    count, positions = records.num_rows, one(records["position"])
    if not fates.num_rows:
        return [pa.nulls(count, _STRING), positions, pa.nulls(count, _LONG), pa.nulls(count, _LONG)]
    where = pc.index_in(positions, one(fates["position"]))
    fate, time, branch, ended = (one(column) for column in fates.select(OUTCOME.names).take(where).columns)
    return [fate, pc.if_else(pc.is_valid(where), time, positions), branch, ended]


def is_kind(records: Any, *kinds: str) -> Any:
    """For each record whether it has one of these types. The column may have a dictionary."""
    types = one(records["type"])
    if not pa.types.is_dictionary(types.type):
        return pc.equal(types, kinds[0]) if len(kinds) == 1 else pc.is_in(types, pa.array(kinds, _STRING))
    return pa.array([name in kinds for name in types.dictionary.to_pylist()], _BOOLEAN).take(types.indices)


def is_ascending(numbers: Any) -> bool:
    """Whether each number is greater than the one before, and so none is null or there twice."""
    greater = pc.less(numbers.slice(0, max(len(numbers) - 1, 0)), numbers.slice(1))
    return not numbers.null_count and bool(pc.all(greater, min_count=0).as_py())


def has_flag(records: Any, flag: str) -> Any:
    """For each record whether it has a flag."""
    flags = one(records["flags"])
    if not pc.any(pc.equal(flags.flatten(), flag)).as_py():  # as in most journals
        return pa.repeat(pa.scalar(False), len(flags))
    return pc.fill_null(pc.match_substring(pc.binary_join(flags, ","), flag), False)


def targets(records: Any) -> Any:
    """For each record its own id, or of a dequeue that of its message."""
    dequeued, rids = one(records["dequeued_rid"]), one(records["rid"])
    return pc.if_else(is_kind(records, "dequeue"), pc.coalesce(dequeued, rids), rids)


def messages(records: Any, found: Sequence[Any], recovery: JournalRecovery) -> Any:
    """The rows of `MESSAGES`.

    Args:
        records: of a queue's journal: columns position, type, rid, dequeued_rid, xid, flags, size, flush, timestamp.
        found: their outcomes.
        recovery: of the journal, resolved.
    """
    return messages_among(records, found, kept_places(recovery))


def messages_among(records: Any, found: Sequence[Any], there: Any) -> Any:
    """The same for some of a journal's records, which have all of each message; there: from `kept_places`."""
    simple = _simple_messages(records, found, there)
    return _messages(records, found, there) if simple is None else simple


def _simple_messages(records: Any, found: Sequence[Any], there: Any) -> Any:
    """The rows of `MESSAGES` of a journal that enqueues and dequeues each message at most once; None of others.

    That is true of most journals: nothing was copied by compaction, sent twice or damaged. A message is then a pair of
    records, which are found by one look-up: a third of the time of grouping.
    """
    if any(pc.any(has_flag(records, flag)).as_py() for flag in ("moved", "transient")):
        return None
    _, times, branches, _ = found
    names = ("rid", "dequeued_rid", "position", "size", "flush", "timestamp", "xid")
    table = pa.table([*(records[name] for name in names), times, branches], names=[*names, "time", "branch"])
    takes_effect = pc.is_valid(times)
    enqueues = table.filter(pc.and_(is_kind(records, "enqueue"), takes_effect)).combine_chunks()
    dequeues = table.filter(pc.and_(is_kind(records, "dequeue"), takes_effect)).combine_chunks()
    rids = one(enqueues["rid"])
    count = len(rids)
    if not is_ascending(rids):
        return None
    target_rids = pc.coalesce(one(dequeues["dequeued_rid"]), one(dequeues["rid"]))
    pair = pc.index_in(rids, target_rids)
    lone = pa.array([], _LONG)
    if count - pair.null_count < len(target_rids):  # of messages that the journal does not have, or more than once
        lone = pc.indices_nonzero(pc.is_null(pc.index_in(target_rids, rids)))
        lone_rids = target_rids.take(lone)
        if count - pair.null_count + len(lone) < len(target_rids) or pc.count_distinct(lone_rids).as_py() < len(lone):
            return None
    if len(lone):
        pair = pa.concat_arrays([pair, pc.cast(lone, pair.type)])
        enqueues = pa.concat_tables([enqueues, pa.table([pa.nulls(len(lone), each.type) for each in enqueues.schema],
                                                        schema=enqueues.schema)]).combine_chunks()  # fmt: skip
    of, gone = {name: one(enqueues[name]) for name in enqueues.column_names}, dequeues.take(pair)
    by = {name: one(gone[name]) for name in gone.column_names}
    rids = pc.coalesce(of["rid"], target_rids.take(pair)) if len(lone) else of["rid"]
    is_enqueued, is_dequeued = pc.is_valid(of["rid"]), pc.is_valid(pair)
    index = pc.index_in(rids, there["rid"])
    is_kept, is_certain = pc.is_valid(index), pc.is_null(by["branch"])
    is_certain_enqueue = pc.and_(is_enqueued, pc.is_null(of["branch"]))
    added = pc.if_else(pc.is_null(of["branch"]), of["time"], pc.if_else(is_enqueued, pa.scalar(AT_THE_END), _NULL))
    leaves = pc.and_not(is_certain, is_kept)
    values = {
        "rid": rids,
        "state": pc.coalesce(
            _STATE_NAMES.take(one(there["state"]).take(index)),
            pc.if_else(is_certain_enqueue, DEQUEUED, pa.scalar(None, _STRING)),
        ),
        "position": pc.coalesce(one(there["position"]).take(index), of["position"]),
        "size": of["size"],
        "added": added,
        "removed": pc.if_else(leaves, by["time"], _NULL),
        "branch": pc.coalesce(by["branch"], of["branch"]),
        "enqueues": pc.cast(is_enqueued, _LONG),
        "dequeues": pc.cast(is_dequeued, _LONG),
        "transactional": pc.or_(pc.is_valid(of["xid"]), pc.is_valid(by["xid"])),
        "timestamp": of["timestamp"],
        "added_flush": of["flush"],
        "removed_flush": pc.if_else(leaves, by["flush"], _NULL),
        "dequeue_position": by["position"],
        "last_position": pc.max_element_wise(of["position"], by["position"]),
    }
    return pa.table([values[name] for name in MESSAGES.names], schema=MESSAGES)


def _messages(records: Any, found: Sequence[Any], there: Any) -> Any:
    """The rows of `MESSAGES` of some record ids. there: the messages that recovery keeps."""
    is_enqueue, is_dequeue = is_kind(records, "enqueue"), is_kind(records, "dequeue")
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
    state, place = _STATE_NAMES.take(one(there["state"]).take(index)), one(there["position"]).take(index)
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
    """The messages that recovery keeps: rid, position, state (a number: `_STATE_NAMES`)."""
    kept_ones = recovery.outstanding(JournalFormat.VERSION_2)
    parts = [_KEPT_PLACES.empty_table()]
    while some := list(islice(kept_ones, _AT_ONCE)):
        rids, places, states, _ = zip(*some, strict=True)
        rids = tuple(map(signed, rids)) if rids[-1] >> 63 else rids
        parts.append(pa.table([pa.array(rids, _LONG), places, pa.array(states, pa.int8())], schema=_KEPT_PLACES))
    return pa.concat_tables(parts).combine_chunks()


_AT_ONCE: Final = 1 << 14
_KEPT_PLACES: Final = pa.schema([("rid", _LONG), ("position", _LONG), ("state", pa.int8())])
_STATE_NAMES: Final = pa.array([_STATES.get(state) for state in range(max(_STATES) + 1)], _STRING)


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
