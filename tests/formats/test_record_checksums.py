"""Check words that are looked up, beside those that a CRC function calculates."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.headers import HEADER_2, RecordChecksums
from qstore.formats.rhm.records import SALT, version_2_check

_U32 = st.integers(0, (1 << 32) - 1)
_U64 = st.integers(0, (1 << 64) - 1)
_XIDS = st.one_of(st.binary(max_size=40), st.sampled_from([bytes(140), b"x" * 256, b"y" * 257, b"z" * 5000]))
_RUNS = st.tuples(_XIDS, _U32, _U64)  # xid, flush, salt
_RECORDS = st.tuples(
    st.one_of(st.sampled_from([1, 2]), _U64), _U64, st.one_of(_U64, _U32), _U32
)  # word, rid, datum, crc


@given(st.lists(st.tuples(_RUNS, st.lists(_RECORDS, min_size=1, max_size=4)), min_size=1, max_size=4))
def test_the_same_as_calculated(
    runs: list[tuple[tuple[bytes, int, int], list[tuple[int, int, int, int]]]],
) -> None:
    checksums = RecordChecksums()
    for (xid, flush, salt), records in runs:
        packed = SALT.pack(salt)
        for word, rid, datum, crc in records:
            head = HEADER_2.pack(word, rid, len(xid), flush, datum)
            found = checksums.check(word, rid, xid, flush, datum, crc, packed)
            assert found == version_2_check(head, xid, crc, salt)


def test_the_table_is_shared() -> None:
    """A broker has a journal for each of tens of thousands of queues: none may have its own."""
    journals = [RecordChecksums() for _ in range(2000)]
    journals[0].check(1, 2, b"", 3, 4, 5, bytes(8))
    tracemalloc.start()
    for checksums in journals:
        checksums.check(1, 2, b"", 3, 4, 5, bytes(8))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2000 * 1024
