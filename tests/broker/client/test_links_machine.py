"""The client's end of AMQP 1.0 with many equal messages, fed with the frames of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.client.amqp_1_0.links import error_of
from qstore.broker.client.amqp_1_0.machine import WireConnection, WireSession
from qstore.broker.client.errors import ConnectionRedirected, LinkRedirected
from qstore.broker.client.options import ConnectionOptions
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_1_0.client_connection import (
    FIRST,
    UNSETTLED,
    WINDOW,
    ReceivingLink,
    SendingLink,
    redirect_of,
)
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.sasl.table import Credentials
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, encode_frame
from qstore.formats.amqp_1_0.sections import data_section
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.kernels.bodies import Bodies


class Owner:
    """Of a session, of links, and of runs: records its calls."""

    def __init__(self) -> None:
        self.singles: list[tuple[int, bytes]] = []
        self.together: list[tuple[int, bytes]] = []

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        pass

    def on_broker_settled(self, first: int, last: int) -> None:
        pass

    def on_attached(self) -> None:
        pass

    def on_ended(self, error: Composite | None) -> None:
        pass

    def on_credit(self) -> None:
        pass

    def on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        self.singles.append((number, bytes(content)))

    def on_messages(self, first: int, bodies: Bodies, *, is_settled: bool) -> None:
        self.together += [(first + place, bodies.body(place)) for place in range(bodies.count)]


def performative(name: str, /, **fields: Any) -> bytes:
    return encode_frame(0, encode_composite(name, fields))


def begun(owner: Owner, window: int = 5000) -> tuple[WireConnection, WireSession]:
    options = ConnectionOptions(sasl_mechanisms=("NONE",))
    wire = WireConnection(options, Credentials(), lambda: None)
    wire.receive(AMQP_HEADER + performative("open", container_id="b", max_frame_size=4096, channel_max=10))
    session = wire.open_session(owner)
    wire.receive(
        performative("begin", remote_channel=0, next_outgoing_id=7, incoming_window=window, outgoing_window=1000)
    )
    assert (wire.phase, session.is_usable) == (Phase.OPEN, True)
    return wire, session


def sending(wire: WireConnection, session: WireSession, owner: Owner, credit: int = 1000) -> SendingLink:
    link = session.session.attach_sender("s", owner, snd_settle_mode=UNSETTLED, rcv_settle_mode=FIRST)
    target = Composite("target", {"address": Value("string", "q")})
    wire.receive(performative("attach", name="s", handle=3, role=True, target=target))
    wire.receive(
        performative(
            "flow", next_incoming_id=0, incoming_window=5000, next_outgoing_id=7, outgoing_window=1000, handle=3,
            delivery_count=0, link_credit=credit,
        )
    )  # fmt: skip
    return link


def receiving(wire: WireConnection, session: WireSession, owner: Owner, credit: int) -> ReceivingLink:
    link = session.session.attach_receiver("r", owner, snd_settle_mode=UNSETTLED, rcv_settle_mode=FIRST)
    source = Composite("source", {"address": Value("string", "q")})
    wire.receive(performative("attach", name="r", handle=4, role=False, source=source, initial_delivery_count=0))
    link.set_credit(credit)
    return link


def redirect(condition: str, **info: Any) -> Composite:
    kinds = {int: "ushort", str: "string"}
    entries = tuple(
        (Value("symbol", name.replace("_", "-")), Value(kinds.get(type(each), "null"), each))
        for name, each in info.items()
    )
    return Composite("error", {"condition": condition, "description": "moved", "info": entries})


@pytest.mark.parametrize(
    ("info", "target", "text"),
    [
        ({"network_host": "a", "hostname": "b", "port": 5}, ("a", 5), "redirected to a:5"),
        ({"hostname": "::1", "port": 5}, ("::1", 5), "redirected to [::1]:5"),
        ({"hostname": "b"}, ("b", 0), "redirected to b"),
        ({"network_host": 7, "port": "5"}, ("", 0), "redirected elsewhere"),
        ({}, ("", 0), "redirected elsewhere"),
    ],
)
def test_a_connection_that_is_redirected_says_where_to(info: dict[str, Any], target: object, text: str) -> None:
    wire, session = begun(Owner())
    wire.receive(performative("close", error=redirect("amqp:connection:redirect", **info)))
    failure = wire.failure
    assert isinstance(failure, ConnectionRedirected)
    assert (failure.host, failure.port) == target
    assert str(failure) == f"the connection was closed: amqp:connection:redirect: moved ({text})"
    assert session.failure is failure


def test_a_link_that_is_redirected_says_where_to() -> None:
    error = redirect("amqp:link:redirect", network_host="a", port=5, address="q")
    found = error_of("old", error, "sender")
    assert isinstance(found, LinkRedirected)
    assert (found.host, found.port, found.address) == ("a", 5, "q")
    assert str(found) == "'old': amqp:link:redirect: moved (redirected to a:5, address q)"
    assert redirect_of(redirect("amqp:not-found", network_host="a")) is None
    long = redirect_of(redirect("amqp:link:redirect", network_host="a" * 1000 + "\n", address="q" * 1000))
    assert long is not None
    assert len(str(long)) < 600


def transfers(bodies: list[bytes], first: int = 1000) -> bytes:
    return b"".join(
        encode_frame(
            0,
            encode_composite(
                "transfer",
                {
                    "handle": 4, "delivery_id": first + number, "delivery_tag": b"%08d" % number, "message_format": 0,
                    "settled": False,
                },
            )
            + data_section(len(body)) + body,
        )
        for number, body in enumerate(bodies)
    )  # fmt: skip


def test_a_message_sent_many_times_is_the_same_as_one_by_one() -> None:
    content = data_section(100) + b"x" * 100
    sent = []
    for is_encoded in (False, True):
        owner = Owner()
        wire, session = begun(owner)
        link = sending(wire, session, owner)
        wire.take_output()
        if is_encoded:
            assert link.fits(content)
            assert link.transfer_many(content, 5, is_settled=False) == 0
        else:
            for _ in range(5):
                link.transfer(content, b"")
        sent.append((wire.take_output(), link.credit, link.delivery_count, session.session.window, wire.frames_sent))
    assert sent[0] == sent[1]


def test_room_is_the_lower_of_credit_and_window() -> None:
    owner = Owner()
    wire, session = begun(owner)
    link = sending(wire, session, owner, credit=30)
    assert link.room == 30
    link.transfer_many(data_section(1) + b"x", 30, is_settled=True)
    assert link.room == 0
    wire.receive(
        performative(
            "flow", next_incoming_id=30, incoming_window=12, next_outgoing_id=7, outgoing_window=1000, handle=3,
            delivery_count=30, link_credit=500,
        )
    )  # fmt: skip
    assert link.room == 12
    assert not link.fits(b"x" * 4096)


@pytest.mark.parametrize("has_owner", [True, False])
def test_messages_that_differ_only_in_their_bodies_come_together(has_owner: bool) -> None:
    owner = Owner()
    wire, session = begun(owner)
    link = receiving(wire, session, owner, 200)
    link.run_owner = owner if has_owner else None
    bodies = [b"%04d" % number for number in range(150)]
    wire.receive(transfers(bodies))
    found = sorted(owner.singles + owner.together)
    assert found == [(number, data_section(4) + body) for number, body in enumerate(bodies)]
    assert bool(owner.together) is has_owner
    assert (link.credit, session.session.received) == (50, 150)


def test_a_run_beyond_the_credit_ends_the_connection() -> None:
    owner = Owner()
    wire, session = begun(owner)
    receiving(wire, session, owner, 20).run_owner = owner
    wire.receive(transfers([b"body"] * 30))
    assert len(owner.singles + owner.together) == 20
    assert (wire.phase, wire.failure is None) == (Phase.CLOSED, False)
    assert "credit" in str(wire.failure)


def test_runs_open_the_window_again() -> None:
    owner = Owner()
    wire, session = begun(owner)
    receiving(wire, session, owner, 20_000).run_owner = owner
    for number in range(10):
        wire.receive(transfers([b"body"] * 1000, 1000 + 1000 * number))
    assert session.session.received == 10_000 > WINDOW
    assert wire.failure is None
