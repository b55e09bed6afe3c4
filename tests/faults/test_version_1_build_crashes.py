"""A store of version 1 that was built survives a power loss; a disk that fails meanwhile is reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import RecoveredStore, open_store
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import environment_without_catalogue
from tests.support.old_store import OldStore, Watcher, build_version_1, content_of
from tests.support.profiles import today

STORE: Final = "/new"
BRANCH: Final = encode_dtx_xid(9, b"gid", b"bid")
SEEDS: Final = 20


def write_source(path: Path) -> Path:
    old = OldStore()
    for name in ("orders", "a/path/of/directories"):
        queue = old.queue(name)
        for number in range(10):
            queue.enqueue(b"message %d" % number * number)
        queue.dequeue(3, xid=BRANCH)
    old.prepared.enqueue(b"\1", xid=BRANCH)
    return old.write(path)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[RecoveredStore]:
    opened = open_store(OsDisk(), str(write_source(tmp_path / "store")))
    yield opened.recover()
    opened.close()


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(STORE)
    disk.sync_directory("/")
    return disk


def test_all_of_it_is_on_the_disk(source: RecoveredStore, tmp_path: Path) -> None:
    disk = new_disk()
    build_version_1(STORE, source, Watcher(), environment=environment_without_catalogue(disk))
    assert disk.open_now == 0
    expected = content_of(tmp_path / "store")
    for seed in range(SEEDS):
        survivor = disk.copy(seed)
        survivor.crash(power_loss=True)
        found = content_of(Path(STORE), survivor)
        assert found.queues == expected.queues
        assert found.in_doubt == expected.in_doubt
        assert sorted(record.name for record in found.records.values()) == sorted(expected.queues)


@cache
def calls_of_a_build(path: Path) -> int:
    opened = open_store(OsDisk(), str(path))
    disk = new_disk()
    before = disk.calls
    build_version_1(STORE, opened.recover(), Watcher(), environment=environment_without_catalogue(disk))
    opened.close()
    return disk.calls - before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_is_reported(source: RecoveredStore, tmp_path: Path, code: int) -> None:
    """At every call: nothing goes on as if it had been done."""
    count = calls_of_a_build(tmp_path / "store")
    assert count > 60
    for call in today(range(count), 25):
        disk = new_disk()
        disk.fail_at = {disk.calls + call: code}
        with pytest.raises(OSError, match=os.strerror(code)) as error:
            build_version_1(STORE, source, Watcher(), environment=environment_without_catalogue(disk))
        assert error.value.errno == code
        assert disk.open_now == 0
