"""Flushing of journals, with a driver that completes when a test says so."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.disk import OsWritableDisk, OsWritableFile, WritableFile
from qstore.store.environment import tool_environment
from qstore.store.errors import JournalFailedError
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK
from qstore.store.journal.write.storage import JournalStorage, create_journal
from qstore.store.journal.write.version_2_writer import new_state
from qstore.store.live import commit
from qstore.store.live.commit import LINGER, Flusher
from qstore.store.live.queue_journal import QueueJournal, journal_info, resume_journal
from qstore.store.log_lines import Level, LogLine
from qstore.store.sync import Completion, FileWrite, InlineSync, SyncDriver, SyncDriverError, supervision
from tests.support.compiled import replaces

GEOMETRY = Geometry.from_pages(4, 1)
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
        self.successors: list[SyncDriver] = []
        self.is_closed = False
        self.is_stopped = self.takes_writes = False
        self.writes: list[FileWrite] = []
        self.when_waited_for: Callable[[], None] = lambda: None

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        self._check()
        assert files
        self.writes += writes
        self.submitted += 1
        self.waiting[ticket] = files

    def fileno(self) -> int:
        return 999  # a descriptor that nobody reads: as if there were another process

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        if timeout != 0.0:
            self.when_waited_for()
        done, self.done = self.done, []
        if not done:
            self._check()
        return done

    def describe(self) -> str:
        return "the driver"

    def kill(self, reason: str) -> None:
        self.death = reason

    def successor(self) -> SyncDriver:
        if not self.successors:
            raise SyncDriverError("there is no other")
        return self.successors.pop(0)

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
def lines() -> list[LogLine]:
    """The log lines."""
    return []


@pytest.fixture
def flusher(driver: ManualDriver, lines: list[LogLine]) -> Flusher:
    return Flusher(driver, lines.append)


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[list[QueueJournal]]:
    environment = tool_environment()
    made = []
    for number in (1, 2, 3):
        path = str(tmp_path / str(number))
        info = journal_info(environment, f"queue-{number}", GEOMETRY, 512, queue_id=number, incarnation=1)
        create_journal(environment.disk, path, info)
        made.append(resume_journal(environment, path, info, GEOMETRY, new_state(), bound=BOUND))
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


def put(
    flusher: Flusher,
    journal: QueueJournal,
    rid: int,
    done: Callable[[Exception | None], None],
    *,
    is_urgent: bool = True,
) -> None:
    """Append a record, and wait for its sync."""
    append(flusher, journal, rid)
    flusher.when_synced((journal,), done, is_urgent=is_urgent)


def sync(flusher: Flusher, driver: ManualDriver) -> None:
    """All tickets are synced."""
    driver.let_go()
    flusher.collect()


def let_all_go(flusher: Flusher, driver: ManualDriver) -> None:
    """Sync until nothing is under way."""
    while driver.waiting:
        sync(flusher, driver)


def finish(flusher: Flusher, driver: ManualDriver) -> None:
    """Flush everything, until nothing is under way."""
    flusher.start_all()
    let_all_go(flusher, driver)


def begin(flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]) -> None:
    """Give each journal its first file, whose header is a step of its own, and one record."""
    for rid, journal in enumerate(journals, 1):
        append(flusher, journal, rid)
    finish(flusher, driver)


def replace(flusher: Flusher, driver: ManualDriver, death: str = "it is dead") -> ManualDriver:
    """The driver dies, and has a successor."""
    again = ManualDriver()
    driver.successors.append(again)
    driver.death = death
    flusher.collect()
    return again


def test_callback_runs_once_the_journal_is_synced(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append)
    assert driver.waiting == {}  # nobody has started it
    flusher.start_all()
    flusher.collect()
    assert (called, len(driver.waiting)) == ([], 1)
    driver.let_go()
    assert called == []
    flusher.collect()
    assert called == [None]
    assert flusher.is_idle


def test_callback_survives_a_sync_awaited_by_an_append(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    """The append has taken the driver's answer, which the event loop does not see then, and was refused."""
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append)
    flusher.start()
    driver.let_go()
    flusher.drain((journal,))
    assert called == []
    flusher.start()
    assert called == [None]
    assert flusher.is_idle


def test_appends_during_a_flush_share_the_next_flush(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[int] = []
    before = driver.submitted
    for rid in range(2, 22):
        put(flusher, journal, rid, lambda error, rid=rid: called.append(rid))  # type: ignore[misc]
        flusher.start_all()
    assert driver.submitted == before + 1
    sync(flusher, driver)
    assert called == [2]
    assert driver.submitted == before + 2
    sync(flusher, driver)
    assert called == list(range(2, 22))
    assert driver.submitted == before + 2
    assert flusher.is_idle


def test_journals_do_not_wait_for_each_other(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    begin(flusher, driver, journals)
    called: list[object] = []
    for rid, journal in enumerate(journals, 4):
        put(flusher, journal, rid, lambda error, journal=journal: called.append(journal))  # type: ignore[misc]
    flusher.when_synced(journals, called.append)
    flusher.start_all()
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


def test_failed_sync_is_reported_to_all_waiters(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    broken, sound, _ = journals
    called: list[tuple[str, Exception | None]] = []
    for rid, each in ((1, broken), (2, sound)):
        put(flusher, each, rid, lambda error, name=each.name: called.append((name, error)))  # type: ignore[misc]
    flusher.when_synced((sound, broken), lambda error: called.append(("both", error)))
    flusher.start_all()
    put(flusher, broken, 3, lambda error: called.append(("later", error)))
    driver.let_go(min(driver.waiting), FULL)
    finish(flusher, driver)
    reported = dict(called)
    assert len(called) == 4
    assert reported["queue-2"] is None
    for name in ("queue-1", "both", "later"):
        assert isinstance(reported[name], JournalFailedError), name
        assert "Input/output error" in str(reported[name])
    with pytest.raises(JournalFailedError, match="queue-1"):
        broken.writer.enqueue(4, (DATA,), len(DATA), CRC)
    flusher.when_synced((broken,), lambda error: called.append(("after", error)))
    flusher.collect()
    assert isinstance(called[-1][1], JournalFailedError)
    put(flusher, sound, 5, lambda error: called.append(("sound", error)))
    finish(flusher, driver)
    assert called[-1] == ("sound", None)
    flusher.drain(journals)
    assert flusher.failure is None


def test_a_write_that_fails(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: object, offset: int, content: bytes) -> None:
        raise FULL

    monkeypatch.setattr("qstore.store.disk.OsWritableFile.write", write)
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append)
    flusher.start_all()
    flusher.collect()
    assert driver.waiting == {}
    assert isinstance(called[0], JournalFailedError)
    assert len(called) == 1


@pytest.mark.parametrize("dies", ["before", "while"])
def test_a_driver_that_dies_without_a_successor(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], lines: list[LogLine], dies: str
) -> None:
    called: list[Exception | None] = []
    for rid, journal in enumerate(journals, 1):
        put(flusher, journal, rid, called.append)
    if dies == "before":
        driver.death = "it is dead"
    flusher.start_all()
    driver.death = "it is dead"
    flusher.collect()
    flusher.collect()
    assert [type(error) for error in called] == [JournalFailedError] * 3
    assert all("it is dead" in str(error) for error in called)
    assert "it is dead" in str(flusher.failure)
    assert flusher.fileno() == -1
    flusher.drain(journals)
    assert flusher.is_idle
    assert [line.level for line in lines] == [Level.CRITICAL, Level.CRITICAL]  # it is dead; and there is no other
    assert "nothing can be synced any more" in lines[1].text


def is_on_disk(journal: QueueJournal, rid: int) -> bool:
    """Whether a reader that opens the journal's files now finds a record."""
    packed = journal.writer.live[rid]
    place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
    storage = JournalStorage(OsWritableDisk(), journal.directory, journal.base_name, journal.geometry)
    try:
        return DATA in storage.read(place, blocks * BLOCK_SIZE)
    finally:
        storage.close()


@pytest.mark.parametrize("count", [1, 3])
def test_flush_of_a_dead_driver_is_written_and_synced_again(
    flusher: Flusher,
    driver: ManualDriver,
    journals: list[QueueJournal],
    lines: list[LogLine],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    """The dead one may have got an error, whose pages the kernel has dropped: a sync alone proves nothing."""
    begin(flusher, driver, journals)
    chosen, called, moved = dict(enumerate(journals[:count], 4)), list[Exception | None](), list[tuple[int, int]]()
    flusher.moved = lambda old, new: moved.append((old, new))
    with monkeypatch.context() as patch:
        patch.setattr(OsWritableFile, "write", lambda file, offset, content: None)
        for rid, journal in chosen.items():
            put(flusher, journal, rid, called.append)
        flusher.start_all()
    assert not any(is_on_disk(journal, rid) for rid, journal in chosen.items())
    again = replace(flusher, driver)
    assert (called, moved, driver.is_closed) == ([], [(999, 999)], True)
    assert len(again.waiting) == count
    before = {id(file) for files in driver.waiting.values() for file in files}
    assert before.isdisjoint(id(file) for files in again.waiting.values() for file in files)
    again.let_go()
    flusher.collect()
    assert called == [None] * count
    assert all(is_on_disk(journal, rid) for rid, journal in chosen.items())
    assert flusher.failure is None
    assert flusher.is_idle
    assert [line.level for line in lines] == [Level.CRITICAL, Level.NOTICE]
    assert "it is dead" in lines[0].text


def start_one(flusher: Flusher, journal: QueueJournal) -> list[Exception | None]:
    """A record is under way: its waiters get the error there."""
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append)
    flusher.start()
    return called


def test_a_driver_that_takes_writes_does_them(flusher: Flusher, driver: ManualDriver, journal: QueueJournal) -> None:
    driver.takes_writes = True
    called = start_one(flusher, journal)
    assert not is_on_disk(journal, 2)
    assert journal.load(2) == DATA  # from memory
    (write,) = driver.writes
    assert [list(files) for files in driver.waiting.values()] == [[write.file]]
    write.file.write(write.offset, b"".join(write.pieces))
    sync(flusher, driver)
    assert called == [None]
    assert is_on_disk(journal, 2)


def test_a_driver_that_fails_a_write_fails_the_journal(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    driver.takes_writes = True
    called = start_one(flusher, journal)
    driver.let_go(error=FULL)
    flusher.collect()
    assert [type(error) for error in called] == [JournalFailedError]
    assert flusher.is_idle


def test_an_idle_caller_writes_itself(flusher: Flusher, driver: ManualDriver, journal: QueueJournal) -> None:
    driver.takes_writes = True
    put(flusher, journal, 2, lambda _: None)
    flusher.start(is_idle=True)
    assert is_on_disk(journal, 2)
    assert driver.writes == []


def test_pending_write_of_a_dead_driver_is_written(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    driver.takes_writes = True
    called = start_one(flusher, journal)
    assert not is_on_disk(journal, 2)
    again = replace(flusher, driver)
    assert is_on_disk(journal, 2)
    again.let_go()
    flusher.collect()
    assert called == [None]


def test_a_journal_that_fails_elsewhere_while_it_is_synced(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    """It could not grow, for example. Whether the step is on the disk does not matter then."""
    called = start_one(flusher, journal)
    journal.writer.failed(FULL)
    sync(flusher, driver)
    assert [type(error) for error in called] == [JournalFailedError]
    assert flusher.is_idle


def test_failed_rewrite_fails_only_its_own_journal(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], lines: list[LogLine]
) -> None:
    bad, good = journals[:2]
    called: list[tuple[str, Exception | None]] = []
    for rid, journal in enumerate((bad, good), 1):
        put(flusher, journal, rid, lambda error, name=journal.name: called.append((name, error)))  # type: ignore[misc]
    flusher.start_all()
    shutil.rmtree(bad.directory)
    again = replace(flusher, driver)
    finish(flusher, again)
    assert {name: type(error) for name, error in called} == {"queue-1": JournalFailedError, "queue-2": type(None)}
    assert flusher.failure is None
    assert sum('queue "queue-1"' in line.text for line in lines) == 1


def test_a_queue_that_is_deleted_while_its_driver_dies(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    append(flusher, journal, 2)
    flusher.start_all()
    journal.delete()
    again = replace(flusher, driver)
    assert again.submitted == 0
    assert flusher.is_idle


def test_retries_with_new_drivers_are_limited(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, lines: list[LogLine]
) -> None:
    called: list[Exception | None] = []
    every = [driver, *(ManualDriver() for _ in range(50))]
    for one, after in pairwise(every):
        one.successors.append(after)
    put(flusher, journal, 2, called.append)
    flusher.start_all()
    for one in every:
        one.death = "it is dead"
    flusher.collect()
    assert [type(error) for error in called] == [JournalFailedError]
    assert sum(not one.successors for one in every[:-1]) == supervision.MAX_DEATHS - 1
    assert f"{supervision.MAX_DEATHS} drivers in a row" in lines[-1].text


def test_drivers_that_sync_something_before_they_die_are_replaced_each_time(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_AT_ONCE_SECONDS", 0.0)
    called: list[Exception | None] = []
    for rid in range(2, 40):
        put(flusher, journal, rid, called.append)
        flusher.start_all()
        again = replace(flusher, driver)
        finish(flusher, again)
        assert called == [None] * (rid - 1)
        driver = again


def test_drivers_that_die_at_rest_one_after_the_other_are_not_tried_for_ever(
    flusher: Flusher, driver: ManualDriver
) -> None:
    for number in range(supervision.MAX_DEATHS_AT_ONCE):
        assert flusher.failure is None
        again = replace(flusher, driver, f"death {number}")
        driver = again
    assert f"{supervision.MAX_DEATHS_AT_ONCE} drivers have died within" in str(flusher.failure)


def test_a_driver_without_a_successor_has_several_attempts(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, attempts = ManualDriver(), list[int]()

    def successor() -> SyncDriver:
        attempts.append(len(attempts))
        if len(attempts) < supervision.START_ATTEMPTS:
            raise SyncDriverError("too many processes")
        return again

    monkeypatch.setattr(driver, "successor", successor)
    append(flusher, journal, 2)
    flusher.start_all()
    driver.death = "it is dead"
    flusher.collect()
    assert flusher.failure is None
    assert again.submitted == 1


def test_a_journal_that_fails_is_logged_once(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, lines: list[LogLine]
) -> None:
    append(flusher, journal, 2)
    flusher.start_all()
    driver.let_go(error=FULL)
    flusher.collect()
    flusher.when_synced((journal,), lambda error: None)
    flusher.collect()
    flusher.drain((journal,))
    (line,) = lines
    assert line.level == Level.CRITICAL
    assert 'queue "queue-1": a write or sync of somewhere failed: Input/output error' in line.text
    assert "restart the broker" in line.text


def test_a_queue_that_is_being_deleted_has_no_failure_to_log(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, lines: list[LogLine]
) -> None:
    """Its files may be gone already. If it is not deleted after all, the failure is one."""
    append(flusher, journal, 2)
    journal.is_leaving = True
    flusher.start_all()
    driver.let_go(error=FULL)
    flusher.collect()
    assert lines == []
    journal.is_leaving = False
    flusher.when_synced((journal,), lambda error: None)
    assert len(lines) == 1


def test_a_store_that_is_closed_starts_no_other_driver(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, lines: list[LogLine]
) -> None:
    driver.successors = [InlineSync()]
    reported: list[Exception | None] = []
    flusher.close()
    driver.death = "it is closed"
    put(flusher, journal, 1, reported.append)
    flusher.start()
    flusher.collect()
    assert len(reported) == 1
    assert isinstance(reported[0], Exception)
    assert (len(driver.successors), lines) == (1, [])


def test_callback_may_append_flush_and_collect(flusher: Flusher, driver: ManualDriver, journal: QueueJournal) -> None:
    called: list[int] = []

    def again(error: Exception | None) -> None:
        assert error is None
        called.append(len(called))
        if len(called) < 50:
            append(flusher, journal, 1 + len(called))
            flusher.when_synced((journal,), again)
            flusher.start_all()
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


def test_error_in_one_callback_does_not_lose_the_others(flusher: Flusher) -> None:
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


def test_draining_waits_and_runs_no_callbacks(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    called: list[Exception | None] = []
    driver.when_waited_for = driver.let_go
    for rid, journal in enumerate(journals, 1):
        put(flusher, journal, rid, called.append)
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


def test_idle_caller_syncs_a_single_journal_itself(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    called: list[Exception | None] = []
    append(flusher, journals[0], 1)
    flusher.when_synced(journals, called.append)
    flusher.start_all(is_idle=True)
    assert (called, driver.submitted) == ([None], 0)
    for rid, journal in ((2, journals[0]), (3, journals[1])):
        append(flusher, journal, rid)
    flusher.start_all(is_idle=True)
    assert driver.submitted == 2  # but not for more


def test_an_idle_caller_syncs_what_came_while_the_driver_did(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    """It is left to `start`, which knows that the loop is idle, when the driver has ended."""
    called: list[int] = []
    put(flusher, journal, 2, lambda _: called.append(2))
    flusher.start()
    before = driver.submitted
    put(flusher, journal, 3, lambda _: called.append(3))
    flusher.start(is_idle=True)
    driver.let_go()
    flusher.collect(begins=False)
    assert (called, driver.submitted) == ([2], before)
    flusher.start(is_idle=True)
    assert (called, driver.submitted) == ([2, 3], before)
    assert flusher.is_idle


def test_with_the_inline_driver_starting_is_enough(journals: list[QueueJournal]) -> None:
    flusher = Flusher(InlineSync(), print)
    called: list[Exception | None] = []
    for rid in range(1, 400):  # laps
        append(flusher, journals[0], rid)
        if rid > 100:
            journals[0].writer.dequeue(10_000 + rid, rid - 100)
        flusher.when_synced((journals[0],), called.append)
        flusher.start_all()
        assert len(called) == rid
    assert called == [None] * 399
    assert flusher.fileno() == -1


def test_closing_closes_the_driver(flusher: Flusher, driver: ManualDriver) -> None:
    flusher.close()
    assert driver.is_closed


# ---- records that nobody waits for ----


def test_a_record_without_waiters_rides_on_the_next_flush(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[Exception | None] = []
    before = driver.submitted
    append(flusher, journal, 2)
    flusher.start()
    flusher.collect()
    assert driver.submitted == before
    put(flusher, journal, 3, called.append)
    flusher.start()
    sync(flusher, driver)
    assert called == [None]
    assert driver.submitted == before + 1
    assert not journal.writer.is_dirty
    assert flusher.is_idle


def test_append_without_waiters_starts_no_further_flush(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append)
    flusher.start()
    append(flusher, journal, 3)
    sync(flusher, driver)
    assert called == [None]
    assert not driver.waiting
    assert journal.writer.is_dirty
    assert journal in flusher.dirty
    flusher.start_all()
    assert len(driver.waiting) == 1
    sync(flusher, driver)
    assert not journal.writer.is_dirty


def test_patient_waiter_waits_for_a_flush_of_others(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal
) -> None:
    called: list[str] = []
    put(flusher, journal, 2, lambda _: called.append("patient"), is_urgent=False)
    flusher.start()
    assert not driver.waiting
    put(flusher, journal, 3, lambda _: called.append("urgent"))
    flusher.start()
    put(flusher, journal, 4, lambda _: called.append("late"), is_urgent=False)
    sync(flusher, driver)
    assert called == ["patient", "urgent"]
    assert not driver.waiting, "no flush follows for the late one"
    flusher.start_all()
    sync(flusher, driver)
    assert called == ["patient", "urgent", "late"]
    assert flusher.is_idle


class Timers:
    """`call_later` of an event loop, whose calls are due when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == LINGER
        self.calls.append(function)

    def ring(self) -> None:
        (function,) = self.calls
        self.calls.clear()
        function()


@pytest.fixture
def timers(flusher: Flusher) -> Timers:
    timers = Timers()
    flusher.call_later = timers
    return timers


def test_records_without_waiters_are_flushed_when_they_have_lingered(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    append(flusher, journal, 2)
    flusher.start()
    assert not driver.waiting
    timers.ring()
    let_all_go(flusher, driver)
    assert not journal.writer.is_dirty
    flusher.start()
    assert (timers.calls, flusher.is_idle) == ([], True)


def test_a_patient_waiter_is_called_when_its_records_have_lingered(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    called: list[Exception | None] = []
    put(flusher, journal, 2, called.append, is_urgent=False)
    flusher.start()
    assert not driver.waiting
    timers.ring()
    let_all_go(flusher, driver)
    assert called == [None]


def test_records_appended_while_others_linger_get_as_much_time(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], timers: Timers
) -> None:
    """Else a timer that was started long before would have it flushed, and the next message would wait for that."""
    begin(flusher, driver, journals)
    append(flusher, journals[0], 4)
    flusher.start()
    append(flusher, journals[1], 5)
    flusher.start()
    timers.ring()
    assert [list(files) for files in driver.waiting.values()] == [[journals[0].storage.file(0)]]
    timers.ring()
    let_all_go(flusher, driver)
    assert not journals[1].writer.is_dirty
    assert not timers.calls


def test_a_flush_of_others_ends_the_wait_of_records_that_linger(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    called: list[str] = []
    before = driver.submitted
    put(flusher, journal, 2, lambda _: called.append("patient"), is_urgent=False)
    flusher.start()
    put(flusher, journal, 3, lambda _: called.append("urgent"))
    flusher.start()
    let_all_go(flusher, driver)
    assert called == ["patient", "urgent"]
    timers.ring()
    assert driver.submitted == before + 1
    assert not timers.calls


def test_a_patient_waiter_for_several_journals_is_called_when_each_was_flushed_for_others(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], timers: Timers
) -> None:
    begin(flusher, driver, journals)
    called: list[Exception | None] = []
    for rid, journal in enumerate(journals[:2], 4):
        append(flusher, journal, rid)
    flusher.when_synced(journals[:2], called.append, is_urgent=False)
    for rid, journal in enumerate(journals[:2], 6):
        assert called == []
        put(flusher, journal, rid, lambda _: None)
        flusher.start()
        let_all_go(flusher, driver)
    assert called == [None]


def test_a_flush_that_covers_one_journal_leaves_a_patient_waiter_for_two(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], timers: Timers
) -> None:
    begin(flusher, driver, journals)
    called: list[Exception | None] = []
    for rid, journal in enumerate(journals[:2], 4):
        append(flusher, journal, rid)
    flusher.when_synced(journals[:2], called.append, is_urgent=False)
    append(flusher, journals[0], 6)
    flusher.when_synced(journals[:1], lambda _: None)
    flusher.start()
    let_all_go(flusher, driver)
    assert called == []
    timers.ring()
    let_all_go(flusher, driver)
    assert called == [None]


def test_records_appended_during_a_flush_are_flushed_after_it_when_they_have_lingered(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    """The timer finds the journal's step under way: what has lingered by then goes into the next one."""
    called: list[str] = []
    put(flusher, journal, 2, lambda _: called.append("urgent"))
    flusher.start()
    put(flusher, journal, 3, lambda _: called.append("patient"), is_urgent=False)
    flusher.start()
    timers.ring()
    assert len(driver.waiting) == 1
    let_all_go(flusher, driver)
    assert called == ["urgent", "patient"]


def test_hurrying_makes_patient_waiters_urgent(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], timers: Timers
) -> None:
    begin(flusher, driver, journals)
    called: list[Exception | None] = []
    for rid, journal in enumerate(journals, 4):
        append(flusher, journal, rid)
    flusher.when_synced(journals[:2], called.append, is_urgent=False)
    flusher.hurry()
    flusher.start()
    assert len(driver.waiting) == 2, "nobody waits for the third"
    let_all_go(flusher, driver)
    assert called == [None]


def test_hurrying_while_a_flush_is_under_way_begins_the_next_one_after_it(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    called: list[str] = []
    put(flusher, journal, 2, lambda _: called.append("urgent"))
    flusher.start()
    put(flusher, journal, 3, lambda _: called.append("patient"), is_urgent=False)
    flusher.hurry()
    flusher.start()
    let_all_go(flusher, driver)
    assert called == ["urgent", "patient"]


def test_the_timer_of_a_closed_flusher_does_nothing(
    flusher: Flusher, driver: ManualDriver, journal: QueueJournal, timers: Timers
) -> None:
    before = driver.submitted
    append(flusher, journal, 2)
    flusher.start()
    flusher.close()
    timers.ring()
    assert (driver.submitted, timers.calls) == (before, [])


def test_a_flush_of_several_steps_continues_without_waiters(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    """The first flush of a journal writes a file header in a step of its own."""
    append(flusher, journals[1], 1)
    flusher.start_all()
    sync(flusher, driver)
    assert len(driver.waiting) == 1, "the second step"
    sync(flusher, driver)
    assert not journals[1].writer.is_dirty


def test_waiting_for_one_journal_leaves_another_alone(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    called: list[Exception | None] = []
    append(flusher, journals[0], 1)
    append(flusher, journals[1], 2)
    flusher.when_synced((journals[0],), called.append)
    flusher.start()
    let_all_go(flusher, driver)
    assert called == [None]
    assert list(flusher.dirty) == [journals[1]]
    finish(flusher, driver)
    assert not journals[1].writer.is_dirty


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two steps are under way."""
    monkeypatch.setattr(commit, "FLUSHES_AT_ONCE", 2)


@replaces
@pytest.mark.usefixtures("few_at_once")
def test_few_steps_are_under_way_and_the_others_follow_in_order(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]
) -> None:
    begin(flusher, driver, journals)
    called: list[int] = []
    for number, journal in enumerate(journals):
        put(flusher, journal, 4 + number, lambda _, number=number: called.append(number))
    flusher.start()
    assert len(driver.waiting) == 2
    driver.let_go(next(iter(driver.waiting)))
    flusher.collect()
    assert (called, len(driver.waiting)) == ([0], 2)
    let_all_go(flusher, driver)
    assert (called, flusher.is_idle) == ([0, 1, 2], True)


@replaces
@pytest.mark.usefixtures("few_at_once")
def test_draining_begins_all_at_once(flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal]) -> None:
    """Otherwise an append that waits for room would wait for others, too."""
    for rid, journal in enumerate(journals, 1):
        append(flusher, journal, rid)
    most: list[int] = []

    def sync() -> None:
        most.append(len(driver.waiting))
        driver.let_go()

    driver.when_waited_for = sync
    flusher.drain(journals)
    assert max(most) == 3


@replaces
@pytest.mark.usefixtures("few_at_once")
def test_lingering_records_are_flushed_a_few_at_a_time(
    flusher: Flusher, driver: ManualDriver, journals: list[QueueJournal], timers: Timers
) -> None:
    begin(flusher, driver, journals)
    timers.calls.clear()
    for rid, journal in enumerate(journals, 4):
        append(flusher, journal, rid)
    flusher._has_timer = False
    flusher.start()
    timers.ring()
    let_all_go(flusher, driver)
    assert [journal.writer.is_dirty for journal in journals] == [False, False, True]
    timers.ring()
    let_all_go(flusher, driver)
    assert [journal.writer.is_dirty for journal in journals] == [False, False, False]
    assert flusher.is_idle
