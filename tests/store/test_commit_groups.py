"""Transactions over the same journals that share their flushes, and so one entry in the prepared list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qstore.store.environment import tool_environment
from qstore.store.errors import JournalError
from tests.store.test_commit_rounds import HeldSync
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore, enqueued


class Shop:
    """A store with three queues, whose syncs are held."""

    def __init__(self, path: Path) -> None:
        self.path, self.driver = path, HeldSync()
        environment = replace(tool_environment(), make_driver=lambda _: self.driver)
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
