"""The capacity of a queue, from which its limit and the default thresholds are derived."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """How much a queue holds.

    Attributes:
        messages: number of messages, including those that consumers hold; 0 for no limit.
        bytes: bytes of their headers and content; 0 for no limit.
        overhead: bytes added for each message: the broker's default limit counts memory.
    """

    messages: int = 0
    bytes: int = 0
    overhead: int = 0

    def percent(self, percent: int) -> tuple[int, int]:
        """A share of it in messages and in bytes, each rounded down."""
        return self.messages * percent // 100, self.bytes * percent // 100
