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


class BrokerItself(NamedTuple):
    """The broker as a caller. It may do everything: exclusive queues do not lock it out, and it never owns one."""

    user: str = ""
    remote_host: str = ""


BROKER: Final = BrokerItself()
