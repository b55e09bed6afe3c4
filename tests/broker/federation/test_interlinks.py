"""Domains and the links through them, between brokers in memory: what they move, store and show, and kills."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qstore.broker.federation import shovel as module
from qstore.broker.federation.carrier import Carrier
from qstore.broker.federation.interlinks import (
    INCOMING,
    OUTGOING,
    DomainSettings,
    Interlinks,
    InterlinkSettings,
    _record_of,
    read_uris,
)
from qstore.broker.federation.shovel import Shovels, ShovelState
from qstore.broker.log.logs import NOTICE
from qstore.broker.management.objects.interlink import (
    DOMAIN_CLASS,
    INCOMING_CLASS,
    INTERLINK_CLASS,
    OUTGOING_CLASS,
    create_interlink,
    delete_interlink,
)
from qstore.broker.model.authorization import Action, AllowAll, ObjectType
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.protocols.amqp_1_0.attaching import Attach
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.values import Described, Value
from qstore.formats.broker_records.topology import GeneralObject, without_passwords
from qstore.formats.values import typed_map
from tests.broker.federation.test_shovel import AcknowledgesAtOnce, AcknowledgesTheNext
from tests.broker.federation.test_stored_links import Nowhere
from tests.broker.federation.worlds import KilledStore, Worlds
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.broker.wired_broker import Somebody, Wired, play
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day
from tests.support.sections_peer import Delivered

ANN = Somebody("ann@QPID")
FAR = DomainSettings("far", "far:5672")
INTERVAL = 2.0


class Life:
    """A broker with the durable queue `inbox` and the queue `outbox`, and another one with the reverse, as a domain.

    Attributes:
        survived: what was on the disk of the other broker when it was killed, by queue.
    """

    def __init__(self, **domain: Any) -> None:
        self.worlds = Worlds(World(), far=self.new_far())
        self.survived: list[int] = []
        own = self.own
        own.durable_queue("inbox")
        make_queue(own, "outbox")
        own.broker.federation_tag = "here"
        self.shovels = Shovels(
            own.broker, self.worlds, own.soon.append, self.worlds.call_later,
            lambda work, done: own.work.append((work, done)), lambda: own.now,
        )  # fmt: skip
        self.interlinks = Interlinks(self.shovels)
        self.managed: Any = SimpleNamespace(broker=own.broker, interlinks=self.interlinks, sessions=self._sessions)
        asyncio.run(self.interlinks.create_domain(FAR._replace(**domain), ANN))
        self.client = LinksClient(own).open().sender("outbox")
        own.links_connections.interlinks = self.interlinks  # type: ignore[attr-defined]

    def _sessions(self) -> Any:
        for machine in self.own.machines:
            for channel, session in machine.sessions.items():
                yield SimpleNamespace(session=session, key=f"session {channel} of {machine.peer}")

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
        world.durable_queue("there")
        make_queue(world, "source")
        return world

    def link(self, direction: str = OUTGOING, source: str = "outbox", target: str = "there", **more: Any) -> Any:
        """Make a link with the name `l`."""
        settings = InterlinkSettings("l", direction, "far", source, target)._replace(**more)
        asyncio.run(self.interlinks.create_link(settings, ANN))
        self.worlds.run()
        return self.interlinks.links[settings.name]

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.client.publish(b"%d" % number, durable=True)
        self.worlds.run()

    def sync(self) -> None:
        for world in (self.own, self.far):
            while world.store.flushes:
                world.store.end_flush()
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

    def on(self, world: World, queue: str) -> int:
        return world.broker.default_host.queues[queue].message_count

    @property
    def left(self) -> list[int]:
        """What the queue `outbox` has, acquired or not."""
        self.interlinks.close()
        self.worlds.cut(self.own)
        self.worlds.run()
        queue = self.own.broker.default_host.queues["outbox"]
        return [int(bytes(entry.message.whole().content())) for entry in queue.entries()]

    def shown(self, of: Any) -> list[dict[str, Any]]:
        """The objects of a class, as management shows them."""
        found = []
        for _, target in of.objects(self.managed):
            view = of.look(target) if of.look is not None else target
            found.append({each.name: each.read(view) for each in (*of.properties, *of.statistics)})
        return found


# ---- messages ----


def test_an_outgoing_link_settles_a_message_when_the_domain_has_it_on_its_disk() -> None:
    life = Life()
    link = life.link()
    assert link.status.state is ShovelState.RUNNING
    life.publish(1, 2, 3)
    queue = life.own.broker.default_host.queues["outbox"]
    assert len(life.far.store.enqueued) == 3
    assert (queue.available_count, queue.acquired_count) == (0, 3)
    life.sync()
    assert queue.message_count == 0
    assert (life.on(life.far, "there"), link.status.forwarded, link.status.pending) == (3, 3, 0)


def test_an_incoming_link_settles_a_message_when_it_is_on_the_own_disk() -> None:
    life = Life()
    life.link(INCOMING, "source", "inbox")
    there = LinksClient(life.far).open().sender("source")
    there.publish(b"1", durable=True)
    there.publish(b"2", durable=True)
    life.worlds.run()
    assert (life.on(life.far, "source"), life.on(life.own, "inbox")) == (2, 2)
    life.sync()
    assert (life.on(life.far, "source"), life.on(life.own, "inbox")) == (0, 2)


def test_the_domain_knows_a_link_by_its_name_and_the_federation_tag() -> None:
    life = Life()
    life.link(INCOMING, "source", "inbox")
    (machine,) = [each for each in life.far.machines if getattr(each, "container", "") == "here"]
    ((link,),) = [list(session.attached_links) for session in machine.sessions.values()]
    assert (link.name, link.source, link.target, link.is_incoming) == ("l", "source", "", False)


@pytest.mark.parametrize("mechanisms", ["NONE", "ANONYMOUS", ""])
def test_a_link_may_be_anonymous_or_without_sasl(mechanisms: str) -> None:
    life = Life(mechanisms=mechanisms)
    assert life.link().status.state is ShovelState.RUNNING
    (client,) = [wire.client for wire in life.worlds.wires if wire.world is life.far]
    assert client.wire._is_offered is (mechanisms != "NONE")  # type: ignore[attr-defined]


def test_a_login_that_the_domain_refuses_is_shown_without_the_password() -> None:
    life = Life(mechanisms="SCRAM-SHA-256", username="u", password="secret")
    status = life.link().status
    assert status.state is ShovelState.TERMINATED
    assert "no usable SASL mechanism" in status.reason
    assert "secret" not in repr(status)


def test_a_source_that_does_not_exist_is_tried_again_with_back_off_until_it_does() -> None:
    life = Life()
    link = life.link(INCOMING, "later", "inbox")
    assert link.status.state is ShovelState.TERMINATED
    assert "later" in link.status.reason
    for delay in (INTERVAL, 2 * INTERVAL, 4 * INTERVAL):
        before = link.status.failures
        life.worlds.advance(delay * 0.9)
        life.worlds.run()
        assert link.status.failures == before
        life.worlds.advance(delay * 0.2)
        life.worlds.run()
        assert link.status.failures == before + 1
    make_queue(life.far, "later")
    life.worlds.advance(8 * INTERVAL)
    life.worlds.run()
    assert link.status.state is ShovelState.RUNNING
    life.kill_far()
    make_queue(life.far, "later")
    life.worlds.advance(INTERVAL)
    life.worlds.run()
    assert link.status.state is ShovelState.RUNNING, "a link that has run begins again"


def test_the_back_off_ends_at_32_intervals() -> None:
    life = Life()
    link = life.link(INCOMING, "never", "inbox")
    for _ in range(12):
        life.worlds.advance(32 * INTERVAL)
        life.worlds.run()
    assert link.status.failures == 13


# ---- kills ----


def lost_in(seed: int) -> set[int]:
    """The messages that are lost in a history of publishing, syncing, cutting and killing."""
    chance, life, published = random.Random(seed), Life(), 0
    life.link()
    for _ in range(60):
        action = chance.random()
        if action < 0.5:
            for _ in range(chance.randrange(1, 6)):
                life.client.publish(b"%d" % published, durable=True)
                published += 1
            life.worlds.run(chance.randrange(1, 6))
        elif action < 0.75 and life.far.store.flushes:
            life.far.store.end_flush()
            life.worlds.run(chance.randrange(0, 4))
        elif action < 0.85:
            life.kill_far()
            life.worlds.run(chance.randrange(0, 4))
        elif action < 0.9:
            chance.choice(life.worlds.wires).cut("cut")
        life.worlds.advance(chance.random() * INTERVAL)
        life.worlds.run(chance.randrange(0, 4))
    life.kill_far()
    return set(range(published)) - set(life.survived) - set(life.left)


@pytest.mark.parametrize("seed", seeds_of_the_day(20))
def test_nothing_is_lost_when_the_domain_is_killed_or_a_connection_is_cut(seed: int) -> None:
    assert lost_in(seed) == set()


@pytest.mark.replaces
@pytest.mark.parametrize("planted", [AcknowledgesAtOnce, AcknowledgesTheNext])
def test_the_simulation_finds_a_planted_bug(planted: type[Carrier], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Carrier", planted)
    assert any(lost_in(seed) for seed in range(10))


# ---- relays ----


def relayed(life: Life, node: str = "there@far", **fields: Any) -> LinksClient:
    """A client whose link 0 leads to the domain."""
    client = LinksClient(life.own).open(container_id="relayed")
    (attach,) = client.attach(node, **fields)
    assert attach.name == "attach"
    assert attach.fields["target"] is not None
    life.worlds.run()
    return client


def test_a_relayed_message_is_accepted_when_the_domain_has_it_on_its_disk() -> None:
    life = Life()
    client = relayed(life)
    (flow,) = client.take("flow")
    assert flow.fields["link_credit"] == 1_000
    client.publish(b"1", durable=True, subject="s")
    client.publish(b"2", durable=True)
    life.worlds.run()
    assert len(life.far.store.enqueued) == 2
    assert client.outcomes() == []
    life.sync()
    assert client.outcomes() == [(0, 1, "accepted")]
    entries = list(life.far.broker.default_host.queues["there"].entries())
    assert [bytes(each.message.whole().content()) for each in entries] == [b"1", b"2"]
    assert entries[0].message.section_properties()["subject"] == "s"
    assert life.own.store.enqueued == []


def test_a_relayed_link_ends_with_the_one_of_the_client() -> None:
    life = Life()
    client = relayed(life)
    domain = life.interlinks.domains["far"]
    assert len(domain.relays) == 1
    assert client.call("detach", handle=0, closed=True).name == "detach"
    life.worlds.run()
    assert not domain.relays
    relayed(life)
    life.own.links_connections.interlinks = None  # type: ignore[attr-defined]
    for machine in life.own.machines:
        if getattr(machine, "container", "") == "relayed":
            machine.dismantle()
    life.worlds.run()
    assert not domain.relays
    assert not any(getattr(each, "container", "") == "here" and each.sessions for each in life.far.machines)


def test_messages_of_a_relay_that_the_client_detaches_do_not_count_as_outstanding() -> None:
    life = Life()
    client = relayed(life)
    client.publish(b"1", durable=True)
    client.publish(b"2", durable=True, settled=True)
    life.worlds.run()
    assert client.outcomes() == []
    client.do("detach", handle=0, closed=True)
    assert client.outcomes() == [(0, 0, "modified")]
    assert len(client.take("detach")) == 1
    (session,) = client.machine.sessions.values()
    assert session.outstanding_commands == 0


def test_outcomes_do_not_wait_for_those_of_earlier_messages() -> None:
    life = Life()
    client = relayed(life)
    for number in range(3):
        client.publish(b"%d" % number, durable=True)
    life.worlds.run()
    (relay,) = life.interlinks.domains["far"].relays
    channel = relay._side.channel  # type: ignore[attr-defined]
    channel.on_outcome(2, 2, Composite("accepted", {}))
    channel.on_outcome(1, 1, Composite("declared", {"txn_id": Value("binary", bytes(5000))}))
    client.sync()
    assert client.outcomes() == [(1, 1, "modified"), (2, 2, "accepted")]
    life.kill_far()
    assert client.outcomes() == [(0, 0, "modified")]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_relay_that_ends_tells_what_is_in_doubt_and_why(is_killed: bool) -> None:
    life = Life()
    client = relayed(life)
    client.publish(b"1", durable=True)
    client.publish(b"2", durable=True, settled=True)
    life.worlds.run()
    client.take()
    if is_killed:
        life.kill_far()
    else:
        asyncio.run(life.interlinks.delete_domain("far", ANN))
    found = client.take()
    assert [each.name for each in found] == ["disposition", "detach"]
    state = found[0].fields["state"]
    assert (state.name, state.fields["delivery_failed"]) == ("modified", True)
    error = found[1].fields["error"].fields
    assert error["condition"] == "amqp:internal-error"
    assert ("connection was lost" if is_killed else "domain was deleted") in error["description"]
    assert not life.interlinks.domains.get("far", SimpleNamespace(relays={})).relays


def test_outcomes_of_the_domain_are_those_of_the_client() -> None:
    life = Life()
    make_queue(life.far, "small", arguments=typed_map({"qpid.max_count": 1, "qpid.policy_type": "reject"}))
    client = relayed(life, "small@far")
    client.publish(b"1")
    client.publish(b"2")
    life.worlds.run()
    life.sync()
    assert client.outcomes() == [(0, 0, "accepted"), (1, 1, "rejected")]


@replaces
def test_a_client_has_no_more_credit_than_the_domain_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.protocols.amqp_1_0.session.CREDIT", 4)
    life = Life()
    client = relayed(life)
    (flow,) = client.take("flow")
    assert flow.fields["link_credit"] == 4
    for number in range(4):
        client.publish(b"%d" % number, durable=True)
    life.worlds.run()
    assert client.take("flow") == [], "the domain gives none before its disk has them"
    life.sync()
    assert client.take("flow")[-1].fields["link_credit"] == 4


def test_while_the_domain_takes_nothing_the_client_is_not_read() -> None:
    life = Life()
    client = relayed(life)
    (wire,) = [each for each in life.worlds.wires if each.world is life.far]
    wire.client.pause_sending()
    client.publish(b"1")
    client.sync()
    assert client.machine.is_paused
    wire.client.resume_sending()
    assert not client.machine.is_paused
    wire.client.pause_sending()
    client.publish(b"2")
    client.sync()
    wire.cut("gone")
    assert not client.machine.is_paused


def test_who_may_not_create_links_is_not_relayed() -> None:
    life = Life()
    life.own.broker.authorization.authorizer = AllowNone()
    found = LinksClient(life.own).open().attach("there@far")
    assert [each.name for each in found] == ["attach", "detach"]
    assert found[1].fields["error"].fields["condition"] == "amqp:unauthorized-access"
    assert not life.interlinks.domains["far"].relays


@pytest.mark.parametrize(
    ("node", "receives", "condition"),
    [
        ("there@nowhere", False, "amqp:not-found"), ("@far", False, "amqp:not-found"),
        ("there@nowhere", True, "amqp:not-found"),
    ],
)  # fmt: skip
def test_addresses_that_are_not_relayed(node: str, receives: bool, condition: str) -> None:
    found = LinksClient(Life().own).open().attach(node, receives=receives)
    assert found[-1].fields["error"].fields["condition"] == condition


def test_a_queue_with_such_a_name_comes_first() -> None:
    life = Life()
    make_queue(life.own, "there@far")
    client = LinksClient(life.own).open().sender("there@far")
    client.publish(b"1")
    client.sync()
    assert life.on(life.own, "there@far") == 1
    assert not life.interlinks.domains["far"].relays


def test_relays_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.federation.interlinks.MAX_RELAYS", 1)
    life = Life()
    relayed(life)
    found = LinksClient(life.own).open().attach("there@far")
    assert found[-1].fields["error"].fields["condition"] == "amqp:resource-limit-exceeded"


# ---- what clients receive from a domain ----

ACCEPTED = Composite("accepted", {})


def fetching(life: Life, count: int, node: str = "there@far", **fields: Any) -> LinksClient:
    """A client whose link 0 comes from the domain, where `there` gets so many messages."""
    far = LinksClient(life.far).open().sender("there")
    for number in range(count):
        far.publish(b"%d" % number, durable=True)
    client = LinksClient(life.own).open(container_id="fetching")
    (attach,) = client.attach(node, receives=True, **fields)
    assert attach.fields["source"] is not None
    life.worlds.run()
    life.sync()
    return client


def got(life: Life, client: LinksClient) -> list[bytes]:
    life.worlds.run()
    life.sync()
    return [bytes(each.content)[-1:] for each in client.messages()]


def acquired(life: Life) -> int:
    queue = life.far.broker.default_host.queues["there"]
    return queue.message_count - queue.available_count


def test_a_client_gets_as_many_messages_of_the_domain_as_it_has_credit_for() -> None:
    life = Life()
    client = fetching(life, 5)
    assert got(life, client) == []
    client.credit(2)
    assert got(life, client) == [b"0", b"1"]
    assert (life.on(life.far, "there"), life.own.store.enqueued) == (5, [])
    client.credit(2, seen=2)
    assert got(life, client) == [b"2", b"3"]
    (shown,) = life.shown(OUTGOING_CLASS)
    assert (shown["source"], shown["transfers"]) == ("there@far", 4)


def test_an_outcome_is_settled_when_the_domain_has_it_on_its_disk() -> None:
    life = Life()
    client = fetching(life, 3)
    client.credit(3)
    assert len(got(life, client)) == 3
    client.settle(ACCEPTED, 0, 1, settled=False)
    life.worlds.run()
    assert client.take("disposition") == []
    life.sync()
    found = client.take("disposition")
    assert [(each.fields["first"], each.fields["settled"]) for each in found] == [(0, True), (1, True)]
    assert all(each.fields["state"].name == "accepted" for each in found)
    client.settle(ACCEPTED, 2)
    life.worlds.run()
    life.sync()
    assert client.take("disposition") == []
    assert life.on(life.far, "there") == 0
    (session,) = client.machine.sessions.values()
    assert not session.fetched  # type: ignore[attr-defined]


@pytest.mark.parametrize("state", ["released", "modified"])
def test_what_is_released_is_in_the_domain_again(state: str) -> None:
    life = Life()
    client = fetching(life, 1)
    client.credit(1)
    assert got(life, client) == [b"0"]
    client.settle(Composite(state, {"delivery_failed": True} if state == "modified" else {}), 0, settled=False)
    life.worlds.run()
    assert client.take("disposition")[0].fields["state"].name == state
    client.credit(1, seen=1)
    life.worlds.run()
    (again,) = client.messages()
    assert bytes(again.content)[-1:] == b"0"


def test_a_link_is_drained_when_the_domain_has_no_more() -> None:
    life = Life()
    client = fetching(life, 2)
    client.credit(5, drain=True)
    assert got(life, client) == [b"0", b"1"]
    flow = client.take("flow")[-1].fields
    assert (flow["link_credit"], flow["delivery_count"], flow["drain"]) == (0, 5, True)
    client.credit(2, seen=5, drain=True)
    life.worlds.run()
    assert client.take("flow")[-1].fields["delivery_count"] == 7
    client.credit(1, seen=7)
    LinksClient(life.far).open().sender("there").publish(b"8")
    assert got(life, client) == [b"8"]


def test_a_drain_takes_credit_back_that_the_client_no_longer_gives() -> None:
    """A message that came then would wait on the link, and others would not get it."""
    life = Life()
    client = fetching(life, 0)
    client.credit(5)
    assert got(life, client) == []
    client.credit(0, drain=True)
    life.worlds.run()
    LinksClient(life.far).open().sender("there").publish(b"0")
    assert got(life, client) == []
    assert acquired(life) == 0
    client.credit(1)
    assert got(life, client) == [b"0"]


@replaces
def test_no_more_messages_come_than_the_client_may_leave_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.protocols.amqp_1_0.fetched.MAX_UNSETTLED", 4)
    life = Life()
    client = fetching(life, 10)
    client.credit(8, drain=True)
    assert got(life, client) == [b"0", b"1", b"2", b"3"]
    client.settle(ACCEPTED, 0, 1)
    assert got(life, client) == [b"4", b"5"]
    client.settle(ACCEPTED, 2, 5)
    assert got(life, client) == [b"6", b"7"]
    assert (acquired(life), life.on(life.far, "there")) == (2, 4)


def test_messages_wait_for_the_window_of_the_session() -> None:
    life = Life()
    client = fetching(life, 3)
    client.credit(3, incoming_window=1)
    assert got(life, client) == [b"0"]
    client.do("flow", next_incoming_id=1, incoming_window=10, next_outgoing_id=0, outgoing_window=10)
    assert got(life, client) == [b"1", b"2"]


def test_a_domain_is_not_read_while_its_messages_wait() -> None:
    life = Life()
    for _ in range(2):
        LinksClient(life.far).open().sender("there").publish(bytes(5 << 20))
    client = fetching(life, 1)
    client.credit(3, incoming_window=1)
    life.worlds.run()
    (way,) = life.interlinks.domains["far"].relays
    assert way._side.wire.is_paused  # type: ignore[attr-defined, union-attr]
    client.do("flow", next_incoming_id=1, incoming_window=1_000_000, next_outgoing_id=0, outgoing_window=10)
    found: list[Delivered] = []
    while way._side.wire.is_paused or len(found) < 3:  # type: ignore[attr-defined, union-attr]
        life.worlds.run()
        found += client.messages()
    assert [len(each.content) > 5 << 20 for each in found] == [True, True, False]


def test_messages_come_settled_if_the_client_wants_them_so() -> None:
    life = Life()
    client = fetching(life, 2, snd_settle_mode=1)
    client.credit(5)
    life.worlds.run()
    assert [each.fields["settled"] for each in client.messages()] == [True, True]
    life.sync()
    assert life.on(life.far, "there") == 0


def link_of_the_domain(life: Life) -> Any:
    """The link of the domain from which messages are fetched."""
    (machine,) = [each for each in life.far.machines if getattr(each, "container", "") == "here"]
    (session,) = machine.sessions.values()
    (link,) = session.subscriptions.values()
    return link


def test_messages_come_settled_if_the_domain_settles_them() -> None:
    """A sender may do so whatever the receiver asks for; there is nobody who would settle an outcome."""
    life = Life()
    client = fetching(life, 2)
    link_of_the_domain(life).settles = True
    client.credit(5)
    life.worlds.run()
    assert [each.fields["settled"] for each in client.messages()] == [True, True]
    (session,) = client.machine.sessions.values()
    assert not session.fetched  # type: ignore[attr-defined]


def test_a_selector_is_that_of_the_domain() -> None:
    life = Life()
    kind = Value("symbol", "apache.org:selector-filter:string")
    text = Value("described", Described(kind, Value("string", "n = 1")))
    client = LinksClient(life.own).open()
    client.attach("there@far", receives=True, terminus={"filter": ((Value("symbol", "s"), text),)})
    life.worlds.run()
    assert "n = 1" in str(link_of_the_domain(life).kind)


@replaces
@pytest.mark.parametrize("applies", [True, False])
def test_filters_that_the_domain_does_not_apply_are_logged(
    applies: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(NOTICE)
    sound = Attach._actual

    def without_filters(attach: Attach, link: Any) -> dict[str, Any]:
        return {**sound(attach, link), "filter": None}

    if not applies:
        monkeypatch.setattr(Attach, "_actual", without_filters)
    life = Life()
    kind = Value("symbol", "apache.org:selector-filter:string")
    text = Value("described", Described(kind, Value("string", "n = 1")))
    client = LinksClient(life.own).open()
    client.attach("there@far", receives=True, terminus={"filter": ((Value("symbol", "mine"), text),)})
    life.worlds.run()
    lines = [each.getMessage() for each in caplog.records if "filters have no effect" in each.getMessage()]
    assert [line.endswith("does not apply them: mine") for line in lines] == ([] if applies else [True])


@pytest.mark.parametrize("ends", ["detach", "end", "close", "lost"])
def test_what_has_no_outcome_is_in_the_domain_again_when_the_link_ends(ends: str) -> None:
    life = Life()
    client = fetching(life, 3)
    client.credit(2)
    assert len(got(life, client)) == 2
    assert acquired(life) == 2
    if ends == "lost":
        client.machine.dismantle()
    else:
        client.do(ends, **({"handle": 0, "closed": True} if ends == "detach" else {}))
    life.worlds.run()
    assert (acquired(life), life.on(life.far, "there")) == (0, 3)
    assert not life.interlinks.domains["far"].relays


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_client_is_told_why_no_more_messages_come(is_killed: bool) -> None:
    life = Life()
    client = fetching(life, 2)
    client.credit(5)
    assert len(got(life, client)) == 2
    client.settle(ACCEPTED, 0, settled=False)
    if is_killed:
        life.kill_far()
    else:
        asyncio.run(life.interlinks.delete_domain("far", ANN))
    (detach,) = client.take()
    error = detach.fields["error"].fields
    assert ("connection was lost" if is_killed else "domain was deleted") in error["description"]
    client.settle(ACCEPTED, 1, settled=False)
    client.sync()
    assert client.take() == []


def test_a_message_that_is_too_large_for_the_client_ends_its_link() -> None:
    life = Life()
    client = fetching(life, 0, max_message_size=100)
    LinksClient(life.far).open().sender("there").publish(bytes(200))
    client.credit(5)
    assert got(life, client) == []
    (detach,) = client.take("detach")
    assert "the client accepts 100" in detach.fields["error"].fields["description"]
    assert acquired(life) == 0


def test_a_message_of_a_domain_is_not_part_of_a_transaction() -> None:
    life = Life()
    client = fetching(life, 1)
    client.credit(5)
    assert len(got(life, client)) == 1
    client.settle(Composite("transactional-state", {"txn_id": Value("binary", b"1"), "outcome": ACCEPTED}), 0)
    (end,) = client.take("end")
    assert end.fields["error"].fields["condition"] == "amqp:not-implemented"


def test_a_source_that_the_domain_has_not_ends_the_link() -> None:
    life = Life()
    client = LinksClient(life.own).open()
    client.attach("nowhere@far", receives=True)
    life.worlds.run()
    (detach,) = client.take("detach")
    assert "nowhere" in detach.fields["error"].fields["description"]


# ---- making and deleting ----


class AllowNone(AllowAll):
    """Nobody may create links."""

    def allows(self, _caller: Any, action: Any, kind: Any, _name: str, _properties: Any) -> bool:
        return (action, kind) != (Action.CREATE, ObjectType.LINK)


def test_names_are_unique_and_domains_in_use_stay() -> None:
    life = Life()
    life.link()
    interlinks = life.interlinks
    with pytest.raises(NotAllowedError, match='domain named "far" already exists'):
        asyncio.run(interlinks.create_domain(FAR, ANN))
    with pytest.raises(NotAllowedError, match='already a link "l"'):
        life.link(INCOMING, "source", "inbox")
    with pytest.raises(NotFoundError, match="No such domain: near"):
        life.link(name="m", domain="near")
    with pytest.raises(PreconditionFailedError, match='in use by outgoing link "l"'):
        asyncio.run(interlinks.delete_domain("far", ANN))
    with pytest.raises(NotFoundError, match="No such incoming link: l"):
        asyncio.run(interlinks.delete_link(INCOMING, "l", ANN))
    asyncio.run(interlinks.delete_link(OUTGOING, "l", ANN))
    asyncio.run(interlinks.delete_domain("far", ANN))
    life.worlds.run()
    assert (interlinks.links, interlinks.domains) == ({}, {})
    assert not any(getattr(each, "container", "") == "here" and each.sessions for each in life.far.machines)
    life.publish(1)
    assert life.on(life.own, "outbox") == 1
    with pytest.raises(NotFoundError, match="No such domain: far"):
        asyncio.run(interlinks.delete_domain("far", ANN))


def test_who_may_not_create_links_may_not_change_anything() -> None:
    life = Life()
    life.link()
    life.own.broker.authorization.authorizer = AllowNone()
    interlinks = life.interlinks
    for work in (
        interlinks.create_domain(FAR._replace(name="m"), ANN), interlinks.delete_domain("far", ANN),
        interlinks.create_link(InterlinkSettings("m", OUTGOING, "far", "outbox", "there"), ANN),
        interlinks.delete_link(OUTGOING, "l", ANN),
    ):  # fmt: skip
        with pytest.raises(UnauthorizedError):
            asyncio.run(work)
    with pytest.raises(UnauthorizedError):
        interlinks.restart(OUTGOING, "l", ANN)
    assert (list(interlinks.domains), list(interlinks.links)) == (["far"], ["l"])


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    life.link()
    monkeypatch.setattr("qstore.broker.federation.interlinks.MAX_DOMAINS", 1)
    monkeypatch.setattr("qstore.broker.federation.interlinks.MAX_INTERLINKS", 1)
    with pytest.raises(ResourceLimitExceededError, match="1 domains"):
        asyncio.run(life.interlinks.create_domain(FAR._replace(name="near"), ANN))
    with pytest.raises(ResourceLimitExceededError, match="1 links"):
        life.link(name="m")
    for wrong in ({"name": ""}, {"name": "x" * 256}, {"source": ""}, {"target": ""}, {"source": "x" * 256}):
        with pytest.raises(InvalidArgumentError):
            life.link(**{"name": "m", **wrong})
    with pytest.raises(InvalidArgumentError, match="Domain must be specified"):
        life.link(name="m", domain="")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("host.acme.com", ["amqp://host.acme.com"]),
        ("h:5", ["amqp://h:5"]),
        ("[::1]:5", ["amqp://[::1]:5"]),
        ("amqp:tcp:h:5,ssl:i:6", ["amqp://h:5", "amqps://i:6"]),
        ("amqps://h/v", ["amqps://h/v"]),
    ],
)
def test_addresses_of_a_domain(url: str, shown: list[str]) -> None:
    found = read_uris(FAR._replace(url=url, username="u", password="p"))
    assert [each.shown for each in found] == shown
    assert {(each.user, each.password, each.mechanisms) for each in found} == {("u", "p", None)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""}, {"url": "h:0"}, {"url": "u/p@h:5"}, {"url": "amqp://u:p@h"}, {"url": "h:5,"}, {"url": "rdma:h:5"},
        {"url": "amqp:///v"}, {"url": "http://h"}, {"url": ",".join(["h"] * 17)}, {"mechanisms": "PLAIN GUESS"},
        {"mechanisms": "NONE PLAIN"},
    ],
)  # fmt: skip
def test_domains_that_are_not_valid_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        read_uris(FAR._replace(**wrong))
    assert "u:p" not in str(refused.value)
    assert "u/p" not in str(refused.value)


# ---- management ----


def test_what_management_creates_and_shows() -> None:
    life = Life()
    life.own.broker.store = None
    managed = life.managed

    def create(kind: str, name: str, *, strict: bool = True, **properties: Any) -> None:
        work = create_interlink(managed, kind, name, typed_map(properties), strict=strict, caller=ANN)
        asyncio.run(work)

    create(
        "domain", "other", url="far:1", sasl_mechanisms="SCRAM-SHA-1", username="u", password="secret", durable="yes"
    )
    create("incoming", "in", domain="far", src="source", dest="inbox")
    create("outgoing", "out", domain="far", source="outbox", target="nowhere")
    with pytest.raises(InvalidArgumentError, match="unknown property: colour"):
        create("domain", "x", url="h", colour="red")
    with pytest.raises(InvalidArgumentError, match="A url is required"):
        create("domain", "x")
    with pytest.raises(NotImplementedByBrokerError, match="sasl_service"):
        create("domain", "x", url="h", sasl_service="amqp", strict=False)
    with pytest.raises(InvalidArgumentError, match="a durable link needs a durable domain"):
        create("incoming", "x", domain="far", source="source", target="inbox", durable=True)
    life.worlds.run()
    life.publish(1)
    assert life.shown(DOMAIN_CLASS) == [
        {"name": "far", "durable": False, "url": "far:5672", "mechanisms": "ANONYMOUS", "username": "", "password": ""},
        {
            "name": "other", "durable": True, "url": "far:1", "mechanisms": "SCRAM-SHA-1", "username": "u",
            "password": "",
        },
    ]  # fmt: skip
    links = {each["name"]: each for each in life.shown(INTERLINK_CLASS)}
    assert (links["in"]["direction"], links["in"]["state"], links["in"]["creator"]) == (
        "incoming", "running", "ann@QPID",
    )  # fmt: skip
    assert links["out"]["state"] == "terminated"
    assert "nowhere" in links["out"]["reason"]
    through = [each for each in life.shown(INCOMING_CLASS) if each["domain"]]
    assert [(each["name"], each["source"], each["target"], each["domain"]) for each in through] == [
        ("in", "source", "inbox", "far")
    ]
    assert through[0]["containerid"]
    clients = [each for each in life.shown(INCOMING_CLASS) if each["containerid"] == "test"]
    assert [(each["name"], each["target"], each["transfers"]) for each in clients] == [("link-0", "outbox", 1)]
    outgoing = [each for each in life.shown(OUTGOING_CLASS) if each["domain"]]
    assert outgoing == []
    for kind, name in (("incoming", "in"), ("outgoing", "out"), ("domain", "other"), ("domain", "far")):
        asyncio.run(delete_interlink(managed, kind, name, ANN))
    assert life.shown(DOMAIN_CLASS) == life.shown(INTERLINK_CLASS) == []


# ---- the store ----


def interlinks_of(stage: Wired) -> tuple[Interlinks, Nowhere]:
    network = Nowhere()
    unused: Any = None
    return Interlinks(Shovels(stage.broker, network, unused, network.call_later, unused)), network  # type: ignore[arg-type]


DURABLE = DomainSettings("far", "ssl:far:5671,far", "SCRAM-SHA-256", "bob", "hidden", durable=True)
LINK = InterlinkSettings("l", INCOMING, "far", "a", "b", durable=True)


def test_durable_domains_and_links_are_recovered_with_their_creator(tmp_path: Path) -> None:
    async def first(stage: Wired) -> None:
        interlinks, network = interlinks_of(stage)
        network.connect_directly = lambda *_: network  # type: ignore[attr-defined]
        await interlinks.create_domain(DURABLE, ANN)
        await interlinks.create_domain(FAR._replace(name="lost"), ANN)
        await interlinks.create_link(LINK, ANN)
        await interlinks.create_link(LINK._replace(name="gone", domain="lost", durable=False), ANN)

    async def second(stage: Wired) -> None:
        interlinks, network = interlinks_of(stage)
        network.connect_directly = lambda *_: network  # type: ignore[attr-defined]
        interlinks.start()
        assert [each.settings for each in interlinks.domains.values()] == [DURABLE]
        ((link,),) = (interlinks.links.values(),)
        assert (link.settings, link.creator) == (LINK, "ann@QPID")
        assert [str(each) for each in network.tried] == ["far:5671"]
        await interlinks.delete_link(INCOMING, "l", ANN)
        await interlinks.delete_domain("far", ANN)

    async def third(stage: Wired) -> None:
        interlinks, network = interlinks_of(stage)
        interlinks.start()
        assert (interlinks.domains, interlinks.links, network.tried) == ({}, {}, [])

    play(tmp_path, first, second, third)


def test_domains_of_qpidd_are_used_and_those_that_cannot_be_are_kept(tmp_path: Path) -> None:
    records = [
        GeneralObject("domain", "A", typed_map({"url": "amqp:tcp:far:5672", "durable": True, "colour": "red"})),
        GeneralObject("domain", "B", typed_map({"url": b"far:5673", "sasl_mechanisms": "NONE"})),
        GeneralObject("domain", "C", typed_map({"url": "rdma:far:5672"})),
    ]

    async def first(stage: Wired) -> None:
        assert stage.store is not None
        for record in records:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            stage.store.changes.create_general(record, lambda _made, _error, answer=answer: answer.set_result(None))
            await answer

    async def second(stage: Wired) -> None:
        interlinks, _ = interlinks_of(stage)
        interlinks.start()
        assert {each.settings for each in interlinks.domains.values()} == {
            DomainSettings("A", "amqp:tcp:far:5672", durable=True),
            DomainSettings("B", "far:5673", "NONE", durable=True),
        }  # fmt: skip
        assert stage.store is not None
        assert [each.name for each in stage.store.topology.general.values()] == ["A", "B", "C"]  # type: ignore[union-attr]
        with pytest.raises(NotAllowedError, match="delete it first"):
            await interlinks.create_domain(FAR._replace(name="C", durable=True), ANN)
        await interlinks.delete_domain("C", ANN)
        await interlinks.create_domain(FAR._replace(name="C", durable=True), ANN)
        with pytest.raises(NotAllowedError, match="already exists"):
            await interlinks.create_domain(FAR._replace(name="C"), ANN)

    async def third(stage: Wired) -> None:
        interlinks, _ = interlinks_of(stage)
        interlinks.start()
        assert interlinks.domains["C"].settings == FAR._replace(name="C", durable=True)

    play(tmp_path, first, second, third)


def test_passwords_of_domains_are_not_shown() -> None:
    record = GeneralObject("domain", "A", typed_map({"url": "h", "username": "u", "password": "hidden"}))
    assert without_passwords(record) == GeneralObject("domain", "A", typed_map({"url": "h", "username": "u"}))
    assert "hidden" not in repr(DURABLE)
    assert "hidden" not in repr(read_uris(DURABLE))


@pytest.mark.parametrize(
    ("url", "given", "refusal"),
    [
        ("ssl:h:5671", {"min_ssf": 128}, ""), ("amqps://h", {"min_ssf": 1, "max_ssf": 256}, ""),
        ("h", {"min_ssf": 0}, ""), ("h", {"max_ssf": 0}, ""), ("h", {"min_ssf": 1}, "needs TLS"),
        ("ssl:h:5671,h", {"min_ssf": 56}, "needs TLS"), ("ssl:h:5671", {"min_ssf": 256}, "0 to 128"),
        ("h", {"min_ssf": "much"}, "min_ssf"), ("h", {"max_ssf": -1}, "max_ssf"),
    ],
)  # fmt: skip
def test_a_least_strength_needs_tls(url: str, given: dict[str, Any], refusal: str) -> None:
    life = Life()

    def create() -> None:
        properties = typed_map({"url": url, **given})
        asyncio.run(create_interlink(life.managed, "domain", "x", properties, strict=True, caller=ANN))

    if refusal:
        with pytest.raises(InvalidArgumentError, match=refusal):
            create()
    else:
        create()
    assert ("x" in life.interlinks.domains) is not bool(refusal)


@pytest.mark.parametrize("value", [0, 256])
def test_a_greatest_strength_has_no_effect_and_is_logged(value: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    life = Life()
    properties = typed_map({"url": "far", "max_ssf": value})
    asyncio.run(create_interlink(life.managed, "domain", "x", properties, strict=True, caller=ANN))
    (line,) = [each for each in caplog.records if "max_ssf" in each.getMessage()]
    assert line.getMessage() == f'Domain "x": max_ssf {value} is ignored: it limits layers of SASL, and links have none'
    assert line.levelno == NOTICE
    caplog.clear()
    asyncio.run(create_interlink(life.managed, "domain", "y", typed_map({"url": "far"}), strict=True, caller=ANN))
    assert "max_ssf" not in caplog.text


def test_properties_of_stored_domains_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    life = Life()
    properties = typed_map({"url": "far", "max_ssf": 256, "sasl_service": b"qpidd", "durable": True})
    store = SimpleNamespace(topology=SimpleNamespace(general={7: GeneralObject("domain", "d", properties)}))
    life.own.broker.store = store
    life.interlinks.start()
    assert "d" in life.interlinks.domains
    assert [each.getMessage().partition(" is ignored")[0] for each in caplog.records if each.levelno == NOTICE] == [
        'Domain "d": max_ssf 256', "Domain \"d\": sasl_service 'qpidd'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "min_ssf", "is_used"), [("ssl:h:5671", 56, True), ("h:5672", 56, False), ("ssl:h:5671", "much", False)]
)
def test_a_stored_domain_keeps_its_least_strength(url: str, min_ssf: object, is_used: bool) -> None:
    life = Life()
    properties = typed_map({"url": url, "min_ssf": min_ssf, "durable": True})
    store = SimpleNamespace(topology=SimpleNamespace(general={7: GeneralObject("domain", "d", properties)}))
    life.own.broker.store = store
    life.interlinks.start()
    assert ("d" in life.interlinks.domains) is is_used
    if is_used:
        assert life.interlinks.domains["d"].settings.min_ssf == min_ssf
        (kept,) = [dict(each.properties.entries) for each in (_record_of(life.interlinks.domains["d"].settings),)]
        assert kept["min_ssf"].value == min_ssf
