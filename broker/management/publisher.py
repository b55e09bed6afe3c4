"""Publishes what has changed, in both versions of QMF, once in an interval: a sweep over all objects.

A class is swept if a queue is bound for its objects, or if a console knows one of them. Of each object, properties and
statistics are compared with what was published last; what is new is published, and the whole object in version 2. An
object that is gone is published once more, with the time of its end. When a queue is bound, the classes that it is
bound for are published as if everything had changed, soon.

Without `--mgmt-publish` a sweep only forgets objects that are gone. It works in turns (`turns`), and the next one
begins an interval after it has begun, or when it has ended. The high and low water marks of the statistics begin anew
with each sweep.

Sources: Qpid management design notes (seed 001), lines 313-336; Qpid wiki, "QMF Protocol" (seed 004, 19628-19644).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.objects.classes import CLASSES, ManagedObject, objects_of
from qstore.broker.management.outbox import TOPIC
from qstore.broker.management.qmf1.content import object_message
from qstore.broker.management.qmf1.sender import Batch
from qstore.broker.management.qmf2 import content
from qstore.formats.qmf.v1.types import QmfError

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import ManagedClass
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.qmf1.sender import Sender as Sender1
    from qstore.broker.management.qmf2.sender import Sender as Sender2
    from qstore.broker.management.registry import Known, Registry
    from qstore.broker.management.turns import Turns

_PORTION: Final = 25
"""Objects of version 2 in one message."""
_LOOKED_AT: Final = 16
"""Objects between two looks at the clock."""


class Publisher:
    """Publishes the objects of one broker.

    Args:
        managed: the broker.
        registry: its known objects.
        outbox: tells whether anybody is bound.
        sender_1, sender_2: send messages of either version; None if it is not spoken.
        turns: when portions of a sweep are done.
    """

    def __init__(
        self,
        managed: ManagedBroker,
        registry: Registry,
        outbox: Outbox,
        sender_1: Sender1 | None,
        sender_2: Sender2 | None,
        turns: Turns,
    ) -> None:
        self._managed, self._registry, self._outbox = managed, registry, outbox
        self._sender_1, self._sender_2, self._turns = sender_1, sender_2, turns
        self._whole: set[ManagedClass] = set()  # published as if everything had changed
        self.is_under_way = False

    def bound(self) -> bool:
        """A queue was bound. Returns whether there is anything to publish for it."""
        self._whole = {of for of in CLASSES if any(self._keys(of))}
        return bool(self._whole)

    def _keys(self, of: ManagedClass) -> tuple[str, str]:
        """The keys under which the objects of a class are heard, in version 1 and 2; empty if they are not."""
        broker = self._managed.broker
        if not broker.settings.management_publish or (of.seen_by is not None and broker.authorization.is_on):
            return "", ""
        key_1 = "" if self._sender_1 is None else self._sender_1.data_key(of)
        key_2 = "" if self._sender_2 is None else self._sender_2.data_key(of)
        if self._sender_1 is not None and not self._sender_1.is_heard(key_1):
            key_1 = ""
        return key_1, key_2 if key_2 and self._outbox.is_heard(TOPIC, key_2) else ""

    async def sweep(self) -> None:
        """Publish what has changed."""
        self.is_under_way = True
        try:
            self._registry.sweep += 1
            whole, self._whole = self._whole, set()
            for of in CLASSES:
                keys = self._keys(of)
                if any(keys) or self._registry.of_class(of):
                    await self._sweep_class(of, keys, is_whole=of in whole)
            await self._begin_interval()
        finally:
            self.is_under_way = False

    async def _sweep_class(self, of: ManagedClass, keys: tuple[str, str], *, is_whole: bool) -> None:
        changes, number = _Changes(self, of, keys), self._registry.sweep
        if any(keys) and of.prepare is not None:
            await of.prepare(self._managed)
        known_objects = self._registry.of_class(of)
        for at, each in enumerate(objects_of(self._managed, of)):
            if at % _LOOKED_AT == 0 and self._turns.is_over:
                await self._turns.next()
            if any(keys):
                known = self._registry.known(each)
                known.sweep = number
                changes.look(each, known, is_whole=is_whole)
            elif each.key in known_objects:
                known_objects[each.key].sweep = number
        for key, known in [(key, known) for key, known in known_objects.items() if known.sweep != number]:
            if self._turns.is_over:
                await self._turns.next()
            changes.gone(known)
            self._registry.forget(of, key)
        changes.flush()

    async def _begin_interval(self) -> None:
        """Begin the high and low water marks anew."""
        broker = self._managed.broker
        for at, queue in enumerate(list(broker.queues.values())):
            if at % _LOOKED_AT == 0 and self._turns.is_over:
                await self._turns.next()
            queue.consumer_marks.begin_interval()
            queue.binding_count.begin_interval()
        for exchange in list(broker.exchanges.values()):
            exchange.binding_count.begin_interval()

    # ---- one class: for `_Changes` ----

    def publish_1(self, key: str, body: bytes) -> None:
        """Publish objects in version 1."""
        if body and self._sender_1 is not None:
            self._sender_1.publish(key, body)

    def publish_2(self, key: str, objects: list[dict[str, Any]]) -> None:
        """Publish objects in version 2."""
        if objects and self._sender_2 is not None:
            self._sender_2.publish_data(key, objects)

    def encoded_1(self, opcode: str, of: ManagedClass, known: Known, deleted: float) -> bytes:
        """An object as last looked at, in version 1; empty if it cannot be told."""
        assert known.values is not None
        times = (self._managed.broker.clock(), deleted)
        try:
            return object_message(opcode, 0, of, known, known.values, self._registry.id_of, times=times)
        except QmfError:
            return b""

    def encoded_2(self, of: ManagedClass, known: Known, deleted: float) -> dict[str, Any]:
        """An object as last looked at, in version 2."""
        assert known.values is not None
        times = (known.created, self._managed.broker.clock(), deleted)
        identity = content.object_id(known.name)
        return content.data(of, identity, of.map_of(*known.values), times=times)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._managed.broker.clock()


class _Changes:
    """What has changed of the objects of one class, on its way.

    Args:
        publisher: publishes it.
        of: the class.
        keys: where it is heard, in version 1 and 2.
    """

    def __init__(self, publisher: Publisher, of: ManagedClass, keys: tuple[str, str]) -> None:
        self._publisher, self._of = publisher, of
        self._key_1, self._key_2 = keys
        self._batch = Batch()
        self._objects: list[dict[str, Any]] = []

    def look(self, each: ManagedObject, known: Known, *, is_whole: bool) -> None:
        """Publish what has changed of an object."""
        values, before = self._of.values(each.target), known.values
        if values == before and not is_whole:
            return
        known.values = values
        has_properties = is_whole or before is None or before[0] != values[0]
        has_statistics = is_whole or before is None or before[1] != values[1]
        self._add(known, 0.0, has_properties=has_properties, has_statistics=has_statistics)

    def gone(self, known: Known) -> None:
        """Publish the end of an object, if it was published before."""
        if known.values is not None:
            self._add(known, self._publisher.now, has_properties=True, has_statistics=True)

    def _add(self, known: Known, deleted: float, *, has_properties: bool, has_statistics: bool) -> None:
        publisher, of = self._publisher, self._of
        if self._key_1:
            opcodes = [opcode for opcode, is_told in (("c", has_properties), ("i", has_statistics)) if is_told]
            for opcode in opcodes:
                if opcode == "i" and not of.statistics:
                    continue
                message = publisher.encoded_1(opcode, of, known, deleted)
                publisher.publish_1(self._key_1, self._batch.add(message))
        if self._key_2:
            self._objects.append(publisher.encoded_2(of, known, deleted))
            if len(self._objects) >= _PORTION:
                publisher.publish_2(self._key_2, self._objects)
                self._objects = []

    def flush(self) -> None:
        """Publish what is left."""
        self._publisher.publish_1(self._key_1, self._batch.take())
        self._publisher.publish_2(self._key_2, self._objects)
        self._objects = []
