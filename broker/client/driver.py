"""The interface of the client's core to socket and clock.

The core is written as coroutines that wait only for a condition that depends on the broker's data (`wait`), or for time
to pass. A driver owns the socket and the clock. There are two drivers:

    threaded    a dedicated thread reads and writes the socket; callers wait for that thread, and their coroutines
                never suspend
    asyncio     everything runs in one asyncio event loop

The core is not thread-safe: only one thread may run in it at a time, and another thread may enter it only while a
coroutine waits.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from qstore.broker.client.url import Endpoint


class Events(Protocol):
    """The callbacks of a driver to the core."""

    def on_data(self, data: bytes) -> None:
        """The socket has received data."""

    def on_lost(self, reason: str) -> None:
        """The socket was closed by the broker, or has failed."""

    def on_defect(self, error: BaseException) -> None:
        """The driver has ended because of an unhandled exception."""

    def on_beat(self) -> None:
        """The interval of `Driver.beat_every` has passed."""

    def take_output(self) -> bytes:
        """Take the bytes to send."""


class Driver(Protocol):
    """Socket, clock and waiting."""

    #: Whether the limit of unsent bytes is reached, so that no more messages should be sent.
    is_full: bool

    def now(self) -> float:
        """The time of a monotonic clock, in seconds."""

    async def connect(self, endpoint: Endpoint, deadline: float, *, nodelay: bool, tls: ssl.SSLContext | None) -> None:
        """Connect a socket to `endpoint`, and encrypt the connection with `tls`; the previous one is disconnected.

        Raises:
            ConnectError: the connection was refused, not established until `deadline`, or cannot be encrypted.
        """

    def disconnect(self) -> None:
        """Send pending data as far as possible without waiting, and close the socket. No callback is called."""

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until `is_ready()` is true or the deadline has passed. Returns the result of `is_ready()`."""

    async def sleep(self, seconds: float) -> None:
        """Sleep, at most until the connection is closed."""

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the background."""

    def beat_every(self, seconds: float) -> None:
        """Call `Events.on_beat` every `seconds` until `disconnect`; 0 for never."""

    def write_soon(self) -> None:
        """Schedule sending, since there is output to take."""

    def changed(self) -> None:
        """Let all waiting coroutines check their conditions."""
