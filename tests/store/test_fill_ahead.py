"""Blocks of journal files that are prepared for the next small flushes (`WritableFile.fill_ahead`)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from qstore.formats.rhm.geometry import DATA_OFFSET, PAGE_SIZE
from qstore.store.disk import OsWritableFile
from qstore.store.environment import InlineBackground, Result, tool_environment
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.sync.driver import FileWrite, sync_all
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore

FILL = 16 * 1024  # bytes: a multiple of that is where filling ends


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where files were filled ahead."""
    offsets: list[int] = []
    original = OsWritableFile.fill_ahead

    def fill_ahead(file: OsWritableFile, offset: int) -> bool:
        offsets.append(offset)
        return original(file, offset)

    monkeypatch.setattr(OsWritableFile, "fill_ahead", fill_ahead)
    return offsets


def test_small_flushes_fill_ahead_of_themselves(path: Path, filled: list[int]) -> None:
    opened = OpenedStore(tool_environment(), path, replace(PARAMETERS, wcache_num_pages=64))
    journal = opened.make_queue("queue")
    for _ in range(3):
        opened.enqueue(journal, b"small")
        opened.flush(journal)
    assert filled == [DATA_OFFSET + 512]  # far enough for the others
    for _ in range(20):
        opened.enqueue(journal, b"m" * 1000)
    opened.flush(journal)
    assert len(filled) == 1
    opened.store.close()


def test_a_step_is_all_there_is_to_sync_unless_it_fills_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("queue")
    opened.enqueue(journal, b"first")
    headers: list[FileWrite] = []
    files = journal.begin(headers)
    assert [(write.offset < DATA_OFFSET, write.is_all) for write in headers] == [(True, False)]
    headers[0].file.write_all(headers[0].offset, headers[0].pieces, headers[0].size)
    journal.finish(sync_all(files))
    opened.flush(journal)
    monkeypatch.setattr(OsWritableFile, "filled", property(lambda _file: 0, lambda _file, _end: None))
    for fills in (False, True):
        monkeypatch.setattr(OsWritableFile, "fill_ahead", lambda _file, _offset, fills=fills: fills)
        opened.enqueue(journal, b"small")
        writes: list[FileWrite] = []
        files = journal.begin(writes)
        (write,) = writes
        assert (write.is_all, write.file) == (not fills, *files)
        write.file.write_all(write.offset, write.pieces, write.size)
        journal.finish(sync_all(files))
    opened.store.close()


class CountedBackground(InlineBackground):
    """Tells which work it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Callable[[], object]] = []

    def run(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        self.works.append(work)
        super().run(work, done, failed)


@pytest.fixture
def background() -> CountedBackground:
    return CountedBackground()


@pytest.fixture
def opened(path: Path, background: CountedBackground) -> Iterator[OpenedStore]:
    never_slow = lambda: 0  # noqa: E731
    environment = tool_environment()._replace(make_background=lambda: background, monotonic=never_slow)
    opened = OpenedStore(environment, path, replace(PARAMETERS, wcache_num_pages=64))
    yield opened
    opened.store.close()


def flush_now(opened: OpenedStore, journal: QueueJournal) -> None:
    """As an idle event loop does."""
    calls: list[Exception | None] = []
    opened.store.flush((journal,), calls.append, is_idle=True)
    assert calls == [None]


def test_an_idle_loop_fills_ahead_in_its_next_iteration(
    opened: OpenedStore, background: CountedBackground, filled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled: list[Callable[[], None]] = []
    opened.store.is_watched(scheduled.append, lambda _seconds, _function: None)
    journal = opened.make_queue("queue")
    monkeypatch.setattr(OsWritableFile, "_next_data", lambda file, _: file.size)
    monkeypatch.setattr(os, "lseek", lambda _descriptor, offset, _how: offset)  # as if no block had been written
    before = len(background.works)
    for number in range(2 * FILL // 512):
        opened.enqueue(journal, b"small")
        flush_now(opened, journal)
        end = DATA_OFFSET + 512 * (number + 1)
        assert len(scheduled) == (number == 0 or end in (FILL, 2 * FILL))
        for fill in scheduled:
            fill()
            assert filled.pop() == end
        scheduled.clear()
        opened.store.fill_ahead()
        assert filled == []
    assert len(background.works) == before + 3  # the syncs
    opened.enqueue(journal, b"m" * 20_000)
    flush_now(opened, journal)
    assert scheduled == []


def test_files_that_cannot_be_synced_ahead_are_left(
    opened: OpenedStore, background: CountedBackground, filled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flush, which has a descriptor of its own, reports what that means."""
    journal = opened.make_queue("queue")
    opened.enqueue(journal, b"small")
    flush_now(opened, journal)
    monkeypatch.setattr(OsWritableFile, "fill_ahead", lambda _file, _offset: True)
    before, lines = len(background.works), len(opened.lines)
    with monkeypatch.context() as patched:
        patched.setattr(OsWritableFile, "sync", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        opened.store.fill_ahead()
    opened.store.collect()
    assert len(background.works) == before + 1
    assert journal.writer.failure is None
    opened.enqueue(journal, b"small")
    flush_now(opened, journal)
    assert len(opened.lines) == lines


def test_a_deleted_queue_is_not_filled_ahead(
    opened: OpenedStore, background: CountedBackground, filled: list[int]
) -> None:
    journal = opened.make_queue("queue")
    opened.enqueue(journal, b"small")
    flush_now(opened, journal)
    calls = Calls()
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls)
    before = len(background.works)
    opened.store.fill_ahead()
    assert (filled, len(background.works)) == ([], before)


def test_filled_blocks_are_never_taken_for_records(path: Path, filled: list[int]) -> None:
    """Several laps of a ring with small flushes, and each is recovered."""
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("queue")
    rid = 0
    for number in range(4 * PAGE_SIZE // 512 + 50):
        if rid:
            opened.store.append.dequeue(journal, rid)
        rid = opened.enqueue(journal, b"%d" % number)
        opened.flush(journal)
        if number % 100 == 0:
            opened.store.close()
            opened = OpenedStore(tool_environment(), path)
            assert opened.recovered_data() == {"queue": [b"%d" % number]}
            journal = opened.journal("queue")
    assert len(filled) > 10
    opened.store.close()
