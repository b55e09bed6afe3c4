"""Messages in many frames, over a real socket: whole, in order, and without delaying others."""

from __future__ import annotations

import os
from typing import Final

import pytest

from qstore.broker.client import Connection, Message
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import decode_command, decode_control, encode_control
from qstore.formats.amqp_0_10.frames import BODY, COMMAND, CONTROL, encode_control_frame
from tests.support.raw_peer import (
    RawPeer,
    SessionEndedError,
    begin_transfer,
    body_frames,
    checksum_of,
    next_command,
    publish_large,
    receive_large,
)
from tests.support.running_broker import BrokerMaker, RunningBroker

_LARGE: Final = 48 << 20  # more than sockets and the broker's output hold
_ALLOWED: Final = 24 << 20
_DURABLE: Final = 2  # delivery-mode


@pytest.fixture
def broker(make_broker: BrokerMaker) -> RunningBroker:
    """A broker that takes messages of 64 MiB."""
    return make_broker("--max-message-size", str(64 << 20), "--max-journal-size", "20").start()


def _declared(broker: RunningBroker) -> RawPeer:
    peer = RawPeer(broker.port)
    peer.declare("q", durable=False)
    return peer


@pytest.mark.parametrize("size", [65_022, 65_023, 65_523, 65_524, 131_046, 262_144, 262_145, 3_000_001])
def test_content_of_any_size(broker: RunningBroker, size: int) -> None:
    with _declared(broker) as peer:
        content = os.urandom(size)
        number = peer.publish("q", content, durable=False)
        peer.wait_for(number)
        peer.subscribe("q")
        (delivery,) = peer.take(1)
        assert delivery.body == content
        assert not delivery.redelivered
        peer.accept([delivery])
        peer.sync()
        assert peer.message_count("q") == 0
        peer.end()


def test_content_in_very_small_frames(broker: RunningBroker) -> None:
    size, room = 200_000, 7
    with _declared(broker) as peer:
        begin_transfer(peer, "q")
        peer.send_bytes(b"".join(body_frames(size, room=room)))
        peer.sent += 1
        peer.sync()
        peer.subscribe("q")
        assert receive_large(peer) == checksum_of(size, room)


def test_a_slow_reader_does_not_delay_others_and_costs_the_content_once(broker: RunningBroker) -> None:
    with _declared(broker) as publisher, RawPeer(broker.port, receive_buffer=64 << 10) as slow:
        publisher.declare("small", durable=False)
        base = broker.resident_bytes()
        publisher.wait_for(publish_large(publisher, "q", _LARGE))
        slow.subscribe("q")
        next_command(slow, "message.transfer")
        for number in range(200):  # it reads no more, and all others go on
            publisher.publish("small", b"%d" % number, durable=False)
        publisher.subscribe("small")
        assert [each.body for each in publisher.take(200)] == [b"%d" % number for number in range(200)]
        assert broker.resident_bytes() - base < _LARGE + _ALLOWED
        publisher.end()


def test_other_channels_of_the_connection_go_on_meanwhile(broker: RunningBroker) -> None:
    with _declared(broker) as peer:
        peer.declare("small", durable=False)
        peer.wait_for(publish_large(peer, "q", _LARGE))
        for number in range(20):
            peer.wait_for(peer.publish("small", b"%d" % number, durable=False))
        peer.subscribe("q")
        next_command(peer, "message.transfer")
        other = peer.channel + 1
        peer.send_control("session.attach", other, name=b"other")
        peer.send_control("session.command-point", other, command_id=0, command_offset=0)
        peer.channel = other
        peer.subscribe("small")
        small, rest = 0, _LARGE
        while small < 20:
            frame = peer.next_frame()
            if frame.channel == other:
                small += frame.segment == BODY
            elif frame.segment == BODY:
                rest -= len(frame.payload)
        assert rest > 0, "the large message was to be out first"
        while rest:
            frame = peer.next_frame()
            assert frame.channel == 1 or frame.segment == CONTROL
            rest -= len(frame.payload) if frame.segment == BODY else 0


def test_other_commands_of_the_session_follow_a_large_message(broker: RunningBroker) -> None:
    """Results and other messages are commands, and cannot come within one; the completion follows the result."""
    with _declared(broker) as peer:
        peer.wait_for(publish_large(peer, "q", _LARGE))
        peer.wait_for(peer.publish("q", b"second", durable=False))
        peer.subscribe("q")
        next_command(peer, "message.transfer")
        number = peer.send_command("queue.query", queue="q", sync=True)
        size, came, before_completion = 0, [], None
        while len(came) < 2 or before_completion is None:
            frame = peer.next_frame()
            if frame.segment == COMMAND:
                assert size == _LARGE
                came.append(decode_command(frame.payload)[0].name)
            elif frame.segment == BODY and not came:
                size += len(frame.payload)
            elif frame.segment == CONTROL:
                control, values = decode_control(frame.payload)
                if control.name == "session.completed" and values["commands"][-1][1] >= number:
                    before_completion = before_completion or came[:1]
        assert came == ["execution.result", "message.transfer"]
        assert before_completion == ["execution.result"]


def test_an_exception_comes_after_it_too(broker: RunningBroker) -> None:
    with _declared(broker) as peer:
        peer.wait_for(publish_large(peer, "q", _LARGE))
        peer.subscribe("q")
        next_command(peer, "message.transfer")
        peer.send_command("message.cancel", destination="nobody's", sync=True)
        size = 0
        while True:
            frame = peer.next_frame()
            if frame.segment == COMMAND:
                break
            size += len(frame.payload) if frame.segment == BODY else 0
        assert size == _LARGE
        command, _, values = decode_command(frame.payload)
        assert (command.name, values["error_code"]) == ("execution.exception", ErrorCode.NOT_FOUND)
        peer.frames.appendleft(frame)
        with pytest.raises(SessionEndedError):
            peer.sync()


@pytest.mark.parametrize("way", ["socket", "detach"])
def test_a_consumer_that_goes_in_the_middle(broker: RunningBroker, way: str) -> None:
    with _declared(broker) as peer, RawPeer(broker.port) as gone:
        peer.wait_for(publish_large(peer, "q", _LARGE))
        gone.subscribe("q")
        assert receive_large(gone, most=1 << 20).size < _LARGE
        if way == "socket":
            gone.close()
        else:
            gone.send_control("session.detach", gone.channel, name=gone.name)
            while _control_name(gone) != "session.detached":
                pass
            gone.send_control("session.attach", gone.channel, name=b"again")
            while _control_name(gone) != "session.attached":
                pass
        peer.subscribe("q")
        frame = next_command(peer, "message.transfer")
        header = peer.next_frame()
        assert header.payload[6] & 4, "it is marked as redelivered"
        peer.frames.extendleft([header, frame])
        assert receive_large(peer) == checksum_of(_LARGE)


def _control_name(peer: RawPeer) -> str:
    """The next control; frames of commands are passed over, of a message that breaks off."""
    while True:
        frame = peer.next_frame()
        if frame.segment == CONTROL:
            return decode_control(frame.payload)[0].name


def test_a_publisher_that_detaches_in_the_middle_and_attaches_again(broker: RunningBroker) -> None:
    """What was begun is forgotten with the session, and its channel can be used again."""
    with _declared(broker) as peer:
        begin_transfer(peer, "q")
        frames = list(body_frames(1_000_000))
        peer.send_bytes(b"".join(frames[:5]))
        peer.send_control("session.detach", peer.channel, name=peer.name)
        peer.send_bytes(
            encode_control_frame(peer.channel, encode_control("session.attach", name=b"next"))
            + encode_control_frame(
                peer.channel, encode_control("session.command-point", command_id=0, command_offset=0)
            )
        )
        names = [_control_name(peer) for _ in range(2)]
        assert names == ["session.detached", "session.attached"]
        peer.sent = 0
        peer.wait_for(publish_large(peer, "q", 500_000))
        assert peer.message_count("q") == 1


def test_a_durable_one_is_there_after_a_restart(broker: RunningBroker) -> None:
    with RawPeer(broker.port) as peer:
        peer.declare("kept")
        peer.wait_for(publish_large(peer, "kept", 5_000_000, delivery_mode=_DURABLE))
        peer.end()
    broker.restart()
    with RawPeer(broker.port) as peer:
        peer.subscribe("kept")
        assert receive_large(peer) == checksum_of(5_000_000)


def test_a_durable_one_that_the_journal_cannot_hold(broker: RunningBroker) -> None:
    with RawPeer(broker.port) as peer:
        peer.declare("kept")
        publish_large(peer, "kept", 40 << 20, delivery_mode=_DURABLE)
        with pytest.raises(SessionEndedError) as ended:
            peer.sync()
        assert ended.value.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    with RawPeer(broker.port) as peer:
        assert peer.message_count("kept") == 0


def test_one_that_is_too_large(broker: RunningBroker) -> None:
    with _declared(broker) as peer:
        publish_large(peer, "q", 65 << 20)
        with pytest.raises(SessionEndedError) as ended:
            peer.sync()
        assert ended.value.code == ErrorCode.RESOURCE_LIMIT_EXCEEDED


def test_the_client_sends_and_receives_one(broker: RunningBroker) -> None:
    content = os.urandom(20_000_000)
    with Connection(f"127.0.0.1:{broker.port}", sasl_mechanisms="ANONYMOUS") as connection:
        session = connection.session()
        session.sender("q; {create: always}").send(Message(content=content), sync=True)
        assert session.receiver("q").fetch(30).content == content
        session.acknowledge()
