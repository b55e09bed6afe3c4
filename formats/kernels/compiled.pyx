# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernels in Cython. `plain` says what they do, and is called with what is refused here: it raises the error."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import qstore.formats.kernels.plain as _plain
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import HEADER_2
from qstore.formats.rhm.records import PADDING, SALT, TAIL


cdef extern from "kernels.h":
    void crc32c_init(int uses_instruction)
    uint32_t crc32c(uint32_t crc, const uint8_t* at, size_t size) noexcept
    void store_le32(uint8_t* at, uint32_t value) noexcept
    void store_le64(uint8_t* at, uint64_t value) noexcept
    void store_be64(uint8_t* at, uint64_t value) noexcept


cdef enum:
    BLOCK = 128
    HEADER = 32
    TAIL_BYTES = 12
    SALT_BYTES = 8
    TAG_BYTES = 8
    PADDING_BYTE = 0xFF

cdef Py_ssize_t MAX_COUNT = _plain.MAX_COUNT

assert (BLOCK, HEADER_2.format, TAIL.format, SALT.format, PADDING[0]) == (
    BLOCK_SIZE, "<QQIIQ", "<IQ", "<Q", PADDING_BYTE
)
assert (HEADER, TAIL_BYTES, SALT_BYTES) == (HEADER_2.size, TAIL.size, SALT.size)


def use_instruction(bint uses):
    """Whether CRC-32C is calculated by the processor's instruction, if it has one; a test wants it both ways."""
    crc32c_init(uses)


use_instruction(True)


cdef inline const uint8_t* bytes_of(bytes data) noexcept:
    return <const uint8_t*>PyBytes_AS_STRING(data)


cdef inline bint is_run(
    Py_ssize_t available, Py_ssize_t at, Py_ssize_t stride, Py_ssize_t size, Py_ssize_t count
) noexcept:
    """Whether the bodies are in a buffer of so many bytes; without any sum that could overflow."""
    if at < 0 or size < 0 or stride < 1 or not 0 <= count <= MAX_COUNT:
        return False
    if count == 0:
        return True
    return at <= available and size <= available - at and count - 1 <= (available - at - size) // stride


cdef inline void write_header(
    uint8_t* to, uint64_t first_word, uint64_t rid, uint32_t low_number, uint64_t datum
) noexcept:
    store_le64(to, first_word)
    store_le64(to + 8, rid)
    store_le32(to + 16, 0)
    store_le32(to + 20, low_number)
    store_le64(to + 24, datum)


def count_alike(
    bytes data not None, Py_ssize_t at, Py_ssize_t end, bytes prefix not None, Py_ssize_t stride, Py_ssize_t end_byte
):
    cdef Py_ssize_t size = len(prefix), place = at
    if not 0 <= at <= end <= len(data) or stride < 1 or size > stride or not 0 <= end_byte <= 0xFF:
        return _plain.count_alike(data, at, end, prefix, stride, end_byte)
    cdef const uint8_t* source = bytes_of(data)
    cdef const uint8_t* wanted = bytes_of(prefix)
    while stride <= end - place:
        if memcmp(source + place, wanted, size) != 0 or (end_byte and source[place + stride - 1] != end_byte):
            break
        place += stride
    return (place - at) // stride


def encode_records(
    uint64_t first_word,
    uint64_t rid,
    uint32_t low_number,
    bytes head not None,
    uint32_t head_crc,
    bytes data not None,
    Py_ssize_t at,
    Py_ssize_t stride,
    Py_ssize_t size,
    Py_ssize_t count,
    bytes salt not None,
):
    cdef Py_ssize_t head_size = len(head)
    if not is_run(len(data), at, stride, size, count) or rid > UINT64_MAX - <uint64_t>count or len(salt) != SALT_BYTES:
        return _plain.encode_records(first_word, rid, low_number, head, head_crc, data, at, stride, size, count, salt)
    cdef Py_ssize_t stored = head_size + size, tail = HEADER + stored, end = tail + TAIL_BYTES
    cdef Py_ssize_t record = (end + BLOCK - 1) // BLOCK * BLOCK
    cdef bytes records = new_bytes(record, count)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(records)
    cdef const uint8_t* source = bytes_of(data) + at
    cdef const uint8_t* heads = bytes_of(head)
    cdef const uint8_t* salts = bytes_of(salt)
    cdef uint32_t crc
    for _ in range(count):
        write_header(to, first_word, rid, low_number, stored)
        memcpy(to + HEADER, heads, head_size)
        memcpy(to + HEADER + head_size, source, size)
        crc = crc32c(head_crc, source, size)
        crc = crc32c(crc, to, HEADER)
        store_le32(to + tail, crc32c(crc, salts, SALT_BYTES))
        store_le64(to + tail + 4, rid)
        memset(to + end, PADDING_BYTE, record - end)
        to += record
        source += stride
        rid += 1
    return records


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


def write_deliveries(
    bytes template not None,
    Py_ssize_t tag_at,
    first_tag,
    bytes data not None,
    Py_ssize_t at,
    Py_ssize_t stride,
    Py_ssize_t size,
    Py_ssize_t count,
    bytes tail not None,
):
    cdef Py_ssize_t template_size = len(template), tail_size = len(tail)
    cdef bint has_tag = tag_at >= 0
    if not is_run(len(data), at, stride, size, count) or (
        has_tag and (template_size < TAG_BYTES or tag_at > template_size - TAG_BYTES)
    ):
        return _plain.write_deliveries(template, tag_at, first_tag, data, at, stride, size, count, tail)
    cdef uint64_t tag = first_tag if has_tag else 0
    if tag > UINT64_MAX - <uint64_t>count:
        return _plain.write_deliveries(template, tag_at, first_tag, data, at, stride, size, count, tail)
    cdef bytes deliveries = new_bytes(template_size + size + tail_size, count)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(deliveries)
    cdef const uint8_t* source = bytes_of(data) + at
    cdef const uint8_t* templates = bytes_of(template)
    cdef const uint8_t* tails = bytes_of(tail)
    for _ in range(count):
        memcpy(to, templates, template_size)
        if has_tag:
            store_be64(to + tag_at, tag)
            tag += 1
        to += template_size
        memcpy(to, source, size)
        to += size
        source += stride
        memcpy(to, tails, tail_size)
        to += tail_size
    return deliveries


cdef inline bytes new_bytes(Py_ssize_t size, Py_ssize_t count):
    """Bytes to be filled: `count` times `size` of them."""
    if count and size > PY_SSIZE_T_MAX // count:
        raise MemoryError
    return PyBytes_FromStringAndSize(NULL, size * count)
