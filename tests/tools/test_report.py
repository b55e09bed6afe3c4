"""The report as HTML: well formed, self-contained, safe against hostile names, and with the right numbers."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    SizeBin,
    Sizing,
    Waits,
    WaitUnit,
    worst_first,
)
from qstore.tools.report.page import render
from tests.support.profiles import examples
from tests.support.report_content import STORE, Page, content, fleet, full_queue, plain_queue, summed

#: The elements that a report is made of. A name that became an element would be another, or more of these.
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "script", "header", "section", "article", "div", "h1",
    "h2", "h3", "h4", "p", "strong", "span", "dl", "dt", "dd", "ul", "li", "details", "summary", "bdi", "figure",
    "figcaption", "table", "thead", "tbody", "tr", "th", "td", "a", "label", "input", "svg", "text", "line", "path",
    "rect", "circle",
}  # fmt: skip
HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)", "</title></style></svg>",
    "&lt;b&gt;&amp;", "\u202egnp.exe", "a\u2066b", "\x00\x07\x1b[2J", "\udcff\udc80", "\ud83d", "]]><!--", "",
    "x" * 5000, "javascript:alert(1)",
)  # fmt: skip


def rendered(*queues: QueueReport, plots: int = 20) -> Page:
    return Page(render(content(*queues, plots=plots)))


# ---- the page as a whole ----


def test_it_is_one_page_on_its_own() -> None:
    text = render(fleet(30))
    assert text.startswith('<!doctype html>\n<html lang="en">')
    page = Page(text)
    assert {name for name, _ in page.elements} - {"input"} == ELEMENTS - {"input"}
    for name, attributes in page.elements:
        assert not attributes.keys() & {"src", "srcset", "action", "style", "xlink:href"}, name
        assert not any(key.startswith("on") for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "://" not in text
    assert not re.search(r"@import|url\(", text)


def test_policy_allows_only_the_content_of_the_page() -> None:
    page = rendered(full_queue())
    policy = next(found["content"] for _, found in page.elements if found.get("http-equiv"))
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "style-src": _hash(page.within("style")),
        "script-src": _hash(page.within("script")),
    }


def _hash(texts: list[str]) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(''.join(texts).encode()).digest()).decode()}'"


def test_links_lead_somewhere() -> None:
    page = Page(render(fleet(30, plots=7)))
    targets = {found["href"] for name, found in page.elements if name == "a"}
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(targets) == 7
    assert len(ids) == len(set(ids))
    assert targets <= {f"#{name}" for name in ids}


def test_every_picture_is_described() -> None:
    page = rendered(full_queue(), full_queue("audit", seed=2))
    pictures = [found for name, found in page.elements if name == "svg"]
    assert len(pictures) == 8
    assert all(found["role"] == "img" and found["aria-label"] for found in pictures)


def test_the_same_content_gives_the_same_page() -> None:
    assert render(fleet(5)) == render(fleet(5))


# ---- numbers and names ----


def test_the_numbers_are_those_of_the_content() -> None:
    report = QueueReport(
        STORE, "orders", 1234, 5 << 20, 99_001, 97_767, 3 << 30, in_doubt=17, peak_depth=4321, seconds=100.0,
        waits=Waits(WaitUnit.SECONDS, 97_767, 0.25, 1.5, 90, 3700),
        sizing=Sizing(0.71, JournalSize(8, 24 << 16), JournalSize(16, 48 << 16)),
    )  # fmt: skip
    page = rendered(report)
    for expected in (
        "1,234", "5.00 MiB", "99,001", "97,767", "3.00 GiB", "17", "4,321", "990/s", "978/s", "30.72 MiB/s",
        "1 min 40 s", "250 ms", "1.5 s", "1 min 30 s", "1 h 1 min", "71.0%",
        "8 × 24 pages, 12.00 MiB", "16 × 48 pages, 48.00 MiB",
    ):  # fmt: skip
        assert expected in page.text, expected


def test_a_queue_with_little_known_about_it() -> None:
    page = rendered(plain_queue())
    assert "the depth of the queue is unknown" in page.text
    assert "no message was measured" in page.text
    assert "no message was both enqueued and dequeued in this journal" in page.text
    assert "peak depth\n–" in page.text
    assert [name for name, _ in page.elements if name == "svg"] == []


def test_a_journal_without_a_limit() -> None:
    page = rendered(dataclasses.replace(plain_queue(), sizing=Sizing(None, JournalSize(3, 2 << 20), None)))
    assert "This journal has no limit." in page.text
    assert "3 × 32 pages, 6.00 MiB" in page.text


def test_findings_with_their_examples() -> None:
    examples = (Example("a.jdat, offset 0x400", "bad tail"), Example("b.jdat", "worse"))
    report = dataclasses.replace(plain_queue(), findings=(Finding(FindingKind.CHECKSUM, 1500, examples),))
    missing = Finding(FindingKind.MISSING, 3)
    whole = content(report)
    totals = dataclasses.replace(whole.totals, findings=summed(missing, *report.findings))
    whole = dataclasses.replace(whole, findings=(missing,), totals=totals)
    page = Page(render(whole))
    assert "Damage or losses were found." in page.text
    assert "1,500 checksum failures, 3 missing messages." in page.text
    assert "the first 2" in page.text
    for where, text in examples:
        assert {where, text} <= set(page.within("bdi"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FindingKind.DAMAGE, "Damage or losses were found."),
        (FindingKind.IN_DOUBT, "No damage was found, but some findings should be examined."),
        (FindingKind.GAP, "No damage and no losses were found."),
        (None, "No damage and no losses were found."),
    ],
)
def test_the_verdict(kind: FindingKind | None, words: str) -> None:
    found = () if kind is None else (Finding(kind, 1),)
    page = rendered(dataclasses.replace(plain_queue(), findings=found))
    assert words in page.within("strong")


def test_an_empty_fleet_is_not_called_sound() -> None:
    page = rendered()
    assert "No queue was read, so there is no result." in page.text
    assert "No queue was found." in page.text
    assert "damaged" not in page.text


def test_plots_go_to_the_worst_queues_and_the_table_has_all() -> None:
    whole = fleet(40, plots=6)
    page = Page(render(whole))
    first = [report.queue for report in worst_first(whole.queues)]
    shown = [name for name in page.within("bdi") if name in first]
    assert shown == first[:6] + first
    assert sum(name == "article" for name, _ in page.elements) == 6


def test_a_thousand_queues_stay_readable_in_size() -> None:
    whole = fleet(1000, plots=20)
    text = render(whole)
    assert len(text.encode()) < 5 << 20
    names = Page(text).within("bdi")
    assert {report.queue for report in whole.queues} <= set(names)


def test_omitted_rows_are_mentioned() -> None:
    whole = content(plain_queue())
    totals = dataclasses.replace(whole.totals, queues=12_001, stores=3)
    page = Page(render(dataclasses.replace(whole, totals=totals, inputs=(Input(STORE, "qstore", 1, 5),))))
    assert "12,000 queues are included in the totals, but not in this table." in page.text
    assert "And 2 more." in page.text


# ---- hostile text, and extreme numbers ----


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_becomes_an_element(name: str) -> None:
    def report(text: str) -> str:
        finding = Finding(FindingKind.DAMAGE, 2, (Example(text, text),))
        queue = dataclasses.replace(full_queue(text, store=text), findings=(finding,))
        return render(
            dataclasses.replace(
                content(queue, title=text), inputs=(Input(text, text, 1, 1),), notes=(text,), findings=(finding,)
            )
        )

    found, plain = report(name), report("plain")
    found.encode()  # no half of a UTF-16 pair is left
    page = Page(found)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in Page(plain).elements]
    assert all(text.isprintable() for place, text in page.texts if place not in ("script", "style"))


@examples(30)
@given(st.text(st.characters(), max_size=50))
def test_any_name_is_shown(name: str) -> None:
    page = rendered(plain_queue(name), plots=0)
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert all(char in page.text for char in name if char.isprintable() and char != "\r")


@examples(60)
@given(
    axis=st.sampled_from(Axis),
    places=st.lists(st.integers(0, (1 << 63) - 1), min_size=0, max_size=6, unique=True),
    depth=st.integers(0, 1 << 63),
    waits=st.lists(st.floats(0, 2.0**62), min_size=4, max_size=4),
    unit=st.sampled_from(WaitUnit),
    fill=st.floats(0, 1e9),
)
@example(Axis.POSITION, [1 << 62, (1 << 62) + 1], 1 << 63, [0, 0, 0, 0], WaitUnit.RECORDS, 0)  # no float between them
@example(Axis.POSITION, [(1 << 63) - 1], 0, [0, 0, 0, 2.0**62], WaitUnit.SECONDS, 1)
@example(Axis.TIME, [253_402_300_799], 1, [1e-300, 1, 1, 2.0**62], WaitUnit.SECONDS, 1)
@example(Axis.TIME, [0, 253_402_300_799], 1, [1, 1, 1, 2.0**62], WaitUnit.BYTES, 1)
@example(Axis.TIME, [0], 1, [1e-3, 1e-3, 1e-3, 1e-3], WaitUnit.RECORDS, 1)
@example(Axis.TIME, [0], 1, [5e-324, 5e-324, 5e-324, 5e-320], WaitUnit.SECONDS, 5e-324)
def test_extreme_numbers_are_drawn_inside_of_the_picture(
    axis: Axis, places: list[int], depth: int, waits: list[float], unit: WaitUnit, fill: float
) -> None:
    limit = 253_402_300_800 if axis is Axis.TIME else 1 << 63
    points = sorted({place % limit for place in places})
    report = dataclasses.replace(
        plain_queue(),
        depth=DepthSeries(axis, tuple(DepthPoint(at, depth >> index) for index, at in enumerate(points))),
        sizes=(SizeBin(0, 1, depth), SizeBin(5, 1 << 63, 1)),
        waits=Waits(unit, 1, *sorted(waits)),
        sizing=Sizing(fill, None, None),
    )
    page = rendered(report)
    for _, attributes in page.elements:
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(attributes.get(key) or 0) <= 400
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(attributes.get(key) or 0) <= 220


# ---- words, names and order ----


@pytest.mark.parametrize("kind", list(FindingKind))
def test_one_finding_is_reported_in_the_singular(kind: FindingKind) -> None:
    page = rendered(dataclasses.replace(plain_queue(), findings=(Finding(kind, 1),)))
    one, many = kind.counted(1), kind.counted(2)
    assert one.removeprefix("1 ") != many.removeprefix("2 ")
    assert f"{one}." in page.text
    assert f"1 {kind.plural}" not in page.text


@pytest.mark.parametrize("unit", WaitUnit)
def test_one_of_everything_is_written_in_the_singular(unit: WaitUnit) -> None:
    size = JournalSize(1, 1 << 16)
    queue = dataclasses.replace(
        plain_queue(), outstanding=1, live_bytes=1, enqueues=1, dequeues=1, record_bytes=1, in_doubt=1, peak_depth=1,
        seconds=1.0, findings=tuple(Finding(kind, 1) for kind in FindingKind),
        depth=DepthSeries(Axis.POSITION, (DepthPoint(0, 1),)),
        sizes=(SizeBin(1, 2, 1),), waits=Waits(unit, 1, 1, 1, 1, 1), sizing=Sizing(0.9, size, size),
    )  # fmt: skip
    whole = content(queue)
    totals = dataclasses.replace(
        whole.totals, records=1, record_bytes=1, journal_bytes=1, files=1, in_doubt=1, outstanding=1
    )
    page = Page(render(dataclasses.replace(whole, totals=totals, inputs=(Input(STORE, "qstore", 1, 1),))))
    text = " ".join(page.text.split())
    wrong = (
        r"(?<![\d.,×] )(?<![\d.,])\b1 (?:messages|records|bytes|files|stores|queues|pages|places|seconds|were|are)\b"
    )
    assert re.findall(wrong, text) == []
    assert "outstanding 1 message in doubt 1 message " in text


def test_the_examples_of_a_kind_are_those_of_all_queues() -> None:
    """Of 80 transactions in doubt 20 are listed, and one that concerns two queues once."""
    queues = []
    for number in range(80):
        example = Example(f"xid{number // 2:02}", "it would enqueue 2 messages and dequeue 0")
        finding = Finding(FindingKind.IN_DOUBT, 1, (example,))
        queues.append(dataclasses.replace(plain_queue("orders", f"/fleet/s{number:02}/qpidd"), findings=(finding,)))
        queues.append(dataclasses.replace(plain_queue("bills", f"/fleet/s{number:02}/qpidd"), findings=(finding,)))
    whole = content(*queues, plots=0)
    totals = dataclasses.replace(whole.totals, findings={FindingKind.IN_DOUBT: 80})
    page = Page(render(dataclasses.replace(whole, totals=totals)))
    assert page.text.count("it would enqueue 2 messages") == 40
    assert "80 transactions in doubt" in page.text
    assert "the first 20" in page.text
    assert "bills in s00/qpidd: it would enqueue 2 messages and dequeue 0; orders in s00/qpidd" in page.text


def test_damage_is_open_and_precedes_folded_findings() -> None:
    gaps = Finding(FindingKind.GAP, 20, tuple(Example(str(at), "3 missing") for at in range(20)))
    damage = Finding(FindingKind.DAMAGE, 1, (Example("a.jdat", "bad tail"),))
    whole = content(plain_queue())
    totals = dataclasses.replace(whole.totals, findings=summed(gaps, damage))
    page = Page(render(dataclasses.replace(whole, findings=(gaps, damage), totals=totals)))
    assert page.text.index("bad tail") < page.text.index("3 missing")
    opened = [attributes.get("open", "no") for name, attributes in page.elements if name == "details"]
    assert opened == [None, "no"]


def test_queues_of_one_name_are_distinguished_by_their_stores() -> None:
    queues = [plain_queue("orders", f"/srv/fleet/{name}/qpidd") for name in ("alpha", "bravo")]
    page = rendered(*queues)
    for name in ("alpha/qpidd", "bravo/qpidd"):
        assert page.within("bdi").count(name) == 4  # heading and path of the card, table of queues, of stores
    assert "/srv/fleet/" in page.within("bdi")
    assert "in" not in [text.strip() for text in rendered(plain_queue()).within("span")]


def test_messages_of_equal_size_need_no_plot() -> None:
    page = rendered(dataclasses.replace(plain_queue(), sizes=(SizeBin(1280, 1281, 5213),)))
    assert "1.25 KiB" in page.within("strong")
    assert "each of 5,213 messages" in page.text
    assert [name for name, _ in page.elements if name == "svg"] == []
