"""Virtual hosts: queues and exchanges of equal names in two hosts, and all ways of a message between queues."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from qstore.broker.log.logs import STATUS
from qstore.broker.log.status_log import StatusLog
from qstore.broker.model.authorization import AllowAll, ObjectType
from qstore.broker.model.caller import Client as Caller
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.policies import Policy
from qstore.broker.model.replies import REPLY_TO
from qstore.broker.model.virtual_host import VirtualHost
from qstore.broker.security.acl.control import control_access
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import Client, World


@pytest.fixture
def other(world: World) -> VirtualHost:
    asyncio.run(world.broker.virtual_hosts.create("other"))
    return world.broker.virtual_hosts.get("other")


def basic(world: World, host: VirtualHost, *channels: int) -> BasicClient:
    """A client of AMQP 0-9-1 in a host."""
    return BasicClient(world).open(*channels, host=host.name)


def modern(world: World, host: VirtualHost, name: bytes = b"session", timeout: int = 0) -> Client:
    """A client of AMQP 0-10 in a host."""
    client = world.connect()
    client.negotiate(host.name)
    client.attach(name, timeout=timeout)
    return client


def bodies(host: VirtualHost, queue: str) -> list[bytes]:
    return [bytes(entry.message.body) for entry in host.queues[queue].entries()]


def test_equal_names_are_different_queues_for_both_protocols(world: World, other: VirtualHost) -> None:
    default = world.broker.default_host
    for client in (basic(world, default), basic(world, other)):
        client.call("queue.declare", queue="q")
        client.call("queue.bind", queue="q", exchange="amq.topic", routing_key="k")
    basic(world, other).publish("q", b"basic")
    basic(world, other).publish("k", b"topic", exchange="amq.topic")
    modern(world, other).publish("q", b"modern")
    modern(world, other, b"second").publish("k", b"modern topic", exchange="amq.topic")
    world.run()
    assert bodies(other, "q") == [b"basic", b"topic", b"modern", b"modern topic"]
    assert bodies(default, "q") == []
    assert world.broker.queue_count == 2
    assert world.broker.totals.messages_enqueued == 4


def test_the_operational_log_names_the_host(world: World, other: VirtualHost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    StatusLog(is_on=True).follow(world.broker.events)
    for host in (world.broker.default_host, other):
        client = basic(world, host)
        client.call("queue.declare", queue="q")
        client.call("queue.bind", queue="q", exchange="amq.topic", routing_key="k")
    lines = [record.getMessage() for record in caplog.records if "BND-1001" in record.getMessage()]
    assert [line.split(" ] ")[1] for line in lines] == [
        f"[ vh(/{name})/ex(amq.topic)/qu(q)/bd(k)" for name in ("", other.name)
    ]
    assert f"/{other.name})" in lines[1].split(" ] ")[0]


def test_a_queue_of_another_host_is_not_found(world: World, other: VirtualHost) -> None:
    basic(world, world.broker.default_host).call("queue.declare", queue="q")
    client = basic(world, other)
    client.method("queue.declare", queue="q", passive=True)
    (closed,) = client.take("channel.close")
    assert closed.values["reply_code"] == 404


def test_dead_letters_stay_in_their_host(world: World, other: VirtualHost) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1}
    for host in (world.broker.default_host, other):
        basic(world, host).call("queue.declare", queue="dead")
    client = basic(world, other)
    client.call("queue.declare", queue="q", arguments=typed_map(arguments))
    client.publish("q", b"1")
    client.publish("q", b"2")
    world.run()
    assert (bodies(other, "q"), bodies(other, "dead")) == ([b"2"], [b"1"])
    assert bodies(world.broker.default_host, "dead") == []


def test_alternate_exchanges_are_those_of_their_host(world: World, other: VirtualHost) -> None:
    for host in (world.broker.default_host, other):
        client = basic(world, host)
        client.call("exchange.declare", exchange="alt", type="fanout")
        client.call("queue.declare", queue="lost")
        client.call("queue.bind", queue="lost", exchange="alt")
        client.call("exchange.declare", exchange="x", type="direct", arguments=typed_map({"alternate-exchange": "alt"}))
    basic(world, other).publish("nowhere", b"1", exchange="x")
    world.run()
    assert bodies(other, "lost") == [b"1"]
    assert bodies(world.broker.default_host, "lost") == []


def test_a_reply_address_is_of_one_host(world: World, other: VirtualHost) -> None:
    requester = basic(world, other)
    requester.call("basic.consume", queue=REPLY_TO, no_ack=True)
    requester.call("queue.declare", queue="work")
    requester.publish("work", b"request", Properties(reply_to=REPLY_TO))
    world.run()
    request = basic(world, other).call("basic.get", queue="work", no_ack=True)
    assert request.properties is not None
    assert request.properties.reply_to is not None
    basic(world, world.broker.default_host).publish(request.properties.reply_to, b"from elsewhere")
    basic(world, other).publish(request.properties.reply_to, b"reply")
    assert [each.body for each in requester.take("basic.deliver")] == [b"reply"]


def test_sessions_of_one_name_are_independent_in_two_hosts(world: World, other: VirtualHost) -> None:
    """Neither is busy because of the other one, and none is attached again from the other host."""
    first = modern(world, other, timeout=60)
    second = modern(world, world.broker.default_host, timeout=60)
    assert first.session() is not second.session()
    assert first.session().virtual_host is other
    detached = first.session()
    first.machine.closed()
    third = modern(world, world.broker.default_host, b"third")
    third.attach(b"session", on=2, force=True)
    world.run()
    assert world.sessions.find(first.machine.user, other, b"session") is detached
    assert third.machine.sessions[2] is not detached


def test_events_of_replicated_queues_are_applied_in_the_host_of_their_exchange(
    world: World, other: VirtualHost
) -> None:
    client = basic(world, other)
    client.call("exchange.declare", exchange="replication", type="replication")
    exchange = other.exchanges["replication"]
    assert isinstance(exchange, ReplicationExchange)
    assert exchange.replica._queues is other.queues


def test_an_exclusive_queue_ends_with_its_connection_in_its_host(world: World, other: VirtualHost) -> None:
    basic(world, world.broker.default_host).call("queue.declare", queue="q")
    client = basic(world, other)
    client.call("queue.declare", queue="q", exclusive=True)
    client.machine.closed()
    world.run()
    assert other.queues == {}
    assert list(world.broker.default_host.queues) == ["q"]


def test_an_auto_delete_queue_ends_with_its_consumer_in_its_host(world: World, other: VirtualHost) -> None:
    for host in (world.broker.default_host, other):
        client = basic(world, host)
        client.call("queue.declare", queue="q", auto_delete=True)
        client.call("basic.consume", queue="q", consumer_tag="c")
    client.call("basic.cancel", consumer_tag="c")
    world.run()
    assert other.queues == {}
    assert list(world.broker.default_host.queues) == ["q"]


def test_the_timeout_of_an_unused_queue_is_kept_by_its_host(world: World, other: VirtualHost) -> None:
    client = basic(world, other)
    client.call("queue.declare", queue="q", arguments=typed_map({"x-expires": 1000}))
    client.call("basic.consume", queue="q", consumer_tag="c")
    client.call("basic.cancel", consumer_tag="c")
    world.run()
    assert other.queues["q"] in other.idle_queues
    assert len(world.broker.default_host.idle_queues) == 0


def test_a_queue_at_its_limit_destroys_itself_in_its_host(world: World, other: VirtualHost) -> None:
    asked: list[tuple[VirtualHost, str]] = []
    world.broker.self_destruct = lambda host, queue: asked.append((host, queue))
    for host in (world.broker.default_host, other):
        arguments = typed_map({"qpid.policy_type": "self-destruct", "qpid.max_count": 1})
        client = basic(world, host)
        client.call("queue.declare", queue="q", arguments=arguments)
    for body in (b"1", b"2"):
        client.publish("q", body)
    world.run()
    assert asked == [(other, "q")]


def test_memory_and_expiry_count_the_queues_of_all_hosts(world: World, other: VirtualHost) -> None:
    before = world.broker.held_memory()
    client = basic(world, other)
    client.call("queue.declare", queue="q")
    client.publish("q", b"x" * 10_000)
    client.publish("q", b"short-lived", Properties(expiration="10"))
    world.run()
    assert world.broker.held_memory() - before > 10_000
    assert {queue.name for queue in world.broker.all_queues()} == {"q"}
    world.now += 1
    world.broker.expire()
    world.run()
    assert bodies(other, "q") == [b"x" * 10_000]


def test_changes_of_one_host_do_not_wait_for_those_of_another(world: World, other: VirtualHost) -> None:
    assert other.topology.changes is not world.broker.default_host.topology.changes
    assert other.exchange_bindings.changes is other.topology.changes


# ---- opening ----


class Guard(AllowAll):
    """Lets nobody into a virtual host."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def allows(self, *asked: object) -> bool:
        """Whether it is about something else."""
        if asked[2] is ObjectType.VIRTUAL_HOST:
            self.asked.append(str(asked[3]))
        return asked[2] is not ObjectType.VIRTUAL_HOST


def refused(client: BasicClient, host: str) -> tuple[int, str]:
    """The answer to a client of AMQP 0-9-1 that opens a host."""
    client.start()
    client.method("connection.tune-ok", 0, channel_max=100, frame_max=0, heartbeat=0)
    client.method("connection.open", 0, virtual_host=host)
    (closed,) = client.take("connection.close")
    return closed.values["reply_code"], closed.values["reply_text"]


def test_a_host_is_opened_only_by_users_with_access(world: World, other: VirtualHost) -> None:
    guard = world.broker.authorization.authorizer = Guard()
    assert refused(BasicClient(world), "other") == (
        530, "NOT_ALLOWED - access to vhost 'other' refused for user 'anonymous@QPID'"
    )  # fmt: skip
    client = world.connect()
    with pytest.raises(AssertionError):
        client.negotiate("other")
    assert client.close_code() == 320
    assert guard.asked == ["other", "other"]
    BasicClient(world).open()
    world.open_client()
    assert guard.asked == ["other", "other"]
    assert other.connection_count == 0


def test_an_unknown_host_is_refused_to_0_9_1_and_is_the_default_one_for_0_10(world: World) -> None:
    assert refused(BasicClient(world), "none") == (530, "NOT_ALLOWED - vhost 'none' not found")
    client = world.connect()
    client.negotiate("none")
    assert client.machine.virtual_host is world.broker.default_host


def test_an_unknown_host_is_refused_to_0_10_too_if_hosts_are_strict() -> None:
    world = World(BrokerSettings(auth=False, strict_virtual_hosts=True))
    client = world.connect()
    with pytest.raises(AssertionError):
        client.negotiate("none")
    assert client.close_code() == 402
    world.open_client()


def test_a_host_that_is_being_deleted_is_not_opened(world: World, other: VirtualHost) -> None:
    other.is_leaving = True
    assert refused(BasicClient(world), "other")[0] == 530


def test_connections_of_a_host_are_counted_and_limited(world: World, other: VirtualHost) -> None:
    asyncio.run(world.broker.virtual_hosts.limit("other", "max-connections", 1))
    first = basic(world, other)
    assert other.connection_count == 1
    code, text = refused(BasicClient(world), "other")
    assert code == 530
    assert text.endswith("connection limit (1) is reached")
    first.machine.closed()
    first.machine.dismantle()
    assert other.connection_count == 0
    basic(world, other)
    asyncio.run(world.broker.virtual_hosts.limit("other", "max-connections", None))
    basic(world, other)


def test_errors_name_the_host(world: World, other: VirtualHost) -> None:
    client = basic(world, other)
    client.method("queue.declare", queue="q", passive=True)
    (closed,) = client.take("channel.close")
    assert closed.values["reply_text"] == "NOT_FOUND - no queue 'q' in vhost 'other'"


def test_destinations_of_a_policy_are_checked_in_its_host(world: World, other: VirtualHost) -> None:
    may = {"configure": "", "write": ".*", "read": ""}
    asyncio.run(world.broker.configuration.change({Record("qstore.permission", ("bob", other.name)): may}))
    control, users = control_access(world.broker, None), Mock()
    users.tags = lambda _user: ("policymaker",)
    control.users = users
    control.recovered()
    bob = Caller("bob@QPID", "192.0.2.1:5", "")
    policy = Policy(other.name, "p", ".*", "queues", 0, {"dead-letter-exchange": "x"})
    control.check_policy(bob, policy)
    with pytest.raises(UnauthorizedError):
        control.check_policy(bob, policy._replace(host="/"))
