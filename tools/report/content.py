"""What a report says: values that are small, already aggregated, and checked as they are made.

Text may be anything that stood in a store: it is made harmless where it is shown. Everything has a limit, so that a
report can be read: whoever fills it cuts to these limits and gives the counts in full.

Shares are 0 to 1; sizes are bytes; times are seconds since 1970, in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

from store.journal.write.threshold import THRESHOLD_PERCENT
from tools.figures import FIGURES, label

MAX_QUEUES: Final = 10_000  # in the table; the totals may count more
MAX_INPUTS: Final = 1_000
MAX_POINTS: Final = 500  # of a plot over time or position
MAX_BINS: Final = 64  # of a histogram
MAX_EXAMPLES: Final = 20  # of one kind of finding
MAX_NOTES: Final = 50
MAX_PLOTS: Final = 200  # queues that are shown with plots
MAX_WAIT: Final = 1 << 63  # in any unit
MAX_AT: Final = {"time": 253_402_300_799, "position": (1 << 63) - 1}  # the end of the year 9999; as large as a file is
DEFAULT_PLOTS: Final = 20
DEFAULT_LIMIT: Final = THRESHOLD_PERCENT / 100  # of a ring: where enqueues are refused


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _demand_counts(owner: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(owner, name)
        _demand(value is None or value >= 0, f"{name} is {value}; it counts something, so it is not negative")


# ---------------------------------------------------------------------------------------------- findings


class Severity(Enum):
    """How bad a finding is: the value is its rank."""

    NOTICE = 1
    DOUBTFUL = 2
    BAD = 3


class FindingKind(Enum):
    """What was found; `label` and `hint` are for people."""

    DAMAGE = ("damage", Severity.BAD)
    CHECKSUM = ("checksum_failures", Severity.BAD)
    MISSING = ("missing_messages", Severity.BAD)
    TWICE = ("stored_twice", Severity.DOUBTFUL)
    DUPLICATE = ("duplicates", Severity.DOUBTFUL)
    GAP = ("gaps", Severity.NOTICE)
    DANGLING = ("dangling_dequeues", Severity.DOUBTFUL)
    IN_DOUBT = ("transactions_in_doubt", Severity.DOUBTFUL)

    @property
    def figure(self) -> str:
        """The name of its number (`tools.figures`)."""
        return self.value[0]

    @property
    def label(self) -> str:
        """What it is called, in the plural."""
        return label(self.figure)

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.value[1]

    @property
    def hint(self) -> str:
        """What it means, in half a sentence."""
        return FIGURES[self.figure]


class Example(NamedTuple):
    """One of what was found: where it stands (file, offset, record id) and what it is."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """All of one kind that a queue, or a whole input, has.

    Attributes:
        kind: what was found.
        count: how many of them, 1 or more.
        examples: the first of them, `MAX_EXAMPLES` at most.

    Raises:
        ValueError: there are more examples than findings, or than is allowed.
    """

    kind: FindingKind
    count: int
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        _demand(self.count >= 1, f"a finding of {self.count} {self.kind.label}")
        _demand(len(self.examples) <= min(self.count, MAX_EXAMPLES), f"{len(self.examples)} examples are too many")


# ---------------------------------------------------------------------------------------------- series


class Axis(Enum):
    """What a depth is plotted over."""

    TIME = "time"  # seconds since 1970
    POSITION = "position"  # bytes written to the journal before it


class DepthPoint(NamedTuple):
    """A bucket: where it begins, and the most messages that were on the queue in it."""

    at: float
    depth: int


@dataclass(frozen=True, slots=True)
class DepthSeries:
    """Messages on a queue, in buckets, `MAX_POINTS` at most.

    Attributes:
        axis: what `at` of the points is.
        points: in ascending order of `at`.

    Raises:
        ValueError: they are too many, out of order, or out of range (`MAX_AT`).
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
    """How many messages have `low` bytes or more, and less than `high`."""

    low: int
    high: int
    messages: int


class WaitUnit(Enum):
    """What a wait, from enqueue to dequeue, is counted in; the value is its name in the plural."""

    SECONDS = "seconds"
    RECORDS = "records written in between"
    FLUSHES = "flushes in between"
    BYTES = "bytes written in between"


@dataclass(frozen=True, slots=True)
class Waits:
    """How long messages waited that were dequeued.

    Attributes:
        unit: of the percentiles and the longest.
        count: messages that were measured, 1 or more.
        p50, p90, p99: half, 90 % and 99 % of them waited at most so long.
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
        _demand(self.count >= 1, "waits of no message")
        _demand(isfinite(self.longest) and self.longest < MAX_WAIT, f"a longest wait of {self.longest}")
        _demand(0 <= self.p50 <= self.p90 <= self.p99 <= self.longest, "the percentiles are not in order")


# ---------------------------------------------------------------------------------------------- sizing


class JournalSize(NamedTuple):
    """The files of a journal: `num-jfiles`, and the bytes of each (`jfile-size-pgs` times 64 KiB)."""

    files: int
    file_size: int


@dataclass(frozen=True, slots=True)
class Sizing:
    """How full a queue's journal became, and how large it had better be.

    Attributes:
        fill: `peak_fill`: what was in use at most, of the limit; None if it has no limit (linearstore).
        present: the journal as it is; None if that is not known.
        advised: as it is recommended; None if it needs no change or no size can be given.
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


# ---------------------------------------------------------------------------------------------- queues and the whole


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue of one store.

    Attributes:
        store: the store's path.
        queue: the queue's name.
        outstanding, in_doubt, live_bytes, enqueues, dequeues, record_bytes: `tools.figures`.
        peak_depth: likewise; None if it is not known.
        seconds: the time that the records span; None if nothing tells. Rates are computed from it.
        depth: for the plot; only needed for the queues that come first (`ranking`).
        sizes: histogram of message sizes in ascending bins that do not overlap; likewise.
        waits: how long messages waited; None if none was dequeued.
        sizing: None if it could not be judged.
        findings: what was found in it, each kind once.

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
        _demand(self.seconds is None or isfinite(self.seconds), "the time that the records span is no number")
        _demand(len(self.sizes) <= MAX_BINS, f"{len(self.sizes)} bins; {MAX_BINS} at most")
        _demand(all(0 <= low < high and messages >= 0 for low, high, messages in self.sizes), "a bin is out of range")
        ascending = all(left.high <= right.low for left, right in pairwise(self.sizes))
        _demand(ascending, "the bins are not in ascending order, or overlap")
        _demand_kinds_once(self.findings)

    @property
    def enqueue_rate(self) -> float | None:
        """Enqueue records per second; None if the time is not known."""
        return self.enqueues / self.seconds if self.seconds else None

    @property
    def dequeue_rate(self) -> float | None:
        """Dequeue records per second; None if the time is not known."""
        return self.dequeues / self.seconds if self.seconds else None

    @property
    def write_rate(self) -> float | None:
        """Bytes of records per second; None if the time is not known."""
        return self.record_bytes / self.seconds if self.seconds else None


def _demand_kinds_once(findings: tuple[Finding, ...]) -> None:
    kinds = {finding.kind for finding in findings}
    _demand(len(kinds) == len(findings), "a kind of finding is there twice")


class Input(NamedTuple):
    """A store that was read: its path, its format's name, the queues and the bytes of its journals."""

    path: str
    format: str
    queues: int
    size: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over everything that was read, shown or not; the names are those of `tools.figures`.

    Attributes:
        findings: how many there are of each kind. A transaction in doubt counts once, however many queues it is in.

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
        title: what is at its top.
        made_at: when, with a time zone.
        totals: over all inputs.
        inputs: the stores, `MAX_INPUTS` at most.
        queues: in any order, `MAX_QUEUES` at most.
        findings: what belongs to no queue (unusable inputs, messages missing of no known queue), each kind once.
        notes: sentences for the reader, such as how waits were measured.
        plots: how many queues are shown with plots, 0 to `MAX_PLOTS`: those that come first.

    Raises:
        ValueError: there is too much of something, or `made_at` has no time zone.
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
        _demand(self.made_at.utcoffset() is not None, "the time at which the report was made has no time zone")
        _demand(len(self.inputs) <= MAX_INPUTS, f"{len(self.inputs)} inputs; {MAX_INPUTS} at most")
        _demand(len(self.queues) <= MAX_QUEUES, f"{len(self.queues)} queues; {MAX_QUEUES} at most")
        _demand(len(self.notes) <= MAX_NOTES, f"{len(self.notes)} notes; {MAX_NOTES} at most")
        _demand(0 <= self.plots <= MAX_PLOTS, f"{self.plots} queues with plots; {MAX_PLOTS} at most")
        _demand(all(entry.queues >= 0 and entry.size >= 0 for entry in self.inputs), "an input is out of range")
        _demand_kinds_once(self.findings)
