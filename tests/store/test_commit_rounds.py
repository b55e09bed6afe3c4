"""Transactions over several journals that share their rounds of syncs, with a driver that syncs when a test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qstore.store.disk import WritableFile
from qstore.store.environment import tool_environment
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.sync import Completion, FileWrite, InlineSync
from qstore.store.sync.driver import sync_all
from tests.support.opened_store import Calls, OpenedStore, enqueued


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
        self.opened = OpenedStore(replace(tool_environment(), make_driver=lambda _: self.driver), path)
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


def test_as_many_begin_at_once(rounds: Rounds) -> None:
    rounds.commit(1)
    rounds.sync()
    rounds.commit(1)
    assert rounds.under_way == {LIST, "one", "two"}
    rounds.sync()
    assert rounds.calls == [None]
    rounds.sync()
    assert rounds.calls == [None, None]
    rounds.end()


def test_they_begin_when_as_many_have_arrived(rounds: Rounds) -> None:
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
