"""The memory of incomplete messages, over all connections of a protocol together."""

from __future__ import annotations


class Budget:
    """A limit of bytes.

    Attributes:
        max_bytes: the limit.
        used: bytes in use.
    """

    __slots__ = ("max_bytes", "used")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
