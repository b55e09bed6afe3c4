"""What brings journals onto the disk, with a driver that is done when a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from formats.rhm.geometry import Geometry
from store.environment import tool_environment
from store.flusher import Flusher
from store.journal.gathering import data_crc
from store.journal.step import JournalFailedError
from store.journal.storage import create_journal
from store.journal.writer_state import new_state
from store.queue_journal import QueueJournal
from store.sync import Completion, InlineSync, SyncDriverError
from store.taking_up import journal_info, take_up
from store.writable_disk import WritableFile

GEOMETRY = Geometry.from_pages(4, 1)
PAGE = 4096
BOUND = 20_000
DATA = b"m" * 500
CRC = data_crc((DATA,))
FULL = OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")


class ManualDriver:
    """A `SyncDriver` that keeps tickets until they are let go."""

    def __init__(self) -> None:
        self.waiting: dict[int, Sequence[WritableFile]] = {}
        self.done: list[Completion] = []
        self.submitted = 0
        self.death: str | None = None
        self.is_closed = False
        self.when_waited_for: Callable[[], None] = lambda: None

    def submit(self, ticket: int, files: Sequence[WritableFile]) -> None:
        self._check()
        assert files
        self.submitted += 1
        self.waiting[ticket] = files

    def fileno(self) -> int:
        return 999  # a descriptor that nobody reads: as if there were another process

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        if timeout is None:
            self.when_waited_for()
        done, self.done = self.done, []
        if not done:
            self._check()
        return done

    def close(self) -> None:
        self.is_closed = True

    def let_go(self, ticket: int | None = None, error: OSError | None = None) -> None:
        """A ticket, or all of them, is synced."""
        for each in [ticket] if ticket is not None else list(self.waiting):
            del self.waiting[each]
            self.done.append((each, error))

    def _check(self) -> None:
        if self.death is not None:
            raise SyncDriverError(self.death)


@pytest.fixture
def driver() -> ManualDriver:
    return ManualDriver()


@pytest.fixture
def flusher(driver: ManualDriver) -> Flusher:
    return Flusher(driver)


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[list[QueueJournal]]:
    environment = tool_environment()
    made = []
    for number in (1, 2, 3):
        path = str(tmp_path / str(number))
        info = journal_info(environment, f"queue-{number}", GEOMETRY, 512, queue_id=number, incarnation=1)
        create_journal(environment.disk, path, info)
        made.append(take_up(environment, path, info, GEOMETRY, new_state(), page=PAGE, bound=BOUND))
    yield made
    for journal in made:
        journal.close()


@pytest.fixture
def journal(flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]) -> QueueJournal:
    """One that has its first file, whose header is a step of its own."""
    append(flusher, journals[0], 1)
    finish(flusher, driver)
    return journals[0]


def append(flusher: Flusher, journal: QueueJournal, rid: int) -> None:
    journal.writer.enqueue(rid, (DATA,), len(DATA), CRC)
    flusher.dirty[journal] = None


def finish(flusher: Flusher, driver: ManualDriver) -> None:
    """Until nothing is under way."""
    flusher.start()
    while driver.waiting:
        driver.let_go()
        flusher.collect()


def test_who_waits_is_called_when_it_is_synced_and_not_before(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[Exception | None] = []
    append(flusher, journal, 2)
    flusher.when_synced((journal,), called.append)
    assert driver.waiting == {}  # nobody has started it
    flusher.start()
    flusher.collect()
    assert (called, len(driver.waiting)) == ([], 1)
    driver.let_go()
    assert called == []
    flusher.collect()
    assert called == [None]
    assert flusher.is_idle


def test_what_comes_while_a_flush_is_under_way_is_one_flush_more(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[int] = []
    before = driver.submitted
    for rid in range(2, 22):
        append(flusher, journal, rid)
        flusher.when_synced((journal,), lambda error, rid=rid: called.append(rid))  # type: ignore[misc]
        flusher.start()
    assert driver.submitted == before + 1
    driver.let_go()
    flusher.collect()
    assert called == [2]
    assert driver.submitted == before + 2
    driver.let_go()
    flusher.collect()
    assert called == list(range(2, 22))
    assert driver.submitted == before + 2
    assert flusher.is_idle


def test_journals_do_not_wait_for_each_other(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    for rid, journal in enumerate(journals, 1):
        append(flusher, journal, rid)
    finish(flusher, driver)
    called: list[object] = []
    for rid, journal in enumerate(journals, 4):
        append(flusher, journal, rid)
        flusher.when_synced((journal,), lambda error, journal=journal: called.append(journal))  # type: ignore[misc]
    flusher.when_synced(journals, called.append)
    flusher.start()
    first, second, third = driver.waiting
    for ticket, expected in ((third, 1), (first, 2), (second, 4)):
        driver.let_go(ticket)
        flusher.collect()
        assert len(called) == expected
    assert called == [journals[2], journals[0], journals[1], None]


def test_nothing_to_wait_for(flusher: Flusher, journal: QueueJournal) -> None:
    called: list[Exception | None] = []
    flusher.when_synced((), called.append)
    flusher.when_synced((journal, journal), called.append)
    assert called == []  # never from within
    flusher.collect()
    assert called == [None, None]


def test_a_journal_that_is_named_twice(flusher: Flusher, driver: ManualDriver, journal: QueueJournal) -> None:
    called: list[Exception | None] = []
    append(flusher, journal, 2)
    flusher.when_synced((journal, journal), called.append)
    finish(flusher, driver)
    assert called == [None]


def test_a_failed_sync_is_told_to_everybody_who_waits(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    broken, sound, _ = journals
    called: list[tuple[str, Exception | None]] = []
    for rid, each in ((1, broken), (2, sound)):
        append(flusher, each, rid)
        flusher.when_synced((each,), lambda error, name=each.name: called.append((name, error)))  # type: ignore[misc]
    flusher.when_synced((sound, broken), lambda error: called.append(("both", error)))
    flusher.start()
    append(flusher, broken, 3)
    flusher.when_synced((broken,), lambda error: called.append(("later", error)))
    driver.let_go(min(driver.waiting), FULL)
    finish(flusher, driver)
    told = dict(called)
    assert len(called) == 4
    assert told["queue-2"] is None
    for name in ("queue-1", "both", "later"):
        assert isinstance(told[name], JournalFailedError), name
        assert "Input/output error" in str(told[name])
    with pytest.raises(JournalFailedError, match="queue-1"):
        broken.writer.enqueue(4, (DATA,), len(DATA), CRC)
    flusher.when_synced((broken,), lambda error: called.append(("after", error)))
    flusher.collect()
    assert isinstance(called[-1][1], JournalFailedError)
    append(flusher, sound, 5)
    flusher.when_synced((sound,), lambda error: called.append(("sound", error)))
    finish(flusher, driver)
    assert called[-1] == ("sound", None)
    flusher.drain(journals)
    assert flusher.failure is None


def test_a_write_that_fails(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: object, offset: int, content: bytes) -> None:
        raise FULL

    monkeypatch.setattr("store.writable_disk.OsWritableFile.write", write)
    called: list[Exception | None] = []
    append(flusher, journal, 2)
    flusher.when_synced((journal,), called.append)
    flusher.start()
    flusher.collect()
    assert driver.waiting == {}
    assert isinstance(called[0], JournalFailedError)
    assert len(called) == 1


@pytest.mark.parametrize("dies", ["before", "while"])
def test_a_driver_that_dies(flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], dies: str) -> None:
    called: list[Exception | None] = []
    for rid, journal in enumerate(journals, 1):
        append(flusher, journal, rid)
        flusher.when_synced((journal,), called.append)
    if dies == "before":
        driver.death = "it is dead"
    flusher.start()
    driver.death = "it is dead"
    flusher.collect()
    flusher.collect()
    assert [type(error) for error in called] == [JournalFailedError] * 3
    assert all("it is dead" in str(error) for error in called)
    assert str(flusher.failure) == "it is dead"
    flusher.drain(journals)
    assert flusher.is_idle


def test_those_who_are_called_may_append_and_flush_and_collect(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[int] = []

    def again(error: Exception | None) -> None:
        assert error is None
        called.append(len(called))
        if len(called) < 50:
            append(flusher, journal, 1 + len(called))
            flusher.when_synced((journal,), again)
            flusher.start()
            flusher.collect()

    flusher.when_synced((), again)
    flusher.collect()
    finish(flusher, driver)
    assert called == list(range(50))
    assert flusher.is_idle


def test_calls_do_not_nest(flusher: Flusher) -> None:
    """However long a chain of calls is, it is not one on top of the other."""
    depth, deepest, calls = 0, 0, 0

    def again(error: Exception | None) -> None:
        nonlocal depth, deepest, calls
        depth, calls = depth + 1, calls + 1
        deepest = max(deepest, depth)
        if calls < 5000:
            flusher.when_synced((), again)
            flusher.collect()
        depth -= 1

    flusher.when_synced((), again)
    flusher.collect()
    assert (calls, deepest) == (5000, 1)


def test_what_one_callback_raises_does_not_take_the_others_away(flusher: Flusher) -> None:
    called: list[Exception | None] = []

    def faulty(error: Exception | None) -> None:
        raise RuntimeError("a fault of the program")

    for done in (faulty, called.append, faulty, called.append):
        flusher.when_synced((), done)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a fault of the program"):
            flusher.collect()
    flusher.collect()
    assert called == [None, None]


def test_draining_waits_and_calls_nobody(flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]) -> None:
    called: list[Exception | None] = []
    driver.when_waited_for = driver.let_go
    for rid, journal in enumerate(journals, 1):
        append(flusher, journal, rid)
        flusher.when_synced((journal,), called.append)
    flusher.drain(journals[:2])
    assert [journal.writer.is_dirty for journal in journals[:2]] == [False, False]
    assert called == []
    flusher.collect()
    assert called[:2] == [None, None]


def test_holding_back_waits_until_little_is_unsynced(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    driver.when_waited_for = driver.let_go
    for rid in range(2, 42):
        append(flusher, journal, rid)
    assert journal.writer.unsynced > BOUND
    flusher.hold_back(journal)
    assert journal.writer.unsynced <= BOUND


def test_a_caller_who_is_idle_waits_for_one_journal_itself(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    called: list[Exception | None] = []
    append(flusher, journals[0], 1)
    flusher.when_synced(journals, called.append)
    flusher.start(is_idle=True)
    assert (called, driver.submitted) == ([None], 0)
    for rid, journal in ((2, journals[0]), (3, journals[1])):
        append(flusher, journal, rid)
    flusher.start(is_idle=True)
    assert driver.submitted == 2  # but not for more


def test_with_the_inline_driver_starting_is_enough(journals: list[QueueJournal]) -> None:
    flusher = Flusher(InlineSync())
    called: list[Exception | None] = []
    for rid in range(1, 400):  # laps
        append(flusher, journals[0], rid)
        if rid > 100:
            journals[0].writer.dequeue(10_000 + rid, rid - 100)
        flusher.when_synced((journals[0],), called.append)
        flusher.start()
        assert len(called) == rid
    assert called == [None] * 399
    assert flusher.fileno() == -1


def test_closing_closes_the_driver(flusher: Flusher, driver: ManualDriver) -> None:
    flusher.close()
    assert driver.is_closed
