"""A broker under load is killed, again and again; what it acknowledged holds in each later life."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from tests.support.processes import PATIENCE_SECONDS, children_of, stop_process
from tests.support.profiles import seeds_of_the_day, times
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.broker_ledger import Before, ConsumerLog, Ledger
from tests.system.broker_traffic import Actor, Consumer, Publisher, Route

KILLS: Final = 20
MESSAGES: Final = 40_000
QUEUES: Final = ("orders", "invoices", "letters", "events")
ROUTES: Final[dict[Route, tuple[str, ...]]] = {
    ("", "orders"): ("orders",),
    ("", "invoices"): ("invoices",),
    ("amq.direct", "mail"): ("letters",),
    ("amq.topic", "events.new"): ("events",),
    ("amq.fanout", ""): ("orders", "events"),
}
_PUBLISHERS: Final = 3
_SHARED: Final = "events"
"""The queue that two consumers have."""
_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "32")


class Story:
    """The lives of one broker, each checked against all that was before it."""

    def __init__(self, broker: RunningBroker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.was_clean = False
        self._serials = [0] * _PUBLISHERS

    def declare(self) -> None:
        """The queues and bindings, once."""
        with RawPeer(self.broker.port) as peer:
            for queue in QUEUES:
                peer.declare(queue)
            for (exchange, key), queues in ROUTES.items():
                for queue in queues if exchange else ():
                    peer.call("exchange.bind", exchange=exchange, queue=queue, binding_key=key)
            peer.end()

    def live(self, end: Callable[[Sequence[Actor]], None], *, publishing: bool = True) -> None:
        """One life of a broker that listens: traffic, until `end` has ended the broker, or the actors."""
        before = self.ledger.before(clean=self.was_clean)
        logs = [ConsumerLog(queue, queue != _SHARED) for queue in QUEUES] + [ConsumerLog(_SHARED, False)]
        actors = self._actors(logs, publishing=publishing)
        try:
            end(actors)
        finally:
            self._join(actors)
        self._check(before, logs, actors)

    def _actors(self, logs: Sequence[ConsumerLog], *, publishing: bool) -> list[Actor]:
        """The clients of one life, at work."""
        seeds = iter(self.random.sample(range(1 << 30), len(logs) + _PUBLISHERS))
        port, ledger = self.broker.port, self.ledger
        actors: list[Actor] = [Consumer(port, next(seeds), ledger, log, everything=not publishing) for log in logs]
        if publishing:
            numbers = range(_PUBLISHERS)
            actors += [Publisher(port, next(seeds), ledger, number, self._serials, ROUTES) for number in numbers]
        return actors

    @staticmethod
    def _join(actors: Sequence[Actor]) -> None:
        for actor in actors:
            actor.stopping.set()
        for actor in actors:
            actor.join(PATIENCE_SECONDS)
            assert not actor.is_alive()

    def _check(self, before: Before, logs: Sequence[ConsumerLog], actors: Sequence[Actor]) -> None:
        for actor in actors:
            if actor.error is not None:
                raise AssertionError(f"a client failed\n{self.broker.log_text()}") from actor.error
        self.ledger.check_life(before, logs)

    def wait_for_completed(self, count: int, actors: Sequence[Actor]) -> None:
        """Until `count` more publishes are completed, or a while has passed, or something is wrong."""
        wanted, end = len(self.ledger.completed) + count, time.monotonic() + PATIENCE_SECONDS
        while len(self.ledger.completed) < wanted and time.monotonic() < end and all(map(Actor.is_alive, actors)):
            time.sleep(0.002)

    def drain(self) -> None:
        """The last life: everything that must be there is delivered, and accepted, and then nothing is left."""
        must = self.ledger.outstanding()
        accepted = len(self.ledger.accepted)
        delivered_before = frozenset(self.ledger.accepted)

        def until_empty(_: Sequence[Actor]) -> None:
            end = time.monotonic() + PATIENCE_SECONDS
            with RawPeer(self.broker.port) as peer:
                while any(map(peer.message_count, QUEUES)) and time.monotonic() < end:
                    time.sleep(0.05)

        self.live(until_empty, publishing=False)
        lost = must - (self.ledger.accepted - delivered_before)
        assert not lost, f"{len(lost)} lost: {sorted(lost)[:10]}"
        assert len(self.ledger.accepted) > accepted
        self.broker.restart()
        with RawPeer(self.broker.port) as peer:
            assert [peer.message_count(queue) for queue in QUEUES] == [0] * len(QUEUES)
            peer.end()


def run_killed(broker: RunningBroker, seed: int, kills: int, messages: int) -> Story:
    """Kill a broker so many times while so many messages are published, and drain it."""
    story = Story(broker, seed)
    broker.start()
    story.declare()
    for number in range(kills):
        left = max(0, messages - len(story.ledger.completed))
        count = story.random.randrange(1 + 2 * left // (kills - number))

        def end(actors: Sequence[Actor], count: int = count) -> None:
            story.wait_for_completed(count, actors)
            time.sleep(story.random.random() * 0.02)
            broker.kill()

        if number % 6 == 5:  # while it starts, and reads its journals
            broker.stop()
            broker.launch()
            time.sleep(story.random.random() * 0.3)
            broker.kill()
        else:
            story.live(end)
        broker.start()

    def end_publishing(actors: Sequence[Actor]) -> None:
        while len(story.ledger.completed) < messages and all(map(Actor.is_alive, actors)):
            time.sleep(0.01)
        broker.kill()

    story.live(end_publishing)
    broker.start()
    story.drain()
    return story


@pytest.mark.core
def test_killed_again_and_again(make_broker: BrokerMaker) -> None:
    kills, messages = (KILLS // 2, MESSAGES // 2) if times() == 1 else (KILLS, MESSAGES)
    story = run_killed(make_broker(*_OPTIONS), seeds_of_the_day(1)[0], kills, messages)
    assert len(story.ledger.completed) >= messages
    assert len(story.ledger.accepted) >= messages // 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("QSTORE_SOAK_SEEDS", "4"))))
def test_killed_for_long(make_broker: BrokerMaker, seed: int) -> None:
    run_killed(make_broker(*_OPTIONS), seed, 5 * KILLS, 5 * MESSAGES)


def test_stopped_cleanly(make_broker: BrokerMaker) -> None:
    """After SIGTERM no accept that reached the broker is forgotten, and only what was delivered is marked."""
    broker = make_broker(*_OPTIONS)
    story = Story(broker, 6)
    broker.start()
    story.declare()

    def end(actors: Sequence[Actor]) -> None:
        story.wait_for_completed(story.random.randrange(2_000), actors)
        consumers = [actor for actor in actors if isinstance(actor, Consumer)]
        for consumer in consumers:
            consumer.quiet.set()
        for consumer in consumers:
            assert consumer.is_quiet.wait(PATIENCE_SECONDS) or not consumer.is_alive()
        assert broker.stop() == 0, broker.log_text()

    for _ in range(5):
        story.live(end)
        story.ledger.accepted.update(story.ledger.accepting)
        story.was_clean = True
        broker.start()
    story.drain()
    assert len(story.ledger.accepted) > 1_000


def test_accepts_that_wait_for_the_disk_when_it_is_stopped(make_broker: BrokerMaker) -> None:
    """SIGTERM while the process that syncs stands still: the broker waits for the disk, and nothing comes back.

    They are accepts of two queues at once: what only one journal waits for the broker may sync by itself.
    """
    broker = make_broker("--sync", "process").start()
    (helper,) = children_of(broker.pid)
    with RawPeer(broker.port) as peer:
        for queue in QUEUES[:2]:
            peer.declare(queue)
            peer.subscribe(queue, queue, messages=30, window=False)
        for number in range(100):
            peer.publish(QUEUES[number % 2], b"%d" % number)
        peer.sync()
        deliveries = sorted(peer.take(60), key=lambda delivery: int(delivery.body))
        stop_process(helper)
        try:
            accept = peer.accept(deliveries[:50], sync=True)
            while peer.process(0.3):
                pass
            assert accept not in peer.completed
            os.kill(broker.pid, signal.SIGTERM)
            time.sleep(0.2)
            assert broker.is_running()
        finally:
            os.kill(helper, signal.SIGCONT)
        assert broker.stop(0) == 0, broker.log_text()
    broker.start()
    with RawPeer(broker.port) as peer:
        for queue in QUEUES[:2]:
            peer.subscribe(queue, queue)
        back = sorted((int(delivery.body), delivery.redelivered) for delivery in peer.take(50))
        peer.end()
    assert back == [(number, number < 60) for number in range(50, 100)]
