"""The clients of a server: those that are connected, those that are one too many, and those that are not read.

What keeps all of them from being read stands here, too: the disk (`backpressure`), and memory. While memory is short, a
publisher is read once a second, until consumers have taken enough.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Protocol

from broker.log.budget import LogBudget
from broker.log.logs import WARNING, log_of
from broker.model.broker import Broker
from broker.model.memory import State
from broker.network.backpressure import Pressure, Reader
from broker.protocols.table import Protocols
from broker.settings import BrokerSettings

_LOG: Final = log_of("Network")

_IDLE_GAP: Final = 0.000_2  # seconds without work after which the loop counts as idle
_PUBLISHER_HOLD: Final = 1.0  # seconds that a publisher is not read at a time while memory is short


class Client(Reader, Protocol):
    """One client's socket, as those who look after all of them see it."""

    def tick(self, now: float) -> None:
        """Some time has gone by."""

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory is short, or ample again."""

    def shut_down(self) -> None:
        """The broker stops: tell the client."""

    def abort(self) -> None:
        """Close the socket at once."""


class Clients:
    """All clients, and what they have in common.

    Args:
        broker: the model.
        settings: its limits.
        protocols: what they may speak.
        loop: runs them.

    Attributes:
        broker, settings, protocols, loop: as above.
        connections: those that there are.
        refused: those that are one too many, until they are told so.
        too_many: lines about them.
        foreign: lines about clients of protocols that the broker does not speak.
        held_publishers: those that are not read since memory is short, and since when.
        pressure: stops those that outrun the disk.
    """

    def __init__(
        self, broker: Broker, settings: BrokerSettings, protocols: Protocols, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.broker, self.settings, self.protocols, self.loop = broker, settings, protocols, loop
        self.connections: dict[Client, None] = {}
        self.refused: dict[Client, None] = {}
        self.held_publishers: dict[Client, float] = {}
        self.too_many = LogBudget(_LOG, WARNING, "clients beyond the limit of connections")
        self.foreign = LogBudget(log_of("Protocol"), WARNING, "clients of other protocols")
        self.pressure = Pressure(broker.turn, loop.call_soon)
        self._last_work = 0.0
        self._is_first = False

    # ---- whether the loop is idle ----

    def work_begins(self) -> None:
        """A socket has brought something."""
        now = time.perf_counter()
        self._is_first = now - self._last_work > _IDLE_GAP
        self._last_work = now

    def worked(self) -> None:
        """Something was done."""
        self._last_work = time.perf_counter()

    def is_idle(self) -> bool:
        """Whether nothing else was to be done just before, so that the disk may be waited for here."""
        self.worked()
        return self._is_first and not self.broker.turn.flushes_under_way > 1

    # ---- time and memory ----

    def tick(self, now: float) -> None:
        """Some time has gone by, in seconds of a clock that does not go back."""
        for connection in list(self.connections):
            connection.tick(now)
        self.too_many.tick(now)
        self.foreign.tick(now)
        self.pressure.forget()
        if self.broker.memory.state is not State.AMPLE:
            self.broker.memory.count()
            self._release_publishers(now - _PUBLISHER_HOLD)

    def memory_changed(self) -> None:
        """Memory is short, or ample again."""
        is_short = self.broker.memory.state is not State.AMPLE
        for connection in self.connections:
            connection.watch_memory(is_short=is_short)
        if not is_short:
            self._release_publishers(math.inf)

    def _release_publishers(self, since: float) -> None:
        """Go on with the publishers that have not been read since then."""
        for connection in [each for each, began in self.held_publishers.items() if began <= since]:
            del self.held_publishers[connection]
            connection.go_on_reading(self.broker.memory)
            self.loop.call_soon(connection.catch_up)
