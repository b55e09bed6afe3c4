"""The order of queues in a report: those that an operator should examine come first.

The order does not depend on time series, so the caller can rank first and then compute series only for the few queues
that are shown with plots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qstore.store.journal.write.space import NEAR_PERCENT
from qstore.tools.report.content import QueueReport, Severity


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
