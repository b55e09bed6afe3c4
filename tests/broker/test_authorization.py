"""Every operation asks the broker's authorizer first, and raises an event when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.authorization import ALLOW_ALL, Action, ObjectType, Publishing
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import ResourceLockedError, UnauthorizedError
from qstore.broker.model.events import (
    Bind,
    Event,
    ExchangeDeclare,
    ExchangeDelete,
    JournalCreated,
    QueueDeclare,
    QueueDelete,
    Subscribe,
    Unbind,
    Unsubscribe,
)
from qstore.broker.model.residency.paging_directory import PagingDirectory
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.world import Client, World
from tests.broker.wired_broker import Somebody, Wired, wired
from tests.support.paging_disk import MemoryPagingDisk

Asked = tuple[str, str, str, dict[str, object]]


class Guard:
    """Records requests, and refuses some on demand. All users may connect."""

    def __init__(self, refused: tuple[Action, ...] = (), *, checks_publish: bool = True) -> None:
        self.refused, self.checks_publish = refused, checks_publish
        self.publishes = Publishing.ALWAYS
        self.asked: list[tuple[str, Action, ObjectType, str, dict[str, object]]] = []

    def allows(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        if object_type is ObjectType.CONNECTION:
            return True
        self.asked.append((caller.user, action, object_type, name, dict(properties)))
        return action not in self.refused

    def publishing(self, caller: Caller, exchange: str, routing_key: str) -> Publishing:
        self.asked.append((caller.user, Action.PUBLISH, ObjectType.EXCHANGE, exchange, {"routingkey": routing_key}))
        return Publishing.REFUSED if Action.PUBLISH in self.refused else self.publishes

    def allows_forwarding(self, caller: Caller, exchange: str, pattern: str) -> bool:
        self.asked.append((caller.user, Action.PUBLISH, ObjectType.EXCHANGE, exchange, {"every key of": pattern}))
        return Action.PUBLISH not in self.refused


def scene(test: Callable[[Wired], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path) as stage:
            await test(stage)

    asyncio.run(run())


def operations(stage: Wired, caller: Caller) -> dict[Action, list[Callable[[], Coroutine[Any, Any, Any]]]]:
    """By action, for a broker that has a queue `there` and an exchange `ex`, bound under `k`."""
    topology = stage.topology
    return {
        Action.CREATE: [
            lambda: topology.declare_queue("new", caller=caller),
            lambda: topology.declare_exchange("new", "direct", caller=caller),
            lambda: topology.declare_queue("there", caller=caller),
        ],
        Action.ACCESS: [
            lambda: topology.declare_queue("there", passive=True, caller=caller),
            lambda: topology.declare_exchange("ex", "direct", passive=True, caller=caller),
        ],
        Action.BIND: [lambda: topology.bind("there", "ex", "k2", caller=caller)],
        Action.UNBIND: [lambda: topology.unbind("there", "ex", "k", caller=caller)],
        Action.DELETE: [
            lambda: topology.delete_queue("there", caller=caller),
            lambda: topology.delete_exchange("ex", caller=caller),
        ],
    }


async def prepare(stage: Wired) -> None:
    await stage.topology.declare_queue("there")
    await stage.topology.declare_exchange("ex", "direct")
    await stage.topology.bind("there", "ex", "k")


@pytest.mark.parametrize("action", [Action.CREATE, Action.ACCESS, Action.BIND, Action.UNBIND, Action.DELETE])
def test_refused_action_has_no_effect(action: Action, tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        await prepare(stage)
        guard = stage.broker.authorization.authorizer = Guard((action,))
        happened: list[Event] = []
        stage.broker.events.listen(happened.append)
        queues, exchanges = dict(stage.broker.default_host.queues), dict(stage.broker.default_host.exchanges)
        for operation in operations(stage, Somebody("mallory"))[action]:
            with pytest.raises(UnauthorizedError, match=f"mallory is not allowed to {action.value} "):
                await operation()
        assert (stage.broker.default_host.queues, stage.broker.default_host.exchanges) == (queues, exchanges)
        assert (
            stage.broker.default_host.exchanges["ex"].find_binding(stage.broker.default_host.queues["there"], "k")
            is not None
        )
        assert (
            stage.broker.default_host.exchanges["ex"].find_binding(stage.broker.default_host.queues["there"], "k2")
            is None
        )
        assert happened == []
        assert {asked[1] for asked in guard.asked} == {action}

    scene(test, tmp_path)


def test_the_broker_itself_is_never_asked_about(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        await prepare(stage)
        guard = stage.broker.authorization.authorizer = Guard(tuple(Action))
        for each in operations(stage, BROKER).values():
            for operation in each:
                await operation()
        assert guard.asked == []

    scene(test, tmp_path)


def test_each_operation_asks_with_its_properties(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        guard = stage.broker.authorization.authorizer = Guard()
        anna, arguments = Somebody("anna@QPID"), typed_map({"qpid.max_count": 5})
        topology = stage.topology
        await topology.declare_exchange("e", "topic", durable=True, alternate="amq.fanout", caller=anna)
        await topology.declare_queue("q", exclusive=True, alternate="e", arguments=arguments, caller=anna)
        await topology.bind("q", "e", "a.#", caller=anna)
        await topology.unbind("q", "e", "a.#", caller=anna)
        await topology.delete_queue("q", caller=anna)
        await topology.delete_exchange("e", caller=anna)
        flags = {"durable": False, "autodelete": False, "exclusive": True, "alternate": "e", "policytype": "reject"}
        flags |= {"temporary": False, "owner": "anna@QPID"}
        limits = {"queuemaxsize": 100 << 20, "queuemaxcount": 5, "filemaxsize": 0, "filemaxcount": 0}
        pages = {"paging": False, "pages": 0, "pagefactor": 0}
        key = {"queuename": "q", "routingkey": "a.#"}
        made = {"type": "topic", "durable": True, "alternate": "amq.fanout"}
        assert [each[0] for each in guard.asked] == ["anna@QPID"] * 8
        assert [each[1:] for each in guard.asked] == [
            (Action.CREATE, ObjectType.EXCHANGE, "e", made | {"autodelete": False}),
            (Action.PUBLISH, ObjectType.EXCHANGE, "amq.fanout", {"every key of": "#"}),
            (Action.CREATE, ObjectType.QUEUE, "q", flags | limits | pages),
            (Action.PUBLISH, ObjectType.EXCHANGE, "e", {"every key of": "#"}),
            (Action.BIND, ObjectType.EXCHANGE, "e", key),
            (Action.UNBIND, ObjectType.EXCHANGE, "e", key),
            (Action.DELETE, ObjectType.QUEUE, "q", flags),
            (Action.DELETE, ObjectType.EXCHANGE, "e", made),
        ]

    scene(test, tmp_path)


def test_it_is_asked_who_owns_a_queue_and_whether_it_is_temporary(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        guard = stage.broker.authorization.authorizer = Guard()
        anna, ben = Somebody("anna@QPID"), Somebody("ben@QPID")
        await stage.topology.declare_queue("q", caller=anna)
        await stage.topology.declare_queue("q", passive=True, caller=ben)
        await stage.topology.declare_queue("t", exclusive=True, auto_delete=True, caller=anna)
        await stage.topology.declare_queue("t", passive=True, caller=anna)
        await stage.topology.delete_queue("t", caller=anna)
        lifetime = typed_map({"qpid.lifetime-policy": "delete-on-close"})
        await stage.topology.declare_queue("l", exclusive=True, arguments=lifetime, caller=ben)
        found = [
            (action, name, *(given[each] for each in ("owner", "temporary")))
            for _, action, _, name, given in guard.asked
        ]
        assert found == [
            (Action.CREATE, "q", "anna@QPID", False),
            (Action.ACCESS, "q", "", False),
            (Action.CREATE, "t", "anna@QPID", True),
            (Action.ACCESS, "t", "anna@QPID", True),
            (Action.DELETE, "t", "anna@QPID", True),
            (Action.CREATE, "l", "ben@QPID", True),
        ]

    scene(test, tmp_path)


def test_a_declaration_does_not_make_the_queue_of_another_user_temporary_or_ones_own(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        guard = stage.broker.authorization.authorizer = Guard()
        anna, ben = Somebody("anna@QPID"), Somebody("ben@QPID")
        await stage.topology.declare_queue("q", durable=True, caller=anna)
        await stage.topology.declare_queue("t", exclusive=True, auto_delete=True, caller=anna)
        guard.asked.clear()
        await stage.topology.declare_queue("q", durable=True, caller=anna)
        await stage.topology.declare_queue("t", exclusive=True, auto_delete=True, caller=anna)
        await stage.topology.declare_queue("q", exclusive=True, auto_delete=True, caller=ben)  # which locks it
        with pytest.raises(ResourceLockedError):
            await stage.topology.declare_queue("t", exclusive=True, auto_delete=True, caller=ben)
        found = [(name, *(given[each] for each in ("owner", "temporary"))) for *_, name, given in guard.asked]
        assert found == [
            ("q", "anna@QPID", False),
            ("t", "anna@QPID", True),
            ("q", "anna@QPID", False),
            ("t", "anna@QPID", True),
        ]

    scene(test, tmp_path)


def test_a_route_takes_back_only_bindings_that_routes_have_made(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        await prepare(stage)
        stage.broker.authorization.authorizer = Guard((Action.UNBIND,))
        host, mallory = stage.broker.default_host, Somebody("mallory")
        queue, exchange = host.queues["there"], host.exchanges["ex"]
        for operation in ("M", "S", "U"):
            arguments = typed_map({"qpid.fed.op": operation})
            if operation == "U":
                with pytest.raises(UnauthorizedError, match="mallory is not allowed to unbind"):
                    await stage.topology.bind("there", "ex", "k", arguments, caller=mallory)
            else:
                await stage.topology.bind("there", "ex", "k", arguments, caller=mallory)
            assert exchange.find_binding(queue, "k") is not None
        for operation in ("B", "U"):
            arguments = typed_map({"qpid.fed.op": operation, "qpid.fed.origin": "mallory's broker"})
            await stage.topology.bind("there", "ex", "k2", arguments, caller=mallory)
            assert (exchange.find_binding(queue, "k2") is not None) is (operation == "B")

    scene(test, tmp_path)


def test_the_limit_that_is_asked_for_is_the_one_that_the_queue_has(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        guard = stage.broker.authorization.authorizer = Guard()
        stage.broker.queue_factory.use_paging(PagingDirectory(MemoryPagingDisk(), "/paging"), 0)
        declared: list[tuple[dict[str, Any], int]] = [
            ({}, 0),  # the disk is its limit, so it exceeds every limit of a rule
            ({"qpid.max_size": 7}, 7),
            ({"qpid.policy_type": "ring"}, 100 << 20),
            ({"x-overflow": "drop-head"}, 0),
        ]
        for number, (arguments, _) in enumerate(declared):
            await stage.topology.declare_queue(
                f"q{number}", durable=number == 0, arguments=typed_map(arguments), caller=Somebody("anna@QPID")
            )
        assert [each[4]["queuemaxsize"] for each in guard.asked] == [size for _, size in declared]
        limits = [stage.broker.default_host.queues[f"q{number}"].limit for number in range(len(declared))]
        assert [0 if each is None else each.max_bytes for each in limits] == [size for _, size in declared]

    scene(test, tmp_path)


def test_each_operation_emits_its_event(tmp_path: Path) -> None:
    async def test(stage: Wired) -> None:
        happened: list[Event] = []
        stage.broker.events.listen(happened.append)
        anna = Somebody("anna", "192.0.2.7:1")
        who, topology = ("192.0.2.7:1", "anna"), stage.topology
        for _ in range(2):
            await topology.declare_exchange("e", "direct", auto_delete=True, caller=anna)
            await topology.declare_queue("q", durable=True, caller=anna)
            await topology.bind("q", "e", "k", caller=anna)
        await topology.unbind("q", "e", "k", caller=anna)
        await topology.delete_queue("q", caller=anna)
        first = [
            ExchangeDeclare(*who, "e", "direct", "", False, True, EMPTY_MAP, True),
            QueueDeclare(*who, "q", True, False, False, "", EMPTY_MAP, True),
        ]
        again = [event._replace(is_new=False) for event in first]
        assert happened == [
            first[0],
            JournalCreated("q", 65_536, 4),
            first[1],
            Bind(*who, "e", "q", "k"),
            *again,
            Unbind(*who, "e", "q", "k"),
            ExchangeDelete("", "", "e"),  # by the broker: it was auto-delete
            QueueDelete(*who, "q"),
        ]

    scene(test, tmp_path)


# ---- over AMQP 0-10 ----


def guarded(*refused: Action, checks_publish: bool = True) -> tuple[Client, Guard]:
    world = World()
    opened = world.open_client()
    opened.declare("q")
    opened.sync()
    guard = world.broker.authorization.authorizer = Guard(refused, checks_publish=checks_publish)
    client = world.open_client(name=b"guarded")
    return client, guard


@pytest.mark.parametrize(
    ("action", "command", "values"),
    [
        (Action.CREATE, "queue.declare", {"queue": "new"}),
        (Action.CREATE, "exchange.declare", {"exchange": "new", "type": "direct"}),
        (Action.ACCESS, "queue.query", {"queue": "q"}),
        (Action.ACCESS, "exchange.query", {"name": "amq.direct"}),
        (Action.ACCESS, "exchange.bound", {"exchange": "amq.direct", "queue": "q"}),
        (Action.BIND, "exchange.bind", {"exchange": "amq.direct", "queue": "q", "binding_key": "k"}),
        (Action.DELETE, "queue.delete", {"queue": "q"}),
        (Action.DELETE, "exchange.delete", {"exchange": "amq.direct"}),
        (Action.CONSUME, "message.subscribe", {"queue": "q", "destination": "d"}),
        (Action.PURGE, "queue.purge", {"queue": "q"}),
    ],
)
def test_a_client_is_notified(action: Action, command: str, values: dict[str, object]) -> None:
    client, guard = guarded(action)
    client.command(command, **values)
    client.sync()
    assert client.failure()[0] == ErrorCode.UNAUTHORIZED_ACCESS
    assert [each[1] for each in guard.asked] == [action]
    assert client.world.broker.default_host.queues["q"].consumer_count == 0


def test_messages_are_checked_one_by_one() -> None:
    client, guard = guarded(Action.PUBLISH)
    client.publish("q", b"1")
    client.sync()
    assert client.failure()[0] == ErrorCode.UNAUTHORIZED_ACCESS
    assert guard.asked[0][1:] == (Action.PUBLISH, ObjectType.EXCHANGE, "", {"routingkey": "q"})
    assert client.world.broker.default_host.queues["q"].is_empty


def test_publishing_is_not_checked_without_publish_rules() -> None:
    client, guard = guarded(Action.PUBLISH, checks_publish=False)
    client.publish("q", b"1", b"2")
    client.sync()
    assert guard.asked == []
    assert client.world.broker.default_host.queues["q"].message_count == 2
    assert not ALLOW_ALL.checks_publish


def test_consumers_come_and_go() -> None:
    client, _ = guarded()
    happened: list[Event] = []
    client.world.broker.events.listen(happened.append)
    client.command("message.subscribe", queue="q", destination="d", exclusive=True)
    client.command("message.cancel", destination="d")
    client.sync()
    user = client.machine.user
    assert happened == [
        Subscribe(client.machine.peer, user, "q", "d", True, EMPTY_MAP),
        Unsubscribe(client.machine.peer, user, "d", "q"),
    ]  # fmt: skip
