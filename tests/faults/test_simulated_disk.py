"""Files after a SIGKILL or a power loss: over all seeds exactly the allowed outcomes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.simulated_disk import SECTOR, Killed, SimulatedDisk
from tests.faults.simulation import SEEDS, content_of, disk_with, letters, make, outcomes


class TestSigkill:
    def test_kill_keeps_unsynced_writes(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.open_writable("/file").write(100, b"new")
            disk.create("/other", 7)
            disk.make_directory("/folder")
            disk.rename("/other", "/folder/moved")

        for seed in SEEDS:
            disk = disk_with(b"old" * 100, seed)
            deed(disk)
            disk.crash(power_loss=False)
            assert content_of(disk) == b"old" * 33 + b"o" + b"new" + (b"old" * 100)[103:]
            assert disk.names("/") == ["file", "folder"]
            assert content_of(disk, "/folder/moved") == bytes(7)

    def test_of_the_write_during_which_it_dies_any_beginning_stays(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.kill_at = disk.calls
            with pytest.raises(Killed):
                disk.open_writable("/file").write(0, b"x" * 1000)

        found = outcomes(deed, power_loss=False)
        assert {b"", b"x" * 1000} <= found
        assert any(0 < len(content) < SECTOR for content in found)
        assert any(SECTOR < len(content) < 1000 for content in found)
        assert all(set(content) <= {ord("x")} for content in found)

    def test_unsynced_writes_can_be_lost_in_the_next_life(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.open_writable("/file").write(0, b"new")
            disk.crash(power_loss=False)
            assert content_of(disk) == b"new"

        assert {b"old", b"new"} <= outcomes(deed, content=b"old")

        def deed_synced(disk: SimulatedDisk) -> None:
            deed(disk)
            disk.open_writable("/file").sync()

        assert outcomes(deed_synced, content=b"old") == {b"new"}

    @pytest.mark.parametrize(
        ("deed", "before", "after"),
        [
            (lambda disk: disk.make_directory("/new"), ["file"], ["file", "new"]),
            (lambda disk: disk.rename("/file", "/new"), ["file"], ["new"]),
            (lambda disk: disk.remove("/file"), ["file"], []),
            (lambda disk: disk.lock("/new"), ["file"], ["file", "new"]),
            (lambda disk: disk.create("/new", 1000), ["file"], ["file", "new"]),
        ],
    )
    def test_a_change_during_which_it_dies_is_made_or_not(
        self, deed: Callable[[SimulatedDisk], object], before: list[str], after: list[str]
    ) -> None:
        found = set()
        for seed in range(50):
            disk = disk_with(b"old", seed)
            disk.kill_at = disk.calls
            with pytest.raises(Killed):
                deed(disk)
            disk.crash(power_loss=False)
            found.add(tuple(disk.names("/")))
        assert found == {tuple(before), tuple(after)}

    def test_a_dead_process_does_nothing_more(self) -> None:
        disk = disk_with(b"old")
        file = disk.open_writable("/file")
        lock = disk.lock("/lock")
        disk.kill_at = disk.calls + 1
        file.sync()
        with pytest.raises(Killed):
            disk.make_directory("/a")
        attempts: list[Callable[[], object]] = [
            lambda: file.read(0, 1),
            lambda: file.write(0, b"a"),
            file.sync,
            file.begin_sync,
            lambda: disk.open("/file"),
            lambda: disk.names("/"),
            lambda: disk.is_file("/file"),
            lambda: disk.rename("/file", "/x"),
            lambda: disk.lock("/lock"),
        ]
        for attempt in attempts:
            with pytest.raises(Killed):
                attempt()
        file.close()
        disk.crash(power_loss=False)
        for attempt in attempts[:4]:
            with pytest.raises(Killed):
                attempt()
        again = disk.lock("/lock")
        lock.release()
        with pytest.raises(BlockingIOError):
            disk.lock("/lock")
        again.release()
        assert (disk.open_now, content_of(disk)) == (0, b"old")


class TestPowerLoss:
    def test_synced_writes_stay(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            file.write(SECTOR, b"b" * SECTOR)
            file.write(3 * SECTOR, b"d" * SECTOR)
            file.sync()

        assert {letters(content) for content in outcomes(deed, content=b"a" * SECTOR)} == {"ab\0d"}

    def test_of_unsynced_sectors_any_subset_stays_and_any_version(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            for letter in (b"b", b"c"):
                for number in range(3):
                    file.write(number * SECTOR, letter * SECTOR)

        found = {letters(content) for content in outcomes(deed, content=b"a" * 4 * SECTOR)}
        whole = {content for content in found if "~" not in content}
        assert {x + y + z + "a" for x in "abc" for y in "abc" for z in "abc"} >= whole
        assert len(whole) >= 24
        assert {"aaaa", "ccca", "bbba", "caaa", "acca", "aaca", "ccaa"} <= whole
        assert all(content[3] == "a" for content in found)

    def test_sectors_are_torn_but_bytes_that_stay_the_same_are_safe(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.open_writable("/file").write(0, b"a" * 100 + b"b" * 412)

        found = outcomes(deed, content=b"a" * 200 + b"z" * 312)
        assert all(content[:100] == b"a" * 100 and len(content) == SECTOR for content in found)
        torn = [content for content in found if content not in (b"a" * 200 + b"z" * 312, b"a" * 100 + b"b" * 412)]
        assert any(content.endswith(b"z") and b"b" in content for content in torn)
        assert any(content.endswith(b"b") and b"z" in content for content in torn)

    def test_a_write_that_is_not_on_sector_bounds_puts_both_sectors_at_risk_and_no_byte_beside(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.open_writable("/file").write(500, b"b" * 24)

        for content in (found := outcomes(deed, content=b"a" * 1024)):
            assert set(content[:500] + content[524:]) == {ord("a")}
        cuts = {(content[500:512], content[512:524]) for content in found}
        assert {(b"a" * 12, b"b" * 12), (b"b" * 12, b"a" * 12), (b"a" * 12, b"a" * 12), (b"b" * 12, b"b" * 12)} <= cuts

    def test_the_size_is_one_that_the_file_had(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.open_writable("/file")
            for end in (1000, 1500, 3000):
                file.write(end - 10, b"b" * 10)
            file.write(0, b"b")

        assert {len(content) for content in outcomes(deed, content=b"a" * 600)} == {600, 1000, 1500, 3000}

    def test_the_size_of_a_new_file_is_durable_with_a_sync(self) -> None:
        for synced in (True, False):
            found = set()
            for seed in range(50):
                disk = SimulatedDisk(seed)
                file = disk.create("/file", 1000)
                disk.sync_directory("/")
                if synced:
                    file.sync()
                disk.crash(power_loss=True)
                found.add(content_of(disk))
            assert found == ({bytes(1000)} if synced else {bytes(1000), b""})

    def test_with_larger_sectors_tears_are_larger(self) -> None:
        found = set()
        for seed in SEEDS:
            disk = disk_with(b"a" * 8192, seed, sector=4096)
            disk.open_writable("/file").write(0, b"b" * 8192)
            disk.crash(power_loss=True)
            found.add(content_of(disk))
        halves = {content[at : at + 4096] for content in found for at in (0, 4096)}
        edges = [half.index(half[-1:]) for half in halves if len(set(half)) == 2]
        assert any(edge % 512 for edge in edges)
        assert all(len(set(half)) <= 2 for half in halves)
        assert {letters(content)[::8] for content in found if "~" not in letters(content)} >= {"aa", "ab", "ba", "bb"}

    def test_without_powersafe_overwrite_a_sector_that_was_synced_may_be_destroyed(self) -> None:
        for powersafe in (True, False):
            destroyed = 0
            for seed in range(100):
                disk = disk_with(b"a" * 1536, seed, powersafe=powersafe)
                disk.open_writable("/file").write(600, b"a" * 10)
                disk.crash(power_loss=True)
                content = content_of(disk)
                assert (content[:512], content[1024:], len(content)) == (b"a" * 512, b"a" * 512, 1536)
                destroyed += content[512:1024] != b"a" * 512
            assert bool(destroyed) is not powersafe

    def test_two_files_fare_differently(self) -> None:
        found = set()
        for seed in SEEDS:
            disk = SimulatedDisk(seed)
            for name in ("/a", "/b"):
                make(disk, name, b"o")
            disk.sync_directory("/")
            for name in ("/a", "/b"):
                disk.open_writable(name).write(0, b"n")
            disk.crash(power_loss=True)
            found.add(content_of(disk, "/a") + content_of(disk, "/b"))
        assert found == {b"oo", b"on", b"no", b"nn"}
