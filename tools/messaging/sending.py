"""The contents, properties and groups of messages, for `qpid-send`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TextIO

from qstore.formats.values import UINT32, TypedValue
from qstore.tools.messaging.report import TIMESTAMP

SEQUENCE: Final = "sn"
END_OF_STREAM: Final = "eos"
_NUMBERS: Final = 1 << 32


class Contents(NamedTuple):
    """The source of contents: the first of these that is given.

    Attributes:
        lines: a file; each line, without its newline, is the content of a message.
        size: generated content of this size, in bytes.
        entries: a map.
        text: a text.
    """

    lines: TextIO | None = None
    size: int = 0
    entries: Mapping[str, Any] | None = None
    text: str | None = None

    def __iter__(self) -> Iterator[Any]:
        """The contents, one per message; infinite except for lines."""
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
    """The group name of each message.

    Args:
        prefix: prefix of the names, which is followed by the group's number.
        size: number of messages in a group; with `randomize` the maximum.
        interleave: number of groups whose messages alternate.
        randomize: whether group sizes are random.
        choose: the random generator for sizes.
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
        fixed: the properties that are the same for all messages.
        has_sequence: whether to add "sn": 1, 2, ..., as uint32.
        has_timestamp: whether to add "ts": nanoseconds since 1970.
        group_key: the property for the group name.
        group_names: the group names, see `groups`.
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
        """The properties of the next message."""
        properties = dict(self._fixed)
        if self._has_sequence:
            self._number += 1
            properties[SEQUENCE] = TypedValue(UINT32, self._number % _NUMBERS)
        if self._has_timestamp:
            properties[TIMESTAMP] = time.time_ns()
        if self._group_key is not None and self._group_names is not None:
            properties[self._group_key] = next(self._group_names)
        return properties
