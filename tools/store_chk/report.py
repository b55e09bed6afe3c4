"""The output after the walk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qstore.formats.rhm.records import Kind, RecordHeader
from qstore.store.journal.enqueue_map import LOCKED
from qstore.tools.store_chk.maps import Maps
from qstore.tools.store_chk.text import xid_text
from qstore.tools.store_chk.walk import Walk


@dataclass(slots=True)
class Counts:
    """Number of records of each kind in the walk.

    Attributes:
        records: of every kind, including fillers.
        plain, transactional: enqueues without and with a transaction id.
        aborts, commits: ends of transactions.
    """

    records: int = 0
    plain: int = 0
    transactional: int = 0
    aborts: int = 0
    commits: int = 0

    @property
    def enqueues(self) -> int:
        """Enqueues, transactional or not."""
        return self.plain + self.transactional

    def add(self, header: RecordHeader) -> None:
        """Count a record by its kind; `records` is not changed."""
        if header.kind is Kind.ENQUEUE:
            if header.xid_size:
                self.transactional += 1
            else:
                self.plain += 1
        elif header.kind is Kind.ABORT:
            self.aborts += 1
        elif header.kind is Kind.COMMIT:
            self.commits += 1


def report_lines(counts: Counts, maps: Maps, walk: Walk | None) -> Iterator[str]:
    """The report, the walk's last line and the blank lines between them; an empty journal has no walk."""
    yield from ("", " === REPORT ====", "")
    yield f"Records:      {counts.plain:8d} non-transactional"
    yield f"              {counts.transactional:8d} transactional"
    yield f"              {counts.enqueues:8d} total"
    yield ""
    yield f"Transactions: {counts.aborts:8d} aborts"
    yield f"              {counts.commits:8d} commits"
    yield f"              {counts.aborts + counts.commits:8d} total"
    yield ""
    if walk is not None and maps.enqueued:
        yield from _enqueued_lines(maps, walk)
    else:
        yield "No remaining enqueued records found (emap empty)."
    yield ""
    if walk is not None and maps.transactions:
        yield from _transaction_lines(maps, walk)
    else:
        yield "No incomplete transactions found (tmap empty)."
    yield ""
    yield f"{counts.enqueues} enqueues, {counts.records} journal records processed."


def _enqueued_lines(maps: Maps, walk: Walk) -> Iterator[str]:
    yield "Remaining enqueued records (sorted by rid): "
    for _, place, state in maps.enqueued.in_rid_order():
        yield _record_line(walk, place) + (" (locked)" if state == LOCKED else "")
    yield f"WARNING: Enqueue-Dequeue mismatch, {len(maps.enqueued)} enqueued records remain."


def _transaction_lines(maps: Maps, walk: Walk) -> Iterator[str]:
    total = 0
    yield "Incomplete transactions: "
    for transaction in maps.transactions.values():
        for place in transaction.places:
            yield _record_line(walk, place)
        first = walk.record_at(transaction.places[0])
        xid = xid_text(walk.read_xid(first), first.header.xid_size)
        yield f" Total: {len(transaction.places)} records for {xid}"
        yield ""
        total += len(transaction.places)
    yield (
        f"WARNING: Incomplete transactions found, {len(maps.transactions)} xids remain"
        f" containing a total of {total} records."
    )


def _record_line(walk: Walk, place: int) -> str:
    record = walk.record_at(place)
    return f"  fid={record.file_number} {walk.text(record)}"
