"""Which queues come first in a report: those that a person should look at.

A queue's place needs no series of it, so whoever fills a report can rank first and gather series for the few that are
shown with plots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from store.journal.write.threshold import NEAR_PERCENT
from tools.report.content import QueueReport, Severity


class Rank(NamedTuple):
    """What queues are compared by, the weightiest first; larger is worse.

    Attributes:
        severity: of the worst finding; 0 if there is none.
        findings: how many there are of that severity.
        near_limit: whether the journal came near to the point where it refuses enqueues.
        live_bytes: what is still to be delivered, or in doubt.
        record_bytes: how much went through.
    """

    severity: int
    findings: int
    near_limit: bool
    live_bytes: int
    record_bytes: int


def severity(report: QueueReport) -> Severity | None:
    """How bad the worst of a queue's findings is; None if it has none."""
    return max((finding.kind.severity for finding in report.findings), key=lambda each: each.value, default=None)


def near_limit(report: QueueReport) -> bool:
    """Whether its journal came near to the point where it refuses enqueues."""
    sizing = report.sizing
    return sizing is not None and sizing.fill is not None and sizing.fill * 100 >= NEAR_PERCENT


def rank(report: QueueReport) -> Rank:
    """A queue's place."""
    worst = severity(report)
    found = sum(finding.count for finding in report.findings if finding.kind.severity is worst)
    level = 0 if worst is None else worst.value
    return Rank(level, found, near_limit(report), report.live_bytes, report.record_bytes)


def worst_first(queues: Iterable[QueueReport]) -> list[QueueReport]:
    """The queues in the order of the report; where nothing tells them apart, by store and name."""
    by_name = sorted(queues, key=lambda report: (report.store, report.queue))
    return sorted(by_name, key=rank, reverse=True)
