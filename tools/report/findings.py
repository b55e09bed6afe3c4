"""The findings as text: the verdict, the table of kinds, the examples of each kind over all stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from qstore.tools.report.content import MAX_EXAMPLES, Example, Finding, FindingKind, ReportContent, Severity
from qstore.tools.report.markup import Markup, join, name_of, tag
from qstore.tools.report.ranking import worst_first
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
