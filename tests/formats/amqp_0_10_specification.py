"""The AMQP 0-10 specification's XML, read into values that the tables can be held against.

The file is the specification as it was published, with its licence, in tests/fixtures/amqp.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

SPECIFICATION = Path(__file__).parents[1] / "fixtures" / "amqp" / "amqp.0-10.xml"
_NAMESPACE = "{http://www.amqp.org/schema/amqp.xsd}"

#: Domains whose values are arrays of one type: a field of them keeps the domain's name as its type.
ARRAYS_OF_TEXT = ("str16-array", "amqp-host-array")


class SpecifiedStruct(NamedTuple):
    name: str
    code: int | None
    size_width: int
    pack: int
    fields: tuple[tuple[str, str], ...]


class SpecifiedCommand(NamedTuple):
    name: str
    code: int
    is_control: bool
    fields: tuple[tuple[str, str], ...]
    result: str | None
    has_content: bool


class SpecifiedType(NamedTuple):
    name: str
    code: int | None
    fixed: int | None
    prefix: int


class Specification(NamedTuple):
    types: tuple[SpecifiedType, ...]
    constants: dict[str, int]
    choices: dict[str, dict[str, int]]
    structs: tuple[SpecifiedStruct, ...]
    commands: tuple[SpecifiedCommand, ...]


@cache
def specification() -> Specification:
    """The whole specification; names of domains and commands begin with those of their class."""
    root = ElementTree.parse(SPECIFICATION).getroot()
    for element in root.iter():
        element.tag = element.tag.removeprefix(_NAMESPACE)
    return _Reading(root).specification()


class _Reading:
    def __init__(self, root: ElementTree.Element) -> None:
        self.root = root
        self.classes = root.findall("class")
        self.domains = {domain.attrib["name"]: domain for domain in root.findall("domain")} | {
            f"{group.attrib['name']}.{domain.attrib['name']}": domain
            for group in self.classes
            for domain in group.findall("domain")
        }

    def specification(self) -> Specification:
        return Specification(
            tuple(map(self._type, self.root.findall("type"))),
            {row.attrib["name"]: _number(row.attrib["value"]) for row in self.root.findall("constant")},
            {
                name: {choice.attrib["name"]: _number(choice.attrib["value"]) for choice in domain.iter("choice")}
                for name, domain in self.domains.items()
                if domain.find("enum") is not None
            },
            tuple(self._struct(group, row) for group in self.classes for row in group.iter("struct")),
            tuple(
                self._command(group, row)
                for group in self.classes
                for row in group
                if row.tag in ("control", "command")
            ),
        )

    def _type(self, row: ElementTree.Element) -> SpecifiedType:
        attributes = row.attrib
        return SpecifiedType(
            attributes["name"],
            _number(attributes["code"]) if "code" in attributes else None,
            int(attributes["fixed-width"]) if "fixed-width" in attributes else None,
            int(attributes.get("variable-width", 0)),
        )

    def _struct(self, group: ElementTree.Element, row: ElementTree.Element) -> SpecifiedStruct:
        attributes = row.attrib
        code = _number(group.attrib["code"]) << 8 | _number(attributes["code"]) if "code" in attributes else None
        size, pack = int(attributes["size"]), int(attributes["pack"])
        return SpecifiedStruct(attributes["name"], code, size, pack, self._fields(group, row))

    def _command(self, group: ElementTree.Element, row: ElementTree.Element) -> SpecifiedCommand:
        result = row.find("result")
        result_name = None
        if result is not None:
            inner = result.find("struct")
            result_name = result.attrib["type"] if inner is None else inner.attrib["name"]
        return SpecifiedCommand(
            f"{group.attrib['name']}.{row.attrib['name']}",
            _number(group.attrib["code"]) << 8 | _number(row.attrib["code"]),
            row.tag == "control",
            self._fields(group, row),
            result_name,
            row.find("segments") is not None,
        )

    def _fields(self, group: ElementTree.Element, row: ElementTree.Element) -> tuple[tuple[str, str], ...]:
        """Names with underscores, and types with their domains resolved."""
        return tuple(
            (field.attrib["name"].replace("-", "_"), self._resolved(group.attrib["name"], field.attrib["type"]))
            for field in row.findall("field")
        )

    def _resolved(self, group: str, type_name: str) -> str:
        if type_name in ARRAYS_OF_TEXT:
            return type_name
        domain = self.domains.get(f"{group}.{type_name}", self.domains.get(type_name))
        return type_name if domain is None else self._resolved(group, domain.attrib["type"])


def _number(text: str) -> int:
    return int(text, 0)
