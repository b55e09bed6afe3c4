"""What was found, in words: the verdict on all of it, the list of kinds, the examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from tools.report.content import Finding, FindingKind, ReportContent, Severity
from tools.report.markup import Markup, join, name_of, tag
from tools.report.text import count

#: Severity -> class in the style sheet, sign, word. The sign and the word tell it without the colour.
_BADGES: Final = {
    Severity.BAD: ("bad", "✕", "bad"),
    Severity.DOUBTFUL: ("doubtful", "!", "check"),
    Severity.NOTICE: ("notice", "i", "note"),
    None: ("fine", "✓", "fine"),
}
_VERDICTS: Final = {
    Severity.BAD: "Damage or losses were found.",
    Severity.DOUBTFUL: "Nothing is damaged, but some things should be looked at.",
    Severity.NOTICE: "Nothing is damaged or missing.",
    None: "Nothing is damaged or missing.",
}


class Sum(NamedTuple):
    """One kind of finding over the whole report: how many, and in how many of the queues."""

    kind: FindingKind
    found: int
    queues: int


def sums(content: ReportContent) -> list[Sum]:
    """The kinds that were found, the worst first."""
    found = content.totals.findings
    queues = Counter(finding.kind for report in content.queues for finding in report.findings)
    listed = [Sum(kind, found[kind], queues[kind]) for kind in FindingKind if found.get(kind)]
    return sorted(listed, key=lambda entry: -entry.kind.severity.value)


def badge(severity: Severity | None, text: str | None = None) -> Markup:
    """A severity as a small label: its sign, and a word or what `text` says instead."""
    class_, sign, word = _BADGES[severity]
    return tag("span", tag("span", sign, class_="sign", aria_hidden="true"), text or word, class_=f"badge {class_}")


def verdict(listed: list[Sum], *, empty: bool) -> Markup:
    """The first thing to be read: whether anything is wrong, and what; of an empty report, that it says nothing."""
    severity = listed[0].kind.severity if listed else None
    class_, sign, _ = _BADGES[Severity.NOTICE if empty and not listed else severity]
    told = ", ".join(f"{count(entry.found)} {entry.kind.label}" for entry in listed)
    text = "No queue was read, so nothing can be said." if empty and not listed else _VERDICTS[severity]
    return tag(
        "div",
        tag("span", sign, class_="sign", aria_hidden="true"),
        tag("p", tag("strong", text), " ", told + "." if told else ""),
        class_=f"verdict {class_}",
        role="status",
    )


def finding_table(listed: list[Sum]) -> Markup:
    """All kinds that were found, each with what it means."""
    heads = (("", None), ("finding", None), ("how many", "number"), ("queues", "number"))
    rows = (
        tag(
            "tr",
            tag("td", badge(entry.kind.severity)),
            tag("th", entry.kind.label, tag("span", entry.kind.hint, class_="hint"), scope="row"),
            tag("td", count(entry.found), class_="number"),
            tag("td", count(entry.queues), class_="number"),
        )
        for entry in listed
    )
    head = tag("tr", *(tag("th", text, scope="col", class_=class_) for text, class_ in heads))
    return scrolled("findings", tag("table", tag("thead", head), tag("tbody", *rows)))


def scrolled(label: str, table: Markup, class_: str = "scroll") -> Markup:
    """A table that scrolls by itself where it is wider than the window."""
    return tag("div", table, class_=class_, tabindex="0", role="region", aria_label=label)


def finding_list(findings: Iterable[Finding], *, opened: bool = False) -> Markup:
    """Findings with their examples, which are shown on demand."""
    worst_first = sorted(findings, key=lambda finding: -finding.kind.severity.value)
    return tag("ul", *(tag("li", _finding(finding, opened)) for finding in worst_first), class_="findings")


def _finding(finding: Finding, opened: bool) -> Markup:
    title = badge(finding.kind.severity, f"{count(finding.count)} {finding.kind.label}")
    if not finding.examples:
        return title
    shown = len(finding.examples)
    told = "" if shown == finding.count else f"the first {shown} of them"
    examples = join(
        tag("li", name_of(example.where, class_="where"), " ", name_of(example.text)) for example in finding.examples
    )
    return tag(
        "details", tag("summary", title, " ", tag("span", told, class_="quiet")), tag("ul", examples), open=opened
    )
