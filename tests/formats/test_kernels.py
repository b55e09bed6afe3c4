"""The kernels beside what they are defined by: single messages and records."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import qstore.formats.kernels as picked
import qstore.formats.kernels.plain as plain
from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.headers import word
from qstore.formats.rhm.records import COMPRESSED, SALT, Kind, RecordHeader, encode_record
from tests.support.compiled import is_compiled

FORMS: Final = [plain, picked]
each_form = pytest.mark.parametrize("kernels", FORMS, ids=["plain", "picked"])

_U64 = (1 << 64) - 1
_SALTS = st.integers(0, _U64)
_RIDS = st.one_of(st.integers(0, 300), st.integers(_U64 - 300, _U64 - 10), st.integers((1 << 32) - 5, 1 << 32))
_SIZES = st.one_of(st.integers(0, 300), st.sampled_from([1023, 1024, 9000]))


def _buffer(size: int) -> bytes:
    return bytes(7 * at & 0xFF for at in range(size))


@st.composite
def _runs(draw: st.DrawFn) -> tuple[bytes, int, int, int, int]:
    """A buffer, and where the bodies of a run are in it."""
    size, count, at = draw(_SIZES), draw(st.integers(0, 9)), draw(st.integers(0, 20))
    stride = max(size + draw(st.integers(0, 20)), 1)
    after = draw(st.integers(0, 20))
    return _buffer(at + max(count - 1, 0) * stride + size + after), at, stride, size, count


# ---- what they return ----


@each_form
@given(
    messages=st.lists(st.booleans(), max_size=8),
    prefix=st.binary(max_size=12),
    body=st.integers(1, 9),
    before=st.integers(0, 5),
    cut=st.integers(0, 12),
    end_byte=st.sampled_from([0, 0xCE]),
    is_end_wrong=st.booleans(),
)
def test_as_many_messages_are_counted_as_begin_and_end_alike(
    kernels: Any, messages: list[bool], prefix: bytes, body: int, before: int, cut: int, end_byte: int,
    is_end_wrong: bool,
) -> None:  # fmt: skip
    """`messages` says which are alike; the others differ in the last byte of the prefix, or in the last of all."""
    is_end_wrong = is_end_wrong or not prefix
    data = b"x" * before
    for is_alike in messages:
        begin = prefix if is_alike or is_end_wrong else prefix[:-1] + bytes([prefix[-1] ^ 1])
        data += begin + bytes(body) + (b"\xce" if is_alike or not is_end_wrong else b"\xcd")
    stride = len(prefix) + body + 1
    end = max(len(data) - cut, before)
    complete = messages[: (end - before) // stride]
    wanted = len(complete) if is_end_wrong and not end_byte else [*complete, False].index(False)
    assert kernels.count_alike(data, before, end, prefix, stride, end_byte) == wanted


@each_form
@given(run=_runs(), head=st.binary(max_size=150), rid=_RIDS, low=st.integers(0, (1 << 32) - 1), salt=_SALTS)
@example((b"", 0, 1, 0, 0), b"", 1, 1, 1)
def test_records_of_a_run_are_those_of_its_messages(
    kernels: Any, run: tuple[bytes, int, int, int, int], head: bytes, rid: int, low: int, salt: int
) -> None:
    data, at, stride, size, count = run
    wanted = b""
    for number in range(count):
        content = head + data[at + number * stride :][:size]
        header = RecordHeader(Kind.ENQUEUE, 2, COMPRESSED, rid + number, 0, len(content), 0, low)
        wanted += encode_record(header, b"", content, salt=salt)
    first = word(Kind.ENQUEUE, 2, COMPRESSED)
    crc = extend_crc32c(0, head)
    assert kernels.encode_records(first, rid, low, head, crc, *run, SALT.pack(salt)) == wanted


@each_form
@given(rid=_RIDS, low=st.integers(0, (1 << 32) - 1), target=_RIDS, count=st.integers(0, 9), salt=_SALTS)
def test_dequeues_of_a_range_are_those_of_its_messages(
    kernels: Any, rid: int, low: int, target: int, count: int, salt: int
) -> None:
    headers = [
        RecordHeader(Kind.DEQUEUE, 2, 0, rid + number, dequeued_rid=target + number, flush=low)
        for number in range(count)
    ]
    wanted = b"".join([encode_record(header, salt=salt) for header in headers])
    assert kernels.encode_dequeues(word(Kind.DEQUEUE, 2), rid, low, target, count, SALT.pack(salt)) == wanted


@each_form
@given(
    run=_runs(), template=st.binary(min_size=8, max_size=40), tag_at=st.integers(-1, 32), first=_RIDS,
    tail=st.binary(max_size=9),
)  # fmt: skip
def test_deliveries_of_a_run_differ_in_number_and_body(
    kernels: Any, run: tuple[bytes, int, int, int, int], template: bytes, tag_at: int, first: int, tail: bytes
) -> None:
    data, at, stride, size, count = run
    tag_at = min(tag_at, len(template) - 8)
    wanted = b""
    for number in range(count):
        tag = (first + number).to_bytes(8, "big")
        wanted += template if tag_at < 0 else template[:tag_at] + tag + template[tag_at + 8 :]
        wanted += data[at + number * stride :][:size] + tail
    assert kernels.write_deliveries(template, tag_at, first, *run, tail) == wanted


def test_kernels_are_compiled_where_modules_are() -> None:
    """Otherwise nobody would notice if they could not be loaded."""
    name = "compiled" if is_compiled else "plain"
    for function in (picked.count_alike, picked.encode_records, picked.encode_dequeues, picked.write_deliveries):
        assert function.__module__ == f"qstore.formats.kernels.{name}"


@pytest.mark.skipif(not is_compiled, reason="the kernels are not compiled")
@pytest.mark.parametrize("uses_instruction", [True, False])
def test_checksums_of_bodies_of_all_lengths(uses_instruction: bool) -> None:
    """By the processor's instruction, in one stretch and in several side by side, and by tables."""
    compiled = importlib.import_module("qstore.formats.kernels.compiled")
    data, head = random.Random(1).randbytes(3000), b"head"
    compiled.use_instruction(uses_instruction)
    try:
        for size in [*range(1100), 1535, 1536, 1537, 2047, 2048, 2999]:
            arguments = (1, 5, 7, head, extend_crc32c(0, head), data, 1, 1, size, 1, b"saltsalt")
            assert compiled.encode_records(*arguments) == plain.encode_records(*arguments), size
    finally:
        compiled.use_instruction(True)


# ---- what they refuse ----

_HOSTILE = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([-(1 << 63), (1 << 63) - 1, (1 << 62), (1 << 64) - 1, 1 << 64, -(1 << 64), 1 << 31, (1 << 24) + 1]),
)
_DATA = bytes(range(64))


# A number that a machine word does not hold is refused by the compiled form alone, where it would do no harm.


def _outcome(function: Callable[..., bytes | int], *arguments: object) -> object:
    """The result; None if the arguments are refused."""
    try:
        return function(*arguments)
    except (ValueError, OverflowError):
        return None


@given(numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE), prefix=st.binary(max_size=3))
@example((0, 64, 1, 0), b"")
def test_ranges_outside_of_the_buffer_are_not_counted(numbers: tuple[int, int, int, int], prefix: bytes) -> None:
    at, end, stride, end_byte = numbers
    arguments = (_DATA, at, end, prefix, stride, end_byte)
    found = _outcome(plain.count_alike, *arguments)
    assert _outcome(picked.count_alike, *arguments) in (found, None if stride >> 63 else found)
    is_inside = 0 <= at <= end <= len(_DATA) and max(len(prefix), 1) <= stride and 0 <= end_byte <= 0xFF
    assert (found is not None) == is_inside


def _is_run(at: int, stride: int, size: int, count: int) -> bool:
    is_possible = at >= 0 and stride >= 1 and size >= 0 and 0 <= count <= plain.MAX_COUNT
    return is_possible and (not count or at + (count - 1) * stride + size <= len(_DATA))


@given(numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE), others=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE))
@example((0, 1, 64, 1), (1, 1, 1))
@example((0, 1, 65, 1), (1, 1, 1))
@example((0, 1, 0, 65), (1, 1, 1))
@example((0, 1, 0, 66), (1, 1, 1))
def test_runs_outside_of_the_buffer_are_neither_written_nor_delivered(
    numbers: tuple[int, int, int, int], others: tuple[int, int, int]
) -> None:
    rid, low, crc = others
    arguments: tuple[object, ...] = (1, rid, low, b"head", crc, _DATA, *numbers, bytes(8))
    found = _outcome(plain.encode_records, *arguments)
    assert _outcome(picked.encode_records, *arguments) == found
    fits = 0 <= rid <= _U64 - max(numbers[3], 0) and 0 <= low < 1 << 32 and 0 <= crc < 1 << 32
    assert (found is not None) == (_is_run(*numbers) and fits)
    delivered = _outcome(plain.write_deliveries, b"head", -1, 0, _DATA, *numbers, b"tail")
    assert _outcome(picked.write_deliveries, b"head", -1, 0, _DATA, *numbers, b"tail") == delivered
    assert (delivered is not None) == _is_run(*numbers)


@given(tag_at=_HOSTILE, first=_HOSTILE, count=st.integers(0, 3))
@example(5, 0, 1)
@example(4, 0, 1)
@example(4, _U64 - 1, 1)
@example(4, _U64, 1)
def test_numbers_that_do_not_fit_are_not_delivered(tag_at: int, first: int, count: int) -> None:
    arguments = (bytes(12), tag_at, first, _DATA, 0, 1, 1, count, b"")
    found = _outcome(plain.write_deliveries, *arguments)
    assert _outcome(picked.write_deliveries, *arguments) in (found, None if tag_at < -(1 << 63) else found)
    assert (found is not None) == (tag_at < 0 or (tag_at <= 4 and 0 <= first <= _U64 - count))


@given(word_=_HOSTILE, rid=_HOSTILE, low=_HOSTILE, target=_HOSTILE, count=_HOSTILE, salt=st.integers(0, 9))
@example(1, _U64 - 2, 1, 1, 2, 8)
@example(1, _U64 - 1, 1, 1, 2, 8)
@example(1, 1, 1, _U64 - 2, 2, 8)
@example(1, 1, 1, _U64 - 1, 2, 8)
def test_dequeues_whose_numbers_do_not_fit_are_not_written(
    word_: int, rid: int, low: int, target: int, count: int, salt: int
) -> None:
    count = min(count, 100) if count <= plain.MAX_COUNT else count
    arguments = (word_, rid, low, target, count, bytes(salt))
    found = _outcome(plain.encode_dequeues, *arguments)
    assert _outcome(picked.encode_dequeues, *arguments) == found
    fits = 0 <= word_ <= _U64 and 0 <= low < 1 << 32 and 0 <= rid <= _U64 - count and 0 <= target <= _U64 - count
    assert (found is not None) == (fits and 0 <= count <= plain.MAX_COUNT and salt == 8)
