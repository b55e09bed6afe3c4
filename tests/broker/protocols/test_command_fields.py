"""Every field of every command of a client: the broker reads it, refuses the command, or here is why it need not.

The arguments among the fields are in `test_arguments`. A conversation sends each command; a field that nobody reads,
and that is not listed, would be accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import qstore.broker.protocols.amqp_0_9_1.connection as basic_connection
import qstore.broker.protocols.amqp_0_9_1.methods as basic_methods
import qstore.broker.protocols.amqp_0_10.commands as commands
import qstore.broker.protocols.amqp_0_10.connection as connection
import qstore.broker.protocols.amqp_1_0.assembly as assembly
import qstore.broker.protocols.amqp_1_0.connection as connection_1_0
import qstore.broker.protocols.amqp_1_0.message as message
import qstore.broker.protocols.amqp_1_0.publishing as publishing
import qstore.broker.protocols.amqp_1_0.resuming as resuming
import qstore.broker.protocols.amqp_1_0.session as session_1_0
import qstore.broker.protocols.amqp_1_0.transactions as transactions
from qstore.broker.log.logs import NOTICE
from qstore.formats.amqp_0_9_1.methods import METHODS
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import COMMANDS, CONTROLS
from qstore.formats.amqp_1_0.composites import BY_NAME, Composite, encode_composite
from qstore.formats.amqp_1_0.frames import SASL_HEADER
from qstore.formats.amqp_1_0.values import Value, read_value
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_arguments import entries
from tests.broker.protocols.test_links_transactions import CONTROL, attach, declare, discharge, state
from tests.broker.protocols.world import World
from tests.support.compiled import replaces
from tests.support.sections_peer import ACCEPTED, RELEASED, address

RESERVED: Final = "AMQP 0-9-1 has reserved it: access tickets are of earlier versions"
REDIRECT: Final = "the broker redirects nobody, so a client need not insist"
OLD: Final = "AMQP 0-9-1 has reserved it"
ENGLISH: Final = "the broker's texts are in English, the only locale that it offers"
REASON: Final = "it tells why, and changes nothing"
XID: Final = (1, b"global", b"branch")
OFFERED: Final = "the answer offers what the broker has"
ITS_OWN: Final = "what the client says of itself: the broker waits for nothing of it"
HINT: Final = "it allows answers in batches, which the broker sends anyway"
TOLD: Final = "the answer says what the node has"
RECEIVERS: Final = "it is kept for the receiver"
ANSWER: Final = "it answers what the broker does not ask, or has not to wait for"

UNREAD: Final[dict[str, dict[str, str]]] = {
    # AMQP 0-9-1
    "0-9-1 connection.start-ok": {"locale": ENGLISH},
    "0-9-1 connection.open": {"capabilities": OLD, "insist": REDIRECT},
    "0-9-1 connection.close": {"class_id": REASON, "method_id": REASON},
    "0-9-1 connection.update-secret": {"new_secret": "logins do not expire", "reason": REASON},
    "0-9-1 channel.open": {"out_of_band": OLD},
    "0-9-1 channel.close": dict.fromkeys(("reply_code", "reply_text", "class_id", "method_id"), REASON),
    "0-9-1 channel.flow-ok": {"active": ANSWER},
    "0-9-1 basic.cancel-ok": {"consumer_tag": ANSWER},
    **{f"0-9-1 {name}": {"ticket": RESERVED} for name in (
        "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "queue.declare", "queue.bind",
        "queue.purge", "queue.delete", "queue.unbind", "basic.consume", "basic.get",
    )},
    # AMQP 0-10
    "0-10 connection.start-ok": {"locale": ENGLISH},
    "0-10 connection.open": {"capabilities": "the broker has none", "insist": REDIRECT},
    "0-10 session.detached": {"code": REASON},
    "0-10 session.expected": {"fragments": "commands are resent as a whole"},
    "0-10 session.confirmed": {"fragments": "commands are resent as a whole"},
    "0-10 message.reject": {"code": REASON, "text": REASON},
    "0-10 message.transfer": {"acquire_mode": "it is about messages to consumers"},
    "0-10 execution.result": dict.fromkeys(("command_id", "value"), ANSWER),
    "0-10 execution.exception": dict.fromkeys(
        ("error_code", "command_id", "class_code", "command_code", "field_index", "description", "error_info"), ANSWER
    ),
    # AMQP 1.0; the properties of a link, and of a node, are arguments
    "1.0 sasl-init": {"hostname": "the virtual host is that of open"},
    "1.0 open": {
        "offered_capabilities": ITS_OWN, "desired_capabilities": OFFERED, "outgoing_locales": ENGLISH,
        "incoming_locales": ENGLISH,
    },
    "1.0 begin": {
        "offered_capabilities": ITS_OWN, "desired_capabilities": OFFERED, "outgoing_window": ITS_OWN,
        "properties": "sessions have none",
    },
    "1.0 attach": {"offered_capabilities": ITS_OWN, "desired_capabilities": OFFERED},
    "1.0 flow": {"next_outgoing_id": ITS_OWN, "outgoing_window": ITS_OWN, "available": ITS_OWN},
    "1.0 transfer": {"batchable": HINT},
    "1.0 disposition": {"batchable": HINT},
    "1.0 rejected": {"error": REASON},
    "1.0 detach": {"error": REASON},
    "1.0 end": {"error": REASON},
    "1.0 error": {"info": REASON},
    "1.0 source": {"outcomes": "the client chooses the outcome, and the answer has all"},
    "1.0 coordinator": {"capabilities": TOLD},
    "1.0 header": {"first_acquirer": "the broker has acquired the message for nobody before"},
    "1.0 properties": dict.fromkeys(("group_id", "group_sequence", "reply_to_group_id"), RECEIVERS),
}  # fmt: skip

FROM_BROKER: Final = {
    f"0-9-1 {name}" for name in (
        "connection.start", "connection.secure", "connection.tune", "connection.open-ok", "connection.blocked",
        "connection.unblocked", "connection.update-secret-ok", "channel.open-ok", "exchange.declare-ok",
        "exchange.delete-ok", "exchange.bind-ok", "exchange.unbind-ok", "exchange.bound-ok", "queue.declare-ok",
        "queue.bind-ok", "queue.purge-ok", "queue.delete-ok", "queue.unbind-ok", "basic.qos-ok", "basic.consume-ok",
        "basic.return", "basic.deliver", "basic.get-ok", "basic.get-empty", "basic.recover-ok", "confirm.select-ok",
        "tx.select-ok", "tx.commit-ok", "tx.rollback-ok",
    )
} | {
    f"0-10 {name}" for name in (
        "connection.start", "connection.secure", "connection.tune", "connection.open-ok", "connection.redirect",
        "session.attached",
    )
} | {f"1.0 {name}" for name in ("sasl-mechanisms", "sasl-challenge", "sasl-outcome", "declared")}  # fmt: skip
"""Commands that only the broker sends; from a client they are unexpected."""
ELSEWHERE: Final = {
    "0-9-1 basic.publish", "0-9-1 basic.ack",  # functions of their own decode these: all fields but the ticket
    "0-9-1 connection.secure-ok", "0-10 connection.secure-ok",  # the tests of mechanisms answer challenges
    "1.0 sasl-response",
}  # fmt: skip


def is_refused(name: str) -> bool:
    return name.startswith(("0-10 file.", "0-10 stream.")) or name in ("0-10 dtx.forget", "0-9-1 exchange.bound")


class Fields(dict[str, Any]):
    """The fields of a command, which tell what is read."""

    def __init__(self, name: str, values: dict[str, Any], read: dict[str, set[str]]) -> None:
        super().__init__(values)
        self.read = read.setdefault(name, set())

    def __getitem__(self, field: str) -> Any:
        self.read.add(field)
        return super().__getitem__(field)

    def get(self, field: str, default: Any = None) -> Any:
        self.read.add(field)
        return super().get(field, default)

    def __contains__(self, field: object) -> bool:
        self.read.add(str(field))
        return super().__contains__(field)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Command -> its fields that were read."""
    found: dict[str, set[str]] = {}

    def watch(module: Any, function: str, version: str) -> None:
        decode: Callable[..., tuple[Any, ...]] = getattr(module, function)

        def watched(payload: bytes, *version_of: Any) -> tuple[Any, ...]:
            command, *others, values = decode(payload, *version_of)
            return command, *others, Fields(f"{version} {command.name}", values, found)

        monkeypatch.setattr(module, function, watched)

    decode_start_ok = basic_connection.decode_start_ok

    def watched_start_ok(payload: bytes) -> tuple[bytes, dict[str, Any]]:
        properties, values = decode_start_ok(payload)
        name = "0-9-1 connection.start-ok"
        found.setdefault(name, set()).add("client_properties")  # which are decoded if they are not known
        return properties, Fields(name, values, found)

    monkeypatch.setattr(basic_connection, "decode_start_ok", watched_start_ok)
    watch(basic_methods, "decode_method", "0-9-1")
    watch(basic_connection, "decode_method", "0-9-1")
    watch(commands, "decode_command", "0-10")
    watch(connection, "decode_control", "0-10")
    watch_1_0(monkeypatch, found)
    return found


def watch_1_0(monkeypatch: pytest.MonkeyPatch, found: dict[str, set[str]]) -> None:
    """As `watch`, of described types, which have others in their fields. What an answer repeats is not read."""
    is_answer: list[bool] = []
    message.read_header.cache_clear()

    def told(value: Any) -> Any:
        if not isinstance(value, Composite):
            return value
        name = f"1.0 {value.name}"
        return Composite(value.name, Described(name, {key: told(each) for key, each in value.fields.items()}, found))

    class Described(Fields):
        def get(self, field: str, default: Any = None) -> Any:
            return dict.get(self, field, default) if is_answer else super().get(field, default)

    def watch(module: Any, function: str, change: Callable[[Any], Any]) -> None:
        decode: Callable[..., Any] = getattr(module, function)

        def watched(*arguments: Any) -> Any:
            return change(decode(*arguments))

        monkeypatch.setattr(module, function, watched)

    def of_pair(result: tuple[Composite, int]) -> tuple[Composite, int]:
        return told(result[0]), result[1]

    watch(assembly, "read_fields", of_pair)
    for module in (assembly, transactions, resuming):
        watch(module, "read_composite", of_pair)
    watch(assembly, "usual_transfer", lambda _: None)
    for module in (message, publishing):
        sections = module.section_list
        monkeypatch.setattr(
            module, "section_list", lambda name, *place, of=sections: told(Composite(name, of(name, *place))).fields
        )
    encode = connection_1_0.encode_composite

    def encoded(*arguments: Any) -> bytes:
        is_answer.append(True)
        try:
            return encode(*arguments)
        finally:
            is_answer.pop()

    for module in (connection_1_0, session_1_0):
        monkeypatch.setattr(module, "encode_composite", encoded)


def talk_0_9_1() -> None:
    world = World()
    client = BasicClient(world).open(1, 2, 3, 4)
    for name, values in (("connection.update-secret", {"new_secret": b"x", "reason": "r"}),):
        client.method(name, 0, **values)
    client.call("exchange.declare", exchange="x", type="topic")
    client.call("exchange.declare", exchange="y", type="topic")
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="x", routing_key="k")
    client.call("exchange.bind", source="x", destination="y", routing_key="k")
    client.call("exchange.unbind", source="x", destination="y", routing_key="k")
    client.call("basic.qos", prefetch_count=5)
    client.call("basic.consume", queue="q", consumer_tag="c")
    client.method("basic.cancel-ok", consumer_tag="c")
    client.call("basic.cancel", consumer_tag="c")
    for body in (b"1", b"2", b"3"):
        client.publish("q", body)
    client.call("basic.get", queue="q")
    client.method("basic.nack", delivery_tag=1, requeue=True)
    client.call("basic.get", queue="q")
    client.method("basic.reject", delivery_tag=2, requeue=True)
    client.call("basic.get", queue="q")
    client.call("basic.recover", requeue=True)
    client.method("basic.recover-async", requeue=True)
    client.call("channel.flow", active=True)
    client.method("channel.flow-ok", active=True)
    client.call("confirm.select", 2)
    client.call("tx.select", 3)
    client.call("tx.commit", 3)
    client.call("tx.rollback", 3)
    client.call("queue.purge", queue="q")
    client.call("queue.unbind", queue="q", exchange="x", routing_key="k")
    client.call("queue.delete", queue="q")
    client.call("exchange.delete", exchange="y")
    client.call("channel.close", 4)
    assert not [each for each in client.received if each.name in ("channel.close", "connection.close")]
    client.method("connection.close", 0, reply_code=200)
    client.sync()


def talk_0_10() -> None:
    world = World()
    client = world.open_client(timeout=60)
    xid = XID
    client.command("exchange.declare", exchange="x", type="topic")
    client.declare("q")
    client.command("exchange.bind", queue="q", exchange="x", binding_key="k")
    client.call("exchange.query", name="x")
    client.call("exchange.bound", exchange="x", queue="q", binding_key="k")
    client.call("queue.query", queue="q")
    client.publish("q", b"1", b"2", b"3", b"4")
    client.subscribe("q", to="d")
    client.command("message.flush", destination="d")
    client.command("message.stop", destination="d")
    client.sync()
    first = client.deliveries[0].number
    client.command("message.accept", transfers=((first, first),))
    client.command("message.release", transfers=((first + 1, first + 1),))
    client.command("message.reject", transfers=((first + 2, first + 2),), code=1, text="bad")
    client.call("message.acquire", transfers=((first + 3, first + 3),))
    client.call("message.resume", destination="x", resume_id="unknown")
    client.command("message.cancel", destination="d")
    client.command("queue.purge", queue="q")
    client.command("execution.sync")
    client.command("execution.result", command_id=0)
    client.command("execution.exception", error_code=0)
    client.command("exchange.unbind", queue="q", exchange="x", binding_key="k")
    client.command("queue.delete", queue="q")
    client.command("exchange.delete", exchange="x")
    for name in (
        "session.expected",
        "session.confirmed",
        "session.completed",
        "session.known-completed",
        "session.gap",
    ):
        client.control(name, on=1, commands=())
    client.control("session.flush", on=1, completed=True)
    client.control("session.timeout", on=1, timeout=60)
    client.sync()
    assert not client.exceptions
    client.attach(b"local", on=2)
    for name in ("tx.select", "tx.commit", "tx.rollback"):
        client.command(name, on=2)
    client.attach(b"global", on=3)
    client.command("dtx.select", on=3)
    client.command("dtx.start", on=3, xid=xid)
    client.command("dtx.set-timeout", on=3, xid=xid, timeout=60)
    client.command("dtx.get-timeout", on=3, xid=xid)
    client.command("dtx.end", on=3, xid=xid)
    client.command("dtx.prepare", on=3, xid=xid)
    client.command("dtx.recover", on=3)
    client.command("dtx.commit", on=3, xid=xid)
    client.command("dtx.start", on=3, xid=xid)
    client.command("dtx.end", on=3, xid=xid)
    client.command("dtx.rollback", on=3, xid=xid)
    client.sync()
    assert not client.exceptions
    client.control("session.detach", on=2, name=b"local")
    client.control("session.detached", on=3, name=b"global", code=0)
    client.control("connection.close", reply_code=200, reply_text="bye")
    client.sync()


def every(name: str, /, **values: Any) -> dict[str, Any]:
    """All fields of a described type; those that are not given have a value of their type."""
    samples = {"string": "x", "symbol": "x", "uint": 7, "ulong": 7, "binary": b"x", "map": (), "boolean": True}
    for field in BY_NAME[name].fields:
        if field.name not in values and field.base in samples:
            value = samples[field.base]
            values[field.name] = (value,) if field.is_multiple else value
    return values


def talk_1_0() -> None:
    world = World()
    client = LinksClient(world)
    client.send(SASL_HEADER)
    client.do("sasl-init", mechanism="ANONYMOUS", initial_response=b"me", hostname="here")
    client.take()
    client.open(0, 1, **every("open", hostname="vhost:/", idle_time_out=60_000, channel_max=10, max_frame_size=65536))
    error = Composite("error", every("error", condition="amqp:internal-error"))
    more = every("attach", name="l", handle=0, max_message_size=1 << 20, initial_delivery_count=0, unsettled=())
    more = {name: more[name] for name in ("incomplete_unsettled", "offered_capabilities", "desired_capabilities")}
    made = {"capabilities": ("create-on-demand", "queue"), "durable": 2, "expiry_policy": "never", "timeout": 7}
    source = {
        **made, "distribution_mode": "move", "default_outcome": RELEASED, "outcomes": ("amqp:accepted:list",),
        "filter": (), "dynamic_node_properties": (),
    }  # fmt: skip
    client.sender("q", 0, terminus=made, unsettled=(), properties=(), **more)
    client.receiver("q", 1, credit=10, max_message_size=1 << 20, properties=(), terminus=source, **more)
    dynamic = {"dynamic": True, "dynamic_node_properties": entries({"auto-delete": True})}
    client.attach(None, 2, terminus=dynamic)
    client.attach(None, 3, terminus=dynamic, receives=True)
    client.receiver("amq.topic", 4, terminus={"durable": 2, "timeout": 7})
    client.receiver("amq.topic", 6, terminus={"expiry_policy": "never"})
    client.sender(None, 5)
    attach(client, CONTROL)
    for number in range(5):
        user = {"user_id": b"anonymous"} if number else {}
        client.publish(b"x", durable=False, message_id=Value("string", "m"), absolute_expiry_time=1 << 50, **user)
    make_queue(world, "other")
    for to, subject in (("other", "x"), ("amq.fanout", "key")):
        client.publish(b"x", 5, durable=False, to=address(to), subject=subject)
    client.take()
    assert BasicClient(world).open().call("basic.get", queue="other").name == "basic.get-ok"
    client.settle(ACCEPTED, 0)
    client.settle(Composite("rejected", {"error": error}), 1)
    client.settle(Composite("modified", every("modified", undeliverable_here=False, message_annotations=())), 2)
    client.settle(Composite("received", every("received", section_number=0, section_offset=0)), 3, settled=False)
    client.do("disposition", role=False, first=0, batchable=True)
    txn_id = declare(client)
    client.settle(state(txn_id, ACCEPTED), 3, settled=False)
    client.publish(b"x", 0, durable=False, state=state(txn_id))
    client.take()
    discharge(client, txn_id)
    flow = {"next_incoming_id": 0, "incoming_window": 1000, "next_outgoing_id": 0, "handle": 1, "link_credit": 5}
    client.do("flow", **every("flow", **flow, delivery_count=3, properties=()))
    whole = {"handle": 0, "settled": True, "resume": False, "rcv_settle_mode": 1, "message_format": 0}
    number = {"delivery_id": client.sent[0]}
    client.do("transfer", **every("transfer", **whole, **number, more=True, aborted=False))
    client.do("transfer", **every("transfer", **whole, **number, more=False, aborted=True))
    client.do("detach", handle=1, closed=True, error=error)
    client.do("end", 1, error=error)
    client.sync()
    assert not [each for each in client.received if each.name in ("detach", "end", "close") and "error" in each.fields]
    client.do("close", error=error)
    client.sync()
    world.run()
    resume_1_0(world)


def resume_1_0(world: World) -> None:
    """A message that was partly received, and one whose receiver settles second."""
    terminus = {"timeout": 7}
    client = LinksClient(world).open().sender("q", 0, terminus=terminus, rcv_settle_mode=1)
    client.publish(b"x", durable=False, rcv_settle_mode=1)
    client.receiver("q", 1, terminus=terminus, credit=1)
    (found,) = client.messages()
    client.machine.closed()
    client = LinksClient(world).open()
    received = Composite("received", {"section_number": 1, "section_offset": 0})
    encoded = encode_composite("received", received.fields)
    unsettled = ((Value("binary", found.fields["delivery_tag"]), read_value(encoded, 0, len(encoded))[0]),)
    client.receiver("q", 1, terminus=terminus, credit=1, unsettled=unsettled)
    assert [each.fields["state"] for each in client.messages()] == [received]


@replaces
def test_every_field_is_read_or_listed_with_the_reason(read: dict[str, set[str]]) -> None:
    talk_0_9_1()
    talk_0_10()
    talk_1_0()
    fields = {f"0-9-1 {method.name}": {field.name for field in method.fields} for method in METHODS}
    fields |= {f"0-10 {each.name}": {field.name for field in each.packed.fields} for each in (*CONTROLS, *COMMANDS)}
    fields |= {f"1.0 {each.name}": {field.name for field in each.fields} for each in BY_NAME.values()}
    wanted = {
        name: found - UNREAD.get(name, {}).keys()
        for name, found in fields.items()
        if found and name not in FROM_BROKER and name not in ELSEWHERE and not is_refused(name)
    }
    unread = {name: found - read.get(name, set()) for name, found in wanted.items()}
    assert {name: found for name, found in unread.items() if found} == {}
    assert {name: found for name, found in UNREAD.items() if found.keys() & read.get(name, set())} == {}
    assert UNREAD.keys() <= fields.keys()


@pytest.mark.parametrize("name", [each.name for each in COMMANDS if is_refused(f"0-10 {each.name}")])
def test_commands_that_are_missing_are_refused_by_name(name: str) -> None:
    client = World().open_client()
    if name == "dtx.forget":
        client.command("dtx.select")
        client.command(name, xid=XID)
    else:
        client.command(name)
    client.sync()
    (failed,) = client.exceptions
    assert failed["error_code"] == ErrorCode.NOT_IMPLEMENTED
    assert name in failed["description"] or name == "dtx.forget"  # no branch was completed heuristically


@pytest.mark.parametrize("field", [{"resume_id": "x"}, {"resume_ttl": 1000}])
def test_a_subscription_that_is_to_be_resumed_is_refused(field: dict[str, Any]) -> None:
    client = World().open_client()
    client.declare("q")
    client.command("message.subscribe", queue="q", destination="d", **field)
    client.sync()
    assert client.exceptions[0]["error_code"] == ErrorCode.NOT_IMPLEMENTED
    assert "resume-id and resume-ttl" in client.exceptions[0]["description"]


def test_another_virtual_host_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    world = World()
    for host in ("", "/", "test", "test"):
        client = world.connect()
        client.send(b"AMQP\x01\x01\x00\x0a")
        client.control("connection.start-ok", client_properties={}, mechanism="ANONYMOUS", locale="en_US")
        client.control("connection.tune-ok", channel_max=100, max_frame_size=65535, heartbeat=0)
        client.control("connection.open", virtual_host=host)
        client.sync()
        assert client.names()[-1] == "connection.open-ok"
    (line,) = [line for line in caplog.messages if "virtual-host" in line]
    assert "virtual-host 'test' is ignored: no such virtual host" in line
