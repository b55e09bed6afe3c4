"""A virtual host: a namespace of queues, exchanges and bindings. Those of different hosts never meet.

    of one host            its queues and exchanges by name, the standard exchanges among them; bindings, redirections,
                           alternate and dead-letter exchanges; reply queues; queues whose timeout is running; the
                           order of changes of the topology
    of the whole broker    the tick, memory, the store, the router, events, authorization, quotas, policies, expiry of
                           messages, distributed transactions (`broker`)

A host other than "/" is a configuration record, which is on the disk before the host exists; with the next start or
creation its standard exchanges are stored too. It is deleted in these steps:

    1  the record is marked, and the records about the host (limits, policies, permissions, parameters) are deleted, in
       one batch: the commit point. No connection can open it any more
    2  its connections are closed, and its detached sessions end
    3  its queues and exchanges are deleted
    4  the record is deleted: from now on a host of that name can be created

A start continues with step 3 in place of a broker that was killed. If a store has queues or exchanges of a host without
a record, which only damage can have taken, the host is kept, and gets its record back.

Whatever finds a queue or an exchange by its name does so in a host: a connection in the one that it has opened, and a
declaration that names another queue or exchange in its own. So a message has no way out of its host, and publishing
costs nothing: the exchanges of a session are those of its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.configuration import Configuration, Record, Values
from qstore.broker.model.dead_letters import DeadLetters
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.default import DefaultExchange
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type, join_host
from qstore.broker.model.queues.expiry import IdleQueues
from qstore.broker.model.replies import DirectReplies
from qstore.broker.model.schedule import Schedule
from qstore.broker.model.topology.bindings import BindingMaker, ExchangeBindings
from qstore.broker.model.topology.checks import Access
from qstore.broker.model.topology.deletion import QueueRemoval
from qstore.broker.model.topology.redirection import Redirections
from qstore.broker.model.topology.topology import Topology
from qstore.formats.broker_records.topology import DEFAULT_HOST, HOST_KIND, PARAMETER, problem_of_new_name

if TYPE_CHECKING:
    from qstore.broker.model.arguments import Applied, ArgumentCheck
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.events import Events
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.policies import Policies
    from qstore.broker.model.queues.composition import QueueFactory
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.quotas import Quotas
    from qstore.broker.model.replication.events import CopySeal
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.topology.changes import TopologyStorage
    from qstore.broker.settings import BrokerSettings
    from qstore.formats.values import TypedMap

HOST: Final = HOST_KIND
"""The kind of the records of virtual hosts: `(name,)`, and `(name, LIMITS)` for its limits."""

LIMITS: Final = "limits"
LIMIT_NAMES: Final = ("max-connections", "max-queues")
MAX_HOSTS: Final = 10_000
"""Virtual hosts of a broker: each takes some 20 kB of memory, and five exchanges in the store."""

_LOG: Final = log_of("Model")


class VirtualHost:
    """The queues and exchanges of one virtual host. All arguments but the name are what the hosts of a broker share.

    Args:
        name: its name.
        settings: limits.
        tick: dispatches the queues.
        router: publishes and moves messages.
        factory: creates queues.
        policies: what operators set for queues and exchanges.
        authorization: checks operations.
        storage: stores the topology.
        quotas: limits the queues of each user.
        events: emits an event for every change.
        arguments: checks the arguments of declarations.
        seal: makes and reads the header of copies of replicated messages.
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.
        call_later: schedules a function after a delay in seconds; None for no timers.

    Attributes:
        name, events, seal: as above.
        queues: name -> queue.
        exchanges: name -> exchange; the default exchange has the empty name.
        replies: the reply queues for direct replies.
        schedule: messages that wait for their delivery time.
        idle_queues: unused auto-delete queues whose timeout is running.
        exchange_bindings: binds exchanges to each other.
        removal: deletes queues, and keeps the counters of deleted ones.
        topology: declares, deletes, binds and unbinds.
        redirections: redirects messages for a queue to another one.
        max_connections: the most connections that may be open to it; None for no limit.
        connection_count: how many are.
        created_at: when it was created or recovered, in seconds since 1970.
        is_leaving: whether it is being deleted.
        self_destruct: schedules the deletion of the queue with a name, because it has exceeded its limit.
        dead_letters: moves the dead messages of its queues.
    """

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        *,
        tick: Tick,
        router: Router,
        factory: QueueFactory,
        policies: Policies,
        authorization: Authorization,
        storage: TopologyStorage,
        quotas: Quotas,
        events: Events,
        arguments: ArgumentCheck,
        seal: CopySeal,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any] | None,
    ) -> None:
        self.name, self.events, self.seal, self._policies = name, events, seal, policies
        self.max_connections: int | None = None
        self.connection_count = 0
        self.created_at = clock()
        self.is_leaving = False
        self.queues: dict[str, Queue] = {}
        default = DefaultExchange(self.queues)
        self.exchanges: dict[str, Exchange] = {"": default}
        self.schedule = Schedule(name, self.exchanges, router, tick, authorization, clock, monotonic, call_later)
        for standard, type_name in STANDARD_EXCHANGES.items():
            self.exchanges[standard] = exchange_type(type_name)(standard, durable=True)
        for exchange in self.exchanges.values():
            join_host(exchange, name, self.queues, self.schedule, seal)
        self.replies = DirectReplies(tick, default, settings.max_message_bytes, clock)
        self.idle_queues = IdleQueues(monotonic)
        self.self_destruct: Callable[[str], None] = lambda _name: None
        self.dead_letters = DeadLetters(self.exchanges, router, tick, clock, monotonic, call_later)
        access = Access(authorization, factory.default_bytes, _events_to(settings))
        self.exchange_bindings = ExchangeBindings(self.exchanges, storage, access, events, arguments)
        self.removal = QueueRemoval(self.queues, self.exchanges, router, storage)
        self.topology = Topology(
            self.queues,
            self.exchanges,
            make_queue=partial(factory.make, self),
            idle_arguments=partial(factory.idle_arguments, self),
            factory=factory,
            idle_queues=self.idle_queues,
            storage=storage,
            removal=self.removal,
            bindings=BindingMaker(router, tick, storage, clock),
            bound_exchanges=self.exchange_bindings,
            access=access,
            quotas=quotas,
            events=events,
            arguments=arguments,
            schedule=self.schedule,
            seal=seal,
        )
        self.topology.strict_durability = self.exchange_bindings.strict_durability = settings.strict_durability
        self.topology.exchange_created = partial(policies.exchange_created, self)
        self.redirections = Redirections(self.topology, self.exchanges, authorization, events)
        self.removal.leaves = self.redirections.cancel

    @property
    def has_room_for_connection(self) -> bool:
        """Whether another connection may be opened."""
        return self.max_connections is None or self.connection_count < self.max_connections

    def policy_of(self, name: str, arguments: TypedMap) -> tuple[Applied, TypedMap]:
        """What policies give a new queue with a name and arguments, and its effective arguments."""
        return self._policies.for_new(self.name, name, arguments)


def _events_to(settings: BrokerSettings) -> Sequence[tuple[str, str | None]]:
    """The destinations of events of replicated queues: an exchange, and a routing key, or None for any."""
    if settings.replication_exchange:
        return ((settings.replication_exchange, None),)
    return (("", settings.replication_queue),) if settings.replication_queue else ()


# ---- all of a broker ----


class VirtualHosts:
    """Creates, limits and deletes the virtual hosts of one broker.

    Args:
        configuration: stores them.
        hosts: name -> virtual host, changed here; the default one is in it.
        make: makes one with a name.

    Attributes:
        end_connections: closes the connections of a host, and ends its sessions; returns when they have ended.
        forgotten: each is called with a host when the records about it are deleted.
    """

    def __init__(
        self, configuration: Configuration, hosts: dict[str, VirtualHost], make: Callable[[str], VirtualHost]
    ) -> None:
        self._configuration, self._hosts, self._make = configuration, hosts, make
        self._turn = asyncio.Lock()
        self.end_connections: Callable[[VirtualHost], Coroutine[object, object, None]] = _no_connections
        self.forgotten: list[Callable[[str], None]] = []

    def find(self, name: str) -> VirtualHost | None:
        """The virtual host of a name; None if there is none, or it is being deleted."""
        host = self._hosts.get(name)
        return None if host is None or host.is_leaving else host

    def get(self, name: str) -> VirtualHost:
        """The virtual host of a name. Raises NotFoundError if there is none, or it is being deleted."""
        host = self.find(name)
        if host is None:
            raise NotFoundError(f'there is no virtual host "{name}"', kind="virtual host", name=name)
        return host

    def about(self, name: str) -> Values:
        """What is set for a host besides its limits: `description` and `tags`, texts."""
        return self._configuration.get(Record(HOST, (name,))) or {}

    def limits(self, name: str) -> Values:
        """The limits of a host: those of `LIMIT_NAMES` that are set."""
        return self._configuration.get(Record(HOST, (name, LIMITS))) or {}

    # ---- changing ----

    async def create(self, name: str, about: Mapping[str, str] | None = None) -> bool:
        """Create a host, or change what is set for it. Returns whether it is new.

        Raises:
            InvalidArgumentError: no host can have that name.
            PreconditionFailedError: a host of that name is being deleted.
            ResourceLimitExceededError: there are too many.
            InternalError: the store cannot store it.
        """
        problem = problem_of_new_name(name)
        if problem:
            raise InvalidArgumentError(f"a virtual host cannot be created: {problem}")
        async with self._turn:
            known = self._hosts.get(name)
            if known is not None and known.is_leaving:
                raise PreconditionFailedError(f'virtual host "{name}" is being deleted')
            if known is None and len(self._hosts) >= MAX_HOSTS:
                raise ResourceLimitExceededError(f"there are {MAX_HOSTS:,} virtual hosts; this is the maximum")
            if known is not None and about is None:
                return False
            await self._configuration.change({Record(HOST, (name,)): dict(about or {})})
            if known is None:
                host = self._make(name)
                await host.topology.store_standard_exchanges()  # before any binding to them
                self._hosts[name] = host
            return known is None

    async def limit(self, name: str, limit: str, value: int | None) -> None:
        """Set a limit of a host; None or a negative number for none.

        Raises:
            InvalidArgumentError: there is no such limit.
            NotFoundError: there is no such host.
            InternalError: the store cannot store it.
        """
        if limit not in LIMIT_NAMES:
            raise InvalidArgumentError(f"a virtual host has no limit {limit!a:.64}, only {' and '.join(LIMIT_NAMES)}")
        async with self._turn:
            host, record = self.get(name), Record(HOST, (name, LIMITS))
            limits = {key: known for key, known in self.limits(name).items() if key != limit}
            if value is not None and value >= 0:
                limits[limit] = value
            put = {record: limits} if limits else {}
            await self._configuration.change(put, () if limits else (record,))
            self._use_limits(host)

    def _use_limits(self, host: VirtualHost) -> None:
        limits = {key: value for key, value in self.limits(host.name).items() if isinstance(value, int)}
        host.max_connections, host.topology.max_queues = (limits.get(key) for key in LIMIT_NAMES)

    async def delete(self, name: str) -> None:
        """Delete a host with everything in it.

        Raises:
            NotAllowedError: it is the default one.
            NotFoundError: there is no such host.
            InternalError: the store fails. If the host is gone by then, the next start deletes the rest.
        """
        if name == DEFAULT_HOST:
            raise NotAllowedError(f'virtual host "{name}" is the default one and cannot be deleted')
        async with self._turn:
            host = self.get(name)
            await self._begin_deletion(host)
        await self._finish_deletion(host)

    async def _begin_deletion(self, host: VirtualHost) -> None:
        gone = [Record(HOST, (host.name, LIMITS)), *self._records_about(host.name)]
        mark = {Record(HOST, (host.name,)): {**self.about(host.name), _LEAVING: True}}

        def marked() -> None:
            host.is_leaving = True

        await self._configuration.change(mark, gone, then=marked)
        for forget in self.forgotten:
            forget(host.name)

    def _records_about(self, name: str) -> list[Record]:
        found: list[Record] = []
        for kind, place in _PLACES.items():
            found += [Record(kind, each) for each in self._configuration.of(kind) if each[place] == name]
        return found

    async def _finish_deletion(self, host: VirtualHost) -> None:
        await self.end_connections(host)
        await host.topology.clear()
        late = self._records_about(host.name)  # set while the deletion began
        await self._configuration.change({}, [Record(HOST, (host.name,)), *late])
        for forget in self.forgotten if late else ():
            forget(host.name)
        self._hosts.pop(host.name, None)
        _LOG.notice('Virtual host "%s" was deleted', host.name)

    # ---- recovery ----

    def recover(self) -> None:
        """Make the hosts of the configuration records, before the store's queues are recovered."""
        for (name, *rest), values in self._configuration.of(HOST).items():
            if rest:
                continue
            host = self._hosts.get(name)
            if host is None:
                host = self._hosts[name] = self._make(name)
            host.is_leaving = values.get(_LEAVING) is True and name != DEFAULT_HOST
        for host in self._hosts.values():
            self._use_limits(host)

    def of_stored(self, name: str) -> VirtualHost:
        """The host of a name that the store has objects of; made if its record is lost."""
        host = self._hosts.get(name)
        if host is None:
            _LOG.error('The record of virtual host "%s" is lost; the host is kept, with what the store has of it', name)
            host = self._hosts[name] = self._make(name)
        return host

    async def start(self) -> None:
        """Store what is not stored yet, and continue deletions that were interrupted.

        Raises:
            InternalError: the store fails.
        """
        for host in list(self._hosts.values()):
            if host.is_leaving:
                try:
                    await self._finish_deletion(host)
                except ModelError as error:
                    _LOG.error('Virtual host "%s" could not be deleted: %s', host.name, error)
                continue
            record = Record(HOST, (host.name,))
            if host.name != DEFAULT_HOST and self._configuration.get(record) is None:
                await self._configuration.change({record: {}})
            await host.topology.store_standard_exchanges()
            await host.topology.open_own_queues()


_LEAVING: Final = "is-being-deleted"
_PLACES: Final = {
    "qstore.policy": 0, "qstore.operator-policy": 0, "qstore.permission": 1, "qstore.topic-permission": 1, PARAMETER: 0,
}  # fmt: skip
"""The kinds of records that are about a host: where it is in their name."""


async def _no_connections(_host: VirtualHost) -> None:
    """There are none to close."""
