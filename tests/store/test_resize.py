"""Journals of a real store of version 2 that are resized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.close_record import decode_synced
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import decode_jinf
from qstore.formats.topology_copy import decode_topology
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreDamagedError, StoreError, StoreLockedError
from qstore.store.parameters import OnDamage
from qstore.store.recovery.journal_content import content_of
from qstore.store.repair.resize import JournalPlan, StoreResize, larger_geometries
from qstore.store.unfinished import KEPT
from tests.support.fixtures import snapshot
from tests.support.opened_store import GEOMETRY, PARAMETERS, Calls, OpenedStore, Recovered, enqueued

BRANCH = encode_dtx_xid(9, b"gid", b"bid")
LARGER = Geometry.from_pages(6, 3)
Found = dict[str, list[Recovered]]


def filled(path: Path) -> dict[str, list[int]]:
    """A store with 300 messages in two queues, some gone, a branch in doubt. Returns name -> ids delivered before."""
    opened = OpenedStore(tool_environment(), path)
    orders, bills = opened.make_queue("orders"), opened.make_queue("bills")
    opened.make_queue("empty")
    rids = [opened.enqueue(orders, b"order %d " % number * (number % 40)) for number in range(200)]
    others = [opened.enqueue(bills, b"bill %d" % number) for number in range(100)]
    for rid in rids[:50:2] + others[90:]:
        opened.store.append.dequeue(orders if rid in rids else bills, rid)
    calls = Calls()
    opened.store.transactions.prepare(
        BRANCH, [enqueued(orders, b"pending"), enqueued(bills, b"pending too")], [(orders, rids[60])], calls
    )
    opened.wait(calls)
    assert calls == [None]
    opened.flush(orders, bills)
    numbers = {orders.queue_id: rids[61:64]}
    assert opened.store.close(numbers)
    return {"orders": rids[61:64]}


def found(path: Path) -> tuple[Found, set[bytes], dict[str, Geometry], list[str]]:
    """What a start has: messages, branches in doubt, geometries, warnings."""
    opened = OpenedStore(tool_environment(), path)
    messages, in_doubt = opened.recovered(), set(opened.store.transactions.in_doubt)
    geometries = {journal.name: journal.geometry for journal in opened.store.journals.values()}
    geometries["TplStore"] = opened.store.prepared_list.geometry
    told = [line.text for line in opened.lines if line.level.name in ("WARNING", "CRITICAL")]
    opened.store.close({})
    return messages, in_doubt, geometries, told


def holding(path: Path, *, read_only: bool = False) -> StoreResize:
    return StoreResize(tool_environment(), str(path), "0.1.0", read_only=read_only)


def resized(path: Path, geometry: Geometry, *, prepared_list: bool = False) -> dict[str, str]:
    with holding(path) as store:
        return store.resize(store.plan(store.queues, lambda *_: geometry, prepared_list=prepared_list))


@pytest.mark.parametrize("geometry", [LARGER, Geometry.from_pages(4, 2), Geometry.from_pages(64, 1)])
def test_all_messages_move(path: Path, geometry: Geometry) -> None:
    delivered = filled(path)
    kept = resized(path, geometry, prepared_list=True)
    messages, in_doubt, geometries, told = found(path)
    assert told == []
    assert in_doubt == {BRANCH}
    assert set(geometries.values()) == {geometry}
    assert {name: len(each) for name, each in messages.items()} == {"orders": 176, "bills": 91, "empty": 0}
    orders = messages["orders"]
    assert [each.rid for each in orders] == sorted(each.rid for each in orders)
    assert [each.rid for each in orders if each.redelivered] == delivered["orders"]
    assert [each.data for each in orders if each.xid] == [b"order 60 " * 20, b"pending"]
    assert set(kept) == {"orders", "bills", "empty", "TplStore"}
    assert {Path(each).parent for each in kept.values()} == {path / "rhm" / KEPT}


def test_resized_store_recovers_the_same_content(tmp_path: Path) -> None:
    for name in ("one", "two"):
        filled(tmp_path / name)
    resized(tmp_path / "one", LARGER)
    one, two = found(tmp_path / "one"), found(tmp_path / "two")
    assert one[:2] == two[:2]
    assert one[2]["orders"] == LARGER != two[2]["orders"]


def test_work_continues_in_the_new_journal(path: Path) -> None:
    filled(path)
    resized(path, LARGER, prepared_list=True)
    opened = OpenedStore(tool_environment(), path)
    before = opened.recovered_data()
    orders = opened.journal("orders")
    for number in range(500):
        opened.enqueue(orders, b"new %d" % number)
    calls = Calls()
    opened.store.transactions.commit_prepared(BRANCH, calls)
    opened.wait(calls)
    opened.flush(orders)
    opened.store.close({})
    messages, in_doubt, _, _ = found(path)
    assert not in_doubt
    gone = b"order 60 " * 20
    wanted = [*(data for data in before["orders"] if data != gone), *(b"new %d" % number for number in range(500))]
    assert [each.data for each in messages["orders"]] == wanted


def test_a_store_that_was_killed_is_resized_too(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    orders = opened.make_queue("orders")
    for number in range(20):
        opened.enqueue(orders, b"%d" % number)
    opened.flush(orders)
    opened.store._opened.close()  # as a kill does it: no seal, no mark
    resized(path, LARGER)
    messages, _, geometries, told = found(path)
    assert (len(messages["orders"]), geometries["orders"], told) == (20, LARGER, [])


# ---- what fits ----


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_resize_records_how_far_the_store_is_synced_now(path: Path, is_clean: bool) -> None:
    filled(path)
    if not is_clean:
        OpenedStore(tool_environment(), path).store._opened.close()
    before = decode_synced((path / "rhm/SYNCED").read_bytes())
    resized(path, LARGER, prepared_list=True)
    synced = decode_synced((path / "rhm/SYNCED").read_bytes())
    assert synced.batch == decode_topology((path / "rhm/topology").read_bytes()).batch > before.batch
    journals = {each.journal_id for each in synced.journals}
    assert journals == {0, *(int(each.name) for each in (path / "rhm/jrnl").iterdir())}
    refusing = OpenedStore(tool_environment(), path, replace(PARAMETERS, on_damage=OnDamage.REFUSE))
    assert refusing.store.close()


def plans_for(path: Path, geometry: Geometry) -> dict[str, JournalPlan]:
    with holding(path, read_only=True) as store:
        return {plan.name: plan for plan in store.plan(store.queues, lambda *_: geometry)}


def big(path: Path) -> int:
    """A queue that holds almost all that 4 files of 16 pages take. Returns how many messages."""
    opened = OpenedStore(tool_environment(), path)
    orders = opened.make_queue("orders", Geometry.from_pages(4, 16))
    small = opened.make_queue("small")
    opened.enqueue(small, b"one")
    count = 0
    while len(orders.writer.live) < 780:
        opened.enqueue(orders, bytes([count % 256]) * 4000)
        count += 1
        if count % 50 == 0:
            opened.flush(orders, small)
    opened.flush(orders, small)
    opened.store.close({})
    return count


def test_plan_too_small_names_sizes_that_fit(path: Path) -> None:
    count = big(path)
    before = snapshot(path / "rhm" / "jrnl")
    plans = plans_for(path, Geometry.from_pages(4, 2))
    assert plans["small"].fits
    orders = plans["orders"]
    assert not orders.fits
    assert orders.messages == count
    more, larger = orders.would_fit
    assert (more.data_size, larger.files) == (orders.after.data_size, 4)
    for geometry in (more, larger):
        assert plans_for(path, geometry)["orders"].fits
    assert not plans_for(path, Geometry(more.files - 1, more.data_size))["orders"].fits
    assert not plans_for(path, Geometry(4, larger.data_size - 65536))["orders"].fits
    assert snapshot(path / "rhm" / "jrnl") == before
    assert not (path / "rhm" / KEPT).exists()


@pytest.mark.parametrize("which", [0, 1])
def test_sizes_named_as_fitting_do_fit(path: Path, which: int) -> None:
    count = big(path)
    geometry = plans_for(path, Geometry.from_pages(4, 2))["orders"].would_fit[which]
    resized(path, geometry)
    messages, _, geometries, told = found(path)
    assert (len(messages["orders"]), geometries["orders"], told) == (count, geometry, [])


def test_where_no_journal_is_large_enough_none_is_named(path: Path) -> None:
    filled(path)
    with holding(path, read_only=True) as store:
        (plan,) = store.plan(["orders"], lambda *_: None)
    content = content_of(plan.source.journal, plan.source.recovery)
    content.blocks = 1 << 40
    assert larger_geometries(content, GEOMETRY, 512) == ()


def test_journals_of_the_right_size_stay_unchanged(path: Path) -> None:
    filled(path)
    before = snapshot(path / "rhm" / "jrnl")
    assert resized(path, GEOMETRY, prepared_list=True) == {}
    assert snapshot(path / "rhm" / "jrnl") == before


def test_a_journal_too_small_after_all_is_not_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has the last word. Here the rules of `space` are made to accept everything."""
    big(path)
    before = snapshot(path / "rhm" / "jrnl")
    with holding(path) as store:
        monkeypatch.setattr("qstore.store.builders.journal_build.JournalContent.fits", lambda *_: True)
        plans = store.plan(["small", "orders"], lambda *_: LARGER)
        with pytest.raises(StoreError, match=r'^"orders": its messages need .*; nothing was changed$'):
            store.resize(plans)
    assert snapshot(path / "rhm" / "jrnl") == before
    assert not (path / "rhm" / "resized.new").exists()


# ---- old journals ----


def test_old_journals_are_kept_whole_until_they_are_discarded(path: Path) -> None:
    filled(path)
    before = {file.name: file.read_bytes() for file in (path / "rhm" / "jrnl" / "1").iterdir()}
    kept = resized(path, LARGER, prepared_list=True)
    assert {file.name: file.read_bytes() for file in Path(kept["orders"]).iterdir()} == before
    assert decode_jinf(before["JournalData.jinf"]).queue_name == "orders"
    found(path)
    with holding(path) as store:
        assert store.discard_old(["bills"]) == [kept["bills"]]
        assert store.discard_old([], prepared_list=True) == [kept["TplStore"]]
        assert store.discard_old(["bills"]) == []
        assert Path(kept["orders"]).is_dir()
        assert store.discard_old() == [kept["orders"], kept["empty"]]
        assert store.discard_old() == []
    assert not (path / "rhm" / KEPT).exists()
    assert len(found(path)[0]["orders"]) == 176


def test_leftovers_of_an_earlier_run_are_removed(path: Path) -> None:
    filled(path)
    for name in ("resized.new/7", "tpl.new"):
        (path / "rhm" / name).mkdir(parents=True)
        (path / "rhm" / name / "JournalData.0000.jdat").write_bytes(b"x")
    resized(path, LARGER)
    assert not (path / "rhm" / "tpl.new").exists()
    assert not (path / "rhm" / "resized.new").exists()


def test_a_prepared_list_that_has_not_got_its_name_yet_gets_it(path: Path) -> None:
    filled(path)
    (path / "rhm" / "tpl").rename(path / "rhm" / "tpl.new")
    resized(path, LARGER, prepared_list=True)
    assert found(path)[1] == {BRANCH}


# ---- what is refused ----


def test_a_store_in_use_is_refused(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    for read_only in (False, True):
        with pytest.raises(StoreLockedError, match="another process has locked the store: stop the broker first"):
            holding(path, read_only=read_only)
    opened.store.close({})
    with holding(path), pytest.raises(StoreLockedError):
        holding(path)


def test_a_damaged_journal_is_refused_and_nothing_changes(path: Path) -> None:
    filled(path)
    file = path / "rhm" / "jrnl" / "1" / "JournalData.0000.jdat"
    content = bytearray(file.read_bytes())
    content[0x400] ^= 1
    file.write_bytes(content)
    before = snapshot(path / "rhm" / "jrnl")
    with pytest.raises(StoreDamagedError, match=r"0000\.jdat at 0x.*; nothing was changed: start the broker"):
        resized(path, LARGER)
    assert snapshot(path / "rhm" / "jrnl") == before
    with holding(path) as store:
        assert list(store.resize(store.plan(["bills"], lambda *_: LARGER))) == ["bills"]


def test_a_lost_journal_is_refused(path: Path) -> None:
    filled(path)
    (path / "rhm" / "jrnl" / "2").rename(path / "elsewhere")
    with pytest.raises(StoreDamagedError, match='"bills" has no journal'):
        resized(path, LARGER)
    (path / "rhm" / "jrnl" / "2").mkdir()
    with pytest.raises(StoreDamagedError, match="there is no journal"):
        resized(path, LARGER)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "no store here"),
        (["rhm/dat"], "this is qpidd's store .version 1.: resize its journals with qpid-store-resize"),
        (["qls"], "this is a linearstore"),
    ],
)
def test_only_stores_of_version_2_are_resized(path: Path, names: list[str], text: str) -> None:
    path.mkdir()
    for name in names:
        (path / name).mkdir(parents=True)
    with pytest.raises(StoreError, match=text):
        holding(path)
    assert {each.name for each in path.iterdir()} == {name.split("/")[0] for name in names}


def test_a_missing_directory_is_reported(path: Path) -> None:
    with pytest.raises(StoreError, match="no such directory"):
        holding(path)
    assert not path.exists()


def test_a_damaged_catalogue_is_refused(path: Path) -> None:
    filled(path)
    for file in (path / "rhm" / "catalogue").glob("*"):
        file.unlink()
    with pytest.raises(StoreError, match="catalogue"):
        holding(path)
