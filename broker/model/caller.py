"""The caller of a model operation: a client's session or channel, a link, management, or the broker itself."""

from __future__ import annotations

from typing import Final, Protocol

from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple


class Caller(Protocol):
    """A caller. Queues can be exclusive to it for as long as it lives."""

    @property
    def user(self) -> str:
        """The user name with its realm: `guest@QPID`; empty for the broker itself."""

    @property
    def remote_host(self) -> str:
        """Address and port of the client; empty for the broker itself."""

    @property
    def actor(self) -> str:
        """Its name in the operational log (`status_log`); empty for the broker itself."""

    @property
    def vhost(self) -> str:
        """The name of the virtual host in which it acts."""


class Publisher:
    """The client of one connection: identifies the messages that it publishes, and is the caller of their requests.

    Args:
        remote_host: its address.
        number: the connection's number, from 1.

    Attributes:
        user, remote_host, vhost: as in `Caller`; the user is empty before authentication.
        host_name: the name of the client's host, if the firewall has looked it up; else empty.
        is_closed: whether the connection is closed: what ends with it must not begin any more.
        is_console: whether it has sent a request to management.
        is_internal: whether the broker is its own client (`network/direct`).
        number: as above.
    """

    __slots__ = ("host_name", "is_closed", "is_console", "is_internal", "number", "remote_host", "user", "vhost")

    def __init__(self, remote_host: str, number: int = 0) -> None:
        self.user, self.remote_host, self.number = "", remote_host, number
        self.vhost = DEFAULT_HOST
        self.host_name, self.is_internal, self.is_console, self.is_closed = "", False, False, False

    @property
    def actor(self) -> str:
        """As `Caller.actor`: messages that call operations are requests to management."""
        return f"mng:{self.user}({self.remote_host})"

    @property
    def connection(self) -> Client:
        """Its connection as a caller."""
        host = "" if self.vhost == DEFAULT_HOST else self.vhost
        actor = f"con:{self.number}({self.user}@{self.remote_host}/{host})"
        return Client(self.user, self.remote_host, actor, self.vhost)


class Client(NamedTuple):
    """A connection as a caller; the fields are those of `Caller`."""

    user: str
    remote_host: str
    actor: str
    vhost: str = DEFAULT_HOST


def in_host(caller: Caller, host: str) -> Caller:
    """A caller that acts in another virtual host than that of its connection, as management does."""
    return caller if caller.vhost == host else Client(caller.user, caller.remote_host, caller.actor, host)


class BrokerItself(NamedTuple):
    """The broker as a caller. It may do everything: exclusive queues are not locked for it, and it never owns one."""

    user: str = ""
    remote_host: str = ""
    actor: str = ""
    vhost: str = DEFAULT_HOST


BROKER: Final = BrokerItself()
