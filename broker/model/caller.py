"""The caller of a model operation: a client's session or channel, a link, management, or the broker itself."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class Caller(Protocol):
    """A caller. Queues can be exclusive to it for as long as it lives."""

    @property
    def user(self) -> str:
        """The user name with its realm: `guest@QPID`; empty for the broker itself."""

    @property
    def remote_host(self) -> str:
        """Address and port of the client; empty for the broker itself."""


class Publisher:
    """The client behind one connection: identifies the messages that it publishes, and calls what they ask for.

    Attributes:
        user, remote_host: as of `Caller`; the user is empty before authentication.
    """

    __slots__ = ("remote_host", "user")

    def __init__(self, remote_host: str) -> None:
        self.user, self.remote_host = "", remote_host


class BrokerItself(NamedTuple):
    """The broker as a caller. It may do everything: exclusive queues do not lock it out, and it never owns one."""

    user: str = ""
    remote_host: str = ""


BROKER: Final = BrokerItself()
