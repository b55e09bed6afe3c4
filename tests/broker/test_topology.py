"""Every check of the topology, with and without a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.exchanges.exchange import BoundReply
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.wired_broker import Scene, Somebody, Wired, wired
from tests.broker.wired_broker import play as play_on


@pytest.fixture(params=["without a store", "transient", "durable"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scene], None]:
    """Plays a scene; where it says `durable=None`, things are durable or not, by the parameter."""

    def run(scene: Scene) -> None:
        play_on(None if request.param == "without a store" else tmp_path, scene)

    return run


@pytest.fixture
def durable(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["play"] != "transient"


async def refused(error: type[ModelError], asked: Awaitable[object], text: str | None = None) -> None:
    with pytest.raises(error, match=text):
        await asked


Play = Callable[[Scene], None]


class TestDeclareQueue:
    def test_made(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            arguments = typed_map({"who.knows": 1})
            queue = await stage.topology.declare_queue("q", durable=durable, auto_delete=True, arguments=arguments)
            assert stage.broker.default_host.queues == {"q": queue}
            assert (queue.name, queue.durable, queue.auto_delete) == ("q", durable, True)
            assert (queue.arguments, queue.owner, queue.alternate) == (arguments, None, None)
            assert (queue.journal is not None) == (durable and stage.store is not None)
            await stage.publish("", "q", b"x")
            assert stage.bodies("q") == [b"x"]

        play(scene)

    def test_again(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            first = await stage.topology.declare_queue("q", durable=durable)
            again = await stage.topology.declare_queue("q", durable=not durable, auto_delete=True, caller=Somebody())
            assert again is first
            assert (first.durable, first.auto_delete) == (durable, False)

        play(scene)

    def test_names(self, play: Play) -> None:
        async def scene(stage: Wired) -> None:
            declare = stage.topology.declare_queue
            await refused(InvalidArgumentError, declare(""))
            await refused(InvalidArgumentError, declare("", passive=True))
            await refused(NotAllowedError, declare("amq.mine"), "reserved")
            await refused(NotAllowedError, declare("amq.mine_1"), "reserved")
            await refused(NotAllowedError, declare("amq.topic"), "reserved")
            await refused(NotFoundError, declare("q", passive=True), "Queue not found: q")
            assert stage.broker.default_host.queues == {}
            await declare("amq.topic_0b2f64ea")  # so do Qpid's C++ clients name the queue of a subscription
            await declare("amq")
            await declare("qpid.q")

        play(scene)

    def test_passive(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            first = await stage.topology.declare_queue("q", durable=durable)
            assert await stage.topology.declare_queue("q", passive=True) is first

        play(scene)

    def test_alternate(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            declare = stage.topology.declare_queue
            await refused(NotFoundError, declare("q", durable=durable, alternate="none"), "Exchange not found: none")
            assert stage.broker.default_host.queues == {}
            queue = await declare("q", durable=durable, alternate="amq.fanout")
            assert queue.alternate is stage.broker.default_host.exchanges["amq.fanout"]
            assert await declare("q", alternate="amq.fanout") is queue
            assert await declare("q") is queue
            for passive in (False, True):
                await refused(NotAllowedError, declare("q", passive=passive, alternate="amq.direct"), "amq.fanout")
            await declare("plain")
            await refused(NotAllowedError, declare("plain", alternate="amq.direct"), "no alternate")

        play(scene)


class TestExclusive:
    def test_exclusive_queue_is_refused_to_other_sessions(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, mine, other = stage.topology, Somebody(), Somebody()
            queue = await topology.declare_queue("q", durable=durable, exclusive=True, caller=mine)
            assert queue.owner is mine
            await topology.bind("q", "amq.direct", "k", caller=mine)
            for asked in (
                topology.declare_queue("q", caller=other),
                topology.declare_queue("q", passive=True, exclusive=True, caller=other),
                topology.declare_queue("q", exclusive=True, caller=other),
                topology.bind("q", "amq.direct", "k2", caller=other),
                topology.unbind("q", "amq.direct", "k", caller=other),
                topology.delete_queue("q", caller=other),
            ):
                await refused(ResourceLockedError, asked, "exclusive to another session")
            assert stage.bindings() == {("amq.direct", "q", "k")}
            assert stage.broker.default_host.queues["q"] is queue
            assert await topology.declare_queue("q", passive=True, caller=other) is queue, "whoever asks is told"
            assert topology.bound("amq.direct", "q", "k") == BoundReply()

        play(scene)

    def test_the_owner_and_the_broker_may(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, mine = stage.topology, Somebody()
            queue = await topology.declare_queue("q", durable=durable, exclusive=True, caller=mine)
            assert await topology.declare_queue("q", exclusive=True, caller=mine) is queue
            assert await topology.declare_queue("q", passive=True, exclusive=True, caller=mine) is queue
            await topology.bind("q", "amq.direct", "k")
            await topology.unbind("q", "amq.direct", "k", caller=mine)
            await topology.delete_queue("q", caller=mine)
            assert stage.broker.default_host.queues == {}

        play(scene)

    def test_taking_one_that_is_there(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, mine = stage.topology, Somebody()
            queue = await topology.declare_queue("q", durable=durable)
            await refused(ResourceLockedError, topology.declare_queue("q", passive=True, exclusive=True, caller=mine))
            taker = await stage.consumer(queue)
            await refused(ResourceLockedError, topology.declare_queue("q", exclusive=True, caller=mine), "in use")
            assert queue.owner is None
            queue.remove_consumer(taker)
            await topology.declare_queue("q", exclusive=True, caller=mine)
            assert queue.owner is mine

        play(scene)


class TestDeleteQueue:
    def test_gone(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            queue = await topology.declare_queue("q", durable=durable)
            await topology.declare_queue("other", durable=durable)
            for name in ("q", "other"):
                await topology.bind(name, "amq.direct", "k")
            await topology.bind("q", "amq.topic", "#")
            taker = await stage.consumer(queue)
            await stage.publish("", "q", b"held", b"left")
            await topology.delete_queue("q")
            assert list(stage.broker.default_host.queues) == ["other"]
            assert queue.is_deleted
            assert taker.is_notified
            assert stage.bindings() == {("amq.direct", "other", "k")}
            await stage.publish("", "q", b"to nobody")
            await stage.publish("amq.direct", "k", b"x")
            assert stage.bodies("other") == [b"x"]
            again = await topology.declare_queue("q", durable=durable)
            assert again is not queue
            await stage.publish("", "q", b"new")
            assert stage.bodies("q") == [b"new"]

        play(scene)

    def test_refused(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, mine, other = stage.topology, Somebody(), Somebody()
            await refused(InvalidArgumentError, topology.delete_queue(""))
            await refused(NotFoundError, topology.delete_queue("q"))
            queue = await topology.declare_queue("q", durable=durable, exclusive=True, caller=mine)
            await stage.publish("", "q", b"x")
            taker = await stage.consumer(queue)
            assert len(taker.taken) == 1
            delete = topology.delete_queue
            await refused(
                PreconditionFailedError, delete("q", if_unused=True, if_empty=True, caller=other), "not empty"
            )
            await refused(PreconditionFailedError, delete("q", if_unused=True, caller=other), "in use")
            await refused(ResourceLockedError, delete("q", caller=other))
            assert stage.broker.default_host.queues == {"q": queue}
            queue.dequeue(taker.taken[0])
            queue.remove_consumer(taker)
            await delete("q", if_unused=True, if_empty=True, caller=mine)
            assert stage.broker.default_host.queues == {}

        play(scene)

    def test_held_messages_count_unless_excluded(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            queue = await stage.topology.declare_queue("q", durable=durable)
            await stage.publish("", "q", b"x")
            taker = await stage.consumer(queue)
            assert len(taker.taken) == 1
            delete = stage.topology.delete_queue
            await refused(PreconditionFailedError, delete("q", if_empty=True), "it has 1 message")
            await delete("q", if_empty=True, counts_held=False)
            assert stage.broker.default_host.queues == {}

        play(scene)

    def test_remaining_messages_go_to_the_alternate_exchange(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("dead", "direct", durable=durable)
            queue = await topology.declare_queue("q", durable=durable, alternate="dead")
            await topology.declare_queue("letters", durable=durable)
            await topology.bind("letters", "dead", "q")
            await topology.bind("q", "dead", "q")  # and not back to itself
            bodies = [b"%d" % number for number in range(5)]
            await stage.publish("", "q", *bodies)
            await stage.publish("", "q", b"transient", persistent=False)
            taker = await stage.consumer(queue)
            await topology.delete_queue("q")
            assert [entry.message.body for entry in taker.taken] == [b"0"]
            assert stage.bodies("letters") == [*bodies, b"transient"], "with what was delivered and not accepted"
            assert stage.bindings() == {("dead", "letters", "q")}

        play(scene)

    def test_message_unroutable_by_the_alternate_is_dropped(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            await stage.topology.declare_queue("q", durable=durable, alternate="amq.direct")
            await stage.publish("", "q", b"x")
            await stage.topology.delete_queue("q")
            assert stage.broker.default_host.queues == {}

        play(scene)


class TestAutoDelete:
    def test_queue_with_its_last_consumer(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            queue = await stage.topology.declare_queue("q", durable=durable, auto_delete=True)
            takers = [await stage.consumer(queue) for _ in range(2)]
            for left in (1, 0):
                assert stage.broker.default_host.queues
                queue.remove_consumer(takers[left])
                await stage.topology.delete_if_unused(queue)
            assert stage.broker.default_host.queues == {}
            await stage.topology.delete_if_unused(queue)

        play(scene)

    def test_not_while_it_has_an_owner(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            queue = await topology.declare_queue(
                "q", durable=durable, auto_delete=True, exclusive=True, caller=Somebody()
            )
            await topology.delete_if_unused(queue)
            assert stage.broker.default_host.queues == {"q": queue}
            queue.owner = None
            await topology.delete_if_unused(queue)
            assert stage.broker.default_host.queues == {}

        play(scene)

    def test_not_without_the_flag(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            queue = await stage.topology.declare_queue("q", durable=durable)
            await stage.topology.delete_if_unused(queue)
            assert stage.broker.default_host.queues == {"q": queue}

        play(scene)

    def test_not_another_of_the_same_name(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            first = await stage.topology.declare_queue("q", durable=durable, auto_delete=True)
            await stage.topology.delete_queue("q")
            second = await stage.topology.declare_queue("q", durable=durable, auto_delete=True)
            await stage.topology.delete_if_unused(first)
            assert stage.broker.default_host.queues == {"q": second}

        play(scene)

    def test_exchange_with_its_last_binding(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            exchange = await topology.declare_exchange("x", "direct", durable=durable, auto_delete=True)
            await topology.declare_exchange("stays", "direct", durable=durable)
            for name in ("q", "r"):
                await topology.declare_queue(name, durable=durable)
                await topology.bind(name, "x", "k")
                await topology.bind(name, "stays", "k")
            await topology.delete_queue("r")
            assert stage.broker.default_host.exchanges["x"] is exchange
            await topology.unbind("q", "x", "k")
            assert "x" not in stage.broker.default_host.exchanges
            assert exchange.is_deleted
            await topology.declare_exchange("x", "direct", durable=durable, auto_delete=True)
            await topology.bind("q", "x", "k")
            await topology.delete_queue("q")
            assert "x" not in stage.broker.default_host.exchanges
            assert "stays" in stage.broker.default_host.exchanges

        play(scene)

    def test_not_an_alternate_exchange(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("x", "direct", durable=durable, auto_delete=True)
            await topology.declare_queue("q", durable=durable, alternate="x")
            await topology.bind("q", "x", "k")
            await topology.unbind("q", "x", "k")
            assert "x" in stage.broker.default_host.exchanges

        play(scene)


class TestDeclareExchange:
    @pytest.mark.parametrize("type_name", ["direct", "topic", "fanout", "headers"])
    def test_made(self, play: Play, durable: bool, type_name: str) -> None:
        async def scene(stage: Wired) -> None:
            arguments = typed_map({"who.knows": 1})
            exchange = await stage.topology.declare_exchange(
                "x", type_name, durable=durable, auto_delete=True, alternate="amq.topic", arguments=arguments
            )
            assert stage.broker.default_host.exchanges["x"] is exchange
            assert (exchange.type_name, exchange.durable, exchange.auto_delete) == (type_name, durable, True)
            assert exchange.arguments == arguments
            assert exchange.alternate is stage.broker.default_host.exchanges["amq.topic"]
            assert (exchange.store_id is not None) == (durable and stage.store is not None)
            again = await stage.topology.declare_exchange("x", type_name, durable=not durable, alternate="amq.topic")
            assert again is exchange
            assert await stage.topology.declare_exchange("x", "", passive=True) is exchange

        play(scene)

    def test_refused(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            declare = stage.topology.declare_exchange
            before = dict(stage.broker.default_host.exchanges)
            await refused(InvalidArgumentError, declare("", "direct"))
            await refused(InvalidArgumentError, declare("", "direct", passive=True))
            await refused(NotAllowedError, declare("amq.mine", "direct"), "reserved")
            await refused(NotAllowedError, declare("qpid.mine", "direct"), "reserved")
            await refused(NotFoundError, declare("x", "direct", passive=True), "Exchange not found: x")
            await refused(NotFoundError, declare("x", "x-none", durable=durable), "type not implemented: x-none")
            await refused(NotFoundError, declare("x", "", durable=durable))
            await refused(NotFoundError, declare("x", "direct", alternate="none"), "Exchange not found: none")
            assert stage.broker.default_host.exchanges == before

        play(scene)

    def test_declaring_again_with_other_properties(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            declare = stage.topology.declare_exchange
            await declare("x", "direct", durable=durable, alternate="amq.topic")
            await declare("plain", "direct")
            for passive in (False, True):
                await refused(NotAllowedError, declare("x", "topic", passive=passive), 'of type "direct"')
                await refused(NotAllowedError, declare("x", "direct", passive=passive, alternate="amq.match"))
                await refused(NotAllowedError, declare("plain", "direct", passive=passive, alternate="amq.match"))
            await refused(NotAllowedError, declare("amq.direct", "topic"))
            assert await declare("amq.direct", "direct") is stage.broker.default_host.exchanges["amq.direct"]

        play(scene)


async def turns_meanwhile(work: Awaitable[object]) -> int:
    """Await something, and count the turns of the event loop meanwhile."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


def test_exchanges_of_a_virtual_host_are_deleted_in_turns() -> None:
    async def scene(stage: Wired) -> None:
        await stage.broker.virtual_hosts.create("blue")
        topology = stage.broker.hosts["blue"].topology
        for number in range(10 * DELETED_AT_ONCE):
            await topology.declare_exchange(f"x{number}", "topic", alternate="x0" if number else "")
        bind = stage.broker.hosts["blue"].exchange_bindings.bind
        for number in range(2 * DELETED_AT_ONCE):
            await bind(f"x{number}", f"x{number + 1}", "#")
        gone = list(stage.broker.hosts["blue"].exchanges.values())
        assert await turns_meanwhile(topology.clear()) >= 10
        assert all(each.is_deleted and each.onward is None for each in gone if each.name)

    play_on(None, scene)


def test_a_queue_knows_the_exchanges_that_it_is_bound_to() -> None:
    async def scene(stage: Wired) -> None:
        topology = stage.topology
        queue = await topology.declare_queue("q")
        for name in ("a", "b", "c"):
            await topology.declare_exchange(name, "topic")
        for name, key in (("a", "k"), ("a", "l"), ("c", "k"), ("amq.direct", "k")):
            await topology.bind("q", name, key)
        assert [each.name for each in queue.bound_to] == ["a", "c", "amq.direct"]
        await topology.unbind("q", "a", "k")
        await topology.unbind("q", "c", "k")
        assert [each.name for each in queue.bound_to] == ["a", "amq.direct"]
        exchanges = list(queue.bound_to)
        await topology.delete_queue("q")
        assert not queue.bound_to
        assert not any(each.has_bindings for each in exchanges)

    play_on(None, scene)


class TestDeleteExchange:
    def test_gone(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            exchange = await topology.declare_exchange("x", "direct", durable=durable)
            await topology.declare_queue("q", durable=durable)
            await topology.bind("q", "x", "k")
            assert len(exchange.find("k").queues) == 1
            await topology.delete_exchange("x")
            assert "x" not in stage.broker.default_host.exchanges
            assert exchange.is_deleted
            assert exchange.find("k").queues == ()
            assert stage.bindings() == set()

        play(scene)

    def test_refused(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await refused(InvalidArgumentError, topology.delete_exchange(""))
            await refused(NotFoundError, topology.delete_exchange("x"))
            for name in ("amq.direct", "amq.topic", "amq.fanout", "amq.match"):
                await refused(NotAllowedError, topology.delete_exchange(name))
            await topology.declare_exchange("x", "direct", durable=durable)
            await topology.declare_exchange("y", "direct", durable=durable, alternate="x")
            await refused(NotAllowedError, topology.delete_exchange("x"), "alternate")
            await topology.declare_queue("q", durable=durable, alternate="x")
            await topology.delete_exchange("y")
            await refused(NotAllowedError, topology.delete_exchange("x"), "alternate")
            await topology.delete_queue("q")
            await topology.declare_queue("q", durable=durable)
            await topology.bind("q", "x", "k")
            await refused(PreconditionFailedError, topology.delete_exchange("x", if_unused=True), "in use")
            await topology.unbind("q", "x", "k")
            await topology.delete_exchange("x", if_unused=True)
            assert "x" not in stage.broker.default_host.exchanges

        play(scene)


class TestAlternateExchangesThatAreMissing:
    """RabbitMQ's clients declare exchanges in any order."""

    def test_declared_later(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, exchanges = stage.topology, stage.broker.default_host.exchanges
            for name in ("x", "y"):
                await topology.declare_exchange(name, "direct", durable=durable, alternate="later", is_exact=True)
            await topology.declare_exchange("gone", "direct", durable=durable, alternate="later", is_exact=True)
            await topology.delete_exchange("gone")
            await stage.publish("x", "k", b"to nobody")
            await topology.declare_exchange("x", "direct", durable=durable, alternate="later", is_exact=True)
            await refused(NotFoundError, topology.declare_exchange("x", "direct", alternate="later"))
            later = await topology.declare_exchange("later", "fanout", durable=durable)
            assert [exchanges[name].alternate for name in ("x", "y")] == [later, later]
            assert topology.awaiting == {}
            await topology.declare_queue("q", durable=durable)
            await topology.bind("q", "later", "")
            await stage.publish("x", "k", b"there")
            assert stage.bodies("q") == [b"there"]

        play(scene)

    def test_deleted_and_declared_again(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, exchanges = stage.topology, stage.broker.default_host.exchanges
            await topology.declare_exchange("later", "fanout", durable=durable)
            await topology.declare_exchange("x", "direct", durable=durable, alternate="later", is_exact=True)
            await refused(NotAllowedError, topology.delete_exchange("later"), "alternate")
            await topology.delete_exchange("later", is_awaited=True)
            assert exchanges["x"].alternate is None
            await topology.declare_exchange("later", "fanout", durable=durable)
            assert exchanges["x"].alternate is exchanges["later"]
            await topology.declare_queue("q", durable=durable, alternate="later")
            await refused(NotAllowedError, topology.delete_exchange("later", is_awaited=True), "alternate")
            await topology.delete_queue("q")
            await topology.delete_exchange("x")
            await topology.delete_exchange("later")
            assert topology.awaiting == {}

        play(scene)

    def test_alternate_exchanges_in_a_circle(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology, exchanges = stage.topology, stage.broker.default_host.exchanges
            for name, alternate in (("x", "y"), ("y", "x"), ("z", "z")):
                await topology.declare_exchange(name, "topic", durable=durable, alternate=alternate, is_exact=True)
            assert [exchanges[name].alternate for name in "xyz"] == [exchanges[name] for name in "yxz"]
            for name in "xyz":
                await stage.publish(name, "k", b"to nobody")
            await topology.declare_queue("q", durable=durable)
            await topology.bind("q", "x", "k")
            await stage.publish("y", "k", b"there")
            assert stage.bodies("q") == [b"there"]
            for name in "xyz":
                await topology.delete_exchange(name, is_awaited=True)
            assert topology.awaiting == {}

        play(scene)

    def test_on_the_way_of_exchanges_that_are_bound_to_each_other(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_exchange("source", "topic", durable=durable)
            await topology.declare_exchange("x", "direct", durable=durable, alternate="later", is_exact=True)
            await stage.broker.default_host.exchange_bindings.bind("source", "x", "#", EMPTY_MAP, caller=BROKER)
            await topology.declare_queue("q", durable=durable)
            await topology.bind("q", "x", "known")
            await stage.publish("source", "other", b"to nobody")
            await topology.declare_exchange("later", "headers", durable=durable)
            await topology.bind("q", "later", "", typed_map({"x-match": "all"}))
            await stage.publish("source", "other", b"there")
            assert stage.bodies("q") == [b"there"]

        play(scene)

    async def test_after_a_restart(self, tmp_path: Path) -> None:
        async with wired(tmp_path) as stage:
            await stage.topology.declare_exchange("x", "direct", durable=True, alternate="later", is_exact=True)
            await stage.topology.declare_exchange("y", "direct", durable=True, alternate="there", is_exact=True)
            await stage.topology.declare_exchange("there", "fanout", durable=True)
            await stage.topology.declare_exchange("transient", "fanout")
            await stage.topology.declare_queue("q", durable=True, alternate="transient")
        async with wired(tmp_path) as stage:
            exchanges = stage.broker.default_host.exchanges
            assert (exchanges["x"].alternate, exchanges["y"].alternate) == (None, exchanges["there"])
            for name in ("later", "transient"):
                await stage.topology.declare_exchange(name, "fanout", durable=True)
            assert exchanges["x"].alternate is exchanges["later"]
            assert stage.broker.default_host.queues["q"].alternate is exchanges["transient"]


class TestBindings:
    def test_bound_and_unbound(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_queue("q", durable=durable)
            binding = await topology.bind("q", "amq.topic", "a.*")
            assert binding is not None
            assert (binding.entry is not None) == (durable and stage.store is not None)
            assert await topology.bind("q", "amq.topic", "a.*") is None
            await stage.publish("amq.topic", "a.b", b"x")
            assert await topology.unbind("q", "amq.topic", "a.*") is binding
            await stage.publish("amq.topic", "a.b", b"y")
            assert stage.bodies("q") == [b"x"]

        play(scene)

    def test_refused(self, play: Play, durable: bool) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            await topology.declare_queue("q", durable=durable)
            for change in (topology.bind, topology.unbind):
                await refused(InvalidArgumentError, change("", "amq.direct", "k"))
                await refused(InvalidArgumentError, change("q", "", "k"))
                await refused(NotFoundError, change("none", "amq.direct", "k"), "Queue not found: none")
                await refused(NotFoundError, change("q", "none", "k"), "Exchange not found: none")
            await refused(NotFoundError, topology.unbind("q", "amq.direct", "k"), "not bound")
            await refused(InternalError, topology.bind("q", "amq.match", "k"), "x-match")
            await topology.bind("q", "amq.match", "k", typed_map({"x-match": "all", "n": 1}))
            other = typed_map({"x-match": "all", "n": 2})
            await refused(NotAllowedError, topology.bind("q", "amq.match", "k", other), "different arguments")
            assert stage.bindings() == {("amq.match", "q", "k")}

        play(scene)


class TestQuestions:
    def test_bound(self, play: Play) -> None:
        async def scene(stage: Wired) -> None:
            topology = stage.topology
            for name in ("q", "unbound"):
                await topology.declare_queue(name)
            await topology.bind("q", "amq.direct", "k")
            bound = topology.bound
            assert bound("amq.direct", "q", "k") == bound("amq.direct", "q") == bound("amq.direct") == BoundReply()
            assert bound("amq.direct", "", "", typed_map({})) == BoundReply()
            assert bound("none", "none") == BoundReply(exchange_not_found=True, queue_not_found=True)
            assert bound("none", "q") == BoundReply(exchange_not_found=True)
            assert bound("amq.direct", "none", "k") == BoundReply(queue_not_found=True)
            assert bound("amq.direct", "unbound", "x") == BoundReply(queue_not_matched=True, key_not_matched=True)
            assert bound("amq.direct", "q", "x") == BoundReply(key_not_matched=True)
            assert bound("", "q", "q") == BoundReply()
            assert bound("", "q", "k") == BoundReply(key_not_matched=True)

        play(scene)


async def test_users_with_long_names_have_durable_queues(tmp_path: Path) -> None:
    users = {"short": "x" * 250 + "@QPID", "long": "x" * 251 + "@QPID", "wide": "\xe9" * 200 + "@QPID"}
    async with wired(tmp_path) as stage:
        for name, user in users.items():
            queue = await stage.topology.declare_queue(name, durable=True, caller=Somebody(user))
            assert queue.creator == user
    async with wired(tmp_path) as stage:
        kept = {name: stage.broker.default_host.queues[name].creator for name in users}
        assert kept == {"short": users["short"], "long": "", "wide": ""}, "a name that is too long is not stored"


def test_what_was_counted_of_a_deleted_queue_and_exchange_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Wired) -> None:
        await stage.topology.declare_queue("q")
        await stage.topology.declare_exchange("x", "direct")
        await stage.publish("x", "q", b"dropped")
        await stage.publish("", "q", b"x")
        await stage.topology.delete_queue("q")
        await stage.topology.delete_exchange("x")

    caplog.set_level("DEBUG", logger="Model")
    play_on(None, scene)
    of_queue, of_exchange = [
        each.getMessage() for each in caplog.records if each.getMessage().startswith("Statistics of deleted")
    ]
    assert of_queue.startswith('Statistics of deleted queue "q": messages enqueued 1, ')
    assert of_exchange.startswith('Statistics of deleted exchange "x": ')
    assert "messages dropped 1" in of_exchange or "messages received 1" in of_exchange
