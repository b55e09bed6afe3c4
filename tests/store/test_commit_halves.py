"""Sessions that commit one transaction after the other are served in two halves, which take turns at the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qstore.store.environment import tool_environment
from qstore.store.errors import JournalFailedError
from tests.store.test_commit_rounds import HeldSync
from tests.support.opened_store import Calls, OpenedStore, enqueued


class Sessions:
    """A store with one queue, whose syncs are held, and the event loop's next iteration.

    Attributes:
        soon: what the next iteration calls.
        calls: the outcomes of the transactions.
    """

    def __init__(self, path: Path, *, is_watched: bool = True) -> None:
        self.driver = HeldSync()
        self.opened = OpenedStore(replace(tool_environment(), make_driver=lambda _: self.driver), path)
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
