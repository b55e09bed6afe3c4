"""Statistics in the log at intervals: what a line says, which objects have one, and what limits them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from qstore.broker.management import periodic_log
from qstore.broker.management.managed_broker import AT_ONCE
from qstore.broker.management.periodic_log import PeriodicLog
from qstore.broker.model.caller import Publisher
from qstore.broker.model.counters import MessageSizes
from qstore.broker.model.events import ClientConnect
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import Wired, play
from tests.support.management_console import managed, pass_time

Round = Callable[[float], Awaitable[list[str]]]


@pytest.fixture
def statistics(caplog: pytest.LogCaptureFixture) -> Callable[[Wired], Awaitable[Round]]:
    """Begins the log of a broker. What comes back waits for so many seconds, and returns what is logged then."""
    caplog.set_level(logging.INFO, "Model")

    async def begin(stage: Wired) -> Round:
        pass_time(stage.broker, 0)  # the clock stands still from now on
        log = PeriodicLog(managed(stage.broker), 60, lambda _work: None)
        await log.write()
        assert caplog.messages == []

        async def later(seconds: float) -> list[str]:
            caplog.clear()
            pass_time(stage.broker, seconds)
            await log.write()
            return list(caplog.messages)

        return later

    return begin


Begin = Callable[[Wired], Awaitable[Round]]


def of(kind: str, lines: list[str]) -> list[str]:
    return [text for _, text in (line.split(": ", 1) for line in lines) if text.startswith(kind)]


def test_rates_totals_peaks_and_sizes_of_a_queue(statistics: Begin) -> None:
    async def scene(stage: Wired) -> None:
        queue = await stage.topology.declare_queue("orders")
        later = await statistics(stage)
        for _ in range(20):
            await stage.publish("", "orders", b"x" * 100, persistent=False)
        (line,) = of("queue", await later(10))
        size = queue.totals.bytes_enqueued
        assert line == (
            f'queue "orders": in 2.0 messages/s ({size // 10} bytes/s), out 0.0 messages/s (0 bytes/s); '
            f"so far in 20 messages ({size:,} bytes), out 0 messages (0 bytes); most in 2.0/s, out 0.0/s; "
            f"{size // 20} bytes a message; "
            f"has 20 messages, {size:,} bytes, 0 consumers, 1 binding, 0 messages on the disk alone"
        )
        await stage.publish("", "orders", b"x" * 100, persistent=False)
        queue.purge()
        (line,) = of("queue", await later(10))
        assert "in 0.1 messages/s" in line
        assert "out 2.1 messages/s" in line
        assert "most in 2.0/s, out 2.1/s" in line
        assert "has 0 messages, 0 bytes" in line

    play(None, scene)


def test_an_idle_object_is_told_once_and_the_broker_always(statistics: Begin) -> None:
    async def scene(stage: Wired) -> None:
        await stage.topology.declare_queue("q")
        later = await statistics(stage)
        assert [line.split(":")[1].split(";")[0] for line in await later(60)] == [" broker"]
        await stage.publish("", "q", b"x", persistent=False)
        kinds = {line.split(": ")[1].split(' "')[0] for line in await later(60)}
        assert kinds == {"broker", "virtual host", "exchange", "queue"}
        (line,) = of("queue", await later(60))
        assert line.startswith('queue "q": is idle; so far in 1 message (')
        assert of("queue", await later(60)) == []

    play(None, scene)


def test_the_broker_its_hosts_and_exchanges(statistics: Begin) -> None:
    async def scene(stage: Wired) -> None:
        await stage.topology.declare_queue("q")
        await stage.topology.bind("q", "amq.direct", "k")
        later = await statistics(stage)
        stage.broker.events.emit(ClientConnect("192.0.2.1:5", "guest", EMPTY_MAP), Publisher("192.0.2.1:5"))
        await stage.publish("amq.direct", "k", b"x", persistent=False)
        await stage.publish("amq.direct", "other", b"x", persistent=False)
        lines = await later(1)
        (broker,), (host,), (exchange,) = of("broker", lines), of("virtual host", lines), of("exchange", lines)
        for each in (broker, host):
            assert "so far in 1 message (" in each
            assert "1 connection so far" in each
        assert host.startswith('virtual host "/": in 1.0 messages/s')
        assert "bytes of memory" in broker
        assert 'exchange "amq.direct": in 2.0 messages/s' in exchange
        assert "out 1.0 messages/s" in exchange
        assert "has 1 binding, dropped 1 message (" in exchange
        await stage.topology.delete_queue("q")
        (host,) = of("virtual host", await later(1))
        assert "out 1.0 messages/s" in host

    play(None, scene)


def test_a_host_has_the_sums_of_more_queues_than_are_summed_up_at_once(statistics: Begin) -> None:
    async def scene(stage: Wired) -> None:
        count = 2 * AT_ONCE + 10
        for number in range(count):
            await stage.topology.declare_queue(f"q{number}")
        later = await statistics(stage)
        for number in range(count):
            await stage.publish("", f"q{number}", b"x", persistent=False)
        (host,) = of("virtual host", await later(1))
        assert f"has {count} messages, " in host
        assert f"in {count}.0 messages/s" in host

    play(None, scene)


def test_new_messages_by_size(statistics: Begin) -> None:
    async def scene(stage: Wired) -> None:
        later = await statistics(stage)
        sizes = stage.broker.message_sizes.setdefault("AMQP 1.0", MessageSizes())
        sizes.add(50, 3)
        sizes.add(200_000_000, 1)
        (line,) = of("broker", await later(1))
        assert "new messages by size: 3 up to 100 bytes, 1 up to any size" in line
        (line,) = of("broker", await later(1))
        assert "by size" not in line

    play(None, scene)


def test_the_store(statistics: Begin, tmp_path: Path) -> None:
    async def scene(stage: Wired) -> None:
        await stage.topology.declare_queue("q", durable=True)
        later = await statistics(stage)
        await stage.publish("", "q", b"x")
        (line,) = of("store", await later(1))
        assert line.startswith("store: in 1.0 messages/s")
        assert "has 1 message, 1 journal, " in line
        assert "bytes of the disk free" in line

    play(tmp_path, scene)


def test_lines_of_a_kind_have_a_limit(statistics: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_log, "MAX_LINES", 3)

    async def scene(stage: Wired) -> None:
        for number in range(5):
            await stage.topology.declare_queue(f"q{number}")
        later = await statistics(stage)
        for number in range(5):
            await stage.publish("", f"q{number}", b"x", persistent=False)
        lines = await later(60)
        assert len(of("queue", lines)) == 3
        assert lines[-1] == "Statistics of 60 s: 2 more queues left out"

    play(None, scene)
