"""What a socket and a connection need of each other, whatever protocol the connection speaks.

A connection is a machine without I/O. Bytes that the socket brings go in by `receive`; what is to be sent goes to its
host (`write`) at the end of the event loop's tick. A machine that `is_paused` keeps what comes until somebody else has
it go on, and one that `is_behind` wants `resume` as soon as others have had their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from broker.model.errors import ModelError
from broker.security.mechanisms import Failure, PasswordCheck, Success


class Peer(NamedTuple):
    """A client.

    Attributes:
        address: host and port, for the log.
        is_local: whether it is on this host.
        refusal: why it is to be told that it may not connect; empty if it may.
    """

    address: str
    is_local: bool
    refusal: str = ""


class ConnectionCounts(NamedTuple):
    """What has come over a connection, and gone: its frames, their bytes, and the messages in them."""

    frames_received: int
    frames_sent: int
    bytes_received: int
    bytes_sent: int
    messages_received: int
    messages_sent: int


class Host(Protocol):
    """What runs a connection: the event loop and the socket."""

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time, and call `done` with what went wrong."""

    def check_password(self, check: PasswordCheck, done: Callable[[Success | Failure], None]) -> None:
        """Check a password beside the event loop."""

    def resumed(self) -> None:
        """The connection goes on after a pause."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close the socket when all is sent."""


class Machine(Protocol):
    """The broker's end of one connection.

    Attributes:
        user: who the client is; empty until it is known.
    """

    user: str

    @property
    def counts(self) -> ConnectionCounts:
        """What has come and gone so far."""

    @property
    def is_paused(self) -> bool:
        """Whether what comes is kept until `resume`."""

    @property
    def is_behind(self) -> bool:
        """Whether there is more than is taken at once, so that `resume` is to be called soon."""

    @property
    def is_negotiating(self) -> bool:
        """Whether the client is not let in yet."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come or go."""

    def receive(self, data: bytes) -> None:
        """Take what the socket has brought; no bytes are a sign that the client is alive."""

    def resume(self) -> None:
        """Go on with what was kept."""

    def tick(self, now: float) -> None:
        """Some time has gone by: look after heartbeats."""

    def pause_sending(self) -> None:
        """The socket takes no more."""

    def resume_sending(self) -> None:
        """The socket takes more again."""

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory is short, so that every message may be one too many; or it is ample again."""

    def take_published(self) -> bool:
        """Whether a message has come while memory was short, since this was last asked."""

    def force_close(self, text: str) -> None:
        """Close the connection, and tell the client why."""

    def dismantle(self) -> None:
        """The socket is gone."""
