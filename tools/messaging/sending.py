"""The contents, properties and groups of messages, for `qpid-send`; and what senders wait for, of every command."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, TextIO

import click

from qstore.broker.client import Connection, MessagingError, Sender
from qstore.broker.management.console import Console
from qstore.formats.values import UINT32, TypedValue
from qstore.formats.wording import plural
from qstore.tools.console.text import printable
from qstore.tools.messaging.report import TIMESTAMP

SEQUENCE: Final = "sn"
END_OF_STREAM: Final = "eos"
_NUMBERS: Final = 1 << 32

STALL_SECONDS: Final = 5.0
"""How long the broker may confirm nothing before it is said what a command waits for."""
_LOOK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 3.0


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


class StallWatch:
    """Says on standard error what a command waits for, if the broker confirms none of its messages for some seconds.

    Used as a context manager; the senders are looked at by a thread of their own.

    Args:
        program: the command's name.
        connection: its connection, over which the broker is asked how the queue is.
        show: prints a line.
        after: seconds until then.
    """

    def __init__(
        self,
        program: str,
        connection: Connection,
        show: Callable[[str], None] = lambda line: click.echo(line, err=True),
        after: float = STALL_SECONDS,
    ) -> None:
        self._program, self._connection, self._show, self._after = program, connection, show, after
        self._senders: list[Sender] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def add(self, sender: Sender) -> Sender:
        """Watch one more sender, which is returned."""
        self._senders.append(sender)
        return sender

    def __enter__(self) -> StallWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        settled, since, told_at = 0, time.monotonic(), 0.0
        while not self._is_over.wait(_LOOK_SECONDS):
            now, senders = time.monotonic(), list(self._senders)
            waiting = [each for each in senders if each.unsettled()]
            before, settled = settled, sum(each.settled() for each in senders)
            if settled != before or not waiting:
                if told_at:
                    self._say(f"the broker confirms messages again after {now - since:.0f} s")
                since, told_at = now, 0.0
            elif not told_at and now - since >= self._after:
                told_at = now
                count = sum(each.unsettled() for each in waiting)
                what = f"waiting for {self._after:g} s: the broker has confirmed {plural(settled, 'message')}"
                self._say(f"{what}, and none of {count:,} more. {self._cause(waiting[0])}")

    def _say(self, text: str) -> None:
        if not self._is_over.is_set():
            self._show(f"{self._program}: {printable(text)}")

    def _cause(self, sender: Sender) -> str:
        """Why the messages of a sender are not confirmed: what the broker says, if it answers."""
        said: list[str] = []
        asking = threading.Thread(target=lambda: said.append(self._flow_of(sender.name)), name="cause", daemon=True)
        asking.start()
        asking.join(_ANSWER_SECONDS)
        return "".join(said) or (
            "A queue may be above its flow control threshold, or the broker may be short of memory or disk, or not "
            "answer at all: its log tells"
        )

    def _flow_of(self, queue: str) -> str:
        """What flow control does to publishers of a queue; empty if it does nothing, or nobody tells."""
        with contextlib.suppress(MessagingError, LookupError, TypeError):
            with Console(self._connection, timeout=_ANSWER_SECONDS) as console:
                values = console.find(f"queue:{queue}").values
            if values["flowStopped"]:
                depth = f"{plural(values['msgDepth'], 'message')} with {values['byteDepth']:,} bytes"
                return (
                    f'Flow control makes publishers to queue "{queue}" wait, which has {depth}: '
                    "consume or purge messages, or raise its limit"
                )
        return ""
