"""Connections that are not open yet: TLS handshake, protocol header, login and connection.open are under way.

They take places of the limit of connections (`--max-connections`). When it is reached, a newcomer gets the place of one
of them: the oldest of the host that has the most. So silent connections displace only other
silent ones, first those of the same host; open connections are never affected.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Opening(Protocol):
    """A connection."""

    @property
    def is_half_open(self) -> bool:
        """Whether it is not open yet."""


_T = TypeVar("_T", bound=Opening)


class HalfOpen(Generic[_T]):
    """The half-open connections, by host, oldest first. Those that were opened meanwhile are found when it matters."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[_T, None]] = {}

    def add(self, host: str, connection: _T) -> None:
        """A connection was accepted."""
        self._hosts.setdefault(host, {})[connection] = None

    def remove(self, host: str, connection: _T) -> None:
        """A connection is closed, open or not."""
        connections = self._hosts.get(host)
        if connections is not None:
            connections.pop(connection, None)
            if not connections:
                del self._hosts[host]

    def take(self) -> _T | None:
        """Take the oldest one of the host that has the most; None if there are none."""
        while self._hosts:
            host = max(self._hosts, key=lambda each: len(self._hosts[each]))
            connection = next(iter(self._hosts[host]))
            self.remove(host, connection)
            if connection.is_half_open:
                return connection
        return None
