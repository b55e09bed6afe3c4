"""Federated exchanges and queues between brokers in memory: which messages come, and what the upstream keeps."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from unittest.mock import Mock

import pytest

from qstore.broker.federation import upstreams as module
from qstore.broker.federation.carrier import Carrier
from qstore.broker.federation.upstreams import ExchangeLink, Kind, LinkState, Upstreams, read_set, read_upstream
from qstore.broker.model.arguments import Applied
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InternalError, InvalidArgumentError, UnauthorizedError
from qstore.broker.model.parameters import Parameter
from qstore.broker.model.policies import Policy
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.federation.test_bridge_access import Rules
from tests.broker.federation.worlds import KilledStore, Worlds
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.support.basic_peer import MAX_FRAME

UPSTREAM = {"uri": "amqp://far", "reconnect-delay": 1}


class Life:
    """A broker whose exchanges and queues are federated, and its upstream."""

    def __init__(self, *federated: str, **more: Any) -> None:
        self.worlds = Worlds(World(), far=World())
        self.own.broker.federation_tag, self.far.broker.federation_tag = "own", "far"
        self.here, self.there = BasicClient(self.own).open(), BasicClient(self.far).open(frame_max=MAX_FRAME)
        own = self.own
        self.upstreams = Upstreams(
            own.broker, self.worlds, own.soon.append, self.worlds.call_later, lambda: own.now
        )  # fmt: skip
        self.set(**more)
        self.upstreams.start()
        for name in federated:
            self.federate(name)

    @property
    def own(self) -> World:
        return self.worlds.own

    @property
    def far(self) -> World:
        return self.worlds.others["far"]

    def set(self, name: str = "up", **more: Any) -> None:
        """Set the upstream; keys with underscores."""
        value = {**UPSTREAM, **{key.replace("_", "-"): each for key, each in more.items()}}
        key = ("/", "federation-upstream", name)
        self.own.broker.parameters._known[key] = Parameter(*key, value, "alice@QPID")
        self.upstreams._changed(key, None)

    def federate(self, name: str, **definition: str) -> None:
        """Give an exchange, or otherwise a queue, a policy."""
        host = self.own.broker.default_host
        found = host.exchanges.get(name) or host.queues[name]
        found.policy = Applied("p", "", definition or {"federation-upstream": "up"})
        self.upstreams._look_at_all()
        self.worlds.run()

    def bound(self, exchange: str = "amq.topic", queue: str = "q", key: str = "a.*") -> None:
        """Declare a queue here, and bind it."""
        self.here.call("queue.declare", queue=queue)
        self.here.call("queue.bind", queue=queue, exchange=exchange, routing_key=key)
        self.worlds.run()

    def keys(self, exchange: str = "amq.topic") -> list[str]:
        """What is bound to an exchange at the upstream, by links."""
        return sorted(each.key for each in self.far.broker.default_host.exchanges[exchange].onward or ())

    def publish(self, key: str, body: bytes, exchange: str = "amq.topic", **properties: Any) -> None:
        """Publish at the upstream."""
        self.there.publish(key, body, exchange=exchange, properties=Properties(**properties))
        self.worlds.run()

    def take(self, queue: str = "q") -> list[Any]:
        """Take everything from a queue here."""
        found = []
        while (got := self.here.call("basic.get", queue=queue, no_ack=True)).name == "basic.get-ok":
            found.append(got)
            self.worlds.run()
        return found

    def bodies(self, queue: str = "q") -> list[bytes]:
        return [bytes(each.body) for each in self.take(queue)]

    @property
    def state(self) -> LinkState:
        (status,) = self.upstreams.statuses()
        return status.state

    def restart_link(self) -> None:
        """The connection is lost, and the time for the next attempt comes."""
        self.worlds.cut(self.far)
        self.worlds.run()

    def again(self) -> None:
        self.worlds.advance(2)
        self.worlds.run()


# ---- exchanges ----


def test_messages_that_a_binding_here_wants_come_from_the_upstream() -> None:
    life = Life("amq.topic")
    assert life.state is LinkState.RUNNING
    life.bound()
    assert life.keys() == ["a.*"]
    life.publish("a.b", b"one")
    life.publish("b.b", b"two")
    (got,) = life.take()
    assert (bytes(got.body), got.values["exchange"], got.values["routing_key"]) == (b"one", "amq.topic", "a.b")


def test_bindings_are_taken_back() -> None:
    life = Life("amq.topic")
    life.bound()
    life.bound(queue="other")
    life.here.call("queue.delete", queue="q")
    life.worlds.run()
    assert life.keys() == ["a.*"]
    life.here.call("queue.delete", queue="other")
    life.worlds.run()
    assert life.keys() == []


def test_the_header_has_an_entry_for_the_hop_and_a_message_makes_only_so_many() -> None:
    life = Life("amq.topic", max_hops=2)
    life.bound()
    life.publish("a.b", b"one", user_id="guest")
    (got,) = life.take()
    (hop,) = got.properties.headers.get("x-received-from").value
    names = {name: typed.value for name, typed in hop.value.entries}
    assert names == {
        "uri": "amqp://far", "exchange": "amq.topic", "redelivered": False, "cluster-name": "far", "vhost": "/",
    }  # fmt: skip
    assert got.properties.user_id is None
    hops = [{"cluster-name": name, "vhost": "/"} for name in ("x", "y")]
    life.publish("a.b", b"two hops", headers=typed_map({"x-received-from": hops}))
    life.publish("a.b", b"one hop", headers=typed_map({"x-received-from": hops[:1]}))
    life.publish("a.b", b"was here", headers=typed_map({"x-received-from": [{"cluster-name": "own", "vhost": "/"}]}))
    assert life.bodies() == [b"one hop"]
    (queue,) = (each for each in life.far.broker.default_host.queues.values() if "federation" in each.name)
    assert queue.message_count == 0


def test_messages_wait_at_the_upstream_while_the_brokers_cannot_reach_each_other() -> None:
    life = Life("amq.topic", expires=60_000, message_ttl=50_000)
    life.bound()
    life.restart_link()
    assert life.state is LinkState.ERROR
    (queue,) = (each for each in life.far.broker.default_host.queues.values() if "federation" in each.name)
    assert queue.name == "federation: amq.topic -> own"
    assert (queue.expires_seconds, queue.message_ttl) == (60, 50)
    life.publish("a.b", b"one")
    life.again()
    assert life.bodies() == [b"one"]


def test_bindings_that_vanished_meanwhile_are_gone_and_no_message_is_missed() -> None:
    life = Life("amq.topic")
    life.bound(key="stays")
    life.bound(key="goes")
    for number in range(4):
        life.restart_link()
        life.here.call(
            "queue.unbind", queue="q", exchange="amq.topic", routing_key="goes" if not number else f"{number}"
        )
        life.here.call("queue.bind", queue="q", exchange="amq.topic", routing_key=f"{number + 1}")
        life.publish("stays", b"%d" % number)
        life.again()
        assert life.keys() == ["stays", f"{number + 1}"][::-1]
        internal = [each for each in life.far.broker.default_host.exchanges if each.startswith("federation")]
        assert internal == [f"federation: amq.topic -> own {'BA'[number % 2]}"]
    assert life.bodies() == [b"0", b"1", b"2", b"3"]


def test_bindings_to_other_exchanges_are_passed_on_as_far_as_their_hops_reach() -> None:
    life = Life("amq.topic", max_hops=3)
    for name in ("plain", "far away", "last", "back"):
        life.here.call("exchange.declare", exchange=name, type="fanout")
    hops = {
        "plain": None, "far away": [{"cluster-name": "x", "vhost": "/", "hops": 3}],
        "last": [{"cluster-name": "x", "vhost": "/", "hops": 1}],
        "back": [{"cluster-name": "far", "vhost": "/", "hops": 3}],
    }  # fmt: skip
    for name, header in hops.items():
        arguments = typed_map({} if header is None else {"x-bound-from": header})
        life.here.call(
            "exchange.bind", destination=name, source="amq.topic", routing_key=name, arguments=arguments
        )  # fmt: skip
    life.worlds.run()
    assert life.keys() == ["far away", "plain"]
    bindings = {each.key: each for each in life.far.broker.default_host.exchanges["amq.topic"].onward or ()}
    found = {}
    for key, each in bindings.items():
        (entry,) = each.arguments.get("x-bound-from").value  # type: ignore[union-attr]
        found[key] = entry.value.get("hops").value
    assert found == {"plain": 3, "far away": 2}
    life.here.call("exchange.delete", exchange="plain")
    life.worlds.run()
    assert life.keys() == ["far away"]


def test_two_exchanges_that_are_upstreams_of_each_other_do_not_loop() -> None:
    life = Life("amq.topic")
    other = life.far
    back = Worlds(other, far=life.own)
    back.wires = life.worlds.wires
    upstreams = Upstreams(other.broker, back, other.soon.append, life.worlds.call_later, lambda: other.now)
    key = ("/", "federation-upstream", "up")
    other.broker.parameters._known[key] = Parameter(*key, UPSTREAM, "bob@QPID")
    other.broker.default_host.exchanges["amq.topic"].policy = Applied("p", "", {"federation-upstream": "up"})
    upstreams.start()
    life.bound()
    life.there.call("queue.declare", queue="far q")
    life.there.call("queue.bind", queue="far q", exchange="amq.topic", routing_key="a.*")
    life.worlds.run()
    life.publish("a.b", b"one")
    life.here.publish("a.b", b"two", exchange="amq.topic")
    life.worlds.run()
    assert sorted(life.bodies()) == [b"one", b"two"]
    assert len(list(other.broker.default_host.queues["far q"].entries())) == 2


def test_the_exchange_is_made_at_the_upstream_if_it_is_not_there() -> None:
    life = Life()
    life.here.call("exchange.declare", exchange="mine", type="topic", durable=True)
    life.federate("mine")
    found = life.far.broker.default_host.exchanges["mine"]
    assert (found.type_name, found.durable, life.state) == ("topic", True, LinkState.RUNNING)


def test_a_policy_that_is_gone_takes_queue_and_exchange_of_the_link_with_it() -> None:
    life = Life("amq.topic")
    life.bound()
    life.own.broker.default_host.exchanges["amq.topic"].policy = Applied("", "", {})
    life.upstreams._look_at_all()
    life.worlds.run()
    assert life.upstreams.statuses() == []
    host = life.far.broker.default_host
    assert [name for name in (*host.queues, *host.exchanges) if name.startswith("federation")] == []


def test_with_resource_cleanup_mode_never_they_stay() -> None:
    life = Life("amq.topic", resource_cleanup_mode="never")
    life.bound()
    host = life.far.broker.default_host
    made = [name for name in (*host.queues, *host.exchanges) if name.startswith("federation")]
    assert made
    life.own.broker.default_host.exchanges["amq.topic"].policy = Applied("", "", {})
    life.upstreams._look_at_all()
    life.worlds.run()
    assert life.upstreams.statuses() == []
    assert [name for name in (*host.queues, *host.exchanges) if name.startswith("federation")] == made


def test_keys_without_effect_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="Model")
    life = Life()
    value = {"uri": "amqp://far", "bind-nowait": True, "ha-policy": "all"}
    life.upstreams._check_upstream(Parameter("/", "federation-upstream", "up", value, "alice@QPID"))
    over = [{"upstream": "up", "channel-use-mode": "single"}]
    life.upstreams._check_set(Parameter("/", "federation-upstream-set", "some", over, "alice@QPID"))
    found = sorted(each.getMessage() for each in caplog.records if "is ignored" in each.getMessage())
    assert len(found) == 3
    assert [each for each in found if 'The upstream "up"' in each and "bind-nowait" in each]
    assert [each for each in found if 'The set of upstreams "some"' in each and "channel-use-mode" in each]


def test_upstreams_are_chosen_by_name_set_or_pattern() -> None:
    life = Life()
    life.set("one", exchange="amq.fanout")
    life.set("two")
    key = ("/", "federation-upstream-set", "some")
    value = [{"upstream": "one", "exchange": "other"}, {"upstream": "missing"}]
    life.own.broker.parameters._known[key] = Parameter(*key, value, "alice@QPID")
    for definition, wanted in (
        ({"federation-upstream": "one"}, [("one", "amq.fanout")]),
        ({"federation-upstream-set": "some"}, [("one", "other")]),
        ({"federation-upstream-set": "all"}, [("one", "amq.fanout"), ("two", "amq.topic"), ("up", "amq.topic")]),
        ({"federation-upstream-pattern": "^t|p$"}, [("two", "amq.topic"), ("up", "amq.topic")]),
    ):
        life.federate("amq.topic", **definition)
        assert [(each.upstream, each.remote) for each in life.upstreams.statuses()] == wanted


def test_what_is_declared_and_deleted_later_has_its_links() -> None:
    life = Life()
    policies = life.own.broker.policies
    policies.of_exchange = lambda _host, name: (  # type: ignore[method-assign]
        Applied("p", "", {"federation-upstream": "up"} if name == "mine" else {})
    )
    life.here.call("exchange.declare", exchange="mine", type="topic")
    life.worlds.run()
    assert life.state is LinkState.RUNNING
    life.here.call("exchange.delete", exchange="mine")
    life.worlds.run()
    assert life.upstreams.statuses() == []


def test_a_link_publishes_as_the_user_who_has_set_its_upstream() -> None:
    life = Life()
    life.own.broker.authorization.authorizer = rules = Rules()
    life.federate("amq.topic")
    life.bound()
    life.publish("a.b", b"refused")
    assert life.state is LinkState.ERROR
    assert life.bodies() == []
    rules.publishers.add("alice@QPID")
    life.again()
    assert life.state is LinkState.RUNNING
    assert life.bodies() == [b"refused"]


def test_who_may_not_create_links_may_set_no_upstream() -> None:
    life = Life()
    life.own.broker.authorization.authorizer = rules = Rules()
    rules.denied.add(("bob@QPID", Action.CREATE, ObjectType.LINK))
    for component, value in (("federation-upstream", UPSTREAM), ("federation-upstream-set", [{"upstream": "up"}])):
        with pytest.raises(UnauthorizedError):
            asyncio.run(life.own.broker.parameters.set(Parameter("/", component, "new", value, "bob@QPID")))


def test_another_user_may_not_use_an_upstream() -> None:
    life = Life()
    broker = life.own.broker
    broker.authorization.authorizer = Rules()
    asyncio.run(broker.parameters.set(Parameter("/", "federation-upstream", "hers", UPSTREAM, "alice@QPID")))
    (check,) = broker.policies.checks
    for definition in (
        {"federation-upstream": "hers"},
        {"federation-upstream-pattern": "^h"},
        {"federation-upstream-set": "all"},
    ):
        policy = Policy("/", "p", "^kx$", "exchanges", 0, definition, "alice@QPID")
        check(policy)
        with pytest.raises(UnauthorizedError, match="alice@QPID has set it"):
            check(policy._replace(user="bob@QPID"))
    hers = [{"upstream": "hers"}]
    asyncio.run(broker.parameters.set(Parameter("/", "federation-upstream-set", "one", hers, "alice@QPID")))
    with pytest.raises(UnauthorizedError):
        asyncio.run(broker.parameters.set(Parameter("/", "federation-upstream-set", "two", hers, "bob@QPID")))


@pytest.mark.parametrize("setter", ["policy", "set"])
def test_an_upstream_that_another_user_sets_later_is_not_used(setter: str, caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    broker = life.own.broker
    broker.authorization.authorizer = Rules()
    key = ("/", "federation-upstream-set", "some")
    of_set, of_policy = ("bob@QPID", "alice@QPID") if setter == "set" else ("alice@QPID", "bob@QPID")
    broker.parameters._known[key] = Parameter(*key, [{"upstream": "later"}], of_set)
    exchange = broker.default_host.exchanges["amq.topic"]
    exchange.policy = Applied("p", "", {"federation-upstream-set": "some"}, of_policy)
    for _ in range(2):
        life.set("later")
        life.worlds.run()
    assert life.upstreams.statuses() == []
    (told,) = caplog.messages  # once
    assert "bob@QPID is not allowed to use the upstream" in told
    exchange.policy = exchange.policy._replace(user="alice@QPID")
    broker.parameters._known[key] = Parameter(*key, [{"upstream": "later"}], "alice@QPID")
    life.upstreams._look_at_all()
    life.worlds.run()
    assert [each.upstream for each in life.upstreams.statuses()] == ["later"]


def test_a_policy_keeps_the_user_whose_upstreams_it_may_use() -> None:
    life = Life()
    broker = life.own.broker
    policy = Policy("/", "p", "^amq.topic$", "exchanges", 0, {"federation-upstream": "up"}, "bob@QPID")
    asyncio.run(broker.policies.set(policy))
    assert broker.policies.all() == [policy]
    assert broker.default_host.exchanges["amq.topic"].policy.user == "bob@QPID"


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_come_in_every_ack_mode_and_none_stays_at_the_upstream(mode: str) -> None:
    life = Life("amq.topic", ack_mode=mode)
    life.bound()
    life.publish("a.b", b"one")
    life.publish("a.b", b"two")
    assert life.state is LinkState.RUNNING
    assert life.bodies() == [b"one", b"two"]
    (queue,) = (each for each in life.far.broker.default_host.queues.values() if "federation" in each.name)
    assert queue.message_count == 0


TOO_LONG = Properties(headers=typed_map({"long": "x" * (MAX_FRAME - 100)}))
"""Properties that fit a frame, but do not with the header of a hop."""


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish"])
def test_a_message_whose_header_outgrows_a_frame_waits_at_the_upstream_and_others_pass_it(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life("amq.topic", ack_mode=mode)
    life.bound()
    for body, properties in ((b"one", Properties()), (b"long", TOO_LONG), (b"two", Properties())):
        life.there.publish("a.b", body, exchange="amq.topic", properties=properties)
    life.worlds.run()
    for _ in range(5):
        life.again()
        life.publish("a.b", b"more")
    assert life.state is LinkState.RUNNING
    assert life.bodies() == [b"one", b"two", *[b"more"] * 5]
    (queue,) = (each for each in life.far.broker.default_host.queues.values() if "federation" in each.name)
    assert [bytes(entry.message.whole().body) for entry in queue.entries()] == [b"long"]
    assert sum("cannot be published" in each.getMessage() for each in caplog.records) == 1


def test_without_acknowledgements_a_message_that_cannot_be_published_is_lost_alone() -> None:
    life = Life("amq.topic", ack_mode="no-ack")
    life.bound()
    life.publish("a.b", b"long", headers=TOO_LONG.headers)
    life.publish("a.b", b"one")
    assert life.state is LinkState.RUNNING
    assert life.bodies() == [b"one"]


@pytest.mark.replaces
def test_a_place_that_a_link_leaves_is_taken_by_one_that_found_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_LINKS", 2)
    life = Life("amq.topic", "amq.fanout", "amq.direct", "amq.match")
    for _ in range(2):
        first, second = life.upstreams.statuses()
        life.own.broker.default_host.exchanges[first.name].policy = Applied("", "", {})
        life.upstreams._look_at("/", Kind.EXCHANGE, first.name)
        life.worlds.run()
        found = [each.name for each in life.upstreams.statuses()]
        assert len(found) == 2
        assert first.name not in found
        assert second.name in found
    assert sum("not federated" in each.getMessage() for each in caplog.records) == 1


# ---- queues ----


def consumer(life: Life, prefetch: int = 0) -> BasicClient:
    client = BasicClient(life.own).open()
    if prefetch:
        client.call("basic.qos", prefetch_count=prefetch)
    client.call("basic.consume", queue="q", consumer_tag="c")
    life.worlds.run()
    return client


def test_messages_of_a_queue_come_only_while_a_consumer_here_is_ready() -> None:
    life = Life()
    life.here.call("queue.declare", queue="q")
    life.federate("q")
    life.publish("q", b"one", exchange="")
    life.again()
    assert life.far.broker.default_host.queues["q"].message_count == 1
    client = consumer(life, prefetch=1)
    life.again()
    (got,) = client.take("basic.deliver")
    assert bytes(got.body) == b"one"
    (hop,) = got.properties.headers.get("x-received-from").value
    assert (hop.value.get("queue").value, hop.value.get("visit-count").value) == ("q", 1)
    life.again()
    life.publish("q", b"two", exchange="")
    life.again()
    assert client.take("basic.deliver") == []
    assert life.far.broker.default_host.queues["q"].message_count == 1, "the consumer is busy"
    client.method("basic.ack", delivery_tag=got.values["delivery_tag"])
    life.again()
    life.again()
    assert [bytes(each.body) for each in client.take("basic.deliver")] == [b"two"]


def test_a_consumer_at_the_upstream_comes_first() -> None:
    life = Life()
    life.here.call("queue.declare", queue="q")
    life.federate("q")
    near = consumer(life)
    life.again()
    other = BasicClient(life.far).open()
    other.call("basic.consume", queue="q", consumer_tag="c")
    life.publish("q", b"one", exchange="")
    life.again()
    assert [bytes(each.body) for each in other.take("basic.deliver")] == [b"one"]
    assert near.take("basic.deliver") == []


def test_links_of_other_brokers_do_not_count_as_consumers() -> None:
    life = Life()
    life.here.call("queue.declare", queue="q")
    life.federate("q")
    link = BasicClient(life.own).open()
    link.call("basic.consume", queue="q", consumer_tag="link", arguments=typed_map({"x-priority": -1}))
    life.publish("q", b"one", exchange="")
    life.again()
    assert life.far.broker.default_host.queues["q"].message_count == 1
    consumer(life)
    life.again()
    assert life.far.broker.default_host.queues["q"].message_count == 0


@pytest.mark.replaces
def test_a_link_of_a_queue_whose_journal_fails_has_an_error_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    life.here.call("queue.declare", queue="q")
    life.federate("q")
    consumer(life)
    with monkeypatch.context() as failing:
        failing.setattr(Queue, "has_idle_taker", Mock(side_effect=InternalError("the disk has failed")))
        life.again()
    (status,) = life.upstreams.statuses()
    assert (status.state, status.error) == (LinkState.ERROR, "this broker: the disk has failed")
    life.again()
    assert life.state is LinkState.RUNNING
    life.publish("q", b"one", exchange="")
    life.again()
    assert life.far.broker.default_host.queues["q"].message_count == 0


@pytest.mark.parametrize("name", ["amq.topic", "q"])
def test_a_link_whose_virtual_host_is_deleted_while_it_starts_has_an_error(name: str) -> None:
    life = Life()
    life.here.call("queue.declare", queue="q")
    life.federate(name)
    (link,) = life.upstreams._all()
    assert link._source is not None
    del life.own.broker.hosts["/"]
    link._set_up(link._source)
    (status,) = life.upstreams.statuses()
    assert (status.state, status.error[-14:]) == (LinkState.ERROR, "does not exist")


# ---- kills ----


class AcknowledgesAtOnce(Carrier):
    """Planted: acknowledges before the destination has confirmed."""

    def carry(self, tag: int, payload: bytes, header: bytes, body: Any, *, is_acknowledged: bool = True) -> None:
        super().carry(tag, payload, header, body, is_acknowledged=is_acknowledged)
        self._source.channel.ack(tag)


def binds_after_it_has_deleted_the_other(self: ExchangeLink, source: Any, new: str, old: str) -> None:
    """Planted: messages that come between the two are missed."""
    self._delete_exchange(source, old, lambda: _make_internal(self, source, new, old))


_make_internal = ExchangeLink._make_internal


def lost_in(seed: int) -> set[int]:
    """The messages that are lost in a history in which this broker's disk waits, and it is killed at the end."""
    chance, life, published = random.Random(seed), Life("amq.topic", reconnect_delay=0.5), 0
    store = life.own.store = KilledStore()
    life.own.durable_queue("kept")
    life.here.call("queue.bind", queue="kept", exchange="amq.topic", routing_key="#")
    life.worlds.run()
    for _ in range(60):
        action = chance.random()
        if action < 0.5:
            for _ in range(chance.randrange(1, 6)):
                life.there.publish(
                    "k", b"%d" % published, exchange="amq.topic", properties=Properties(delivery_mode=2)
                )  # fmt: skip
                published += 1
            life.worlds.run(chance.randrange(1, 6))
        elif action < 0.75 and store.flushes:
            store.end_flush()
            life.worlds.run(chance.randrange(0, 4))
        elif action < 0.85:
            chance.choice(life.worlds.wires).cut("cut")
        life.worlds.advance(chance.random())
        life.worlds.run(chance.randrange(0, 4))
    life.upstreams.close()
    life.worlds.cut(life.own)
    life.worlds.cut(life.far)
    safe = {int(bytes(restore_message(each).body)) for each in store.enqueued[: store.safe]}
    (queue,) = (each for each in life.far.broker.default_host.queues.values() if "federation" in each.name)
    left = {int(bytes(entry.message.whole().body)) for entry in queue.entries()}
    return set(range(published)) - safe - left


@pytest.mark.parametrize("seed", range(15))
def test_nothing_is_lost_when_this_broker_is_killed_or_a_connection_is_cut(seed: int) -> None:
    assert lost_in(seed) == set()


@pytest.mark.replaces
@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        (module, "Carrier", AcknowledgesAtOnce),
        (ExchangeLink, "_make_internal", binds_after_it_has_deleted_the_other),
    ],
)
def test_planted_bugs_are_found(where: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, bug)
    assert any(lost_in(seed) for seed in range(40))


# ---- parameters ----


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "uri"),
        ({"uri": "http://x"}, "amqp://"),
        ({"uri": "amqp://x", "max-hops": 0}, "max-hops"),
        ({"uri": "amqp://x", "ack-mode": "never"}, "ack-mode"),
        ({"uri": "amqp://x", "prefetch-count": True}, "prefetch-count"),
        ({"uri": "amqp://x", "reconnect-delay": 0.01}, "reconnect-delay"),
        ({"uri": "amqp://x", "trust-user-id": True}, "trust-user-id"),
        ({"uri": "amqp://x", "other": 1}, "other"),
        ([], "object"),
    ],
)
def test_upstreams_that_are_not_valid_are_refused(value: object, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        read_upstream("/", "u", value, "alice")


@pytest.mark.parametrize("value", [{}, [], [{"upstream": 1}], [{}], [{"upstream": "a", "uri": "amqp://x"}], [7]])
def test_sets_that_are_not_valid_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        read_set(value)


def test_a_uri_without_a_virtual_host_has_that_of_the_parameter() -> None:
    value = {"uri": ["amqp://a", "amqp://b/other"]}
    assert [uri.vhost for uri in read_upstream("mine", "u", value, "alice").uris] == ["mine", "other"]
