"""The tables of an analysis, made of the messages of one journal, queue or store at a time; pure functions of columns.

A journal does not record when a record was written. What is known is reported separately:

    positions     bytes that were written to the journal between a message's enqueue and its dequeue
    flushes       qstore: flushes between them, within one run of the broker (a restart skips numbers)
    timestamp     seconds since 1970, if the publisher or the broker set one
    files         when the file of the record was started: so enqueue and dequeue are known to within the time in which
                  a file was filled

**Depth** is the number of messages on a queue over the length of its journal, which is divided into equal parts,
*buckets*. Within each the changes are applied in order, so that its peak is exact. A ring that has wrapped around has
dequeues of messages whose enqueues are overwritten. These were on the queue at the present beginning of the journal, so
their number is the initial depth. Their sizes are unknown, and count as zero.

**Sizing** follows the published formulas (`store.inspect.sizing`), and the space that was in use at the peak, as the
threshold of each format (`store.journal.write.threshold`) counts it. A journal that has wrapped around shows only its
latest lap: earlier records are not in the metrics.

    version 1   in use is everything from the file of the oldest live record to the end; the peak is the longest
                distance from a message's file to its dequeue
    version 2   in use are live bytes, plus one block for each message
    linear      no limit

A record is live from where it was written, whenever its transaction was committed, and until the commit of its dequeue;
that of a transaction that was rolled back until then.

Normal effects of a crash, or of a ring that has wrapped around, are not losses; the tables mark them where possible.
Names are those of `tools.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import BLOCK_SIZE, FILE_HEADER_SIZE, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.store.damage import CHECKSUM_KINDS
from qstore.store.inspect.sizing import (
    LOCAL_XID_SIZE,
    JournalTooLargeError,
    LineSize,
    MessageProfile,
    RingSize,
    size_for,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import Threshold, threshold
from qstore.tools.spark.recovery import (
    ABORTED,
    AT_THE_END,
    COMMITTED,
    DEQUEUED,
    JOURNAL,
    OUTSTANDING,
    UNDONE,
    UNPREPARED,
    Decision,
    has_flag,
    one,
    table_of,
    targets,
)

BUCKETS: Final = 200
FORMATS: Final = {each.label: each for each in JournalFormat}
OVERWRITTEN: Final = "overwritten"
CHECKSUMS: Final = frozenset(kind.label for kind in CHECKSUM_KINDS)
_NANOSECONDS: Final = 1_000_000_000
#: Percentiles of the waits; the names of the columns end with them.
PERCENTILES: Final = (50, 90, 99)

_LONG, _STRING, _DOUBLE, _BOOLEAN, _INT = pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.int32()
_NULL: Final = pa.scalar(None, _LONG)
NAMES: Final = tuple((name, _STRING) for name in JOURNAL)
QUEUE: Final = ("store", "queue")
_OF_QUEUE: Final = tuple((name, _STRING) for name in QUEUE)

#: The tables without the names of their journal, queue or store, which come first.
LIFETIMES: Final = pa.schema([
    ("rid", _LONG), ("state", _STRING), ("enqueued", _LONG), ("dequeued", _LONG), ("enqueued_flush", _LONG),
    ("dequeued_flush", _LONG), ("timestamp", _LONG), ("size", _LONG), ("transactional", _BOOLEAN), ("distance", _LONG),
    ("enqueued_written", _LONG), ("dequeued_written", _LONG), ("waited", _DOUBLE),
])  # fmt: skip
WAITS: Final = pa.schema([
    ("measured", _LONG),
    *((f"distance_{each}", _LONG) for each in (*PERCENTILES, "most")),
    *((f"waited_{each}", _DOUBLE) for each in (*PERCENTILES, "most")),
])  # fmt: skip
RATES: Final = pa.schema([
    *((name, _LONG) for name in ("recorded", OUTSTANDING, "in_doubt", DEQUEUED, "transactional", "recorded_bytes")),
    ("mean_size", _DOUBLE), ("least_size", _LONG), ("largest_size", _LONG), ("first_timestamp", _LONG),
    ("last_timestamp", _LONG), ("stamped_per_second", _DOUBLE),
])  # fmt: skip
DEPTH: Final = pa.schema([
    ("bucket", _INT),
    *((name, _LONG) for name in ("begin", "end", "enqueues", "dequeues", "bytes", "depth", "live_bytes")),
    *((name, _LONG) for name in ("peak", "peak_bytes", "peak_reserved")),
])  # fmt: skip
USE: Final = pa.schema([("longest", _LONG), ("reserved", _LONG)])
ODD: Final = pa.schema([("rid", _LONG), ("dequeues", _LONG), ("position", _LONG), ("what", _STRING)])
DUPLICATES: Final = pa.schema([
    ("what", _STRING), ("message_id", _STRING), ("first_rid", _LONG), ("last_rid", _LONG), ("copies", _LONG),
])  # fmt: skip
GAPS: Final = pa.schema([("after", _LONG), ("before", _LONG), ("missing", _LONG)])
TRANSACTIONS: Final = pa.schema([
    ("xid", _STRING), ("type", _STRING), ("state", _STRING), ("enqueues", _LONG), ("dequeues", _LONG),
    ("queues", _LONG), ("bytes", _LONG),
])  # fmt: skip
DAMAGE: Final = pa.schema([
    *_OF_QUEUE, ("file", _STRING), ("offset", _LONG), ("rid", _LONG), ("damage", _STRING), ("damage_kind", _STRING),
    ("consequence", _STRING), ("checksum", _BOOLEAN),
])  # fmt: skip
SIZING: Final = pa.schema([
    *NAMES, ("recorded", _LONG), ("outstanding", _LONG), ("in_doubt", _LONG), ("depth", _LONG), ("peak_depth", _LONG),
    ("mean_size", _DOUBLE), ("largest_size", _LONG), ("transactional", _DOUBLE), ("live_bytes", _LONG),
    ("peak_bytes", _LONG), ("files", _INT), ("pages", _DOUBLE), ("capacity", _LONG), ("live_share", _DOUBLE),
    ("limit", _LONG), ("used", _LONG), ("peak_used", _LONG), ("fill", _DOUBLE), ("peak_fill", _DOUBLE),
    ("near_threshold", _BOOLEAN), ("peak_near_threshold", _BOOLEAN), ("recommended_bytes", _LONG),
    ("num_jfiles", _INT), ("jfile_size_pgs", _LONG), ("pool_files", _LONG), ("large_enough", _BOOLEAN),
    ("problem", _STRING),
])  # fmt: skip


def named(of: pa.Schema, names: Sequence[tuple[str, Any]]) -> Any:
    """A schema with names in front."""
    return pa.schema([*names, *of])


def header_size(journal_format: str | None) -> int:
    """Bytes of a journal file's header."""
    return LINEAR_HEADER_SIZE if journal_format == JournalFormat.LINEAR.label else FILE_HEADER_SIZE


def is_live(messages: Any) -> Any:
    """Whether each message's record is needed: it is outstanding or in doubt."""
    return _true(pc.not_equal(one(messages["state"]), DEQUEUED))


def _true(condition: Any) -> Any:
    return pc.fill_null(condition, False)


def _count(condition: Any) -> int:
    return int(pc.sum(condition).as_py() or 0)


def _total(column: Any) -> int:
    return int(pc.sum(column).as_py() or 0)


def _modulo(numbers: Any, by: int) -> Any:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by))


# ---- lifetimes ----


def lifetimes(messages: Any, written: Mapping[int, int], data_size: int) -> Any:
    """A row for each message that a journal has: its lifetime on the queue.

    Args:
        messages: of a journal.
        written: age of a file of the journal -> when it was started, nanoseconds since 1970.
        data_size: bytes of data in a file; 0 if unknown.
    """
    there = messages.filter(pc.is_valid(messages["state"]))
    added, removed = one(there["added"]), one(there["removed"])
    enqueued = pc.if_else(pc.less(added, AT_THE_END), added, one(there["position"]))
    dequeued = pc.if_else(pc.less(removed, AT_THE_END), removed, _NULL)
    begun, ended = _written(enqueued, written, data_size), _written(dequeued, written, data_size)
    seconds = pc.divide(pc.cast(pc.subtract(ended, begun), _DOUBLE, safe=False), float(_NANOSECONDS))
    waited = pc.if_else(pc.is_valid(seconds), pc.max_element_wise(seconds, 0.0), pa.scalar(None, _DOUBLE))
    columns = {
        "enqueued": enqueued, "dequeued": dequeued, "enqueued_flush": there["added_flush"],
        "dequeued_flush": there["removed_flush"], "distance": pc.subtract(dequeued, enqueued),
        "enqueued_written": begun, "dequeued_written": ended, "waited": waited,
    }  # fmt: skip
    return pa.table([columns[name] if name in columns else there[name] for name in LIFETIMES.names], schema=LIFETIMES)


def _written(positions: Any, written: Mapping[int, int], data_size: int) -> Any:
    if not data_size or not written:
        return pa.nulls(len(positions), _LONG)
    ages = pc.index_in(pc.divide(positions, data_size), pa.array(list(written), _LONG))
    return pa.array(list(written.values()), _LONG).take(ages)


def waits(lives: Any) -> dict[str, Any] | None:
    """How long the dequeued messages of a queue waited: a row of `WAITS`; None if none was dequeued.

    distance is in bytes of journal, waited in seconds, null if no file has a time.
    """
    gone = lives.filter(pc.is_valid(lives["dequeued"]))
    if not gone.num_rows:
        return None
    row: dict[str, Any] = {"measured": gone.num_rows}
    for name in ("distance", "waited"):
        values = one(gone[name]).drop_null()
        ordered = values.take(pc.sort_indices(values))
        count = len(ordered)
        for share in PERCENTILES:
            row[f"{name}_{share}"] = ordered[max(-(-share * count // 100) - 1, 0)].as_py() if count else None
        row[f"{name}_most"] = ordered[count - 1].as_py() if count else None
    return row


def rates(lives: Any) -> dict[str, Any] | None:
    """The throughput of a queue, as far as its journal still shows it: a row of `RATES`; None without messages.

    recorded_bytes, mean_size, least_size, largest_size: of the records on disk; stamped_per_second: messages with a
    timestamp per second between the first and the last one; null if it cannot be calculated.
    """
    if not lives.num_rows:
        return None
    states, stamps, sizes = one(lives["state"]), one(lives["timestamp"]), one(lives["size"])
    gone, there = _count(pc.equal(states, DEQUEUED)), _count(pc.equal(states, OUTSTANDING))
    first, last = pc.min(stamps).as_py(), pc.max(stamps).as_py()
    seconds = 0 if first is None else last - first
    return {
        "recorded": lives.num_rows,
        "outstanding": there,
        "in_doubt": lives.num_rows - gone - there,
        "dequeued": gone,
        "transactional": _count(lives["transactional"]),
        "recorded_bytes": pc.sum(sizes).as_py(),
        "mean_size": pc.mean(sizes).as_py(),
        "least_size": pc.min(sizes).as_py(),
        "largest_size": pc.max(sizes).as_py(),
        "first_timestamp": first,
        "last_timestamp": last,
        "stamped_per_second": (len(stamps) - stamps.null_count) / seconds if seconds > 0 else None,
    }


# ---- depth and use ----


def depth(messages: Any, buckets: int = BUCKETS) -> Any:
    """The series of a journal; buckets without changes have no row.

    enqueues and dequeues take effect in the bucket; bytes are of these enqueues' records; depth and live_bytes are at
    its end; peak and peak_bytes are the maxima within it; peak_reserved is that of live bytes plus one block for each
    message, which the threshold of version 2 counts.
    """
    if not messages.num_rows:
        return DEPTH.empty_table()
    added, removed = one(messages["added"]), one(messages["removed"])
    sizes = pc.coalesce(one(messages["size"]), 0)
    has_state = pc.is_valid(one(messages["state"]))
    ends = pc.max_element_wise(
        pc.add(one(messages["position"]), one(messages["size"])), pc.add(one(messages["last_position"]), BLOCK_SIZE)
    )
    length = pc.max(ends).as_py() or 1
    width = max(-(-length // buckets), 1)
    before = _count(pc.and_not(pc.is_valid(removed), has_state))
    goes = pc.is_valid(removed)
    reserved = pc.add(sizes, BLOCK_SIZE)
    at = pa.concat_arrays([added.filter(has_state), removed.filter(goes)])
    at = pc.min_element_wise(at, length)
    gone_reserved = pc.if_else(has_state, pc.negate(reserved), 0)
    came, went = _count(has_state), _count(goes)
    if not came + went:
        return DEPTH.empty_table()
    changes = pa.table({
        "at": at,
        "count": pa.concat_arrays([pa.repeat(pa.scalar(1, _LONG), came), pa.repeat(pa.scalar(-1, _LONG), went)]),
        "bytes": pa.concat_arrays([sizes.filter(has_state), pc.negate(sizes).filter(goes)]),
        "reserved": pa.concat_arrays([reserved.filter(has_state), gone_reserved.filter(goes)]),
    })  # fmt: skip
    changes = changes.take(pc.sort_indices(changes, [("at", "ascending"), ("count", "descending")]))
    bucket = pc.min_element_wise(pc.divide(one(changes["at"]), width), buckets - 1)
    columns = {"bucket": bucket}
    for name, start in (("count", before), ("bytes", 0), ("reserved", 0)):
        change = one(changes[name])
        columns[f"held_{name}"] = held = pc.add(pc.cumulative_sum(change), start)
        columns[f"start_{name}"] = pc.subtract(held, change)
    is_enqueue = pc.greater(one(changes["count"]), 0)
    columns["enqueues"] = pc.cast(is_enqueue, _LONG)
    columns["dequeues"] = pc.cast(pc.invert(is_enqueue), _LONG)
    columns["came"] = pc.if_else(is_enqueue, one(changes["bytes"]), 0)
    of = pa.table(columns).group_by("bucket", use_threads=False).aggregate([
        ("enqueues", "sum"), ("dequeues", "sum"), ("came", "sum"), ("held_count", "last"), ("held_bytes", "last"),
        *((f"{part}_{name}", kind) for name in ("count", "bytes", "reserved")
          for part, kind in (("start", "first"), ("held", "max"))),
    ])  # fmt: skip
    number = one(of["bucket"])
    begin = pc.multiply(number, width)
    peaks = [
        pc.max_element_wise(one(of[f"start_{name}_first"]), one(of[f"held_{name}_max"]))
        for name in ("count", "bytes", "reserved")
    ]
    return pa.table(
        [
            pc.cast(number, _INT), begin, pc.add(begin, width), of["enqueues_sum"], of["dequeues_sum"], of["came_sum"],
            of["held_count_last"], of["held_bytes_last"], *peaks,
        ],
        schema=DEPTH,
    )  # fmt: skip


def undone_enqueues(records: Any, found: Sequence[Any]) -> Any:
    """The enqueues of a journal whose transactions were rolled back: position, ended, size."""
    fates, _, _, ended = found
    undone = pc.and_(_true(pc.equal(fates, ABORTED)), pc.equal(one(records["type"]), "enqueue"))
    return pa.table({"position": records["position"], "ended": ended, "size": records["size"]}).filter(undone)


def use(messages: Any, undone: Any, data_size: int) -> dict[str, Any]:
    """The most that was in use in a journal, as the threshold of each format counts it: a row of `USE`.

    longest: bytes from the beginning of a record's file to its removal, at most; reserved: bytes of live records and a
    block for each, at most.

    Args:
        messages: of the journal.
        undone: from `undone_enqueues`.
        data_size: bytes of data in a file.
    """
    there = messages.filter(pc.is_valid(messages["state"]))
    begun = pa.concat_arrays(
        [pc.min_element_wise(one(there["position"]), one(there["added"])), one(undone["position"])]
    )
    removed = pa.concat_arrays([one(there["removed"]), one(undone["ended"])])
    sizes = pc.add(pa.concat_arrays([pc.coalesce(one(there["size"]), 0), one(undone["size"])]), BLOCK_SIZE)
    if not len(begun):
        return {"longest": None, "reserved": None}
    gone = pc.if_else(pc.less(removed, AT_THE_END), removed, _NULL)
    longest = pc.max(pc.add(pc.subtract(gone, begun), _modulo(begun, data_size))).as_py()
    goes = pc.is_valid(removed)
    changes = pa.table({
        "at": pa.concat_arrays([begun, removed.filter(goes)]),
        "change": pa.concat_arrays([sizes, pc.negate(sizes).filter(goes)]),
    })  # fmt: skip
    order = pc.sort_indices(changes, [("at", "ascending"), ("change", "descending")])
    return {"longest": longest, "reserved": pc.max(pc.cumulative_sum(one(changes["change"]).take(order))).as_py()}


# ---- findings ----


def odd_dequeues(messages: Any) -> Any:
    """Dequeues of messages that are missing from their journal, or that it dequeues twice: rows of `ODD`.

    position: of the first of these records; what: "overwritten" (normal: the record ids are lower than that of any
    enqueue in the journal), "unknown" (nothing explains why the message is missing) or "dequeued twice".
    """
    is_unknown = pc.is_null(one(messages["state"]))
    twice = pc.and_not(pc.greater(one(messages["dequeues"]), 1), one(messages["transactional"]))
    odd = messages.filter(pc.or_(is_unknown, twice))
    if not odd.num_rows:
        return ODD.empty_table()
    first = pc.min(one(messages["rid"]).filter(pc.greater(one(messages["enqueues"]), 0))).as_py()
    is_early = pa.repeat(pa.scalar(False), odd.num_rows) if first is None else pc.less(one(odd["rid"]), first)
    what = pc.if_else(pc.is_valid(one(odd["state"])), "dequeued twice", pc.if_else(is_early, OVERWRITTEN, "unknown"))
    return pa.table([odd["rid"], odd["dequeues"], odd["dequeue_position"], what], schema=ODD)


def is_kept_enqueue(records: Any, fates: Any) -> Any:
    """Which records are enqueues that were not rolled back: no compaction copies, and none that recovery ignores."""
    undone = pc.is_in(fates, pa.array(UNDONE, _STRING))
    left_out = pc.or_(pc.or_(has_flag(records, "moved"), has_flag(records, "transient")), undone)
    return pc.and_not(pc.equal(one(records["type"]), "enqueue"), left_out)


def same_record_ids(records: Any, fates: Any) -> Any:
    """Record ids that a journal has more than once, which an intact one never has: rows of `DUPLICATES`."""
    rids = one(records["rid"]).filter(is_kept_enqueue(records, fates))
    counts = pc.value_counts(rids)
    rids, copies = counts.field("values"), counts.field("counts")
    several = pc.greater(copies, 1)
    rids, copies = rids.filter(several), copies.filter(several)
    count = len(rids)
    what = pa.repeat(pa.scalar("record id"), count)
    return pa.table([what, pa.nulls(count, _STRING), rids, rids, copies], schema=DUPLICATES)


def message_ids(records: Any, fates: Any) -> Any:
    """The message ids of a journal's kept enqueues, and their record ids: message_id, rid."""
    some = pc.and_(is_kept_enqueue(records, fates), pc.is_valid(one(records["message_id"])))
    return records.select(["message_id", "rid"]).filter(some)


def same_message_ids(ids: Any) -> Any:
    """Message ids that a queue has more than once, probably sent again: rows of `DUPLICATES`.

    Args:
        ids: from `message_ids`, of the queue's journals.
    """
    names = one(ids["message_id"])
    if pc.count_distinct(names).as_py() == len(names):
        return DUPLICATES.empty_table()
    of = ids.group_by("message_id", use_threads=False).aggregate([("rid", "min"), ("rid", "max"), ("rid", "count")])
    of = of.filter(pc.greater(of["rid_count"], 1))
    what = pa.repeat(pa.scalar("message id"), of.num_rows)
    return pa.table([what, of["message_id"], of["rid_min"], of["rid_max"], of["rid_count"]], schema=DUPLICATES)


def record_ids(records: Any) -> Any:
    """The record ids of a journal's records: not those of damage."""
    is_record = pc.is_in(one(records["type"]), pa.array(["enqueue", "dequeue", "commit", "abort"], _STRING))
    return one(records["rid"]).filter(is_record).drop_null()


def gaps(rids: Sequence[Any]) -> Any:
    """Record ids that no record of a store has, between its lowest and its highest: rows of `GAPS`.

    Rings overwrite old records, and a restart skips ids, so a gap by itself is not a loss. after and before are the
    record ids on either side; missing: how many are between them.
    """
    ids = pc.unique(pa.chunked_array(rids, _LONG))
    ordered = ids.take(pc.sort_indices(ids))
    after, before = ordered.slice(0, max(len(ordered) - 1, 0)), ordered.slice(1)
    missing = pc.subtract(pc.subtract(before, after), 1)
    is_gap = pc.greater(missing, 0)
    return pa.table([column.filter(is_gap) for column in (after, before, missing)], schema=GAPS)


def undecided(records: Any, fates: Any) -> Any:
    """The operations of a journal's open transactions, each message once: xid, type, rid, size."""
    is_open = pc.and_(pc.is_valid(fates), pc.invert(pc.is_in(fates, pa.array([COMMITTED, ABORTED], _STRING))))
    some = pa.table({
        "xid": records["xid"], "type": records["type"], "rid": targets(records), "size": records["size"],
    }).filter(is_open)  # fmt: skip
    of = some.group_by(["xid", "type", "rid"], use_threads=False).aggregate([("size", "max")])
    return of.rename_columns(["xid", "type", "rid", "size"])


def transactions(decided: Mapping[str, Decision], operations: Iterable[tuple[str, Any]]) -> Any:
    """The open transactions of a store: rows of `TRANSACTIONS`.

    type: dtx, local, or null if not in a prepared list; state: the value of an `Outcome`; enqueues, dequeues: numbers
    of undecided ones in the queues' journals; queues: the number of these queues; bytes: of the enqueues' records.

    Args:
        decided: the open transactions of the prepared list.
        operations: each queue, and `undecided` of its journal.
    """
    numbers: dict[str, list[int]] = {xid: [0, 0, 0] for xid in decided}
    queues: dict[str, set[str]] = {}
    for queue, rows in operations:
        for row in rows.to_pylist():
            own = numbers.setdefault(row["xid"], [0, 0, 0])
            queues.setdefault(row["xid"], set()).add(queue)
            if row["type"] == "enqueue":
                own[0] += 1
                own[2] += row["size"] or 0
            else:
                own[1] += 1
    rows = []
    for xid, (enqueues, dequeues, size) in numbers.items():
        decision = decided.get(xid)
        kind, state = (None, UNPREPARED) if decision is None else (decision.two_phase, decision.outcome)
        rows.append((xid, kind, state, enqueues, dequeues, len(queues.get(xid, ())), size))
    return table_of(rows, TRANSACTIONS)


def damage(records: Iterable[Mapping[str, Any]], files: Iterable[Mapping[str, Any]]) -> Any:
    """All damage of a store, each once: rows of `DAMAGE`; checksum: whether it is a wrong checksum.

    Args:
        records: the records with damage.
        files: the rows of the table of files, which has the damage of headers and whole stores.
    """
    names = DAMAGE.names[:-1]
    rows = {tuple(row[name] for name in names): None for row in records if row["damage"] is not None}
    for row in files:
        if row["kind"] in ("damage", "unusable"):
            rows[tuple(row["reason"] if name == "damage" else row[name] for name in names)] = None
    return table_of([(*row, row[6] in CHECKSUMS) for row in rows], DAMAGE)


# ---- sizing ----


#: What sizing needs of a journal.
OBSERVED: Final = pa.schema([(name, _LONG) for name in (
    "recorded", "outstanding", "in_doubt", "bytes", "largest_size", "in_transactions", "live_bytes", "oldest", "end",
    "peak", "peak_bytes", "peak_reserved", "longest", "reserved",
)])  # fmt: skip


def observed(messages: Any, peaks: Mapping[str, Any], most: Mapping[str, Any], end: int | None) -> dict[str, Any]:
    """What sizing needs of a journal's messages.

    Args:
        messages: of the journal.
        peaks: peak, peak_bytes and peak_reserved, the maxima of its depth.
        most: from `use`.
        end: the position after its last record; None to take the last record of a message.
    """
    live = is_live(messages)
    states, sizes = one(messages["state"]), one(messages["size"])
    there, outstanding = pc.is_valid(states), _count(_true(pc.equal(states, OUTSTANDING)))
    ends = pc.max_element_wise(pc.add(one(messages["position"]), sizes), one(messages["last_position"]))
    return {
        "recorded": _count(there),
        "outstanding": outstanding,
        "in_doubt": _count(live) - outstanding,
        "bytes": _total(sizes.filter(there)),
        "largest_size": pc.max(sizes.filter(there)).as_py(),
        "in_transactions": _count(one(messages["transactional"]).filter(there)),
        "live_bytes": _total(sizes.filter(live)),
        "oldest": pc.min(one(messages["position"]).filter(live)).as_py(),
        "end": (pc.max(ends).as_py() if end is None else end) or 0,
        "peak": peaks.get("peak") or 0,
        "peak_bytes": peaks.get("peak_bytes") or 0,
        "peak_reserved": peaks.get("peak_reserved") or 0,
        "longest": most.get("longest") or 0,
        "reserved": most.get("reserved") or 0,
    }


NOTHING_OBSERVED: Final[dict[str, Any]] = {
    name: None if name in ("oldest", "largest_size") else 0 for name in OBSERVED.names
}
"""What is `observed` of a journal without records."""


def sized(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `SIZING`: how full a journal was at its peak, and how large it should be.

    num_jfiles and jfile_size_pgs, or pool_files of a linearstore: the configuration for peak_depth; problem: why there
    is none.

    Args:
        row: columns of `JOURNAL`, files, file_size, and what was `observed`.
    """
    journal_format = FORMATS[row["format"]]
    data_size = row["file_size"] - header_size(row["format"])
    geometry = Geometry(max(row["files"], 1), max(data_size // SECTOR_SIZE, 1) * SECTOR_SIZE)
    live = row["outstanding"] + row["in_doubt"]
    now = threshold(
        geometry,
        journal_format,
        oldest=row["oldest"],
        end=row["end"],
        live=live,
        live_bytes=row["live_bytes"],
    )
    peak = None if now is None else _at_peak(row, journal_format, now)
    recommended, choice, problem = _recommended(row, journal_format, geometry, 0 if peak is None else peak.used)
    ring = choice if isinstance(choice, RingSize) else None
    return dict(
        {name: row[name] for name in JOURNAL},
        recorded=row["recorded"],
        outstanding=row["outstanding"],
        in_doubt=row["in_doubt"],
        depth=live,
        peak_depth=max(row["peak"], 0),
        mean_size=row["bytes"] / row["recorded"] if row["recorded"] else None,
        largest_size=row["largest_size"],
        transactional=row["in_transactions"] / row["recorded"] if row["recorded"] else None,
        live_bytes=row["live_bytes"],
        peak_bytes=row["peak_bytes"],
        files=row["files"],
        pages=geometry.data_size / PAGE_SIZE,
        capacity=geometry.capacity,
        live_share=round(row["live_bytes"] / geometry.capacity, 6),
        limit=None if now is None else now.limit,
        used=None if now is None else now.used,
        peak_used=None if peak is None else peak.used,
        fill=None if now is None else now.fill,
        peak_fill=None if peak is None else peak.fill,
        near_threshold=None if now is None else now.is_near,
        peak_near_threshold=None if peak is None else peak.is_near,
        recommended_bytes=recommended,
        num_jfiles=None if ring is None else ring.files,
        jfile_size_pgs=None if ring is None else ring.pages,
        pool_files=choice.files if isinstance(choice, LineSize) else None,
        large_enough=_large_enough(geometry, peak, recommended, problem),
        problem=problem,
    )


def _at_peak(row: Mapping[str, Any], journal_format: JournalFormat, now: Threshold) -> Threshold:
    """The peak of the space in use, as far as the journal shows; at least the present value."""
    most = row["longest"]
    if journal_format is not JournalFormat.VERSION_1:
        most = max(row["peak_reserved"], row["reserved"])
    return now._replace(used=max(now.used, most))


def _large_enough(
    geometry: Geometry, peak: Threshold | None, recommended: int | None, problem: str | None
) -> bool | None:
    """Whether the journal has the recommended size and did not come near its threshold; None for a linearstore."""
    if peak is None:
        return None
    if problem is not None or peak.is_near:
        return False
    return None if recommended is None else geometry.capacity >= recommended


def _recommended(
    row: Mapping[str, Any], journal_format: JournalFormat, geometry: Geometry, used: int
) -> tuple[int | None, RingSize | LineSize | None, str | None]:
    """The size for the peak depth, and for the bytes in use at the peak."""
    messages, peak = row["recorded"], max(row["peak"], row["outstanding"] + row["in_doubt"])
    if not messages or not peak:
        return None, None, None
    share = Fraction(row["in_transactions"], messages)
    profile = MessageProfile(Fraction(row["bytes"], messages), share, LOCAL_XID_SIZE if share else 0)
    try:
        size = size_for(profile, peak, journal_format, geometry.data_size, used=used)
    except JournalTooLargeError as error:
        return None, None, str(error)
    return size.recommended, size.choice, None
