"""What `qpid-send` sends: contents, properties, groups."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

from formats.values import UINT32, TypedValue
from tools.messaging.report import TIMESTAMP

SEQUENCE: Final = "sn"
END_OF_STREAM: Final = "eos"
_NUMBERS: Final = 1 << 32


class Contents(NamedTuple):
    """Where contents come from; the first of these that is given.

    Attributes:
        lines: each line is one, without its end.
        size: so many bytes.
        entries: a map.
        text: this text.
    """

    lines: TextIO | None = None
    size: int = 0
    entries: Mapping[str, Any] | None = None
    text: str | None = None

    def __iter__(self) -> Iterator[Any]:
        """The contents, one for each message; without end but for lines."""
        if self.lines is not None:
            for line in self.lines:
                yield line.removesuffix("\n")
            return
        content: Any = self.text or ""
        if self.size:
            content = b"X" * self.size
        elif self.entries:
            content = dict(self.entries)
        while True:
            yield content


def groups(prefix: str, size: int, interleave: int, *, randomize: bool, choose: random.Random) -> Iterator[str]:
    """The group of each message.

    Args:
        prefix: followed by the group's number.
        size: messages of a group; with `randomize` at most.
        interleave: groups that take turns.
        randomize: sizes are random.
        choose: makes them so.
    """
    begun = 0
    open_groups: list[tuple[str, int]] = []
    while True:
        while len(open_groups) < max(1, interleave):
            open_groups.append((f"{prefix}{begun}", choose.randint(1, size) if randomize else size))
            begun += 1
        name, left = open_groups.pop(0)
        yield name
        if left > 1:
            open_groups.append((name, left - 1))


class Headers:
    """The properties of each message.

    Args:
        fixed: what all have.
        has_sequence: "sn": 1, 2, ..., as uint32.
        has_timestamp: "ts": nanoseconds since 1970.
        group_key: the name under which `group_names` go.
        group_names: see `groups`.
    """

    def __init__(
        self,
        fixed: Mapping[str, Any],
        *,
        has_sequence: bool,
        has_timestamp: bool,
        group_key: str | None = None,
        group_names: Iterator[str] | None = None,
    ) -> None:
        self._fixed = fixed
        self._has_sequence, self._has_timestamp = has_sequence, has_timestamp
        self._group_key, self._group_names = group_key, group_names
        self._number = 0

    def next(self) -> dict[str, Any]:
        """Those of the next message."""
        properties = dict(self._fixed)
        if self._has_sequence:
            self._number += 1
            properties[SEQUENCE] = TypedValue(UINT32, self._number % _NUMBERS)
        if self._has_timestamp:
            properties[TIMESTAMP] = time.time_ns()
        if self._group_key is not None and self._group_names is not None:
            properties[self._group_key] = next(self._group_names)
        return properties
