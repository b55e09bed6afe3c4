"""The findings as text: the verdict, the list of kinds, the examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from qstore.tools.report.content import Finding, FindingKind, ReportContent, Severity
from qstore.tools.report.markup import Markup, join, name_of, tag
from qstore.tools.report.text import count

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


def badge(severity: Severity | None, text: str | None = None) -> Markup:
    """A severity as a small label: its sign, and a word or `text`."""
    class_, sign, word = _BADGES[severity]
    return tag("span", tag("span", sign, class_="sign", aria_hidden="true"), text or word, class_=f"badge {class_}")


def verdict(listed: list[Sum], *, empty: bool) -> Markup:
    """The summary at the top: whether anything is wrong, and what; or that no queue was read."""
    severity = listed[0].kind.severity if listed else None
    class_, sign, _ = _BADGES[Severity.NOTICE if empty and not listed else severity]
    summary = ", ".join(f"{count(entry.found)} {entry.kind.label}" for entry in listed)
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
            tag("th", entry.kind.label, tag("span", entry.kind.hint, class_="hint"), scope="row"),
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
    """Findings with expandable examples."""
    worst_first = sorted(findings, key=lambda finding: -finding.kind.severity.value)
    return tag("ul", *(tag("li", _finding(finding, opened)) for finding in worst_first), class_="findings")


def _finding(finding: Finding, opened: bool) -> Markup:
    title = badge(finding.kind.severity, f"{count(finding.count)} {finding.kind.label}")
    if not finding.examples:
        return title
    shown = len(finding.examples)
    summary = "" if shown == finding.count else f"the first {shown}"
    examples = join(
        tag("li", name_of(example.where, class_="where"), " ", name_of(example.text)) for example in finding.examples
    )
    return tag(
        "details", tag("summary", title, " ", tag("span", summary, class_="quiet")), tag("ul", examples), open=opened
    )
