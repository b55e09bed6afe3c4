"""The order in which a queue's consumers would get its messages.

A queue keeps its messages in the order of its journal. A priority queue (argument qpid.priorities, alias
x-qpid-priorities: the number of levels) gives those of the highest level first, and within a level keeps that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import compress
from typing import Final

from formats.broker_records.message_header import MessageHeader
from store.journal.journal import Journal
from store.journal.recovery import OutstandingRecord
from store.offline import RecoveredQueue
from tools.dump.messages import MessageReader
from tools.dump.selection import BodyForm

_ARGUMENTS: Final = ("qpid.priorities", "x-qpid-priorities")
_MAX_LEVELS: Final = 256  # a priority is one byte
_ABSENT: Final = 0  # qpidd counts a 0-10 message without a priority as lowest ...
_ABSENT_1_0: Final = 4  # ... and AMQP 1.0 (messaging, 3.2.1) one of its own as normal


def in_delivery_order(queue: RecoveredQueue, journal: Journal) -> Iterator[OutstandingRecord]:
    """The outstanding messages of a queue, as its consumers would get them."""
    levels = _priority_levels(queue)
    if levels < 2:
        return queue.outstanding()
    reader = MessageReader(journal, BodyForm.NONE)
    level_of = bytearray(
        level(_priority(reader.read(rid, place).header), levels) for rid, place, _, _ in queue.outstanding()
    )
    return _by_level(queue, level_of)


def _by_level(queue: RecoveredQueue, level_of: bytearray) -> Iterator[OutstandingRecord]:
    for wanted in sorted(set(level_of), reverse=True):
        yield from compress(queue.outstanding(), (found == wanted for found in level_of))


def _priority_levels(queue: RecoveredQueue) -> int:
    if queue.record is None:
        return 1
    for name in _ARGUMENTS:
        argument = queue.record.arguments.get(name)
        if argument is not None and str(argument.value).isdecimal():
            return min(int(argument.value), _MAX_LEVELS)
    return 1


def _priority(header: MessageHeader | None) -> int:
    if header is None:
        return _ABSENT
    if header.priority is None:
        return _ABSENT if header.amqp_1_0 is None else _ABSENT_1_0
    return header.priority


def level(priority: int, levels: int) -> int:
    """The level of a priority: the ten of AMQP 0-10 laid on fewer levels, the middle on the middle.

    Source: AMQP 0-10, delivery-properties.priority, rule priority-level-implementation.
    """
    lowest = 5 - min(5, math.ceil(levels / 2))
    return min(max(priority - lowest, 0), levels - 1)
