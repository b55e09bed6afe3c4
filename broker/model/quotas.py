"""Quotas: how many connections and queues each user has, and how many connections each host.

All are counted, whether or not there is a limit, since limits may be set later. A limit that is lowered affects only
what comes after: connections and queues remain. A queue counts for the user who has declared it, as long as it exists.

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
        """How many connections or queues a user may have; None if there is no limit."""


class Unlimited:
    """No limits."""

    def limit(self, _counted: Literal["connections", "queues"], _user: str) -> int | None:
        """None."""
        return None


class Quotas:
    """The counts and limits of one broker.

    Args:
        emit: emits events.
        per_host: how many connections each host may have; 0 for no limit.

    Attributes:
        per_host: as above.
        limits: the limits of users.
        connections, queues: user -> how many.
        hosts: host -> how many connections.
        connections_denied, queues_denied: how many were denied.
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
        """A connection that was counted for its host is closed."""
        _subtract(self.hosts, host)

    def log_in(self, user: str) -> bool:
        """Count a connection of a user, if it may have another one. Returns whether it may."""
        limit = self.limits.limit("connections", user)
        if limit is not None and self.connections[user] >= limit:
            return False
        self.connections[user] += 1
        return True

    def log_out(self, user: str) -> None:
        """A connection that was counted for its user is closed."""
        _subtract(self.connections, user)

    def denied(self, user: str, address: str) -> None:
        """A connection was denied, by a limit or a rule; `user` is empty if it is not known."""
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
        """A user has a queue more."""
        self.queues[creator] += 1

    def queue_deleted(self, creator: str) -> None:
        """A user has a queue less."""
        _subtract(self.queues, creator)


def _subtract(counts: Counter[str], key: str) -> None:
    """Unused names are forgotten: there may be very many over time."""
    left = counts[key] - 1
    if left > 0:
        counts[key] = left
    else:
        del counts[key]
