"""HTML that is escaped by type.

`tag` creates an element. Text in it, and in its attributes, is made visible and escaped unless it is `Markup`, which
only the functions here and the page's own assets create. So no name from a store can become a tag.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Final

from qstore.tools.console.text import visible

_VOID: Final = frozenset({"meta", "input"})
_OWN: Final = frozenset({"d", "content"})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """The text as HTML; `Markup` is returned unchanged."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text)))


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: its name.
        children: its content.
        attributes: `class_` is class, `data_value` data-value. True is an attribute without a value; with False or
            None it is omitted.
    """
    opening = name + "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{''.join(map(escape, children))}</{name}>")


def _attribute(key: str, value: str | float | bool) -> str:
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    # Coordinates: a tenth of a pixel is enough, and integers are written as such.
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    # Generated values may have any length: a plot's path, the policy.
    return f' {key}="{html.escape(text if key in _OWN else visible(text))}"'


def join(parts: Iterable[str]) -> Markup:
    """Concatenate elements."""
    return Markup("".join(map(escape, parts)))


def name_of(text: str, **attributes: str) -> Markup:
    """A name from a store, isolated so that its writing direction does not affect the surrounding text."""
    return tag("bdi", text or "(no name)", **attributes)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Of several paths those parts that follow the directory that they share; empty if there are fewer than two."""
    every = sorted(set(paths))
    if len(every) < 2:
        return {}
    parts = [path.split("/")[:-1] for path in every]
    shared = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False)))
    return {path: "/".join(path.split("/")[shared:]) for path in every}


def store_name(path: str, tails: Mapping[str, str]) -> Markup:
    """A store's path; the part that tells it from the other stores is emphasized."""
    tail = tails.get(path, path)
    directory = path[: len(path) - len(tail)]
    if not directory or not tail:
        return name_of(path)
    return join((name_of(directory, class_="quiet"), tag("strong", name_of(tail))))
