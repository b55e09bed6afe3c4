"""Progress of a start: by journal, by file of a journal, and by message."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from qstore.store.live.message_store import MessageStore
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import PATH, Shop, TinyParameters, simulated_environment

pytestmark = pytest.mark.usefixtures("tiny_blocks")


def progress_of_start(disk: SimulatedDisk) -> list[str]:
    reported: list[str] = []

    def report(make_text: Callable[[], str]) -> None:
        reported.append(make_text())

    environment = simulated_environment(disk, random.Random(1))
    store = MessageStore.open(environment, PATH, TinyParameters(), "test", log=lambda _: None, progress=report)
    store.close()
    return reported


def test_each_journal_and_each_file_of_it() -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 2)
    for number in range(40):
        shop.enqueue("queue-1", b"%d" % number * 40)
        assert shop.flush("queue-1") is None
    assert shop.store.close()
    disk.crash(power_loss=False)
    reported = progress_of_start(disk)
    assert [text for text in reported if text.startswith("opening")] == [
        "opening journal 1 of 2",
        "opening journal 2 of 2",
    ]
    reading = [text for text in reported if text.startswith('reading journal 2 of 2, "queue-1": ')]
    percents = [int(text.partition(": ")[2].partition(" %")[0]) for text in reading]
    counts = [int(text.partition("; ")[2].split()[0]) for text in reading]
    assert len(reading) > 2
    assert percents == sorted(set(percents))
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= 40
    assert reported[-2:] == ['preparing journal 1 of 2, "queue-0"', 'preparing journal 2 of 2, "queue-1"']
