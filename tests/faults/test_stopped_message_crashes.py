"""Changes of a stopped store's messages, killed at every call or failed at one: all of a change is there, or nothing.

What a shell does to a store: copy, move, remove, add, resolve. `tests/support/profiles.py` says which calls are tried.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.store.errors import StoreError
from qstore.store.journal.recovery import LIVE
from qstore.store.live.message_store import MessageStore
from qstore.store.repair.stopped_messages import StoppedMessages
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import PATH, TinyParameters, simulated_environment, tiny_rid_blocks
from tests.support.opened_store import enqueued
from tests.support.profiles import is_due, today

BRANCH = b"a branch in doubt"
#: queue -> (data, state, whether it is marked as delivered) of each message, in order; and the branches in doubt.
Content = tuple[dict[str, list[tuple[bytes, int, bool]]], tuple[bytes, ...]]
Change = Callable[[StoppedMessages, dict[str, list[int]]], object]

CHANGES: dict[str, Change] = {
    "copy": lambda store, rids: store.copy("old", rids["old"][1:4], "new"),
    "copy to the same queue": lambda store, rids: store.copy("old", rids["old"][:2], "old"),
    "move": lambda store, rids: store.move("old", rids["old"][1:5], "new"),
    "remove": lambda store, rids: store.remove("old", rids["old"][::2]),
    "add": lambda store, _: store.add("new", [b"one", b"two" * 500], is_redelivered=True),
    "commit": lambda store, _: store.resolve(BRANCH, commits=True),
    "roll back": lambda store, _: store.resolve(BRANCH, commits=False),
}


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with (
        tiny_rid_blocks(),
        patch("qstore.store.repair.stopped_messages.StoreParameters", TinyParameters),
    ):
        yield


def opened(disk: SimulatedDisk, seed: int = 5) -> MessageStore:
    return MessageStore.open(
        simulated_environment(disk, random.Random(seed)), PATH, TinyParameters(), "test", log=lambda _: None
    )


def work(store: MessageStore, begin: Callable[[Callable[..., None]], object]) -> None:
    done: list[object] = []
    begin(lambda *results: done.append(results))
    while not done:
        store.start(is_idle=True)
        store.collect(None)


def base(*, clean: bool) -> tuple[SimulatedDisk, dict[str, list[int]]]:
    """A store with messages, some of which were delivered, and a branch in doubt; the rids of those that are live."""
    disk = SimulatedDisk(7)
    store = opened(disk, 1)
    store.end_recovery()
    for name in ("old", "new"):
        work(store, lambda done, name=name: store.changes.create_queue(Queue(name), Geometry(4, 4096), done))  # type: ignore[misc]
    old, new = store.journals.values()
    rids: dict[str, list[int]] = {}
    for journal in (old, new):
        data = [f"{journal.name} {number}".encode() * (1 + 9 * number) for number in range(6)]
        messages = [enqueued(journal, each) for each in data]
        work(store, lambda done, to=messages: rids.update({to[0][0].name: store.transactions.commit(to, [], done)}))  # type: ignore[misc]
    held = [(old, rids["old"][5])]
    work(store, lambda done: store.transactions.prepare(BRANCH, [enqueued(new, b"in doubt")], held, done))
    if clean:
        assert store.close({old.queue_id: rids["old"][1:3]})
    else:
        disk.crash(power_loss=True)
    return disk, {"old": rids["old"][:5], "new": rids["new"]}


def content(disk: SimulatedDisk) -> Content:
    store = opened(disk)
    found = {
        queue.record.name: [(each.data, each.state, each.redelivered) for each in store.messages(queue)]
        for queue in store.recovered_queues
    }
    in_doubt = tuple(store.transactions.in_doubt)
    store.end_recovery()
    store.close()
    return found, in_doubt


def unmarked(found: Content) -> Content:
    return {name: [(data, state, False) for data, state, _ in each] for name, each in found[0].items()}, found[1]


def change(disk: SimulatedDisk, name: str, rids: dict[str, list[int]], seed: int = 3) -> None:
    environment = simulated_environment(disk, random.Random(seed))
    with StoppedMessages(environment, PATH, "test", lambda _: None) as store:
        CHANGES[name](store, rids)


@pytest.mark.parametrize("name", CHANGES)
def test_without_a_crash(name: str) -> None:
    disk, rids = base(clean=True)
    before, branches = content(disk.copy(1))
    assert branches == (BRANCH,)
    assert [each[2] for each in before["old"]] == [False, True, True, False, False, False]
    change(disk, name, rids)
    after, left = content(disk)
    old, new = before["old"], before["new"]
    expected = {
        "copy": (old, [*new[:6], new[6], *old[1:4]]),
        "copy to the same queue": ([*old, *old[:2]], new),
        "move": ([old[0], old[5]], [*new, *old[1:5]]),
        "remove": ([old[1], old[3], old[5]], new),
        "add": (old, [*new, (b"one", LIVE, True), (b"two" * 500, LIVE, True)]),
        "commit": (old[:5], [*new[:6], (b"in doubt", LIVE, False)]),
        "roll back": ([*old[:5], (old[5][0], LIVE, False)], new[:6]),
    }[name]
    assert (after["old"], after["new"]) == expected
    assert left == (() if name in ("commit", "roll back") else (BRANCH,))


@pytest.mark.parametrize(("name", "clean"), today([(name, clean) for name in CHANGES for clean in (True, False)], 5))
def test_a_crash_at_every_call_leaves_all_or_nothing(name: str, clean: bool) -> None:
    seen = kill_everywhere(name, clean=clean, due=is_due(10))
    assert seen["calls"] > 20, seen


def kill_everywhere(name: str, *, clean: bool, due: Callable[[], bool]) -> Counter[str]:
    disk, rids = base(clean=clean)
    before = unmarked(content(disk.copy(1)))
    done = disk.copy(1)
    change(done, name, rids)
    after, seen = unmarked(content(done)), Counter[str]()
    assert after != before
    wrong: list[Content] = []  # an assertion within a call of the disk would be taken for a failure of the store

    def visit(call: Call) -> None:
        seen["calls"] += 1
        for power_loss in (False, True) if due() else ():
            killed = call.killed(call.number, power_loss=power_loss)
            found = unmarked(content(killed))
            seen["new" if found == after else "old"] += 1
            if found not in (before, after):
                wrong.append(found)

    disk.watch = visit
    change(disk, name, rids)
    disk.watch = None
    assert wrong == []
    assert unmarked(content(disk)) == after
    return seen


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", ["move", "remove", "commit"])
def test_a_failing_call_is_reported_and_loses_nothing(name: str, code: int) -> None:
    original, rids = base(clean=True)
    before = unmarked(content(original.copy(1)))
    done = original.copy(1)
    change(done, name, rids)
    after = unmarked(content(done))
    for number in today(range(done.calls), 10):
        disk = original.copy(number)
        disk.fail_at = {number: code}
        reported = ""
        try:
            change(disk, name, rids)
        except StoreError as error:
            reported = str(error)
        disk.fail_at = {}
        assert not disk.held
        disk.crash(power_loss=bool(number % 2))
        assert unmarked(content(disk)) in ((before, after) if reported else (after,))
        assert "\n" not in reported


def test_moves_in_portions_lose_and_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages than fit into one transaction: a kill leaves some of them moved, and the rest where they were."""
    monkeypatch.setattr("qstore.store.repair.stopped_messages.MAX_MESSAGES", 2)
    disk, rids = base(clean=True)
    old, new = (content(disk.copy(1))[0][name] for name in ("old", "new"))
    new = [each for each in new if each[1] == LIVE]
    everything = in_order(new, old)
    stages, due, wrong = set[int](), is_due(6), list[Content]()

    def visit(call: Call) -> None:
        if not due():
            return
        killed = call.killed(call.number, power_loss=True)
        before = content(killed)
        found, moved = before[0], len(before[0]["new"]) - len(new) - 1
        stages.add(moved)
        if in_order(found["new"], found["old"]) != everything:
            wrong.append(before)
        if rids["old"][moved:]:
            change_rest(killed, rids["old"][moved:])
        if in_order(content(killed)[0]["new"]) != everything:
            wrong.append(content(killed))

    disk.watch = visit
    change_rest(disk, rids["old"])
    disk.watch = None
    assert wrong == []
    assert in_order(content(disk)[0]["new"]) == everything
    assert stages <= {0, 2, 4, 5}


def in_order(*queues: list[tuple[bytes, int, bool]]) -> list[bytes]:
    """The data of those that are not in doubt."""
    return [data for queue in queues for data, state, _ in queue if state == LIVE]


def change_rest(disk: SimulatedDisk, rids: list[int]) -> None:
    with StoppedMessages(simulated_environment(disk, random.Random(9)), PATH, "test", lambda _: None) as store:
        store.move("old", rids, "new")


def test_a_move_that_is_broken_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: a move that enqueues and dequeues in two transactions."""

    def two_steps(store: StoppedMessages, source: str, rids: list[int], target: str) -> None:
        store.copy(source, rids, target)
        store.remove(source, rids)

    monkeypatch.setitem(CHANGES, "move", lambda store, rids: two_steps(store, "old", rids["old"][1:5], "new"))
    calls = itertools.count()
    with pytest.raises(AssertionError):
        kill_everywhere("move", clean=True, due=lambda: next(calls) % 2 == 0)


def test_refused_changes_leave_the_store_as_it_was() -> None:
    disk, rids = base(clean=True)
    before = content(disk.copy(1))
    environment = simulated_environment(disk, random.Random(4))
    with StoppedMessages(environment, PATH, "test", lambda _: None) as store:
        for wrong, text in (
            (lambda: store.copy("old", [10**6], "new"), "is not a message of this queue; nothing was changed"),
            (lambda: store.move("old", rids["old"], "old"), "both source and destination"),
            (lambda: store.remove("nosuch", []), 'there is no queue "nosuch"'),
            (lambda: store.remove("old", [rids["old"][-1] + 1]), "nothing was changed"),  # the branch has it
            (lambda: store.remove("old", [rids["old"][0]] * 2), "dequeued twice"),
            (lambda: store.resolve(b"x", commits=True), "no branch in doubt with the id 78"),
            (lambda: store.add("new", [b"x" * 20_000]), "nothing was changed"),
        ):
            with pytest.raises(StoreError, match=text):
                wrong()
    assert content(disk) == before
    with pytest.raises(StoreError, match="there is no qstore store here"):
        StoppedMessages(environment, "/elsewhere", "test", lambda _: None)
