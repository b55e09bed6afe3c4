"""What one transaction does in each journal: collected, admitted to all journals at the same moment, and appended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.errors import JournalError
from qstore.store.journal.write.flushes import MessageData
from qstore.store.live.appender import Appender
from qstore.store.live.queue_journal import QueueJournal

#: Messages that a transaction enqueues: journal, and of each message the arguments of `Appender.enqueue`.
Enqueue: TypeAlias = tuple[QueueJournal, list[MessageData]]

#: A message to be dequeued by a transaction: journal and record id.
Dequeue: TypeAlias = tuple[QueueJournal, int]


class Part:
    """What a transaction does in one journal.

    Attributes:
        messages: what it enqueues, as it is stored.
        firsts: the first word of the record's header of each of them; empty if all are PLAIN_MESSAGE.
        targets: the messages that it dequeues.
        rids: record ids of its enqueues, and then of its dequeues.
    """

    __slots__ = ("firsts", "messages", "rids", "targets")

    def __init__(self) -> None:
        self.messages: list[MessageData] = []
        self.firsts: list[int] = []
        self.targets: list[int] = []
        self.rids: list[int] = []

    def add(self, journal: QueueJournal, messages: list[MessageData], rids: list[int]) -> None:
        """Add messages to enqueue, and their record ids. The list of messages may become that of the part."""
        compression = journal.compression
        if compression is not None:
            stored = [compression.stored(parts, size, crc) for parts, size, crc in messages]
            messages = [(parts, size, crc) for parts, size, crc, _ in stored]
            self.firsts += [first for _, _, _, first in stored]
        self.messages = [*self.messages, *messages] if self.messages else messages
        self.rids = [*self.rids, *rids] if self.rids else rids

    def check_targets(self, journal: QueueJournal) -> None:
        """Raise JournalError if a message that it dequeues is not there, or twice."""
        targets = self.targets
        if not targets:
            return
        for target in targets:
            journal.writer.check_dequeue(target)
        if len(set(targets)) != len(targets):
            twice = Counter(targets).most_common(1)[0][0]
            raise JournalError(f'queue "{journal.name}": record 0x{twice:x} is dequeued twice in one transaction')


Parts: TypeAlias = dict[QueueJournal, Part]


def collect(enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], ids: list[int]) -> Parts:
    """The parts of a transaction. `ids` has an id for each enqueue and dequeue, in this order."""
    parts: Parts = {}
    at = 0
    for journal, messages in enqueues:
        part = parts.get(journal)
        if part is None:
            part = parts[journal] = Part()
        end = at + len(messages)
        part.add(journal, messages, ids[at:end])
        at = end
    for journal, target in dequeues:
        part = parts.get(journal)
        if part is None:
            part = parts[journal] = Part()
        part.targets.append(target)
        part.rids.append(ids[at])
        at += 1
    return parts


def admit(appender: Appender, xid: bytes, parts: Parts) -> None:
    """Make room in all journals for all records of a transaction and its outcome.

    Args:
        appender: makes room.
        xid: the transaction, or as long as its id will be.
        parts: what it does.

    Raises:
        JournalFullError: it does not fit; JournalError: a message cannot be dequeued.
    """
    if _has_room_at_once(xid, parts):
        return
    for journal, part in parts.items():
        part.check_targets(journal)
    admissions = []
    for journal, part in parts.items():
        sizes = [size for _, size, _ in part.messages]
        admissions.append((journal, partial(journal.writer.admit_transaction, xid, sizes, len(part.targets))))
    appender.admit_all(admissions)


def _has_room_at_once(xid: bytes, parts: Parts) -> bool:
    """Whether a transaction only enqueues, and there is room in all journals without a further check: most often."""
    for journal, part in parts.items():
        if part.targets or not journal.writer.has_room_at_once(xid, part.messages):
            return False
    return True


def append(appender: Appender, xid: bytes, parts: Parts) -> None:
    """Append what a transaction does in each journal, right after `admit`. No journal is flushed in between.

    Raises:
        JournalFailedError: memory ran out, and a journal has failed.
    """
    appended: list[tuple[QueueJournal, int]] = []
    for journal, part in parts.items():
        try:
            blocks = journal.writer.append_admitted(xid, part.rids, part.messages, part.targets, part.firsts)
        except MemoryError:
            raise journal.out_of_memory() from None
        journal.transaction_enqueues += len(part.messages)
        journal.transaction_dequeues += len(part.targets)
        appended.append((journal, blocks * BLOCK_SIZE))
    for journal, size in appended:
        appender.touched(journal, size)
