"""Outcomes of a journal's records and messages, by a plain walk over them: the reference of the tables.

The product makes the same tables with Arrow's columns and the store's recovery (`tools.spark.recovery`, `audit`). Here
one loop over the records, in order, states the rules once more, record by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE

AT_THE_END: Final = 1 << 61  # as in `recovery`
_BUCKETS: Final = 200  # as in `audit.depth`


_NANOSECONDS: Final = 1_000_000_000


class Decision(NamedTuple):
    """What recovery does with a transaction that is open in the prepared list; `branch` is its number."""

    outcome: str
    branch: int


class _Message:
    """What the records of one record id amount to."""

    __slots__ = (
        "added", "added_flush", "added_last", "branch", "dequeue_position", "dequeues", "enqueues", "first_place",
        "last_place", "last_position", "locked", "moved", "pending", "removed", "removed_flush", "size", "timestamp",
        "transactional",
    )  # fmt: skip

    def __init__(self) -> None:
        self.added: int | None = None
        self.added_last = -1
        self.pending = False
        self.removed: int | None = None
        self.moved: int | None = None
        self.first_place: int | None = None
        self.last_place: int | None = None
        self.locked: int | None = None
        self.branch: int | None = None
        self.size: int | None = None
        self.timestamp: int | None = None
        self.added_flush: int | None = None
        self.removed_flush: int | None = None
        self.dequeue_position: int | None = None
        self.last_position = 0
        self.enqueues = self.dequeues = 0
        self.transactional = False


class Records:
    """The records of a journal, in order, as rows: each field that is needed here as a list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.kinds: list[str] = [row["type"] for row in rows]
        self.positions: list[int] = [row["position"] for row in rows]
        self.rids: list[int] = [row["rid"] for row in rows]
        self.targets: list[int] = [row["rid"] if row["dequeued_rid"] is None else row["dequeued_rid"] for row in rows]
        self.xids: list[str | None] = [row["xid"] for row in rows]
        self.sizes: list[int] = [row["size"] for row in rows]
        self.flushes: list[int | None] = [row["flush"] for row in rows]
        self.timestamps: list[int | None] = [row["timestamp"] for row in rows]
        self.prepared: list[str | None] = [row["prepared"] for row in rows]
        self.message_ids: list[str | None] = [row["message_id"] for row in rows]
        self._flags = [row["flags"] for row in rows]
        self.transient, self.moved = self.flagged("transient"), self.flagged("moved")

    def flagged(self, flag: str) -> frozenset[int]:
        """The records that have a flag."""
        return frozenset(index for index, flags in enumerate(self._flags) if flag in flags)


# ---- the prepared list ----


def decisions(records: Records) -> list[tuple[str, str | None, Decision]]:
    """The open transactions of a prepared list: xid, dtx or local or None, what recovery does with it."""
    prepared = records.prepared
    committed = records.flagged("commit")
    still_open: dict[str, list[int]] = {}
    for index, (kind, xid) in enumerate(zip(records.kinds, records.xids, strict=True)):
        if xid is None or index in records.transient:
            continue
        if kind in ("commit", "abort"):
            still_open.pop(xid, None)
        elif kind in ("enqueue", "dequeue"):
            still_open.setdefault(xid, []).append(index)
    found = []
    for xid, indexes in still_open.items():
        prepare = max((index for index in indexes if records.kinds[index] == "enqueue"), default=None)
        about = [
            index for index in indexes if records.kinds[index] == "dequeue"
            and (prepare is None or records.targets[index] == records.rids[prepare])
        ]  # fmt: skip
        two_phase = None if prepare is None else prepared[prepare]
        if about:
            outcome = "committing" if about[-1] in committed else "aborting"
        else:
            outcome = "in-doubt" if two_phase == "dtx" else "committing"
        found.append((xid, two_phase, Decision(outcome, records.positions[indexes[-1]])))
    return found


# ---- a queue's journal ----


class Outcomes(NamedTuple):
    """For each record of a journal: fate, time, branch, and the position of the end of its transaction."""

    fates: list[str | None]
    times: list[int | None]
    branches: list[int | None]
    ends: list[int | None]


def outcomes(records: Records, decided: Mapping[str, Decision]) -> Outcomes:
    """What became of each operation; the lists have None for other records.

    Args:
        records: of a queue's journal.
        decided: the open transactions of the store's prepared list.
    """
    count = len(records.kinds)
    fates: list[str | None] = [None] * count
    times: list[int | None] = list(records.positions)
    branches: list[int | None] = [None] * count
    ends: list[int | None] = [None] * count
    still_open: dict[str, list[int]] = {}
    kinds, positions = records.kinds, records.positions
    for index, xid in enumerate(records.xids):
        if xid is None:
            continue
        kind = kinds[index]
        if kind in ("commit", "abort"):
            fate, end = ("committed" if kind == "commit" else "aborted"), positions[index]
            for each in still_open.pop(xid, ()):
                fates[each], ends[each] = fate, end
                times[each] = end if kind == "commit" else None
        elif index not in records.transient:
            still_open.setdefault(xid, []).append(index)
    for xid, indexes in still_open.items():
        decision = decided.get(xid)
        outcome = "unprepared" if decision is None else decision.outcome
        for each in indexes:
            fates[each] = outcome
            times[each] = AT_THE_END if outcome in ("committing", "in-doubt") else None
            if outcome == "in-doubt" and decision is not None:
                branches[each] = decision.branch
    return Outcomes(fates, times, branches, ends)


def messages(records: Records, found: Outcomes) -> dict[int, _Message]:
    """Record id -> its message, or the dequeues of a missing one."""
    every: dict[int, _Message] = {}
    moved, transient = records.moved, records.transient
    for index, (kind, rid, place, time) in enumerate(
        zip(records.kinds, records.targets, records.positions, found.times, strict=True)
    ):
        if time is None or index in transient:
            continue
        if kind == "enqueue":
            message = every.get(rid)
            if message is None:
                message = every[rid] = _Message()
            _enqueue(message, records, found, index, is_copy=index in moved)
        elif kind == "dequeue":
            message = every.get(rid)
            if message is None:
                message = every[rid] = _Message()
            message.dequeues += 1
            if message.dequeue_position is None:
                message.dequeue_position = place
            if found.branches[index] is None:
                message.removed = time if message.removed is None else max(message.removed, time)
                message.removed_flush = _most(message.removed_flush, records.flushes[index])
            else:
                message.locked = _most(message.locked, found.branches[index])
        else:
            continue
        message.last_position = place
        if records.xids[index] is not None:
            message.transactional = True
    return every


def _enqueue(message: _Message, records: Records, found: Outcomes, index: int, *, is_copy: bool) -> None:
    place, time = records.positions[index], found.times[index]
    assert time is not None
    if message.first_place is None:
        message.first_place = place
    message.last_place = place
    if is_copy:
        message.moved = place
    else:
        message.enqueues += 1
    message.size = _most(message.size, records.sizes[index])
    message.timestamp = _least(message.timestamp, records.timestamps[index])
    message.added_flush = _least(message.added_flush, records.flushes[index])
    if found.branches[index] is not None:
        message.pending = True
        message.branch = _most(message.branch, found.branches[index])
        return
    message.added = time if message.added is None else min(message.added, time)
    message.added_last = max(message.added_last, time)


def _most(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def message_rows(every: Mapping[int, _Message]) -> list[tuple[Any, ...]]:
    """For each message the columns of `recovery.MESSAGES`."""
    rows = []
    for rid, message in every.items():
        removed, added = message.removed, message.added
        is_added = added is not None and message.added_last > (-1 if removed is None else removed)
        is_there = is_added or message.pending
        if is_there and message.locked is not None:
            state: str | None = "in-doubt-dequeue"
        elif is_added:
            state = "outstanding"
        elif is_there:
            state = "in-doubt-enqueue"
        else:
            state = None if added is None else "dequeued"
        used_again = is_added and removed is not None and added is not None and added < removed
        first = message.first_place if message.moved is None else message.moved
        place = message.last_place if used_again else first
        rows.append((
            rid, state, place, message.size,
            added if added is not None else AT_THE_END if message.pending else None,
            None if is_there else removed,
            message.branch if message.locked is None else message.locked,
            message.enqueues, message.dequeues, message.transactional, message.timestamp, message.added_flush,
            None if is_there else message.removed_flush, message.dequeue_position, message.last_position,
        ))  # fmt: skip
    return rows


def outstanding_rows(
    rows: Iterable[tuple[Any, ...]], branches: Mapping[int, str], *, by_position: bool
) -> Iterator[tuple[Any, ...]]:
    """rid, state, xid, position, size, delivery, for rows of `message_rows`.

    Args:
        rows: the messages.
        branches: number of a transaction in doubt -> its id.
        by_position: whether recovery delivers in the order of positions, not of record ids.
    """
    for row in rows:
        rid, state, position, size = row[:4]
        if state is not None and state != "dequeued":
            yield rid, state, branches.get(row[6]), position, size, position if by_position else rid


def lifetime_rows(
    rows: Iterable[tuple[Any, ...]], written: Mapping[int, int], data_size: int
) -> Iterator[tuple[Any, ...]]:
    """The columns of `audit.LIFETIMES`, for rows of `message_rows`.

    Args:
        rows: the messages.
        written: age of a file of the journal -> when it was started.
        data_size: bytes of data in a file; 0 if unknown.
    """
    for rid, state, position, size, added, removed, _, _, _, transactional, stamp, came, went, _, _ in rows:
        if state is None:
            continue
        enqueued = added if added < AT_THE_END else position
        dequeued = removed if removed is not None and removed < AT_THE_END else None
        begun = written.get(enqueued // data_size) if data_size else None
        ended = written.get(dequeued // data_size) if data_size and dequeued is not None else None
        waited = None if begun is None or ended is None else max((ended - begun) / _NANOSECONDS, 0.0)
        distance = None if dequeued is None else dequeued - enqueued
        yield (
            rid, state, enqueued, dequeued, came, went, stamp, size, transactional, distance, begun, ended, waited,
        )  # fmt: skip


def use_row(
    rows: Iterable[tuple[Any, ...]], records: Records, found: Outcomes, data_size: int
) -> tuple[int | None, int | None]:
    """reserved and longest, as `audit.use` has them.

    Args:
        rows: from `message_rows`.
        records: for the operations that were rolled back.
        found: their outcomes.
        data_size: bytes of data in a file of the journal.
    """
    lives = [(min(row[2], row[4]), row[5], row[3] or 0) for row in rows if row[1] is not None]
    for index, fate in enumerate(found.fates):
        if fate == "aborted" and records.kinds[index] == "enqueue":
            lives.append((records.positions[index], found.ends[index], records.sizes[index]))
    gone = [(begun, removed) for begun, removed, _ in lives if removed is not None and removed < AT_THE_END]
    longest = max((removed - begun + begun % data_size for begun, removed in gone), default=None)
    changes = [(begun, -size - BLOCK_SIZE) for begun, _, size in lives]
    changes += [(removed, size + BLOCK_SIZE) for _, removed, size in lives if removed is not None]
    changes.sort()  # at the same place, what comes before what goes
    held = most = 0
    for _, change in changes:
        held -= change
        most = max(most, held)
    return (most if lives else None), longest


def depth_rows(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    """The columns of `audit.DEPTH`, for rows of `message_rows`."""
    last = max((max((row[2] or 0) + (row[3] or 0), row[14] + BLOCK_SIZE) for row in rows), default=1)
    width = max(-(-last // _BUCKETS), 1)
    changes = []
    before = 0
    for row in rows:
        state, size, added, removed = row[1], row[3] or 0, row[4], row[5]
        if state is not None:
            changes.append((min(added, last), -1, size, size + BLOCK_SIZE))
        elif removed is not None:
            before += 1
        if removed is not None:
            changes.append((min(removed, last), 1, -size, 0 if state is None else -size - BLOCK_SIZE))
    changes.sort(key=itemgetter(0, 1))  # at the same place enqueues come first
    held, held_bytes, reserved = before, 0, 0
    index = 0
    while index < len(changes):
        bucket = min(changes[index][0] // width, _BUCKETS - 1)
        peak, peak_bytes, peak_reserved = held, held_bytes, reserved
        enqueues = dequeues = enqueued = 0
        while index < len(changes) and min(changes[index][0] // width, _BUCKETS - 1) == bucket:
            _, sign, size, change = changes[index]
            index += 1
            held -= sign
            held_bytes += size
            reserved += change
            if sign < 0:
                enqueues += 1
                enqueued += size
                peak, peak_bytes = max(peak, held), max(peak_bytes, held_bytes)
                peak_reserved = max(peak_reserved, reserved)
            else:
                dequeues += 1
        yield (
            bucket, bucket * width, (bucket + 1) * width, enqueues, dequeues, enqueued, held, held_bytes, peak,
            peak_bytes, peak_reserved,
        )  # fmt: skip


def duplicate_ids(journals: Iterable[tuple[Records, Outcomes]]) -> dict[str, list[int]]:
    """Message id -> the record ids of its effective enqueues, of the ids that the journals of a queue have twice."""
    several: dict[str, list[int]] = {}
    once: dict[str, int] = {}
    for records, found in journals:
        for index, name in enumerate(records.message_ids):
            if name is None or found.times[index] is None or records.kinds[index] != "enqueue":
                continue
            if index in records.moved or index in records.transient:
                continue
            rid = records.rids[index]
            if name in several:
                several[name].append(rid)
            elif name in once:
                several[name] = [once[name], rid]
            else:
                once[name] = rid
    return several


def gaps(rids: Iterable[int]) -> set[tuple[int, int, int]]:
    """The ranges of ids that are missing: after, before, missing."""
    ordered = sorted(set(rids))
    return {(after, before, before - after - 1) for after, before in pairwise(ordered) if before - after > 1}
