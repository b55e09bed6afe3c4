"""Assumptions of a journal about a drive, and the outcome on one that breaks them.

Assumed is powersafe overwrite: a sector that is written while the power fails keeps what stood there, if what is
written begins with the same bytes. Without it, flushes aligned to the drive's sectors:

    one crash    loses nothing that was acknowledged. But the header of a file that is being entered shares its sector
                 with the one before, and where sectors are large with the first data: both may be lost, which is
                 reported. Nothing in that file was needed
    two crashes  what the first one left of a flush that it tore, and recovery found, may be lost by the second: the
                 flush that follows goes on in the same sector
"""

from __future__ import annotations

import pytest

from tests.faults.journal_simulation import DamagedError, JournalCrashes, Shape, WrongContentError


def failure(crashes: JournalCrashes, seed: int) -> AssertionError | None:
    try:
        crashes.run(seed, steps=100)
    except AssertionError as error:
        return error
    return None


@pytest.mark.parametrize("alignment", [512, 4096])
def test_one_crash_loses_nothing_in_silence(alignment: int) -> None:
    shape = Shape(4, 128, 2000, "any", alignment=alignment, sector=alignment, powersafe=False)
    crashes = JournalCrashes(shape=shape, share=0.7, continued=0.0)
    reported = [error for seed in range(60) if (error := failure(crashes, seed)) is not None]
    assert reported or alignment == 512
    assert all(isinstance(error, DamagedError) and "file header" in str(error) for error in reported)
    crashes.check_counts({"kills": 300, "torn": 30})


def test_second_crash_may_lose_records_of_a_torn_flush() -> None:
    """If this fails the journal got better than the documents say: change them."""
    shape = Shape(4, 32, 1500, "any", powersafe=False)
    for seed in range(60):
        crashes = JournalCrashes(shape=shape, share=0.5, continued=1.0)
        if isinstance(failure(crashes, seed), WrongContentError):
            assert crashes.row > 1
            return
    pytest.fail("nothing is lost")
