"""A shovel between brokers in memory: what it acknowledges when, and what is left when brokers are killed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from qstore.broker.federation import shovel as module
from qstore.broker.federation.carrier import Carrier
from qstore.broker.federation.shovel import Shovel, Shovels, ShovelState, read_definition
from qstore.broker.federation.uri import AmqpUri, parse_uris
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.parameters import Parameter
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.federation.worlds import KilledStore, Worlds
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.support.basic_peer import MAX_FRAME
from tests.support.profiles import seeds_of_the_day

KEY = ("/", "shovel", "s")
VALUE = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://far", "dest-queue": "b", "reconnect-delay": 1}


class Life:
    """A broker with the queue `a`, and another one with the durable queue `b`, whose disk waits, and a shovel."""

    def __init__(self, **more: Any) -> None:
        self.worlds = Worlds(World(), far=self.new_far())
        self.survived: list[int] = []
        client = BasicClient(self.own).open()
        client.call("queue.declare", queue="a")
        self.client = client
        own = self.own
        self.shovels = Shovels(
            own.broker, self.worlds, own.soon.append, self.worlds.call_later,
            lambda work, done: own.work.append((work, done)), lambda: own.now,
        )  # fmt: skip
        self.shovels.start()
        value = {name: each for name, each in {**VALUE, **more}.items() if each is not None}
        self.shovels._changed(KEY, Parameter(*KEY, value, "alice@QPID"))

    @property
    def own(self) -> World:
        return self.worlds.own

    @property
    def far(self) -> World:
        return self.worlds.others["far"]

    @staticmethod
    def new_far() -> World:
        world = World()
        world.store = KilledStore()
        world.durable_queue("b")
        return world

    @property
    def shovel(self) -> Shovel:
        return next(iter(self.shovels))

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.client.publish("a", b"%d" % number)
        self.worlds.run()

    def sync(self) -> None:
        """Everything that the other broker has written is on its disk."""
        while self.far.store.flushes:
            self.far.store.end_flush()
            self.worlds.run()

    def kill_far(self) -> None:
        """The other broker is killed, and starts again: it has what was on its disk."""
        store = self.far.store
        assert isinstance(store, KilledStore)
        self.survived += [int(bytes(restore_message(each).content())) for each in store.enqueued[: store.safe]]
        dead = self.far
        self.worlds.others["far"] = self.new_far()
        for wire in self.worlds.wires:
            if wire.world is dead and not wire.is_over:
                wire.server_host.output.clear()
        self.worlds.cut(dead)
        dead.drop_work()

    @property
    def left(self) -> list[int]:
        """What the source has, acquired or not."""
        queue = self.own.broker.default_host.queues["a"]
        self.shovels.close()
        self.worlds.cut(self.own)
        self.worlds.run()
        client = BasicClient(self.own).open()
        found = []
        while (got := client.call("basic.get", queue="a", no_ack=True)).name == "basic.get-ok":
            found.append(int(got.body))
        assert queue.message_count == 0
        return found


def test_a_message_is_acknowledged_when_the_destination_has_it_on_its_disk() -> None:
    life = Life()
    life.worlds.run()
    assert life.shovel.state is ShovelState.RUNNING
    life.publish(1, 2, 3)
    queue = life.own.broker.default_host.queues["a"]
    assert len(life.far.store.enqueued) == 3
    assert (queue.available_count, queue.acquired_count) == (0, 3)
    assert life.shovel.status.pending == 3
    life.sync()
    assert queue.message_count == 0
    assert life.shovel.status.pending == 0


def test_at_most_as_many_messages_as_the_prefetch_count_are_unconfirmed() -> None:
    life = Life(**{"src-prefetch-count": 4})
    life.worlds.run()
    life.publish(*range(20))
    assert len(life.far.store.enqueued) == 4
    life.sync()
    assert len(life.far.store.enqueued) == 20
    assert life.left == []


def test_a_destination_whose_socket_is_full_stops_the_source() -> None:
    life = Life(**{"ack-mode": "no-ack"})
    life.worlds.run()
    wire = next(each for each in life.worlds.wires if each.world is life.far)
    wire.client.pause_sending()
    life.publish(*range(10))
    assert life.far.store.enqueued == []
    source = next(each for each in life.worlds.wires if each.world is life.own)
    before = source.client_host.resumptions
    wire.client.resume_sending()
    assert source.client_host.resumptions > before, "the source's socket is read again"
    life.worlds.run()
    assert len(life.far.store.enqueued) == 10


def test_a_side_that_fails_ends_both_and_they_start_again_after_the_delay() -> None:
    life = Life()
    life.worlds.run()
    life.publish(1)
    life.kill_far()
    life.worlds.run()
    assert life.shovel.state is ShovelState.TERMINATED
    assert "destination amqp://far: the connection was lost" in life.shovel.status.reason
    assert all(wire.is_over for wire in life.worlds.wires)
    life.worlds.advance(0.9)
    life.worlds.run()
    assert life.shovel.state is ShovelState.TERMINATED
    life.worlds.advance(0.2)
    life.worlds.run()
    assert life.shovel.state is ShovelState.RUNNING
    life.sync()
    assert (life.left, life.survived, len(life.far.store.enqueued)) == ([], [], 1)


def test_a_shovel_without_a_delay_stays_terminated() -> None:
    life = Life(**{"reconnect-delay": 0})
    life.worlds.run()
    life.kill_far()
    life.worlds.run()
    life.worlds.advance(1000)
    life.worlds.run()
    assert life.shovel.state is ShovelState.TERMINATED
    life.shovels.restart("/", "s")
    life.worlds.run()
    assert life.shovel.state is ShovelState.RUNNING


def test_a_shovel_of_an_exchange_is_deleted_after_a_number_of_messages() -> None:
    value = {"src-queue": None, "src-exchange": "amq.fanout", "src-delete-after": 2}
    life = Life(**value)
    life.worlds.run()
    for _ in range(3):
        life.client.publish("k", exchange="amq.fanout")
    life.worlds.run()
    assert len(life.far.store.enqueued) == 2
    assert [each.status.left for each in life.shovels] == [0]
    life.shovels.broker.parameters._known[KEY] = Parameter(*KEY, {}, "")
    life.sync()
    life.worlds.run()
    assert list(life.shovels) == []


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish"])
def test_a_message_whose_header_outgrows_a_frame_waits_at_the_source_and_others_pass_it(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(**{"ack-mode": mode, "dest-add-forward-headers": True, "src-delete-after": 3})
    life.client = BasicClient(life.own).open(frame_max=MAX_FRAME)
    life.worlds.run()
    long = Properties(headers=typed_map({"long": "x" * (MAX_FRAME - 100)}))
    life.client.publish("a", b"1")
    life.client.publish("a", b"2", long)
    life.client.publish("a", b"3")
    life.worlds.run()
    for _ in range(5):
        life.sync()
        life.worlds.advance(2)
        life.worlds.run()
    assert life.shovel.state is ShovelState.RUNNING
    assert [int(bytes(restore_message(each).body)) for each in life.far.store.enqueued] == [1, 3]
    assert life.shovel.status.left + life.shovel.status.pending == 1
    assert sum("cannot be published" in each.getMessage() for each in caplog.records) == 1
    entries = life.own.broker.default_host.queues["a"].entries()
    assert [bytes(entry.message.whole().body) for entry in entries] == [b"2"]


# ---- kills ----


class AcknowledgesAtOnce(Carrier):
    """Planted: acknowledges before the destination has confirmed."""

    def carry(self, tag: int, payload: bytes, header: bytes, body: Any, *, is_acknowledged: bool = True) -> None:
        super().carry(tag, payload, header, body, is_acknowledged=is_acknowledged)
        self._source.channel.ack(tag)


class AcknowledgesTheNext(Carrier):
    """Planted: acknowledges one message more than was confirmed."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        if last - self._first + 1 < len(self._tags):
            self._source.channel.ack(self._tags[last - self._first + 1])
        super().on_confirmed(first, last, is_accepted=is_accepted)


BY_PROTOCOL = {
    "amqp091": {},
    "amqp10": {
        "src-protocol": "amqp10", "src-queue": None, "src-address": "a",
        "dest-protocol": "amqp10", "dest-queue": None, "dest-address": "b",
    },
    "amqp010": {"src-protocol": "amqp010", "dest-protocol": "amqp010"},
}  # fmt: skip


def lost_in(seed: int, protocol: str = "amqp091") -> set[int]:
    """The messages that are lost in a history of publishing, syncing, cutting and killing."""
    chance, life, published = random.Random(seed), Life(**BY_PROTOCOL[protocol]), 0
    for _ in range(60):
        action = chance.random()
        if action < 0.5:
            count = chance.randrange(1, 6)
            life.client.send(
                b"".join(life.client.message("a", b"%d" % each) for each in range(published, published + count))
            )
            published += count
            life.worlds.run(chance.randrange(1, 6))
        elif action < 0.75 and life.far.store.flushes:
            life.far.store.end_flush()
            life.worlds.run(chance.randrange(0, 4))
        elif action < 0.85:
            life.kill_far()
            life.worlds.run(chance.randrange(0, 4))
        elif action < 0.9:
            chance.choice(life.worlds.wires).cut("cut")
        life.worlds.advance(chance.random())
        life.worlds.run(chance.randrange(0, 4))
    life.kill_far()
    return set(range(published)) - set(life.survived) - set(life.left)


@pytest.mark.parametrize("protocol", BY_PROTOCOL)
@pytest.mark.parametrize("seed", seeds_of_the_day(20))
def test_nothing_is_lost_when_the_destination_is_killed_or_a_connection_is_cut(seed: int, protocol: str) -> None:
    assert lost_in(seed, protocol) == set()


@pytest.mark.replaces
@pytest.mark.parametrize("protocol", BY_PROTOCOL)
@pytest.mark.parametrize("planted", [AcknowledgesAtOnce, AcknowledgesTheNext])
def test_the_simulation_finds_a_planted_bug(
    planted: type[Carrier], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Carrier", planted)
    assert any(lost_in(seed, protocol) for seed in range(10))


# ---- definitions and URIs ----


@pytest.mark.parametrize(
    ("given", "shown", "rest"),
    [
        ("amqp://", "amqp://", ("tcp", "", 5672, "/", None, None)),
        ("amqp:///v%2Fw", "amqp:///v%2Fw", ("tcp", "", 5672, "v/w", None, None)),
        ("amqp://h", "amqp://h", ("tcp", "h", 5672, "/", None, None)),
        ("amqps://u:p%40@h:1/x", "amqps://h:1/x", ("ssl", "h", 1, "x", "u", "p@")),
        ("amqp://u@[::1]/", "amqp://[::1]", ("tcp", "::1", 5672, "/", "u", None)),
    ],
)
def test_uris_are_read_and_shown_without_secrets(given: str, shown: str, rest: tuple[object, ...]) -> None:
    (uri,) = parse_uris("x", given)
    assert uri.shown == shown
    assert uri[:6] == rest
    assert "p@" not in repr(uri)


@pytest.mark.parametrize(
    "given",
    [
        "", 5, [], ["amqp://"] * 17, "amqp://h:99999", "amqp://h#f", "amqps:///v", "amqp://:5/", "amqp://h?verify=x",
        "amqp://h?heartbeat=x", "amqp://h?heartbeat=99999", "amqp://h/a%00b", "x" * 3000, "amqp://[::1", "http://h",
        "am\tqp://u:p@h", "amqp:\n//u:p@h", " amqp://u:p@h", "amqp://u:p@h\r", "amqp://u:p p@h", "amqp://u:\x7f@h",
        "\x00amqp://u:p@h", "amqp://u:p\u2028@h",
    ],
)  # fmt: skip
def test_uris_that_are_not_valid_are_refused(given: object) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_uris("x", given)


def test_parameters_of_a_uri_take_effect() -> None:
    (uri,) = parse_uris("x", "amqp://h?heartbeat=7&auth_mechanism=amqplain&verify=verify_peer")
    assert isinstance(uri, AmqpUri)
    assert (uri.heartbeat, uri.mechanisms) == (7, ("AMQPLAIN",))


def test_older_names_of_keys_mean_the_same() -> None:
    old = {"prefetch-count": 5, "delete-after": 7, "add-forward-headers": True, "publish-properties": {"type": "t"}}
    new = {
        "src-prefetch-count": 5, "src-delete-after": 7, "dest-add-forward-headers": True,
        "dest-publish-properties": {"type": "t"},
    }  # fmt: skip
    assert read_definition(VALUE | old) == read_definition(VALUE | new)
    with pytest.raises(InvalidArgumentError, match="are the same"):
        read_definition(VALUE | {"prefetch-count": 5, "src-prefetch-count": 5})


@pytest.mark.parametrize(
    "wrong",
    [
        {"src-prefetch-count": 0}, {"src-prefetch-count": True}, {"reconnect-delay": -1},
        {"reconnect-delay": 10**400}, {"src-delete-after": 0},
        {"src-delete-after": "soon"}, {"ack-mode": 1}, {"dest-publish-properties": {"priority": 256}},
        {"dest-publish-properties": {"priority": "1"}}, {"src-queue": "x" * 300}, {"src-queue-args": []},
        {"src-exchange-key": "k"},
        {"src-queue": None, "src-exchange": "e", "src-delete-after": "queue-length"},
        {"dest-protocol": "amqp10"}, {"dest-protocol": "amqp10", "dest-address": "b"}, {"dest-protocol": "stomp"},
        {"dest-address": "b"}, {"dest-properties": {"subject": "s"}}, {"dest-add-forward-headers": 1},
        {"dest-protocol": "amqp10", "dest-queue": None, "dest-address": ""},
        {"dest-protocol": "amqp10", "dest-queue": None, "dest-address": "b", "dest-properties": {"color": "red"}},
        {"dest-protocol": "amqp10", "dest-queue": None, "dest-address": "b", "dest-properties": {"subject": 5}},
        {"dest-protocol": "amqp10", "dest-queue": None, "dest-address": "b", "dest-application-properties": 5},
    ],
)  # fmt: skip
def test_definitions_that_are_not_valid_are_refused(wrong: dict[str, object]) -> None:
    value = {name: each for name, each in (VALUE | wrong).items() if each is not None}
    with pytest.raises(InvalidArgumentError):
        read_definition(value)
