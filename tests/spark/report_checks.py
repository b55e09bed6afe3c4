"""The report of an analysis, held against the single-machine tools and the tables."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from qstore.tools.qstore_analyze import write_results
from qstore.tools.report.content import Axis, FindingKind, QueueReport, WaitUnit
from qstore.tools.report.page import render
from tests.spark.analyses import Analysis


def check_queues(analysis: Analysis) -> None:
    shown: Counter[tuple[str, str, bool]] = Counter()
    queues = set()
    for path, lines in analysis.fleet.shown.items():
        queues |= {(path, line["name"]) for line in lines if line["kind"] == "queue"}
        messages = analysis.fleet.messages(path)
        shown.update((path, line["queue"], line["state"] == "outstanding") for line in messages)
    found = analysis.report.queues
    assert {(queue.store, queue.queue) for queue in found} == queues
    for queue in found:
        assert queue.outstanding == shown[queue.store, queue.queue, True]
        assert queue.in_doubt == shown[queue.store, queue.queue, False]
    totals = analysis.report.totals
    assert totals.outstanding == sum(queue.outstanding for queue in found)
    assert totals.in_doubt == sum(queue.in_doubt for queue in found) > 0
    assert {store.path for store in analysis.report.inputs} == set(analysis.fleet.paths)
    assert totals.journal_bytes == sum(store.size for store in analysis.report.inputs) > 0


def check_findings(spark: Any, analysis: Analysis) -> None:
    counts: Counter[FindingKind] = Counter()
    for finding in (
        *analysis.report.findings,
        *(each for queue in analysis.report.queues for each in queue.findings),
    ):
        counts[finding.kind] += finding.count
        assert len(finding.examples) == min(finding.count, 20)
    damage = analysis.table(spark, "audit", "damage")
    assert counts[FindingKind.DAMAGE] == len(damage)
    assert counts[FindingKind.CHECKSUM] == sum(row.checksum for row in damage)
    dangling = analysis.table(spark, "audit", "dangling")
    assert counts[FindingKind.DANGLING] == len(dangling)
    assert counts[FindingKind.DUPLICATE] == len(analysis.table(spark, "audit", "duplicates"))
    transactions = analysis.table(spark, "audit", "transactions")
    totals = analysis.report.totals.findings
    assert totals[FindingKind.IN_DOUBT] == sum(row.state == "in-doubt" for row in transactions) > 0
    assert all(totals.get(kind, 0) == counts[kind] for kind in FindingKind if kind is not FindingKind.IN_DOUBT)
    assert counts[FindingKind.GAP] == len(analysis.table(spark, "audit", "gaps"))
    (missing,) = (each for each in analysis.report.findings if each.kind is FindingKind.MISSING)
    assert (missing.count, missing.examples[0].where) == (1, "never-arrived")
    unusable = [each for finding in analysis.report.findings for each in finding.examples
                if each.where.endswith("/nothing")]  # fmt: skip
    assert len(unusable) == 1
    assert sum(any(each.kind is FindingKind.DAMAGE for each in queue.findings) for queue in analysis.report.queues) > 2


def check_plots(spark: Any, analysis: Analysis) -> None:
    lives: dict[tuple[str, str], list[Any]] = {}
    for row in analysis.table(spark, "audit", "lifetimes"):
        lives.setdefault((row.store, row.queue), []).append(row)
    units = set()
    for queue in analysis.report.queues:
        messages = lives[queue.store, queue.queue]
        gone = [row.distance for row in messages if row.dequeued is not None]
        _check_sizes(queue, [row["size"] for row in messages])
        assert queue.depth is not None
        assert queue.depth.axis is Axis.POSITION
        assert max(point.depth for point in queue.depth.points) == queue.peak_depth
        assert queue.depth.points[-1].depth == queue.outstanding + sum("doubt" in row.state for row in messages)
        assert (queue.waits is None) == (not gone)
        if queue.waits is not None:
            units.add(queue.waits.unit)
            assert queue.waits.count == len(gone)
            assert queue.waits.unit is not WaitUnit.BYTES or queue.waits.longest == max(gone)
        assert queue.sizing is not None
        assert queue.sizing.present is not None
    assert WaitUnit.BYTES in units


def _check_sizes(queue: QueueReport, sizes: list[int]) -> None:
    """Each message is in one bin; the bins have no gaps between them, and some messages at both ends."""
    for each in queue.sizes:
        assert each.messages == sum(each.low <= size < each.high for size in sizes)
    assert sum(each.messages for each in queue.sizes) == len(sizes)
    assert all(left.high == right.low for left, right in pairwise(queue.sizes))
    if sizes:
        assert queue.sizes[0].messages
        assert queue.sizes[-1].messages
        assert (len(queue.sizes) == 1) == (len(set(sizes)) == 1)


def check_the_file(analysis: Analysis) -> None:
    write_results(analysis.request, analysis.summary)
    page = Path(analysis.request.path("report.html"))
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.read_text("utf-8") == render(analysis.report)
    assert all(queue.queue in page.read_text("utf-8") for queue in analysis.report.queues)
