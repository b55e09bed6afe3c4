"""Whatever the broker publishes, moves or removes for a user is authorized as that user: every road, in every protocol.

bob may do everything, except that he may not publish to the queue `secret`, nor to the exchange `kx` with a key of
`hot.#`, nor purge `secret`, nor use alice's branches. `ROADS` are the ways on which he tries it all the same:

    a road        what bob does, over each protocol that has it
    barred        with the rules that refuse it, nothing arrives, and the refusal was counted
    open          without them, the same steps do arrive: otherwise the road would prove nothing

What is missing here is found by three other tables: `ENTRIES` has every place in the code that puts messages on queues,
moves them or removes them, `COMMANDS` has every command, and `METHODS` every method of management, each with the road
or the lookup that authorizes it. A new one fails a test until it is entered.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import Mock
from uuid import UUID

import pytest

import qstore.broker
from qstore.broker.federation.federation import Federation
from qstore.broker.federation.interlinks import Interlinks
from qstore.broker.federation.shovel import Shovels
from qstore.broker.federation.upstreams import Upstreams
from qstore.broker.management import proxies
from qstore.broker.management.agent import Agent
from qstore.broker.management.classes import CLASSES
from qstore.broker.model.authorization import ALLOW_ALL, EVERY_KEY
from qstore.broker.model.broker import Broker
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.parameters import Parameter
from qstore.broker.model.replication.source import register_listener
from qstore.broker.model.transactions.branch import State
from qstore.broker.protocols.amqp_0_9_1.methods import METHODS as BASIC_METHODS
from qstore.broker.protocols.amqp_0_10.commands import COMMANDS as COMMANDS_0_10
from qstore.broker.protocols.amqp_0_10.commands import DECLARATIONS, QUERIES
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.amqp_1_0.message import new_sections
from qstore.broker.security.acl.control import AccessControl, control_access
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_command_frames
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.structs import BranchId, ReplyTo
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.amqp_1_0.composites import encode_composite
from qstore.formats.amqp_1_0.frames import SASL_HEADER
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    VALUE,
    data_section,
    encode_section,
)
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.qmf.v1 import Dialect, encode_message
from qstore.formats.values import typed_map, typed_value
from tests.broker.federation.linked import Wire as LinkWire
from tests.broker.federation.worlds import Worlds
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links_management import read as read_answer
from tests.broker.protocols.test_links_management import value as request_value
from tests.broker.protocols.test_links_transactions import attach as attach_control
from tests.broker.protocols.test_links_transactions import command, declare
from tests.broker.protocols.test_links_transactions import state as in_transaction
from tests.broker.protocols.world import World, header
from tests.broker.test_acl_control import use
from tests.broker.wired_broker import Somebody, Wired, wired
from tests.support.management_console import managed
from tests.support.recover_runs import recover
from tests.support.sections_peer import REJECTED, address

BARRED: Final = (
    "acl deny bob@QPID publish exchange name=amq.default routingkey=secret",
    "acl deny bob@QPID publish exchange name=kx routingkey=hot.#",
    "acl deny bob@QPID publish exchange name=qpid.management routingkey=schema.#",
    "acl deny bob@QPID publish exchange name=qpid.management routingkey=mgmt.#",
    "acl deny bob@QPID publish exchange name=qpid.management routingkey=agent.#",
    "acl deny bob@QPID purge queue name=secret",
    "acl deny bob@QPID unbind exchange name=kd",
    "acl deny bob@QPID access transaction name=alice@QPID",
    "acl deny bob@QPID update transaction name=alice@QPID",
    "acl allow all all",
)
OPEN: Final = ("acl deny bob@QPID publish exchange name=elsewhere", "acl allow all all")


class Granted(NamedTuple):
    """Permissions in place of rules: those of bob, and his tags.

    Attributes:
        read, write: the expressions.
        topics: exchange -> the expression for routing keys that he may publish.
        tags: his tags.
    """

    read: str
    write: str
    topics: Mapping[str, str]
    tags: tuple[str, ...]


BARRED_BY_PERMISSIONS: Final = Granted(
    "^(?!secret$|kd$)", "",
    {"amq.default": "^(?!secret$)", "kx": "^(?!hot)", "qpid.management": "^(?!schema|mgmt|agent)"},
    ("management", "policymaker"),
)  # fmt: skip
OPEN_BY_PERMISSIONS: Final = Granted("", "", {}, ("administrator",))


def permitted(broker: Broker, granted: Granted) -> AccessControl:
    """The access control of a broker with these permissions; admin and alice may do everything."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    records = broker.configuration._records
    for user in ("admin", "alice"):
        records[Record("qstore.permission", (user, "/"))] = everything
    bobs = everything | {"read": granted.read or ".*", "write": granted.write or ".*"}
    records[Record("qstore.permission", ("bob", "/"))] = bobs
    for exchange, pattern in granted.topics.items():
        records[Record("qstore.topic-permission", ("bob", "/", exchange))] = {"write": pattern, "read": ".*"}
    control = control_access(broker, None)
    users: Any = Mock()
    users.tags = control.permissions.tags_of = lambda user: granted.tags if user == "bob" else ("administrator",)
    control.users = users
    control.recovered()
    return control


XID: Final = BranchId(1, b"global", b"branch")
ACTIVE: Final = BranchId(1, b"global", b"active")
_QMF: Final = "qmf.default.direct"


# ---- clients: the same steps in each protocol ----


class Modern:
    """A client of AMQP 0-10. After a refusal it goes on with a new session."""

    def __init__(self, world: World, user: str, session: str = "s") -> None:
        self.client = client = world.connect()
        client.send(PROTOCOL_HEADER)
        client.control(
            "connection.start-ok", client_properties={}, mechanism="PLAIN", response=f"\0{user}\0-".encode(),
            locale="en_US",
        )  # fmt: skip
        client.control("connection.tune-ok", channel_max=100, max_frame_size=65535, heartbeat=0)
        client.control("connection.open", virtual_host="")
        client.sync()
        assert client.machine.user == f"{user}@QPID"
        self.channel, self._session = 0, session
        self._attach()

    def _attach(self) -> None:
        self.channel += 1
        self.client.attach(f"{self._session}{self.channel}".encode(), on=self.channel)

    def do(self, name: str, /, *, header: bytes | None = None, body: bytes = b"", **values: Any) -> dict[str, Any]:
        """A command, and its result, if it has one."""
        before = len(self.client.exceptions)
        number = self.client.command(name, on=self.channel, header=header, body=body, **values)
        self.client.sync()
        if len(self.client.exceptions) > before:
            self._attach()
        return self.client.results.pop(number, {})

    def queue(self, name: str, arguments: dict[str, Any] | None = None, **values: Any) -> None:
        self.do("queue.declare", queue=name, arguments=typed_map(arguments or {}), **values)

    def exchange(self, name: str, kind: str, alternate: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.do(
            "exchange.declare", exchange=name, type=kind, alternate_exchange=alternate or None,
            arguments=typed_map(arguments or {}),
        )  # fmt: skip

    def bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any] | None = None) -> None:
        given = typed_map(arguments or {})
        self.do("exchange.bind", queue=queue, exchange=exchange, binding_key=key, arguments=given)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"bob's",
        *,
        headers: dict[str, Any] | None = None,
        reply_to: tuple[str, str] | None = None,
        ttl: int | None = None,
        content_type: str | None = None,
        **delivery: Any,
    ) -> None:
        message: dict[str, Any] = {"application_headers": typed_map(headers or {}), "content_type": content_type}
        message |= {"reply_to": None if reply_to is None else ReplyTo(*reply_to)}
        message = {name: value for name, value in message.items() if value is not None}
        delivery |= {} if ttl is None else {"ttl": ttl}
        head = header(message, routing_key=key, **delivery)
        self.do("message.transfer", destination=exchange, header=head, body=body)

    def take(self, queue: str, outcome: str = "") -> None:
        """Take what is on a queue; `outcome` is reject or empty."""
        to, before = f"to {queue}", len(self.client.deliveries)
        self.do("message.subscribe", queue=queue, destination=to, accept_mode=0, acquire_mode=0)
        for unit in (0, 1):
            self.do("message.flow", destination=to, unit=unit, value=0xFFFFFFFF)
        taken = self.client.deliveries[before:]
        if taken and outcome == "reject":
            self.do("message.reject", transfers=tuple((each.number, each.number) for each in taken))
        self.do("message.cancel", destination=to)

    def delete(self, queue: str) -> None:
        self.do("queue.delete", queue=queue)

    def leave(self) -> None:
        """End the session."""
        self.client.control("session.detach", on=self.channel, name=f"{self._session}{self.channel}".encode())
        self.client.sync()
        self._attach()


class Basic:
    """A client of AMQP 0-9-1. After a refusal it goes on with a new channel."""

    def __init__(self, world: World, user: str) -> None:
        self.client = client = BasicClient(world)
        client.start("PLAIN", f"\0{user}\0-".encode())
        client.method("connection.tune-ok", 0, channel_max=100, frame_max=131_072, heartbeat=0)
        client.max_frame = 131_072
        assert client.call("connection.open", 0, virtual_host="/").name == "connection.open-ok"
        self.channel = 0
        self._open()

    def _open(self) -> None:
        self.channel += 1
        assert self.client.call("channel.open", self.channel).name == "channel.open-ok"
        self.client.received.clear()

    def _settle(self) -> list[Any]:
        found = self.client.take()
        assert "connection.close" not in [each.name for each in found], found
        if "channel.close" in [each.name for each in found]:
            self.client.method("channel.close-ok", self.channel)
            self._open()
        return found

    def do(self, name: str, /, **values: Any) -> list[Any]:
        self.client.method(name, self.channel, **values)
        return self._settle()

    def queue(self, name: str, arguments: dict[str, Any] | None = None, **values: Any) -> None:
        self.do("queue.declare", queue=name, arguments=arguments or {}, **values)

    def exchange(self, name: str, kind: str, alternate: str = "", arguments: dict[str, Any] | None = None) -> None:
        given = (arguments or {}) | ({"alternate-exchange": alternate} if alternate else {})
        self.do("exchange.declare", exchange=name, type=kind, arguments=given)

    def bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any] | None = None) -> None:
        self.do("queue.bind", queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {})

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"bob's",
        *,
        headers: dict[str, Any] | None = None,
        reply_to: tuple[str, str] | None = None,
        ttl: int | None = None,
        content_type: str | None = None,
        **values: Any,
    ) -> None:
        properties = Properties(
            headers=typed_map(headers or {}), reply_to=None if reply_to is None else reply_to[1],
            expiration=None if ttl is None else str(ttl), content_type=content_type,
        )  # fmt: skip
        self.client.publish(key, body, properties, channel=self.channel, exchange=exchange, **values)
        self._settle()

    def take(self, queue: str, outcome: str = "") -> None:
        found = self.do("basic.consume", queue=queue, consumer_tag="tag")
        for each in found:
            if each.name == "basic.deliver" and outcome == "reject":
                self.do("basic.reject", delivery_tag=each.values["delivery_tag"], requeue=False)
        self.do("basic.cancel", consumer_tag="tag")

    def delete(self, queue: str) -> None:
        self.do("queue.delete", queue=queue)

    def leave(self) -> None:
        """Close the connection."""
        self.client.method("connection.close", 0, reply_code=200, reply_text="", class_id=0, method_id=0)
        self.client.sync()


class Linked:
    """A client of AMQP 1.0, which has a link for each of its acts. What that protocol cannot do, it does over 0-10."""

    def __init__(self, world: World, user: str) -> None:
        self.client = client = LinksClient(world)
        client.send(SASL_HEADER)
        client.do("sasl-init", mechanism="PLAIN", initial_response=f"\0{user}\0-".encode())
        client.take()
        client.open()
        assert client.machine.user == f"{user}@QPID"
        self._modern = Modern(world, user, "beside a link")
        self._handles = itertools.count()

    def attach(self, address: str | None, *, receives: bool = False, **terminus: Any) -> int:
        """Attach a link; returns its handle, or -1 if it was refused."""
        handle = next(self._handles)
        came = self.client.attach(address, handle, receives=receives, terminus=terminus)
        if came[-1].name != "detach":
            return handle
        self.client.do("detach", handle=handle, closed=True)
        return -1

    def detach(self, handle: int) -> None:
        self.client.do("detach", handle=handle, closed=True)
        self.client.take()

    def make(self, name: str | None, *capabilities: str, properties: Mapping[str, object]) -> int:
        """Attach a link to a node that is made for it: with this name, or one of the broker."""
        given = tuple((Value("symbol", key), _value(value)) for key, value in properties.items())
        if name is None:
            return self.attach(None, dynamic=True, capabilities=capabilities, dynamic_node_properties=given)
        return self.attach(name, capabilities=("create-on-demand", *capabilities), dynamic_node_properties=given)

    def queue(self, name: str, arguments: dict[str, Any] | None = None, *, alternate_exchange: str = "") -> None:
        more = {"alternate-exchange": alternate_exchange} if alternate_exchange else {}
        handle = self.make(name, "queue", properties={**(arguments or {}), **more})
        if handle >= 0:
            self.detach(handle)

    def exchange(self, name: str, kind: str, alternate: str = "", arguments: dict[str, Any] | None = None) -> None:
        properties: dict[str, Any] = {"exchange-type": kind, **(arguments or {})}
        handle = self.make(
            name, "topic", properties=properties | ({"alternate-exchange": alternate} if alternate else {})
        )
        if handle >= 0:
            self.detach(handle)

    def bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any] | None = None) -> None:
        self._modern.bind(queue, exchange, key, arguments)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"bob's",
        *,
        headers: dict[str, Any] | None = None,
        reply_to: tuple[str, str] | None = None,
        ttl: int | None = None,
        content_type: str | None = None,
        address: str | None = "",
        **properties: Any,
    ) -> None:
        if address == "":
            address = f"{exchange}/{key}" if exchange else key
        handle = self.attach(address)
        if handle < 0:
            return
        if reply_to is not None:
            properties["reply_to"] = Value("string", "/".join(part for part in reply_to if part))
        properties |= {} if content_type is None else {"content_type": content_type}
        message = encode_composite("header", {"durable": False, "ttl": ttl})
        message += encode_composite("properties", properties) if properties else b""
        entries = tuple((Value("string", name), _value(value)) for name, value in (headers or {}).items())
        message += encode_section(APPLICATION_PROPERTIES, Value("map", entries)) if entries else b""
        self.client.publish(message=message + data_section(len(body)) + body, handle=handle)
        self.client.sync()
        self.detach(handle)

    def take(self, queue: str, outcome: str = "") -> None:
        handle = self.attach(queue, receives=True)
        if handle < 0:
            return
        self.client.credit(100, handle)
        for each in self.client.messages():
            if outcome == "reject":
                self.client.settle(REJECTED, each.id)
        self.detach(handle)

    def delete(self, queue: str) -> None:
        self._modern.delete(queue)


def _value(value: object) -> Value:
    kinds: dict[type, str] = {bool: "boolean", int: "long", str: "string"}
    return Value(kinds[type(value)], value)


Bob = Any
"""A `Modern`, a `Basic` or a `Linked`."""


class Stage:
    """A broker with what bob is after, the rules, and the clients.

    Attributes:
        world, control: the broker, and its rules.
        managed: what management manages.
        alice: a client of AMQP 0-9-1 with an exclusive queue `private`, or, if it is not exclusive, a shared one.
        listed: xids that bob has seen.
        browsed: bodies that bob has seen.
    """

    def __init__(self, rules: tuple[str, ...] | Granted, *, is_exclusive: bool = True, **settings: Any) -> None:
        world = self.world = World(BrokerSettings(auth=False, **settings))
        broker = world.broker
        register_listener(broker, new_transfer)
        broker.self_destruct = lambda host, name: self._run(host.topology.self_destruct(name), lambda _: None)
        self.managed = managed(broker, "1.2")
        self.agent = Agent(self.managed, new_transfer, new_sections, self._run)
        admin = self.admin = Modern(world, "admin")
        for name in ("secret", "hot"):
            admin.queue(name)
        admin.exchange("kx", "topic")
        admin.exchange("kd", "direct")
        admin.bind("hot", "kx", "hot.#")
        admin.bind("secret", "kd", "k")
        admin.publish("", "secret", b"kept")
        admin.publish("kx", "hot.0", b"kept")
        self.alice = Basic(world, "alice")
        self.alice.queue("private", exclusive=is_exclusive)
        admin.publish("", "private", b"kept")
        self._prepare(Modern(world, "alice"))
        self.control: AccessControl = permitted(broker, rules) if isinstance(rules, Granted) else use(broker, *rules)[0]
        for machine in world.machines:
            machine.watch_rules()
        self.bobs: list[Bob] = [Modern(world, "bob"), Basic(world, "bob"), Linked(world, "bob")]
        self.listed: list[object] = []
        self.browsed: list[bytes] = []
        self.before = self.state()
        self.control.denied = 0

    def _run(self, work: Any, done: Any) -> None:
        self.world.work.append((work, done))

    def _prepare(self, alice: Modern) -> None:
        """Two branches of alice's: one is prepared, the other one can be joined."""
        alice.queue("hers")
        alice.do("dtx.select")
        for xid in (XID, ACTIVE):
            alice.do("dtx.start", xid=xid)
            alice.publish("", "hers", b"in the branch")
            alice.do("dtx.end", xid=xid)
        alice.do("dtx.prepare", xid=XID)

    @property
    def branches(self) -> list[tuple[State, int, int]]:
        found = self.world.broker.distributed.branches.values()
        return [(each.state, each.timeout, each.associations) for each in found]

    def bodies(self, queue: str) -> list[bytes]:
        found = self.world.broker.default_host.queues.get(queue)
        return [b"deleted"] if found is None else [bytes(each.message.body) for each in found.available()]

    def state(self) -> object:
        """What bob may not change, and what he may not see."""
        host = self.world.broker.default_host
        private = host.queues.get("private")
        return (
            self.bodies("secret"), self.bodies("hot"), self.bodies("private"), self.branches, list(self.listed),
            list(self.browsed), private is not None and (private.consumer_count, private.binding_count.value),
            [each.key for each in host.exchanges["kd"].bindings_of(host.queues["secret"])],
            [each.name for each in host.queues.values() if each.redirect_peer is not None],
        )  # fmt: skip

    def call(self, bob: Bob, method: str, target: str = "broker:amqp-broker", /, **arguments: Any) -> None:
        """Call a method of management, over bob's protocol; the reply goes to a queue of his."""
        package = arguments.pop("package", "org.apache.qpid.broker")
        self.ask(bob, "_method_request", {
            "_object_id": {"_object_name": f"{package}:{target}"}, "_method_name": method, "_arguments": arguments,
        })  # fmt: skip

    def ask(
        self, bob: Bob, opcode: str, content: Mapping[str, Any], reply_to: tuple[str, str] = ("", "replies")
    ) -> None:
        body = encode_value(BY_NAME["map"], typed_value(content).value)
        bob.queue("replies")
        bob.publish(
            _QMF, "broker", body, headers={"qmf.opcode": opcode}, reply_to=reply_to, content_type="amqp/map"
        )  # fmt: skip
        self.world.run()

    def create(self, bob: Bob, kind: str, name: str, **properties: Any) -> None:
        given = {each.replace("_", "-"): value for each, value in properties.items()}
        self.call(bob, "create", type=kind, name=name, properties=given, strict=False)

    def pass_time(self) -> None:
        self.world.now += 60
        self.world.broker.expire()
        self.world.broker.tick.schedule()
        self.world.run()


# ---- the table ----

Walk = Callable[[Stage, Bob], None]


class Road(NamedTuple):
    """A way on which bob tries to do what he may not.

    Attributes:
        name: what it is.
        walk: what he does.
        protocols: over which.
        settings: of the broker.
        is_locked: it is not a rule that bars it, but that alice's queue is exclusive; it is open if the queue is not.
        is_hers: it is not a rule that bars it, but that what he would use is alice's; it is open to administrators.
    """

    name: str
    walk: Walk
    protocols: tuple[str, ...] = ("0-10", "0-9-1")
    settings: Mapping[str, Any] = {}
    is_locked: bool = False
    is_hers: bool = False


ROADS: Final[list[Road]] = []
PROTOCOLS: Final = ("0-10", "0-9-1", "1.0")


def road(
    name: str, *protocols: str, is_locked: bool = False, is_hers: bool = False, **settings: Any
) -> Callable[[Walk], Walk]:
    """Enter a road in the table."""

    def enter(walk: Walk) -> Walk:
        ROADS.append(Road(name, walk, protocols or PROTOCOLS[:2], settings, is_locked, is_hers))
        return walk

    return enter


# a message of his own


@road("publishing to a queue", *PROTOCOLS)
def _publish(_stage: Stage, bob: Bob) -> None:
    bob.publish("", "secret")


@road("publishing with a key", *PROTOCOLS)
def _publish_key(_stage: Stage, bob: Bob) -> None:
    bob.publish("kx", "hot.1")


@road("publishing with the same target again", *PROTOCOLS)
def _publish_again(_stage: Stage, bob: Bob) -> None:
    for _ in range(3):
        bob.publish("kx", "hot.1")


for _where, _address in (
    ("a queue in RabbitMQ's form", "/queues/secret"), ("an exchange in RabbitMQ's form", "/exchanges/kx/hot%2E1"),
):  # fmt: skip

    @road(f"the address of {_where}", "1.0")
    def _publish_to_address(_stage: Stage, bob: Bob, address: str = _address) -> None:
        bob.publish("", "", address=address)

    @road(f"a message without a target, to the address of {_where}", "1.0")
    def _publish_to(_stage: Stage, bob: Bob, address: str = _address) -> None:
        bob.publish("", "", address=None, to=Value("string", address))


@road("messages without a target, each with its own address", "1.0")
def _relayed(_stage: Stage, bob: Bob) -> None:
    for to in ("amq.topic/hot.1", "kx/cold", "kx/hot.1", "secret"):
        bob.publish("", "", address=None, to=Value("string", to))


@road("a key that is the subject of a message", "1.0")
def _by_subject(_stage: Stage, bob: Bob) -> None:
    for subject in ("cold", "hot.1"):
        bob.publish("", "", address="kx", subject=subject)


@road("dead letters of a dynamic node", "1.0")
def _dead_of_dynamic(stage: Stage, bob: Bob) -> None:
    made = bob.make(None, properties={"x-dead-letter-exchange": "kx", "x-dead-letter-routing-key": "hot.1"})
    if made >= 0:
        (name,) = (each for each in stage.world.broker.default_host.queues if each.startswith("amq.dyn-"))
        bob.publish("", name)
        bob.take(name, "reject")


@road("the alternate exchange of a dynamic node", "1.0")
def _alternate_of_dynamic(stage: Stage, bob: Bob) -> None:
    made = bob.make(None, "topic", properties={"alternate-exchange": "kx"})
    if made >= 0:
        (name,) = (each for each in stage.world.broker.default_host.exchanges if each.startswith("topic-"))
        bob.publish(name, "hot.1")


@road("the headers CC and BCC", "0-9-1")
def _copies(_stage: Stage, bob: Bob) -> None:
    for name in ("CC", "BCC"):
        bob.publish("kx", "cold", headers={name: ["cold.2", "hot.1"]})


@road("an immediate message", "0-10")
def _immediate(stage: Stage, bob: Bob) -> None:
    stage.admin.do("message.subscribe", queue="secret", destination="d", accept_mode=0, acquire_mode=1)
    for unit in (0, 1):
        stage.admin.do("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
    bob.publish("kx", "hot.1")


@road("a mandatory message", "0-9-1")
def _mandatory(_stage: Stage, bob: Bob) -> None:
    bob.publish("kx", "hot.1", mandatory=True)


@road("a message in a local transaction")
def _local_transaction(_stage: Stage, bob: Bob) -> None:
    bob.do("tx.select")
    bob.publish("kx", "hot.1")
    bob.do("tx.commit")


@road("a message in a distributed transaction", "0-10")
def _own_branch(_stage: Stage, bob: Bob) -> None:
    own = BranchId(1, b"his", b"own")
    bob.do("dtx.select")
    bob.do("dtx.start", xid=own)
    bob.publish("kx", "hot.1")
    bob.do("dtx.end", xid=own)
    bob.do("dtx.commit", xid=own, one_phase=True)


@road("the rest of an interrupted message", "0-10")
def _resumed(stage: Stage, bob: Bob) -> None:
    head = header({}, routing_key="secret", resume_id="m", resume_ttl=60_000)
    frames = _frames(bob, head)
    bob.client.send(b"".join(frames[:-1]))
    bob.client.machine.closed()
    stage.world.run()
    again = Modern(stage.world, "bob")
    again.do("message.resume", destination="", resume_id="m")
    again.publish("", "harmless", b"rest", resume_id="m", resume_ttl=60_000)


def _frames(bob: Modern, head: bytes) -> list[bytes]:
    payload = encode_command("message.transfer", destination="")
    return list(encode_command_frames(bob.channel, payload, head, bytes(30_000), 10_000))


# (a) an exchange of type replication


def _event(kind: int, queue: str) -> dict[str, Any]:
    position = "qpid.replication.queue.position" if kind == 1 else "qpid.replication.message"
    return {"qpid.replication.type": kind, "qpid.replication.target_queue": queue, position: 1}


@road("an event of replication that a message was enqueued", *PROTOCOLS)
def _replicated(_stage: Stage, bob: Bob) -> None:
    bob.exchange("mirror", "replication")
    bob.publish("mirror", "", headers=_event(1, "secret"))


@road("an event of replication that a message was dequeued", *PROTOCOLS)
def _replicated_dequeue(stage: Stage, bob: Bob) -> None:
    stage.admin.exchange("mirror", "replication")
    stage.admin.publish("mirror", "", headers=_event(1, "secret"))
    stage.before = stage.state()
    bob.publish("mirror", "", headers=_event(2, "secret"))


# (b) dead letters

_CAUSES: Final = ("reject", "expiry", "displacement", "refusal")


def _die(stage: Stage, bob: Bob, cause: str, key: str, dead: dict[str, Any]) -> None:
    """Have a message with that key die on a queue of bob's."""
    limits: dict[str, dict[str, Any]] = {
        "displacement": {"x-max-length": 1},
        "refusal": {"x-max-length": 1, "x-overflow": "reject-publish-dlx"},
    }
    bob.queue("his", dead | limits.get(cause, {}))
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    for _ in range(2):
        bob.publish("mine", key, ttl=1000 if cause == "expiry" else None)
    if cause == "expiry":
        stage.pass_time()
    if cause == "reject":
        bob.take("his", "reject")


for _cause in _CAUSES:

    @road(f"dead letters with their own key, to a queue: {_cause}", *PROTOCOLS)
    def _dead_to_queue(stage: Stage, bob: Bob, cause: str = _cause) -> None:
        _die(stage, bob, cause, "secret", {"x-dead-letter-exchange": ""})

    @road(f"dead letters with their own key, to an exchange: {_cause}", *PROTOCOLS)
    def _dead_to_exchange(stage: Stage, bob: Bob, cause: str = _cause) -> None:
        _die(stage, bob, cause, "hot.1", {"x-dead-letter-exchange": "kx"})

    @road(f"dead letters with a key: {_cause}", *PROTOCOLS)
    def _dead_with_key(stage: Stage, bob: Bob, cause: str = _cause) -> None:
        _die(stage, bob, cause, "x", {"x-dead-letter-exchange": "kx", "x-dead-letter-routing-key": "hot.1"})


@road("dead letters of a queue that management creates")
def _dead_of_created(stage: Stage, bob: Bob) -> None:
    stage.call(bob, "create", type="queue", name="his", properties={"x-dead-letter-exchange": "kx"}, strict=False)
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    bob.publish("mine", "hot.1")
    bob.take("his", "reject")


@road("dead letters by a policy of his")
def _dead_by_policy(stage: Stage, bob: Bob) -> None:
    definition = {"dead-letter-exchange": "kx", "dead-letter-routing-key": "hot.1"}
    stage.create(bob, "policy", "his", pattern="^his$", definition=definition)
    _die(stage, bob, "reject", "x", {})


@road("dead letters with their own key by a policy of his")
def _dead_with_own_key_by_policy(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    stage.create(bob, "policy", "his", pattern="^his$", definition={"dead-letter-exchange": ""})
    _die(stage, bob, "reject", "secret", {})


@road("an alternate exchange by a policy of his")
def _alternate_by_policy(stage: Stage, bob: Bob) -> None:
    stage.create(bob, "policy", "his", pattern="^mine$", definition={"alternate-exchange": "kx"})
    bob.exchange("mine", "topic")
    bob.publish("mine", "hot.1")


# (c) bindings between exchanges

_BOUND: Final = (("topic", EVERY_KEY), ("topic", "*.1"), ("topic", "hot.1"), ("fanout", ""), ("direct", "hot.1"))

for _kind, _key in _BOUND:

    @road(f"an exchange bound to one of his, of type {_kind}, with key {_key!r}", "0-9-1")
    def _bound_exchange(_stage: Stage, bob: Bob, kind: str = _kind, key: str = _key) -> None:
        bob.exchange("mine", kind)
        bob.do("exchange.bind", source="mine", destination="kx", routing_key=key)
        bob.publish("mine", "hot.1")

    @road(f"an exchange bound to one of his by management, of type {_kind}, with key {_key!r}")
    def _bound_by_management(stage: Stage, bob: Bob, kind: str = _kind, key: str = _key) -> None:
        bob.exchange("mine", kind)
        stage.create(bob, "exchange_binding", f"mine/kx/{key}")
        bob.publish("mine", "hot.1")


@road("an exchange bound to one of his, of type headers", "0-9-1")
def _bound_headers(_stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "headers")
    bob.do("exchange.bind", source="mine", destination="kx", routing_key="", arguments={"a": 1})
    bob.publish("mine", "hot.1", headers={"a": 1})


@road("a chain of exchanges", "0-9-1")
def _chain(_stage: Stage, bob: Bob) -> None:
    for name in ("mine", "his"):
        bob.exchange(name, "topic")
    bob.do("exchange.bind", source="mine", destination="his", routing_key=EVERY_KEY)
    bob.do("exchange.bind", source="his", destination="kx", routing_key="hot.*")
    bob.publish("mine", "hot.1")


# (d) alternate exchanges


@road("an alternate exchange of an exchange", *PROTOCOLS)
def _alternate_of_exchange(_stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "topic", alternate="kx")
    bob.publish("mine", "hot.1")


@road("an alternate exchange of an exchange that management creates")
def _alternate_of_created_exchange(stage: Stage, bob: Bob) -> None:
    stage.create(bob, "exchange", "mine", exchange_type="topic", alternate_exchange="kx")
    bob.publish("mine", "hot.1")


def _with_alternate(stage: Stage, bob: Bob, end: Callable[[], None], **values: Any) -> None:
    """A message with a hot key on a queue of bob's whose alternate exchange is `kx`, until `end`."""
    bob.queue("his", alternate_exchange="kx", **values)
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    bob.publish("mine", "hot.1")
    end()
    stage.world.run()


@road("an alternate exchange of a queue: rejection", "0-10")
def _alternate_rejects(stage: Stage, bob: Bob) -> None:
    _with_alternate(stage, bob, lambda: bob.take("his", "reject"))


@road("an alternate exchange of a queue: deletion", "0-10")
def _alternate_deletes(stage: Stage, bob: Bob) -> None:
    _with_alternate(stage, bob, lambda: bob.delete("his"))


@road("an alternate exchange of a queue: its last subscription ends", "0-10")
def _alternate_auto_delete(stage: Stage, bob: Bob) -> None:
    _with_alternate(stage, bob, lambda: bob.take("his"), auto_delete=True)


@road("an alternate exchange of a queue: its exclusive session ends", "0-10")
def _alternate_exclusive(stage: Stage, bob: Bob) -> None:
    _with_alternate(stage, bob, bob.leave, auto_delete=True, exclusive=True)


@road("an alternate exchange of a queue: displacement from a ring", "0-10")
def _alternate_ring(stage: Stage, bob: Bob) -> None:
    ring = {"qpid.policy_type": "ring", "qpid.max_count": 1}
    _with_alternate(stage, bob, lambda: bob.publish("mine", "hot.2"), arguments=ring)


@road("an alternate exchange of a queue: it exceeds its limit and is deleted", "0-10")
def _alternate_self_destructs(stage: Stage, bob: Bob) -> None:
    limited = {"qpid.policy_type": "self-destruct", "qpid.max_count": 1}
    _with_alternate(stage, bob, lambda: bob.publish("mine", "hot.2"), arguments=limited)


@road("an alternate exchange of a queue that management creates")
def _alternate_of_created_queue(stage: Stage, bob: Bob) -> None:
    stage.create(bob, "queue", "his", alternate_exchange="kx")
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    bob.publish("mine", "hot.1")
    stage.call(bob, "delete", type="queue", name="his", options={})


# (e) replies of management


def _ways_to_reply(bob: Bob) -> list[tuple[str, str]]:
    return [("", "secret"), *([("kx", "hot.1")] if isinstance(bob, Modern) else [])]


@road("the reply to a method of management")
def _reply_of_method(stage: Stage, bob: Bob) -> None:
    target = {"_object_name": "org.apache.qpid.broker:broker:amqp-broker"}
    content = {"_object_id": target, "_method_name": "echo", "_arguments": {"sequence": 1, "body": "bob's"}}
    for reply_to in _ways_to_reply(bob):
        stage.ask(bob, "_method_request", content, reply_to)


@road("the reply to a query of management")
def _reply_of_query(stage: Stage, bob: Bob) -> None:
    for reply_to in _ways_to_reply(bob):
        stage.ask(bob, "_query_request", {"_what": "SCHEMA_ID"}, reply_to)


@road("the reply to who is an agent")
def _reply_of_locate(stage: Stage, bob: Bob) -> None:
    for reply_to in _ways_to_reply(bob):
        stage.ask(bob, "_agent_locate_request", {}, reply_to)


@road("the reply to a subscription")
def _reply_of_subscription(stage: Stage, bob: Bob) -> None:
    query = {"_what": "OBJECT", "_schema_id": {"_class_name": "queue"}}
    for reply_to in _ways_to_reply(bob):
        stage.ask(bob, "_subscribe_request", {"_query": query}, reply_to)


@road("the reply to a request that fails")
def _reply_of_failure(stage: Stage, bob: Bob) -> None:
    for reply_to in _ways_to_reply(bob):
        stage.ask(bob, "_nonsense", {}, reply_to)


@road("the reply to a request of QMF version 1")
def _reply_of_version_1(stage: Stage, bob: Bob) -> None:
    for reply_to in _ways_to_reply(bob):
        for dialect in Dialect:
            bob.publish("qpid.management", "broker", encode_message("B", 7, dialect=dialect), reply_to=reply_to)
            stage.world.run()


@road("a request for an agent of version 1")
def _request_for_agent(stage: Stage, bob: Bob) -> None:
    stage.admin.bind("hot", "qpid.management", "agent.1.10")
    attach = encode_message("A", 1, "sensors", UUID(int=5), 0, 0)
    bob.publish("qpid.management", "broker", attach, reply_to=("", "nowhere"))
    stage.world.run()
    content = {"_what": "OBJECT", "_object_id": {"_object_name": "com.example:sensor:0-1-1-10-7"}}
    body, headers = encode_value(BY_NAME["map"], typed_value(content).value), {"qmf.opcode": "_query_request"}
    name = f"qmf1:sensors:{UUID(int=5)}-10"
    bob.publish(_QMF, name, body, headers=headers, reply_to=("", "nowhere"), content_type="amqp/map")
    stage.world.run()


@road("the schema of an agent of AM1")
def _schema_of_agent_of_am1(stage: Stage, bob: Bob) -> None:
    stage.admin.bind("hot", "qpid.management", "mgmt.*.schema.#")
    key = "com.example", "sensor", bytes(16)
    for body in (
        encode_message("A", 1, "sensors", UUID(int=5), 0, dialect=Dialect.AM1),
        encode_message("q", 2, *key, dialect=Dialect.AM1),
        encode_message("s", 1, *key, rest=bytes(8), dialect=Dialect.AM1),
    ):
        bob.publish("qpid.management", "broker", body, reply_to=("", "nowhere"))
        stage.world.run()


@road("the schema of an agent of version 1")
def _schema_of_agent(stage: Stage, bob: Bob) -> None:
    stage.admin.bind("hot", "qpid.management", "schema.#")
    key = "com.example", "sensor", bytes(16)
    schema = struct.pack(">HHH", 0, 0, 0)
    for body in (
        encode_message("A", 1, "sensors", UUID(int=5), 0, 0), encode_message("q", 2, 1, *key),
        encode_message("s", 1, 1, *key, rest=schema),
    ):  # fmt: skip
        bob.publish("qpid.management", "broker", body, reply_to=("", "nowhere"))
        stage.world.run()


# moves by management


@road("messages that management moves")
def _moved(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    bob.publish("", "his")
    stage.call(bob, "queueMoveMessages", srcQueue="his", destQueue="secret", qty=0)


@road("messages that management reroutes")
def _rerouted(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    bob.publish("mine", "hot.1")
    stage.call(bob, "reroute", "queue:his", request=0, useAltExchange=False, exchange="kx")


@road("messages with CC that management reroutes", "0-9-1")
def _rerouted_copies(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    bob.publish("", "his", headers={"CC": ["hot.1"]})
    stage.call(bob, "reroute", "queue:his", request=0, useAltExchange=False, exchange="kx")


@road("messages that management reroutes to an alternate exchange")
def _rerouted_to_alternate(stage: Stage, bob: Bob) -> None:
    stage.admin.queue("his", alternate_exchange="kx")
    stage.admin.bind("his", "amq.topic", EVERY_KEY)
    bob.publish("amq.topic", "hot.1")
    stage.call(bob, "reroute", "queue:his", request=0, useAltExchange=True, exchange="")


@road("a redirection to a queue")
def _redirected(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    stage.call(bob, "queueRedirect", sourceQueue="his", targetQueue="secret")
    bob.publish("", "his")


@road("a redirection from a queue")
def _redirected_from(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    stage.call(bob, "queueRedirect", sourceQueue="secret", targetQueue="his")


@road("purging")
def _purged(_stage: Stage, bob: Bob) -> None:
    bob.do("queue.purge", queue="secret")


@road("purging by management")
def _purged_by_management(stage: Stage, bob: Bob) -> None:
    stage.call(bob, "purge", "queue:secret", request=0)


@road("an exclusive binding that ends another one")
def _exclusive_binding(_stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    bob.bind("his", "kd", "k", {"qpid.exclusive-binding": True})


@road("events of a queue, to the replication queue", *PROTOCOLS, replication_queue="secret")
def _events_to_queue(_stage: Stage, bob: Bob) -> None:
    bob.queue("his", {"qpid.queue_event_generation": 2})
    bob.publish("", "his")


@road("events of a queue, to the replication exchange", *PROTOCOLS, replication_exchange="kx")
def _events_to_exchange(_stage: Stage, bob: Bob) -> None:
    bob.queue("his", {"qpid.queue_event_generation": 1})
    bob.exchange("mine", "topic")
    bob.bind("his", "mine", EVERY_KEY)
    bob.publish("mine", "hot.1")


# (f) distributed transactions of another user


@road("listing another user's branches", "0-10")
def _list_branches(stage: Stage, bob: Bob) -> None:
    bob.do("dtx.select")
    stage.listed += bob.do("dtx.recover")["in_doubt"].values


@road("listing another user's branches by management")
def _query_branches(stage: Stage, bob: Bob) -> None:
    xid = next(iter(stage.world.broker.distributed.branches)).hex()
    stage.ask(bob, "_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "transaction"}})
    stage.ask(bob, "_query_request", {"_what": "OBJECT", "_object_id": {"_object_name": f"qstore:transaction:{xid}"}})
    stage.call(bob, "query", type="transaction", name=xid)
    stage.listed += [body for body in stage.bodies("replies") if State.PREPARED.name.encode() in body]


@road("listing another user's branches by management of version 1")
def _query_branches_1(stage: Stage, bob: Bob) -> None:
    bob.queue("replies")
    query = encode_message("G", 7, typed_map({"_class": "transaction", "_package": "qstore"}))
    bob.publish("qpid.management", "broker", query, reply_to=("", "replies"))
    stage.world.run()
    stage.listed += [body for body in stage.bodies("replies") if State.PREPARED.name.encode() in body]


@road("beginning a branch that is another user's", "0-10")
def _start_branch(stage: Stage, bob: Bob) -> None:
    bob.do("dtx.select")
    bob.do("dtx.start", xid=XID)
    stage.listed += [each["description"] for each in bob.client.exceptions if "already exists" in each["description"]]


@road("joining another user's branch", "0-10")
def _join_branch(_stage: Stage, bob: Bob) -> None:
    bob.do("dtx.select")
    bob.do("dtx.start", xid=ACTIVE, join=True)


for _command, _values in (
    ("dtx.prepare", {"xid": ACTIVE}),
    ("dtx.commit", {"xid": XID}),
    ("dtx.commit", {"xid": ACTIVE, "one_phase": True}),
    ("dtx.rollback", {"xid": XID}),
    ("dtx.rollback", {"xid": ACTIVE}),
    ("dtx.set-timeout", {"xid": ACTIVE, "timeout": 9}),
):

    @road(f"{_command} of another user's branch, {'prepared' if _values['xid'] == XID else 'active'}", "0-10")
    def _use_branch(_stage: Stage, bob: Bob, command: str = _command, values: Mapping[str, Any] = _values) -> None:
        bob.do("dtx.select")
        bob.do(command, **values)


@road("asking for the timeout of another user's branch", "0-10")
def _timeout_of_branch(stage: Stage, bob: Bob) -> None:
    bob.do("dtx.select")
    stage.listed += bob.do("dtx.get-timeout", xid=ACTIVE).values()


for _method in ("commit", "rollback"):

    @road(f"{_method} of another user's branch by management")
    def _use_branch_by_management(stage: Stage, bob: Bob, method: str = _method) -> None:
        for xid in stage.world.broker.distributed.in_doubt:
            stage.call(bob, method, f"transaction:{xid.hex()}", package="qstore")


# (g) a queue that is exclusive to a connection of AMQP 0-9-1


@road("browsing a private queue", "0-10", is_locked=True)
def _browse(stage: Stage, bob: Bob) -> None:
    bob.do("message.subscribe", queue="private", destination="d", accept_mode=1, acquire_mode=1)
    if not bob.client.exceptions:
        for unit in (0, 1):
            bob.do("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
        stage.browsed += [each.body for each in bob.client.deliveries]


@road("consuming from a private queue", is_locked=True)
def _consume(_stage: Stage, bob: Bob) -> None:
    if isinstance(bob, Basic):
        bob.do("basic.consume", queue="private", consumer_tag="tag")
    else:
        bob.do("message.subscribe", queue="private", destination="d", accept_mode=0, acquire_mode=0)


@road("receiving from a private queue", "1.0", is_locked=True)
def _receive(_stage: Stage, bob: Bob) -> None:
    bob.attach("private", receives=True)


@road("browsing a private queue over a link", "1.0", is_locked=True)
def _browse_link(stage: Stage, bob: Bob) -> None:
    handle = bob.attach("private", receives=True, distribution_mode="copy")
    if handle >= 0:
        bob.client.credit(9, handle)
        stage.browsed += [each.body for each in bob.client.messages()]


@road("getting from a private queue", "0-9-1", is_locked=True)
def _get(stage: Stage, bob: Bob) -> None:
    stage.browsed += [each.body for each in bob.do("basic.get", queue="private") if each.name == "basic.get-ok"]


@road("purging a private queue", is_locked=True)
def _purge_private(_stage: Stage, bob: Bob) -> None:
    bob.do("queue.purge", queue="private")


@road("deleting a private queue", is_locked=True)
def _delete_private(_stage: Stage, bob: Bob) -> None:
    bob.do("queue.delete", queue="private")


@road("binding a private queue", is_locked=True)
def _bind_private(_stage: Stage, bob: Bob) -> None:
    bob.bind("private", "amq.direct", "k")


@road("an exclusive binding that ends one of a private queue", is_locked=True)
def _exclusive_binding_of_private(stage: Stage, bob: Bob) -> None:
    stage.alice.bind("private", "kd", "p")
    stage.before = stage.state()
    bob.queue("his")
    bob.bind("his", "kd", "p", {"qpid.exclusive-binding": True})


@road("what management does with a private queue: purge", is_locked=True)
def _managed_purge(stage: Stage, bob: Bob) -> None:
    stage.call(bob, "purge", "queue:private", request=0)


@road("what management does with a private queue: move", is_locked=True)
def _managed_move(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    stage.call(bob, "queueMoveMessages", srcQueue="private", destQueue="his", qty=0)


@road("what management puts on a private queue: move", is_locked=True)
def _managed_move_there(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    bob.publish("", "his")
    stage.before = stage.state()
    stage.call(bob, "queueMoveMessages", srcQueue="his", destQueue="private", qty=0)


@road("what management does with a private queue: reroute", is_locked=True)
def _managed_reroute(stage: Stage, bob: Bob) -> None:
    stage.call(bob, "reroute", "queue:private", request=0, useAltExchange=False, exchange="amq.topic")


@road("what management does with a private queue: redirect", is_locked=True)
def _managed_redirect(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    stage.call(bob, "queueRedirect", sourceQueue="private", targetQueue="his")


@road("what management does with a private queue: delete", is_locked=True)
def _managed_delete(stage: Stage, bob: Bob) -> None:
    stage.call(bob, "delete", type="queue", name="private", options={})


# links with transactions, and the node for management


def _control(bob: Bob) -> tuple[int, Value]:
    """A link of bob's to the coordinator, and a transaction on it."""
    handle = next(bob._handles)
    attach_control(bob.client, handle)
    return handle, declare(bob.client, handle)


def _post(stage: Stage, bob: Bob, target: str | None, **options: Any) -> None:
    """Publish in a transaction, and commit it."""
    handle, txn_id = _control(bob)
    link = bob.attach(target)
    if link >= 0:
        bob.client.publish(b"bob's", link, durable=False, state=in_transaction(txn_id), **options)
        bob.client.take()
    command(bob.client, "discharge", handle=handle, txn_id=txn_id, fail=False)
    stage.world.run()


@road("a message in a transaction of links", "1.0")
def _posted(stage: Stage, bob: Bob) -> None:
    _post(stage, bob, "kx/hot.1")


@road("a message without a target in a transaction of links", "1.0")
def _posted_anywhere(stage: Stage, bob: Bob) -> None:
    _post(stage, bob, None, to=Value("string", "/queues/secret"))


@road("dead letters of an outcome in a transaction of links", "1.0")
def _retired(stage: Stage, bob: Bob) -> None:
    bob.queue("his", {"x-dead-letter-exchange": "kx", "x-dead-letter-routing-key": "hot.1"})
    bob.publish("", "his")
    handle, txn_id = _control(bob)
    link = bob.attach("his", receives=True)
    if link < 0:
        return
    bob.client.credit(9, link)
    for each in bob.client.messages():
        bob.client.settle(in_transaction(txn_id, REJECTED), each.id)
    command(bob.client, "discharge", handle=handle, txn_id=txn_id, fail=False)
    stage.world.run()


def _request(bob: Bob, method: str, path: str, body: object = None) -> Any:
    """Ask the node for management. Returns the body of the answer."""
    requests, answers = next(bob._handles), next(bob._handles)
    bob.client.attach("/management", requests, name="pair")
    bob.client.attach("/management", answers, name="pair", receives=True, snd_settle_mode=1)
    bob.client.credit(9, answers)
    properties = {"message_id": Value("string", "m"), "to": address(path), "subject": method}
    sections = encode_composite("properties", properties) + encode_section(VALUE, request_value(body))
    bob.client.publish(message=sections, handle=requests, settled=True)
    found = [read_answer(each.content) for each in bob.client.messages() if each.fields["handle"] == answers]
    bob.detach(requests)
    bob.detach(answers)
    return found


@road("purging by the node for management", "1.0")
def _purge_by_node(_stage: Stage, bob: Bob) -> None:
    _request(bob, "DELETE", "/queues/secret/messages")


@road("dead letters of a queue that the node for management makes", "1.0")
def _dead_by_node(_stage: Stage, bob: Bob) -> None:
    dead = {"x-dead-letter-exchange": "kx", "x-dead-letter-routing-key": "hot.1", "x-message-ttl": 0}
    _request(bob, "PUT", "/queues/his", {"arguments": dead})
    bob.publish("", "his")
    _stage.pass_time()


@road("an alternate exchange that the node for management makes", "1.0")
def _alternate_by_node(_stage: Stage, bob: Bob) -> None:
    _request(bob, "PUT", "/exchanges/mine", {"type": "direct", "arguments": {"alternate-exchange": "kx"}})
    bob.publish("mine", "hot.1")


@road("an exchange that the node for management binds", "1.0")
def _bound_by_node(_stage: Stage, bob: Bob) -> None:
    _request(bob, "PUT", "/exchanges/mine", {"type": "fanout"})
    _request(bob, "POST", "/bindings", {"source": "mine", "destination_exchange": "kx", "binding_key": "k"})
    bob.publish("mine", "hot.1")


@road("a binding that the node for management takes away", "1.0")
def _unbound_by_node(_stage: Stage, bob: Bob) -> None:
    _request(bob, "DELETE", "/bindings/src=kd;dstq=secret;key=k;args=")


for _what, _method, _path in (
    ("purges", "DELETE", "/queues/private/messages"), ("deletes", "DELETE", "/queues/private"),
):  # fmt: skip

    @road(f"a private queue that the node for management {_what}", "1.0", is_locked=True)
    def _private_by_node(_stage: Stage, bob: Bob, method: str = _method, path: str = _path) -> None:
        _request(bob, method, path)


@road("a private queue that the node for management binds", "1.0", is_locked=True)
def _private_bound_by_node(_stage: Stage, bob: Bob) -> None:
    _request(bob, "POST", "/bindings", {"source": "kd", "destination_queue": "private", "binding_key": "p"})


# messages that wait for their time


def _scheduled(stage: Stage, bob: Bob, target: str | None, **properties: Any) -> None:
    link = bob.attach(target)
    if link >= 0:
        delay = Value("map", ((Value("symbol", "x-opt-delivery-delay"), Value("ulong", 1000)),))
        sections = encode_section(MESSAGE_ANNOTATIONS, delay)
        sections += encode_composite("properties", properties) if properties else b""
        bob.client.publish(message=sections + data_section(5) + b"bob's", handle=link)
    _deliver(stage)


def _deliver(stage: Stage) -> None:
    stage.world.run()
    stage.pass_time()
    stage.world.broker.default_host.schedule.deliver()
    stage.world.run()


@road("a scheduled message", "1.0")
def _scheduled_message(stage: Stage, bob: Bob) -> None:
    _scheduled(stage, bob, "kx/hot.1")


@road("a scheduled message without a target", "1.0")
def _scheduled_anywhere(stage: Stage, bob: Bob) -> None:
    _scheduled(stage, bob, None, to=Value("string", "secret"))


@road("a scheduled message whose key is its subject", "1.0")
def _scheduled_subject(stage: Stage, bob: Bob) -> None:
    _scheduled(stage, bob, "kx", subject="hot.1")


@road("an alternate exchange of a delayed one of his", "0-9-1")
def _delayed_alternate(stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "x-delayed-message", "kx", {"x-delayed-type": "direct"})
    bob.publish("mine", "hot.1", headers={"x-delay": 1000})
    _deliver(stage)


_KINDS: Mapping[str, dict[str, Any]] = {
    "x-consistent-hash": {"hash-property": "message_id"}, "x-modulus-hash": {}, "x-random": {}, "x-local-random": {},
    "xml": {},
    "x-recent-history": {"x-recent-history-length": 1},
}  # fmt: skip
for _kind, _given in _KINDS.items():

    @road(f"an alternate exchange of one of his, of type {_kind}", *PROTOCOLS)
    def _alternate_of_kind(_stage: Stage, bob: Bob, kind: str = _kind, given: dict[str, Any] = _given) -> None:
        bob.exchange("mine", kind, "kx", given)
        bob.publish("mine", "hot.1")


# (h) shovels and upstreams that he sets


def _served(stage: Stage) -> Worlds:
    """This broker runs shovels and federation links from now on."""
    world, worlds = stage.world, Worlds(stage.world)
    shovels = Shovels(world.broker, worlds, world.soon.append, worlds.call_later, stage._run)
    upstreams = Upstreams(world.broker, worlds, world.soon.append, worlds.call_later)
    shovels.start()
    upstreams.start()
    stage.managed.interlinks = Interlinks(shovels)
    return worlds


def _set(stage: Stage, bob: Bob, component: str, **value: str) -> Worlds:
    """Have bob set a parameter of this broker, which runs shovels and federation links."""
    worlds = _served(stage)
    given = json.dumps({name.replace("_", "-"): each for name, each in value.items()})
    stage.create(bob, "parameter", "set", component=component, value=given)
    worlds.run()
    return worlds


@road("a shovel to a queue")
def _shovel(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    worlds = _set(stage, bob, "shovel", src_uri="amqp://", src_queue="his", dest_uri="amqp://", dest_queue="secret")
    bob.publish("", "his")
    worlds.run()


@road("a shovel to an exchange, with a key")
def _shovel_with_key(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    dest = {"dest_exchange": "kx", "dest_exchange_key": "hot.1"}
    worlds = _set(stage, bob, "shovel", src_uri="amqp://", src_queue="his", dest_uri="amqp://", **dest)
    bob.publish("", "his")
    worlds.run()


@road("a shovel to an exchange, with the keys of its messages")
def _shovel_of_exchange(stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "topic")
    value = {"src_exchange": "mine", "src_exchange_key": EVERY_KEY, "dest_exchange": "kx"}
    worlds = _set(stage, bob, "shovel", src_uri="amqp://", dest_uri="amqp://", **value)
    bob.publish("mine", "hot.1")
    worlds.run()


@road("a shovel from a queue of alice's", is_locked=True)
def _shovel_from_private(stage: Stage, bob: Bob) -> None:
    bob.queue("his")
    _set(stage, bob, "shovel", src_uri="amqp://", src_queue="private", dest_uri="amqp://", dest_queue="his")


@road("an upstream of an exchange")
def _upstream(stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "topic")
    worlds = _set(stage, bob, "federation-upstream", uri="amqp://", exchange="mine")
    stage.create(bob, "policy", "p", pattern="^kx$", definition={"federation-upstream": "set"})
    worlds.run()
    bob.publish("mine", "hot.1")
    worlds.run()


_HERS: Final = {"uri": "amqp://", "exchange": "mine"}


def _alice_sets(stage: Stage, component: str, name: str, value: object) -> None:
    asyncio.run(stage.world.broker.parameters.set(Parameter("/", component, name, value, "alice@QPID")))


for _how, _definition in (
    ("named", {"federation-upstream": "hers"}), ("of all", {"federation-upstream-set": "all"}),
    ("of a pattern", {"federation-upstream-pattern": "^h"}),
):  # fmt: skip

    @road(f"an upstream of alice's, {_how} by a policy of his before she sets it", is_hers=True)
    def _upstream_set_later(stage: Stage, bob: Bob, definition: Mapping[str, str] = _definition) -> None:
        bob.exchange("mine", "topic")
        worlds = _served(stage)
        stage.create(bob, "policy", "p", pattern="^kx$", definition=definition)
        _alice_sets(stage, "federation-upstream", "hers", _HERS)
        worlds.run()
        bob.publish("mine", "hot.1")
        worlds.run()


@road("an upstream that alice sets in place of his own", is_hers=True)
def _upstream_replaced(stage: Stage, bob: Bob) -> None:
    bob.exchange("mine", "topic")
    worlds = _set(stage, bob, "federation-upstream", uri="amqp://", exchange="amq.topic")
    stage.create(bob, "policy", "p", pattern="^kx$", definition={"federation-upstream": "set"})
    worlds.run()
    _alice_sets(stage, "federation-upstream", "set", _HERS)
    worlds.run()
    bob.publish("mine", "hot.1")
    worlds.run()


def _through_domain(stage: Stage, bob: Bob, direction: str, source: str, target: str) -> tuple[Worlds, World]:
    """Have bob make a domain and a link; the other broker has the queue `there`, with a message."""
    worlds, far = _served(stage), World()
    worlds.others["far"] = far
    LinksClient(far).open().sender(make_queue(far, "there").name).publish(b"bob's", subject="hot.1")
    stage.create(bob, "domain", "d", url="far")
    stage.create(bob, direction, "l", domain="d", source=source, target=target)
    worlds.run()
    return worlds, far


@road("an incoming link to a queue", *PROTOCOLS)
def _incoming(stage: Stage, bob: Bob) -> None:
    _through_domain(stage, bob, "incoming", "there", "secret")


@road("an incoming link to an exchange, with the keys of its messages", *PROTOCOLS)
def _incoming_to_exchange(stage: Stage, bob: Bob) -> None:
    _through_domain(stage, bob, "incoming", "there", "kx")


@road("an outgoing link from a queue of alice's", is_locked=True)
def _outgoing_from_private(stage: Stage, bob: Bob) -> None:
    _, far = _through_domain(stage, bob, "outgoing", "private", "there")
    queue = far.broker.default_host.queues["there"]
    bodies = [bytes(entry.message.whole().content()) for entry in queue.entries()]
    stage.browsed += [each for each in bodies if each == b"kept"]


# (i) routes that he makes


class Neighbours:
    """This broker and another one, which bob's link leads to.

    Attributes:
        far: a client of the other broker, which has the queue `outbox` and the exchange `amq.fanout` with the queue
            `inbox`.
    """

    def __init__(self, stage: Stage, bob: Bob) -> None:
        self._worlds = (stage.world, World(BrokerSettings(auth=False, federation_tag="far")))
        self._wires: list[LinkWire] = []
        world = stage.world
        stage.managed.federation = Federation(world.broker, world.connections, self, lambda *_: Mock())
        self._stage, self._bob = stage, bob
        self.far = self._worlds[1].open_client()
        for name in ("outbox", "inbox"):
            self.far.declare(name)
        self.far.command("exchange.bind", queue="inbox", exchange="amq.fanout", binding_key="")
        stage.create(bob, "link", "l", host="far", port=2, transport="tcp", authMechanism="ANONYMOUS")
        self.rest()

    def connect(self, _remote: object, make: Any, lost: Any) -> LinkWire:
        """As `Network.connect`."""
        self._wires.append(LinkWire(*self._worlds, make, lost))
        return self._wires[-1]

    def rest(self) -> None:
        """Until nothing is on its way."""
        is_busy = True
        while is_busy:
            for world in self._worlds:
                world.run()
            moved = [wire.carry() for wire in self._wires]
            is_busy = any(moved)

    def route(self, src: str, dest: str, **more: Any) -> None:
        """Bob makes a route of a queue."""
        self._stage.create(self._bob, "bridge", "b", link="l", src=src, dest=dest, srcIsQueue=True, **more)
        self.rest()

    def received(self) -> list[bytes]:
        """What has come to the other broker."""
        queue = self._worlds[1].broker.default_host.queues["inbox"]
        return [bytes(entry.message.whole().body) for entry in queue.entries()]


@road("a route to an exchange", *PROTOCOLS)
def _route(stage: Stage, bob: Bob) -> None:
    there = Neighbours(stage, bob)
    there.route("outbox", "kx")
    there.far.publish("hot.1", b"bob's", exchange="amq.direct")
    there.far.command("exchange.bind", queue="outbox", exchange="amq.direct", binding_key="hot.1")
    there.far.publish("hot.1", b"bob's", exchange="amq.direct")
    there.rest()


@road("a route of replication events", *PROTOCOLS)
def _replicated_over_a_route(stage: Stage, bob: Bob) -> None:
    stage.admin.exchange("mirror", "replication")
    there = Neighbours(stage, bob)
    there.route("outbox", "mirror")
    headers = header({"application_headers": typed_map(_event(1, "secret"))}, routing_key="outbox")
    there.far.command("message.transfer", header=headers, body=b"bob's")
    there.rest()


@road("a route that takes a private queue away", *PROTOCOLS, is_locked=True)
def _route_from_private(stage: Stage, bob: Bob) -> None:
    there = Neighbours(stage, bob)
    there.route("private", "amq.fanout", srcIsLocal=True)
    stage.browsed += there.received()


# ---- walking them ----

_CASES: Final = [
    pytest.param(each, protocol, id=f"{each.name} ({protocol})") for each in ROADS for protocol in each.protocols
]


@pytest.fixture(autouse=True)
def _agents_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that bob attaches: the broker need not wait for them."""
    monkeypatch.setattr(proxies, "TIMEOUT", 0.01)


def _walk(stage: Stage, each: Road, protocol: str) -> None:
    bob = stage.bobs[PROTOCOLS.index(protocol)]
    each.walk(stage, bob)
    stage.world.run()


@pytest.mark.parametrize("barred", [BARRED, BARRED_BY_PERMISSIONS], ids=["rules", "permissions"])
@pytest.mark.parametrize(("each", "protocol"), _CASES)
def test_a_denied_user_reaches_no_denied_target(each: Road, protocol: str, barred: Any) -> None:
    stage = Stage(OPEN if each.is_locked else barred, **each.settings)
    _walk(stage, each, protocol)
    assert stage.state() == stage.before
    assert each.is_locked or each.is_hers or stage.control.denied, "nothing was asked"


@pytest.mark.parametrize("opened", [OPEN, OPEN_BY_PERMISSIONS], ids=["rules", "permissions"])
@pytest.mark.parametrize(("each", "protocol"), _CASES)
def test_an_allowed_user_reaches_the_target(each: Road, protocol: str, opened: Any) -> None:
    if each.is_hers:
        opened = OPEN_BY_PERMISSIONS  # with rules, nobody else may use it
    stage = Stage(opened, is_exclusive=False, **each.settings)
    _walk(stage, each, protocol)
    assert stage.state() != stage.before, "the road leads nowhere, and proves nothing"
    assert not stage.control.denied


def test_a_row_is_entered_once() -> None:
    names = [each.name for each in ROADS]
    assert sorted(set(names)) == sorted(names)


# ---- nothing is missing in the table ----

OWN: Final = "what is the caller's own"
"""Deliveries, transactions and sessions: other clients cannot name them."""
BROKERS: Final = "the broker's own: no client chooses what it sends, or where"

#: Place in the code that puts messages on queues, moves them or removes them -> who is asked for it.
ENTRIES: Final[Mapping[str, str]] = {
    # published by a client
    "protocols/amqp_0_10/commands.py:_transfer": "PUBLISH of its key, before",
    "protocols/amqp_0_10/commands.py:do_transfers": "PUBLISH of its key, for a message like these before",
    "protocols/amqp_0_10/commands.py:_transfer_immediate": "PUBLISH of its key, before",
    "protocols/amqp_0_9_1/publishing.py:_publish_now": "PUBLISH of all of its keys, before",
    "protocols/amqp_0_9_1/gathering.py:put": "PUBLISH of each key, for messages like these before",
    "protocols/amqp_0_9_1/publishing.py:publish_run": "PUBLISH of its key, for a message like these before",
    "protocols/amqp_0_9_1/publishing.py:_publish_or_return": "PUBLISH of all of its keys, before",
    "protocols/amqp_0_9_1/publishing.py:_publish_at_commit": "PUBLISH of all of its keys, before",
    "protocols/amqp_1_0/publishing.py:publish": "PUBLISH of its key, before",
    "protocols/amqp_1_0/publishing.py:publish_run": "PUBLISH of its key, for a message like these before",
    "model/transactions/work.py:publish_to": "PUBLISH of its keys, before",
    # forwarded
    "model/schedule.py:receive": "PUBLISH of all of its keys, before",
    "protocols/amqp_1_0/publishing.py:_schedule": "PUBLISH of its key, before",
    "model/schedule.py:_deliver": "PUBLISH of all of its keys, when it is published and when it is due",
    "model/schedule.py:_drop": "PUBLISH of its keys, when it was published",
    "model/dead_letters.py:move": "declaration of the queue",
    "model/dead_letters.py:_move_to": "declaration of the queue",
    "model/dead_letters.py:_put": "declaration of the queue",
    "model/dead_letters.py:_send": "declaration of the queue",
    "model/settlement.py:reject": "declaration of the queue; CONSUME of who rejects",
    "model/settlement.py:_move": "declaration of the queue; CONSUME of who rejects",
    "model/topology/deletion.py:_move": "declaration of the queue; DELETE of who deletes",
    "model/topology/bindings.py:_offer": "BIND",
    "model/exchanges/failover.py:announce": "BIND: the messages are the broker's",
    "model/replication/replica.py:_enqueue": "PUBLISH to the queue",
    "model/replication/source.py:to_queue": "declaration of the queue",
    "model/replication/source.py:to_exchange": "declaration of the queue",
    # for management
    "management/objects/queue.py:_move_all": "MOVE or REROUTE, and PUBLISH of its keys",
    "management/outbox.py:send": "PUBLISH of a reply, and of an agent's schema; events and changes are " + BROKERS,
    "management/agent.py:receive": "PUBLISH of its key, before",
    # removed
    "management/objects/queue.py:purge": "PURGE",
    "model/settlement.py:purge": "PURGE",
    "model/settlement.py:_purge_portion": "PURGE, before the first portion",
    "model/settlement.py:accept": "CONSUME",
    "model/replication/replica.py:_dequeue": "PURGE",
    "model/dead_letters.py:_moved": "declaration of the queue",
    "protocols/amqp_0_10/server_session.py:delivered_run": "CONSUME of the consumer that has them",
    "protocols/amqp_0_9_1/acknowledgements.py:_acknowledge_one": "CONSUME of the consumer that has it",
    "protocols/amqp_0_9_1/acknowledgements.py:_settle_first": "CONSUME of the consumer that has them",
    "protocols/amqp_0_9_1/consumer.py:deliver_run": "CONSUME of the consumer that has them",
    "protocols/amqp_0_9_1/channel.py:dequeue_run": "CONSUME of the consumer that has them",
    "model/dead_letters.py:leave": "declaration of the queue",
    "model/dead_letters.py:expire": "declaration of the queue",
    "model/dead_letters.py:exceed": "declaration of the queue",
    "protocols/amqp_0_10/server_session.py:delivered": "CONSUME",
    "protocols/amqp_0_9_1/channel.py:dequeue": "CONSUME",
    "protocols/amqp_0_9_1/consumer.py:deliver": "CONSUME",
    "protocols/amqp_1_0/session.py:dequeue": "CONSUME",
    "protocols/amqp_1_0/session.py:dequeue_run": "CONSUME",
    "protocols/amqp_1_0/links.py:deliver_run": "CONSUME",
    "protocols/amqp_1_0/links.py:_deliver": "CONSUME",
}

_ROUTING: Final = ("router", "transaction", "work")
_MOVING: Final = frozenset(("publish", "publish_run", "publish_to", "put", "put_run", "move", "divert"))
_REMOVING: Final = frozenset(("dequeue", "dequeue_run", "purge"))
_ENGINE: Final = ("model/router.py", "model/queues/", "model/residency/", "client/", "process/", "log/")


def _entries() -> Iterator[str]:
    """The places in the code, outside of router and queues themselves."""
    root = Path(qstore.broker.__path__[0])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(_ENGINE):
            yield from _entries_in(ast.parse(path.read_text(encoding="utf-8")), name, "")


def _entries_in(node: ast.AST, module: str, function: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        within = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Call) and _moves_messages(child):
            yield f"{module}:{within}"
        yield from _entries_in(child, module, within)


def _moves_messages(call: ast.Call) -> bool:
    called = call.func
    if isinstance(called, ast.Name):
        return called.id == "put"
    if not isinstance(called, ast.Attribute):
        return False
    of = ast.unparse(called.value).lower()
    return called.attr in _REMOVING or (called.attr in _MOVING and of.endswith(_ROUTING))


def test_every_place_that_moves_messages_has_a_row() -> None:
    found = set(_entries())
    assert found == set(ENTRIES), (
        "a place in the code that puts messages on queues, moves or removes them is new, or is gone: enter in ENTRIES "
        "who is asked for it, and the way on which a client gets there as a road"
    )


#: Command or method of a protocol -> the lookup that it makes, or why it needs none.
COMMANDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("message.transfer", "basic.publish"), "PUBLISH"),
    **dict.fromkeys(("queue.declare", "exchange.declare"), "CREATE or ACCESS; PUBLISH where messages are forwarded"),
    **dict.fromkeys(("queue.delete", "exchange.delete"), "DELETE"),
    "queue.bind": "BIND, and UNBIND of what it replaces",
    "exchange.bind": "BIND, and UNBIND of what it replaces; PUBLISH to an exchange that is bound",
    **dict.fromkeys(("queue.unbind", "exchange.unbind"), "UNBIND"),
    "queue.purge": "PURGE",
    **dict.fromkeys(("queue.query", "exchange.query", "exchange.bound"), "ACCESS"),
    **dict.fromkeys(("message.subscribe", "basic.consume", "basic.get"), "CONSUME"),
    "dtx.recover": "ACCESS of each branch",
    **dict.fromkeys(
        ("dtx.start", "dtx.prepare", "dtx.commit", "dtx.rollback", "dtx.get-timeout", "dtx.set-timeout"),
        "UPDATE of the branch",
    ),
    "dtx.forget": "is not implemented",
    "access.request": "grants a ticket of AMQP 0-8 and 0-9, which means nothing: each command is asked for itself",
    "message.resume": "tells only what the same user has sent; what follows is a message.transfer",
    **dict.fromkeys(
        (
            "basic.ack", "basic.cancel", "basic.cancel-ok", "basic.nack", "basic.qos", "basic.recover",
            "basic.recover-async", "basic.reject", "channel.close", "channel.close-ok", "channel.flow",
            "channel.flow-ok", "channel.open", "confirm.select", "dtx.end", "dtx.select", "execution.exception",
            "execution.result", "execution.sync", "message.accept", "message.acquire", "message.cancel",
            "message.flow", "message.flush", "message.reject", "message.release", "message.set-flow-mode",
            "message.stop", "tx.commit", "tx.rollback", "tx.select",
        ),
        OWN,
    ),
}  # fmt: skip


def test_every_command_has_a_row() -> None:
    apart = {"message.transfer", "basic.publish", "basic.ack"}  # which are not in the tables of commands
    found = {*COMMANDS_0_10, *DECLARATIONS, *QUERIES, *BASIC_METHODS, *apart}
    assert found == set(COMMANDS), "say in COMMANDS what a new command asks, and enter the roads that it opens"


#: Method of management -> the lookup that it makes besides ACCESS METHOD, or why it needs none.
METHODS: Final[Mapping[str, str]] = {
    "broker.create": "as the commands; CREATE LINK of links, and of domains and links through these",
    "broker.delete": "as the commands, and as create",
    "broker.queueMoveMessages": "MOVE, and PUBLISH to the destination",
    "broker.queueRedirect": "REDIRECT, and PUBLISH to both queues",
    "queue.purge": "PURGE",
    "queue.reroute": "REROUTE, and PUBLISH of each message",
    "transaction.commit": "UPDATE of the branch",
    "transaction.rollback": "UPDATE of the branch",
    "user.exportPassword": "the administrator, as changes of users",
    "broker.query": "ACCESS",
    "routing.dryRun": "PUBLISH of its key",
    "broker.getTimestampConfig": "ACCESS BROKER",
    **dict.fromkeys(
        (
            "broker.setTimestampConfig", "broker.setLogLevel", "broker.setLogHiresTimestamp", "broker.shutdown",
            "log.recent", "log.setStatus", "log.setStatusRules", "security.reload", "backup.begin",
        ),
        "UPDATE BROKER",
    ),
    **dict.fromkeys(
        (
            "broker.connect", "link.close", "bridge.close", "shovel.restart", "federationLink.restart",
            "interlink.restart",
        ),
        "CREATE LINK",
    ),
    "link.bridge": "CREATE LINK; PUBLISH of every key to the destination, or CONSUME or BIND of the source",
    **dict.fromkeys(("backup.copied", "backup.end"), OWN),
    **dict.fromkeys(
        (
            "acl.Lookup", "acl.LookupPublish", "acl.reloadACLFile", "broker.echo", "broker.getLogHiresTimestamp",
            "broker.getLogLevel", "connection.close", "session.close", "session.detach", "session.resetLifespan",
            "session.solicitAck",
        ),
        "touches no message that it could name",
    ),
    **dict.fromkeys(
        (
            "haBroker.promote", "haBroker.replicate", "haBroker.setBrokersUrl", "haBroker.setPublicUrl",
            "journal.expand",
        ),
        "is refused for everybody",
    ),
}  # fmt: skip


def test_every_method_of_management_has_a_row() -> None:
    found = {f"{of.name}.{name}" for of in CLASSES for name in of.methods}
    assert found == set(METHODS), "say in METHODS what a new method asks, and enter the roads that it opens"


# ---- what stays allowed ----


@pytest.mark.parametrize("number", [0, 1])
def test_replies_to_the_exclusive_queue_of_a_console_need_no_rule(number: int) -> None:
    stage = Stage((
        "acl allow bob@QPID publish exchange name=qmf.default.direct routingkey=broker",
        "acl deny bob@QPID publish exchange",
        "acl allow all all",
    ))  # fmt: skip
    bob = stage.bobs[number]
    bob.queue("console", exclusive=True)
    bob.bind("console", "amq.direct", "console")
    content = {"_what": "SCHEMA_ID"}
    for reply_to in (("", "console"), *([("amq.direct", "console")] if number == 0 else [])):
        stage.ask(bob, "_query_request", content, reply_to)
        assert stage.bodies("console")
        stage.world.broker.default_host.queues["console"].purge()
    stage.admin.queue("shared")
    stage.ask(bob, "_query_request", content, ("", "shared"))
    assert (stage.bodies("shared"), stage.control.denied) == ([], 1)


def test_a_reply_is_dropped_if_its_address_leads_elsewhere_meanwhile() -> None:
    stage = Stage(BARRED)
    bob = stage.bobs[0]
    bob.queue("console", exclusive=True)
    bob.bind("console", "kx", "hot.reply")
    stage.world.broker.default_host.exchanges["kx"].unbind(stage.world.broker.default_host.queues["hot"], "hot.#")
    body = encode_value(BY_NAME["map"], typed_value({"_what": "SCHEMA_ID"}).value)
    head = header(
        {"application_headers": typed_map({"qmf.opcode": "_query_request"}), "reply_to": ReplyTo("kx", "hot.reply"),
         "content_type": "amqp/map"}, routing_key="broker",
    )  # fmt: skip
    bob.client.command("message.transfer", on=bob.channel, destination=_QMF, header=head, body=body)
    stage.world.broker.default_host.exchanges["kx"].bind(stage.world.broker.default_host.queues["hot"], "hot.#")
    stage.world.run()
    assert (stage.bodies("console"), stage.bodies("hot")) == ([], [b"kept"])


def test_without_rules_about_publishing_ways_are_not_asked_for() -> None:
    allowed = (
        f"acl allow bob@QPID {action} {kind}" for action in ("access", "create") for kind in ("queue", "exchange")
    )
    stage = Stage((*allowed, "acl deny all all"))
    for bob in stage.bobs:
        bob.queue("his", {"x-dead-letter-exchange": "kx"})
        bob.exchange("mine", "topic", alternate="kx")
    broker = stage.world.broker
    assert "his" in broker.default_host.queues
    assert broker.default_host.exchanges["mine"].alternate is broker.default_host.exchanges["kx"]
    assert not stage.control.denied


def test_declaring_an_existing_object_needs_no_publish_right() -> None:
    stage = Stage(BARRED)
    for client in (stage.admin, *stage.bobs):
        client.queue("his", {"x-dead-letter-exchange": "kx"})
        client.exchange("mine", "topic", alternate="kx")
    assert not stage.control.denied


def test_refusal_names_the_missing_right() -> None:
    stage = Stage(BARRED)
    bob = stage.bobs[0]
    bob.queue("his", {"x-dead-letter-exchange": "kx"})
    bob.exchange("mine", "topic", alternate="kx")
    refused = 'bob@QPID is not allowed to publish exchange "kx" with every routing key, as the'
    assert [each["description"] for each in bob.client.exceptions] == [
        f'{refused} dead-letter exchange of queue "his", which has no x-dead-letter-routing-key, requires',
        f'{refused} alternate exchange of exchange "mine" requires',
    ]


def test_a_queue_that_is_exclusive_to_a_session_of_0_10_can_be_browsed_and_managed() -> None:
    stage = Stage(OPEN)
    stage.admin.queue("owned", exclusive=True)
    stage.admin.publish("", "owned", b"seen")
    bob = stage.bobs[0]
    bob.do("message.subscribe", queue="owned", destination="d", accept_mode=1, acquire_mode=1)
    for unit in (0, 1):
        bob.do("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
    assert [each.body for each in bob.client.deliveries] == [b"seen"]
    stage.call(bob, "purge", "queue:owned", request=0)
    assert stage.bodies("owned") == []


def test_the_owner_of_a_private_queue_may_do_everything() -> None:
    stage = Stage(OPEN)
    stage.call(stage.alice, "purge", "queue:private", request=0)
    assert stage.bodies("private") == []


@pytest.mark.parametrize("has_rules", [False, True])
def test_branches_are_published_unasked_only_without_rules(has_rules: bool) -> None:
    stage = Stage(OPEN)
    if not has_rules:
        stage.world.broker.authorization.authorizer = ALLOW_ALL
    (xid, *_) = stage.world.broker.distributed.branches
    bob = stage.bobs[0]
    bob.queue("heard")
    bob.bind("heard", "qmf.default.topic", "agent.ind.data.#")
    bob.bind("heard", "qpid.management", "console.obj.#")
    stage.world.now += 60
    stage.agent.on_timer()
    stage.world.run()
    heard = stage.bodies("heard")
    assert heard
    assert any(xid.hex().encode() in body for body in heard) is not has_rules


# ---- after a restart ----


async def _prepared(stage: Wired, xid: bytes, user: str) -> None:
    distributed = stage.broker.distributed
    branch = distributed.start(xid, Somebody(user))
    branch.work.publish(stage.message("q", b"m"), stage.broker.default_host.exchanges[""])
    distributed.leave(branch, has_failed=False)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    branch.prepare(lambda _status, error: done.set_result(error))
    stage.broker.tick.schedule()
    assert await done is None


@pytest.mark.parametrize("is_recovered", [False, True])
async def test_branches_belong_to_their_users_after_a_restart(tmp_path: Path, is_recovered: bool) -> None:
    users = {b"a": "alice@QPID", b"b": "bob@QPID", b"u": "jos\xe9@QPID", b"long": "x" * 600, b"none": ""}
    here, there = tmp_path / "data", tmp_path / "recovered"
    async with wired(here) as stage:
        await stage.topology.declare_queue("q", durable=True)
        for xid, user in users.items():
            await _prepared(stage, xid, user)
    if is_recovered:
        assert recover(here, there).report.code == 0
    async with wired(there if is_recovered else here) as stage:
        distributed = stage.broker.distributed
        kept = {xid: branch.user for xid, branch in distributed.branches.items()}
        assert kept == {**users, b"long": ""}, "a name that is too long is not stored"
        bob, manager = Somebody("bob@QPID"), Somebody("tm@QPID")
        assert set(distributed.in_doubt_for(bob)) == set(users), "without rules all are everybody's"
        use(stage.broker, "acl allow tm@QPID access transaction", "acl allow tm@QPID update transaction name=bob*",
            "acl deny all all")  # fmt: skip
        assert distributed.in_doubt_for(bob) == [b"b"]
        assert set(distributed.in_doubt_for(manager)) == set(users)
        assert distributed.find(b"b", bob) is distributed.find(b"b", manager)
        for xid, caller in ((b"a", bob), (b"none", bob), (b"a", manager), (b"none", manager)):
            with pytest.raises(UnauthorizedError, match="is not allowed to use the branch"):
                distributed.find(xid, caller)
