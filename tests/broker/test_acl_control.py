"""ACL rules in force: refusals are counted, logged and published; new rules apply to connected clients."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError, UnauthorizedError
from qstore.broker.model.events import (
    Allow,
    ConnectionDeny,
    Deny,
    Event,
    FileLoaded,
    FileLoadFailed,
    QueueQuotaDeny,
)
from qstore.broker.security.acl.control import (
    AccessControl,
    control_access,
    control_of,
    look_up,
    look_up_publishing,
    reload_file,
)
from qstore.broker.security.acl.reader import read
from qstore.broker.security.acl.rules import AclFileError
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.world import Client, World
from tests.broker.wired_broker import Somebody, wired

MALLORY = Somebody("mallory@QPID", "192.0.2.7:1")


def use(broker: Broker, *lines: str) -> tuple[AccessControl, list[Event]]:
    control = control_access(broker, read("\n".join(lines).encode()))
    happened: list[Event] = []
    broker.events.listen(happened.append)
    return control, happened


def world_with(*lines: str) -> tuple[World, AccessControl, list[Event]]:
    world = World()
    control, happened = use(world.broker, *lines)
    return world, control, happened


def reload(world: World, control: AccessControl, path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines))
    control._settings = world.broker.settings = world.broker.settings._replace(acl_file=str(path))

    def changed() -> None:
        for machine in world.machines:
            machine.watch_rules()

    world.broker.authorization.changed = changed
    asyncio.run(control.reload("admin@QPID"))


# ---- what is refused ----


def test_a_denial_is_counted_and_with_log_it_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    world, control, happened = world_with(
        "acl allow-log all purge queue name=mine",
        "acl deny-log all purge queue name=secret",
        "acl deny all purge queue",
        "acl allow all all",
    )
    check = world.broker.authorization.check
    with caplog.at_level(logging.DEBUG, "Security"):
        check(MALLORY, Action.PURGE, ObjectType.QUEUE, "mine")
        check(MALLORY, Action.CONSUME, ObjectType.QUEUE, "mine")
        for name in ("secret", "other"):
            with pytest.raises(UnauthorizedError, match=f'^mallory@QPID is not allowed to purge queue "{name}"$'):
                check(MALLORY, Action.PURGE, ObjectType.QUEUE, name)
    assert control.denied == 2
    assert happened == [
        Allow("mallory@QPID", "purge", "queue", "mine", EMPTY_MAP),
        Deny("mallory@QPID", "purge", "queue", "secret", EMPTY_MAP),
    ]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "Security"]
    shown = "ACL {} id:mallory@QPID action:purge ObjectType:queue Name:{} from 192.0.2.7:1 [rule {} in line {}: {}]"
    assert [text for _, text in lines] == [
        shown.format("Allow", "mine", 1, 1, "allow-log all purge queue name=mine"),
        shown.format("Deny", "secret", 2, 2, "deny-log all purge queue name=secret"),
        shown.format("Deny", "other", 3, 3, "deny all purge queue"),
    ]
    assert lines[0][0] == lines[1][0] != lines[2][0]


async def test_refusal_does_not_reveal_existence(tmp_path: Path) -> None:
    async with wired(tmp_path) as stage:
        topology = stage.topology
        await topology.declare_queue("there")
        await topology.declare_exchange("there", "direct")
        use(stage.broker, "acl deny all all")
        texts = set()
        for name in ("there", "nowhere"):
            for operation in (
                topology.declare_queue(name, passive=True, caller=MALLORY),
                topology.declare_exchange(name, "", passive=True, caller=MALLORY),
                topology.delete_queue(name, caller=MALLORY),
                topology.delete_exchange(name, caller=MALLORY),
                topology.bind(name, name, "k", caller=MALLORY),
                topology.unbind(name, name, "k", caller=MALLORY),
            ):
                with pytest.raises(UnauthorizedError) as caught:
                    await operation
                texts.add(str(caught.value).replace(name, "*"))
        assert len(texts) == 6, texts


@pytest.mark.parametrize("command", ["queue.purge", "message.subscribe"])
def test_refused_command_does_not_reveal_existence(command: str) -> None:
    texts = set()
    for name in ("q", "nowhere", "exclusive"):
        world = World()
        owner = world.open_client()
        owner.declare("q")
        owner.command("queue.declare", queue="exclusive", exclusive=True)
        owner.sync()
        use(world.broker, "acl deny all all")
        client = world.open_client(name=b"second")
        client.command(command, queue=name)
        client.sync()
        code, text = client.failure()[:2]
        assert code == ErrorCode.UNAUTHORIZED_ACCESS
        texts.add(str(text).replace(name, "*"))
    assert len(texts) == 1


async def test_properties_of_queues(tmp_path: Path) -> None:
    async with wired(tmp_path) as stage:
        topology = stage.topology
        use(
            stage.broker,
            "acl allow all create queue durable=true policytype=ring queuemaxsizeupperlimit=1000",
            "acl allow all access queue durable=true",
            "acl allow all delete queue policytype=ring exclusive=false",
        )
        ring = {"qpid.policy_type": "ring", "qpid.max_size": 1000}
        await topology.declare_queue("q", durable=True, arguments=typed_map(ring), caller=MALLORY)
        await topology.declare_queue("q", passive=True, caller=MALLORY)
        for arguments in ({"qpid.policy_type": "ring"}, {**ring, "qpid.max_size": 1001}, {"qpid.max_size": 9}):
            with pytest.raises(UnauthorizedError):
                await topology.declare_queue("r", durable=True, arguments=typed_map(arguments), caller=MALLORY)
        with pytest.raises(UnauthorizedError):
            await topology.declare_queue("q", durable=False, arguments=typed_map(ring), caller=MALLORY)
        await topology.delete_queue("q", caller=MALLORY)


# ---- messages ----


def test_allowed_publishing_is_checked_once() -> None:
    world, control, happened = world_with(
        "acl allow-log all publish exchange name=amq.topic", "acl deny all publish exchange routingkey=secret.#",
        "acl allow all all",
    )  # fmt: skip
    client = world.open_client()
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.publish("a", b"1", b"2", exchange="amq.topic")
    client.sync()
    assert client.machine.transfers.allowed == {("", "q")}
    assert sum(isinstance(each, Allow) for each in happened) == 2
    client.publish("secret.x", b"1", exchange="amq.direct")
    client.sync()
    assert client.failure()[0] == ErrorCode.UNAUTHORIZED_ACCESS
    assert control.denied == 1
    assert world.broker.default_host.queues["q"].message_count == 3


def test_new_rules_hold_for_clients_that_are_there(tmp_path: Path) -> None:
    world, control, happened = world_with("acl allow all all")
    client = world.open_client()
    client.declare("q")
    client.publish("q", b"1")
    client.sync()
    assert not client.machine.transfers.checks_publish
    reload(world, control, tmp_path / "a.acl", "acl deny all publish exchange routingkey=q", "acl allow all all")
    assert happened[-1] == FileLoaded("admin@QPID")
    client.publish("q", b"2")
    client.sync()
    assert client.failure()[0] == ErrorCode.UNAUTHORIZED_ACCESS
    assert world.broker.default_host.queues["q"].message_count == 1
    second = world.open_client(name=b"second")
    second.publish("other", b"2")
    reload(world, control, tmp_path / "a.acl", "acl allow all all")
    second.publish("q", b"2")
    second.sync()
    assert world.broker.default_host.queues["q"].message_count == 2
    assert not second.machine.transfers.has_rare


def test_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    world, control, happened = world_with("acl deny all all")
    engine = control.engine
    with pytest.raises(AclFileError, match=r"a.acl: line 2: Unknown ACL permission"):
        reload(world, control, tmp_path / "a.acl", "acl allow all all", "acl x all all")
    assert control.engine is engine
    (event,) = happened
    assert isinstance(event, FileLoadFailed)
    assert event.user == "admin@QPID"
    assert "line 2" in event.reason


# ---- quotas ----


async def test_queues_of_a_user(tmp_path: Path) -> None:
    async with wired(tmp_path) as stage:
        topology, quotas = stage.topology, stage.broker.quotas
        _, happened = use(stage.broker, "quota queues 2 mallory@QPID", "quota queues 0 eve@QPID", "acl allow all all")
        await topology.declare_queue("a", durable=True, caller=MALLORY)
        await topology.declare_queue("b", auto_delete=True, caller=MALLORY)
        await topology.declare_queue("a", durable=True, caller=MALLORY)
        for user in ("mallory", "eve", "unknown"):
            with pytest.raises(UnauthorizedError, match=rf'user "{user}@QPID" may not have more than \d queues: "c"'):
                await topology.declare_queue("c", caller=Somebody(f"{user}@QPID"))
        assert [each for each in happened if isinstance(each, QueueQuotaDeny)] == [
            QueueQuotaDeny(f"{user}@QPID", "c") for user in ("mallory", "eve", "unknown")
        ]
        assert quotas.queues_denied == 3
        await topology.declare_queue("d")
        await topology.delete_queue("b")
        await topology.declare_queue("c", durable=True, caller=MALLORY)
        assert quotas.queues["mallory@QPID"] == 2
    async with wired(tmp_path) as stage:
        assert stage.broker.quotas.queues["mallory@QPID"] == 2, "they count after a restart, too"
        for name in ("a", "c"):
            await stage.topology.delete_queue(name)
        assert "mallory@QPID" not in stage.broker.quotas.queues


@pytest.mark.parametrize(
    ("option", "lines", "limits"),
    [
        (0, [], {"a@R": None, "b@R": None}),
        (3, [], {"a@R": 3, "b@R": 3}),
        (3, ["quota connections 5 all"], {"a@R": 5}),
        (3, ["quota connections 5 a@R"], {"a@R": 5, "b@R": 3}),
        (0, ["quota connections 5 a@R"], {"a@R": 5, "b@R": 0}),
        (0, ["quota connections 5 anonymous"], {"anonymous@QPID": 5, "b@R": 0}),
        (0, ["quota queues 5 a@R"], {"a@R": None}),
    ],
)
def test_limits_of_users(option: int, lines: list[str], limits: dict[str, int | None]) -> None:
    broker = Broker(BrokerSettings(connections_per_user=option), None, lambda _: None)
    control, _ = use(broker, *lines)
    assert {user: control.limit("connections", user) for user in limits} == limits


@pytest.mark.parametrize(("lines", "limit"), [([], 3), (["quota queues 5 all"], 5)])
def test_the_option_limits_queues_of_users_without_a_quota(lines: list[str], limit: int) -> None:
    broker = Broker(BrokerSettings(queues_per_user=3), None, lambda _: None)
    control, _ = use(broker, *lines)
    assert control.limit("queues", "a@R") == limit


def connected(world: World) -> Client:
    client = world.open_client(name=None)
    assert client.controls[-1][1] == "connection.open-ok"
    return client


def test_connections_of_a_user() -> None:
    world, _, happened = world_with("quota connections 2 anonymous", "acl allow all all")
    first, _second = connected(world), connected(world)
    third = world.connect()
    with pytest.raises(AssertionError):
        third.negotiate()
    _, name, values = third.controls[-1]
    assert (name, values["reply_code"]) == ("connection.close", CloseCode.CONNECTION_FORCED)
    assert values["reply_text"] == 'the limit of connections of user "anonymous@QPID" is reached'
    assert ConnectionDeny("anonymous@QPID", "") in happened
    third.machine.dismantle()
    assert world.broker.quotas.connections["anonymous@QPID"] == 2
    first.machine.dismantle()
    connected(world)


def test_where_a_user_may_connect_from() -> None:
    world, _, _ = world_with("acl deny anonymous create connection host=all", "acl allow all all")
    client = world.connect()
    with pytest.raises(AssertionError):
        client.negotiate()
    assert "anonymous@QPID is not allowed to create connection from" in client.controls[-1][2]["reply_text"]
    assert world.broker.quotas.connections_denied == 1


# ---- what management asks ----


def test_management_looks_up_permissions(tmp_path: Path) -> None:
    world, control, _ = world_with(
        "acl allow kim@QPID create queue maxqueuesize=10 autodelete=true", "acl deny-log all publish exchange"
    )
    assert control_of(world.broker) is control
    flags = {"maxqueuesize": "10", "autodelete": True}
    assert look_up(control, "kim@QPID", "create", "queue", "q", flags) == "allow"
    assert look_up(control, "kim@QPID", "create", "queue", "q", {**flags, "queuemaxsize": 11}) == "deny"
    assert (
        look_up(control, "kim@QPID", "create", "queue", "q", {"maxqueuesize": b"10", "autodelete": "true"}) == "allow"
    )
    assert look_up_publishing(control, "kim@QPID", "amq.topic", "k") == "deny-log"
    for question, reason in (
        (("eat", "queue", "q", {}), 'Unknown ACL action "eat"'),
        (("create", "cake", "q", {}), 'Unknown ACL object "cake"'),
        (("create", "queue", "q", {"colour": "red"}), 'Unknown ACL property "colour"'),
    ):
        with pytest.raises(InvalidArgumentError, match=reason):
            look_up(control, "kim@QPID", *question)
    with pytest.raises(InvalidArgumentError, match="the broker has no ACL file; see --acl-file"):
        asyncio.run(reload_file(control, "kim@QPID"))
    without = Broker(BrokerSettings(), None, lambda _: None)
    assert control_of(without) is None
    nothing = control_access(without, None)
    assert not without.authorization.is_on
    with pytest.raises(PreconditionFailedError, match="no ACL file"):
        look_up(nothing, "kim@QPID", "create", "queue", "q", {})
