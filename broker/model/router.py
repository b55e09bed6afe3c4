"""Routes messages from an exchange to queues: a message goes to all of them, or to none.

    queues    those that the exchange matches; if none, those that its alternate exchange matches, and so on
    room      every queue must have room, or the publisher is refused
    put       one record in the journal of each queue that stores the message, and an entry on every queue

Messages on a queue move to an alternate exchange in the same way: a message leaves its queue once it is stored at its
destination.

A message for more than `MAX_AT_ONCE` queues is put on them in turns (`Fanout`), each portion when the last one is on
the disk. Until then the input of its publisher is paused, and later moves wait behind it, so that each queue gets the
messages of one publisher, or of one queue, in order. If a portion is refused, the queues before it keep the message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from qstore.broker.model.authorization import Authorization
from qstore.broker.model.errors import (
    InternalError,
    ModelError,
    QueueOverflowError,
    RoutingLimitError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.exchanges.route import Alternate, Route, Routed, route_by_all
from qstore.broker.model.message import Message
from qstore.broker.model.queues.entry import ACQUIRED, MOVING, Entry
from qstore.broker.model.queues.flow_control import Stop
from qstore.broker.model.queues.queue import Queue, refusal
from qstore.broker.model.run import MIN_RUN, KeyedRun, MessageRun
from qstore.broker.model.store_protocol import Store
from qstore.broker.model.tick import Portion, Resume, Tick

MAX_RUN_COPIES: Final = 8_000
"""Messages times queues of a run that goes to several, at once: 4 to 6 ms in pure Python (`tests/bench/bench_runs`)."""

MAX_RUN_BYTES: Final = 8 << 20
"""Bytes of all these copies."""

MAX_NESTED: Final = 8
"""How many rings along a chain of exchanges displace messages of one another at once; the others follow later."""

MAX_AT_ONCE: Final = 150
"""Queues that one turn puts a message on: with the flush of their journals, some 10 ms (`tests/bench/bench_turns`)."""

MAX_CHECKED: Final = 2_500
"""Queues whose room is checked in one turn: about a millisecond."""


class Fanout:
    """A message on its way to many queues, or to one that cannot take it yet.

    Attributes:
        stops: the stopped queues among those that it was put on.
        error: why it cannot be put on all queues; None if it is, or was not tried yet.
        is_over: whether it is on all queues, or cannot be put on the rest.
        sent: the message if a full queue may send it on to its dead-letter exchange; None otherwise.
    """

    __slots__ = ("_done", "error", "is_over", "sent", "stops")

    def __init__(self) -> None:
        self.stops: list[Stop] = []
        self._done: Callable[[Exception | None], None] | None = None
        self.error: Exception | None = None
        self.is_over = False
        self.sent: Message | None = None

    def when_done(self, done: Callable[[Exception | None], None]) -> None:
        """Call back when the message is on all queues, and on the disk, or with the error that prevents it."""
        if self.is_over:
            done(self.error)
        else:
            self._done = done

    def end(self, error: Exception | None) -> None:
        """The message is on all queues, or cannot be put on the rest."""
        self.is_over, self.error = True, error
        if self.sent is not None and isinstance(error, QueueOverflowError):
            _overflow(self.sent, error)
        self.stops = [stop for stop in self.stops if stop[0].is_stopped]
        if self._done is not None:
            self._done(error)


class _Synced:
    """Waits for the records of a tick.

    Attributes:
        error: what prevented them from being written; None if they are on the disk.
    """

    __slots__ = ("_resume", "_tick", "error")

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self.error: Exception | None = None

    def wait(self, resume: Resume) -> None:
        """Call back when they are on the disk, or cannot be written."""
        self._resume = resume
        self._tick.when_synced(self._synced)

    def _synced(self, error: Exception | None) -> None:
        self.error = error
        self._resume()


class Router:
    """Publishes and moves the messages of one broker.

    Args:
        store: persists durable messages; None without persistence.
        tick: records which queues and journals were written to.
        authorization: checks what exchanges do on behalf of a message's publisher.

    Attributes:
        unroutable: number of messages dropped because no queue matched.
        stops: the stopped queues that the last message was put on; its publisher takes them (`flow_control`).
        fanout: if the last message is put on many queues: its publisher takes it (`take_fanout`).
        is_run_stored: whether the last run was stored.
    """

    def __init__(self, store: Store | None, tick: Tick, authorization: Authorization) -> None:
        self._store, self._tick, self._authorization = store, tick, authorization
        self.unroutable = 0
        self.is_run_stored = False
        self.stops: list[Stop] = []
        self.fanout: Fanout | None = None
        self._diverting = 0  # nesting depth of moves
        self._moving: dict[Entry, list[Callable[[Exception | None], None]]] = {}  # called when a move has ended

    def publish(self, message: Message, exchange: Exchange) -> bool:
        """Put a message on all queues that an exchange matches, or on none. Only its own routing key counts.

        Returns:
            Whether its completion must wait: for the records of this tick, and for the queues in `stops`.

        Raises:
            ResourceLimitExceededError: a queue has no room for it.
            InvalidArgumentError: the exchange numbers messages, and cannot decode this one's headers.
            InternalError: a journal cannot be written.
        """
        if not exchange.routes_by_key:
            return self.publish_to(message, exchange, self.route(message, exchange))
        route = exchange.routes.get(message.routing_key)
        if route is None:
            route = exchange.find(message.routing_key)
        queue = route.sole
        if queue is None or queue.dead_letter is not None:
            return self.publish_to(message, exchange, self._or_alternate(message, exchange, route))
        is_promised = queue.publish(message)  # as `publish_to`, in 0.8 µs, not 1.2 (bench_tricks)
        route.messages += 1
        route.bytes += message.size
        return is_promised

    def publish_run(self, run: MessageRun, exchange: Exchange) -> int:
        """As `publish`, of a run.

        Returns:
            How many of its messages were put on all queues; the others, or all, must be published singly.
            `is_run_stored` says whether their completion must wait for the records of this tick.
        """
        message = run.template
        route = self.route_of_run(message, exchange)
        if route is None:
            return 0
        queue = route.sole
        if queue is None:
            published = self._publish_run_to_all(run, route.queues)
        else:
            published = queue.publish_run(run)
            self.is_run_stored = queue.stores(message)
        route.messages += published
        route.bytes += run.size(0, published)
        return published

    def publish_keyed(self, run: KeyedRun, routes: Sequence[Route]) -> int:
        """As `publish_run`, by the routes of its templates, all of which lead to the same queues, one or more."""
        queue, one = routes[0].sole, routes[0]
        if queue is None:
            published = self._publish_run_to_all(run, one.queues)
        else:
            published = queue.publish_run(run)
            self.is_run_stored = queue.stores(run.template)
        if all(route is one for route in routes):
            one.messages += published
            one.bytes += run.size(0, published)
        else:
            for number in range(published):
                routes[run.kinds[number]].count(run.size(number, 1))
        return published

    @staticmethod
    def put_run(run: MessageRun, route: Route, queue: Queue) -> int:
        """As `publish_run`, by a route that `route_of_run` has found in this tick, which takes it."""
        published = queue.put_run(run)
        route.messages += published
        route.bytes += run.size(0, published)
        return published

    @staticmethod
    def route_of_run(template: Message, exchange: Exchange) -> Route | None:
        """The route of all messages like this one; None if each has to be routed, or refused, by itself."""
        try:
            if exchange.routes_by_key:
                route = exchange.routes.get(template.routing_key)
                return exchange.find(template.routing_key) if route is None else route
            if not exchange.is_even or exchange.sent is not None or exchange.receiver is not None:
                return None
            return None if exchange.onward is not None else exchange.route(template)
        except RoutingLimitError:
            return None

    def _publish_run_to_all(self, run: MessageRun, queues: Sequence[Queue]) -> int:
        """Put the first messages of a run, as many as take one turn, on all of these queues. Returns how many."""
        if not 0 < len(queues) <= MAX_AT_ONCE:
            return 0
        most = min(MAX_RUN_COPIES, MAX_RUN_BYTES // (run.largest + 1)) // len(queues)
        if most < run.count:
            run = run.beginning(most)
        if run.count < MIN_RUN or not all(queue.takes_run(run) for queue in queues):
            return 0
        if any(queue.eligibility is not None for queue in queues):
            return self._publish_run_to_each(run, queues)
        stored = [queue for queue in queues if queue.stores(run.template)]
        rids: dict[Queue, int] = {}
        count = run.count
        if stored:
            assert self._store is not None
            head, field, bodies = run.stored_form()
            found, count = self._store.append.enqueue_run_to_all(
                [queue.journal for queue in stored], head, field, bodies, count, MIN_RUN
            )
            if not count:
                return 0
            rids = dict(zip(stored, found, strict=True))
        for queue in queues:
            queue.add_run(run, 0, count, rids.get(queue, 0))
        self.is_run_stored = bool(rids)
        return count

    def _publish_run_to_each(self, run: MessageRun, queues: Sequence[Queue]) -> int:
        """As `_publish_run_to_all`, for queues that do not all store the same bytes."""
        self.is_run_stored = False
        for queue in queues:
            done = queue.publish_run(run)
            for number in range(done, run.count):  # its journal has no room for all of them at once
                queue.publish(run.message(number))
            self.is_run_stored = self.is_run_stored or queue.stores(run.template)
        return run.count

    def leaves_memory(self, message: Message, exchange: Exchange) -> bool:
        """Whether a message would go to journals only, because none of its queues has to keep it in memory."""
        if not message.is_persistent or (exchange.receiver is not None and exchange.receiver.takes(message)):
            return False
        queues = route_by_all(message, exchange).queues
        return bool(queues) and all(
            queue.journal is not None and queue.residency is not None and queue.residency.takes_index
            for queue in queues
        )

    def route(self, message: Message, exchange: Alternate) -> Routed:
        """The route of a message: the queues of the exchange, or else of its alternate exchange.

        The caller counts the message (`count`).
        """
        return self._or_alternate(message, exchange, route_by_all(message, exchange))

    @staticmethod
    def _or_alternate(message: Message, exchange: Alternate, route: Routed) -> Routed:
        """The route, or the first one with queues along the alternate exchanges: exchanges before it count a drop."""
        if route.queues or exchange.alternate is None or message.handling.discards_unroutable:
            return route
        asked: set[Alternate] = {exchange}
        steps = 0
        while not route.queues and exchange.alternate is not None and exchange.alternate not in asked:
            route.count(message.size)
            exchange = exchange.alternate
            asked.add(exchange)
            steps -= exchange.steps
            route = route_by_all(message, exchange)
            steps += exchange.steps
            if steps > MAX_STEPS:
                text = f'exchange "{exchange.name}": the alternate exchanges take more than {MAX_STEPS:,} steps'
                raise RoutingLimitError(text)
        return route

    @staticmethod
    def destinations(message: Message, exchange: Exchange) -> Sequence[Queue]:
        """The queues that a message would be offered, if it was published now: nothing is published, nor counted.

        Of an exchange that takes messages itself, such as a delayed one, that is the route without this. Raises
        RoutingLimitError.
        """
        asked: dict[Alternate, None] = {}
        at: Alternate | None = exchange
        queues: Sequence[Queue] = ()
        while not queues and at is not None and at not in asked:
            asked[at] = None
            queues = route_by_all(message, at).queues
            at = at.alternate
        return queues

    def count(self, message: Message, route: Routed) -> None:
        """Count a message that was routed."""
        route.count(message.size)
        if not route.queues:
            self.unroutable += 1

    def route_immediate(self, message: Message, exchange: Exchange) -> Routed:
        """As `route`, for an immediate message.

        Unless every matching queue has a consumer that can take it now, the message is unroutable. Source: AMQP 0-10,
        delivery-properties, immediate. (qpidd ignores that bit.)
        """
        route = route_by_all(message, exchange)
        if not all(queue.has_taker() for queue in route.queues):
            route = exchange.no_route
        return self._or_alternate(message, exchange, route)

    def publish_to(self, message: Message, exchange: Exchange, route: Routed) -> bool:
        """As `publish`, with a known route."""
        if exchange.receiver is not None and exchange.receiver.takes(message):
            taken = exchange.receiver.receive(message, self._put_received, self._authorization)
            if isinstance(taken, Fanout):
                self.fanout = taken
                return True
            return taken
        sent = exchange.sent
        queues = route.queues
        if sent is not None:
            message = sent.number(message)
            queues = sent.keeping(message, queues)
        try:
            is_promised = self._put(message, queues)
        except QueueOverflowError as error:
            _overflow(message, error)
            raise
        if self.fanout is not None:
            self.fanout.sent = message
        if sent is not None:
            sent.keep(message)
        self.count(message, route)
        return is_promised

    def put(self, message: Message, queues: Sequence[Queue]) -> bool:
        """Put a message on all of these queues, or on none: no publisher waits for stopped queues.

        Returns and raises as `publish`. If they are many, what happens in later turns is not reported.
        """
        return bool(self._put_received(message, queues))

    def _put_received(self, message: Message, queues: Sequence[Queue]) -> bool | Fanout:
        """As `put`, for an exchange that takes the message of a publisher, who may have to wait until it is there."""
        held, before = len(self.stops), self.fanout  # those of the publisher whose message makes others move
        try:
            if self._tick.turns.has(self) or len(queues) > MAX_AT_ONCE:
                return self._fan_out(message, queues)
            return self._put(message, queues)
        finally:
            del self.stops[held:]
            self.fanout = before

    def _put(self, message: Message, queues: Sequence[Queue]) -> bool:
        if len(queues) == 1:
            return queues[0].publish(message)
        if len(queues) > MAX_AT_ONCE:
            self._fan_out(message, queues)
            return True
        return self._publish_to_all(message, queues)

    def take_fanout(self) -> Fanout | None:
        """The last message on its way to many queues, once."""
        fanout, self.fanout = self.fanout, None
        return fanout

    def _fan_out(self, message: Message, queues: Sequence[Queue]) -> Fanout:
        """Put a message on many queues in turns, after those for which this is under way. Raises as `publish`."""
        fanout = Fanout()
        self._tick.turns.do(self, self._put_in_turns(message, queues, fanout))
        if fanout.error is not None:
            raise fanout.error
        self.fanout = fanout
        return fanout

    def _put_in_turns(self, message: Message, queues: Sequence[Queue], fanout: Fanout) -> Iterator[Portion]:
        for begin in range(0, len(queues), MAX_CHECKED):
            error = self._checked(message, queues[begin : begin + MAX_CHECKED])
            if error is not None:
                fanout.end(error)
                return
            yield None
        for begin in range(0, len(queues), MAX_AT_ONCE):
            portion = [queue for queue in queues[begin : begin + MAX_AT_ONCE] if not queue.is_deleted]
            error = self._put_portion(message, portion, fanout)
            if error is not None:
                fanout.end(error)
                return
            if message.is_persistent:
                synced = _Synced(self._tick)
                yield synced.wait
                if synced.error is not None:
                    fanout.end(synced.error)
                    return
            else:
                self._tick.schedule()
                yield None
        fanout.end(None)

    @staticmethod
    def _checked(message: Message, queues: Sequence[Queue]) -> Exception | None:
        """The error for a message if one of these queues has no room for it."""
        try:
            for queue in queues:
                queue.check_room(message)
        except (ModelError, MemoryError) as error:
            return error.with_traceback(None)
        return None

    def _put_portion(self, message: Message, queues: Sequence[Queue], fanout: Fanout) -> Exception | None:
        """Put a message on some of its queues. Returns the error that prevents it."""
        held = len(self.stops)
        try:
            self._publish_to_all(message, queues)
        except (ModelError, MemoryError) as error:
            return error.with_traceback(None)
        finally:
            fanout.stops += self.stops[held:]
            del self.stops[held:]
        return None

    def _publish_to_all(self, message: Message, queues: Sequence[Queue]) -> bool:
        is_changed = False
        for queue in queues:
            queue.check_room(message)
            is_changed = is_changed or queue.changes_messages
        if is_changed:  # the copies differ
            held = len(self.stops)
            try:
                waits = [queue.publish(message) for queue in queues]
            except Exception:
                del self.stops[held:]  # the publish is refused, so the publisher waits for none
                raise
            return any(waits)
        kept = [queue for queue in queues if queue.stores(message)]
        if not kept:
            is_stopped = False
            for queue in queues:
                if queue.admits(message) and queue.throttles(queue.add(message, 0)):
                    is_stopped = True
            return is_stopped
        assert self._store is not None
        parts, size, crc = message.stored_form()
        try:
            rids = self._store.append.enqueue_all([queue.journal for queue in kept], parts, size, crc)
        except self._store.errors as error:
            raise refusal(self._store, error) from error
        by_queue = dict(zip(kept, rids, strict=True))
        for queue in queues:
            rid = by_queue.get(queue, 0)
            if rid:
                queue.throttles(queue.add_held(message, rid))
            elif queue.admits(message):
                queue.throttles(queue.add(message, 0))
        return True

    def divert(self, queue: Queue, entry: Entry) -> bool:
        """Move an acquired message that others displace, without waiting for the result.

        It goes to the dead-letter exchange of its queue, or else to its alternate exchange.

        Returns:
            False if there is no such exchange, or no room; the message is then still acquired.
        """
        if queue.is_deleted or (queue.dead_letter is None and queue.alternate is None):
            return False
        if self._diverting >= MAX_NESTED:
            self._tick.when_synced(partial(self._divert_later, queue, entry))
            return True
        self._diverting += 1
        try:
            if queue.dead_letter is not None:
                return queue.dead_letter.displace(queue, entry)
            assert queue.alternate is not None
            self.move(queue, entry, queue.alternate, _ignore)
        except (ModelError, MemoryError):
            return False
        finally:
            self._diverting -= 1
        return True

    def _divert_later(self, queue: Queue, entry: Entry, error: Exception | None) -> None:
        """As `divert`, but discard a message for which there is no room."""
        if error is None and not queue.is_deleted and entry.state == ACQUIRED and not self.divert(queue, entry):
            with contextlib.suppress(InternalError):
                queue.dequeue(entry)

    def is_moving(self, entry: Entry) -> bool:
        """Whether a message is being moved: it has not left its queue yet, or its removal is not on the disk yet."""
        return entry in self._moving

    def move(
        self,
        queue: Queue,
        entry: Entry,
        exchange: Alternate,
        done: Callable[[Exception | None], None],
        message: Message | None = None,
    ) -> None:
        """Move an acquired message to where an exchange routes it; it leaves its queue once it is stored there.

        If it is being moved already, or is gone, only wait for that to be final.

        Args:
            queue: its queue.
            entry: the message.
            exchange: routes it.
            done: called when it has left its queue for good, or with the error that prevents it.
            message: put there in its place; None for the message itself.

        Raises:
            As `publish`; the message is then still acquired.
        """
        if entry.state == MOVING:
            self._moving[entry].append(done)
            return
        if entry.state != ACQUIRED:
            if queue.dequeue(entry):
                self._tick.when_synced(done)
            else:
                done(None)
            return
        moved_message = (entry.message if message is None else message).whole()
        route = self.route(moved_message, exchange)
        entry.state = MOVING  # so that it is not displaced if the exchange leads back to its queue
        fanout: Fanout | None = None
        is_held = True
        try:
            if len(route.queues) > MAX_AT_ONCE or self._tick.turns.has(self):
                before = self.fanout
                fanout = self._fan_out(moved_message, route.queues)
                self.fanout = before
            else:
                is_held = self.put(moved_message, route.queues)
        except BaseException:
            entry.state = ACQUIRED
            raise
        self.count(moved_message, route)
        self._moving[entry] = [done]
        self._tick.schedule()

        if fanout is not None:
            fanout.when_done(partial(self._leave, queue, entry))
        elif is_held and entry.rid:
            self._tick.when_synced(partial(self._leave, queue, entry))
        else:
            self._leave(queue, entry, None)

    def _leave(self, queue: Queue, entry: Entry, error: Exception | None) -> None:
        """Remove a message that was stored at its destination from its queue; after an error it stays."""
        is_written = False
        moved = partial(self._moved, entry)
        if entry.state != MOVING:  # it was accepted meanwhile
            queue.dequeue(entry)  # waits for that record
            self._tick.when_synced(moved)
            return
        if error is None and entry.rid and queue.deletion is not None:
            queue.deletion.dequeue(entry, moved)
            return
        entry.state = ACQUIRED
        if error is None and not queue.is_deleted:
            try:
                is_written = queue.dequeue(entry)
            except InternalError as failure:
                error = InternalError(str(failure))  # a new one: `failure` references this frame
        if is_written:
            self._tick.when_synced(moved)
        else:
            moved(error)

    def _moved(self, entry: Entry, error: Exception | None) -> None:
        """Finish a move: the message has left its queue for good, or an error keeps it there."""
        if entry.state == MOVING:  # it could not leave
            entry.state = ACQUIRED
        for each in self._moving.pop(entry):
            each(error)


def _overflow(message: Message, error: QueueOverflowError) -> None:
    """Send a refused message to the queue's dead-letter exchange, if the queue is declared so."""
    queue: Queue = error.queue
    if error.is_dead and queue.dead_letter is not None:
        queue.dead_letter.overflow(queue, message)


def _ignore(_error: Exception | None) -> None:
    """Nothing to do: a message that cannot leave its queue stays acquired, and is available after a restart."""
