"""A queue with its metrics, plots, journal size and findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from qstore.formats.rhm.geometry import PAGE_SIZE
from qstore.tools.console.amounts import human
from qstore.tools.metrics import METRICS, label
from qstore.tools.report.charts import depth_chart, fill_meter, missing, size_chart, wait_chart
from qstore.tools.report.content import JournalSize, QueueReport, Sizing
from qstore.tools.report.findings import badge, finding_list
from qstore.tools.report.markup import Markup, join, name_of, store_name, tag
from qstore.tools.report.ranking import near_limit, severity
from qstore.tools.report.text import count, duration, rate, share, size_rate

UNKNOWN: Final = "–"


def metric(name: str, value: str, more: str = "") -> Markup:
    """A metric of `tools.metrics` under its name, with a note below; its definition is the tooltip.

    Raises:
        KeyError: there is no such metric.
    """
    return tile(label(name), value, more, title=METRICS[name])


def tile(name: str, value: str, more: str = "", *, title: str | None = None) -> Markup:
    """A number under its name, with a note below."""
    below = tag("dd", more, class_="quiet") if more else Markup()
    return tag("div", tag("dt", name), tag("dd", value), below, title=title)


def journal_text(size: JournalSize) -> str:
    """A journal's size as in its options, and in bytes: `8 × 24 pages, 12.00 MiB`."""
    pages, rest = divmod(size.file_size, PAGE_SIZE)
    each = human(size.file_size) if rest or not pages else f"{count(pages)} {'page' if pages == 1 else 'pages'}"
    return f"{count(size.files)} × {each}, {human(size.files * size.file_size)}"


def card(report: QueueReport, anchor: str, tails: Mapping[str, str]) -> Markup:
    """The card of a queue.

    Args:
        report: the queue.
        anchor: its links are `#anchor`.
        tails: store -> its short name; empty if there is only one.
    """
    tail = tails.get(report.store)
    of = Markup() if tail is None else tag("span", " in ", name_of(tail), class_="of")
    depth = missing("the depth of the queue is unknown")
    plots = (
        depth_chart(report.depth) if report.depth else tag("figure", tag("figcaption", "Depth"), depth),
        size_chart(report.sizes),
        wait_chart(report.waits),
    )
    return tag(
        "article",
        tag("header", tag("h3", name_of(report.queue), of), badge(severity(report)),
            tag("p", store_name(report.store, tails), class_="store")),
        tag("dl", *_figures(report), class_="tiles small"),
        tag("div", *plots, class_="plots"),
        _sizing(report) if report.sizing else Markup(),
        finding_list(report.findings) if report.findings else Markup(),
        id=anchor, class_="card",
    )  # fmt: skip


def _figures(report: QueueReport) -> Iterator[Markup]:
    yield metric("outstanding", count(report.outstanding))
    yield metric("in_doubt", count(report.in_doubt))
    yield metric("live_bytes", human(report.live_bytes))
    yield metric("enqueues", count(report.enqueues), _rate(report.enqueue_rate))
    yield metric("dequeues", count(report.dequeues), _rate(report.dequeue_rate))
    written = "" if report.write_rate is None else size_rate(report.write_rate)
    yield metric("record_bytes", human(report.record_bytes), written)
    yield metric("peak_depth", UNKNOWN if report.peak_depth is None else count(report.peak_depth))
    if report.seconds is not None:
        yield tile("time span", duration(report.seconds))


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
        most = (
            f" of its limit was in use at the peak; enqueues are refused at 100%, {share(sizing.limit)} of "
            "the journal. "
        )
        yield join((tag("strong", share(sizing.fill)), most))
    if sizing.present is not None:
        yield f"Present size: {journal_text(sizing.present)}. "
    if sizing.advised is not None:
        yield join(("Advised: ", tag("strong", journal_text(sizing.advised)), "."))
    elif sizing.fill is not None:
        yield "No change is recommended."
