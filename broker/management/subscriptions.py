"""Subscriptions of version 2: consoles get what has changed among the objects of a query, without polling.

    request                         content                             reply
    ------------------------------  ----------------------------------  ----------------------------------------------
    _subscribe_request              _query, as of `_query_request`;     _subscribe_response: _subscription_id,
                                    _duration in s, _interval in ms     _duration, _interval; then _data_indication
    _subscribe_refresh_indication   _subscription_id, _duration         _subscribe_response, if there is a reply-to
    _subscribe_cancel_indication    _subscription_id                    none

Indications go to the reply-to of the request, with its correlation id. The first has all objects that fulfil the query;
later ones, once in an interval, those that are new or have changed, and those that are gone, without values and with
`_delete_ts`. Nothing is sent if nothing has changed. A query of ids (OBJECT_ID) only has new ones.

A subscription ends when it is cancelled, when its duration is over and was not refreshed, with the connection of its
console, or with an `_exception` when its query may not be made any more. It belongs to its user: no one else can
refresh or cancel it.

Of each object only a hash of its values is kept. Sweeps are done one after the other, in time slices, and pause for
longer than they take: however many subscriptions there are, they leave most of the processor to others. Subscriptions,
the sizes of their queries, and the objects that all of them watch together are limited.

Source: Qpid wiki, "QMF Map Message Protocol" (seed 004, lines 19303-19316, 19515-19551).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from qstore.broker.management.classes import class_of, find_object, prepare
from qstore.broker.management.request import UnknownObjectError
from qstore.broker.model.errors import InvalidArgumentError, ModelError, ResourceLimitExceededError
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.values import TypedMap
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.qmf2 import Qmf2
    from qstore.broker.management.request import Request
    from qstore.broker.model.caller import Caller

MAX_SUBSCRIPTIONS: Final = 1000
MAX_OF_CONNECTION: Final = 100
MAX_QUERY_BYTES: Final = 1 << 14
MAX_WATCHED: Final = 200_000
"""Objects that all subscriptions together watch."""
DURATIONS: Final = (10, 600, 86_400)
"""Seconds: the shortest, the one of those who ask for none, the longest."""
MIN_INTERVAL, MAX_INTERVAL = 1000, 3_600_000
"""Milliseconds."""
_PAUSE: Final = 2.0  # times as long as a sweep took
_MAX_PAUSE: Final = 5.0  # seconds


class _Subscription:
    """One subscription.

    Attributes:
        request: whose reply-to gets the indications.
        query: what it is about.
        duration, interval: in seconds.
        ends, next: when it ends, and when it is swept next, by the monotonic clock.
        seen: the objects of the last sweep by name: the hashes of their values; None before the first sweep.
    """

    __slots__ = ("duration", "ends", "interval", "next", "query", "request", "seen")

    def __init__(self, request: Request, query: TypedMap, duration: float, interval: float, now: float) -> None:
        self.request, self.query, self.duration, self.interval = request, query, duration, interval
        self.ends, self.next = now + duration, now
        self.seen: dict[str, int] | None = None


class Subscriptions:
    """The subscriptions of one broker's consoles.

    Args:
        managed: the broker.
        codec: finds and describes objects, and sends replies.
    """

    def __init__(self, managed: ManagedBroker, codec: Qmf2) -> None:
        self._managed, self._codec = managed, codec
        self._of: dict[str, _Subscription] = {}
        self._watched = 0
        self._is_under_way = False

    def __len__(self) -> int:
        return len(self._of)

    # ---- requests ----

    def subscribe(self, asked: TypedMap, request: Request) -> dict[str, Any]:
        """Begin a subscription. Returns the content of the reply. Raises ModelError."""
        query = _map(asked, "_query")
        if request.reply_to is None or request.caller.is_closed:
            raise InvalidArgumentError("a subscription needs a reply-to for its indications, and an open connection")
        if len(encode_map(query)) > MAX_QUERY_BYTES:
            raise InvalidArgumentError(f"the query of a subscription has at most {MAX_QUERY_BYTES:,} bytes")
        self._codec.selection(query, request.caller)
        of_connection = sum(each.request.caller.remote_host == request.caller.remote_host for each in self._of.values())
        if len(self._of) >= MAX_SUBSCRIPTIONS or of_connection >= MAX_OF_CONNECTION:
            raise ResourceLimitExceededError("there are too many subscriptions")
        duration = _number(asked, "_duration", DURATIONS[0], DURATIONS[1], DURATIONS[2])
        interval = _number(asked, "_interval", MIN_INTERVAL, self._managed.interval * 1000, MAX_INTERVAL)
        name = str(uuid4())
        self._of[name] = _Subscription(request, query, duration, interval / 1000, self._managed.broker.monotonic())
        return self._granted(name)

    def refresh(self, asked: TypedMap, request: Request) -> dict[str, Any]:
        """Begin the duration of a subscription anew. Returns the content of the reply. Raises ModelError."""
        name = self._found(asked, request.caller)
        found = self._of[name]
        found.duration = _number(asked, "_duration", DURATIONS[0], found.duration, DURATIONS[2])
        found.ends = self._managed.broker.monotonic() + found.duration
        return self._granted(name)

    def cancel(self, asked: TypedMap, request: Request) -> None:
        """End a subscription. Raises ModelError."""
        self._end(self._found(asked, request.caller))

    def disconnected(self, peer: str) -> None:
        """A connection is closed: its subscriptions end."""
        for name in [name for name, each in self._of.items() if each.request.caller.remote_host == peer]:
            self._end(name)

    def _granted(self, name: str) -> dict[str, Any]:
        found = self._of[name]
        return {
            "_subscription_id": name,
            "_duration": round(found.duration),
            "_interval": round(found.interval * 1000),
        }

    def _found(self, asked: TypedMap, caller: Caller) -> str:
        typed = asked.get("_subscription_id")
        value = None if typed is None else typed.value
        name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if not isinstance(name, str) or name not in self._of or self._of[name].request.caller.user != caller.user:
            raise UnknownObjectError(f"there is no subscription {printable(str(name))}")
        return name

    def _end(self, name: str) -> None:
        self._watched -= len(self._of.pop(name).seen or ())

    # ---- sweeps ----

    def is_due(self) -> bool:
        """Whether `publish` is to be called; to be asked about twice a second."""
        now = self._managed.broker.monotonic()
        for name in [name for name, each in self._of.items() if each.ends <= now]:
            self._end(name)
        return not self._is_under_way and any(each.next <= now for each in self._of.values())

    async def publish(self) -> None:
        """Send the indications that are due."""
        self._is_under_way = True
        try:
            while (name := self._next()) is not None:
                begun = time.perf_counter()
                await self._sweep(name, self._of[name])
                if self._next() is not None:
                    await asyncio.sleep(min(_PAUSE * (time.perf_counter() - begun), _MAX_PAUSE))
        finally:
            self._is_under_way = False

    def _next(self) -> str | None:
        """The subscription that has been due for the longest time."""
        now = self._managed.broker.monotonic()
        due = [(each.next, name) for name, each in self._of.items() if each.next <= now]
        return min(due)[1] if due else None

    async def _sweep(self, name: str, of: _Subscription) -> None:
        of.next = self._managed.broker.monotonic() + of.interval
        try:
            seen = await self._publish_changed(name, of)
            if seen is None:
                return
            self._watched += len(seen) - len(of.seen or ())
            of.seen = seen
            if self._watched > MAX_WATCHED:
                raise ResourceLimitExceededError("subscriptions watch too many objects")
        except ModelError as error:
            if name in self._of:
                self._end(name)
                self._codec.refuse(of.request, error)

    async def _publish_changed(self, name: str, of: _Subscription) -> dict[str, int] | None:
        """Send what has changed. Returns what there is now; None if the subscription ends meanwhile."""
        selection, slices = self._codec.selection(of.query, of.request.caller), self._managed.slices
        await prepare(self._managed, selection.classes)
        before, seen, is_first = of.seen or {}, dict[str, int](), of.seen is None
        portions = self._codec.indications(of.request, selection.kind)
        for each in selection.objects:
            if slices.is_over:
                await slices.next()
                if name not in self._of:
                    return None
            values = each.of.values(each.target)
            if selection.selects(each, values):
                seen[each.name] = digest = _hash(values) if selection.is_whole else 0
                if before.get(each.name) != digest:
                    portions.add(selection.describe(each, values))
        for gone in before if selection.is_whole else ():
            if slices.is_over:
                await slices.next()
                if name not in self._of:
                    return None
            if gone in seen:
                continue
            kind = class_of(gone)
            if kind is not None and find_object(self._managed, gone) is None:
                portions.add(self._codec.deleted(kind, gone))
        portions.flush(is_needed=is_first)
        return seen


def _hash(values: tuple[tuple[Any, ...], tuple[Any, ...]]) -> int:
    try:
        return hash(values)
    except TypeError:
        return hash(repr(values))


def _map(asked: TypedMap, name: str) -> TypedMap:
    typed = asked.get(name)
    if typed is None or not isinstance(typed.value, TypedMap):
        raise InvalidArgumentError(f"the request has no {name}")
    return typed.value


def _number(asked: TypedMap, name: str, low: float, usual: float, high: float) -> float:
    """A number in a request, the nearest within the limits; the usual one if it is not given, or 0."""
    typed = asked.get(name)
    value = None if typed is None else typed.value
    if value is None or value == 0:
        value = usual
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidArgumentError(f"{name} must be a number")
    return min(max(value, low), high)
