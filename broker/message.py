"""A message: what routing and queues need to know of it, beside the bytes that came.

A message never changes once it was read: it may be on many queues, and is the same object on all of them. What is
different for each queue (its place, whether it was delivered before) is the queue's `Entry`. Each protocol has a
subclass that keeps the message as that protocol encodes it, so that it is stored and delivered as it came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class StoredForm(NamedTuple):
    """A message as it is appended to a journal.

    Attributes:
        parts: its bytes.
        size: how many they are.
        crc: their checksum, as the store makes it.
    """

    parts: Sequence[bytes]
    size: int
    crc: int


class Message(ABC):
    """A message.

    Attributes:
        exchange: the exchange that it was sent to; empty for the default one.
        routing_key: what it was sent with.
        body: its content.
        is_persistent: whether a durable queue keeps it on disk.
        priority: 0 to 9; 4 where nothing was said.
        expires_at: seconds since 1970 at which nobody is to get it any more; 0.0 for never.
    """

    __slots__ = ("body", "exchange", "expires_at", "is_persistent", "priority", "routing_key")

    exchange: str
    routing_key: str
    body: bytes
    is_persistent: bool
    priority: int
    expires_at: float

    @abstractmethod
    def stored_form(self) -> StoredForm:
        """What a journal keeps of it."""

    @abstractmethod
    def application_headers(self) -> Mapping[str, object]:
        """Its headers as plain values; empty where they cannot be read."""
