"""Random histories of stores as rows of the table of records, and what recovery itself makes of them.

A history is what a broker does: it enqueues, dequeues, works in transactions, prepares and decides them, relocates
records, and is killed and started again. The same records go to Spark as rows and to `JournalRecovery` one by one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from qstore.formats.rhm.records import COMMIT_DECISION, MOVED, TRANSIENT, Kind, RecordHeader
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery
from qstore.store.recovery.prepared import prepared_transactions

PREPARED_LIST: Final = "TplStore"
SCHEMA: Final = (
    "store string, format string, queue string, journal string, file string, offset bigint, position bigint, "
    "type string, rid bigint, dequeued_rid bigint, xid string, prepared string, flags array<string>, flush bigint, "
    "size bigint, damage string, damage_kind string, consequence string, message_id string, timestamp bigint"
)
_STATES: Final = {LIVE: "outstanding", LOCKED: "in-doubt-dequeue", PENDING: "in-doubt-enqueue"}
_SIZE: Final = 256
_NAMES: Final = {MOVED: "moved", TRANSIENT: "transient"}

Row = dict[str, Any]


class Written(NamedTuple):
    """A record of a journal."""

    header: RecordHeader
    place: int
    xid: bytes
    two_phase: bool = False


@dataclass
class _Branch:
    """A transaction that is open."""

    xid: bytes
    enqueued: list[int] = field(default_factory=list)
    dequeued: list[int] = field(default_factory=list)


class History:
    """A store with one queue and a prepared list.

    Args:
        seed: of all that happens.
        steps: how much.
    """

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.store = f"/fleet/{seed:04d}"
        self._random = random.Random(seed)
        self._rid = 0
        self.queue: list[Written] = []
        self.prepared: list[Written] = []
        self._live: list[int] = []
        self._locked: set[int] = set()
        self._open: dict[bytes, _Branch] = {}
        self._listed: dict[bytes, tuple[int, bool]] = {}
        for _ in range(steps):
            self._step()
        for branch in list(self._open.values()):
            self._leave(branch)

    # ---- what happens ----

    def _step(self) -> None:
        actions = (self._enqueue, self._enqueue, self._dequeue, self._operate, self._operate, self._finish, self._move,
                   self._transient, self._dangle, self._restart)  # fmt: skip
        weights = (6, 6, 6, 6, 6, 3, 4, 1, 1, 0.5)
        self._random.choices(actions, weights)[0]()

    def _enqueue(self) -> None:
        self._live.append(self._write(Kind.ENQUEUE))

    def _transient(self) -> None:
        self._write(Kind.ENQUEUE, flags=TRANSIENT)

    def _dangle(self) -> None:
        self._write(Kind.DEQUEUE, dequeued_rid=self._random.randrange(1 << 20, 1 << 21))

    def _dequeue(self) -> None:
        free = [rid for rid in self._live if rid not in self._locked]
        if free:
            rid = self._random.choice(free)
            self._live.remove(rid)
            self._write(Kind.DEQUEUE, dequeued_rid=rid)

    def _operate(self) -> None:
        branch = self._random.choice([*self._open.values(), None, None])
        if branch is None:
            xid = self._random.randrange(12).to_bytes(8, "big")  # few, so that they are used again
            if xid in self._open:
                return
            branch = self._open[xid] = _Branch(xid)
        free = [rid for rid in self._live if rid not in self._locked]
        if free and self._random.random() < 0.5:
            rid = self._random.choice(free)
            self._locked.add(rid)
            branch.dequeued.append(rid)
            self._write(Kind.DEQUEUE, branch.xid, dequeued_rid=rid)
        else:
            branch.enqueued.append(self._write(Kind.ENQUEUE, branch.xid))

    def _finish(self) -> None:
        if not self._open:
            return
        branch = self._open.pop(self._random.choice(list(self._open)))
        commits = self._random.random() < 0.6
        if self._random.random() < 0.5:
            rid = self._list(branch.xid, Kind.ENQUEUE, two_phase=True)
            self._list(branch.xid, Kind.DEQUEUE, dequeued_rid=rid, flags=COMMIT_DECISION if commits else 0)
            self._list(branch.xid, Kind.COMMIT if commits else Kind.ABORT)
        self._write(Kind.COMMIT if commits else Kind.ABORT, branch.xid)
        self._locked.difference_update(branch.dequeued)
        if commits:
            self._live += branch.enqueued
            self._live = [rid for rid in self._live if rid not in branch.dequeued]

    def _move(self) -> None:
        """Relocate a record: with the dequeues that lock it, or as part of the transaction that would enqueue it."""
        branch = next((each for each in self._open.values() if each.enqueued), None)
        if branch is not None and self._random.random() < 0.3:
            self._write(Kind.ENQUEUE, branch.xid, rid=self._random.choice(branch.enqueued), flags=MOVED)
        elif self._live:
            rid = self._random.choice(self._live)
            self._write(Kind.ENQUEUE, rid=rid, flags=MOVED)
            for branch in self._open.values():
                if rid in branch.dequeued:
                    self._write(Kind.DEQUEUE, branch.xid, dequeued_rid=rid, flags=MOVED)

    def _restart(self) -> None:
        """A crash: what was not prepared leaves no more records."""
        for branch in self._open.values():
            self._locked.difference_update(branch.dequeued)
        self._open.clear()

    def _leave(self, branch: _Branch) -> None:
        """The end: what the prepared list says of a transaction that is open."""
        decided = self._random.randrange(6)
        if decided == 0:
            return
        rid = self._list(branch.xid, Kind.ENQUEUE, two_phase=decided != 1)
        if decided in (4, 5):
            self._list(branch.xid, Kind.DEQUEUE, dequeued_rid=rid, flags=COMMIT_DECISION if decided == 4 else 0)

    # ---- records ----

    def _write(
        self, kind: Kind, xid: bytes = b"", *, rid: int | None = None, dequeued_rid: int = 0, flags: int = 0
    ) -> int:
        return _append(self.queue, self._header(kind, xid, rid, dequeued_rid, flags), xid)

    def _list(self, xid: bytes, kind: Kind, *, dequeued_rid: int = 0, flags: int = 0, two_phase: bool = False) -> int:
        return _append(self.prepared, self._header(kind, xid, None, dequeued_rid, flags), xid, two_phase)

    def _header(self, kind: Kind, xid: bytes, rid: int | None, dequeued_rid: int, flags: int) -> RecordHeader:
        if rid is None:
            self._rid += 1
            rid = self._rid
        return RecordHeader(kind, 2, flags, rid, len(xid), 1, dequeued_rid)

    # ---- as rows, and as recovery has it ----

    def rows(self) -> Iterator[Row]:
        """The store's rows in the table of records."""
        for queue, records in ((PREPARED_LIST, self.prepared), ("orders", self.queue)):
            for record in records:
                yield _row(self.store, queue, record)

    def recovered(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The outstanding messages (rid, place, state, xid), and the open transactions (xid, state, numbers)."""
        listed = _walked(self.prepared)
        kinds = {record.place: record.two_phase for record in self.prepared}
        prepared = prepared_transactions(listed.transactions, kinds)
        queue = _walked(self.queue)
        opened = queue.resolve({each.xid: each.outcome for each in prepared})
        states = {each.xid: (each.outcome.value, 0, 0) for each in prepared}
        states |= {each.xid: (each.outcome.value, each.enqueues, each.dequeues) for each in opened}
        messages = [
            (rid, place, _STATES[state], None if xid is None else xid.hex())
            for rid, place, state, xid in queue.outstanding(JournalFormat.VERSION_2)
        ]
        return messages, sorted((xid.hex(), *state) for xid, state in states.items())


def _append(records: list[Written], header: RecordHeader, xid: bytes, two_phase: bool = False) -> int:
    records.append(Written(header, len(records) * _SIZE, xid, two_phase))
    return header.rid


def _walked(records: list[Written]) -> JournalRecovery:
    recovery = JournalRecovery()
    for header, place, xid, _ in records:
        recovery.record(header, place, xid)
    return recovery


def _row(store: str, queue: str, record: Written) -> Row:
    header, place, xid, two_phase = record
    is_prepare = queue == PREPARED_LIST and header.kind is Kind.ENQUEUE
    is_decision = header.kind is Kind.DEQUEUE and header.flags & COMMIT_DECISION
    names = ["commit"] if is_decision else [name for bit, name in _NAMES.items() if header.flags & bit]
    return row(
        store,
        queue,
        place,
        header.kind.label,
        rid=header.rid,
        dequeued_rid=header.dequeued_rid if header.kind is Kind.DEQUEUE else None,
        xid=xid.hex() or None,
        prepared=("dtx" if two_phase else "local") if is_prepare else None,
        flags=names,
    )


def row(store: str, queue: str, position: int, kind: str, **fields: Any) -> Row:
    """A row of the table of records."""
    journal = f"{store}/{queue}"
    nothing = dict.fromkeys(part.split()[0] for part in SCHEMA.split(", "))
    named = {"store": store, "format": "qstore", "queue": queue, "journal": journal, "file": f"{journal}/0000"}
    placed = {"offset": position + 512, "position": position, "type": kind, "size": _SIZE, "flags": []}
    return {**nothing, **named, **placed, **fields}
