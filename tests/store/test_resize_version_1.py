"""Journals of version 1, qpidd's, that are resized in their directories."""

from __future__ import annotations

import posixpath
import random
import re
from collections.abc import Callable
from contextlib import closing

import pytest

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.jinf import decode_jinf
from qstore.formats.rhm.records import EXTERNAL, TRANSIENT, Kind
from qstore.store.disk import read_whole
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_journals
from qstore.store.journal.directory import RESIZING, open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.repair.version_1_resize import (
    BuiltFile,
    Target,
    TooSmallError,
    build,
    bytes_needed,
    check_fit,
    check_place,
    finish_interrupted,
    move,
    read_content,
)
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import simulated_environment
from tests.support.journal_builder import JournalBuilder

DIRECTORY = "/journal"
SMALL, LARGER = Geometry(4, 4096), Geometry(6, 8192)
TARGET = Target(DIRECTORY, f"{DIRECTORY}/bak", "JournalData", "JournalData", "JournalData")
Records = list[tuple[Kind, int, int, int, bytes, bytes]]  # kind, flags, rid, dequeued rid, xid, data
Operations = dict[bytes, list[tuple[int, bool]]]


def disk_of(journal: JournalBuilder, seed: int = 0) -> SimulatedDisk:
    """The journal on a disk, all of it durable."""
    journal.flush()
    disk = SimulatedDisk(seed)
    disk.make_directory(DIRECTORY)
    for name, content in journal.contents().items():
        file = disk.create(f"{DIRECTORY}/{name}", len(content))
        file.write(0, content)
        file.sync()
        file.close()
    disk.sync_directory(DIRECTORY)
    disk.sync_directory("/")
    disk.crash(power_loss=True)
    return disk


def resize(disk: SimulatedDisk, geometry: Geometry = LARGER, target: Target = TARGET) -> list[BuiltFile]:
    check_place(disk, target)
    content = read_content(disk, DIRECTORY, target.old_base)
    with closing(content.journal):
        check_fit(content, geometry)
        built = build(simulated_environment(disk, random.Random(1)), content, geometry, target)
    move(disk, content.info, geometry, target)
    return built


def records(disk: SimulatedDisk, base: str = "JournalData", directory: str = DIRECTORY) -> Records:
    """All that a journal holds, as it is to be copied."""
    content = read_content(disk, directory, base)
    with closing(content.journal):
        found = [content.read(place) for place in content.places()]
    return [(one.kind, one.flags, one.rid, one.dequeued_rid, xid, b"".join(data)) for one, xid, data in found]


def recovered(disk: SimulatedDisk, base: str = "JournalData") -> tuple[list[tuple[int, int, bytes]], Operations]:
    """What recovery has, read in the way in which the whole of a store is read."""
    content = read_content(disk, DIRECTORY, base)
    return held(content.journal, content.recovery)


def as_a_store_is_read(disk: SimulatedDisk) -> tuple[list[tuple[int, int, bytes]], Operations]:
    """The same, as the tools have it that only read."""
    journal, recovery = open_journal(disk, DIRECTORY), JournalRecovery()
    journal.walk(recovery)
    assert [*journal.damage, *recovery.damage] == []
    return held(journal, recovery)


def held(journal: Journal, recovery: JournalRecovery) -> tuple[list[tuple[int, int, bytes]], Operations]:
    """What a journal that was walked holds."""
    with closing(journal):
        data = [
            (rid, state, b"".join(journal.data_chunks(*journal.data_of_enqueue(place))))
            for rid, place, state in recovery.messages.in_rid_order()
        ]
    return data, {each.xid: sorted((one.rid, one.is_enqueue) for one in each) for each in recovery.transactions}


def some(journal: JournalBuilder) -> None:
    rids = [journal.enqueue(b"data %d " % number * (number % 7)).header.rid for number in range(10)]
    journal.dequeue(rids[2])
    journal.enqueue(b"in doubt", xid=b"branch")
    journal.dequeue(rids[4], xid=b"branch")
    journal.enqueue(b"committed", xid=b"local")
    journal.dequeue(rids[5], xid=b"local")
    journal.commit(b"local")
    journal.enqueue(b"aborted", xid=b"gone")
    journal.abort(b"gone")
    journal.enqueue(b"", xid=b"")
    journal.enqueue(b"", flags=EXTERNAL, size=5000)
    journal.enqueue(b"transient", flags=TRANSIENT)


def built_of(fill: Callable[[JournalBuilder], object], geometry: Geometry = SMALL) -> SimulatedDisk:
    journal = JournalBuilder(1, geometry, queue_name="orders")
    fill(journal)
    return disk_of(journal)


def test_only_live_records_move_and_in_order() -> None:
    disk = built_of(some)
    before = recovered(disk)
    resize(disk)
    disk.crash(power_loss=True)
    assert recovered(disk) == before
    moved = records(disk)
    assert [each[2] for each in moved] == sorted(each[2] for each in moved)
    kinds = [each[0] for each in moved]
    assert (kinds.count(Kind.ENQUEUE), kinds.count(Kind.DEQUEUE), kinds.count(Kind.COMMIT)) == (12, 1, 1)
    assert b"transient" not in [each[5] for each in moved]
    assert [each[1] for each in moved if each[1]] == [EXTERNAL]


def test_the_files() -> None:
    disk = built_of(some)
    old = {name: read_whole(disk, f"{DIRECTORY}/{name}", 1 << 20) for name in disk.names(DIRECTORY)}
    built = resize(disk)
    assert [one.records for one in built] == [14, 0, 0, 0, 0, 0]
    assert disk.names(DIRECTORY) == [
        *(f"JournalData.{number:04x}.jdat" for number in range(6)),
        "JournalData.jinf",
        "bak",
    ]
    info = decode_jinf(read_whole(disk, f"{DIRECTORY}/JournalData.jinf", 9999))
    assert (info.directory, info.geometry, info.queue_name) == (DIRECTORY, LARGER, "orders")
    kept = decode_jinf(read_whole(disk, f"{DIRECTORY}/bak/JournalData.jinf", 9999))
    assert (kept.directory, kept.geometry) == (f"{DIRECTORY}/bak", SMALL)
    for name, content in old.items():
        if name.endswith(".jdat"):
            assert read_whole(disk, f"{DIRECTORY}/bak/{name}", 1 << 20) == content
    assert all(disk.tree.inode(f"{DIRECTORY}/JournalData.000{number}.jdat") for number in range(6))


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (TARGET._replace(kept_base="old"), {"JournalData", "bak/old"}),
        (TARGET._replace(kept=DIRECTORY, kept_base="old"), {"JournalData", "old"}),
        (TARGET._replace(kept=DIRECTORY, new_base="new"), {"JournalData", "new"}),
        (TARGET._replace(new_base="new", kept_base="old"), {"new", "bak/old"}),
    ],
)
def test_names(target: Target, names: set[str]) -> None:
    disk = built_of(some)
    before = recovered(disk)
    resize(disk, target=target)
    found = {name.removesuffix(".jinf") for name in disk.names(DIRECTORY) if name.endswith(".jinf")}
    if disk.is_directory(f"{DIRECTORY}/bak"):
        found |= {
            f"bak/{name.removesuffix('.jinf')}" for name in disk.names(f"{DIRECTORY}/bak") if name.endswith(".jinf")
        }
    assert found == names
    assert recovered(disk, target.new_base) == before
    assert records(disk, target.kept_base, target.kept) == records(disk, target.new_base)


def test_a_second_time_the_kept_files_are_those_of_the_first() -> None:
    disk = built_of(some)
    before = recovered(disk)
    resize(disk)
    resize(disk, Geometry(5, 4096))
    assert recovered(disk) == before
    assert decode_jinf(read_whole(disk, f"{DIRECTORY}/bak/JournalData.jinf", 9999)).geometry == LARGER
    assert len(disk.names(f"{DIRECTORY}/bak")) == 7


def test_a_commit_goes_along_with_the_last_use_of_its_id() -> None:
    def fill(journal: JournalBuilder) -> None:
        for data in (b"one", b"two", b"three"):
            journal.enqueue(data, xid=b"again")
            journal.commit(b"again")
        journal.enqueue(b"open", xid=b"again")

    disk = built_of(fill)
    before = recovered(disk)
    assert [data for _, _, data in before[0]] == [b"one", b"two", b"three"]
    resize(disk)
    assert recovered(disk) == before
    assert [each[0] for each in records(disk)].count(Kind.COMMIT) == 1


def test_a_journal_that_went_round_and_begins_with_the_middle_of_a_giant_message() -> None:
    """Where qpidd's tool, as qpidd itself, finds nothing."""
    journal = JournalBuilder(1, SMALL, queue_name="orders")
    for number in range(20):
        journal.enqueue(b"%d" % number)
        journal.dequeue(journal.next_rid - 1)
    giant = journal.enqueue(b"g" * 9000).header.rid
    journal.dequeue(giant)
    last = journal.enqueue(b"x" * 700).header.rid
    while (
        journal.position < 165 * BLOCK_SIZE
    ):  # in the second file for the second time: the oldest is the giant's third
        journal.enqueue(b"y" * 300)
        journal.dequeue(journal.next_rid - 1)
    disk = disk_of(journal)
    before = recovered(disk)
    assert last in [rid for rid, _, _ in before[0]]
    resize(disk)
    assert recovered(disk) == before


def test_a_torn_tail_is_cut() -> None:
    journal = JournalBuilder(1, SMALL, queue_name="orders")
    journal.enqueue(b"whole")
    journal.flush()
    end = journal.position
    journal.enqueue(b"torn" * 100)
    disk = disk_of(journal)
    file = disk.open_writable(f"{DIRECTORY}/JournalData.0000.jdat")
    file.write(512 + end + 256, bytes(4096 - end - 256))
    file.close()
    resize(disk)
    assert [data for _, _, data in recovered(disk)[0]] == [b"whole"]


@pytest.mark.parametrize("rest", [0, 1, 2, 3, 4])
def test_records_that_fill_files_to_their_ends(rest: int) -> None:
    """The first record offsets are what the reader expects, wherever a record ends."""

    def fill(journal: JournalBuilder) -> None:
        for blocks in (32 - rest, 30 + rest, 64, 2, 32):
            journal.enqueue(b"z" * (blocks * BLOCK_SIZE - 44))

    disk = built_of(fill, Geometry(8, 4096))
    before = recovered(disk)
    resize(disk, Geometry(7, 4096))
    assert recovered(disk) == before
    journal = open_journal(disk, DIRECTORY)
    recovery = JournalRecovery()
    journal.walk(recovery)
    journal.close()
    assert [*journal.damage, *recovery.damage] == []
    assert recovery.highest_rid == 5


def test_random_journals() -> None:
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        journal = JournalBuilder(1, SMALL, queue_name="orders")
        live: list[int] = []
        for _ in range(seed * 2):
            if live and (len(live) == 4 or rng.random() < 0.6):
                journal.dequeue(live.pop(rng.randrange(min(len(live), 2))))
            else:
                xid = rng.choice((b"", b"", b"x%d" % rng.randrange(5)))
                live.append(journal.enqueue(b"%d" % seed * rng.randrange(300), xid=xid).header.rid)
                if xid:
                    journal.commit(xid)
            if rng.random() < 0.3:
                journal.flush()
        disk = disk_of(journal)
        try:
            before = recovered(disk)
        except StoreDamagedError:  # the builder overwrites what is live
            refused += 1
            continue
        resize(disk, rng.choice((LARGER, SMALL, Geometry(4, 8192))))
        assert recovered(disk) == before
    assert refused < 30


# ---- what fits ----


def test_exactly_full_is_too_small() -> None:
    """qpidd cannot recover a journal that is full to the last block."""

    def fill(journal: JournalBuilder) -> None:
        for _ in range(4):
            journal.enqueue(b"z" * (32 * BLOCK_SIZE - 44))

    disk = built_of(fill, LARGER)
    calls = disk.calls
    with pytest.raises(TooSmallError, match=r"^Ran out of journal space while writing records: 4 records take 16,384"):
        resize(disk, SMALL)
    assert disk.calls == calls
    resize(disk, Geometry(5, 4096))
    assert len(recovered(disk)[0]) == 4


def test_sizes_named_as_sufficient_suffice() -> None:
    page = 65536
    journal = JournalBuilder(1, Geometry(8, page), queue_name="orders")
    for number in range(400):
        journal.enqueue(b"%d" % number * 300)
    disk = disk_of(journal)
    with pytest.raises(TooSmallError, match=r"sizes that suffice: -N (\d+) -s 1, or -N 4 -s (\d+)$") as caught:
        resize(disk, Geometry(4, page))
    files, pages = map(int, re.search(r"-N (\d+) -s 1, or -N 4 -s (\d+)$", str(caught.value)).groups())  # type: ignore[union-attr]
    content = read_content(disk, DIRECTORY, "JournalData")
    content.journal.close()
    for good, bad in (
        (Geometry(files, page), Geometry(files - 1, page)),
        (Geometry(4, pages * page), Geometry(4, (pages - 1) * page)),
    ):
        check_fit(content, good)
        with pytest.raises(TooSmallError):
            check_fit(content, bad)
    resize(disk, Geometry(files, page))
    assert len(recovered(disk)[0]) == 400


def test_many_flushes_take_the_counted_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no flush ends with a sector, each ends with fillers, which are counted."""
    monkeypatch.setattr("qstore.store.builders.journal_build.FLUSH_BYTES", 1024)
    monkeypatch.setattr("qstore.store.builders.journal_build._MAX_GATHERED", 2048)

    def fill(journal: JournalBuilder) -> None:
        journal.enqueue(b"1")
        for number in range(50):
            journal.enqueue(b"%d" % (number % 10) * (4 * BLOCK_SIZE - 44))

    disk = built_of(fill, LARGER)
    before = recovered(disk)
    content = read_content(disk, DIRECTORY, "JournalData")
    content.journal.close()
    needed = bytes_needed(content)
    size = -(-(needed + 1) // 4 // 512) * 512
    resize(disk, Geometry(4, size))
    assert recovered(disk) == before


# ---- what is refused ----


def test_damage_is_refused() -> None:
    disk = built_of(some)
    disk.flip(f"{DIRECTORY}/JournalData.0000.jdat", 512 + 256)
    calls = disk.calls
    with pytest.raises(StoreDamagedError, match=r"0000\.jdat at offset 0x.*; nothing was changed: run qstore-check"):
        resize(disk)
    assert disk.calls == calls


def test_another_version_is_refused() -> None:
    disk = disk_of(JournalBuilder(2, SMALL))
    with pytest.raises(StoreError, match="a journal of version 2; use qstore-resize"):
        resize(disk)


@pytest.mark.parametrize("target", [TARGET._replace(new_base="new"), TARGET._replace(kept=DIRECTORY, kept_base="new")])
def test_names_that_are_taken_are_refused(target: Target) -> None:
    disk = built_of(some)
    disk.create(f"{DIRECTORY}/new.0003.jdat", 0).close()
    with pytest.raises(StoreError, match=r"new\.0003\.jdat already exists"):
        resize(disk, target=target)


# ---- crashes ----


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_every_call_leaves_one_of_them_whole(*, power_loss: bool) -> None:
    disk = built_of(some)
    expected = recovered(disk)
    seen = {"old": 0, "new": 0, "moving": 0, "finished": 0, "undone": 0}

    def visit(call: Call) -> None:
        left = call.killed(call.number, power_loss=power_loss)
        names = left.names(DIRECTORY)
        if "JournalData.jinf" in names and all(f"JournalData.{number:04x}.jdat" in names for number in range(4)):
            assert recovered(left) == as_a_store_is_read(left) == expected
            seen["new" if "JournalData.0005.jdat" in names else "old"] += 1
            resize(left)
            assert recovered(left) == expected
            return
        seen["moving"] += 1
        assert as_a_store_is_read(left) == expected
        layout = StoreLayout(StoreKind.LEGACY, "/")
        find_journals(left, posixpath.dirname(DIRECTORY), layout)
        assert [place.directory for place in layout.journals] == [DIRECTORY], "once"
        again = left.copy(call.number)
        finished = finish_interrupted(again, TARGET) == LARGER
        assert finished or recovered(again) == expected
        again.crash(power_loss=power_loss)
        resize(again)
        assert recovered(again) == expected
        seen["finished" if finished else "undone"] += 1
        # All that is missing of the new one here is still where it was built.
        built = f"{DIRECTORY}/{RESIZING}"
        assert left.is_file(f"{built}/JournalData.jinf")
        with pytest.raises(StoreError, match="an earlier run was interrupted while it moved files"):
            check_place(left, TARGET)
        for number in range(6):
            name = f"JournalData.{number:04x}.jdat"
            if left.is_file(f"{built}/{name}"):
                if left.is_file(f"{DIRECTORY}/{name}"):
                    left.rename(f"{DIRECTORY}/{name}", f"{DIRECTORY}/old.{number}")
                left.rename(f"{built}/{name}", f"{DIRECTORY}/{name}")
        left.rename(f"{built}/JournalData.jinf", f"{DIRECTORY}/JournalData.jinf")
        assert recovered(left) == expected

    disk.watch = visit
    resize(disk)
    disk.watch = None
    assert recovered(disk) == expected
    assert min(seen.values()) >= 1, seen
    assert disk.calls > 40
