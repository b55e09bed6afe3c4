"""The tables of a report: one row per queue, and the stores that were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from qstore.tools.console.amounts import human
from qstore.tools.report.cards import UNKNOWN, journal_text
from qstore.tools.report.charts import wait_text
from qstore.tools.report.content import Input, QueueReport, Waits
from qstore.tools.report.findings import badge, scrolled
from qstore.tools.report.markup import Markup, name_of, store_name, tag
from qstore.tools.report.ranking import near_limit, severity
from qstore.tools.report.text import count, rate, share


class _Cell(NamedTuple):
    """A number as displayed, and the value by which the table is sorted."""

    text: str
    value: float


_NOTHING: Final = _Cell(UNKNOWN, -1)


def _number(value: int | None) -> _Cell:
    return _NOTHING if value is None else _Cell(count(value), value)


def _size(value: int) -> _Cell:
    return _Cell(human(value), value)


def _rate(value: float | None) -> _Cell:
    return _NOTHING if value is None else _Cell(rate(value), value)


def _wait(waits: Waits | None, percentile: Callable[[Waits], float]) -> _Cell:
    if waits is None:
        return _NOTHING
    return _Cell(wait_text(percentile(waits), waits.unit), percentile(waits))


def _fill(report: QueueReport) -> _Cell:
    sizing = report.sizing
    if sizing is None or sizing.fill is None:
        return _NOTHING
    return _Cell(share(sizing.fill) + (" !" if near_limit(report) else ""), sizing.fill)


def _advised(report: QueueReport) -> _Cell:
    if report.sizing is None or report.sizing.advised is None:
        return _NOTHING
    size = report.sizing.advised
    return _Cell(journal_text(size), size.files * size.file_size)


#: Columns of numbers: heading -> the cell of a queue.
_NUMBERS: Final[Mapping[str, Callable[[QueueReport], _Cell]]] = {
    "outstanding": lambda report: _number(report.outstanding),
    "in doubt": lambda report: _number(report.in_doubt),
    "live bytes": lambda report: _size(report.live_bytes),
    "enqueues": lambda report: _number(report.enqueues),
    "dequeues": lambda report: _number(report.dequeues),
    "enqueue rate": lambda report: _rate(report.enqueue_rate),
    "record bytes": lambda report: _size(report.record_bytes),
    "peak depth": lambda report: _number(report.peak_depth),
    "wait p50": lambda report: _wait(report.waits, lambda waits: waits.p50),
    "wait p99": lambda report: _wait(report.waits, lambda waits: waits.p99),
    "peak fill": _fill,
    "recommended journal": _advised,
}


def queue_table(ordered: Sequence[QueueReport], anchors: Sequence[str], tails: Mapping[str, str]) -> Markup:
    """All queues in the given order.

    Args:
        ordered: the queues.
        anchors: of the cards of the first ones, which are linked.
        tails: store -> its short name; empty if there is only one.
    """
    heads = (
        *(tag("th", text, scope="col") for text in ("state", "queue", "store", "found")),
        *(tag("th", text, scope="col", class_="number") for text in _NUMBERS),
    )
    rows = (
        _queue_row(report, anchors[place] if place < len(anchors) else None, tails)
        for place, report in enumerate(ordered)
    )
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), id="queues")
    return scrolled("all queues", table, "scroll tall")


def _queue_row(report: QueueReport, anchor: str | None, tails: Mapping[str, str]) -> Markup:
    worst = severity(report)
    level = 0 if worst is None else worst.value
    name = name_of(report.queue)
    found = ", ".join(finding.kind.counted(finding.count) for finding in report.findings)
    cells = (made(report) for made in _NUMBERS.values())
    return tag(
        "tr",
        tag("td", badge(worst), data_value=level),
        tag("th", name if anchor is None else tag("a", name, href=f"#{anchor}"), scope="row", class_="name"),
        tag("td", store_name(report.store, tails), class_="name store"),
        tag("td", found or UNKNOWN, class_="name found", data_value=sum(finding.count for finding in report.findings)),
        *(tag("td", cell.text, class_="number", data_value=f"{cell.value:.12g}") for cell in cells),
        data_severity=level,
    )


def input_table(inputs: Iterable[Input], tails: Mapping[str, str]) -> Markup:
    """The stores that were read."""
    heads = (("store", None), ("format", None), ("queues", "number"), ("size", "number"))
    rows = (
        tag("tr", tag("th", store_name(entry.path, tails), scope="row", class_="name"), tag("td", entry.format),
            tag("td", count(entry.queues), class_="number"), tag("td", human(entry.size), class_="number"))
        for entry in inputs
    )  # fmt: skip
    head = tag("tr", *(tag("th", text, scope="col", class_=class_) for text, class_ in heads))
    return scrolled("stores", tag("table", tag("thead", head), tag("tbody", *rows)), "scroll tall")
