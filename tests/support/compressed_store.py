"""A store with a queue that compresses its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qstore.formats.rhm.compressed import PREFIX_SIZE, ZSTD, Compressor
from qstore.formats.rhm.headers import data_crc
from qstore.formats.values import TypedMap, typed_map
from qstore.store.environment import tool_environment
from qstore.store.journal.write.flushes import COMPRESSED_MESSAGE
from qstore.store.live.queue_journal import QueueJournal
from tests.support.opened_store import OpenedStore, enqueued
from tests.support.quarantine_records import message

COMPRESSES: Final[TypedMap] = typed_map({"qpid.compress": "zstd"})
BODIES: Final = [b"%d: " % number + b'{"item": "screw"}' * (number * 7) for number in range(12)]
MESSAGES: Final = [message(body) for body in BODIES]


def make_store(path: Path, *broken: bytes) -> Path:
    """A closed store: the queue `orders` with `MESSAGES`, some by a transaction, and then broken compressed data."""
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders", arguments=COMPRESSES)
    for data in MESSAGES[:6]:
        opened.enqueue(journal, data)
    done: list[Exception | None] = []
    opened.store.transactions.commit([enqueued(journal, data) for data in MESSAGES[6:]], [], done.append)
    for data in broken:
        append_compressed(opened, journal, data)
    opened.flush(journal)
    assert done == [None]
    assert opened.store.close()
    return path


def append_compressed(opened: OpenedStore, journal: QueueJournal, data: bytes) -> int:
    """Append a record whose data say that they are compressed."""
    rid = opened.store.append.take_id()
    journal.writer.enqueue(rid, (data,), len(data), data_crc((data,)), COMPRESSED_MESSAGE)
    opened.store.append.touched(journal, len(data))
    return rid


def broken_content(body: bytes = b"broken " * 100) -> bytes:
    """Data of a message with a sound header, whose frame is cut off."""
    found = Compressor().compress(message(body))
    assert found is not None
    return found[:-5]


def bomb() -> bytes:
    """Data that say that their content is far too large."""
    data = message(b"")
    return data + bytes([ZSTD]) + (1 << 40).to_bytes(PREFIX_SIZE - 1, "little") + b"x" * 50
