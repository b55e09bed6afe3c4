"""Conversion of stores that qpidd wrote and of stores that tests lay out."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.catalogue import RID_BLOCK
from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.catalogue.berkeley import read_environment
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import Found
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.key_value import RocksKeyValue
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage
from qstore.store.repair.conversion import MARK, mark_converted
from qstore.store.unfinished import CONVERTED
from tests.support.fixtures import CopyOpener, StoreCopy, StoreFixture, snapshot
from tests.support.journal_builder import JournalBuilder
from tests.support.old_store import PARAMETERS, OldStore, content_of, converted, directory_of

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

BRANCH = encode_dtx_xid(9, b"gid", b"bid")
OTHER_BRANCH = encode_dtx_xid(9, b"gid", b"other")
LOCAL = bytes(range(24))


@pytest.fixture
def old_store(legacy_store: StoreFixture, copies: CopyOpener) -> Iterator[Path]:
    with copies(legacy_store.name).copy() as copy:
        yield copy.path


@pytest.fixture(scope="module")
def new_store(legacy_store: StoreFixture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of qpidd, converted. Tests look at it."""
    copy = StoreCopy(legacy_store.path, tmp_path_factory.mktemp("converted") / legacy_store.name)
    converted(copy.path)
    return copy.path


# ---- what qpidd left behind ----


def test_a_converted_store_has_everything(old_store: Path) -> None:
    before = content_of(old_store)
    files = snapshot(old_store / "rhm")
    lines: list[LogLine] = []
    report = converted(old_store, log=lines.append)
    assert content_of(old_store / "rhm") == before
    assert content_of(old_store / CONVERTED) == before
    kept = snapshot(old_store / CONVERTED)
    assert kept.pop(MARK)
    assert {name: entry for name, entry in kept.items() if name != "."} == {
        name: entry for name, entry in files.items() if name != "."
    }
    assert report.queues == len(before.queues)
    assert report.messages == sum(map(len, before.queues.values()))
    assert (report.exchanges, report.bindings, report.general) == (
        len(before.exchanges),
        len(before.bindings),
        len(before.general),
    )
    assert (report.in_doubt, report.damage, report.kept) == (len(before.in_doubt), 0, str(old_store / CONVERTED))
    assert {line.level for line in lines} <= {Level.NOTICE, Level.WARNING}


def test_the_new_store_is_sound(new_store: Path) -> None:
    source = open_store(OsDisk(), str(new_store))
    check = check_store(OsDisk(), source)
    source.close()
    assert check.damage == []
    assert [line for line in check.notices if "not closed cleanly" not in line and "rhm.version-1" not in line] == [
        line for line in check.notices if "in doubt" in line
    ]


def test_records_are_the_same_bytes_under_the_same_ids(new_store: Path) -> None:
    environment = read_environment(OsDisk(), str(new_store / CONVERTED / "dat"))
    key_value = RocksKeyValue.open(new_store / "rhm" / "catalogue")
    catalogue = Catalogue(key_value)

    def rows(rows: Any) -> dict[int, bytes]:
        return {int.from_bytes(key, "little"): value for key, value in rows}

    assert {each.queue_id: each.record for each in catalogue.queues()} == rows(environment.queues)
    assert {each.exchange_id: each.record for each in catalogue.exchanges()} == rows(environment.exchanges)
    assert {each.general_id: each.record for each in catalogue.general()} == rows(environment.general)
    bindings = [(each.exchange_id, each.record) for each in catalogue.bindings()]
    assert sorted(bindings) == sorted((int.from_bytes(key, "little"), value) for key, value in environment.bindings)
    assert catalogue.check() == []
    key_value.close()


def test_record_ids_are_reserved(new_store: Path) -> None:
    source = open_store(OsDisk(), str(new_store))
    recovered = source.recover()
    used = [rid for queue in recovered.queues for rid, *_ in queue.outstanding()]
    assert len(set(used)) == len(used), "each record has its own"
    assert min(used, default=1) > 0
    assert source.rid_high_water is not None
    assert max(used, default=0) < source.rid_high_water
    source.close()


def test_a_sound_store_is_not_refused(old_store: Path) -> None:
    before = content_of(old_store)
    converted(old_store, replace(PARAMETERS, on_damage=OnDamage.REFUSE))
    assert content_of(old_store) == before


def test_a_store_is_converted_once(old_store: Path) -> None:
    converted(old_store)
    after = snapshot(old_store)
    with pytest.raises(StoreError, match="no store of version 1"):
        converted(old_store)
    directory = directory_of(old_store)
    directory.finish_interrupted()
    assert directory.look() is Found.VERSION_2
    mark_converted(tool_environment(), directory)
    assert snapshot(old_store) == after


def test_kept_store_is_marked_with_its_origin(new_store: Path) -> None:
    mark = new_store / CONVERTED / MARK
    text = mark.read_text()
    assert "qpidd" in text
    assert "To return to qpidd" in text
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600


def test_a_conversion_can_be_undone(old_store: Path) -> None:
    before = content_of(old_store)
    converted(old_store)
    (old_store / "rhm").rename(old_store / "elsewhere")
    (old_store / CONVERTED).rename(old_store / "rhm")
    (old_store / "rhm" / MARK).unlink()
    assert content_of(old_store) == before
    converted(old_store)
    assert content_of(old_store) == before


def test_new_files_are_private(new_store: Path) -> None:
    for path in (new_store / "rhm").rglob("*"):
        if "catalogue" not in path.parts:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# ---- transactions ----


def test_transactions_end_as_recovery_ends_them(old: OldStore, path: Path) -> None:
    orders, bills = old.queue("orders"), old.queue("bills")
    bills.next_rid = 100
    kept = orders.enqueue(b"kept").header.rid
    locked = orders.enqueue(b"locked").header.rid
    gone = orders.enqueue(b"gone").header.rid
    free = orders.enqueue(b"free").header.rid
    orders.dequeue(locked, xid=BRANCH)
    orders.dequeue(gone, xid=LOCAL)
    orders.dequeue(free, xid=b"never prepared")
    orders.dequeue(kept, xid=OTHER_BRANCH)
    bills.enqueue(b"pending", xid=BRANCH)
    bills.enqueue(b"committed", xid=LOCAL)
    bills.enqueue(b"plain")
    bills.enqueue(b"never", xid=b"never prepared")
    bills.enqueue(b"aborted", xid=OTHER_BRANCH)
    old.prepared.enqueue(b"\1", xid=BRANCH)
    old.prepared.enqueue(b"\0", xid=LOCAL)
    prepare = old.prepared.enqueue(b"\1", xid=OTHER_BRANCH).header.rid
    old.prepared.dequeue(prepare, xid=OTHER_BRANCH)
    report = converted(old.write(path))
    content = content_of(path)
    assert content.queues == {
        "bills": [(PENDING, BRANCH, b"pending"), (LIVE, None, b"committed"), (LIVE, None, b"plain")],
        "orders": [(LIVE, None, b"kept"), (LOCKED, BRANCH, b"locked"), (LIVE, None, b"free")],
    }
    assert content.in_doubt == [(BRANCH, True, 1, 1)]
    assert report.in_doubt == 1


def test_one_transaction_enqueues_and_dequeues_a_message(old: OldStore, path: Path) -> None:
    orders = old.queue("orders")
    rid = orders.enqueue(b"passing", xid=BRANCH).header.rid
    orders.dequeue(rid, xid=BRANCH)
    old.prepared.enqueue(b"\1", xid=BRANCH)
    before = content_of(old.write(path))
    assert before.queues == {"orders": [(LOCKED, BRANCH, b"passing")]}
    converted(path)
    assert content_of(path) == before._replace(records=content_of(path).records)
    assert content_of(path).in_doubt == [(BRANCH, True, 1, 1)]


def test_a_branch_in_doubt_that_touched_no_queue(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.prepared.enqueue(b"\1", xid=BRANCH)
    converted(old.write(path))
    assert content_of(path).in_doubt == [(BRANCH, True, 0, 0)]


def test_many_branches_in_doubt_make_the_prepared_list_larger(old: OldStore, path: Path) -> None:
    old.prepared = JournalBuilder(1, Geometry(4, 1 << 20), queue_name="TplStore", base_name=TPL_BASE_NAME)
    old.queue("orders").enqueue(b"m")
    branches = [encode_dtx_xid(9, b"gid%d" % number, b"bid") for number in range(600)]
    for branch in branches:
        old.prepared.enqueue(b"\1", xid=branch)
    converted(old.write(path))
    assert [xid for xid, *_ in content_of(path).in_doubt] == branches


# ---- order and size ----


def test_the_order_is_that_of_the_old_journal(old: OldStore, path: Path) -> None:
    for rid in (5, 3, 9, 1):
        old.queue("orders").enqueue(b"m%d" % rid, rid=rid)
    converted(old.write(path))
    assert [data for *_, data in content_of(path).queues["orders"]] == [b"m5", b"m3", b"m9", b"m1"]


def test_a_message_on_two_queues(old: OldStore, path: Path) -> None:
    old.queue("a").enqueue(b"shared", rid=7)
    old.queue("b").enqueue(b"shared", rid=7)
    converted(old.write(path))
    assert content_of(path).queues == {"a": [(LIVE, None, b"shared")], "b": [(LIVE, None, b"shared")]}


def test_more_messages_than_a_block_of_record_ids(old: OldStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.store.catalogue.catalogue.RID_BLOCK", 64)
    monkeypatch.setattr("qstore.formats.catalogue.RID_BLOCK", 64)
    for number in range(300):
        old.queue("orders", Geometry(4, 1 << 16)).enqueue(b"%d" % number)
    converted(old.write(path))
    source = open_store(OsDisk(), str(path))
    (queue,) = source.recover().queues
    rids = [rid for rid, *_ in queue.outstanding()]
    assert len(rids) == 300
    assert source.rid_high_water is not None
    assert max(rids) < source.rid_high_water
    source.close()
    assert RID_BLOCK > 300


def test_the_geometry_is_kept_where_it_fits(old: OldStore, path: Path) -> None:
    old.queue("orders", Geometry(5, 2 * PAGE_SIZE)).enqueue(b"m")
    lines: list[LogLine] = []
    report = converted(old.write(path), log=lines.append)
    source = open_store(OsDisk(), str(path))
    (journal,) = source.journals
    assert journal.files.geometry == Geometry(5, 2 * PAGE_SIZE)
    source.close()
    assert report.resized == 0
    assert not any("more room" in line.text for line in lines)


def test_a_journal_gets_more_files_where_it_does_not(old: OldStore, path: Path) -> None:
    geometry = Geometry(4, PAGE_SIZE)
    orders = old.queue("orders", geometry)
    while orders.position < geometry.capacity * 79 // 100:
        orders.enqueue(b"")  # one block in version 1 and in version 2, where its dequeue is reserved too
    before = content_of(old.write(path))
    lines: list[LogLine] = []
    report = converted(path, log=lines.append)
    source = open_store(OsDisk(), str(path))
    (journal,) = source.journals
    assert journal.files.geometry.data_size == PAGE_SIZE
    assert journal.files.geometry.files > 7
    source.close()
    assert content_of(path).queues == before.queues
    assert report.resized == 1
    (line,) = [line for line in lines if "more room" in line.text]
    assert line.level is Level.WARNING
    assert line.text.startswith('Journal "orders": ')
    assert "4 files of 1 page;" in line.text


def test_a_large_message(old: OldStore, path: Path) -> None:
    body = os.urandom(3 << 20)
    orders = old.queue("orders", Geometry(4, 1 << 20))
    orders.enqueue(b"before")
    orders.enqueue(body)
    converted(old.write(path))
    assert [data for *_, data in content_of(path).queues["orders"]] == [b"before", body]


def test_memory_is_bounded(old: OldStore, path: Path) -> None:
    """40 MiB of bodies pass through, in some MiB."""
    old.queue("orders", Geometry(8, 16 << 20)).enqueue_many(640, bytes(65536), flush_every=50)
    old.write(path)
    old.journals.clear()
    tracemalloc.start()
    report = converted(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.messages == 640
    assert peak < 24 << 20
