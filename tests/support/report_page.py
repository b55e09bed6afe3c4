"""A report's page, as a test reads it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

VOID: Final = {"meta", "input"}


class Page(HTMLParser):
    """A report, read strictly: what is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def within(self, tag: str) -> list[str]:
        """The texts that stand directly in such elements."""
        return [text for place, text in self.texts if place == tag]

    @property
    def text(self) -> str:
        """All texts that are shown, each on a line."""
        return "\n".join(text for place, text in self.texts if place not in ("script", "style"))
