"""Crash simulation of a route between two brokers, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.federation.bridge import Bridge
from qstore.broker.protocols.amqp_0_10.link_connection import LinkSession
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.session import wrap_ranges
from tests.faults.federation_simulation import FederationCrashes
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


@replaces
@pytest.mark.parametrize(("is_push", "where", "name", "bug"), BUGS)
def test_planted_bugs_are_found(
    is_push: bool, where: type, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, bug)
    for seed in range(60):
        try:
            FederationCrashes(seed, is_push=is_push).run()
        except AssertionError as error:
            assert "are lost" in str(error)  # noqa: PT017 – the reason counts
            return
    raise AssertionError(f"{name} is not found")
