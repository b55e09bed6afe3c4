"""The replication exchange: applies the events of replicated queues that another broker sends (`replication`).

It routes nothing, and no queue can be bound to it. Only the bridge from the replication queue should publish to it.

Source: Qpid C++ Broker Book, 1.7.1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.replication.replica import Replica
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class ReplicationExchange(Exchange):
    """An exchange of type replication.

    Attributes:
        replica: applies the events.
    """

    kind: ClassVar[str] = "replication"
    is_keyed: ClassVar[bool] = False

    __slots__ = ("replica",)

    def _set_up(self) -> None:
        self.receiver = self.replica = Replica()

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – there are none
        """No binding."""
        return ()

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:  # noqa: ARG002
        """Raises NotImplementedByBrokerError: queues cannot be bound."""
        raise NotImplementedByBrokerError(
            f'exchange "{self.name}" is of type replication: queues cannot be bound to it'
        )
