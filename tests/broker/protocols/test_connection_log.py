"""Log lines about clients: who has connected, who was refused and why, and which other protocol one speaks."""

from __future__ import annotations

import pytest

from qstore.broker.log.logs import MAX_LINES, PERIOD_SECONDS
from qstore.broker.model.events import ClientConnect, ClientConnectFail, ClientDisconnect, Event
from qstore.broker.security.authentication import Authentication, Policy
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.opening import tuned
from tests.broker.protocols.test_connection import Passwords
from tests.broker.protocols.world import Client, World

PROPERTIES = {
    "product": "qpid-cpp",
    "version": "1.39.0",
    "platform": "Linux",
    "qpid.client_process": "qpid-send",
    "qpid.client_pid": 4711,
    "secret": "not shown",
}


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    found = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def guarded(*, users: bool = True) -> World:
    authentication = Authentication(Policy(), Passwords() if users else None)
    return World(BrokerSettings(auth=True), authentication)


def log_in(world: World, mechanism: str, response: bytes | None, **properties: object) -> Client:
    client = world.connect()
    client.machine.peer = "192.0.2.1:5"
    client.send(PROTOCOL_HEADER)
    client.control(
        "connection.start-ok", client_properties=typed_map(properties), mechanism=mechanism, response=response
    )
    for check, done in client.host.checks:
        done(check.run())
    client.sync()
    return client


@pytest.mark.parametrize(
    ("mechanism", "response", "why"),
    [
        ("PLAIN", b"\0anna\0wr0ng", "PLAIN: user 'anna': unknown user or wrong password"),
        ("PLAIN", b"\0a b\0wr0ng", "PLAIN: user 'a b': invalid user name"),
        ("PLAIN", b"berta\0anna\0wr0ng", "PLAIN: user 'anna' may not act as another user"),
        ("PLAIN", b"wr0ng", "PLAIN: the SASL response is not an authorization id, a user name and a password"),
        ("ANONYMOUS", b"wr0ng", "mechanism 'ANONYMOUS' is not offered"),
        ("X\n" * 99, b"wr0ng", "mechanism '" + "X\\n" * 32 + "' is not offered"),
    ],
)
def test_a_failed_login_is_reported_without_the_password(
    mechanism: str, response: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(guarded(), mechanism, response, product="p")
    ((category, level, text), *rest) = logged(caplog)
    assert (category, level) == ("Security", "WARNING")
    assert text == f"Client 192.0.2.1:5: Authentication failed: {why} (product p)"
    assert not any("wr0ng" in line for _, _, line in [(category, level, text), *rest])


def test_host_without_any_login_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = guarded(users=False).connect(is_local=False)
    client.send(PROTOCOL_HEADER)
    (line, *_) = logged(caplog)
    assert line[:2] == ("Security", "WARNING")
    assert line[2].endswith("without a user file only clients on this host can log in; see --user-file")


def test_a_flood_of_failed_logins_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    world = guarded()
    for _ in range(3 * MAX_LINES):
        log_in(world, "PLAIN", b"\0anna\0wrong")
    assert len(logged(caplog)) == MAX_LINES
    world.connections.on_timer(world.now + PERIOD_SECONDS)
    assert [text for _, _, text in logged(caplog)] == [
        f"{2 * MAX_LINES} more failed logins within 60 seconds; log level debug+ shows each of them"
    ]


def test_opened_connection_is_logged_at_level_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "Protocol")
    client = log_in(guarded(), "PLAIN", b"\0anna\0secret", **PROPERTIES)
    client.control("connection.tune-ok")
    client.control("connection.open")
    said = "product qpid-cpp, version 1.39.0, platform Linux, process qpid-send, pid 4711"
    assert logged(caplog) == [
        (
            "Protocol",
            "INFO",
            f"Client 192.0.2.1:5: connection opened by anna@QPID ({said})",
        )
    ]


def test_client_properties_are_logged_safely(caplog: pytest.LogCaptureFixture) -> None:
    log_in(guarded(), "PLAIN", b"\0anna\0wrong", product="\x1b[2J\n" + "x" * 5000, version=b"\xff\x00")
    text = logged(caplog)[0][2]
    assert text.isprintable()
    assert len(text) < 400


def heard(world: World) -> list[Event]:
    """Events from now on."""
    events: list[Event] = []
    world.broker.events.listen(events.append)
    return events


def test_a_client_that_comes_and_goes_is_reported_as_events() -> None:
    world = guarded()
    events = heard(world)
    client = log_in(world, "PLAIN", b"\0anna\0secret", product="p")
    client.control("connection.tune-ok")
    assert events == []  # it is not let in before its connection is open
    client.control("connection.open")
    said = typed_map({"product": "p"})
    assert events == [ClientConnect("192.0.2.1:5", "anna@QPID", said)]
    client.control("connection.close", reply_code=200)
    client.sync()
    assert len(events) == 1  # its socket is still there
    client.machine.dismantle()
    assert events[1:] == [ClientDisconnect("192.0.2.1:5", "anna@QPID", said)]


def test_a_client_that_is_not_let_in_is_reported_as_an_event() -> None:
    world = guarded()
    events = heard(world)
    client = log_in(world, "PLAIN", b"\0anna\0wr0ng", product="p")
    client.machine.dismantle()
    why = "PLAIN: user 'anna': unknown user or wrong password"
    assert events == [ClientConnectFail("192.0.2.1:5", "", why, typed_map({"product": "p"}))]


def test_each_failed_login_of_a_flood_is_an_event() -> None:
    world = guarded()
    events = heard(world)
    for _ in range(2 * MAX_LINES):
        log_in(world, "PLAIN", b"\0anna\0wrong")
    assert len(events) == 2 * MAX_LINES


def test_a_client_that_is_one_too_many_is_reported_as_an_event() -> None:
    world = World()
    events = heard(world)
    client = world.connect()
    client.machine._refusal = "too many"
    tuned(client)
    client.machine.dismantle()
    assert events == [ClientConnectFail("", "anonymous@QPID", "too many", EMPTY_MAP)]
