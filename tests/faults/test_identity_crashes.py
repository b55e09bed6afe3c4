"""The identity of a store, and its backups, on a simulated disk: killed at every call, twice; failing at every call.

At every moment the status is the old or the new one, the store is whole in one place, and nothing is marked clean that
is not there. What was told is durable. And who does it again after a crash gets where the first one wanted.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from uuid import UUID

import pytest

from qstore.store.cluster.identity import (
    STATUS,
    ClusterIds,
    IdentityError,
    State,
    StoreIdentity,
    backups_in,
    encode,
    read_identity,
)
from qstore.store.disk import read_whole
from tests.faults.simulated_disk import Call, SimulatedDisk, SimulatedWritableFile
from tests.faults.snapshot_life import BACKUP, begin, check_copy, check_source, frozen
from tests.faults.store_simulation import PATH, simulated_environment, tiny_rid_blocks
from tests.support.profiles import today

DATA: Final = "/data"
OLD, NEW = UUID(int=0x01D), UUID(int=0x2E3)
S1, S2 = UUID(int=0x51), UUID(int=0x52)
STORE_FILES: Final = {"STORE": b"mark" * 300, "jrnl/1/a.jdat": b"message" * 500, "tpl/tpl.jinf": b"info"}
SEEDS: Final = 4


class Change(NamedTuple):
    """Something to be done, and the identities before and after it."""

    name: str
    before: ClusterIds | None
    after: ClusterIds
    do: Callable[[StoreIdentity], object]
    moves: bool = False


CHANGES: Final = [
    Change("first", None, ClusterIds(NEW, None), lambda identity: identity.mark_dirty(NEW)),
    Change("joins", ClusterIds(OLD, S1), ClusterIds(OLD, None), lambda identity: identity.mark_dirty(OLD)),
    Change("stops", ClusterIds(OLD, None), ClusterIds(OLD, S2), lambda identity: identity.mark_clean(S2)),
    Change("begins", None, ClusterIds(NEW, S2), lambda identity: identity.mark_clean(S2, NEW)),
    Change("updated", ClusterIds(OLD, S1), ClusterIds(OLD, None), lambda identity: identity.discard(OLD), moves=True),
    Change("emptied", ClusterIds(OLD, S1), ClusterIds(None, None), lambda identity: identity.discard(), moves=True),
    Change("dirty too", ClusterIds(OLD, None), ClusterIds(None, None), lambda identity: identity.discard(), moves=True),
    Change("alone", None, ClusterIds(None, None), lambda identity: identity.discard(), moves=True),
]
IDS: Final = [change.name for change in CHANGES]


def write(disk: SimulatedDisk, path: str, content: bytes) -> None:
    """A durable file, and its directories."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts)):
        directory = "/" + "/".join(parts[:count])
        if not disk.is_directory(directory):
            disk.make_directory(directory)
            disk.sync_directory("/" + "/".join(parts[: count - 1]))
    file = disk.create(path, len(content))
    file.write(0, content)
    file.sync()
    file.close()
    disk.sync_directory("/" + "/".join(parts[:-1]))


def disk_with(identity: ClusterIds | None, seed: int) -> SimulatedDisk:
    """A data directory with a store, an earlier backup, and that identity."""
    disk = SimulatedDisk(seed)
    for name, content in STORE_FILES.items():
        write(disk, f"{DATA}/rhm/{name}", content)
    write(disk, f"{DATA}/_cluster.bak.0007/rhm/STORE", b"an earlier one")
    if identity is not None:
        write(disk, f"{DATA}/{STATUS}", encode(identity))
    disk.crash(power_loss=True)
    return disk


def identity_on(disk: SimulatedDisk) -> StoreIdentity:
    return StoreIdentity(simulated_environment(disk, random.Random(1)), DATA)


def again(disk: SimulatedDisk, change: Change) -> None:
    """What the next process does, which does not know how far the first one came."""
    identity = identity_on(disk)
    identity.finish_interrupted()
    if change.moves and not disk.is_directory(f"{DATA}/rhm"):
        assert identity.read() == change.after
        return
    change.do(identity)


def is_whole(disk: SimulatedDisk, root: str) -> bool:
    return disk.is_directory(root) and all(
        disk.is_file(f"{root}/{name}") and read_whole(disk, f"{root}/{name}", 1 << 20) == content
        for name, content in STORE_FILES.items()
    )


def check(disk: SimulatedDisk, change: Change, *, done: bool) -> str:
    """Check the state; returns how far it came."""
    found = read_identity(disk, DATA)
    before = change.before or ClusterIds(None, None)
    assert found in ((change.after,) if done else (before, change.after))
    places = [f"{DATA}/rhm", *(f"{backup.path}/rhm" for backup in backups_in(disk, DATA) if backup.has_store)]
    places.remove(f"{DATA}/_cluster.bak.0007/rhm")
    (place,) = [place for place in places if disk.is_directory(place)]
    assert is_whole(disk, place)
    is_aside = place != f"{DATA}/rhm"
    assert not is_aside or (change.moves and place == f"{DATA}/_cluster.bak.0008/rhm")
    assert not is_aside or found == change.after
    assert not (is_aside and found.state is State.CLEAN)
    if done and change.moves:
        assert is_aside
        if change.before is not None:
            assert read_identity(disk, f"{DATA}/_cluster.bak.0008") == ClusterIds(OLD, None)
    assert read_whole(disk, f"{DATA}/_cluster.bak.0007/rhm/STORE", 100) == b"an earlier one"
    assert [name for name in disk.names(DATA) if name.startswith("_cluster")][2:] == []
    return f"{found == change.after} {is_aside}"


def visit(change: Change, seeds: Iterable[int]) -> Counter[str]:
    """Kill it at every call, with and without power loss; and who does it again, likewise. Returns what was found."""
    found: Counter[str] = Counter()

    def second(call: Call, rng: random.Random) -> None:
        for power_loss in (False, True):
            disk = call.killed(rng.getrandbits(32), power_loss=power_loss)
            check(disk, change, done=False)
            again(disk, change)
            disk.crash(power_loss=True)
            check(disk, change, done=True)
            found["twice"] += 1

    def first(call: Call, rng: random.Random) -> None:
        for power_loss in (False, True):
            disk = call.killed(rng.getrandbits(32), power_loss=power_loss)
            found[check(disk, change, done=False)] += 1
            disk.watch = lambda call: second(call, rng)
            again(disk, change)
            disk.crash(power_loss=True)
            check(disk, change, done=True)

    for seed in seeds:
        rng = random.Random(seed)
        disk = disk_with(change.before, seed)
        disk.watch = lambda call, rng=rng: first(call, rng)  # type: ignore[misc]
        change.do(identity_on(disk))
        disk.crash(power_loss=True)
        check(disk, change, done=True)
    return found


@pytest.mark.parametrize("change", CHANGES, ids=IDS)
def test_a_kill_at_any_call_and_another_one_after_it(change: Change) -> None:
    found = visit(change, today(range(SEEDS), 1))
    assert found["twice"] > 25
    same = change.before is None and change.after == (None, None)
    assert found["False False"] > 0 or same
    assert found["True False"] > 0 or not change.moves
    assert (found["True True"] > 0) == change.moves


@pytest.mark.parametrize("change", CHANGES, ids=IDS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_is_reported_and_leaves_all_as_it_may_be(change: Change, code: int) -> None:
    disk = disk_with(change.before, 0)
    disk.log = []
    change.do(identity_on(disk))
    for number in range(len(disk.log)):
        for seed in today(range(SEEDS), 1):
            disk = disk_with(change.before, seed)
            disk.fail_at = {number: code}
            with pytest.raises(IdentityError, match=r"^/data[^\n]*: .*(Input/output error|No space left)") as caught:
                change.do(identity_on(disk))
            assert "\n" not in str(caught.value)
            check(disk, change, done=False)
            disk.crash(power_loss=True)  # after a sync that failed, nothing else says what is on the disk
            check(disk, change, done=False)
            again(disk, change)
            disk.crash(power_loss=True)
            check(disk, change, done=True)


# ---- the check itself can fail ----


def unsynced_file(self: SimulatedWritableFile) -> None:
    """A sync that does nothing."""


def unsynced_directory(self: SimulatedDisk, path: str) -> None:
    """Likewise, of a directory."""


def moved_first(self: StoreIdentity, cluster_id: UUID | None = None) -> str:
    """Discards before it takes the mark away."""
    backup = self._place_for_backup(["rhm"])
    self._disk.rename(f"{DATA}/rhm", f"{backup}/rhm")
    self._write(ClusterIds(cluster_id, None))
    return backup


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (SimulatedWritableFile, "sync", unsynced_file),
        (SimulatedDisk, "sync_directory", unsynced_directory),
        (StoreIdentity, "discard", moved_first),
    ],
    ids=["files are not synced", "directories are not synced", "the mark goes last"],
)
def test_the_check_detects_planted_defects(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., object]
) -> None:
    setup = {change.name: disk_with(change.before, 0) for change in CHANGES}
    monkeypatch.setattr(f"{__name__}.disk_with", lambda identity, seed: setup["updated"].copy(seed))
    monkeypatch.setattr(owner, name, broken)
    (change,) = [change for change in CHANGES if change.name == "updated"]
    with pytest.raises((AssertionError, ValueError, IdentityError)):
        visit(change, range(SEEDS))


# ---- with a store that holds something ----


def test_a_store_with_messages_is_whole_wherever_a_kill_leaves_it() -> None:
    places: Counter[str] = Counter()
    with tiny_rid_blocks():
        for seed in range(4):
            life = begin(seed, 80)
            life.quiesce()
            if seed % 2:
                life.close()
            life.highest()
            life.disk.crash(power_loss=True)
            model = frozen(life.model)

            def killed(call: Call, model: object = model, rng: random.Random = life.rng) -> None:
                for power_loss in (False, True):
                    disk = call.killed(rng.getrandbits(32), power_loss=power_loss)
                    if disk.is_directory(f"{PATH}/rhm"):
                        places["in place"] += 1
                        if places["in place"] % 4 == 0:
                            check_source(disk, frozen(model))  # type: ignore[arg-type]
                    else:
                        places["aside"] += 1
                        (backup,) = backups_in(disk, PATH)
                        disk.rename(backup.path, BACKUP)
                        check_copy(disk, frozen(model))  # type: ignore[arg-type]

            life.disk.watch = killed
            StoreIdentity(simulated_environment(life.disk, life.rng), PATH).discard(NEW)
    assert min(places["in place"], places["aside"]) > 10, places
