"""Each operation asks the ACL exactly what the table of lookups says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.broker.model.caller import Caller
from qstore.broker.security.acl.tables import LOOKUPS
from tests.broker.protocols.world import World
from tests.broker.wired_broker import Somebody, wired
from tests.support.management_console import Console


class Collector:
    """Allows everything, and collects what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Action, ObjectType, frozenset[str]]] = []

    @property
    def checks_publish(self) -> bool:
        return True

    def allows(
        self, _caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        self.asked.append((action, object_type, frozenset((*properties, *(["name"] if name else [])))))
        return True

    def publishing(self, _caller: Caller, _exchange: str, _routing_key: str) -> Publishing:
        self.asked.append((Action.PUBLISH, ObjectType.EXCHANGE, frozenset(("name", "routingkey"))))
        return Publishing.ALWAYS

    def allows_forwarding(self, _caller: Caller, _exchange: str, _pattern: str) -> bool:
        self.asked.append((Action.PUBLISH, ObjectType.EXCHANGE, frozenset(("name", "routingkey"))))
        return True

    def numbers(self) -> set[int]:
        """The lookups that were asked; fails if something else was."""
        found = set()
        for asked in self.asked:
            fitting = {
                number for number, each in LOOKUPS.items() if asked == (each.action, each.object_type, each.asked)
            }
            assert fitting, f"{asked} is not in the table"
            found |= fitting
        return found


async def test_topology(tmp_path: Path) -> None:
    async with wired(tmp_path) as stage:
        collector = stage.broker.authorization.authorizer = Collector()
        anna, topology = Somebody("anna@QPID"), stage.topology
        for passive in (False, True):
            await topology.declare_exchange("e", "topic", passive=passive, caller=anna)
            await topology.declare_queue("q", passive=passive, caller=anna)
        await topology.bind("q", "e", "k", caller=anna)
        await topology.unbind("q", "e", "k", caller=anna)
        await topology.delete_queue("q", caller=anna)
        await topology.delete_exchange("e", caller=anna)
        assert collector.numbers() == {4, 12, 13, 15, 16, 20, 23, 24, 25, 34}


def test_commands_of_0_10() -> None:
    world = World()
    collector = world.broker.authorization.authorizer = Collector()
    client = world.open_client()
    client.declare("q")
    client.command("exchange.query", name="amq.direct")
    client.command("exchange.bound", exchange="amq.direct", queue="q", binding_key="k")
    client.command("queue.query", queue="q")
    client.command("message.subscribe", queue="q", destination="d")
    client.publish("q", b"1")
    client.command("queue.purge", queue="q")
    client.sync()
    assert collector.numbers() == {2, 3, 6, 10, 11, 14, 17, 18, 19, 23, 27, 29, 30, 31, 38}


OF_1_0 = {5, 6, 13, 14, 16, 18, 28, 29}
"""Lookups that only AMQP 1.0 makes; those of them that are equal to others are found anyway."""


async def test_management(tmp_path: Path) -> None:
    async with wired(tmp_path) as stage:
        console = Console(stage)
        await console.open()
        for name in ("a", "b"):
            await stage.topology.declare_queue(name)
        collector = stage.broker.authorization.authorizer = Collector()
        await console.query("queue")
        asked = {"_what": "OBJECT", "_object_id": {"_object_name": "org.apache.qpid.broker:queue:a"}}
        await console.ask("_query_request", asked)
        for method, arguments in (
            ("getTimestampConfig", {}), ("setTimestampConfig", {"receive": False}), ("connect", {"host": "h"}),
            ("query", {"type": "queue", "name": "a"}), ("queueRedirect", {"sourceQueue": "a", "targetQueue": "b"}),
            ("queueMoveMessages", {"srcQueue": "a", "destQueue": "b", "qty": 0}),
            ("create", {"type": "exchange", "name": "e", "properties": {}}),
            ("create", {"type": "queue", "name": "q", "properties": {}}),
            ("create", {"type": "binding", "name": "e/q/k", "properties": {}}),
            ("delete", {"type": "binding", "name": "e/q/k"}), ("delete", {"type": "exchange", "name": "e"}),
            ("delete", {"type": "queue", "name": "q"}),
        ):  # fmt: skip
            await console.call(method, **arguments)
        await console.call("purge", "queue:a", request=0)
        await console.call("reroute", "queue:a", request=0, exchange="amq.fanout")
        queries = {each for _, object_type, each in collector.asked if object_type is ObjectType.QUERY}
        assert queries == {frozenset(("schemaclass",)), frozenset(("name", "schemaclass"))}
        collector.asked = [each for each in collector.asked if each[1] is not ObjectType.QUERY]
        found = collector.numbers() - OF_1_0
        assert found == {1, 7, 8, 10, 11, 15, 20, 21, 22, 23, 24, 25, 26, 27, 30, 31, 32, 33, 34, 35, 38}
