"""The catalogue's keys and values: the layout page byte by byte, round trips, and hostile bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats import catalogue
from qstore.formats.catalogue import (
    NUMBERED_KINDS,
    RID_BLOCK,
    BindingEntry,
    CatalogueFormatError,
    Census,
    Entry,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    Meta,
    NextId,
    QueueEntry,
    RidReservation,
    decode,
    encode,
)
from qstore.formats.checksum import independent_crc32c

ids = st.integers(1, 2**64 - 1)
counts = st.integers(0, 2**64 - 1)
records = st.binary(max_size=200)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Meta, st.just(2), st.uuids()),
    st.builds(Census, counts, counts, counts, counts, counts),
    st.builds(RidReservation, st.integers(0, 2**44 - 1).map(lambda block: block * RID_BLOCK)),
    st.builds(NextId, st.sampled_from(NUMBERED_KINDS), ids),
    st.builds(QueueEntry, ids, ids, st.integers(0, 2**32 - 1), records),
    st.builds(ExchangeEntry, ids, records),
    st.builds(BindingEntry, ids, ids, ids, records),
    st.builds(GeneralEntry, ids, records),
)

STORE_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
PAGE = [
    (Meta(2, STORE_ID), "6d", "00000002 00112233445566778899aabbccddeeff"),
    (
        Census(7, 1, 2, 3, 4),
        "63",
        "0000000000000007 0000000000000001 0000000000000002 0000000000000003 0000000000000004",
    ),
    (RidReservation(3 << 20), "72", "0000000000300000"),
    (NextId(Kind.BINDING, 9), "69 62", "0000000000000009"),
    (QueueEntry(2, 5, 1, b"record"), "71 0000000000000002", "0000000000000005 00000001 7265636f7264"),
    (ExchangeEntry(0x0102, b"xy"), "78 0000000000000102", "7879"),
    (BindingEntry(1, 2, 3, b""), "62 0000000000000001 0000000000000002 0000000000000003", ""),
    (GeneralEntry(255, b"\0"), "67 00000000000000ff", "00"),
]


def forged(key: bytes, body: bytes) -> bytes:
    """A value whose checksum is right."""
    return independent_crc32c(body, independent_crc32c(key)).to_bytes(4, "big") + body


@pytest.mark.parametrize(("entry", "key_hex", "body_hex"), PAGE)
def test_the_layout_page(entry: Entry, key_hex: str, body_hex: str) -> None:
    key = bytes.fromhex(key_hex)
    value = forged(key, b"\x01" + bytes.fromhex(body_hex))
    assert encode(entry) == (key, value)
    assert decode(key, value) == entry


@given(entries)
def test_round_trip(entry: Entry) -> None:
    again = decode(*encode(entry))
    assert again == entry
    assert type(again) is type(entry)


@given(st.lists(st.tuples(ids, ids, ids), max_size=20))
def test_keys_sort_as_their_numbers_do(numbers: list[tuple[int, int, int]]) -> None:
    keys = sorted(encode(BindingEntry(*number, b""))[0] for number in numbers)
    assert [decode(key, encode_at(key))[:3] for key in keys] == sorted(numbers)


def encode_at(key: bytes) -> bytes:
    return forged(key, b"\x01")


@given(st.integers(1, 2**64 - 2))
def test_the_bindings_of_one_exchange_have_its_prefix(exchange_id: int) -> None:
    prefix = catalogue.bindings_prefix(exchange_id)
    assert encode(BindingEntry(exchange_id, 1, 1, b""))[0].startswith(prefix)
    assert not encode(BindingEntry(exchange_id + 1, 1, 1, b""))[0].startswith(prefix)


@given(entries, st.data())
def test_every_flipped_bit_is_noticed(entry: Entry, data: st.DataObject) -> None:
    key, value = encode(entry)
    bit = data.draw(st.integers(0, 8 * (len(key) + len(value)) - 1))
    both = bytearray(key + value)
    both[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CatalogueFormatError):
        decode(bytes(both[: len(key)]), bytes(both[len(key) :]))


@given(entries, st.data())
def test_every_cut_is_noticed(entry: Entry, data: st.DataObject) -> None:
    key, value = encode(entry)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CatalogueFormatError):
        decode(key, value[:cut])


@given(entries, entries)
def test_a_value_under_another_key_is_noticed(one: Entry, other: Entry) -> None:
    key, value = encode(one)
    other_key, _ = encode(other)
    if key != other_key:
        with pytest.raises(CatalogueFormatError):
            decode(other_key, value)


@given(st.binary(max_size=40), st.binary(max_size=80))
def test_any_bytes_raise_only_the_formats_error(key: bytes, body: bytes) -> None:
    for value in (body, forged(key, body), forged(key, b"\x01" + body)):
        try:
            entry = decode(key, value)
        except CatalogueFormatError:
            continue
        assert encode(entry) == (key, value)


@pytest.mark.parametrize(
    ("key", "body", "what"),
    [
        (b"", b"\x01", "an empty key"),
        (b"z", b"\x01", "unknown key kind 0x7a"),
        (b"m", b"\x01" + (3).to_bytes(4, "big") + bytes(16), "unknown format version 3"),
        (b"x" + bytes(8), b"\x01", "ids start at 1"),
        (b"x" + bytes(7), b"\x01", "key has 8 bytes instead of 9"),
        (b"iq", b"\x01" + bytes(8), "ids start at 1"),
        (b"im", b"\x01" + bytes(7) + b"\x01", "kind byte 0x6d has no sequence of ids"),
        (b"r", b"\x01" + bytes(7) + b"\x01", "not a multiple of 1048576"),
        (b"r", b"\x01" + bytes(9), "cannot have 14 bytes"),
        (b"x" + bytes(7) + b"\x01", b"\x02", "unknown exchange value version 2; this software reads version 1"),
    ],
)
def test_invalid_entry_is_refused_with_the_reason(key: bytes, body: bytes, what: str) -> None:
    with pytest.raises(CatalogueFormatError, match=what):
        decode(key, forged(key, body))


@pytest.mark.parametrize(
    "entry",
    [
        Meta(1, STORE_ID),
        RidReservation(5),
        NextId(Kind.META, 1),
        QueueEntry(0, 1, 0, b""),
        QueueEntry(1, 1, 2**32, b""),
        ExchangeEntry(2**64, b""),
        GeneralEntry(-1, b""),
        GeneralEntry(1, bytes(catalogue.MAX_RECORD + 1)),
    ],
)
def test_entries_that_have_no_room_are_refused(entry: Entry) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(entry)


def test_a_record_over_the_limit_is_refused() -> None:
    key = b"g" + (1).to_bytes(8, "big")
    with pytest.raises(CatalogueFormatError, match="cannot have 16,777,222 bytes"):
        decode(key, forged(key, b"\x01" + bytes(catalogue.MAX_RECORD + 1)))
