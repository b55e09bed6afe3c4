"""The client's end of AMQP 0-9-1: against the broker's end in memory, and against whatever a peer may send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.completion import Done
from qstore.broker.protocols.amqp_0_9_1.client_connection import (
    ClientConnection,
    decode_deliver,
    encode_publish,
    missing_runs,
)
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.authentication import Authentication, LoginOptions
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.simple import AMQPLAIN, PLAIN, AnonymousClient, ClearTextClient, ExternalClient
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, encode_content, encode_frame
from qstore.formats.amqp_0_9_1.methods import (
    METHODS,
    decode_method,
    decode_publish,
    deliver_start,
    encode_deliver,
    encode_method,
    encode_routed,
)
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_pair import Heard, Pair, choose_anonymous
from tests.broker.protocols.test_basic_fuzz import _ANY_PAYLOADS
from tests.broker.protocols.world import World
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS
from tests.support.basic_peer import BasicWire

TO_Q = encode_publish(encode_routed("", "q"))


def _header(body: bytes, **properties: Any) -> bytes:
    return encode_header(len(body), Properties(**properties))


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world).open()


# ---- opening ----


def test_a_connection_opens_with_the_lower_limits_of_both_ends(world: World) -> None:
    pair = Pair(world, heartbeat=10).open()
    assert pair.client.heartbeat == pair.machine.heartbeat == 10
    assert pair.client.max_payload == pair.machine.max_payload
    product = pair.client.server_properties.get("product")
    assert product is not None
    assert product.value in ("qstore", b"qstore")
    assert pair.machine.client_properties.get("product") is not None


@pytest.mark.parametrize(("wanted", "negotiated"), [(None, 60), (0, 0), (600, 60), (7, 7)])
def test_heartbeats_are_those_of_the_end_that_wants_them_more_often(
    world: World, wanted: int | None, negotiated: int
) -> None:
    assert Pair(world, heartbeat=wanted).open().client.heartbeat == negotiated


@pytest.mark.parametrize(
    "mechanism",
    [AnonymousClient(), ClearTextClient(PLAIN, "a", "b"), ClearTextClient(AMQPLAIN, "a", "b")],
    ids=lambda each: each.name,
)
def test_a_client_logs_in_with_each_mechanism(world: World, mechanism: ClientMechanism) -> None:
    pair = Pair(world, lambda _: mechanism).open()
    assert pair.machine.mechanism == mechanism.name


def test_external_without_a_certificate_is_refused() -> None:
    world = World(authentication=Authentication(LoginOptions(is_on=False), None))
    pair = Pair(world, lambda _: ExternalClient())
    pair.run()
    (error,) = pair.heard.closed
    assert isinstance(error, HardError)
    assert error.code is ReplyCode.ACCESS_REFUSED


def test_a_client_without_a_usable_mechanism_closes_with_the_reason(world: World) -> None:
    def choose(offered: tuple[str, ...]) -> ClientMechanism:
        raise ValueError(f"none of {offered}")

    pair = Pair(world, choose)
    pair.run()
    (error,) = pair.heard.closed
    assert error is not None
    assert "none of" in str(error)


def test_an_unknown_virtual_host_is_refused_with_its_code(world: World) -> None:
    pair = Pair(world, virtual_host="nowhere")
    pair.run()
    (error,) = pair.heard.closed
    assert isinstance(error, HardError)
    assert error.code is ReplyCode.NOT_ALLOWED
    assert "nowhere" in str(error)


@pytest.mark.parametrize("answer", [b"AMQP\x01\x01\x00\x0a", b"AMQP\x00\x01\x00\x00"])
def test_a_broker_of_another_version_is_recognized_by_its_header(answer: bytes) -> None:
    heard = Heard()
    client = ClientConnection(heard, choose_anonymous, max_message_bytes=100)
    assert client.take_output() == PROTOCOL_HEADER
    for byte in answer:
        client.receive(bytes((byte,)))
    (error,) = heard.closed
    assert "does not speak AMQP 0-9-1" in str(error)
    assert not client.take_output()


# ---- channels ----


def test_messages_are_declared_bound_published_confirmed_consumed_and_acknowledged(world: World, pair: Pair) -> None:
    channel, heard = pair.channel(), pair.heard
    channel.declare_queue("q", heard.answer, arguments=typed_map({"x-max-length": 9}))
    assert pair.answer() == {"queue": "q", "message_count": 0, "consumer_count": 0}
    channel.declare_exchange("e", "topic", heard.answer)
    channel.bind_queue("q", "e", "a.*", heard.answer)
    channel.confirm_select(heard.answer)
    pair.answer()
    heard.answers.clear()
    payload = encode_publish(encode_routed("e", "a.b"), mandatory=True)
    for body in (b"one", b"", b"x" * 300_000):
        channel.publish(payload, _header(body, delivery_mode=2), body)
    assert channel.settled_below == 1
    pair.run()
    assert channel.settled_below == 4
    assert [(first, last) for first, last, _ in heard.confirmed][-1][1] == 3
    channel.qos(2, heard.answer)
    channel.consume("q", "tag", heard.answer)
    assert pair.answer() == {"consumer_tag": "tag"}
    assert [body for _, _, body in heard.deliveries] == [b"one", b""]
    delivered = heard.deliveries[0][0]
    assert (delivered.consumer_tag, delivered.delivery_tag, delivered.redelivered) == (b"tag", 1, False)
    assert delivered.routed == encode_routed("e", "a.b")
    channel.ack(2, multiple=True)
    pair.run()
    assert heard.deliveries[2][2] == b"x" * 300_000
    channel.nack(3)
    pair.run()
    assert heard.deliveries[3][0].redelivered
    channel.cancel("tag", heard.answer)
    assert pair.answer() == {"consumer_tag": "tag"}
    channel.close()
    pair.run()
    assert heard.channels_closed == [None]
    assert world.broker.default_host.queues["q"].available_count == 1
    pair.client.close()
    pair.run()
    assert heard.closed == [None]
    assert pair.machine.phase is Phase.CLOSED


def test_a_soft_error_closes_the_channel_and_fails_its_calls(pair: Pair) -> None:
    channel, other, heard = pair.channel(), pair.channel(), pair.heard
    channel.declare_queue("missing", heard.answer, passive=True)
    channel.declare_queue("q", heard.answer)
    pair.run()
    (error,) = heard.channels_closed
    assert isinstance(error, SoftError)
    assert error.code is ReplyCode.NOT_FOUND
    assert heard.answers == [({}, error), ({}, error)]
    assert not channel.is_open
    other.declare_queue("q", heard.answer)
    assert pair.answer()["queue"] == "q"
    assert pair.channel().number == channel.number


def test_a_hard_error_closes_the_connection_and_its_channels(pair: Pair) -> None:
    channel, heard = pair.channel(), pair.heard
    channel.call("basic.qos", heard.answer, prefetch_size=1)
    pair.run()
    (error,) = heard.closed
    assert isinstance(error, HardError)
    assert error.code is ReplyCode.NOT_IMPLEMENTED
    assert heard.channels_closed == [error]
    assert pair.client.phase is Phase.CLOSED


def test_a_mandatory_message_without_a_queue_is_returned_and_confirmed(pair: Pair) -> None:
    channel, heard = pair.channel(), pair.heard
    channel.confirm_select(heard.answer)
    channel.publish(encode_publish(encode_routed("", "nowhere"), mandatory=True), _header(b"x"), b"x")
    pair.run()
    ((values, body),) = heard.returned
    assert (values["reply_code"], body) == (ReplyCode.NO_ROUTE, b"x")
    assert heard.confirmed == [(1, 1, True)]


def test_a_message_refused_by_a_full_queue_is_reported_as_refused(pair: Pair) -> None:
    channel, heard = pair.channel(), pair.heard
    arguments = typed_map({"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.declare_queue("q", heard.answer, arguments=arguments)
    channel.confirm_select(heard.answer)
    channel.publish(TO_Q, _header(b"x"), b"x")
    channel.publish(TO_Q, _header(b"x"), b"x")
    pair.run()
    assert sorted(heard.confirmed) == [(1, 1, True), (2, 2, False)]


def test_a_consumer_whose_queue_is_deleted_is_cancelled(pair: Pair) -> None:
    channel, heard = pair.channel(), pair.heard
    channel.declare_queue("q", heard.answer)
    channel.consume("q", "tag", heard.answer)
    pair.channel().call("queue.delete", heard.answer, queue="q")
    pair.run()
    assert heard.cancelled == ["tag"]


def test_a_full_disk_blocks_and_unblocks(pair: Pair) -> None:
    pair.machine.watch_disk(is_short=True)
    pair.run()
    assert pair.client.is_blocked
    pair.machine.watch_disk(is_short=False)
    pair.run()
    assert not pair.client.is_blocked
    assert pair.heard.blocked[1:] == [""]


def test_a_silent_broker_is_presumed_dead(world: World) -> None:
    pair = Pair(world, heartbeat=10).open()
    pair.client.on_timer(1.0)
    pair.client.take_output()
    pair.client.on_timer(7.0)
    assert pair.client.take_output()[0] == 8  # a heartbeat
    pair.client.on_timer(22.0)
    (error,) = pair.heard.closed
    assert "heartbeat timeout" in str(error)


def test_a_lost_connection_fails_its_channels_and_calls_once(pair: Pair) -> None:
    pair.channel().declare_queue("q", pair.heard.answer)
    pair.client.lost("connection reset")
    pair.client.lost("again")
    (error,) = pair.heard.closed
    assert str(error) == "connection reset"
    assert pair.heard.channels_closed == [error]
    assert pair.heard.answers == [({}, error)]
    with pytest.raises(ValueError, match="not open"):
        pair.channel()


def test_channels_are_limited(pair: Pair) -> None:
    pair.client._max_channels = 2
    pair.channel(), pair.channel()
    with pytest.raises(ValueError, match="all 2 channels"):
        pair.channel()


def test_both_ends_may_close_a_channel_at_the_same_time(pair: Pair) -> None:
    channel = pair.channel()
    pair.run()
    channel.declare_queue("missing", pair.heard.answer, passive=True)
    data = pair.client.take_output()
    channel.close()
    pair.machine.receive(data)
    pair.run()
    assert pair.heard.channels_closed == [None]
    assert pair.client.phase is Phase.OPEN
    assert not pair.client.channels


# ---- whatever a peer sends ----


def _opened(heard: Heard) -> ClientConnection:
    """A client whose connection is open, with two channels, the first in confirm mode with three messages."""
    client = ClientConnection(heard, choose_anonymous, max_message_bytes=1000)
    wire = BasicWire()
    client.receive(wire.encode("connection.start", 0, mechanisms=b"ANONYMOUS", version_minor=9))
    client.receive(wire.encode("connection.tune", 0, channel_max=9, frame_max=4096))
    client.receive(wire.encode("connection.open-ok", 0))
    first = client.open_channel(heard)
    client.open_channel(heard)
    first.confirm_select(heard.answer)
    for _ in range(3):
        first.publish(TO_Q, _header(b"x"), b"x")
    client.take_output()
    return client


_CHANNELS = st.integers(0, 3)
_DELIVERIES = st.builds(
    lambda channel, tag, properties, body, size: b"".join(
        (
            encode_frame(METHOD, channel, encode_deliver(deliver_start(b"tag"), tag, False, encode_routed("e", "k"))),
            encode_frame(HEADER, channel, encode_header(len(body) if size < 0 else size, properties)),
            encode_frame(BODY, channel, body) if body else b"",
        )
    ),
    st.integers(1, 2), st.integers(1, 99), PROPERTY_SETS, st.binary(max_size=9), st.sampled_from([-1] * 9 + [0, 5]),
)  # fmt: skip
_ACKS = st.builds(
    lambda channel, name, tag, multiple: encode_frame(
        METHOD, channel, encode_method(name, delivery_tag=tag, multiple=multiple)
    ),
    st.integers(1, 2), st.sampled_from(["basic.ack", "basic.nack"]), st.integers(0, 4), st.booleans(),
)  # fmt: skip
_INPUT = st.one_of(
    _DELIVERIES,
    _ACKS,
    st.builds(encode_frame, st.just(METHOD), _CHANNELS, _ANY_PAYLOADS),
    st.builds(encode_frame, st.integers(0, 9), _CHANNELS, _ANY_PAYLOADS | st.binary(max_size=30)),
    st.binary(max_size=20),
)


@given(st.lists(_INPUT, max_size=12), st.data())
def test_whatever_a_peer_sends_the_client_goes_on_or_closes(inputs: list[bytes], data: st.DataObject) -> None:
    heard = Heard()
    client = _opened(heard)
    for each in inputs:
        cut = data.draw(st.integers(0, len(each)))
        client.receive(each[:cut])
        client.receive(each[cut:])
    client.lost("the end")
    assert len(heard.closed) == 1
    assert len(heard.channels_closed) == 2
    assert client._assembler.pending_bytes == 0
    numbers = [number for first, last, _ in heard.confirmed for number in range(first, last + 1)]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) <= {1, 2, 3}


@given(st.lists(_DELIVERIES, max_size=8), st.integers(1, 30))
def test_the_pieces_in_which_input_comes_make_no_difference(inputs: list[bytes], size: int) -> None:
    whole, pieces = Heard(), Heard()
    data = b"".join(inputs)
    _opened(whole).receive(data)
    client = _opened(pieces)
    for at in range(0, len(data), size):
        client.receive(data[at : at + size])
    assert pieces.deliveries == whole.deliveries
    assert [str(each) for each in pieces.closed] == [str(each) for each in whole.closed]


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), max_size=30))
def test_each_message_is_confirmed_or_refused_once(answers: list[tuple[int, bool, bool]]) -> None:
    heard = Heard()
    client = _opened(heard)
    channel = client.channels[1]
    for _ in range(27):
        channel.publish(TO_Q, _header(b"x"), b"x")
    expected: dict[int, bool] = {}
    for tag, multiple, is_accepted in answers:
        name = "basic.ack" if is_accepted else "basic.nack"
        client.receive(BasicWire().encode(name, 1, delivery_tag=tag, multiple=multiple))
        for number in range(1 if multiple else tag, tag + 1):
            expected.setdefault(number, is_accepted)
    found = {number: is_ok for first, last, is_ok in heard.confirmed for number in range(first, last + 1)}
    assert found == expected
    assert channel.settled_below == next(number for number in range(1, 32) if number not in expected)
    assert client.phase is Phase.OPEN


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5))), st.integers(1, 25), st.integers(0, 25))
def test_missing_runs_are_the_numbers_that_are_not_done(runs: list[tuple[int, int]], first: int, more: int) -> None:
    done, numbers = Done(1), set(range(1, 50))
    for begin, count in runs:
        done.add(begin, begin + count)
        numbers -= set(range(begin, begin + count + 1))
    found = [number for begin, end in missing_runs(done, first, first + more) for number in range(begin, end + 1)]
    assert found == [number for number in range(first, first + more + 1) if number in numbers]


@pytest.mark.parametrize("name", [each.name for each in METHODS if each.name.endswith("-ok")])
def test_an_answer_to_nothing_closes_the_connection(name: str) -> None:
    heard = Heard()
    client = _opened(heard)
    channel = 0 if name.startswith("connection") else 2
    client.channels[2]._calls.clear()
    payload = encode_method(name)
    if name == "basic.get-ok":
        client.receive(b"".join(encode_content(2, payload, _header(b"x"), b"x", 4096)))
    else:
        client.receive(encode_frame(METHOD, channel, payload))
    assert client.phase is Phase.CLOSED
    (error,) = heard.closed
    assert error is not None
    assert error.code is ReplyCode.COMMAND_INVALID
    wire = BasicWire()
    wire.feed(client.take_output())
    assert wire.received[-1].name == "connection.close"


@given(st.binary(max_size=20), st.integers(0, 1 << 63), st.booleans(), st.text(max_size=20), st.text(max_size=20))
def test_a_delivery_is_read_and_published_again_with_its_routing(
    tag: bytes, number: int, redelivered: bool, exchange: str, key: str
) -> None:
    routed = encode_routed(exchange, key)
    delivered = decode_deliver(encode_deliver(deliver_start(tag), number, redelivered, routed))
    assert delivered == (tag, number, redelivered, routed)
    found = decode_publish(encode_publish(delivered.routed))
    assert (found.exchange, found.routing_key, found.is_mandatory) == (exchange, key, False)


@pytest.mark.parametrize("size", range(4, 15))
def test_a_short_delivery_is_refused(size: int) -> None:
    whole = encode_deliver(deliver_start(b"t"), 1, False, encode_routed("", ""))
    with pytest.raises(Amqp091Error):
        decode_deliver(whole[:size])
    assert decode_method(whole)[0].name == "basic.deliver"


# ---- many equal messages ----


class _Runs:
    """Keeps the deliveries of each run, as the owner of the channel hears of single ones."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.counts: list[int] = []

    def on_deliveries(self, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:
        self.counts.append(bodies.count)
        like = decode_deliver(payload)
        self.heard.deliveries += [
            (like._replace(delivery_tag=first + number), header, bodies.body(number)) for number in range(bodies.count)
        ]


def test_a_message_encoded_once_is_published_as_if_one_by_one(world: World) -> None:
    sent = []
    for is_encoded in (False, True):
        pair = Pair(world).open()
        channel = pair.channel()
        channel.confirm_select(pair.heard.answer)
        pair.run()
        body = b"b" * 5000
        if is_encoded:
            frames = channel.encode_message(TO_Q, _header(body), body)
            assert channel.publish_encoded(frames * 3, 3) == 3
        else:
            for _ in range(3):
                channel.publish(TO_Q, _header(body), body)
        counts = pair.client.frames_sent, pair.client.messages_sent
        sent.append((pair.client.take_output(), counts, channel.published))
    assert sent[0] == sent[1]


def test_deliveries_that_are_alike_come_together(pair: Pair) -> None:
    channel = pair.channel()
    runs = channel.run_owner = _Runs(pair.heard)
    channel.declare_queue("q", pair.heard.answer)
    bodies = [b"%03d" % number for number in range(200)] + [b"longer"] + [b"%03d" % number for number in range(50)]
    for body in bodies:
        channel.publish(TO_Q, _header(body), body)
    channel.consume("q", "tag", pair.heard.answer)
    pair.run()
    heard = pair.heard.deliveries
    assert [body for _, _, body in heard] == bodies
    assert [each.delivery_tag for each, _, _ in heard] == list(range(1, len(bodies) + 1))
    assert {(each.consumer_tag, each.key, each.redelivered) for each, _, _ in heard} == {(b"tag", "q", False)}
    assert all(header == _header(body) for _, header, body in heard)
    assert sum(runs.counts) > 200
    channel.ack(len(bodies), multiple=True)
    pair.run()
    assert pair.world.broker.default_host.queues["q"].message_count == 0


def test_deliveries_come_singly_if_nobody_takes_them_together(pair: Pair) -> None:
    channel = pair.channel()
    channel.declare_queue("q", pair.heard.answer)
    for _ in range(50):
        channel.publish(TO_Q, _header(b"x"), b"x")
    channel.consume("q", "tag", pair.heard.answer)
    pair.run()
    assert [each.delivery_tag for each, _, _ in pair.heard.deliveries] == list(range(1, 51))


@pytest.mark.parametrize("damage", ["tag", "channel", "key", "header", "end"])
def test_a_run_of_deliveries_ends_at_the_first_that_is_different(pair: Pair, damage: str) -> None:
    channel = pair.channel()
    runs = channel.run_owner = _Runs(pair.heard)
    pair.run()
    tags = [*range(1, 21)]
    if damage == "tag":
        tags[10:] = range(12, 22)
    frames = []
    for tag in tags:
        routed = encode_routed("e", "j" if damage == "key" and tag == 11 else "k")
        properties: dict[str, Any] = {"priority": 1} if damage == "header" and tag == 11 else {"priority": 2}
        number = 2 if damage == "channel" and tag == 11 else 1
        found = encode_frame(METHOD, number, encode_deliver(deliver_start(b"tag"), tag, False, routed))
        found += encode_frame(HEADER, number, _header(b"body", **properties)) + encode_frame(BODY, number, b"body")
        frames.append(found[:-1] + b"\0" if damage == "end" and tag == 11 else found)
    pair.client.receive(b"".join(frames))
    assert runs.counts[0] == 9
    heard = [each.delivery_tag for each, _, _ in pair.heard.deliveries]
    if damage in ("channel", "end"):  # the connection is closed
        assert (heard, pair.client.phase) == (tags[:10], Phase.CLOSED)
    else:
        assert heard == tags
