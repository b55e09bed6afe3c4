"""Publisher confirms of one channel: which messages are done, and how the client is told.

Messages are numbered from 1. The ledger (`model/completion`) tracks which are done: a message is done when it is on the
disk in every durable queue that it was put on, at once if it was stored nowhere. What is done is reported as runs:

    all below a number        one basic.ack with `multiple`, which covers everything before it
    a run beyond that         a basic.ack for each of its numbers, as an earlier message still waits
    refused                   a basic.nack: a queue has no room, or its journal cannot be written

A number is reported once, except that a later `multiple` may cover it again.

Source: RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

from collections.abc import Iterator

from qstore.broker.model.completion import CompletionLedger, Done, Runs
from qstore.formats.amqp_0_9_1.methods import encode_ack, encode_nack


class Confirms:
    """The confirms of one channel.

    Attributes:
        ledger: which messages are done.
        published: number of the last message.
    """

    __slots__ = ("_refused", "_reported", "ledger", "published")

    def __init__(self) -> None:
        self.ledger = CompletionLedger(1)
        self.published = 0
        self._reported = Done(1)
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
