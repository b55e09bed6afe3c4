"""What a broker does besides serving its clients: its links to other brokers, shovels, and management.

It is imported and made when the sockets listen, and started before the first client is served (`Server.begin`): a start
does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qstore.broker.federation.federation import Federation
from qstore.broker.federation.interlinks import Interlinks
from qstore.broker.federation.shovel import Shovels
from qstore.broker.federation.upstreams import Upstreams
from qstore.broker.management.agent import Agent
from qstore.broker.management.managed_broker import ManagedBroker
from qstore.broker.management.periodic_log import PeriodicLog
from qstore.broker.network.direct import DirectConnections, Peers
from qstore.broker.network.outgoing import OutgoingConnections
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.amqp_1_0.message import new_sections

if TYPE_CHECKING:
    from qstore.broker.log.sinks import Logging
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.identity import Identity
    from qstore.broker.model.errors import ModelError
    from qstore.broker.network.server import Server


class Services:
    """The services of one broker.

    Args:
        server: the broker on the network.
        identity: who this broker is.
        version: of this software.
        log: which lines the log shows; None if that cannot be changed.
        status: the operational log; None if there is none.

    Attributes:
        outgoing: connects links to other brokers.
        federation: these links, and the routes over them.
        direct: connects the broker to itself.
        shovels: the shovels.
        interlinks: the domains, and the links of AMQP 1.0 through them.
        upstreams: the links of federated exchanges and queues.
        agent: the management agent; None without management.
    """

    def __init__(
        self, server: Server, identity: Identity, version: str, log: Logging | None, status: StatusLog | None
    ) -> None:
        broker, settings, loop, work = server.broker, server.settings, server.loop, server.work
        self.outgoing = OutgoingConnections(server.clients, work)
        self.direct = DirectConnections(server.clients, work)
        peers = Peers(self.outgoing, self.direct)
        self.shovels = Shovels(broker, peers, loop.call_soon, loop.call_later, work.run)
        self.upstreams = Upstreams(broker, peers, loop.call_soon, loop.call_later)
        self.interlinks = Interlinks(self.shovels)
        server.protocols.lead_to(self.interlinks)
        self.federation = Federation(broker, lambda: server.protocols.links, self.outgoing, loop.call_later)
        self.agent: Agent | None = None
        self._statistics: list[PeriodicLog] = []
        if settings.management:
            managed = ManagedBroker(
                broker, identity, version, ports=lambda: server.listeners.ports,
                machines=server.clients.machines, shut_down=lambda: server.shut_down(), log=log, security=server,
                status=status, detached=server.protocols.detached_sessions, shovels=self.shovels,
                upstreams=self.upstreams,
            )  # fmt: skip
            managed.federation, managed.interlinks = self.federation, self.interlinks
            self.agent = Agent(managed, new_transfer, new_sections, work.run)
            run: Callable[..., None] = lambda task: work.run(task, _ignore_result)  # noqa: E731
            self._statistics = [PeriodicLog(managed, each, run) for each in settings.log_statistics]

    def start(self) -> None:
        """Connect the links, and start the shovels."""
        self.federation.start()
        self.shovels.start()
        self.upstreams.start()
        self.interlinks.start()

    def on_timer(self) -> None:
        """Run periodic work."""
        if self.agent is not None:
            self.agent.on_timer()
            for each in self._statistics:
                each.on_timer()

    def close(self) -> None:
        """The broker stops: close the links, and end the shovels."""
        self.federation.close()
        self.shovels.close()
        self.upstreams.close()
        self.interlinks.close()


def _ignore_result(_error: ModelError | None) -> None:
    """Ignore the result: no client waits for it."""
