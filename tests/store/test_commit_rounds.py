"""Transactions over several journals that share their rounds of syncs, with a driver that syncs when a test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qstore.formats.rhm.headers import data_crc
from qstore.store.disk import WritableFile
from qstore.store.environment import tool_environment
from qstore.store.errors import JournalError, JournalFailedError
from qstore.store.live.commit import FLUSHES_APART
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.sync import Completion, FileWrite, InlineSync
from qstore.store.sync.driver import sync_all
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore, enqueued


class HeldSync(InlineSync):
    """Keeps tickets until they are let go, or waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[int, Sequence[WritableFile]]] = []
        self.done: list[Completion] = []
        self.is_held = False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        self.waiting.append((ticket, files))
        if not self.is_held:
            self.let_go()

    def fileno(self) -> int:
        return 999 if self.is_held else -1

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        if timeout != 0.0:
            self.let_go()
        done, self.done = self.done, []
        return done

    def let_go(self, failing: Callable[[Sequence[WritableFile]], bool] = lambda _: False) -> None:
        """All that wait are synced, or fail."""
        waiting, self.waiting = self.waiting, []
        for ticket, files in waiting:
            self.done.append((ticket, OSError(errno.EIO, "broken") if failing(files) else sync_all(files)))


class Rounds:
    """A store with two queues, whose syncs are held."""

    def __init__(self, path: Path) -> None:
        self.driver = HeldSync()
        self.opened = OpenedStore(tool_environment()._replace(make_driver=lambda _: self.driver), path)
        self.one, self.two = self.opened.make_queue("one"), self.opened.make_queue("two")
        self.calls = Calls()
        self.commit(1)
        self.opened.wait(self.calls)
        self.calls.clear()
        self.driver.is_held = True

    @property
    def under_way(self) -> set[str]:
        """The journals that are being flushed."""
        journals = (self.one, self.two, self.opened.store.prepared_list)
        return {journal.name for journal in journals if journal.writer.is_under_way}

    def commit(self, count: int, *journals: QueueJournal) -> None:
        """Let `count` transactions arrive."""
        chosen = journals or (self.one, self.two)
        for _ in range(count):
            self.opened.store.transactions.commit([enqueued(journal, b"m") for journal in chosen], [], self.calls)
        self.opened.store.flush((), lambda _: None)  # as a broker does at the end of a tick

    def sync(self) -> None:
        """What is under way is synced."""
        self.driver.let_go()
        self.opened.store.collect()

    def end(self) -> None:
        """Everything is synced, and the store closed."""
        self.driver.is_held = False
        self.opened.wait(self.calls)
        self.opened.store.close()


@pytest.fixture
def rounds(path: Path) -> Rounds:
    return Rounds(path)


LIST = "TplStore"


def test_few_that_arrive_during_the_second_round_of_many_begin_after_it(rounds: Rounds) -> None:
    rounds.commit(3)
    assert rounds.under_way == {"one", "two"}
    rounds.sync()
    assert rounds.under_way == {LIST}
    rounds.commit(1)
    rounds.commit(1)
    assert rounds.under_way == {LIST}
    rounds.sync()
    assert rounds.calls == [None] * 3
    assert rounds.under_way == {"one", "two"}
    rounds.sync()
    rounds.sync()
    assert rounds.calls == [None] * 5
    rounds.end()


def test_transactions_that_arrive_together_begin_at_once(rounds: Rounds) -> None:
    rounds.commit(1)
    rounds.sync()
    rounds.commit(1)
    assert rounds.under_way == {LIST, "one", "two"}
    rounds.sync()
    assert rounds.calls == [None]
    rounds.sync()
    assert rounds.calls == [None, None]
    rounds.end()


def test_a_half_begins_when_its_sessions_have_arrived(rounds: Rounds) -> None:
    rounds.commit(3)
    rounds.sync()
    rounds.commit(2)
    assert rounds.under_way == {LIST}
    rounds.commit(1)
    assert rounds.under_way == {LIST, "one", "two"}
    rounds.sync()
    rounds.sync()
    assert rounds.calls == [None] * 6
    rounds.end()


def test_a_journal_that_others_wait_for_is_flushed_at_once(rounds: Rounds) -> None:
    rounds.commit(3)
    rounds.sync()
    rounds.commit(1)
    rounds.commit(1, rounds.one)
    assert rounds.under_way == {LIST, "one"}
    rounds.sync()
    assert rounds.calls == [None] * 4
    assert rounds.under_way == {"two"}
    rounds.sync()
    rounds.sync()
    assert rounds.calls == [None] * 5
    rounds.end()


def test_draining_during_a_round_runs_no_callbacks(rounds: Rounds) -> None:
    """No waiters are called while it is drained, so the second round does not end for them."""
    rounds.commit(3)
    rounds.sync()
    rounds.commit(1)
    flusher = rounds.opened.store.transactions._flusher
    flusher.drain((rounds.one,))
    assert rounds.one.is_drained
    assert rounds.calls == []
    rounds.sync()
    rounds.sync()
    rounds.sync()
    assert rounds.calls == [None] * 4
    rounds.end()


def test_failed_prepared_list_fails_all_waiting_commits(rounds: Rounds) -> None:
    rounds.commit(3)
    rounds.sync()
    rounds.commit(1)
    rounds.driver.let_go(lambda _: True)
    rounds.opened.store.collect()
    assert len(rounds.calls) == 3
    assert all(isinstance(error, Exception) for error in rounds.calls)
    rounds.sync()
    assert len(rounds.calls) == 4
    assert isinstance(rounds.calls[3], Exception)
    rounds.end()


# ---- transactions over the same journals share flushes and list entries ----


class Shop:
    """A store with three queues, whose syncs are held."""

    def __init__(self, path: Path) -> None:
        self.path, self.driver = path, HeldSync()
        environment = tool_environment()._replace(make_driver=lambda _: self.driver)
        self.opened = OpenedStore(environment, path, PARAMETERS)
        self.journals = [self.opened.make_queue(name) for name in ("a", "b", "c")]
        self.calls = Calls()
        self.driver.is_held = True

    def commit(self, data: bytes, *queues: int, removes: tuple[tuple[int, int], ...] = ()) -> list[int]:
        puts = [enqueued(self.journals[queue], data) for queue in queues]
        takes = [(self.journals[queue], rid) for queue, rid in removes]
        return self.opened.store.transactions.commit(puts, takes, self.calls)

    def sync(self) -> None:
        self.opened.store.start()
        self.driver.let_go()
        self.opened.store.collect()

    def open_xids(self) -> list[int]:
        return [len(journal.writer.transactions) for journal in self.journals]

    def end(self, expected: dict[str, list[bytes]]) -> None:
        """Everything is synced; what is recovered then."""
        self.driver.is_held = False
        self.opened.wait(self.calls)
        assert self.opened.store.close()
        again = OpenedStore(tool_environment(), self.path)
        assert again.recovered_data() == expected
        again.store.close()


@pytest.fixture
def shop(path: Path) -> Shop:
    return Shop(path)


def test_those_of_one_batch_are_one_transaction(shop: Shop) -> None:
    for number in range(5):
        shop.commit(b"%d" % number, *((0, 1) if number % 2 else (1, 0)))
    assert shop.open_xids() == [1, 1, 0]
    for _ in range(4):  # in a new journal the first flush is written in two steps
        assert shop.calls == []
        shop.sync()
    assert shop.calls == [None] * 5
    assert shop.opened.store.transactions.prepares == 1
    numbers = [b"%d" % number for number in range(5)]
    shop.end({"a": numbers, "b": numbers, "c": []})


def test_other_journals_and_later_batches_are_other_transactions(shop: Shop) -> None:
    shop.commit(b"1", 0, 1)
    shop.commit(b"2", 0, 2)
    shop.commit(b"3", 0, 1, 2)
    shop.commit(b"4", 0, 1)
    assert shop.open_xids() == [3, 2, 2]
    shop.opened.store.start()
    shop.commit(b"5", 0, 1)
    assert shop.open_xids() == [4, 3, 2]
    for _ in range(6):
        shop.sync()
    assert shop.calls == [None] * 5
    assert shop.opened.store.transactions.prepares == 4
    shop.end({"a": [b"1", b"2", b"3", b"4", b"5"], "b": [b"1", b"3", b"4", b"5"], "c": [b"2", b"3"]})


def test_a_batch_that_only_one_of_the_journals_has_begun_ends_the_group(shop: Shop) -> None:
    shop.commit(b"1", 0, 1)
    shop.opened.store.flush((shop.journals[0],), lambda _: None)
    shop.commit(b"2", 0, 1)
    assert len(shop.journals[0].writer.transactions) == 2
    for _ in range(6):
        shop.sync()
    assert shop.calls == [None] * 2
    shop.end({"a": [b"1", b"2"], "b": [b"1", b"2"], "c": []})


def test_one_that_is_refused_leaves_the_others(shop: Shop) -> None:
    (first, _) = shop.commit(b"1", 0, 1)
    with pytest.raises(JournalError, match="is locked by an open transaction"):
        shop.commit(b"2", 1, removes=((0, first),))
    shop.commit(b"3", 0, 1)
    for _ in range(4):
        shop.sync()
    assert shop.calls == [None] * 2
    shop.end({"a": [b"1", b"3"], "b": [b"1", b"3"], "c": []})


def test_two_may_not_remove_the_same_message(shop: Shop) -> None:
    rid = shop.opened.enqueue(shop.journals[0], b"0")
    shop.commit(b"1", 1, removes=((0, rid),))
    with pytest.raises(JournalError, match="is locked by an open transaction"):
        shop.commit(b"2", 1, removes=((0, rid),))
    for _ in range(4):
        shop.sync()
    assert shop.calls == [None]
    shop.end({"a": [], "b": [b"1"], "c": []})


def test_one_that_fills_the_write_cache_is_whole(shop: Shop) -> None:
    """Its journals are flushed when all of it is appended, not in between."""
    large = b"x" * 6000
    for journal in shop.journals:
        journal.bound = 4096
    shop.commit(b"1", 0, 1)
    shop.commit(large, 0, 1)
    shop.commit(b"3", 0, 1)
    for _ in range(8):
        shop.sync()
    assert shop.calls == [None] * 3
    shop.end({"a": [b"1", large, b"3"], "b": [b"1", large, b"3"], "c": []})


def test_a_failing_disk_before_the_commit_point_leaves_none_of_them(shop: Shop) -> None:
    for number in range(3):
        shop.commit(b"%d" % number, 0, 1)
    shop.opened.store.start()
    shop.driver.let_go(lambda _: True)
    shop.opened.store.collect()
    assert len(shop.calls) == 3
    assert all(isinstance(error, JournalError) for error in shop.calls)
    shop.driver.is_held = False
    shop.opened.store.close()
    again = OpenedStore(tool_environment(), shop.path)
    assert again.recovered_data() == {"a": [], "b": [], "c": []}
    again.store.close()


# ---- two halves of the sessions that take turns at the disk ----


class Sessions:
    """A store with one queue, whose syncs are held, and the event loop's next iteration.

    Attributes:
        soon: what the next iteration calls.
        calls: the outcomes of the transactions.
    """

    def __init__(self, path: Path, *, is_watched: bool = True) -> None:
        self.driver = HeldSync()
        self.opened = OpenedStore(tool_environment()._replace(make_driver=lambda _: self.driver), path)
        self.queue = self.opened.make_queue("one")
        self.soon: list[Callable[[], None]] = []
        self.calls = Calls()
        if is_watched:
            self.opened.store.is_watched(self.soon.append, lambda _seconds, _function: None)
        self.commit(1)
        self.opened.wait(self.calls)
        self.calls.clear()
        self.driver.is_held = True

    @property
    def is_flushed(self) -> bool:
        """Whether a flush of the queue's journal is under way."""
        return self.queue.writer.is_under_way

    def commit(self, count: int) -> None:
        """Let `count` transactions arrive, and end a tick."""
        for _ in range(count):
            self.opened.store.transactions.commit([enqueued(self.queue, b"m")], [], self.calls)
        self.end_tick()

    def end_tick(self) -> None:
        """As a broker does at the end of a tick."""
        self.opened.store.flush((), lambda _: None)

    def iterate(self) -> None:
        """The next iteration of the event loop."""
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()

    def sync(self) -> None:
        """What is under way is synced."""
        self.driver.let_go()
        self.opened.store.collect()

    def commit_together(self, count: int) -> None:
        """Commit `count` transactions in one flush."""
        self.commit(1)
        self.commit(count)
        self.sync()
        assert self.is_flushed
        self.sync()
        assert self.calls == [None] * (1 + count)
        self.calls.clear()

    def end(self) -> None:
        """Everything is synced, and the store closed."""
        self.driver.is_held = False
        self.opened.store.close()


@pytest.fixture
def sessions(path: Path) -> Sessions:
    return Sessions(path)


def test_a_flush_waits_for_half_as_many(sessions: Sessions) -> None:
    sessions.commit_together(8)
    sessions.commit(1)
    sessions.commit(2)
    assert not sessions.is_flushed
    sessions.commit(1)
    assert sessions.is_flushed
    sessions.commit(3)
    sessions.sync()
    assert sessions.calls == [None] * 4
    assert sessions.is_flushed, "three are more than half of four"
    sessions.sync()
    assert sessions.calls == [None] * 7
    sessions.end()


def test_the_next_flush_waits_likewise_when_one_is_synced(sessions: Sessions) -> None:
    sessions.commit(1)
    sessions.commit(8)
    sessions.sync()
    sessions.commit(2)  # while the eight are on the way
    sessions.sync()
    assert not sessions.is_flushed
    sessions.commit(2)
    assert sessions.is_flushed
    sessions.end()


def test_not_if_nothing_more_comes(sessions: Sessions) -> None:
    """In the first iteration answers are sent, to which the next transactions are the reaction."""
    sessions.commit_together(8)
    sessions.commit(1)
    sessions.iterate()
    assert not sessions.is_flushed
    sessions.commit(1)
    sessions.iterate()
    assert not sessions.is_flushed, "one more has come"
    sessions.iterate()
    assert sessions.is_flushed
    assert not sessions.soon
    sessions.sync()
    assert sessions.calls == [None] * 2
    sessions.commit(1)
    assert sessions.is_flushed, "one is half of two"
    sessions.end()


def test_one_look_an_iteration(sessions: Sessions) -> None:
    """A flush that begins before the look that was asked for leaves none behind that ends the next wait early."""
    sessions.commit_together(8)
    sessions.commit(1)
    sessions.commit(3)
    assert sessions.is_flushed
    sessions.sync()
    sessions.commit(1)
    assert not sessions.is_flushed
    assert len(sessions.soon) == 1
    sessions.iterate()
    sessions.iterate()
    assert sessions.is_flushed
    sessions.end()


def test_ending_completes_a_commit_that_waits_for_others(sessions: Sessions) -> None:
    sessions.commit_together(8)
    sessions.commit(1)
    assert not sessions.is_flushed
    sessions.end()
    assert sessions.calls == [None]


def test_messages_outside_of_transactions_do_not_wait(sessions: Sessions) -> None:
    sessions.commit_together(8)
    store = sessions.opened.store
    store.append.enqueue(sessions.queue, *enqueued(sessions.queue, b"m")[1][0])
    store.flush((sessions.queue,), sessions.calls)
    assert sessions.is_flushed
    sessions.sync()
    assert sessions.calls == [None]
    sessions.end()


def test_a_queue_that_is_deleted_meanwhile(sessions: Sessions) -> None:
    sessions.commit_together(8)
    sessions.commit(1)
    sessions.driver.is_held = False
    deleted = Calls()
    sessions.opened.store.changes.delete_queue(sessions.queue, deleted)
    sessions.iterate()
    sessions.iterate()
    assert not sessions.soon
    sessions.opened.wait(deleted)
    assert (sessions.calls, deleted) == ([None], [(None, None)])
    sessions.end()


def test_a_failing_disk_after_the_wait(sessions: Sessions) -> None:
    """All waiters get the error, and none waits for others any more."""
    sessions.commit_together(8)
    sessions.commit(1)
    sessions.commit(1)
    sessions.iterate()
    sessions.iterate()
    assert sessions.is_flushed
    sessions.driver.let_go(lambda _: True)
    sessions.opened.store.collect()
    assert [type(each) for each in sessions.calls] == [JournalFailedError] * 2
    sessions.iterate()
    assert not sessions.soon
    sessions.end()


def test_without_an_event_loop_nothing_waits(path: Path) -> None:
    sessions = Sessions(path, is_watched=False)
    sessions.commit_together(8)
    sessions.commit(1)
    assert sessions.is_flushed
    sessions.end()


def test_transactions_over_several_queues(path: Path) -> None:
    """A group waits for as many as the last one, as long as more come."""
    sessions = Sessions(path)
    store, other = sessions.opened.store, sessions.opened.make_queue("two")

    def commit(count: int) -> None:
        for _ in range(count):
            enqueues = [enqueued(journal, b"m") for journal in (sessions.queue, other)]
            store.transactions.commit(enqueues, [], sessions.calls)
        sessions.end_tick()

    commit(1)
    commit(7)  # while the first one's records are on the way
    for _ in range(8):
        sessions.sync()
    assert sessions.calls == [None] * 8
    commit(2)
    sessions.iterate()
    commit(4)
    sessions.iterate()
    assert not sessions.is_flushed, "seven were in the last group"
    commit(1)
    sessions.iterate()
    assert sessions.is_flushed
    assert other.writer.is_under_way
    sessions.sync()
    sessions.sync()
    assert sessions.calls == [None] * 15
    sessions.end()


# ---- many journals ----


class ManyRounds:
    """A store with many queues, whose syncs are held."""

    def __init__(self, path: Path, count: int) -> None:
        self.driver = HeldSync()
        self.opened = OpenedStore(tool_environment()._replace(make_driver=lambda _: self.driver), path)
        self.journals = [self.opened.make_queue(f"q-{number}") for number in range(count)]
        self.calls = Calls()
        self.append(*range(count))
        self.opened.wait(self.calls)  # their first files are begun
        self.calls.clear()
        self.driver.is_held = True

    def append(self, *numbers: int) -> None:
        """Append a message to each of these journals, at the end of a tick."""
        for number in numbers:
            self.opened.store.append.enqueue(self.journals[number], (b"m",), 1, data_crc((b"m",)))
        self.opened.store.flush([self.journals[number] for number in numbers], self.calls)

    @property
    def under_way(self) -> list[int]:
        return [number for number, each in enumerate(self.journals) if each.writer.is_under_way]

    def sync(self, count: int) -> None:
        """The oldest of them are synced."""
        kept, self.driver.waiting = self.driver.waiting[count:], self.driver.waiting[:count]
        self.driver.let_go()
        self.driver.waiting = kept
        self.opened.store.collect()

    def end(self) -> None:
        self.driver.is_held = False
        self.sync(len(self.driver.waiting))
        self.opened.wait(self.calls)
        self.opened.store.close()


def test_many_journals_begin_together_when_half_of_those_before_are_synced(path: Path) -> None:
    rounds = ManyRounds(path, 10)
    rounds.append(*range(8))
    assert rounds.under_way == list(range(8))
    rounds.append(8)
    rounds.append(9)
    rounds.append(0)
    assert rounds.under_way == list(range(8))
    rounds.sync(3)
    assert rounds.under_way == list(range(3, 8))
    rounds.sync(1)
    assert rounds.under_way == [0, 4, 5, 6, 7, 8, 9]
    assert not rounds.calls
    rounds.sync(4)
    assert rounds.calls == [None]
    rounds.end()
    assert rounds.calls == [None] * 4


def test_few_journals_wait_for_no_other(path: Path) -> None:
    rounds = ManyRounds(path, FLUSHES_APART + 2)
    for number in range(FLUSHES_APART + 1):
        rounds.append(number)
    assert rounds.under_way == list(range(FLUSHES_APART + 1))
    rounds.append(FLUSHES_APART + 1)
    assert rounds.under_way == list(range(FLUSHES_APART + 1))
    rounds.sync(1)
    assert rounds.under_way == list(range(1, FLUSHES_APART + 2))
    rounds.end()


def test_a_journal_whose_room_is_needed_waits_for_no_other(path: Path) -> None:
    rounds = ManyRounds(path, 10)
    rounds.append(*range(8))
    rounds.append(9)
    assert 9 not in rounds.under_way
    rounds.opened.store._flusher._press({rounds.journals[9]: None})
    assert 9 in rounds.under_way
    rounds.end()
