"""A virtual host: a namespace of queues, exchanges and bindings. Those of different hosts never meet.

    of one host            its queues and exchanges by name, the standard exchanges among them; bindings, redirections,
                           alternate and dead-letter exchanges; reply queues; queues whose timeout is running; the
                           order of changes of the topology
    of the whole broker    the tick, memory, the store, the router, events, authorization, quotas, policies, expiry of
                           messages, distributed transactions (`broker`)

Whatever finds a queue or an exchange by its name does so in a host: a connection in the one that it has opened, and a
declaration that names another queue or exchange in its own. So a message has no way out of its host, and publishing
costs nothing: the exchanges of a session are those of its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.model.dead_letters import DeadLetters
from qstore.broker.model.exchanges.default import DefaultExchange
from qstore.broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from qstore.broker.model.queues.expiry import IdleQueues
from qstore.broker.model.replies import DirectReplies
from qstore.broker.model.topology.bindings import BindingMaker, ExchangeBindings
from qstore.broker.model.topology.checks import Access
from qstore.broker.model.topology.deletion import QueueRemoval
from qstore.broker.model.topology.redirection import Redirections
from qstore.broker.model.topology.topology import Topology

if TYPE_CHECKING:
    from qstore.broker.model.arguments import Applied, ArgumentCheck
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.events import Events
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.policies import Policies
    from qstore.broker.model.queues.composition import QueueFactory
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.quotas import Quotas
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.topology.changes import TopologyStorage
    from qstore.broker.settings import BrokerSettings
    from qstore.formats.values import TypedMap

DEFAULT_HOST: Final = "/"
"""The name of the default virtual host."""


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
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.

    Attributes:
        name, events: as above.
        queues: name -> queue.
        exchanges: name -> exchange; the default exchange has the empty name.
        replies: the reply queues for direct replies.
        idle_queues: unused auto-delete queues whose timeout is running.
        exchange_bindings: binds exchanges to each other.
        removal: deletes queues, and keeps the counters of deleted ones.
        topology: declares, deletes, binds and unbinds.
        redirections: redirects messages for a queue to another one.
        self_destruct: schedules the deletion of the queue with a name, because it has exceeded its limit.
        dead_letter: returns the mover of a queue's dead messages, for its exchange and its routing key or None.
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
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.name, self.events, self._policies = name, events, policies
        self.queues: dict[str, Queue] = {}
        default = DefaultExchange(self.queues)
        self.exchanges: dict[str, Exchange] = {"": default}
        for standard, type_name in STANDARD_EXCHANGES.items():
            self.exchanges[standard] = exchange_type(type_name)(standard, durable=True)
        self.replies = DirectReplies(tick, default, settings.max_message_bytes, clock)
        self.idle_queues = IdleQueues(monotonic)
        self.self_destruct: Callable[[str], None] = lambda _name: None
        self.dead_letter = DeadLetters(self.exchanges, router, tick, clock, monotonic).to
        access = Access(authorization, factory.default_bytes, _events_to(settings))
        self.exchange_bindings = ExchangeBindings(self.exchanges, storage, access, events, arguments)
        self.removal = QueueRemoval(self.queues, self.exchanges, router, storage)
        self.topology = Topology(
            self.queues,
            self.exchanges,
            make_queue=partial(factory.make, self),
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
        )
        self.topology.exchange_created = partial(policies.exchange_created, self)
        self.redirections = Redirections(self.topology, self.exchanges, authorization, events)
        self.removal.leaves = self.redirections.cancel

    def policy_of(self, name: str, arguments: TypedMap) -> tuple[Applied, TypedMap]:
        """What policies give a new queue with a name and arguments, and its effective arguments."""
        return self._policies.for_new(self.name, name, arguments)


def _events_to(settings: BrokerSettings) -> Sequence[tuple[str, str | None]]:
    """The destinations of events of replicated queues: an exchange, and a routing key, or None for any."""
    if settings.replication_exchange:
        return ((settings.replication_exchange, None),)
    return (("", settings.replication_queue),) if settings.replication_queue else ()
