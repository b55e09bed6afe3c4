"""The counters of all queues, summed up in turns: of 10,000 queues that takes too long for one iteration of the loop.

Queues come and go meanwhile, and each is counted once. Those that were deleted after they were counted are among the
sums of the deleted ones at the end (`QueueRemoval.deleted`), so what was counted of them is taken away again; those
that are new are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.counters import QueueTotals, difference_of, sum_of

if TYPE_CHECKING:
    from qstore.broker.management.turns import Turns
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.queue import Queue

AT_ONCE: Final = 64
"""So many queues need no turns."""


async def summed(broker: Broker, turns: Turns) -> QueueTotals:
    """The counters of all queues of a broker, as `Broker.totals`."""
    if len(broker.queues) <= AT_ONCE:
        return broker.totals
    counted: dict[Queue, QueueTotals] = {}
    sums, portion = QueueTotals(), list[QueueTotals]()
    for queue in list(broker.queues.values()):
        if broker.queues.get(queue.name) is not queue:
            continue  # it was deleted, or is being deleted
        counted[queue] = queue.totals
        portion.append(counted[queue])
        if len(portion) >= AT_ONCE:
            sums, portion = sum_of((sums, *portion)), []
            if turns.is_over:
                await turns.next()
    present = (*broker.queues.values(), *broker.removal.leaving)
    new = [queue.totals for queue in present if queue not in counted]
    gone = [counted[queue] for queue in counted.keys() - present] if len(counted) + len(new) > len(present) else []
    sums = sum_of((sums, broker.removal.deleted, *portion, *new))
    return difference_of(sums, sum_of(gone)) if gone else sums
