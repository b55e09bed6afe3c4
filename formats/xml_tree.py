"""XML as a tree of elements, for configuration files of other brokers: without document types, and with limits.

A document type may define entities that grow without bound, or that name files: it is refused. Nothing is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 200_000


class XmlError(ValueError):
    """The XML cannot be read.

    Attributes:
        line: the number of the line, counted from 1; 0 if that is not known.
    """

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(slots=True)
class Element:
    """An element.

    Attributes:
        name: its name.
        line: the number of its line, counted from 1.
        attributes: name -> value.
        text: its own text.
        children: the elements in it.
    """

    name: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, path: str) -> Iterator[Element]:
        """The elements on a path of names."""
        name, _, rest = path.partition("/")
        for child in self.children:
            if child.name == name:
                if rest:
                    yield from child.all(rest)
                else:
                    yield child

    def value(self, path: str) -> str | None:
        """The text of the first element on a path, without white space around it; None if there is none."""
        found = next(self.all(path), None)
        return None if found is None else found.text.strip()

    def named(self, name: str) -> Iterator[Element]:
        """The elements of a name, wherever they are, but for those in another one of that name."""
        if self.name == name:
            yield self
        else:
            for child in self.children:
                yield from child.named(name)


def parse_xml(data: bytes) -> Element:
    """The outermost element of a document. Raises XmlError."""
    parser = expat.ParserCreate()
    top = Element("", 0)
    open_elements = [top]
    texts: list[list[str]] = [[]]
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > MAX_DEPTH or count > MAX_ELEMENTS:
            raise XmlError("too many elements", parser.CurrentLineNumber)
        element = Element(name, parser.CurrentLineNumber, attributes)
        open_elements[-1].children.append(element)
        open_elements.append(element)
        texts.append([])

    def end(_name: str) -> None:
        open_elements.pop().text = "".join(texts.pop())

    def characters(text: str) -> None:
        texts[-1].append(text)

    def refuse(*_declaration: object) -> None:
        raise XmlError("a document type is not allowed", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise XmlError(f"not well-formed XML: {expat.ErrorString(error.code) or 'error'}", error.lineno) from None
    except (ValueError, LookupError) as error:  # such as an unknown encoding
        raise error if isinstance(error, XmlError) else XmlError(str(error)) from None
    return top.children[0]
