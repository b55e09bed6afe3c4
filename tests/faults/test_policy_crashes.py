"""Policies that change while messages come, when the power fails: nothing is lost that no stored limit has displaced.

A durable queue gets numbered messages, while a policy limits its length, changes the limit, and goes again. What the
next start finds are consecutive numbers up to at least the last one that was confirmed; at most as many as the policy
says that is found as well; at least as many as the lowest limit of a policy that was stored at some time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from qstore.broker.model.configuration import Configuration
from qstore.broker.model.errors import ModelError
from qstore.broker.model.policies import POLICY, Policies, Policy
from qstore.broker.model.queues.composition import QueueFactory
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.limits import Ring
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.router import Router
from qstore.broker.model.virtual_host import VirtualHost
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import TypedMap
from tests.faults.broker_clients import OneSession, Watcher
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.test_displacement_crashes import MESSAGES, Publisher, started
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

LIMITS = (1, 2, 4, 7)


class Operator:
    """Changes the policy, one change after the other.

    Attributes:
        stored: the limits that were confirmed, in order; 0 for the deletion of the policy.
        asked: the limit of the change under way; None if there is none.
    """

    def __init__(self, process: BrokerProcess, chance: random.Random, *, moves: bool) -> None:
        self._process, self._chance, self._moves = process, chance, moves
        self.stored: list[int] = [0]
        self.asked: int | None = None

    def change(self) -> None:
        """Set another limit, or none."""
        if self.asked is not None or self._chance.random() < 0.7:
            return
        limit = self.asked = self._chance.choice([0, *LIMITS]) if self.stored[-1] else self._chance.choice(LIMITS)
        policies = self._process.broker.policies
        definition: dict[str, Any] = {"max-length": limit}
        if self._moves:
            definition |= {"dead-letter-exchange": "", "dead-letter-routing-key": "moved"}
        work = policies.set(Policy("/", "p", "^q$", "queues", 0, definition)) if limit else policies.delete("/", "p")

        def done(error: ModelError | None) -> None:
            assert error is None, error
            self.stored.append(limit)
            self.asked = None

        self._process.run(work, done)


class Outcome(NamedTuple):
    """What the next start finds: the messages, those that were moved, and the limit; and what was said before."""

    found: list[int]
    moved: list[int]
    limit: int
    operator: Operator
    stored: int
    published: int


def after_crash(seed: int, *, moves: bool) -> Outcome:
    """The power fails at some moment."""
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    process = started(disk, seed)
    process.store.geometry = Geometry(12, 1 << 20)
    publisher = Publisher(process, in_transactions=False)
    publisher.send("queue.declare", queue="q", durable=True)
    publisher.send("queue.declare", queue="moved", durable=True)
    publisher.wire.carry()
    process.settle()
    operator = Operator(process, chance, moves=moves)
    end = chance.randrange(2, 3 * MESSAGES)
    while publisher.published < end:
        chance.choice([publisher.publish, publisher.publish, operator.change, process.tick, process.collect])()
    for _ in range(chance.randrange(8)):
        chance.choice([process.tick, process.collect])()
    stored, published = publisher.stored, publisher.published
    disk.crash(power_loss=True)
    again = started(disk, seed)
    policies = [each.definition["max-length"] for each in again.broker.policies.all()]
    watcher = Watcher(["q", "moved"])
    wire = again.connect(OneSession(watcher))
    again.settle()
    again.cut(wire)
    again.discard()
    process.discard()
    found, moved = ([int(each.body) for each in watcher.seen[queue]] for queue in ("q", "moved"))
    return Outcome(found, moved, int(policies[0]) if policies else 0, operator, stored, published)


def check(seeds: Iterable[int], *, moves: bool = False) -> int:
    """Check what comes back. Returns how many messages were displaced."""
    displaced = 0
    for seed in seeds:
        found, moved, limit, operator, stored, published = after_crash(seed, moves=moves)
        assert limit in {operator.stored[-1], operator.stored[-1] if operator.asked is None else operator.asked}, seed
        in_force = [each for each in (*operator.stored, limit) if each]
        end = found[-1] + 1 if found else 0
        assert stored <= end <= published, seed
        assert found == list(range(end - len(found), end)), seed
        assert len(found) >= min(end, *in_force, 3 * MESSAGES), seed
        assert not limit or len(found) <= limit, seed
        if moves:
            assert set(range(stored)) <= {*found, *moved}, seed
            assert set(range(end - len(found))) <= set(moved), seed
        displaced += end - len(found)
    return displaced


def test_only_messages_displaced_by_a_stored_policy_are_gone() -> None:
    assert check(seeds_of_the_day(40))


def test_displaced_messages_are_where_the_policy_sends_them() -> None:
    assert check(seeds_of_the_day(40), moves=True)


@replaces
def test_a_policy_with_an_effect_before_it_is_stored_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Configuration.change

    async def changed(self: Policies, puts: Any, deletes: Any, host: str) -> None:
        kept = dict(self._configuration._records)
        self._configuration._records.update(puts)
        self._rank(POLICY, host)
        await self._apply(host)
        self._configuration._records = kept
        await plain(self._configuration, puts, deletes, then=lambda: self._rank(POLICY, host))
        await self._apply(host)

    monkeypatch.setattr(Policies, "_change", changed)
    with pytest.raises(AssertionError):
        check(range(200))


@replaces
def test_policies_that_a_start_forgets_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Policies.for_new

    def forgotten(self: Policies, host: str, name: str, arguments: TypedMap) -> Any:
        applied, _ = plain(self, host, name, arguments)
        return applied, arguments

    monkeypatch.setattr(Policies, "for_new", forgotten)
    with pytest.raises(AssertionError):
        check(range(200))


@replaces
def test_a_limit_that_leaves_the_messages_there_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_too_few(self: Ring, queue: Queue, _most: int) -> bool:
        while self._limit.is_exceeded(queue.message_count + 1, queue.message_bytes):
            first = queue.order.first_to_discard()
            if first is None or not self.displace(queue, first):
                break
        return False

    monkeypatch.setattr(Ring, "_displaces", one_too_few)
    with pytest.raises(AssertionError):
        check(range(100))


@replaces
def test_messages_that_a_new_limit_discards_instead_of_moving_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = QueueFactory.refit

    def refit(self: QueueFactory, host: VirtualHost, queue: Queue, arguments: TypedMap) -> None:
        divert = self.divert
        self.divert = lambda _queue, _entry: False
        queue.dead_letter = None
        plain(self, host, queue, arguments)
        self.divert = divert

    monkeypatch.setattr(QueueFactory, "refit", refit)
    with pytest.raises(AssertionError):
        check(range(200), moves=True)


@replaces
def test_a_move_that_is_not_awaited_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def both_at_once(self: Router, queue: Queue, entry: Entry) -> bool:
        if queue.dead_letter is None:
            return False
        message = entry.message.whole()
        default = queue.dead_letter._letters._exchanges[""]
        self.put(message, default.match("moved").queues)
        queue.dequeue(entry)
        return True

    monkeypatch.setattr(Router, "divert", both_at_once)
    with pytest.raises(AssertionError):
        check(range(300), moves=True)
