"""The broker as management sees it: the model, the state of process and network, and time for long work.

Long work (a query, a sweep, the sums over all queues) is done in portions, one in a time slice (`TimeSlices`). There
is one slice in two iterations of the event loop, however many requests are carried out at the same time: no iteration
is delayed by more than one portion, and a console with large queries does not hold up those of others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from qstore.broker.management.objects.backup import Snapshots
from qstore.broker.model.counters import QueueTotals, difference_of, sum_of
from qstore.formats.broker_records.topology import full_name
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.federation.federation import Federation
    from qstore.broker.federation.interlinks import Interlinks
    from qstore.broker.federation.shovel import Shovels
    from qstore.broker.federation.upstreams import Upstreams
    from qstore.broker.log.sinks import Logging
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.identity import Identity
    from qstore.broker.management.objects.details import QueueHead
    from qstore.broker.management.remote_agents import RemoteAgent
    from qstore.broker.management.schema import ManagedClass
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.message import MakeMessage, Message, NewMessage
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.network.server import Server
    from qstore.broker.protocols.machine import DetachedSession, Machine, ManagedSession
    from qstore.broker.security.administration import Administration

PORTION_SECONDS: Final = 0.003
"""The length of a time slice."""


class TimeSlices:
    """The time slices of one broker."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._ends = 0.0

    async def next(self) -> None:
        """Wait for the next time slice, in which one portion of work may be done."""
        async with self._lock:
            await asyncio.sleep(0)
        self._ends = time.perf_counter() + PORTION_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the time slice is used up."""
        return time.perf_counter() >= self._ends


def _makes_none(_new: NewMessage) -> Message:
    raise AssertionError("there is no agent")


class ListedSession(NamedTuple):
    """A session, and where it is attached, or was last.

    Attributes:
        machine: its connection; None if it is detached.
        channel: its channel there.
        session: the session.
        detached: its state while detached; None if it is attached.
    """

    machine: Machine | None
    channel: int
    session: ManagedSession
    detached: DetachedSession | None = None

    @property
    def key(self) -> str:
        """Its name among all sessions of the broker."""
        name = f"{self.session.user}.{self.session.name.decode('utf-8', 'replace')}"
        return full_name(self.session.vhost, name)

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


class ManagedBroker:
    """The broker to manage.

    Args:
        broker: the model.
        identity: who this broker is.
        version: of this software.
        ports: returns the ports that it listens on.
        machines: returns the open connections.
        detached: returns the detached sessions.
        shovels, upstreams: the shovels, and the links of federated exchanges and queues; None without a network.
        shut_down: ends the broker.
        log: which lines the log shows; None if that cannot be changed.
        security: who is let in; None without a network.
        status: the operational log; None if there is none.

    Attributes:
        broker, identity, version, machines, detached, shovels, upstreams, shut_down, log, security, status: as above.
        federation: the links to other brokers; None without a network.
        interlinks: the domains, and the links of AMQP 1.0 through them; None without a network.
        make_message: encodes messages; set by the agent.
        administration: changes users, permissions and policies; None before the first change.
        snapshots: those of the store that other processes read; None without a store.
        interval: seconds between two publications of changes.
        slices: the time slices in which long work is done.
        agents: returns the agents that are attached.
        classes: all classes of managed objects.
        queue_heads: key of a queue -> what its class `queueHead` tells, as of the last look.
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
        log: Logging | None,
        security: Server | None = None,
        status: StatusLog | None = None,
        detached: Callable[[], list[DetachedSession]] = list,
        shovels: Shovels | None = None,
        upstreams: Upstreams | None = None,
    ) -> None:
        self.broker, self.identity, self.version = broker, identity, version
        self._ports, self.machines, self.shut_down, self.log = ports, machines, shut_down, log
        self.security, self.status, self.detached = security, status, detached
        self.shovels, self.upstreams = shovels, upstreams
        self.administration: Administration | None = None
        self.federation: Federation | None = None
        self.interlinks: Interlinks | None = None
        self.snapshots = None if broker.store is None else Snapshots(broker.store)
        self.interval = broker.settings.heartbeat_seconds
        self.slices = TimeSlices()
        self.make_message: MakeMessage = _makes_none
        self._totals: QueueTotals | None = None
        self.agents: Callable[[], Iterable[RemoteAgent]] = tuple
        self.classes: Sequence[ManagedClass] = ()
        self.queue_heads: Mapping[str, QueueHead] = {}

    @property
    def system_id(self) -> UUID:
        """Of the machine."""
        return self.identity.system

    @property
    def federation_tag(self) -> str:
        """The name of this broker among others."""
        return self.broker.federation_tag

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
        """Sum up the counters of all queues, in time slices. To be called before the class broker is read."""
        self._totals = await summed(self.broker, self.slices)

    def sessions(self) -> Iterator[ListedSession]:
        """The sessions, attached and detached."""
        for machine in self.machines():
            for channel, session in list(machine.sessions.items()):
                yield ListedSession(machine, channel, session)
        for each in self.detached():
            yield ListedSession(None, each.channel, each.session, each)


AT_ONCE: Final = 64
"""Up to this number of queues are summed up in one go."""


async def summed(broker: Broker, slices: TimeSlices) -> QueueTotals:
    """The counters of all queues of a broker, as `Broker.totals`, in time slices: 10,000 queues take too long for one.

    Queues come and go meanwhile, and each is counted once. Those that were deleted after they were counted are in the
    sums of deleted queues at the end (`QueueRemoval.deleted`), so their counters are subtracted again; new ones are
    added.
    """
    if broker.queue_count <= AT_ONCE:
        return broker.totals
    counted: dict[Queue, QueueTotals] = {}
    sums, portion = QueueTotals(), list[QueueTotals]()
    for host, queue in [(each, queue) for each in broker.hosts.values() for queue in each.queues.values()]:
        if host.queues.get(queue.name) is not queue:
            continue  # it was deleted, or is being deleted
        counted[queue] = queue.totals
        portion.append(counted[queue])
        if len(portion) >= AT_ONCE:
            sums, portion = sum_of((sums, *portion)), []
            if slices.is_over:
                await slices.next()
    hosts = list(broker.hosts.values())
    present = [queue for each in hosts for queue in (*each.queues.values(), *each.removal.leaving)]
    new = [queue.totals for queue in present if queue not in counted]
    gone = [counted[queue] for queue in counted.keys() - set(present)] if len(counted) + len(new) > len(present) else []
    sums = sum_of((sums, *(each.removal.deleted for each in hosts), *portion, *new))
    return difference_of(sums, sum_of(gone)) if gone else sums
