"""The broker's end of a connection: from the protocol header to close, and which sessions it has."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.log.logs import MAX_LINES, PERIOD_SECONDS
from qstore.broker.model.events import ClientConnect, ClientConnectFail, ClientDisconnect, Event
from qstore.broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
from qstore.broker.protocols.amqp_0_10.connection import MIN_MAX_FRAME
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.authentication import Authentication, LoginOptions
from qstore.broker.security.sasl.exchange import Failure, Refused, Success
from qstore.broker.security.sasl.simple import AnonymousClient
from qstore.broker.security.users.user_file import Users
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode
from qstore.formats.amqp_0_10.commands import encode_control
from qstore.formats.amqp_0_10.frames import (
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    WHOLE,
    encode_control_frame,
    encode_frame,
)
from qstore.formats.plain import plain_map
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.opening import started, tuned
from tests.broker.protocols.world import Client, World

FRAMING = CloseCode.FRAMING_ERROR
FORCED = CloseCode.CONNECTION_FORCED

# ---- the protocol header ----


@pytest.mark.parametrize(
    "sent",
    [
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x01\x01\x00\x09",
        b"GET / HT",
        b"GET ",
        b"\x16\x03\x01\x02",
    ],
)
def test_another_protocol_is_answered_with_ours(sent: bytes) -> None:
    client = World().connect()
    client.send(sent)
    assert bytes(client.host.output) == PROTOCOL_HEADER
    assert client.host.is_closed
    assert client.machine.phase is Phase.CLOSED


def test_bytes_after_an_unknown_protocol_header_are_ignored() -> None:
    client = World().connect()
    client.send(b"AMQP\x00\x00\x09\x01" + bytes(range(256)) * 10)
    client.send(PROTOCOL_HEADER)
    client.sync()
    assert client.header == PROTOCOL_HEADER
    assert client.all == []


def test_a_header_that_comes_in_pieces() -> None:
    client = World().connect()
    for byte in PROTOCOL_HEADER:
        assert client.header == b""
        client.send(bytes((byte,)))
        client.sync()
    assert client.header == PROTOCOL_HEADER
    assert client.names() == ["connection.start"]


def test_connection_start_lists_the_offers() -> None:
    client = World().connect()
    client.send(PROTOCOL_HEADER)
    client.sync()
    (start,) = client.of("connection.start")
    assert tuple(start["mechanisms"]) == ("ANONYMOUS", "PLAIN", "AMQPLAIN")
    assert tuple(start["locales"]) == ("en_US",)


# ---- who it is ----


class Passwords(Users):
    """Knows one user."""

    def __init__(self) -> None:
        """There is no file."""

    def recalls(self, name: str, password: str) -> bool:
        return False

    def verify(self, name: str, password: str) -> bool:
        return (name, password) == ("anna", "secret")

    def supports(self, mechanism: str) -> bool:
        return mechanism == "PLAIN"

    def why_wrong(self, name: str, mechanism: str) -> str:
        return "unknown user or wrong password"


def guarded(*, users: bool = True) -> World:
    return World(BrokerSettings(auth=True), Authentication(LoginOptions(), Passwords() if users else None))


def test_anonymous() -> None:
    client = started(World().connect(), "ANONYMOUS")
    assert client.names() == ["connection.start", "connection.tune"]
    assert client.machine.user == "anonymous@QPID"


@pytest.mark.parametrize("response", [None, b"\0guest\0guest"])
def test_a_client_that_names_no_mechanism_is_anonymous(response: bytes | None) -> None:
    client = started(World().connect(), "", response)
    assert client.machine.user == "anonymous@QPID"


def test_plain_without_a_user_file() -> None:
    client = started(World().connect(), "PLAIN", b"\0berta\0anything")
    assert client.machine.user == "berta@QPID"


@pytest.mark.parametrize("response", [b"\0anna\0secret", None])
def test_input_waits_during_a_password_check(response: bytes | None) -> None:
    client = started(guarded().connect(), "PLAIN", response)
    if response is None:
        assert client.names()[-1] == "connection.secure"
        client.control("connection.secure-ok", response=b"\0anna\0secret")
    client.control("connection.tune-ok", channel_max=1, max_frame_size=4096, heartbeat=0)
    client.control("connection.open")
    client.sync()
    assert client.machine.is_paused
    assert "connection.tune" not in client.names()
    ((check, done),) = client.host.checks
    outcome = check.run()
    assert outcome == Success("anna@QPID")
    done(outcome)
    client.sync()
    assert client.names()[-2:] == ["connection.tune", "connection.open-ok"]


def test_an_unchecked_login_is_refused_with_advice_to_try_again() -> None:
    client = started(guarded().connect(), "PLAIN", b"\0anna\0secret")
    ((_, done),) = client.host.checks
    done(Refused("too many logins are waiting to be checked; try again later"))
    client.sync()
    (close,) = client.of("connection.close")
    assert close["reply_code"] == FORCED
    assert close["reply_text"] == "too many logins are waiting to be checked; try again later"
    assert client.machine.user == ""


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\0anna\0wrong"), ("PLAIN", b"nonsense"), ("ANONYMOUS", b""), ("GSSAPI", b""), ("", None)],
)
def test_failed_authentication_closes_the_connection(mechanism: str, response: bytes | None) -> None:
    client = started(guarded().connect(), mechanism, response)
    for check, done in client.host.checks:
        done(check.run())
    assert client.close_code() == FORCED
    assert client.of("connection.close")[0]["reply_text"] == "Authentication failed"
    assert client.host.is_closed


def test_a_connection_that_is_lost_while_its_password_is_checked() -> None:
    client = started(guarded().connect(), "PLAIN", b"\0anna\0secret")
    client.machine.closed()
    ((_, done),) = client.host.checks
    done(Failure("late"))
    client.sync()
    assert client.close_code() is None


def test_without_a_user_file_only_this_host_is_let_in() -> None:
    world = guarded(users=False)
    assert started(world.connect(), "ANONYMOUS").names()[-1] == "connection.tune"
    stranger = world.connect(is_local=False)
    stranger.send(PROTOCOL_HEADER)
    assert stranger.close_code() == FORCED
    assert stranger.host.is_closed


# ---- limits, and the order of all this ----


def test_tune_offers_the_limits_of_the_broker() -> None:
    world = World(BrokerSettings(auth=False, max_frame=8192, max_channels=10, heartbeat_max_seconds=30))
    client = started(world.connect(), "ANONYMOUS")
    assert client.of("connection.tune") == [
        {"channel_max": 9, "max_frame_size": 8192, "heartbeat_min": 0, "heartbeat_max": 30}
    ]


def test_tuning_is_lowered_to_the_offered_limits() -> None:
    client = tuned(World().connect(), channel_max=60_000, max_frame_size=4096, heartbeat=9999)
    assert client.names()[-1] == "connection.open-ok"
    assert client.machine.max_frame == 4096
    assert client.machine.heartbeat == 120


def test_tuning_defaults_to_the_offered_values() -> None:
    client = tuned(World().connect())
    assert client.machine.max_frame == 65535
    assert client.machine.heartbeat == 0


@pytest.mark.parametrize("wanted", [0, MIN_MAX_FRAME - 1, 8193])
def test_a_frame_size_that_was_not_offered(wanted: int) -> None:
    world = World(BrokerSettings(auth=False, max_frame=8192))
    assert tuned(world.connect(), max_frame_size=wanted).close_code() == FRAMING


START_OK = "connection.start-ok", {"mechanism": "ANONYMOUS"}
TUNE_OK = "connection.tune-ok", {"max_frame_size": 4096}
OPEN: tuple[str, dict[str, Any]] = "connection.open", {}


@pytest.mark.parametrize(
    "controls",
    [
        (TUNE_OK,),
        (OPEN,),
        (("connection.secure-ok", {"response": b""}),),
        (START_OK, START_OK),
        (START_OK, OPEN),
        (START_OK, TUNE_OK, TUNE_OK),
        (START_OK, TUNE_OK, OPEN, OPEN),
        (START_OK, TUNE_OK, OPEN, TUNE_OK),
        (START_OK, TUNE_OK, OPEN, ("connection.redirect", {"host": "elsewhere"})),
        (START_OK, TUNE_OK, OPEN, ("connection.start", {})),
        (("session.attach", {"name": b"early"}),),
        (START_OK, TUNE_OK, ("session.attach", {"name": b"early"})),
    ],
    ids=lambda controls: " ".join(name.partition(".")[2] for name, _ in controls),
)
def test_controls_out_of_turn(controls: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    client = World().connect()
    client.send(PROTOCOL_HEADER)
    for name, values in controls:
        client.control(name, **values)
    assert client.close_code() == FRAMING
    assert client.host.is_closed


@pytest.mark.parametrize("flags", [WHOLE, FIRST_SEGMENT | FIRST_FRAME])
def test_a_command_before_the_connection_is_open(flags: int) -> None:
    client = World().connect()
    client.send(PROTOCOL_HEADER + encode_frame(flags, COMMAND, TRACK_COMMAND, 1, b"\x03\x01\x01\x00\x00\x00"))
    assert client.close_code() == FRAMING


# ---- close ----


def test_the_client_closes() -> None:
    client = World().open_client()
    client.control("connection.close", reply_code=200, reply_text="done")
    client.sync()
    assert client.names()[-1] == "connection.close-ok"
    assert client.host.is_closed
    assert len(client.world.sessions) == 0


def test_after_the_close_nothing_is_looked_at() -> None:
    client = World().open_client()
    client.declare("q")
    client.control("connection.close", reply_code=200, reply_text="")
    count = len(client.world.broker.default_host.queues)
    client.publish("q", b"late")
    client.control("connection.close")
    client.sync()
    client.control("connection.close")
    client.send(b"\xff" * 100)
    client.sync()
    assert len(client.of("connection.close-ok")) == 1
    assert client.close_code() is None
    assert len(client.world.broker.default_host.queues) == count
    assert client.world.broker.default_host.queues["q"].message_count == 0


def test_after_the_close_nothing_is_looked_at_in_one_read() -> None:
    """The same with all of it in one read."""
    client = World().open_client()
    close = encode_control_frame(0, encode_control("connection.close", reply_code=200))
    client.send(close + close + b"\xff" * 50)
    client.sync()
    assert len(client.of("connection.close-ok")) == 1
    assert client.close_code() is None


def test_the_broker_closes() -> None:
    client = World().open_client()
    client.machine.close(FORCED, "shutdown")
    client.machine.close(FORCED, "twice")
    assert client.close_code() == FORCED
    assert not client.host.is_closed
    client.control("connection.close-ok")
    assert client.host.is_closed
    assert client.machine.close_text == "shutdown"


def test_commands_that_come_after_the_broker_asked_to_close_are_done_still() -> None:
    client = World().open_client()
    client.declare("q")
    client.machine.close(FORCED, "shutdown")
    client.publish("q", b"under way")
    client.publish("q", b"of no session", on=9)
    client.sync()
    assert client.world.broker.default_host.queues["q"].message_count == 1
    assert not client.host.is_closed


def test_both_ask_to_close() -> None:
    client = World().open_client()
    client.machine.close(FORCED, "shutdown")
    client.control("connection.close", reply_code=200, reply_text="mine")
    client.sync()
    assert client.names()[-2:] == ["connection.close", "connection.close-ok"]
    assert client.host.is_closed
    assert client.machine.close_text == "shutdown"


def test_a_long_reason_is_cut_where_it_may_be() -> None:
    client = World().open_client()
    client.machine.close(FORCED, "ä" * 200)
    client.sync()
    assert client.of("connection.close")[0]["reply_text"] == "ä" * 127


# ---- heartbeats ----


def beating(seconds: int = 10) -> Client:
    client = tuned(World().connect(), heartbeat=seconds)
    client.machine.on_timer(1000.0)
    return client


def test_a_heartbeat_goes_out_when_nothing_else_does() -> None:
    client = beating()
    for now in (1001.0, 1004.9):
        client.machine.on_timer(now)
    client.sync()
    assert "connection.heartbeat" not in client.names()
    client.machine.on_timer(1005.0)
    client.sync()
    assert client.names().count("connection.heartbeat") == 1
    client.machine.on_timer(1006.0)
    client.sync()
    assert client.names().count("connection.heartbeat") == 1


def test_a_client_that_is_not_heard_is_closed() -> None:
    client = beating()
    client.machine.on_timer(1020.0)
    assert client.close_code() is None
    client.machine.on_timer(1020.5)
    assert client.close_code() == FORCED
    assert client.host.is_closed


def test_any_byte_counts_as_heard() -> None:
    client = beating()
    for now in range(1010, 1100, 10):
        client.control("connection.heartbeat")
        client.machine.on_timer(float(now))
    assert client.close_code() is None


def test_no_heartbeats_were_agreed() -> None:
    client = beating(0)
    client.machine.on_timer(10_000.0)
    client.sync()
    assert client.names()[-1] == "connection.open-ok"


def test_paused_connection_is_not_closed_for_missed_heartbeats() -> None:
    client = beating()
    client.machine.pause()
    client.machine.on_timer(2000.0)
    assert client.close_code() is None


# ---- the client's end ----


class Asked(ClientConnection):
    """A client's end that waits for its broker's bytes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(lambda _: AnonymousClient(), max_message_bytes=1 << 20, **options)
        self.is_open = False

    def on_open(self) -> None:
        self.is_open = True


def joined(settings: BrokerSettings | None = None, **options: Any) -> tuple[Asked, Client]:
    """A client's machine and the broker's, when neither has more to say."""
    world = World(settings)
    client, server = Asked(**options), world.connect()
    while True:
        data = client.take_output()
        if data:
            server.send(data)
        world.run()
        answer = bytes(server.host.output)
        server.host.output.clear()
        if answer:
            client.receive(answer)
        if not data and not answer:
            return client, server


def test_a_client_opens_a_connection() -> None:
    client, server = joined(BrokerSettings(auth=False, max_frame=5000, max_channels=2), heartbeat=1000)
    assert client.is_open
    assert client.max_frame == server.machine.max_frame == 5000
    assert client.heartbeat == server.machine.heartbeat == 120
    assert plain_map(client.server_properties)["product"] == "qstore"


def test_a_client_that_finds_no_mechanism() -> None:
    def choose(_offered: tuple[str, ...]) -> Any:
        raise ValueError("none of these")

    client = ClientConnection(choose, max_message_bytes=1000)
    other = World().connect()
    other.send(client.take_output())
    other.world.run()
    client.receive(bytes(other.host.output))
    assert (client.phase, client.close_code, client.close_text) == (Phase.CLOSED, FORCED, "none of these")


@pytest.mark.parametrize("answer", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1"])
def test_a_peer_that_speaks_something_else(answer: bytes) -> None:
    client = Asked()
    client.receive(answer)
    assert client.phase is Phase.CLOSED
    assert "does not speak AMQP 0-10" in client.close_text


def test_channels_of_a_client_are_limited() -> None:
    client, _ = joined(BrokerSettings(auth=False, max_channels=2))
    assert client.free_channel() == 0
    client.sessions[0] = ClientSession(b"0", 0, client)
    assert client.free_channel() == 1
    client.sessions[1] = ClientSession(b"1", 1, client)
    with pytest.raises(ValueError, match="all 2 channels"):
        client.free_channel()


# ---- log lines about clients: who has connected, who was refused and why, and which other protocol one speaks ----


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
    assert not client.machine.publisher.is_closed
    client.machine.dismantle()
    assert client.machine.publisher.is_closed
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
