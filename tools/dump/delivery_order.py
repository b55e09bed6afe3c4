"""The order in which consumers of a queue would receive its messages, from the broker that owns the store.

A queue delivers its messages in journal order. A priority queue (argument qpid.priorities, alias x-qpid-priorities: the
number of levels; or x-max-priority: the highest one) delivers those of the highest level first, and within a level in
journal order. Limits for levels (qpid.fairshare) are not applied: the order then depends on when consumers come.

Brokers differ about a 0-10 message without a priority: for qstore's it has the default of the specification, 4, and for
qpidd (legacystore, linearstore) the lowest. If a queue has such messages, `DeliveryOrder.notices` states which order
was shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Final

from qstore.broker.model.arguments import MAX_PRIORITY, as_text
from qstore.broker.model.queues.arguments import HIGHEST_PRIORITY
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.store.inspect.offline import RecoveredQueue
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import OutstandingRecord
from qstore.tools.dump.messages import MessageReader
from qstore.tools.dump.selection import BodyForm

_ARGUMENTS: Final = ("qpid.priorities", "x-qpid-priorities")
_CAPPED: Final = (HIGHEST_PRIORITY,)
_MAX_SHOWN: Final = 10
_MAX_LEVELS: Final = 10
_MAX_LEVELS_OF_QPIDD: Final = 256  # a priority is one byte
_MAX_DIGITS: Final = 20
_ABSENT: Final = 4  # the default priority of AMQP 0-10 and 1.0 ...
_ABSENT_IN_QPIDD: Final = 0  # ... of which qpidd has that of 1.0 only (MessageTransfer.cpp)


class DeliveryOrder:
    """Puts the messages of one store's queues in delivery order.

    Args:
        is_qpidd: whether the store is qpidd's.
    """

    def __init__(self, *, is_qpidd: bool) -> None:
        self._is_qpidd = is_qpidd
        self._differing: list[str] = []

    def of(self, queue: RecoveredQueue, journal: Journal) -> Iterator[OutstandingRecord]:
        """The outstanding messages of a queue, in the order in which its consumers would receive them."""
        highest = 0 if self._is_qpidd else min(_number(queue, _CAPPED), MAX_PRIORITY)
        if highest:
            return self._by_priority(queue, journal, lambda priority: min(priority, highest))
        levels = min(_number(queue, _ARGUMENTS), _MAX_LEVELS_OF_QPIDD if self._is_qpidd else _MAX_LEVELS)
        if levels < 2:
            return queue.outstanding()
        return self._by_priority(queue, journal, lambda priority: level(priority, levels))

    def notices(self) -> list[str]:
        """Notices about the queues whose order differs between brokers: one line, or none."""
        if not self._differing:
            return []
        shown = ", ".join(f'"{name}"' for name in self._differing[:_MAX_SHOWN])
        more = len(self._differing) - _MAX_SHOWN
        names = f"{shown} and {more} more" if more > 0 else shown
        which = "queue" if len(self._differing) == 1 else "queues"
        qpidd, own = "qpidd, lowest", f"qstore's broker, {_ABSENT}"
        first, second = (qpidd, own) if self._is_qpidd else (own, qpidd)
        return [f"{which} {names}: messages without a priority are listed as by {first}; by {second}"]

    def _by_priority(
        self, queue: RecoveredQueue, journal: Journal, level_of_priority: Callable[[int], int]
    ) -> Iterator[OutstandingRecord]:
        reader = MessageReader(journal, BodyForm.NONE)
        level_of, differs = bytearray(), False
        for rid, place, _, _ in queue.outstanding():
            header = reader.read(rid, place).header
            own = level_of_priority(_priority(header, _ABSENT))
            qpidd = level_of_priority(_priority(header, _ABSENT_IN_QPIDD))
            differs = differs or own != qpidd
            level_of.append(qpidd if self._is_qpidd else own)
        if differs:
            self._differing.append(queue.name)
        return _by_level(queue, level_of)


def _by_level(queue: RecoveredQueue, level_of: bytearray) -> Iterator[OutstandingRecord]:
    for wanted in sorted(set(level_of), reverse=True):
        yield from compress(queue.outstanding(), (found == wanted for found in level_of))


def _number(queue: RecoveredQueue, names: Sequence[str]) -> int:
    """The first of these arguments that is a number; 0 for none."""
    if queue.record is None:
        return 0
    for name in names:
        argument = queue.record.arguments.get(name)
        text = "" if argument is None else str(as_text(argument.value))
        if text.isdecimal() and len(text) <= _MAX_DIGITS:
            return int(text)
    return 0


def _priority(header: MessageHeader | None, absent: int) -> int:
    if header is None:
        return absent
    if header.protocol == "0-9-1":
        return header.priority or 0
    if header.priority is None:
        return absent if header.amqp_1_0 is None else _ABSENT
    return header.priority


def level(priority: int, levels: int) -> int:
    """The level of a priority: the ten priorities of AMQP 0-10 mapped to fewer levels, the middle to the middle.

    Source: AMQP 0-10, delivery-properties.priority, rule priority-level-implementation.
    """
    lowest = 5 - min(5, math.ceil(levels / 2))
    return min(max(priority - lowest, 0), levels - 1)
