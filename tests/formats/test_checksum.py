"""CRC-32C: both implementations against each other, and check words of records; zeros are recognized."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c, independent_crc32c
from qstore.formats.rhm.headers import HEADER_2, RecordChecksums
from qstore.formats.rhm.records import SALT, version_2_check
from qstore.formats.zeros import is_zero
from tests.support.processes import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]

# The first is the check value of the catalogue of CRC algorithms, the others are RFC 3720, appendix B.4.
VECTORS = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_published_values(data: bytes, crc: int) -> None:
    assert extend_crc32c(0, data) == crc
    assert independent_crc32c(data) == crc


@given(data=st.binary(max_size=5000), start=st.integers(0, 0xFFFFFFFF))
def test_both_agree_from_any_start(data: bytes, start: int) -> None:
    assert extend_crc32c(start, data) == independent_crc32c(data, start)


@given(parts=st.lists(st.binary(max_size=300), max_size=8))
def test_checksum_of_parts_equals_that_of_the_whole(parts: list[bytes]) -> None:
    fast = independent = 0
    for part in parts:
        fast = extend_crc32c(fast, part)
        independent = independent_crc32c(part, independent)
    assert fast == independent == independent_crc32c(b"".join(parts))


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
from qstore.formats.checksum import extend_crc32c
assert extend_crc32c.__module__ == "qstore.formats.checksum"  # the fallback, not google-crc32c's own
assert extend_crc32c(extend_crc32c(0, b"12345"), b"6789") == 0xE3069283
"""


@pytest.mark.parametrize("missing", ["google_crc32c", "google_crc32c.cext"])
def test_crcmod_takes_over_in_silence(missing: str) -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT.format(missing=missing)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


PLAIN_CRCMOD = """
import sys
sys.modules["crcmod._crcfunext"] = None
from qstore.formats.checksum import independent_crc32c
assert not sys.modules["crcmod.crcmod"]._usingExtension
assert independent_crc32c(b"6789", independent_crc32c(b"12345")) == 0xE3069283
"""


def test_crcmod_without_its_extension() -> None:
    command = [sys.executable, "-W", "error", "-c", PLAIN_CRCMOD]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


# ---- check words from the table, against the CRC function ----


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


# ---- bytes that are all zero ----


@pytest.mark.parametrize("size", [0, 1, 511, 1 << 16, (1 << 16) + 1, 5 << 16])
def test_every_byte_counts(size: int) -> None:
    content = bytearray(size)
    assert is_zero(bytes(content))
    for place in {0, size // 2, (1 << 16) - 1, 1 << 16, size - 1} & set(range(size)):
        content[place] = 1
        assert not is_zero(bytes(content))
        assert is_zero(bytes(content), place + 1)
        assert is_zero(bytes(content), 0, place)
        content[place] = 0


@given(st.lists(st.sampled_from(b"\0\0\0\0\1"), max_size=12), st.integers(0, 14), st.integers(0, 14))
def test_a_part(content: list[int], begin: int, end: int) -> None:
    assert is_zero(bytes(content), begin, end) == (not any(content[begin:end]))
