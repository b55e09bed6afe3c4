"""Publisher confirms of one channel: which messages are done, and how the client is told.

Messages are numbered from 1. The ledger (`model/completion`) tracks which are done: a message is done when it is on the
disk in every durable queue that it was put on, at once if it was stored nowhere. What is done is reported as runs:

    all below a number        one basic.ack with `multiple`, which covers everything before it
    a run beyond that         a basic.ack for each of its numbers, as an earlier message still waits
    refused                   a basic.nack: a queue has no room, or its journal cannot be written

A number is reported once, except that a later `multiple` may cover it again.

**What goes first, confirm or delivery.** Whoever gets the second of them gets it some ten microseconds later, or fifty
if the system has the first one's client run before. A consumer always waits for its message. Whether a publisher waits
is not said by the protocol, but can be seen: if it does, its next message comes right after the confirm of all before.
Each message that comes after all were confirmed is counted: one that comes within `AT_ONCE` adds one to a score, which
is at most 8, and a later one takes two from it. While the score is positive the publisher is waiting (`is_awaited`),
and its confirm goes first; otherwise the delivery does.

Source: RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.broker.model.completion import CompletionLedger, Done, Runs
from qstore.formats.amqp_0_9_1.methods import encode_ack, encode_nack

AT_ONCE: Final = 0.0003
"""Seconds from a confirm until the next message is written, if its publisher has waited for the confirm."""

_MAX_SCORE: Final = 8


class Confirms:
    """The confirms of one channel.

    Attributes:
        ledger: which messages are done.
        published: number of the last message.
    """

    __slots__ = ("_all_told", "_refused", "_reported", "_score", "ledger", "published")

    def __init__(self) -> None:
        self.ledger = CompletionLedger(1)
        self.published = 0
        self._reported = Done(1)
        self._score = 0  # from the last messages that came after all before were confirmed: negative if they came late
        self._all_told = 0.0  # when that was; 0 since then a message has come
        self._refused: list[int] = []

    def refuse(self, number: int) -> None:
        """A message that is being published is not accepted."""
        self.ledger.postpone(number)
        self._refused.append(number)

    def fail(self, runs: Runs) -> None:
        """Messages whose records could not be written."""
        for first, last in runs:
            self._refused += range(first, last + 1)

    def fail_one(self, number: int) -> None:
        """As `fail`, for one message."""
        self._refused.append(number)

    @property
    def is_all_done(self) -> bool:
        """Whether no message waits."""
        return self.ledger.done.below > self.published

    @property
    def is_awaited(self) -> bool:
        """Whether every message is done, and the publisher has sent nothing since because it waits to be told."""
        return self._score > 0 and self.is_all_done

    def has_told(self, now: float) -> None:
        """What `take` has returned is sent. `now` is in seconds of a monotonic clock."""
        if self.is_all_done:
            self._all_told = now

    def has_more(self, now: float) -> None:
        """Messages that came since the last call, if there are any, were written."""
        if self._all_told and not self.is_all_done:
            if now - self._all_told < AT_ONCE:
                self._score = min(self._score + 1, _MAX_SCORE)
            else:
                self._score = max(self._score - 2, -_MAX_SCORE)
            self._all_told = 0.0

    def take(self) -> list[bytes]:
        """The methods to send: what has been done since the last call."""
        methods: list[bytes] = []
        reported, done = self._reported, self.ledger.done
        if self._refused:
            for number in self._refused:
                methods.append(encode_nack(number))
                reported.add(number, number)
                self.ledger.complete([[number, number]])
            self._refused.clear()
        if done.below > reported.below:
            last = done.below - 1
            if not reported.beyond:
                methods.append(encode_ack(last, multiple=last > reported.below))
            else:
                for first, end in _gaps(reported, reported.below, last):
                    methods.append(encode_ack(end, multiple=end > first))
            reported.add(reported.below, last)
        for first, last in done.beyond:
            for begin, end in list(_gaps(reported, first, last)):
                methods += [encode_ack(number, multiple=False) for number in range(begin, end + 1)]
                reported.add(begin, end)
        return methods


def _gaps(reported: Done, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The runs between `first` and `last` that are not reported yet; all below `first` may be or not."""
    at = max(first, reported.below)
    for begin, end in reported.beyond:
        if begin > last:
            break
        if at < begin:
            yield at, begin - 1
        at = max(at, end + 1)
    if at <= last:
        yield at, last
