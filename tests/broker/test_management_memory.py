"""Management when memory is short: it sends nothing unsolicited, and no reply that would fill the memory."""

from __future__ import annotations

import pytest

from qstore.broker.management import outbox
from qstore.broker.management.outbox import TOPIC, Outbox
from qstore.broker.model.memory import MemoryCeiling, State
from qstore.broker.model.message import NewMessage
from qstore.broker.model.queues.limits import Capacity, Limit
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import Wired, wired
from tests.support.management_console import CONSOLE

_MIB = 1 << 20


class Stage:
    """An outbox whose messages go to some queues, and a ceiling whose usage the test says."""

    def __init__(self, stage: Wired, queues: int) -> None:
        self.wired, self.queues = stage, queues
        self.held = 0
        self.memory = stage.broker.memory = MemoryCeiling(100 * _MIB, lambda: self.held, lambda: self.held)
        self.outbox = Outbox(stage.broker, new_transfer)

    async def open(self) -> None:
        self.wired.broker.default_host.exchanges[TOPIC] = await self.wired.topology.declare_exchange("topic", "topic")
        for number in range(self.queues):
            await self.wired.topology.declare_queue(f"q{number}")
            await self.wired.topology.bind(f"q{number}", "topic", "#")

    def send(self, size: int, *, is_reply: bool = False) -> bool:
        """Send a message. Returns whether it is on all queues."""
        before = self.wired.broker.totals.messages
        self.outbox.send(
            NewMessage("key", EMPTY_MAP, content=bytes(size), exchange=TOPIC), reply_for=CONSOLE if is_reply else None
        )
        added = self.wired.broker.totals.messages - before
        assert added in (0, self.queues)
        return added > 0


async def test_output_to_a_console_that_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUE_BYTES", 2500)
    async with wired() as wired_broker:
        stage = Stage(wired_broker, 1)
        await stage.open()
        queue = wired_broker.broker.default_host.queues["q0"]
        queue.limit = None  # as where the disk is the limit
        assert [stage.send(1000, is_reply=True) for _ in range(4)] == [True, True, True, False]
        queue.purge()
        assert stage.send(1000)
        queue.limit = Limit(Capacity(bytes=10_000))  # its own limit is what it may have
        assert all(stage.send(1000) for _ in range(4))


@pytest.mark.parametrize(
    ("held", "size", "unasked", "reply"),
    [(0, 1000, True, True), (79, 1000, True, True), (79, 2 * _MIB, False, True), (81, 1000, False, True),
     (94, 1000, False, True), (94, 2 * _MIB, False, True), (94, 7 * _MIB, False, False), (96, 1000, False, True)],
)  # fmt: skip
async def test_messages_are_sent_only_within_the_memory_limit(held: int, size: int, unasked: bool, reply: bool) -> None:
    async with wired() as wired_broker:
        stage = Stage(wired_broker, 1)
        await stage.open()
        stage.held = held * _MIB
        stage.memory.count()
        assert stage.send(size) is unasked
        assert stage.send(size, is_reply=True) is reply
        assert stage.outbox.lost == (not unasked) + (not reply)


async def test_it_counts_for_each_queue() -> None:
    async with wired() as wired_broker:
        stage = Stage(wired_broker, 50)
        await stage.open()
        assert not stage.send(2 * _MIB)
        assert stage.send(1 * _MIB)


async def test_replies_are_sent_from_a_reserve_while_memory_is_full() -> None:
    async with wired() as wired_broker:
        stage = Stage(wired_broker, 1)
        await stage.open()
        stage.held = 100 * _MIB
        stage.memory.count()
        first = wired_broker.broker.default_host.queues["q0"]
        assert [stage.send(_MIB, is_reply=True) for _ in range(8)] == [True] * 6 + [False] * 2  # half of it, by 1/8
        await wired_broker.topology.unbind("q0", "topic", "#")
        await wired_broker.topology.declare_queue("q1")
        await wired_broker.topology.bind("q1", "topic", "#")
        assert [stage.send(_MIB, is_reply=True) for _ in range(8)] == [True] * 6 + [False] * 2
        await wired_broker.topology.unbind("q1", "topic", "#")
        await wired_broker.topology.declare_queue("q2")
        await wired_broker.topology.bind("q2", "topic", "#")
        assert not stage.send(_MIB, is_reply=True)  # the others do not read
        first.purge()
        assert stage.send(_MIB, is_reply=True)
        stage.memory.exhausted("a test")
        assert not stage.send(1000, is_reply=True)


async def test_memory_that_is_free_again_is_used() -> None:
    async with wired() as wired_broker:
        stage = Stage(wired_broker, 1)
        await stage.open()
        stage.held = 100 * _MIB
        stage.memory.count()
        assert stage.memory.state is State.FULL
        assert not stage.send(1000)
        stage.held = 0
        stage.outbox._next_count = 0.0  # a second later
        assert stage.send(1000)
