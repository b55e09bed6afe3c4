"""Helpers of the benchmarks: measuring, and journals to measure on."""

from __future__ import annotations

import gc
import struct
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import qstore.formats.qls.records as qls
from qstore.formats.broker_records.messages import encode_message
from qstore.formats.checksum import extend_crc32c
from qstore.formats.qls.file_header import FILE_HEADER_SIZE, FileHeader, encode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry, padded
from qstore.formats.rhm.records import TAIL_SIZE, Kind
from qstore.formats.values import typed_map
from tests.support.journal_builder import JournalBuilder

_FILES = 16
_HEADER = struct.Struct("<QQQQ")


def fastest(rounds: int, work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def build_ring(directory: Path, version: int, count: int, data: bytes) -> int:
    """A journal of `count` outstanding records; the bytes that one takes."""
    size = padded(32 + len(data) + TAIL_SIZE)
    data_size = -(-(count + count // 500 + 64) * size // _FILES // PAGE_SIZE) * PAGE_SIZE
    builder = JournalBuilder(version, Geometry(_FILES, data_size))
    builder.enqueue_many(count, data)
    builder.flush()
    builder.write_to(directory)
    return size


def typical_message(body: int) -> bytes:
    """As the messages of the fixtures: a message id, a header, an exchange, a routing key, and a body."""
    return encode_message(
        b"y" * body,
        destination="amq.direct",
        delivery_properties={"delivery_mode": 2, "exchange": "amq.direct", "routing_key": "orders"},
        message_properties={"message_id": uuid.uuid4(), "application_headers": typed_map({"sn": 5})},
    )


def references(directory: Path, size: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of a bare `unpack_from` for each record, and of one CRC pass, over a journal's bytes."""
    files = (path for path in sorted(directory.iterdir()) if path.suffix in (".jdat", ".jrnl"))
    content = b"".join(path.read_bytes() for path in files)

    def unpack_all() -> None:
        unpack = _HEADER.unpack_from
        for offset in range(0, len(content) - size, size):
            unpack(content, offset)

    return fastest(rounds, unpack_all), fastest(rounds, lambda: extend_crc32c(0, content))


def build_line(directory: Path, count: int, data: bytes) -> int:
    """A linearstore journal of `count` outstanding records, flushed once in each file; the bytes that one takes."""
    size = qls.RecordHeader(Kind.ENQUEUE, data_size=len(data)).size
    each = -(-count // _FILES)
    data_size = -(-each * size // qls.SECTOR_SIZE) * qls.SECTOR_SIZE
    for number in range(1, _FILES + 1):
        rids = range((number - 1) * each + 1, min(number * each, count) + 1)
        serial = number << 32 | 0x5EED
        header = FileHeader(serial, rids.start, 1, data_size, FILE_HEADER_SIZE, 0, 0, number, directory.name)
        parts = [encode_file_header(header)]
        for rid in rids:
            head = qls.RecordHeader(Kind.ENQUEUE, serial=serial, rid=rid, data_size=len(data))
            parts.append(qls.encode_record(head, data=data))
        content = b"".join(parts)
        fillers = (FILE_HEADER_SIZE + data_size - len(content)) // BLOCK_SIZE
        content += qls.encode_record(qls.RecordHeader(Kind.FILLER)) * fillers
        (directory / f"{uuid.UUID(int=number)}.jrnl").write_bytes(content)
    return size
