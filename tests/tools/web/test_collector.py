"""Samples, their age and rates, on a clock that the tests set; and the history, in memory and on disk."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.client import ConnectionFailedError
from qstore.broker.management.console import Data, ObjectId
from qstore.tools.web.collector import MAX_SERIES, SERIES, TIERS, TOTAL, Collector, History, UnavailableError


class Clock:
    """The time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeConsole:
    """Answers queries with what the test says, each in `cost` seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.cost = clock, 0.0
        self.objects: dict[str, dict[str, Any]] = {}
        self.queries = 0
        self.fails = False
        self.gate: asyncio.Event | None = None
        self.connection = self

    async def query(self, name: str | None = None, *, object_id: str = "") -> AsyncIterator[Data]:
        self.queries += 1
        self.clock.now += self.cost
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise ConnectionFailedError("it is gone")
        for key, values in self.objects.items():
            if name is not None or object_id.endswith(f":{key}"):
                yield Data(dict(values), ObjectId(f"p:queue:{key}"))

    async def close(self, _timeout: float = 0) -> None:
        pass


class Watched(Collector):
    """A collector of a fake console."""

    def __init__(self) -> None:
        self.time = Clock()
        self.fake = FakeConsole(self.time)
        super().__init__("nowhere", {}, History(None), wall=self.time, clock=self.time)

    async def console(self) -> Any:
        self.problem = ""
        return self.fake


async def test_a_sample_serves_all_requests_that_accept_its_age() -> None:
    watched = Watched()
    watched.fake.objects = {"a": {"n": 1}}
    await watched.get("queue", 1.0)
    watched.time.now += 0.9
    assert (await watched.get("queue", 1.0)).now.at == 1000.0
    watched.time.now += 0.2
    assert (await watched.get("queue", 1.0)).now.at == 1001.1
    assert watched.fake.queries == 2


async def test_a_costly_sample_is_used_for_longer() -> None:
    watched = Watched()
    watched.fake.cost = 2.0
    await watched.get("queue")
    watched.time.now += 49.0
    await watched.get("queue")
    assert watched.fake.queries == 1
    watched.time.now += 2.0
    await watched.get("queue")
    assert watched.fake.queries == 2


async def test_a_slow_sample_is_not_waited_for_while_there_is_an_older_one() -> None:
    watched = Watched()
    watched.fake.cost = 2.0
    first = await watched.get("queue")
    watched.time.now += 60.0
    watched.fake.gate = asyncio.Event()
    under_way = asyncio.create_task(watched.get("queue"))
    await asyncio.sleep(0)
    assert await watched.get("queue") is first
    watched.changed("queue")
    after_change = asyncio.create_task(watched.get("queue"))
    await asyncio.sleep(0)
    watched.fake.gate.set()
    assert (await under_way).now.at > first.now.at
    assert (await after_change).now.at > (await under_way).now.at
    assert watched.fake.queries == 3


async def test_a_sample_that_a_change_wants_is_waited_for() -> None:
    watched = Watched()
    watched.fake.cost = 2.0
    first = await watched.get("queue")
    watched.changed("queue")
    watched.fake.gate = asyncio.Event()
    under_way = [asyncio.create_task(watched.get("queue")) for _ in range(2)]
    await asyncio.sleep(0)
    watched.fake.gate.set()
    assert all([(await each).now.at > first.now.at for each in under_way])
    assert watched.fake.queries == 2


async def test_after_a_change_the_next_sample_is_new() -> None:
    watched = Watched()
    await watched.get("queue", 3600)
    watched.changed("queue", "unknown")
    watched.fake.objects = {"a": {}}
    assert (await watched.get("queue", 3600)).now.objects.keys() == {"a"}
    assert (await watched.get("queue", 3600)).now.objects.keys() == {"a"}
    assert watched.fake.queries == 2


async def test_rates_are_of_one_to_two_intervals() -> None:
    watched = Watched()
    seen = await watched.get("queue")
    for count in range(20):
        watched.fake.objects = {"a": {"n": 100 * count, "m": count}}
        seen = await watched.get("queue")
        if count > 6:
            assert seen.rate("a", "n") == pytest.approx(50.0)
            assert seen.rate("a", "n", "m") == pytest.approx(50.5)
            assert seen.seconds <= 10.0
        watched.time.now += 2.0
    watched.fake.objects = {"a": {"n": 0}, "b": {"n": 5}}
    seen = await watched.get("queue")
    assert (seen.rate("a", "n"), seen.rate("b", "n")) == (0.0, 0.0)  # begun anew; new


async def test_one_object_joins_and_leaves_the_sample() -> None:
    watched = Watched()
    watched.fake.objects = {"a": {"n": 1}}
    await watched.get("queue")
    watched.fake.objects = {"a": {"n": 2}, "b": {"n": 3}}
    found = await watched.one("queue", "b")
    assert found is not None
    assert found["n"] == 3
    assert (await watched.get("queue", 3600)).now.objects.keys() == {"a", "b"}
    del watched.fake.objects["a"]
    assert await watched.one("queue", "a") is None
    assert (await watched.get("queue", 3600)).now.objects.keys() == {"b"}


async def test_a_broker_that_is_gone_is_said_and_found_again() -> None:
    watched = Watched()
    await watched.get("queue")
    watched.fake.fails = True
    watched.time.now += 2.0
    with pytest.raises(UnavailableError, match="it is gone"):
        await watched.get("queue")
    assert watched.problem
    watched.fake.fails = False
    await watched.get("queue")
    assert not watched.problem


async def test_appearances_and_disappearances_are_counted() -> None:
    watched = Watched()
    for objects in ({"a": {}}, {"a": {}, "b": {}}, {"c": {}}):
        watched.fake.objects = objects
        watched.changed("queue")
        await watched.get("queue")
    assert watched.churn == {"queue_created": 2, "queue_closed": 2}


# ---- history ----

POINT = [float(number) for number in range(len(SERIES))]


def test_points_are_kept_in_each_resolution() -> None:
    history = History(None)
    for at in range(0, 7200, 5):
        history.add(at + 0.5, [at, *POINT[1:]], {"queue a": POINT})
    hour = history.points(TOTAL, 600, 7195)
    assert [at for at, _ in hour] == list(range(6595, 7200, 5))
    assert hour[-1][1][0] == 7195.0
    day = history.points("queue a", 4 * 3600, 7195)
    assert len(day) == 119
    assert history.points("queue b", 600, 7195) == []


def test_old_points_and_quiet_queues_are_left_out() -> None:
    history = History(None)
    step, points = TIERS[0]
    series = {f"queue {number}": [0.0, 0, 0, float(number), 0, 0, 0] for number in range(MAX_SERIES + 50)}
    for count in range(points + 200):
        history.add(float(count * step), POINT, series if count > points else {})
    at = (points + 200) * step
    assert len(history.points(TOTAL, step * points, at)) == points
    assert len(history.points("queue 149", step * points, at)) == 199
    assert not history.points("queue 3", step * points, at)
    count = history._database.execute("SELECT count(*) FROM point WHERE tier = 0 AND series = 'total'").fetchone()[0]
    assert count < points + 100


@pytest.mark.parametrize("hours", [3, -3])
def test_points_go_on_when_the_clock_is_set(hours: int) -> None:
    """No rate is far above what it was: the counter grows by one in a second."""
    history, at, counter = History(None), 100_000, 0
    for step in (0, hours * 3600, -hours * 3600):
        at += step
        for _ in range(100):
            at, counter = at + 5, counter + 5
            history.add(at, [0.0, 0, 0, counter, 0, 0, 0], {})
        found = history.points(TOTAL, 3600, at)
        assert [moment for moment, _ in found[-100:]] == list(range(at - 99 * 5, at + 5, 5))
        for age in (3600, 86_400, 7 * 86_400):
            points = [(moment, values[3]) for moment, values in history.points(TOTAL, age, at)]
            assert points[-1][0] > at - 600
            for before, after in itertools.pairwise(points):
                assert (after[1] - before[1]) / (after[0] - before[0]) < 2.5


def test_history_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "state" / "h.db"
    history = History(path)
    history.add(1000.0, POINT, {})
    again = History(path)  # while the first is not closed: as after a kill
    assert [at for at, _ in again.points(TOTAL, 100, 1001)] == [1000]
    again.add(1002.0, POINT, {})  # within the same step
    assert len(again.points(TOTAL, 100, 1003)) == 1
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    history.close()
    again.close()


def test_a_file_that_is_not_a_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(sqlite3.Error):
        History(path)
