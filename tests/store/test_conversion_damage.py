"""Stores of qpidd that are damaged, or cannot be converted for another reason."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import qstore.store.catalogue.berkeley
from qstore.formats.broker_records.topology import Binding, Exchange, Link, Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.wording import plural
from qstore.store.disk import OsFile, OsWritableDisk, OsWritableFile
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.journal.recovery import LIVE
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage
from qstore.store.repair.conversion import convert
from qstore.store.unfinished import CONVERTED
from tests.support.fixtures import CopyOpener, snapshot
from tests.support.journal_builder import JournalBuilder
from tests.support.old_store import PARAMETERS, OldStore, content_of, converted, directory_of

REFUSE = replace(PARAMETERS, on_damage=OnDamage.REFUSE)


# ---- what is wrong ----


def spoil(old: OldStore, path: Path) -> None:
    """A store of which one record's header is lost, with whole ones behind it."""
    orders = old.queue("orders")
    orders.enqueue(b"first")
    lost = orders.enqueue(b"lost")
    orders.enqueue(b"third")
    old.queue("bills").enqueue(b"bill")
    old.write(path)
    (file,) = (path / "rhm" / "jrnl").glob("*/orders/JournalData.0000.jdat")
    content = bytearray(file.read_bytes())
    content[lost.offset : lost.offset + 4] = b"XXXX"
    file.write_bytes(content)


def test_damage_is_reported_and_the_rest_converted(old: OldStore, path: Path) -> None:
    spoil(old, path)
    before = content_of(path)
    assert [data for *_, data in before.queues["orders"]] == [b"first", b"third"]
    lines: list[LogLine] = []
    report = converted(path, log=lines.append)
    assert content_of(path).queues == before.queues
    critical = [line.text for line in lines if line.level is Level.CRITICAL]
    assert len(critical) == report.damage > 0
    assert "JournalData.0000.jdat at 0x" in critical[0]
    assert plural(report.damage, "damage") in lines[-1].text


def test_damage_is_refused_if_asked(old: OldStore, path: Path) -> None:
    spoil(old, path)
    before = snapshot(path)
    with pytest.raises(
        StoreDamagedError, match=r"JournalData\.0000\.jdat at 0x.*on-damage is refuse: run qstore-check"
    ):
        converted(path, REFUSE)
    assert snapshot(path) == before


@pytest.mark.parametrize("size", [3000, 3 << 20])
def test_a_message_that_is_partly_unreadable_is_left_out(old: OldStore, path: Path, size: int) -> None:
    orders = old.queue("orders", Geometry(4, 1 << 20))
    orders.enqueue(b"first")
    lost = orders.enqueue(b"x" * size)
    orders.enqueue(b"last")
    old.write(path)
    bad = range(lost.offset + 1500, lost.offset + 1600)

    class BadFile(OsFile):
        def read(self, offset: int, length: int) -> bytes:
            if offset < bad.stop and bad.start < offset + length:
                raise OSError(errno.EIO, "Input/output error", "a file")
            return super().read(offset, length)

    class BadDisk(OsWritableDisk):
        def open(self, path: str) -> OsFile:
            return (BadFile if path.endswith("orders/JournalData.0000.jdat") else OsFile)(path)

    environment = tool_environment()._replace(disk=BadDisk())
    lines: list[LogLine] = []
    report = convert(environment, directory_of(path, environment), PARAMETERS, lines.append)
    assert [data for *_, data in content_of(path).queues["orders"]] == [b"first", b"last"]
    assert report.messages == 2
    assert any("cannot be read: Input/output error" in line.text for line in lines if line.level is Level.CRITICAL)


def test_topology_that_could_not_be_recovered_is_damage(copies: CopyOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qstore.store.catalogue.berkeley, "find_recovery_program", lambda: None)
    with copies("legacy-b-crash1").copy() as copy:
        with pytest.raises(StoreDamagedError, match="newest changes may be missing"):
            converted(copy.path, REFUSE)
        lines: list[LogLine] = []
        converted(copy.path, log=lines.append)
        assert any(line.level is Level.CRITICAL and "db5.3-util" in line.text for line in lines)


def test_a_queue_without_a_journal_gets_an_empty_one(copies: CopyOpener) -> None:
    with copies("legacy-a-clean").copy() as copy:
        before = content_of(copy.path)
        name = next(name for name, messages in before.queues.items() if messages)
        (lost,) = (copy.path / "rhm" / "jrnl").glob(f"*/{name}")
        lost.rename(copy.path / "lost")
        report = converted(copy.path)
        after = content_of(copy.path)
        assert after.records == before.records
        assert after.queues == {**before.queues, name: []}
        assert report.damage == 1


def test_a_journal_that_the_catalogue_does_not_know_is_left_out(copies: CopyOpener) -> None:
    with copies("legacy-a-clean").copy() as copy:
        before = content_of(copy.path)
        stray = JournalBuilder(1, Geometry(4, 4096), queue_name="stray")
        stray.enqueue(b"m")
        stray.flush()
        stray.write_to(copy.path / "rhm" / "jrnl" / "0000" / "stray")
        lines: list[LogLine] = []
        report = converted(copy.path, log=lines.append)
        assert content_of(copy.path) == before
        assert report.damage == 1
        assert any('"stray", which is not in the catalogue, holds 1 message' in line.text for line in lines)


def test_topology_is_kept_and_passwords_are_not_logged(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.queues[3] = Queue("orders")
    old.exchanges[5] = Exchange("dead", True, "fanout")
    old.bindings = [(5, Binding(3, "orders", "b")), (5, Binding(3, "orders", "a")), (6, Binding(3, "orders", "stale"))]
    old.general[8] = Link("link.v2", "l", "host", 5672, "tcp", True, "PLAIN", "user", "secret")
    before = content_of(old.write(path))
    assert len(before.bindings) == 2
    lines: list[LogLine] = []
    report = converted(path, log=lines.append)
    after = content_of(path)
    assert after == before
    assert after.general == old.general
    assert "secret" not in " ".join(line.text for line in lines) + repr(report)
    assert any("stale binding" in line.text for line in lines)


@pytest.mark.parametrize("spoiled", ["queue", "exchange", "general"])
def test_a_record_that_cannot_be_read_is_reported_and_left_out(old: OldStore, path: Path, spoiled: str) -> None:
    old.queue("orders").enqueue(b"m")
    old.queues[3] = Queue("orders")
    if spoiled == "queue":
        old.queues[0] = Queue("zero")
    elif spoiled == "exchange":
        old.exchanges[0] = Exchange("zero", True, "fanout")
        old.bindings = [(0, Binding(3, "orders", "b"))]
    else:
        old.general[0] = Link("link.v2", "zero", "host", 5672, "tcp", True, "PLAIN", "user", "secret")
    lines: list[LogLine] = []
    converted(old.write(path), log=lines.append)
    after = content_of(path)
    assert list(after.records) == [3]
    assert (after.exchanges, after.bindings, after.general) == ({}, [], {})
    (line,) = [line.text for line in lines if "id 0" in line.text]
    assert "secret" not in line


def test_two_queues_of_one_name(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.queues = {3: Queue("orders"), 4: Queue("orders")}
    old.exchanges[5] = Exchange("dead", True, "fanout")
    old.bindings = [(5, Binding(4, "orders", "b"))]
    lines: list[LogLine] = []
    converted(old.write(path), log=lines.append)
    after = content_of(path)
    assert after.queues == {"orders": [(LIVE, None, b"m")]}
    assert (list(after.records), after.bindings) == ([3], [])
    assert any("duplicate queue" in line.text for line in lines)


def test_a_converted_store_that_is_there_already_is_not_overwritten(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.write(path)
    (path / CONVERTED).mkdir()
    before = snapshot(path)
    with pytest.raises(StoreError, match=r"rhm\.version-1: a converted store already exists"):
        converted(path)
    assert snapshot(path) == before


def test_a_missing_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store of version 1"):
        converted(tmp_path)


def test_a_store_that_does_not_fit_is_refused(old: OldStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = old.queue("orders", Geometry(4, 1 << 16))
    orders.enqueue_many(1000, b"x" * 80)
    old.write(path)
    before = snapshot(path / "rhm")
    monkeypatch.setattr("qstore.store.recovery.journal_content.MAX_FILES", 4)
    monkeypatch.setattr("qstore.store.recovery.journal_content.MAX_PAGES", 1)
    expected = r'queue "orders": 1,000 messages of 128,000 bytes do not fit into the largest journal, 4 files of 1 page'
    with pytest.raises(StoreError, match=expected):
        converted(path)
    assert snapshot(path / "rhm") == before
    assert sorted(os.listdir(path)) == ["rhm"]


def test_a_full_disk_leaves_the_old_store_alone(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.write(path)
    before = content_of(path)

    class FullDisk(OsWritableDisk):
        def create(self, path: str, size: int) -> OsWritableFile:
            if "/jrnl/" in path:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            return super().create(path, size)

    environment = tool_environment()._replace(disk=FullDisk())
    with pytest.raises(StoreError, match="No space left on device; free some space and start again"):
        convert(environment, directory_of(path, environment), PARAMETERS, print)
    assert sorted(os.listdir(path)) == ["rhm"]
    assert content_of(path) == before


def test_new_store_has_its_own_id_and_is_not_clean(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    converted(old.write(path))
    mark = directory_of(path).read_mark()
    assert mark.store_id != UUID(int=0)
    assert not mark.clean_close, "what was delivered before is not known"
