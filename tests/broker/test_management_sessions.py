"""Sessions over management: attached and detached ones, and methods on them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
from qstore.broker.management.objects import client as clients
from qstore.broker.management.objects.client import SESSION_CLASS, SUBSCRIPTION_CLASS
from qstore.broker.management.request import Arguments
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import PreconditionFailedError
from qstore.broker.protocols.amqp_0_10.subscription import UNLIMITED
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import typed_map
from tests.broker.protocols.world import Client, World
from tests.support.management_console import managed, statistics

_SETTINGS = BrokerSettings(auth=False)


class Managed:
    """A broker with a client, whose session lives for a minute without it."""

    def __init__(self, settings: BrokerSettings = _SETTINGS) -> None:
        self.world = World(settings)
        self.world.broker.call_later = lambda _wait, _call: None
        self.client: Client = self.world.open_client(name=b"work", timeout=60)
        machines: Any = lambda: [each for each in (self.client.machine,) if not each.is_closed]  # noqa: E731
        detached = lambda: self.world.sessions.list_detached(lambda: self.world.now)  # noqa: E731
        self.managed: ManagedBroker = managed(self.world.broker, machines=machines, detached=detached)

    def only(self) -> ListedSession:
        """The only session."""
        (found,) = self.managed.sessions()
        return found

    def values(self) -> dict[str, Any]:
        """The properties of the only session."""
        view = SESSION_CLASS.look(self.only())
        return {each.name: each.read(view) for each in SESSION_CLASS.properties}

    def do(self, method: Any) -> None:
        """Call a method on the only session."""
        assert asyncio.run(method(self.managed, self.only(), Arguments(), BROKER)) == {}


def test_a_session_is_listed_while_it_is_detached() -> None:
    stage = Managed()
    stage.client.declare("q")
    stage.client.subscribe("q", to="d")
    stage.client.publish("q", b"1")
    stage.client.sync()
    attached = stage.values()
    assert (attached["attached"], attached["expireTime"], attached["detachedLifespan"]) == (True, None, 60)
    begins = stage.world.broker.clock()
    stage.client.machine.closed()
    detached = stage.values()
    same = ("name", "fullName", "channelId", "connectionRef", "detachedLifespan")
    assert {name: detached[name] for name in same} == {name: attached[name] for name in same}
    assert not detached["attached"]
    assert begins + 60 <= detached["expireTime"] / 1e9 <= stage.world.broker.clock() + 60
    assert stage.values()["expireTime"] == detached["expireTime"]
    assert statistics(SESSION_CLASS, stage.only())["unackedMessages"] == 1
    assert len(list(SUBSCRIPTION_CLASS.objects(stage.managed))) == 1


def test_detached_session_can_be_closed_or_given_more_time() -> None:
    stage = Managed()
    stage.client.declare("q")
    stage.client.subscribe("q", to="d")
    stage.client.publish("q", b"1")
    stage.client.sync()
    stage.client.machine.closed()
    for method in (clients.detach_session, clients.solicit_ack):
        with pytest.raises(PreconditionFailedError, match='work" is detached'):
            stage.do(method)
    stage.world.now += 50
    stage.do(clients.reset_lifespan)
    stage.world.now += 50
    stage.world.sessions.on_timer(stage.world.now)
    queue = stage.world.broker.default_host.queues["q"]
    assert (queue.consumer_count, queue.available_count) == (1, 0)
    stage.do(clients.close_session)
    assert list(stage.managed.sessions()) == []
    assert (queue.consumer_count, queue.available_count) == (0, 1)


def test_the_timeout_of_an_attached_session_has_not_begun() -> None:
    stage = Managed()
    stage.do(clients.reset_lifespan)
    assert stage.values()["attached"]


@pytest.mark.parametrize("rate", [0, 250])
def test_the_rate_of_a_session(rate: int) -> None:
    stage = Managed(BrokerSettings(auth=False, max_session_rate=rate))
    assert stage.values()["maxClientRate"] == (rate or None)


def test_credit_and_outstanding_commands() -> None:
    stage = Managed()
    client = stage.client
    client.declare("q", arguments=typed_map({"qpid.flow_stop_count": 1, "qpid.flow_resume_count": 0}))
    client.command("message.subscribe", queue="q", destination="d", arguments=typed_map({"x": 1}))
    client.command("message.flow", destination="d", unit=0, value=7)
    client.command("message.subscribe", queue="q", destination="e", acquire_mode=1)
    client.sync()
    found = statistics(SESSION_CLASS, stage.only())
    assert (found["clientCredit"], found["framesOutstanding"]) == (7, 0)
    client.command("message.flow", destination="e", unit=0, value=UNLIMITED)
    client.command("message.stop", destination="d")
    client.publish("q", b"1", b"2", b"3")
    client.sync()
    found = statistics(SESSION_CLASS, stage.only())
    assert (found["clientCredit"], found["framesOutstanding"]) == (UNLIMITED, 2)
    read = {each.name: each.read for each in SUBSCRIPTION_CLASS.properties}["arguments"]
    assert [read(target) for _, target in SUBSCRIPTION_CLASS.objects(stage.managed)] == [
        typed_map({"x": 1}),
        typed_map({}),
    ]
