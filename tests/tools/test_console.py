"""Display in all commands: safe text, tables, bars."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from qstore.store.disk import OsDisk
from qstore.store.log_lines import Level, LogLine
from qstore.tools.console.command import log_printer
from qstore.tools.console.progress import progress_bar, reading_progress, writing_progress
from qstore.tools.console.rows import Column, print_grid, print_objects, print_table, print_wrapped
from qstore.tools.console.text import one_line, printable, visible


@pytest.mark.parametrize(
    ("text", "on_consoles", "in_reports", "in_drop_ins"),
    [
        ("größe 日本", "größe 日本", "größe 日本", "größe 日本"),
        ("a\x1b[2J\n", "a\\x1b[2J\\x0a", "a\\x1b[2J\\x0a", "a\\x1b[2J\\x0a"),
        ("\u202etxt", "\\u202etxt", "\\u202etxt", "\u202etxt"),
        ("\u061ca\u200e\u200f", "\\u061ca\\u200e\\u200f", "\\u061ca\\u200e\\u200f", "\u061ca\u200e\u200f"),
        ("\u2028", "\\u2028", "\\u2028", "\\x2028"),
        ("\u200b", "\u200b", "\\u200b", "\u200b"),
        ("\udcff", "\\xff", "\\xff", "\udcff"),
        ("\ud800", "\\xed\\xa0\\x80", "\\ud800", "\ud800"),
        ("\\x41", "\\x5cx41", "\\x41", "\\x41"),
        ("\U000e0041", "\U000e0041", "\\U000e0041", "\U000e0041"),
    ],
)
def test_text_from_anyone(text: str, on_consoles: str, in_reports: str, in_drop_ins: str) -> None:
    assert (printable(text), visible(text), one_line(text)) == (on_consoles, in_reports, in_drop_ins)


def test_warnings_and_critical_messages_of_a_store_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for level in Level:
        log_printer("qstore-import")(LogLine(level, f"a {level.value} message"))
    assert capfd.readouterr().err == "qstore-import: a warning message\nqstore-import: a critical message\n"


def test_text_is_cut() -> None:
    assert printable("x" * 61, 60) == "x" * 59 + "…"
    assert printable("x" * 60, 60) == "x" * 60


# ---- tables ----

COLUMNS = (Column("queue", folds=True), Column("messages", number=True), Column("what", spare=True))
ROWS = (("a\u0301 long name of a queue", "12", "x"), ("b", "1,234", ""))


def shown(width: int, *, is_terminal: bool, grid: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    if grid:
        print_grid(console, COLUMNS, ROWS)
    else:
        print_table(console, COLUMNS, ROWS)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_plain_columns_are_as_wide_as_their_cells() -> None:
    assert shown(10, is_terminal=False, grid=False) == [
        "QUEUE                   MESSAGES  WHAT",
        "a\u0301 long name of a queue        12  x",
        "b                          1,234",
    ]


def test_optional_text_is_left_out_on_a_narrow_terminal() -> None:
    assert "what" in shown(50, is_terminal=True, grid=False)[0]
    assert "what" not in shown(38, is_terminal=True, grid=False)[0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_cells_are_folded_in_a_grid(is_terminal: bool) -> None:
    lines = shown(26, is_terminal=is_terminal, grid=True)
    assert lines[0].split() == ["queue", "messages", "what"]
    assert len(lines) > len(ROWS) + 1 + is_terminal
    assert all(word in " ".join(lines) for word in ("long", "name", "queue", "1,234"))


def test_rows_of_a_grid_have_lines_of_their_own() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    print_grid(console, COLUMNS[:2], (("", "1"), ("b", "2")), ([Text("a name"), None], [[], ["below b"]]))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [["queue", "messages"], ["a", "name"], ["1"], ["b", "2"], ["below", "b"]]


# ---- bars ----


def test_no_progress_bar_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work", total=3) as bar:
        assert bar is None
    with writing_progress("writing", 100) as written:
        written(50)
    disk = OsDisk()
    with reading_progress(disk) as reading:
        reading.expect("reading", 100)
        reading.done()
        assert type(reading.open(__file__)) is type(disk.open(__file__))
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress_bar("first", total=4) as bar:
        assert bar is not None
        bar.advance(1)
        bar.begin("second", 10)
        bar.set(5, 10)
        bar.stop()
    assert "second" in capfd.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lines_break_between_words_on_a_terminal(width: int) -> None:
    path = "/var/lib/qstore/rhm/jrnl/" + "d" * width + "/JournalData.0000.jdat"
    text = f"damage: {path}: file 0 of 11 cannot be opened: No such file or directory"
    for given, indent in ((text, ""), ("    " + text, "    ")):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        print_wrapped(console, given)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert [word for line in lines for word in line.split()] == given.split()
        assert all(len(line) <= width or path in line for line in lines)
        assert lines[0].startswith(indent + "damage:")
        assert all(line.startswith(indent + " " * 8) for line in lines[1:])


def test_lines_do_not_break_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=40)
    print_wrapped(console, "word " * 30)
    assert console.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]


def test_a_rule_is_as_wide_as_the_lines_below_its_rows() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    columns = (Column("name", whole=True), Column("what", whole=True, apart=True))
    print_objects(console, columns, [("a", "x" * 50), ("b", "y")], title_style="bold")
    _, rule, *rest = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert set(rule) == {"─"}
    assert len(rule) == max(len(line.rstrip()) for line in rest) == len("    what: ") + 50
