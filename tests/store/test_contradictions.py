"""Contradictions among the records of a journal, in transactions that are still open."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.records import MOVED
from qstore.store.disk import OsDisk
from qstore.store.journal.directory import open_journal, open_line
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.recovery.journal_recovery import contradictions
from tests.support.journal_builder import JournalBuilder
from tests.support.linear_builder import LinearBuilder

XID, OTHER_XID = b"one", b"two"
#: What is enqueued under one id: in which transactions, b"" for none.
TWICE: Final = [(XID, XID), (b"", XID), (XID, b""), (XID, OTHER_XID)]


def found_in(journal: Journal) -> list[tuple[int | None, str]]:
    """Record ids and texts of the contradictions; there is no other damage."""
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    assert [*journal.damage, *recovery.damage] == []
    found = contradictions(journal, recovery, end)
    journal.close()
    return [(damage.rid, damage.what) for damage in found]


def ring(builder: JournalBuilder, path: Path) -> Journal:
    """The journal that was built."""
    builder.flush()
    builder.write_to(path)
    return open_journal(OsDisk(), str(path))


@pytest.mark.parametrize("xids", TWICE)
@pytest.mark.parametrize("version", [1, 2])
def test_an_id_enqueued_twice_in_a_ring(tmp_path: Path, version: int, xids: tuple[bytes, bytes]) -> None:
    builder = JournalBuilder(version, Geometry(4, 4096))
    first = builder.enqueue(b"first", xid=xids[0]).header.rid
    builder.enqueue(b"second", rid=first, xid=xids[1])
    builder.enqueue(b"third", xid=XID)
    assert found_in(ring(builder, tmp_path / "q")) == [(first, "duplicate record id: it is already enqueued")]


@pytest.mark.parametrize("xids", TWICE)
def test_an_id_enqueued_twice_in_a_line(tmp_path: Path, xids: tuple[bytes, bytes]) -> None:
    builder = LinearBuilder(queue_name="q")
    builder.enqueue(7, b"first", xids[0])
    builder.enqueue(7, b"second", xids[1])
    path = builder.write_plain(tmp_path / "q")
    assert found_in(open_line(OsDisk(), str(path), None, {}, follow_links=True)) == [
        (7, "duplicate record id: it is already enqueued")
    ]


def test_a_copy_is_not_enqueued_twice(tmp_path: Path) -> None:
    """A record that was moved, and beside it one whose id is used again."""
    builder = JournalBuilder(2, Geometry(4, 4096))
    moved = builder.enqueue(b"moved", xid=XID).header.rid
    twice = builder.enqueue(b"twice", xid=XID).header.rid
    builder.enqueue(b"moved", rid=moved, xid=XID, flags=MOVED)
    builder.enqueue(b"again", rid=twice, xid=XID)
    assert found_in(ring(builder, tmp_path / "q")) == [(twice, "duplicate record id: it is already enqueued")]


def test_contradictions_beyond_the_limit_are_only_counted(tmp_path: Path) -> None:
    builder = JournalBuilder(2, Geometry(4, 1 << 20))
    rids = [builder.enqueue(b"", xid=XID).header.rid for _ in range(1200)]
    for rid in rids:
        builder.enqueue(b"", rid=rid, xid=XID)
    found = found_in(ring(builder, tmp_path / "q"))
    assert len(found) == 1001
    assert found[-1] == (None, "200 more records with duplicate record ids")
