"""Who asks for an operation of the model: a client's session or channel, a link, management, or the broker itself."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class Caller(Protocol):
    """Somebody who asks. Queues can be exclusive to it, for as long as it lasts."""

    @property
    def user(self) -> str:
        """Who it is, with the realm: `guest@QPID`; empty for the broker itself."""

    @property
    def remote_host(self) -> str:
        """Address and port of the client; empty for the broker itself."""


class BrokerItself(NamedTuple):
    """The broker, which may do everything: exclusive queues do not lock it out, and it never owns one."""

    user: str = ""
    remote_host: str = ""


BROKER: Final = BrokerItself()
