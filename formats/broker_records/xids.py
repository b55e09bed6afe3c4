"""Transaction ids in records: distributed, local, or opaque (`formats/broker_records/README.md`, 3).

An id in neither form is opaque: a broker of another kind may have written it, and every xid must be displayable.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from qstore.formats.amqp_0_10.structs import XID, encode_struct, known_flags
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_uuid

#: Code, flags and format of a distributed transaction's id.
_DTX_HEAD: Final = struct.Struct(">HHI")
#: Counter and UUID of a local transaction's id.
_LOCAL: Final = struct.Struct("<Q16s")


class Xid(NamedTuple):
    """A transaction id.

    Attributes:
        kind: "dtx" (distributed), "local" or "opaque".
        raw: its bytes in records.
        format, global_id, branch_id: of a distributed transaction, else None.
        counter: of a local transaction, else None.
        uuid: canonical text of the UUID of the process that ran a local transaction, else None.
    """

    kind: Literal["dtx", "local", "opaque"]
    raw: bytes
    format: int | None = None
    global_id: bytes | None = None
    branch_id: bytes | None = None
    counter: int | None = None
    uuid: str | None = None


def decode_xid(xid: bytes) -> Xid:
    """Decode a transaction id. Never raises: bytes in neither form are "opaque".

    Bytes in both forms are decoded as a distributed id; of local ones only that with counter 459,782 and a matching
    UUID is ambiguous.
    """
    distributed = _decode_dtx(xid)
    if distributed is not None:
        return distributed
    if len(xid) == _LOCAL.size:
        counter, process = _LOCAL.unpack(xid)
        return Xid("local", xid, counter=counter, uuid=plain_uuid(process))
    return Xid("opaque", xid)


def _decode_dtx(xid: bytes) -> Xid | None:
    if len(xid) < _DTX_HEAD.size + 2:
        return None
    code, flags, format_code = _DTX_HEAD.unpack_from(xid)
    if code != XID.code or flags != known_flags(XID):
        return None
    global_start = _DTX_HEAD.size + 1
    global_end = global_start + xid[global_start - 1]
    branch_start = global_end + 1
    if branch_start > len(xid) or branch_start + xid[global_end] != len(xid):
        return None
    return Xid("dtx", xid, format_code, xid[global_start:global_end], xid[branch_start:])


def encode_dtx_xid(format_code: int, global_id: bytes, branch_id: bytes) -> bytes:
    """The id of a distributed transaction as in records.

    Raises:
        BrokerRecordError: the format is not a u32, or an id is longer than 255 bytes.
    """
    fields = {"format": format_code, "global_id": global_id, "branch_id": branch_id}
    try:
        return encode_struct(XID, fields)[XID.size_width :]
    except Amqp010Error as error:
        raise BrokerRecordError(error.what) from error


def encode_local_xid(counter: int, process: bytes) -> bytes:
    """The id of a local transaction: the broker's counter, and the 16 bytes of the UUID that it created at its start.

    Raises:
        BrokerRecordError: the counter is not a u64.
    """
    try:
        return _LOCAL.pack(counter, process)
    except struct.error:
        raise BrokerRecordError(f"{counter} is not a 64-bit counter") from None
