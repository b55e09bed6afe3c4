"""How many syncs a transaction takes, counted with a driver that syncs at once; and an old branch in doubt."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qstore.store.disk import WritableFile
from qstore.store.environment import tool_environment
from qstore.store.live import transactions
from qstore.store.sync import Completion, FileWrite, InlineSync
from tests.support.compiled import replaces
from tests.support.opened_store import Calls, OpenedStore, enqueued


class CountingSync(InlineSync):
    """Counts what is synced."""

    def __init__(self) -> None:
        super().__init__()
        self.files = 0

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        self.files += 1
        super().submit(ticket, files, writes)


@pytest.fixture
def driver() -> CountingSync:
    return CountingSync()


@pytest.fixture
def opened(path: Path, driver: CountingSync) -> OpenedStore:
    return OpenedStore(tool_environment()._replace(make_driver=lambda _: driver), path)


@pytest.mark.parametrize(("queues", "syncs"), [(("a",), 1), (("a", "b"), 3), (("a", "b", "c"), 4)])
def test_syncs_of_a_commit(opened: OpenedStore, driver: CountingSync, queues: tuple[str, ...], syncs: int) -> None:
    """One of its journal; or one of each, and then one of the prepared list."""
    for queue in queues:
        opened.make_queue(queue)
    rounds = 20
    for number in range(rounds + 1):
        calls = Calls()
        if number == 1:
            driver.files = 0
        opened.store.transactions.commit([enqueued(opened.journal(queue), b"m") for queue in queues], [], calls)
        opened.wait(calls)
        assert calls == [None]
    assert driver.files == rounds * syncs
    assert opened.store.close()


@pytest.mark.parametrize("queues", [("a",), ("a", "b")])
def test_commits_at_the_same_time_share_their_syncs(
    opened: OpenedStore, driver: CountingSync, queues: tuple[str, ...]
) -> None:
    for queue in queues:
        opened.make_queue(queue)
    driver.files = 0
    calls = Calls()
    for _ in range(32):
        opened.store.transactions.commit([enqueued(opened.journal(queue), b"m") for queue in queues], [], calls)
    opened.wait(calls, 32)
    assert calls == [None] * 32
    assert driver.files / 32 <= 0.2
    assert opened.store.close()


def test_syncs_of_a_branch(opened: OpenedStore, driver: CountingSync) -> None:
    """To prepare it one of each journal and one of the prepared list; to end it one of the list."""
    for queue in ("a", "b"):
        opened.make_queue(queue)
    for number in range(10):
        calls = Calls()
        xid = b"%d" % number
        if number == 1:
            driver.files = 0
        puts = [enqueued(opened.journal(queue), b"m") for queue in ("a", "b")]
        opened.store.transactions.prepare(xid, puts, [], calls)
        opened.wait(calls)
        (opened.store.transactions.commit_prepared if number % 2 else opened.store.transactions.abort_prepared)(
            xid, calls
        )
        opened.wait(calls, 2)
        assert calls == [None, None]
    assert driver.files == 9 * 4
    assert opened.store.close()


def test_an_old_branch_in_doubt_blocks_neither_the_prepared_list_nor_a_ring(path: Path) -> None:
    """The rings go round several times, and its records are carried along."""
    opened, calls = OpenedStore(tool_environment(), path), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    first = opened.enqueue(one, b"locked")
    opened.store.transactions.prepare(b"old", [enqueued(two, b"pending")], [(one, first)], calls)
    opened.wait(calls)
    held: list[int] = []
    for _ in range(1500):
        calls = Calls()
        puts = [enqueued(one, b"m" * 900), enqueued(two, b"m" * 900)]
        held += opened.store.transactions.commit(puts, list(zip((one, two), held, strict=False)), calls)
        opened.wait(calls)
        assert calls == [None]
        del held[:-2]
    laps = [journal.writer.batch.index // journal.geometry.files for journal in (one, two, opened.store.prepared_list)]
    assert min(laps) >= 1
    opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    assert opened.recovered_data() == {"one": [b"locked", b"m" * 900], "two": [b"pending", b"m" * 900]}
    assert opened.store.transactions.in_doubt == [b"old"]
    calls = Calls()
    opened.store.transactions.abort_prepared(b"old", calls)
    opened.wait(calls)
    opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    assert opened.recovered_data() == {"one": [b"locked", b"m" * 900], "two": [b"m" * 900]}
    opened.store.close()


class HeldSync(InlineSync):
    """Is done with what it has, and no more, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Completion] = []

    def fileno(self) -> int:
        return 999  # a descriptor that nobody reads: as if there were another process

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        if timeout != 0.0:
            self.go_on()
        done, self.synced = self.synced, []
        return done

    def go_on(self) -> None:
        self.synced += super().completed()


def test_a_commit_does_not_wait_for_ever_while_others_are_always_in_the_prepared_list(path: Path) -> None:
    """Transactions of two busy queues arrive at the list before those that it has are through, again and again."""
    driver = HeldSync()
    opened = OpenedStore(tool_environment()._replace(make_driver=lambda _: driver), path)
    for queue in ("busy", "busier", "quiet", "calm"):
        opened.make_queue(queue)
    store, others, calls = opened.store, Calls(), Calls()

    def commit(names: Sequence[str], done: Calls) -> None:
        store.transactions.commit([enqueued(opened.journal(name), b"m") for name in names], [], done)

    rounds = 40
    for number in range(rounds):
        for _ in range(3):
            commit(("busy", "busier"), others)
        for name in ("busy", "busier"):  # which others wait for too
            opened.enqueue(opened.journal(name), b"m")
            store.flush((opened.journal(name),), others)
        if number == 4:
            commit(("quiet", "calm"), calls)
        store.start()
        driver.go_on()
        store.collect()
        if calls:
            break
    assert calls == [None]
    assert number <= 10
    assert len(others) > 4 * (number - 3)
    assert store.close()


def test_plain_enqueue_does_not_wait_for_the_prepared_list(path: Path) -> None:
    """Not even if it waits for several journals at once, one of which a transaction waits for too."""
    driver = HeldSync()
    opened = OpenedStore(tool_environment()._replace(make_driver=lambda _: driver), path)
    a, b, c = (opened.make_queue(queue) for queue in ("a", "b", "c"))
    store, others, calls = opened.store, Calls(), Calls()
    for _ in range(3):
        store.transactions.commit([enqueued(a, b"m"), enqueued(b, b"m")], [], others)
    store.start()
    while not store.prepared_list.writer.is_under_way:
        driver.go_on()
        store.collect()
    store.transactions.commit([enqueued(a, b"m"), enqueued(b, b"m")], [], others)
    for journal in (a, c):
        opened.enqueue(journal, b"m")
    store.flush((a, c), calls)
    store.start()
    assert a.writer.is_under_way
    assert c.writer.is_under_way
    assert not b.writer.is_under_way
    while not calls:
        driver.go_on()
        store.collect()
    assert calls == [None]
    assert store.close()


@replaces
@pytest.mark.parametrize("commits", [True, False])
def test_outcome_for_many_journals_is_written_in_steps_and_finished_at_a_close(
    opened: OpenedStore, path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    monkeypatch.setattr(transactions, "JOURNALS_STEP", 1)
    queues = "abc"
    for queue in queues:
        opened.make_queue(queue)
    soon: list[Callable[[], None]] = []
    store, done = opened.store, Calls()
    store.is_watched(soon.append, lambda _seconds, _function: None)
    large = store.transactions.begin_large()
    store.transactions.append_portion(large, [enqueued(opened.journal(queue), b"m") for queue in queues], [])
    if commits:
        store.transactions.end_large(large, done)
    else:
        store.transactions.abort_large(large, done)
    store.start()
    ended = [len(opened.journal(queue).writer.transactions) for queue in queues].count(0)
    assert (ended < len(queues), bool(soon), done) == (True, True, [])
    assert store.close()
    assert len(done) == 1
    again = OpenedStore(tool_environment(), path)
    assert again.recovered_data() == {queue: [b"m"] if commits else [] for queue in queues}
    assert again.store.transactions.in_doubt == []
    assert again.store.close()


def test_a_kill_while_a_transaction_is_undone_leaves_room_for_the_next_start(
    opened: OpenedStore, path: Path, tmp_path: Path
) -> None:
    """Others have used the room of its records, which are there again, up to the last block of the ring."""
    journal, store, others = opened.make_queue("q"), opened.store, list[bytes]()
    large = store.transactions.begin_large()
    store.transactions.append_portion(large, [enqueued(journal, b"m" * 2000)] * 60, [])
    opened.flush(journal)
    writer = journal.writer
    (xid,) = writer.transactions
    while writer.undo(xid, 50):  # as it is aborted, in steps; its abort would be next
        pass
    end = writer.space.files * writer.space.file
    while writer.batch.position < end:
        others.append(b"%d" % len(others) * (200 if writer.batch.position < end - 32 else 1))
        opened.enqueue(journal, others[-1])
        opened.flush(journal)
    assert writer.batch.position == end
    shutil.copytree(path, tmp_path / "killed")
    assert store.close()
    again = OpenedStore(tool_environment(), tmp_path / "killed")
    assert not again.store.was_clean
    assert again.recovered_data() == {"q": others}
    assert again.store.close()
