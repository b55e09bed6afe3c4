"""Unsolicited publications to consoles: changed objects, once in an interval, and events, in every version of QMF.

**Objects.** A sweep goes over all objects. A class is swept if a queue is bound for its objects, or if a console knows
one of them. The properties and statistics of each object are compared with those published last, and what has changed
is published (in version 2, the whole object). An object that is gone is published once more, with the time of its end.
When a queue is bound, the classes that it is bound for are published soon, as if everything had changed. Without
`--mgmt-publish` a sweep only forgets objects that are gone. It works in time slices, and the next one begins an
interval after it has begun, or when it has ended. The high and low water marks of the statistics are reset by each
sweep.

An object is entered in the `Registry` when a console first gets it, and forgotten when a sweep finds that it is gone.
Its id in version 1 stays the same until then. The id of an object that survives a restart has the sequence 0, its
class and its number in the store; others have the number of starts of this broker, and the next number.

**Events** are published at once, or many together if many consoles listen: if the last events went to many queues, the
next ones wait, for a time in proportion to the number of queues, and are then published together: one message for the
events of a class. So the end of 1,000 consoles, each of which the others are notified of, takes only a part of the
broker's time. Events that name the same thing, such as a queue, keep their order.

Sources: Qpid management design notes (seed 001), lines 313-336; Qpid wiki, "QMF Protocol" (seed 004, 19628-19644).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from qstore.broker.management.classes import CLASSES, ManagedObject, find_object, objects_of
from qstore.broker.management.events import EVENTS, EventClass, Timed
from qstore.broker.management.remote_agents import BROKER_BANK
from qstore.broker.model.events import Event
from qstore.formats.qmf.v1 import ObjectId

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker, TimeSlices
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.schema import ManagedClass


class Version(Protocol):
    """A version of QMF: encodes publications, and has the keys that queues are bound with."""

    def changes_of(self, of: ManagedClass) -> Changes | None:
        """Where the changed objects of a class go; None if no queue is bound for them."""

    def publish_events(self, of: EventClass, events: Sequence[Timed]) -> None:
        """Publish events of a class, if a queue is bound for them."""

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if a queue is bound for it."""


class Changes(Protocol):
    """The changed objects of one class, on their way in one version of QMF."""

    def add(self, known: Known, deleted: float, *, has_properties: bool, has_statistics: bool) -> None:
        """Publish the changes of an object, as last read; `deleted` is when it ended, or 0."""

    def flush(self) -> None:
        """Publish what is left."""


# ---- known objects ----

_CLASS_SHIFT: Final = 48
_NUMBERS: Final = {of: number for number, of in enumerate(CLASSES, 1)}


class Known:
    """An object that a console has got.

    Attributes:
        name: its name.
        id: its id in version 1.
        created: when it was created, or first seen, in seconds since 1970.
        sweep: the number of the last sweep that has found it.
        values: its properties and statistics as last published; None if they were not.
    """

    __slots__ = ("created", "id", "name", "sweep", "values")

    def __init__(self, name: str, object_id: ObjectId, created: float, sweep: int) -> None:
        self.name, self.id, self.created, self.sweep = name, object_id, created, sweep
        self.values: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None


class Registry:
    """The known objects of one broker.

    Args:
        managed: the broker.

    Attributes:
        sweep: the number of the current sweep.
    """

    def __init__(self, managed: ManagedBroker) -> None:
        self._managed = managed
        self._known: dict[ManagedClass, dict[str, Known]] = {of: {} for of in CLASSES}
        self._by_name: dict[str, Known] = {}
        self._names: dict[tuple[int, int], str] = {}  # sequence and number -> name
        self._next = 0
        self.sweep = 0

    def known(self, each: ManagedObject) -> Known:
        """The entry of an object, which is made if it is new."""
        of = self._known[each.of]
        found = of.get(each.key)
        if found is None:
            stored = each.of.stored_id(each.target)
            created = each.of.created(each.target) or self._managed.broker.clock()
            found = of[each.key] = Known(each.name, self._new_id(each.of, stored), created, self.sweep)
            self._names[found.id.sequence, found.id.number] = found.name
            self._by_name[found.name] = found
        return found

    def id_of(self, name: str) -> ObjectId:
        """The id of the object with this name; all zeros if there is none."""
        known = self._by_name.get(name)
        if known is not None:
            return known.id
        found = find_object(self._managed, name)
        return ObjectId(0, 0, 0, 0, 0) if found is None else self.known(found).id

    def find(self, object_id: ObjectId) -> ManagedObject | None:
        """The object with this id."""
        name = self._names.get((object_id.sequence, object_id.number))
        return None if name is None or object_id.agent_bank else find_object(self._managed, name)

    def of_class(self, of: ManagedClass) -> dict[str, Known]:
        """The known objects of a class, by key."""
        return self._known[of]

    def forget(self, of: ManagedClass, key: str) -> None:
        """Remove an object that is gone."""
        gone = self._known[of].pop(key)
        self._names.pop((gone.id.sequence, gone.id.number), None)
        self._by_name.pop(gone.name, None)

    def _new_id(self, of: ManagedClass, stored: int) -> ObjectId:
        if stored:
            return ObjectId(0, 0, BROKER_BANK, 0, _NUMBERS[of] << _CLASS_SHIFT | stored)
        self._next += 1
        return ObjectId(0, self._managed.identity.starts, BROKER_BANK, 0, self._next)


# ---- changed objects ----

_OBJECTS_BETWEEN_CLOCK_READS: Final = 16


class Publisher:
    """Publishes the objects of one broker.

    Args:
        managed: the broker.
        registry: its known objects.
        versions: the versions of QMF that are published.
    """

    def __init__(self, managed: ManagedBroker, registry: Registry, versions: Sequence[Version]) -> None:
        self._managed, self._registry, self._versions, self._slices = managed, registry, versions, managed.slices
        self._whole: set[ManagedClass] = set()  # published as if everything had changed
        self.is_under_way = False

    def bound(self) -> bool:
        """A queue was bound. Returns whether there is anything to publish for it."""
        self._whole = {of for of in CLASSES if self._changes_of(of)}
        return bool(self._whole)

    def _changes_of(self, of: ManagedClass) -> list[Changes]:
        """Where the changed objects of a class go; empty if no queue is bound for them."""
        broker = self._managed.broker
        if not broker.settings.management_publish or (of.is_published_on_request and broker.authorization.is_on):
            return []
        return [found for each in self._versions if (found := each.changes_of(of)) is not None]

    async def sweep(self) -> None:
        """Publish what has changed."""
        self.is_under_way = True
        try:
            self._registry.sweep += 1
            whole, self._whole = self._whole, set()
            for of in CLASSES:
                changes = self._changes_of(of)
                if changes or self._registry.of_class(of):
                    await self._sweep_class(of, changes, is_whole=of in whole)
            await self._begin_interval()
        finally:
            self.is_under_way = False

    async def _sweep_class(self, of: ManagedClass, changes: Sequence[Changes], *, is_whole: bool) -> None:
        number, known_objects = self._registry.sweep, self._registry.of_class(of)
        if changes and of.prepare is not None:
            await of.prepare(self._managed)
        for at, each in enumerate(objects_of(self._managed, of)):
            if at % _OBJECTS_BETWEEN_CLOCK_READS == 0 and self._slices.is_over:
                await self._slices.next()
            if changes:
                known = self._registry.known(each)
                known.sweep = number
                _publish_changed(each, known, changes, is_whole=is_whole)
            elif each.key in known_objects:
                known_objects[each.key].sweep = number
        for key, known in [(key, known) for key, known in known_objects.items() if known.sweep != number]:
            if self._slices.is_over:
                await self._slices.next()
            if known.values is not None:
                for every in changes:
                    every.add(known, self._managed.broker.clock(), has_properties=True, has_statistics=True)
            self._registry.forget(of, key)
        for every in changes:
            every.flush()

    async def _begin_interval(self) -> None:
        """Reset the high and low water marks."""
        broker = self._managed.broker
        for at, queue in enumerate(list(broker.all_queues())):
            if at % _OBJECTS_BETWEEN_CLOCK_READS == 0 and self._slices.is_over:
                await self._slices.next()
            queue.marks.begin_interval(queue)
            for counts in (queue.counters.enqueuing, queue.counters.dequeuing):
                if counts is not None:
                    counts.pending.begin_interval()
            queue.consumer_marks.begin_interval()
            queue.binding_count.begin_interval()
        for exchange in [each for host in broker.hosts.values() for each in host.exchanges.values()]:
            exchange.binding_count.begin_interval()


def _publish_changed(each: ManagedObject, known: Known, changes: Sequence[Changes], *, is_whole: bool) -> None:
    """Publish the changes of an object since it was published last."""
    values, before = each.of.values(each.target), known.values
    if values == before and not is_whole:
        return
    known.values = values
    has_properties = is_whole or before is None or before[0] != values[0]
    has_statistics = is_whole or before is None or before[1] != values[1]
    for every in changes:
        every.add(known, 0.0, has_properties=has_properties, has_statistics=has_statistics)


# ---- events ----

_FEW: Final = 16
"""Events that reach no more queues than this are published at once."""
_PAUSE_SECONDS: Final = 50e-6
"""For each queue that they have reached: to put a message there and to deliver it takes about 10 microseconds."""
_MAX_WAITING: Final = 10_000
"""If more wait, each new one has the oldest ones published."""

_Group: TypeAlias = tuple[EventClass, list[Timed]]


class EventPublisher:
    """Publishes the events of one broker.

    Args:
        outbox: counts the queues that are reached.
        versions: the versions of QMF that are published.
        slices: when portions of work are done.
        start: runs a coroutine as a task.
    """

    def __init__(
        self,
        outbox: Outbox,
        versions: Sequence[Version],
        slices: TimeSlices,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._outbox, self._versions, self._slices, self._start = outbox, versions, slices, start
        self._waiting: list[Timed] = []
        self._groups: deque[_Group] = deque()  # of events that have waited longer than those
        self._is_pausing = False

    def publish(self, event: Event, now: float) -> None:
        """Publish an event now or soon, if it has a class and a queue is bound for it.

        Args:
            event: the event.
            now: seconds since 1970.
        """
        of = EVENTS.get(type(event))
        if of is None or not self._outbox.has_consoles:
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
        """Pause after events that have reached many queues, then publish those that arrived meanwhile, and so on."""
        try:
            while reached or self._waiting:
                await asyncio.sleep(reached * _PAUSE_SECONDS)
                reached = 0
                self._group()
                while self._groups:
                    if self._slices.is_over:
                        await self._slices.next()
                    reached += self._send_next()
        finally:
            self._is_pausing = False

    def _group(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._groups.extend(grouped(waiting))

    def _send_next(self) -> int:
        """Publish the oldest waiting events. Returns how many queues they have reached."""
        if not self._groups:
            self._group()
        return self._send(*self._groups.popleft()) if self._groups else 0

    def _send(self, of: EventClass, events: list[Timed]) -> int:
        before = self._outbox.copies
        for each in self._versions:
            each.publish_events(of, events)
        return self._outbox.copies - before


def grouped(events: Iterable[Timed]) -> list[_Group]:
    """Events by class, keeping the order of those that name the same thing."""
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
