"""Publishes events in both versions of QMF: each at once, or many together if many consoles listen.

If the last events went to many queues, the next ones wait, for a time in proportion to the number of queues, and are
published together then: one message for the events of a class. So the end of 1,000 consoles, each of which the others
are told of, takes a part of the broker's time only. Events that name the same thing, such as a queue, keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.management.events import EVENTS, EventClass, Timed
from qstore.broker.model.events import Event

if TYPE_CHECKING:
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.qmf1.sender import Sender as Sender1
    from qstore.broker.management.qmf2.sender import Sender as Sender2
    from qstore.broker.management.turns import Turns

_FEW: Final = 16
"""Events that reach so many queues are published at once."""
_PAUSE_SECONDS: Final = 50e-6
"""For each queue that they have reached: to put a message there and to deliver it takes about 10 microseconds."""
_MAX_WAITING: Final = 10_000
"""If more wait, each new one has the oldest ones published."""

_Group: TypeAlias = tuple[EventClass, list[Timed]]


class EventPublisher:
    """Publishes the events of one broker.

    Args:
        outbox: counts the queues that are reached.
        sender_1, sender_2: send messages of either version; None if it is not spoken.
        turns: when portions of work are done.
        start: runs a coroutine as a task.
    """

    def __init__(
        self,
        outbox: Outbox,
        sender_1: Sender1 | None,
        sender_2: Sender2 | None,
        turns: Turns,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._outbox, self._senders = outbox, [each for each in (sender_1, sender_2) if each is not None]
        self._turns, self._start = turns, start
        self._waiting: list[Timed] = []
        self._groups: deque[_Group] = deque()  # the waiting ones before those
        self._is_pausing = False

    def publish(self, event: Event, now: float) -> None:
        """Publish an event now or soon, if it has a class and anybody is bound for it.

        Args:
            event: the event.
            now: seconds since 1970.
        """
        of = EVENTS.get(type(event))
        if of is None:
            return
        if self._outbox.is_sending:  # an event of an event: the outbox limits these
            self._send(of, [(event, now)])
        elif self._is_pausing:
            if len(self._waiting) >= _MAX_WAITING:
                self._send_next()
            self._waiting.append((event, now))
        else:
            reached = self._send(of, [(event, now)])
            if reached > _FEW:
                self._is_pausing = True
                self._start(self._send_later(reached))

    async def _send_later(self, reached: int) -> None:
        """Pause after events that have reached so many queues, and publish what has come meanwhile, until all is."""
        try:
            while reached or self._waiting:
                await asyncio.sleep(reached * _PAUSE_SECONDS)
                reached = 0
                self._group()
                while self._groups:
                    if self._turns.is_over:
                        await self._turns.next()
                    reached += self._send_next()
        finally:
            self._is_pausing = False

    def _group(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._groups.extend(grouped(waiting))

    def _send_next(self) -> int:
        """Publish the oldest events that wait. Returns how many queues they have reached."""
        if not self._groups:
            self._group()
        return self._send(*self._groups.popleft()) if self._groups else 0

    def _send(self, of: EventClass, events: list[Timed]) -> int:
        before = self._outbox.copies
        for sender in self._senders:
            sender.publish_events(of, events)
        return self._outbox.copies - before


def grouped(events: Iterable[Timed]) -> list[_Group]:
    """Events by class, so that one is never before an earlier one that names the same thing."""
    groups: list[_Group] = []
    latest: dict[type[Event], int] = {}  # class -> its last group
    naming: dict[str, int] = {}  # name -> the last group that names it
    for event, now in events:
        user = getattr(event, "user", "")
        names = [value for value in event if isinstance(value, str) and value not in ("", user)]
        at = latest.get(type(event), -1)
        if at < 0 or any(naming.get(name, at) > at for name in names):
            at = latest[type(event)] = len(groups)
            groups.append((EVENTS[type(event)], []))
        groups[at][1].append((event, now))
        naming.update(dict.fromkeys(names, at))
    return groups
