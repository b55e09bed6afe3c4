"""Who may make links and bridges, and as whom a bridge publishes and consumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.federation.bridge import BridgeSettings
from qstore.broker.federation.federation import LinkSettings
from qstore.broker.federation.link import LinkState, Remote, RemoteLogin
from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.broker.model.caller import Client
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    UnauthorizedError,
)
from tests.broker.federation.linked import Linked
from tests.broker.federation.test_bridges import on, queue

ANN = Client("ann@QPID", "192.0.2.1:5", "ann")


class Rules:
    """Allows what its sets have, and everything else that concerns neither links nor messages."""

    checks_publish = True

    def __init__(self) -> None:
        self.denied: set[tuple[str, Action, ObjectType]] = set()
        self.publishers = {"ann@QPID", "anonymous@QPID"}
        self.asked: list[tuple[str, Action, ObjectType]] = []

    def allows(self, caller: Any, action: Action, object_type: ObjectType, _name: str, _properties: Any) -> bool:
        self.asked.append((caller.user, action, object_type))
        return (caller.user, action, object_type) not in self.denied

    def publishing(self, caller: Any, _exchange: str, _key: str) -> Publishing:
        return Publishing.ONCE if caller.user in self.publishers else Publishing.REFUSED

    def allows_forwarding(self, caller: Any, _exchange: str, _pattern: str) -> bool:
        return caller.user in self.publishers


@pytest.fixture
def linked() -> Linked:
    return Linked("near", "far")


@pytest.fixture
def rules(linked: Linked) -> Rules:
    found = Rules()
    linked.worlds[0].broker.authorization.authorizer = found
    return found


def make_link(linked: Linked) -> None:
    settings = LinkSettings("link", Remote("here", 2), login=RemoteLogin("ANONYMOUS"))
    linked.do(linked.federations[0].create_link(settings, ANN))


def make_bridge(linked: Linked, **more: Any) -> None:
    settings = BridgeSettings("bridge", "link", False, **{"source": "q", "destination": "amq.fanout", **more})
    linked.do(linked.federations[0].create_bridge(settings, ANN))


def test_a_link_needs_the_permission_and_connects_to_nowhere_without(linked: Linked, rules: Rules) -> None:
    rules.denied.add(("ann@QPID", Action.CREATE, ObjectType.LINK))
    federation = linked.federations[0]
    works: list[Callable[[], Any]] = [
        lambda: federation.create_link(LinkSettings("link", Remote("here", 2)), ANN),
        lambda: federation.connect(Remote("here", 2), durable=False, login=RemoteLogin(), caller=ANN),
        lambda: federation.create_bridge(BridgeSettings("b", "link", False, "q", "amq.fanout"), ANN),
        lambda: federation.bridge(BridgeSettings("", "link", False, "q", "amq.fanout"), ANN),
        lambda: federation.delete_link("link", ANN),
        lambda: federation.delete_bridge("bridge", ANN),
    ]
    for work in works:
        with pytest.raises(UnauthorizedError):
            linked.do(work())
    assert linked.wires == []
    assert federation.links == federation.bridges == {}


def test_a_pull_route_needs_the_permission_to_publish_every_key(linked: Linked, rules: Rules) -> None:
    make_link(linked)
    rules.publishers.clear()
    with pytest.raises(UnauthorizedError, match="publish exchange"):
        make_bridge(linked, source_is_queue=True)


@pytest.mark.parametrize(("is_queue", "action", "kind"), [
    (True, Action.CONSUME, ObjectType.QUEUE), (False, Action.BIND, ObjectType.EXCHANGE),
])  # fmt: skip
def test_a_push_route_needs_the_permission_for_its_source(
    linked: Linked, rules: Rules, is_queue: bool, action: Action, kind: ObjectType
) -> None:
    make_link(linked)
    rules.denied.add(("ann@QPID", action, kind))
    with pytest.raises(UnauthorizedError):
        make_bridge(linked, source_is_local=True, source_is_queue=is_queue)


def test_a_bridge_publishes_as_the_user_who_has_made_it(linked: Linked, rules: Rules) -> None:
    near, far = linked.worlds
    near.durable_queue("inbox")
    queue(near, "inbox", "amq.fanout")
    client = queue(far, "q")
    make_link(linked)
    make_bridge(linked, source_is_queue=True, sync=1)
    client.publish("q", b"allowed")
    linked.sync()
    assert on(near, "inbox") == [b"allowed"]
    rules.publishers.discard("ann@QPID")
    near.broker.authorization.changed()
    for machine in near.machines:
        machine.watch_rules()
    client.publish("q", b"refused")
    linked.sync()
    assert on(near, "inbox") == [b"allowed"]
    assert on(far, "q") == [b"refused"]
    (bridge,) = linked.federations[0].bridges.values()
    assert "ann@QPID is not allowed to publish" in bridge.last_error


def test_a_push_route_consumes_as_the_user_who_has_made_it(linked: Linked, rules: Rules) -> None:
    near, _ = linked.worlds
    queue(near, "q").publish("q", b"x")
    make_link(linked)
    make_bridge(linked, source_is_queue=True, source_is_local=True)
    assert ("ann@QPID", Action.CONSUME, ObjectType.QUEUE) in rules.asked


def test_the_link_of_another_broker_needs_the_permission(linked: Linked) -> None:
    far = linked.worlds[1]
    rules = far.broker.authorization.authorizer = Rules()
    rules.denied.add(("anonymous@QPID", Action.CREATE, ObjectType.LINK))
    make_link(linked)
    (link,) = linked.federations[0].links.values()
    assert link.link.last_error == "ACL denied anonymous@QPID creating a federation link"
    assert link.link.state is LinkState.WAITING


def test_with_authentication_rules_must_allow_links() -> None:
    linked = Linked("near", "far")
    far = linked.worlds[1]
    far.broker.settings = far.broker.settings._replace(auth=True)
    make_link(linked)
    (link,) = linked.federations[0].links.values()
    assert link.link.last_error == (
        "User anonymous@QPID federation connection denied. Systems with authentication enabled must specify ACL create "
        "link rules."
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (LinkSettings("qpid.x", Remote("here", 2)), NotAllowedError),
        (LinkSettings("", Remote("here", 2)), InvalidArgumentError),
        (LinkSettings("x" * 256, Remote("here", 2)), InvalidArgumentError),
        (LinkSettings("x", Remote("", 2)), InvalidArgumentError),
        (LinkSettings("x", Remote("here", 0)), InvalidArgumentError),
        (LinkSettings("x", Remote("here", 1 << 16)), InvalidArgumentError),
        (LinkSettings("x", Remote("here", 2, "rdma")), NotImplementedByBrokerError),
    ],
)
def test_impossible_links_are_refused(linked: Linked, settings: LinkSettings, error: type[ModelError]) -> None:
    with pytest.raises(error):
        linked.do(linked.federations[0].create_link(settings, ANN))
    assert linked.wires == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"source": ""}, InvalidArgumentError),
        ({"destination": ""}, InvalidArgumentError),
        ({"sync": 10, "credit": 5}, InvalidArgumentError),
        ({"sync": 1 << 16}, InvalidArgumentError),
        ({"dynamic": True, "source": "missing"}, NotFoundError),
        ({"dynamic": True, "source": "amq.topic", "source_is_local": True}, InvalidArgumentError),
        ({"dynamic": True, "source": "amq.topic", "source_is_queue": True}, InvalidArgumentError),
        ({"link": "missing"}, NotFoundError),
        ({"durable": True}, InvalidArgumentError),
    ],
)
def test_impossible_bridges_are_refused(linked: Linked, changes: dict[str, Any], error: type[ModelError]) -> None:
    make_link(linked)
    settings = BridgeSettings("bridge", "link", False, "q", "amq.fanout")._replace(**changes)
    with pytest.raises(error):
        linked.do(linked.federations[0].create_bridge(settings, ANN))
    assert linked.federations[0].bridges == {}
