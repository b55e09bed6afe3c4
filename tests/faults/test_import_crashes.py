"""An import that is killed at every call, or whose disk fails at one: the store has all of it or nothing, and it can be
repeated: then the store has it once.

`tests/support/profiles.py` says which calls are tried.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest.mock import patch

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange, GeneralObject, Queue
from qstore.store.errors import StoreError
from qstore.store.importing.intake import ImportedMessage, Intake
from qstore.store.importing.plan import LEDGER, ImportPlan
from qstore.store.importing.store_import import ImportSwitch, StoreImport
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level, LogLine
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import PATH, TinyParameters, look, simulated_environment, tiny_rid_blocks
from tests.support.profiles import is_due, today

FIRST, SECOND = b"first branch", b"second branch"


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with (
        tiny_rid_blocks(),
        patch("qstore.store.importing.store_import.StoreParameters", TinyParameters),
    ):
        yield


class Content(NamedTuple):
    """What a store holds: queue -> (data, state, xid, redelivered) in order; and the rest."""

    queues: dict[str, list[tuple[bytes, int, bytes | None, bool]]]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]
    in_doubt: set[bytes]
    imports: set[str]


def gather(intake: Intake, *, second: bool) -> None:
    """The content of the first import, or of one that adds to it."""
    name = "second" if second else "first"
    for queue in ("both", name):
        intake.queue(Queue(queue))
    intake.exchange(Exchange(name, True, "topic"))
    intake.binding(name, Binding(0, "both", f"key of {name}"))
    xid = SECOND if second else FIRST
    for number in range(12):
        state = (LIVE, LIVE, LOCKED, LIVE, PENDING, LIVE)[number % 6]
        for queue in ("both", name):
            data = f"{name} {queue} {number}".encode() * (1 + number * 7 % 11)
            rid = 2 * number + (queue != "both") + 1
            message = ImportedMessage(queue, rid, state, b"" if state == LIVE else xid, number % 3 == 0, data)
            intake.message(message)
    intake.branch(xid)


def run(disk: SimulatedDisk, seed: int, *, second: bool) -> ImportPlan | None:
    """Import, unless the ledger has it."""
    with StoreImport(simulated_environment(disk, random.Random(seed)), PATH, "test") as work:
        gather(work.intake, second=second)
        identity = "second" if second else "first"
        if work.past(identity) is not None:
            return None
        plan = work.plan()
        work.apply(plan, identity)
    return plan


def content(disk: SimulatedDisk, seed: int = 0) -> Content:
    """Start the store, which must not find damage, and close it."""
    lines: list[LogLine] = []
    environment = simulated_environment(disk, random.Random(seed))
    with MessageStore.open(environment, PATH, TinyParameters(), "test", log=lines.append) as store:
        assert not [line.text for line in lines if line.level is Level.CRITICAL]
        found = look(store)
        queues = {
            queue.name: [(each.data, each.state, each.xid, each.redelivered) for each in queue.messages]
            for queue in found.queues.values()
        }
        general = store.topology.general.values()
        imports = {each.name for each in general if isinstance(each, GeneralObject) and each.kind == LEDGER}
        return Content(queues, set(found.exchanges.values()), found.bindings, found.in_doubt, imports)


def base(*, clean: bool) -> SimulatedDisk:
    """A store with the first import."""
    disk = SimulatedDisk(7)
    disk.make_directory(PATH)
    plan = run(disk, 1, second=False)
    assert plan is not None
    assert plan.keeps_rids
    if not clean:
        store = MessageStore.open(
            simulated_environment(disk, random.Random(2)), PATH, TinyParameters(), "test", log=lambda _: None
        )
        store.end_recovery()
        disk.crash(power_loss=True)
    return disk


def same(one: Content, other: Content, *, delivered: bool) -> bool:
    """Whether two contents are equal, apart from the marks of what was delivered if a crash made them unknown."""
    if delivered:
        return one == other
    cut = [{name: [each[:3] for each in queue] for name, queue in content.queues.items()} for content in (one, other)]
    return cut[0] == cut[1] and one[1:] == other[1:]


def without_branch(after: Content, xid: bytes) -> Content:
    return after._replace(in_doubt=after.in_doubt - {xid})


def test_without_a_crash() -> None:
    disk = base(clean=True)
    before = content(disk.copy(1))
    assert [each[3] for each in before.queues["first"]] == [number % 3 == 0 for number in range(12)]
    assert before.in_doubt == {FIRST}
    plan = run(disk, 3, second=True)
    assert plan is not None
    assert not plan.keeps_rids
    after = content(disk.copy(1))
    assert after.queues["first"] == before.queues["first"]
    assert after.queues["both"][:12] == before.queues["both"]
    assert [each[:3] for each in after.queues["both"][12:]] == [
        (f"second both {number}".encode() * (1 + number * 7 % 11), state, None if state == LIVE else SECOND)
        for number in range(12)
        for state in [(LIVE, LIVE, LOCKED, LIVE, PENDING, LIVE)[number % 6]]
    ]
    assert [each[3] for each in after.queues["both"][12:]] == [number % 3 == 0 for number in range(12)]
    assert (after.in_doubt, after.exchanges, after.imports) == (
        {FIRST, SECOND},
        {"first", "second"},
        {"first", "second"},
    )
    assert run(disk, 4, second=True) is None
    assert content(disk) == after


@pytest.mark.parametrize("clean", [True, False])
def test_a_crash_at_every_call_leaves_all_or_nothing(clean: bool) -> None:
    seen = kill_everywhere(clean=clean, due=is_due(15))
    assert seen["calls"] > 120, seen
    assert seen["old"] + seen["new"] > 0, seen


def kill_everywhere(*, clean: bool, due: Callable[[], bool]) -> Counter[str]:
    disk = base(clean=clean)
    before = content(disk.copy(1))
    done = disk.copy(1)
    run(done, 3, second=True)
    after, seen = content(done), Counter[str]()

    def visit(call: Call) -> None:
        seen["calls"] += 1
        for power_loss in (False, True) if due() else ():
            killed = call.killed(call.number, power_loss=power_loss)
            found = content(killed.copy(5))
            is_new = "second" in found.imports
            seen["new" if is_new else "old"] += 1
            expected = after if is_new else before
            # Between its two switches the store knows the branch, and nothing of it.
            assert same(without_branch(found, SECOND), without_branch(expected, SECOND), delivered=clean)
            assert not is_new or SECOND in found.in_doubt
            run(killed, call.number, second=True)
            assert same(content(killed), after, delivered=clean)

    disk.watch = visit
    run(disk, 3, second=True)
    disk.watch = None
    assert content(disk) == after
    return seen


def test_a_crash_while_the_store_is_created() -> None:
    disk = SimulatedDisk(3)
    disk.make_directory(PATH)
    done = disk.copy(1)
    run(done, 3, second=False)
    after, seen, due = content(done), Counter[str](), is_due(24)

    def visit(call: Call) -> None:
        for power_loss in (False, True) if due() else ():
            seen["calls"] += 1
            killed = call.killed(call.number, power_loss=power_loss)
            run(killed, call.number, second=False)
            assert same(content(killed), after, delivered=False)

    disk.watch = visit
    run(disk, 3, second=False)
    disk.watch = None
    assert content(disk) == after
    assert seen["calls"] > 5


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_is_reported_and_loses_nothing(code: int) -> None:
    original = base(clean=True)
    before = content(original.copy(1))
    done = original.copy(1)
    run(done, 3, second=True)
    count, after, told = done.calls, content(done), 0
    for number in today(range(count), 12):
        disk = original.copy(number)
        disk.fail_at = {number: code}
        try:
            run(disk, 3, second=True)
        except StoreError as error:
            told += "\n" not in str(error)
        disk.fail_at = {}
        assert not disk.held
        disk.crash(power_loss=bool(number % 2))
        found = content(disk.copy(5))
        expected = after if "second" in found.imports else before
        assert same(without_branch(found, SECOND), without_branch(expected, SECOND), delivered=True)
        run(disk, 4, second=True)
        assert same(content(disk), after, delivered=True)
    assert told > 4


def test_an_import_that_is_broken_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: the old journals go before the new ones count."""
    effect = ImportSwitch._effect

    def early(self: ImportSwitch, built, lists, past):  # type: ignore[no-untyped-def]
        for each in built:
            if each.old is not None:
                self._disk.remove(f"{each.old}/{self._disk.names(each.old)[0]}")
        return effect(self, built, lists, past)

    monkeypatch.setattr(ImportSwitch, "_effect", early)
    count = itertools.count()
    with pytest.raises((AssertionError, StoreError)):
        kill_everywhere(clean=True, due=lambda: next(count) % 4 == 0)
