"""Numbers of things and their articles."""

from __future__ import annotations

import pytest

from qstore.formats.wording import plural, with_article


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
