"""Journals built anew from what can be read of others, and what fits into which."""

from __future__ import annotations

import errno
import itertools
import random
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.builders.journal_copy import Rebuilt, rebuild
from qstore.store.disk import Disk, OsDisk
from qstore.store.environment import Environment, tool_environment
from qstore.store.errors import JournalBusyError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.write.version_2_writer import state_of
from qstore.store.live.queue_journal import resume_journal
from qstore.store.recovery.prepared import prepared_transactions
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import simulated_environment
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.journal_history import GEOMETRIES, STEPS, History, Step, long_steps
from tests.support.memory_disk import BadRegion
from tests.support.profiles import examples, today

NEW = "/new"
PAGE = 1024
XID, OTHER = b"transaction", b"another"
RING = Geometry(4, 4096)


class Content(NamedTuple):
    """What a journal holds: messages in the queue's order; open transactions with the rids that they hold."""

    messages: list[tuple[int, bytes]]
    open: dict[bytes, tuple[dict[int, bytes], frozenset[int]]]


class Read(NamedTuple):
    journal: Journal
    recovery: JournalRecovery
    end: JournalEnd | None


def read(disk: Disk, directory: str = DIRECTORY) -> Read:
    journal = open_journal(disk, directory)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    return Read(journal, recovery, end)


def content_of(found: Read) -> Content:
    """By the rules of taking up: dequeues of what is not there count for nothing, and of several the latest does."""
    journal, recovery, _ = found

    def data(place: int) -> bytes:
        return b"".join(journal.data_chunks(*journal.data_of_enqueue(place)))

    messages = [(rid, data(place)) for rid, place, _ in recovery.messages.in_rid_order()]
    known = dict(messages)
    enqueues = {
        transaction.xid: {each.rid: data(each.place) for each in transaction if each.is_enqueue}
        for transaction in recovery.transactions
    }
    for own in enqueues.values():
        known.update(own)
    holder = {
        each.rid: transaction.xid
        for transaction in recovery.transactions
        for each in transaction
        if not each.is_enqueue and each.rid in known
    }
    opened = {
        xid: (own, frozenset(rid for rid, other in holder.items() if other == xid)) for xid, own in enqueues.items()
    }
    return Content(messages, {xid: parts for xid, parts in opened.items() if parts[0] or parts[1]})


def environment_on(disk: SimulatedDisk) -> Environment:
    return simulated_environment(disk, random.Random(1))


def info_for(found: Read, geometry: Geometry | None = None) -> JournalInfo:
    assert found.journal.info is not None
    info = found.journal.info._replace(incarnation=found.journal.info.incarnation + 1)
    return info if geometry is None else info._replace(geometry=geometry)


def rebuilt(found: Read, disk: SimulatedDisk, geometry: Geometry | None = None, *, seal: bool = False) -> Rebuilt:
    environment, info = environment_on(disk), info_for(found, geometry)
    return rebuild(environment, NEW, info, found.journal, found.recovery, seal=seal)


def assert_same(builder: JournalBuilder) -> None:
    """What `builder` holds, or what is readable of it, is in the journal that is built of it, and all of it durable."""
    old = read(builder.disk())
    content = content_of(old)
    disk = SimulatedDisk()
    report = rebuilt(old, disk)
    assert disk.open_now == 0
    disk.sync_directory("/")
    disk.crash(power_loss=True)
    new = read(disk, NEW)
    assert [*new.journal.damage, *new.recovery.damage] == []
    assert content_of(new) == content
    assert new.journal.info == report.info
    assert report.messages == len(content.messages) + sum(len(own) for own, _ in content.open.values())
    assert (report.transactions, report.unreadable) == (len(content.open), 0)
    assert new.recovery.messages.duplicate_count == 0
    if new.end is not None:
        assert not new.end.torn
        assert not new.end.sealed
    assert_taken_up(disk, new, content)


def assert_taken_up(disk: SimulatedDisk, new: Read, content: Content) -> None:
    """A writer goes on with it: what is open is committed, and every message dequeued."""
    assert new.journal.info is not None
    state = state_of(new.journal, new.recovery, new.end)
    journal = resume_journal(environment_on(disk), NEW, new.journal.info, new.journal.files.geometry, state, bound=PAGE)

    def drain() -> None:
        while files := journal.begin():
            for file in files:
                file.sync()
            journal.finish(None)

    rids = itertools.count(1 << 40)
    for xid in content.open:
        journal.writer.commit(xid, next(rids))
    for target in list(journal.writer.live):
        try:
            journal.writer.dequeue(next(rids), target)
        except JournalBusyError:
            drain()
            journal.writer.dequeue(next(rids), target)
    drain()
    journal.close()
    assert journal.writer.failure is None
    assert content_of(read(disk, NEW)) == Content([], {})


# ---- round trips ----


def test_rebuild_keeps_messages_and_open_transactions() -> None:
    builder = JournalBuilder(2, RING)
    first, locked, kept, gone = (builder.enqueue(b"message %d" % number).header.rid for number in range(4))
    builder.dequeue(first)
    builder.dequeue(locked, xid=XID)
    builder.enqueue(b"pending", xid=XID)
    own = builder.enqueue(b"passing", xid=OTHER).header.rid
    builder.dequeue(own, xid=OTHER)
    builder.dequeue(gone)
    builder.flush()
    content = content_of(read(builder.disk()))
    assert content.messages == [(locked, b"message 1"), (kept, b"message 2")]
    assert content.open == {XID: ({own - 1: b"pending"}, frozenset([locked])), OTHER: ({own: b"passing"}, {own})}
    assert_same(builder)


def test_a_journal_that_was_never_written_to() -> None:
    assert_same(JournalBuilder(2, RING))


@examples(80)
@given(steps=STEPS, geometry=GEOMETRIES)
def test_random_histories(steps: list[Step], geometry: Geometry) -> None:
    builder = JournalBuilder(2, geometry)
    history = History(builder)
    history.run(steps)
    history.flush()
    assert_same(builder)


@pytest.mark.parametrize("seed", range(12))
def test_long_histories_with_many_laps(seed: int) -> None:
    builder = JournalBuilder(2, Geometry(3 + seed % 3, 2048))
    history = History(builder)
    history.run(long_steps(seed))
    history.flush()
    assert_same(builder)


@pytest.mark.parametrize("seed", range(12))
def test_rebuild_of_a_damaged_journal_keeps_readable_records(seed: int) -> None:
    builder = JournalBuilder(2, Geometry(4, 4096))
    history = History(builder)
    history.run(long_steps(seed, 120))
    history.flush()
    rng = random.Random(seed)
    for _ in range(3):
        spoil(builder, rng.choice(builder.records))
    assert_same(builder)


def spoil(builder: JournalBuilder, record: PlacedRecord) -> None:
    builder.files[record.file][record.offset] ^= 0xFF


def test_interior_damage_is_left_behind() -> None:
    builder = JournalBuilder(2, RING)
    first = builder.enqueue(b"first").header.rid
    builder.flush()
    lost = builder.enqueue(b"lost")
    builder.flush()
    third = builder.enqueue(b"third").header.rid
    builder.flush()
    spoil(builder, lost)
    old = read(builder.disk())
    assert old.recovery.damage
    assert content_of(old).messages == [(first, b"first"), (third, b"third")]
    assert_same(builder)


def test_record_ids_and_their_order_stay() -> None:
    builder = JournalBuilder(2, RING)
    for rid in (50, 7, 90, 1):
        builder.enqueue(b"%d" % rid, rid=rid)
    builder.flush()
    assert [rid for rid, _ in content_of(read(builder.disk())).messages] == [1, 7, 50, 90]
    assert_same(builder)


def test_the_seal_of_a_clean_close() -> None:
    builder = JournalBuilder(2, RING)
    builder.enqueue(b"m")
    builder.flush()
    disk = SimulatedDisk()
    rebuilt(read(builder.disk()), disk, seal=True)
    end = read(disk, NEW).end
    assert end is not None
    assert end.sealed


def test_a_record_of_a_later_transaction_counts() -> None:
    """A transaction that was dropped left no record of that; the message was dequeued again by another."""
    builder = JournalBuilder(2, RING)
    rid = builder.enqueue(b"m").header.rid
    builder.dequeue(rid, xid=XID)
    builder.dequeue(rid, xid=OTHER)
    builder.flush()
    disk = SimulatedDisk()
    report = rebuilt(read(builder.disk()), disk)
    assert content_of(read(disk, NEW)) == Content([(rid, b"m")], {OTHER: ({}, frozenset([rid]))})
    assert report.transactions == 1


# ---- the prepared list ----

BRANCHES = [encode_dtx_xid(9, b"gid", b"%d" % number) for number in range(4)]


def prepared_list() -> JournalBuilder:
    return JournalBuilder(2, RING, queue_name="TplStore", base_name=TPL_BASE_NAME)


def outcomes_of(disk: Disk, directory: str = DIRECTORY) -> dict[bytes, Outcome]:
    journal, recovery, _ = read(disk, directory)
    two_phase = {
        each.place: b"".join(journal.data_chunks(*journal.data_of_enqueue(each.place))) != b"\0"
        for transaction in recovery.transactions
        for each in transaction
        if each.is_enqueue
    }
    return {each.xid: each.outcome for each in prepared_transactions(recovery.transactions, two_phase)}


def test_the_prepared_list_says_the_same() -> None:
    builder = prepared_list()
    for xid, flags in zip(BRANCHES, (None, COMMIT_DECISION, 0, None), strict=True):
        rid = builder.enqueue(b"\0" if xid == BRANCHES[3] else b"\1", xid=xid).header.rid
        if flags is not None:
            builder.dequeue(rid, xid=xid, flags=flags)
    builder.flush()
    expected = dict(
        zip(BRANCHES, (Outcome.IN_DOUBT, Outcome.COMMITTING, Outcome.ABORTING, Outcome.COMMITTING), strict=True)
    )
    disk = SimulatedDisk()
    assert outcomes_of(builder.disk()) == expected
    report = rebuilt(read(builder.disk()), disk)
    assert outcomes_of(disk, NEW) == expected
    assert report.info.base_name == TPL_BASE_NAME


@pytest.mark.parametrize(("flags", "outcome"), [(COMMIT_DECISION, Outcome.COMMITTING), (0, Outcome.ABORTING)])
def test_a_decision_stays_where_its_prepare_record_is_lost(flags: int, outcome: Outcome) -> None:
    builder = prepared_list()
    builder.enqueue(b"\1", xid=BRANCHES[0])
    builder.flush()
    prepare = builder.enqueue(b"\1", xid=BRANCHES[1])
    builder.flush()
    builder.dequeue(prepare.header.rid, xid=BRANCHES[1], flags=flags)
    builder.flush()
    spoil(builder, prepare)
    disk = SimulatedDisk()
    assert outcomes_of(builder.disk())[BRANCHES[1]] is outcome
    rebuilt(read(builder.disk()), disk)
    assert outcomes_of(disk, NEW) == {BRANCHES[0]: Outcome.IN_DOUBT, BRANCHES[1]: outcome}


# ---- what goes wrong ----


def test_a_message_that_cannot_be_read_again_is_left_out() -> None:
    builder = JournalBuilder(2, Geometry(4, 1 << 16))
    kept = builder.enqueue(b"kept").header.rid
    lost = builder.enqueue(b"x" * 2000)
    builder.enqueue(b"after")
    builder.flush()
    source = builder.disk()
    old = read(source)
    old.journal.close()
    file = f"{DIRECTORY}/{builder.name(lost.file)}"
    source.bad_regions.append(BadRegion(file, lost.offset + 1024, lost.offset + 1536))
    disk = SimulatedDisk()
    report = rebuilt(old, disk)
    assert content_of(read(disk, NEW)).messages == [(kept, b"kept"), (kept + 2, b"after")]
    assert (report.messages, report.unreadable) == (2, 1)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failing_disk(kind: str) -> None:
    builder = JournalBuilder(2, RING)
    builder.enqueue(b"m" * 500)
    builder.flush()
    disk = SimulatedDisk()
    disk.log = []
    rebuilt(read(builder.disk()), disk)
    number = max(index for index, line in enumerate(disk.log) if line.startswith(kind + " "))
    disk = SimulatedDisk()
    disk.fail_at = {number: errno.EIO}
    with pytest.raises(OSError, match="Input/output error: '/new/JournalData"):
        rebuilt(read(builder.disk()), disk)
    assert disk.open_now == 0


def test_no_room_for_the_files() -> None:
    builder = JournalBuilder(2, RING)
    builder.enqueue(b"m")
    builder.flush()
    with pytest.raises(OSError, match="No space left"):
        rebuilt(read(builder.disk()), SimulatedDisk(capacity=8192))


# ---- memory ----


@pytest.mark.parametrize(("count", "size", "most"), today([(1000, 65536, 24 << 20), (120_000, 50, 28 << 20)], 1))
def test_memory_is_bounded(tmp_path: Path, count: int, size: int, most: int) -> None:
    """Whatever passes through, it takes some MiB: for the bodies, and nothing for each message."""
    builder = JournalBuilder(2, Geometry(8, 16 << 20))
    builder.enqueue_many(count, bytes(size), flush_every=50)
    builder.write_to(tmp_path / "old")
    del builder
    old = read(OsDisk(), str(tmp_path / "old"))
    tracemalloc.start()
    report = rebuild(tool_environment(), str(tmp_path / "new"), info_for(old), old.journal, old.recovery, seal=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.messages == count
    assert peak < most, peak
    new = read(OsDisk(), str(tmp_path / "new"))
    assert len(new.recovery.messages) == count
    new.journal.close()
    old.journal.close()
