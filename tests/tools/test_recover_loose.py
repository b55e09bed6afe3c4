"""`qstore-recover` of journals whose catalogue, or whole store, is lost; and what becomes of orphans."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.broker_records.messages import encode_message
from qstore.formats.broker_records.topology import Queue
from qstore.store.catalogue.catalogue import Catalogue
from tests.support.dump import Line, dump
from tests.support.fixtures import CopyFactory, CopyOpener, StoreOpener, journal_directory
from tests.support.linear_builder import LinearBuilder
from tests.support.planted_damage import (
    BILLS,
    OUTSTANDING,
    UNPAID,
    UNPREPARED,
    XIDS,
    Original,
    Planted,
    linear_store,
    lost,
    version_1_store,
    version_2_store,
)
from tests.support.recover_runs import Recovery, as_qpidd_delivers, expected_states, recover, states
from tests.tools.planted_version_2 import in_catalogue

Changes = dict[str, str | None]
#: Without the prepared list: what was prepared counts as never prepared, and what was not decided is undone.
NO_LIST: Final[Changes] = {
    "branch": UNPREPARED,
    "branch put": None,
    "fourth": OUTSTANDING,
    "decided": UNPREPARED,
    "decided put": None,
    "fifth": OUTSTANDING,
}
NO_BILLS: Final = lost(*(f"bill {number}" for number in range(BILLS - UNPAID, BILLS)))
NO_ORDERS: Final[Changes] = dict.fromkeys(name for name in expected_states({}) if not name.startswith("bill "))


def counted(recovery: Recovery) -> dict[str, int]:
    return {line["name"]: line["messages"] for line in recovery.report.lines("queue")}


# ---- without a catalogue ----


def test_version_1_without_its_database(local_copies: CopyFactory, tmp_path: Path) -> None:
    """Names and geometry are those of the info files; the messages are all there."""
    sound = dump(local_copies.source.path, "--outstanding", "--json")
    with local_copies.copy() as copy:
        shutil.rmtree(copy.path / "rhm/dat")
        recovery = recover(copy.path, tmp_path / "new")
    found = recovery.dump()
    for name in ("c.q1", "c.q2"):
        assert [line["body"] for line in found.messages(name)] == [line["body"] for line in sound.messages(name)]
    assert recovery.report.code in (0, 1)


def test_version_2_without_its_catalogue(tmp_path: Path) -> None:
    """The queues come back with their arguments, from the info files; the rest of the topology is unknown."""
    original = version_2_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    planted.remove("rhm/catalogue")
    planted.remove("rhm/topology")
    recovery = recover(planted.path, tmp_path / "new")
    found = recovery.dump()
    assert states(original, found) == expected_states({})
    (orders,) = [line for line in found.lines("queue") if line["name"] == "orders"]
    assert (orders["arguments"], orders["alternate_exchange"]) == ({"qpid.max_count": 10}, "dead")
    assert recovery.report.code == 1
    assert "catalogue" in recovery.loss()


def test_version_2_without_its_catalogue_but_with_the_second_copy_of_it(tmp_path: Path) -> None:
    """Nothing is lost, and it is reported nevertheless."""
    original = version_2_store(tmp_path / "original")
    planted = original.copy(tmp_path / "store")
    planted.remove("rhm/catalogue")
    recovery = recover(planted.path, tmp_path / "new")
    assert states(original, recovery.dump()) == expected_states({})
    topology = dump(recovery.path, "--topology", "--json")
    assert [line["name"] for line in topology.lines("queue")] == ["orders", "bills"]
    assert [line["queue"] for line in topology.lines("binding")] == ["orders"]
    assert recovery.report.code == 0
    assert "the catalogue is missing" in [line["what"] for line in recovery.report.lines("damage")]


@pytest.mark.parametrize("with_list", [False, True], ids=["without the prepared list", "with it"])
@pytest.mark.parametrize("version", [1, 2])
def test_journal_directories_in_a_heap(version: int, with_list: bool, tmp_path: Path) -> None:
    """Directories of any name, in one that is not a store."""
    original = version_1_store(tmp_path / "original") if version == 1 else version_2_store(tmp_path / "original")
    heap = tmp_path / "heap"
    heap.mkdir()
    names = {"orders": "a", "bills": "some/where/b"} | ({"prepared": "p"} if with_list else {})
    for journal, name in names.items():
        shutil.copytree((original.path / original.files[journal][0]).parent, heap / name)
    recovery = recover(heap, tmp_path / "new")
    assert states(original, recovery.dump()) == expected_states({} if with_list else NO_LIST)
    assert set(counted(recovery)) == {original.histories[name].queue for name in ("orders", "bills")}
    if not with_list:
        assert recovery.report.code == 1
        assert original.histories["prepared"].records["branch prepare"].header.rid
        assert {line["xid"] for line in recovery.report.lines("transaction")}
    if version == 2:
        (orders,) = [line for line in recovery.dump().lines("queue") if line["name"] == "orders"]
        assert orders["arguments"] == {"qpid.max_count": 10}


@pytest.mark.parametrize("version", [1, 2])
def test_one_journal(version: int, tmp_path: Path) -> None:
    original = version_1_store(tmp_path / "original") if version == 1 else version_2_store(tmp_path / "original")
    shutil.copytree((original.path / original.files["bills"][0]).parent, tmp_path / "journal")
    recovery = recover(tmp_path / "journal", tmp_path / "new")
    assert states(original, recovery.dump()) == expected_states(NO_ORDERS)
    assert counted(recovery) == {original.histories["bills"].queue: UNPAID}


def test_one_journal_of_a_store_has_its_prepared_list(tmp_path: Path) -> None:
    original = version_1_store(tmp_path / "original")
    orders = (original.path / original.files["orders"][0]).parent
    recovery = recover(orders, tmp_path / "new")
    assert states(original, recovery.dump()) == expected_states(NO_BILLS)


def test_one_linear_journal(tmp_path: Path) -> None:
    """The files themselves, without pool and links."""
    original = linear_store(tmp_path / "original")
    (tmp_path / "journal").mkdir()
    for file in original.files["bills"]:
        if (original.path / file).is_file():
            shutil.copy(original.path / file, tmp_path / "journal")
    recovery = recover(tmp_path / "journal", tmp_path / "new")
    assert states(original, recovery.dump()) == expected_states(NO_ORDERS)


def test_without_info_files(open_fixture: StoreOpener, tmp_path: Path) -> None:
    """The queue's name comes from the directory, the geometry from the files."""
    source = open_fixture("legacy-c-localtx").path
    sound = dump(source, "--outstanding", "--json").messages("c.q1")
    shutil.copytree(journal_directory(source, "c.q1"), tmp_path / "heap/c.q1")
    (tmp_path / "heap").chmod(0o755)
    (tmp_path / "heap/c.q1").chmod(0o755)
    (tmp_path / "heap/c.q1/JournalData.jinf").unlink()
    recovery = recover(tmp_path / "heap", tmp_path / "new")
    assert [line["body"] for line in recovery.dump().messages("c.q1")] == [line["body"] for line in sound]


def test_two_journals_of_one_name(tmp_path: Path) -> None:
    """Neither goes silently: the second is reported, as an orphan or as damage."""
    original = version_1_store(tmp_path / "original")
    for name in ("one", "two"):
        shutil.copytree((original.path / original.files["bills"][0]).parent, tmp_path / "heap" / name)
    recovery = recover(tmp_path / "heap", tmp_path / "new")
    assert recovery.report.code == 1
    assert "two" in recovery.loss()
    assert states(original, recovery.dump()) == expected_states(NO_ORDERS)


# ---- orphans ----


def orphaned_journal(recovery: Recovery) -> Line:
    """What the report says of the only journal that the catalogue does not know."""
    (orphan,) = [line for line in recovery.report.lines("orphan") if line["xid"] is None]
    return orphan


def no_bills(original: Original, path: Path) -> Planted:
    """The catalogue does not know the queue of the journal with the bills."""
    planted = original.copy(path)
    in_catalogue(_forget_bills)(planted)
    return planted


def _forget_bills(catalogue: Catalogue, _: object) -> None:
    catalogue.delete_queue(2)


@pytest.fixture(scope="module")
def version_2(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_2_store(tmp_path_factory.mktemp("original") / "store")


@pytest.mark.parametrize("options", [(), ("--orphans", "report")], ids=["by default", "report"])
def test_an_orphan_is_reported_and_left_out(version_2: Original, options: tuple[str, ...], tmp_path: Path) -> None:
    planted = no_bills(version_2, tmp_path / "store")
    recovery = recover(planted.path, tmp_path / "new", *options)
    assert recovery.report.code == 1
    orphan = orphaned_journal(recovery)
    assert (orphan["queue"], orphan["messages"], orphan["recovered_into"]) == ("bills", UNPAID, None)
    assert states(version_2, recovery.dump()) == expected_states(NO_BILLS)


def test_an_orphan_kept_aside(version_2: Original, tmp_path: Path) -> None:
    """Byte for byte, and to be recovered from there."""
    planted = no_bills(version_2, tmp_path / "store")
    recovery = recover(planted.path, tmp_path / "new", "--orphans", "aside")
    assert states(version_2, recovery.dump()) == expected_states(NO_BILLS)
    assert orphaned_journal(recovery)["messages"] == UNPAID
    copies = list((recovery.path / "quarantine/orphans").iterdir())
    assert len(copies) == 1

    def content(directory: Path) -> dict[str, str]:
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}

    assert content(copies[0]) == content(planted.path / "rhm/jrnl/2")
    again = recover(copies[0], tmp_path / "again")
    assert states(version_2, again.dump()) == expected_states(NO_ORDERS)


def test_an_orphan_recovered(version_2: Original, tmp_path: Path) -> None:
    planted = no_bills(version_2, tmp_path / "store")
    recovery = recover(planted.path, tmp_path / "new", "--orphans", "recover")
    shown = recovery.dump()
    name = orphaned_journal(recovery)["recovered_into"]
    assert name == "lost.found.2"
    sound = dump(version_2.path, "--outstanding", "--json").messages("bills")
    assert [line["body"] for line in shown.messages(name)] == [line["body"] for line in sound]
    assert recovery.queue(name)["messages"] == UNPAID


def test_messages_that_were_never_prepared(version_2: Original, tmp_path: Path) -> None:
    """They were never acknowledged, so this is not a loss; an option recovers them nevertheless."""
    left_out = recover(version_2.path, tmp_path / "report")
    (orphan,) = left_out.report.lines("orphan")
    assert (orphan["xid"], orphan["messages"]) == (XIDS["open"].hex(), 1)
    assert left_out.report.code == 0
    recovery = recover(version_2.path, tmp_path / "recover", "--orphans", "recover")
    name = recovery.report.lines("orphan")[0]["recovered_into"]
    assert name.startswith("lost.found.")
    (message,) = recovery.dump().messages(name)
    history = version_2.histories["orders"]
    assert message["body"] == history.bodies[history.records["open put"].header.rid]
    aside = recover(version_2.path, tmp_path / "aside", "--orphans", "aside")
    raw = b"".join(path.read_bytes() for path in (aside.path / "quarantine").rglob("*.raw"))
    assert message["body"].encode() in raw


@pytest.mark.parametrize("kind", ["legacy", "linear"])
def test_an_orphan_of_qpidds(kind: str, copies: CopyOpener, tmp_path: Path) -> None:
    factory = copies(f"{kind}-c-localtx")
    sound = dump(factory.source.path, "--outstanding", "--json")
    with factory.copy() as copy:
        if kind == "legacy":
            orphan = copy.path / "rhm/jrnl/0009/c.q9"
            shutil.copytree(journal_directory(copy.path, "c.q1"), orphan)
            info = orphan / "JournalData.jinf"
            info.chmod(0o644)
            info.write_bytes(info.read_bytes().replace(b'"c.q1"', b'"c.q9"'))
            expected = [line["body"] for line in sound.messages("c.q1")]
        else:
            builder = LinearBuilder("c.q9", 64)
            builder.enqueue(77, encode_message(b"left"))
            builder.flush()
            builder.write(copy.path)
            expected = ["left"]
        recovery = recover(copy.path, tmp_path / "new", "--orphans", "recover")
    shown = recovery.dump()
    (name,) = {line["name"] for line in shown.lines("queue")} - {line["name"] for line in sound.lines("queue")}
    assert name.startswith("lost.found.")
    assert [line["body"] for line in shown.messages(name)] == expected
    for queue in ("c.q1", "c.q2"):
        assert [line["body"] for line in shown.messages(queue)] == [line["body"] for line in sound.messages(queue)]


def test_bindings_of_a_queue_that_is_lost(copies: CopyOpener, tmp_path: Path) -> None:
    """What the topology has lost is listed; the binding goes with the exchange that is lost."""
    factory = copies("legacy-a-clean")
    sound = dump(factory.source.path, "--outstanding", "--json")
    with factory.copy() as copy:
        file = copy.path / "rhm/dat/exchanges.db"
        content = file.read_bytes()
        copy.replace(file, content[:4096] + bytes(4096) + content[8192:])
        for log in file.parent.glob("log.*"):
            log.unlink()  # from which the file would be read
        recovery = recover(copy.path, tmp_path / "new")
    assert recovery.report.code == 1
    shown = as_qpidd_delivers(recovery.dump())
    for queue in sound.lines("queue"):
        reported = [line["body"] for line in shown.messages(queue["name"])]
        assert reported == [line["body"] for line in sound.messages(queue["name"])]
    missed = {line["queue"] for line in sound.lines("binding")} - {line["queue"] for line in shown.lines("binding")}
    assert missed
    assert {line["queue"] for line in recovery.report.lines("binding")} >= missed


def test_the_record_of_a_queue(version_2: Original, tmp_path: Path) -> None:
    """The queue that the info file names is the one that was declared."""
    planted = version_2.copy(tmp_path / "store")
    planted.remove("rhm/catalogue")
    planted.remove("rhm/STORE")
    recovery = recover(planted.path, tmp_path / "new")
    names = {line["name"] for line in recovery.dump().lines("queue")}
    assert names == {Queue("orders").name, Queue("bills").name}
