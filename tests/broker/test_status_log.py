"""The operational log of a broker without sockets: each subscription has its end, and a flood is limited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qstore.broker.log.logs import PERIOD_SECONDS, STATUS, Rules
from qstore.broker.log.sinks import LineFormat, Logging, Sinks
from qstore.broker.log.status_log import MAX_LINES, StatusLog
from qstore.broker.log.status_rules import read_rules
from qstore.broker.model.caller import Client
from qstore.broker.model.events import (
    Bind,
    ClientConnect,
    Events,
    QueueDeclare,
    QueueDelete,
    SessionCreated,
    Subscribe,
)
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World

_CALLER = Client("guest", "192.0.2.1:5", "con:1(guest@192.0.2.1:5/)")


def messages(caplog: pytest.LogCaptureFixture, *numbers: str) -> list[str]:
    """The lines with these ids, or all, from the subject on."""
    reported = [record.getMessage() for record in caplog.records if record.name == STATUS]
    return [line for line in reported if not numbers or any(number in line for number in numbers)]


def followed(world: World) -> StatusLog:
    log = StatusLog(is_on=True)
    log.follow(world.broker.events)
    return log


# ---- subscriptions ----


def test_a_subscription_ends_with_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    log = followed(world)
    client, other = world.open_client(), world.open_client(name=b"other")
    client.declare("q")
    client.subscribe("q", to="d")
    other.command("queue.delete", queue="q")
    other.sync()
    world.run()
    assert [line.partition(" ] ")[2] for line in messages(caplog, "SUB-")] == [
        "[ sub:1:qu(q) ] SUB-1001 : Create", "[ sub:1:qu(q) ] SUB-1002 : Close",
    ]  # fmt: skip
    assert not log._subscriptions


def test_consumers_of_two_channels_have_numbers_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    log = followed(world)
    client = BasicClient(world).open(1, 2)
    client.call("queue.declare", queue="q")
    for channel in (1, 2):
        client.call("basic.consume", channel, queue="q", consumer_tag="same")
    client.call("basic.cancel", 1, consumer_tag="same")
    client.call("queue.delete", queue="q")
    pattern = re.compile(r"/ch:(\d) \] \[ sub:(\d):qu\(q\) \] (SUB-\d+)")
    found = [match.groups() for line in messages(caplog, "SUB-") if (match := pattern.search(line))]
    assert found == [("1", "1", "SUB-1001"), ("2", "2", "SUB-1001"), ("1", "1", "SUB-1002"), ("2", "2", "SUB-1002")]
    assert not log._subscriptions


# ---- exchanges ----


def test_exchanges_and_their_bindings_are_logged_from_begin_to_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    followed(world)
    client = BasicClient(world).open(1)
    for _ in range(2):  # the second one changes nothing
        client.call("exchange.declare", exchange="logs", type="topic")
    client.call("exchange.declare", exchange="kept", type="direct", durable=True)
    client.call("exchange.bind", destination="logs", source="kept", routing_key="k", arguments=typed_map({"a": 1}))
    client.call("exchange.unbind", destination="logs", source="kept", routing_key="k", arguments=typed_map({"a": 1}))
    client.call("exchange.delete", exchange="logs")
    world.run()
    assert [line.partition(" ] ")[2] for line in messages(caplog, "EXH-", "BND-")] == [
        "[ vh(/)/ex(logs) ] EXH-1001 : Create : Type:topic Name:logs",
        "[ vh(/)/ex(kept) ] EXH-1001 : Create : Durable Type:direct Name:kept",
        "[ vh(/)/ex(kept)/ex(logs)/bd(k) ] BND-1001 : Create : Arguments : a=1",
        "[ vh(/)/ex(kept)/ex(logs)/bd(k) ] BND-1002 : Deleted",
        "[ vh(/)/ex(logs) ] EXH-1002 : Deleted",
    ]


# ---- floods ----


class Flooded:
    """An operational log whose clock the test moves.

    Attributes:
        now: what the clock shows.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.log, self._events = StatusLog(is_on=True, clock=lambda: self.now), Events()
        self.log.follow(self._events)

    def bind(self, count: int) -> None:
        for number in range(count):
            self._events.emit(Bind("192.0.2.1:5", "guest", "x", "q", str(number), EMPTY_MAP), _CALLER)

    def delete(self) -> None:
        self._events.emit(QueueDelete("192.0.2.1:5", "guest", "q"), _CALLER)


def test_a_flood_is_cut_off_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    stage = Flooded()
    stage.bind(MAX_LINES + 7)
    stage.delete()
    stage.log.write("BRK-1004")
    assert len(messages(caplog, "BND-1001")) == MAX_LINES
    assert messages(caplog)[MAX_LINES:] == [
        "[ con:1(guest@192.0.2.1:5/) ] [ vh(/)/qu(q) ] QUE-1002 : Deleted", "BRK-1004 : Ready",
    ]  # fmt: skip
    caplog.clear()
    stage.log.write_left_out()
    assert messages(caplog) == []
    stage.now += PERIOD_SECONDS
    stage.log.write_left_out()
    assert messages(caplog) == ["BND-1001 : 7 more lines left out within 60 seconds"]
    stage.bind(1)
    assert len(messages(caplog)) == 2


def test_omitted_lines_are_counted_on_switching_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    stage = Flooded()
    stage.bind(MAX_LINES + 1)
    stage.log.switch(is_on=False)
    stage.bind(1)
    assert messages(caplog)[MAX_LINES:] == ["BND-1001 : 1 more line left out within 0 seconds"]


def test_lines_of_the_store_are_never_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    log = StatusLog(is_on=True)
    for number in range(2 * MAX_LINES):
        log.store("MST-1005", "0 messages", number)
    assert len(messages(caplog)) == 2 * MAX_LINES


# ---- what clients say ----


def test_names_of_clients_stay_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logging = Logging(Rules(()), Sinks(stderr=False, file=str(path)), LineFormat())
    try:
        log, events = StatusLog(is_on=True), Events()
        log.follow(events)
        evil = "a\nBRK-1005 : Stopped\x1b[2J\r\u2028\udc80"
        events.emit(ClientConnect("192.0.2.1:5", evil, typed_map({"clientid": "a\nb\x1b"})), _CALLER)
        events.emit(Bind("192.0.2.1:5", evil, evil, evil, evil, typed_map({"k\n": b"\n\xff"})), _CALLER)
        events.emit(QueueDelete("192.0.2.1:5", evil, evil), Client(evil, "192.0.2.1:5", f"con:1({evil})"))
    finally:
        logging.close()
    text = path.read_bytes().decode()
    assert len(text.split("\n")) == 4
    assert all(line.isprintable() for line in text.split("\n"))


# ---- flow control, prefetch and consoles ----


def said(caplog: pytest.LogCaptureFixture, *numbers: str) -> list[str]:
    """The lines with these ids: the objects in brackets without their connection, and the text."""
    return [re.sub(r"\[ con:\d+\([^)]*\)", "[ con", line) for line in messages(caplog, *numbers)]


def test_flow_control_of_queues_and_their_publishers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    followed(world)
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.flow_stop_count": 2, "qpid.flow_resume_count": 1}))
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("q", body)
    assert said(caplog, "QUE-1003", "CHN-1005", "CHN-1006", "QUE-1004") == [
        "[ vh(/)/qu(q) ] QUE-1003 : Overfull : Size : 3 messages, Capacity : 2",
        "[ con/ch:1 ] CHN-1005 : Flow Control Enforced (Queue q)",
    ]
    other = world.open_client(name=b"other")
    other.command("queue.purge", queue="q")
    other.sync()
    world.run()
    assert said(caplog, "QUE-1004", "CHN-1006") == [
        "[ vh(/)/qu(q) ] QUE-1004 : Underfull : Size : 0 messages, Resume Capacity : 1",
        "[ con/ch:1 ] CHN-1006 : Flow Control Removed",
    ]


def test_flow_control_by_size_and_over_0_9_1(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    followed(world)
    client = BasicClient(world).open(1)
    arguments = typed_map({"x-qpid-capacity": 1000, "x-qpid-flow-resume-capacity": 800})
    client.call("queue.declare", queue="q", arguments=arguments)
    client.call("confirm.select")
    client.publish("q", b"x" * 1200)
    (over, held) = said(caplog, "QUE-1003", "CHN-1005")
    assert re.fullmatch(r"\[ vh\(/\)/qu\(q\) \] QUE-1003 : Overfull : Size : 1,2\d\d bytes, Capacity : 1,000", over)
    assert held == "[ con/ch:1 ] CHN-1005 : Flow Control Enforced (Queue q)"
    other = BasicClient(world).open(1)
    other.call("queue.purge", queue="q")
    world.run()
    assert said(caplog, "QUE-1004", "CHN-1006") == [
        "[ vh(/)/qu(q) ] QUE-1004 : Underfull : Size : 0 bytes, Resume Capacity : 800",
        "[ con/ch:1 ] CHN-1006 : Flow Control Removed",
    ]


def test_prefetch_and_flow_of_channels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    followed(world)
    client = BasicClient(world).open(1)
    client.call("basic.qos", prefetch_count=7)
    for active in (False, False, True):
        client.call("channel.flow", active=active)
    assert said(caplog, "CHN-1004", "CHN-1002") == [
        "[ con/ch:1 ] CHN-1004 : Prefetch Size (bytes) 0 : Count 7",
        "[ con/ch:1 ] CHN-1002 : Flow Stopped",
        "[ con/ch:1 ] CHN-1002 : Flow Started",
    ]


def test_a_subscription_is_suspended_and_active_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", STATUS)
    world = World()
    followed(world)
    client = world.open_client()
    client.declare("q")
    client.subscribe("q", to="d")
    for _ in range(2):
        client.command("message.stop", destination="d")
    client.command("message.flow", destination="d", unit=0, value=1)
    client.command("message.flow", destination="d", unit=1, value=1000)
    client.sync()
    assert [line.partition(" ] ")[2] for line in messages(caplog, "SUB-1003")] == [
        "[ sub:1:qu(q) ] SUB-1003 : State : SUSPENDED", "[ sub:1:qu(q) ] SUB-1003 : State : ACTIVE",
    ]  # fmt: skip


# ---- rules ----


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ([], "CON CHN QUE:orders QUE:other BND:orders SUB:orders"),
        (["qpid.* = OFF"], ""),
        (["qpid.* = OFF", "qpid.virtualhost.*.queue.orders = INFO"], "QUE:orders"),
        (["qpid.* = OFF", "qpid.virtualhost.<//>.queue.orders = INFO"], ""),
        (["qpid.* = off", "qpid.virtualhost.*.queue.orders.* = all"], "QUE:orders BND:orders SUB:orders"),
        (["qpid.* = OFF", "qpid.virtualhost.*.exchange.<amq.topic>.queue.*.binding = DEBUG"], "BND:orders"),
        (["qpid.* = OFF", "qpid.virtualhost.*.queue.*.binding = DEBUG"], "BND:orders"),
        (["qpid.* = OFF", "qpid.connection.guest = INFO"], "CON"),
        (["qpid.* = OFF", "qpid.connection.<guest@QPID>.channel.*.subscription = INFO"], "SUB:orders"),
        (
            ["qpid.* = OFF", "qpid.connection.<192.0.2.1>.* = INFO"],
            "CON CHN QUE:orders QUE:other BND:orders SUB:orders",
        ),
        (["qpid.* = OFF", "qpid.connection.<192.0.2.2>.* = INFO"], ""),
        (["qpid.connection.guest.* = WARN", "qpid.virtualhost.*.queue = INFO"], "QUE:orders QUE:other"),
    ],
)
def test_rules_show_and_hide_lines_by_their_objects(
    caplog: pytest.LogCaptureFixture, rules: list[str], shown: str
) -> None:
    caplog.set_level("INFO", STATUS)
    log, events = StatusLog(is_on=True, rules=read_rules(rules)), Events()
    log.follow(events)
    connection = Client("guest@QPID", "192.0.2.1:5", "con:1(guest@QPID@192.0.2.1:5/)")
    session = Client("guest@QPID", "192.0.2.1:5", "con:1(guest@QPID@192.0.2.1:5/)/ch:2")
    events.emit(ClientConnect("192.0.2.1:5", "guest@QPID", EMPTY_MAP), connection)
    events.emit(SessionCreated(), session)
    for queue in ("orders", "other"):
        declared = QueueDeclare("h", "guest@QPID", queue, True, False, False, "", EMPTY_MAP, is_new=True)
        events.emit(declared, session)
    events.emit(Bind("h", "guest@QPID", "amq.topic", "orders", "k"), session)
    events.emit(Subscribe("h", "guest@QPID", "orders", "d", False), session)
    found = []
    for line in messages(caplog):
        kind, queue = re.findall(r"([A-Z]{3})-\d{4}", line)[0], re.findall(r"/?qu\((\w+)\)", line)
        found.append(":".join([kind, *queue]))
    assert " ".join(found) == shown


@pytest.mark.parametrize(
    "text",
    [
        "qpid.*", "qpid.* = LOUD", "broker = OFF", "qpid = OFF", "qpid. = OFF", "qpid..x = OFF", "qpid.shoe = OFF",
        "qpid.queue.a.queue.b = OFF", "qpid.queue.<a = OFF", "qpid.queue.a>b = OFF", "qpid.broker.x = OFF",
        "qpid.queue." + "a" * 1100 + " = OFF", "",
    ],
)  # fmt: skip
def test_rules_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not PATH=LEVEL|path|is not one of"):
        read_rules([text])
    with pytest.raises(ValueError, match="more than 100"):
        read_rules(["qpid.* = OFF"] * 101)
