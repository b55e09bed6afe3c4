"""A store with a journal that has grown: files in another order than their numbers, and more than 64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from qstore.formats.rhm.jinf import decode_jinf
from qstore.store.environment import tool_environment
from tests.support.opened_store import PARAMETERS, OpenedStore
from tests.support.quarantine_records import message

GROWING: Final = replace(PARAMETERS, auto_expand=True, disk_free_limit=0)
JOURNAL: Final = "rhm/jrnl/1"
_MESSAGES: Final = 4500
_BODY: Final = b"x" * 1000


def make_grown_store(path: Path) -> list[int]:
    """Make a store with a queue `q` that began to grow in the middle of its ring, and leave it as a crash does.

    Returns:
        The record ids of its messages.
    """
    store = OpenedStore(tool_environment(), path, GROWING)
    journal = store.make_queue("q")
    waiting: list[int] = []
    for number in range(_MESSAGES):
        waiting.append(store.enqueue(journal, message(b"%06d" % number + _BODY)))
        if number < 300 and len(waiting) > 60:
            store.store.append.dequeue(journal, waiting.pop(0))
        if number % 9 == 0:
            store.flush(journal)
    store.flush(journal)
    store.store._opened.close()
    info = decode_jinf((path / JOURNAL / "JournalData.jinf").read_bytes())
    assert info.geometry.files > 64
    assert list(info.numbers) != sorted(info.numbers)
    return waiting
