"""The content of a report: small, already aggregated values that are validated on construction.

Text may be anything found in a store; it is escaped where it is shown. Every list has a limit, so that a report stays
readable: the caller truncates to these limits and passes the full counts.

Shares range from 0 to 1; sizes are in bytes; times are seconds since 1970, UTC.

Queues that an operator should examine come first (`worst_first`). The order does not depend on time series, so the
caller can rank first and then compute series only for the few queues that are shown with plots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import pairwise
from math import isfinite
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.store.journal.write.space import NEAR_PERCENT, THRESHOLD_PERCENT
from qstore.tools.metrics import METRICS

MAX_QUEUES: Final = 10_000  # in the table; the totals may include more
MAX_INPUTS: Final = 1_000
MAX_POINTS: Final = 500  # in a plot over time or position
MAX_BINS: Final = 64  # in a histogram
MAX_EXAMPLES: Final = 20  # per kind of finding
MAX_NOTES: Final = 50
MAX_PLOTS: Final = 200  # queues shown with plots
MAX_WAIT: Final = 1 << 63  # in any unit
MAX_AT: Final = {"time": 253_402_300_799, "position": (1 << 63) - 1}  # the end of the year 9999; the largest file
DEFAULT_PLOTS: Final = 20
DEFAULT_LIMIT: Final = THRESHOLD_PERCENT / 100  # of a ring: where enqueues are refused


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _demand_counts(owner: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(owner, name)
        _demand(value is None or value >= 0, f"{name} is {value}; a count cannot be negative")


# ---------------------------------------------------------------------------------------------- findings


class Severity(Enum):
    """Severity of a finding; the value is its rank."""

    NOTICE = 1
    DOUBTFUL = 2
    BAD = 3


class FindingKind(Enum):
    """A kind of finding; the words and `hint` are for people."""

    DAMAGE = ("damage", Severity.BAD, "damaged place", "damaged places")
    CHECKSUM = ("checksum_failures", Severity.BAD, "checksum failure", "checksum failures")
    MISSING = ("missing_messages", Severity.BAD, "missing message", "missing messages")
    TWICE = ("stored_twice", Severity.DOUBTFUL, "message stored twice", "messages stored twice")
    DUPLICATE = ("duplicates", Severity.DOUBTFUL, "duplicate", "duplicates")
    NEARLY_FULL = ("peak_near_threshold", Severity.DOUBTFUL, "nearly full journal", "nearly full journals")
    DANGLING = ("dangling_dequeues", Severity.DOUBTFUL, "dangling dequeue", "dangling dequeues")
    IN_DOUBT = ("transactions_in_doubt", Severity.DOUBTFUL, "transaction in doubt", "transactions in doubt")
    GAP = ("gaps", Severity.NOTICE, "gap in record ids", "gaps in record ids")

    @property
    def metric(self) -> str:
        """The name of its metric (`tools.metrics`)."""
        return self.value[0]

    @property
    def plural(self) -> str:
        """Its name in the plural: `damaged places`."""
        return self.value[3]

    def counted(self, number: int) -> str:
        """A number of them: `1 damaged place`, `1,500 checksum failures`."""
        return plural(number, self.value[2], self.value[3])

    @property
    def severity(self) -> Severity:
        """Its severity."""
        return self.value[1]

    @property
    def hint(self) -> str:
        """Its definition, as a clause."""
        return METRICS[self.metric]


class Example(NamedTuple):
    """One instance of a finding: its place (file, offset, record id) and a description."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """All instances of one kind that a queue, or the whole input, has.

    Attributes:
        kind: the kind of finding.
        count: number of instances, 1 or more.
        examples: the first of them, at most `MAX_EXAMPLES`.

    Raises:
        ValueError: there are more examples than instances, or more than allowed.
    """

    kind: FindingKind
    count: int
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        _demand(self.count >= 1, f"a finding with {self.count} {self.kind.plural}")
        _demand(len(self.examples) <= min(self.count, MAX_EXAMPLES), f"{len(self.examples)} examples are too many")


# ---------------------------------------------------------------------------------------------- series


class Axis(Enum):
    """The x axis of a depth plot."""

    TIME = "time"  # seconds since 1970
    POSITION = "position"  # bytes written to the journal before this point


class DepthPoint(NamedTuple):
    """A bucket: its beginning, and the largest number of messages on the queue in it."""

    at: float
    depth: int


@dataclass(frozen=True, slots=True)
class DepthSeries:
    """Messages on a queue, in at most `MAX_POINTS` buckets.

    Attributes:
        axis: the meaning of the points' `at`.
        points: in ascending order of `at`.

    Raises:
        ValueError: there are too many, or they are out of order or out of range (`MAX_AT`).
    """

    axis: Axis
    points: tuple[DepthPoint, ...]

    def __post_init__(self) -> None:
        _demand(len(self.points) <= MAX_POINTS, f"{len(self.points)} points; {MAX_POINTS} at most")
        last = MAX_AT[self.axis.value]
        _demand(all(0 <= at <= last and depth >= 0 for at, depth in self.points), "a point is out of range")
        ascending = all(left.at < right.at for left, right in pairwise(self.points))
        _demand(ascending, "the points are not in ascending order")


class SizeBin(NamedTuple):
    """Number of messages with a size of at least `low` and less than `high` bytes."""

    low: int
    high: int
    messages: int


class WaitUnit(Enum):
    """The unit of a wait, from enqueue to dequeue; the value is its name in the plural."""

    SECONDS = "seconds"
    RECORDS = "records written in between"
    FLUSHES = "flushes in between"
    BYTES = "bytes written in between"


@dataclass(frozen=True, slots=True)
class Waits:
    """How long dequeued messages had waited.

    Attributes:
        unit: unit of the percentiles and the longest wait.
        count: number of measured messages, 1 or more.
        p50, p90, p99: 50 %, 90 % and 99 % of them waited at most this long.
        longest: the longest wait.

    Raises:
        ValueError: the numbers are not in order.
    """

    unit: WaitUnit
    count: int
    p50: float
    p90: float
    p99: float
    longest: float

    def __post_init__(self) -> None:
        _demand(self.count >= 1, "waits without a message")
        _demand(isfinite(self.longest) and self.longest < MAX_WAIT, f"a longest wait of {self.longest}")
        _demand(0 <= self.p50 <= self.p90 <= self.p99 <= self.longest, "the percentiles are not in order")


# ---------------------------------------------------------------------------------------------- sizing


class JournalSize(NamedTuple):
    """The files of a journal: `num-jfiles`, and the size of each in bytes (`jfile-size-pgs` times 64 KiB)."""

    files: int
    file_size: int


@dataclass(frozen=True, slots=True)
class Sizing:
    """How full a queue's journal became, and its recommended size.

    Attributes:
        fill: `peak_fill`: the largest share of the limit in use; None without a limit (linearstore).
        present: the present journal; None if unknown.
        advised: the recommended journal; None if no change is needed or no size can be calculated.
        limit: the limit, as a share of the journal.

    Raises:
        ValueError: a number is out of range.
    """

    fill: float | None
    present: JournalSize | None
    advised: JournalSize | None
    limit: float = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        _demand(self.fill is None or (isfinite(self.fill) and self.fill >= 0), f"a fill level of {self.fill}")
        _demand(0 < self.limit <= 1, f"a limit of {self.limit}")
        for size in (self.present, self.advised):
            _demand(size is None or (size.files >= 0 and size.file_size >= 0), f"a journal of {size}")


# ---------------------------------------------------------------------------------------------- queues and totals


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue of one store.

    Attributes:
        store: the store's path.
        queue: the queue's name.
        outstanding, in_doubt, live_bytes, enqueues, dequeues, record_bytes: see `tools.metrics`.
        peak_depth: likewise; None if unknown.
        seconds: the time span of the records; None if unknown. Rates are computed from it.
        depth: for the plot; only needed for the queues that come first (`ranking`).
        sizes: histogram of message sizes in ascending bins that do not overlap; likewise.
        waits: how long messages waited; None if none was dequeued.
        sizing: None if it could not be calculated.
        findings: the queue's findings, each kind once.

    Raises:
        ValueError: a number is out of range, or something is out of order.
    """

    store: str
    queue: str
    outstanding: int
    live_bytes: int
    enqueues: int
    dequeues: int
    record_bytes: int
    in_doubt: int = 0
    peak_depth: int | None = None
    seconds: float | None = None
    depth: DepthSeries | None = None
    sizes: tuple[SizeBin, ...] = ()
    waits: Waits | None = None
    sizing: Sizing | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        _demand_counts(self, ("outstanding", "live_bytes", "enqueues", "dequeues", "record_bytes"))
        _demand_counts(self, ("in_doubt", "peak_depth", "seconds"))
        _demand(self.seconds is None or isfinite(self.seconds), "the time span of the records is not a number")
        _demand(len(self.sizes) <= MAX_BINS, f"{len(self.sizes)} bins; {MAX_BINS} at most")
        _demand(all(0 <= low < high and messages >= 0 for low, high, messages in self.sizes), "a bin is out of range")
        ascending = all(left.high <= right.low for left, right in pairwise(self.sizes))
        _demand(ascending, "the bins are not in ascending order, or overlap")
        _demand_kinds_once(self.findings)

    @property
    def enqueue_rate(self) -> float | None:
        """Enqueue records per second; None if the time span is unknown."""
        return self.enqueues / self.seconds if self.seconds else None

    @property
    def dequeue_rate(self) -> float | None:
        """Dequeue records per second; None if the time span is unknown."""
        return self.dequeues / self.seconds if self.seconds else None

    @property
    def write_rate(self) -> float | None:
        """Bytes of records per second; None if the time span is unknown."""
        return self.record_bytes / self.seconds if self.seconds else None


def _demand_kinds_once(findings: tuple[Finding, ...]) -> None:
    kinds = {finding.kind for finding in findings}
    _demand(len(kinds) == len(findings), "a kind of finding occurs twice")


class Input(NamedTuple):
    """A store that was read: its path, format name, number of queues and bytes of journals."""

    path: str
    format: str
    queues: int
    size: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over everything that was read, shown or not; the names are those of `tools.metrics`.

    Attributes:
        findings: number of instances of each kind. A transaction in doubt counts once, however many queues it affects.

    Raises:
        ValueError: a number is negative.
    """

    stores: int
    queues: int
    files: int
    journal_bytes: int
    records: int
    record_bytes: int
    outstanding: int
    live_bytes: int
    in_doubt: int
    findings: Mapping[FindingKind, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _demand_counts(self, ("stores", "queues", "files", "journal_bytes", "records", "record_bytes"))
        _demand_counts(self, ("outstanding", "live_bytes", "in_doubt"))


@dataclass(frozen=True, slots=True)
class ReportContent:
    """A report.

    Attributes:
        title: the heading.
        made_at: creation time, with a time zone.
        totals: over all inputs.
        inputs: the stores, at most `MAX_INPUTS`.
        queues: in any order, at most `MAX_QUEUES`.
        findings: those that belong to no queue (unusable inputs, missing messages of unknown queues), each kind once.
        notes: sentences for the reader, such as how waits were measured.
        plots: how many queues are shown with plots, 0 to `MAX_PLOTS`: those that come first.

    Raises:
        ValueError: a list is too long, or `made_at` has no time zone.
    """

    title: str
    made_at: datetime
    totals: Totals
    inputs: tuple[Input, ...] = ()
    queues: tuple[QueueReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    plots: int = DEFAULT_PLOTS

    def __post_init__(self) -> None:
        _demand(self.made_at.utcoffset() is not None, "the creation time of the report has no time zone")
        _demand(len(self.inputs) <= MAX_INPUTS, f"{len(self.inputs)} inputs; {MAX_INPUTS} at most")
        _demand(len(self.queues) <= MAX_QUEUES, f"{len(self.queues)} queues; {MAX_QUEUES} at most")
        _demand(len(self.notes) <= MAX_NOTES, f"{len(self.notes)} notes; {MAX_NOTES} at most")
        _demand(0 <= self.plots <= MAX_PLOTS, f"{self.plots} queues with plots; {MAX_PLOTS} at most")
        _demand(all(entry.queues >= 0 and entry.size >= 0 for entry in self.inputs), "an input is out of range")
        _demand_kinds_once(self.findings)


# ---- ranking ----


class Rank(NamedTuple):
    """The sort key of queues, the most important field first; larger is worse.

    Attributes:
        severity: of the worst finding; 0 without findings.
        findings: number of findings with that severity.
        near_limit: whether the journal came close to the limit at which it refuses enqueues.
        live_bytes: outstanding or in doubt.
        record_bytes: total throughput.
    """

    severity: int
    findings: int
    near_limit: bool
    live_bytes: int
    record_bytes: int


def severity(report: QueueReport) -> Severity | None:
    """The severity of a queue's worst finding; None if it has none."""
    return max((finding.kind.severity for finding in report.findings), key=lambda each: each.value, default=None)


def near_limit(report: QueueReport) -> bool:
    """Whether its journal came close to the limit at which it refuses enqueues."""
    sizing = report.sizing
    return sizing is not None and sizing.fill is not None and sizing.fill * 100 >= NEAR_PERCENT


def rank(report: QueueReport) -> Rank:
    """A queue's sort key."""
    worst = severity(report)
    found = sum(finding.count for finding in report.findings if finding.kind.severity is worst)
    level = 0 if worst is None else worst.value
    return Rank(level, found, near_limit(report), report.live_bytes, report.record_bytes)


def worst_first(queues: Iterable[QueueReport]) -> list[QueueReport]:
    """The queues in the order of the report; ties are sorted by store and name."""
    by_name = sorted(queues, key=lambda report: (report.store, report.queue))
    return sorted(by_name, key=rank, reverse=True)
