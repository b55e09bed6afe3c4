"""A report as one self-contained HTML file: no network access, no external fonts or scripts.

Its Content-Security-Policy allows the embedded style sheet and script, by their hashes, and nothing else: no image, no
frame, no request, no form. Even if a name got past the escaping, it could not run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Final

from qstore.formats.wording import plural
from qstore.tools.console.amounts import human
from qstore.tools.report.cards import card, metric
from qstore.tools.report.content import QueueReport, ReportContent
from qstore.tools.report.findings import finding_list, finding_table, over_all_stores, sums, verdict
from qstore.tools.report.markup import Markup, join, short_names, tag
from qstore.tools.report.ranking import worst_first
from qstore.tools.report.tables import input_table, queue_table
from qstore.tools.report.text import count, moment

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
    yield metric("outstanding", count(totals.outstanding), "messages")
    yield metric("in_doubt", count(totals.in_doubt), "messages")
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
