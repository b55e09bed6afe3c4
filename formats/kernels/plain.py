"""The kernels in Python: no loop looks at single bytes, and the part common to all messages is made once."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import sub
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.kernels.bodies import START_SIZE, SizeField
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FIXED_SIZE, HEADER_2, record_blocks
from qstore.formats.rhm.records import PADDING, SALT, TAIL

MAX_COUNT: Final = 1 << 24  # messages of one call
MAX_FIELDS: Final = 4  # that give the size of a body

MAX_KINDS: Final = 64  # of messages that are sorted

_MAX_U32: Final = (1 << 32) - 1
_MAX_U64: Final = (1 << 64) - 1
_TAG: Final = struct.Struct(">Q")
_ID: Final = struct.Struct(">I")
_PLACE_SIZE: Final = 8
_BETWEEN: Final = b"\0"  # sorted bodies

_MANY: Final = 32  # bodies
_KEPT: Final = 1025  # a run, and where one after it would begin


def find_run(
    data: bytes,
    at: int,
    end: int,
    prefix: bytes,
    fields: tuple[SizeField, ...],
    end_byte: int,
    max_size: int,
    most: int,
) -> tuple[bytes, int, int]:
    """Find consecutive messages of a buffer that begin alike, but for the sizes of their bodies.

    Args:
        data: the buffer.
        at: where the first of them begins.
        end: all of them end here, or before.
        prefix: the bytes before each body.
        fields: the fields in it, at least one and at most 4, in order, that give the size of the body. What `prefix`
            has there does not matter.
        end_byte: the byte with which each ends; no such byte, if 0.
        max_size: bytes that a body may have. None is empty.
        most: messages to find.

    Returns:
        Where the bodies begin, from `at` on, and the sizes of the smallest and the largest (`Bodies`); no bytes if the
        first message is not one.

    Raises:
        ValueError: this is not a range of the buffer, or the fields are not in the prefix.
        OverflowError: a place does not fit into 32 bits.
    """
    _check_search(data, at, end, prefix, fields, end_byte, most)
    startswith, length, tail = data.startswith, len(prefix), 1 if end_byte else 0
    starts = array("I")
    smallest = largest = 0
    place = at
    while place + length < end and len(starts) < most:
        size = fields[0].read(data, place)
        if not 0 < size <= max_size:
            break
        before = _sized(prefix, fields, size)
        if before is None:
            break
        stride, first = length + size + tail, place
        last = min(end, first + (most - len(starts)) * stride) - stride  # where a message may begin
        if place > last or not startswith(before, place) or (tail and data[place + stride - 1] != end_byte):
            break
        place += stride
        if place <= last and startswith(before, place):  # several of that size
            place = _after_alike(data, before, place, last + stride, stride, end_byte)
        begin, count = first + length - at, (place - first) // stride
        found = _evenly_spaced(begin, stride, count) if first == at else None
        if found is not None:
            starts.frombytes(found)
        else:
            starts.extend(range(begin, place + length - at, stride))
        smallest, largest = min(smallest or size, size), max(largest, size)
    if not starts:
        return b"", 0, 0
    starts.append(place + length - at)
    return starts.tobytes(), smallest, largest


def _evenly_spaced(begin: int, stride: int, count: int) -> bytes | None:
    """Where bodies of one size begin. None if there are few, so that a loop is faster, or very many."""
    if not _MANY <= count <= _KEPT:
        return None
    found = _all_evenly_spaced(begin, stride)[: count * START_SIZE]
    return found if len(found) == count * START_SIZE else None


@lru_cache(maxsize=64)
def _all_evenly_spaced(begin: int, stride: int) -> bytes:
    """These numbers, more than a run has.

    A publisher's messages mostly have one size, so that they are the same again and again: `find_run` takes 156 ns for
    each of 64 instead of 168 (`bench_runs`).
    """
    return array("I", range(begin, min(begin + _KEPT * stride, _MAX_U32), stride)).tobytes()


def _after_alike(data: bytes, before: bytes, at: int, end: int, stride: int, end_byte: int) -> int:
    """Where messages of one size end that begin with these bytes."""
    count = (end - at) // stride
    if end_byte:
        last = data[at + stride - 1 : at + count * stride : stride]
        count -= len(last.lstrip(bytes([end_byte])))
    end, startswith = at + count * stride, data.startswith
    for place in range(at, end, stride):
        if not startswith(before, place):
            return place
    return end


def sort_messages(
    data: bytes,
    at: int,
    end: int,
    lead: bytes,
    lead_field: SizeField,
    prefix: bytes,
    fields: tuple[SizeField, ...],
    end_byte: int,
    max_size: int,
    most: int,
) -> tuple[int, int, list[tuple[bytes, bytes, bytes, int, int, bytes]]]:
    """Find consecutive messages of a buffer that begin alike but for one part, and sort them by it: their kind.

        lead (fixed, but for its field) | kind (the field gives its size) | prefix | body | end byte

    Args:
        data: the buffer.
        at: where the first of them begins.
        end: all of them end here, or before.
        lead: the bytes before the kind.
        lead_field: the field in them that gives its size. What `lead` has there does not matter.
        prefix: the bytes between kind and body; likewise, with `fields`.
        fields: the fields in it that give the size of the body, as in `find_run`.
        end_byte: the byte with which each ends; at least 1.
        max_size: bytes that a kind may have, and that a body may have. No body is empty.
        most: messages to find.

    Returns:
        Where the last one that was found ends, their number, and for each of at most `MAX_KINDS` kinds, in the order
        of their first messages: the kind; the bodies of its messages, each followed by one further byte; where they
        begin there, and the sizes of the smallest and the largest (`Bodies`); and the numbers of these messages
        among all, from 0, 32 bits each in the machine's byte order.

    Raises:
        ValueError, OverflowError: as `find_run`.
    """
    _check_search(data, at, end, prefix, fields, end_byte, most)
    _check_fields((lead_field,), lead)
    if not end_byte:
        raise ValueError("messages without an end byte cannot be sorted")
    sorted_bodies: dict[bytes, list[bytes]] = {}
    numbers: dict[bytes, array[int]] = {}
    place, count = at, 0
    while count < most and place + len(lead) < end:
        kind_size = lead_field.read(data, place)
        kind_at = place + len(lead)
        body_at = kind_at + kind_size + len(prefix)
        if not 0 <= kind_size <= max_size or body_at >= end:
            break
        size = fields[0].read(data, kind_at + kind_size)
        following = body_at + size + 1
        if not 0 < size <= max_size or following > end or data[following - 1] != end_byte:
            break
        head, before = _sized(lead, (lead_field,), kind_size), _sized(prefix, fields, size)
        if head is None or not data.startswith(head, place):
            break
        if before is None or not data.startswith(before, kind_at + kind_size):
            break
        kind = data[kind_at : kind_at + kind_size]
        bodies = sorted_bodies.get(kind)
        if bodies is None:
            if len(sorted_bodies) == MAX_KINDS:
                break
            bodies = sorted_bodies[kind] = []
            numbers[kind] = array("I")
        bodies.append(data[body_at : following - 1])
        numbers[kind].append(count)
        place, count = following, count + 1
    kinds = []
    for kind, bodies in sorted_bodies.items():
        sizes = [len(body) for body in bodies]
        starts = array("I", accumulate(sizes, lambda start, size: start + size + 1, initial=0))
        joined = _BETWEEN.join(bodies) + _BETWEEN
        kinds.append((kind, joined, starts.tobytes(), min(sizes), max(sizes), numbers[kind].tobytes()))
    return place, count, kinds


def place_records(
    starts: bytes,
    gap: int,
    first: int,
    count: int,
    head_size: int,
    place: int,
    end: int,
    room: int,
    largest: int,
    size_bits: int,
) -> bytes:
    """Where records of messages would be in a log, one after the other, as many as there is room for.

    Args:
        starts: where the bodies begin (`Bodies`).
        gap: bytes between two of them.
        first: the number of the first of them.
        count: their number.
        head_size: bytes before the body in each message's data.
        place: log offset of the first record, in blocks.
        end: they must end here, or before.
        room: blocks for them, and for one more each.
        largest: blocks of each, at most.
        size_bits: bits for the number of blocks.

    Returns:
        Of each its log offset, and in the lower bits its number of blocks: 64-bit numbers in the machine's byte order.

    Raises:
        ValueError: there are no such bodies.
        OverflowError: a number does not fit.
    """
    _check_count(count)
    if not 8 <= size_bits <= 32 or not 0 <= place <= end <= _MAX_U64 >> size_bits or not 0 <= head_size <= _MAX_U32:
        raise OverflowError(f"no log offsets: {place} to {end}")
    begins = _starts(starts, first, count)
    packed = array("Q")
    for number in range(count):
        size = begins[number + 1] - begins[number] - gap
        if size < 0:
            raise ValueError(f"a body of {size} bytes")
        blocks = record_blocks(head_size + size)
        room -= blocks + 1
        if place + blocks > end or room < 0 or blocks > largest:
            break
        if blocks >> size_bits:
            raise OverflowError(f"{blocks} blocks in {size_bits} bits")
        packed.append(place << size_bits | blocks)
        place += blocks
    return packed.tobytes()


def encode_records(
    first_word: int,
    rid: int,
    low_number: int,
    head: bytes,
    field: SizeField | None,
    data: bytes,
    at: int,
    starts: bytes,
    gap: int,
    first: int,
    count: int,
    salt: bytes,
) -> bytes:
    """The version-2 records that enqueue messages of a run, outside of transactions.

    Args:
        first_word: the first word of their headers.
        rid: the record id of the first; those of the others follow.
        low_number: the low half of their flush's number.
        head: the bytes before the body in each message's data.
        field: the field in them that gives the size of the body; None if they are the same for all.
        data: the buffer with the bodies.
        at: what the starts count from.
        starts: where the bodies begin (`Bodies`).
        gap: bytes between two of them.
        first: the number of the first of them.
        count: their number.
        salt: the salt of the file in which they begin.

    Raises:
        ValueError: the bodies are not in the buffer, or the field is not in the head.
        OverflowError: a number does not fit into its field.
    """
    bodies = _bodies(data, at, starts, gap, first, count)
    _check_numbers(first_word, rid, low_number, count, salt)
    if field is not None:
        _check_fields((field,), head)
    pack, pack_tail, check = HEADER_2.pack, TAIL.pack, extend_crc32c
    pieces: list[bytes] = []
    size, head_crc, stored, padding = -1, check(0, head), 0, b""
    for body in bodies:
        if len(body) != size:
            size = len(body)
            if field is not None:
                head = field.set_in(head, size)
                head_crc = check(0, head)
            stored = len(head) + size
            padding = PADDING * (record_blocks(stored) * BLOCK_SIZE - FIXED_SIZE - stored)
        header = pack(first_word, rid, 0, low_number, stored)
        pieces += (header, head, body, pack_tail(check(head_crc, body + header + salt), rid), padding)
        rid += 1
    return b"".join(pieces)


def count_bodies(starts: bytes, gap: int, count: int, largest: int) -> int:
    """How many of the first `count` bodies have at most `largest` bytes.

    Args:
        starts: where they begin (`Bodies`).
        gap: bytes between two of them.
        count: bodies to look at.
        largest: bytes.

    Raises:
        ValueError: there are not as many.
    """
    begins = _starts(starts, 0, count)
    return sum(map((largest + gap).__ge__, map(sub, begins[1:], begins)))


def encode_dequeues(first_word: int, rid: int, low_number: int, target: int, count: int, salt: bytes) -> bytes:
    """The version-2 records that remove messages with consecutive record ids, outside of transactions.

    Args:
        first_word: the first word of their headers.
        rid: the record id of the first; those of the others follow.
        low_number: the low half of their flush's number.
        target: the first message.
        count: their number.
        salt: the salt of the file in which the records are.

    Raises:
        ValueError, OverflowError: as `encode_records`.
    """
    _check_count(count)
    _check_numbers(first_word, rid, low_number, count, salt)
    if not 0 <= target <= _MAX_U64 - count:
        raise OverflowError(f"no record ids: {count} from {target} on")
    padding = PADDING * (BLOCK_SIZE - FIXED_SIZE)
    pack, pack_tail, check = HEADER_2.pack, TAIL.pack, extend_crc32c
    pieces: list[bytes] = []
    for number in range(rid, rid + count):
        header = pack(first_word, number, 0, low_number, target)
        pieces += (header, pack_tail(check(0, header + salt), number), padding)
        target += 1
    return b"".join(pieces)


def read_records(
    content: bytes,
    begin: int,
    places: bytes,
    size_bits: int,
    first: int,
    count: int,
    rid: int,
    mask: int,
    first_word: int,
    head: bytes,
    field: SizeField | None,
    largest: int,
    salt: bytes,
) -> tuple[bytes, bytes, int, int]:
    """The bodies of version-2 records of messages that differ only in them, with consecutive record ids.

    Args:
        content: a part of a log.
        begin: its log offset, in blocks.
        places: of each record its log offset, and in the lower bits a number that does not matter: 64-bit numbers in
            the machine's byte order. Empty if each record begins where the one before it ends.
        size_bits: bits for that number.
        first: the number of the first of these places; without places, the block of the content where the first begins.
        count: their number.
        rid: the record id of the first; those of the others follow.
        mask: bits of the first word of a header that matter.
        first_word: what these must be.
        head: the bytes before the body in each message's data.
        field: the field in them that gives the size of the body; None if they are the same for all.
        largest: bytes that a body may have. None is empty.
        salt: the salt of the file in which they begin.

    Returns:
        Those of as many, from the first on, as are whole, undamaged, and like this: a buffer, where they begin in it,
        one byte apart, and the sizes of the smallest and the largest (`Bodies`).

    Raises:
        ValueError: there are no such places, or the field is not in the head.
        OverflowError: a number does not fit.
    """
    _check_count(count)
    _check_numbers(first_word, rid, 0, count, salt)
    is_listed = bool(places)
    is_short = (first + count) * _PLACE_SIZE > len(places) or len(places) % _PLACE_SIZE != 0
    if not 0 <= first <= MAX_COUNT or (is_listed and is_short):
        raise ValueError(f"no records {first} to {first + count} in {len(places)} bytes of places")
    if not 8 <= size_bits <= 32 or not 0 <= mask <= _MAX_U64 or not 0 <= begin <= _MAX_U64:
        raise OverflowError(f"no log offset: {begin}")
    if len(content) + len(head) > _MAX_U32:
        raise OverflowError(f"no places in 32 bits: {len(content)} bytes")
    if field is not None:
        _check_fields((field,), head)
    unpack, unpack_tail, check, startswith = HEADER_2.unpack_from, TAIL.unpack_from, extend_crc32c, content.startswith
    last, head_crc, end, head_size = -1, check(0, head), len(content) - FIXED_SIZE, len(head)
    bodies: list[bytes] = []
    ats = [((packed >> size_bits) - begin) * BLOCK_SIZE for packed in memoryview(places).cast("Q")[first:][:count]]
    at, blocks = first * BLOCK_SIZE, 0
    for number in range(count):
        if is_listed:
            at = ats[number]
        if not 0 <= at <= end:
            break
        word, found_rid, xid_size, _, stored = unpack(content, at)
        size = stored - head_size
        if word & mask != first_word or found_rid != rid or xid_size or not 0 < size <= largest or stored > end - at:
            break
        if size != last:
            blocks, last = record_blocks(stored), size
            if field is not None:
                sized = _sized(head, (field,), size)
                if sized is None:
                    break
                head, head_crc = sized, check(0, sized)
        head_at = at + HEADER_2.size
        body_at = head_at + head_size
        body = content[body_at : body_at + size]
        crc = check(head_crc, body + content[at:head_at] + salt)
        if not startswith(head, head_at) or unpack_tail(content, body_at + size) != (crc, rid):
            break
        bodies.append(body)
        rid += 1
        at += blocks * BLOCK_SIZE
    if not bodies:
        return b"", b"", 0, 0
    sizes = [len(body) for body in bodies]
    starts = array("I", accumulate((size + 1 for size in sizes), initial=0))
    return b"\0".join(bodies), starts.tobytes(), min(sizes), max(sizes)


def write_deliveries(
    template: bytes,
    tag_at: int,
    first_tag: int,
    fields: tuple[SizeField, ...],
    data: bytes,
    at: int,
    starts: bytes,
    gap: int,
    first: int,
    count: int,
    tail: bytes,
    id_at: int = -1,
    first_id: int = 0,
) -> bytes:
    """Messages of a run as a consumer gets them: of each the template with its number and size, the body, and the tail.

    Args:
        template: the bytes before each body.
        tag_at: where in it the number is, 8 bytes, big endian; negative if there is none.
        first_tag: the number of the first; those of the others follow.
        fields: the fields in it, at most 4, that give the size of the body; none if all bodies have the same size.
        data: the buffer with the bodies.
        at: what the starts count from.
        starts: where the bodies begin (`Bodies`).
        gap: bytes between two of them.
        first: the number of the first of them.
        count: their number.
        tail: the bytes after each body.
        id_at: where in the template a second number is, 4 bytes, big endian, that counts up as well; negative if there
            is none.
        first_id: that of the first.

    Raises:
        ValueError: the bodies are not in the buffer, or a number or a field is not in the template.
        OverflowError: a number does not fit.
    """
    bodies = _bodies(data, at, starts, gap, first, count)
    _check_fields(fields, template)
    if id_at >= 0:
        if id_at + _ID.size > len(template):
            raise ValueError(f"no number of 4 bytes at {id_at} of {len(template)} bytes")
        if not 0 <= first_id <= min(_MAX_U32, _MAX_U32 + 1 - count):
            raise OverflowError(f"no numbers of 32 bits: {count} from {first_id} on")
    if tag_at >= 0:
        if tag_at + _TAG.size > len(template):
            raise ValueError(f"no number of 8 bytes at {tag_at} of {len(template)} bytes")
        if not 0 <= first_tag <= _MAX_U64 - count:
            raise OverflowError(f"no numbers of 64 bits: {count} from {first_tag} on")
    if not bodies:
        return b""
    if fields:
        return _write_sized(template, tag_at, first_tag, fields, bodies, tail, id_at, first_id)
    if tag_at < 0 and id_at < 0:
        return template + (tail + template).join(bodies) + tail
    if id_at < 0:
        begin, end = tag_at, tag_at + _TAG.size
        numbers = struct.pack(f">{count}Q", *range(first_tag, first_tag + count))
    else:
        begin, end, numbers = _both_numbers(template, tag_at, first_tag, id_at, first_id, count)
    before, after, width = template[:begin], template[end:], end - begin
    pieces = [b""] * (4 * count)
    pieces[::4] = [before, *[tail + before] * (count - 1)]
    pieces[1::4] = [numbers[place : place + width] for place in range(0, width * count, width)]
    pieces[2::4] = [after] * count
    pieces[3::4] = bodies
    pieces.append(tail)
    return b"".join(pieces)


def write_mixed(
    templates: Sequence[bytes],
    kinds: bytes,
    tag_at: int,
    first_tag: int,
    fields: tuple[SizeField, ...],
    data: bytes,
    at: int,
    starts: bytes,
    gap: int,
    first: int,
    count: int,
    tail: bytes,
) -> bytes:
    """As `write_deliveries`, but each message has one of several templates.

    Args:
        templates: the bytes before each body; at least one.
        kinds: for each message of the run, the number of its template.
        tag_at: as there. All templates have a number.
        first_tag: as there.
        fields: those of the first template. In the others they are as far from the end.
        data: as there, like all that follow.
        at: where the starts count from.
        starts: where the bodies begin.
        gap: bytes between two of them.
        first: the number of the first of them.
        count: their number.
        tail: the bytes after each body.

    Raises:
        ValueError: likewise; or a message has no template.
        OverflowError: likewise.
    """
    bodies = _bodies(data, at, starts, gap, first, count)
    if not templates or len(kinds) < first + count or max(kinds[first : first + count], default=0) >= len(templates):
        raise ValueError(f"{len(templates)} templates for {count} messages from number {first} on")
    shortest = min(map(len, templates))
    if not 0 <= tag_at <= shortest - _TAG.size:
        raise ValueError(f"no number of 8 bytes at {tag_at} of {shortest} bytes")
    if not 0 <= first_tag <= _MAX_U64 - count:
        raise OverflowError(f"no numbers of 64 bits: {count} from {first_tag} on")
    moved = [tuple([field.moved(len(each) - len(templates[0])) for field in fields]) for each in templates]
    for each, template in zip(moved, templates, strict=True):
        _check_fields(each, template)
    begin, end, tag, size, pieces = tag_at, tag_at + _TAG.size, first_tag, -1, list[bytes]()
    parts: list[tuple[bytes, bytes]] = []  # of each template, before and after the number
    for kind, body in zip(kinds[first : first + count], bodies, strict=True):
        if not parts or (fields and len(body) != size):  # most are as large as the one before
            size = len(body)
            sized = [_sized(template, each, size) for template, each in zip(templates, moved, strict=True)]
            if None in sized:
                raise OverflowError(f"no size field for {size} bytes")
            parts = [(template[:begin], template[end:]) for template in sized if template is not None]
        before, after = parts[kind]
        pieces += (before, _TAG.pack(tag), after, body, tail)
        tag += 1
    return b"".join(pieces)


def _both_numbers(
    template: bytes, tag_at: int, tag: int, id_at: int, first_id: int, count: int
) -> tuple[int, int, bytes]:
    """Where in the template the numbers of a message begin and end, and these bytes of all messages."""
    begin, end = id_at, id_at + _ID.size
    if tag_at >= 0:
        begin, end = min(begin, tag_at), max(end, tag_at + _TAG.size)
    width = end - begin
    written = bytearray(template[begin:end] * count)
    ids = struct.pack(f">{count}I", *range(first_id, first_id + count))
    for place in range(_ID.size):
        written[id_at - begin + place :: width] = ids[place :: _ID.size]
    if tag_at >= 0:
        tags = struct.pack(f">{count}Q", *range(tag, tag + count))
        for place in range(_TAG.size):
            written[tag_at - begin + place :: width] = tags[place :: _TAG.size]
    return begin, end, bytes(written)


def _sized(before: bytes, fields: tuple[SizeField, ...], size: int) -> bytes | None:
    """The bytes before a body of that size; None if a field cannot give it."""
    try:
        for field in fields:
            before = field.set_in(before, size)
    except OverflowError:
        return None
    return before


def _write_sized(
    template: bytes,
    tag_at: int,
    tag: int,
    fields: tuple[SizeField, ...],
    bodies: list[bytes],
    tail: bytes,
    id_at: int,
    first_id: int,
) -> bytes:
    """As `write_deliveries`, where the sizes differ."""
    pieces: list[bytes] = []
    size = -1
    for body in bodies:
        if len(body) != size:
            size = len(body)
            for field in fields:
                template = field.set_in(template, size)
        if id_at >= 0:
            template = template[:id_at] + _ID.pack(first_id) + template[id_at + _ID.size :]
            first_id += 1
        if tag_at < 0:
            pieces += (template, body, tail)
        else:
            pieces += (template[:tag_at], _TAG.pack(tag), template[tag_at + _TAG.size :], body, tail)
            tag += 1
    return b"".join(pieces)


def _bodies(data: bytes, at: int, starts: bytes, gap: int, first: int, count: int) -> list[bytes]:
    """The bodies. Raises ValueError unless they are in the buffer."""
    _check_count(count)
    columns = _starts(starts, first, count)
    if not count:
        return []
    begin, stride = columns[0], columns[1] - columns[0]
    end = begin + count * stride
    are_there = gap >= 1 and stride >= gap and end <= _MAX_U32 and at + begin >= 0 and at + end - gap <= len(data)
    # They are nearly always of one size: it saves 40 to 50 ns for each.
    if are_there and columns[count] == end and _are_evenly_spaced(starts, first, count, begin, stride):
        size = stride - gap
        return [data[place : place + size] for place in range(at + begin, at + end, stride)]
    begins = columns.tolist()
    ends = begins[1:]
    if gap < 1 or at + begins[0] < 0 or at + ends[-1] - gap > len(data) or min(map(sub, ends, begins)) < gap:
        raise ValueError(f"no run of {count} bodies, {gap} bytes apart, from {at + begins[0]} of {len(data)} on")
    return [data[at + begin : at + end - gap] for begin, end in zip(begins, ends, strict=False)]


def _are_evenly_spaced(starts: bytes, first: int, count: int, begin: int, stride: int) -> bool:
    """Whether all bodies from the first one in the buffer on begin `stride` bytes after the one before it."""
    evenly = _evenly_spaced(begin - first * stride, stride, first + count + 1) if begin >= first * stride else None
    if evenly is not None and starts.startswith(evenly):
        return True
    expected = array("I", range(begin, begin + count * stride + 1, stride)).tobytes()
    return starts.startswith(expected, first * START_SIZE)


def _starts(starts: bytes, first: int, count: int) -> memoryview:
    """Where the bodies begin, and where one after the last would begin."""
    if not 0 <= first <= MAX_COUNT or (first + count + 1) * START_SIZE > len(starts) or len(starts) % START_SIZE:
        raise ValueError(f"no bodies {first} to {first + count} in {len(starts)} bytes of places")
    return memoryview(starts).cast("I")[first : first + count + 1]


def _check_search(
    data: bytes, at: int, end: int, prefix: bytes, fields: tuple[SizeField, ...], end_byte: int, most: int
) -> None:
    _check_count(most)
    if not 0 <= at <= end <= len(data):
        raise ValueError(f"no range of {len(data)} bytes: {at} to {end}")
    if not fields or not 0 <= end_byte <= 0xFF:
        raise ValueError(f"no message has {len(fields)} sizes and ends with byte {end_byte}")
    _check_fields(fields, prefix)
    if end - at + len(prefix) > _MAX_U32:
        raise OverflowError(f"no places in 32 bits: {end - at} bytes")


def _check_fields(fields: tuple[SizeField, ...], before: bytes) -> None:
    """Raise ValueError unless these fields are in the bytes before a body, one after another."""
    place = 0
    for field in fields:
        if not place <= field.at <= len(before) - field.width:
            raise ValueError(f"no size of {field.width} bytes at {field.at} of {len(before)} bytes")
        place = field.at + field.width
    if len(fields) > MAX_FIELDS:
        raise ValueError(f"{len(fields)} sizes: there are at most {MAX_FIELDS}")


def _check_count(count: int) -> None:
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"no run of {count}: there are at most {MAX_COUNT}")


def _check_numbers(first_word: int, rid: int, low_number: int, count: int, salt: bytes) -> None:
    if len(salt) != SALT.size:
        raise ValueError(f"no salt of 8 bytes: {len(salt)}")
    if not (0 <= first_word <= _MAX_U64 and 0 <= rid <= _MAX_U64 - count and 0 <= low_number <= _MAX_U32):
        raise OverflowError(f"no header: 0x{first_word:x}, record ids {rid} to {rid + count}, flush 0x{low_number:x}")
