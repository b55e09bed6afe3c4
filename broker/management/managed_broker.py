"""The broker as management sees it: the model, and what only the process and the network know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from qstore.broker.management.snapshots import Snapshots
from qstore.broker.management.summing import summed
from qstore.broker.management.turns import Turns

if TYPE_CHECKING:
    from qstore.broker.log.logs import LogControl
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.identity import Identity
    from qstore.broker.management.objects.element import ManagedClass
    from qstore.broker.management.qmf1.remote_agents import RemoteAgent
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.counters import QueueTotals
    from qstore.broker.protocols.machine import DetachedSession, Machine, ManagedSession
    from qstore.broker.security.authentication import Authentication


class ListedSession(NamedTuple):
    """A session, and where it is attached, or was last.

    Attributes:
        machine: its connection; None if it is detached.
        channel: its channel there.
        session: the session.
        detached: how it waits to be attached again; None if it is attached.
    """

    machine: Machine | None
    channel: int
    session: ManagedSession
    detached: DetachedSession | None = None

    @property
    def key(self) -> str:
        """Its name among all sessions of the broker."""
        return f"{self.session.user}.{self.session.name.decode('utf-8', 'replace')}"

    @property
    def peer(self) -> str:
        """The client's address."""
        if self.detached is not None:
            return self.detached.peer
        assert self.machine is not None
        return self.machine.peer

    @property
    def is_attached(self) -> bool:
        """Whether it is attached."""
        return self.detached is None

    @property
    def expires_at(self) -> int | None:
        """When it ends unless it is attached again, in nanoseconds since 1970; None if it is attached."""
        return None if self.detached is None else round(self.detached.expires_at * 1e9)

    @property
    def open_transactions(self) -> int:
        """Transactions that have begun and not ended."""
        session = self.session
        return session.txn_starts - session.txn_commits - session.txn_rejects


class SecurityControl(Protocol):
    """Who is let in, and with which certificate."""

    @property
    def authentication(self) -> Authentication:
        """How clients log in."""

    def reload_security(self) -> list[str]:
        """Read the certificate and the keytab again. Returns warnings. Raises TlsConfigurationError."""


class ManagedBroker:
    """What there is to manage.

    Args:
        broker: the model.
        identity: who this broker is.
        version: of this software.
        ports: returns the ports that it listens on.
        machines: returns the open connections.
        detached: returns the detached sessions.
        shut_down: ends the broker.
        log: which lines the log shows; None if that cannot be changed.
        security: who is let in; None without a network.
        status: the operational log; None if there is none.

    Attributes:
        broker, identity, version, machines, detached, shut_down, log, security, status: as above.
        snapshots: those of the store that other processes read; None without a store.
        interval: seconds between two publications of what has changed.
        turns: when portions of long work are done.
        agents: returns the agents that are attached.
        classes: all classes of managed objects.
    """

    def __init__(
        self,
        broker: Broker,
        identity: Identity,
        version: str,
        *,
        ports: Callable[[], Sequence[int]],
        machines: Callable[[], list[Machine]],
        shut_down: Callable[[], None],
        log: LogControl | None,
        security: SecurityControl | None = None,
        status: StatusLog | None = None,
        detached: Callable[[], list[DetachedSession]] = list,
    ) -> None:
        self.broker, self.identity, self.version = broker, identity, version
        self._ports, self.machines, self.shut_down, self.log = ports, machines, shut_down, log
        self.security, self.status, self.detached = security, status, detached
        self.snapshots = None if broker.store is None else Snapshots(broker.store)
        self.interval = broker.settings.heartbeat_seconds
        self.turns = Turns()
        self._totals: QueueTotals | None = None
        self.agents: Callable[[], Iterable[RemoteAgent]] = tuple
        self.classes: Sequence[ManagedClass] = ()

    @property
    def system_id(self) -> UUID:
        """Of the machine."""
        return self.identity.system

    @property
    def federation_tag(self) -> str:
        """The name of this broker among others."""
        return str(self.identity.instance)

    @property
    def port(self) -> int:
        """The first port that it listens on; 0 for none."""
        return next(iter(self._ports()), 0)

    @property
    def uptime(self) -> int:
        """Nanoseconds since it was started."""
        return round((self.broker.monotonic() - self.broker.started) * 1e9)

    @property
    def totals(self) -> QueueTotals:
        """The summed counters of all queues: as of the last `sum_up`, or, without any, as of now."""
        return self.broker.totals if self._totals is None else self._totals

    async def sum_up(self) -> None:
        """Sum up the counters of all queues, in turns. To be called before the class broker is read."""
        self._totals = await summed(self.broker, self.turns)

    def sessions(self) -> Iterator[ListedSession]:
        """The sessions, attached and detached."""
        for machine in self.machines():
            for channel, session in list(machine.sessions.items()):
                yield ListedSession(machine, channel, session)
        for each in self.detached():
            yield ListedSession(None, each.channel, each.session, each)
