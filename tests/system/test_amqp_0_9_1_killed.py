"""A broker is killed under pika's load, again and again: no confirmed message is lost, and
redelivered ones are marked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from typing import Any, Final

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from qstore import Connection, Empty
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker

KILLS: Final = 3
QUEUE: Final = "orders"
WINDOW: Final = 100
_PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


class Ledger:
    """What the clients know, over all lives of the broker.

    Attributes:
        sent: number of the last message.
        confirmed: numbers that the broker has confirmed.
        received: numbers that came to a consumer.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed: set[int] = set()
        self.received: set[int] = set()


class Client:
    """One connection of pika on the event loop, with one channel that publishes or consumes."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self.ledger = ledger
        self.is_closed = asyncio.get_running_loop().create_future()
        self._unconfirmed: dict[int, int] = {}  # delivery tag -> number
        self._tag = 0
        self._connection = AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", port),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_close_callback=lambda *_: self.is_closed.done() or self.is_closed.set_result(None),
        )

    def opened(self, channel: Any) -> None:
        raise NotImplementedError


class Publisher(Client):
    def opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._told, callback=lambda _: self._fill())

    def _fill(self) -> None:
        while len(self._unconfirmed) < WINDOW and self._channel.is_open:
            self.ledger.sent += 1
            self._tag += 1
            self._unconfirmed[self._tag] = self.ledger.sent
            self._channel.basic_publish("", QUEUE, b"%d" % self.ledger.sent, _PERSISTENT)

    def _told(self, frame: Any) -> None:
        method = frame.method
        assert method.NAME == "Basic.Ack"
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [each for each in self._unconfirmed if each <= method.delivery_tag]
        self.ledger.confirmed.update(self._unconfirmed.pop(each) for each in tags)
        self._fill()


class Consumer(Client):
    def opened(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=WINDOW // 2)
        channel.basic_consume(QUEUE, self._received)

    def _received(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        number = int(body)
        if number in self.ledger.received:
            assert method.redelivered, f"message {number} comes again, and is not marked"
        self.ledger.received.add(number)
        if number % 10 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)


async def live(broker: RunningBroker, ledger: Ledger, wanted: int) -> None:
    """One life of the broker: until `wanted` messages are confirmed."""
    clients = [Publisher(broker.port, ledger), Consumer(broker.port, ledger)]
    end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    before = len(ledger.confirmed)
    while len(ledger.confirmed) < before + wanted:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.002)
    broker.kill()
    await asyncio.gather(*(each.is_closed for each in clients))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A tool."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def left(broker: RunningBroker, *, by_0_10: bool) -> list[tuple[int, bool]]:
    """What is on the queue: numbers, and whether they are marked as redelivered. It stays there."""
    if by_0_10:
        with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
            receiver = session.receiver(f"{QUEUE}; {{mode: browse}}")
            found = []
            with contextlib.suppress(Empty):
                while True:
                    message = receiver.fetch(timeout=0.2)
                    found.append((int(message.content), bool(message.redelivered)))
            return found
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel, found = connection.channel(), []
        while True:
            method, _, body = channel.basic_get(QUEUE)
            if method is None:
                return found
            found.append((int(body), method.redelivered))


def test_nothing_confirmed_is_lost(make_broker: BrokerMaker) -> None:
    broker, ledger, chance = make_broker().start(), Ledger(), random.Random(7)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        connection.channel().queue_declare(QUEUE, durable=True)
    for life in range(KILLS):
        asyncio.run(live(broker, ledger, chance.randrange(200, 1500)))
        broker.start()
        found = left(broker, by_0_10=life % 2 == 0)
        numbers = [number for number, _ in found]
        assert numbers == sorted(numbers), "the order is kept"
        assert ledger.confirmed <= ledger.received | set(numbers)
        assert set(numbers) <= set(range(1, ledger.sent + 1))
    numbers = [number for number, _ in left(broker, by_0_10=False)]
    assert ledger.confirmed <= ledger.received | set(numbers)
    assert broker.stop() == 0
    store = str(broker.data_directory)
    check = run("-m", "qstore.tools.qstore_check", store)
    assert check.returncode == 0, check.stdout
    lines = run("-m", "qstore.tools.qstore_dump", store, "--outstanding", "--json").stdout.splitlines()
    dumped = [found for line in lines if (found := json.loads(line))["kind"] == "message"]
    assert [int(each["body"]) for each in dumped] == numbers
    assert {(each["protocol"], each["delivery_mode"], each["routing_key"]) for each in dumped} == {("0-9-1", 2, QUEUE)}
