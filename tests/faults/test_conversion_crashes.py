"""A store of version 1 whose conversion is killed, at every call, and killed again while it is converted once more.

Whatever happens, the old store is there as it was, under its own name or as the one that was kept; and once a start
gets through, the new store is whole. `tests/support/profiles.py` says which calls are tried.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange, Link, Queue
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.geometry import Geometry
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import Found, StoreDirectory
from qstore.store.catalogue.topology import Topology, catalogue_topology
from qstore.store.disk import read_whole
from qstore.store.environment import Environment, InlineBackground
from qstore.store.errors import StoreError
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery.prepared import prepared_transactions
from qstore.store.repair.conversion import MARK, convert, mark_converted
from qstore.store.sync.threads import InlineSync
from qstore.store.unfinished import CONVERTED
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.support.old_store import OldStore
from tests.support.profiles import is_due, is_nightly, today

STORE: Final = "/store"
PARAMETERS: Final = StoreParameters(tpl_num_jfiles=4, tpl_jfile_size_pgs=1, on_damage=OnDamage.REFUSE)
SECONDS: Final = 8  # draws of a second crash, for each first one
BRANCH: Final = encode_dtx_xid(9, b"gid", b"bid")


class Content(NamedTuple):
    """What a store has, whatever its version: without record ids."""

    queues: dict[str, list[tuple[int, bytes | None, bytes]]]
    in_doubt: list[bytes]
    topology: tuple[Any, ...]


def environment_on(disk: SimulatedDisk, seed: int = 0) -> Environment:
    rng = random.Random(seed)

    def open_key_value(path: str, *, create: bool) -> SimulatedKeyValue:
        return SimulatedKeyValue.open(disk, path, create=create)

    return Environment(
        disk, open_key_value, lambda _: InlineSync(), InlineBackground, lambda: 1_700_000_000 * 10**9, rng.getrandbits
    )


def started(disk: SimulatedDisk, lines: list[LogLine] | None = None) -> None:
    """What a start does, up to where a store of version 2 is there."""
    environment = environment_on(disk, disk.life)
    directory = StoreDirectory(environment, STORE, "0.1.0")
    lock = directory.lock()
    try:
        mark_converted(environment, directory)
        directory.finish_interrupted()
        if directory.look() is Found.VERSION_1:
            convert(environment, directory, PARAMETERS, ([] if lines is None else lines).append)
        assert directory.look() is Found.VERSION_2
    finally:
        lock.release()


# ---- the old store ----


@cache
def old_files() -> dict[str, bytes]:
    old = OldStore()
    orders, bills = old.queue("orders"), old.queue("bills", Geometry(5, 2048))
    bills.next_rid = 100
    rids = [orders.enqueue(b"order %d " % number * (number % 5 + 1)).header.rid for number in range(12)]
    for rid in rids[:3]:
        orders.dequeue(rid)
    orders.dequeue(rids[5], xid=BRANCH)
    orders.dequeue(rids[6], xid=b"never prepared")
    bills.enqueue(b"bill" * 300)
    bills.enqueue(b"pending", xid=BRANCH)
    bills.enqueue(b"committed", xid=b"local")
    bills.enqueue(b"last")
    old.prepared.enqueue(b"\1", xid=BRANCH)
    old.prepared.enqueue(b"\0", xid=b"local")
    old.queues = {3: Queue("orders"), 4: Queue("bills"), 7: Queue("no messages")}
    old.queue("no messages")
    old.exchanges = {5: Exchange("dead", True, "fanout"), 6: Exchange("news", True, "topic")}
    old.bindings = [(5, Binding(3, "orders", "")), (6, Binding(4, "bills", "a.#")), (6, Binding(3, "orders", "b"))]
    old.general = {8: Link("link.v2", "l", "host", 5672, "tcp", True, "PLAIN", "user", "secret")}
    return {f"{STORE}/{name}": content for name, content in old.files().items()}


def old_disk(seed: int = 0) -> SimulatedDisk:
    """The old store, all of it durable."""
    disk = SimulatedDisk(seed)
    folders = {"/"}
    for path, content in old_files().items():
        names = path.split("/")[1:-1]
        for depth in range(len(names)):
            folder = "/" + "/".join(names[: depth + 1])
            if folder not in folders:
                disk.make_directory(folder)
                folders.add(folder)
        file = disk.create(path, len(content))
        file.write(0, content)
        file.sync()
        file.close()
    for folder in folders:
        disk.sync_directory(folder)
    disk.crash(power_loss=True)
    return disk


def assert_kept(disk: SimulatedDisk) -> str:
    """The old store is there as it was. Returns the name under which it is."""
    name = CONVERTED if disk.is_directory(f"{STORE}/{CONVERTED}") else "rhm"
    for path, content in old_files().items():
        where = path.replace("/rhm/", f"/{name}/")
        assert disk.is_file(where), where
        assert read_whole(disk, where, 1 << 20) == content, where
    found = files_below(disk, f"{STORE}/{name}")
    expected = {path.replace("/rhm/", f"/{name}/") for path in old_files()}
    marks = {f"{STORE}/{CONVERTED}/{MARK}", f"{STORE}/{CONVERTED}/{MARK}.new"} if name == CONVERTED else set()
    assert found - expected <= marks
    return name


def files_below(disk: SimulatedDisk, path: str) -> set[str]:
    found = set()
    for name in disk.names(path):
        below = f"{path}/{name}"
        found |= files_below(disk, below) if disk.is_directory(below) else {below}
    return found


# ---- what is in a store ----


@cache
def old_content() -> Content:
    disk = old_disk()
    source = open_store(disk, f"{STORE}/rhm")
    recovered = source.recover()
    assert source.damage == []
    queues = {
        queue.name: [
            (state, xid, data_of(queue.journal, place)) for _, place, state, xid in queue.outstanding() if queue.journal
        ]
        for queue in recovered.queues
    }
    in_doubt = [each.xid for each in recovered.transactions if each.outcome is Outcome.IN_DOUBT]
    assert source.topology is not None
    topology = source.topology
    records = {number: queue.record for number, queue in topology.queues.items()}
    return Content(queues, in_doubt, (records, topology.exchanges, bindings_of(topology), topology.general))


def new_content(disk: SimulatedDisk) -> Content:
    key_value = SimulatedKeyValue.open(disk, f"{STORE}/rhm/catalogue")
    catalogue = Catalogue(key_value)
    assert catalogue.check() == []
    topology = catalogue_topology(catalogue, "catalogue")
    reserved = catalogue.rid_high_water()
    tpl, tpl_recovery = walked(disk, f"{STORE}/rhm/tpl")
    highest = tpl_recovery.highest_rid
    two_phase = {
        operation.place: data_of(tpl, operation.place) == b"\1"
        for transaction in tpl_recovery.transactions
        for operation in transaction
        if operation.is_enqueue
    }
    prepared = prepared_transactions(tpl_recovery.transactions, two_phase)
    outcomes = {each.xid: each.outcome for each in prepared}
    queues = {}
    for entry in topology.queues.values():
        journal, recovery = walked(disk, f"{STORE}/rhm/jrnl/{entry.journal_id}")
        recovery.resolve(outcomes)
        assert {each.outcome for each in recovery.left_open} <= {Outcome.IN_DOUBT}
        queues[entry.record.name] = [
            (state, xid, data_of(journal, place)) for _, place, state, xid in recovery.outstanding(journal.format)
        ]
        highest = max(highest, recovery.highest_rid)
        assert journal.info is not None
        assert journal.info.queue_name == entry.record.name
    assert len(disk.names(f"{STORE}/rhm/jrnl")) == len(queues), "no orphans"
    assert highest < reserved
    key_value.close()
    records = {number: queue.record for number, queue in topology.queues.items()}
    in_doubt = [xid for xid, outcome in outcomes.items() if outcome is Outcome.IN_DOUBT]
    return Content(queues, in_doubt, (records, topology.exchanges, bindings_of(topology), topology.general))


def bindings_of(topology: Topology) -> list[tuple[str, int, str]]:
    """The new store has those of one exchange by their queue, too."""
    return sorted((each.exchange.name, each.record.queue_id, each.record.key) for each in topology.bindings)


def walked(disk: SimulatedDisk, path: str) -> tuple[Journal, JournalRecovery]:
    journal = open_journal(disk, path)
    recovery = JournalRecovery()
    journal.walk(recovery)
    assert [*journal.damage, *recovery.damage] == []
    return journal, recovery


def data_of(journal: Journal, place: int) -> bytes:
    return b"".join(journal.data_chunks(*journal.data_of_enqueue(place)))


def assert_whole(disk: SimulatedDisk) -> None:
    """The new store has everything, and beside it is the old one, marked."""
    assert new_content(disk) == old_content()
    assert assert_kept(disk) == CONVERTED
    assert disk.is_file(f"{STORE}/{CONVERTED}/{MARK}")
    assert set(disk.names(STORE)) == {"rhm", CONVERTED, "rhm.lock"}


# ---- tests ----


def test_without_a_crash() -> None:
    disk = old_disk()
    lines: list[LogLine] = []
    started(disk, lines)
    assert_whole(disk)
    assert {line.level for line in lines} <= {Level.NOTICE, Level.WARNING}
    content = old_content()
    assert content.in_doubt == [BRANCH]
    assert sum(map(len, content.queues.values())) == 13
    disk.crash(power_loss=True)
    assert_whole(disk)
    started(disk)
    assert_whole(disk)


@pytest.mark.parametrize("power_loss", [False, True], ids=["SIGKILL", "power loss"])
def test_a_crash_at_every_call(*, power_loss: bool) -> None:
    names = kill_everywhere(is_due(4), power_loss=power_loss)
    assert "rhm" in names
    assert CONVERTED in names or not is_nightly()


def kill_everywhere(due: Callable[[], bool], *, power_loss: bool) -> set[str]:
    """Kill a conversion at each call that is due. Returns the names under which the old store was then."""
    names = set()

    def visit(call: Call) -> None:
        if not due():
            return
        disk = call.killed(call.number, power_loss=power_loss)
        names.add(assert_kept(disk))
        for _ in range(2):
            started(disk)
            assert_whole(disk)
            disk.crash(power_loss=True)

    disk = old_disk()
    disk.watch = visit
    started(disk)
    assert disk.calls > 60
    return names


@pytest.mark.parametrize("part", range(4))
def test_two_crashes_and_more(part: int) -> None:
    """The second, and sometimes a third and a fourth, at a call that is drawn; the last start gets through."""

    def visit(call: Call) -> None:
        if call.number % 4 != part:
            return
        for seed in range(SECONDS):
            if not due():
                continue
            rng = random.Random(call.number * 100 + seed)
            disk = call.killed(seed, power_loss=rng.random() < 0.5)
            for _ in range(rng.choice((1, 1, 2, 3))):
                crash_again(disk, rng)
            started(disk)
            assert_whole(disk)

    due = is_due(12)
    disk = old_disk()
    disk.watch = visit
    started(disk)


def crash_again(disk: SimulatedDisk, rng: random.Random) -> None:
    disk.kill_at = rng.randrange(rng.choice((10, 160)))
    with contextlib.suppress(Killed):
        started(disk)
    disk.crash(power_loss=rng.random() < 0.5)
    assert_kept(disk)


def test_a_failing_call_leaves_the_old_store_or_the_new_one() -> None:
    disk = old_disk()
    begun = disk.calls
    started(disk)
    calls = disk.calls - begun
    for number in today(range(calls), calls // 4):
        disk = old_disk(number)
        disk.fail_at = {number: errno.ENOSPC if number % 2 else errno.EIO}
        with contextlib.suppress(StoreError, OSError):
            started(disk)
        assert_kept(disk)
        disk.crash(power_loss=bool(number % 3))
        assert_kept(disk)
        started(disk)
        assert_whole(disk)


def test_a_conversion_that_swaps_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken conversion, to show that these tests can fail: the old store goes before the new one is synced."""

    def lazy_sync(self: SimulatedDisk, path: str) -> None:
        if "rhm.new" not in path:
            whole(self, path)

    whole = SimulatedDisk.sync_directory
    monkeypatch.setattr(SimulatedDisk, "sync_directory", lazy_sync)
    with pytest.raises((AssertionError, StoreError, OSError)):
        kill_everywhere(lambda: True, power_loss=True)
