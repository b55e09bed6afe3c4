"""Records as bytes, sound and broken, and quarantines that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.qls import records as qls
from qstore.formats.rhm import records as rhm
from qstore.formats.rhm.records import Kind
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.store.writable_disk import OsWritableDisk

SALT: Final = 0x1122334455667788
VERSIONS: Final = ("version 1", "version 2", "linear")


def message(body: bytes, key: str = "orders") -> bytes:
    """The data of a message's enqueue."""
    return encode_message(
        body,
        delivery_properties={"exchange": "", "routing_key": key, "delivery_mode": 2},
        message_properties={"content_length": len(body), "content_type": "text/plain"},
    )


def enqueue(version: str, data: bytes, rid: int = 5, *, xid: bytes = b"", flags: int = 0) -> bytes:
    """An enqueue record."""
    if version == "linear":
        return qls.encode_record(qls.RecordHeader(Kind.ENQUEUE, flags, 99, rid, len(xid), len(data)), xid, data)
    number = int(version[-1])
    header = rhm.RecordHeader(Kind.ENQUEUE, number, flags, rid, len(xid), len(data), flush=3 * (number == 2))
    return rhm.encode_record(header, xid, data, salt=SALT)


def dequeue(version: str, target: int, rid: int = 9) -> bytes:
    """A dequeue record."""
    if version == "linear":
        return qls.encode_record(qls.RecordHeader(Kind.DEQUEUE, 0, 99, rid, dequeued_rid=target))
    header = rhm.RecordHeader(Kind.DEQUEUE, int(version[-1]), 0, rid, dequeued_rid=target)
    return rhm.encode_record(header, salt=SALT)


def flipped(raw: bytes, at: int, mask: int = 0x40) -> bytes:
    """One byte changed."""
    changed = bytearray(raw)
    changed[at] ^= mask
    return bytes(changed)


class Kept(NamedTuple):
    """What is to be kept."""

    raw: bytes
    queue: str = "orders"
    salt: int | None = SALT
    rid: int | None = 5


def make_quarantine(path: Path, kept: Sequence[Kept]) -> Path:
    """A quarantine with these entries, from 1 on."""
    writer = QuarantineWriter(OsWritableDisk(), str(path))
    for offset, each in enumerate(kept):
        file = "/old/JournalData.0000.jdat"
        writer.add(each.queue, file, 128 * offset, each.raw, "broken", each.rid, salt=each.salt)
    writer.close()
    return path
