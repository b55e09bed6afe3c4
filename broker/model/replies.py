"""Direct replies: a requester gets replies without declaring a queue for them.

Each requester has a reply queue that no other client can see: it is not among the broker's queues, is never stored, and
ends with its consumer. The default exchange routes to it by its name, which cannot be guessed, so publishers of every
protocol can reply. A requester that does not read its replies loses the oldest ones beyond a limit; a reply to a
requester that has gone is unroutable.

Source: RabbitMQ, "Direct Reply-to".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.limits import Capacity, Ring, RingLimit
from qstore.broker.model.queues.queue import Queue

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.default import DefaultExchange
    from qstore.broker.model.tick import Tick

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The queue name that requesters consume from and give as reply address: a placeholder for their reply queue."""

PREFIX: Final = f"{REPLY_TO}."
"""The prefix of the names of reply queues."""

MAX_REPLIES: Final = 10_000
"""Maximum number of replies waiting for one requester."""

MAX_REPLY_BYTES: Final = 16 << 20
"""Maximum bytes of these, or of one message as large as the broker accepts."""

_TOKEN_BYTES: Final = 24


class DirectReplies:
    """The reply queues of one virtual host.

    Args:
        tick: dispatches them.
        default: the default exchange.
        max_message_bytes: limit of one message; 0 for no limit.
        clock: seconds since 1970.

    Attributes:
        queues: name -> queue.
    """

    def __init__(
        self, tick: Tick, default: DefaultExchange, max_message_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._tick, self._default, self._clock = tick, default, clock
        self._max_bytes = max(MAX_REPLY_BYTES, max_message_bytes)
        self.queues: dict[str, Queue] = {}
        default.replies = self.queues

    def open(self) -> Queue:
        """Create a reply queue."""
        name = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        limit = RingLimit(Capacity(MAX_REPLIES, self._max_bytes, MESSAGE_OVERHEAD), is_strict=False)
        ring = Ring(limit, lambda _queue, _entry: False)  # nothing moves elsewhere
        queue = Queue(name, self._tick, limit=limit, displacements=(ring,), clock=self._clock)
        self.queues[name] = queue
        return queue

    def close(self, queue: Queue) -> None:
        """Drop the replies of a requester that has gone."""
        del self.queues[queue.name]
        self._default.forget(queue.name)
        queue.begin_deletion()
        queue.end_deletion()

    def has(self, name: str) -> bool:
        """Whether a requester with this name exists; always for REPLY_TO itself."""
        return name == REPLY_TO or name in self.queues

    @property
    def memory(self) -> int:
        """Bytes of memory taken by all replies."""
        return sum(queue.memory for queue in self.queues.values())
