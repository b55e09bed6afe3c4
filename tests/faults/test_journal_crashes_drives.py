"""What a journal relies on in a drive, and what happens on one that does not keep to it.

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

from tests.faults.journal_harness import DamagedError
from tests.faults.journal_matrix import CrashMatrix, Shape, WrongContentError


def failure(matrix: CrashMatrix, seed: int) -> AssertionError | None:
    try:
        matrix.run(seed, 100)
    except AssertionError as error:
        return error
    return None


@pytest.mark.parametrize("alignment", [512, 4096])
def test_one_crash_loses_nothing_in_silence(alignment: int) -> None:
    shape = Shape(4, 128, 2000, "any", alignment=alignment, sector=alignment, powersafe=False)
    matrix = CrashMatrix(shape, share=0.5, continued=0.0)
    reported = [error for seed in range(20) if (error := failure(matrix, seed)) is not None]
    assert reported or alignment == 512
    assert all(isinstance(error, DamagedError) and "file header" in str(error) for error in reported)
    matrix.check_shape({"kills": 300, "torn": 30})


def test_second_crash_may_lose_records_of_a_torn_flush() -> None:
    """If this fails the journal got better than the documents say: change them."""
    errors = [
        failure(CrashMatrix(Shape(4, 32, 1500, "any", powersafe=False), share=0.3, continued=0.1), seed)
        for seed in range(12)
    ]
    lost = [str(error) for error in errors if isinstance(error, WrongContentError)]
    assert lost
    assert all(text.count(" at ") > 1 for text in lost)
