"""Lives of a broker under mixed load on a disk that fails or loses what was not synced.

In each life publishers, consumers, transactions and declarations run at the same time. After it the broker must start
without finding damage, and have all that its clients were told: completed messages in their order, no accepted one,
each transaction whole or not at all, every queue and binding.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import SessionEndedError
from tests.support.running_broker import RunningBroker
from tests.system.broker_ledger import Before, ConsumerLog
from tests.system.broker_topology import Topologist, Topology
from tests.system.broker_traffic import Actor
from tests.system.test_broker_killed import Story
from tests.system.test_broker_transactions_killed import SIDES, Mover, check_moves, look_at, set_out

_MESSAGES: Final = 1_500
"""That are completed in a life, at most, before it ends."""


class Trial(Story):
    """A story with transactions and declarations besides. Its kinds say how the disk fails, and what it loses.

    Attributes:
        failing: whether the disk failed in the present life: then sessions may end with an error.
    """

    def __init__(self, broker: RunningBroker, seed: int) -> None:
        super().__init__(broker, seed)
        self.failing = False
        self._topology = Topology()
        self._place: dict[int, str] = {}
        self._movers: list[Mover] = []

    @abstractmethod
    def spoil(self, number: int) -> None:
        """The disk fails in the life of that number, which goes on for a while."""

    @abstractmethod
    def lose(self) -> None:
        """The broker is gone: what was not synced is lost, and the disk works again."""

    def declare(self) -> None:
        """The queues and bindings, and the messages that transactions move."""
        super().declare()
        self._place = set_out(self.broker)

    def one_life(self, number: int) -> None:
        """Traffic, the end of it, and a new start. The disk fails in every second life."""
        source = self.random
        self.failing = number % 2 == 1
        count = source.randrange(_MESSAGES)

        def end(actors: Sequence[Actor]) -> None:
            self.wait_for_completed(count, actors)
            if self.failing:
                self.spoil(number)
            time.sleep(source.random() * 0.05)
            if self.failing and source.random() < 0.4:
                self.broker.stop()  # by SIGTERM, which has to end it on any disk
            else:
                self.broker.kill()

        self.live(end)
        self.lose()
        self.broker.start()
        self._check_store()

    def finish(self) -> None:
        """The last life: everything is drained."""
        self.failing = False
        self.drain()

    def _actors(self, logs: Sequence[ConsumerLog], *, publishing: bool) -> list[Actor]:
        actors, self._movers = super()._actors(logs, publishing=publishing), []
        if publishing:
            port = self.broker.port
            self._movers = [Mover(port, *sides, self.random.randrange(1000)) for sides in (SIDES, SIDES[::-1])]
            actors.append(Topologist(port, self.random.randrange(1000), self._topology))
        return actors

    def _check(self, before: Before, logs: Sequence[ConsumerLog], actors: Sequence[Actor]) -> None:
        for mover in self._movers:
            mover.join(PATIENCE_SECONDS)
            assert not mover.is_alive()
        for client in (*actors, *self._movers):
            if client.error is not None and not (self.failing and isinstance(client.error, SessionEndedError)):
                raise AssertionError(f"a client failed\n{self.broker.log_text()}") from client.error
        self.ledger.check_life(replace(before, sessions_end=self.failing), logs)

    def _check_store(self) -> None:
        """What the broker says of its store, and has in it."""
        for bad in ("Traceback", "Unhandled exception"):
            assert bad not in self.broker.log_text(), self.broker.log_text()
        for name in ("quarantine", "orphans"):
            path = self.broker.data_directory / "rhm" / name
            assert not path.exists() or not os.listdir(path), f"{name}: {os.listdir(path)}\n{self.broker.log_text()}"
        found = look_at(self.broker)
        assert sorted(found) == sorted(self._place)
        check_moves(self._place, found, self._movers)
        self._place = found
        self._topology.check(self.broker.port)
