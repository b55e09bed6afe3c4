"""A broker under mixed load on a disk that loses what was not synced, and fails: nothing that was acknowledged is lost.

A life ends by power loss (what was not synced is gone, all of it or sector by sector), in every second life after
syncs, writes or new names began to fail. What is checked after it stands in `broker_trial`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.broker_trial import Trial
from tests.system.power_loss.disk import Call, UnsyncedDisk, build
from tests.system.test_broker_transactions_killed import TOKENS, look_at

_LIVES: Final = 12
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


class UnsyncedTrial(Trial):
    """A trial on a disk that forgets.

    Attributes:
        disk: under the broker's data directory.
    """

    def __init__(self, broker: RunningBroker, disk: UnsyncedDisk, seed: int) -> None:
        super().__init__(broker, seed)
        self.disk = disk

    def spoil(self, number: int) -> None:
        """Some calls fail from now on, or a few times; and what comes of that."""
        call, error, where = _FAILING[number // 2 % len(_FAILING)]
        times = self.random.choice((1, 5, -1))
        self.disk.fail(call, error, after=self.random.randrange(20), count=times, where=where)
        end = time.monotonic() + 2.0
        while not self.disk.failures(call) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)

    def lose(self) -> None:
        """Everything that was not synced, or what chance says."""
        self.disk.lose(self.random if self.random.random() < 0.6 else None)


TrialMaker = Callable[[int], UnsyncedTrial]


@pytest.fixture
def make_trial(make_broker: BrokerMaker, tmp_path: Path) -> Iterator[TrialMaker]:
    """Makes a broker on a disk that forgets, started."""
    library = build(tmp_path)

    def make(seed: int) -> UnsyncedTrial:
        broker = make_broker(*_OPTIONS)
        disk = UnsyncedDisk(library, broker.data_directory, broker.directory / "notes")
        broker.environment = disk.environment
        broker.start()
        trial = UnsyncedTrial(broker, disk, seed)
        trial.declare()
        return trial

    return make


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("QSTORE_SOAK_SEEDS", "4"))))
def test_power_loss_and_failing_disks(make_trial: TrialMaker, seed: int) -> None:
    trial = make_trial(seed)
    for number in range(_LIVES):
        trial.one_life(seed * _LIVES + number)
    trial.finish()
    assert len(trial.ledger.completed) > 1_000


def test_a_power_loss(make_trial: TrialMaker) -> None:
    """One life that ends by it, and one after syncs have failed."""
    trial = make_trial(1)
    for number in range(2):
        trial.one_life(number)
    trial.finish()


def _declare_many(peer: RawPeer) -> None:
    """More queues than there may be journals in stock, which are made already."""
    for number in range(40):
        peer.declare(f"more-{number}")


@pytest.mark.parametrize("where", ["/catalogue/", "/jrnl/"])
def test_sigterm_on_a_failing_disk(make_trial: TrialMaker, where: str) -> None:
    """The end is orderly, and one line reports RocksDB, which fails even to close."""
    trial = make_trial(1)
    trial.failing = True
    for call in Call:
        trial.disk.fail(call, errno.EROFS, where=where)
    with pytest.raises(SessionEndedError), RawPeer(trial.broker.port) as peer:
        _declare_many(peer)
    status = trial.broker.stop()
    log = trial.broker.log_text()
    assert status in (0, 1)
    assert "Unhandled exception" not in log
    assert "Traceback" not in log
    assert ("RocksDB cannot close" in log) == (where == "/catalogue/")
    trial.disk.lose()
    trial.broker.start()
    assert sorted(look_at(trial.broker)) == list(range(TOKENS))
