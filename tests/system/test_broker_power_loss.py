"""A broker under mixed load on a disk that loses what was not synced, and fails: nothing that was acknowledged is lost.

In each life publishers, consumers, transactions and declarations run at the same time. It ends by power loss (what was
not synced is gone, all of it or sector by sector), in some lives after syncs, writes or new names began to fail. After
each the broker must start without finding damage, and have all that its clients were told: completed messages in their
order, no accepted one, each transaction whole or not at all, every queue and binding.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.broker_ledger import Before, ConsumerLog
from tests.system.broker_topology import Topologist, Topology
from tests.system.broker_traffic import Actor
from tests.system.power_loss.disk import Call, UnsyncedDisk, build
from tests.system.processes import PATIENCE_SECONDS
from tests.system.test_broker_killed import Story
from tests.system.test_broker_transactions_killed import SIDES, TOKENS, Mover, check_moves, look_at, set_out

_LIVES: Final = 12
_MESSAGES: Final = 1_500
"""That are completed in a life, at most, before it ends."""
_OPTIONS: Final = ("--num-jfiles", "8", "--jfile-size-pgs", "16", "--tpl-num-jfiles", "4")
_FAILING: Final = (
    (Call.SYNC, errno.EIO, ""),
    (Call.SYNC, errno.EIO, "/jrnl/"),
    (Call.SYNC, errno.EIO, "/tpl/"),
    (Call.SYNC, errno.EIO, "/catalogue/"),
    (Call.WRITE, errno.ENOSPC, ""),
    (Call.WRITE, errno.EIO, "/jrnl/"),
    (Call.WRITE, errno.EROFS, "/catalogue/"),
    (Call.NAME, errno.ENOSPC, ""),
    (Call.NAME, errno.EROFS, "/jrnl/"),
)
"""Which calls fail in a life, how, and where."""


class Trial(Story):
    """A story on a disk that forgets, with transactions and declarations besides.

    Attributes:
        disk: under the broker's data directory.
        failing: whether the disk failed in the present life: then sessions may end with an error.
    """

    def __init__(self, broker: RunningBroker, disk: UnsyncedDisk, seed: int) -> None:
        super().__init__(broker, seed)
        self.disk = disk
        self.failing = False
        self._topology = Topology()
        self._place: dict[int, str] = {}
        self._movers: list[Mover] = []

    def declare(self) -> None:
        super().declare()
        self._place = set_out(self.broker)

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

    def one_life(self, number: int) -> None:
        """Traffic, the end of it, and a new start."""
        source = self.random
        how = _FAILING[number // 2 % len(_FAILING)] if number % 2 else None
        self.failing = how is not None
        count = source.randrange(_MESSAGES)

        def end(actors: Sequence[Actor]) -> None:
            self.wait_for_completed(count, actors)
            if how is not None:
                call, error, where = how
                times = source.choice((1, 5, -1))
                self.disk.fail(call, error, after=source.randrange(20), count=times, where=where)
                self._wait_for_failures(call)
            time.sleep(source.random() * 0.05)
            self._end(gently=self.failing and source.random() < 0.4)

        self.live(end)
        self.disk.lose(source if source.random() < 0.6 else None)
        self.broker.start()
        self._check_store()

    def _wait_for_failures(self, call: Call) -> None:
        """Until the disk has failed, or nobody asks it any more; and what comes of that."""
        end = time.monotonic() + 2.0
        while not self.disk.failures(call) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)

    def _end(self, *, gently: bool) -> None:
        """SIGKILL; or SIGTERM, by which a broker has to end on any disk."""
        if gently:
            self.broker.stop()
        else:
            self.broker.kill()

    def _check_store(self) -> None:
        """What the broker says of its store, and has in it."""
        for bad in ("Traceback", "Unexpected error"):
            assert bad not in self.broker.log_text(), self.broker.log_text()
        for name in ("quarantine", "orphans"):
            path = self.broker.data_directory / "rhm" / name
            assert not path.exists() or not os.listdir(path), f"{name}: {os.listdir(path)}\n{self.broker.log_text()}"
        found = look_at(self.broker)
        assert sorted(found) == sorted(self._place)
        check_moves(self._place, found, self._movers)
        self._place = found
        self._topology.check(self.broker.port)


TrialMaker = Callable[[int], Trial]


@pytest.fixture
def make_trial(make_broker: BrokerMaker, tmp_path: Path) -> Iterator[TrialMaker]:
    """Makes a broker on a disk that forgets, started."""
    library = build(tmp_path)

    def make(seed: int) -> Trial:
        broker = make_broker(*_OPTIONS)
        disk = UnsyncedDisk(library, broker.data_directory, broker.directory / "notes")
        broker.environment = disk.environment
        broker.start()
        trial = Trial(broker, disk, seed)
        trial.declare()
        return trial

    return make


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("QSTORE_SOAK_SEEDS", "4"))))
def test_power_loss_and_failing_disks(make_trial: TrialMaker, seed: int) -> None:
    trial = make_trial(seed)
    for number in range(_LIVES):
        trial.one_life(2 * seed * _LIVES + number)
    trial.failing = False
    trial.drain()
    assert len(trial.ledger.completed) > 1_000


def test_a_power_loss(make_trial: TrialMaker) -> None:
    """One life that ends by it, and one after syncs have failed."""
    trial = make_trial(1)
    for number in range(2):
        trial.one_life(number)
    trial.failing = False
    trial.drain()


@pytest.mark.parametrize("where", ["/catalogue/", "/jrnl/"])
def test_sigterm_on_a_disk_that_fails(make_trial: TrialMaker, where: str) -> None:
    """The end is orderly, and RocksDB, which fails even to close, is told in a line."""
    trial = make_trial(1)
    trial.failing = True
    for call in Call:
        trial.disk.fail(call, errno.EROFS, where=where)
    with pytest.raises(SessionEndedError), RawPeer(trial.broker.port) as peer:
        peer.declare("more")
    status = trial.broker.stop()
    log = trial.broker.log_text()
    assert status in (0, 1)
    assert "Unexpected error" not in log
    assert "Traceback" not in log
    assert ("RocksDB cannot close" in log) == (where == "/catalogue/")
    trial.disk.lose()
    trial.broker.start()
    assert sorted(look_at(trial.broker)) == list(range(TOKENS))
