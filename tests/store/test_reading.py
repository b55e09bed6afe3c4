"""Many messages are read back from a journal, from the page cache or by a thread, wherever they are by then."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from qstore.store.disk import OsFile, OsWritableFile
from qstore.store.environment import Environment
from qstore.store.errors import JournalError
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.reading import as_bytes
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
