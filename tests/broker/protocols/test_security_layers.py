"""Security layers of SASL, with one that a test can read: where they begin, in both directions, and what violates them.

`system/test_kerberos` has those of GSSAPI.
"""

from __future__ import annotations

from enum import Flag, auto
from types import SimpleNamespace
from typing import Any

import pytest

from qstore.broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
from qstore.broker.security.authentication import Authentication, LoginOptions, PeerSecurity
from qstore.broker.security.sasl import kerberos, table
from qstore.broker.security.sasl.exchange import (
    Challenge,
    LayerError,
    Login,
    PasswordCheck,
    ServerMechanism,
    Success,
)
from qstore.broker.security.sasl.kerberos import GssapiClient, GssapiLayer
from qstore.broker.security.sasl.simple import AnonymousClient
from qstore.formats.amqp_0_10.commands import encode_control
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_control_frame
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, SASL_HEADER
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import Client, World

KEY = 0x55


class Layer:
    """Inverts some bits; each part has a length and a mark."""

    ssf = 40

    def __init__(self) -> None:
        self._rest = b""

    def send(self, data: bytes) -> bytes:
        """Parts of at most 100 bytes."""
        parts = [data[at : at + 100] for at in range(0, len(data), 100)]
        return b"".join(len(part).to_bytes(2, "big") + b"!" + bytes(each ^ KEY for each in part) for part in parts)

    def receive(self, data: bytes) -> bytes:
        data, found = self._rest + data, b""
        while len(data) >= 3:
            size = int.from_bytes(data[:2], "big")
            if data[2:3] != b"!":
                raise LayerError("no mark")
            if len(data) < 3 + size:
                break
            found += bytes(each ^ KEY for each in data[3 : 3 + size])
            data = data[3 + size :]
        self._rest = data
        return found


def negotiated(world: World) -> Client:
    """A client that has logged in, and has not opened the connection."""
    client = world.connect()
    client.send(PROTOCOL_HEADER)
    client.control("connection.start-ok", client_properties={}, mechanism="ANONYMOUS", locale="en_US")
    client.control("connection.tune-ok", channel_max=100, max_frame_size=65535, heartbeat=0)
    client.sync()
    client.machine.negotiated = Layer()
    return client


def secured(world: World) -> tuple[Client, Layer]:
    """A client with an open connection, and its end of the layer."""
    client, layer = negotiated(world), Layer()
    client.control("connection.open", virtual_host="")
    client.sync()
    assert client.names()[-1] == "connection.open-ok", "it is sent without the layer"
    plain = client.machine.receive
    client.send = lambda data: plain(layer.send(data))  # type: ignore[method-assign]
    return client, layer


def open_layer(client: Client, layer: Layer) -> None:
    """Replace what the broker has sent by what is in it."""
    client.world.run()
    received = layer.receive(bytes(client.host.output))
    client.host.output[:] = received


def test_everything_after_the_login_goes_through_the_layer() -> None:
    world = World()
    client, layer = secured(world)
    client.control("session.attach", on=1, name=b"s", force=False)
    client.control("session.command-point", on=1, command_id=0, command_offset=0)
    client.sent[1] = 0
    client.command("queue.declare", queue="q")
    open_layer(client, layer)
    client.read()
    client.publish("q", *[b"x" * 300] * 20)
    client.command("message.subscribe", queue="q", destination="d")
    client.flow("d", 0, 100)
    client.flow("d", 1, 0xFFFFFFFF)
    world.run()
    assert b"xxx" not in client.host.output
    open_layer(client, layer)
    client.read()
    assert [each.body for each in client.deliveries] == [b"x" * 300] * 20
    assert client.machine.ssf == 40
    assert client.machine.counts.bytes_sent > 20 * 300


@pytest.mark.parametrize("split", [1, 2, 3, 50, 10_000])
def test_parts_may_arrive_in_pieces(split: int) -> None:
    world = World()
    client, layer = secured(world)
    sent = bytearray()
    client.send = sent.extend  # type: ignore[assignment, method-assign]
    client.control("session.attach", on=1, name=b"s", force=False)
    protected = Layer().send(bytes(sent))
    for at in range(0, len(protected), split):
        client.machine.receive(protected[at : at + split])
    open_layer(client, layer)
    client.read()
    assert "session.attached" in client.names()


def test_what_an_attacker_adds_before_the_layer_begins_is_not_processed() -> None:
    """Commands in the clear, in the same read as connection.open."""
    world = World()
    client = negotiated(world)
    opening = encode_control_frame(0, encode_control("connection.open", virtual_host=""))
    added = encode_control_frame(1, encode_control("session.attach", name=b"s", force=False))
    client.send(opening + added)
    world.run()
    assert not client.machine.sessions
    assert "security layer: no mark" in client.machine.end_reason


def test_what_the_client_has_protected_in_the_same_read_is_processed() -> None:
    world = World()
    client = negotiated(world)
    opening = encode_control_frame(0, encode_control("connection.open", virtual_host=""))
    attach = encode_control_frame(1, encode_control("session.attach", name=b"s", force=False))
    client.send(opening + Layer().send(attach))
    world.run()
    assert list(client.machine.sessions) == [1]


@pytest.mark.parametrize("together", [True, False])
def test_it_also_begins_after_a_command_that_has_waited(together: bool) -> None:
    """connection.open is processed after a pause, as when the time of the connection's turn was used up."""
    world = World()
    client = negotiated(world)
    opening = encode_control_frame(0, encode_control("connection.open", virtual_host=""))
    attach = Layer().send(encode_control_frame(1, encode_control("session.attach", name=b"s", force=False)))
    client.machine.pause()
    client.send(opening + attach if together else opening)
    client.machine.unpause()
    assert not client.machine.is_paused
    if not together:
        client.send(attach)
    world.run()
    assert list(client.machine.sessions) == [1]


def test_what_is_not_protected_closes_the_connection() -> None:
    world = World()
    client, layer = secured(world)
    client.machine.receive(b"\0\1?x" * 10)
    open_layer(client, layer)
    client.read()
    assert client.close_code() == 501
    client.machine.receive(Layer().send(encode_control_frame(1, encode_control("session.attach", name=b"s"))))
    assert not client.machine.sessions


class Layered(Authentication):
    """Whoever comes is anna, with a layer if the protocol has them."""

    def mechanism(self, name: str, security: PeerSecurity, *, has_layers: bool = False) -> ServerMechanism:
        made = super().mechanism(name, security, has_layers=has_layers)
        found = Success("anna@QPID", Layer() if has_layers else None)
        made.start = lambda _response: found  # type: ignore[method-assign]
        return made


def test_links_begin_it_after_the_outcome() -> None:
    client, layer = LinksClient(World(authentication=Layered(LoginOptions(is_on=False), None))), Layer()
    client.send(SASL_HEADER)
    client.do("sasl-init", mechanism="PLAIN", initial_response=b"")
    client.sync()
    assert [each.name for each in client.received][-1] == "sasl-outcome"
    client.received.clear()
    client.machine.receive(layer.send(AMQP_HEADER + client.encode("open", 0, container_id="c", max_frame_size=4096)))
    client.world.run()
    client.host.output[:] = layer.receive(bytes(client.host.output))
    client.sync()
    assert [each.name for each in client.received] == ["open"]
    assert client.machine.ssf == 40


def test_amqp_0_9_1_has_no_place_for_one() -> None:
    client = BasicClient(World(authentication=Layered(LoginOptions(is_on=False), None)))
    client.start("PLAIN", b"")
    assert client.last(0).name == "connection.tune"
    assert client.machine.ssf == 0


class Chosen(GssapiClient):
    """A mechanism of the client with a layer."""

    def __init__(self) -> None:
        self.is_complete = True
        self.layer: Any = Layer()

    def start(self) -> bytes:
        return b""


class Opened(ClientConnection):
    """The client's end, of which the output is taken by the test."""

    def has_output(self) -> None:
        """It is taken."""

    def on_open(self) -> None:
        self.attach(ClientSession(b"s", 1, self))


def test_the_client_s_end_begins_it_after_open_ok() -> None:
    """Also for what comes with open-ok in one read; nothing that the client sends then is in the clear."""
    client = Opened(
        lambda _offered: Chosen(), client_properties={}, virtual_host="", heartbeat=0, max_message_bytes=1 << 20
    )
    client.receive(PROTOCOL_HEADER)
    for name, values in (
        ("connection.start", {"server_properties": {}, "mechanisms": ["GSSAPI"], "locales": ["en_US"]}),
        ("connection.tune", {"channel_max": 10, "max_frame_size": 65535, "heartbeat_min": 0, "heartbeat_max": 0}),
    ):
        client.receive(encode_control_frame(0, encode_control(name, **values)))
    assert client.take_output().startswith(PROTOCOL_HEADER)
    broker = Layer()
    attached = encode_control_frame(1, encode_control("session.attached", name=b"s"))
    client.receive(encode_control_frame(0, encode_control("connection.open-ok")) + broker.send(attached))
    assert not client.is_closed
    attach = encode_control_frame(1, encode_control("session.attach", name=b"s"))
    assert broker.receive(client.take_output()).startswith(attach)
    assert client.sessions[1].state.name == "ATTACHED"


class Context:
    """A context of Kerberos, with tokens that are 60 bytes longer than their data."""

    def get_wrap_size_limit(self, most: int, _encrypts: bool) -> int:
        return most - 60


@pytest.mark.parametrize("most", [0, 1, 60, 61, 1083])
def test_tiny_parts_are_refused(most: int) -> None:
    """Each costs some microseconds, and how many there are would be up to the other end."""
    with pytest.raises(LayerError, match="no room"):
        GssapiLayer(Context(), most, encrypts=False)
    assert GssapiLayer(Context(), 1084, encrypts=False).ssf == 1


class Flags(Flag):
    integrity, confidentiality, out_of_sequence_detection = auto(), auto(), auto()


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        (Flags.integrity | Flags.confidentiality | Flags.out_of_sequence_detection, 7),
        (Flags.integrity | Flags.out_of_sequence_detection, 3),
        (Flags.integrity | Flags.confidentiality, 1),
        (Flags.out_of_sequence_detection, 1),
    ],
)
def test_layers_are_offered_to_those_who_notice_what_is_repeated(
    monkeypatch: pytest.MonkeyPatch, flags: Flags, offered: int
) -> None:
    class Established(Context):
        complete, actual_flags = True, flags

        def wrap(self, data: bytes, _encrypts: bool) -> Any:
            return SimpleNamespace(message=data)

    errors = SimpleNamespace(GSSError=OSError)
    monkeypatch.setattr(kerberos, "_library", lambda: SimpleNamespace(RequirementFlag=Flags, exceptions=errors))
    server = kerberos.GssapiServer(Login("QPID", has_layers=True))
    server._context = Established()
    asked = server.step(b"")
    assert isinstance(asked, PasswordCheck)
    answer = asked.work()
    assert isinstance(answer, Challenge)
    assert answer.data[0] == offered


def test_other_mechanisms_have_no_layer() -> None:
    assert table.layer_of(AnonymousClient()) is None
    assert table.layer_of(None) is None
    offered = ["SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]
    wanted = table.Credentials("anna", "secret", min_ssf=1)
    assert table.choose_mechanism(offered, None, wanted) is None
    assert table.choose_mechanism(offered, None, wanted._replace(min_ssf=0)) is not None
