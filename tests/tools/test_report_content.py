"""Content of a report: the limits of its values, and the order of its queues."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime

import pytest

from qstore.tools.report.content import (
    MAX_EXAMPLES,
    MAX_POINTS,
    Axis,
    DepthPoint,
    DepthSeries,
    Example,
    Finding,
    FindingKind,
    QueueReport,
    ReportContent,
    Severity,
    SizeBin,
    Sizing,
    Totals,
    Waits,
    WaitUnit,
    near_limit,
    severity,
    worst_first,
)
from tests.support.report_content import MADE_AT, content, full_queue, plain_queue

NONE = Totals(0, 0, 0, 0, 0, 0, 0, 0, 0)


def series(*points: tuple[float, int], axis: Axis = Axis.POSITION) -> DepthSeries:
    return DepthSeries(axis, tuple(DepthPoint(*point) for point in points))


def findings(**counts: int) -> tuple[Finding, ...]:
    return tuple(Finding(FindingKind[name], count) for name, count in counts.items())


def with_findings(name: str, **counts: int) -> QueueReport:
    return dataclasses.replace(plain_queue(name), findings=findings(**counts))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: series((0, -1)), "out of range"),
        (lambda: series((-1, 0)), "out of range"),
        (lambda: series((float("nan"), 0)), "out of range"),
        (lambda: series((float("inf"), 0)), "out of range"),
        (lambda: series((253_402_300_800, 0), axis=Axis.TIME), "out of range"),
        (lambda: series((1, 0), (1, 0)), "ascending"),
        (lambda: series((2, 0), (1, 0)), "ascending"),
        (lambda: series(*((at, 0) for at in range(MAX_POINTS + 1))), "500 at most"),
        (lambda: Waits(WaitUnit.SECONDS, 0, 0, 0, 0, 0), "waits without a message"),
        (lambda: Waits(WaitUnit.SECONDS, 1, 2, 1, 3, 4), "order"),
        (lambda: Waits(WaitUnit.SECONDS, 1, -1, 1, 3, 4), "order"),
        (lambda: Waits(WaitUnit.SECONDS, 1, float("nan"), 1, 3, 4), "order"),
        (lambda: Waits(WaitUnit.SECONDS, 1, 1, 1, 1, float("inf")), "longest"),
        (lambda: Waits(WaitUnit.SECONDS, 1, 1, 1, 1, float("nan")), "longest"),
        (lambda: Sizing(float("nan"), None, None), "fill"),
        (lambda: Sizing(-0.1, None, None), "fill"),
        (lambda: Sizing(0.1, None, None, limit=0.0), "limit"),
        (lambda: Finding(FindingKind.GAP, 0), "a finding with 0"),
        (lambda: Finding(FindingKind.GAP, 1, (Example("", ""),) * 2), "examples"),
        (lambda: Finding(FindingKind.GAP, 99, (Example("", ""),) * (MAX_EXAMPLES + 1)), "examples"),
        (lambda: dataclasses.replace(plain_queue(), enqueues=-1), "enqueues is -1"),
        (lambda: dataclasses.replace(plain_queue(), seconds=float("inf")), "is not a number"),
        (lambda: dataclasses.replace(plain_queue(), sizes=(SizeBin(2, 2, 1),)), "bin"),
        (lambda: dataclasses.replace(plain_queue(), sizes=(SizeBin(0, 4, 1), SizeBin(3, 5, 1))), "overlap"),
        (lambda: dataclasses.replace(plain_queue(), sizes=(SizeBin(0, 4, -1),)), "bin"),
        (lambda: dataclasses.replace(plain_queue(), findings=findings(GAP=1) * 2), "twice"),
        (lambda: Totals(0, 0, 0, 0, 0, 0, 0, 0, -1), "in_doubt is -1"),
        (lambda: ReportContent("t", datetime(2026, 1, 1), NONE), "time zone"),  # noqa: DTZ001
        (lambda: ReportContent("t", MADE_AT, NONE, queues=(plain_queue(),) * 10_001), "10000 at most"),
        (lambda: ReportContent("t", MADE_AT, NONE, plots=201), "200 at most"),
        (lambda: ReportContent("t", MADE_AT, NONE, findings=findings(GAP=1) * 2), "twice"),
    ],
)
def test_value_out_of_range_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_value_at_the_limit_is_accepted() -> None:
    assert len(series(*((at, 0) for at in range(MAX_POINTS))).points) == MAX_POINTS
    assert Finding(FindingKind.GAP, 99, (Example("", ""),) * MAX_EXAMPLES).count == 99
    assert content(*(plain_queue(),) * 10_000).plots == 20


def test_rates_are_computed_from_the_time() -> None:
    report = dataclasses.replace(plain_queue(), enqueues=60, dequeues=30, record_bytes=6000, seconds=30.0)
    assert (report.enqueue_rate, report.dequeue_rate, report.write_rate) == (2, 1, 200)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_without_time_there_are_no_rates(seconds: float | None) -> None:
    report = dataclasses.replace(full_queue(), seconds=seconds)
    assert (report.enqueue_rate, report.dequeue_rate, report.write_rate) == (None, None, None)


@pytest.mark.parametrize(("fill", "near"), [(0.79, False), (0.8, True), (1.1, True), (None, False)])
def test_near_the_limit(fill: float | None, near: bool) -> None:
    assert near_limit(dataclasses.replace(plain_queue(), sizing=Sizing(fill, None, None))) is near
    assert not near_limit(plain_queue())


def test_the_worst_finding_tells_how_bad_a_queue_is() -> None:
    assert severity(with_findings("a", GAP=9, CHECKSUM=1, DUPLICATE=5)) is Severity.BAD
    assert severity(with_findings("a", GAP=9)) is Severity.NOTICE
    assert severity(plain_queue()) is None


def test_the_worst_queues_come_first() -> None:
    expected = [
        with_findings("a", CHECKSUM=2),
        with_findings("b", DAMAGE=1, DUPLICATE=99),
        with_findings("c", DUPLICATE=7),
        with_findings("d", GAP=100),
        dataclasses.replace(plain_queue("e"), sizing=Sizing(0.8, None, None)),
        dataclasses.replace(plain_queue("f"), live_bytes=5),
        dataclasses.replace(plain_queue("g"), record_bytes=5),
        plain_queue("h"),
        plain_queue("i"),
    ]
    assert worst_first(reversed(expected)) == expected
