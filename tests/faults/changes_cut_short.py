"""Changes to a broker that a power failure cuts short: the frame of tests that say what the next start must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk


class Changes(Protocol):
    """Makes changes, and remembers which were answered."""

    def change(self, chance: random.Random) -> None:
        """Ask for one more change."""


ChangesT = TypeVar("ChangesT", bound=Changes)


@contextmanager
def cut_short(seed: int, make: Callable[[BrokerProcess], ChangesT]) -> Iterator[tuple[ChangesT, BrokerProcess]]:
    """The changes up to a power failure at a random moment, and a broker that starts after it."""
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    process = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)
    changes = make(process)
    for _ in range(chance.randrange(20, 120)):
        chance.choice((partial(changes.change, chance), process.tick, process.collect))()
    disk.crash(power_loss=True)
    again = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)
    yield changes, again
    again.discard()
    process.discard()
