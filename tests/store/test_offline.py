"""Whole version-2 stores, built by the tests: catalogue, journals and prepared list held together."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.records import COMMIT_DECISION, SALT, encode_record
from qstore.store.disk import OsDisk
from qstore.store.inspect.layout import StoreKind, UnusableInputError, find_layout
from qstore.store.inspect.offline import RecoveredStore, open_store
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, Outcome
from tests.support.journal_builder import BILLS, GEOMETRY, ORDERS, JournalBuilder, StoreBuilder

BRANCH = encode_dtx_xid(9, b"gid", b"bid")
LOCAL = bytes(range(24))


@pytest.fixture
def builder(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "store")


def recovered(path: Path | str) -> RecoveredStore:
    store = open_store(OsDisk(), str(path))
    result = store.recover()
    store.close()
    return result


def states(result: RecoveredStore) -> dict[str, list[tuple[int, int]]]:
    return {queue.name: [(rid, state) for rid, _, state, _ in queue.outstanding()] for queue in result.queues}


def test_a_whole_store(builder: StoreBuilder) -> None:
    first = builder.orders.enqueue(b"one").header.rid
    second = builder.orders.enqueue(b"two").header.rid
    builder.orders.dequeue(first)
    third = builder.bills.enqueue(b"three").header.rid
    result = recovered(builder.write())
    assert result.store.layout.kind is StoreKind.VERSION_2
    assert (result.store.damage, result.store.notices) == ([], [])
    assert states(result) == {"orders": [(second, LIVE)], "bills": [(third, LIVE)]}
    assert [queue.record for queue in result.queues] == [ORDERS, BILLS]
    topology = result.store.topology
    assert topology is not None
    assert [exchange.name for exchange in topology.exchanges.values()] == ["dead"]
    assert [(binding.exchange.name, binding.record.key) for binding in topology.bindings] == [("dead", "key")]
    assert result.transactions == []


def test_queue_order_is_that_of_record_ids(builder: StoreBuilder) -> None:
    for rid in (5, 3, 9, 1):
        builder.orders.enqueue(b"m", rid=rid)
    assert [rid for rid, _ in states(recovered(builder.write()))["orders"]] == [1, 3, 5, 9]


@pytest.mark.parametrize(
    ("data", "decision", "outcome"),
    [
        (b"\1", None, Outcome.IN_DOUBT),
        (b"\0", None, Outcome.COMMITTING),
        (b"\1", COMMIT_DECISION, Outcome.COMMITTING),
        (b"\1", 0, Outcome.ABORTING),
        (None, None, Outcome.UNPREPARED),
    ],
)
def test_a_transaction_over_two_queues(
    builder: StoreBuilder, data: bytes | None, decision: int | None, outcome: Outcome
) -> None:
    old = builder.orders.enqueue(b"old").header.rid
    builder.orders.dequeue(old, xid=BRANCH)
    new = builder.bills.enqueue(b"new", xid=BRANCH).header.rid
    if data is not None:
        rid = builder.prepared.enqueue(data, xid=BRANCH).header.rid
        if decision is not None:
            builder.prepared.dequeue(rid, xid=BRANCH, flags=decision)
    result = recovered(builder.write())
    expected = {
        Outcome.IN_DOUBT: {"orders": [(old, LOCKED)], "bills": [(new, PENDING)]},
        Outcome.COMMITTING: {"orders": [], "bills": [(new, LIVE)]},
    }
    assert states(result) == expected.get(outcome, {"orders": [(old, LIVE)], "bills": []})
    (transaction,) = result.transactions
    assert (transaction.xid, transaction.outcome) == (BRANCH, outcome)
    assert (transaction.enqueues, transaction.dequeues) == (1, 1)
    assert transaction.two_phase == (None if data is None else data == b"\1")
    assert result.store.damage == []


def test_a_lost_catalogue_is_damage_and_the_queues_come_from_the_journals(builder: StoreBuilder) -> None:
    rid = builder.bills.enqueue(b"kept").header.rid
    path = builder.write()
    (builder.rhm / "catalogue" / "CURRENT").write_bytes(b"nonsense")
    (builder.rhm / "topology").unlink()
    result = recovered(path)
    assert states(result) == {"orders": [], "bills": [(rid, LIVE)]}
    assert {queue.name: queue.record for queue in result.queues} == {"orders": ORDERS, "bills": BILLS}
    (damage,) = result.store.damage
    assert damage.file == str(builder.rhm / "catalogue/CURRENT")
    assert "the queues are restored from the journals" in damage.consequence


def test_an_empty_orphan_is_left_out_and_noted(builder: StoreBuilder) -> None:
    path = builder.write()
    shutil.copytree(builder.rhm / "jrnl/1", builder.rhm / "jrnl/3")
    result = recovered(path)
    assert list(states(result)) == ["orders", "bills"]
    assert result.store.damage == []
    (notice,) = result.store.notices
    assert str(builder.rhm / "jrnl/3") in notice
    assert "which is not in the catalogue" in notice


def test_an_orphan_that_holds_messages_is_damage(builder: StoreBuilder) -> None:
    builder.orders.enqueue(b"m")
    path = builder.write()
    shutil.copytree(builder.rhm / "jrnl/1", builder.rhm / "jrnl/3")
    result = recovered(path)
    assert {name: len(kept) for name, kept in states(result).items()} == {"orders": 1, "bills": 0}
    assert result.store.notices == []
    (damage,) = result.store.damage
    assert damage.file == str(builder.rhm / "jrnl/3")
    assert damage.what == 'journal of queue "orders", which is not in the catalogue, holds 1 message'
    assert damage.consequence.startswith("the messages are omitted")


def test_a_queue_without_its_journal_is_damage(builder: StoreBuilder) -> None:
    path = builder.write()
    shutil.rmtree(builder.rhm / "jrnl/2")
    result = recovered(path)
    assert states(result) == {"orders": [], "bills": []}
    (damage,) = result.store.damage
    assert damage.what == 'queue "bills" has no journal'
    assert damage.consequence == "its messages are lost"


def test_a_store_that_was_not_closed_cleanly_is_noted(builder: StoreBuilder) -> None:
    result = recovered(builder.write(clean=False))
    assert result.store.notices == [f"{builder.rhm}/STORE: the store was not closed cleanly"]
    assert result.store.damage == []


def test_an_unreadable_store_file_is_damage(builder: StoreBuilder) -> None:
    path = builder.write()
    content = bytearray((builder.rhm / "STORE").read_bytes())
    content[20] ^= 1
    (builder.rhm / "STORE").write_bytes(content)
    (damage,) = recovered(path).store.damage
    assert damage.file == f"{builder.rhm}/STORE"


def test_a_journal_named_by_itself_finds_its_prepared_list(builder: StoreBuilder) -> None:
    rid = builder.orders.enqueue(b"m", xid=LOCAL).header.rid
    builder.prepared.enqueue(b"\0", xid=LOCAL)
    path = builder.write()
    for named in (path / "rhm/jrnl/1", path / "rhm", path / "rhm/jrnl"):
        assert states(recovered(named))["orders"] == [(rid, LIVE)]


def test_one_file_by_itself(builder: StoreBuilder) -> None:
    rid = builder.orders.enqueue(b"m").header.rid
    path = builder.write() / "rhm/jrnl/1/JournalData.0000.jdat"
    result = recovered(path)
    assert result.store.layout.kind is StoreKind.FILE
    assert states(result) == {"JournalData.0000.jdat": [(rid, LIVE)]}


def test_a_record_of_another_file_is_not_taken(builder: StoreBuilder) -> None:
    """A record that was written under another salt is that of a former life of the file, however whole it is."""
    kept = builder.orders.enqueue(b"kept")
    builder.write()
    path = builder.rhm / "jrnl/1/JournalData.0000.jdat"
    content = bytearray(path.read_bytes())
    (salt,) = SALT.unpack_from(content, 24)
    forged = encode_record(kept.header._replace(rid=7777, flush=99), data=b"kept", salt=salt ^ 1)
    content[2048 : 2048 + len(forged)] = forged
    path.write_bytes(content)
    result = recovered(builder.path)
    assert states(result)["orders"] == [(kept.header.rid, LIVE)]
    assert result.store.damage == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such directory or regular file"),
        (lambda path: path.mkdir(), "the directory is empty"),
        (lambda path: (path / "qls").mkdir(parents=True), "no store here"),
        (lambda path: (path / "data/rhm/jrnl").mkdir(parents=True), "there is one in"),
        (lambda path: (path / "data/rhm").mkdir(parents=True), "no store here"),
        (lambda path: path.mkdir() or (path / "notes").write_text("x"), "no store here"),
        (
            lambda path: path.mkdir() or (path / "00000000.jdb").write_text("x"),
            "a Berkeley DB JE store of Apache's Java",
        ),
        (
            lambda path: (path / "seg0").mkdir(parents=True) or (path / "service.properties").write_text("x"),
            "a Derby store of Apache's Java broker",
        ),
        (
            lambda path: (
                (path / "bdbstore/test").mkdir(parents=True) or (path / "bdbstore/test/00000007.jdb").write_text("x")
            ),
            r"input/bdbstore/test: this is a Berkeley DB JE store .* drain its queues with a client or a shovel",
        ),
    ],
)
def test_input_without_a_store_is_refused(tmp_path: Path, make: object, says: str) -> None:
    path = tmp_path / "input"
    assert callable(make)
    make(path)
    with pytest.raises(UnusableInputError, match=says):
        find_layout(OsDisk(), str(path))


class Locked(OsDisk):
    """A disk with a directory of somebody else's."""

    def names(self, directory: str) -> list[str]:
        if directory.endswith("/private"):
            raise PermissionError(errno.EACCES, "Permission denied", directory)
        return super().names(directory)


def test_what_cannot_be_read_below_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    with pytest.raises(UnusableInputError, match="no store here"):
        find_layout(Locked(), str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/00000000.jdb").write_text("x")
    with pytest.raises(UnusableInputError, match="a Berkeley DB JE store"):
        find_layout(Locked(), str(tmp_path))


def test_a_link_that_leads_back_is_followed_once(builder: StoreBuilder) -> None:
    builder.orders.enqueue(b"m")
    path = builder.write()
    (builder.rhm / "jrnl/loop").symlink_to(".", target_is_directory=True)
    layout = find_layout(OsDisk(), str(path))
    assert [place.name for place in layout.journals] == ["1", "2"]


def test_a_part_of_a_store_means_the_store(builder: StoreBuilder) -> None:
    rid = builder.orders.enqueue(b"m").header.rid
    path = builder.write()
    for named in ("rhm/", "rhm/jrnl/", "rhm/catalogue", ""):
        assert states(recovered(f"{path}/{named}"))["orders"] == [(rid, LIVE)]


def test_backup_copy_below_a_journal_is_noted(builder: StoreBuilder) -> None:
    rid = builder.orders.enqueue(b"m").header.rid
    path = builder.write()
    shutil.rmtree(builder.rhm / "catalogue")
    (builder.rhm / "STORE").unlink()
    (builder.rhm / "topology").unlink()
    shutil.copytree(builder.rhm / "jrnl/1", builder.rhm / "jrnl/1/bak")
    result = recovered(path)
    assert result.store.damage == []
    assert states(result)["orders"] == [(rid, LIVE)]
    assert any("1/bak: an older copy of the journal above it" in notice for notice in result.store.notices)


def test_a_link_that_leads_out_of_the_store_is_looked_into_but_not_below(builder: StoreBuilder, tmp_path: Path) -> None:
    rid = builder.orders.enqueue(b"m").header.rid
    path = builder.write()
    shutil.move(builder.rhm / "jrnl/1", tmp_path / "elsewhere")
    (builder.rhm / "jrnl/1").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "large/below").mkdir(parents=True)
    (builder.rhm / "jrnl/large").symlink_to(tmp_path / "large", target_is_directory=True)
    result = recovered(path)
    assert states(result)["orders"] == [(rid, LIVE)]
    (notice,) = result.store.notices
    assert "jrnl/large: is a link out of the store" in notice


def test_lost_prepared_list_is_reported_with_the_consequence(builder: StoreBuilder) -> None:
    builder.orders.enqueue(b"m", xid=BRANCH)
    path = builder.write()
    for file in (builder.rhm / "tpl").iterdir():
        file.write_bytes(b"")
    (damage,) = [damage for damage in recovered(path).store.damage if damage.file == f"{builder.rhm}/tpl"]
    assert "treated as never prepared" in damage.consequence
    shutil.rmtree(builder.rhm / "tpl")
    (damage,) = recovered(path).store.damage
    assert (damage.file, damage.offset, damage.rid) == (str(path), None, None)
    assert damage.what == "the transaction prepared list is missing, but journals hold transactions"
    assert "treated as never prepared" in damage.consequence


def test_a_journal_by_itself_may_have_no_prepared_list(builder: StoreBuilder, tmp_path: Path) -> None:
    builder.orders.enqueue(b"m", xid=BRANCH)
    shutil.copytree(builder.write() / "rhm/jrnl/1", tmp_path / "alone")
    result = recovered(tmp_path / "alone")
    assert result.store.damage == []
    assert any("no transaction prepared list was found" in notice for notice in result.store.notices)


def test_lone_prepared_list_leaves_counts_unknown(builder: StoreBuilder) -> None:
    builder.prepared.enqueue(b"\1", xid=BRANCH)
    result = recovered(builder.write() / "rhm/tpl")
    (transaction,) = result.transactions
    assert (transaction.outcome, transaction.enqueues, transaction.dequeues) == (Outcome.IN_DOUBT, None, None)


def test_directories_that_may_not_be_looked_into_are_damage(builder: StoreBuilder) -> None:
    builder.orders.enqueue(b"m")
    path = builder.write()
    disk = OsDisk()
    refused = str(builder.rhm / "jrnl/2")

    class Guarded(OsDisk):
        def names(self, directory: str) -> list[str]:
            if directory == refused:
                raise PermissionError(errno.EACCES, "Permission denied", directory)
            return disk.names(directory)

    store = open_store(Guarded(), str(path))
    result = store.recover()
    store.close()
    (damage,) = store.damage  # and not that the queue has no journal
    assert damage.what == "directory cannot be listed: Permission denied"
    assert "the journals in it are not read; this process runs as user id" in damage.consequence
    assert len(states(result)["orders"]) == 1


def test_a_queue_that_has_the_prepared_lists_name_is_a_queue(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    store.bills = JournalBuilder(2, GEOMETRY, queue_id=2, queue_name="TplStore", seed=1)
    new = store.orders.enqueue(b"new", xid=BRANCH).header.rid
    store.prepared.enqueue(b"\1", xid=BRANCH)
    kept = store.bills.enqueue(b"kept", rid=5000).header.rid
    path = store.write()
    shutil.rmtree(store.rhm / "catalogue")
    (store.rhm / "STORE").unlink()
    (store.rhm / "topology").unlink()
    result = recovered(path)
    assert states(result) == {"orders": [(new, PENDING)], "TplStore": [(kept, LIVE)]}
    assert [transaction.outcome for transaction in result.transactions] == [Outcome.IN_DOUBT]


def test_a_prepared_list_that_is_none_does_not_spoil_a_journal_named_by_itself(builder: StoreBuilder) -> None:
    rid = builder.orders.enqueue(b"m").header.rid
    path = builder.write()
    for file in (builder.rhm / "tpl").iterdir():
        file.unlink()
    result = recovered(path / "rhm/jrnl/1")
    assert states(result) == {"orders": [(rid, LIVE)]}
    assert [damage.file for damage in result.store.damage] == [f"{builder.rhm}/tpl"]
