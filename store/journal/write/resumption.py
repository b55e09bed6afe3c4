"""Converts a recovered version-2 journal to the state in which its writer resumes it.

Recovery counts bytes from the beginning of the oldest file; the writer counts blocks through the endless stream of all
laps. The lap number matters only for the overwrite indicator: its parity.
"""

from __future__ import annotations

from array import array
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMMIT_DECISION, MAX_HEADER_SIZE, TAIL_SIZE, RecordHeader, decode_header
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring
from qstore.store.journal.ring.order import RingFile
from qstore.store.journal.write.record_runs import runs_of
from qstore.store.journal.write.resting import MAX_CHUNK, RestingRecords
from qstore.store.journal.write.space import SIZE_BITS
from qstore.store.journal.write.writer_state import OpenTransaction, WriterState, new_state

MAX_AWAKE: Final = 4096
"""A journal with more messages is resumed with all of them at rest: memory for each would not be bounded."""


class NotToBeTakenUpError(Exception):
    """A journal whose files are too damaged to continue writing."""


def state_of(journal: Journal, recovery: JournalRecovery, end: JournalEnd | None) -> WriterState:
    """The state of `journal`, its open transactions not yet resolved.

    Args:
        journal: the journal, open for reading.
        recovery: the result of a walk over all of it.
        end: where the walk ended; None if nothing was ever written.

    Raises:
        NotToBeTakenUpError: a file's header is lost.
        OSError: it cannot be read.
    """
    files = [file for file in journal.files.files if isinstance(file, RingFile)]
    if end is None or not files:
        return new_state()
    file_blocks = journal.files.geometry.data_size // BLOCK_SIZE
    ring = journal.files
    assert isinstance(ring, Ring)
    first, salts = _laps(files, ring)
    base = first * file_blocks

    resting: RestingRecords | None = None
    kept: list[tuple[int, int, int]] = []  # log offset, record id, blocks
    if len(recovery.messages) > MAX_AWAKE:
        resting = _resting(journal, recovery, base)
    else:
        kept = [(place, rid, _blocks(journal, place)) for rid, place, _ in recovery.messages.in_place_order()]
    transactions = _transactions(journal, recovery, kept, resting)
    live = {rid: base + place // BLOCK_SIZE << SIZE_BITS | blocks for place, rid, blocks in sorted(kept)}
    entered = [*files, *ring.wasted, *ring.free]
    slots = {file.number: file.header.slot for file in entered if file.header is not None}
    # A file may have been entered repeatedly by restarts that left nothing else. Of its two headers the one with the
    # higher flush number counts, so the next header's must be higher than any existing one.
    flush = max(end.flush, *(file.header.first_flush for file in files if file.header is not None))
    # Of a journal without any record, the end has the number of a file header, which the next crash may take away.
    has_record = end.sealed or recovery.enqueues + recovery.dequeues + recovery.commits + recovery.aborts > 0
    last_flush = end.flush - end.is_cut if has_record else 0
    is_sealed = end.sealed and not end.torn
    position = base + end.place // BLOCK_SIZE
    last = files[-1]
    assert last.header is not None
    origin, lap = first + len(files) - 1 - ring.place(last), last.header.overwrite_indicator
    return WriterState(
        position, flush, last_flush, is_sealed, salts, slots, live, transactions, len(ring.wasted), origin, lap, resting
    )


def _transactions(
    journal: Journal, recovery: JournalRecovery, kept: list[tuple[int, int, int]], resting: RestingRecords | None
) -> dict[bytes, OpenTransaction]:
    """The open transactions. Their records are added to `kept`; what they dequeue is in that, or rests."""
    known = {rid for _, rid, _ in kept} if len(recovery.transactions) else set()
    transactions: dict[bytes, OpenTransaction] = {}
    holders: dict[int, OpenTransaction] = {}
    replaced: set[int] = set()  # dequeues
    for transaction in recovery.transactions:
        opened = transactions[transaction.xid] = OpenTransaction(transaction.xid)
        enqueues = [operation for operation in transaction if operation.is_enqueue]
        kept += [(operation.place, operation.rid, _blocks(journal, operation.place)) for operation in enqueues]
        opened.enqueues = runs_of(operation.rid for operation in enqueues)
        known.update(operation.rid for operation in enqueues)
        for operation in transaction:
            target = operation.rid
            if operation.is_enqueue or not (target in known or (resting is not None and resting.get(target))):
                continue
            header = _header(journal, operation.place)
            before = holders.get(target)
            if before is not None:  # a transaction dropped without an abort; the later one counts
                replaced.add(before.dequeues.pop(target))
            holders[target] = opened
            opened.dequeues[target] = header.rid
            if header.flags & COMMIT_DECISION:
                opened.commit_decisions.add(header.rid)
            kept.append((operation.place, header.rid, header.size // BLOCK_SIZE))
    if replaced:
        kept[:] = [entry for entry in kept if entry[1] not in replaced]
    return transactions


def _resting(journal: Journal, recovery: JournalRecovery, base: int) -> RestingRecords:
    """The messages of a journal, but for those that open transactions enqueue.

    Only sizes are read that the walk has not kept.
    """
    resting = RestingRecords()
    for rids, places, blocks in recovery.messages.portions(MAX_CHUNK):
        packed = array("Q")
        for number, place in enumerate(places):
            size = blocks[number] or _blocks(journal, place)
            packed.append(base + place // BLOCK_SIZE << SIZE_BITS | size)
        resting.extend(rids, packed)
    return resting


def _laps(files: list[RingFile], ring: Ring) -> tuple[int, dict[int, int]]:
    """The oldest file, counted over all laps, and the salts of all files."""
    salts = {}
    first = None
    for position, file in enumerate(files):
        if file.header is None:
            raise NotToBeTakenUpError(f"{file.path}: the file's header is lost")
        if first is None:
            first = file.header.overwrite_indicator * ring.geometry.files + ring.place(file)
        salts[first + position] = file.header.salt
    assert first is not None
    return first, salts


def _blocks(journal: Journal, place: int) -> int:
    """Blocks of the enqueue record at `place`."""
    data, size = journal.data_of_enqueue(place)
    return (data - place + size + TAIL_SIZE + BLOCK_SIZE - 1) // BLOCK_SIZE


def _header(journal: Journal, place: int) -> RecordHeader:
    return decode_header(journal.stream.read(place, MAX_HEADER_SIZE))
