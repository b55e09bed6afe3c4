"""Transaction ids: qpidd's own bytes, round trips, and that no bytes are refused."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.broker_records.xids import Xid, decode_xid, encode_dtx_xid, encode_local_xid
from qstore.formats.errors import BrokerRecordError


def test_the_vectors() -> None:
    distributed = bytes.fromhex("0604070000000009036769640362 6964".replace(" ", ""))
    assert decode_xid(distributed) == Xid("dtx", distributed, 9, b"gid", b"bid")
    assert encode_dtx_xid(9, b"gid", b"bid") == distributed
    local = bytes.fromhex("0100000000000000a1615f9fc8b4485ba194ea047a430e7c")
    process = uuid.UUID("a1615f9f-c8b4-485b-a194-ea047a430e7c")
    assert decode_xid(local) == Xid("local", local, counter=1, uuid=str(process))
    assert encode_local_xid(1, process.bytes) == local


@given(st.integers(0, 2**32 - 1), st.binary(max_size=255), st.binary(max_size=255))
def test_distributed_ids_come_back(format_code: int, global_id: bytes, branch_id: bytes) -> None:
    raw = encode_dtx_xid(format_code, global_id, branch_id)
    assert decode_xid(raw) == Xid("dtx", raw, format_code, global_id, branch_id)


@given(st.integers(0, 2**64 - 1).filter(lambda counter: counter != 459_782), st.uuids())
def test_local_ids_come_back(counter: int, process: uuid.UUID) -> None:
    raw = encode_local_xid(counter, process.bytes)
    assert decode_xid(raw) == Xid("local", raw, counter=counter, uuid=str(process))


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: b"\x06\x04\x07\x00" + rest))
def test_any_bytes_have_a_kind(raw: bytes) -> None:
    xid = decode_xid(raw)
    assert xid.raw == raw
    if xid.kind == "dtx":
        assert xid.format is not None
        assert xid.global_id is not None
        assert xid.branch_id is not None
        assert encode_dtx_xid(xid.format, xid.global_id, xid.branch_id) == raw
    elif xid.kind == "local":
        assert xid.counter is not None
        assert encode_local_xid(xid.counter, uuid.UUID(xid.uuid).bytes) == raw
    else:
        assert xid == Xid("opaque", raw)


@pytest.mark.parametrize("extra", [b"", b"\0"])
def test_a_distributed_id_with_other_flags_or_bytes_after_it_is_opaque(extra: bytes) -> None:
    flags = b"\x07\x00" if extra else b"\x03\x00"
    raw = b"\x06\x04" + flags + b"\0\0\0\x09\x03gid\x03bid" + extra
    assert decode_xid(raw) == Xid("opaque", raw)


def test_oversized_xid_is_refused() -> None:
    with pytest.raises(BrokerRecordError):
        encode_dtx_xid(2**32, b"", b"")
    with pytest.raises(BrokerRecordError):
        encode_dtx_xid(0, b"g" * 256, b"")
    with pytest.raises(BrokerRecordError):
        encode_local_xid(-1, bytes(16))
