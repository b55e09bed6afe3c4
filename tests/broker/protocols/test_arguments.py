"""Every argument of every declaration, in every protocol, has its effect, is refused by name, or the log says why.

The walk goes through the table of the broker (`model/arguments`): a new row needs a sample here. Each sample is
declared over AMQP 0-10, AMQP 0-9-1 and by the QMF method create, with values that are right, and with wrong ones.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock

import pytest

import qstore
from qstore.broker.log.logs import INFO, NOTICE
from qstore.broker.management.objects.broker import create, delete
from qstore.broker.management.request import Arguments
from qstore.broker.model.arguments import (
    ALTERNATE,
    AMQP_0_9_1,
    AMQP_0_10,
    AMQP_1_0,
    DELETES_SLOW,
    EXCLUSIVE,
    REPLICATING,
    TABLE,
    Effect,
    Of,
    Row,
)
from qstore.broker.model.errors import InvalidArgumentError, ModelError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.policies import Policy
from qstore.broker.model.queues.arguments import read_arguments
from qstore.broker.model.queues.idle_arguments import RULES
from qstore.broker.model.queues.stream import OF_CONSUMERS, Stream, read_consumer
from qstore.broker.protocols.amqp_0_9_1.consumer import SelectiveConsumer
from qstore.broker.protocols.amqp_0_10.subscription import SelectiveSubscription, Subscription
from qstore.formats.amqp_0_10.commands import decode_command
from qstore.formats.amqp_1_0.neutral import map_value
from qstore.formats.values import TypedMap, typed_map
from qstore.store.parameters import StoreParameters, queue_geometry, queue_max_files
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links_management import ask, paired
from tests.broker.protocols.world import World, header
from tests.broker.wired_broker import Somebody
from tests.support.compiled import replaces

QMF: Final = "QMF"
MANAGEMENT: Final = "/management"
DOORS: Final = (AMQP_0_10, AMQP_0_9_1, AMQP_1_0, MANAGEMENT, QMF)
LIKE_RABBITMQ: Final = (AMQP_0_9_1, MANAGEMENT)
"""Doors at which names that begin with x- ask for features of RabbitMQ."""


def entries(given: dict[str, Any]) -> tuple[Any, ...]:
    """A map of AMQP 1.0."""
    return tuple(map_value(typed_map(given)).value)


def quoted(name: str) -> str:
    """A name in a path of /management."""
    return urllib.parse.quote(name, safe="", errors="surrogateescape")


class _BytesClient(LinksClient):
    """A client that sends a name with the bytes that are not UTF-8, which its codec writes as question marks."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self._written, self._meant = name.encode(errors="replace"), name.encode(errors="surrogateescape")

    def send(self, data: bytes) -> None:
        super().send(data.replace(self._written, self._meant) if self._written != self._meant else data)


class Door:
    """Declares objects over one protocol, each time on a new connection. Returns the error, or nothing."""

    def __init__(self, protocol: str, *, has_store: bool = False) -> None:
        self.protocol, self.world, self.bound = protocol, World(), "bound"
        if has_store:
            self.world.stream("stream")
            self.bound = "stream"
            self.world.broker.queue_factory._store = self.world.store  # type: ignore[assignment]
        for name in ("direct", "topic", "headers", "fanout", "xml"):
            self.declare(Of.EXCHANGE, name, {}, type=name)
        self.declare(Of.QUEUE, "bound", {})

    def declare(self, of: Of, name: str, arguments: dict[str, Any], **flags: Any) -> str:
        do: Callable[..., str] = {
            AMQP_0_10: self._in_0_10, AMQP_0_9_1: self._in_0_9_1, AMQP_1_0: self._in_1_0,
            MANAGEMENT: self._at_management, QMF: self._in_qmf,
        }[self.protocol]  # fmt: skip
        return do(of, name, arguments, flags)

    def _in_0_10(self, of: Of, name: str, arguments: dict[str, Any], flags: dict[str, Any]) -> str:
        client = self.world.open_client(name=f"session-{len(self.world.machines)}".encode())
        if of is Of.QUEUE:
            client.command("queue.declare", queue=name, arguments=arguments, **flags)
        elif of is Of.EXCHANGE:
            client.command("exchange.declare", exchange=name, arguments=arguments, **{"type": "topic", **flags})
        elif of is Of.BINDING:
            client.command("exchange.bind", queue="bound", exchange=name, binding_key="k", arguments=arguments)
        else:
            client.command("message.subscribe", queue=self.bound, destination=name, arguments=arguments)
        client.sync()
        return str(client.exceptions[0]["description"]) if client.exceptions else ""

    def _in_0_9_1(self, of: Of, name: str, arguments: dict[str, Any], flags: dict[str, Any]) -> str:
        client = BasicClient(self.world).open()
        if of is Of.QUEUE:
            client.method("queue.declare", queue=name, arguments=arguments, **flags)
        elif of is Of.EXCHANGE:
            client.method("exchange.declare", exchange=name, arguments=arguments, **{"type": "topic", **flags})
        elif of is Of.BINDING:
            client.method("queue.bind", queue="bound", exchange=name, routing_key="k", arguments=arguments)
        else:
            client.publish("bound")
            client.method("basic.qos", prefetch_count=1)  # one that ends when there is nothing waits for credit
            client.method("basic.consume", queue=self.bound, consumer_tag=name, arguments=arguments)
        client.sync()
        return str(client.received[-1].values["reply_text"]) if "close" in client.received[-1].name else ""

    def _in_1_0(self, of: Of, name: str, arguments: dict[str, Any], flags: dict[str, Any]) -> str:
        """Nodes are made on demand with these properties; those of a link are the arguments of its subscription."""
        client = _BytesClient(self.world, name)
        client.open()
        if of is Of.BINDING:
            return self._at_management(of, name, arguments, flags)
        if of is Of.SUBSCRIPTION:
            came = client.attach(self.bound, receives=True, name=name, properties=entries(arguments))
        else:
            flags = {"exchange_type" if each == "type" else each: value for each, value in flags.items()}
            more = {each.replace("_", "-"): value for each, value in flags.items()} | arguments
            terminus = {
                "capabilities": ("create-on-demand", "topic" if of is Of.EXCHANGE else "queue"),
                "dynamic_node_properties": entries(more),
            }
            came = client.attach(name, terminus=terminus)
        failed = [each.fields["error"].fields for each in came if each.name == "detach"]
        return str(failed[0]["description"]) if failed else ""

    def _at_management(self, of: Of, name: str, arguments: dict[str, Any], flags: dict[str, Any]) -> str:
        client = paired(LinksClient(self.world).open())
        body: Any = {"durable": False, **flags, "arguments": arguments}
        if of is Of.BINDING:
            bound = {"source": name, "destination_queue": "bound", "binding_key": "k", "arguments": arguments}
            status, text = ask(client, "POST", "/bindings", bound)
        elif of is Of.EXCHANGE:
            status, text = ask(client, "PUT", f"/exchanges/{quoted(name)}", {"type": "topic", **body})
        else:
            status, text = ask(client, "PUT", f"/queues/{quoted(name)}", body)
        return "" if status < 300 else str(text)

    def _in_qmf(self, of: Of, name: str, arguments: dict[str, Any], flags: dict[str, Any]) -> str:
        renamed = {"auto-delete" if each == "auto_delete" else "exchange-type" if each == "type" else each: value
                   for each, value in flags.items()}  # fmt: skip
        path = f"{name}/bound/k" if of is Of.BINDING else name
        properties = typed_map(arguments | renamed)
        request = {"type": of.value, "name": path, "properties": properties}
        managed: Any = SimpleNamespace(broker=self.world.broker)
        try:
            asyncio.run(create(managed, None, Arguments(request), Somebody()))
        except ModelError as error:
            return str(error)
        return ""

    def arguments_of(self, of: Of, name: str) -> TypedMap | None:
        """The arguments of an object that is there; None if it is not."""
        broker = self.world.broker
        if of is Of.QUEUE:
            return broker.default_host.queues[name].arguments if name in broker.default_host.queues else None
        if of is Of.EXCHANGE:
            return broker.default_host.exchanges[name].arguments if name in broker.default_host.exchanges else None
        if of is Of.BINDING:
            bindings = list(broker.default_host.exchanges[name].bindings)
            return bindings[0].arguments if bindings else None
        consumers = self.consumers()
        return consumers[0].arguments if consumers else None

    def consumers(self) -> list[Any]:
        consumers = self.world.broker.default_host.queues[self.bound]._consumers
        return [*consumers.takers, *consumers.browsers]


@dataclass(frozen=True)
class Sample:
    """How a row is tried.

    Attributes:
        good: a value that asks for what the row says.
        wrong: values that are not valid, of an argument with an effect.
        off: values that ask for nothing, of one that is refused or ignored.
        others: what is declared with it.
        flags: of the declaration.
        name: of the argument, if the row has a star.
        probe: whether the object has the effect.
        has_store: whether the broker has a store; the queue that is bound is a stream then.
    """

    good: Any
    wrong: tuple[Any, ...] = ()
    off: tuple[Any, ...] = ()
    others: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    probe: Callable[[Door, str, dict[str, Any]], bool] = lambda _door, _name, _arguments: True
    has_store: bool = False


def parsed_otherwise(door: Door, name: str, arguments: dict[str, Any]) -> bool:
    """Whether the decoder of declarations has read an argument."""
    without = {each: value for each, value in arguments.items() if each != name}
    if name == "x-overflow":
        return read_arguments(typed_map(arguments)).overflow == arguments[name]
    try:
        return read_arguments(typed_map(without)) != read_arguments(typed_map(arguments))
    except ModelError:
        return True  # the other one needs it


def of_the_journal(_door: Door, name: str, arguments: dict[str, Any]) -> bool:
    """Whether the store reads an argument."""
    parameters = StoreParameters()
    without = {each: value for each, value in arguments.items() if each != name}
    sizes = [queue_geometry(given, parameters)[0] for given in (arguments, without)]
    limits = [queue_max_files(given, parameters, sizes[0])[0] for given in (arguments, without)]
    return sizes[0] != sizes[1] or limits[0] != limits[1]


def count(good: int = 5, *wrong: Any, **more: Any) -> Sample:
    return Sample(good, (-1, "many", True, *wrong), probe=parsed_otherwise, **more)


def of_queue(good: Any, *wrong: Any, **more: Any) -> Sample:
    return Sample(good, wrong, probe=parsed_otherwise, **more)


def switch(**more: Any) -> Sample:
    return Sample(1, probe=parsed_otherwise, **more)


def journal(good: Any, *wrong: Any) -> Sample:
    return Sample(good, wrong, flags={"durable": True}, probe=of_the_journal, has_store=True)


def of_stream(good: Any, *wrong: Any) -> Sample:
    return Sample(
        good, wrong, others={"x-queue-type": "stream"}, flags={"durable": True}, probe=parsed_otherwise, has_store=True
    )


def of_reader(good: Any, *wrong: Any, **others: Any) -> Sample:
    """An argument of a consumer of a stream."""
    more = {each.replace("_", "-"): value for each, value in others.items()}
    return Sample(good, wrong, others=more, probe=reads_otherwise, has_store=True)


def reads_otherwise(door: Door, name: str, arguments: dict[str, Any]) -> bool:
    """Whether the consumer has read an argument."""
    (consumer,) = door.consumers()
    stream = door.world.broker.default_host.queues["stream"]
    assert isinstance(stream, Stream)
    without = {each: value for each, value in arguments.items() if each != name}
    return stream.readers[consumer].reading != read_consumer(typed_map(without), consumer.destination)


def refused(good: Any, *off: Any) -> Sample:
    return Sample(good, off=off)


ignored = refused
LIMITED: Final = {"qpid.max_count": 100, "qpid.max_size": 100_000}
LEVELS: Final = {"qpid.priorities": 3}
PAGED: Final = {"qpid.paging": 1}
SELECTOR: Final = "colour = 'red'"
GROUPS: Final = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}

QUEUE: Final = {
    "qpid.max_count": count(),
    "qpid.max_size": count(),
    "qpid.policy_type": of_queue("ring", "Ring", 5),
    "x-max-length": count(),
    "x-max-length-bytes": count(),
    "x-overflow": of_queue("reject-publish", "reject", 5, others={"x-max-length": 5}),
    "qpid.flow_stop_count": count(50, 101, others=LIMITED),
    "qpid.flow_resume_count": count(5, 51, others=LIMITED | {"qpid.flow_stop_count": 50}),
    "qpid.flow_stop_size": count(50, 100_001, others=LIMITED),
    "qpid.flow_resume_size": count(5, 51, others=LIMITED | {"qpid.flow_stop_size": 50}),
    "x-qpid-capacity": count(50, 100_001, others=LIMITED),
    "x-qpid-flow-resume-capacity": count(5, 51, others=LIMITED | {"x-qpid-capacity": 50}),
    **dict.fromkeys(
        (
            "qpid.alert_count",
            "qpid.alert_count_up",
            "x-qpid-maximum-message-count",
            "qpid.alert_size",
            "qpid.alert_size_up",
            "x-qpid-maximum-message-size",
            "qpid.alert_message_size",
            "qpid.alert_message_age",
            "x-qpid-maximum-message-age",
            "qpid.max_consumers",
        ),
        count(),
    ),
    "qpid.alert_count_down": count(others={"qpid.alert_count": 10}),
    "qpid.alert_size_down": count(others={"qpid.alert_size": 10}),
    **dict.fromkeys(
        ("qpid.alert_repeat_gap", "x-qpid-minimum-alert-repeat-gap"), count(others={"qpid.alert_count": 10})
    ),
    "qpid.slow_consumer_policy": of_queue("cycle", "warn", 5, others={"qpid.slow_consumer_count": 5}),
    **dict.fromkeys(
        ("qpid.slow_consumer_count", "qpid.slow_consumer_size", "qpid.slow_consumer_age"),
        count(others={"qpid.slow_consumer_policy": "cycle"}),
    ),
    "qpid.slow_consumer_delete_durable": switch(),
    "qpid.priorities": count(5),
    "x-qpid-priorities": count(5),
    "qpid.fairshare": count(5, others=LEVELS),
    "x-qpid-fairshare": count(5, others=LEVELS),
    "qpid.fairshare-*": count(5, name="qpid.fairshare-1", others=LEVELS),
    "x-qpid-fairshare-*": count(5, name="x-qpid-fairshare-1", others=LEVELS),
    "x-max-priority": count(5, 256),
    "qpid.last_value_queue_key": of_queue("key", 5, "k" * 256),
    "qpid.last_value_queue": switch(),
    "qpid.last_value_queue_no_browse": switch(),
    "qpid.group_header_key": of_queue("g", 5, others=GROUPS),
    "qpid.shared_msg_group": of_queue(1, 0, others=GROUPS),
    "qpid.group_timestamp": Sample(1, off=(0,), others=GROUPS),
    "x-qpid-sorted-key": refused("key", ""),
    "qpid.queue_sort_key": refused("key", ""),
    "no-local": switch(),
    "qpid.filter": of_queue(SELECTOR, "colour =", 5),
    "qpid.browse-only": switch(),
    "qpid.queue_msg_sequence": of_queue("number", 5),
    "qpid.insert_sequence_numbers": switch(),
    "qpid.msg_sequence": switch(),
    "qpid.queue_event_generation": count(1, 3),
    "x-message-ttl": count(),
    "x-dead-letter-exchange": of_queue("amq.fanout", 5, "x" * 256),
    "x-dead-letter-routing-key": of_queue("k", 5, others={"x-dead-letter-exchange": "amq.fanout"}),
    "x-single-active-consumer": of_queue(True, 1, "true"),
    "alternate-exchange": refused("amq.fanout", ""),
    "x-qpid-dlq-enabled": refused(True, False, "false"),
    "x-qpid-maximum-delivery-count": refused(3, 0),
    "x-delivery-limit": Sample(
        5,
        ("many", -2),
        others={"x-queue-type": "quorum"},
        flags={"durable": True},
        probe=lambda door, *_: door.world.broker.default_host.queues["made"].delivery_limit == 5,
    ),
    "x-message-deduplication": refused(True, False),
    "x-dead-letter-strategy": of_queue(
        "at-least-once",
        "always",
        5,
        others={"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-exchange": "amq.fanout"},
        flags={"durable": True},
    ),
    "x-max-age": of_stream("7D", "7 days", 5),
    "x-stream-max-segment-size-bytes": of_stream(1_000_000, -1, "many"),
    "x-stream-keep-unread": Sample(
        "1h",
        ("yes", 5),
        others={"x-queue-type": "stream", "x-max-age": "1D"},
        flags={"durable": True},
        probe=parsed_otherwise,
        has_store=True,
    ),
    "x-stream-filter-size-bytes": ignored(32),
    "x-initial-cluster-size": ignored(3),
    "x-initial-group-size": ignored(3),
    "x-deliver-limit": ignored(3),
    "qpid.ensure_nondestructive_consumers": refused(True, False),
    "qpid.default_filters": refused("{}", ""),
    "qpid.message_durability": refused("ALWAYS", ""),
    "qpid.trace.id": of_queue("broker-1", "a,b", "a b", 5),
    **dict.fromkeys(("qpid.trace.exclude", "qpid.trace.excludes"), of_queue("broker-1,broker-2", 5)),
    "qpid.auto_delete_timeout": count(flags={"auto_delete": True}),
    "qpid.lifetime-policy": of_queue("delete-if-unused", "delete-after-use"),
    "x-expires": count(5, 0),
    "qstore.subscription": Sample("yes"),  # its effect: test_links
    "x-internal-purpose": Sample("federation"),  # its effect: federation/test_upstreams, also of exchanges and bindings
    "qpid.paging": switch(),
    "qpid.max_pages_loaded": count(300, others=PAGED),
    "qpid.page_factor": count(5, 1 << 15, others=PAGED),
    "qpid.compress": of_queue("zstd", "gzip", 5, flags={"durable": True}, has_store=True),
    "qpid.deliver_before_sync": switch(flags={"durable": True}, has_store=True),
    "qpid.file_count": journal(16, "many"),
    "qpid.file_size": journal(48, "large"),
    "qpid.auto_expand": journal(False, "maybe"),
    "qpid.auto_expand_max_jfiles": journal(100, "many"),
    "qpid.max_journal_size": journal(100, "large"),
    "qpid.efp_partition_num": ignored(1, 0),
    "qpid.efp_pool_file_size": ignored(2048, 0),
    "qpid.wcache-page-size": ignored(32, 0),
    "qpid.wcache-num-pages": ignored(16, 0),
    "qpid.replicate": refused("all", "none"),
    "qpid.persist_last_node": ignored(1, 0),
    "x-queue-type": Sample(
        "quorum",
        ("streams", 5),
        flags={"durable": True},
        probe=lambda door, *_: door.world.broker.default_host.queues["made"].delivery_limit == 20,
    ),
    "x-quorum-initial-group-size": ignored(3),
    "x-quorum-target-group-size": ignored(3),
    "x-max-in-memory-length": ignored(3),
    "x-max-in-memory-bytes": ignored(3),
    "x-queue-mode": ignored("lazy"),
    "x-queue-version": ignored(2),
    "x-queue-master-locator": ignored("min-masters"),
    "x-queue-leader-locator": ignored("client-local"),
    "x-ha-policy": ignored("all", ""),
    "x-ha-policy-params": ignored("node", ""),
}
REFUSED_VALUES: Final = {
    "qpid.lifetime-policy": "delete-after-use", "x-queue-type": "streams", "x-queue-mode": "eager",
    "x-queue-version": 3, "x-queue-master-locator": 5, "x-queue-leader-locator": 5,
}  # fmt: skip
IGNORED_VALUES: Final = {"qpid.priorities": 11, "x-qpid-priorities": 11}


def has_ranking(door: Door, *_: object) -> bool:
    return door.world.broker.default_host.queues["bound"]._consumers.ranking is not None


def keyed(door: Door) -> bool:
    return exchange(door).is_keyed


def exchange(door: Door) -> Exchange:
    return door.world.broker.default_host.exchanges["made"]


EXCHANGE: Final = {
    "qpid.msg_sequence": Sample(1, probe=lambda door, *_: exchange(door).sent is not None),
    "qpid.ive": Sample(1, probe=lambda door, *_: exchange(door).sent is not None),
    "x-internal-purpose": Sample("federation"),
    "x-internal": Sample(True, probe=lambda door, *_: exchange(door).is_internal),
    "alternate-exchange": Sample(
        "amq.fanout", (5,),
        probe=lambda door, *_: exchange(door).alternate is door.world.broker.default_host.exchanges["amq.fanout"],
    ),
    "qpid.replicate": refused("all", "none"),
    "x-delayed-type": Sample(
        "direct", (5, "x-delayed-message"), flags={"type": "x-delayed-message"},
        probe=lambda door, *_: exchange(door).routing_type == "direct",
    ),
    "hash-header": Sample("h", (5, ""), flags={"type": "x-consistent-hash"}, probe=lambda door, *_: not keyed(door)),
    "hash-property": Sample(
        "message_id", (5, "app_id"), flags={"type": "x-consistent-hash"}, probe=lambda door, *_: not keyed(door)
    ),
    "x-recent-history-length": Sample(
        7, (0, "7"), flags={"type": "x-recent-history"},
        probe=lambda door, *_: "amq.history.made" in door.world.broker.default_host.queues,
    ),
    "qpid.sequence_counter": ignored(7),
}  # fmt: skip
BINDING: Final = {
    "qpid.exclusive-binding": Sample(1, name="direct"),
    "x-match": Sample("any", ("some", 5), name="headers"),
    "xquery": Sample("./a", ("", "./a $=! 'b'", 5), name="xml"),
    **dict.fromkeys(
        ("x-apache-selector", "x-filter-jms-selector"),
        Sample(SELECTOR, ("colour =", 5), off=("", " "), probe=lambda door, *_: is_selective_exchange(door, "topic")),
    ),
    "qpid.filter": refused(SELECTOR, "", " "),
    "x-bound-from": Sample([{"cluster-name": "broker-1", "exchange": "x", "hops": 1}]),
    "qpid.replicate": ignored("all", "none"),
    "qpid.fed.op": Sample("B"),
    "qpid.fed.origin": Sample("broker-1", others={"qpid.fed.op": "B"}),
    "qpid.fed.tags": Sample("broker-1,broker-2", others={"qpid.fed.op": "B"}),
}
SUBSCRIPTION: Final = {
    "x-priority": Sample(
        7,
        ("high", True),
        probe=lambda door, *_: door.world.broker.default_host.queues["bound"]._consumers.ranking is not None,
    ),
    "rabbitmq:priority": Sample(
        7,
        ("high", True),
        probe=lambda door, *_: door.world.broker.default_host.queues["bound"]._consumers.ranking is not None,
    ),
    "x-apache-selector": Sample(SELECTOR, ("colour =", 5), off=("", " "), probe=lambda door, *_: is_selective(door)),
    "x-filter-jms-selector": Sample(
        SELECTOR, ("colour =", 5), off=("", " "), probe=lambda door, *_: is_selective(door)
    ),
    "x-filter-no-consume": Sample(True, off=(False,), probe=lambda door, *_: not door.consumers()[0].acquires),
    "x-filter-auto-close": Sample(True, off=(False,), probe=lambda door, *_: door.consumers()[0].closes),
    "x-stream-offset": of_reader("first", "soon", -1, True),
    "x-stream-filter": of_reader("red", 5, ""),
    "x-stream-match-unfiltered": of_reader(True, x_stream_filter="red"),
    "x-stream-consumer-name": of_reader("name", 5, "", "n" * 256),
    "x-stream-automatic-offset-tracking": of_reader(True),
    "x-credit": refused(5),
    "qpid.ha-replicating-subscription": refused("1"),
    "x-cancel-on-ha-failover": ignored(True, False),
    "qpid.sync_frequency": Sample(5, probe=lambda door, *_: asks_for_answers(door)),
}
SAMPLES: Final = {Of.QUEUE: QUEUE, Of.EXCHANGE: EXCHANGE, Of.BINDING: BINDING, Of.SUBSCRIPTION: SUBSCRIPTION}


def is_selective(door: Door) -> bool:
    return isinstance(door.consumers()[0], SelectiveSubscription | SelectiveConsumer)


def is_selective_exchange(door: Door, name: str) -> bool:
    return bool(door.world.broker.default_host.exchanges[name].selectors)


def asks_for_answers(door: Door) -> bool:
    (consumer,) = door.consumers()
    assert isinstance(consumer, Subscription)
    return decode_command(consumer.payload)[1]


def test_the_walk_has_a_sample_for_each_row_and_no_other() -> None:
    assert {(row.of, row.key) for row in TABLE} == {(of, key) for of, rows in SAMPLES.items() for key in rows}


def cases(effect: Effect) -> list[Any]:
    return [
        pytest.param(row, door, id=f"{row.of.value}-{row.key}-{door}")
        for row in TABLE
        for door in DOORS
        if row.effect is effect and row.protocol in ("", door) and not is_no_argument_at(door, row)
    ]


def is_no_argument_at(door: str, row: Row) -> bool:
    """Subscriptions are not created by management, and an alternate exchange is a property there, and of nodes."""
    if door == AMQP_1_0:
        return row.of is Of.BINDING or row.key == ALTERNATE
    if door == MANAGEMENT:
        return row.of is Of.SUBSCRIPTION
    if door != QMF:
        return False
    return row.of is Of.SUBSCRIPTION or row.key == ALTERNATE


def target(row: Row, sample: Sample) -> str:
    """The name of the object that is declared, or of the exchange that is bound to."""
    return (sample.name or "topic") if row.of is Of.BINDING else "made"


def argument(row: Row, sample: Sample) -> str:
    return sample.name if row.key.endswith("*") else row.key


@pytest.mark.parametrize(("row", "protocol"), cases(Effect.EFFECT))
def test_an_argument_has_its_effect(row: Row, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    sample = SAMPLES[row.of][row.key]
    caplog.set_level(INFO)
    door, name = Door(protocol, has_store=sample.has_store), argument(row, sample)
    arguments = sample.others | {name: sample.good}
    assert door.declare(row.of, target(row, sample), arguments, **sample.flags) == ""
    found = door.arguments_of(row.of, target(row, sample))
    assert found is not None
    assert name in found
    assert sample.probe(door, name, arguments)
    elsewhere = row.where in (EXCLUSIVE, REPLICATING, DELETES_SLOW)  # the declaration alone does not make it so
    lines = [line for line in caplog.messages if re.search("ignored|not implemented|has no effect", line)]
    assert len(lines) == elsewhere, lines


@pytest.mark.parametrize(("row", "protocol"), cases(Effect.EFFECT))
def test_a_wrong_value_is_refused_by_the_name_that_the_client_sent(row: Row, protocol: str) -> None:
    sample = SAMPLES[row.of][row.key]
    for wrong in sample.wrong:
        if row.key in ("qpid.file_count", "qpid.file_size", "qpid.auto_expand", "qpid.auto_expand_max_jfiles",
                       "qpid.max_journal_size"):  # fmt: skip
            with pytest.raises(Exception, match=re.escape(row.key)):
                of_the_journal(Door(protocol), row.key, {row.key: wrong})
            continue
        door, name = Door(protocol, has_store=sample.has_store), argument(row, sample)
        error = door.declare(row.of, target(row, sample), sample.others | {name: wrong}, **sample.flags)
        assert name in error, wrong
        own = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}.get(name, "")
        assert not own or own not in error
        assert door.arguments_of(row.of, target(row, sample)) is None


@pytest.mark.parametrize(("row", "protocol"), cases(Effect.REFUSED))
def test_unimplemented_argument_is_refused_by_name(row: Row, protocol: str) -> None:
    sample = SAMPLES[row.of][row.key]
    door, name = Door(protocol), target(row, sample)
    values = [REFUSED_VALUES.get(row.key, sample.good) if row.of is Of.QUEUE else sample.good, *sample.wrong]
    value = next(each for each in values if row.asks(each))
    error = door.declare(row.of, name, {row.key: value})
    assert row.key in error
    assert "is not implemented" in error or "is not supported" in error
    assert row.says[:40] in error
    assert door.arguments_of(row.of, name) is None
    for off in sample.off:
        door = Door(protocol)
        assert door.declare(row.of, name, {row.key: off}) == "", off
        assert door.arguments_of(row.of, name) is not None


@pytest.mark.parametrize(("row", "protocol"), cases(Effect.IGNORED))
def test_argument_without_effect_is_logged(row: Row, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    sample = SAMPLES[row.of][row.key]
    caplog.set_level(INFO)
    door = Door(protocol)
    value = IGNORED_VALUES.get(row.key, sample.good)
    assert door.declare(row.of, target(row, sample), sample.others | {row.key: value}) == ""
    (line,) = [line for line in caplog.messages if row.key in line]
    assert row.says in line
    for off in sample.off:
        caplog.clear()
        door = Door(protocol)
        assert door.declare(row.of, target(row, sample), sample.others | {row.key: off}) == ""
        assert not [line for line in caplog.messages if row.key in line], off


# ---- arguments that others leave without effect ----


@dataclass(frozen=True)
class Pair:
    """How an argument becomes idle.

    Attributes:
        name, value: the argument.
        beside: what is declared with it, and leaves it without effect.
        says: of the log line.
        instead: what is declared in place of that, for it to have its effect.
        flags: of the declaration.
    """

    name: str
    value: Any
    beside: dict[str, Any]
    says: str
    instead: dict[str, Any]
    flags: dict[str, Any] = field(default_factory=dict)


TOO_MUCH, TOO_OLD = "never has so much", "no message is so old"
FEW: Final = {"qpid.max_count": 5, "qpid.max_size": 500}
BROWSED: Final = {"qpid.browse-only": 1}
CYCLE: Final = {"qpid.slow_consumer_policy": "cycle"}
IDLE: Final = (
    *(
        Pair(f"qpid.flow_resume_{what}", 4, {}, "publishers never wait", {f"qpid.max_{what}": 100})
        for what in ("count", "size")
    ),
    Pair("x-qpid-flow-resume-capacity", 4, {}, "publishers never wait", {"x-qpid-capacity": 100}),
    Pair("qpid.flow_resume_count", 4, LIMITED | {"qpid.flow_stop_count": 0}, "publishers never wait", LIMITED),
    Pair("qpid.flow_stop_count", 5, FEW, TOO_MUCH, LIMITED),
    Pair("qpid.flow_stop_size", 500, FEW, TOO_MUCH, LIMITED),
    Pair("x-qpid-capacity", 500, FEW, TOO_MUCH, LIMITED),
    Pair("qpid.alert_count_down", 4, {}, "there is no alert for", {"qpid.max_count": 100}),
    Pair("qpid.alert_count_down", 4, {"qpid.alert_count": 4}, "half of that", {"qpid.alert_count": 5}),
    Pair("qpid.alert_size_down", 4, {"qpid.max_size": 0}, "there is no alert for", {"qpid.max_size": 100}),
    Pair("qpid.alert_size_down", 4, {"qpid.alert_size": 3}, "half of that", {"qpid.alert_size": 5}),
    *(
        Pair(name, 4, {"qpid.max_size": 0}, "there is no alert", {"qpid.max_size": 0, "qpid.alert_message_age": 4})
        for name in ("qpid.alert_repeat_gap", "x-qpid-minimum-alert-repeat-gap")
    ),
    *(
        Pair(name, 6, FEW, TOO_MUCH, LIMITED)
        for name in ("qpid.alert_count", "qpid.alert_count_up", "x-qpid-maximum-message-count")
    ),
    *(
        Pair(name, 501, FEW, TOO_MUCH, LIMITED)
        for name in ("qpid.alert_size", "qpid.alert_size_up", "x-qpid-maximum-message-size")
    ),
    Pair("qpid.alert_message_size", 500, FEW, TOO_MUCH, LIMITED),
    *(
        Pair(name, 9, {"x-message-ttl": 9}, TOO_OLD, {"x-message-ttl": 10})
        for name in ("qpid.alert_message_age", "x-qpid-maximum-message-age")
    ),
    Pair("qpid.slow_consumer_count", 5, CYCLE | FEW, TOO_MUCH, CYCLE | LIMITED),
    Pair("qpid.slow_consumer_size", 500, CYCLE | FEW, TOO_MUCH, CYCLE | LIMITED),
    Pair("qpid.slow_consumer_age", 9, CYCLE | {"x-message-ttl": 9}, TOO_OLD, CYCLE | {"x-message-ttl": 10}),
    Pair(
        "qpid.slow_consumer_delete_durable", 1,
        {"qpid.slow_consumer_policy": "delete", "qpid.slow_consumer_count": 9}, "deleted anyway",
        {"qpid.slow_consumer_policy": "delete", "qpid.slow_consumer_count": 9, "durable": True},
    ),
    Pair("qpid.policy_type", "ring", {"qpid.max_size": 0}, "the queue has no limit", LIMITED),
    Pair("x-overflow", "reject-publish", {}, "the queue has no limit", {"x-max-length": 5}),
    Pair("x-single-active-consumer", True, BROWSED, "all its consumers browse", {}),
    Pair("qpid.group_header_key", "g", GROUPS | BROWSED, "all its consumers browse", GROUPS),
    Pair("qpid.shared_msg_group", 1, GROUPS | BROWSED, "all its consumers browse", GROUPS),
    *(
        Pair(name, 2, LEVELS | BROWSED, "all its consumers browse", LEVELS)
        for name in ("qpid.fairshare", "x-qpid-fairshare", "qpid.fairshare-1", "x-qpid-fairshare-1")
    ),
    *(
        Pair(name, 3, BROWSED, "in the order of arrival", BROWSED | {"qpid.max_count": 9, "qpid.policy_type": "ring"})
        for name in ("qpid.priorities", "x-qpid-priorities")
    ),
    Pair("x-max-priority", 3, BROWSED, "in the order of arrival", BROWSED | {"x-max-length": 9}),
    Pair("qpid.max_pages_loaded", 255, PAGED, "at least 1 MiB", PAGED | {"qpid.page_factor": 2}),
    Pair("qpid.compress", "zstd", {}, "do not go to the disk", {"durable": True}),
    # Two names of one feature.
    Pair("x-qpid-capacity", 60, LIMITED | {"qpid.flow_stop_size": 50}, "is given, too, and counts", LIMITED),
    Pair(
        "x-qpid-flow-resume-capacity", 4, LIMITED | {"qpid.flow_stop_size": 50, "qpid.flow_resume_size": 5},
        "is given, too, and counts", LIMITED,
    ),
    *(
        Pair(other, 4, {first: 5}, f"{first} is given, too, and counts", {})
        for first, other in (
            ("qpid.alert_count", "qpid.alert_count_up"),
            ("qpid.alert_count", "x-qpid-maximum-message-count"),
            ("qpid.alert_count_up", "x-qpid-maximum-message-count"),
            ("qpid.alert_size", "qpid.alert_size_up"),
            ("qpid.alert_size", "x-qpid-maximum-message-size"),
            ("qpid.alert_message_age", "x-qpid-maximum-message-age"),
            ("qpid.priorities", "x-qpid-priorities"),
        )
    ),
    Pair(
        "x-qpid-minimum-alert-repeat-gap", 4, {"qpid.alert_count": 5, "qpid.alert_repeat_gap": 5},
        "is given, too, and counts", {"qpid.alert_count": 5},
    ),
    Pair("x-qpid-fairshare", 4, LEVELS | {"qpid.fairshare": 5}, "is given, too, and counts", LEVELS),
    Pair("x-qpid-fairshare-1", 4, LEVELS | {"qpid.fairshare-1": 5}, "is given, too, and counts", LEVELS),
    Pair("qpid.last_value_queue", 1, {"qpid.last_value_queue_key": "k"}, "is given, too, and counts", {}),
    Pair("qpid.last_value_queue", 1, {"qpid.last_value_queue_no_browse": 0}, "is given, too, and counts", {}),
    Pair("qpid.last_value_queue_no_browse", 1, {"qpid.last_value_queue_key": "k"}, "is given, too, and counts", {}),
    *(
        Pair(name, 1, {"qpid.queue_msg_sequence": "number"}, "is given, too, and counts", {})
        for name in ("qpid.insert_sequence_numbers", "qpid.msg_sequence")
    ),
)  # fmt: skip
"""The walk below tells which one is missing."""
OF_STREAMS: Final = (
    Pair("qpid.flow_resume_count", 4, {}, "publishers never wait", {}),
    Pair("qpid.alert_repeat_gap", 4, {}, "there is no alert", {"qpid.alert_count": 5}),
    Pair("qpid.alert_count_down", 4, {}, "there is no alert", {"qpid.alert_count": 5}),
    Pair("qpid.alert_size_down", 4, {}, "there is no alert", {"qpid.alert_size": 5}),
    Pair("x-stream-keep-unread", "1h", {}, "drops nothing", {"x-max-age": "1D"}),
    Pair("x-stream-max-segment-size-bytes", 20_000, {"x-max-length-bytes": 80_000}, "segments are smaller", {}),
    Pair("x-stream-max-segment-size-bytes", 2_000_000, {}, "segments are smaller", {}),
)


def idle_lines(messages: list[str]) -> list[str]:
    return [line for line in messages if "has no effect" in line]


@pytest.mark.parametrize("protocol", DOORS)
@pytest.mark.parametrize("pair", IDLE, ids=lambda pair: f"{pair.name}-{pair.says}")
def test_an_argument_that_others_leave_without_effect_is_logged(
    pair: Pair, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(INFO)
    door = Door(protocol)
    door.world.broker.queue_factory._max_bytes = 0  # no limit of queues that declare none
    beside, instead = dict(pair.beside), dict(pair.instead)
    flags = {"durable": True} if instead.pop("durable", False) else {}
    assert door.declare(Of.QUEUE, "made", {**beside, pair.name: pair.value}) == ""
    (line,) = [line for line in idle_lines(caplog.messages) if f": {pair.name} " in line]
    assert pair.says in line
    assert line.startswith('Queue "made": ')
    caplog.clear()
    door.world.broker.queue_factory._store = door.world.store  # type: ignore[assignment]
    assert door.declare(Of.QUEUE, "again", {**instead, pair.name: pair.value}, **flags) == ""
    assert not idle_lines(caplog.messages)


@pytest.mark.parametrize("pair", OF_STREAMS, ids=lambda pair: f"{pair.name}-{pair.says}")
def test_an_argument_of_a_stream_that_others_leave_without_effect_is_logged(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(INFO)
    door = Door(AMQP_0_9_1, has_store=True)
    stream = {"x-queue-type": "stream"}
    assert door.declare(Of.QUEUE, "made", {**stream, **pair.beside, pair.name: pair.value}, durable=True) == ""
    (line,) = idle_lines(caplog.messages)
    assert f'Queue "made": {pair.name} ' in line
    assert pair.says in line
    if pair.instead:
        caplog.clear()
        assert door.declare(Of.QUEUE, "again", {**stream, **pair.instead, pair.name: pair.value}, durable=True) == ""
        assert not idle_lines(caplog.messages)


@pytest.mark.parametrize("name", ["note", "auto-delete"])
def test_digits_are_no_number_where_none_is_expected(name: str) -> None:
    """Python refuses to read so many."""
    door = Door(AMQP_0_10)
    assert door.declare(Of.QUEUE, "made", {name: "1" * 5000}) == ""


def test_every_rule_of_idle_arguments_is_tried_here() -> None:
    tried = {(pair.name, pair.says) for pair in (*IDLE, *OF_STREAMS)}
    elsewhere = ("auto-delete", "--queue-memory", "x-delivery-limit")  # below
    missing = [
        (name, rule.says)
        for rule in RULES
        for name in rule.names
        if not any(name.rstrip("*") in tried_name and says in rule.says for tried_name, says in tried)
        and not any(each in f"{name} {rule.says}" for each in elsewhere)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "value", "others", "flags", "says"),
    [
        ("auto-delete", None, {"qpid.lifetime-policy": "manual"}, {"auto_delete": True}, "says manual"),
        ("qpid.max_pages_loaded", 300, PAGED, {}, "--queue-memory is less"),
        (
            "x-delivery-limit", 3, {"x-queue-type": "quorum", **BROWSED}, {"durable": True},
            "all its consumers browse",
        ),
    ],
)  # fmt: skip
def test_what_the_declaration_or_the_broker_leaves_without_effect_is_logged(
    name: str,
    value: Any,
    others: dict[str, Any],
    flags: dict[str, Any],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(INFO)
    door = Door(AMQP_0_10)
    door.world.broker.queue_factory._queue_memory = 1 << 20
    given = others if value is None else {name: value, **others}
    assert door.declare(Of.QUEUE, "made", given, **flags) == ""
    (line,) = idle_lines(caplog.messages)
    assert f'Queue "made": {name} ' in line
    assert says in line


def test_values_that_ask_for_nothing_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    nothing = {
        "qpid.alert_count_down": 0, "qpid.policy_type": "reject", "x-single-active-consumer": False,
        "qpid.compress": "none", "qpid.fairshare": 0, "qpid.priorities": 0, "qpid.msg_sequence": 0, **BROWSED,
        "qpid.queue_msg_sequence": "number", "qpid.alert_count": 5, "qpid.alert_count_up": "5", "qpid.max_size": 0,
    }  # fmt: skip
    assert Door(AMQP_0_10).declare(Of.QUEUE, "made", nothing) == ""
    assert not idle_lines(caplog.messages)


def test_policies_give_arguments_their_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    door = Door(AMQP_0_9_1)
    policy = Policy("/", "p", "^made", "queues", 0, {"max-length": 100})
    asyncio.run(door.world.broker.policies.set(policy))
    assert door.declare(Of.QUEUE, "made", {"qpid.alert_count_down": 4}) == ""
    assert not idle_lines(caplog.messages)
    assert door.declare(Of.QUEUE, "other", {"qpid.alert_count_down": 4}) == ""
    assert len(idle_lines(caplog.messages)) == 1


@pytest.mark.parametrize("protocol", [AMQP_0_10, AMQP_0_9_1, AMQP_1_0])
@pytest.mark.parametrize(
    ("name", "value", "others", "says", "has_store"),
    [
        ("x-priority", 5, {}, "each consumer of a stream", True),
        ("rabbitmq:priority", 5, {"x-priority": 4}, "x-priority is given, too", False),
        ("x-stream-match-unfiltered", True, {}, "without x-stream-filter", True),
        ("x-stream-automatic-offset-tracking", True, {"x-stream-consumer-name": "n"}, "is given, too", True),
    ],
)
def test_an_argument_of_a_consumer_that_has_no_effect_is_logged(
    name: str, value: Any, others: dict[str, Any], says: str, has_store: bool, protocol: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(INFO)
    door = Door(protocol, has_store=has_store)
    assert door.declare(Of.SUBSCRIPTION, "made", {name: value, **others}) == ""
    (line,) = idle_lines(caplog.messages)
    assert f": {name} " in line
    assert says in line


@pytest.mark.parametrize("protocol", [AMQP_0_10, AMQP_0_9_1])
def test_browsers_have_no_priority(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    door = Door(protocol)
    assert door.declare(Of.SUBSCRIPTION, "made", {"x-priority": 5, "x-filter-no-consume": True}) == ""
    (line,) = idle_lines(caplog.messages)
    assert ": x-priority 5 has no effect: it browses" in line


def test_bindings_between_exchanges_have_no_arguments_of_routes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    world = Door(AMQP_0_9_1).world
    client = BasicClient(world).open()
    arguments = {"qpid.fed.op": "B", "qpid.fed.origin": "one", "qpid.fed.tags": "one,two", "qpid.exclusive-binding": 1}
    client.method("exchange.bind", destination="topic", source="direct", routing_key="k", arguments=arguments)
    client.sync()
    assert [name for name in arguments if any(f": {name} " in line for line in caplog.messages)] == list(arguments)


@pytest.mark.parametrize("protocol", [AMQP_0_10, AMQP_0_9_1, AMQP_1_0])
@pytest.mark.parametrize("name", OF_CONSUMERS)
def test_other_queues_have_no_consumers_of_streams(name: str, protocol: str) -> None:
    door = Door(protocol)
    assert name in door.declare(Of.SUBSCRIPTION, "made", {name: SUBSCRIPTION[name].good})
    assert not door.consumers()


def test_the_selector_of_the_java_client_selects() -> None:
    client = World().open_client()
    client.declare("q")
    for colour in ("red", "blue"):
        headers = {"application_headers": {"colour": colour}}
        client.command("message.transfer", header=header(headers, routing_key="q"), body=colour.encode())
    client.subscribe("q", arguments={"x-filter-jms-selector": SELECTOR})
    assert client.take() == [b"red"]
    client.subscribe("q", to="all", arguments={"x-filter-jms-selector": ""})
    assert client.take() == [b"blue"]


def test_a_subscription_has_one_selector() -> None:
    client = World().open_client()
    client.declare("q")
    client.subscribe("q", arguments={"x-filter-jms-selector": SELECTOR, "x-apache-selector": SELECTOR})
    assert not client.exceptions
    client.subscribe("q", to="b", arguments={"x-filter-jms-selector": SELECTOR, "x-apache-selector": "a = 1"})
    assert "different selectors" in client.exceptions[0]["description"]


@pytest.mark.parametrize(("named", "error"), [("amq.direct", ""), ("amq.fanout", "but its argument is 'amq.fanout'")])
def test_field_and_argument_name_one_alternate_exchange(named: str, error: str) -> None:
    client = World().open_client()
    arguments = {"alternate-exchange": named}
    client.command("exchange.declare", exchange="x", type="topic", alternate_exchange="amq.direct", arguments=arguments)
    client.sync()
    assert [error in each["description"] for each in client.exceptions] == [True] * bool(error)


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_misspelt_option_deletes_nothing(kind: str) -> None:
    door = Door(QMF)
    managed: Any = SimpleNamespace(broker=door.world.broker)
    request = {"type": kind, "name": "bound" if kind == "queue" else "topic", "options": typed_map({"ifUnused": True})}
    with pytest.raises(InvalidArgumentError, match="unknown option of delete: ifUnused"):
        asyncio.run(delete(managed, None, Arguments(request), Somebody()))
    assert "bound" in door.world.broker.default_host.queues
    assert "topic" in door.world.broker.default_host.exchanges
    request["options"] = typed_map({"if_unused": True})
    asyncio.run(delete(managed, None, Arguments(request), Somebody()))


def test_an_exclusive_queue_of_a_console_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    door = Door(QMF)
    assert door.declare(Of.QUEUE, "made", {"exclusive": True}) == ""
    assert door.world.broker.default_host.queues["made"].owner is None
    assert any('Queue "made": exclusive is ignored' in line for line in caplog.messages)


@pytest.mark.parametrize("protocol", DOORS)
def test_argument_with_an_effect_only_elsewhere_is_logged(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    door = Door(protocol)
    for row in TABLE:
        if row.where:
            caplog.clear()
            name = "fanout" if row.of is Of.BINDING else f"made for {row.key}"
            assert door.declare(row.of, name, {row.key: SAMPLES[row.of][row.key].good}) == ""
            (line,) = [line for line in caplog.messages if row.key in line and "ignored" in line]
            assert "it has an effect only for" in line


@replaces
def test_arguments_that_have_an_effect_with_others_are_not_logged_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    door = Door(AMQP_0_10)
    door.world.broker.queue_factory.listener = Mock()
    watched = {"qpid.slow_consumer_policy": "delete", "qpid.slow_consumer_count": 1}
    arguments = {**watched, "qpid.slow_consumer_delete_durable": 1, "qpid.queue_event_generation": 2, "no-local": 1}
    assert door.declare(Of.QUEUE, "made", arguments, exclusive=True) == ""
    assert not [line for line in caplog.messages if "ignored" in line]


def test_an_operation_that_no_route_of_a_broker_has_is_refused() -> None:
    assert "qpid.fed.op is 'Z'" in Door(AMQP_0_10).declare(Of.BINDING, "topic", {"qpid.fed.op": "Z"})


@pytest.mark.parametrize("protocol", DOORS)
@pytest.mark.parametrize("name", ["qpid.max_cuont", "note", "x-anything"])
@pytest.mark.parametrize("of", Of)
def test_an_unknown_argument_is_reported_in_the_log_or_refused(
    of: Of, name: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ's clients ask for features by names that begin with x-."""
    if (of is Of.SUBSCRIPTION and protocol in (QMF, MANAGEMENT)) or (of is Of.BINDING and protocol == AMQP_1_0):
        return
    caplog.set_level(INFO)
    door = Door(protocol)
    error = door.declare(of, "topic" if of is Of.BINDING else "made", {name: 1})
    if protocol in LIKE_RABBITMQ and name.startswith("x-") and of is not Of.BINDING:
        assert f"argument '{name}' is not supported" in error
        return
    assert error == ""
    (line,) = [line for line in caplog.messages if name in line]
    assert line.endswith(f": {name} is unknown and ignored")
    caplog.clear()
    if of is not Of.BINDING:
        assert door.declare(of, "made again", {name: 1}) == ""
        assert [record.levelno for record in caplog.records if name in record.getMessage()] == [INFO]


def test_criteria_of_a_headers_exchange_are_no_unknown_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    for protocol in DOORS:
        door = Door(protocol)
        assert door.declare(Of.BINDING, "headers", {"x-match": "all", "qpid.subject": "red", "x-colour": 1}) == ""
        assert [line for line in caplog.messages if "ignored" in line] == [
            'Binding of queue "bound" to exchange "headers": x-colour is unknown and ignored'
        ]
        caplog.clear()


def test_manual_lists_exactly_the_arguments_of_the_table() -> None:
    manual = (Path(qstore.__file__).parent / "broker" / "OPERATING.md").read_text()
    section = manual.partition("\n## Arguments\n")[2].partition("\n## ")[0]
    words = {"have an effect": Effect.EFFECT, "are refused": Effect.REFUSED, "are ignored": Effect.IGNORED}
    listed = [
        (Of(of.removesuffix("s")), words[effect], name, f"AMQP {protocol}" if protocol else "")
        for of, effect, names in re.findall(r"^\| (\w+) \| ([a-z ]+) \| (`.*`.*) \|$", section, re.MULTILINE)
        for name, protocol in re.findall(r"`([^`]+)`(?: \(([0-9.-]+)\))?", names)
    ]
    rows = [(row.of, row.effect, row.key.replace("*", "N"), row.protocol) for row in sorted(TABLE, key=order)]
    assert listed == list(dict.fromkeys(rows))


def order(row: Row) -> tuple[int, int]:
    """As the manual has them."""
    return list(Of).index(row.of), [Effect.EFFECT, Effect.REFUSED, Effect.IGNORED].index(row.effect)


@pytest.mark.parametrize(("properties", "told"), [({"note": 1, "paired": True}, 2), ({}, 0)])
def test_properties_of_a_link_that_sends_are_logged(
    caplog: pytest.LogCaptureFixture, properties: dict[str, Any], told: int
) -> None:
    caplog.set_level(INFO)
    world = World()
    make_queue(world)
    LinksClient(world).open().sender("q", properties=entries(properties))
    found = [line for line in caplog.messages if "is ignored: only links on which a client receives" in line]
    assert len(found) == told


def test_links_to_management_are_paired(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO)
    pair = entries({"paired": True})
    client = LinksClient(World()).open()
    client.sender("/management", 0, name="pair", properties=pair)
    client.receiver("/management", 1, name="pair", snd_settle_mode=1, properties=pair)
    assert not [line for line in caplog.messages if "ignored" in line]


def test_a_receiver_of_higher_priority_gets_the_messages() -> None:
    world = World()
    make_queue(world)
    client = LinksClient(world).open()
    for handle, priority in ((1, -5), (2, 5)):
        properties = entries({"rabbitmq:priority": priority})
        client.receiver("q", handle, properties=properties)
    client.sender("q", 0)
    client.publish(b"x", durable=False)
    assert [each.fields["handle"] for each in client.messages()] == [2]


def test_a_request_for_management_has_no_unknown_names() -> None:
    client = paired(LinksClient(World()).open())
    for path in ("/queues/new", "/exchanges/new"):
        status, text = ask(client, "PUT", path, {"durabel": False})
        assert status == 400
        assert "durabel" in text


# ---- names ----


@pytest.mark.parametrize("protocol", DOORS)
@pytest.mark.parametrize("of", [Of.QUEUE, Of.EXCHANGE])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("evil\0name", "U+0000"),
        ("line\nend", "U+000A"),
        ("\x1b[2J", "U+001B"),
        ("\x7f", "U+007F"),
        ("no text\udcff", "not valid UTF-8"),
    ],
)
def test_impossible_names_are_refused_at_every_door(of: Of, name: str, why: str, protocol: str) -> None:
    door = Door(protocol)
    error = door.declare(of, name, {})
    assert why in error
    assert "cannot be created" in error or ("UTF-8" in why and protocol in (AMQP_1_0, MANAGEMENT))
    assert error.isprintable()
    assert door.arguments_of(of, name) is None
    assert door.declare(of, "straße/€ a'b", {}) == ""
