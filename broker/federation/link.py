"""A link: the life of one outgoing connection, from the broker to another one, whatever the protocol.

    state         meaning                                                         leaves it
    ------------  --------------------------------------------------------------  ----------------------------------
    WAITING       the next attempt is due after the back-off                      the timer: CONNECTING
    CONNECTING    an attempt is under way: name, socket, TLS, login, open         `opened`: OPERATIONAL; lost: WAITING
    OPERATIONAL   the connection is open                                          lost: WAITING
    FAILED        the other broker has refused the login, perhaps while it stops  the timer, `restart`: CONNECTING
    CLOSED        closed by its owner                                             never

Back-off: the first attempt after a loss follows after one maintenance interval (2 seconds); each round of failed
attempts doubles the time, up to 32 intervals (64 seconds). A round tries the configured address and then, an interval
apart, those that the other broker has announced as alternatives (`learned`). A connection that opens ends the back-off.

The link has no protocol, socket or clock: its `owner` makes the machine of each attempt, a `Network` connects it, and
`call_later` counts the time. Machines report with `opened` and `refused`; the network reports the end of an attempt or
a connection, whatever its reason, once.

Source: Qpid wiki, "Using Broker Federation", "The Life Cycle of a Link" (seed 004); MRG 2 Messaging Installation and
Configuration Guide, 8.4.6 (the states).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Protocol

from qstore.broker.log.logs import log_of
from qstore.broker.protocols.machine import Host, Machine
from qstore.formats.named_tuple import NamedTuple

_LOG: Final = log_of("Broker")

MAX_INTERVALS: Final = 32
"""Maintenance intervals that a link waits at most before its next attempt."""

MAX_LEARNED: Final = 64
"""Alternative addresses of another broker that are kept."""

TRANSPORTS: Final = ("tcp", "ssl")
"""How a link can be carried."""


class LinkState(Enum):
    """The state of a link; the value is its name in management."""

    WAITING = "Waiting"
    CONNECTING = "Connecting"
    OPERATIONAL = "Operational"
    FAILED = "Failed"
    CLOSED = "Closed"


class Remote(NamedTuple):
    """An address of another broker.

    Attributes:
        host: name or address.
        port: TCP port.
        transport: one of `TRANSPORTS`.
    """

    host: str
    port: int
    transport: str = "tcp"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RemoteLogin(NamedTuple):
    """How a link logs in at the other broker.

    Attributes:
        mechanism: SASL mechanisms that may be used, separated by spaces; empty for all.
        user: the user name; empty to log in anonymously.
        password: the user's password.
    """

    mechanism: str = ""
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"RemoteLogin(mechanism={self.mechanism!r}, user={self.user!r})"


def remotes_in(url: str) -> list[Remote]:
    """The addresses in a broker's URL, such as `amqp:tcp:host:port,ssl:host:port`: those that a link can use."""
    found = []
    text = url.strip()
    if text.startswith("amqp:"):
        text = text.removeprefix("amqp:").lstrip("/")
    _, _, text = text.rpartition("@")
    for part in text.split(","):
        transport, _, rest = part.strip().partition(":")
        if transport not in ("tcp", "ssl", "rdma"):
            transport, rest = "tcp", part.strip()
        host, separator, port = rest.rpartition(":")
        if not separator:
            host, port = rest, "5672"
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if transport in TRANSPORTS and host and is_number and 0 < int(port) < 1 << 16:
            found.append(Remote(host.strip("[]"), int(port), transport))
    return found


class Attempt(Protocol):
    """An attempt to connect, and then the connection."""

    def abort(self) -> None:
        """End it at once."""


class Network(Protocol):
    """Connects links to other brokers."""

    def connect(self, remote: Remote, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> Attempt:
        """Begin to connect.

        Args:
            remote: the address.
            make: makes the machine of the connection, when there is a socket.
            lost: called once, with the reason, when the attempt has failed or the connection has ended.
        """


class LinkOwner(Protocol):
    """What a link is made for."""

    def connect(self, host: Host, remote: Remote) -> Machine:
        """Make the machine of a connection. It reports `Link.opened` or `Link.refused`."""

    def link_changed(self, link: Link, before: LinkState) -> None:
        """The link's state has changed."""


class Link:
    """A link.

    Args:
        owner: makes its machines.
        remote: the configured address.
        network: connects it.
        call_later: schedules a function after a delay in seconds; returns a handle with `cancel`.
        interval: seconds of one maintenance interval.

    Attributes:
        configured: the configured address.
        remote: the address of the current, or the last, attempt.
        state: its state.
        last_error: why it is not operational; empty if there was no error since it last was.
        learned: alternative addresses of the other broker.
    """

    def __init__(
        self,
        owner: LinkOwner,
        remote: Remote,
        network: Network,
        call_later: Callable[[float, Callable[[], None]], Any],
        interval: float = 2.0,
    ) -> None:
        self._owner, self._network, self._call_later, self._interval = owner, network, call_later, interval
        self.configured = self.remote = remote
        self.state = LinkState.WAITING
        self.last_error = ""
        self.learned: tuple[Remote, ...] = ()
        self._timer: Any = None
        self._attempt: Attempt | None = None
        self._round = 0  # failed rounds since it was last operational
        self._next = 0  # index of the next address of this round
        self._refusal = ""  # that was logged

    def start(self) -> None:
        """Begin the first attempt."""
        self._connect()

    def restart(self) -> None:
        """Begin an attempt now, unless one is under way: its owner has changed the login, or asks for it."""
        if self.state in (LinkState.WAITING, LinkState.FAILED):
            self._round = self._next = 0
            self._connect()

    def close(self) -> None:
        """Close the link for good."""
        self._stop_timer()
        attempt, self._attempt = self._attempt, None
        self._become(LinkState.CLOSED)
        if attempt is not None:
            attempt.abort()

    # ---- reports of the machine ----

    def opened(self) -> None:
        """The connection is open."""
        if self.state is LinkState.CONNECTING:
            self._round = self._next = 0
            self.last_error = self._refusal = ""
            _LOG.info("Inter-broker link established to %s", self.remote)
            self._become(LinkState.OPERATIONAL)

    def refused(self, reason: str) -> None:
        """The other broker has refused the login. The next one follows with the same back-off as after a loss."""
        if self.state is LinkState.CONNECTING:
            self.last_error = reason
            if reason != self._refusal:
                self._refusal = reason
                _LOG.error("The link to %s has failed: %s", self.remote, reason)
            self._become(LinkState.FAILED)

    def learn(self, remotes: Iterable[Remote]) -> None:
        """The other broker has announced its alternative addresses; they replace earlier ones.

        A link over TLS uses only those with TLS: it would send its password in clear to others.
        """
        has_tls = self.configured.transport == "ssl"
        usable = [each for each in remotes if each.transport == "ssl" or not has_tls]
        found = tuple(dict.fromkeys(each for each in usable if each != self.configured))[:MAX_LEARNED]
        if found != self.learned:
            self.learned, self._next = found, 0
            _LOG.debug("The broker at %s can also be reached at %s", self.remote, ", ".join(map(str, found)))

    # ---- reports of the network ----

    def _lost(self, attempt: int, reason: str) -> None:
        if attempt != self._number or self.state is LinkState.CLOSED:
            return
        self._attempt = None
        if self.state is not LinkState.FAILED:
            self.last_error = reason
            self._become(LinkState.WAITING)
        seconds = self._interval * self._intervals()
        text = "Inter-broker link disconnected from %s: %s; next attempt in %.3g s"
        _LOG.info(text, self.remote, reason, seconds)
        self._timer = self._call_later(seconds, self._due)

    def _intervals(self) -> int:
        """Intervals until the next attempt. Counts rounds."""
        if 0 < self._next < len(self.learned) + 1:
            return 1
        self._next = 0
        intervals: int = min(1 << self._round, MAX_INTERVALS)
        self._round = min(self._round + 1, MAX_INTERVALS)
        return intervals

    def _due(self) -> None:
        self._timer = None
        if self.state in (LinkState.WAITING, LinkState.FAILED):
            self._connect()

    # ---- attempts ----

    _number = 0  # of the last attempt

    def _connect(self) -> None:
        self._stop_timer()
        addresses = (self.configured, *self.learned)
        self.remote = addresses[self._next % len(addresses)]
        self._next += 1
        number = self._number = self._number + 1
        self._become(LinkState.CONNECTING)
        _LOG.info("Inter-broker link connecting to %s", self.remote)
        remote = self.remote
        self._attempt = self._network.connect(
            remote, lambda host: self._owner.connect(host, remote), lambda reason: self._lost(number, reason)
        )

    def _become(self, state: LinkState) -> None:
        before, self.state = self.state, state
        if before is not state:
            self._owner.link_changed(self, before)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
