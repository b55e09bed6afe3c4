"""File names after a power loss: over all seeds exactly the allowed outcomes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

import pytest

from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulation import make, tree


def names_after(deed: Callable[[SimulatedDisk], object], seeds: Iterable[int] = range(200)) -> set[str]:
    """The tree after a power loss that follows `deed`, over the seeds: names joined by spaces, with what is in them."""
    found = set()
    for seed in seeds:
        disk = SimulatedDisk(seed)
        for folder in ("/s", "/t"):
            disk.make_directory(folder)
            disk.sync_directory("/")
        for name in ("/s/a", "/s/b"):
            make(disk, name, name[-1].encode())
        disk.sync_directory("/s")
        deed(disk)
        disk.crash(power_loss=True)
        found.add(tree(disk, "/"))
    return found


def move_synced(*synced: str) -> Callable[[SimulatedDisk], None]:
    def deed(disk: SimulatedDisk) -> None:
        disk.rename("/s/a", "/t/a")
        for path in synced:
            disk.sync_directory(path)

    return deed


class TestDirectories:
    @pytest.mark.parametrize(
        ("deed", "expected"),
        [
            (lambda disk: disk.rename("/s/a", "/s/c"), {"a=a b=b", "b=b c=a"}),
            (lambda disk: disk.rename("/s/a", "/s/b"), {"a=a b=b", "b=a"}),
            (lambda disk: disk.remove("/s/a"), {"a=a b=b", "b=b"}),
            (lambda disk: make(disk, "/s/c", b"c"), {"a=a b=b", "a=a b=b c=c"}),
            (lambda disk: disk.make_directory("/s/c"), {"a=a b=b", "a=a b=b c()"}),
        ],
    )
    def test_a_change_is_kept_or_lost_unless_it_is_synced(
        self, deed: Callable[[SimulatedDisk], object], expected: set[str]
    ) -> None:
        def synced(disk: SimulatedDisk) -> None:
            deed(disk)
            disk.sync_directory("/s")

        assert names_after(deed) == {f"s({names}) t()" for names in expected}
        assert len(names_after(synced)) == 1
        assert names_after(synced) < names_after(deed)

    def test_of_several_changes_any_may_be_lost(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.make_directory("/s/c")
            disk.make_directory("/s/d")
            disk.remove("/s/a")

        expected = {f"s({a}b=b{c}{d}) t()" for a in ("a=a ", "") for c in (" c()", "") for d in (" d()", "")}
        assert names_after(deed) == expected

    def test_syncing_a_file_does_not_sync_its_name(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            file = disk.create("/t/c", 0)
            file.write(0, b"c")
            file.sync()

        assert names_after(deed) == {"s(a=a b=b) t()", "s(a=a b=b) t(c=c)"}

    def test_renaming_a_directory_keeps_its_content(self) -> None:
        assert names_after(lambda disk: disk.rename("/s", "/u")) == {"s(a=a b=b) t()", "t() u(a=a b=b)"}

    def test_renaming_a_new_directory_keeps_its_content(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.make_directory("/u")
            disk.make_directory("/u/v")
            disk.sync_directory("/u")

        assert names_after(deed) == {"s(a=a b=b) t()", "s(a=a b=b) t() u(v())"}

    @pytest.mark.parametrize(
        ("synced", "expected"),
        [
            ((), {"s(a=a b=b) t()", "s(b=b) t(a=a)"}),
            (("/s",), {"s(b=b) t()", "s(b=b) t(a=a)"}),
            (("/t",), {"s(a=a b=b) t(a=a)", "s(b=b) t(a=a)"}),
            (("/t", "/s"), {"s(b=b) t(a=a)"}),
        ],
    )
    def test_a_move_to_another_directory_needs_both_synced(self, synced: tuple[str, ...], expected: set[str]) -> None:
        assert names_after(move_synced(*synced)) == expected

    def test_a_directory_is_never_in_two_places(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.make_directory("/s/d")
            disk.sync_directory("/s")
            disk.rename("/s/d", "/t/d")
            disk.sync_directory("/t")

        assert names_after(deed) <= {"s(a=a b=b d()) t()", "s(a=a b=b) t(d())"}

    def test_a_failed_sync_is_reported_once_and_its_data_stay_lost(self) -> None:
        def deed(disk: SimulatedDisk) -> None:
            disk.make_directory("/s/c")
            disk.fail_at = {disk.calls: errno.EIO}
            with pytest.raises(OSError, match="/s") as caught:
                disk.sync_directory("/s")
            assert caught.value.errno == errno.EIO
            disk.sync_directory("/s")
            assert disk.is_directory("/s/c")

        assert names_after(deed) == {"s(a=a b=b) t()", "s(a=a b=b c()) t()"}
