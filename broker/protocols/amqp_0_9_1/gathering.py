"""Messages of several publishers for the same queues, put on them together.

A publisher that uses many routing keys in turns has few messages for each queue in one read, and many publishers have
few each. What costs is a run, not a message. So the messages of publishers that wait for confirms are gathered until
the end of the tick (`model/tick`), which is when they would be written at the earliest:

    batch     what one channel has published in one read: messages with equal headers, sorted by basic.publish
    group     those of all batches that have the same queue, basic.publish and header: they become one run on the queue,
              or several if they are more than `MAX_RUN`

Nobody can tell: to their publishers it is as if they had been read a little later. What follows them on the same
connection, other than acknowledgements of deliveries, has to wait for them, so that it puts them on their queues first
(`put`). Messages of a publisher without confirms are put on their queues at once, as it may have another one look for
them; likewise where few messages come together for each queue.

If the messages of one read all go to the same queues, as from a fanout exchange, they are put on these at once, as one
run with several routing keys (`model.run.KeyedRun`).

Otherwise each run goes to a queue of its own, so that messages keep their order there. Confirms count messages in the
order in which they arrived: all of a batch wait for the records of all.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import ModelError
from qstore.broker.model.exchanges.route import Route
from qstore.broker.model.router import Router
from qstore.broker.model.run import MAX_RUN, MIN_RUN, KeyedRun, MessageRun
from qstore.broker.protocols.amqp_0_9_1.assembly import MixedRun
from qstore.broker.protocols.amqp_0_9_1.message import SIZE_FIELD, BasicMessage
from qstore.broker.protocols.amqp_0_9_1.publishing import Target, publish_numbered
from qstore.broker.protocols.assembly import ProtocolError
from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.methods import PUBLISH
from qstore.formats.kernels import IS_COMPILED
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.message import Handling
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.tick import Tick
    from qstore.broker.protocols.amqp_0_9_1.channel import Channel

_number: Final = itemgetter(0)

_MIN_ALIKE: Final = 2 if IS_COMPILED else MIN_RUN
"""Messages for each basic.publish, on the average, from which on those that are not gathered are taken as runs."""

_MIN_GATHERED: Final = 3
"""Messages for each queue, on the average, from which on gathering them pays."""
_MIN_SKIPS: Final = 8  # batches that are not gathered after too few messages came together for each queue
_MAX_SKIPS: Final = 256  # likewise: as long as there are too few, twice as many each time

MAX_GATHERED: Final = 4 << 20
"""Bytes of bodies that are gathered before they are put on their queues."""


def publish_mixed(channel: Channel, header: bytes, runs: list[MixedRun], count: int) -> int:
    """Publish messages that differ only in their basic.publish and their bodies, by the end of this tick.

    Args:
        channel: the channel; it is open.
        header: a content header like theirs.
        runs: the messages.
        count: their number in all.

    Returns:
        How many of them were taken, from the first on. Of those that are, they are published singly that cannot be put
        on their queues together.
    """
    confirms, publishing = channel.confirms, channel.connection.publishing
    gathering = channel.connection.shared_gathering
    base = publishing.base_of(header, SIZE_FIELD)
    if base is None or channel.transaction is not None or channel.rate is not None:
        return 0
    parts = _routed(channel, base, runs[:2])
    if not parts:
        return 0
    are_for_same = parts[0].route.queues == parts[1].route.queues
    is_gathered = not are_for_same and confirms is not None and gathering.is_worthwhile()
    if not are_for_same and not is_gathered and count < _MIN_ALIKE * len(runs):
        return 0
    if len(runs) > 2:
        others = _routed(channel, base, runs[2:])
        if not others:
            return 0
        parts += others
    if are_for_same:
        return _publish_keyed(channel, base, parts)
    seen: set[Queue] = set()
    for part in parts:
        queue = part.route.sole
        if queue is None or queue in seen or queue.eligibility is not None or not queue.takes_runs:
            return 0
        seen.add(queue)
    first = 0
    if confirms is not None:
        first = confirms.published + 1
        confirms.published += count
    gathering.add(Batch(channel, base, first, count, parts))
    if not is_gathered:
        gathering.put(is_trial=False)
    return count


def _routed(channel: Channel, base: BasicMessage, runs: list[MixedRun]) -> list[Part]:
    """The messages with where they go; none if some have to be routed, or checked, by themselves."""
    publishing, parts = channel.connection.publishing, list[Part]()
    for mixed in runs:
        target = publishing.targets.get(mixed.payload)
        exchange = None if target is None else channel.virtual_host.exchanges.get(target.exchange)
        if target is None or exchange is None or exchange.is_internal:
            return []
        if publishing.has_rare and not publishing.covers(addressed(base, target)):
            return []
        route = exchange.routes.get(target.routing_key) if exchange.routes_by_key else None
        if route is None:
            route = channel.broker.router.route_of_run(addressed(base, target), exchange)
        if route is None:
            return []
        parts.append(Part(target, route, mixed))
    return parts


def _publish_keyed(channel: Channel, base: BasicMessage, parts: list[Part]) -> int:
    """Publish messages together if all of them go to the same queues. Returns how many, from the first on."""
    router, confirms, queues = channel.broker.router, channel.confirms, parts[0].route.queues
    if not queues or any(part.route.queues != queues for part in parts):
        return 0
    if any(queue.eligibility is not None for queue in queues):
        return 0
    exchanges = channel.virtual_host.exchanges
    if any(exchanges[part.target.exchange].has_dropped(part.route) for part in parts):  # to find the route of another
        return 0
    count = sum(part.mixed.bodies.count for part in parts)
    bodies, kinds = [b""] * count, bytearray(count)
    for kind, part in enumerate(parts):
        of_kind = part.mixed.bodies
        for index, number in enumerate(memoryview(part.mixed.numbers).cast("I")):
            bodies[number], kinds[number] = of_kind.body(index), kind
    templates = [addressed(base, part.target) for part in parts]
    run = KeyedRun(templates, bytes(kinds), Bodies.of(bodies), SIZE_FIELD, len(base.header))
    published = router.publish_keyed(run, [part.route for part in parts])
    if confirms is not None and published:
        first = confirms.published + 1
        confirms.published += published
        channel.broker.tick.workers[channel] = None
        if router.is_run_stored:
            confirms.ledger.hold_run(first, confirms.published)
    return published


class Part(NamedTuple):
    """The messages of one batch that go to one queue.

    Attributes:
        target: where they were sent.
        route: the one by which they go to their only queue.
        mixed: the messages.
    """

    target: Target
    route: Route
    mixed: MixedRun


class Batch:
    """What one channel has published in one read.

    Args:
        channel: the channel.
        base: a message with this channel's header, and its options.
        first: the number of its first message among those that the channel has published; 0 without confirms.
        count: number of messages.
        parts: the messages; each part goes to a queue of its own.

    Attributes:
        channel, base, first, count, parts: as above.
        likeness: equal for batches whose headers are equal, but for the sizes of the bodies.
        left: messages that could not be put on their queue as a run: number in the batch, target and body.
        is_stored: whether some are stored.
    """

    __slots__ = ("base", "channel", "count", "first", "is_stored", "left", "likeness", "parts")

    def __init__(self, channel: Channel, base: BasicMessage, first: int, count: int, parts: list[Part]) -> None:
        self.channel, self.base, self.first, self.count, self.parts = channel, base, first, count, parts
        self.likeness = SIZE_FIELD.set_in(base.header, 0)
        self.left: list[tuple[int, Target, bytes]] = []
        self.is_stored = False


class Group:
    """Messages for one queue with equal headers and the same exchange and routing key, from several batches."""

    __slots__ = ("_batches", "_handlings", "_parts", "count", "queue", "template")

    def __init__(self, queue: Queue, template: BasicMessage) -> None:
        self.queue, self.template = queue, template
        self.count = 0
        self._batches: list[Batch] = []
        self._parts: list[Part] = []
        self._handlings: list[tuple[int, Handling]] = []

    def add(self, batch: Batch, part: Part) -> None:
        """Add messages."""
        self._handlings.append((self.count, batch.base.handling))
        self._batches.append(batch)
        self._parts.append(part)
        self.count += part.mixed.bodies.count

    def put(self) -> None:
        """Put them on the queue, as a run. Batches get those back for which that cannot be done."""
        queue, run = self.queue, self._run()
        exchange = self._batches[0].channel.virtual_host.exchanges.get(self.template.exchange)
        route = None if exchange is None else Router.route_of_run(self.template, exchange)
        published = 0
        if route is not None and route.sole is queue and not queue.is_deleted and queue.takes_run(run):
            published = Router.put_run(run, route, queue)  # otherwise other connections have changed where they go
        if published and queue.stores(self.template):
            for batch in self._batches:
                batch.is_stored = True
        if published < self.count:
            self._leave(published)

    def _run(self) -> MessageRun:
        parts, template = self._parts, self.template
        if len(parts) == 1:
            return MessageRun(template, parts[0].mixed.bodies, SIZE_FIELD, len(template.header))
        bodies = Bodies.joined([part.mixed.bodies for part in parts])
        return MessageRun(template, bodies, SIZE_FIELD, len(template.header), handlings=tuple(self._handlings))

    def _leave(self, published: int) -> None:
        at = 0
        for batch, part in zip(self._batches, self._parts, strict=True):
            bodies = part.mixed.bodies
            numbers = memoryview(part.mixed.numbers).cast("I")
            for each in range(max(0, published - at), bodies.count):
                batch.left.append((numbers[each], part.target, bodies.body(each)))
            at += bodies.count


class Gathering:
    """The messages that are gathered in one tick.

    Args:
        tick: has them put on their queues at its end.
    """

    __slots__ = ("_batches", "_groups", "_last", "_next_skips", "_size", "_skips", "_tick")

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._batches: list[Batch] = []
        self._groups: list[Group] = []
        self._last: dict[tuple[Queue, bytes, bytes], Group] = {}  # those that can get more messages
        self._size = self._skips = 0
        self._next_skips = _MIN_SKIPS

    def is_worthwhile(self) -> bool:
        """Whether messages are to be gathered: not if queues got too few together of late."""
        if self._skips:
            self._skips -= 1
            return False
        return True

    def add(self, batch: Batch) -> None:
        """Add messages of a connection that has none here."""
        connection, tick = batch.channel.connection, self._tick
        if self._size >= MAX_GATHERED:
            self.put()
        self._batches.append(batch)
        for part in batch.parts:
            queue, routed = part.route.sole, part.target.routed
            assert queue is not None
            key = queue, routed, batch.likeness
            group = self._last.get(key)
            if group is None or group.count + part.mixed.bodies.count > MAX_RUN:
                group = self._last[key] = Group(queue, addressed(batch.base, part.target))
                self._groups.append(group)
            group.add(batch, part)
            self._size += len(part.mixed.bodies.data)
            if queue.stores(group.template):
                tick.journals.setdefault(queue.journal, False)  # the connection is one of those that write to it
        connection.gathering = self
        tick.gatherings[self] = None

    def put(self, *, is_trial: bool = True) -> None:
        """Put the messages on their queues, and have those of confirmed channels wait for their records.

        Args:
            is_trial: whether they show if gathering pays; not if their publisher's messages are not gathered.
        """
        batches, groups = self._batches, self._groups
        self._batches, self._groups, self._last, self._size = [], [], {}, 0
        count = 0
        for batch in batches:
            batch.channel.connection.gathering = None
            count += batch.count
        if is_trial and groups:
            if count >= _MIN_GATHERED * len(groups):
                self._next_skips = _MIN_SKIPS
            else:
                self._skips, self._next_skips = self._next_skips, min(2 * self._next_skips, _MAX_SKIPS)
        try:
            for group in groups:
                group.put()
            for batch in batches:
                _finish(batch)
        except MemoryError:  # it is unknown which messages are on their queues
            for batch in batches:
                batch.channel.connection.force_close("the broker is out of memory")
            raise


def addressed(base: BasicMessage, target: Target) -> BasicMessage:
    """A message without a body that was sent there, otherwise like another one."""
    return BasicMessage(
        base.header, b"", target.exchange, target.routing_key, target.routed, base.is_persistent, base.handling, 0.0
    )


def _finish(batch: Batch) -> None:
    """Have the confirms of a batch wait for the disk, and publish the messages that are left singly."""
    channel, number = batch.channel, batch.first
    confirms, end = channel.confirms, batch.first + batch.count
    if batch.left:
        batch.left.sort(key=_number)
    for index, target, body in batch.left:
        if confirms is not None and batch.is_stored and number < batch.first + index:
            confirms.ledger.hold_run(number, batch.first + index - 1)
        number = batch.first + index + 1
        header = SIZE_FIELD.set_in(batch.base.header, len(body))
        if channel.is_open:
            try:
                publish_numbered(channel, target, header, body, batch.first + index if confirms is not None else 0)
            except (ProtocolError, ModelError, Amqp091Error) as error:
                channel.connection.fail(channel, error, PUBLISH)
    if confirms is not None and batch.is_stored and number < end:
        confirms.ledger.hold_run(number, end - 1)
    if confirms is not None:
        channel.broker.tick.workers[channel] = None
