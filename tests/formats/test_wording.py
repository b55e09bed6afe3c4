"""Numbers of things and their articles."""

from __future__ import annotations

import pytest

from qstore.formats.wording import plural, printable, with_article


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (12345, "12,345 messages")]
)
def test_plural(number: int, text: str) -> None:
    assert plural(number, "message") == text


def test_a_plural_of_its_own() -> None:
    assert plural(1, "loss", "losses") == "1 loss"
    assert plural(3, "loss", "losses") == "3 losses"
    assert plural(1.5, "page") == "1.5 pages"


def test_articles() -> None:
    names = ("queue", "exchange", "object", "int", "str")
    assert [with_article(name) for name in names] == ["a queue", "an exchange", "an object", "an int", "a str"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a queue", "a queue"),
        ("test\x1fqueue", "test/queue"),
        ("a\nb", "a\\nb"),
        ("te\nst\x1fqueue", "te\\nst\\x1fqueue"),
        ("test\x1fque\x1bue", "test\\x1fque\\x1bue"),
        ("\udcff", "\\udcff"),
    ],
)
def test_names_are_shown_on_one_line(text: str, line: str) -> None:
    assert printable(text) == line
