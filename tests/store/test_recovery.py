"""Recovery of one journal against a model: whole lives, crashes in the last flush, damage before it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import SECTOR_SIZE, Geometry
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, MOVED, TRANSIENT, Kind
from qstore.store.journal.directory import open_journal
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, OpenTransaction, Outcome
from qstore.store.recovery.prepared import prepared_transactions
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord, Sector
from tests.support.journal_history import (
    GEOMETRIES,
    STEPS,
    History,
    Step,
    expected_places,
    long_steps,
    recover,
    replay,
    surviving,
)
from tests.support.profiles import examples

VERSIONS = st.sampled_from([1, 2])
ALIGNMENTS = st.sampled_from([512, 512, 1024, 4096])


def live_history(
    version: int, geometry: Geometry, steps: list[Step], *, exact: bool = False, alignment: int = 512
) -> History:
    builder = JournalBuilder(version, geometry, exact_fit_length=exact, alignment=alignment if version == 2 else 512)
    history = History(builder)
    history.run(steps)
    return history


@examples(250)
@given(VERSIONS, GEOMETRIES, STEPS, st.booleans(), ALIGNMENTS, st.booleans())
def test_recovery_is_the_model(
    version: int, geometry: Geometry, steps: list[Step], exact: bool, alignment: int, sealed: bool
) -> None:
    history = live_history(version, geometry, steps * 3, exact=exact, alignment=alignment)
    history.flush()
    if sealed and history.fits(geometry.data_size):
        history.builder.seal()
    recovered = recover(history.builder.disk())
    assert recovered.damage == []
    assert recovered.places == expected_places(history.builder, history.live)
    if recovered.end is not None:
        assert not recovered.end.torn
        if version == 2:
            assert recovered.end.flush == history.builder.flush_number - 1
            if sealed and history.fits(geometry.data_size):
                assert recovered.end.sealed


CUT_WITHIN_A_RECORD_ID: list[Step] = [
    ("enqueue", 0), ("dequeue", 0), ("dequeue", 0), ("transient", 0), ("enqueue in", 339),
]  # fmt: skip
SAME_BODY_A_LAP_LATER: list[Step] = [
    ("enqueue", 0), ("enqueue", 0), ("dequeue", 0), ("dequeue", 0), ("dequeue", 0), ("large", 254),
]  # fmt: skip


@examples(400)
@given(VERSIONS, GEOMETRIES, STEPS, ALIGNMENTS, st.integers(0, 7), st.integers(0, 7), st.integers(0, 255))
# The sector that is lost begins with the upper bytes of a record id in a tail: zeros, as before. The record is whole.
@example(1, Geometry(2, 1024), CUT_WITHIN_A_RECORD_ID, 512, 1, 1, 0)
# The sector that is lost holds the body of a large message, and held that of an equal one a lap before.
@example(2, Geometry(4, 1024), SAME_BODY_A_LAP_LATER, 512, 2, 0, 1)
def test_a_crash_in_the_last_flush(
    version: int, geometry: Geometry, steps: list[Step], alignment: int, part: int, written: int, lost_mask: int
) -> None:
    """Version 1 writes a prefix of the flush; version 2 any sectors of one part of it, all before and none after.

    Args:
        version: of the journal.
        geometry: of its files.
        steps: what is in it; what comes after the last "flush" is in the flush that is cut.
        alignment: of version 2's flushes.
        part: in which part of the flush the crash comes, modulo their number.
        written: version 1: how many sectors of that part are written.
        lost_mask: version 2: which sectors of that part are not; bit 0 is the first.
    """
    history = live_history(version, geometry, steps * 2, alignment=alignment)
    builder = history.builder
    before = [bytes(file) for file in builder.files]
    builder.flush()
    flushed = [bytes(file) for file in builder.files]
    parts = builder.last_flush or [[]]
    part %= len(parts)
    if version == 1:
        lost = parts[part][written % (len(parts[part]) + 1) :]
    else:
        lost = [sector for index, sector in enumerate(parts[part]) if lost_mask >> index & 1]
    lost = [*lost, *(sector for later in parts[part + 1 :] for sector in later)]
    if version == 2:  # what is lost and was the same before is there all the same
        lost = [(at, offset) for at, offset in lost if differ(before[at], flushed[at], offset)]
    for number, offset in lost:
        builder.files[number][offset : offset + SECTOR_SIZE] = before[number][offset : offset + SECTOR_SIZE]
    recovered = recover(builder.disk())
    assert recovered.damage == []
    assert recovered.places in [expected_places(builder, state) for state in history.states]
    if not lost:
        assert recovered.places == expected_places(builder, history.live)
    if version == 1 and cuts_a_record(builder, lost, flushed):
        assert recovered.end is not None
        assert recovered.end.torn
    first = parts[0][:1]
    if version == 2 and alignment == SECTOR_SIZE and lost and first[0] not in lost and first[0][1]:
        assert recovered.end is not None
        assert recovered.end.torn


def differ(before: bytes, after: bytes, offset: int) -> bool:
    """Whether the sector at `offset` is another in `after`."""
    return before[offset : offset + SECTOR_SIZE] != after[offset : offset + SECTOR_SIZE]


def cuts_a_record(builder: JournalBuilder, lost: list[Sector], flushed: list[bytes]) -> bool:
    """Whether the sector of a record's header is there, and bytes of the record, up to its tail's end, are not.

    Args:
        builder: the journal, after the crash.
        lost: the sectors of the last flush that were not written.
        flushed: the files as they would be with them. What is lost and was the same before is there all the same.
    """
    for record in builder.records:
        if record.flush != builder.flush_number - 1 or (record.file, record.offset & -SECTOR_SIZE) in lost:
            continue
        places = map(builder.place, range(record.position, record.position + record.used))
        if any(builder.files[file][offset] != flushed[file][offset] for file, offset in places):
            return True
    return False


# ---- damage before the last flush ----


def damageable(history: History) -> list[PlacedRecord]:
    """The records after which stands one that proves that the journal goes on."""
    records = surviving(history.builder)
    if history.builder.version == 2:
        return [record for record in records if record.flush < records[-1].flush]
    proofs = [record.position for record in records if record.header.kind is not Kind.FILLER]
    return [record for record in records if proofs and record.position < proofs[-1]]


def flip(builder: JournalBuilder, position: int, bit: int) -> None:
    file, offset = builder.place(position)
    builder.files[file][offset] ^= 1 << bit


def check_damage(history: History, lost: list[PlacedRecord], first: PlacedRecord) -> None:
    """The damage is reported at `first`, and everything but `lost` is there."""
    builder = history.builder
    recovered = recover(builder.disk())
    rest = [record for record in surviving(builder) if record not in lost]
    assert recovered.places == expected_places(builder, replay(rest))
    path = f"{DIRECTORY}/{builder.name(first.file)}"
    assert [(damage.file, damage.offset) for damage in recovered.damage] == [(path, first.offset)]


@examples(300)
@given(GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_flipped_bit_in_version_2(geometry: Geometry, seed: int, data: st.DataObject) -> None:
    history = live_history(2, geometry, long_steps(seed, 100))
    history.flush()
    if records := damageable(history):
        record = data.draw(st.sampled_from(records))
        byte = data.draw(st.integers(0, record.used - 1))
        flip(history.builder, record.position + byte, data.draw(st.integers(0, 7)))
        check_damage(history, [record], record)


@examples(300)
@given(GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_flipped_bit_in_version_1(geometry: Geometry, seed: int, data: st.DataObject) -> None:
    """What version 1 can notice: the magic, the version, the overwrite indicator, the tail."""
    history = live_history(1, geometry, long_steps(seed, 100))
    history.flush()
    if records := damageable(history):
        record = data.draw(st.sampled_from(records))
        places = [(1, 0), (2, 7)]
        if record.header.kind is not Kind.FILLER:
            places += [(4, 1), (4, 7), (5, 0), (6, 0)]
        if record.header.has_tail:
            places += [(record.header.tail_offset + byte, byte % 8) for byte in range(12)]
        byte, bit = data.draw(st.sampled_from(places))
        flip(history.builder, record.position + byte, bit)
        check_damage(history, [record], record)


@examples(300)
@given(st.sampled_from([1, 2]), GEOMETRIES, st.integers(0, 2**32), st.data())
def test_a_zeroed_sector(version: int, geometry: Geometry, seed: int, data: st.DataObject) -> None:
    history = live_history(version, geometry, long_steps(seed, 100))
    history.flush()
    builder = history.builder
    if not (records := damageable(history)):
        return
    record = data.draw(st.sampled_from(records))
    # In version 1 a loss inside of a record, between its header and its tail, cannot be seen.
    within = data.draw(st.integers(0, (record.used - 1) // SECTOR_SIZE)) if version == 2 else 0
    start = record.position + within * SECTOR_SIZE
    start -= start % SECTOR_SIZE
    lost = [other for other in surviving(builder) if suffers(builder, other, start)]
    if not lost or not set(lost) <= set(records):
        return
    file, offset = builder.place(start)
    builder.files[file][offset : offset + SECTOR_SIZE] = bytes(SECTOR_SIZE)
    check_damage(history, lost, lost[0])


def suffers(builder: JournalBuilder, record: PlacedRecord, sector: int) -> bool:
    """Whether a record is damaged, and visibly so, where the sector at that position is zeroed."""
    tail = record.header.tail_offset
    whole = range(record.used)
    telling = whole if builder.version == 2 else [*range(4), *range(tail, record.used)]
    touched = (record.position + byte for byte in telling)
    return any(
        builder.files[file][offset]
        for file, offset in map(builder.place, (byte for byte in touched if sector <= byte < sector + SECTOR_SIZE))
    )


# ---- open transactions (formats/rhm/README.md, 6.2) ----

XID, OTHER_XID = b"\x06\x04\x07\x00branch", b"\x06\x04\x07\x00other"
ENQUEUED, LOCKED_BY, PENDING_IN, ABSENT = (LIVE, None), (LOCKED, XID), (PENDING, XID), None

# What the prepared list holds: distributed or not, and the decision that was recorded, if any. None: nothing.
PREPARED: dict[str, tuple[bool, bool | None] | None] = {
    "nothing": None,
    "distributed": (True, None),
    "local": (False, None),
    "distributed, commit": (True, True),
    "local, commit": (False, True),
    "distributed, abort": (True, False),
    "local, abort": (False, False),
}
# What becomes of a message dequeued in the transaction, enqueued in it, and both.
TABLE = {
    "nothing": (Outcome.UNPREPARED, ENQUEUED, ABSENT, ABSENT),
    "distributed": (Outcome.IN_DOUBT, LOCKED_BY, PENDING_IN, LOCKED_BY),
    "local": (Outcome.COMMITTING, ABSENT, ENQUEUED, ABSENT),
    "distributed, commit": (Outcome.COMMITTING, ABSENT, ENQUEUED, ABSENT),
    "local, commit": (Outcome.COMMITTING, ABSENT, ENQUEUED, ABSENT),
    "distributed, abort": (Outcome.ABORTING, ENQUEUED, ABSENT, ABSENT),
    "local, abort": (Outcome.ABORTING, ENQUEUED, ABSENT, ABSENT),
}


def prepared_outcomes(version: int, entry: tuple[bool, bool | None] | None) -> dict[bytes, Outcome]:
    """Write a prepared list with that entry for XID, and read it."""
    builder = JournalBuilder(version, Geometry(4, 1024), queue_name="TplStore", base_name="tpl")
    done = builder.enqueue(b"\1", xid=b"finished")
    if entry is not None:
        distributed, decision = entry
        prepared = builder.enqueue(b"\1" if distributed else b"\0", xid=XID)
        if decision is not None:
            builder.dequeue(prepared.header.rid, xid=XID, flags=COMMIT_DECISION if decision else 0)
    builder.dequeue(done.header.rid, xid=b"finished", flags=COMMIT_DECISION)
    builder.commit(b"finished")
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    journal.walk(recovery)
    kinds = {}
    for transaction in recovery.transactions:
        for operation in transaction:
            if operation.is_enqueue:
                place, size = journal.data_of_enqueue(operation.place)
                kinds[operation.place] = journal.stream.read(place, size) == b"\1"
    return {entry.xid: entry.outcome for entry in prepared_transactions(recovery.transactions, kinds)}


def states(
    builder: JournalBuilder, outcomes: Mapping[bytes, Outcome]
) -> tuple[dict[int, object], list[OpenTransaction]]:
    """Rid → state and xid of what recovery keeps; and the transactions that were open."""
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    journal.walk(recovery)
    resolved = recovery.resolve(outcomes)
    kept = list(recovery.outstanding(journal.format))
    assert len({rid for rid, _, _, _ in kept}) == len(kept)
    return {rid: (state, xid) for rid, _, state, xid in kept}, list(resolved)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("entry", PREPARED)
@pytest.mark.parametrize("dequeue_first", [False, True])
def test_resolution_through_the_prepared_list(version: int, entry: str, dequeue_first: bool) -> None:
    builder = JournalBuilder(version, Geometry(4, 1024))
    outside = builder.enqueue(b"outside").header.rid
    if dequeue_first:
        builder.dequeue(outside, xid=XID)
    inside = builder.enqueue(b"inside", xid=XID).header.rid
    both = builder.enqueue(b"both", xid=XID).header.rid
    builder.dequeue(both, xid=XID)
    if not dequeue_first:
        builder.dequeue(outside, xid=XID)
    untouched = builder.enqueue(b"untouched").header.rid
    builder.flush()
    outcome, *expected = TABLE[entry]
    kept, resolved = states(builder, prepared_outcomes(version, PREPARED[entry]))
    assert [kept.get(rid) for rid in (outside, inside, both)] == expected
    assert kept[untouched] == ENQUEUED
    assert resolved == [OpenTransaction(XID, outcome, 2, 2)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("entry", PREPARED)
@pytest.mark.parametrize("commit", [False, True])
def test_a_queue_that_has_its_own_record_needs_no_list(version: int, entry: str, commit: bool) -> None:
    """The crash came between two queues: this one has its commit or abort already."""
    builder = JournalBuilder(version, Geometry(4, 1024))
    outside = builder.enqueue(b"outside").header.rid
    builder.dequeue(outside, xid=XID)
    inside = builder.enqueue(b"inside", xid=XID).header.rid
    (builder.commit if commit else builder.abort)(XID)
    builder.flush()
    kept, resolved = states(builder, prepared_outcomes(version, PREPARED[entry]))
    assert kept == ({inside: ENQUEUED} if commit else {outside: ENQUEUED})
    assert resolved == []


@pytest.mark.parametrize("entry", PREPARED)
@pytest.mark.parametrize("first_copy_gone", [False, True])
@pytest.mark.parametrize("dequeue_moved", [False, True])
def test_a_relocated_transaction_resolves_the_same(entry: str, first_copy_gone: bool, dequeue_moved: bool) -> None:
    """Version 2: enqueue and dequeue in one branch; the enqueue's file is relocated, the dequeue stands further on."""
    builder = JournalBuilder(2, Geometry(4, 512))
    both = builder.enqueue(b"both", xid=XID).header.rid
    outside = builder.enqueue(b"outside").header.rid
    builder.fill(2)
    builder.dequeue(both, xid=XID)
    builder.dequeue(outside, xid=XID)
    builder.flush()
    builder.enqueue(b"both", rid=both, xid=XID, flags=MOVED)
    if dequeue_moved:
        builder.dequeue(both, xid=XID, flags=MOVED)
    builder.enqueue(b"outside", rid=outside, flags=MOVED)
    builder.dequeue(outside, xid=XID, flags=MOVED)
    builder.flush()
    if first_copy_gone:
        while builder.position <= 4 * 512:
            builder.enqueue(b"x")
        builder.flush()
    _, for_outside, _, for_both = TABLE[entry]
    kept, _ = states(builder, prepared_outcomes(2, PREPARED[entry]))
    assert kept.get(both) == for_both
    assert kept.get(outside) == for_outside


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dropped_first", [False, True])
def test_a_dropped_transaction_frees_no_other_ones_message(version: int, dropped_first: bool) -> None:
    """A broker died with the message locked, dropped that lock without a record, and a branch in doubt holds it now."""
    builder = JournalBuilder(version, Geometry(4, 1024))
    rid = builder.enqueue(b"wanted").header.rid
    begun = [OTHER_XID, XID] if dropped_first else [XID, OTHER_XID]
    for xid in begun:
        builder.enqueue(b"", xid=xid)
    for xid in (OTHER_XID, XID):
        builder.dequeue(rid, xid=xid)
    builder.flush()
    kept, resolved = states(builder, {XID: Outcome.IN_DOUBT})
    assert kept[rid] == LOCKED_BY
    assert [transaction.xid for transaction in resolved] == begun


def test_an_abort_frees_no_other_ones_message() -> None:
    builder = JournalBuilder(1, Geometry(4, 1024))
    rid = builder.enqueue(b"wanted").header.rid
    builder.dequeue(rid, xid=OTHER_XID)
    builder.dequeue(rid, xid=XID)
    builder.abort(OTHER_XID)
    builder.flush()
    assert states(builder, {XID: Outcome.IN_DOUBT})[0] == {rid: LOCKED_BY}


# ---- single rules ----


@pytest.mark.parametrize("version", [1, 2])
def test_unusual_records(version: int) -> None:
    builder = JournalBuilder(version, Geometry(4, 2048))
    kept = builder.enqueue(b"kept").header.rid
    builder.dequeue(999)  # nothing is there to remove
    builder.dequeue(998, xid=XID)
    builder.commit(XID)
    builder.commit(b"unknown")
    builder.abort(b"unknown")
    transient = builder.enqueue(b"transient", flags=TRANSIENT).header.rid
    builder.enqueue(b"transient", xid=XID, flags=TRANSIENT)
    builder.commit(XID)
    empty = builder.enqueue().header.rid
    again = builder.enqueue(b"the same rid", rid=kept)
    locked = builder.enqueue(b"locked").header.rid
    builder.dequeue(locked, xid=OTHER_XID)
    builder.dequeue(locked)  # goes even though it is locked
    highest = builder.abort(b"none", rid=5000).header.rid
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    journal.walk(recovery)
    recovery.resolve({})
    assert [rid for rid, _, _, _ in recovery.outstanding(JournalFormat(version))] == [kept, empty]
    assert transient not in (kept, empty)
    assert recovery.highest_rid == highest
    assert [duplicate.rid for duplicate in recovery.messages.duplicates] == [kept]
    assert journal.stream.locate(recovery.messages.duplicates[0].place)[1] == again.offset
    assert recovery.damage == []


def test_version_1_external_record() -> None:
    """The record has the data's size only, as they are elsewhere: the next record follows at once."""
    builder = JournalBuilder(1, Geometry(4, 1024))
    external = builder.enqueue(size=2**63, flags=EXTERNAL).header.rid
    after = builder.enqueue(b"after").header.rid
    builder.flush()
    journal = open_journal(builder.disk(), DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    assert end is not None
    assert not end.torn
    entries = list(recovery.outstanding(JournalFormat.VERSION_1))
    assert [rid for rid, _, _, _ in entries] == [external, after]
    assert journal.data_of_enqueue(entries[0][1])[1] == 0


def test_order_of_delivery() -> None:
    """Version 1 delivers in journal order, version 2 in rid order."""
    for version in (1, 2):
        builder = JournalBuilder(version, Geometry(4, 1024))
        for rid in (5, 3, 9, 4):
            builder.enqueue(b"", rid=rid)
        builder.enqueue(b"", rid=2, xid=XID)
        builder.enqueue(b"", rid=8)
        builder.commit(XID)
        builder.flush()
        kept, _ = states(builder, {})
        assert list(kept) == ([5, 3, 9, 4, 2, 8] if version == 1 else [2, 3, 4, 5, 8, 9])


def test_version_2_a_moved_record_keeps_its_place_in_the_queue() -> None:
    builder = JournalBuilder(2, Geometry(4, 512))
    first = builder.enqueue(b"first").header.rid
    second = builder.enqueue(b"second").header.rid
    moved = builder.enqueue(b"first", rid=first, flags=MOVED)
    builder.flush()
    assert recover(builder.disk()).places == expected_places(builder, {first: moved.position, second: 128})
