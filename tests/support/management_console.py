"""A console that sends requests to the management agent; statistics of managed objects, as tables read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from qstore.broker.management.agent import Agent
from qstore.broker.management.identity import Identity
from qstore.broker.management.managed_broker import ManagedBroker
from qstore.broker.management.objects.broker import BROKER_CLASS
from qstore.broker.management.outbox import DIRECT, TOPIC
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import ModelError
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.topology.topology import Topology
from qstore.broker.protocols.amqp_0_10.message import TransferMessage, new_transfer, read_delivery_properties
from qstore.broker.protocols.amqp_1_0.message import new_sections
from qstore.formats.amqp_0_10.maps import decode_map, encode_value, read_value
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, ReplyTo, encode_struct
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.plain import plain_map, plain_typed_value
from qstore.formats.values import typed_map, typed_value

PACKAGE: Final = "org.apache.qpid.broker"
REPLIES: Final = "replies"
_REPLIES: Final = ReplyTo(DIRECT, REPLIES)
CONSOLE: Final = Publisher("192.0.2.7:1")
CONSOLE.user = "console@QPID"


class Stage(Protocol):
    """What a console needs of a `wired` broker, or of another one."""

    broker: Broker
    topology: Topology


def pass_time(broker: Broker, seconds: float) -> None:
    """Set the clocks of a broker so much later; they stand still then."""
    now, elapsed = broker.clock() + seconds, broker.monotonic() + seconds
    broker.clock, broker.monotonic = lambda: now, lambda: elapsed


class Reply(NamedTuple):
    """A message from the agent: its application headers, its content, and its correlation id."""

    headers: dict[str, Any]
    content: Any
    correlation_id: object
    key: str

    @property
    def values(self) -> Any:
        """Of an exception or a locate response."""
        return self.content["_values"]


class Console:
    """A console of one broker, whose agent is made here.

    Attributes:
        agent, managed: the agent, and what it manages.
        replies, events: its queues.
    """

    def __init__(self, wired: Stage) -> None:
        self._wired, self._tasks = wired, set[asyncio.Task[None]]()
        broker = wired.broker
        self._number = 0
        self.machines: list[Any] = []
        self.managed = managed(broker, "1.2", ports=lambda: [5672], machines=lambda: list(self.machines))
        self.agent = Agent(self.managed, new_transfer, new_sections, self._run)

    async def open(self) -> None:
        """Have its queues made."""
        topology = self._wired.topology
        self.replies = await topology.declare_queue(REPLIES)
        await topology.bind(REPLIES, DIRECT, REPLIES)
        self.events = await topology.declare_queue("events")
        await topology.bind("events", TOPIC, "agent.ind.event.#")

    def _run(self, work: Any, done: Any) -> None:
        async def run() -> None:
            error: ModelError | None = None
            try:
                await work
            except ModelError as failed:
                error = failed
            done(error)

        self._tasks.add(asyncio.get_running_loop().create_task(run()))

    @property
    def is_busy(self) -> bool:
        """Whether the agent is doing something."""
        return any(not each.done() for each in self._tasks)

    async def settle(self) -> None:
        """Until the agent has done everything. Raises what it has raised and should not have."""
        while self._tasks:
            tasks = set(self._tasks)
            await asyncio.wait(tasks)
            self._tasks -= tasks
            for each in tasks:
                each.result()

    def send(
        self,
        opcode: str | None,
        content: Mapping[str, Any] | list[Any] | bytes,
        *,
        key: str = "broker",
        exchange: str = DIRECT,
        publisher: object = CONSOLE,
        reply_to: ReplyTo | None = _REPLIES,
    ) -> None:
        """Publish a request."""
        self._number += 1
        headers = typed_map({} if opcode is None else {"qmf.opcode": opcode})
        kind = "list" if isinstance(content, list) else "map"
        fields = {"application_headers": headers, "content_type": f"amqp/{kind}", "app_id": b"qmf2"}
        fields |= {"correlation_id": b"%d" % self._number, "reply_to": reply_to}
        body = content if isinstance(content, bytes) else encode_value(BY_NAME[kind], typed_value(content).value)
        delivery = read_delivery_properties(encode_struct(DELIVERY_PROPERTIES, {"routing_key": key}), exchange)
        delivery = delivery._replace(handling=delivery.handling._replace(publisher=publisher))
        header = delivery.encoded + encode_struct(
            MESSAGE_PROPERTIES, {name: value for name, value in fields.items() if value is not None}
        )
        message = TransferMessage(header, body, exchange, delivery, 0.0)
        self.publish(message)

    def publish(self, message: Message) -> None:
        """Publish a message to its exchange."""
        self._wired.broker.router.publish(message, self._wired.broker.default_host.exchanges[message.exchange])

    async def ask(self, opcode: str, content: Mapping[str, Any] | list[Any] | bytes, **options: Any) -> list[Reply]:
        """Send a request, and return all replies."""
        self.send(opcode, content, **options)
        await self.settle()
        return take(self.replies)

    async def query(self, class_name: str) -> list[dict[str, Any]]:
        """All objects of a class, as they are described."""
        replies = await self.ask("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": class_name}})
        assert all(reply.headers["qmf.opcode"] == "_query_response" for reply in replies)
        assert ["partial" in reply.headers for reply in replies] == [True] * (len(replies) - 1) + [False]
        return [each for reply in replies for each in reply.content]

    async def call(
        self, method: str, target: str = "broker:amqp-broker", *, package: str = PACKAGE, **arguments: Any
    ) -> Reply:
        """Call a method. Returns the reply."""
        name = f"{package}:{target}"
        content = {"_object_id": {"_object_name": name}, "_method_name": method, "_arguments": arguments}
        (reply,) = await self.ask("_method_request", content)
        return reply

    async def do(self, method: str, target: str = "broker:amqp-broker", **arguments: Any) -> Any:
        """Likewise, of a method that succeeds. Returns its results."""
        reply = await self.call(method, target, **arguments)
        assert reply.headers["qmf.opcode"] == "_method_response", reply
        return reply.content["_arguments"]


def take(queue: Queue) -> list[Reply]:
    """The agent's messages on a queue, which are gone then."""
    found = [read(entry.message) for entry in queue.available()]
    queue.purge()
    return found


def read(message: Message) -> Reply:
    """One of the agent's messages."""
    assert isinstance(message, TransferMessage)
    properties = message.properties()
    assert properties.app_id == b"qmf2"
    body = bytes(message.body)  # type: ignore[arg-type]
    content: Any
    if properties.content_type == "amqp/map":
        content = plain_map(decode_map(body))
    else:
        assert properties.content_type == "amqp/list"
        value, end = read_value(BY_NAME["list"], body, 0, len(body))
        assert end == len(body)
        content = [plain_typed_value(each) for each in value]
    return Reply(plain_map(message.headers()), content, properties.correlation_id, message.routing_key)


def managed(broker: Broker, version: str = "", **parts: Any) -> ManagedBroker:
    """A broker as management sees it, without a network."""
    absent: dict[str, Any] = {"ports": list, "machines": list, "shut_down": lambda: None, "log": None}
    return ManagedBroker(broker, Identity.new(), version, **(absent | parts))


def statistics(of: ManagedClass, target: object) -> dict[str, Any]:
    """The statistics of an object; watermarks as they are."""
    view = of.look(target)
    return {each.name: each.read(view) for each in of.declared}


def broker_statistics(broker: Broker) -> dict[str, Any]:
    """The statistics of a broker."""
    return statistics(BROKER_CLASS, managed(broker))
