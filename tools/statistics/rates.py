"""Rates of queues: what was enqueued and dequeued between two samples, a second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from qstore.broker.management.console import Console

#: Headings and widths of the table; numbers are right-aligned.
_WIDTHS: Final = (("Queue Name", 42), ("Sec", 8), ("Depth", 12), ("Enq Rate", 13), ("Deq Rate", 13))


class Counts(NamedTuple):
    """A queue at one time: its messages, and how many it has had in and out."""

    depth: int
    enqueued: int
    dequeued: int


class Sample(NamedTuple):
    """All queues at one time, in seconds."""

    time: float
    queues: Mapping[str, Counts]


class Rates(NamedTuple):
    """A queue between two samples.

    Attributes:
        queue: its name.
        seconds: between them.
        depth: its messages at the end.
        enqueues, dequeues: a second.
    """

    queue: str
    seconds: float
    depth: int
    enqueues: float
    dequeues: float

    @property
    def is_active(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.depth or self.enqueues or self.dequeues)

    def line(self) -> str:
        """A row of the table."""
        cells = (f"{self.seconds:.2f}", str(self.depth), f"{self.enqueues:.2f}", f"{self.dequeues:.2f}")
        return _row((self.queue, *cells))

    def as_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"kind": "rates", **self._asdict()}


def _row(cells: Sequence[str]) -> str:
    (_, first), *widths = _WIDTHS
    return f"{cells[0]:<{first}}" + "".join(
        f"{cell:>{width}}" for cell, (_, width) in zip(cells[1:], widths, strict=True)
    )


def heading() -> Iterator[str]:
    """The lines above the table."""
    yield _row([title for title, _ in _WIDTHS])
    yield "=" * sum(width for _, width in _WIDTHS)


def read_patterns(text: str) -> list[re.Pattern[str]]:
    """Names or regular expressions, separated by commas. Raises re.error for one that is none."""
    return [re.compile(part.strip()) for part in text.split(",") if part.strip()]


def take_sample(console: Console, now: float, patterns: Sequence[re.Pattern[str]]) -> Sample:
    """The queues whose names one of the patterns matches from their beginning; all without patterns."""
    queues = {}
    for each in console.query("queue"):
        name = str(each.get("name"))
        if not patterns or any(pattern.match(name) for pattern in patterns):
            numbers = (each.get(key, 0) for key in ("msgDepth", "msgTotalEnqueues", "msgTotalDequeues"))
            queues[name] = Counts(*(number if isinstance(number, int) else 0 for number in numbers))
    return Sample(now, queues)


def rates(before: Sample, after: Sample) -> Iterable[Rates]:
    """What the queues did that are in both samples; not those that were created anew between them."""
    seconds = after.time - before.time
    for name, counts in after.queues.items():
        earlier = before.queues.get(name)
        if earlier is None or counts.enqueued < earlier.enqueued or counts.dequeued < earlier.dequeued or seconds <= 0:
            continue
        enqueues, dequeues = counts.enqueued - earlier.enqueued, counts.dequeued - earlier.dequeued
        yield Rates(name, round(seconds, 3), counts.depth, enqueues / seconds, dequeues / seconds)
