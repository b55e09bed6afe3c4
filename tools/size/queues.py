"""Sizes measured in a store: how full each queue's journal is, and how large it should be."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple

from rich.console import Console

from qstore.formats.rhm.geometry import PAGE_SIZE
from qstore.store.inspect.measure import Measurement, Spread, measure
from qstore.store.inspect.offline import RecoveredQueue
from qstore.store.inspect.sizing import JournalSize, JournalTooLargeError, LineSize, MessageProfile, size_for
from qstore.store.journal.enqueue_map import LIVE, LOCKED, PENDING
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.tools.console.tables import Column, print_line, print_table
from qstore.tools.console.text import escape_name, printable
from qstore.tools.metrics import percent
from qstore.tools.size.amounts import human
from qstore.tools.size.formula import Object, choice_object, number, pages

_STATES: Final = {LIVE: "outstanding", LOCKED: "in-doubt-dequeue", PENDING: "in-doubt-enqueue"}
_NOTHING: Final = "-"
_HELD_BACK: Final = 2  # a span of this many times the live bytes is caused by the oldest message


class Wanted(NamedTuple):
    """The requested recommendation.

    Attributes:
        depth: number of messages; None for the present number.
        transaction_depth: operations per transaction, for messages that were enqueued in one.
        count_dequeues: whether dequeue records are counted (`store.inspect.sizing`).
    """

    depth: int | None
    transaction_depth: int
    count_dequeues: bool


@dataclass(frozen=True, slots=True)
class QueueSize:
    """The present and the recommended size of a queue's journal.

    Attributes:
        name: the queue's name.
        journal: its journal; None if it has none.
        measurement: the journal's content.
        depth: the number of messages for which it was sized.
        needed: the recommended size; None without messages to measure, or if none can be calculated.
        problem: why none can be calculated.
    """

    name: str
    journal: Journal | None = None
    measurement: Measurement | None = None
    depth: int = 0
    needed: JournalSize | None = None
    problem: str | None = None

    @property
    def large_enough(self) -> bool | None:
        """Whether the present journal has at least the recommended size, and is not near its threshold.

        None if unknown or not of fixed size.
        """
        if self.journal is None or self.measurement is None or self.journal.format is JournalFormat.LINEAR:
            return None
        threshold = self.measurement.threshold
        if self.problem is not None or (threshold is not None and threshold.is_near):
            return False
        return None if self.needed is None else self.measurement.capacity >= self.needed.recommended


def size_queue(queue: RecoveredQueue, wanted: Wanted) -> QueueSize:
    """Measure a queue's journal and size it for its messages.

    Raises:
        OSError: a file of it cannot be opened any more.
    """
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return QueueSize(queue.name)
    measurement = measure(journal, recovery, queue.end)
    depth = measurement.depth if wanted.depth is None else wanted.depth
    if not measurement.depth:
        return QueueSize(queue.name, journal, measurement, depth)
    profile = MessageProfile(
        record=measurement.records.mean,
        transactional=measurement.xid_share,
        xid_size=ceil(measurement.xids.mean),
        transaction_depth=wanted.transaction_depth,
        count_dequeues=wanted.count_dequeues,
    )
    used = 0 if measurement.threshold is None else measurement.threshold.used
    try:
        needed = size_for(profile, depth, journal.format, journal.files.geometry.data_size, used=used)
    except JournalTooLargeError as error:
        return QueueSize(queue.name, journal, measurement, depth, problem=str(error))
    return QueueSize(queue.name, journal, measurement, depth, needed)


# ---- JSON ----


def queue_object(size: QueueSize) -> Object:
    """A queue's sizes as one JSON object; unknown values are null."""
    fields: Object = {"kind": "queue_size", "queue": size.name}
    journal, measurement, needed = size.journal, size.measurement, size.needed
    fields["store_type"] = None if journal is None else journal.format.label
    fields |= dict.fromkeys(_MEASURED) if measurement is None else _measured_fields(measurement)
    fields["geometry"] = None if journal is None or measurement is None else _present(journal, measurement)
    return {
        **fields,
        "depth": size.depth,
        "footprint": None if needed is None else needed.footprint,
        "recommended_bytes": None if needed is None else needed.recommended,
        "recommended": None if needed is None else choice_object(needed.choice),
        "holds": None if needed is None else needed.held,
        "large_enough": size.large_enough,
        "problem": size.problem,
    }


_MEASURED: Final = (
    "outstanding", "in_doubt_dequeues", "in_doubt_enqueues", "record", "data", "message_header", "xid_share",
    "mean_xid_size", "live_bytes", "span", "capacity", "live_share", "span_share", "oldest_rid", "oldest_state",
    "oldest_file", "oldest_offset", "limit", "used", "room", "fill", "near_threshold",
)  # fmt: skip


def _measured_fields(measurement: Measurement) -> Object:
    oldest, threshold = measurement.oldest, measurement.threshold
    values: tuple[Any, ...] = (
        measurement.live,
        measurement.locked,
        measurement.pending,
        _spread_object(measurement.records),
        _spread_object(measurement.data),
        _spread_object(measurement.headers),
        float(measurement.xid_share),
        float(measurement.xids.mean) if measurement.xids.count else None,
        measurement.live_bytes,
        measurement.span,
        measurement.capacity,
        round(measurement.live_share, 6),
        round(measurement.span_share, 6),
        None if oldest is None else oldest.rid,
        None if oldest is None else _STATES[oldest.state],
        None if oldest is None else escape_name(oldest.path),
        None if oldest is None else oldest.offset,
        None if threshold is None else threshold.limit,
        None if threshold is None else threshold.used,
        None if threshold is None else threshold.room,
        None if threshold is None else threshold.fill,
        None if threshold is None else threshold.is_near,
    )
    return dict(zip(_MEASURED, values, strict=True))


def _spread_object(spread: Spread) -> Object | None:
    if not spread.count:
        return None
    return {"least": spread.least, "mean": float(spread.mean), "largest": spread.largest}


def _present(journal: Journal, measurement: Measurement) -> Object:
    """The present files, under the names of the options that set them."""
    data_size = journal.files.geometry.data_size
    if journal.format is JournalFormat.LINEAR:
        return choice_object(LineSize(measurement.capacity // data_size, data_size))
    return {
        "num_jfiles": journal.files.geometry.files,
        "jfile_size_pgs": number(Fraction(data_size, PAGE_SIZE)),
        "capacity": measurement.capacity,
    }


# ---- text ----

_COLUMNS: Final = (
    Column("queue", folds=True),
    Column("outstanding", number=True),
    Column("in doubt", number=True, spare=True),
    Column("mean", number=True, spare=True),
    Column("largest", number=True, spare=True),
    Column("live bytes", number=True, spare=True),
    Column("capacity", number=True, spare=True),
    Column("live share", number=True, spare=True),
    Column("span share", number=True, spare=True),
    Column("fill"),
    Column("journal"),
    Column("recommended"),
    Column("size"),
)


def print_queues(console: Console, sizes: list[QueueSize]) -> None:
    """A line for each queue, then notes about some of them."""
    if not sizes:
        print_line(console, "There are no queues.")
        return
    print_table(console, _COLUMNS, [_row(size) for size in sizes])
    notes = [note for size in sizes for note in notes_about(size)]
    if notes:
        print_line(console)
    for note in notes:
        print_line(console, note)


def _row(size: QueueSize) -> list[str]:
    journal, measurement = size.journal, size.measurement
    name = printable(size.name)
    if journal is None or measurement is None:
        return [name, *[_NOTHING] * (len(_COLUMNS) - 2), "no journal"]
    records = measurement.records
    return [
        name,
        f"{measurement.live:,}",
        f"{measurement.locked + measurement.pending:,}",
        human(round(records.mean)) if records.count else _NOTHING,
        human(records.largest) if records.count else _NOTHING,
        human(measurement.live_bytes),
        human(measurement.capacity),
        percent(measurement.live_share),
        percent(measurement.span_share),
        _threshold_cell(measurement),
        _files_cell(_present(journal, measurement)),
        _NOTHING if size.needed is None else _files_cell(choice_object(size.needed.choice)),
        _verdict(size),
    ]


def _threshold_cell(measurement: Measurement) -> str:
    threshold = measurement.threshold
    if threshold is None:
        return _NOTHING
    used = percent(threshold.fill)
    if threshold.is_reached:
        return f"{used} REACHED"
    return f"{used} NEAR" if threshold.is_near else used


def _files_cell(choice: Object) -> str:
    if "num_jfiles" in choice:
        return f"{choice['num_jfiles']} x {pages(choice['jfile_size_pgs'])}"
    return f"{choice['files']} x {choice['file_size_kib']:,} KiB"


def _verdict(size: QueueSize) -> str:
    if size.problem is not None:
        return "too many messages"
    if size.needed is None:
        return "no messages"
    if size.large_enough is None:
        return "grows as needed"
    return "large enough" if size.large_enough else "too small"


def notes_about(size: QueueSize) -> list[str]:
    """One line each: a threshold that is near, and why; a size that cannot be calculated; no messages to measure."""
    measurement = size.measurement
    if measurement is None:
        return []
    name = printable(size.name)
    notes = []
    threshold = measurement.threshold
    if threshold is not None and threshold.is_reached:
        notes.append(f"{name}: enqueues are refused: {human(threshold.used)} in use, the threshold is at "
                     f"{human(threshold.limit)}; consume messages, or make the journal larger")  # fmt: skip
    elif threshold is not None and threshold.is_near:
        notes.append(f"{name}: enqueues will be refused after {human(threshold.room)} more; consume messages, or make "
                     "the journal larger")  # fmt: skip
    if threshold is not None and threshold.is_near:
        notes.extend(_held_back(size, measurement))
    if size.problem is not None:
        notes.append(f"{name}: {size.problem}")
    if not measurement.depth and size.depth:
        notes.append(f"{name}: there is no message to measure; use --message-size and --header-size instead")
    return notes


def _held_back(size: QueueSize, measurement: Measurement) -> list[str]:
    """Version 1, which has no compaction: whether the oldest message is why the journal is nearly full."""
    oldest = measurement.oldest
    version_1 = size.journal is not None and size.journal.format is JournalFormat.VERSION_1
    if not version_1 or oldest is None or measurement.span < _HELD_BACK * measurement.live_bytes:
        return []
    what = (
        f"{printable(size.name)}: the oldest message, 0x{oldest.rid:x} ({_STATES[oldest.state]}, in "
        f"{printable(oldest.path)} at 0x{oldest.offset:x}), holds back {human(measurement.span)}, of which "
        f"{human(measurement.live_bytes)} are still needed"
    )
    return [what]
