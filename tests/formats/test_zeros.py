"""Bytes that are all zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.zeros import is_zero


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
