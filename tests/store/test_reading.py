"""Many messages are read back from a journal, from the page cache or by a thread, wherever they are by then."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.geometry import Geometry
from qstore.store.disk import OsFile, OsWritableFile
from qstore.store.environment import Environment
from qstore.store.errors import JournalError
from qstore.store.journal.write.space import SIZE_BITS
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.reading import Wanted, as_bytes
from tests.support.bodies import joined
from tests.support.opened_store import Calls, OpenedStore, enqueued

COUNT = 200


def content(number: int) -> bytes:
    return b"%d " % number * (number % 700)


class Filled:
    """A store with a queue of many messages, on the disk."""

    def __init__(self, environment: Environment, path: Path) -> None:
        self.opened = OpenedStore(environment, path)
        self.journal: QueueJournal = self.opened.make_queue("orders")
        self.rids = [self.opened.enqueue(self.journal, content(number)) for number in range(COUNT)]
        self.opened.flush(self.journal)

    def read(self, rids: list[int]) -> list[bytes | Exception]:
        return read_back(self.opened, self.journal, rids)


def read_back(opened: OpenedStore, journal: QueueJournal, rids: list[int]) -> list[bytes | Exception]:
    found: list[list[bytes | Exception]] = []
    opened.store.read(journal, rids, as_bytes, found.append)
    for _ in range(1000):
        if found:
            break
        opened.store.collect(0.01)
    (result,) = found
    return result


@pytest.fixture
def filled(environment: Environment, path: Path) -> Any:
    filled = Filled(environment, path)
    yield filled
    filled.opened.store.close()


def not_cached(_file: OsWritableFile, _offset: int, _length: int) -> None:
    """The system would have to wait for the disk."""


def cached(file: OsWritableFile, offset: int, length: int) -> bytes:
    """The system has it in its page cache, which not every file system can tell."""
    return file.read(offset, length)


@pytest.mark.parametrize("is_cached", [True, False])
def test_messages_are_read_back(filled: Filled, monkeypatch: pytest.MonkeyPatch, is_cached: bool) -> None:
    monkeypatch.setattr(OsWritableFile, "read_cached", cached if is_cached else not_cached)
    filled.opened.store.put_away(filled.journal, filled.rids)
    filled.opened.store.will_read(filled.journal, filled.rids)
    assert filled.read(filled.rids) == [content(number) for number in range(COUNT)]
    assert filled.read([]) == []
    for number in range(0, COUNT, 3):
        filled.opened.store.append.dequeue(filled.journal, filled.rids[number])
    late = filled.opened.enqueue(filled.journal, b"late")  # it is not on the disk yet
    left = [number for number in range(COUNT) if number % 3]
    found = filled.read([*(filled.rids[number] for number in left), late])
    assert found == [*(content(number) for number in left), b"late"]
    assert filled.journal.depth == len(left) + 1
    (gone,) = filled.read(filled.rids[:1])
    assert isinstance(gone, JournalError)
    assert str(gone) == f'queue "orders": record 0x{filled.rids[0]:x} does not exist'


def test_a_record_that_cannot_be_read_is_an_error_of_that_one(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO for what is read together, and for one record by itself; what the others hold is right."""
    packed = filled.journal.writer.records.where(filled.rids[50])
    assert packed is not None
    place = packed >> 24
    bad = filled.journal.storage._pieces(place, 1)
    ((_, offset, _),) = bad
    read = OsFile.read

    def read_badly(file: OsFile, at: int, length: int) -> bytes:
        if at <= offset < at + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "file")
        return read(file, at, length)

    monkeypatch.setattr(OsFile, "read", read_badly)
    monkeypatch.setattr(OsWritableFile, "read_cached", lambda file, at, length: read_badly(file, at, length))
    found = filled.read(filled.rids[:100])
    assert [number for number, each in enumerate(found) if isinstance(each, Exception)] == [50]
    assert isinstance(found[50], OSError)
    assert [each for each in found if isinstance(each, bytes)] == [content(each) for each in range(100) if each != 50]


def test_a_record_that_was_overwritten_is_never_another_message(filled: Filled) -> None:
    """Its place holds another record, or bits that have flipped."""
    one, other = (filled.journal.writer.records.where(filled.rids[number]) for number in (10, 20))
    assert one is not None
    assert other is not None
    ((number, offset, size),) = filled.journal.storage._pieces(other >> 24, 128)
    header = filled.journal.storage.file(number).read(offset, size)
    ((number, offset, _),) = filled.journal.storage._pieces(one >> 24, 128)
    filled.journal.storage.file(number).write(offset, header)
    found = filled.read(filled.rids[:30])
    assert [number for number, each in enumerate(found) if isinstance(each, Exception)] == [10]
    assert isinstance(found[10], JournalError)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_bit_that_flips_anywhere_in_a_record(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """In each field of its header, in its data, in its checksum and the id after it: only that message is lost."""
    monkeypatch.setattr(OsWritableFile, "read_cached", cached if is_cached else not_cached)
    filled.opened.store.put_away(filled.journal, filled.rids)
    packed = filled.journal.writer.records.where(filled.rids[40])
    assert packed is not None
    ((number, begin, _),) = filled.journal.storage._pieces(packed >> 24, 128)
    file = filled.journal.storage.file(number)
    end = 32 + len(content(40)) + 12
    for at in (0, 3, 4, 6, 8, 15, 16, 19, 20, 24, 27, 31, 32, 60, end - 13, end - 12, end - 9, end - 8, end - 1):
        good = file.read(begin + at, 1)
        file.write(begin + at, bytes((good[0] ^ 0x10,)))
        found = filled.read(filled.rids[20:60])
        assert [number for number, each in enumerate(found) if isinstance(each, Exception)] == [20], at
        assert isinstance(found[20], JournalError)
        file.write(begin + at, good)
    assert filled.read(filled.rids[20:60]) == [content(number) for number in range(20, 60)]


def test_messages_enqueued_in_transactions_are_read_back(environment: Environment, path: Path) -> None:
    """Their records have an xid before the data; a flipped bit in it is found as well."""
    opened = OpenedStore(environment, path)
    one, other = opened.make_queue("one"), opened.make_queue("other")
    calls = Calls()
    for turn in range(3):
        opened.enqueue(one, b"plain %d" % turn)
        opened.store.transactions.commit([enqueued(each, b"both %d" % turn) for each in (one, one, other)], [], calls)
    opened.wait(calls, 3)
    opened.flush(one)
    rids = sorted(one.writer.records.live)
    opened.store.put_away(one, rids)
    expected = [data for turn in range(3) for data in (b"plain %d" % turn, *[b"both %d" % turn] * 2)]
    assert read_back(opened, one, rids) == expected
    packed = one.writer.records.where(rids[4])
    assert packed is not None
    ((number, begin, _),) = one.storage._pieces(packed >> 24, 128)
    file = one.storage.file(number)
    file.write(begin + 33, bytes((file.read(begin + 33, 1)[0] ^ 1,)))
    found = read_back(opened, one, rids)
    assert isinstance(found[4], JournalError)
    assert [each for each in found if isinstance(each, bytes)] == expected[:4] + expected[5:]
    opened.store.close()


def test_a_file_that_has_become_shorter(filled: Filled) -> None:
    """What is beyond its end is lost, and nothing else."""
    packed = filled.journal.writer.records.where(filled.rids[30])
    assert packed is not None
    ((number, begin, _),) = filled.journal.storage._pieces(packed >> 24, 128)
    os.ftruncate(filled.journal.storage.file(number).fileno(), begin + 50)
    found = filled.read(filled.rids[10:50])
    assert [isinstance(each, bytes) for each in found[:21]] == [True] * 20 + [False]


def test_messages_moved_by_compaction_are_read_back(environment: Environment, path: Path) -> None:
    """Resting records move with the rest, and their messages are read from where they are."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    kept = [opened.enqueue(journal, content(number)) for number in range(20)]
    opened.flush(journal)
    opened.store.put_away(journal, kept)
    while journal.writer.compactor.copied < 20:
        for rid in [opened.enqueue(journal, b"x" * 2000) for _ in range(10)]:
            opened.store.append.dequeue(journal, rid)
        opened.flush(journal)
    found: list[list[bytes | Exception]] = []
    opened.store.read(journal, kept, as_bytes, found.append)
    opened.store.collect(None)
    assert found == [[content(number) for number in range(20)]]
    assert len(journal.writer.records.resting) == 20
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert [message.data for message in opened.recovered()["orders"]] == [content(number) for number in range(20)]
    opened.store.close()


# ---- runs ----

_HEAD = b"header "
_SIZE = SizeField(len(_HEAD), 4)


def alike(data: bytes, _content: bytes, _begin: int, _end: int) -> tuple[bytes, SizeField, int] | None:
    """What is stored of messages of a run: a header that gives the size of the body, and the body."""
    return (data[: len(_HEAD) + 4], _SIZE, 600) if data.startswith(_HEAD) else None


def stored(body: bytes) -> bytes:
    return _HEAD + len(body).to_bytes(4) + body


class Runs:
    """A store with a queue of messages that are alike, with others between some of them."""

    def __init__(self, environment: Environment, path: Path) -> None:
        self.opened = OpenedStore(environment, path)
        self.journal: QueueJournal = self.opened.make_queue("orders")
        self.data = [stored(b"%d " % number * (1 + number % 100)) for number in range(COUNT)]
        for number in (0, 60, 61, 100, COUNT - 1):
            self.data[number] = b"another %d" % number
        self.rids = [self.opened.enqueue(self.journal, data) for data in self.data]
        self.opened.flush(self.journal)

    def read(self, rids: Sequence[int]) -> tuple[list[bytes | Exception], list[int]]:
        """The data of the messages, and how many each run has."""
        found: list[list[bytes | Exception | tuple[bytes, Bodies]]] = []
        self.opened.store.read_runs(self.journal, rids, as_bytes, alike, found.append)
        for _ in range(1000):
            if found:
                break
            self.opened.store.collect(0.01)
        (result,) = found
        data: list[bytes | Exception] = []
        counts: list[int] = []
        for each in result:
            if isinstance(each, tuple):
                first, bodies = each
                assert first == stored(bodies.body(0))
                data += [stored(bodies.body(number)) for number in range(bodies.count)]
                counts.append(bodies.count)
            else:
                data.append(each)
        return data, counts


@pytest.fixture
def runs(environment: Environment, path: Path) -> Any:
    runs = Runs(environment, path)
    yield runs
    runs.opened.store.close()


@pytest.mark.parametrize("is_cached", [True, False])
def test_consecutive_messages_that_are_alike_are_read_as_runs(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Others, and those that are missing from what is wanted, split them."""
    monkeypatch.setattr(OsWritableFile, "read_cached", cached if is_cached else not_cached)
    assert runs.read(runs.rids) == (runs.data, [59, 38, 98])
    assert runs.read([]) == ([], [])
    left = [number for number in range(COUNT) if number not in (10, 110, 112)]
    found, counts = runs.read([runs.rids[number] for number in left])
    assert found == [runs.data[number] for number in left]
    assert counts == [9, 49, 38, 9, 86]
    assert runs.read(runs.rids[1:4]) == (runs.data[1:4], [])  # too few for a run


def test_messages_in_several_files_are_found_without_a_look_at_each(environment: Environment, path: Path) -> None:
    """In the same spans as otherwise, and they come as runs."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("many", Geometry(8, 64 * 1024))
    rids = [opened.enqueue(journal, stored(b"%d" % number * 100)) for number in range(700)]
    opened.flush(journal)
    places = journal.writer.records.where_all(rids)
    for first, end in ((0, 700), (3, 140), (100, 101), (127, 129), (690, 700)):
        wanted = Wanted(journal, rids[first:end])
        spans = wanted._spans_of_files(journal)
        assert spans is not None
        fields = [(each.first, each.last, each.start, each.end, each.salt) for each in spans]
        assert fields == [(each.first, each.last, each.start, each.end, each.salt) for each in wanted._spans(journal)]
        assert len(spans) == len({(place >> SIZE_BITS) // journal.writer.space.file for place in places[first:end]})
    opened.store.put_away(journal, rids)

    def read() -> list[Any]:
        found: list[list[Any]] = []
        wanted = range(rids[0], rids[-1] + 1)
        opened.store.read_runs(journal, wanted, as_bytes, alike, found.append)
        while not found:
            opened.store.collect(0.01)
        return found[0]

    assert sum(each[1].count for each in read() if isinstance(each, tuple)) > 680
    for gone in (0, 1, 300, 698, 699):  # one that is missing is no reason to fail
        opened.store.append.dequeue(journal, rids[gone])
    opened.flush(journal)
    assert sum(isinstance(each, JournalError) for each in read()) == 5
    opened.store.close()


def test_messages_that_are_not_on_the_disk_yet_are_in_no_run(runs: Runs) -> None:
    late = [runs.opened.enqueue(runs.journal, stored(b"late %d" % number)) for number in range(6)]
    found, counts = runs.read(runs.rids[150:199] + late)
    assert found == [*runs.data[150:199], *(stored(b"late %d" % number) for number in range(6))]
    assert counts == [49]


@pytest.mark.parametrize("bad", [1, 2, 30, 58, 59])
@pytest.mark.parametrize("at", [0, 6, 9, 31, 33, 40, 45, -20, -12, -1])
def test_a_damaged_record_splits_a_run(runs: Runs, bad: int, at: int) -> None:
    """At both ends of it, too: only that message is lost, and its neighbours are what they were."""
    packed = runs.journal.writer.records.where(runs.rids[bad])
    assert packed is not None
    ((number, begin, _),) = runs.journal.storage._pieces(packed >> 24, 128)
    file = runs.journal.storage.file(number)
    place = begin + (at if at >= 0 else 32 + len(runs.data[bad]) + 12 + at)
    file.write(place, bytes((file.read(place, 1)[0] ^ 4,)))
    found, counts = runs.read(runs.rids[:60])
    assert [number for number, each in enumerate(found) if isinstance(each, Exception)] == [bad]
    assert isinstance(found[bad], JournalError)
    assert [each for each in found if isinstance(each, bytes)] == runs.data[:bad] + runs.data[bad + 1 : 60]
    assert counts == [count for count in (bad - 1, 59 - bad) if count >= 4]


def test_runs_of_messages_that_compaction_has_moved(environment: Environment, path: Path) -> None:
    """Some are where they were, others after them."""
    runs = Runs(environment, path)
    runs.opened.store.put_away(runs.journal, runs.rids)
    while runs.journal.writer.compactor.copied < 20:
        for rid in [runs.opened.enqueue(runs.journal, b"x" * 2000) for _ in range(10)]:
            runs.opened.store.append.dequeue(runs.journal, rid)
        runs.opened.flush(runs.journal)
    found, counts = runs.read(runs.rids)
    assert found == runs.data
    assert sum(counts) > 180
    runs.opened.store.close()


@pytest.mark.parametrize("missing", [[], [0], [20], [29]])
def test_a_run_is_read_by_the_range_of_its_record_ids(runs: Runs, missing: list[int]) -> None:
    bodies, append = [b"%d" % number for number in range(10, 40)], runs.opened.store.append
    columns = joined(bodies)
    first, count = append.enqueue_run(runs.journal, stored(bodies[0])[:-2], None, columns, 0, len(bodies))
    assert count == len(bodies)
    runs.opened.flush(runs.journal)
    for number in missing:
        append.dequeue(runs.journal, first + number)
    found, counts = runs.read(range(first, first + count))
    assert [number for number, each in enumerate(found) if isinstance(each, JournalError)] == missing
    assert [each for each in found if isinstance(each, bytes)] == [
        stored(body) for number, body in enumerate(bodies) if number not in missing
    ]
    assert counts == ([20, 9] if missing == [20] else [30 - len(missing)])
    assert runs.read(range(first + 3, first + 19)) == ([stored(body) for body in bodies[3:19]], [16])


def test_messages_of_a_transaction_are_in_no_run(runs: Runs) -> None:
    """Their records have an xid."""
    other, calls = runs.opened.make_queue("other"), Calls()
    more = [stored(b"committed %d" % number) for number in range(8)]
    operations = [*(enqueued(runs.journal, data) for data in more), enqueued(other, b"data")]
    rids = runs.opened.store.transactions.commit(operations, [], calls)
    runs.opened.wait(calls)
    runs.opened.flush(runs.journal)
    found, counts = runs.read([*runs.rids[101:199], *rids[:8]])
    assert found == [*runs.data[101:199], *more]
    assert counts == [98]
