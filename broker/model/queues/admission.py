"""Which messages a queue takes: the base of `Queue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qstore.broker.model.queues.contents import Contents
from qstore.broker.model.queues.expiry import NO_TIME, NO_TIME_STORED

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumer import Consumer
    from qstore.broker.model.queues.dead_letter import DeadLetter
    from qstore.broker.model.queues.depth_watch import DepthWatch
    from qstore.broker.model.queues.displacement import Displacement
    from qstore.broker.model.queues.eligibility import Eligibility
    from qstore.broker.model.queues.expiry import Expiries
    from qstore.broker.model.queues.fifo import Fifo
    from qstore.broker.model.queues.limits import Limit


class Admitting(Contents):
    """A queue, as those see it that ask whether it takes a message.

    Attributes:
        journal: its journal in the store, of a type the store chooses; None if nothing is stored.
        limit: how much it holds, and what happens beyond that (`limits`); None for no limit.
        displacements: which messages leave it when others arrive (`displacement`).
        eligibility: which messages it accepts (`eligibility`); None for all.
        owner: the session or channel to which it is exclusive; None if it is not exclusive.
        exclusive_consumer: its exclusive consumer; None if there is none.
        message_ttl: seconds that a message may be on it; None for no limit.
        expires_seconds: how long it is kept while nobody uses it; 0 for ever.
        expiries: has messages at its head leave when they expire (`expiry`); None if they do not.
        expiry_due, expiry_number: when they do, and as what it is known there; 0 if they do not.
        dead_letter: where its dead messages go (`dead_letter`); None if they are dropped.
    """

    __slots__ = (
        "_clock", "dead_letter", "displacements", "eligibility", "exclusive_consumer", "expires_seconds", "expiries",
        "expiry_due", "expiry_number", "journal", "limit", "message_ttl", "owner",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        order: Fifo,
        *,
        durable: bool,
        watch: DepthWatch | None,
        clock: Callable[[], float],
        journal: Any,
        limit: Limit | None,
        displacements: tuple[Displacement, ...],
        eligibility: Eligibility | None,
    ) -> None:
        super().__init__(name, order, durable=durable, watch=watch, created_at=clock())
        self._clock = clock
        self.message_ttl: float | None = None
        self.expires_seconds = 0.0
        self.expiries: Expiries | None = None
        self.expiry_due, self.expiry_number = 0.0, 0
        self.dead_letter: DeadLetter[Any] | None = None
        self.journal, self.limit, self.displacements, self.eligibility = journal, limit, displacements, eligibility
        self.owner: object | None = None
        self.exclusive_consumer: Consumer | None = None

    def limited(self, message: Message) -> Message:
        """The message as it is put on the queue: it expires when it has been there for the queue's own time."""
        if self.message_ttl is None:
            return message
        end = self._clock() + (self.message_ttl or (NO_TIME_STORED if self.stores(message) else NO_TIME))
        return message if 0 < message.expires_at <= end else message.expiring_at(end)

    def admits(self, message: Message) -> bool:
        """Whether the queue accepts the message; otherwise it is dropped."""
        return self.eligibility is None or self.eligibility.admits(self, message)

    def stores(self, message: Message) -> bool:
        """Whether the message is stored in the queue's journal."""
        return message.is_persistent and self.journal is not None and self.admits(message)

    def check_room(self, message: Message) -> None:
        """Raise ResourceLimitExceededError if the queue has no room for the message."""
        if self.limit is not None and self.admits(message):
            self.limit.check(self, message)

    def check_room_for(self, count: int, size: int) -> None:
        """As `check_room`, for `count` messages with `size` bytes of headers and content."""
        if self.limit is not None:
            self.limit.check_all(self, count, size)

    @property
    def refused(self) -> int:
        """Number of messages that its limit has refused."""
        return 0 if self.limit is None else self.limit.refused

    @property
    def refers_to_entries(self) -> bool:
        """Whether something keeps references to entries of available messages."""
        return any(each.refers_to_entries for each in self.displacements)
