"""Refused requests leave nothing in memory: no error, queue or message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.errors import ModelError, ResourceLimitExceededError
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import typed_map
from qstore.store.errors import StoreError
from tests.broker.wired_broker import Wired, failing, play
from tests.support.garbage import no_garbage

ROUNDS = 3
LARGE = bytes(20_000)


async def full_queue(stage: Wired, durable: bool) -> Queue:
    """A queue that takes no more: its journal is full, or it has as many messages as it may have."""
    arguments = typed_map({} if durable else {"qpid.max_count": 1})
    queue = await stage.topology.declare_queue("full", durable=durable, arguments=arguments)
    try:
        while True:
            await stage.publish("", "full", LARGE)
    except ResourceLimitExceededError:
        return queue


async def is_refused(asked: Awaitable[None]) -> bool:
    """As a session does: the error is looked at and forgotten, and so are the frames that it has passed."""
    try:
        await asked
    except ModelError as error:
        error.with_traceback(None)
        return True
    return False


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: pytest would keep it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)  # and forget which loggers were found to be off


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("asked_for", [True, False])
def test_a_queue_whose_messages_have_no_room_where_they_go(
    tmp_path: Path, quiet: None, durable: bool, asked_for: bool
) -> None:
    async def scene(stage: Wired) -> None:
        topology = stage.topology
        full = await full_queue(stage, durable)
        await topology.bind("full", "amq.direct", "q")
        with no_garbage(Queue, Message, ModelError):
            for _ in range(ROUNDS):
                queue = await topology.declare_queue("q", durable=durable, auto_delete=True, alternate="amq.direct")
                await stage.publish("", "q", LARGE, LARGE)
                if asked_for:
                    assert await is_refused(topology.delete_queue("q"))
                else:
                    await topology.delete_if_unused(queue)
                assert stage.bodies("q") == [LARGE, LARGE]
                queue.purge()
                await stage.synced()
                await topology.delete_queue("q")
                del queue
        assert full.message_count

    play(tmp_path if durable else None, scene)


def _refusing(*_arguments: Any) -> None:
    raise StoreError("the disk is broken")


@pytest.mark.parametrize("change", [failing, _refusing])
def test_an_exchange_that_the_store_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    async def scene(stage: Wired) -> None:
        topology = stage.topology
        assert stage.store is not None
        await topology.declare_queue("q", durable=True)
        with no_garbage(StoreError, ModelError, asyncio.Task):
            for _ in range(ROUNDS):
                await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
                await topology.bind("q", "x", "k")
                with monkeypatch.context() as patch:
                    patch.setattr(stage.store.changes, "delete_exchange", change)
                    assert await is_refused(topology.delete_exchange("x"))
                    await topology.unbind("q", "x", "k")
                await topology.delete_exchange("x")

    play(tmp_path, scene)
