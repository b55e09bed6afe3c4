"""Seeds, copies and kill points: what makes a failing run of the simulated disk replay."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.simulation import content_of, disk_with
from tests.support.profiles import examples

PATHS = ["/a", "/b", "/d/a", "/d/b"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(PATHS), st.integers(0, 1500)),
        st.tuples(
            st.just("write"), st.sampled_from(PATHS), st.integers(0, 2000), st.integers(1, 1500), st.integers(1, 255)
        ),
        st.tuples(st.just("sync"), st.sampled_from(PATHS)),
        st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
        st.tuples(st.just("remove"), st.sampled_from(PATHS)),
        st.tuples(st.just("sync_directory"), st.sampled_from(["/", "/d"])),
        st.tuples(st.just("crash"), st.booleans()),
        st.tuples(st.just("fail")),
    ),
    max_size=25,
)


def play(disk: SimulatedDisk, steps: list[tuple[object, ...]]) -> None:
    """Do what can be done of the steps."""
    if not disk.is_directory("/d"):
        disk.make_directory("/d")
        disk.sync_directory("/")
    for name, *arguments in steps:
        try:
            one(disk, str(name), arguments)
        except OSError:
            continue


def one(disk: SimulatedDisk, name: str, arguments: list[object]) -> None:
    match name, arguments:
        case "write", [str(path), int(offset), int(length), int(byte)]:
            disk.open_writable(path).write(offset, bytes([byte]) * length)
        case "sync", [str(path)]:
            disk.open_writable(path).sync()
        case "crash", [bool(power_loss)]:
            disk.crash(power_loss=power_loss)
        case "fail", []:
            disk.fail_at[disk.calls] = errno.EIO
        case _:
            getattr(disk, name)(*arguments)


def image(disk: SimulatedDisk) -> dict[str, bytes | None]:
    """All that a process sees."""
    found: dict[str, bytes | None] = {}
    folders = ["/"]
    for folder in folders:
        for name in disk.names(folder):
            path = folder.rstrip("/") + "/" + name
            if disk.is_directory(path):
                folders.append(path)
                found[path] = None
            else:
                found[path] = content_of(disk, path)
    return found


class TestReplay:
    @examples(200)
    @given(steps=STEPS, seed=st.integers(0, 1000))
    def test_the_same_seed_and_calls_give_the_same_end(self, steps: list[tuple[object, ...]], seed: int) -> None:
        ends = []
        for _ in range(2):
            disk = SimulatedDisk(seed)
            play(disk, steps)
            disk.crash(power_loss=True)
            ends.append(image(disk))
        assert ends[0] == ends[1]

    @examples(200)
    @given(steps=STEPS, more=STEPS, seed=st.integers(0, 1000))
    def test_a_copy_and_the_original_go_their_own_ways(
        self, steps: list[tuple[object, ...]], more: list[tuple[object, ...]], seed: int
    ) -> None:
        disk, alone = SimulatedDisk(seed), SimulatedDisk(seed)
        play(disk, steps)
        play(alone, steps)
        copy, before = disk.copy(7), image(disk)
        assert image(copy) == before
        play(disk, more)
        play(alone, more)
        assert image(disk) == image(alone)
        assert image(copy) == before
        copy.crash(power_loss=True)
        play(copy, more[::-1])
        disk.crash(power_loss=True)
        alone.crash(power_loss=True)
        assert image(disk) == image(alone)

    @examples(200)
    @given(steps=STEPS, seed=st.integers(0, 1000), powersafe=st.booleans())
    def test_no_crash_changes_a_synced_disk(self, steps: list[tuple[object, ...]], seed: int, powersafe: bool) -> None:
        disk = SimulatedDisk(seed, powersafe=powersafe)
        play(disk, steps)
        disk.fail_at.clear()
        for path in PATHS:
            if disk.is_file(path):
                disk.open_writable(path).sync()
        # A failed sync of a directory keeps names in memory that no later sync makes durable.
        synced = not any(step[0] == "fail" for step in steps)
        for folder in ("/d", "/"):
            disk.sync_directory(folder)
        before = image(disk)
        disk.crash(power_loss=True)
        assert not synced or image(disk) == before
        # A file that was renamed from one directory to another may have both names: it takes room once.
        inodes = [disk.tree.inode(path) for path, content in image(disk).items() if content is not None]
        assert disk.tree.used == sum(len(inode.content) for inode in {id(inode): inode for inode in inodes}.values())

    @examples(100)
    @given(steps=STEPS, seed=st.integers(0, 1000))
    def test_a_watched_run_is_the_same_as_one_that_is_not(self, steps: list[tuple[object, ...]], seed: int) -> None:
        plain, watched = SimulatedDisk(seed), SimulatedDisk(seed)
        calls: list[Call] = []

        def watch(call: Call) -> None:
            calls.append(call)
            found = call.killed(len(calls), power_loss=bool(len(calls) % 2))
            assert (found.life, found.calls, found.open_now) == (1, 0, 0)
            image(found)

        steps = [step for step in steps if step[0] != "crash"]
        watched.watch = watch
        play(plain, steps)
        play(watched, steps)
        assert image(plain) == image(watched)
        assert [call.number for call in calls] == list(range(plain.calls))

    def test_every_call_of_a_life_can_be_the_last(self) -> None:
        def life(disk: SimulatedDisk) -> None:
            disk.make_directory("/d")
            disk.create("/d/a", 100).write(0, b"x")
            disk.rename("/d/a", "/d/b")
            disk.sync_directory("/d")

        whole = SimulatedDisk(0)
        whole.log = []
        life(whole)
        assert whole.log == ["make_directory /d", "create /d/a", "write /d/a", "rename /d/a", "sync_directory /d"]
        for number in range(whole.calls):
            disk = SimulatedDisk(number)
            disk.kill_at = number
            with pytest.raises(Killed, match=f"during call {number}: {whole.log[number]}"):
                life(disk)
            assert disk.calls == number
            disk.crash(power_loss=False)
            assert disk.calls == 0
            life(disk) if not disk.is_directory("/d") else disk.names("/d")

    @pytest.mark.parametrize("power_loss", [False, True])
    def test_watching_and_killing_find_the_same_states(self, power_loss: bool) -> None:
        def found_by_watching(seed: int) -> bytes:
            disk, ends = disk_with(b"a" * 1024), []
            disk.watch = lambda call: ends.append(content_of(call.killed(seed, power_loss=power_loss)))
            disk.open_writable("/file").write(100, b"b" * 800)
            return ends[0]

        def found_by_killing(seed: int) -> bytes:
            disk = disk_with(b"a" * 1024).copy(seed)
            disk.kill_at = 0
            with pytest.raises(Killed):
                disk.open_writable("/file").write(100, b"b" * 800)
            disk.crash(power_loss=power_loss)
            return content_of(disk)

        assert [found_by_watching(seed) for seed in range(100)] == [found_by_killing(seed) for seed in range(100)]

    def test_sync_of_the_original_does_not_sync_the_copy(self) -> None:
        found = set()
        for seed in range(50):
            disk = disk_with(b"old")
            file = disk.open_writable("/file")
            file.write(0, b"new")
            copy = disk.copy(seed)
            file.sync()
            copy.crash(power_loss=True)
            found.add(content_of(copy))
            disk.crash(power_loss=True)
            assert content_of(disk) == b"new"
        assert found >= {b"old", b"new"}

    def test_changes_before_and_after_a_copy_have_fates_of_their_own(self) -> None:
        found = set()
        for seed in range(100):
            disk = SimulatedDisk(0)
            disk.make_directory("/a")
            copy = disk.copy(seed)
            copy.make_directory("/b")
            copy.crash(power_loss=True)
            found.add(tuple(copy.names("/")))
        assert found == {(), ("a",), ("b",), ("a", "b")}

    def test_bad_sectors_stay_bad(self) -> None:
        disk = disk_with(b"a")
        disk.read_fails = {("/file", 0)}
        copy = disk.copy(1)
        copy.crash(power_loss=True)
        with pytest.raises(OSError, match="/file"):
            content_of(copy)
        copy.read_fails.clear()
        assert disk.read_fails

    def test_open_files_are_counted(self) -> None:
        disk = disk_with(b"a")
        with_two = [disk.open("/file"), disk.open_writable("/file")]
        assert (disk.open_now, disk.max_open) == (2, 2)
        for file in with_two:
            file.close()
            file.close()
        assert (disk.open_now, disk.max_open) == (0, 2)

    def test_files_of_a_dead_process_do_not_count(self) -> None:
        disk = disk_with(b"a")
        old = disk.open("/file")
        disk.crash(power_loss=False)
        with_one = disk.open("/file")
        old.close()
        assert disk.open_now == 1
        with_one.close()
        assert disk.open_now == 0
