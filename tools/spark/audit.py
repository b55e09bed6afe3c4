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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    is_ascending,
    is_kind,
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
    measured = len(lives) - lives["dequeued"].null_count
    if not measured:
        return None
    row: dict[str, Any] = {"measured": measured}
    for name in ("distance", "waited"):
        values = lives[name].drop_null()  # those that were not dequeued have none
        for share in PERCENTILES:
            place = max(-(-share * len(values) // 100) - 1, 0)
            row[f"{name}_{share}"] = _nth(values, place) if len(values) else None
        row[f"{name}_most"] = pc.max(values).as_py()
    return row


_AT_ONCE: Final = 1 << 20  # values of which one is looked for by order


def _nth(values: Any, place: int) -> int | float:
    """The n-th smallest value; very many are not copied."""
    while len(values) > _AT_ONCE:
        least, most = (pc.min_max(values)[name].as_py() for name in ("min", "max"))
        middle = (least + most) // 2 if isinstance(least, int) else (least + most) / 2
        is_low = pc.less_equal(values, middle if middle < most else least)
        low = _count(is_low)
        if low == len(values):  # all are alike
            break
        values = values.filter(is_low if place < low else pc.invert(is_low))
        place -= 0 if place < low else low
    values = one(values)
    found: int | float = values[pc.partition_nth_indices(values, pivot=place)[place].as_py()].as_py()
    return found


def rates(lives: Any) -> dict[str, Any] | None:
    """The throughput of a queue, as far as its journal still shows it: a row of `RATES`; None without messages.

    recorded_bytes, mean_size, least_size, largest_size: of the records on disk; stamped_per_second: messages with a
    timestamp per second between the first and the last one; null if it cannot be calculated.
    """
    if not lives.num_rows:
        return None
    states, stamps, sizes = lives["state"], lives["timestamp"], lives["size"]
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
    return series([changes(messages)], initial_depth(messages), length_of(messages) or 1, buckets)


def length_of(messages: Any) -> int:
    """Bytes of a journal up to the end of the last record of a message."""
    ends = pc.max_element_wise(
        pc.add(one(messages["position"]), one(messages["size"])), pc.add(one(messages["last_position"]), BLOCK_SIZE)
    )
    return int(pc.max(ends).as_py() or 0)


def initial_depth(messages: Any) -> int:
    """Number of messages that the journal only dequeues."""
    return _count(pc.and_not(pc.is_valid(one(messages["removed"])), pc.is_valid(one(messages["state"]))))


def changes(messages: Any) -> Any:
    """When messages come and go: at (a position), count (1 or -1), bytes and reserved bytes."""
    added, removed = one(messages["added"]), one(messages["removed"])
    sizes = pc.coalesce(one(messages["size"]), 0)
    has_state = pc.is_valid(one(messages["state"]))
    goes = pc.is_valid(removed)
    reserved = pc.add(sizes, BLOCK_SIZE)
    gone_reserved = pc.if_else(has_state, pc.negate(reserved), 0)
    came, went = _count(has_state), _count(goes)
    return pa.table({
        "at": pa.concat_arrays([added.filter(has_state), removed.filter(goes)]),
        "count": pa.concat_arrays([pa.repeat(pa.scalar(1, _LONG), came), pa.repeat(pa.scalar(-1, _LONG), went)]),
        "bytes": pa.concat_arrays([sizes.filter(has_state), pc.negate(sizes).filter(goes)]),
        "reserved": pa.concat_arrays([reserved.filter(has_state), gone_reserved.filter(goes)]),
    })  # fmt: skip


def series(parts: Iterable[Any], before: int, length: int, buckets: int = BUCKETS) -> Any:
    """The series of a journal.

    Args:
        parts: from `changes`, in any order; those of later parts are later.
        before: the `initial_depth`.
        length: of the journal.
        buckets: number of parts of a journal.
    """
    width = max(-(-length // buckets), 1)
    held = {"count": before, "bytes": 0, "reserved": 0}
    found = []
    for part in parts if isinstance(parts, list) and len(parts) == 1 else _up_to(length, parts):
        if part.num_rows:
            found.append(_in_buckets(part, held, length, width, buckets))
            held = {name: each + _total(part[name]) for name, each in held.items()}
    if not found:
        return DEPTH.empty_table()
    of = found[0]
    if len(found) > 1:
        of = pa.concat_tables(found).group_by("bucket", use_threads=False).aggregate(_BUCKET_AGGREGATES)
        of = of.rename_columns(["bucket", *(name for name, _ in _BUCKET_AGGREGATES)])
    number = one(of["bucket"])
    begin = pc.multiply(number, width)
    peaks = [
        pc.max_element_wise(one(of[f"start_{name}"]), one(of[f"most_{name}"]))
        for name in ("count", "bytes", "reserved")
    ]
    return pa.table(
        [
            pc.cast(number, _INT), begin, pc.add(begin, width), of["enqueues"], of["dequeues"], of["came"],
            of["count"], of["bytes"], *peaks,
        ],
        schema=DEPTH,
    )  # fmt: skip


def _up_to(length: int, parts: Iterable[Any]) -> Iterator[Any]:
    """The parts, and what changes at the journal's end or later as one, because it counts as at the end."""
    late = []
    for part in parts:
        is_late = pc.greater_equal(one(part["at"]), length)
        late.append(part.filter(is_late))
        yield part.filter(pc.invert(is_late))
    if late:
        yield pa.concat_tables(late)


def _in_buckets(some: Any, before: Mapping[str, int], length: int, width: int, buckets: int) -> Any:
    """Changes summed up for each bucket, whose names are those of `_BUCKET_AGGREGATES`."""
    at = pc.min_element_wise(one(some["at"]), length)
    # Enqueues come first. One number to sort by takes a third of the time of two columns.
    order = pc.sort_indices(pc.add(pc.multiply(at, 2), pc.cast(pc.less(one(some["count"]), 0), _LONG)))
    some = some.take(order)
    columns = {"bucket": pc.min_element_wise(pc.divide(at.take(order), width), buckets - 1)}
    is_enqueue = pc.greater(one(some["count"]), 0)
    columns["enqueues"] = pc.cast(is_enqueue, _LONG)
    columns["dequeues"] = pc.cast(pc.invert(is_enqueue), _LONG)
    columns["came"] = pc.if_else(is_enqueue, one(some["bytes"]), 0)
    for name, start in before.items():
        change = one(some[name])
        held = pc.add(pc.cumulative_sum(change), start)
        columns |= {name: held, f"start_{name}": pc.subtract(held, change), f"most_{name}": held}
    of = pa.table(columns).group_by("bucket", use_threads=False).aggregate(_BUCKET_AGGREGATES)
    return of.rename_columns(["bucket", *(name for name, _ in _BUCKET_AGGREGATES)])


_BUCKET_AGGREGATES: Final = [
    ("enqueues", "sum"), ("dequeues", "sum"), ("came", "sum"),
    *((f"{part}{name}", kind) for name in ("count", "bytes", "reserved")
      for part, kind in (("", "last"), ("start_", "first"), ("most_", "max"))),
]  # fmt: skip


def undone_enqueues(records: Any, found: Sequence[Any]) -> Any:
    """The enqueues of a journal whose transactions were rolled back: position, ended, size."""
    fates, _, _, ended = found
    undone = pc.and_(_true(pc.equal(fates, ABORTED)), is_kind(records, "enqueue"))
    return pa.table({"position": records["position"], "ended": ended, "size": records["size"]}).filter(undone)


def use(messages: Any, undone: Any, data_size: int) -> dict[str, Any]:
    """The most that was in use in a journal, as the threshold of each format counts it: a row of `USE`.

    Arguments as of `occupied`. longest: from it; reserved: bytes of live records and a block for each, at most.
    """
    longest, changed = occupied(messages, undone, data_size)
    return {"longest": longest, "reserved": most_reserved([changed])}


def occupied(messages: Any, undone: Any, data_size: int) -> tuple[int | None, Any]:
    """Bytes from the beginning of a record's file to its removal, at most; and changes of reserved bytes: at, change.

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
    gone = pc.if_else(pc.less(removed, AT_THE_END), removed, _NULL)
    longest = pc.max(pc.add(pc.subtract(gone, begun), _modulo(begun, data_size))).as_py()
    goes = pc.is_valid(removed)
    changed = {
        "at": pa.concat_arrays([begun, removed.filter(goes)]),
        "change": pa.concat_arrays([sizes, pc.negate(sizes).filter(goes)]),
    }
    return longest, pa.table(changed)


def most_reserved(parts: Iterable[Any]) -> int | None:
    """The most that was reserved; parts: changes as of `occupied`, in any order; those of later parts are later."""
    most, held = [], 0
    for part in parts:
        at, change = one(part["at"]), one(part["change"])
        if len(at):
            is_less = pc.cast(pc.less(change, 0), _LONG)  # what comes first at a position adds
            order = pc.sort_indices(pc.add(pc.multiply(at, 2), is_less))
            most.append(held + pc.max(pc.cumulative_sum(change.take(order))).as_py())
            held += _total(change)
    return max(most, default=None)


# ---- findings ----


def odd_dequeues(messages: Any) -> Any:
    """Dequeues of messages that are missing from their journal, or that it dequeues twice: rows of `ODD`.

    position: of the first of these records; what: "overwritten" (normal: the record ids are lower than that of any
    enqueue in the journal), "unknown" (nothing explains why the message is missing) or "dequeued twice".
    """
    return explained(maybe_odd(messages), first_enqueued(messages))


def maybe_odd(messages: Any) -> Any:
    """The messages that may be of `ODD`: rid, dequeues, dequeue_position, state."""
    is_unknown = pc.is_null(one(messages["state"]))
    twice = pc.and_not(pc.greater(one(messages["dequeues"]), 1), one(messages["transactional"]))
    return messages.select(["rid", "dequeues", "dequeue_position", "state"]).filter(pc.or_(is_unknown, twice))


def first_enqueued(messages: Any) -> int | None:
    """The lowest record id that is enqueued."""
    first: int | None = pc.min(one(messages["rid"]).filter(pc.greater(one(messages["enqueues"]), 0))).as_py()
    return first


def explained(odd: Any, first: int | None) -> Any:
    """Rows of `ODD`, of `maybe_odd`; first: `first_enqueued` of the journal."""
    if not odd.num_rows:
        return ODD.empty_table()
    is_early = pa.repeat(pa.scalar(False), odd.num_rows) if first is None else pc.less(one(odd["rid"]), first)
    what = pc.if_else(pc.is_valid(one(odd["state"])), "dequeued twice", pc.if_else(is_early, OVERWRITTEN, "unknown"))
    return pa.table([odd["rid"], odd["dequeues"], odd["dequeue_position"], what], schema=ODD)


def is_kept_enqueue(records: Any, fates: Any) -> Any:
    """Which records are enqueues that were not rolled back: no compaction copies, and none that recovery ignores."""
    undone = pc.is_in(fates, pa.array(UNDONE, _STRING))
    left_out = pc.or_(pc.or_(has_flag(records, "moved"), has_flag(records, "transient")), undone)
    return pc.and_not(is_kind(records, "enqueue"), left_out)


def same_record_ids(kept_ones: Any) -> Any:
    """Record ids that a journal has more than once, which an intact one never has: rows of `DUPLICATES`.

    Args:
        kept_ones: from `kept_enqueues`.
    """
    rids = one(kept_ones["rid"])
    if is_ascending(rids):
        return DUPLICATES.empty_table()
    counts = pc.value_counts(rids)
    rids, copies = counts.field("values"), counts.field("counts")
    several = pc.greater(copies, 1)
    rids, copies = rids.filter(several), copies.filter(several)
    count = len(rids)
    what = pa.repeat(pa.scalar("record id"), count)
    return pa.table([what, pa.nulls(count, _STRING), rids, rids, copies], schema=DUPLICATES)


def kept_enqueues(records: Any, fates: Any) -> Any:
    """Message ids, null if there is none, and record ids of a journal's `is_kept_enqueue`: message_id, rid."""
    return records.select(["message_id", "rid"]).filter(is_kept_enqueue(records, fates)).combine_chunks()


def message_ids(kept_ones: Any) -> Any:
    """Those of `kept_enqueues` that have a message id."""
    ids = one(kept_ones["message_id"])
    return kept_ones if not ids.null_count else kept_ones.filter(pc.is_valid(ids))


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
    return one(records["rid"]).filter(is_kind(records, "enqueue", "dequeue", "commit", "abort")).drop_null()


#: Record ids without gaps between them.
RUNS: Final = pa.schema([("first", _LONG), ("last", _LONG)])


def runs(rids: Any) -> Any:
    """The runs of some record ids: an array or a chunked array."""
    return joined_runs(pa.table([rids, rids], schema=RUNS))


def joined_runs(some: Any) -> Any:
    """Runs in order, of runs that may overlap."""
    count = some.num_rows
    if not count:
        return RUNS.empty_table()
    if not is_ascending(one(some["first"])):
        some = some.take(pc.sort_indices(some["first"]))
    first, reach = one(some["first"]), pc.cumulative_max(one(some["last"]))
    begins = pc.greater(pc.subtract(first.slice(1), reach.slice(0, count - 1)), 1)
    ends = pa.concat_arrays([begins, pa.array([True])])
    begins = pa.concat_arrays([pa.array([True]), begins])
    return pa.table([first.filter(begins), reach.filter(ends)], schema=RUNS)


def gaps(found: Sequence[Any]) -> Any:
    """Record ids that no record of a store has, between its lowest and its highest: rows of `GAPS`.

    Rings overwrite old records, and a restart skips ids, so a gap by itself is not a loss. after and before are the
    record ids on either side; missing: how many are between them.

    Args:
        found: from `runs`, of the store's journals.
    """
    every = joined_runs(pa.concat_tables([RUNS.empty_table(), *found]))
    after, before = one(every["last"]).slice(0, max(every.num_rows - 1, 0)), one(every["first"]).slice(1)
    return pa.table([after, before, pc.subtract(pc.subtract(before, after), 1)], schema=GAPS)


def undecided(records: Any, fates: Any) -> Any:
    """The operations of a journal's open transactions, each message once: xid, type, rid, size."""
    is_open = pc.and_(pc.is_valid(fates), pc.invert(pc.is_in(fates, pa.array([COMMITTED, ABORTED], _STRING))))
    some = pa.table({
        "xid": records["xid"], "type": records["type"], "rid": targets(records), "size": records["size"],
    }).filter(is_open)  # fmt: skip
    some = some.set_column(1, "type", some["type"].cast(_STRING))  # a dictionary cannot be grouped by
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
    seen = seen_of(messages)
    return seen | seen_in_all(peaks, most, seen["end"] if end is None else end)


def seen_of(messages: Any) -> dict[str, Any]:
    """Of `OBSERVED` what is summed up, or the greatest or least, of a journal's messages."""
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
        "end": pc.max(ends).as_py() or 0,
    }


def seen_together(one_part: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`seen_of` of two parts of a journal."""
    found = {name: value + other[name] for name, value in one_part.items() if name not in _OF_EXTREMES}
    for name, extreme in _OF_EXTREMES.items():
        found[name] = extreme((each[name] for each in (one_part, other) if each[name] is not None), default=None)
    return found


_OF_EXTREMES: Final[dict[str, Callable[..., Any]]] = {"largest_size": max, "oldest": min, "end": max}


def seen_in_all(peaks: Mapping[str, Any], most: Mapping[str, Any], end: int | None) -> dict[str, Any]:
    """Of `OBSERVED` what the whole journal shows; arguments as of `observed`."""
    return {
        "end": end or 0,
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
