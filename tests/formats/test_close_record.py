"""The files rhm/CLOSED and rhm/SYNCED: their layouts, round trips, and hostile bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import independent_crc32c
from qstore.formats.rhm.close_record import (
    MAX_JOURNALS,
    ClosedJournal,
    ClosedStore,
    CloseRecordError,
    SyncedJournal,
    SyncedStore,
    decode_close_record,
    decode_synced,
    encode_close_record,
    encode_synced,
)

STORE_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
PREPARED = ClosedJournal(0, 0, 1, 0, 0)
ORDERS = ClosedJournal(queue_id=3, journal_id=5, incarnation=2, flush=0x100000007, messages=314)
BYTES = bytes.fromhex(
    "52484d434c4f5345 01000000 02000000 00112233445566778899aabbccddeeff"
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000 01000000 00000000"
    "0300000000000000 0500000000000000 0700000001000000 3a01000000000000 02000000 00000000"
)
CONTENT = BYTES + independent_crc32c(BYTES).to_bytes(4, "little")

U64 = st.integers(0, 2**64 - 1)
journals = st.lists(st.builds(ClosedJournal, U64, U64, st.integers(0, 2**32 - 1), U64, U64), max_size=20)


def test_the_layout_page() -> None:
    assert encode_close_record(STORE_ID, [ORDERS, PREPARED]) == CONTENT
    assert decode_close_record(CONTENT) == ClosedStore(STORE_ID, (PREPARED, ORDERS))


@given(st.uuids(), journals)
def test_round_trip(store_id: UUID, entries: list[ClosedJournal]) -> None:
    found = decode_close_record(encode_close_record(store_id, entries))
    assert found.store_id == store_id
    assert sorted(found.journals) == sorted(entries)


@given(journals, st.data())
def test_every_flipped_bit_and_every_cut_is_noticed(entries: list[ClosedJournal], data: st.DataObject) -> None:
    whole = encode_close_record(STORE_ID, entries)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    for content in (bytes(flipped), whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"):
        with pytest.raises(CloseRecordError):
            decode_close_record(content)


@given(st.binary(max_size=200))
def test_garbage(content: bytes) -> None:
    with pytest.raises(CloseRecordError):
        decode_close_record(content)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "0 bytes are too few"),
        (bytes(len(CONTENT)), "it begins with"),
        (CONTENT[:8] + b"\2" + CONTENT[9:], "unknown layout version 2; this software reads version 1"),
        (CONTENT[:12] + b"\3" + CONTENT[13:], "116 bytes are not the size of a file with 3 journals"),
        (CONTENT[:-1] + b"\0", "the checksum does not match"),
    ],
)
def test_invalid_close_record_is_refused_with_the_reason(content: bytes, what: str) -> None:
    with pytest.raises(CloseRecordError, match=what):
        decode_close_record(content)


def test_more_journals_than_any_store_has() -> None:
    with pytest.raises(ValueError, match="more than a CLOSED file can have"):
        encode_close_record(STORE_ID, [PREPARED] * (MAX_JOURNALS + 1))


# ---- SYNCED ----

LIST = SyncedJournal(0, 0, 1, 0)
SYNCED_ORDERS = SyncedJournal(queue_id=3, journal_id=5, incarnation=2, flush=0x100000007)
SYNCED_BYTES = bytes.fromhex(
    "52484d53594e4344 01000000 02000000 00112233445566778899aabbccddeeff 2a00000000000000"
    "0000000000000000 0000000000000000 0000000000000000 01000000 00000000"
    "0300000000000000 0500000000000000 0700000001000000 02000000 00000000"
)
SYNCED = SYNCED_BYTES + independent_crc32c(SYNCED_BYTES).to_bytes(4, "little")

bounds = st.lists(st.builds(SyncedJournal, U64, U64, st.integers(0, 2**32 - 1), U64), max_size=20)


def test_layout_of_the_synced_record() -> None:
    assert encode_synced(STORE_ID, 42, [SYNCED_ORDERS, LIST]) == SYNCED
    assert decode_synced(SYNCED) == SyncedStore(STORE_ID, 42, (LIST, SYNCED_ORDERS))


@given(st.uuids(), U64, bounds)
def test_round_trip_of_the_synced_record(store_id: UUID, batch: int, entries: list[SyncedJournal]) -> None:
    found = decode_synced(encode_synced(store_id, batch, entries))
    assert (found.store_id, found.batch, sorted(found.journals)) == (store_id, batch, sorted(entries))


def test_every_flipped_bit_of_the_synced_record_is_noticed() -> None:
    for bit in range(8 * len(SYNCED)):
        flipped = bytearray(SYNCED)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CloseRecordError):
            decode_synced(bytes(flipped))
    for size in range(len(SYNCED)):
        with pytest.raises(CloseRecordError):
            decode_synced(SYNCED[:size])


def test_neither_file_is_taken_for_the_other() -> None:
    with pytest.raises(CloseRecordError, match="it begins with b'RHMSYNCD' and not with b'RHMCLOSE'"):
        decode_close_record(SYNCED)
    with pytest.raises(CloseRecordError, match="it begins with b'RHMCLOSE' and not with b'RHMSYNCD'"):
        decode_synced(CONTENT)
