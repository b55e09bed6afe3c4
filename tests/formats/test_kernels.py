"""The kernels beside what they are defined by: single messages and records."""

from __future__ import annotations

import importlib
import random
from array import array
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import qstore.formats.kernels as picked
import qstore.formats.kernels.plain as plain
from qstore.formats.checksum import independent_crc32c
from qstore.formats.kernels.bodies import Bodies, SizeField, are_equal_but
from qstore.formats.rhm.headers import word
from qstore.formats.rhm.records import COMPRESSED, LAST_OF_FLUSH, SALT, Kind, RecordHeader, encode_record
from tests.support.bodies import joined
from tests.support.compiled import is_compiled

FORMS: Final = [plain, picked]
each_form = pytest.mark.parametrize("kernels", FORMS, ids=["plain", "picked"])

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_SALTS = st.integers(0, _U64)
_RIDS = st.one_of(st.integers(0, 300), st.integers(_U64 - 300, _U64 - 10), st.integers((1 << 32) - 5, 1 << 32))
_IDS = st.one_of(st.integers(0, 300), st.integers(_U32 - 300, _U32 - 9))
_SIZES = st.one_of(st.integers(0, 300), st.sampled_from([1023, 1024, 9000]))


def _buffer(size: int) -> bytes:
    return bytes(7 * at & 0xFF for at in range(size))


@st.composite
def _runs(draw: st.DrawFn) -> tuple[list[bytes], Bodies, int]:
    """The bodies of a run, where they are in a buffer, and the number of the first of those that are meant."""
    sizes = draw(
        st.one_of(st.lists(_SIZES, max_size=9), st.builds(lambda n, size: [size] * n, st.integers(0, 9), _SIZES))
    )
    bodies = [_buffer(size) for size in sizes]
    before = draw(st.integers(0, 20))
    joined_ = joined(
        bodies, draw(st.integers(1, 20)), before, draw(st.integers(0, before)), after=draw(st.integers(0, 20))
    )
    first = draw(st.integers(0, len(bodies)))
    if draw(st.booleans()) and first < len(bodies):
        joined_, bodies, first = joined_.copy(first, len(bodies) - first), bodies[first:], 0
    return bodies[first:], joined_, first


_FIELDS = st.sampled_from(
    [
        (),
        (SizeField(0, 8),),
        (SizeField(3, 4, 5),),
        (SizeField(1, 4), SizeField(5, 2, 12)),
        (SizeField(0, 2), SizeField(8, 4)),
    ]
)
_MAX_PREFIX: Final = 12


def _columns(bodies: Bodies, first: int, count: int) -> tuple[bytes, int, bytes, int, int, int]:
    return bodies.data, bodies.at, bodies.starts, bodies.gap, first, count


def _before(prefix: bytes, fields: tuple[SizeField, ...], size: int) -> bytes:
    """The bytes before a body of that size."""
    for field in fields:
        end = field.at + field.width
        prefix = prefix[: field.at] + (size + field.added).to_bytes(field.width) + prefix[end:]
    return prefix


# ---- what they return ----


@each_form
@given(run=_runs(), largest=st.integers(0, 400), share=st.floats(0, 1))
def test_bodies_up_to_a_size_are_counted(
    kernels: Any, run: tuple[list[bytes], Bodies, int], largest: int, share: float
) -> None:
    bodies, joined_, first = run
    starts, count = joined_.starts[4 * first :], int(share * len(bodies))
    found = kernels.count_bodies(starts, joined_.gap, count, largest)
    assert found == sum(len(body) <= largest for body in bodies[:count])
    with pytest.raises(ValueError, match="no bodies"):
        kernels.count_bodies(starts, joined_.gap, len(bodies) + 1, largest)


@each_form
@given(
    sizes=st.lists(st.integers(1, 300), max_size=8),
    prefix=st.binary(min_size=_MAX_PREFIX, max_size=30),
    fields=_FIELDS.filter(bool),
    before=st.integers(0, 5),
    cut=st.integers(0, 40),
    end_byte=st.sampled_from([0, 0xCE]),
    spoilt=st.tuples(st.integers(0, 9), st.integers(0, 100), st.integers(1, 255)),
    limits=st.tuples(st.sampled_from([0, 100, 299, 300, 1 << 40]), st.sampled_from([0, 1, 3, 100])),
)
@example([5, 5], bytes(12), (SizeField(0, 8),), 0, 0, 0xCE, (1, 8, 1), (300, 100))
def test_as_many_messages_are_found_as_differ_only_in_their_bodies(
    kernels: Any, sizes: list[int], prefix: bytes, fields: tuple[SizeField, ...], before: int, cut: int, end_byte: int,
    spoilt: tuple[int, int, int], limits: tuple[int, int],
) -> None:  # fmt: skip
    """Up to the first of which a byte outside of its body is another, or which is too large, or not whole."""
    which, at, difference = spoilt
    tail, data, wanted, whole = bytes([end_byte] if end_byte else b""), b"x" * before, list[int](), True
    for number, size in enumerate(sizes):
        around = bytearray(_before(prefix, fields, size) + tail)
        if number == which:
            around[at % len(around)] ^= difference
        data += around[: len(prefix)] + bytes(size) + around[len(prefix) :]
        whole = whole and number != which and size <= limits[0] and number < limits[1]
        whole = (
            whole
            and sum(sizes[: number + 1]) + (number + 1) * len(around) <= sum(sizes) + len(sizes) * len(around) - cut
        )
        if whole:
            wanted.append(size)
    end = max(len(data) - cut, before)
    found = kernels.find_run(data, before, end, prefix, fields, end_byte, *limits)
    around_size = len(prefix) + len(tail)
    starts = [len(prefix) + sum(wanted[:number]) + number * around_size for number in range(len(wanted) + 1)]
    assert found == ((array("I", starts).tobytes(), min(wanted), max(wanted)) if wanted else (b"", 0, 0))


_LEAD_FIELD = SizeField(1, 4, 3)


@each_form
@given(
    messages=st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"b", b"ab", b"key" * 9]), st.integers(1, 300)), max_size=9
    ),
    prefix=st.binary(min_size=_MAX_PREFIX, max_size=30),
    fields=_FIELDS.filter(bool),
    before=st.integers(0, 5),
    cut=st.integers(0, 40),
    spoilt=st.tuples(st.integers(0, 9), st.integers(0, 100), st.integers(1, 255)),
    limits=st.tuples(st.sampled_from([0, 2, 100, 299, 300, 1 << 40]), st.sampled_from([0, 1, 3, 100])),
)
def test_messages_are_sorted_by_the_one_part_in_which_they_differ(
    kernels: Any, messages: list[tuple[bytes, int]], prefix: bytes, fields: tuple[SizeField, ...], before: int,
    cut: int, spoilt: tuple[int, int, int], limits: tuple[int, int],
) -> None:  # fmt: skip
    """Up to the first of which a byte outside of kind and body is another, or which is too large, or not whole."""
    which, at, difference = spoilt
    lead, data = b"<size>", b"x" * before
    wanted: dict[bytes, list[tuple[int, bytes]]] = {}
    whole, ends = True, [before]
    for number, (kind, size) in enumerate(messages):
        begin = bytearray(_before(lead, (_LEAD_FIELD,), len(kind)))
        middle = bytearray(_before(prefix, fields, size))
        body = bytes(number + at & 0xFF for at in range(size))
        if number == which:
            changed = begin if at % 2 else middle
            changed[at % len(changed)] ^= difference
        data += begin + kind + middle + body + b"\xce"
        ends.append(len(data))
        whole = whole and number != which and max(size, len(kind)) <= limits[0] and number < limits[1]
        if whole:
            wanted.setdefault(kind, []).append((number, body))
    end = max(len(data) - cut, before)
    following, count, kinds = kernels.sort_messages(data, before, end, lead, _LEAD_FIELD, prefix, fields, 0xCE, *limits)
    count_wanted = sum(ends[number + 1] <= end for of_kind in wanted.values() for number, _ in of_kind)
    assert (following, count) == (ends[count_wanted], count_wanted)
    wanted = {
        kind: [each for each in of_kind if each[0] < count] for kind, of_kind in wanted.items() if of_kind[0][0] < count
    }
    assert [kind for kind, *_ in kinds] == list(wanted)
    for kind, joined_, starts, smallest, largest, numbers in kinds:
        found = Bodies(joined_, 0, starts, 1, smallest, largest)
        each = [(number, found.body(index)) for index, number in enumerate(memoryview(numbers).cast("I"))]
        assert each == wanted[kind]
        sizes = [len(body) for _, body in each]
        assert (smallest, largest, len(joined_)) == (min(sizes), max(sizes), sum(sizes) + len(sizes))


@each_form
def test_messages_of_no_more_than_the_most_kinds_are_sorted_at_once(kernels: Any) -> None:
    message = [_before(b"<size>", (_LEAD_FIELD,), 2) + number.to_bytes(2) + b"\0\1.\xce" for number in range(99)]
    data = b"".join(message + message)
    following, count, kinds = kernels.sort_messages(
        data, 0, len(data), b"<size>", _LEAD_FIELD, b"\0\0", (SizeField(0, 2),), 0xCE, 100, 1000
    )
    assert (following, count, len(kinds)) == (plain.MAX_KINDS * len(message[0]), plain.MAX_KINDS, plain.MAX_KINDS)


@each_form
@given(
    run=_runs(), head_size=st.integers(0, 200), place=st.integers(0, 1 << 38), blocks=st.integers(0, 100),
    room=st.integers(-3, 100), largest=st.sampled_from([0, 1, 2, 9, 1000]),
)  # fmt: skip
def test_records_are_placed_one_after_another_while_there_is_room(
    kernels: Any,
    run: tuple[list[bytes], Bodies, int],
    head_size: int,
    place: int,
    blocks: int,
    room: int,
    largest: int,
) -> None:
    bodies, columns, first = run
    wanted, at = list[int](), place
    for body in bodies:
        size = -(-(32 + head_size + len(body) + 12) // 128)
        room -= size + 1
        if room < 0 or at + size > place + blocks or size > largest:
            room += size + 1
            break
        wanted.append(at << 24 | size)
        at += size
    room += sum((packed & 0xFFFFFF) + 1 for packed in wanted)
    arguments = (first, len(bodies), head_size, place, place + blocks, room, largest, 24)
    assert kernels.place_records(columns.starts, columns.gap, *arguments) == array("Q", wanted).tobytes()


@each_form
@given(
    run=_runs(), head=st.binary(min_size=_MAX_PREFIX, max_size=150), fields=_FIELDS, rid=_RIDS,
    low=st.integers(0, (1 << 32) - 1), salt=_SALTS,
)  # fmt: skip
@example(([b""], joined([b""]), 0), bytes(12), (), 1, 1, 1)
def test_records_of_a_run_are_those_of_its_messages(
    kernels: Any, run: tuple[list[bytes], Bodies, int], head: bytes, fields: tuple[SizeField, ...], rid: int, low: int,
    salt: int,
) -> None:  # fmt: skip
    bodies, columns, first = run
    wanted = b""
    for number, body in enumerate(bodies):
        content = _before(head, fields[:1], len(body)) + body
        header = RecordHeader(Kind.ENQUEUE, 2, COMPRESSED, rid + number, 0, len(content), 0, low)
        wanted += encode_record(header, b"", content, salt=salt)
    word_, field = word(Kind.ENQUEUE, 2, COMPRESSED), fields[0] if fields else None
    arguments = (*_columns(columns, first, len(bodies)), SALT.pack(salt))
    assert kernels.encode_records(word_, rid, low, head, field, *arguments) == wanted


_LARGEST: Final = 2000
_RUN_MASK: Final = 0xFFFFFFFF | COMPRESSED << 48


class _Log:
    """Records of a run as they lie in a log, with other blocks between some of them unless they are adjacent."""

    def __init__(
        self,
        bodies: list[bytes],
        head: bytes,
        fields: tuple[SizeField, ...],
        rid: int,
        salt: int,
        *,
        are_adjacent: bool,
    ) -> None:
        self.content, self.begin = b"\xff" * 128, 7
        places = array("Q")
        for number, body in enumerate(bodies):
            content = _before(head, fields[:1], len(body)) + body
            record = encode_record(
                RecordHeader(Kind.ENQUEUE, 2, 0, rid + number, 0, len(content)), b"", content, salt=salt
            )
            places.append((self.begin + len(self.content) // 128) << 24 | 1)
            self.content += record + b"\xff" * (0 if are_adjacent else 128 * (number % 3))
        self.places = places.tobytes()

    def at(self, number: int) -> int:
        """Where a record is in the content."""
        return ((memoryview(self.places).cast("Q")[number] >> 24) - self.begin) * 128


@each_form
@given(
    run=_runs(), head=st.binary(min_size=_MAX_PREFIX, max_size=150), fields=_FIELDS, rid=_RIDS, salt=_SALTS,
    spoilt=st.tuples(st.integers(0, 12), st.integers(0, 1 << 20), st.integers(1, 255)), skipped=st.integers(0, 3),
    largest=st.sampled_from([_LARGEST, 1 << 20, 100]), are_adjacent=st.booleans(),
)  # fmt: skip
@example(([b"a", b"b"], joined([b"a", b"b"]), 0), bytes(12), (), 1, 1, (1, 4, 0x80), 0, 100, False)
@example(([b"a"] * 9, joined([b"a"] * 9), 0), bytes(12), (SizeField(0, 8),), 1, 1, (8, 46, 1), 0, 100, False)
@example(([b"a"] * 9, joined([b"a"] * 9), 0), bytes(12), (), 1, 1, (0, 45, 1), 0, 100, False)
@example(([b"a"] * 9, joined([b"a"] * 9), 0), bytes(12), (), 1, 1, (6, 45, 1), 2, 100, True)
def test_bodies_are_read_up_to_the_first_record_that_is_not_as_it_was(
    kernels: Any, run: tuple[list[bytes], Bodies, int], head: bytes, fields: tuple[SizeField, ...], rid: int, salt: int,
    spoilt: tuple[int, int, int], skipped: int, largest: int, are_adjacent: bool,
) -> None:  # fmt: skip
    """Whatever the bit is that has flipped; or its body is empty, or too large."""
    bodies = run[0]
    which, at, difference = spoilt
    log = _Log(bodies, head, fields, rid, salt, are_adjacent=are_adjacent)
    content = bytearray(log.content)
    if which < len(bodies):
        content[log.at(which) + at % (32 + len(head) + len(bodies[which]) + 12)] ^= difference
    skipped = min(skipped, len(bodies))
    wanted = list[bytes]()
    for number in range(skipped, len(bodies)):
        if number == which or not 0 < len(bodies[number]) <= largest:
            break
        wanted.append(bodies[number])
    places, first = log.places, skipped
    if are_adjacent:
        places, first = b"", (log.at(skipped) if skipped < len(bodies) else len(content)) // 128
    data, starts, smallest, biggest = kernels.read_records(
        bytes(content), log.begin, places, 24, first, len(bodies) - skipped, rid + skipped, _RUN_MASK,
        int(Kind.ENQUEUE), head, fields[0] if fields else None, largest, SALT.pack(salt),
    )  # fmt: skip
    if not wanted:
        assert (data, starts, smallest, biggest) == (b"", b"", 0, 0)
        return
    found = Bodies(data, 0, starts, 1, smallest, biggest)
    assert [found.body(number) for number in range(found.count)] == wanted
    assert (smallest, biggest) == (min(map(len, wanted)), max(map(len, wanted)))
    assert len(data) == sum(map(len, wanted)) + len(wanted) - 1


@each_form
@pytest.mark.parametrize("change", ["compressed", "other kind", "with an xid", "other id", "other head", "other salt"])
def test_records_of_another_sort_end_a_run(kernels: Any, change: str) -> None:
    """Each of them is whole: it has the right checksum."""
    salt, head, content = 5, b"head", b""
    for number in range(6):
        is_changed = number == 4
        flags = COMPRESSED if is_changed and change == "compressed" else LAST_OF_FLUSH
        kind = Kind.DEQUEUE if is_changed and change == "other kind" else Kind.ENQUEUE
        data = (b"Head" if is_changed and change == "other head" else head) + b"body %d" % number
        xid = b"xid" if is_changed and change == "with an xid" else b""
        rid = 10 + number + (is_changed and change == "other id")
        if kind == Kind.DEQUEUE:
            header, data = RecordHeader(kind, 2, flags, rid, dequeued_rid=len(data)), b""
        else:
            header = RecordHeader(kind, 2, flags, rid, len(xid), len(data))
        content += encode_record(header, xid, data, salt=salt + (is_changed and change == "other salt"))
    places = array("Q", [number << 24 | 1 for number in range(6)]).tobytes()
    found = kernels.read_records(
        content, 0, places, 24, 0, 6, 10, _RUN_MASK, int(Kind.ENQUEUE), head, None, 100, SALT.pack(salt)
    )
    assert found[:2] == (
        b"\0".join(b"body %d" % number for number in range(4)),
        array("I", [0, 7, 14, 21, 28]).tobytes(),
    )


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
    run=_runs(), template=st.binary(min_size=28, max_size=44), has_tag=st.booleans(), fields=_FIELDS, first_tag=_RIDS,
    tail=st.binary(max_size=9), has_id=st.booleans(), first_id=_IDS, is_after=st.booleans(),
)  # fmt: skip
def test_deliveries_of_a_run_differ_in_numbers_size_and_body(
    kernels: Any, run: tuple[list[bytes], Bodies, int], template: bytes, has_tag: bool, fields: tuple[SizeField, ...],
    first_tag: int, tail: bytes, has_id: bool, first_id: int, is_after: bool,
) -> None:  # fmt: skip
    bodies, columns, first = run
    tag_at = len(template) - 13 if has_tag else -1
    id_at = len(template) - (4 if is_after else 17) if has_id else -1
    wanted = b""
    for number, body in enumerate(bodies):
        before = _before(template, fields, len(body))
        if has_id:
            before = before[:id_at] + (first_id + number).to_bytes(4) + before[id_at + 4 :]
        if has_tag:
            before = before[:tag_at] + (first_tag + number).to_bytes(8) + before[tag_at + 8 :]
        wanted += before + body + tail
    arguments = (*_columns(columns, first, len(bodies)), tail)
    if has_id:
        arguments += (id_at, first_id)
    assert kernels.write_deliveries(template, tag_at, first_tag, fields, *arguments) == wanted


@each_form
@given(
    run=_runs(), templates=st.lists(st.binary(min_size=28, max_size=44), min_size=1, max_size=4), fields=_FIELDS,
    first_tag=_RIDS, tail=st.binary(max_size=9), data=st.data(),
)  # fmt: skip
def test_mixed_deliveries_are_those_of_each_message_with_its_template(
    kernels: Any, run: tuple[list[bytes], Bodies, int], templates: list[bytes], fields: tuple[SizeField, ...],
    first_tag: int, tail: bytes, data: st.DataObject,
) -> None:  # fmt: skip
    bodies, columns, first = run
    tag_at = min(map(len, templates)) - 8
    shift = len(templates[0]) - min(map(len, templates))
    fields = tuple([field.moved(shift) for field in fields])
    kinds = bytes(first) + bytes(
        data.draw(st.lists(st.integers(0, len(templates) - 1), min_size=len(bodies), max_size=len(bodies)))
    )
    wanted = b"".join(
        kernels.write_deliveries(
            templates[kinds[first + number]], tag_at, first_tag + number,
            tuple([field.moved(len(templates[kinds[first + number]]) - len(templates[0])) for field in fields]),
            *_columns(columns, first + number, 1), tail,
        )
        for number in range(len(bodies))
    )  # fmt: skip
    arguments = (*_columns(columns, first, len(bodies)), tail)
    assert kernels.write_mixed(templates, kinds, tag_at, first_tag, fields, *arguments) == wanted


@each_form
@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("other", [None, 0, 1, 31, 32, 39])
def test_one_body_of_another_size_among_many_is_found_and_delivered(
    kernels: Any, other: int | None, first: int
) -> None:
    sizes = [21 if number == other else 20 for number in range(40)]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = b"before" + b"".join(b"%02d:" % len(body) + body + b";" for body in bodies)
    field = SizeField(0, 2, int.from_bytes(b"20") - 20)
    starts, smallest, largest = kernels.find_run(data, 6, len(data), b"20:", (field,), ord(";"), 100, 1000)
    found = Bodies(data, 6, starts, 4, smallest, largest)
    assert [found.body(number) for number in range(found.count)] == bodies
    for columns, begin in ((found, first), (found.copy(first, 40 - first), 0), (found.copy(first, 39 - first), 0)):
        count = columns.count - begin
        wanted = b"".join(b"<" + body + b">" for body in bodies[first : first + count])
        delivered = kernels.write_deliveries(b"<", -1, 0, (), *_columns(columns, begin, count), b">")
        assert (delivered, columns.size(begin, count)) == (wanted, sum(sizes[first : first + count]))


def test_a_copy_of_bodies_has_only_their_bytes() -> None:
    bodies = [bytes([number]) * number for number in range(1, 30)]
    copied = joined(bodies, 3, before=7).copy(5, 10)
    assert len(copied.data) == sum(range(6, 16)) + 9 * 3
    assert [copied.body(number) for number in range(copied.count)] == bodies[5:15]
    assert (copied.size(2, 3), copied.beginning(4).count) == (8 + 9 + 10, 4)


@given(st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5), min_size=1, max_size=5))
@example([[b"ab", b"cd"], [b"ef"]])
@example([[b"ab"], [b"c"]])
def test_the_bodies_of_several_runs_are_joined_in_order(several: list[list[bytes]]) -> None:
    parts = [joined(bodies, after=1) for bodies in several]
    bodies, found = [body for each in several for body in each], Bodies.joined(parts)
    assert [found.body(number) for number in range(found.count)] == bodies
    assert (found.smallest, found.largest) == (min(map(len, bodies)), max(map(len, bodies)))
    assert found.size(0, found.count) == sum(map(len, bodies))
    assert len(found.data) == found.size(0, found.count) + found.count


KERNELS: Final = (
    picked.find_run, picked.place_records, picked.encode_records, picked.encode_dequeues, picked.read_records,
    picked.find_run, picked.sort_messages, picked.place_records, picked.encode_records, picked.encode_dequeues,
    picked.write_deliveries, picked.write_mixed,
)  # fmt: skip


def test_kernels_are_compiled_where_modules_are() -> None:
    """Otherwise it would go unnoticed if they could not be loaded."""
    name = "compiled" if is_compiled else "plain"
    for function in KERNELS:
        assert function.__module__ == f"qstore.formats.kernels.{name}"


@pytest.mark.skipif(not is_compiled, reason="the kernels are not compiled")
@pytest.mark.parametrize("uses_instruction", [True, False])
def test_checksums_of_bytes_of_all_lengths(uses_instruction: bool) -> None:
    compiled = importlib.import_module("qstore.formats.kernels.compiled")
    data = random.Random(2).randbytes(3000)
    compiled.use_instruction(uses_instruction)
    try:
        for size in [*range(1100), 1535, 1536, 1537, 2047, 2048, 2999]:
            for before in (0, 1, 0xE3069283, 0xFFFFFFFF):
                assert picked.extend_crc32c(before, data[:size]) == independent_crc32c(data[:size], before), size
    finally:
        compiled.use_instruction(True)


@pytest.mark.skipif(not is_compiled, reason="the kernels are not compiled")
@pytest.mark.parametrize("uses_instruction", [True, False])
def test_checksums_of_bodies_of_all_lengths(uses_instruction: bool) -> None:
    """By the processor's instruction, in one stretch and in several side by side, and by tables."""
    compiled = importlib.import_module("qstore.formats.kernels.compiled")
    data, head = random.Random(1).randbytes(3000), b"head"
    compiled.use_instruction(uses_instruction)
    try:
        for size in [*range(1100), 1535, 1536, 1537, 2047, 2048, 2999]:
            arguments = (1, 5, 7, head, None, data, 1, array("I", [0, size + 1]).tobytes(), 1, 0, 1, b"saltsalt")
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


def _same(name: str, *arguments: object) -> object:
    """The outcome of a kernel in both forms; None if both refuse."""
    found = _outcome(getattr(plain, name), *arguments)
    is_large = any(isinstance(each, int) and not -(1 << 63) <= each < 1 << 63 for each in arguments)
    assert _outcome(getattr(picked, name), *arguments) in ((found, None) if is_large else (found,))
    return found


_HOSTILE_FIELDS = st.lists(
    st.builds(SizeField, st.integers(-2, 14), st.sampled_from([0, 1, 2, 3, 4, 8, 9]), st.sampled_from([0, 5, 1 << 40])),
    max_size=5,
).map(tuple)


@given(numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE), fields=_HOSTILE_FIELDS)
@example((0, 64, 0, 64, 10), (SizeField(0, 2, 0),))
@example((0, 64, 0, 1 << 62, 10), (SizeField(2, 8, 0),))
def test_messages_are_found_in_the_buffer_alone(
    numbers: tuple[int, int, int, int, int], fields: tuple[SizeField, ...]
) -> None:
    for data in (_DATA, b"\x00\x03" * 32, b"\xff" * 64, bytes(64)):
        at, end, end_byte, max_size, most = numbers
        found = _same("find_run", data, at, end, data[:10], fields, end_byte, max_size, most)
        if isinstance(found, tuple) and found[0]:
            assert at + memoryview(found[0]).cast("I")[-1] - 10 <= end <= len(data)


@given(
    numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE),
    fields=_HOSTILE_FIELDS,
    lead_field=st.builds(SizeField, st.integers(-2, 5), st.sampled_from([0, 2, 3, 4, 8]), st.sampled_from([0, 3, 5])),
)
@example((0, 64, 0x03, 64, 10), (SizeField(0, 2, 0),), SizeField(0, 2))
def test_messages_are_sorted_in_the_buffer_alone(
    numbers: tuple[int, int, int, int, int], fields: tuple[SizeField, ...], lead_field: SizeField
) -> None:
    for data in (_DATA, b"\x00\x03" * 32, b"\xff" * 64, bytes(64)):
        at, end, end_byte, max_size, most = numbers
        arguments = (data, at, end, data[:4], lead_field, data[:6], fields, end_byte, max_size, most)
        found = _same("sort_messages", *arguments)
        if isinstance(found, tuple):
            assert at <= found[0] <= end <= len(data)


@given(
    starts=st.lists(st.sampled_from([0, 1, 5, 60, 64, 65, 200, (1 << 31) + 1, (1 << 32) - 1]), max_size=5),
    numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE),
    others=st.tuples(_HOSTILE, _HOSTILE),
    cut=st.integers(0, 3),
    fields=_HOSTILE_FIELDS,
)
@example([0, 65], (0, 1, 0, 1), (1, 1), 0, ())
@example([0, 66], (0, 1, 0, 1), (1, 1), 0, ())
@example([5, 0], (0, 1, 0, 1), (1, 1), 0, ())
@example([5, 9], (-5, 1, 0, 1), (1, 1), 0, ())
@example([5, 9], (-6, 1, 0, 1), (1, 1), 0, ())
def test_bodies_outside_of_the_buffer_are_neither_written_nor_delivered(
    starts: list[int], numbers: tuple[int, int, int, int], others: tuple[int, int], cut: int,
    fields: tuple[SizeField, ...],
) -> None:  # fmt: skip
    packed = array("I", starts).tobytes()
    packed = packed[: len(packed) - cut]
    at, gap, first, count = numbers
    rid, low = others
    meant = starts[max(first, 0) :][: max(count, 0) + 1]
    ends = meant[1:]
    is_run = (
        0 <= count <= plain.MAX_COUNT and len(meant) == count + 1 and first >= 0 and not cut
        and (not count or (gap >= 1 and at + meant[0] >= 0 and at + meant[-1] - gap <= len(_DATA)))
        and all(end - begin >= gap for begin, end in zip(meant, ends, strict=False))
    )  # fmt: skip
    run = (_DATA, at, packed, gap, first, count)
    written = _same("encode_records", 1, rid, low, b"head", None, *run, bytes(8))
    assert (written is not None) == (is_run and 0 <= rid <= _U64 - max(count, 0) and 0 <= low < 1 << 32)
    delivered = _same("write_deliveries", b"head", -1, 0, (), *run, b"tail")
    assert (delivered is not None) == is_run
    _same("write_deliveries", b"head" * 4, -1, 0, fields, *run, b"tail")
    for templates in ([b"head" * 4], [b"head" * 4, b"longer" * 4, b"shorter?"], []):
        kinds = bytes(max(0, min(first + count, 20))) if templates else b""
        mixed = _same("write_mixed", templates, kinds, 0, 0, (), *run, b"tail")
        assert (mixed is not None) == (is_run and bool(templates))
        _same("write_mixed", templates, kinds, 0, 0, fields, *run, b"tail")
        _same("write_mixed", templates, kinds[1:] + b"\1", 1, rid, fields, *run, b"tail")
        _same("write_mixed", templates, b"\2" * len(kinds), rid, 0, fields, *run, b"tail")
    for field in fields:
        _same("encode_records", 1, 1, 1, b"head" * 4, field, *run, bytes(8))


@given(
    starts=st.lists(st.sampled_from([0, 1, 5, 60, 200, (1 << 31) + 1, (1 << 32) - 1]), max_size=5),
    numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE),
    places=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE),
    size_bits=st.sampled_from([-1, 0, 7, 8, 9, 24, 32, 33, 64, 1 << 40]),
)
@example([0, 1 << 30], (1, 0, 1, 0), (0, 1 << 40, 1 << 40, 1 << 40), 16)
def test_places_that_do_not_fit_are_not_given(
    starts: list[int], numbers: tuple[int, int, int, int], places: tuple[int, int, int, int], size_bits: int
) -> None:
    gap, first, count, head_size = numbers
    _same("place_records", array("I", starts).tobytes(), gap, first, count, head_size, *places, size_bits)


@given(
    numbers=st.tuples(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE),
    places=st.lists(st.sampled_from([0, 1 << 24, 2 << 24, 3 << 24, (1 << 63) + 5, _U64]), max_size=4),
    size_bits=st.sampled_from([-1, 7, 8, 24, 32, 33, 1 << 40]),
    cut=st.sampled_from([0, 1, 7]),
    salt=st.sampled_from([0, 8, 9]),
    length=st.sampled_from([0, 43, 44, 128, 130, 300]),
    fields=_HOSTILE_FIELDS,
)
@example((0, 0, 1, 1, 1, 0, 9), [0], 24, 0, 8, 44, ())
@example((0, 0, 1, 1, 1, 0, 9), [3 << 24], 24, 0, 8, 300, ())
@example((1, 0, 1, 1, 1, 0, 9), [0], 24, 0, 8, 300, ())
def test_records_outside_of_the_content_are_not_read(
    numbers: tuple[int, int, int, int, int, int, int], places: list[int], size_bits: int, cut: int, salt: int,
    length: int, fields: tuple[SizeField, ...],
) -> None:  # fmt: skip
    """Their headers may give any size."""
    packed = array("Q", places).tobytes()
    packed = packed[: len(packed) - cut]
    begin, first, count, rid, mask, word_, largest = numbers
    for content in (bytes(length), b"\xff" * length, (bytes(24) + b"\1" * 104) * (length // 128)):
        for field in (None, *fields):
            _same(
                "read_records", content, begin, packed, size_bits, first, count, rid, mask, word_, b"head" * 4, field,
                largest, bytes(salt),
            )  # fmt: skip


@given(tag_at=_HOSTILE, first=_HOSTILE, count=st.integers(0, 3))
@example(5, 0, 1)
@example(4, 0, 1)
@example(4, _U64 - 1, 1)
@example(4, _U64, 1)
def test_numbers_that_do_not_fit_are_not_delivered(tag_at: int, first: int, count: int) -> None:
    starts = array("I", [0, 2, 4, 6]).tobytes()
    found = _outcome(plain.write_deliveries, bytes(12), tag_at, first, (), _DATA, 0, starts, 1, 0, count, b"")
    compiled = _outcome(picked.write_deliveries, bytes(12), tag_at, first, (), _DATA, 0, starts, 1, 0, count, b"")
    assert compiled in (found, None if tag_at < -(1 << 63) else found)
    assert (found is not None) == (tag_at < 0 or (tag_at <= 4 and 0 <= first <= _U64 - count))


@given(id_at=_HOSTILE, first=_HOSTILE, count=st.integers(0, 3))
@example(9, 0, 1)
@example(8, 0, 1)
@example(8, (1 << 32) - 1, 1)
@example(8, (1 << 32) - 1, 2)
@example(8, 1 << 32, 0)
def test_second_numbers_that_do_not_fit_are_not_delivered(id_at: int, first: int, count: int) -> None:
    starts = array("I", [0, 2, 4, 6]).tobytes()
    found = _same("write_deliveries", bytes(12), 0, 0, (), _DATA, 0, starts, 1, 0, count, b"", id_at, first)
    assert (found is not None) == (id_at < 0 or (id_at <= 8 and 0 <= first <= min(_U32, _U32 + 1 - count)))


@given(size=st.sampled_from([65_535, 65_536, 65_530, 70_000]), added=st.sampled_from([0, 5, 6]))
def test_sizes_that_do_not_fit_into_their_field_are_refused(size: int, added: int) -> None:
    field, starts = SizeField(1, 2, added), array("I", [0, size + 1]).tobytes()
    run = (bytes(size), 0, starts, 1, 0, 1)
    records = _same("encode_records", 1, 1, 1, b"head", field, *run, bytes(8))
    deliveries = _same("write_deliveries", b"head", -1, 0, (field,), *run, b"")
    assert (records is not None) == (deliveries is not None) == (size + added <= 0xFFFF)


def test_messages_whose_second_size_is_too_small_for_them_are_not_found() -> None:
    """Zeros after the first size, as many as there are bytes before the body, are no second size."""
    fields = (SizeField(0, 8), SizeField(8, 1))
    message = (300).to_bytes(8) + bytes(301) + b"\xce"
    assert _same("find_run", message, 0, len(message), bytes(9), fields, 0xCE, 400, 10) == (b"", 0, 0)
    kind = b"\0\1k"
    found = _same(
        "sort_messages",
        kind + message,
        0,
        len(kind + message),
        bytes(2),
        SizeField(0, 2),
        bytes(9),
        fields,
        0xCE,
        400,
        10,
    )
    assert found == (0, 0, [])
    content = encode_record(RecordHeader(Kind.ENQUEUE, 2, 0, 1, 0, 301), data=b"\1" + bytes(300), salt=0)
    records = _same(
        "read_records", content, 0, b"", 24, 0, 1, 1, 0xFF, word(Kind.ENQUEUE, 2) & 0xFF, b"\1", SizeField(0, 1), 400,
        SALT.pack(0),
    )  # fmt: skip
    assert records == (b"", b"", 0, 0)


_RANGE = (_DATA, 0, 64)


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        ("find_run", (_DATA, 0, 65, _DATA[:10], (SizeField(0, 2),), 0, 9, 9)),  # beyond the buffer
        ("find_run", (*_RANGE, _DATA[:10], (), 0, 9, 9)),  # nothing says how large they are
        ("find_run", (*_RANGE, _DATA[:10], (SizeField(0, 2),), 256, 9, 9)),
        ("find_run", (*_RANGE, _DATA[:10], (SizeField(9, 2),), 0, 9, 9)),  # a size beyond the bytes before the body
        ("find_run", (*_RANGE, _DATA[:10], (SizeField(2, 2), SizeField(3, 2)), 0, 9, 9)),  # they overlap
        ("find_run", (*_RANGE, _DATA[:10], tuple(SizeField(n, 1) for n in range(9)), 0, 9, 9)),
        ("find_run", (*_RANGE, _DATA[:10], (SizeField(0, 2),), 0, 9, plain.MAX_COUNT + 1)),
        ("sort_messages", (*_RANGE, _DATA[:4], SizeField(0, 2), _DATA[:6], (SizeField(0, 2),), 0, 9, 9)),  # no end byte
        ("sort_messages", (*_RANGE, _DATA[:4], SizeField(3, 2), _DATA[:6], (SizeField(0, 2),), 1, 9, 9)),
        ("place_records", (array("I", [0, 1]).tobytes(), 2, 0, 1, 4, 0, 9, 9, 9, 8)),  # a body of less than no bytes
        ("place_records", (array("I", [0, 1 << 30]).tobytes(), 1, 0, 1, 4, 0, 1 << 40, 1 << 40, 1 << 40, 8)),
        ("read_records", (_DATA, 0, bytes(9), 8, 0, 1, 1, 0, 0, b"head", None, 9, bytes(8))),  # places cut off
        ("read_records", (_DATA, 0, bytes(8), 8, 1, 1, 1, 0, 0, b"head", None, 9, bytes(8))),  # too few places
        ("read_records", (_DATA, 0, b"", 7, 0, 1, 1, 0, 0, b"head", None, 9, bytes(8))),
        ("read_records", (_DATA, 1 << 64, b"", 8, 0, 1, 1, 0, 0, b"head", None, 9, bytes(8))),
        ("read_records", (_DATA, 0, b"", 8, 0, 1, 1, 0, 0, b"head", SizeField(3, 2), 9, bytes(8))),
    ],
)
def test_what_is_no_run_is_refused(kernel: str, arguments: tuple[object, ...]) -> None:
    assert _same(kernel, *arguments) is None


def test_a_run_ends_before_a_message_that_begins_otherwise() -> None:
    one, other = b"\0\1ab", b"\0\1bb"
    data = one * 3 + other + one
    starts, smallest, largest = plain.find_run(data, 0, len(data), b"\0\1a", (SizeField(0, 2),), 0, 9, 9)
    assert (list(memoryview(starts).cast("I")), smallest, largest) == ([3, 7, 11, 15], 1, 1)
    assert _same("find_run", data, 0, len(data), b"\0\1a", (SizeField(0, 2),), 0, 9, 9) == (starts, 1, 1)


@given(
    st.binary(min_size=9, max_size=20), st.binary(min_size=9, max_size=20), st.integers(0, 5), st.integers(0, 1 << 16)
)
def test_a_size_is_read_where_it_was_set_and_all_else_compared(one: bytes, other: bytes, at: int, size: int) -> None:
    field = SizeField(at, 4, 3)
    with_size = field.set_in(one, size)
    assert field.read(with_size, 0) == size
    assert SizeField(0, 4, 3).moved(at).read(with_size, 0) == size
    assert are_equal_but(field, one, with_size)
    assert are_equal_but(field, one, other) == (one[:at] + one[at + 4 :] == other[:at] + other[at + 4 :])
    assert are_equal_but(None, one, other) == (one == other)


def test_a_body_has_its_size_in_the_bytes_before_it() -> None:
    bodies = joined([b"a", b"bcd"], 1, 0, 0)
    assert bodies.message(b"\0\7x", SizeField(0, 2, 5), 1) == (b"\0\x08x", b"bcd")
    assert bodies.message(b"\0\7x", None, 0) == (b"\0\7x", b"a")


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
