"""A queue that is shown in full: its figures, plots, the size of its journal, what was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from formats.rhm.geometry import PAGE_SIZE
from tools.figures import FIGURES, label
from tools.report.charts import depth_chart, fill_meter, missing, size_chart, wait_chart
from tools.report.content import JournalSize, QueueReport, Sizing
from tools.report.findings import badge, finding_list
from tools.report.markup import Markup, join, name_of, tag
from tools.report.ranking import near_limit, severity
from tools.report.text import count, duration, rate, share, size_rate
from tools.size.amounts import human

UNKNOWN: Final = "–"


def figure(name: str, value: str, more: str = "") -> Markup:
    """A number of `tools.figures` under its name, with what belongs to it below; what it means shows on pointing at it.

    Raises:
        KeyError: no number is called so.
    """
    return tile(label(name), value, more, title=FIGURES[name])


def tile(name: str, value: str, more: str = "", *, title: str | None = None) -> Markup:
    """A number under its name, with what belongs to it below."""
    below = tag("dd", more, class_="quiet") if more else Markup()
    return tag("div", tag("dt", name), tag("dd", value), below, title=title)


def journal_text(size: JournalSize) -> str:
    """A journal's size as its options make it, and in bytes: `8 × 24 pages, 12.00 MiB`."""
    pages, rest = divmod(size.file_size, PAGE_SIZE)
    each = human(size.file_size) if rest or not pages else f"{count(pages)} {'page' if pages == 1 else 'pages'}"
    return f"{count(size.files)} × {each}, {human(size.files * size.file_size)}"


def card(report: QueueReport, anchor: str) -> Markup:
    """The queue, to be reached by `#anchor`."""
    depth = missing("nothing tells how deep the queue was")
    plots = (
        depth_chart(report.depth) if report.depth else tag("figure", tag("figcaption", "Depth"), depth),
        size_chart(report.sizes),
        wait_chart(report.waits),
    )
    return tag(
        "article",
        tag("header", tag("h3", name_of(report.queue)), badge(severity(report)),
            tag("p", name_of(report.store), class_="store")),
        tag("dl", *_figures(report), class_="tiles small"),
        tag("div", *plots, class_="plots"),
        _sizing(report) if report.sizing else Markup(),
        finding_list(report.findings) if report.findings else Markup(),
        id=anchor, class_="card",
    )  # fmt: skip


def _figures(report: QueueReport) -> Iterator[Markup]:
    yield figure("outstanding", count(report.outstanding))
    yield figure("in_doubt", count(report.in_doubt))
    yield figure("live_bytes", human(report.live_bytes))
    yield figure("enqueues", count(report.enqueues), _rate(report.enqueue_rate))
    yield figure("dequeues", count(report.dequeues), _rate(report.dequeue_rate))
    written = "" if report.write_rate is None else size_rate(report.write_rate)
    yield figure("record_bytes", human(report.record_bytes), written)
    yield figure("peak_depth", UNKNOWN if report.peak_depth is None else count(report.peak_depth))
    if report.seconds is not None:
        yield tile("time spanned", duration(report.seconds))


def _rate(per_second: float | None) -> str:
    return "" if per_second is None else rate(per_second)


def _sizing(report: QueueReport) -> Markup:
    sizing = report.sizing
    assert sizing is not None
    drawing = Markup() if sizing.fill is None else fill_meter(sizing, sizing.fill, near=near_limit(report))
    return tag("div", tag("h4", "Journal"), drawing, tag("p", *_sizing_text(sizing)), class_="sizing")


def _sizing_text(sizing: Sizing) -> Iterator[str]:
    if sizing.fill is None:
        yield "This journal has no limit. "
    else:
        most = f" of its limit was in use at most; enqueues are refused at 100%, {share(sizing.limit)} of the journal. "
        yield join((tag("strong", share(sizing.fill)), most))
    if sizing.present is not None:
        yield f"It has {journal_text(sizing.present)}. "
    if sizing.advised is not None:
        yield join(("Advised: ", tag("strong", journal_text(sizing.advised)), "."))
    elif sizing.fill is not None:
        yield "No change is advised."
