"""The HTML report (`tools.report`), filled from what the tasks of an analysis found.

There is a row for each queue and store, the first examples of findings, and bins of record sizes; the depths of the few
queues shown with plots are read from their table. Results of omitted steps are not in the report.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.dataset

from qstore.formats.rhm.geometry import PAGE_SIZE
from qstore.tools.console.amounts import human
from qstore.tools.report.content import (
    DEFAULT_PLOTS,
    MAX_EXAMPLES,
    MAX_INPUTS,
    MAX_QUEUES,
    Axis,
    DepthPoint,
    DepthSeries,
    Example,
    Finding,
    FindingKind,
    Input,
    JournalSize,
    QueueReport,
    ReportContent,
    SizeBin,
    Sizing,
    Totals,
    Waits,
    WaitUnit,
    worst_first,
)
from qstore.tools.report.markup import share
from qstore.tools.report.page import journal_text
from qstore.tools.spark import stores
from qstore.tools.spark.request import Request
from qstore.tools.spark.stores import Found

_TITLE: Final = "qstore-analyze"
_NOTES: Final = (
    "A ring that has wrapped around contains only its latest lap: earlier records are not in any metric.",
    "Depth is plotted over the bytes of the journal, because journals do not record when a record was written.",
    "Each metric has the same name and definition as in summary.json and in the tables.",
    "Waits in seconds are accurate to within the time in which a file was filled; other waits are in bytes of journal.",
    "Rates are over the time between the first and the last timestamp of the messages.",
)

#: Queues that have the same instance of a finding, as some transactions: so many more have examples.
_QUEUES_OF: Final = {kind: 4 if kind is FindingKind.IN_DOUBT else 1 for kind in FindingKind}

Row = Mapping[str, Any]
Key = tuple[str, str]


def report_content(
    request: Request, found: Sequence[Found], fields: Mapping[str, Any], made_at: datetime
) -> ReportContent:
    """The content of the report.

    Args:
        request: the request, whose results are written.
        found: of each store.
        fields: the fields of the summary.
        made_at: creation time, with a time zone.
    """
    stores = sorted((store for store in found if store.totals.get("stores")), key=lambda store: store.store)
    every = worst_first(
        _queue(row, _findings(store.findings.get(row["queue"], ()))) for store in stores for row in store.queues
    )
    exemplary = _exemplary(every)
    every = [queue if _key(queue) in exemplary else _without_examples(queue) for queue in every]
    rows = {(row["store"], row["queue"]): row for store in stores for row in store.queues}
    plotted = _plotted(every[:DEFAULT_PLOTS], rows, request)
    missing = sorted({"audit", "sizing"} - request.steps)
    return ReportContent(
        title=_TITLE,
        made_at=made_at,
        totals=_totals(fields),
        inputs=tuple(
            Input(store.store, store.format or "-", len(store.queues), store.totals["journal_bytes"])
            for store in stores[:MAX_INPUTS]
        ),
        queues=(*plotted, *every[DEFAULT_PLOTS:MAX_QUEUES]),
        findings=tuple(_findings(_united(store.findings.get(None, ()) for store in found))),
        notes=(*_NOTES, *(f"The step {step} was omitted, so its results are missing here." for step in missing)),
    )


def _key(queue: QueueReport) -> Key:
    return queue.store, queue.queue


def _united(each: Iterable[Iterable[stores.Finding]]) -> list[stores.Finding]:
    """The findings of all stores that belong to no queue, each kind once."""
    counts: dict[str, int] = {}
    examples: dict[str, list[tuple[str, str]]] = {}
    for findings in each:
        for kind, count, first in findings:
            counts[kind] = counts.get(kind, 0) + count
            examples[kind] = heapq.nsmallest(MAX_EXAMPLES, [*examples.get(kind, ()), *first])
    return [stores.Finding(kind, count, examples[kind]) for kind, count in counts.items()]


def _findings(found: Iterable[stores.Finding]) -> list[Finding]:
    return [
        Finding(FindingKind[kind], count, tuple(Example(*each) for each in examples[:count]))
        for kind, count, examples in sorted(found)
    ]


def _exemplary(ordered: list[QueueReport]) -> set[Key]:
    """The queues whose findings have examples: those with plots, and for each kind the first ones that have it."""
    keys = {_key(queue) for queue in ordered[:DEFAULT_PLOTS]}
    counted = dict.fromkeys(FindingKind, 0)
    for queue in ordered:
        for finding in queue.findings:
            if counted[finding.kind] < MAX_EXAMPLES * _QUEUES_OF[finding.kind]:
                counted[finding.kind] += finding.count
                keys.add(_key(queue))
    return keys


def _without_examples(queue: QueueReport) -> QueueReport:
    """The queue without the examples of its findings, except that of its journal."""
    findings = (
        each if each.kind is FindingKind.NEARLY_FULL else Finding(each.kind, each.count) for each in queue.findings
    )
    return dataclasses.replace(queue, findings=tuple(findings))


def _totals(fields: Mapping[str, Any]) -> Totals:
    """The totals of the summary: nothing is summed here."""
    names = (each.name for each in dataclasses.fields(Totals) if each.name != "findings")
    findings = {kind: fields[kind.metric] for kind in FindingKind if fields.get(kind.metric)}
    return Totals(**{name: fields[name] for name in names}, findings=findings)


# ---- one queue ----


def _queue(row: Row, findings: list[Finding]) -> QueueReport:
    span = None if row.get("last_timestamp") is None else row["last_timestamp"] - row["first_timestamp"]
    return QueueReport(
        store=row["store"],
        queue=row["queue"],
        outstanding=row.get("outstanding", 0),
        live_bytes=row.get("live_bytes", 0),
        enqueues=row.get("enqueues", 0),
        dequeues=row.get("dequeues", 0),
        record_bytes=row.get("record_bytes", 0),
        in_doubt=row.get("in_doubt", 0),
        peak_depth=None if row.get("peak") is None else max(row["peak"], 0),
        seconds=span or None,
        waits=_waits(row),
        sizing=(sizing := _sizing(row)),
        findings=(*findings, *_nearly_full(sizing, row)),
    )


def _nearly_full(sizing: Sizing | None, row: Row) -> Iterator[Finding]:
    if sizing is None or sizing.fill is None or sizing.present is None or not row["peak_near_threshold"]:
        return
    advised = "" if sizing.advised is None else f"; advised: {journal_text(sizing.advised)}"
    text = f"{share(sizing.fill)} of its limit of {human(row['limit'])} was in use{advised}"
    where = f"journal of {journal_text(sizing.present)}"
    yield Finding(FindingKind.NEARLY_FULL, 1, (Example(where, text),))


def _waits(row: Row) -> Waits | None:
    """In seconds, unless most messages were dequeued within the file in which they were enqueued."""
    for name, unit in (("waited", WaitUnit.SECONDS), ("distance", WaitUnit.BYTES)):
        numbers: list[Any] = [row.get(f"{name}_{of}") for of in ("50", "90", "99", "most")]
        if all(number is not None and number >= 0 for number in numbers) and (numbers[0] or unit is WaitUnit.BYTES):
            p50, p90, p99, longest = sorted(numbers)
            return Waits(unit, row["measured"], p50, p90, p99, longest)
    return None


def _sizing(row: Row) -> Sizing | None:
    if row.get("files") is None:
        return None
    present = JournalSize(row["files"], round(row["pages"] * PAGE_SIZE))
    advised = None
    if row["num_jfiles"] is not None and (row["peak_near_threshold"] or not row["large_enough"]):
        advised = JournalSize(row["num_jfiles"], row["jfile_size_pgs"] * PAGE_SIZE)
    if not row["limit"]:
        return Sizing(None, present, advised)
    return Sizing(row["peak_fill"], present, advised, min(row["limit"] / row["capacity"], 1.0))


# ---- plots of the first queues ----


def _plotted(queues: list[QueueReport], rows: Mapping[Key, Row], request: Request) -> list[QueueReport]:
    if not queues:
        return []
    points: dict[Key, list[Row]] = {}
    if "audit" in request.steps:
        names = ["store", "queue", "begin", "end", "peak", "depth"]
        own = pc.field("queue").isin([queue.queue for queue in queues])
        table = pyarrow.dataset.dataset(request.path("audit", "depth")).to_table(columns=names, filter=own)
        for row in sorted(table.to_pylist(), key=lambda row: row["begin"]):
            points.setdefault((row["store"], row["queue"]), []).append(row)
    return [
        dataclasses.replace(
            queue, depth=_series(points.get(_key(queue), [])), sizes=_bins(rows[_key(queue)].get("sizes", []))
        )
        for queue in queues
    ]


def _bins(found: Sequence[tuple[int, int, int]]) -> tuple[SizeBin, ...]:
    """The bins, with those in between that have no messages."""
    bins: list[SizeBin] = []
    widths = {high - low for low, high, _ in found}
    for low, high, count in found:
        while bins and bins[-1].high < low:
            begin = bins[-1].high
            bins.append(SizeBin(begin, begin * 2 if len(widths) > 1 else begin + min(widths), 0))
        bins.append(SizeBin(low, high, count))
    return tuple(bins)


def _series(rows: Sequence[Row]) -> DepthSeries | None:
    """The peak of each bucket; buckets without changes have the depth of the one before."""
    points: list[DepthPoint] = []
    for index, row in enumerate(rows):
        points.append(DepthPoint(row["begin"], max(row["peak"], 0)))
        is_followed = index + 1 < len(rows) and rows[index + 1]["begin"] <= row["end"]
        if not is_followed:
            points.append(DepthPoint(row["end"], max(row["depth"], 0)))
    return DepthSeries(Axis.POSITION, tuple(points)) if points else None
