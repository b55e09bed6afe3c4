"""Recovery of one journal against a model: whole lives, crashes in the last flush, damage before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from formats.rhm.geometry import SECTOR_SIZE, Geometry
from tests.support.journal_builder import JournalBuilder
from tests.support.journal_history import (
    GEOMETRIES,
    STEPS,
    History,
    Step,
    expected_places,
    recover,
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
    """Version 1 writes a prefix of the flush, version 2 any of its sectors."""
    history = live_history(version, geometry, steps * 2, alignment=alignment)
    builder = history.builder
    before = [bytes(file) for file in builder.files]
    builder.flush()
    sectors = list(builder.last_flush)
    written = len(sectors)
    if version == 1:
        written = data.draw(st.integers(0, len(sectors)), label="sectors written")
        lost = sectors[written:]
    else:
        lost = data.draw(st.lists(st.sampled_from(sectors), unique=True) if sectors else st.just([]), label="lost")
    for number, offset in lost:
        builder.files[number][offset : offset + SECTOR_SIZE] = before[number][offset : offset + SECTOR_SIZE]
    recovered = recover(builder.disk())
    assert recovered.damage == []
    assert recovered.places in [expected_places(builder, state) for state in history.states]
    if not lost:
        assert recovered.places == expected_places(builder, history.live)
    if version == 2 and lost and next(s for s in sectors if s[1]) not in lost and sectors[0] not in lost:
        assert recovered.end is not None
        assert recovered.end.torn
