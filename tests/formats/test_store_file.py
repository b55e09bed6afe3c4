"""The file rhm/STORE: round trips, the one way to write it, and hostile bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.store_file import MAX_SIZE, StoreFile, StoreFileError, decode, encode

CONTENT = StoreFile(
    store_id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
    clean_close=True,
    marked_at=datetime(2031, 5, 9, 17, 4, 33, 250, UTC),
    software_version="0.1.0",
)
TEXT = b"""{
  "clean_close": true,
  "crc32c": "a9f200fd",
  "format": "qstore",
  "marked_at": "2031-05-09T17:04:33.000250Z",
  "software_version": "0.1.0",
  "store_id": "00112233-4455-6677-8899-aabbccddeeff",
  "version": 2
}
"""
RECORDED = b"""{
  "clean_close": true,
  "close_record": true,
  "crc32c": "cffe8839",
  "format": "qstore",
  "marked_at": "2031-05-09T17:04:33.000250Z",
  "software_version": "0.1.0",
  "store_id": "00112233-4455-6677-8899-aabbccddeeff",
  "version": 2
}
"""
contents = st.builds(
    lambda recorded, *rest: StoreFile(*rest, close_record=recorded and rest[1]),
    st.booleans(),
    st.uuids(),
    st.booleans(),
    st.datetimes(timezones=st.just(UTC)),
    st.from_regex(r"\A[A-Za-z0-9.+_-]{1,64}\Z"),
)


def test_the_layout_page() -> None:
    assert encode(CONTENT) == TEXT
    assert decode(TEXT) == CONTENT
    assert encode(CONTENT._replace(close_record=True)) == RECORDED
    assert decode(RECORDED) == CONTENT._replace(close_record=True)
    hosts = CONTENT._replace(has_hosts=True)
    assert json.loads(encode(hosts)) == {
        **json.loads(TEXT),
        "version": 3,
        "crc32c": json.loads(encode(hosts))["crc32c"],
    }
    assert decode(encode(hosts)) == hosts


@pytest.mark.parametrize(("old", "new"), [(b'record": true', b'record": false'), (b'_close": true', b'_close": false')])
def test_only_a_clean_close_is_recorded(old: bytes, new: bytes) -> None:
    with pytest.raises(StoreFileError, match="close_record can only be true, in a store that was closed cleanly"):
        decode(RECORDED.replace(old, new))


@given(contents)
def test_round_trip(content: StoreFile) -> None:
    data = encode(content)
    assert len(data) < MAX_SIZE
    assert decode(data) == content


def test_times_are_written_as_utc() -> None:
    elsewhere = CONTENT.marked_at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert encode(StoreFile(CONTENT.store_id, True, elsewhere, "0.1.0")) == TEXT


@given(contents, st.data())
def test_every_flipped_bit_and_every_cut_is_noticed(content: StoreFile, data: st.DataObject) -> None:
    whole = encode(content)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    for bad in (bytes(flipped), whole[: bit // 8]):
        with pytest.raises(StoreFileError):
            decode(bad)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.binary(max_size=300))
def test_any_bytes_raise_only_the_formats_error(data: bytes) -> None:
    with pytest.raises(StoreFileError):
        decode(data)


@given(st.sampled_from(TEXT.splitlines()[1:-1]), json_values)
def test_any_json_value_in_any_place_raises_only_the_formats_error(line: bytes, value: object) -> None:
    key, comma, _ = line.partition(b": ")
    with pytest.raises(StoreFileError):
        decode(TEXT.replace(line, key + comma + b" " + json.dumps(value).encode() + b"," * line.endswith(b",")))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"true", b"false", "the checksum does not match"),
        (b'"qstore"', b'"other"', "the format is 'other' and not 'qstore'"),
        (b": 2\n", b": 4\n", "unknown store format version 4; this software reads versions 2 and 3"),
        (b": 2\n", b": 2.0\n", "unknown store format version 2.0"),
        (b": 2\n", b": true\n", "unknown store format version True"),
        (b'"crc32c"', b'"crc"', "missing or unexpected keys: 'crc, crc32c'"),
        (b"true", b"1", "clean_close is 1 and not a bool"),
        (b'"0.1.0"', b'"a b"', "software_version cannot be 'a b'"),
        (b'"0.1.0"', b"[" * 900 + b"]" * 900, "software_version is a list"),
        (b"250Z", b"250", "marked_at is not UTC"),
        (b"250Z", b"250+00:00", "not in the canonical form"),
        (b"2031-05", b"2031-15", "store_id or marked_at is malformed"),
        (b"00112233-", b"00112233", "not in the canonical form"),
        (b"eeff", b"eegg", "store_id or marked_at is malformed"),
        (b"}\n", b"}", "not in the canonical form"),
        (b'  "clean', b'  "version": 2,\n  "clean', "not in the canonical form"),
        (b"{", b"[" * 2000, "not JSON"),
        (b"}\n", b"}\n" + b" " * MAX_SIZE, "over the limit of 4,096"),
        (b"qstore", b"\xff", "not JSON"),
    ],
)
def test_invalid_store_file_is_refused_with_the_reason(old: bytes, new: bytes, what: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(StoreFileError, match=what):
        decode(TEXT.replace(old, new))


@pytest.mark.parametrize(
    "content",
    [
        StoreFile(CONTENT.store_id, True, CONTENT.marked_at.replace(tzinfo=None), "0.1.0"),
        StoreFile(CONTENT.store_id, True, CONTENT.marked_at, ""),
        StoreFile(CONTENT.store_id, True, CONTENT.marked_at, "x" * 65),
        StoreFile(CONTENT.store_id, True, CONTENT.marked_at, "0.1\n"),
        StoreFile(CONTENT.store_id, False, CONTENT.marked_at, "0.1.0", close_record=True),
    ],
)
def test_contents_that_cannot_be_written_are_refused(content: StoreFile) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(content)
