"""The content of a journal of any format that is to be copied, and the geometries of version 2 that hold it.

It is counted before the new journal is built: every message that is kept, and the enqueues and dequeues of transactions
that stay open. Whether it fits is decided by the rules of `space`, for a journal that holds everything and from which
nothing was ever removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, MAX_PAGES, PAGE_SIZE, Geometry
from qstore.formats.rhm.headers import record_blocks
from qstore.formats.wording import plural, printable
from qstore.store.errors import StoreError
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Operation, Transaction
from qstore.store.journal.write.compaction import MAX_COPIED_BLOCKS
from qstore.store.journal.write.space import RingSpace
from qstore.store.recovery.prepared import DISTRIBUTED

FLUSH_BYTES: Final = 4 << 20  # collected before a write
WRITE_BYTES: Final = 1 << 20  # maximum of one write
MAX_VERSION_1_PAGES: Final = 32767  # of a file, as in qpidd (formats/rhm/README.md, 1.2)
_MIN_FILES: Final = 2  # minimum for a writer


@dataclass(slots=True)
class JournalContent:
    """The content of a journal to be built, in numbers.

    Attributes:
        blocks: of all records that are kept.
        removal_blocks: of the dequeues of open transactions among them.
        messages: number of messages among them.
        transactions: number of open transactions.
        outcome_blocks: of the records that will end these.
        largest: blocks of the longest record.
    """

    blocks: int = 0
    removal_blocks: int = 0
    messages: int = 0
    transactions: int = 0
    outcome_blocks: int = 0
    largest: int = 1

    def message(self, size: int, xid_size: int = 0) -> None:
        """Count a message with `size` bytes of data, enqueued by a transaction if there is an xid."""
        self.messages += 1
        self._record(record_blocks(size, xid_size))

    def removal(self, xid_size: int) -> None:
        """Count a dequeue by an open transaction."""
        self.removal_blocks += record_blocks(0, xid_size)
        self._record(record_blocks(0, xid_size))

    def transaction(self, xid_size: int) -> None:
        """Count an open transaction."""
        self.transactions += 1
        self.outcome_blocks += record_blocks(0, xid_size)

    def add(self, more: JournalContent) -> None:
        """Count the content of another journal too."""
        self.blocks += more.blocks
        self.removal_blocks += more.removal_blocks
        self.messages += more.messages
        self.transactions += more.transactions
        self.outcome_blocks += more.outcome_blocks
        self.largest = max(self.largest, more.largest)

    def _record(self, blocks: int) -> None:
        self.blocks += blocks
        self.largest = max(self.largest, blocks)

    def fits(self, geometry: Geometry, alignment: int) -> bool:
        """Whether a journal with that geometry, whose flushes are padded to `alignment` bytes, holds all of it."""
        if geometry.files < _MIN_FILES:
            return False
        space = RingSpace(geometry, alignment, min(geometry.data_size // BLOCK_SIZE, MAX_COPIED_BLOCKS))
        outcomes = self.outcome_blocks + self.transactions * space.flush
        if self.blocks + self.messages + outcomes > space.threshold:
            return False
        flushes = self.blocks * BLOCK_SIZE // FLUSH_BYTES + 2
        kept = self.blocks + space.reserve  # as the writer checks for the last message
        free = space.files * space.file - kept - flushes * space.flush
        return space.drains(free, self.messages, outcomes) or space.compacts(kept, self.largest, self.removal_blocks)


def content_of(journal: Journal, recovery: JournalRecovery, *, is_prepared_list: bool = False) -> JournalContent:
    """An upper bound of the content that recovery keeps of a journal: two removals of one message both count.

    Args:
        journal: the journal, open.
        recovery: the result of a walk over it: before it is resolved all open transactions count, and afterwards those
            in doubt.
        is_prepared_list: in which a decision without its prepare record gets a new one (`journal_copy.rebuild`).

    Raises:
        OSError: the journal cannot be read.
    """
    content, transactions = JournalContent(), list(recovery.transactions)
    # Once they are resolved, messages that transactions in doubt would enqueue are among the messages too.
    own = {each.place for transaction in transactions for each in transaction if each.is_enqueue}
    enqueued = {each.rid for transaction in transactions for each in transaction if each.is_enqueue}
    for _, place, _ in recovery.messages.in_place_order():
        if place not in own:
            content.message(journal.data_of_enqueue(place)[1])
    for transaction in transactions:
        kept = _kept(transaction, recovery, enqueued, is_prepared_list=is_prepared_list)
        xid_size = len(transaction.xid)
        if kept:
            content.transaction(xid_size)
        for operation in kept:
            if operation.is_enqueue:
                content.message(journal.data_of_enqueue(operation.place)[1], xid_size)
                continue
            content.removal(xid_size)
            if is_prepared_list and operation.rid not in enqueued:
                content.message(len(DISTRIBUTED), xid_size)
    return content


def _kept(
    transaction: Transaction, recovery: JournalRecovery, enqueued: set[int], *, is_prepared_list: bool
) -> list[Operation]:
    """The operations of an open transaction except removals of missing messages."""
    return [
        each
        for each in transaction
        if each.is_enqueue or is_prepared_list or each.rid in enqueued or recovery.messages.get(each.rid) is not None
    ]


def content_at_most(
    journal: Journal, recovery: JournalRecovery, fits: Callable[[JournalContent], bool]
) -> JournalContent:
    """An upper bound of the content that recovery keeps of a journal: everything it ever held, if that fits.

    Then the single records need not be read.

    Args:
        journal: the journal, open.
        recovery: the content that recovery keeps, resolved.
        fits: whether the new journal holds the content.

    Raises:
        OSError: the journal cannot be read.
    """
    blocks = journal.stream.size // BLOCK_SIZE
    most = JournalContent(blocks, messages=len(recovery.messages), largest=blocks)
    if not len(recovery.transactions) and fits(most):
        return most
    return content_of(journal, recovery)


def nearest_geometries(geometry: Geometry, max_pages: int, fits: Callable[[Geometry], bool]) -> Iterator[Geometry]:
    """The geometries for which `fits` holds, the nearest to `geometry` first: itself, more files, then 64 larger ones.

    Args:
        geometry: where the search begins.
        max_pages: pages of the largest file.
        fits: called with larger and larger geometries.
    """
    for files in range(geometry.files, MAX_FILES + 1):
        candidate = replace(geometry, files=files)
        if fits(candidate):
            yield candidate
    yield from larger_files(replace(geometry, files=MAX_FILES), max_pages, fits)


def larger_files(geometry: Geometry, max_pages: int, fits: Callable[[Geometry], bool]) -> Iterator[Geometry]:
    """The geometries for which `fits` holds with as many files as `geometry`, but larger ones, the smallest first."""
    sizes = range(geometry.data_size // PAGE_SIZE + 1, max_pages + 1)
    first = bisect_left(sizes, True, key=lambda pages: fits(Geometry.from_pages(geometry.files, pages)))
    for pages in sizes[first:]:
        yield Geometry.from_pages(geometry.files, pages)


def version_2_geometries(content: JournalContent, geometry: Geometry, alignment: int) -> Iterator[Geometry]:
    """The geometries of version 2 that hold `content`, the nearest to `geometry` first."""
    least = Geometry(max(geometry.files, _MIN_FILES), geometry.data_size)
    return nearest_geometries(least, MAX_PAGES, lambda candidate: content.fits(candidate, alignment))


def fitting_geometry(content: JournalContent, geometry: Geometry, alignment: int) -> Geometry | None:
    """The first of these, with at most 64 files of 32,768 pages; None if even that is too small."""
    return next(version_2_geometries(content, geometry, alignment), None)


def described(geometry: Geometry) -> str:
    """A geometry as text: `8 files of 24 pages`, in pages of 64 KiB if the files are whole pages."""
    pages, rest = divmod(geometry.data_size, PAGE_SIZE)
    size = f"{geometry.data_size:,} bytes" if rest else plural(pages, "page")
    return f"{plural(geometry.files, 'file')} of {size}"


def too_much(name: str, content: JournalContent, version: int = 2) -> StoreError:
    """The error if even the largest journal of a version does not hold the content of the queue called `name`."""
    if version == 1:
        largest = f"journal of version 1, {described(Geometry.from_pages(MAX_FILES, MAX_VERSION_1_PAGES))}"
    else:
        largest = f"journal, {described(Geometry.from_pages(MAX_FILES, MAX_PAGES))}"
        largest += ": consume some of them with the broker that wrote them"
    return StoreError(
        f'queue "{printable(name)}": {plural(content.messages, "message")} of '
        f"{content.blocks * BLOCK_SIZE:,} bytes do not fit into the largest {largest}"
    )
