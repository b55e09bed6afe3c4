"""How a connection of AMQP 0-9-1 begins, is kept alive, and ends."""

from __future__ import annotations

import pytest

from qstore import __version__
from qstore.broker.protocols.amqp_0_9_1.connection import MAX_CHANNELS, MAX_NEGOTIATING_FRAME
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
from qstore.broker.protocols.broker_connection import CLOSE_SECONDS
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.authentication import Authentication, LoginOptions
from qstore.broker.security.sasl.exchange import Refused
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.frames import HEADER, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.test_connection import Passwords
from tests.broker.protocols.world import World


def closed(client: BasicClient) -> tuple[int, str]:
    """The code and text with which the broker has closed the connection."""
    client.sync()
    found = [each for each in client.received if each.name == "connection.close"]
    assert len(found) == 1, client.received
    return found[0].values["reply_code"], found[0].values["reply_text"]


def test_connection_start_lists_the_offers() -> None:
    client = BasicClient(World())
    client.send(PROTOCOL_HEADER)
    (start,) = client.take()
    assert (start.name, start.values["version_major"], start.values["version_minor"]) == ("connection.start", 0, 9)
    assert b"PLAIN" in start.values["mechanisms"].split()
    assert start.values["locales"] == b"en_US"
    reported = {name: typed.value for name, typed in start.values["server_properties"].entries}
    assert (reported["product"], reported["version"]) == ("qstore", __version__)
    assert {"host", "platform", "copyright", "information", "cluster_name"} <= reported.keys()
    offered = {name: typed.value for name, typed in reported["capabilities"].entries}
    assert {name for name in offered if offered[name]} == {
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos",
        "direct_reply_to",
    }  # fmt: skip


def test_limits_are_negotiated() -> None:
    client = BasicClient(World())
    client.start()
    (tune,) = client.take("connection.tune")
    assert tune.values["frame_max"] == MAX_FRAME
    assert tune.values["channel_max"] == MAX_CHANNELS
    client.method("connection.tune-ok", 0, channel_max=7, frame_max=8192, heartbeat=10)
    client.call("connection.open", 0, virtual_host="/")
    assert client.machine.heartbeat == 10
    assert client.call("channel.open", 7).name == "channel.open-ok"
    client.method("channel.open", 8)
    assert closed(client)[0] == 530


@pytest.mark.parametrize(
    ("values", "code"),
    [({"frame_max": 4095}, 530), ({"frame_max": MAX_FRAME + 1}, 530), ({"channel_max": MAX_CHANNELS + 1}, 530)],
)
def test_limits_beyond_the_offer_are_refused(values: dict[str, int], code: int) -> None:
    client = BasicClient(World())
    client.start()
    client.method("connection.tune-ok", 0, **values)
    assert closed(client)[0] == code


@pytest.mark.parametrize("name", ["", "other", "//"])
def test_another_virtual_host_is_refused(name: str) -> None:
    client = BasicClient(World())
    client.start()
    client.method("connection.tune-ok", 0)
    client.method("connection.open", 0, virtual_host=name)
    code, text = closed(client)
    assert code == 530
    assert text == f"NOT_ALLOWED - vhost '{name}' not found"


def test_refusal_of_a_client_beyond_a_limit_names_the_limit() -> None:
    client = BasicClient(World(), refusal="the broker's limit of connections is reached")
    client.start()
    client.method("connection.tune-ok", 0)
    client.method("connection.open", 0, virtual_host="/")
    assert closed(client) == (530, "NOT_ALLOWED - the broker's limit of connections is reached")


def test_failed_login_is_reported_to_capable_clients() -> None:
    for capabilities in ({"authentication_failure_close": True}, {}):
        client = BasicClient(World(), capabilities=capabilities)
        client.start("CRAM-MD5")
        if capabilities:
            assert closed(client)[0] == 403
        else:
            assert client.host.is_closed
            assert all(each.name == "connection.start" for each in client.received)
        assert client.machine.user == ""


def test_an_unchecked_login_is_refused_with_advice_to_try_again() -> None:
    """Not as a failed login (403): clients give up after that."""
    for capabilities in ({"authentication_failure_close": True}, {}):
        world = World(BrokerSettings(auth=True), Authentication(LoginOptions(), Passwords()))
        client = BasicClient(world, capabilities=capabilities)
        client.start("PLAIN", b"\0anna\0secret")
        ((_, done),) = client.host.checks
        done(Refused("too many logins are waiting to be checked; try again later"))
        text = "RESOURCE_ERROR - too many logins are waiting to be checked; try again later"
        assert closed(client) == (506, text)
        assert client.machine.user == ""


def test_without_a_mechanism_the_connection_is_closed() -> None:
    policy = LoginOptions(requires_encryption=True)
    client = BasicClient(World(authentication=Authentication(policy, None)))
    client.send(PROTOCOL_HEADER)
    assert closed(client) == (403, "ACCESS_REFUSED - only encrypted connections are accepted")


@pytest.mark.parametrize(
    "method", ["connection.open", "connection.tune-ok", "connection.secure-ok", "connection.open-ok", "queue.purge"]
)
def test_methods_out_of_order_are_refused(method: str) -> None:
    client = BasicClient(World())
    client.send(PROTOCOL_HEADER)
    client.method(method, 0)
    assert closed(client)[0] == 503


def test_channels_before_the_connection_is_open_are_refused() -> None:
    client = BasicClient(World())
    client.start()
    client.method("channel.open", 1)
    assert closed(client)[0] == 504


def test_a_second_start_is_refused() -> None:
    client = BasicClient(World()).open()
    client.method("connection.start-ok", 0)
    assert closed(client)[0] == 504


def test_a_frame_that_is_too_large_is_refused() -> None:
    client = BasicClient(World())
    client.send(PROTOCOL_HEADER + encode_frame(METHOD, 0, bytes(MAX_NEGOTIATING_FRAME))[:100])
    assert closed(client)[0] == 501
    client.send(b"more, which is ignored")
    client.sync()
    opened = BasicClient(World()).open(frame_max=4096)
    opened.send(encode_frame(METHOD, 1, bytes(4096)))
    assert closed(opened)[0] == 501


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode_frame(METHOD, 0, b"\0\x0a\0\x0b")[:-1] + b"\0", 501),
        (encode_frame(7, 0, b""), 501),
        (encode_frame(8, 1, b""), 501),
        (encode_frame(HEADER, 1, bytes(14)), 505),
        (encode_frame(METHOD, 1, b"\0\x32\0\x0a"), 501),
        (encode_frame(METHOD, 1, b"\0\x99\0\x0a"), 501),
        (encode_frame(METHOD, 1, b"\0\x3c\0\x3c" + bytes(12)), 503),
        (encode_frame(METHOD, 9, b"\0\x14\0\x14\1"), 504),
        (encode_frame(METHOD, 0, b"\0\x0a\0\x32\0"), 501),
        (encode_frame(METHOD, 101, encode_method("channel.open")), 530),
    ],
)  # fmt: skip
def test_invalid_frame_closes_the_connection(data: bytes, code: int) -> None:
    client = BasicClient(World()).open()
    client.send(data)
    assert closed(client)[0] == code


def test_the_broker_waits_for_the_answer_to_its_close() -> None:
    world = World()
    client = BasicClient(world).open()
    client.machine.force_close("the broker is shutting down")
    assert closed(client) == (320, "CONNECTION_FORCED - the broker is shutting down")
    client.publish()
    client.method("queue.declare", queue="q")
    assert not client.host.is_closed
    client.method("connection.close-ok", 0)
    assert client.host.is_closed
    assert "q" not in world.broker.default_host.queues


def test_unanswered_close_disconnects_after_the_timeout() -> None:
    world = World()
    client = BasicClient(world).open()
    client.machine.force_close("so")
    client.machine.on_timer(world.now + CLOSE_SECONDS - 0.1)
    assert client.machine.phase is Phase.CLOSING
    client.machine.on_timer(world.now + CLOSE_SECONDS + 0.1)
    assert client.host.is_closed


def test_heartbeats() -> None:
    world = World()
    client = BasicClient(world).open(heartbeat=10)
    client.machine.on_timer(100.0)
    client.machine.on_timer(104.0)
    client.sync()
    assert client.heartbeats == 0
    client.machine.on_timer(105.0)
    client.sync()
    assert client.heartbeats == 1
    client.send(HEARTBEAT_FRAME)
    client.machine.on_timer(119.0)
    client.machine.on_timer(138.0)
    assert not client.host.is_closed
    client.machine.on_timer(140.0)
    assert client.host.is_closed


def test_a_client_closes() -> None:
    client = BasicClient(World()).open()
    assert client.call("connection.close", 0, reply_code=200, reply_text="bye").name == "connection.close-ok"
    assert client.host.is_closed


def test_a_client_of_another_protocol_is_answered() -> None:
    client = BasicClient(World())
    client.send(b"AMQP\x01\x01\x00\x0a")
    assert bytes(client.host.output) == PROTOCOL_HEADER
    assert client.host.is_closed


def test_a_new_secret_changes_nothing_since_logins_do_not_expire() -> None:
    client = BasicClient(World()).open()
    user = client.machine.user
    answer = client.call("connection.update-secret", 0, new_secret=b"new", reason="expires")
    assert answer.name == "connection.update-secret-ok"
    assert client.machine.user == user
    assert client.call("queue.declare", queue="q").name == "queue.declare-ok"


def test_a_new_secret_before_the_login_is_refused() -> None:
    client = BasicClient(World())
    client.send(PROTOCOL_HEADER)
    client.method("connection.update-secret", 0, new_secret=b"new", reason="")
    assert closed(client)[0] == 503
