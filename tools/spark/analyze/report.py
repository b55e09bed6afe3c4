"""The HTML report (`tools.report`), filled from the results of an analysis.

Only small results go to the driver: a row for each queue and store; then, for the few queues shown with plots, a row
for each bucket of their depth and each bin of their sizes, and the first examples of their findings. Results of omitted
steps are not in the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, Row

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
from qstore.tools.spark.analyze.report_rows import (
    Key,
    counted_findings,
    depths,
    examples,
    queue_rows,
    size_bins,
    store_rows,
)
from qstore.tools.spark.analyze.tables import Tables

_TITLE: Final = "qstore-analyze"
_NOTES: Final = (
    "A ring that has wrapped around contains only its latest lap: earlier records are not in any metric.",
    "Depth is plotted over the bytes of the journal, because journals do not record when a record was written.",
    "Each metric has the same name and definition as in summary.json and in the tables.",
    "Waits in seconds are accurate to within the time in which a file was filled; other waits are in bytes of journal.",
    "Rates are over the time between the first and the last timestamp of the messages.",
)
_STEPS: Final = {"audit/depth": "audit", "sizing": "sizing"}

#: Queues that have the same instance of a finding, as some transactions: so many more are read for the examples.
_QUEUES_OF: Final = {kind: 4 if kind is FindingKind.IN_DOUBT else 1 for kind in FindingKind}

_Findings = dict[Key, list[Finding]]


def report_content(
    tables: Tables, made: Mapping[str, DataFrame], fields: Mapping[str, Any], made_at: datetime
) -> ReportContent:
    """The content of the report.

    Args:
        tables: the tables of the analysis.
        made: its results: path below their directory -> table.
        fields: the fields of its summary.
        made_at: creation time, with a time zone.
    """
    stores = store_rows(tables)
    counts = counted_findings(tables, made)
    found = _findings(counts, {})
    every = worst_first(_queue(row, found.get((row["store"], row["queue"]), [])) for row in queue_rows(tables, made))
    shown = _findings(counts, examples(tables, made, _exemplary(every)))
    every = [_with_findings(queue, shown.get((queue.store, queue.queue), [])) for queue in every]
    plotted = _plotted(every[:DEFAULT_PLOTS], tables, made)
    missing = sorted({step for path, step in _STEPS.items() if path not in made})
    return ReportContent(
        title=_TITLE,
        made_at=made_at,
        totals=_totals(fields),
        inputs=tuple(
            Input(row["store"], row["format"] or "-", row["queues"] or 0, row["size"] or 0)
            for row in stores[:MAX_INPUTS]
        ),
        queues=(*plotted, *every[DEFAULT_PLOTS:MAX_QUEUES]),
        findings=tuple(shown.get((None, None), [])),
        notes=(*_NOTES, *(f"The step {step} was omitted, so its results are missing here." for step in missing)),
    )


def _exemplary(ordered: list[QueueReport]) -> set[Key]:
    """The queues whose findings are read: those with plots, and for each kind the first ones that have it."""
    keys: set[Key] = {(queue.store, queue.queue) for queue in ordered[:DEFAULT_PLOTS]}
    counted = dict.fromkeys(FindingKind, 0)
    for queue in ordered:
        for finding in queue.findings:
            if counted[finding.kind] < MAX_EXAMPLES * _QUEUES_OF[finding.kind]:
                counted[finding.kind] += finding.count
                keys.add((queue.store, queue.queue))
    return keys


def _totals(fields: Mapping[str, Any]) -> Totals:
    """The totals of the summary: nothing is summed here."""
    names = (each.name for each in dataclasses.fields(Totals) if each.name != "findings")
    findings = {kind: fields[kind.metric] for kind in FindingKind if fields.get(kind.metric)}
    return Totals(**{name: fields[name] for name in names}, findings=findings)


# ---- one queue ----


def _queue(row: Row, findings: list[Finding]) -> QueueReport:
    span = None if row["last_timestamp"] is None else row["last_timestamp"] - row["first_timestamp"]
    return QueueReport(
        store=row["store"],
        queue=row["queue"],
        outstanding=row["outstanding"] or 0,
        live_bytes=row["live_bytes"] or 0,
        enqueues=row["enqueues"] or 0,
        dequeues=row["dequeues"] or 0,
        record_bytes=row["record_bytes"] or 0,
        in_doubt=row["in_doubt"] or 0,
        peak_depth=None if row["peak"] is None else max(row["peak"], 0),
        seconds=span or None,
        waits=_waits(row),
        sizing=(sizing := _sizing(row)),
        findings=(*findings, *_nearly_full(sizing, row)),
    )


def _with_findings(queue: QueueReport, findings: list[Finding]) -> QueueReport:
    """The queue with the examples of its findings; that of its journal it has already."""
    own = (finding for finding in queue.findings if finding.kind is FindingKind.NEARLY_FULL)
    return dataclasses.replace(queue, findings=(*findings, *own))


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
        numbers = [row[f"{name}_{of}"] for of in ("50", "90", "99", "most")]
        if all(number is not None and number >= 0 for number in numbers) and (numbers[0] or unit is WaitUnit.BYTES):
            p50, p90, p99, longest = sorted(numbers)
            return Waits(unit, row["measured"], p50, p90, p99, longest)
    return None


def _sizing(row: Row) -> Sizing | None:
    if row["files"] is None:
        return None
    present = JournalSize(row["files"], round(row["pages"] * PAGE_SIZE))
    advised = None
    if row["num_jfiles"] is not None and (row["peak_near_threshold"] or not row["large_enough"]):
        advised = JournalSize(row["num_jfiles"], row["jfile_size_pgs"] * PAGE_SIZE)
    if not row["limit"]:
        return Sizing(None, present, advised)
    return Sizing(row["peak_fill"], present, advised, min(row["limit"] / row["capacity"], 1.0))


# ---- plots of the first queues ----


def _plotted(queues: list[QueueReport], tables: Tables, made: Mapping[str, DataFrame]) -> list[QueueReport]:
    if not queues:
        return []
    keys = {(queue.store, queue.queue) for queue in queues}
    sizes = _by_queue(size_bins(tables, keys).collect())
    points = _by_queue(depths(made["audit/depth"], keys).collect()) if "audit/depth" in made else {}
    plotted = []
    for queue in queues:
        key = (queue.store, queue.queue)
        plotted.append(dataclasses.replace(queue, depth=_series(points.get(key, [])), sizes=_bins(sizes.get(key, []))))
    return plotted


def _bins(rows: list[Row]) -> tuple[SizeBin, ...]:
    """The bins, with those in between that have no messages."""
    bins: list[SizeBin] = []
    widths = {row["high"] - row["low"] for row in rows}
    for row in rows:
        while bins and bins[-1].high < row["low"]:
            low = bins[-1].high
            bins.append(SizeBin(low, low * 2 if len(widths) > 1 else low + min(widths), 0))
        bins.append(SizeBin(row["low"], row["high"], row["messages"]))
    return tuple(bins)


def _by_queue(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    by_queue: dict[Key, list[Row]] = {}
    for row in rows:
        by_queue.setdefault((row["store"], row["queue"]), []).append(row)
    return by_queue


def _series(rows: list[Row]) -> DepthSeries | None:
    """The peak of each bucket; buckets without changes have the depth of the one before."""
    points: list[DepthPoint] = []
    for index, row in enumerate(rows):
        points.append(DepthPoint(row["begin"], max(row["peak"], 0)))
        is_followed = index + 1 < len(rows) and rows[index + 1]["begin"] <= row["end"]
        if not is_followed:
            points.append(DepthPoint(row["end"], max(row["depth"], 0)))
    return DepthSeries(Axis.POSITION, tuple(points)) if points else None


# ---- findings ----


def _findings(counts: list[Row], found: Mapping[tuple[Key, str], list[Example]]) -> _Findings:
    """Queue, or None for those that belong to none -> findings."""
    findings: _Findings = {}
    for row in counts:
        key = (row["store"], row["queue"])
        shown = tuple(found.get((key, row["kind"]), []))[: row["count"]]
        findings.setdefault(key, []).append(Finding(FindingKind[row["kind"]], row["count"], shown))
    return findings
