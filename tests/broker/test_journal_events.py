"""The events of the store's journals: when they are raised, and what consoles of both versions get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.events import (
    Event,
    JournalCreated,
    JournalEnqThresholdExceeded,
    JournalFull,
    JournalRecovered,
    QueueDeclare,
)
from qstore.formats.broker_records.xids import encode_dtx_xid
from tests.broker.test_management_methods import prepare
from tests.broker.wired_broker import Wired, wired
from tests.support.fake_store import Model
from tests.support.management_console import Console, take

_XID = encode_dtx_xid(1, b"global", b"branch")
_FILES, _FILE_BYTES = 4, 65_536  # of `wired`
_OF_JOURNALS = JournalCreated | JournalRecovered | JournalEnqThresholdExceeded | JournalFull
Scene = Callable[[Wired, list[Event]], Awaitable[None]]


def play(path: Path, scene: Scene) -> None:
    """A scene with a broker, and the events so far of journals and of queues declared."""

    async def on_stage() -> None:
        heard: list[Event] = []
        async with wired(path, heard.append) as stage:
            await scene(stage, heard)

    asyncio.run(on_stage())


def of_journals(heard: list[Event]) -> list[Event]:
    return [each for each in heard if isinstance(each, _OF_JOURNALS)]


async def fill(stage: Wired, queue: str) -> None:
    """Publish until the journal refuses, and once more."""
    for _ in range(2):
        with pytest.raises(ResourceLimitExceededError, match="Enqueue capacity threshold exceeded"):
            await stage.publish("", queue, *[b"x" * 1000] * 1000)
    await stage.synced()


def test_a_journal_is_created_before_its_queue_is_declared_and_a_transient_queue_has_none(tmp_path: Path) -> None:
    async def scene(stage: Wired, heard: list[Event]) -> None:
        heard.clear()
        await stage.topology.declare_queue("transient")
        await stage.topology.declare_queue("orders", durable=True)
        await stage.topology.declare_queue("orders", durable=True)
        assert [(type(each), each[0]) for each in of_journals(heard)] == [(JournalCreated, "orders")]
        kinds = [type(each) for each in heard]
        assert kinds == [QueueDeclare, JournalCreated, QueueDeclare, QueueDeclare]
        assert heard[1] == JournalCreated("orders", _FILE_BYTES, _FILES)

    play(tmp_path, scene)


def test_recovered_journal_emits_its_content(tmp_path: Path) -> None:
    async def before(stage: Wired, _heard: list[Event]) -> None:
        for name in ("empty", "q"):
            await stage.topology.declare_queue(name, durable=True)
        await stage.publish("", "q", b"1", b"2")
        await prepare(stage, _XID, b"3")

    async def after(_stage: Wired, heard: list[Event]) -> None:
        assert set(of_journals(heard)) == {
            JournalRecovered("empty", _FILE_BYTES, _FILES, 0, 0, 0, 0),
            JournalRecovered("q", _FILE_BYTES, _FILES, 3, 1, 1, 0),
        }

    play(tmp_path, before)
    play(tmp_path, after)


def test_dequeue_in_an_in_doubt_branch_emits_an_event(tmp_path: Path) -> None:
    async def before(stage: Wired, _heard: list[Event]) -> None:
        await stage.topology.declare_queue("q", durable=True)
        await stage.publish("", "q", b"1", b"2")
        queue, distributed = stage.broker.default_host.queues["q"], stage.broker.distributed
        taker = await stage.consumer(queue)
        branch = distributed.start(_XID)
        branch.work.accept(queue, taker.taken[0])
        distributed.leave(branch, has_failed=False)
        prepared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        branch.prepare(lambda _status, error: prepared.set_result(error))
        stage.broker.tick.schedule()
        assert await prepared is None

    async def after(_stage: Wired, heard: list[Event]) -> None:
        assert of_journals(heard) == [JournalRecovered("q", _FILE_BYTES, _FILES, 2, 1, 0, 1)]

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_journal_that_refuses_messages_is_reported_once_until_it_accepts_one(tmp_path: Path) -> None:
    async def scene(stage: Wired, _heard: list[Event]) -> None:
        console = Console(stage)
        await console.open()
        queue = await stage.topology.declare_queue("orders", durable=True)
        created, _declared = take(console.events)[-2:]
        assert created.key.startswith("agent.ind.event.org_apache_qpid_legacystore.created.note.")
        assert created.content[0]["_values"] == {"jrnlId": "orders", "fileSize": _FILE_BYTES, "numFiles": _FILES}
        for _ in range(2):
            await fill(stage, "orders")
            (event,) = [each for each in take(console.events) if "legacystore" in each.key]
            assert event.key.startswith("agent.ind.event.org_apache_qpid_legacystore.enqThresholdExceeded.warn.")
            (content,) = event.content
            assert content["_severity"] == 4
            assert content["_values"]["jrnlId"] == "orders"
            assert content["_values"]["what"].startswith("enqueue capacity threshold exceeded")
            queue.purge()
            await stage.synced()

    play(tmp_path, scene)


def test_a_journal_without_any_room_is_full() -> None:
    model = Model()
    heard: list[Event] = []
    model.broker.events.listen(heard.append)
    model.store.refused("orders", True)
    assert heard == []  # it was called in the middle of an operation
    model.run()
    assert heard == [JournalFull("orders", "no record fits any more")]
