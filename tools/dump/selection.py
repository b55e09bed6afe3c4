"""Which records and messages to show, and how to show a body."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

import click

from qstore.formats.rhm.records import Kind

_NUMBER = r"(0x[0-9a-f]+|[0-9]+)"
_RANGE = re.compile(rf"(?P<first>{_NUMBER})?\.\.(?P<last>{_NUMBER})?|(?P<only>{_NUMBER})")
_HIGHEST_RID = (1 << 64) - 1


class BodyForm(Enum):
    """How a message's body is shown."""

    TEXT = "text"
    HEX = "hex"
    NONE = "none"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Selection:
    """What to show. An empty set selects everything.

    Attributes:
        queues: queue names.
        rids: first and last record id.
        xids: transaction ids.
        kinds: record types.
    """

    queues: frozenset[str] = frozenset()
    rids: tuple[int, int] = (0, _HIGHEST_RID)
    xids: frozenset[bytes] = frozenset()
    kinds: frozenset[Kind] = field(default_factory=frozenset)

    def has_queue(self, name: str) -> bool:
        """Whether a queue is shown."""
        return not self.queues or name in self.queues

    def has_rid(self, rid: int) -> bool:
        """Whether a record id is shown."""
        return self.rids[0] <= rid <= self.rids[1]

    def has_xid(self, xid: bytes | None) -> bool:
        """Whether records of a transaction id are shown."""
        return not self.xids or xid in self.xids

    @property
    def all_messages(self) -> bool:
        """Whether all messages of a shown queue are shown."""
        return self.rids == (0, _HIGHEST_RID) and not self.xids


def parse_rids(text: str) -> tuple[int, int]:
    """Parse `A..B`, `A..`, `..B` or `A`, decimal or 0x…, both ends included.

    Raises:
        ValueError: it is none of these, or the range is reversed.
    """
    found = _RANGE.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is neither a record id nor a range A..B")
    if found["only"]:
        return _number(found["only"]), _number(found["only"])
    first = _number(found["first"]) if found["first"] else 0
    last = _number(found["last"]) if found["last"] else _HIGHEST_RID
    if last < first:
        raise ValueError(f"{text!r}: the end of the range is below its beginning")
    return first, last


def _number(text: str) -> int:
    """Parse a number in decimal (leading zeros are ignored) or in hex after 0x."""
    number = int(text, 16) if text.startswith("0x") else int(text)
    if number > _HIGHEST_RID:
        raise ValueError(f"{text} is larger than any record id")
    return number


class RidRange(click.ParamType[tuple[int, int]]):
    """A range of record ids, as an option of a command."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse it, unless it is parsed."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_rids(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
