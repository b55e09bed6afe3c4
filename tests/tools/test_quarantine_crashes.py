"""An injection that is killed at every call of the disk: no message is incomplete, and none comes twice by mistake."""

from __future__ import annotations

import errno
import random
from collections import Counter
from itertools import product

import pytest

from qstore.formats.broker_records.topology import Queue
from qstore.formats.quarantine_index import Injection, QuarantineEntry
from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.repair.quarantine import Quarantine, QuarantineError, QuarantineWriter
from qstore.store.sync.threads import InlineSync
from qstore.tools.quarantine import Injected, InjectionRequest, inject
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import simulated_environment
from tests.support.opened_store import PARAMETERS, SALT, enqueue, message
from tests.support.profiles import today

STORE, QUARANTINE = "/store", "/quarantine"
MESSAGES = {1: [b"a", b"b"], 2: [b"c"], 3: [b"d", b"e", b"f" * 3000]}


def environment_of(disk: SimulatedDisk) -> Environment:
    return simulated_environment(disk, random.Random(1), InlineSync)


def open_store(disk: SimulatedDisk) -> MessageStore:
    return MessageStore.open(environment_of(disk), STORE, PARAMETERS, "test", log=lambda _: None)


def made(seed: int) -> SimulatedDisk:
    """A disk with a store and a quarantine, all of it synced."""
    disk = SimulatedDisk(seed)
    store = open_store(disk)
    store.changes.create_queue(Queue("orders"), Geometry.from_pages(4, 1), lambda *_: None)
    assert store.close()
    writer = QuarantineWriter(disk, QUARANTINE)
    for bodies in MESSAGES.values():
        raw = b"".join(enqueue("version 2", message(body), rid) for rid, body in enumerate(bodies, 1))
        writer.add("orders", "/f", 0, raw, "broken", None, salt=SALT)
    writer.close()
    return disk


def run(disk: SimulatedDisk) -> list[Injected]:
    return inject(environment_of(disk), QUARANTINE, STORE, InjectionRequest(list(MESSAGES)), "test", lambda _: None)


def found(disk: SimulatedDisk) -> list[tuple[int, bytes]]:
    """The messages of the queue."""
    store = open_store(disk)
    (queue,) = store.recovered_queues
    kept = [(each.rid, each.data) for each in store.messages(queue)]
    store.close()
    return kept


def marks(disk: SimulatedDisk) -> dict[int, Injection | None]:
    entries = list(Quarantine(disk, QUARANTINE).entries())
    return {each.number: each.injected for each in entries if isinstance(each, QuarantineEntry)}


def check(disk: SimulatedDisk, seen: Counter[str]) -> None:
    """Each entry's messages are all there, once, or none; and the marks say nothing that is not so."""
    kept = found(disk)
    for number, injected in marks(disk).items():
        expected = [message(body) for body in MESSAGES[number]]
        rids = [rid for rid, data in kept if data in expected]
        assert [data for _, data in kept if data in expected] in ([], expected)
        if injected is None:
            assert not rids
            seen["not marked"] += 1
        elif injected.first_rid is None:
            assert injected.messages == len(expected)
            seen["begun, there" if rids else "begun, not there"] += 1
        else:
            assert rids == list(range(injected.first_rid, injected.first_rid + injected.messages))
            seen["marked"] += 1


def check_next(disk: SimulatedDisk) -> None:
    """Another attempt injects what was not begun, and everything is there at most once."""
    before = marks(disk)
    results = {each.entry.number: each for each in run(disk)}
    for number, injected in before.items():
        assert (results[number].failure is None) == (injected is None)
    bodies = [data for _, data in found(disk)]
    assert len(bodies) == len(set(bodies))


@pytest.mark.parametrize(("seed", "power_loss"), today([*product(range(3), [False, True])], 3))
def test_killed_at_every_call(seed: int, power_loss: bool) -> None:
    disk = made(seed)
    seen: Counter[str] = Counter()
    killed: list[SimulatedDisk] = []

    def kill(call: Call) -> None:
        killed.append(call.killed(seed, power_loss=power_loss))

    disk.watch = kill
    assert [each.failure for each in run(disk)] == [None] * len(MESSAGES)
    disk.watch = None
    assert len(killed) > 20
    for left in killed:
        check(left, seen)
        check_next(left)
    assert set(seen) == {"not marked", "begun, there", "begun, not there", "marked"}
    check(disk, seen)
    assert [len(bodies) for bodies in MESSAGES.values()] == [each.messages for each in marks(disk).values() if each]


def test_a_failing_disk_at_any_call() -> None:
    """What is reported as injected is there; what is reported as not injected is not."""
    probe = made(0)
    first = probe.calls
    run(probe)
    seen: Counter[str] = Counter()
    for failing in range(first, probe.calls):
        for number in (errno.EIO, errno.ENOSPC):
            disk = made(0)
            assert disk.calls == first
            disk.fail_at = {failing: number}
            try:
                results = run(disk)
            except (QuarantineError, StoreError, OSError) as error:
                seen[type(error).__name__] += 1
                results = []
            left = disk.copy(1)
            left.crash(power_loss=True)
            check(left, seen)
            kept = [data for _, data in found(left)]
            for result in results:
                there = message(MESSAGES[result.entry.number][0]) in kept
                assert not result.is_known or there == (result.failure is None)
                seen[f"known {result.is_known}"] += 1
    assert seen["known True"]
    assert seen["known False"]
