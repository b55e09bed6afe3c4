"""Stores whose journals have indexes all the time, killed at every call: also while an index is written.

Whenever a start recovers a journal from an index, the journal is read as a whole, too, and what is found must be the
same. Any index of any journal that was ever written in a history is tried once more at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

import qstore.store.live.growth as growth
from qstore.formats.rhm.index import IndexFileError, Run, decode_index_header, decode_parts, encode_index
from qstore.store.disk import Disk
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import MessagesSinceIndex
from qstore.store.journal.write import live_records, version_2_writer
from qstore.store.journal.write.flushes import JournalOwner
from qstore.store.journal.write.live_records import RestingRecords, parts_of
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, FileRing
from qstore.store.journal.write.version_2_writer import Version2Writer, WriterState, open_writer, state_of
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.recovery import index, journal_recovery
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.index import JournalIndex, _Taken
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_journal
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import BrokenPromiseError, require
from tests.faults.store_simulation import (
    PATH,
    GrowingLife,
    RunningLife,
    StoreCrashes,
    StoreLife,
    TransactingLife,
    tiny_rid_blocks,
)
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = replaces  # `MAX_AWAKE` of a compiled module
NOT_CLEAN = Closing(is_clean=False)


class IndexedLife(StoreLife):
    """One that is looked after all the time."""

    looks: ClassVar = True


class IndexedGrowingLife(GrowingLife):
    looks: ClassVar = True


class IndexedTransactingLife(TransactingLife):
    looks: ClassVar = True


class IndexedRunningLife(RunningLife):
    looks: ClassVar = True


class KeptDisk(StoreCrashes):
    """Its disk can be looked at."""

    def disk(self, seed: int) -> SimulatedDisk:
        self.kept = super().disk(seed)
        return self.kept


class BytesFile:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


def decoded(content: bytes) -> JournalIndex:
    file, resting = BytesFile(content), RestingRecords()
    header, offset, crc = decode_index_header(file)
    for part in decode_parts(file, header, offset, crc):
        if isinstance(part, Run):
            resting.add_run(part.first, part.messages, part.packed >> SIZE_BITS, part.packed & SIZE_MASK)
        else:
            resting.extend(*part)
    return JournalIndex(header, resting)


def disk_of(journal: Journal) -> Disk:
    return journal.stream._disk


def placed(state: WriterState, base: int) -> dict[int, tuple[int, int]]:
    """Record id -> log offset from the oldest file that is there, and blocks."""
    found = dict(state.live)
    if state.resting is not None:
        for rids, packed in state.resting.portions():
            found.update(zip(rids, packed, strict=True))
    return {rid: ((packed >> SIZE_BITS) - base, packed & SIZE_MASK) for rid, packed in found.items()}


def compare(found: RecoveredJournal, closing: Closing) -> None:
    """Require that a scan finds the same."""
    journal = open_journal(disk_of(found.journal), found.journal.path, found.journal.name)
    scanned = recover_journal(journal, closing)
    one, other = found.recovery, scanned.recovery
    require(not scanned.damage, f"a scan finds damage: {scanned.damage}")
    require(found.end == scanned.end, f"the end is {found.end}, and by a scan {scanned.end}")
    require(list(one.messages.in_rid_order()) == list(other.messages.in_rid_order()), "messages differ")
    require(sorted(one.messages.in_place_order()) == sorted(other.messages.in_place_order()), "places differ")
    require(len(one.messages) == len(other.messages), "counted differently")
    for state in (1, 2, 3):
        require(one.messages.count(state) == other.messages.count(state), "states are counted differently")
    opened = [[(each.xid, list(each)) for each in recovery.transactions] for recovery in (one, other)]
    require(opened[0] == opened[1], "transactions differ")
    require(one.highest_rid >= other.highest_rid, "the highest record id is too low")
    require(found.end_notices == scanned.end_notices, "the ends are described differently")
    assert one.indexed is not None
    state, expected = state_of(found.journal, one, found.end), state_of(journal, other, scanned.end)
    file = journal.files.geometry.data_size // 128
    bases = one.indexed.base, min(expected.salts) * file if expected.salts else 0
    require(placed(state, bases[0]) == placed(expected, bases[1]), "a writer would find records elsewhere")
    require(state.position - bases[0] == expected.position - bases[1], "a writer would go on elsewhere")
    same = ("flush", "last_flush", "is_sealed", "slots", "wasted", "lap")
    for name in same:
        require(getattr(state, name) == getattr(expected, name), f"{name} would differ")
    require(list(state.salts.values()) == list(expected.salts.values()), "salts would differ")
    require(state.origin - bases[0] // file == expected.origin - bases[1] // file, "the lap would differ")
    one_writer, other_writer = writer_of(journal, state), writer_of(journal, expected)
    for name in ("room", "largest", "outcomes", "escorts", "messages"):
        values = [getattr(each.records, name) for each in (one_writer, other_writer)]
        require(values[0] == values[1], f"a writer would count {name} differently: {values}")
    spaces = [one_writer.space, other_writer.space]
    oldest = [space.oldest - base // file for space, base in zip(spaces, bases, strict=True)]
    require(oldest[0] == oldest[1], f"a writer would find other files free: {oldest}")
    held = [
        {index - base // file: count for index, count in space._held.items()}
        for space, base in zip(spaces, bases, strict=True)
    ]
    require(held[0] == held[1], f"a writer would hold other files: {held}")
    journal.close()


def writer_of(journal: Journal, state: WriterState) -> Version2Writer:
    info = journal.info
    assert info is not None
    return open_writer(
        JournalOwner("q", info.queue_id, info.incarnation),
        journal.files.geometry,
        FileRing(info.numbers_of(journal.files.geometry.files), state.origin, state.lap),
        alignment=info.flush_alignment,
        page=4096,
        state=state,
        read=lambda _place, size: bytes(size),
        salt=lambda: 1,
        clock=lambda: 0,
    )


class Seen(Counter[str]):
    """What happened; `written` has every index file."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Indexes whenever there can be one, few messages that do not rest, and short runs. Recoveries are compared."""
    for name, value in (("MIN_BYTES", 1), ("QUIET_BYTES", 1), ("BUSY_BYTES", 1), ("_BUSY_FACTOR", 0)):
        monkeypatch.setattr(index, name, value)
    monkeypatch.setattr(version_2_writer, "MAX_AWAKE", 3)
    monkeypatch.setattr(live_records, "_MIN_FOUND", 2)
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    counts = Seen()
    recover, write = journal_recovery.recover_by_index, index.write_index

    def checked(journal: Journal, closing: Closing, *more: Any) -> RecoveredJournal | None:
        found = recover(journal, closing, *more)
        counts["used" if found is not None else "not used"] += 1
        if found is not None:
            compare(found, closing)
        return found

    def noted(disk: Any, parent: str, taken: _Taken) -> None:
        counts.written.append(b"".join(encode_index(taken.header, taken.parts())))
        write(disk, parent, taken)

    monkeypatch.setattr(journal_recovery, "recover_by_index", checked)
    monkeypatch.setattr(index, "write_index", noted)
    with tiny_rid_blocks():
        yield counts


def test_an_index_never_changes_what_a_start_finds(seen: Seen) -> None:
    crashes = StoreCrashes(share=0.3, life_class=IndexedLife)
    for seed in seeds_of_the_day(2):
        crashes.run(seed)
    assert crashes.kill_points > 50
    assert seen["used"] > 20


@pytest.mark.parametrize("life_class", [IndexedGrowingLife, IndexedTransactingLife, IndexedRunningLife])
def test_nor_in_rings_that_grow_nor_with_transactions_or_runs(seen: Seen, life_class: type[StoreLife]) -> None:
    crashes = StoreCrashes(share=0.1, life_class=life_class)
    for seed in seeds_of_the_day(2):
        crashes.run(seed, steps=90)
    assert crashes.kill_points > 20
    assert seen["used"] > 5


def test_any_index_that_was_ever_written_gives_the_same_or_nothing(seen: Seen) -> None:
    """Older ones are put back, those of other journals in the place of this one's, and each is damaged."""
    used = 0
    for seed in seeds_of_the_day(3):
        history = KeptDisk(share=0.0, life_class=IndexedLife)
        seen.written.clear()
        history.run(seed, lives=4, steps=60)
        for path in journals(history.kept):
            for content in seen.written:
                journal = open_journal(history.kept, path)
                used += journal_recovery.recover_by_index(journal, NOT_CLEAN, decoded(content)) is not None
                journal.close()
    assert used > 10
    content = max(seen.written, key=len)
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(IndexFileError):
            decoded(bytes(flipped))
    for size in range(len(content)):
        with pytest.raises(IndexFileError):
            decoded(content[:size])
    with pytest.raises(IndexFileError):
        decoded(content + b"\0")


def journals(disk: SimulatedDisk) -> list[str]:
    parent = f"{PATH}/rhm/jrnl"
    return [f"{parent}/{name}" for name in disk.names(parent)]


# ---- that these tests can fail ----


def unfolded(run: Run) -> tuple[range, range]:
    """The record ids of a run, and log offset and blocks of each."""
    step = (run.packed & SIZE_MASK) << SIZE_BITS
    return range(run.first, run.first + run.messages), range(run.packed, run.packed + run.messages * step, step)


def lacks_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    take = index.take_index

    def taken(*arguments: Any) -> _Taken | None:
        found = take(*arguments)
        if found is None or not found.header.messages:
            return found
        parts = [unfolded(each) if isinstance(each, Run) else each[:2] for each in found.parts()]
        entries = sorted(entry for part in parts for entry in zip(*part, strict=True))[:-1]
        header = found.header._replace(messages=len(entries))
        return _Taken(header, index._columns(entries), [])

    monkeypatch.setattr(index, "take_index", taken)


def is_of_a_later_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    take = index.take_index

    def taken(journal: QueueJournal, *more: Any) -> _Taken | None:
        found, batch = take(journal, *more), journal.writer.batch
        if found is None or batch.records.is_empty or batch.last_start >= batch.start:
            return found
        known = {"begin": batch.last_start, "flush": batch.last_number, "last_rid": batch.last_rid}
        return found._replace(header=found.header._replace(place=batch.start, **known))

    monkeypatch.setattr(index, "take_index", taken)


def keeps_what_is_dequeued_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(self: MessagesSinceIndex, rid: int) -> bool:
        return self.resting.get(rid) is not None or super(MessagesSinceIndex, self).remove(rid)

    monkeypatch.setattr(MessagesSinceIndex, "remove", remove)


def has_runs_one_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(rids: Sequence[int], packed: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        longer = 0
        for begin, end, is_run in parts_of(rids, packed):
            first, longer = begin + longer, int(is_run and end < len(rids))
            if first < end + longer:
                yield first, end + longer, is_run

    _replace_parts(monkeypatch, parts)


def has_runs_without_their_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(rids: Sequence[int], packed: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        for begin, end, is_run in parts_of(rids, packed):
            yield begin, end - is_run, is_run

    _replace_parts(monkeypatch, parts)


def _replace_parts(monkeypatch: pytest.MonkeyPatch, parts: object) -> None:
    """Where an index is written, and where a scan's records begin to rest."""
    monkeypatch.setattr(index, "parts_of", parts)
    monkeypatch.setattr(live_records, "parts_of", parts)


@pytest.mark.parametrize(
    "plant",
    [
        lacks_the_last_message, is_of_a_later_moment, keeps_what_is_dequeued_later, has_runs_one_too_long,
        has_runs_without_their_last,
    ],
)  # fmt: skip
def test_a_wrong_index_is_found(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    crashes = StoreCrashes(share=0.2, life_class=IndexedLife)
    with pytest.raises(BrokenPromiseError):
        crashes.run_all(range(20))
