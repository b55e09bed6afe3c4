"""A recovery that is killed at every call of the disk, with and without a power loss: files with a name are whole."""

from __future__ import annotations

import errno
import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from qstore.store.disk import OsDisk
from qstore.store.errors import StoreError
from qstore.store.inspect.offline import open_store
from qstore.store.parameters import StoreParameters
from qstore.store.repair.quarantine import Quarantine
from qstore.store.repair.recover.build import check_destination, recover_into
from qstore.store.repair.recover.plan import OrphanPolicy, make_plan
from qstore.store.unfinished import RECOVERED, RECOVERING
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import environment_without_catalogue
from tests.support.old_store import OldStore, content_of

OUT: Final = "/out"
DEST, BESIDE = f"{OUT}/new", f"{OUT}/new.recovering"
BODIES: Final = [b"message %d" % number for number in range(4)]
KEPT: Final = [BODIES[0], *BODIES[2:]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with a record that is damaged, and goes into the quarantine."""
    old = OldStore()
    queue = old.queue("orders")
    for body in BODIES:
        queue.enqueue(body)
    path = old.write(tmp_path / "store")
    (file,) = [each for each in path.glob("rhm/jrnl/**/*.jdat") if BODIES[1] in each.read_bytes()]
    content = file.read_bytes()
    at = content.index(BODIES[1]) // 128 * 128
    file.write_bytes(content[:at] + bytes(128) + content[at + 128 :])
    return path


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(OUT)
    disk.sync_directory("/")
    return disk


def run(disk: SimulatedDisk, source: Path) -> None:
    check_destination(disk, "/nothing", DEST)
    opened = open_store(OsDisk(), str(source))
    parameters = StoreParameters(tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
    try:
        plan = make_plan(opened.recover(), OrphanPolicy.REPORT, parameters)
        recover_into(
            environment_without_catalogue(disk), disk, plan, DEST, version=1, orphans=OrphanPolicy.REPORT,
            parameters=parameters, software_version="test", stage=lambda _, __: None,
        )  # fmt: skip
    finally:
        opened.close()


def assert_whole(disk: SimulatedDisk, path: str) -> None:
    assert [data for _, _, data in content_of(Path(path), disk).queues["orders"]] == KEPT
    assert len(list(Quarantine(disk, f"{path}/quarantine").entries())) == 1


def check(disk: SimulatedDisk, source: Path, seen: Counter[str]) -> None:
    """What a kill left of a recovery, and what becomes of it when it is run again."""
    if disk.is_directory(DEST):
        assert not disk.is_directory(BESIDE)
        assert_whole(disk, DEST)
        assert set(disk.names(DEST)) - {RECOVERED} == {"quarantine", "rhm"}
        seen["has its name"] += 1
        return
    names = set(disk.names(BESIDE)) if disk.is_directory(BESIDE) else set()
    if RECOVERED in names:
        assert RECOVERING not in names
        assert_whole(disk, BESIDE)
        seen["built"] += 1
    elif names - {"rhm.lock"}:
        assert RECOVERING in names
        seen["begun"] += 1
    run(disk, source)
    assert_whole(disk, DEST)
    assert disk.names(OUT) == ["new"]


@pytest.mark.parametrize("power_loss", [False, True])
def test_killed_at_every_call(source: Path, power_loss: bool) -> None:
    disk, seen = new_disk(), Counter[str]()
    rng = random.Random(3)
    killed: list[SimulatedDisk] = []

    def kill(call: Call) -> None:
        killed.append(call.killed(rng.getrandbits(32), power_loss=power_loss))

    disk.watch = kill
    run(disk, source)
    disk.watch = None
    assert_whole(disk, DEST)
    assert disk.names(DEST) == ["quarantine", "rhm"]
    for left in killed:
        check(left, source, seen)
    assert set(seen) == {"begun", "built", "has its name"}


@pytest.mark.parametrize("power_loss", [False, True])
def test_killed_while_an_earlier_one_is_removed(source: Path, power_loss: bool) -> None:
    """What was built and had not got its name is marked as begun before anything of it goes."""
    disk, seen = new_disk(), Counter[str]()
    built: list[SimulatedDisk] = []

    def keep(call: Call) -> None:
        left = call.killed(5, power_loss=False)
        if left.is_file(f"{BESIDE}/{RECOVERED}"):
            built.append(left)

    disk.watch = keep
    run(disk, source)
    again = built[0]
    killed: list[SimulatedDisk] = []
    again.watch = lambda call: killed.append(call.killed(len(killed), power_loss=power_loss))
    run(again, source)
    for left in killed[:80]:  # what is removed; what comes then is what the first run does
        check(left, source, seen)
    assert seen["begun"] > 10


def test_a_failing_disk_at_any_call(source: Path) -> None:
    """Nothing is left, or what is left is marked as a part."""
    probe = new_disk()
    first = probe.calls
    run(probe, source)
    for call in range(first, probe.calls):
        disk = new_disk()
        disk.fail_at = {call: errno.EIO}
        try:
            run(disk, source)
        except (StoreError, OSError):
            pass
        else:  # only the mark of a complete store could not be removed, which the next start does
            assert call >= probe.calls - 2
            assert disk.is_directory(DEST)
        names = set(disk.names(BESIDE)) if disk.is_directory(BESIDE) else set()
        assert RECOVERED not in names
        assert RECOVERING in names or names <= {"rhm.lock"}
        if disk.is_directory(DEST):
            assert_whole(disk, DEST)
