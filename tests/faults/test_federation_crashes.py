"""Crash simulation of a route, and of a replicated queue, between two brokers, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.federation.bridge import Bridge
from qstore.broker.model.replication import source
from qstore.broker.model.replication.replica import Mirror
from qstore.broker.model.replication.source import EventGeneration, Marks
from qstore.broker.protocols.amqp_0_10.link_connection import LinkSession
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.session import wrap_ranges
from tests.faults.federation_simulation import FederationCrashes, ReplicationCrashes, TwoBrokers
from tests.support.compiled import replaces


@pytest.mark.parametrize("is_push", [False, True])
def test_acknowledged_messages_survive_kills_of_both_brokers(is_push: bool) -> None:
    kills = cuts = confirmed = 0
    for seed in range(25):
        history = FederationCrashes(seed, is_push=is_push)
        history.run()
        kills, cuts, confirmed = kills + history.kills, cuts + history.cuts, confirmed + len(history.confirmed)
    assert kills > 40
    assert cuts > 20
    assert confirmed > 500


@pytest.mark.parametrize("is_push", [False, True])
def test_a_replicated_queue_is_the_same_after_kills_of_both_brokers(
    is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MARKED_EVERY", 7)
    kills = confirmed = consumed = 0
    for seed in range(25):
        history = ReplicationCrashes(seed, is_push=is_push)
        history.run()
        kills, confirmed = kills + history.kills, confirmed + len(history.confirmed)
        consumed += len(history.consumed)
    assert kills > 40
    assert confirmed > 500
    assert consumed > 200


def accept_before_the_disk(session: ServerSession) -> None:
    if session.received > session._accepted:
        session.send("message.accept", transfers=wrap_ranges([(session._accepted, session.received - 1)]))
        session._accepted = session.received


def settle_when_sent(self: LinkSession, queue: str, destination: str, *, is_accepting: bool, window: int) -> None:
    _consume(self, queue, destination, is_accepting=False, window=window)


_consume: Callable[..., None] = LinkSession.consume


BUGS = [
    (False, ServerSession, "_accept", accept_before_the_disk),
    (True, ServerSession, "_accept", accept_before_the_disk),
    (True, LinkSession, "consume", settle_when_sent),
    (False, Bridge, "is_accepting", property(lambda _: False)),
    (True, Bridge, "is_accepting", property(lambda _: False)),
]


def hand_over_with_its_state(self: ServerConnection, session: ServerSession) -> None:
    """The other connection continues the session: what it sends counts as repeated, and is completed."""
    del self.sessions[session.channel]
    session.detached()


BUGS_IN_REPLICATION: list[tuple[bool, Any, str, object]] = [
    (False, Mirror, "begin", lambda *_: None),
    (False, EventGeneration, "resume", lambda *_: iter(())),
    (False, EventGeneration, "removed", lambda self, entry: self._left(entry, None)),
    (False, Marks, "set", lambda self, queue, rid: self._synced(queue, rid, None)),
    (True, ServerSession, "_accept", accept_before_the_disk),
]


@replaces
@pytest.mark.parametrize(("is_push", "where", "name", "bug"), BUGS)
def test_planted_bugs_are_found(
    is_push: bool, where: type, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, bug)
    assert "are lost" in found(FederationCrashes, is_push)


@replaces
@pytest.mark.parametrize("reorders", [True, False])
def test_a_bug_that_only_reordering_between_connections_finds(reorders: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "hand_over", lambda *given: hand_over_with_its_state(*given[:2]))
    if not reorders:
        monkeypatch.setattr(FederationCrashes, "_give_up", FederationCrashes._cut)
    assert ("are lost" in found(FederationCrashes, True)) is reorders


@replaces
@pytest.mark.parametrize(("is_push", "where", "name", "bug"), BUGS_IN_REPLICATION)
def test_planted_bugs_in_replication_are_found(
    is_push: bool, where: Any, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MARKED_EVERY", 7)
    monkeypatch.setattr(where, name, bug)
    assert found(ReplicationCrashes, is_push)


def found(histories: type[TwoBrokers], is_push: bool) -> str:
    """What the first history that finds something says; empty if none does."""
    for seed in range(60):
        try:
            histories(seed, is_push=is_push).run()
        except AssertionError as error:
            return str(error)
    return ""
