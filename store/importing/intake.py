"""The data to import, gathered before anything is planned: topology, branches in doubt, and messages in a spool.

The messages come in any order of queues, and each queue's in its own order. Their data go to one file, the spool; in
memory remain, for each message, its record id, and for each run of messages of one queue its place in the spool:

    u64 record id, u8 state (`journal.recovery`), u8 redelivered, u16 zero, u32 number of its branch (0: none), u64 size
    data

So reading the source once suffices, and it need not be seekable, or trusted to be the same twice.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.named_tuple import NamedTuple
from qstore.store.disk import ReadableFile, WritableFile
from qstore.store.errors import StoreError
from qstore.store.journal.recovery import LOCKED, PENDING
from qstore.store.recovery.journal_content import JournalContent

MAX_OBJECTS: Final = 1_000_000  # queues, exchanges, bindings and other objects of one import, and branches
MAX_RID: Final = (1 << 62) - 1  # a higher one leaves too few ids for later messages
_HEAD: Final = struct.Struct("<QBBHIQ")
_BUFFER: Final = 1 << 20


class ImportedMessage(NamedTuple):
    """A message that is to be imported.

    Attributes:
        queue: the name of its queue.
        rid: its record id in the source; 0 if it has none.
        state: LIVE, or LOCKED or PENDING if a branch in doubt would dequeue or enqueue it.
        xid: that branch; empty for none.
        is_redelivered: whether it may have been delivered before.
        data: its data as an enqueue record has them.
    """

    queue: str
    rid: int
    state: int
    xid: bytes
    is_redelivered: bool
    data: bytes


class SpooledMessage(NamedTuple):
    """A message read back from the spool; as `ImportedMessage`, but without its queue."""

    rid: int
    state: int
    xid: bytes
    is_redelivered: bool
    data: bytes


@dataclass(slots=True)
class QueueIntake:
    """The messages of one queue.

    Attributes:
        content: their content, counted.
        rids: the record id of each, in the source.
        in_doubt: number of those that belong to a branch in doubt.
        xids: these branches.
        runs: begin and end in the spool of each run of messages, alternating.
    """

    content: JournalContent = field(default_factory=JournalContent)
    rids: array[int] = field(default_factory=lambda: array("Q"))
    in_doubt: int = 0
    xids: set[bytes] = field(default_factory=set)
    runs: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def messages(self) -> int:
        """Number of messages."""
        return len(self.rids)


class Intake:
    """Gathers the data to import.

    Args:
        spool: an empty file for the messages; None to count them only.

    Attributes:
        queues, exchanges: by name.
        bindings: each with the name of its exchange; `queue_id` has no meaning.
        general: links, bridges and other objects.
        in_doubt: the branches in doubt.
        messages: name of a queue -> its messages.
    """

    def __init__(self, spool: WritableFile | None) -> None:
        self._spool, self._buffer, self._end = spool, bytearray(), 0
        self._numbers: dict[bytes, int] = {b"": 0}
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: list[tuple[str, Binding]] = []
        self.general: list[Link | Bridge | GeneralObject] = []
        self.in_doubt: dict[bytes, None] = {}
        self.messages: dict[str, QueueIntake] = {}

    @property
    def size(self) -> int:
        """Bytes of all messages so far."""
        return self._end

    def queue(self, queue: Queue) -> None:
        """Add a queue; of several with one name, the first counts. Raises StoreError."""
        self._check_room(len(self.queues))
        self.queues.setdefault(queue.name, queue)

    def exchange(self, exchange: Exchange) -> None:
        """Add an exchange; of several with one name, the first counts. Raises StoreError."""
        self._check_room(len(self.exchanges))
        self.exchanges.setdefault(exchange.name, exchange)

    def binding(self, exchange: str, binding: Binding) -> None:
        """Add a binding. Raises StoreError."""
        self._check_room(len(self.bindings))
        self.bindings.append((exchange, binding))

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Add a link, a bridge or another object. Raises StoreError."""
        self._check_room(len(self.general))
        self.general.append(general)

    def branch(self, xid: bytes) -> None:
        """Add a branch in doubt, which need not have messages. Raises StoreError."""
        self._check_room(len(self.in_doubt))
        self.in_doubt[xid] = None

    def _check_room(self, count: int) -> None:
        if count >= MAX_OBJECTS:
            raise StoreError(f"more than {MAX_OBJECTS:,} objects of one kind cannot be imported at once")

    def message(self, message: ImportedMessage) -> None:
        """Add a message at the end of its queue. Raises StoreError, OSError."""
        _, rid, state, xid, is_redelivered, data = message
        queue = self.messages.get(message.queue)
        if queue is None:
            self._check_room(len(self.messages))
            queue = self.messages[message.queue] = QueueIntake()
        size = len(data)
        queue.content.message(size, len(xid) if state == PENDING else 0)
        queue.rids.append(rid)
        if xid:
            self._in_doubt(queue, state, xid)
        begin = self._end
        self._end = end = begin + _HEAD.size + size
        runs = queue.runs
        if runs and runs[-1] == begin:
            runs[-1] = end
        else:
            runs.extend((begin, end))
        if self._spool is not None:
            number = self._numbers.setdefault(xid, len(self._numbers))
            self._buffer += _HEAD.pack(rid, state, is_redelivered, 0, number, size)
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self._write()

    def _in_doubt(self, queue: QueueIntake, state: int, xid: bytes) -> None:
        queue.in_doubt += 1
        if state == LOCKED:
            queue.content.removal(len(xid))
        if xid not in queue.xids:
            queue.xids.add(xid)
            queue.content.transaction(len(xid))
            self.branch(xid)

    def _write(self) -> None:
        assert self._spool is not None
        self._spool.write(self._end - len(self._buffer), memoryview(self._buffer))
        self._buffer = bytearray()

    def spooled(self, queue: QueueIntake) -> Iterator[SpooledMessage]:
        """The messages of a queue, in order. Nothing is added any more. Raises OSError."""
        assert self._spool is not None
        if self._buffer:
            self._write()
        xids = list(self._numbers)
        for at in range(0, len(queue.runs), 2):
            yield from _run(self._spool, queue.runs[at], queue.runs[at + 1], xids)


def _run(spool: ReadableFile, begin: int, end: int, xids: list[bytes]) -> Iterator[SpooledMessage]:
    """The messages between two offsets of the spool."""
    window, at = b"", 0
    while begin < end:
        if len(window) - at < _HEAD.size:
            window, at = spool.read(begin, min(_BUFFER, end - begin)), 0
        rid, state, is_redelivered, _, number, size = _HEAD.unpack_from(window, at)
        after = at + _HEAD.size + size
        if after > len(window):
            window, at = spool.read(begin, min(max(_BUFFER, _HEAD.size + size), end - begin)), 0
            after = _HEAD.size + size
        yield SpooledMessage(rid, state, xids[number], bool(is_redelivered), window[at + _HEAD.size : after])
        begin += after - at
        at = after
