"""A client that creates and deletes durable queues with a binding, and the broker's answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.support.raw_peer import RawPeer
from tests.system.broker_traffic import Actor

_EXCHANGE: Final = "amq.direct"
_MAX_QUEUES: Final = 12
"""Queues at one time."""


@dataclass(slots=True)
class Topology:
    """What is known of queues, over all lives of the broker. A name is used once, and is the binding's key.

    Attributes:
        made: queue -> whether its binding was completed.
        deleted: queues whose deletion was completed.
        unsure: those that were being made, bound or deleted when the broker went away.
        names: how many were used.
    """

    made: dict[str, bool] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    names: int = 0

    def check(self, port: int) -> None:
        """Hold a broker against it; what was unsure is known then. Raises: AssertionError."""
        with RawPeer(port) as peer:
            for name, is_bound in list(self.made.items()):
                there, bound = _look(peer, name)
                if name in self.unsure:
                    self._settle(name, there=there, bound=bound)
                    continue
                assert there, f"queue {name} was declared, and is not there"
                assert bound or not is_bound, f"the binding of {name} was made, and is not there"
            for name in self.deleted:
                assert _look(peer, name) == (False, False), f"queue {name} was deleted, and came back"
            peer.end()
        self.unsure.clear()

    def _settle(self, name: str, *, there: bool, bound: bool) -> None:
        assert there or not bound, f"queue {name} is not there, and bound"
        if there:
            self.made[name] = bound
        else:
            del self.made[name]
            self.deleted.add(name)


def _look(peer: RawPeer, name: str) -> tuple[bool, bool]:
    """Whether a queue is there, and whether its binding is."""
    found = peer.call("exchange.bound", exchange=_EXCHANGE, queue=name, binding_key=name)
    return not found["queue_not_found"], not (found["queue_not_found"] or found["key_not_matched"])


class Topologist(Actor):
    """Declares, binds and deletes, one after the other."""

    def __init__(self, port: int, seed: int, topology: Topology) -> None:
        self._topology = topology
        super().__init__(port, seed)

    def work(self, peer: RawPeer) -> None:
        topology = self._topology
        while not self.stopping.is_set():
            if len(topology.made) < _MAX_QUEUES and self._random.random() < 0.6:
                self._add(peer)
            elif topology.made:
                self._drop(peer, self._random.choice(list(topology.made)))

    def _add(self, peer: RawPeer) -> None:
        topology = self._topology
        topology.names += 1
        name = f"made.{topology.names}"
        topology.unsure.add(name)
        topology.made[name] = False
        peer.declare(name, arguments={"qpid.file_count": 4, "qpid.file_size": 1})
        topology.unsure.discard(name)
        if self._random.random() < 0.7:
            topology.unsure.add(name)
            peer.call("exchange.bind", exchange=_EXCHANGE, queue=name, binding_key=name)
            topology.made[name] = True
            topology.unsure.discard(name)

    def _drop(self, peer: RawPeer, name: str) -> None:
        topology = self._topology
        topology.unsure.add(name)
        peer.call("queue.delete", queue=name)
        del topology.made[name]
        topology.deleted.add(name)
        topology.unsure.discard(name)
