"""Calls that fail, a full disk, bad sectors, and syncs that take their time."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.faults.simulated_disk import SECTOR, SimulatedDisk
from tests.faults.simulation import SEEDS, content_of, disk_with, letters, outcomes, tree


class TestFailures:
    def test_a_failed_sync_drops_unwritten_data_from_memory_too(self) -> None:
        found = set()
        for seed in SEEDS:
            disk = disk_with(b"a" * 3 * SECTOR, seed)
            file = disk.open_writable("/file")
            file.write(0, b"b" * 2 * SECTOR)
            disk.fail_at = {disk.calls: errno.EIO}
            with pytest.raises(OSError, match="/file") as caught:
                file.sync()
            assert caught.value.errno == errno.EIO
            file.sync()
            seen = file.read(0, 1 << 20)
            disk.crash(power_loss=True)
            assert content_of(disk) == seen
            found.add(letters(seen))
        assert found == {"aaa", "baa", "aba", "bba"}

    def test_a_write_that_fails_leaves_a_beginning(self) -> None:
        found = set()
        for seed in SEEDS:
            disk = disk_with(b"", seed)
            disk.fail_at = {disk.calls: errno.EIO}
            with pytest.raises(OSError, match="/file") as caught:
                disk.open_writable("/file").write(0, b"x" * 100)
            assert caught.value.errno == errno.EIO
            assert set(content_of(disk)) <= {ord("x")}
            found.add(len(content_of(disk)))
        assert {0, 100} < found
        assert max(found) == 100

    def test_another_failing_call_changes_nothing(self) -> None:
        disk = disk_with(b"old")
        attempts: list[Callable[[], object]] = [
            lambda: disk.make_directory("/a"),
            lambda: disk.rename("/file", "/b"),
            lambda: disk.remove("/file"),
            lambda: disk.lock("/lock"),
        ]
        disk.fail_at = dict.fromkeys(range(disk.calls, disk.calls + len(attempts)), errno.EROFS)
        for attempt in attempts:
            with pytest.raises(OSError, match="Read-only"):
                attempt()
            assert tree(disk, "/") == "file=old"
        disk.make_directory("/a")

    def test_a_full_disk(self) -> None:
        left = set()
        for seed in range(30):
            disk = SimulatedDisk(seed, capacity=1000)
            file = disk.create("/a", 600)
            with pytest.raises(OSError, match="/b") as caught:
                disk.create("/b", 401)
            assert caught.value.errno == errno.ENOSPC
            left.add(tuple(disk.names("/")))
            assert not disk.is_file("/b") or content_of(disk, "/b") == b""
            file.write(0, b"x" * 600)
            file.write(590, b"y" * 300)
            with pytest.raises(OSError, match="/a") as caught:
                file.write(880, b"z" * 200)
            assert caught.value.errno == errno.ENOSPC
            assert content_of(disk, "/a") == b"x" * 590 + b"y" * 290 + b"z" * 120
            file.sync()
            disk.sync_directory("/")
            disk.crash(power_loss=True)
            disk.remove("/a")
            disk.create("/c", 1000)
        assert left == {("a",), ("a", "b")}

    def test_room_is_counted_through_replacing_and_crashes(self) -> None:
        for seed in range(30):
            disk = SimulatedDisk(seed, capacity=1000)
            for name in ("/a", "/b"):
                disk.create(name, 400).sync()
            disk.sync_directory("/")
            disk.rename("/a", "/b")
            assert disk.tree.used == 400
            disk.crash(power_loss=True)
            assert disk.tree.used == 400 * len(disk.names("/"))
            copy = disk.copy(1)
            copy.remove("/b")
            assert (copy.tree.used, disk.tree.used) == (disk.tree.used - 400, 400 * len(disk.names("/")))

    def test_a_sector_that_cannot_be_read(self) -> None:
        disk = disk_with(b"a" * 2000)
        disk.read_fails = {("/file", 1)}
        file = disk.open("/file")
        assert (file.read(0, 512), file.read(1024, 976)) == (b"a" * 512, b"a" * 976)
        for offset, length in ((0, 513), (511, 2), (1023, 1), (600, 10), (0, 2000)):
            with pytest.raises(OSError, match="/file") as caught:
                file.read(offset, length)
            assert caught.value.errno == errno.EIO

    def test_a_flipped_bit_is_there_for_readers_and_after_crashes(self) -> None:
        disk = disk_with(b"\0" * 10)
        copy = disk.copy(1)
        disk.flip("/file", 3, 6)
        assert content_of(disk) == b"\0\0\0@" + bytes(6)
        disk.crash(power_loss=True)
        assert content_of(disk) == b"\0\0\0@" + bytes(6)
        disk.open_writable("/file").write(9, b"x")
        disk.crash(power_loss=True)
        assert content_of(disk)[:9] == b"\0\0\0@" + bytes(5)
        assert content_of(copy) == bytes(10)


class TestSlowSync:
    def test_a_sync_covers_earlier_writes_only(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            file.write(0, b"b" * SECTOR)
            token = file.begin_sync()
            file.write(SECTOR, b"c" * SECTOR)
            file.finish_sync(token)

        whole = {letters(content) for content in outcomes(deed, content=b"a" * 2 * SECTOR)}
        assert {content.replace("~", "?")[0] for content in whole} == {"b"}
        assert {"ba", "bc", "b~"} == whole

    def test_before_it_is_finished_nothing_is_certain(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            file.write(0, b"b" * SECTOR)
            file.begin_sync()

        assert {letters(content) for content in outcomes(deed, content=b"a" * SECTOR)} == {"a", "b", "~"}

    def test_two_at_once_in_any_order(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            file.write(0, b"b")
            first = file.begin_sync()
            file.write(1, b"c")
            second = file.begin_sync()
            file.write(2, b"d")
            file.finish_sync(second)
            file.finish_sync(first)

        assert outcomes(deed, content=b"aaaa") == {b"bcaa", b"bcda"}

    def test_each_handle_reports_a_failed_sync_once(self) -> None:
        disk = disk_with(b"aaaa", 1)
        failing, other = disk.open_writable("/file"), disk.open_writable("/file")
        failing.write(0, b"b")
        disk.fail_at = {disk.calls: errno.EIO}
        for file in (failing, other):
            with pytest.raises(OSError, match="/file") as caught:
                file.sync()
            assert caught.value.errno == errno.EIO
        for file in (failing, other, disk.open_writable("/file")):
            file.sync()

    def test_one_that_fails_leaves_later_writes_in_memory(self) -> None:
        found = set()
        for seed in range(50):
            disk = disk_with(b"aaaa", seed)
            file = disk.open_writable("/file")
            file.write(0, b"b")
            token = file.begin_sync()
            file.write(1, b"c")
            disk.fail_at = {disk.calls: errno.EIO}
            with pytest.raises(OSError, match="/file"):
                file.finish_sync(token)
            found.add(file.read(0, 9))
            file.sync()
            disk.crash(power_loss=True)
            assert content_of(disk) in found
        assert found == {b"acaa", b"bcaa"}
