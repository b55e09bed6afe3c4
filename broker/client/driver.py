"""What the client's core needs of the world around it.

The core is written as coroutines, and all of them wait in one way: for a condition to become true that depends on
what the broker sends (`wait`), or for time to pass. A driver owns the socket and the clock. There are two:

    threaded    a thread of its own reads and writes the socket; who calls waits for that thread, and its
                coroutines never suspend
    aio         everything is in one event loop of asyncio

Rules: nothing of the core is entered by two threads at a time, and it may be entered by another only while a
coroutine waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from broker.client.url import Place


class Events(Protocol):
    """What a driver tells the core."""

    def on_data(self, data: bytes) -> None:
        """The socket has brought this."""

    def on_lost(self, reason: str) -> None:
        """The socket is of no more use."""

    def on_defect(self, error: BaseException) -> None:
        """The driver is at its end: `error` is nothing that anybody reckoned with."""

    def on_beat(self) -> None:
        """The interval that `Driver.beat_every` was told has passed."""

    def take_output(self) -> bytes:
        """What is to be sent, which is the driver's from now on."""


class Driver(Protocol):
    """A socket, a clock and a way to wait."""

    #: More is waiting to be sent than should; no more messages should be put to it.
    is_full: bool

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""

    async def connect(self, place: Place, deadline: float, *, nodelay: bool) -> None:
        """Have a socket connected to `place`, after the one before was disconnected.

        Raises:
            ConnectError: there is nobody, or it took until `deadline`.
        """

    def disconnect(self) -> None:
        """Send what there is to be sent, as far as that goes at once, and close the socket. Nothing is told of it."""

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until `is_ready`, and at most until `deadline`. Returns whether it is."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass, unless the connection is closed meanwhile."""

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the background."""

    def beat_every(self, seconds: float) -> None:
        """Call `Events.on_beat` each time so many seconds have passed, 0 for never, until `disconnect`."""

    def write_soon(self) -> None:
        """There is something to be sent."""

    def changed(self) -> None:
        """Let all who wait look again whether they are ready."""
