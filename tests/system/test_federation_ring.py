"""Three brokers in a ring with durable dynamic routes, under load, one of which is killed every few seconds.

Each broker has a publisher, and a queue that gets what is published anywhere. `QSTORE_SOAK_SECONDS` is how long it
lasts (`pytest -m soak -s`), 300 by default.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from functools import partial

import pytest

from qstore.broker.client import Connection, Empty, Message, MessagingError
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.system.test_federation import address, bindings, is_linked, route, start_again, until

SECONDS = float(os.environ.get("QSTORE_SOAK_SECONDS", "300"))
KILL_EVERY = 5.0
_AT_ONCE = 20


class Client(threading.Thread):
    """Does something with a broker, with a new connection after each failure, until `is_over` is set."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(daemon=True)
        self.broker, self.is_over = broker, threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                with Connection(address(self.broker), reconnect=False) as connection:
                    self.work(connection)
            except (MessagingError, OSError):
                time.sleep(0.1)

    def work(self, connection: Connection) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes numbered messages; `confirmed` has those that are safe."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        super().__init__(broker)
        self.name, self.next = name, 0
        self.confirmed: set[str] = set()

    def work(self, connection: Connection) -> None:
        sender = connection.session().sender("ring", capacity=100)
        while not self.is_over.is_set():
            contents = [f"{self.name}-{self.next + number}" for number in range(_AT_ONCE)]
            self.next += _AT_ONCE
            for content in contents:
                sender.send(Message(content, durable=True, subject="k"), sync=False)
            sender.sync()
            self.confirmed.update(contents)
            time.sleep(0.2)


class Consumer(Client):
    """Takes messages from the queue; `taken` counts them."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(broker)
        self.taken: Counter[str] = Counter()

    def work(self, connection: Connection) -> None:
        session = connection.session()
        receiver = session.receiver("all", capacity=100)
        while not self.is_over.is_set():
            try:
                self.taken[str(receiver.fetch(timeout=0.5).content)] += 1
            except Empty:
                continue
            session.acknowledge(sync=False)


def is_source(broker: RunningBroker) -> bool:
    """Whether another broker's route has bound its queue."""
    return any("bridge" in str(each["queueRef"]) for each in bindings(broker))


@pytest.mark.soak
def test_nothing_is_lost_and_nothing_loops_while_brokers_of_a_ring_are_killed(make_broker: BrokerMaker) -> None:
    names = ("a", "b", "c")
    brokers = [
        make_broker("--federation-tag", name, "--link-maintenance-interval", "0.5").start() for name in names
    ]  # fmt: skip
    for broker in brokers:
        with Connection(address(broker)) as connection:
            session = connection.session()
            session.invoke("exchange.declare", exchange="ring", type="topic", durable=True)
            session.sender("all; {create: always, node: {durable: true}}").close()
            session.invoke("exchange.bind", queue="all", exchange="ring", binding_key="#")
    for number, broker in enumerate(brokers):
        route("-d", "--ack", "10", "dynamic", "add", address(broker), address(brokers[number - 1]), "ring")
    for broker in brokers:
        until(partial(is_source, broker))
    publishers = [Publisher(broker, name) for broker, name in zip(brokers, names, strict=True)]
    consumers = [Consumer(broker) for broker in brokers]
    for client in (*publishers, *consumers):
        client.start()
    chance, kills, memory = random.Random(1), 0, []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(KILL_EVERY)
        memory.append(max(broker.resident_bytes() for broker in brokers))
        victim = chance.choice(brokers)
        victim.kill()
        kills += 1
        start_again(victim)
    for publisher in publishers:
        publisher.is_over.set()
        publisher.join(PATIENCE_SECONDS)
    for broker in brokers:
        until(partial(is_linked, broker))
    confirmed = set().union(*(publisher.confirmed for publisher in publishers))
    deadline = time.monotonic() + 120
    while any(confirmed - consumer.taken.keys() for consumer in consumers) and time.monotonic() < deadline:
        time.sleep(0.5)
    before = [sum(consumer.taken.values()) for consumer in consumers]
    time.sleep(5)
    after = [sum(consumer.taken.values()) for consumer in consumers]
    for consumer in consumers:
        consumer.is_over.set()
        consumer.join(PATIENCE_SECONDS)
    third = max(1, len(memory) // 3)
    first, last = max(memory[:third]), max(memory[-third:])
    print(
        f"{kills} kills; {len(confirmed)} messages confirmed; taken {after}; at most "
        f"{[max(consumer.taken.values()) for consumer in consumers]} times; memory {first >> 20} -> {last >> 20} MiB"
    )  # fmt: skip
    for name, consumer in zip(names, consumers, strict=True):
        lost = confirmed - consumer.taken.keys()
        assert not lost, f"{name} misses {len(lost)} of {len(confirmed)}: {sorted(lost)[:10]}"
        assert max(consumer.taken.values()) < 10, f"{name}: a message goes round"
    assert before == after, "messages still come"
    assert last < 1.5 * first
