"""Stretches of a journal, cut anywhere, give together the same as a walk over the whole journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.store.journal.records
import qstore.store.journal.ring.records
import qstore.tools.spark.stretches
from qstore.formats.rhm.close_record import SyncedJournal
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry, padded
from qstore.formats.rhm.records import Kind, RecordHeader, encode_record
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import OsDisk
from qstore.store.journal.directory import open_journal, open_line
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader as AnyRecordHeader
from qstore.store.recovery.close_record import Closing
from qstore.tools.spark.stretches import slices
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.journal_history import GEOMETRIES, History, long_steps
from tests.support.linear_builder import DIRECTORY as LINE
from tests.support.linear_builder import LinearBuilder
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.support.opened_store import JOURNAL, make_grown_store
from tests.support.profiles import examples

RING = st.sampled_from([1, 2])
SEEDS = st.integers(0, 2**32)
PARTS = st.integers(1, 12)


class Everything:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.xids: dict[int, bytes] = {}
        self.damage: list[Damage] = []

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        self.places.append(place)

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        self.places.append(place)

    def record(self, header: AnyRecordHeader, place: int, xid: bytes) -> None:
        self.places.append(place)
        if xid:
            self.xids[place] = xid

    def damaged(self, damage: Damage) -> None:
        self.damage.append(damage)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small journals, so that a stretch begins in the middle all the same."""
    monkeypatch.setattr(qstore.store.journal.records, "RUN_UP", 512)
    monkeypatch.setattr(qstore.store.journal.ring.records, "RUN_UP", 512)
    monkeypatch.setattr(qstore.tools.spark.stretches, "SLICE", 1024)


def whole(journal: Journal, *, fillers: bool = False) -> tuple[list[int], dict[int, bytes], list[Damage]]:
    sink = Everything()
    journal.walk(sink, every_record=fillers)
    return sink.places, sink.xids, sink.damage


def cut(
    opened: Callable[[], Journal], cuts: list[int], *, fillers: bool = False
) -> tuple[list[int], dict[int, bytes], list[Damage]]:
    """As each task does it: with a journal of its own."""
    places: list[int] = []
    xids: dict[int, bytes] = {}
    damage: list[Damage] = []
    for begin, end in pairwise(cuts):
        journal = opened()
        for part in slices(journal, begin, end, Closing(is_clean=False), fillers=fillers):
            assert all(begin <= place < end for place in part.places)
            places += part.places
            xids |= part.xids
            damage += [found for found, _ in part.damage]
        journal.close()
    return places, xids, damage


def random_cuts(size: int, seed: int, parts: int) -> list[int]:
    rng = random.Random(seed)
    middle = {rng.randrange(1, size // BLOCK_SIZE) * BLOCK_SIZE for _ in range(parts)}
    return [0, *sorted(middle), size]


def compare(opened: Callable[[], Journal], seed: int, parts: int, *, fillers_too: bool = True) -> None:
    for fillers in (False, True) if fillers_too else (False,):
        journal = opened()
        expected = whole(journal, fillers=fillers)
        found = cut(opened, random_cuts(journal.stream.size, seed, parts), fillers=fillers)
        assert found == expected


@examples(150)
@given(RING, GEOMETRIES, SEEDS, PARTS)
def test_parts_of_a_ring_are_the_whole(version: int, geometry: Geometry, seed: int, parts: int) -> None:
    history = History(JournalBuilder(version, geometry))
    history.run(long_steps(seed, 120))
    history.flush()
    compare(partial(open_journal, history.builder.disk(), DIRECTORY), seed, parts)


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_ring_that_has_grown_are_the_whole(tmp_path: Path, seed: int) -> None:
    make_grown_store(tmp_path / "store")
    compare(partial(open_journal, OsDisk(), str(tmp_path / "store" / JOURNAL)), seed, 7)


@examples(150)
@given(GEOMETRIES, SEEDS, PARTS)
def test_a_torn_flush_is_cut_off_in_each_part(geometry: Geometry, seed: int, parts: int) -> None:
    history = History(JournalBuilder(2, geometry))
    history.run(long_steps(seed, 80))
    history.flush()
    before = {name: bytes(content) for name, content in history.builder.disk().files.items()}
    history.run(long_steps(seed + 1, 20))
    history.builder.flush()
    rng = random.Random(seed)
    files = torn(before, history.builder.disk().files, rng)
    compare(partial(open_journal, MemoryDisk(files), DIRECTORY), seed, parts)


def torn(before: dict[str, bytes], after: dict[str, Any], rng: random.Random) -> dict[str, bytes]:
    """Of the sectors that were written last, some."""
    files = {}
    for name, content in after.items():
        old, new = before[name], bytearray(content)
        for at in range(0, len(new), 512):
            if rng.random() < 0.5 and at:
                new[at : at + 512] = old[at : at + 512]
        files[name] = bytes(new)
    return files


@examples(150)
@given(GEOMETRIES, SEEDS, PARTS)
def test_damage_is_reported_by_one_part(geometry: Geometry, seed: int, parts: int) -> None:
    history = History(JournalBuilder(2, geometry))
    history.run(long_steps(seed, 120))
    history.flush()
    disk = history.builder.disk()
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([name for name in disk.files if name.endswith(".jdat")])
        content = bytearray(disk.files[name])
        at = rng.randrange(512, len(content) - 64)
        content[at : at + 48] = rng.randbytes(48)
        disk.files[name] = bytes(content)
    compare(partial(open_journal, disk, DIRECTORY), seed, parts)


def line(seed: int) -> LinearBuilder:
    rng = random.Random(seed)
    builder = LinearBuilder("q", data_size=4, seed=seed)
    live: list[int] = []
    for rid in range(1, rng.randrange(5, 120)):
        if live and rng.random() < 0.4:
            builder.dequeue(rid, live.pop(0), xid=b"x" * 20 if rng.random() < 0.2 else b"")
        else:
            builder.enqueue(rid, rng.randbytes(rng.choice([0, 10, 300, 2000, 9000])))
            live.append(rid)
        if rng.random() < 0.3:
            builder.flush()
    builder.flush()
    return builder


@examples(100)
@given(SEEDS, PARTS, st.booleans())
def test_parts_of_a_line_are_the_whole(seed: int, parts: int, damaged: bool) -> None:
    builder = line(seed)
    if damaged:
        builder.patch(random.Random(seed).randrange(len(builder.files())), 4096 + seed % 31 * 128, b"damaged!" * 8)
    # Fillers of a line have no checksum: behind damage, the walk over the whole may not come by them.
    compare(partial(open_line, builder.disk(), LINE, None, {}), seed, parts, fillers_too=not damaged)


def records_in_body(version: int, count: int) -> bytes:
    header = RecordHeader(Kind.ENQUEUE, version, 0, rid=666, data_size=20)
    one = encode_record(header, b"", b"f" * 20, salt=12345)
    return b"-" * (BLOCK_SIZE - 32) + one * count


@pytest.mark.parametrize("version", [1, 2])
def test_records_in_a_body_are_no_records(version: int) -> None:
    """Every stretch begins in such a body: in version 2 checksums tell, in version 1 the record that leads there."""
    builder = JournalBuilder(version, Geometry(4, 1 << 16))
    body = records_in_body(version, 3)
    for _ in range(100):
        builder.enqueue(body)
        builder.flush()
    opened = partial(open_journal, builder.disk(), DIRECTORY)
    journal = opened()
    expected = whole(journal)
    assert len(expected[0]) == 100
    size = journal.stream.size
    assert padded(44 + len(body)) > 3 * BLOCK_SIZE
    assert cut(opened, [*range(0, size, BLOCK_SIZE), size]) == expected


def test_torn_flush_behind_the_end_does_not_come_back() -> None:
    """Records of a torn flush, whole in themselves, behind those that the next life wrote over its beginning."""
    builder = JournalBuilder(2, Geometry(4, 1 << 14))
    for number in range(4):
        builder.enqueue(b"%d" % number * 100)
        builder.flush()
    end = builder.position
    for number in range(40):
        builder.enqueue(b"lost %d" % number * 20)
    builder.flush()
    builder.restart(end)
    builder.enqueue(b"after")
    builder.flush()
    opened = partial(open_journal, builder.disk(), DIRECTORY)
    journal = opened()
    expected = whole(journal)
    assert len(expected[0]) == 5
    size = journal.stream.size
    for step in (BLOCK_SIZE, 512, 4096):
        assert cut(opened, [*range(0, size, step), size]) == expected


def test_a_stretch_reads_little_besides_itself() -> None:
    builder = JournalBuilder(2, Geometry(4, 16 << 20))
    for _ in range(100):
        for _ in range(100):
            builder.enqueue(b"x" * 1000)
        builder.flush()
    disk = builder.disk()
    journal = open_journal(disk, DIRECTORY)
    disk.bytes_read = 0
    (part,) = list(take(slices(journal, 5 << 20, (5 << 20) + BLOCK_SIZE * 9, Closing(is_clean=False))))
    assert part.places
    assert disk.bytes_read < 6 << 20


def test_a_journal_that_ends_before_it_was_synced_is_reported_once() -> None:
    builder = JournalBuilder(2, Geometry(4, 1 << 14))
    for _ in range(20):
        builder.enqueue(b"x" * 500)
        builder.flush()
    disk = builder.disk()
    closing = Closing(is_clean=False, synced=[SyncedJournal(7, 7, 1, 21)])
    reported = []
    for begin in range(0, 1 << 16, 1 << 13):
        journal = open_journal(disk, DIRECTORY)
        journal.path = "/store/jrnl/7"
        for part in slices(journal, begin, begin + (1 << 13), closing.about(journal)):
            reported += [damage.kind for damage, _ in part.damage]
        journal.close()
    assert reported == [DamageKind.SYNCED_FLUSHES_LOST]


def take(found: Iterator[qstore.tools.spark.stretches.Slice]) -> Iterator[qstore.tools.spark.stretches.Slice]:
    return (part for part in found if part.places)


def test_unreadable_bytes_are_reported_by_the_stretch_in_which_they_lie() -> None:
    builder = JournalBuilder(2, Geometry(4, 1 << 14))
    for number in range(60):
        builder.enqueue(b"%d" % number * 50)
        builder.flush()
    disk = builder.disk()
    name = sorted(name for name in disk.files if name.endswith(".jdat"))[0]
    disk.bad_regions.append(BadRegion(name, 8192, 8704))
    opened = partial(open_journal, disk, DIRECTORY)
    size = opened().stream.size
    _, _, damage = cut(opened, [0, 4096, 8192, size])
    assert sum("cannot be read" in found.what for found in damage) == 1
