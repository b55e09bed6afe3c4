"""Exclusive bindings and a broker that dies: the old bindings are there, or the new one; never none, never both.

A manager binds and unbinds three queues under one key, by chance. During each of its commands every kill point is
visited: a broker that starts on what it leaves has the bindings from before the command, or those after it.
`tests/support/profiles.py` says which kill points are checked.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest

from qstore.broker.model.arguments import EXCLUSIVE_BINDING
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.faults.broker_clients import OneSession
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.support.compiled import ClientSession
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_blocks")

QUEUES: Final = ("a", "b", "c")
ALONE: Final = typed_map({EXCLUSIVE_BINDING: 1})
COMMANDS: Final = 6


class Left(NamedTuple):
    """What a killed broker leaves, and what may be found there: the queues bound, before and after a command."""

    disk: SimulatedDisk
    before: frozenset[str]
    after: frozenset[str]


class Manager(ClientSession):
    """A client that binds and unbinds."""

    def __init__(self, process: BrokerProcess) -> None:
        super().__init__(b"manager", 0, None)
        self._process = process
        process.connect(OneSession(self))
        process.settle()

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        raise AssertionError("the broker complains")

    def ask(self, name: str, **values: object) -> None:
        """A command, until it is done."""
        self.send(name, **values)
        self._process.settle()


def start(disk: SimulatedDisk, seed: int) -> BrokerProcess:
    return BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)


def work(seed: int) -> list[Left]:
    """What is left at each kill point of some commands, of a history that the seed decides."""
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    process = start(disk, seed)
    lefts: list[Left] = []
    try:
        manager = Manager(process)
        manager.ask("exchange.declare", exchange="x", type="direct", durable=True)
        for name in QUEUES:
            manager.ask("queue.declare", queue=name, durable=True)
        before: frozenset[str] = frozenset()
        for _ in range(COMMANDS):
            name = rng.choice(QUEUES)
            deed = rng.choice(("alone", "alone", "bind", "bind", "unbind"))
            if deed == "unbind" and name not in before:
                continue
            after = frozenset((name,)) if deed == "alone" else before | {name}
            if deed == "unbind":
                after = before - {name}

            def visit(call: Call, before: frozenset[str] = before, after: frozenset[str] = after) -> None:
                lefts.extend(
                    Left(call.killed(seed + call.number, power_loss=power_loss), before, after)
                    for power_loss in (False, True)
                )

            disk.watch = visit
            arguments = ALONE if deed == "alone" else EMPTY_MAP
            if deed == "unbind":
                manager.ask("exchange.unbind", exchange="x", queue=name, binding_key="k")
            else:
                manager.ask("exchange.bind", exchange="x", queue=name, binding_key="k", arguments=arguments)
            disk.watch = None
            for power_loss in (False, True):  # it was told to be done, and stays so
                ended = disk.copy(seed, {})
                ended.crash(power_loss=power_loss)
                lefts.append(Left(ended, after, after))
            before = after
    finally:
        process.discard()
    return lefts


def look(disk: SimulatedDisk, seed: int, killed: list[SimulatedDisk] | None = None) -> tuple[frozenset[str], int]:
    """Start a broker, and have it die when all is done.

    Args:
        disk: what it finds.
        seed: decides what is slow.
        killed: gets what would be found if it died earlier, at each kill point.

    Returns:
        The queues that are bound; how many bindings were stored.
    """
    if killed is not None:
        disk.watch = lambda call: killed.append(call.killed(seed, power_loss=bool(call.number % 2)))
    process = start(disk, seed)
    try:
        process.settle()
        bound = frozenset(queue.name for queue in process.broker.default_host.exchanges["x"].find("k").queues)
        stored = len(process.store.topology.bindings)
    finally:
        process.discard()
    disk.crash(power_loss=True)
    return bound, stored


def check(left: Left, seed: int) -> frozenset[str]:
    """Returns the queues that are bound after a start. What was replaced is stored no more after the next."""
    killed: list[SimulatedDisk] = []
    bound, stored = look(left.disk, seed, killed)
    assert bound in (left.before, left.after)
    if stored > len(bound):  # the broker has it forgotten: that is killed in its turn
        assert killed
        for number, disk in enumerate(killed):
            assert look(disk, seed + number)[0] == bound
    assert look(left.disk, seed + 1) == (bound, len(bound))
    return bound


def check_all(lefts: list[Left]) -> None:
    for seed, left in enumerate(lefts):
        check(left, seed)


@pytest.mark.parametrize("seed", range(12))
def test_the_old_bindings_or_the_new_one_whenever_the_broker_dies(seed: int) -> None:
    lefts = work(seed)
    for number in today(range(len(lefts)), len(lefts) // 10):
        check(lefts[number], number)


def test_both_ends_of_a_replacement_are_seen() -> None:
    """The kill points lie before the commit point, and after it."""
    sides = set()
    for seed in range(6):
        replacements = [left for left in work(seed) if len(left.before) > 1 and len(left.after) == 1]
        for left in replacements[:1] + replacements[-1:]:
            sides.add(check(left, seed) == left.after)
        if sides == {False, True}:
            return
    raise AssertionError(f"only {sides}")


def test_a_recovery_that_replaces_nothing_is_detected() -> None:
    lefts = [left for seed in range(6) for left in work(seed)]
    with patch.object(DirectExchange, "put", Exchange.put), pytest.raises(AssertionError):
        check_all(lefts)
