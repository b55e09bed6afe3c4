"""A store that a test has open: made, waited for, filled, read; and special ones.

`make_grown_store` has a journal whose files are in another order than their numbers, `make_store` a queue that
compresses its messages, `make_quarantine` records that a recovery has set aside.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.topology import Queue
from qstore.formats.qls import records as qls
from qstore.formats.rhm import records as rhm
from qstore.formats.rhm.compressed import PREFIX_SIZE, ZSTD, Compressor
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import decode_jinf
from qstore.formats.rhm.records import Kind
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from qstore.store.disk import OsWritableDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.journal.write.flushes import COMPRESSED_MESSAGE
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.transactions import Enqueue
from qstore.store.log_lines import LogLine
from qstore.store.parameters import StoreParameters
from qstore.store.repair.quarantine import QuarantineWriter
from tests.support.processes import PATIENCE_SECONDS

GEOMETRY: Final = Geometry.from_pages(4, 1)
PARAMETERS: Final = StoreParameters(
    auto_expand=False,
    num_jfiles=4,
    jfile_size_pgs=1,
    wcache_page_size=4,
    wcache_num_pages=4,
    tpl_num_jfiles=4,
    tpl_jfile_size_pgs=1,
)


class Recovered(NamedTuple):
    """A recovered message: see `RecoveredMessage`."""

    rid: int
    data: bytes
    state: int
    xid: bytes | None
    redelivered: bool


class Calls(list[Any]):
    """Callbacks: the arguments of each call, a single one as it is."""

    def __call__(self, *arguments: Any) -> None:
        self.append(arguments[0] if len(arguments) == 1 else arguments)


class OpenedStore:
    """A store with small journals.

    Args:
        environment: the tools' or the system's.
        path: its directory.
        parameters: its options.

    Attributes:
        store: the store.
        lines: what it has logged.
    """

    def __init__(self, environment: Environment, path: Path, parameters: StoreParameters = PARAMETERS) -> None:
        self.lines: list[LogLine] = []
        self.store = MessageStore.open(environment, str(path), parameters, "0.1.0", log=self.lines.append)

    @property
    def texts(self) -> list[str]:
        """The lines without their levels."""
        return [line.text for line in self.lines]

    # ---- waiting ----

    def wait(self, calls: list[Any], count: int = 1) -> None:
        """Wait for `count` calls, as an event loop does."""
        while len(calls) < count:
            self.store.start()
            self.store.collect()
            if len(calls) < count and self.store.fileno() >= 0:
                assert select.select([self.store.fileno()], [], [], PATIENCE_SECONDS)[0]

    def flush(self, *journals: QueueJournal) -> None:
        """Until all is on the disk."""
        calls = Calls()
        self.store.flush(journals, calls)
        self.wait(calls)
        assert calls == [None]

    # ---- queues and messages ----

    def make_queue(self, name: str, geometry: Geometry = GEOMETRY, arguments: TypedMap = EMPTY_MAP) -> QueueJournal:
        """A queue, when it is made."""
        calls = Calls()
        self.store.changes.create_queue(Queue(name, arguments), geometry, calls)
        self.wait(calls)
        journal, error = calls[0]
        assert error is None
        assert isinstance(journal, QueueJournal)
        return journal

    def journal(self, name: str) -> QueueJournal:
        """That of a queue that is there."""
        (found,) = [journal for journal in self.store.journals.values() if journal.name == name]
        return found

    def enqueue(self, journal: QueueJournal, data: bytes) -> int:
        """Append a message."""
        return self.store.append.enqueue(journal, (data,), len(data), data_crc((data,)))

    def recovered(self) -> dict[str, list[Recovered]]:
        """What every queue had when the store was opened. Ends recovery."""
        found = {
            queue.record.name: [
                Recovered(each.rid, each.data, each.state, each.xid, each.redelivered)
                for each in self.store.messages(queue)
            ]
            for queue in self.store.recovered_queues
        }
        self.store.end_recovery()
        return found

    def recovered_data(self) -> dict[str, list[bytes]]:
        """As `recovered`, the data alone."""
        return {name: [message.data for message in messages] for name, messages in self.recovered().items()}


def enqueued(journal: QueueJournal, data: bytes) -> Enqueue:
    """A message for a transaction."""
    return (journal, [((data,), len(data), data_crc((data,)))])


# ---- records as bytes, and quarantines that hold them ----


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


# ---- a journal that has grown ----


GROWING: Final = replace(PARAMETERS, auto_expand=True, disk_free_limit=0)
JOURNAL: Final = "rhm/jrnl/1"
_MESSAGES: Final = 4500
_BODY: Final = b"x" * 1000


def make_grown_store(path: Path) -> list[int]:
    """Make a store with a queue `q` that began to grow in the middle of its ring, and leave it as a crash does.

    Returns:
        The record ids of its messages.
    """
    store = OpenedStore(tool_environment(), path, GROWING)
    journal = store.make_queue("q")
    waiting: list[int] = []
    for number in range(_MESSAGES):
        waiting.append(store.enqueue(journal, message(b"%06d" % number + _BODY)))
        if number < 300 and len(waiting) > 60:
            store.store.append.dequeue(journal, waiting.pop(0))
        if number % 9 == 0:
            store.flush(journal)
    store.flush(journal)
    store.store._opened.close()
    info = decode_jinf((path / JOURNAL / "JournalData.jinf").read_bytes())
    assert info.geometry.files > 64
    assert list(info.numbers) != sorted(info.numbers)
    return waiting


# ---- a queue that compresses ----


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
