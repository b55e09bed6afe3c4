"""A version-1 writer's life beside a model, an independent layout and the files that a crash leaves, for tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, SECTOR_SIZE, Geometry, padded
from qstore.formats.rhm.records import COMMIT_DECISION, TRANSIENT
from qstore.store.errors import JournalFullError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery, Outcome
from qstore.store.journal.write.flushes import Step
from qstore.store.journal.write.version_1_writer import Version1State, Version1Writer, state_of
from qstore.store.recovery.journal_recovery import contradictions
from tests.support.journal_builder import DIRECTORY, JournalBuilder
from tests.support.memory_disk import MemoryDisk

SECONDS = 1_700_000_000  # of the first header, as the builder has it
BILLION = 1_000_000_000


def refused_by_threshold(
    file_blocks: int, files: int, counts: Sequence[int], current: int, used: int, record: int
) -> bool:
    """The formula of formats/rhm/README.md, 3.5, line by line."""
    cap = max(-(-file_blocks * files * 20 // 100), file_blocks)
    forward = used + record + cap
    at = current
    in_use = overwrite = False
    while forward > 0 and not (at != current and counts[at] > 0):
        forward -= min(forward, file_blocks)
        if forward > 0:
            at = (at + 1) % files
            if at == current:
                overwrite = True
        if counts[at] > 0:
            in_use = True
    return (at != current and in_use) or overwrite


def apply(images: list[bytearray], step: Step, sectors: int | None = None) -> int:
    """Do a step's writes, or their first `sectors`; how many sectors were written."""
    done = 0
    for write in step.writes:
        for at in range(0, len(write.content), SECTOR_SIZE):
            if sectors is not None and done == sectors:
                return done
            piece = bytes(write.content[at : at + SECTOR_SIZE])
            images[write.file][write.offset + at : write.offset + at + len(piece)] = piece
            done += 1
    return done


def check_step(step: Step, geometry: Geometry, page: int, *, first: bool) -> None:
    """One file only, in order, cut at the pages of the data area, and all of it synced."""
    files = {write.file for write in step.writes}
    assert len(files) == 1
    assert files <= set(step.files)
    assert first or files == set(step.files)
    if step.writes[0].offset == 0:
        assert [len(write.content) for write in step.writes] == [FILE_HEADER_SIZE]
        return
    for write in step.writes:
        begin = write.offset - DATA_OFFSET
        end = begin + len(write.content)
        assert 0 <= begin < end <= geometry.data_size
        assert end % SECTOR_SIZE == 0
        assert begin % SECTOR_SIZE == 0 or (first and write is step.writes[0])  # fillers after a torn record
        assert begin // page == (end - 1) // page
    for earlier, later in pairwise(step.writes):
        assert earlier.offset + len(earlier.content) == later.offset
        assert (later.offset - DATA_OFFSET) % page == 0


@dataclass
class Model:
    """Record id -> place of what is enqueued, also transiently; xid -> the same of what is open, and its dequeues."""

    live: dict[int, int] = field(default_factory=dict)
    transient: dict[int, int] = field(default_factory=dict)
    open: dict[bytes, tuple[dict[int, int], set[int]]] = field(default_factory=dict)

    def locked(self) -> set[int]:
        return {rid for _, dequeues in self.open.values() for rid in dequeues}

    def held(self) -> Iterator[int]:
        """The places of all that holds its file back."""
        yield from self.live.values()
        yield from self.transient.values()
        for enqueues, _ in self.open.values():
            yield from enqueues.values()

    def free(self) -> list[int]:
        locked = self.locked()
        return [rid for rid in (*self.live, *self.transient) if rid not in locked]


class Life:
    """A journal from its making on, through flushes, crashes and restarts."""

    def __init__(self, geometry: Geometry, page: int) -> None:
        self.geometry, self.page = geometry, page
        self.next_rid = 1
        self.prefix = b""  # of each message
        self.dropped: set[bytes] = set()
        self.refused = {"full": 0, "threshold": 0}
        self.laps = 0
        self.expected: str | None = None
        self._xids = 0
        self._begin()

    def _begin(self) -> None:
        """A new journal: the first, or one in place of one that is full for good."""
        self.model = Model()
        self.states = [Model()]  # after each record since the last flush
        self.images = [bytearray(self.geometry.file_size) for _ in range(self.geometry.files)]
        self.builder = JournalBuilder(1, self.geometry)
        self.next_header = 0
        self.writer = self.make_writer(None)
        self.is_stuck = False

    def make_writer(self, state: Version1State | None) -> Version1Writer:
        return Version1Writer("q", self.geometry, page=self.page, clock=self.clock, state=state)

    def clock(self) -> int:
        self.next_header += 1
        return (SECONDS + self.next_header - 1) * BILLION

    # ---- what the writer takes ----

    def counts(self) -> list[int]:
        counts = [0] * self.geometry.files
        for place in self.model.held():
            counts[place // self.geometry.data_size % self.geometry.files] += 1
        return counts

    def verdict(self, size: int, *, enqueue: bool) -> str | None:
        """Whether a record of `size` bytes is to be refused, and how."""
        files, data_size, position = self.geometry.files, self.geometry.data_size, self.builder.position
        counts = self.counts()
        current, used = position // data_size % files, position % data_size
        if used == 0 and counts[current]:
            return "full"
        if enqueue:
            blocks = [size // BLOCK_SIZE for size in (data_size, used, size)]
            if refused_by_threshold(blocks[0], files, counts, current, blocks[1], blocks[2]):
                return "threshold"
        if (position + size - 1) // data_size - position // data_size >= files:
            return "full"
        return "full" if any(counts[number] for number in self.builder.entered_by(size)) else None

    def attempt(self, size: int, *, enqueue: bool = False) -> bool:
        """Whether the record that comes now is to be taken."""
        self.expected = self.verdict(padded(size), enqueue=enqueue)
        assert list(self.writer.counts) == self.counts()
        return self.expected is None

    def refusal(self, error: JournalFullError) -> None:
        texts = {
            "full": 'Journal full on queue "q".',
            "threshold": 'Enqueue capacity threshold exceeded on queue "q". Consume messages; or ',
        }
        assert self.expected is not None
        assert str(error).startswith(texts[self.expected])
        self.refused[self.expected] += 1

    def take(self, taken: bool) -> None:
        assert taken, "the writer took what it should refuse"
        self.states.append(copy.deepcopy(self.model))
        assert self.writer.position * BLOCK_SIZE % (2 * self.geometry.capacity) == (
            self.builder.position % (2 * self.geometry.capacity)
        )

    def rid(self) -> int:
        self.next_rid += 1
        return self.next_rid - 1

    # ---- steps ----

    def run(self, steps: Sequence[tuple[str, int]]) -> None:
        for action, number in steps:
            getattr(self, action)(number)
            if self.is_stuck:
                self.restart(number)
                self.laps += self.builder.position // self.geometry.capacity
                self._begin()

    def enqueue(self, number: int) -> None:
        self._put(b"%03d-" % number * (number * number % 60), b"", number)

    def large(self, number: int) -> None:
        self._put(b"L" * (self.geometry.data_size * (number % 5) // 2 + number % 128), b"", number)

    def enqueue_in(self, number: int) -> None:
        self._put(b"t" * (number % 300), self._xid(number), number)

    def transient(self, number: int) -> None:
        self._put(b"x" * (number % 200), b"", number, transient=True)

    def _put(self, data: bytes, xid: bytes, number: int, *, transient: bool = False) -> None:
        data = self.prefix + data
        rid, cut = self.rid(), number % (len(data) + 1)
        taken = self.attempt(44 + len(xid) + len(data), enqueue=True)
        try:
            self.writer.enqueue(rid, [data[:cut], data[cut:]], xid=xid, transient=transient)
        except JournalFullError as error:
            self.refusal(error)
            return
        position = self.builder.enqueue(data, rid=rid, xid=xid, flags=TRANSIENT if transient else 0).position
        if xid:
            self.model.open.setdefault(xid, ({}, set()))[0][rid] = position
        else:
            (self.model.transient if transient else self.model.live)[rid] = position
        self.take(taken)

    def dequeue(self, number: int) -> None:
        if free := self.model.free():
            self._dequeue(free[number % len(free)])

    def oldest(self, number: int) -> None:
        if free := self.model.free():
            self._dequeue(free[0])

    def _dequeue(self, target: int) -> bool:
        rid = self.rid()
        taken = self.attempt(32)
        try:
            self.writer.dequeue(rid, target)
        except JournalFullError as error:
            self.refusal(error)
            self.is_stuck = True
            return False
        self.builder.dequeue(target, rid=rid)
        self.model.live.pop(target, None)
        self.model.transient.pop(target, None)
        self.take(taken)
        return True

    def dequeue_in(self, number: int) -> None:
        xid, rid = self._xid(number), self.rid()
        enqueues, dequeues = self.model.open.get(xid, ({}, set()))
        targets = [rid for rid in (*self.model.free(), *enqueues) if rid not in dequeues | set(self.model.transient)]
        if not targets:
            return
        target, decision = targets[number % len(targets)], number % 3 == 0
        taken = self.attempt(44 + len(xid))
        try:
            self.writer.dequeue(rid, target, xid=xid, commit_decision=decision)
        except JournalFullError as error:
            self.refusal(error)
            return
        self.builder.dequeue(target, rid=rid, xid=xid, flags=COMMIT_DECISION if decision else 0)
        self.model.open.setdefault(xid, ({}, set()))[1].add(target)
        self.take(taken)

    def _xid(self, number: int) -> bytes:
        if len(self.model.open) <= number % 3:
            self._xids += 1
            return b"xid-%d" % self._xids
        return list(self.model.open)[number % len(self.model.open)]

    def commit(self, number: int) -> None:
        self._end(number, commit=True)

    def abort(self, number: int) -> None:
        self._end(number, commit=False)

    def _end(self, number: int, *, commit: bool) -> bool:
        if not self.model.open:
            return False
        xid, rid = list(self.model.open)[number % len(self.model.open)], self.rid()
        taken = self.attempt(36 + len(xid))
        try:
            (self.writer.commit if commit else self.writer.abort)(rid, xid)
        except JournalFullError as error:
            self.refusal(error)
            return False
        (self.builder.commit if commit else self.builder.abort)(xid, rid=rid)
        enqueues, dequeues = self.model.open.pop(xid)
        if commit:
            self.model.live |= enqueues
            for target in dequeues:
                del self.model.live[target]
        self.take(taken)
        return True

    def drain(self, number: int) -> None:
        """Consumers keep up: transactions end, and few messages stay."""
        while self._end(number, commit=True):
            pass
        while len(free := self.model.free()) > number % 4 and self._dequeue(free[0]):
            pass

    def flush(self, number: int = 0) -> None:
        """Write and sync all; what is on the disk is what the builder lays out."""
        before, moved = self.writer.synced, []
        for step in self.steps():
            apply(self.images, step)
            self.writer.flushed()
            moved.append(self.writer.synced)
        self.builder.flush()
        assert moved == [before] * (len(moved) - 1) + [before + 1] * bool(moved), "with the last step, not before"
        assert not self.writer.is_dirty
        assert self.writer.unsynced == 0
        assert self.writer.synced == self.writer.batch_number - 1
        assert self.images == self.builder.files
        self.states = [copy.deepcopy(self.model)]

    def steps(self) -> Iterator[Step]:
        first = True
        while (step := self.writer.next_flush()) is not None:
            assert self.writer.is_dirty
            assert self.writer.next_flush() is None
            check_step(step, self.geometry, self.page, first=first)
            first = False
            yield step

    # ---- the end of a life, and the next one ----

    def restart(self, number: int) -> None:
        self.flush()
        self._reopen(number)

    def crash(self, number: int) -> None:
        """A crash within the first sectors of a flush."""
        self.cut(number % 23, number)

    def cut(self, left: int, number: int) -> None:
        """The first `left` sectors of the flush reach the disk: of each step only after all of those before it."""
        for step in self.steps():
            written = apply(self.images, step, left)
            left -= written
            if left == 0:
                break
            self.writer.flushed()
        else:
            self.builder.flush()
            self.states = [copy.deepcopy(self.model)]
        self._reopen(number)

    def disk(self) -> MemoryDisk:
        paths = {f"{DIRECTORY}/{name}": content for name, content in self.builder.contents().items()}
        for number, image in enumerate(self.images):
            paths[f"{DIRECTORY}/{self.builder.name(number)}"] = bytes(image)
        return MemoryDisk(paths)

    def _reopen(self, number: int) -> None:
        journal = open_journal(self.disk(), DIRECTORY)
        recovery = JournalRecovery()
        end = journal.walk(recovery)
        assert journal.damage + recovery.damage + contradictions(journal, recovery, end) == []
        self.model = self._found(journal, recovery)
        prepared = {xid for index, xid in enumerate(self.model.open) if number >> index & 1}
        self.dropped |= self.model.open.keys() - prepared
        self.model.open = {xid: self.model.open[xid] for xid in prepared}
        self.model.transient.clear()
        state = state_of(journal, recovery, end, prepared)
        recovery.resolve(dict.fromkeys(prepared, Outcome.IN_DOUBT))
        self._check_outstanding(journal, recovery)
        journal.close()
        self._go_on(state)

    def _found(self, journal: Journal, recovery: JournalRecovery) -> Model:
        """The state, of those that the journal was in since the last flush, that recovery found."""
        live = {rid for rid, _, _ in recovery.messages.in_rid_order()}
        transactions = {
            transaction.xid: (
                {each.rid for each in transaction if each.is_enqueue},
                {each.rid for each in transaction if not each.is_enqueue},
            )
            for transaction in recovery.transactions
            if transaction.xid not in self.dropped
        }
        for model in self.states:
            opened = {xid: (set(enqueues), dequeues) for xid, (enqueues, dequeues) in model.open.items()}
            if (live, transactions) == (set(model.live), opened):
                return copy.deepcopy(model)
        raise AssertionError("what is recovered was never there")

    def _check_outstanding(self, journal: Journal, recovery: JournalRecovery) -> None:
        expected = [(position, rid, LIVE, None) for rid, position in self.model.live.items()]
        for xid, (enqueues, dequeues) in self.model.open.items():
            expected = [entry if entry[1] not in dequeues else (*entry[:2], LOCKED, xid) for entry in expected]
            expected += [
                (position, rid, LOCKED if rid in dequeues else PENDING, xid) for rid, position in enqueues.items()
            ]
        found = []
        for rid, place, state, xid in recovery.outstanding(journal.format):
            file, offset = journal.stream.locate(place)
            found.append((file.number, offset, rid, state, xid))
        assert found == [(*self.builder.place(entry[0]), *entry[1:]) for entry in sorted(expected, key=lambda e: e[0])]

    def _go_on(self, state: Version1State) -> None:
        """The next life, from where recovery found the end. The lap follows from where the last one was."""
        twice, here = 2 * self.geometry.capacity, self.builder.position
        ahead = (state.position * BLOCK_SIZE - here + twice // 2) % twice - twice // 2
        position = here + ahead
        self.builder = JournalBuilder(1, self.geometry)
        for file, image in zip(self.builder.files, self.images, strict=True):
            file[:] = image
        self.next_header = (position - 1) // self.geometry.data_size + 1
        self.builder.restart(position)
        self.writer = self.make_writer(state)
        assert self.writer.is_dirty == bool(position % SECTOR_SIZE)
        self.states = [copy.deepcopy(self.model)]
        self.flush()
