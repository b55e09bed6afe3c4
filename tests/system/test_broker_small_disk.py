"""A broker under mixed load on a small ext4 of its own: power loss, and a disk that is full.

The file system lies in an image that is mounted by a loop device, so what its image holds at the broker's death is what
a disk would hold. It is copied then, before anything is synced, and the copy is what the next broker finds. In every
second life another file takes all the room there is. What is checked after a life stands in `broker_trial`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.broker_trial import Trial
from tests.system.test_broker_transactions_killed import TOKENS, look_at

_SIZE: Final = 96 << 20
_LIVES: Final = 10
_OPTIONS: Final = ("--num-jfiles", "8", "--jfile-size-pgs", "8", "--tpl-num-jfiles", "4", "--tpl-jfile-size-pgs", "1")


class SmallExt4:
    """A file system that is mounted at `path`.

    Args:
        directory: where its images lie, and it is mounted.
    """

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "disk"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", self._image], capture_output=True, check=False)
        if made.returncode != 0 or not self._mount():
            pytest.skip("no ext4 can be mounted here")

    def _mount(self) -> bool:
        command = ["mount", "-o", "loop", self._image, self.path]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def lose_power(self) -> None:
        """Go on with what has reached the image."""
        copy = self._image.with_suffix(".copy")
        shutil.copyfile(self._image, copy)
        self.close()
        copy.replace(self._image)
        assert self._mount()

    def close(self) -> None:
        """Unmount it."""
        if self.path.is_mount():
            subprocess.run(["umount", self.path], check=True)

    # ---- room ----

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> None:
        """Take all the room there is, the last block too."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            for step in (1 << 20, 4096):
                while _grow(descriptor, step):
                    pass
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)


def _grow(descriptor: int, count: int) -> bool:
    """Whether a file could be made larger."""
    try:
        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, count)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


class Ext4Trial(Trial):
    """A trial on a small disk."""

    def __init__(self, broker: RunningBroker, disk: SmallExt4, seed: int) -> None:
        super().__init__(broker, seed)
        self.disk = disk

    def spoil(self, number: int) -> None:
        """The disk is full; in some lives there is room again after a while."""
        self.disk.fill()
        time.sleep(0.5)
        if number % 4 == 1:
            self.disk.free()
            time.sleep(0.3)

    def lose(self) -> None:
        """Power loss; and then there is room again."""
        self.disk.lose_power()
        self.disk.free()


TrialMaker = Callable[[int], Ext4Trial]


@pytest.fixture
def make_trial(make_broker: BrokerMaker, tmp_path: Path) -> Iterator[TrialMaker]:
    """Makes a broker on a small ext4, started."""
    disks: list[SmallExt4] = []
    brokers: list[RunningBroker] = []

    def make(seed: int) -> Ext4Trial:
        disks.append(SmallExt4(tmp_path / f"small{seed}"))
        broker = make_broker(*_OPTIONS)
        brokers.append(broker)
        broker.data_directory = disks[-1].path / "data"
        broker.start()
        trial = Ext4Trial(broker, disks[-1], seed)
        trial.declare()
        return trial

    yield make
    for broker in brokers:
        broker.close()
    for disk in disks:
        disk.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("QSTORE_SOAK_SEEDS", "4"))))
def test_power_loss_and_a_full_disk(make_trial: TrialMaker, seed: int) -> None:
    trial = make_trial(seed)
    for number in range(_LIVES):
        trial.one_life(number)
    trial.finish()
    assert len(trial.ledger.completed) > 1_000


@pytest.mark.soak
def test_a_disk_that_fills_up_and_has_room_again(make_trial: TrialMaker) -> None:
    """What is refused is refused in words, leaves nothing behind, and works again without a restart."""
    trial = make_trial(1)
    disk, broker = trial.disk, trial.broker
    journals = broker.data_directory / "rhm" / "jrnl"
    with RawPeer(broker.port) as peer:
        before = sorted(os.listdir(journals))
        disk.fill()
        with pytest.raises(SessionEndedError, match="No space left on device"):
            peer.declare("refused")
    assert sorted(os.listdir(journals)) == before
    with RawPeer(broker.port) as peer:  # the journals that are there have their room
        for number in range(100):
            peer.publish("orders", b"%d" % number)
        peer.sync()
        disk.free()
        peer.declare("made")
        peer.end()
    disk.fill()
    broker.stop()
    broker.launch()
    with contextlib.suppress(AssertionError):  # whether it can start on a full disk or not, it loses nothing
        broker.wait_for_port()
    broker.close()
    disk.free()
    broker.start()
    with RawPeer(broker.port) as peer:
        assert peer.message_count("orders") == 100
        assert peer.message_count("made") == 0
        peer.end()
    assert sorted(look_at(broker)) == list(range(TOKENS))
    assert "Traceback" not in broker.log_text()
