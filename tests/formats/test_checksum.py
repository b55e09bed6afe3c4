"""Both implementations of CRC-32C against each other, and what is left when one cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c, independent_crc32c
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
