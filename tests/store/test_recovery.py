"""Recovery of one journal against a model: whole lives, crashes in the last flush, damage before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from formats.rhm.geometry import SECTOR_SIZE, Geometry
from formats.rhm.records import Kind
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.journal_history import (
    GEOMETRIES,
    STEPS,
    History,
    Step,
    expected_places,
    long_steps,
    recover,
    replay,
    surviving,
)

VERSIONS = st.sampled_from([1, 2])
ALIGNMENTS = st.sampled_from([512, 512, 1024, 4096])


def live_history(
    version: int, geometry: Geometry, steps: list[Step], *, exact: bool = False, alignment: int = 512
) -> History:
    builder = JournalBuilder(version, geometry, exact_fit_length=exact, alignment=alignment if version == 2 else 512)
    history = History(builder)
    history.run(steps)
    return history


@settings(max_examples=250, deadline=None)
@given(VERSIONS, GEOMETRIES, STEPS, st.booleans(), ALIGNMENTS, st.booleans())
def test_recovery_is_the_model(
    version: int, geometry: Geometry, steps: list[Step], exact: bool, alignment: int, sealed: bool
) -> None:
    history = live_history(version, geometry, steps * 3, exact=exact, alignment=alignment)
    history.flush()
    if sealed and history.fits(geometry.data_size):
        history.builder.seal()
    recovered = recover(history.builder.disk())
    assert recovered.damage == []
    assert recovered.places == expected_places(history.builder, history.live)
    if recovered.end is not None:
        assert not recovered.end.torn
        if version == 2:
            assert recovered.end.flush == history.builder.flush_number - 1
            if sealed and history.fits(geometry.data_size):
                assert recovered.end.sealed


@settings(max_examples=400, deadline=None)
@given(VERSIONS, GEOMETRIES, STEPS, ALIGNMENTS, st.data())
def test_a_crash_in_the_last_flush(
    version: int, geometry: Geometry, steps: list[Step], alignment: int, data: st.DataObject
) -> None:
    """Version 1 writes a prefix of the flush; version 2 any sectors of one part of it, all before and none after."""
    history = live_history(version, geometry, steps * 2, alignment=alignment)
    builder = history.builder
    before = [bytes(file) for file in builder.files]
    builder.flush()
    parts = builder.last_flush
    part = data.draw(st.integers(0, len(parts) - 1), label="part") if parts else 0
    kept = sum(len(sectors) for sectors in parts[:part])
    sectors = [sector for sectors in parts for sector in sectors]
    in_part = parts[part] if parts else []
    if version == 1:
        lost = sectors[kept + data.draw(st.integers(0, len(in_part)), label="written") :]
    else:
        chosen = data.draw(st.lists(st.sampled_from(in_part), unique=True) if in_part else st.just([]), label="lost")
        lost = [*chosen, *sectors[kept + len(in_part) :]]
    for number, offset in lost:
        builder.files[number][offset : offset + SECTOR_SIZE] = before[number][offset : offset + SECTOR_SIZE]
    recovered = recover(builder.disk())
    assert recovered.damage == []
    assert recovered.places in [expected_places(builder, state) for state in history.states]
    if not lost:
        assert recovered.places == expected_places(builder, history.live)
    if version == 2 and alignment == SECTOR_SIZE and lost and sectors[0] not in lost and sectors[0][1]:
        assert recovered.end is not None
        assert recovered.end.torn


# ---- damage before the last flush ----


def damageable(history: History) -> list[PlacedRecord]:
    """The records after which stands one that proves that the journal goes on."""
    records = surviving(history.builder)
    if history.builder.version == 2:
        return [record for record in records if record.flush < records[-1].flush]
    proofs = [record.position for record in records if record.header.kind is not Kind.FILLER]
    return [record for record in records if proofs and record.position < proofs[-1]]


def flip(builder: JournalBuilder, position: int, bit: int) -> None:
    file, offset = builder.place(position)
    builder.files[file][offset] ^= 1 << bit


def check_damage(history: History, lost: list[PlacedRecord], first: PlacedRecord) -> None:
    """The damage is reported at `first`, and everything but `lost` is there."""
    builder = history.builder
    recovered = recover(builder.disk())
    rest = [record for record in surviving(builder) if record not in lost]
    assert recovered.places == expected_places(builder, replay(rest))
    path = f"{DIRECTORY}/{builder.name(first.file)}"
    assert [(damage.file, damage.offset) for damage in recovered.damage] == [(path, first.offset)]


@settings(max_examples=300, deadline=None)
@given(GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_flipped_bit_in_version_2(geometry: Geometry, seed: int, data: st.DataObject) -> None:
    history = live_history(2, geometry, long_steps(seed, 100))
    history.flush()
    if records := damageable(history):
        record = data.draw(st.sampled_from(records))
        byte = data.draw(st.integers(0, record.used - 1))
        flip(history.builder, record.position + byte, data.draw(st.integers(0, 7)))
        check_damage(history, [record], record)


@settings(max_examples=300, deadline=None)
@given(GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_flipped_bit_in_version_1(geometry: Geometry, seed: int, data: st.DataObject) -> None:
    """What version 1 can notice: the magic, the version, the overwrite indicator, the tail."""
    history = live_history(1, geometry, long_steps(seed, 100))
    history.flush()
    if records := damageable(history):
        record = data.draw(st.sampled_from(records))
        places = [(1, 0), (2, 7)]
        if record.header.kind is not Kind.FILLER:
            places += [(4, 1), (4, 7), (5, 0), (6, 0)]
        if record.header.has_tail:
            places += [(record.header.tail_offset + byte, byte % 8) for byte in range(12)]
        byte, bit = data.draw(st.sampled_from(places))
        flip(history.builder, record.position + byte, bit)
        check_damage(history, [record], record)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 2]), GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_zeroed_sector(version: int, geometry: Geometry, seed: int, data: st.DataObject) -> None:
    history = live_history(version, geometry, long_steps(seed, 100))
    history.flush()
    builder = history.builder
    if not (records := damageable(history)):
        return
    record = data.draw(st.sampled_from(records))
    # In version 1 a loss inside of a record, between its header and its tail, cannot be seen.
    within = data.draw(st.integers(0, (record.used - 1) // SECTOR_SIZE)) if version == 2 else 0
    start = record.position + within * SECTOR_SIZE
    start -= start % SECTOR_SIZE
    lost = [other for other in surviving(builder) if suffers(builder, other, start)]
    if not lost or not set(lost) <= set(records):
        return
    file, offset = builder.place(start)
    builder.files[file][offset : offset + SECTOR_SIZE] = bytes(SECTOR_SIZE)
    check_damage(history, lost, lost[0])


def suffers(builder: JournalBuilder, record: PlacedRecord, sector: int) -> bool:
    """Whether a record is damaged, and visibly so, where the sector at that position is zeroed."""
    tail = record.header.tail_offset
    whole = range(record.used)
    telling = whole if builder.version == 2 else [*range(4), *range(tail, record.used)]
    touched = (record.position + byte for byte in telling)
    return any(
        builder.files[file][offset]
        for file, offset in map(builder.place, (byte for byte in touched if sector <= byte < sector + SECTOR_SIZE))
    )
