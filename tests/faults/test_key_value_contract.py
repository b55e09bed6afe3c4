"""One contract for every key-value map: RocksDB, the one on a simulated disk, and the one in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from qstore.store.key_value import CatalogueError, KeyValue, RocksKeyValue
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.support.memory_disk import MemoryKeyValue
from tests.support.profiles import examples


class Opener(Protocol):
    """Opens the map of a test, again or anew."""

    def __call__(self, *, create: bool = False) -> KeyValue: ...


def opener(kind: str, directory: Path, disk: SimulatedDisk | None = None, name: str = "map") -> Opener:
    """How a map of the kind is opened in `directory`, or on a disk, one of its own if none is given."""
    simulated_disk = disk or SimulatedDisk(1)

    def rocks(*, create: bool = False) -> KeyValue:
        return RocksKeyValue.open(directory / name, create=create)

    def simulated(*, create: bool = False) -> KeyValue:
        return SimulatedKeyValue.open(simulated_disk, f"/{name}", create=create)

    return {"rocks": rocks, "simulated": simulated}[kind]


@pytest.fixture(params=["memory", "rocks", "rocks, another time", "simulated", "simulated, another time"])
def key_value(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    """An empty map of each kind. One has lived before, so that RocksDB has table files and a log."""
    kind, _, before = request.param.partition(", ")
    opened: KeyValue = MemoryKeyValue()
    if kind != "memory":
        opens = opener(kind, tmp_path)
        opened = opens(create=True)
        if before:
            opened.write({b"old": b"1"})
            opened.write({b"old": None})
            opened.close()
            opened = opens()
    yield opened
    opened.close()


@pytest.fixture(params=["rocks", "simulated"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which kind of map."""
    return str(request.param)


@pytest.fixture
def disk() -> SimulatedDisk:
    """The disk of the simulated ones."""
    return SimulatedDisk(1)


@pytest.fixture
def opens(kind: str, tmp_path: Path, disk: SimulatedDisk) -> Opener:
    """How a map that outlives its opening is opened."""
    return opener(kind, tmp_path, disk)


@pytest.fixture
def opens_copy(kind: str, tmp_path: Path, disk: SimulatedDisk) -> Opener:
    """How its copy is opened."""
    return opener(kind, tmp_path, disk, "copy")


@pytest.fixture
def copy_path(kind: str, tmp_path: Path) -> str:
    """Where its copy goes."""
    return str(tmp_path / "copy") if kind == "rocks" else "/copy"


class TestContract:
    def test_a_new_map_is_empty(self, key_value: KeyValue) -> None:
        assert key_value.get(b"key") is None
        assert list(key_value.items(b"")) == []
        assert key_value.damage == ()

    def test_a_batch_sets_and_deletes(self, key_value: KeyValue) -> None:
        key_value.write({b"a": b"1", b"b": b"2"})
        key_value.write({b"a": None, b"b": b"3", b"never there": None, b"": b"empty key", b"empty value": b""})
        assert dict(key_value.items(b"")) == {b"b": b"3", b"": b"empty key", b"empty value": b""}
        assert (key_value.get(b"a"), key_value.get(b"b"), key_value.get(b"empty value")) == (None, b"3", b"")

    def test_items_are_those_with_the_prefix_in_key_order(self, key_value: KeyValue) -> None:
        keys = [b"a", b"b", b"b\x00", b"b\x7f", b"b\x80", b"b\xff", b"b\xff\xff", b"c", b"\xff", b"\xff\xff"]
        key_value.write({key: key * 2 for key in reversed(keys)})
        assert [key for key, _ in key_value.items(b"")] == keys
        assert list(key_value.items(b"b")) == [(key, key * 2) for key in keys[1:7]]
        assert [key for key, _ in key_value.items(b"\xff")] == keys[8:]
        assert list(key_value.items(b"bb")) == []

    def test_items_are_those_of_the_time_of_the_call(self, key_value: KeyValue) -> None:
        key_value.write({b"a": b"1", b"b": b"2"})
        items = key_value.items(b"")
        key_value.write({b"a": b"changed", b"b": None, b"c": b"new"})
        assert list(items) == [(b"a", b"1"), (b"b", b"2")]
        assert list(key_value.items(b"")) == [(b"a", b"changed"), (b"c", b"new")]

    def test_keys_and_values_may_be_any_bytes_of_any_length(self, key_value: KeyValue) -> None:
        every_byte = bytes(range(256))
        contents = {every_byte: bytes(2 << 20), every_byte[::-1] * 20: every_byte}
        key_value.write(dict(contents))
        assert dict(key_value.items(b"")) == contents

    def test_a_closed_map_reports_it(self, key_value: KeyValue) -> None:
        key_value.write({b"a": b"1"})
        key_value.close()
        key_value.close()
        attempts: list[Callable[[], object]] = [
            lambda: key_value.get(b"a"),
            lambda: list(key_value.items(b"")),
            lambda: key_value.write({b"a": b"2"}),
        ]
        for attempt in attempts:
            with pytest.raises(CatalogueError, match="closed"):
                attempt()

    @examples(20, suppress=[HealthCheck.function_scoped_fixture])
    @given(
        batches=st.lists(
            st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=20), max_size=5), max_size=6
        ),
        prefix=st.binary(max_size=2),
    )
    def test_map_behaves_like_a_sorted_dict(
        self, key_value: KeyValue, batches: list[dict[bytes, bytes | None]], prefix: bytes
    ) -> None:
        key_value.write({key: None for key, _ in key_value.items(b"")})
        model: dict[bytes, bytes] = {}
        for batch in batches:
            key_value.write(batch)
            model.update({key: value for key, value in batch.items() if value is not None})
            model = {key: value for key, value in model.items() if batch.get(key, b"") is not None}
        expected = sorted((key, value) for key, value in model.items() if key.startswith(prefix))
        assert list(key_value.items(prefix)) == expected


class TestOpening:
    def test_written_pairs_are_there_when_opened_again(self, opens: Opener) -> None:
        first = opens(create=True)
        first.write({b"a": b"1", b"b": b"2"})
        first.write({b"a": None})
        first.close()
        second = opens()
        assert (list(second.items(b"")), second.damage) == ([(b"b", b"2")], ())
        second.close()

    def test_opening_a_missing_map_is_refused(self, opens: Opener) -> None:
        with pytest.raises(CatalogueError, match=r"map: not a RocksDB database: the file CURRENT is missing"):
            opens()
        opens(create=True).close()

    def test_creating_over_an_existing_map_is_refused(self, opens: Opener) -> None:
        first = opens(create=True)
        first.write({b"a": b"1"})
        first.close()
        with pytest.raises(CatalogueError, match=r"map: RocksDB cannot open it: .*exists"):
            opens(create=True)
        second = opens()
        assert second.get(b"a") == b"1"
        second.close()

    def test_map_is_open_only_once(self, opens: Opener) -> None:
        first = opens(create=True)
        with pytest.raises(CatalogueError, match=r"map: RocksDB cannot open it: .*lock"):
            opens()
        first.write({b"a": b"1"})
        first.close()
        first.close()
        opens().close()


class TestCheckpoints:
    def test_a_copy_has_the_content_and_is_independent(self, opens: Opener, opens_copy: Opener, copy_path: str) -> None:
        first = opens(create=True)
        first.write({b"a": b"1", b"b": b"2", b"long": bytes(100_000)})
        first.write({b"b": None})
        first.checkpoint(copy_path)
        first.write({b"a": b"3"})
        copy = opens_copy()
        assert list(copy.items(b"")) == [(b"a", b"1"), (b"long", bytes(100_000))]
        copy.write({b"a": b"4"})
        copy.close()
        assert first.get(b"a") == b"3"
        first.close()
        second = opens()
        assert (second.get(b"a"), opens_copy().get(b"a")) == (b"3", b"4")
        second.close()

    def test_one_can_be_made_of_another(self, opens: Opener, opens_copy: Opener, copy_path: str) -> None:
        first = opens(create=True)
        first.write({b"a": b"1"})
        first.checkpoint(copy_path)
        first.close()
        copy = opens_copy()
        copy.checkpoint(copy_path + "-2")
        assert copy.get(b"a") == b"1"
        copy.close()

    def test_there_must_be_nothing_yet(self, opens: Opener, copy_path: str) -> None:
        first = opens(create=True)
        first.checkpoint(copy_path)
        with pytest.raises(CatalogueError, match=r"map: RocksDB cannot create a copy in .*copy: .*exists"):
            first.checkpoint(copy_path)
        with pytest.raises(CatalogueError, match=r"No such file or directory"):
            first.checkpoint(copy_path + "/missing/copy")
        first.close()
        with pytest.raises(CatalogueError, match="closed"):
            first.checkpoint(copy_path + "-3")

    def test_other_users_cannot_read_a_map(self, tmp_path: Path) -> None:
        key_value = RocksKeyValue.open(tmp_path / "map", create=True)
        key_value.write({b"a": b"1"})
        key_value.checkpoint(str(tmp_path / "copy"))
        key_value.close()
        modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "copy").iterdir()}
        assert ((tmp_path / "copy").stat().st_mode & 0o777, modes) == (0o700, {0o600})

    @pytest.mark.parametrize("power_loss", [False, True])
    def test_a_crash_leaves_it_whole_or_not_at_all(self, power_loss: bool) -> None:
        found = set()
        for seed in range(50):
            disk = SimulatedDisk(seed)
            key_value = SimulatedKeyValue.open(disk, "/map", create=True)
            key_value.write({b"a": b"1"})
            disk.kill_at = disk.calls
            with pytest.raises(Killed):
                key_value.checkpoint("/copy")
            disk.crash(power_loss=power_loss)
            found.add(tuple(disk.names("/")))
            if disk.is_directory("/copy"):
                assert list(SimulatedKeyValue.open(disk, "/copy").items(b"")) == [(b"a", b"1")]
            assert SimulatedKeyValue.open(disk, "/map").get(b"a") == b"1"
        assert found == {("map",), ("copy.tmp", "map"), ("copy", "map")}

    def test_its_name_has_to_be_synced(self) -> None:
        found = set()
        for seed in range(50):
            disk = SimulatedDisk(seed)
            key_value = SimulatedKeyValue.open(disk, "/map", create=True)
            key_value.checkpoint("/copy")
            if seed % 2:
                disk.sync_directory("/")
            disk.crash(power_loss=True)
            found.add((seed % 2, disk.is_directory("/copy")))
        assert found == {(0, False), (0, True), (1, True)}


class TestCrashes:
    """What only the simulated one can show."""

    @pytest.mark.parametrize("power_loss", [False, True])
    def test_a_batch_during_which_it_dies_is_all_there_or_not(self, power_loss: bool) -> None:
        found = set()
        for seed in range(50):
            disk = SimulatedDisk(seed)
            key_value = SimulatedKeyValue.open(disk, "/map", create=True)
            key_value.write({b"a": b"1", b"b": b"1"})
            disk.kill_at = disk.calls
            with pytest.raises(Killed):
                key_value.write({b"a": b"2", b"b": None, b"c": b"2"})
            with pytest.raises(Killed):
                key_value.get(b"a")
            key_value.close()
            disk.crash(power_loss=power_loss)
            with pytest.raises(Killed):
                key_value.write({})
            found.add(tuple(SimulatedKeyValue.open(disk, "/map").items(b"")))
        assert found == {((b"a", b"1"), (b"b", b"1")), ((b"a", b"2"), (b"c", b"2"))}

    def test_write_that_returned_survives_any_crash(self) -> None:
        for seed in range(50):
            disk = SimulatedDisk(seed)
            key_value = SimulatedKeyValue.open(disk, Path("/map"), create=True)
            for number in range(3):
                key_value.write({b"a": b"%d" % number})
                disk.crash(power_loss=True)
                key_value = SimulatedKeyValue.open(disk, "/map")
                assert list(key_value.items(b"")) == [(b"a", b"%d" % number)]

    def test_creating_it_is_done_or_not_or_half_and_can_be_done_again(self) -> None:
        found = set()
        for seed in range(50):
            disk = SimulatedDisk(seed)
            disk.kill_at = 0
            with pytest.raises(Killed):
                SimulatedKeyValue.open(disk, "/map", create=True)
            disk.crash(power_loss=True)
            found.add((disk.is_directory("/map"), disk.is_file("/map/CURRENT")))
            if not disk.is_file("/map/CURRENT"):
                with pytest.raises(CatalogueError, match="the file CURRENT is missing"):
                    SimulatedKeyValue.open(disk, "/map")
                SimulatedKeyValue.open(disk, "/map", create=True).close()
            assert list(SimulatedKeyValue.open(disk, "/map").items(b"")) == []
        assert found == {(False, False), (True, False), (True, True)}

    def test_a_watched_batch_leaves_the_original_alone(self) -> None:
        disk = SimulatedDisk(1)
        key_value = SimulatedKeyValue.open(disk, "/map", create=True)
        key_value.write({b"a": b"1"})
        found: list[bytes | None] = []

        def watch(call: Call) -> None:
            assert (call.name, call.path) == ("batch", "/map")
            for seed in range(20):
                killed = call.killed(seed, power_loss=True)
                found.append(SimulatedKeyValue.open(killed, "/map").get(b"a"))
            assert SimulatedKeyValue.open(call.disk.copy(0), "/map").get(b"a") == b"1"

        disk.watch = watch
        key_value.write({b"a": b"2"})
        assert set(found) == {b"1", b"2"}
        assert key_value.get(b"a") == b"2"

    def test_a_copy_and_the_original_go_their_own_ways(self) -> None:
        disk = SimulatedDisk(1)
        key_value = SimulatedKeyValue.open(disk, "/map", create=True)
        copy = disk.copy(2)
        other = SimulatedKeyValue.open(copy, "/map")
        key_value.write({b"a": b"1"})
        other.write({b"b": b"2"})
        for each in (disk, copy):
            each.crash(power_loss=True)
        assert list(SimulatedKeyValue.open(disk, "/map").items(b"")) == [(b"a", b"1")]
        assert list(SimulatedKeyValue.open(copy, "/map").items(b"")) == [(b"b", b"2")]

    def test_closing_it_in_a_dead_process_does_not_unlock_it(self) -> None:
        disk = SimulatedDisk(1)
        old = SimulatedKeyValue.open(disk, "/map", create=True)
        disk.crash(power_loss=False)
        new = SimulatedKeyValue.open(disk, "/map")
        old.close()
        with pytest.raises(CatalogueError, match="lock"):
            SimulatedKeyValue.open(disk, "/map")
        new.close()

    def test_a_new_one_stays_where_an_old_one_was_removed(self) -> None:
        for seed in range(20):
            disk = SimulatedDisk(seed)
            SimulatedKeyValue.open(disk, "/map", create=True).close()
            disk.remove("/map/CURRENT")
            disk.remove_directory("/map")
            SimulatedKeyValue.open(disk, "/map", create=True).write({b"a": b"1"})
            disk.crash(power_loss=True)
            assert SimulatedKeyValue.open(disk, "/map").get(b"a") == b"1"

    def test_a_batch_that_fails_may_be_found_later_and_ends_writing(self) -> None:
        found = set()
        for seed in range(50):
            disk = SimulatedDisk(seed)
            key_value = SimulatedKeyValue.open(disk, "/map", create=True)
            key_value.write({b"a": b"1"})
            disk.fail_at = {disk.calls: errno.ENOSPC}
            for _ in range(2):
                with pytest.raises(CatalogueError, match=r"^/map: RocksDB cannot write: .*No space left"):
                    key_value.write({b"a": b"2"})
            assert key_value.get(b"a") == b"1"
            key_value.close()
            found.add(SimulatedKeyValue.open(disk, "/map").get(b"a"))
        assert found == {b"1", b"2"}

    def test_map_follows_its_renamed_directory(self) -> None:
        disk = SimulatedDisk(1)
        disk.make_directory("/new")
        key_value = SimulatedKeyValue.open(disk, "/new/map", create=True)
        key_value.write({b"a": b"1"})
        key_value.close()
        disk.rename("/new", "/store")
        with pytest.raises(CatalogueError, match="/new/map: not a RocksDB database"):
            SimulatedKeyValue.open(disk, "/new/map")
        key_value = SimulatedKeyValue.open(disk, "/store/map")
        assert key_value.get(b"a") == b"1"
        key_value.close()
        disk.remove("/store/map/CURRENT")
        disk.remove_directory("/store/map")
        attempts: list[Callable[[], object]] = [
            lambda: SimulatedKeyValue.open(disk, "/store/map"),
            lambda: SimulatedKeyValue.open(disk, "/missing/map", create=True),
        ]
        for attempt in attempts:
            with pytest.raises(CatalogueError, match="/map: "):
                attempt()
        assert list(SimulatedKeyValue.open(disk, "/store/map", create=True).items(b"")) == []
