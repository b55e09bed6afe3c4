"""Journals of several queues that grow together: what they wait for, a failure, and a kill, at every call."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from qstore.formats.rhm.jinf import MAX_JINF_SIZE, decode_jinf
from qstore.store.disk import SyncGroup, read_whole
from qstore.store.journal.write.growth import RingGrowth
from qstore.store.log_lines import Level
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import Shop
from tests.support.compiled import replaces
from tests.support.profiles import today

NAMES = ("queue-0", "queue-1", "queue-2")
BODY = b"x" * 900
LATER = 0.99  # by chance: the background does nothing
NOW = 0.0  # the background does all that waits, together


class Growing(Shop):
    """A store whose queues run low at the same time."""

    def __init__(self, disk: SimulatedDisk, queues: int = 0) -> None:
        super().__init__(disk, queues, auto_expand=True)
        self.kept = {name: list(self.found.get(name, ())) for name in self.journals}
        self.rids: dict[str, list[int]] = {name: [] for name in self.journals}  # of this life
        self.sent = 0

    def send(self, name: str) -> None:
        data = b"%06d" % self.sent + BODY
        self.sent += 1
        rid = self.enqueue(name, data)
        assert self.flush(name) is None
        self.kept[name].append(data)
        self.rids[name].append(rid)

    def lap(self) -> None:
        """Take the oldest messages away while others come, until the oldest are in the middle of the ring."""
        for name in self.journals:
            for _ in range(self.journals[name].geometry.files * 6):
                self.send(name)
                self.store.append.dequeue(self.journals[name], self.rids[name].pop(0))
                self.kept[name].pop(0)
            assert self.flush(name) is None

    def run_low(self) -> None:
        """Fill all journals until each waits for more files."""
        with patch("random.Random.random", lambda _: LATER):
            for name, journal in self.journals.items():
                for _ in range(1000):
                    if journal.writer.growth.change is not None or journal.writer.failure is not None:
                        break
                    self.send(name)

    def grow(self) -> None:
        """All changes that wait are made."""
        with patch("random.Random.random", lambda _: NOW):
            self.store.collect()


def grown(seed: int, times: int, *, laps: bool) -> Growing:
    """A store whose three journals have grown so many times, and are about to grow again."""
    shop = Growing(SimulatedDisk(seed), len(NAMES))
    for _ in range(times):
        shop.run_low()
        shop.grow()
    if laps:
        shop.lap()
    shop.run_low()
    return shop


def check(disk: SimulatedDisk, kept: dict[str, list[bytes]], *, goes_on: bool = True) -> None:
    """After a crash: no damage, no message too few, none too many, no file besides those of the rings."""
    shop = Growing(disk)
    assert [line.text for line in shop.lines if line.level in (Level.CRITICAL, Level.WARNING)] == []
    assert shop.found == kept
    for journal in shop.journals.values():
        path = f"{journal.directory}/{journal.base_name}.jinf"
        info = decode_jinf(read_whole(disk, path, MAX_JINF_SIZE))
        files = {f"{journal.base_name}.{number:04x}.jdat" for number in info.numbers}
        assert {name for name in disk.names(journal.directory) if name.endswith(".jdat")} == files
    if goes_on:
        files_before = {name: journal.geometry.files for name, journal in shop.journals.items()}
        shop.run_low()
        shop.grow()
        assert all(journal.geometry.files > files_before[name] for name, journal in shop.journals.items())
        disk.crash(power_loss=True)
        check(disk, shop.kept, goes_on=False)


def groups_of(shop: Growing) -> list[int]:
    """How many journals each sync is for while all of them grow."""
    groups: list[int] = []
    sync_each = SimulatedDisk.sync_each

    def noted(disk: SimulatedDisk, given: Sequence[SyncGroup]) -> list[OSError | None]:
        groups.append(len(given))
        return sync_each(disk, given)

    files = {name: journal.geometry.files for name, journal in shop.journals.items()}
    with patch.object(SimulatedDisk, "sync_each", noted):
        shop.grow()
    assert all(journal.geometry.files > files[name] for name, journal in shop.journals.items())
    return groups


@pytest.mark.parametrize(("times", "syncs"), [(0, 4), (1, 2), (2, 2)])
def test_journals_that_run_low_at_once_share_their_syncs(times: int, syncs: int) -> None:
    """The first time after a start, the info files must list the new files before."""
    assert groups_of(grown(1, times, laps=False)) == [3] * syncs


@replaces
def test_few_files_are_open_at_once() -> None:
    shop = grown(1, 0, laps=False)
    with patch("qstore.store.journal.write.growth._MAX_OPEN", 2 * (4 + 3)):
        assert groups_of(shop) == [2] * 4 + [1] * 4
    shop.disk.crash(power_loss=True)
    check(shop.disk, shop.kept)


def kill_at_every_call(seed: int, times: int, power_loss: bool, *, laps: bool) -> int:
    shop = grown(seed, times, laps=laps)
    calls: list[str] = []

    def visit(call: Call) -> None:
        calls.append(call.name)
        check(call.killed(seed * 1000 + call.number, power_loss=power_loss), shop.kept, goes_on=len(calls) % 5 == 0)

    shop.disk.watch = visit
    shop.grow()
    shop.disk.watch = None
    assert all(journal.writer.growth.change is None for journal in shop.journals.values())
    shop.run_low()
    shop.grow()
    shop.disk.crash(power_loss=True)
    check(shop.disk, shop.kept)
    return len(calls)


@pytest.mark.parametrize("power_loss", today([False, True], 1))
@pytest.mark.parametrize(("times", "laps"), [(0, False), (0, True), (1, False), (1, True)])
def test_a_kill_at_every_call_leaves_each_journal_whole(times: int, laps: bool, power_loss: bool) -> None:
    assert kill_at_every_call(7, times, power_loss, laps=laps) > 3 * 12


@pytest.mark.parametrize(("times", "code"), [(0, errno.EIO), (1, errno.EIO), (1, errno.ENOSPC)])
def test_a_failure_at_any_call_is_that_of_one_journal(times: int, code: int) -> None:
    number, failed = 0, 0
    while True:
        shop = grown(11, times, laps=False)
        files = {name: journal.geometry.files for name, journal in shop.journals.items()}
        first = shop.disk.calls
        shop.disk.fail_at = {first + number: code}
        shop.grow()
        if shop.disk.calls <= first + number:
            break
        journals = shop.journals
        same = [name for name, journal in journals.items() if journal.geometry.files == files[name]]
        assert len(same) <= 1
        broken = [name for name, journal in journals.items() if journal.writer.failure is not None]
        assert broken in ([], same)
        failed += len(same)
        shop.run_low()  # the announcement of the files may have failed: they are announced again
        if number % 3 == 0:
            kept = shop.kept

            def visit(call: Call, kept: dict[str, list[bytes]] = kept) -> None:
                if call.number % 4 == 0:
                    check(call.killed(call.number, power_loss=True), kept, goes_on=False)

            shop.disk.watch = visit
        shop.grow()
        shop.disk.watch = None
        grow_on = [name for name, journal in journals.items() if name not in broken]
        assert all(journals[name].geometry.files > files[name] for name in grow_on)
        shop.disk.crash(power_loss=True)
        check(shop.disk, shop.kept, goes_on=False)
        number += 1
    assert failed > 3 * 8


@replaces
def test_files_that_are_not_announced_before_they_are_created_are_detected() -> None:
    begin = RingGrowth.begin

    def announced(growth: RingGrowth, files: int) -> object:
        change = begin(growth, files)
        if change is not None:
            growth.change = change = change._replace(is_announced=True)
        return change

    with patch.object(RingGrowth, "begin", announced), pytest.raises(AssertionError):
        kill_at_every_call(7, 0, power_loss=False, laps=False)


def test_syncs_left_out_are_detected() -> None:
    def lost() -> None:
        for seed in range(10):
            kill_at_every_call(seed, 0, power_loss=True, laps=False)

    with (
        patch.object(SimulatedDisk, "sync_each", lambda _, groups: [None] * len(groups)),
        pytest.raises(AssertionError),
    ):
        lost()
