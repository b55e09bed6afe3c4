"""What the broker is: its managed objects, sampled over one QMF connection, with rates of their counters and history.

The broker answers a query in time slices of its event loop, so what is asked for costs its clients something. Therefore

    a sample     has all objects of a class, and serves all requests that accept its age
    age          a request says how old a sample may be; one that took long to get is used for `PATIENCE` times as long,
                 so that at most one part in `PATIENCE` of the time goes into samples, however many ask
    interval     the classes of the plots are sampled at an interval, whether anybody asks or not

A rate is the difference of a counter between the newest sample and a base, which is one to two intervals older.

The history has the sums of all queues and, of the queues with the most traffic, each queue: `TIERS` says in which
steps, and for how long. It is an SQLite file that is written once in a step, so that a kill loses no more than that;
without a file it is kept in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qstore.broker.client import AuthenticationError, MessagingError
from qstore.broker.management.console import AgentError, Data
from qstore.broker.management.console.aio import Console
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.web.amqp import OWN_PROPERTY

INTERVAL: Final = 5.0
"""Seconds between two samples of the classes of the plots."""
PATIENCE: Final = 25
"""How many times as long as it took to get a sample is used."""
_RECONNECT_SECONDS: Final = (0.5, 10.0)  # between two attempts to connect: at first, and at last
SLOW_SECONDS: Final = 0.2
"""Samples that take longer are not waited for while there is an older one, unless something was changed."""
_EARLIER: Final = 0.8
"""Share of their age after which samples are taken anyway, so that requests rarely find none that is young enough."""
IDLE_SECONDS: Final = 1.0
"""What has not changed for so long is idle."""
_ACTIVITY: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": ("msgTotalEnqueues", "msgTotalDequeues", "acquires", "releases", "consumerCount"),
    "session": ("unackedMessages", "TxnStarts", "TxnCommits", "TxnRejects", "framesOutstanding"),
    "connection": ("msgsFromClient", "msgsToClient"),
}
"""Class -> what changes when one of its objects is used."""
_AT_ONCE: Final = 256  # objects that are compared before others are served
PLOTTED: Final = ("broker", "queue", "connection", "exchange", "session")
_LOG: Final = logging.getLogger("qstore.console")


class UnavailableError(Exception):
    """The broker cannot be asked. The text is one line for the user."""


class Sample(NamedTuple):
    """The objects of a class at one moment.

    Attributes:
        at: seconds since 1970.
        clock: the same on the monotonic clock.
        objects: by key.
    """

    at: float
    clock: float
    objects: Mapping[str, Data]


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest sample of a class, and the base of its rates.

    Attributes:
        now: the newest sample.
        base: an older one; None at first.
        unused: key -> since when an object is known not to have been used, in seconds since 1970.
    """

    now: Sample
    base: Sample | None
    unused: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Between the two; 0 without a base."""
        return 0.0 if self.base is None else self.now.clock - self.base.clock

    def __iter__(self) -> Iterator[Data]:
        return iter(self.now.objects.values())

    def idle_since(self, key: str) -> float | None:
        """Since when an object is idle, in seconds since 1970, as far as samples tell; None if it is not."""
        since = self.unused.get(key)
        return since if since is not None and self.now.at - since >= IDLE_SECONDS else None

    def rate(self, key: str, *names: str) -> float:
        """Growth of a counter, or of the sum of several, of an object per second."""
        seconds = self.seconds
        before = None if self.base is None else self.base.objects.get(key)
        if before is None or seconds <= 0:
            return 0.0
        data = self.now.objects[key]
        growth = sum(_number(data.get(name)) - _number(before.get(name)) for name in names)
        return round(max(0, growth) / seconds, 2)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Class:
    """The samples of one class."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self.cost = 0.0
        self.is_stale = False
        self.is_wanted_new = False  # by the sample under way, because of a change
        self.lock = asyncio.Lock()


class Collector:
    """The samples of a broker.

    Args:
        url: the broker.
        options: of the connection.
        history: where the history is kept.
        interval: seconds between two samples of the classes of the plots.
        wall, clock: the time.

    Attributes:
        url, interval, history: as above.
        problem: why the broker cannot be asked; empty if it can.
        churn: objects that were seen to come and go since the start, by name.
        seconds: how long all samples took.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        history: History,
        *,
        interval: float = INTERVAL,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self.history, self.interval = url, history, interval
        self._wall, self._clock = wall, clock
        properties = {OWN_PROPERTY: True, "product": "qstore-console"}
        self._options = {"client_properties": properties, "heartbeat": 10, "connect_timeout": 10.0, **options}
        self._console: Console | None = None
        self._classes: dict[str, _Class] = {}
        self.problem = "the broker has not been sampled yet"
        self.churn: dict[str, int] = {}
        self.seconds = 0.0
        self._connecting = asyncio.Lock()

    # ---- the connection ----

    async def run(self) -> None:
        """Sample the classes of the plots until cancelled, over connections that are opened again when they fail."""
        delay = _RECONNECT_SECONDS[0]
        while True:
            began = self._clock()
            try:
                for name in PLOTTED:
                    await self.get(name, self.interval / 2, patience=_EARLIER * PATIENCE)
                self._note_history()
                delay = _RECONNECT_SECONDS[0]
                pause = self.interval - (self._clock() - began)
            except UnavailableError:
                pause, delay = delay, min(delay * 2, _RECONNECT_SECONDS[1])
            except Exception:  # the console goes on without this sample
                _LOG.exception("sampling has failed")
                pause = self.interval
            await asyncio.sleep(max(0.1, pause))

    async def close(self) -> None:
        """End the connection, and write the history."""
        console, self._console = self._console, None
        if console is not None:
            with contextlib.suppress(MessagingError, OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await console.close()
        self.history.close()

    async def console(self) -> Console:
        """The console, connected. Raises UnavailableError."""
        async with self._connecting:
            if self._console is not None:
                return self._console
            console = Console(self.url, timeout=30.0, **self._options)
            try:
                await console.open()
            except AuthenticationError as error:
                raise self._unavailable(f"the broker does not admit the console: {error}") from None
            except (MessagingError, OSError) as error:
                raise self._unavailable(f"the broker cannot be reached: {error}") from None
            self._console, self.problem = console, ""
            return console

    def _unavailable(self, text: str) -> UnavailableError:
        self.problem = text
        return UnavailableError(text)

    async def _drop(self, error: Exception) -> UnavailableError:
        """The connection has failed: the next sample opens another one."""
        console, self._console = self._console, None
        if console is not None:
            with contextlib.suppress(MessagingError, OSError):
                await console.connection.close(0)
        return self._unavailable(f"the broker has not answered: {error}")

    # ---- samples ----

    async def get(self, name: str, age: float = 1.0, *, patience: float = PATIENCE) -> Seen:
        """The objects of a class.

        Args:
            name: of the class.
            age: how many seconds old the sample may be; more if it is costly.
            patience: how much more, in units of what it cost.

        Raises:
            UnavailableError: the broker cannot be asked.
        """
        of = self._classes.setdefault(name, _Class())
        is_changed = of.is_stale or of.is_wanted_new or bool(self.problem)
        if of.seen is not None and of.lock.locked() and of.cost > SLOW_SECONDS and not is_changed:
            return of.seen
        async with of.lock:
            seen = of.seen
            limit = 0.0 if of.is_stale else max(age, of.cost * patience)
            if seen is not None and not self.problem and self._clock() - seen.now.clock < limit:
                return seen
            console = await self.console()
            began, was_stale, of.is_stale = self._clock(), of.is_stale, False
            of.is_wanted_new = was_stale
            try:
                found = {data.key: data async for data in console.query(name)}
                was_stale = False
            except AgentError as error:
                raise UnavailableError(f"the broker does not let the console see its {name} objects: {error}") from None
            except (MessagingError, OSError) as error:
                raise await self._drop(error) from None
            finally:
                of.is_stale = of.is_stale or was_stale
                of.is_wanted_new = False
            of.cost = self._clock() - began
            self.seconds += of.cost
            now = Sample(self._wall(), self._clock(), found)
            self._note_churn(name, seen, now)
            of.seen = Seen(now, _base(seen, now, self.interval), await _unused(name, seen, now))
            return of.seen

    async def one(self, name: str, key: str, package: str = "org.apache.qpid.broker") -> Data | None:
        """One object as it is now; None if there is none. It joins the newest sample. Raises UnavailableError."""
        console = await self.console()
        try:
            found = [data async for data in console.query(object_id=f"{package}:{name}:{key}")]
        except (MessagingError, OSError) as error:
            raise await self._drop(error) from None
        of = self._classes.get(name)
        if of is not None and of.seen is not None:
            now = of.seen.now
            rest = {each: data for each, data in now.objects.items() if each != key}
            joined = {**rest, key: found[0]} if found else rest
            if found or key in now.objects:
                unused = of.seen.unused
                if not found or key not in now.objects or _is_used(_ACTIVITY.get(name, ()), now.objects[key], found[0]):
                    unused = {each: since for each, since in unused.items() if each != key}
                of.seen = Seen(now._replace(objects=joined), of.seen.base, unused)
        return found[0] if found else None

    def changed(self, *names: str) -> None:
        """Classes were changed by an operation: their next samples have to be new."""
        for name in names:
            if name in self._classes:
                self._classes[name].is_stale = True

    def _note_churn(self, name: str, seen: Seen | None, now: Sample) -> None:
        if name not in ("queue", "connection", "session"):
            return
        before = now.objects.keys() if seen is None else seen.now.objects.keys()
        for what, number in (
            ("created", len(now.objects.keys() - before)),
            ("closed", len(before - now.objects.keys())),
        ):
            self.churn[f"{name}_{what}"] = self.churn.get(f"{name}_{what}", 0) + number

    # ---- history ----

    def _note_history(self) -> None:
        queues = self._classes["queue"].seen
        assert queues is not None
        series: dict[str, Sequence[float]] = {}
        sums = [0.0] * len(SERIES)
        for data in queues:
            values = points_of(data)
            sums = [total + value for total, value in zip(sums, values, strict=True)]
            series[f"queue {data.key}"] = values
        self.history.add(queues.now.at, sums, series)


def _base(seen: Seen | None, now: Sample, interval: float) -> Sample | None:
    """The base of the rates of a new sample."""
    if seen is None:
        return None
    base = seen.base or seen.now
    newest = seen.now
    return newest if now.clock - base.clock >= 2 * interval and newest.clock > base.clock else base


def _is_used(names: Sequence[str], before: Data, now: Data) -> bool:
    """Whether an object was used between two looks at it."""
    old, new = before.values, now.values
    return any(old.get(name) != new.get(name) for name in names)


async def _unused(name: str, seen: Seen | None, now: Sample) -> dict[str, float]:
    """`Seen.unused` of a new sample."""
    names, found = _ACTIVITY.get(name, ()), dict[str, float]()
    if seen is None or not names:
        return found
    before, since, at = seen.now.objects, seen.unused, seen.now.at
    for number, (key, data) in enumerate(now.objects.items(), 1):
        last = before.get(key)
        if last is not None and last.created == data.created and not _is_used(names, last, data):
            found[key] = since.get(key, at)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


# ---- history ----

SERIES: Final = ("messages", "messages_ready", "messages_unacknowledged", "publish", "deliver", "ack", "redeliver")
"""What each point of a series has: three levels, and counters."""
LEVELS: Final = 3


class Tier(NamedTuple):
    """A resolution: seconds between two points, and how many there are."""

    step: int
    points: int


TIERS: Final = (Tier(5, 720), Tier(60, 1440), Tier(600, 1008))
"""An hour, a day, a week."""
MAX_SERIES: Final = 100
"""Queues that have a history, besides the sums of all."""
TOTAL: Final = "total"
_REMOVED_AT_ONCE: Final = 60  # points of a series: to look for old ones costs a scan


def points_of(data: Data) -> list[float]:
    """The values of `SERIES` of a queue."""
    depth, unacknowledged = _number(data.get("msgDepth")), _number(data.get("unackedMessages"))
    return [
        depth, max(0, depth - unacknowledged), unacknowledged, _number(data.get("msgTotalEnqueues")),
        _number(data.get("acquires")), _number(data.get("msgTotalDequeues")), _number(data.get("releases")),
    ]  # fmt: skip


class History:
    """Series of points, in three resolutions, bounded.

    Args:
        path: the file; None for memory only.

    Raises:
        OSError, sqlite3.Error: the file cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        self._database = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS point (tier INTEGER, series TEXT, at INTEGER, numbers BLOB,"
            " PRIMARY KEY (tier, series, at)) WITHOUT ROWID"
        )
        self._last = dict.fromkeys(range(len(TIERS)), 0)
        self._added = dict.fromkeys(self._last, 0)
        for tier in self._last:
            row = self._database.execute("SELECT max(at) FROM point WHERE tier = ?", (tier,)).fetchone()
            self._last[tier] = row[0] or 0

    def add(self, at: float, total: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
        """Add a point of each series, in those resolutions that are due.

        When the clock was set back, points of the time to come are removed, and so many seconds before: what counters
        have grown by meanwhile would be a peak there.

        Args:
            at: seconds since 1970.
            total: the sums.
            series: name -> values; those with the most traffic are kept.
        """
        due = [tier for tier, (step, _) in enumerate(TIERS) if int(at) // step != self._last[tier] // step]
        if not due:
            return
        if len(series) > MAX_SERIES:
            busiest = sorted(series, key=lambda name: -(series[name][LEVELS] + series[name][0]))[:MAX_SERIES]
        else:
            busiest = list(series)
        rows = [(TOTAL, _packed(total)), *((name, _packed(series[name])) for name in busiest)]
        with contextlib.closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN")
            for tier in due:
                step, points = TIERS[tier]
                back = self._last[tier] - int(at)
                if back > 0:
                    cursor.execute("DELETE FROM point WHERE tier = ? AND at > ?", (tier, int(at) - back))
                self._last[tier] = int(at)
                cursor.executemany(
                    "INSERT OR REPLACE INTO point VALUES (?, ?, ?, ?)",
                    ((tier, name, int(at), values) for name, values in rows),
                )
                self._added[tier] += 1
                if self._added[tier] % _REMOVED_AT_ONCE == 1:
                    cursor.execute("DELETE FROM point WHERE tier = ? AND at < ?", (tier, int(at) - step * points))
            cursor.execute("COMMIT")

    def points(self, series: str, age: float, at: float) -> list[tuple[int, array[float]]]:
        """The points of a series of the last `age` seconds, oldest first, as fine as there are any."""
        tier = next((each for each, (step, points) in enumerate(TIERS) if step * points >= age), len(TIERS) - 1)
        rows = self._database.execute(
            "SELECT at, numbers FROM point WHERE tier = ? AND series = ? AND at >= ? AND at <= ? ORDER BY at",
            (tier, series, int(at - age), int(at) + 1),
        )
        return [(moment, array("d", values)) for moment, values in rows if len(values) == len(SERIES) * 8]

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _packed(values: Sequence[float]) -> bytes:
    return array("d", values).tobytes()
