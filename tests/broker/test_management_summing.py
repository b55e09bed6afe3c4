"""The counters of all queues, summed up in slices while queues come and go."""

from __future__ import annotations

import random

from qstore.broker.management.managed_broker import AT_ONCE, TimeSlices, summed
from qstore.broker.model.counters import QueueTotals
from tests.broker.wired_broker import Wired, wired


class ShortSlices(TimeSlices):
    """TimeSlices that are always over, and let others work meanwhile."""

    def __init__(self, stage: Wired, chosen: random.Random) -> None:
        super().__init__()
        self._stage, self._chosen = stage, chosen
        self.count = 0

    @property
    def is_over(self) -> bool:
        return True

    async def next(self) -> None:
        """Delete some queues, counted ones and others, and make some."""
        self.count += 1
        queues = self._stage.broker.default_host.queues
        for name in self._chosen.sample(sorted(queues), 10):
            await self._stage.topology.delete_queue(name)
        for number in range(5):
            await fill(self._stage, f"new-{self.count}-{number}", number)


async def fill(stage: Wired, name: str, messages: int) -> None:
    await stage.topology.declare_queue(name)
    for _ in range(messages):
        stage.broker.router.put(
            stage.message(name, b"body", persistent=False), (stage.broker.default_host.queues[name],)
        )


async def test_queues_that_come_and_go_are_counted_once() -> None:
    async with wired() as stage:
        chosen = random.Random(7)
        for number in range(6 * AT_ONCE):
            await fill(stage, f"q{number}", number % 5)
        slices = ShortSlices(stage, chosen)
        found = await summed(stage.broker, slices)
        assert slices.count >= 4
        assert found == stage.broker.totals
        assert found.messages > 0
        assert found.messages_enqueued > found.messages_dequeued > 0


async def test_few_queues_need_no_slices() -> None:
    async with wired() as stage:
        assert await summed(stage.broker, TimeSlices()) == QueueTotals()
        await fill(stage, "q", 3)
        assert (await summed(stage.broker, TimeSlices())).messages == 3
