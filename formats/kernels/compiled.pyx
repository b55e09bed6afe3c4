# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernels in Cython. `plain` says what they do, and is called with what is refused here: it raises the error.

The functions for single messages are `nogil`, so that one in which there is an object of Python cannot be compiled:
even a loop's variable is one if Cython does not know its type.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import qstore.formats.kernels.plain as _plain
from qstore.formats.kernels.bodies import START_SIZE
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import HEADER_2
from qstore.formats.rhm.records import PADDING, SALT, TAIL


cdef extern from "kernels.h" nogil:
    void crc32c_init(int uses_instruction)
    uint32_t crc32c(uint32_t crc, const uint8_t* at, size_t size) noexcept
    void store_le32(uint8_t* at, uint32_t value) noexcept
    void store_le64(uint8_t* at, uint64_t value) noexcept
    uint32_t load_le32(const uint8_t* at) noexcept
    uint64_t load_le64(const uint8_t* at) noexcept
    void store_be32(uint8_t* at, uint32_t value) noexcept
    void store_be64(uint8_t* at, uint64_t value) noexcept
    uint32_t load_be32(const uint8_t* at) noexcept
    uint64_t load_be64(const uint8_t* at) noexcept


cdef enum:
    BLOCK = 128
    HEADER = 32
    TAIL_BYTES = 12
    SALT_BYTES = 8
    TAG_BYTES = 8
    ID_BYTES = 4
    PADDING_BYTE = 0xFF
    MAX_FIELDS = 4
    MAX_KINDS = 64

cdef Py_ssize_t MAX_COUNT = _plain.MAX_COUNT
cdef int64_t MAX_U32 = 0xFFFFFFFF
cdef int64_t MAX_ADDED = 1 << 31

assert (BLOCK, HEADER_2.format, TAIL.format, SALT.format, PADDING[0]) == (
    BLOCK_SIZE, "<QQIIQ", "<IQ", "<Q", PADDING_BYTE
)
assert (HEADER, TAIL_BYTES, SALT_BYTES) == (HEADER_2.size, TAIL.size, SALT.size)
assert (MAX_FIELDS, MAX_KINDS, sizeof(uint32_t), MAX_COUNT < 1 << 30) == (
    _plain.MAX_FIELDS, _plain.MAX_KINDS, START_SIZE, True
)


def use_instruction(bint uses):
    """Whether CRC-32C is calculated by the processor's instruction, if it has one; a test wants it both ways."""
    crc32c_init(uses)


use_instruction(True)


cdef inline const uint8_t* bytes_of(bytes data) noexcept:
    return <const uint8_t*>PyBytes_AS_STRING(data)


def extend_crc32c(uint32_t crc, bytes data not None):
    """As in `formats.checksum`, in a tenth of the instructions for a short text."""
    return crc32c(crc, bytes_of(data), len(data))


cdef struct Fields:
    Py_ssize_t count
    Py_ssize_t at[4]
    Py_ssize_t width[4]
    int64_t added[4]


cdef inline bint read_fields(Fields* fields, tuple given, Py_ssize_t available) except -1:
    """Read what the fields are; False if `plain` has to look at them."""
    cdef Py_ssize_t place = 0
    if len(given) > MAX_FIELDS:
        return False
    fields.count = len(given)
    for number in range(fields.count):
        field = given[number]
        fields.at[number], fields.width[number], fields.added[number] = field.at, field.width, field.added
        if fields.width[number] not in (2, 4, 8) or not 0 <= fields.added[number] < MAX_ADDED:
            return False
        if not place <= fields.at[number] <= available - fields.width[number]:
            return False
        place = fields.at[number] + fields.width[number]
    return True


cdef inline bint fits(const Fields* fields, int64_t size) noexcept nogil:
    """Whether each of the fields can have that size."""
    for number in range(fields.count):
        if fields.width[number] < 8 and size + fields.added[number] >> 8 * fields.width[number]:
            return False
    return True


cdef inline void set_fields(const Fields* fields, uint8_t* before, int64_t size) noexcept nogil:
    cdef uint8_t* to
    cdef uint64_t value
    for number in range(fields.count):
        to, value = before + fields.at[number], size + fields.added[number]
        if fields.width[number] == 8:
            store_be64(to, value)
        elif fields.width[number] == 4:
            store_be32(to, <uint32_t>value)
        else:
            to[0], to[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline uint64_t read_field(const uint8_t* source, Py_ssize_t width) noexcept nogil:
    if width == 8:
        return load_be64(source)
    return load_be32(source) if width == 4 else <uint64_t>source[0] << 8 | source[1]


cdef inline const uint32_t* starts_of(bytes starts, Py_ssize_t first, Py_ssize_t count) noexcept:
    """Where the bodies begin, and where one after the last would; NULL if there are not as many."""
    cdef Py_ssize_t available = len(starts)
    if available % 4 or not 0 <= count <= MAX_COUNT or not 0 <= first <= MAX_COUNT or first + count >= available // 4:
        return NULL
    return <const uint32_t*>PyBytes_AS_STRING(starts) + first


cdef inline int64_t size_of_bodies(
    const uint32_t* starts, Py_ssize_t available, Py_ssize_t at, Py_ssize_t gap, Py_ssize_t count
) noexcept nogil:
    """Bytes of the bodies; negative if not all of them are in a buffer of so many bytes."""
    cdef Py_ssize_t number
    if gap < 1 or gap > MAX_U32 or not -MAX_U32 <= at <= available:
        return -1
    for number in range(count):
        if <int64_t>starts[number + 1] - <int64_t>starts[number] < gap:
            return -1
    if at + <int64_t>starts[0] < 0 or at + <int64_t>starts[count] - gap > available:
        return -1
    return <int64_t>starts[count] - <int64_t>starts[0] - count * gap


cdef inline void write_header(
    uint8_t* to, uint64_t first_word, uint64_t rid, uint32_t low_number, uint64_t datum
) noexcept nogil:
    store_le64(to, first_word)
    store_le64(to + 8, rid)
    store_le32(to + 16, 0)
    store_le32(to + 20, low_number)
    store_le64(to + 24, datum)


cdef inline uint64_t size_in_log(uint64_t stored) noexcept nogil:
    """Bytes of a record with so many bytes of data."""
    return (HEADER + stored + TAIL_BYTES + BLOCK - 1) // BLOCK * BLOCK


def find_run(
    bytes data not None,
    Py_ssize_t at,
    Py_ssize_t end,
    bytes prefix not None,
    tuple fields not None,
    int end_byte,
    Py_ssize_t max_size,
    Py_ssize_t most,
):
    cdef Fields known
    cdef Py_ssize_t length = len(prefix), place = at, following, count = 0
    if (
        not 0 <= at <= end <= len(data)
        or not 0 <= end_byte <= 0xFF
        or not 0 <= most <= MAX_COUNT
        or end - at + length > MAX_U32
        or not fields
        or not read_fields(&known, fields, length)
    ):
        return _plain.find_run(data, at, end, prefix, fields, end_byte, max_size, most)
    cdef const uint8_t* source = bytes_of(data)
    cdef const uint8_t* wanted = bytes_of(prefix)
    cdef Py_ssize_t tail = 1 if end_byte else 0, smallest = 0, largest = 0, stride = 0, size = 0
    cdef Py_ssize_t possible = min(most, (end - at) // (length + 1 + tail))
    cdef bytes starts = new_bytes(4, possible + 1)
    cdef uint32_t* to = <uint32_t*>PyBytes_AS_STRING(starts)
    cdef uint64_t given
    while count < possible and length + tail < end - place:
        # Most are as large as the one before, and what precedes their bodies is equal: a third of the time.
        if not stride or stride > end - place or memcmp(source + place, source + place - stride, length) != 0:
            given = read_field(source + place + known.at[0], known.width[0])
            if (
                given <= <uint64_t>known.added[0]
                or given - <uint64_t>known.added[0] > <uint64_t>(end - place - length - tail)
            ):
                break
            size = given - known.added[0]
            if size > max_size or not is_alike(&known, wanted, length, source + place, size):
                break
            stride = length + size + tail
        following = place + stride
        if end_byte and source[following - 1] != end_byte:
            break
        if count == 0 or size < smallest:
            smallest = size
        if size > largest:
            largest = size
        to[count] = <uint32_t>(place + length - at)
        count += 1
        place = following
    if count == 0:
        return b"", 0, 0
    to[count] = <uint32_t>(place + length - at)
    return starts[: 4 * (count + 1)], smallest, largest


cdef struct Kind:
    Py_ssize_t at
    Py_ssize_t size
    Py_ssize_t count
    Py_ssize_t total
    Py_ssize_t smallest
    Py_ssize_t largest


def sort_messages(
    bytes data not None,
    Py_ssize_t at,
    Py_ssize_t end,
    bytes lead not None,
    lead_field not None,
    bytes prefix not None,
    tuple fields not None,
    int end_byte,
    Py_ssize_t max_size,
    Py_ssize_t most,
):
    cdef Fields known, of_lead
    cdef Py_ssize_t length = len(prefix), lead_size = len(lead)
    if (
        not 0 <= at <= end <= len(data)
        or not 0 < end_byte <= 0xFF
        or not 0 <= most <= MAX_COUNT
        or end - at + length > MAX_U32
        or not fields
        or not read_fields(&known, fields, length)
        or not read_fields(&of_lead, (lead_field,), lead_size)
    ):
        return _plain.sort_messages(
            data, at, end, lead, lead_field, prefix, fields, end_byte, max_size, most
        )
    cdef const uint8_t* source = bytes_of(data)
    cdef const uint8_t* leads = bytes_of(lead)
    cdef const uint8_t* wanted = bytes_of(prefix)
    cdef Kind kinds[64]
    cdef Py_ssize_t possible = min(most, (end - at) // (lead_size + length + 2))
    cdef bytes scratch = new_bytes(24, possible)  # of each message: where its body begins, its size, and its kind
    cdef int64_t* found = <int64_t*>PyBytes_AS_STRING(scratch)
    cdef Py_ssize_t place = at, count = 0, kind_count = 0, kind_at, kind_size, body_at, size, number, kind
    cdef uint64_t given
    while count < possible and lead_size < end - place:
        given = read_field(source + place + of_lead.at[0], of_lead.width[0]) - <uint64_t>of_lead.added[0]
        if given > <uint64_t>max(max_size, 0) or given >= <uint64_t>(end - place - lead_size):
            break
        kind_size = given
        kind_at = place + lead_size
        body_at = kind_at + kind_size + length
        if body_at >= end:
            break
        given = read_field(source + kind_at + kind_size + known.at[0], known.width[0]) - <uint64_t>known.added[0]
        if given == 0 or given > <uint64_t>max(max_size, 0) or given >= <uint64_t>(end - body_at):
            break
        size = given
        if (
            source[body_at + size] != end_byte
            or not is_alike(&of_lead, leads, lead_size, source + place, kind_size)
            or not is_alike(&known, wanted, length, source + kind_at + kind_size, size)
        ):
            break
        kind = -1
        for number in range(kind_count):
            if kinds[number].size == kind_size and memcmp(
                source + kinds[number].at, source + kind_at, kind_size
            ) == 0:
                kind = number
                break
        if kind < 0:
            if kind_count == MAX_KINDS:
                break
            kind = kind_count
            kind_count += 1
            kinds[kind].at, kinds[kind].size = kind_at, kind_size
            kinds[kind].count = kinds[kind].total = kinds[kind].largest = 0
            kinds[kind].smallest = size
        kinds[kind].count += 1
        kinds[kind].total += size + 1
        kinds[kind].smallest = min(kinds[kind].smallest, size)
        kinds[kind].largest = max(kinds[kind].largest, size)
        found[3 * count], found[3 * count + 1], found[3 * count + 2] = body_at, size, kind
        count += 1
        place = body_at + size + 1
    cdef bytes bodies, starts, numbers
    cdef uint8_t* to
    cdef uint32_t* start
    cdef uint32_t* ordinal
    cdef Py_ssize_t filled, written
    result = []
    for kind in range(kind_count):
        bodies = new_bytes(kinds[kind].total, 1)
        starts = new_bytes(4, kinds[kind].count + 1)
        numbers = new_bytes(4, kinds[kind].count)
        to = <uint8_t*>PyBytes_AS_STRING(bodies)
        start = <uint32_t*>PyBytes_AS_STRING(starts)
        ordinal = <uint32_t*>PyBytes_AS_STRING(numbers)
        filled = written = 0
        for number in range(count):
            if found[3 * number + 2] == kind:
                start[filled], ordinal[filled] = <uint32_t>written, <uint32_t>number
                memcpy(to + written, source + found[3 * number], found[3 * number + 1])
                written += found[3 * number + 1]
                to[written] = 0
                written += 1
                filled += 1
        start[filled] = <uint32_t>written
        result.append((
            data[kinds[kind].at : kinds[kind].at + kinds[kind].size],
            bodies, starts, kinds[kind].smallest, kinds[kind].largest, numbers,
        ))
    return place, count, result


cdef inline bint is_alike(
    const Fields* fields, const uint8_t* wanted, Py_ssize_t length, const uint8_t* given, int64_t size
) noexcept nogil:
    """Whether so many bytes are as wanted, but that all fields in them have this size."""
    cdef Py_ssize_t piece = 0
    for number in range(fields.count):
        if read_field(given + fields.at[number], fields.width[number]) != <uint64_t>(size + fields.added[number]):
            return False
        if memcmp(given + piece, wanted + piece, fields.at[number] - piece) != 0:
            return False
        piece = fields.at[number] + fields.width[number]
    return memcmp(given + piece, wanted + piece, length - piece) == 0


def place_records(
    bytes starts not None,
    Py_ssize_t gap,
    Py_ssize_t first,
    Py_ssize_t count,
    Py_ssize_t head_size,
    uint64_t place,
    uint64_t end,
    int64_t room,
    int64_t largest,
    int size_bits,
):
    cdef const uint32_t* begins = starts_of(starts, first, count)
    if (
        begins == NULL
        or not 0 <= head_size <= MAX_U32
        or not -MAX_U32 <= gap <= MAX_U32
        or not 8 <= size_bits <= 32
        or place > end
        or end > UINT64_MAX >> size_bits
    ):
        return _plain.place_records(starts, gap, first, count, head_size, place, end, room, largest, size_bits)
    cdef bytes packed = new_bytes(8, count)
    cdef uint64_t* to = <uint64_t*>PyBytes_AS_STRING(packed)
    cdef Py_ssize_t number = 0, size
    cdef uint64_t blocks
    cdef int64_t left = room
    while number < count:
        size = <Py_ssize_t>begins[number + 1] - <Py_ssize_t>begins[number] - gap
        if size < 0:
            return _plain.place_records(starts, gap, first, count, head_size, place, end, room, largest, size_bits)
        blocks = <uint64_t>(HEADER + head_size + size + TAIL_BYTES + BLOCK - 1) // BLOCK
        if blocks > end - place or left < <int64_t>blocks + 1 or <int64_t>blocks > largest:
            break
        if blocks >> size_bits:
            raise OverflowError(f"{blocks} blocks in {size_bits} bits")
        left -= blocks + 1
        to[number] = place << size_bits | blocks
        place += blocks
        number += 1
    return packed if number == count else packed[: 8 * number]


def encode_records(
    uint64_t first_word,
    uint64_t rid,
    uint32_t low_number,
    bytes head not None,
    field,
    bytes data not None,
    Py_ssize_t at,
    bytes starts not None,
    Py_ssize_t gap,
    Py_ssize_t first,
    Py_ssize_t count,
    bytes salt not None,
):
    cdef Py_ssize_t head_size = len(head), number, size, last = -1, stored = 0, tail = 0, end = 0, record = 0
    cdef const uint32_t* begins = starts_of(starts, first, count)
    cdef int64_t total = -1 if begins == NULL else size_of_bodies(begins, len(data), at, gap, count)
    cdef Fields fields
    fields.count = 0
    if (
        total < 0
        or rid > UINT64_MAX - <uint64_t>count
        or len(salt) != SALT_BYTES
        or (field is not None and not read_fields(&fields, (field,), head_size))
    ):
        return _plain.encode_records(
            first_word, rid, low_number, head, field, data, at, starts, gap, first, count, salt
        )
    total = 0
    for number in range(count):
        size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
        if size != last:
            if not fits(&fields, size):
                raise OverflowError(f"no size field for {size} bytes")
            record = (HEADER + head_size + size + TAIL_BYTES + BLOCK - 1) // BLOCK * BLOCK
            last = size
        total += record
    cdef bytes records = new_bytes(total, 1)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(records)
    cdef const uint8_t* source = bytes_of(data) + at
    cdef const uint8_t* salts = bytes_of(salt)
    cdef bytes before = PyBytes_FromStringAndSize(PyBytes_AS_STRING(head), head_size)  # its field is set below
    cdef uint8_t* heads = <uint8_t*>PyBytes_AS_STRING(before)
    cdef uint32_t crc, head_crc = 0
    last = -1
    for number in range(count):
        size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
        if size != last:  # most are as large as the one before
            set_fields(&fields, heads, size)
            head_crc = crc32c(0, heads, head_size)
            stored = head_size + size
            tail = HEADER + stored
            end = tail + TAIL_BYTES
            record = (end + BLOCK - 1) // BLOCK * BLOCK
            last = size
        write_header(to, first_word, rid, low_number, stored)
        memcpy(to + HEADER, heads, head_size)
        memcpy(to + HEADER + head_size, source + begins[number], size)
        crc = crc32c(head_crc, source + begins[number], size)
        crc = crc32c(crc, to, HEADER)
        store_le32(to + tail, crc32c(crc, salts, SALT_BYTES))
        store_le64(to + tail + 4, rid)
        memset(to + end, PADDING_BYTE, record - end)
        to += record
        rid += 1
    return records


def count_bodies(bytes starts not None, Py_ssize_t gap, Py_ssize_t count, Py_ssize_t largest):
    cdef const uint32_t* begins = starts_of(starts, 0, count)
    if begins == NULL or not 0 <= gap <= MAX_U32 or not 0 <= largest <= MAX_U32:
        return _plain.count_bodies(starts, gap, count, largest)
    cdef Py_ssize_t number, found = 0
    cdef int64_t limit = largest + gap
    for number in range(count):
        found += <int64_t>begins[number + 1] - <int64_t>begins[number] <= limit
    return found


def encode_dequeues(
    uint64_t first_word, uint64_t rid, uint32_t low_number, uint64_t target, Py_ssize_t count, bytes salt not None
):
    if (
        not 0 <= count <= MAX_COUNT
        or rid > UINT64_MAX - <uint64_t>count
        or target > UINT64_MAX - <uint64_t>count
        or len(salt) != SALT_BYTES
    ):
        return _plain.encode_dequeues(first_word, rid, low_number, target, count, salt)
    cdef bytes records = new_bytes(BLOCK, count)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(records)
    cdef const uint8_t* salts = bytes_of(salt)
    for _ in range(count):
        write_header(to, first_word, rid, low_number, target)
        store_le32(to + HEADER, crc32c(crc32c(0, to, HEADER), salts, SALT_BYTES))
        store_le64(to + HEADER + 4, rid)
        memset(to + HEADER + TAIL_BYTES, PADDING_BYTE, BLOCK - HEADER - TAIL_BYTES)
        to += BLOCK
        rid += 1
        target += 1
    return records


def read_records(
    bytes content not None,
    uint64_t begin,
    bytes places not None,
    int size_bits,
    Py_ssize_t first,
    Py_ssize_t count,
    uint64_t rid,
    uint64_t mask,
    uint64_t first_word,
    bytes head not None,
    field,
    Py_ssize_t largest,
    bytes salt not None,
):
    cdef Py_ssize_t head_size = len(head), available = len(content), listed = len(places), number, size, last = -1
    cdef Fields fields
    fields.count = 0
    if (
        listed % 8
        or not 0 <= count <= MAX_COUNT
        or not 0 <= first <= MAX_COUNT
        or (listed and first + count > listed // 8)
        or not 8 <= size_bits <= 32
        or available + head_size > MAX_U32
        or rid > UINT64_MAX - <uint64_t>count
        or len(salt) != SALT_BYTES
        or (field is not None and not read_fields(&fields, (field,), head_size))
    ):
        return _plain.read_records(
            content, begin, places, size_bits, first, count, rid, mask, first_word, head, field, largest, salt
        )
    if not listed:
        count = min(count, available // BLOCK + 1)
    cdef const uint8_t* source = bytes_of(content)
    cdef const uint8_t* record
    cdef const uint64_t* listing = <const uint64_t*>PyBytes_AS_STRING(places) + (first if listed else 0)
    cdef const uint8_t* salts = bytes_of(salt)
    cdef bytes wanted = PyBytes_FromStringAndSize(PyBytes_AS_STRING(head), head_size)  # its field is set below
    cdef uint8_t* before = <uint8_t*>PyBytes_AS_STRING(wanted)
    cdef bytes starts = new_bytes(4, count + 1)
    cdef uint32_t* to = <uint32_t*>PyBytes_AS_STRING(starts)
    cdef uint64_t place, offset, stored, following = <uint64_t>first * BLOCK
    cdef uint32_t crc, head_crc = crc32c(0, before, head_size)
    cdef Py_ssize_t found = 0, smallest = 0, biggest = 0, total = 0
    cdef uint64_t limit = <uint64_t>available
    while found < count:
        if listed:
            place = listing[found] >> size_bits
            if place < begin or place - begin > limit // BLOCK:
                break
            following = (place - begin) * BLOCK
        offset = following
        if offset > limit or limit - offset < HEADER + TAIL_BYTES:
            break
        record = source + offset
        stored = load_le64(record + 24)
        if (
            load_le64(record) & mask != first_word
            or load_le64(record + 8) != rid
            or load_le32(record + 16)
            or stored <= <uint64_t>head_size
            or stored > limit - offset - HEADER - TAIL_BYTES
        ):
            break
        size = <Py_ssize_t>stored - head_size
        if size > largest:
            break
        if fields.count and size != last:
            if not fits(&fields, size):
                break
            set_fields(&fields, before, size)
            head_crc = crc32c(0, before, head_size)
            last = size
        if memcmp(record + HEADER, before, head_size) != 0:
            break
        crc = crc32c(head_crc, record + HEADER + head_size, size)
        crc = crc32c(crc, record, HEADER)
        crc = crc32c(crc, salts, SALT_BYTES)
        record += HEADER + stored
        if load_le32(record) != crc or load_le64(record + 4) != rid:
            break
        if found == 0 or size < smallest:
            smallest = size
        if size > biggest:
            biggest = size
        to[found] = <uint32_t>total
        total += size + 1
        found += 1
        rid += 1
        following = offset + size_in_log(stored)
    if found == 0:
        return b"", b"", 0, 0
    to[found] = <uint32_t>total
    cdef bytes bodies = new_bytes(total - 1, 1)
    cdef uint8_t* body = <uint8_t*>PyBytes_AS_STRING(bodies)
    following = <uint64_t>first * BLOCK
    for number in range(found):
        size = <Py_ssize_t>(to[number + 1] - to[number]) - 1
        offset = ((listing[number] >> size_bits) - begin) * BLOCK if listed else following
        following = offset + size_in_log(head_size + size)
        memcpy(body, source + offset + HEADER + head_size, size)
        body += size
        if number + 1 < found:
            body[0] = 0
            body += 1
    return bodies, starts if found == count else starts[: 4 * (found + 1)], smallest, biggest


def write_deliveries(
    bytes template not None,
    Py_ssize_t tag_at,
    first_tag,
    tuple fields not None,
    bytes data not None,
    Py_ssize_t at,
    bytes starts not None,
    Py_ssize_t gap,
    Py_ssize_t first,
    Py_ssize_t count,
    bytes tail not None,
    Py_ssize_t id_at=-1,
    first_id=0,
):
    cdef Py_ssize_t template_size = len(template), tail_size = len(tail), number, size
    cdef bint has_tag = tag_at >= 0, has_id = id_at >= 0
    cdef const uint32_t* begins = starts_of(starts, first, count)
    cdef int64_t total = -1 if begins == NULL else size_of_bodies(begins, len(data), at, gap, count)
    cdef Fields known
    if (
        total < 0
        or (has_tag and (template_size < TAG_BYTES or tag_at > template_size - TAG_BYTES))
        or (has_id and (template_size < ID_BYTES or id_at > template_size - ID_BYTES))
        or not read_fields(&known, fields, template_size)
    ):
        return _plain.write_deliveries(
            template, tag_at, first_tag, fields, data, at, starts, gap, first, count, tail, id_at, first_id
        )
    cdef uint64_t tag = first_tag if has_tag else 0
    cdef uint32_t id_ = first_id if has_id else 0
    if tag > UINT64_MAX - <uint64_t>count or (has_id and id_ + <uint64_t>count > <uint64_t>UINT32_MAX + 1):
        return _plain.write_deliveries(
            template, tag_at, first_tag, fields, data, at, starts, gap, first, count, tail, id_at, first_id
        )
    if known.count:
        for number in range(count):
            size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
            if not fits(&known, size):
                raise OverflowError(f"no size field for {size} bytes")
    if count and template_size + tail_size > (PY_SSIZE_T_MAX - total) // count:
        raise MemoryError
    cdef bytes deliveries = new_bytes(count * (template_size + tail_size) + total, 1)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(deliveries)
    cdef const uint8_t* templates = bytes_of(template)
    cdef const uint8_t* tails = bytes_of(tail)
    for number in range(count):
        memcpy(to, templates, template_size)
        size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
        set_fields(&known, to, size)
        if has_id:
            store_be32(to + id_at, id_)
            id_ += 1
        if has_tag:
            store_be64(to + tag_at, tag)
            tag += 1
        to += template_size
        memcpy(to, bytes_of(data) + at + begins[number], size)
        to += size
        memcpy(to, tails, tail_size)
        to += tail_size
    return deliveries


cdef struct Template:
    const uint8_t* begin
    Py_ssize_t size


def write_mixed(
    templates not None,
    bytes kinds not None,
    Py_ssize_t tag_at,
    first_tag,
    tuple fields not None,
    bytes data not None,
    Py_ssize_t at,
    bytes starts not None,
    Py_ssize_t gap,
    Py_ssize_t first,
    Py_ssize_t count,
    bytes tail not None,
):
    cdef Py_ssize_t template_count = len(templates), tail_size = len(tail), number, size, shift
    cdef const uint32_t* begins = starts_of(starts, first, count)
    cdef int64_t total = -1 if begins == NULL else size_of_bodies(begins, len(data), at, gap, count)
    cdef const uint8_t* kind = bytes_of(kinds)
    cdef Fields known
    cdef Template each[256]
    cdef bytes template
    cdef bint is_plain = total >= 0 and 0 < template_count <= 256 and len(kinds) >= first + count and tag_at >= 0
    for number in range(template_count if is_plain else 0):
        template = templates[number]
        each[number].begin, each[number].size = bytes_of(template), len(template)
        if tag_at > each[number].size - TAG_BYTES or each[number].size < TAG_BYTES:
            is_plain = False
    if is_plain:
        is_plain = read_fields(&known, fields, each[0].size)
    for number in range(template_count if is_plain and known.count else 0):
        if known.at[0] + each[number].size - each[0].size < 0:
            is_plain = False
    for number in range(first, first + count if is_plain else first):
        if kind[number] >= template_count:
            is_plain = False
    if not is_plain or not 0 <= first_tag <= <uint64_t>UINT64_MAX - <uint64_t>count:
        return _plain.write_mixed(
            templates, kinds, tag_at, first_tag, fields, data, at, starts, gap, first, count, tail
        )
    cdef uint64_t tag = first_tag
    for number in range(count):
        size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
        if known.count and not fits(&known, size):
            raise OverflowError(f"no size field for {size} bytes")
        total += each[kind[first + number]].size + tail_size
    cdef bytes deliveries = new_bytes(total, 1)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(deliveries)
    cdef const uint8_t* tails = bytes_of(tail)
    for number in range(count):
        shift = each[kind[first + number]].size
        memcpy(to, each[kind[first + number]].begin, shift)
        size = <Py_ssize_t>(begins[number + 1] - begins[number]) - gap
        set_fields(&known, to + shift - each[0].size, size)
        store_be64(to + tag_at, tag)
        tag += 1
        to += shift
        memcpy(to, bytes_of(data) + at + begins[number], size)
        to += size
        memcpy(to, tails, tail_size)
        to += tail_size
    return deliveries


cdef inline bytes new_bytes(Py_ssize_t size, Py_ssize_t count):
    """Bytes to be filled: `count` times `size` of them."""
    if count and size > PY_SSIZE_T_MAX // count:
        raise MemoryError
    return PyBytes_FromStringAndSize(NULL, size * count)
