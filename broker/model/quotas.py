"""Quotas: counts and limits the connections and queues of each user, and the connections of each host.

All are counted even without a limit, since limits may be set later. A lowered limit affects only new connections and
queues; existing ones remain. A queue counts for the user who declared it, as long as it exists.

Source: Qpid C++ Broker Book, 1.5.3.1 and 1.5.3.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal, Protocol

from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.events import ConnectionDeny, Event, QueueQuotaDeny


class UserLimits(Protocol):
    """The limits of users."""

    def limit(self, counted: Literal["connections", "queues"], user: str) -> int | None:
        """The maximum number of a user's connections or queues; None for no limit."""


class Unlimited:
    """No limits."""

    def limit(self, _counted: Literal["connections", "queues"], _user: str) -> int | None:
        """None."""
        return None


class Quotas:
    """The counts and limits of one broker.

    Args:
        emit: emits events.
        per_host: maximum number of connections of each host; 0 for no limit.

    Attributes:
        per_host: as above.
        limits: the limits of users.
        connections, queues: user -> their number.
        hosts: host -> number of connections.
        connections_denied, queues_denied: number of denials.
    """

    def __init__(self, emit: Callable[[Event], None], per_host: int = 0) -> None:
        self._emit, self.per_host = emit, per_host
        self.limits: UserLimits = Unlimited()
        self.connections: Counter[str] = Counter()
        self.hosts: Counter[str] = Counter()
        self.queues: Counter[str] = Counter()
        self.connections_denied = self.queues_denied = 0

    # ---- connections ----

    def arrive(self, host: str) -> bool:
        """Count a connection of a host, if it may have another one. Returns whether it may."""
        if self.per_host and self.hosts[host] >= self.per_host:
            return False
        self.hosts[host] += 1
        return True

    def leave(self, host: str) -> None:
        """Uncount a closed connection of a host."""
        _subtract(self.hosts, host)

    def log_in(self, user: str) -> bool:
        """Count a connection of a user, if it may have another one. Returns whether it may."""
        limit = self.limits.limit("connections", user)
        if limit is not None and self.connections[user] >= limit:
            return False
        self.connections[user] += 1
        return True

    def log_out(self, user: str) -> None:
        """Uncount a closed connection of a user."""
        _subtract(self.connections, user)

    def denied(self, user: str, address: str) -> None:
        """Count a connection denied by a limit or a rule, and emit the event; `user` is empty if unknown."""
        self.connections_denied += 1
        self._emit(ConnectionDeny(user, address))

    # ---- queues ----

    def check_queue(self, caller: Caller, queue: str) -> None:
        """Raise UnauthorizedError unless the caller may have another queue, of this name."""
        if caller is BROKER:
            return
        limit = self.limits.limit("queues", caller.user)
        if limit is not None and self.queues[caller.user] >= limit:
            self.queues_denied += 1
            self._emit(QueueQuotaDeny(caller.user, queue))
            raise UnauthorizedError(f'user "{caller.user}" may not have more than {limit} queues: "{queue}" is refused')

    def queue_created(self, creator: str) -> None:
        """Count a new queue of a user."""
        self.queues[creator] += 1

    def queue_deleted(self, creator: str) -> None:
        """Uncount a deleted queue of a user."""
        _subtract(self.queues, creator)


def _subtract(counts: Counter[str], key: str) -> None:
    """Subtract 1, and forget names with 0: there may be very many over time."""
    left = counts[key] - 1
    if left > 0:
        counts[key] = left
    else:
        del counts[key]
