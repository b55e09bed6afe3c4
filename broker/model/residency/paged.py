"""What a residency requires of its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qstore.broker.model.queues.counters import QueueCounters


class Paged(Protocol):
    """A queue, as its residency sees it. The attributes are those of `Queue`."""

    messages_enqueued: int
    bytes_enqueued: int
    is_deleted: bool
    counters: QueueCounters

    @property
    def memory(self) -> int:
        """Bytes of memory taken by its messages."""

    @property
    def message_count(self) -> int:
        """Messages on it."""

    @property
    def available_count(self) -> int:
        """Messages on it that no consumer and no transaction holds."""

    @property
    def refers_to_entries(self) -> bool:
        """Whether something keeps references to entries of available messages."""
