"""The ledger that the tests of killed brokers rely on finds each kind of broken promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.system.broker_ledger import Arrival, Before, ConsumerLog, Ledger, Place, body_of, identity_of

A, B, C, D = (Place("q", 1, serial) for serial in range(4))


@pytest.fixture
def ledger() -> Ledger:
    """Four messages of one publisher, completed; the first was delivered and accepted, the second only delivered."""
    ledger = Ledger()
    for serial in range(4):
        ledger.send(["q"], 1, serial)
    ledger.completed.update((A, B, C, D))
    ledger.delivered.update((A, B))
    ledger.accepting.add(A)
    ledger.accepted.add(A)
    return ledger


def _check(ledger: Ledger, before: Before, *arrivals: tuple[Place, bool], alone: bool = True) -> None:
    ledger.check_life(before, [ConsumerLog("q", alone, [Arrival(*each) for each in arrivals])])


def test_allowed_arrivals_pass(ledger: Ledger) -> None:
    _check(ledger, ledger.before(clean=False), (B, True), (C, True), (D, True))
    _check(ledger, ledger.before(clean=False), (B, True), (C, False))
    _check(ledger, ledger.before(clean=True), (B, True), (C, False), (D, False))
    assert ledger.outstanding() == {B, C, D}


@pytest.mark.parametrize(
    ("broken", "clean", "arrivals"),
    [
        ("came back", False, [(A, True)]),
        ("without a mark", False, [(B, False)]),
        ("was never delivered", True, [(B, True), (C, True)]),
        ("is lost", False, [(B, True), (D, True)]),
        ("is lost", False, [(C, True)]),
        ("came after", False, [(C, True), (B, True)]),
        ("twice in one life", False, [(B, True), (B, True)]),
        ("never sent", False, [(B, True), (Place("q", 1, 9), True)]),
        ("never sent", False, [(Place("q", 2, 1), True)]),
    ],
)
def test_forbidden_arrivals_fail(ledger: Ledger, broken: str, clean: bool, arrivals: list[tuple[Place, bool]]) -> None:
    with pytest.raises(AssertionError, match=broken):
        _check(ledger, ledger.before(clean=clean), *arrivals)


def test_where_sessions_end_a_message_may_go_to_the_other_consumer(ledger: Ledger) -> None:
    """It is marked, though it may never have been read, and comes behind others, if there are others."""
    before = ledger.before(clean=False)
    (new,) = ledger.send(["q"], 1, 4)
    logs = [ConsumerLog("q", False, [Arrival(D, True), Arrival(new, True), Arrival(C, True)])]
    logs.append(ConsumerLog("q", False, [Arrival(C, False)]))
    ledger.check_life(replace(before, sessions_end=True), logs)
    with pytest.raises(AssertionError, match="was never delivered"):
        ledger.check_life(before, logs)
    alone = [ConsumerLog("q", True, logs[0].arrivals)]
    with pytest.raises(AssertionError, match="was never delivered"):
        ledger.check_life(replace(before, sessions_end=True), alone)
    twice = [ConsumerLog("q", False, [Arrival(C, False)])] * 2
    with pytest.raises(AssertionError, match="twice in one life"):
        ledger.check_life(replace(before, sessions_end=True), twice)


def test_missing_message_never_comes_back(ledger: Ledger) -> None:
    ledger.completed.discard(C)
    before = ledger.before(clean=False)
    _check(ledger, before, (B, True), (D, True))
    with pytest.raises(AssertionError, match="was missing before"):
        _check(ledger, ledger.before(clean=False), (B, True), (C, True))


def test_an_accept_that_was_not_completed_may_be_done_or_not(ledger: Ledger) -> None:
    ledger.accepting.add(B)
    _check(ledger, ledger.before(clean=False), (B, True), (C, True))
    _check(ledger, ledger.before(clean=False), (C, True))


def test_a_message_sent_in_this_life_is_not_marked(ledger: Ledger) -> None:
    before = ledger.before(clean=False)
    (new,) = ledger.send(["q"], 1, 4)
    _check(ledger, before, (B, True), (C, True), (D, True), (new, False))
    with pytest.raises(AssertionError, match="was never delivered"):
        _check(ledger, before, (B, True), (C, True), (D, True), (new, True))


def test_content_is_compared() -> None:
    body = body_of(3, 1234)
    assert identity_of(body) == (3, 1234)
    with pytest.raises(AssertionError, match="other content"):
        identity_of(body[:-1] + b"?")
