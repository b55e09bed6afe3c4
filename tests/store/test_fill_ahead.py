"""Blocks of journal files that are prepared for the next small flushes (`WritableFile.fill_ahead`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qstore.formats.rhm.geometry import DATA_OFFSET, PAGE_SIZE
from qstore.store.environment import tool_environment
from qstore.store.writable_disk import OsWritableFile
from tests.support.opened_store import PARAMETERS, OpenedStore


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where files were filled ahead."""
    offsets: list[int] = []
    original = OsWritableFile.fill_ahead

    def fill_ahead(file: OsWritableFile, offset: int) -> None:
        offsets.append(offset)
        original(file, offset)

    monkeypatch.setattr(OsWritableFile, "fill_ahead", fill_ahead)
    return offsets


def test_small_flushes_fill_ahead_of_themselves(path: Path, filled: list[int]) -> None:
    opened = OpenedStore(tool_environment(), path, replace(PARAMETERS, wcache_num_pages=64))
    journal = opened.make_queue("queue")
    for _ in range(3):
        opened.enqueue(journal, b"small")
        opened.flush(journal)
    assert filled == [DATA_OFFSET + 512 * number for number in (1, 2, 3)]
    for _ in range(20):
        opened.enqueue(journal, b"m" * 1000)
    opened.flush(journal)
    assert len(filled) == 3
    opened.store.close()


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
    assert len(filled) > 300
    opened.store.close()
