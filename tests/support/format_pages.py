"""The pages of the on-disk formats, `formats/*/README.md`, as data: sections, tables, layouts, and references."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct, calcsize
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("broker_records", "bdb", "qls", "rhm")

_HEADING: Final = re.compile(r"^#{2,3} (\d+(?:\.\d+)?)[. ] *(.+)$", re.MULTILINE)
_MORE_SECTIONS: Final = r"(?:(?:,| and| to) \d+(?:\.\d+)?\b)*"
_REFERENCE: Final = re.compile(rf"formats/(\w+)/README\.md`?, (\d+(?:\.\d+)?\b{_MORE_SECTIONS})")
_LINE_END: Final = re.compile(r"\n[ \t]*(?:#:? )?")

Row = Mapping[str, str]


class Reference(NamedTuple):
    """What a text refers to: a page, and a section of it."""

    page: str
    section: str


class Place(NamedTuple):
    """Where a field is: its offset and its size in bytes, and its name."""

    offset: int
    size: int
    name: str


def page_text(page: str) -> str:
    """The text of `formats/<page>/README.md`."""
    return (ROOT / "formats" / page / "README.md").read_text()


def sections(text: str) -> dict[str, str]:
    """Number of each section -> its text, up to the next heading."""
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    return {heading[1]: text[heading.end() : end] for heading, end in zip(headings, ends, strict=True)}


def section(page: str, number: str) -> str:
    """The text of one section."""
    return sections(page_text(page))[number]


def tables(text: str) -> list[list[Row]]:
    """The tables in a text: each a list of rows, which map the column's title to the cell, code marks left out."""
    found: list[list[Row]] = []
    titles: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            titles = None
            continue
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if titles is None:
            titles = cells
            found.append([])
        elif any(cell.strip("-:") for cell in cells):
            found[-1].append(dict(zip(titles, cells, strict=True)))
    return found


def table(page: str, number: str, index: int = 0) -> list[Row]:
    """One table of a section, the first by default."""
    return tables(section(page, number))[index]


def printed_layout(rows: list[Row]) -> list[Place]:
    """The fields that a table with the columns offset, size and field prints; those called "-" are padding."""
    places = [Place(int(row["offset"]), int(row["size"]), row["field"]) for row in rows]
    return [place for place in places if place.name != "-"]


def struct_layout(layout: Struct, names: list[str], base: int = 0) -> list[Place]:
    """The fields of a struct without alignment, with `names`, at `base`; its pad bytes are left out."""
    order, codes = layout.format[0], layout.format[1:]
    assert order in "<>"
    places: list[tuple[int, int]] = []
    offset = base
    for count, code in re.findall(r"(\d*)([a-zA-Z?])", codes):
        repeat = int(count or 1)
        width = repeat if code in "sx" else calcsize(order + code)
        for _ in range(1 if code in "sx" else repeat):
            if code != "x":
                places.append((offset, width))
            offset += width
    assert offset == base + layout.size
    return [Place(at, size, name) for (at, size), name in zip(places, names, strict=True)]


def references(text: str) -> Iterator[Reference]:
    """The sections of pages that a text refers to, over line ends of docstrings, comments and prose as well."""
    for page, numbers in _REFERENCE.findall(_LINE_END.sub(" ", text)):
        for number in re.findall(r"\d+(?:\.\d+)?", numbers):
            yield Reference(page, number)


def texts() -> Iterator[tuple[Path, str]]:
    """The project's modules, tests and pages of prose: path below the root, and text."""
    paths = [*ROOT.glob("*.md")]
    for room in ("formats", "store", "broker", "tools", "tests"):
        paths += [path for kind in ("*.py", "*.md") for path in (ROOT / room).rglob(kind)]
    for path in sorted(paths):
        yield path.relative_to(ROOT), path.read_text()
