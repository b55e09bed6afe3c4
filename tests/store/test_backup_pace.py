"""The pace of a backup beside a running broker, on a machine that has so much to do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import pytest

from qstore.store.backup.create import MAX_PAUSE, MAX_QUOTA, RESERVE, Begun, ChunkWriter, Effort, Pace
from qstore.store.backup.repository import CHUNK_SIZE, DiskRepository
from qstore.store.backup.sources import SourceFile
from qstore.store.disk import OsWritableDisk
from tests.store.test_backup_effort import opened

PROCESSORS: Final = 4
CHUNK_SECONDS: Final = 0.01


class SimulatedMachine:
    """Others occupy so much of its processors; a thread waits for one for as long as it works, and sleeps exactly.

    Args:
        others: processors that are busy with something else.
        tells: whether it tells what its processors do.
        processors: how many it has.
    """

    def __init__(self, others: float, *, tells: bool = True, processors: int = PROCESSORS) -> None:
        self.others, self._tells, self._processors = others, tells, processors
        self.time = self.processor = self.queued = self._idle = self._looked_at = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self._pass(seconds, 0.0)

    def worked(self) -> float:
        return self.processor

    def waited(self) -> float:
        return self.queued

    def processors(self) -> float:
        return self._processors

    def idle(self) -> float | None:
        seconds, idle = self.time - self._looked_at, self._idle
        self._looked_at, self._idle = self.time, 0.0
        return idle / seconds if self._tells and seconds else None

    def work(self, seconds: float, *, queued: float = 0.0, disk: float = 0.0) -> None:
        """Work on a chunk, after a wait for a processor, and wait for the disk."""
        self._pass(seconds, 1.0)
        self._pass(queued + disk, 0.0)
        self.processor += seconds
        self.queued += queued

    def _pass(self, seconds: float, own: float) -> None:
        self.time += seconds
        self._idle += seconds * max(0.0, self._processors - self.others - own)


def share(
    machine: SimulatedMachine, pace: Pace, seconds: float = 20.0, *, queued: float = 0.0, disk: float = 0.0
) -> float:
    """Processors that one thread occupies after a while, the disk's waits included."""
    spent, since = 0.0, machine.time
    while machine.time < since + seconds:
        pace.wait()
        begun = pace.begin()
        machine.work(CHUNK_SECONDS, queued=queued, disk=disk)
        pace.end(begun)
        if machine.time > since + seconds / 2:
            spent += CHUNK_SECONDS + disk
    return spent / (seconds / 2)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (4.0, 1 / 4),  # a sixteenth of the machine
        (3.5, 1 / 4),
        (2.0, 0.4),  # the reserve stays idle
        (1.0, 1.0),
        (0.0, 1.0),
    ],
)
def test_backup_takes_the_idle_share(others: float, expected: float) -> None:
    machine = SimulatedMachine(others)
    assert share(machine, Pace(machine)) == pytest.approx(expected, rel=0.1)


def test_it_gives_way_at_once_and_takes_more_step_by_step() -> None:
    machine = SimulatedMachine(0.0)
    pace = Pace(machine)
    share(machine, pace)
    assert pace.quota == MAX_QUOTA
    machine.others = PROCESSORS
    share(machine, pace, 0.5)
    assert pace.quota == PROCESSORS / 16
    machine.others = 0.0
    share(machine, pace, 0.25)
    assert pace.quota <= 2 * PROCESSORS / 16


def test_waits_for_the_disk_count_and_for_a_processor_do_not() -> None:
    """Waits for a local disk do, those for a processor do not; nor do waits for another machine."""
    for is_local, expected in ((True, 1 / 4), (False, 1 / 4 * 3)):
        machine = SimulatedMachine(PROCESSORS)
        pace = Pace(machine, is_local=is_local)
        assert share(machine, pace, disk=2 * CHUNK_SECONDS) == pytest.approx(expected, rel=0.1)
    machine = SimulatedMachine(PROCESSORS)
    taken = share(machine, Pace(machine), queued=2 * CHUNK_SECONDS)
    assert taken == pytest.approx(1 / 4, rel=0.1)


def test_a_disk_that_stops_for_a_while_does_not_stop_the_backup_for_long() -> None:
    machine = SimulatedMachine(PROCESSORS)
    pace = Pace(machine)
    begun = pace.begin()
    machine.work(0.01, disk=60.0)
    pace.end(begun)
    began = machine.time
    pace.wait()
    assert machine.time - began == pytest.approx(MAX_PAUSE, rel=0.01)


def test_a_machine_that_does_not_tell() -> None:
    machine = SimulatedMachine(0.0, tells=False)
    assert share(machine, Pace(machine)) == pytest.approx(1 / 4, rel=0.1)


def test_small_machines_have_a_quota_too() -> None:
    assert 0 < Pace(SimulatedMachine(0.0, processors=1)).quota < RESERVE


class _Counted(Pace):
    """Notes which threads work, and how often."""

    def __init__(self) -> None:
        super().__init__(SimulatedMachine(0.0))
        self.waits: list[int] = []
        self.ends = 0

    def wait(self) -> None:
        self.waits.append(threading.get_ident())

    def end(self, begun: Begun) -> None:
        super().end(begun)
        self.ends += 1


def test_the_threads_keep_it_for_each_chunk(tmp_path: Path) -> None:
    pace = _Counted()
    place = DiskRepository(OsWritableDisk(), str(tmp_path / "place"), 1)
    lock = place.lock()
    with ChunkWriter(place, set(), Effort(2, pace=pace), lambda _: None) as writer:
        writer.write(SourceFile("file", 3 * CHUNK_SIZE, opened), [])
        writer.finish()
    lock.release()
    assert (len(pace.waits), pace.ends) == (3, 3)
    assert threading.get_ident() not in pace.waits
    assert len(list((tmp_path / "place" / "chunks").glob("*/*"))) == 3
