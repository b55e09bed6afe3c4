"""A report as one self-contained HTML file: no network access, no external fonts or scripts.

    page       the totals, the verdict, and what follows
    findings   the verdict, the table of kinds, the examples of each kind over all stores
    tables     one row for each queue, and the stores that were read
    cards      each of the first queues with its metrics, plots (`charts`), journal size and findings

Its Content-Security-Policy allows the embedded style sheet and script, by their hashes, and nothing else: no image, no
frame, no request, no form. Even if a name got past the escaping, it could not run.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import PAGE_SIZE
from qstore.formats.wording import plural
from qstore.tools.console.amounts import human
from qstore.tools.metrics import METRICS, label
from qstore.tools.report.charts import depth_chart, fill_meter, missing, size_chart, wait_chart, wait_text
from qstore.tools.report.content import (
    MAX_EXAMPLES,
    Example,
    Finding,
    FindingKind,
    Input,
    JournalSize,
    QueueReport,
    ReportContent,
    Severity,
    Sizing,
    Waits,
    near_limit,
    severity,
    worst_first,
)
from qstore.tools.report.markup import (
    Markup,
    count,
    duration,
    join,
    moment,
    name_of,
    rate,
    share,
    short_names,
    size_rate,
    store_name,
    tag,
)

UNKNOWN: Final = "–"
_FOLDED_FROM: Final = 12  # stores: a longer list is collapsed


def render(content: ReportContent) -> str:
    """The whole file, to be encoded as UTF-8."""
    style, script = _asset("style.css"), _asset("table.js")
    ordered = worst_first(content.queues)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", content.title),
        tag("style", style),
    )
    body = tag("body", tag("main", *_sections(content, ordered)), tag("script", script))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> Markup:
    return Markup(files("qstore.tools.report").joinpath(name).read_text("utf-8"))


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def _hash(asset: str) -> str:
    return f"'sha256-{b64encode(sha256(asset.encode()).digest()).decode()}'"


def _sections(content: ReportContent, ordered: list[QueueReport]) -> Iterator[Markup]:
    listed = sums(content)
    tails = short_names([*(report.store for report in content.queues), *(entry.path for entry in content.inputs)])
    yield _top(content)
    yield verdict(listed, empty=not content.totals.queues)
    yield tag("dl", *_totals(content), class_="tiles")
    if listed:
        yield _section(
            "Findings", finding_table(listed), finding_list(over_all_stores(content, listed, tails), opened=True)
        )
    drawn = ordered[: content.plots]
    anchors = [f"queue-{place}" for place in range(1, len(drawn) + 1)]
    if drawn:
        first = f"The first {plural(len(drawn), 'queue')} to examine"
        title = "Queues" if len(drawn) == len(ordered) else first
        yield _section(title, _order(), *(card(*each, tails) for each in zip(drawn, anchors, strict=True)))
    yield _section("All queues", *_all_queues(content, ordered, anchors, tails))
    if content.inputs:
        yield _section("Stores", _inputs(content, tails))
    if content.notes:
        yield _section("Notes", tag("ul", *(tag("li", note) for note in content.notes), class_="notes"))


def _top(content: ReportContent) -> Markup:
    made = moment(content.made_at.timestamp())
    totals = content.totals
    counted = f"{plural(totals.stores, 'store')}, {plural(totals.queues, 'queue')}"
    return tag(
        "header",
        tag("h1", content.title),
        tag("p", f"Created {made} UTC from {counted}.", class_="quiet"),
        class_="top",
    )


def _section(title: str, *parts: str) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _totals(content: ReportContent) -> Iterator[Markup]:
    totals = content.totals
    for name, messages in (("outstanding", totals.outstanding), ("in_doubt", totals.in_doubt)):
        yield metric(name, count(messages), "message" if messages == 1 else "messages")
    yield metric("live_bytes", human(totals.live_bytes))
    yield metric("queues", count(totals.queues), f"in {plural(totals.stores, 'store')}")
    yield metric("records", count(totals.records), human(totals.record_bytes))
    yield metric("journal_bytes", human(totals.journal_bytes), f"in {plural(totals.files, 'file')}")


def _order() -> Markup:
    text = "Sorted by findings, then by how full the journals became, then by outstanding messages."
    return tag("p", text, class_="quiet")


def _all_queues(
    content: ReportContent, ordered: list[QueueReport], anchors: list[str], tails: Mapping[str, str]
) -> Iterator[Markup]:
    if not ordered:
        yield tag("p", "No queue was found.", class_="quiet")
        return
    left_out = content.totals.queues - len(ordered)
    if left_out > 0:
        counted = plural(left_out, "queue is", "queues are")
        yield tag("p", f"{counted} included in the totals, but not in this table.", class_="quiet")
    yield tag(
        "div",
        tag("label", "Filter ", tag("input", type="search", id="filter", placeholder="queue, store, finding",
                                    autocomplete="off", spellcheck="false")),
        tag("label", tag("input", type="checkbox", id="found"), " only with findings"),
        tag("span", id="shown", role="status", class_="quiet"),
        id="tools", hidden=True,
    )  # fmt: skip
    yield queue_table(ordered, anchors, tails)


def _inputs(content: ReportContent, tails: Mapping[str, str]) -> Markup:
    table = input_table(content.inputs, tails)
    left_out = content.totals.stores - len(content.inputs)
    if left_out > 0:
        table = join((table, tag("p", f"And {count(left_out)} more.", class_="quiet")))
    if len(content.inputs) < _FOLDED_FROM:
        return table
    return tag("details", tag("summary", plural(len(content.inputs), "store")), table)


# ---- findings ----

#: Severity -> class in the style sheet, sign, word. Sign and word make it readable without colour.
_BADGES: Final = {
    Severity.BAD: ("bad", "✕", "bad"),
    Severity.DOUBTFUL: ("doubtful", "!", "check"),
    Severity.NOTICE: ("notice", "i", "note"),
    None: ("fine", "✓", "fine"),
}
_VERDICTS: Final = {
    Severity.BAD: "Damage or losses were found.",
    Severity.DOUBTFUL: "No damage was found, but some findings should be examined.",
    Severity.NOTICE: "No damage and no losses were found.",
    None: "No damage and no losses were found.",
}


class Sum(NamedTuple):
    """One kind of finding over the whole report: number of instances, and number of affected queues."""

    kind: FindingKind
    found: int
    queues: int


def sums(content: ReportContent) -> list[Sum]:
    """The kinds of findings, the worst first."""
    found = content.totals.findings
    queues = Counter(finding.kind for report in content.queues for finding in report.findings)
    listed = [Sum(kind, found[kind], queues[kind]) for kind in FindingKind if found.get(kind)]
    return sorted(listed, key=lambda entry: -entry.kind.severity.value)


def over_all_stores(content: ReportContent, listed: list[Sum], tails: Mapping[str, str]) -> list[Finding]:
    """The kinds with their total counts and their first examples, each with its queue and store.

    A transaction in doubt is one example, whatever the number of its queues.

    Args:
        content: the report.
        listed: from `sums`.
        tails: store -> its short name; empty if there is only one.
    """
    own = {finding.kind: finding.examples for finding in content.findings}
    found: dict[FindingKind, dict[tuple[str, str, str], list[str]]] = {}
    for report in worst_first(content.queues):
        for finding in report.findings:
            examples = found.setdefault(finding.kind, {})
            for place, example in enumerate(finding.examples):
                several = finding.kind is FindingKind.IN_DOUBT
                key = (report.store, example.where, "" if several else f"{report.queue}\0{place}")
                owner = report.queue + (f" in {tails[report.store]}" if report.store in tails else "")
                examples.setdefault(key, []).append(f"{owner}: {example.text}")
    merged = []
    for kind, number, _ in listed:
        others = (Example(where, "; ".join(texts)) for (_, where, _), texts in found.get(kind, {}).items())
        merged.append(Finding(kind, number, (*own.get(kind, ()), *others)[: min(number, MAX_EXAMPLES)]))
    return merged


def badge(severity: Severity | None, text: str | None = None) -> Markup:
    """A severity as a small label: its sign, and a word or `text`."""
    class_, sign, word = _BADGES[severity]
    return tag("span", tag("span", sign, class_="sign", aria_hidden="true"), text or word, class_=f"badge {class_}")


def verdict(listed: list[Sum], *, empty: bool) -> Markup:
    """The summary at the top: whether anything is wrong, and what; or that no queue was read."""
    severity = listed[0].kind.severity if listed else None
    class_, sign, _ = _BADGES[Severity.NOTICE if empty and not listed else severity]
    summary = ", ".join(entry.kind.counted(entry.found) for entry in listed)
    text = "No queue was read, so there is no result." if empty and not listed else _VERDICTS[severity]
    return tag(
        "div",
        tag("span", sign, class_="sign", aria_hidden="true"),
        tag("p", tag("strong", text), " ", summary + "." if summary else ""),
        class_=f"verdict {class_}",
        role="status",
    )


def finding_table(listed: list[Sum]) -> Markup:
    """All kinds of findings, with their definitions."""
    heads = (("", None), ("finding", None), ("count", "number"), ("queues", "number"))
    rows = (
        tag(
            "tr",
            tag("td", badge(entry.kind.severity)),
            tag("th", entry.kind.plural, tag("span", entry.kind.hint, class_="hint"), scope="row"),
            tag("td", count(entry.found), class_="number"),
            tag("td", count(entry.queues), class_="number"),
        )
        for entry in listed
    )
    head = tag("tr", *(tag("th", text, scope="col", class_=class_) for text, class_ in heads))
    return scrolled("findings", tag("table", tag("thead", head), tag("tbody", *rows)))


def scrolled(label: str, table: Markup, class_: str = "scroll") -> Markup:
    """A table that scrolls by itself if it is wider than the window."""
    return tag("div", table, class_=class_, tabindex="0", role="region", aria_label=label)


def finding_list(findings: Iterable[Finding], *, opened: bool = False) -> Markup:
    """Findings with expandable examples, the worst first.

    Args:
        findings: the findings, each kind once.
        opened: whether the examples of damage and losses are expanded.
    """
    ordered = sorted(findings, key=lambda finding: -finding.kind.severity.value)
    items = (tag("li", _finding(each, opened and each.kind.severity is Severity.BAD)) for each in ordered)
    return tag("ul", *items, class_="findings")


def _finding(finding: Finding, opened: bool) -> Markup:
    title = badge(finding.kind.severity, finding.kind.counted(finding.count))
    if not finding.examples:
        return title
    shown = len(finding.examples)
    summary = "" if shown == finding.count else f"the first {shown}" if shown > 1 else "the first one"
    examples = join(
        tag("li", name_of(example.where, class_="where"), " ", name_of(example.text)) for example in finding.examples
    )
    return tag(
        "details", tag("summary", title, " ", tag("span", summary, class_="quiet")), tag("ul", examples), open=opened
    )


# ---- tables ----


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


# ---- cards ----


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
    yield metric("enqueues", count(report.enqueues), _per_second(report.enqueue_rate))
    yield metric("dequeues", count(report.dequeues), _per_second(report.dequeue_rate))
    written = "" if report.write_rate is None else size_rate(report.write_rate)
    yield metric("record_bytes", human(report.record_bytes), written)
    yield metric("peak_depth", UNKNOWN if report.peak_depth is None else count(report.peak_depth))
    if report.seconds is not None:
        yield tile("time span", duration(report.seconds))


def _per_second(per_second: float | None) -> str:
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
