"""Where the content of messages is that are out of memory, and how it is read back.

    source       messages                                        their keys
    -----------  ----------------------------------------------  -------------------------------------
    the journal  those that the store has (`journal_source`)     record ids
    another      those that no journal has                       as it chooses

A message that cannot be read back is an error of that message alone: the source logs it, and the message stays on its
queue, is counted, is declined by all consumers, and can be purged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.entry import Entry

Loaded: TypeAlias = "list[Message | None]"
"""Messages in the order of their keys; None for each that cannot be read."""


class ContentSource(Protocol):
    """Keeps messages of one queue that are out of memory. No method raises, except for MemoryError."""

    @property
    def has_failed(self) -> bool:
        """Whether the last messages that it was given had to stay."""

    def keep(self, entries: Sequence[Entry]) -> Sequence[int]:
        """Take over the messages of these entries, in order. Returns the key of each; 0 for one that must stay."""

    def load(self, keys: Sequence[int]) -> Loaded:
        """Read messages now; the event loop waits for the disk."""

    def fetch(self, keys: Sequence[int], done: Callable[[Loaded], None]) -> None:
        """As `load`, but without waiting: `done` is called with the result, at once if no disk is needed for it."""

    def will_need(self, keys: Sequence[int]) -> None:
        """These will be fetched soon."""

    def forget(self, keys: Sequence[int]) -> None:
        """These messages are in memory again, or have left the queue."""

    def close(self) -> None:
        """The queue is gone, with all its messages."""
