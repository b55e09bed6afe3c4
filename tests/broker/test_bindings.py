"""New bindings: initial values, exclusive bindings, and their records in the store."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from qstore.broker.model.arguments import EXCLUSIVE_BINDING, FED_OP, FED_ORIGIN, INITIAL_VALUE, SEQUENCE
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InternalError
from qstore.broker.model.exchanges.origins import BIND, MARK, SWEEP
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.topology.deletion import BINDINGS_AT_ONCE
from qstore.broker.settings import BrokerSettings
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.broker.wired_broker import PlainMessage, Wired, failing, play

ALONE = typed_map({EXCLUSIVE_BINDING: 1})
INITIAL = typed_map({INITIAL_VALUE: 1, SEQUENCE: 1})


def numbers(stage: Wired, queue: str) -> list[object]:
    return [
        plain_map(each.message.headers()).get(SEQUENCE) for each in stage.broker.default_host.queues[queue].available()
    ]


@pytest.mark.parametrize("has_store", [False, True])
class TestInitialValue:
    def test_each_new_binding_gets_the_last_message_if_it_asks_for_it(self, tmp_path: Path, has_store: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("x", "topic", arguments=INITIAL)
            for name in ("early", "late", "other"):
                await topology.declare_queue(name)
            await topology.bind("early", "x", "a.*")
            await stage.publish("x", "a.b", b"1", b"2", persistent=False)
            await topology.bind("late", "x", "#")
            await topology.bind("other", "x", "b.*")
            await topology.bind("early", "x", "a.*")
            assert stage.bodies("early") == [b"1", b"2"]
            assert stage.bodies("late") == [b"2"]
            assert stage.bodies("other") == []
            assert (numbers(stage, "early"), numbers(stage, "late")) == ([0, 1], [1])
            await topology.bind("early", "x", "#")  # another binding, so another copy
            assert stage.bodies("early") == [b"1", b"2", b"2"]

        play(tmp_path if has_store else None, scene)

    def test_waiting_consumer_gets_the_initial_value_at_once(self, tmp_path: Path, has_store: bool) -> None:
        async def scene(stage: Wired) -> None:
            await stage.topology.declare_exchange("x", "fanout", arguments=INITIAL)
            await stage.publish("x", "k", b"1")
            queue = await stage.topology.declare_queue("q", durable=True)
            taker = await stage.consumer(queue)
            await stage.topology.bind("q", "x", "")
            await stage.synced()
            while stage.broker.tick.flushes_under_way:
                await asyncio.sleep(0)
            await stage.synced()
            assert [each.message.body for each in taker.taken] == [b"1"]

        play(tmp_path if has_store else None, scene)

    def test_nothing_that_has_expired(self, tmp_path: Path, has_store: bool) -> None:
        async def scene(stage: Wired) -> None:
            await stage.topology.declare_exchange("x", "fanout", arguments=typed_map({INITIAL_VALUE: 1}))
            for name in ("late", "in time"):
                await stage.topology.declare_queue(name)
            message = stage.message("k", b"1")
            message.expires_at = stage.broker.clock() + 1000
            stage.broker.router.publish(message, stage.broker.default_host.exchanges["x"])
            await stage.topology.bind("in time", "x", "")
            message.expires_at = stage.broker.clock() - 1
            await stage.topology.bind("late", "x", "")
            assert [stage.broker.default_host.queues[name].message_count for name in ("in time", "late")] == [1, 0]

        play(tmp_path if has_store else None, scene)


class TestInitialValueOnDisk:
    def test_is_kept_like_any_message_and_not_offered_to_recovered_bindings(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            await stage.topology.declare_exchange("x", "direct", durable=True, arguments=INITIAL)
            await stage.topology.declare_queue("q", durable=True)
            await stage.publish("x", "k", b"1")
            await stage.topology.bind("q", "x", "k")
            await stage.synced()

        async def look(stage: Wired) -> None:
            assert stage.bodies("q") == [b"1"]
            exchange = stage.broker.default_host.exchanges["x"]
            assert exchange.arguments == INITIAL
            assert exchange.sent is not None
            assert exchange.sent.last is None

        play(tmp_path, make, look, look)

    def test_numbers_begin_again_after_a_restart(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            await stage.topology.declare_exchange("x", "direct", durable=True, arguments=INITIAL)
            await stage.topology.declare_queue("q", durable=True)
            await stage.topology.bind("q", "x", "k")

        async def send(stage: Wired) -> None:
            before = len(stage.bodies("q"))
            await stage.publish("x", "k", b"1", b"2")
            assert numbers(stage, "q")[before:] == [0, 1]

        play(tmp_path, make, send, send)

    def test_a_queue_without_room_is_bound_and_goes_without(self, caplog: pytest.LogCaptureFixture) -> None:
        async def scene() -> None:
            broker = Broker(
                BrokerSettings(queue_limit_bytes=MESSAGE_OVERHEAD + 4, event_threshold_percent=0),
                None,
                asyncio.get_running_loop().call_soon,
            )
            await broker.default_host.topology.declare_exchange("x", "fanout", arguments=INITIAL)
            await broker.default_host.topology.declare_queue("q")
            broker.router.publish(PlainMessage("q", b"1234"), broker.default_host.exchanges[""])
            broker.router.publish(PlainMessage("k", b"56"), broker.default_host.exchanges["x"])
            assert await broker.default_host.topology.bind("q", "x", "") is not None
            assert [each.message.body for each in broker.default_host.queues["q"].available()] == [b"1234"]

        asyncio.run(scene())
        assert [each.getMessage().partition(":")[0] for each in caplog.records if each.levelname == "WARNING"] == [
            'Queue "q" did not get an earlier message of "x"'
        ]


class TestExclusive:
    def test_the_new_binding_alone_is_there_after_a_restart(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            for name in ("a", "b", "c"):
                await stage.topology.declare_queue(name, durable=True)
                await stage.topology.bind(name, "amq.direct", "other")
            for name in ("a", "b"):
                await stage.topology.bind(name, "amq.direct", "k")
            assert await stage.topology.bind("c", "amq.direct", "k", ALONE) is not None
            assert await stage.topology.bind("c", "amq.direct", "k", ALONE) is None
            await stage.publish("amq.direct", "k", b"1")
            assert [stage.bodies(name) for name in "abc"] == [[], [], [b"1"]]

        async def look(stage: Wired) -> None:
            bound = {(queue, key) for _, queue, key in stage.bindings()}
            assert bound == {("a", "other"), ("b", "other"), ("c", "other"), ("c", "k")}
            assert stage.store is not None
            assert len(stage.store.topology.bindings) == 4

        play(tmp_path, make, look, look)

    def test_an_ordinary_binding_that_came_later_is_there_after_a_restart(self, tmp_path: Path) -> None:
        """Its queue is the older one: what counts is the order of the bindings."""

        async def make(stage: Wired) -> None:
            for name in ("older", "newer"):
                await stage.topology.declare_queue(name, durable=True)
            await stage.topology.bind("newer", "amq.direct", "k", ALONE)
            await stage.topology.bind("older", "amq.direct", "k")

        async def look(stage: Wired) -> None:
            assert stage.bindings() == {("amq.direct", "newer", "k"), ("amq.direct", "older", "k")}

        play(tmp_path, make, look, look)

    def test_a_transient_queue_takes_the_place_of_a_durable_one(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            await stage.topology.declare_queue("durable", durable=True)
            await stage.topology.declare_queue("transient")
            await stage.topology.bind("durable", "amq.direct", "k")
            await stage.topology.bind("transient", "amq.direct", "k", ALONE)

        async def look(stage: Wired) -> None:
            assert stage.bindings() == set()

        play(tmp_path, make, look)

    def test_unbound_deleted_and_bound_again(self, tmp_path: Path) -> None:
        async def make(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
            for name in ("a", "b"):
                await topology.declare_queue(name, durable=True)
            await topology.bind("a", "x", "k")
            await topology.bind("b", "x", "k", ALONE)  # "x" has a binding all the time, and stays
            assert stage.bindings() == {("x", "b", "k")}
            await topology.bind("a", "x", "k")
            await topology.delete_queue("b")
            assert stage.bindings() == {("x", "a", "k")}
            await topology.bind("a", "x", "k", ALONE)
            await topology.declare_queue("b", durable=True)

        async def go_on(stage: Wired) -> None:
            assert stage.bindings() == {("x", "a", "k")}
            await stage.topology.unbind("a", "x", "k")
            assert "x" not in stage.broker.default_host.exchanges

        async def look(stage: Wired) -> None:
            assert stage.bindings() == set()

        play(tmp_path, make, go_on, look)

    def test_an_old_binding_that_the_store_cannot_forget_loses_at_the_next_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def make(stage: Wired) -> None:
            for name in ("a", "b"):
                await stage.topology.declare_queue(name, durable=True)
            await stage.topology.bind("a", "amq.direct", "k")
            assert stage.store is not None
            with monkeypatch.context() as patch:
                patch.setattr(stage.store.changes, "delete_binding", failing)
                await stage.topology.bind("b", "amq.direct", "k", ALONE)
            assert stage.bindings() == {("amq.direct", "b", "k")}

        stored: list[int] = []

        async def look(stage: Wired) -> None:
            assert stage.bindings() == {("amq.direct", "b", "k")}
            assert stage.store is not None
            stored.append(len(stage.store.topology.bindings))

        play(tmp_path, make, look, look)
        assert stored == [2, 1]
        assert 'A replaced binding of queue "a" stays in the store until the next start' in caplog.text

    def test_a_binding_that_the_store_cannot_keep_replaces_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scene(stage: Wired) -> None:
            for name in ("a", "b"):
                await stage.topology.declare_queue(name, durable=True)
            await stage.topology.bind("a", "amq.direct", "k")
            assert stage.store is not None
            monkeypatch.setattr(stage.store.changes, "create_binding", failing)
            with pytest.raises(InternalError, match="the disk is broken"):
                await stage.topology.bind("b", "amq.direct", "k", ALONE)
            assert stage.bindings() == {("amq.direct", "a", "k")}

        play(tmp_path, scene)

    def test_the_place_taker_gets_the_initial_value_and_one_that_was_bound_does_not(self) -> None:
        async def scene(stage: Wired) -> None:
            await stage.topology.declare_exchange("x", "direct", arguments=INITIAL)
            for name in ("a", "b"):
                await stage.topology.declare_queue(name)
            await stage.topology.bind("a", "x", "k")
            await stage.publish("x", "k", b"1")
            await stage.topology.bind("a", "x", "k", ALONE)
            await stage.topology.bind("b", "x", "k", ALONE)
            assert (stage.bodies("a"), stage.bodies("b")) == ([b"1"], [b"1"])

        play(None, scene)


def test_another_broker_takes_back_many_bindings_in_turns() -> None:
    async def scene(stage: Wired) -> None:
        topology, exchange = stage.topology, stage.broker.default_host.exchanges["amq.direct"]
        marking, sweeping = typed_map({FED_OP: MARK}), typed_map({FED_OP: SWEEP})
        await topology.declare_queue("q")
        for number in range(3 * BINDINGS_AT_ONCE):
            await topology.bind("q", "amq.direct", str(number), typed_map({FED_OP: BIND, FED_ORIGIN: "there"}))
        await topology.bind("q", "amq.direct", "", marking)
        task = asyncio.ensure_future(topology.bind("q", "amq.direct", "", sweeping))
        left: list[int] = []
        while not task.done():
            await asyncio.sleep(0)
            left.append(sum(1 for _ in exchange.bindings))
        assert {0, BINDINGS_AT_ONCE, 2 * BINDINGS_AT_ONCE} <= set(left)

    play(None, scene)


def test_marks_end_with_their_queue() -> None:
    async def scene(stage: Wired) -> None:
        topology = stage.topology
        for keys in ("", "k"):
            await topology.declare_queue("of a route")
            for key in keys:
                await topology.bind("of a route", "amq.direct", key, typed_map({FED_OP: BIND, FED_ORIGIN: "there"}))
            await topology.bind("of a route", "amq.direct", "", typed_map({FED_OP: MARK}))
            await topology.delete_queue("of a route")
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Queue) and each.name == "of a route"]

    play(None, scene)
