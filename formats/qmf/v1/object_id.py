"""The id of an object in QMF version 1: 16 bytes.

    bits  4   flags, 0
         12   sequence: how often the agent's process was started (of durable objects 0)
         20   bank of the broker
         28   bank of the agent; 0 is the broker itself
         64   number of the object

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19610-19626).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Self

_PAIR: Final = struct.Struct(">QQ")


class ObjectId(NamedTuple):
    """The id of an object; see the module's table."""

    flags: int
    sequence: int
    broker_bank: int
    agent_bank: int
    number: int

    def encoded(self) -> bytes:
        """Its bytes."""
        first = (self.flags & 0xF) << 60 | (self.sequence & 0xFFF) << 48
        first |= (self.broker_bank & 0xFFFFF) << 28 | self.agent_bank & 0xFFFFFFF
        return _PAIR.pack(first, self.number & 0xFFFFFFFFFFFFFFFF)

    @classmethod
    def decode(cls, buffer: bytes) -> Self:
        """The id with these 16 bytes. Raises struct.error."""
        first, number = _PAIR.unpack(buffer)
        return cls(first >> 60, first >> 48 & 0xFFF, first >> 28 & 0xFFFFF, first & 0xFFFFFFF, number)

    def __str__(self) -> str:
        """As consoles show it: `flags-sequence-broker-agent-number`."""
        return "-".join(str(each) for each in self)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The id with that text; None if it is none."""
        parts = text.split("-")
        if len(parts) != 5 or not all(each.isascii() and each.isdigit() and len(each) <= 20 for each in parts):
            return None
        return cls(*(int(each) for each in parts))
