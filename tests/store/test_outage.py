"""Outages are logged when they begin, and when they are over."""

from __future__ import annotations

import errno
import os

import pytest

from qstore.store.errors import disk_advice
from qstore.store.key_value import CatalogueError, WatchedKeyValue
from qstore.store.log_lines import Level, LogLine, Outage
from tests.support.memory_disk import MemoryKeyValue


class FailingKeyValue(MemoryKeyValue):
    """A map that can be full."""

    is_full = False

    def write(self, changes: object) -> None:
        if self.is_full:
            raise CatalogueError("/store/catalogue: RocksDB cannot write: No space left on device")
        super().write(changes)  # type: ignore[arg-type]


def test_each_outage_is_reported_when_it_begins_and_when_it_is_over() -> None:
    lines: list[LogLine] = []
    outage = Outage("it cannot be done", "it can be done again", lines.append)
    outage.worked()
    for _ in range(2):
        for _ in range(3):
            outage.failed("no room", "make room")
        for _ in range(3):
            outage.worked()
    told = [
        LogLine(Level.CRITICAL, "it cannot be done: no room; make room"),
        LogLine(Level.NOTICE, "it can be done again"),
    ]
    assert lines == told * 2


def test_a_catalogue_that_cannot_be_written() -> None:
    lines: list[LogLine] = []
    inner = FailingKeyValue()
    watched = WatchedKeyValue(inner, lines.append)
    watched.write({b"a": b"1"})
    inner.is_full = True
    for _ in range(2):
        with pytest.raises(CatalogueError, match="No space left"):
            watched.write({b"b": b"2"})
    assert (watched.get(b"a"), watched.get(b"b"), dict(watched.items(b""))) == (b"1", None, {b"a": b"1"})
    inner.is_full = False
    watched.write({b"b": b"2"})
    assert [line.level for line in lines] == [Level.CRITICAL, Level.NOTICE]
    assert "No space left on device; check whether the disk is full" in lines[0].text


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "the disk is failing"),
        (errno.EPERM, "check whether"),
    ],
)
def test_the_advice_is_that_for_the_error(code: int, what: str) -> None:
    assert what in disk_advice(OSError(code, os.strerror(code)))
