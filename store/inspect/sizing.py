"""The required size of a journal: qpidd's published formulas, as pure functions.

Source: MRG 2 Messaging User Guide, 6.4.2 to 6.4.4.

A record is its header, the transaction id, the data and its tail, rounded up to whole blocks of 128 bytes. The records
of a transaction are flushed when it is prepared, and again when it ends, and a flush is padded to 512 bytes (4096 in a
linearstore). So a queue with `depth` messages occupies, in a journal, its *footprint*:

    no transactions            depth × blocks of an enqueue
    transactions of n          for each n messages: the blocks of n enqueues, padded to a flush, and one commit, padded

The recommended size is double the footprint: enqueues are refused when a journal is about 80 % full, and a ring is
reused in whole files (`space`). The journal then keeps the default number of files and uses the smallest file size
that gives the recommended size; only if the largest file is too small are there more files.

The footprint is the need of a depth whose records are contiguous. In a version-1 ring they need not be: dequeued
messages between them, and everything after one old message, take space too. So a journal that exists is never advised
to become smaller than its use requires: if the space *in use* is known (`space`), the recommended size is
also at least double that, or in version 2, where the limit is 80 % of the ring wherever the records are, as much as
keeps that use below 80 % of the limit. The same use in the recommended ring is then not near its threshold: with eight
files or more, double the bytes in use are at most 5 of 8 files, one of them for the beginning of the oldest record's
file, of the 6.4 files that may be in use.

Three points that the published text leaves open:

- *Dequeue records.* The text lists their size but its examples omit them: when a queue is deepest nothing of it has
  been dequeued. That is right for a queue that fills up and is then emptied, and is the default here. In a queue in
  steady flow the dequeues of earlier messages are stored between the present messages; `count_dequeues` adds, for each
  message, its dequeue, and for each n of them the commit that ends them.
- *Transactions of several operations.* The example has one. As qpidd writes them (verified in its stores), the records
  of one transaction are contiguous and the whole is padded, not each record.
- *Flushes outside of transactions.* A sender that waits for each message causes a separate, padded flush for each. The
  published formula counts blocks only; `RecordSize.flushed` is the size of such a message. For a linearstore, where the
  padding is most of it, this size is used.

The text's header sizes are those of version 2, and for a commit 8 bytes more than version 1 really has. Before each
message header qpidd stores four more bytes, its size, which the text does not count.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import ceil
from typing import Final, TypeAlias

import qstore.formats.qls.records as qls
import qstore.formats.rhm.records as rhm
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import (
    BLOCK_SIZE,
    DEFAULT_FILES,
    MAX_FILES,
    MAX_PAGES,
    PAGE_SIZE,
    SECTOR_SIZE,
    Geometry,
    padded,
)
from qstore.formats.rhm.records import Kind
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.records import MAX_XID_SIZE
from qstore.store.journal.write.space import NEAR_PERCENT, THRESHOLD_PERCENT, depth_held

MAX_RING: Final = MAX_FILES * MAX_PAGES * PAGE_SIZE  # bytes
DEFAULT_POOL_FILE_SIZE: Final = 2048 << 10  # bytes: efp-file-size of a linearstore (formats/qls/README.md, 7)
LOCAL_XID_SIZE: Final = 24  # bytes of a local transaction's id
_NOT_NEAR: Final = THRESHOLD_PERCENT * NEAR_PERCENT  # of a version-2 ring in use, in hundredths of a percent
MAX_DEPTH: Final = 1 << 48  # messages: more than any journal holds


class Overheads(NamedTuple):
    """The bytes that a format adds to a record.

    Attributes:
        enqueue, dequeue, end: bytes of header and tail of an enqueue, a dequeue, a commit or abort.
        flush: bytes to which a flush is padded.
        plain: unit to which a message outside of transactions is rounded: blocks, or the flush.
    """

    enqueue: int
    dequeue: int
    end: int
    flush: int
    plain: int


_RING: Final = Overheads(
    enqueue=rhm.LAYOUTS[2, Kind.ENQUEUE].size + rhm.TAIL_SIZE,
    dequeue=rhm.LAYOUTS[2, Kind.DEQUEUE].size + rhm.TAIL_SIZE,
    end=rhm.LAYOUTS[2, Kind.COMMIT].size + rhm.TAIL_SIZE,
    flush=SECTOR_SIZE,
    plain=BLOCK_SIZE,
)
_LINE: Final = Overheads(
    enqueue=qls.HEADER_SIZES[Kind.ENQUEUE] + qls.TAIL_SIZE,
    dequeue=qls.HEADER_SIZES[Kind.DEQUEUE] + qls.TAIL_SIZE,
    end=qls.HEADER_SIZES[Kind.COMMIT] + qls.TAIL_SIZE,
    flush=qls.SECTOR_SIZE,
    plain=qls.SECTOR_SIZE,
)
OVERHEADS: Final = {
    JournalFormat.VERSION_1: _RING,
    JournalFormat.VERSION_2: _RING,
    JournalFormat.LINEAR: _LINE,
}


class JournalTooLargeError(Exception):
    """No journal can be that large; the text states what is possible."""


# ---------------------------------------------------------------------------------------------- workload


class Transactions(Enum):
    """The pattern of enqueues and dequeues."""

    NONE = "none"
    LOCAL = "local"
    DISTRIBUTED = "distributed"


@dataclass(frozen=True, slots=True)
class Workload:
    """The characteristics of a queue that the published formulas use.

    Attributes:
        message_size: bytes of a message's content, on average.
        header_size: bytes of its header, on average.
        depth: maximum number of messages on the queue.
        transactions: whether they are enqueued and dequeued in transactions.
        xid_size: bytes of a distributed transaction's id; None otherwise.
        transaction_depth: operations in a transaction.
        count_dequeues: whether to count dequeue records (see the module's docstring).
        journal_format: the format of the journal.

    Raises:
        ValueError: the attributes contradict each other, or are out of range.
    """

    message_size: int
    header_size: int
    depth: int
    transactions: Transactions = Transactions.NONE
    xid_size: int | None = None
    transaction_depth: int = 1
    count_dequeues: bool = False
    journal_format: JournalFormat = JournalFormat.VERSION_2

    def __post_init__(self) -> None:
        if self.message_size < 0 or self.header_size < 0:
            raise ValueError("the size of a message or header must not be negative")
        if not (1 <= self.depth <= MAX_DEPTH and 1 <= self.transaction_depth <= MAX_DEPTH):
            raise ValueError(f"the depth of a queue or transaction must be 1 to {MAX_DEPTH}")
        if self.transactions is Transactions.DISTRIBUTED:
            if self.xid_size is None:
                raise ValueError("distributed transactions need the size of their ids")
            if not 1 <= self.xid_size <= MAX_XID_SIZE:
                raise ValueError(f"a transaction id must have 1 to {MAX_XID_SIZE} bytes, not {self.xid_size}")
        elif self.xid_size is not None:
            raise ValueError(f"the size of ids is for distributed transactions only; a local one has {LOCAL_XID_SIZE}")
        if self.transactions is Transactions.NONE and self.transaction_depth != 1:
            raise ValueError("a transaction depth requires transactions")

    @property
    def xid_bytes(self) -> int:
        """Bytes of the transaction id in each record."""
        if self.transactions is Transactions.LOCAL:
            return LOCAL_XID_SIZE
        return self.xid_size or 0


@dataclass(frozen=True, slots=True)
class MessageProfile:
    """The space that the messages of a queue take in its journal, computed or measured.

    Attributes:
        record: average bytes of blocks of a message's enqueue record.
        transactional: fraction of messages, 0 to 1, that are enqueued and dequeued in transactions.
        xid_size: average bytes of their ids.
        transaction_depth: operations in a transaction.
        count_dequeues: whether to count dequeue records.
    """

    record: Fraction
    transactional: Fraction = Fraction(0)
    xid_size: int = 0
    transaction_depth: int = 1
    count_dequeues: bool = False


# ---------------------------------------------------------------------------------------------- records


class RecordSize(NamedTuple):
    """The bytes of a record: encoded, in whole blocks, and in a separate flush."""

    encoded: int
    blocks: int
    flushed: int


def record_size(encoded: int, journal_format: JournalFormat) -> RecordSize:
    """The size of a record of `encoded` bytes, rounded as in the journal."""
    blocks = padded(encoded)
    return RecordSize(encoded, blocks, _rounded(blocks, OVERHEADS[journal_format].flush))


def dequeue_size(xid_size: int, journal_format: JournalFormat) -> RecordSize:
    """The size of a dequeue record."""
    return record_size(OVERHEADS[journal_format].dequeue + xid_size, journal_format)


def end_size(xid_size: int, journal_format: JournalFormat) -> RecordSize:
    """The size of a commit or abort record."""
    return record_size(OVERHEADS[journal_format].end + xid_size, journal_format)


def _rounded(size: Fraction | int, unit: int) -> int:
    return ceil(Fraction(size) / unit) * unit


# ---------------------------------------------------------------------------------------------- a queue's footprint


def footprint(profile: MessageProfile, depth: int, journal_format: JournalFormat) -> int:
    """Bytes that `depth` messages take in a journal."""
    overheads = OVERHEADS[journal_format]
    transactional = ceil(depth * profile.transactional)
    plain = depth - transactional
    dequeue = dequeue_size(profile.xid_size, journal_format).blocks
    record = profile.record if overheads.plain == BLOCK_SIZE else Fraction(_rounded(profile.record, overheads.plain))
    size = ceil(plain * record)
    size += _in_transactions(profile, transactional, profile.record, journal_format)
    if profile.count_dequeues:
        size += plain * _rounded(dequeue_size(0, journal_format).blocks, overheads.plain)
        size += _in_transactions(profile, transactional, Fraction(dequeue), journal_format)
    return size


def _in_transactions(profile: MessageProfile, count: int, record: Fraction, journal_format: JournalFormat) -> int:
    """Bytes of `count` records in transactions, and of the commits that end them."""
    flush = OVERHEADS[journal_format].flush
    whole, rest = divmod(count, profile.transaction_depth)
    ends = whole + (rest > 0)
    size = whole * _rounded(profile.transaction_depth * record, flush) + _rounded(rest * record, flush)
    return size + ends * end_size(profile.xid_size, journal_format).flushed


# ---------------------------------------------------------------------------------------------- configuration


class RingSize(NamedTuple):
    """The options of a ring: `--num-jfiles`, and `--jfile-size-pgs` in pages of 64 KiB."""

    files: int
    pages: int

    @property
    def geometry(self) -> Geometry:
        """The options as a geometry."""
        return Geometry.from_pages(self.files, self.pages)

    @property
    def capacity(self) -> int:
        """Bytes of all data areas together."""
        return self.files * self.pages * PAGE_SIZE


class LineSize(NamedTuple):
    """The number of files needed from a linearstore's pool, and the bytes of data in each."""

    files: int
    file_size: int

    @property
    def capacity(self) -> int:
        """Bytes of all data areas together."""
        return self.files * self.file_size


Choice: TypeAlias = RingSize | LineSize


def ring_for(size: int) -> RingSize:
    """The smallest ring of at least `size` bytes with the default number of files, or the fewest that suffice.

    Raises:
        JournalTooLargeError: the largest ring is smaller.
    """
    pages = max(ceil(Fraction(size, PAGE_SIZE)), 1)
    files = max(DEFAULT_FILES, ceil(Fraction(pages, MAX_PAGES)))
    if files > MAX_FILES:
        raise JournalTooLargeError(
            f"a journal of {size:,} bytes is not possible: the largest has {MAX_FILES} files of {MAX_PAGES} pages, "
            f"{MAX_RING:,} bytes"
        )
    return RingSize(files, ceil(Fraction(pages, files)))


@dataclass(frozen=True, slots=True)
class JournalSize:
    """The journal needed for a queue's depth.

    Attributes:
        footprint: bytes of the messages.
        recommended: bytes that the journal should have: double that; more if the threshold of version 2, which counts
            one block for each message's dequeue, would refuse the last of them (records of one block), or if the
            bytes in use require it.
        choice: the files that provide it.
        held: minimum number of messages that these hold before enqueues are refused; None if none ever is.
    """

    footprint: int
    recommended: int
    choice: Choice
    held: int | None

    @property
    def pages(self) -> int:
        """The recommended size in pages of 64 KiB, rounded up."""
        return ceil(Fraction(self.recommended, PAGE_SIZE))


def size_for(
    profile: MessageProfile,
    depth: int,
    journal_format: JournalFormat,
    pool_file_size: int = DEFAULT_POOL_FILE_SIZE,
    *,
    used: int = 0,
) -> JournalSize:
    """The journal for `depth` messages with a profile.

    Args:
        profile: the messages.
        depth: number of messages, 1 to `MAX_DEPTH`.
        journal_format: format of the journal.
        pool_file_size: linearstore: bytes of data in a file of its pool.
        used: bytes that are, or were, in use in a journal with such messages, as its threshold counts them.

    Raises:
        JournalTooLargeError: no ring is large enough; the text states how many messages the largest is for.
    """
    in_use = _for_use(used, journal_format)
    recommended = max(_recommended(profile, depth, journal_format), in_use)
    size = footprint(profile, depth, journal_format)
    if journal_format is JournalFormat.LINEAR:
        files = max(ceil(Fraction(recommended, pool_file_size)), 1)
        return JournalSize(size, recommended, LineSize(files, pool_file_size), None)
    try:
        ring = ring_for(recommended)
    except JournalTooLargeError as error:
        if in_use > MAX_RING:
            raise
        possible = bisect_right(
            range(depth), MAX_RING, lo=1, key=lambda fewer: _recommended(profile, fewer, journal_format)
        )
        raise JournalTooLargeError(f"{error}, for {possible - 1:,} such messages") from None
    held = depth_held(ring.geometry, journal_format, record=profile.record, per_message=Fraction(size, depth))
    return JournalSize(size, recommended, ring, held)


def _for_use(used: int, journal_format: JournalFormat) -> int:
    """Bytes of a ring in which `used` bytes in use are not near the threshold."""
    if journal_format is JournalFormat.LINEAR or not used:
        return 0
    return 2 * used if journal_format is JournalFormat.VERSION_1 else used * 10_000 // _NOT_NEAR + BLOCK_SIZE


def _recommended(profile: MessageProfile, depth: int, journal_format: JournalFormat) -> int:
    doubled = 2 * footprint(profile, depth, journal_format)
    if journal_format is not JournalFormat.VERSION_2:
        return doubled
    return max(doubled, ceil(depth * (profile.record + BLOCK_SIZE) * 100 / THRESHOLD_PERCENT))


@dataclass(frozen=True, slots=True)
class Sizing:
    """The published calculation for one workload, step by step.

    Attributes:
        workload: the input.
        enqueue, dequeue: the records of a message.
        end: the commit (or abort) of a transaction; None without transactions.
        profile: the space that the messages take.
        journal: the journal needed.
    """

    workload: Workload
    enqueue: RecordSize
    dequeue: RecordSize
    end: RecordSize | None
    profile: MessageProfile
    journal: JournalSize

    @property
    def bytes_per_message(self) -> Fraction:
        """Bytes on disk for each message of the depth."""
        return Fraction(self.journal.footprint, self.workload.depth)


def size_journal(workload: Workload) -> Sizing:
    """Do the published calculation.

    Raises:
        JournalTooLargeError: no ring is large enough.
    """
    journal_format, xid_size = workload.journal_format, workload.xid_bytes
    encoded = OVERHEADS[journal_format].enqueue + xid_size + workload.header_size + workload.message_size
    enqueue = record_size(encoded, journal_format)
    transactional = workload.transactions is not Transactions.NONE
    profile = MessageProfile(
        record=Fraction(enqueue.blocks),
        transactional=Fraction(int(transactional)),
        xid_size=xid_size,
        transaction_depth=workload.transaction_depth,
        count_dequeues=workload.count_dequeues,
    )
    return Sizing(
        workload,
        enqueue,
        dequeue_size(xid_size, journal_format),
        end_size(xid_size, journal_format) if transactional else None,
        profile,
        size_for(profile, workload.depth, journal_format),
    )
