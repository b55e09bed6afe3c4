"""The second copy of the catalogue: its layout byte by byte, torn and damaged ends, hostile bytes."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import independent_crc32c
from qstore.formats.topology_copy import (
    SECTOR,
    Tail,
    TopologyFormatError,
    decode_topology,
    encode_batch,
    encode_snapshot,
)

STORE_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER_ID = UUID(int=1)
changes = st.dictionaries(st.binary(min_size=1, max_size=30), st.none() | st.binary(max_size=900), max_size=5)


def three_batches() -> bytes:
    """A snapshot after batch 5, and two more."""
    return (
        encode_snapshot(STORE_ID, 5, {b"a": b"1", b"b": b"2"})
        + encode_batch(STORE_ID, 6, {b"a": None, b"c": b"3" * 600})
        + encode_batch(STORE_ID, 7, {b"b": b"4", b"d": b""})
    )


def test_the_layout_is_that_of_the_page() -> None:
    content = encode_snapshot(STORE_ID, 5, {b"key": b"value"})
    head = b"QSTOPOLO" + (1).to_bytes(4, "little") + STORE_ID.bytes
    header = head + independent_crc32c(head).to_bytes(4, "little")
    body = bytes.fromhex("0300 05000000") + b"keyvalue"
    fields = (5).to_bytes(8, "little") + len(body).to_bytes(4, "little") + bytes((1, 0, 0, 0))
    crc = independent_crc32c(STORE_ID.bytes + fields + body).to_bytes(4, "little")
    assert content == header.ljust(512, b"\0") + (b"QSTR" + crc + fields + body).ljust(512, b"\0")
    batch = encode_batch(STORE_ID, 6, {b"key": None})
    assert batch[12 + 8 : 24] == bytes((2, 0, 0, 0))[:4]
    assert batch[24 : 24 + 9] == bytes.fromhex("0300 ffffffff") + b"key"


def test_batches_are_applied_in_sequence() -> None:
    copy = decode_topology(three_batches() + bytes(4096))
    assert copy == (STORE_ID, 7, {b"b": b"4", b"c": b"3" * 600, b"d": b""}, len(three_batches()), Tail.CLEAN, 7)


@given(st.dictionaries(st.binary(min_size=1, max_size=30), st.binary(max_size=900)), st.lists(changes, max_size=6))
def test_written_copy_is_read_back(entries: dict[bytes, bytes], batches: list[dict[bytes, bytes | None]]) -> None:
    content, expected = encode_snapshot(STORE_ID, 1, entries), dict(entries)
    for number, batch in enumerate(batches, 2):
        content += encode_batch(STORE_ID, number, batch)
        for key, value in batch.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
    copy = decode_topology(content)
    assert (copy.entries, copy.batch, copy.tail) == (expected, 1 + len(batches), Tail.CLEAN)


@pytest.mark.parametrize("seed", range(30))
def test_a_torn_last_record_is_distinguished_from_damage_before_it(seed: int) -> None:
    """Of each sector of the last record, what was there before or what was written."""
    source, whole = random.Random(seed), three_batches() + encode_batch(STORE_ID, 8, {b"e": bytes([5]) * 2000})
    begin = len(three_batches())
    torn = bytearray(whole + bytes(1024))
    sectors = range(begin, len(whole), SECTOR)
    for at in source.sample(sectors, source.randint(1, len(sectors) - 1)):
        torn[at : at + SECTOR] = bytes(SECTOR)
    copy = decode_topology(bytes(torn))
    assert (copy.batch, copy.end, copy.tail, copy.last_batch) == (7, begin, Tail.TORN, 7)


@pytest.mark.parametrize("at", [SECTOR + 30, 2 * SECTOR + 40, 3 * SECTOR + 30])
def test_a_damaged_record_before_the_last_is_damage(at: int) -> None:
    content = bytearray(three_batches() + encode_batch(STORE_ID, 8, {b"e": b"5"}))
    content[at] ^= 1
    copy = decode_topology(bytes(content))
    assert (copy.tail, copy.last_batch) == (Tail.DAMAGED, 8)
    assert copy.batch == (0 if at < 2 * SECTOR else 5)


def test_a_record_that_was_taken_out_is_missed() -> None:
    content = three_batches() + encode_batch(STORE_ID, 9, {b"e": b"5"})
    copy = decode_topology(content)
    assert (copy.batch, copy.tail, copy.last_batch) == (7, Tail.DAMAGED, 9)


def test_records_of_another_store_are_none() -> None:
    copy = decode_topology(three_batches() + encode_batch(OTHER_ID, 8, {b"e": b"5"}))
    assert (copy.batch, copy.tail) == (7, Tail.TORN)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "0 bytes are too few"),
        (b"\0" * 512, "magic"),
        (three_batches()[:9] + b"\1" + three_batches()[10:], "the header fails its checksum"),
    ],
)
def test_invalid_copy_is_refused(content: bytes, what: str) -> None:
    with pytest.raises(TopologyFormatError, match=what):
        decode_topology(content)


def test_a_later_format_is_named() -> None:
    head = b"QSTOPOLO" + (2).to_bytes(4, "little") + STORE_ID.bytes
    with pytest.raises(TopologyFormatError, match="unknown format version 2"):
        decode_topology(head + independent_crc32c(head).to_bytes(4, "little"))


def test_oversized_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_batch(STORE_ID, 1 << 64, {})
    with pytest.raises(ValueError, match="does not fit"):
        encode_batch(STORE_ID, 1, {bytes(1 << 16): b""})


@given(st.binary(max_size=2000), st.integers(0, 2560), st.integers(0, 2**32))
def test_any_bytes_give_a_copy_or_the_error(noise: bytes, at: int, seed: int) -> None:
    """Hostile bytes in place of a part of it, or a part missing."""
    content = bytearray(three_batches())
    content[at : at + len(noise)] = noise
    del content[random.Random(seed).randint(0, len(content)) :]
    try:
        copy = decode_topology(bytes(content))
    except TopologyFormatError:
        return
    assert copy.batch <= copy.last_batch
