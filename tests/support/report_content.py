"""Contents of reports, small ones that say everything once and large or hostile ones; and how a test reads a page."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser
from math import sin
from typing import Final

from qstore.tools.report.content import (
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
)

MADE_AT = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)
STORE = "/var/lib/qpidd/a"
_START = 1_773_400_000  # seconds since 1970
_PAGE = 65536


def plain_queue(name: str = "orders", store: str = STORE) -> QueueReport:
    """A queue of which only the counts are known."""
    return QueueReport(store, name, 0, 0, 0, 0, 0)


def full_queue(name: str = "orders", store: str = STORE, seed: int = 0, points: int = 240) -> QueueReport:
    """A queue with every plot, made of a seed; every third one over position and waits in records."""
    chance = random.Random(seed)
    over_time = seed % 3 != 2
    peak = chance.choice((40, 900, 12_000, 480_000))
    outstanding = chance.randrange(peak)
    depths = [int(peak * (0.5 + 0.35 * sin(at / 19) + 0.15 * chance.random())) for at in range(points)]
    step = chance.choice((2.0, 90.0, 1800.0)) if over_time else 131072.0
    first = _START if over_time else 0
    sizes = tuple(SizeBin(1 << power, 2 << power, chance.randrange(peak)) for power in range(5, 15))
    enqueued = 3 * peak
    fill = chance.random()
    median = 10 ** chance.uniform(-3, 1) if over_time else float(chance.randrange(1, 50))
    return QueueReport(
        store=store,
        queue=name,
        outstanding=outstanding,
        live_bytes=outstanding * 1280,
        enqueues=enqueued,
        dequeues=enqueued - outstanding,
        record_bytes=enqueued * 1408,
        in_doubt=chance.choice((0, 0, 3)),
        peak_depth=max(depths),
        seconds=step * points if over_time else None,
        depth=DepthSeries(
            Axis.TIME if over_time else Axis.POSITION,
            tuple(DepthPoint(first + step * at, depth) for at, depth in enumerate(depths)),
        ),
        sizes=sizes,
        waits=Waits(
            WaitUnit.SECONDS if over_time else WaitUnit.RECORDS,
            enqueued - outstanding,
            median,
            median * 3,
            median * 20,
            median * chance.choice((30, 4000)),
        ),
        sizing=Sizing(fill, JournalSize(8, 24 * _PAGE), JournalSize(8, 96 * _PAGE) if fill > 0.6 else None),
        findings=_findings(chance, store),
    )


def _findings(chance: random.Random, store: str) -> tuple[Finding, ...]:
    kinds = chance.sample(list(FindingKind), chance.choice((0, 0, 1, 2)))
    return tuple(_finding(kind, chance, store) for kind in kinds)


def _finding(kind: FindingKind, chance: random.Random, store: str) -> Finding:
    count = chance.randrange(1, 40)
    examples = tuple(
        Example(f"{store}/rhm/jrnl/7/JournalData.{at:04x}.jdat, offset 0x{at * 4096:x}, record 0x{at:x}", kind.hint)
        for at in range(min(count, 5))
    )
    return Finding(kind, count, examples)


def summed(*findings: Finding) -> Counter[FindingKind]:
    """How many there are of each kind."""
    counted: Counter[FindingKind] = Counter()
    for finding in findings:
        counted[finding.kind] += finding.count
    return counted


def content(*queues: QueueReport, plots: int = 20, title: str = "Stores of the fleet") -> ReportContent:
    """A report on these queues, with totals that fit them."""
    stores = sorted({report.store for report in queues})
    size = 8 * 24 * _PAGE
    return ReportContent(
        title=title,
        made_at=MADE_AT,
        totals=Totals(
            stores=len(stores),
            queues=len(queues),
            files=8 * len(queues),
            journal_bytes=size * len(queues),
            records=sum(report.enqueues + report.dequeues for report in queues),
            record_bytes=sum(report.record_bytes for report in queues),
            outstanding=sum(report.outstanding for report in queues),
            live_bytes=sum(report.live_bytes for report in queues),
            in_doubt=sum(report.in_doubt for report in queues),
            findings=summed(*(finding for report in queues for finding in report.findings)),
        ),
        inputs=tuple(
            Input(store, "qstore", own, own * size)
            for store in stores
            for own in [sum(report.store == store for report in queues)]
        ),
        queues=queues,
        notes=("Waits are measured with the time stamps of the messages.",),
        plots=plots,
    )


def fleet(queues: int, plots: int = 20) -> ReportContent:
    """A report on many queues of stores that have 25 each."""
    names = ("orders", "audit.events", "billing-retries", "telemetry", "mail.out")
    return content(
        *(
            full_queue(f"{names[seed % 5]}-{seed // 5}", f"/var/lib/qpidd/broker-{seed // 25:02}", seed)
            for seed in range(queues)
        ),
        plots=plots,
    )


# ---- a page ----


VOID: Final = {"meta", "input"}


class Page(HTMLParser):
    """A report, read strictly: what is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def within(self, tag: str) -> list[str]:
        """The texts that stand directly in such elements."""
        return [text for place, text in self.texts if place == tag]

    @property
    def text(self) -> str:
        """All texts that are shown, each on a line."""
        return "\n".join(text for place, text in self.texts if place not in ("script", "style"))
