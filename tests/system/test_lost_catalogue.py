"""A store whose RocksDB was damaged from outside: what the tools and the broker's start say, and that nothing is lost.

The damage is that of the first attack: the newest log removed or cut, the catalogue removed, or an older one put back;
in stores that were closed cleanly, and in those that were left. Each is looked at by every tool, refused where that is
wanted, restored otherwise, and looked at again.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreDamagedError
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage
from tests.support import forked
from tests.support.dump import dump
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore
from tests.support.planted_damage import check
from tests.support.profiles import today
from tests.support.recover_runs import recover

ROOT: Final = Path(__file__).parents[2]
NOBODY: Final = 65534
REFUSE: Final = replace(PARAMETERS, on_damage=OnDamage.REFUSE)
QUEUES: Final = [f"queue-{number}" for number in range(4)]


class Made(NamedTuple):
    """A store, and copies of its directory.

    Attributes:
        clean: closed.
        killed: as a broker that was killed leaves it.
        early: its catalogue when half of the queues were there.
    """

    clean: Path
    killed: Path
    early: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Four queues with three messages each, bound to an exchange; one more was deleted."""
    root = tmp_path_factory.mktemp("made")
    path, early, killed = root / "clean", root / "early", root / "killed"
    opened = OpenedStore(tool_environment(), path)
    calls = Calls()
    opened.store.changes.create_exchange(Exchange("shop", True, "direct"), calls)
    opened.wait(calls)
    gone = opened.make_queue("gone")
    for position, name in enumerate(QUEUES):
        journal = opened.make_queue(name)
        for number in range(3):
            opened.enqueue(journal, b"%s %d" % (name.encode(), number))
        opened.flush(journal)
        calls.clear()
        opened.store.changes.create_binding(1, Binding(journal.queue_id, name, name), calls)
        opened.wait(calls)
        if position == 1:
            assert opened.store.close()
            shutil.copytree(path / "rhm/catalogue", early)
            opened = OpenedStore(tool_environment(), path)
            gone = opened.journal("gone")
            opened.recovered()
    calls.clear()
    opened.store.changes.delete_queue(gone, calls)
    opened.wait(calls)
    assert calls == [(None, None)]
    shutil.copytree(path, killed)
    assert opened.store.close()
    return Made(path, killed, early)


def logs(path: Path) -> list[Path]:
    """RocksDB's logs, the newest last."""
    return sorted((path / "rhm/catalogue").glob("*.log"))


def newest_removed(path: Path, _: Made) -> None:
    logs(path)[-1].unlink()


def all_removed(path: Path, _: Made) -> None:
    for log in logs(path):
        log.unlink()


def catalogue_removed(path: Path, _: Made) -> None:
    shutil.rmtree(path / "rhm/catalogue")


def older_put_back(path: Path, made: Made) -> None:
    shutil.rmtree(path / "rhm/catalogue")
    shutil.copytree(made.early, path / "rhm/catalogue")


def cut(seed: int) -> Callable[[Path, Made], None]:
    def do(path: Path, _: Made) -> None:
        log = max(logs(path), key=lambda each: each.stat().st_size)
        content = log.read_bytes()
        log.write_bytes(content[: random.Random(seed).randrange(len(content))])

    do.__name__ = f"log cut, {seed}"
    return do


def table_removed(path: Path, _: Made) -> None:
    max((path / "rhm/catalogue").glob("*.sst")).unlink()


def manifest_cut(path: Path, _: Made) -> None:
    manifest = max((path / "rhm/catalogue").glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes()[:-10])


ANY: Final = [catalogue_removed, older_put_back, table_removed]
LOGS: Final = [newest_removed, all_removed, *map(cut, range(4))]  # empty where a close was clean
CASES: Final = today([*((damage, True) for damage in ANY), *((damage, False) for damage in (*ANY, *LOGS))], 6)


def assert_whole(opened: OpenedStore) -> None:
    """All queues, their messages, the exchange and the bindings are there."""
    expected = {name: [b"%s %d" % (name.encode(), number) for number in range(3)] for name in QUEUES}
    assert [exchange.name for exchange in opened.store.topology.exchanges.values()] == ["shop"]
    assert sorted(each.record.key for each in opened.store.topology.bindings) == QUEUES
    assert opened.recovered_data() == expected


def topology_of(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Queues, exchanges and bindings as `qstore-dump` shows them."""
    shown = dump(path, "--topology", "--json")
    return (
        [line["name"] for line in shown.lines("queue")],
        [line["name"] for line in shown.lines("exchange")],
        [line["key"] for line in shown.lines("binding")],
    )


@pytest.mark.parametrize(
    ("damage", "closed"),
    CASES,
    ids=[f"{damage.__name__}, {'clean' if closed else 'killed'}" for damage, closed in CASES],
)
def test_a_damaged_catalogue(made: Made, tmp_path: Path, damage: Callable[[Path, Made], None], closed: bool) -> None:
    path = tmp_path / "store"
    shutil.copytree(made.clean if closed else made.killed, path)
    damage(path, made)

    found = check(path)
    assert found.code == 1
    assert {line["consequence"] for line in found.lines("damage")} == {"no data loss: its second copy is used instead"}
    assert topology_of(path) == (QUEUES, ["shop"], QUEUES)
    recovered = recover(path, tmp_path / "new")
    assert recovered.report.code == 0
    assert topology_of(recovered.path) == (QUEUES, ["shop"], QUEUES)
    assert recovered.summary["messages"] == 12

    with pytest.raises(StoreDamagedError, match="on-damage is refuse: see qstore-check "):
        OpenedStore(tool_environment(), path, REFUSE)
    assert check(path).code == 1, "it stays as it is"

    opened = OpenedStore(tool_environment(), path)
    (line,) = [line.text for line in opened.lines if line.level is Level.CRITICAL]
    assert "it is restored from its second copy" in line
    assert 'queue "queue-3"' in line or damage is table_removed
    assert_whole(opened)
    opened.make_queue("more")
    assert opened.store.close()
    after = check(path)
    assert (after.code, after.lines("damage")) == (0, [])
    again = OpenedStore(tool_environment(), path)
    assert [line.text for line in again.lines if line.level in (Level.CRITICAL, Level.WARNING)] == []
    assert again.store.close()


@pytest.mark.parametrize(
    "tool",
    [("qstore_check",), ("qstore_dump", "--topology"), ("qstore_recover", "--dry-run")],
    ids=lambda tool: tool[0],
)
def test_an_unreadable_catalogue_is_not_damage(made: Made, tmp_path: Path, tool: tuple[str, ...]) -> None:
    """Another user's: nothing is said of lost exchanges, but whom the directory should belong to."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a command as another user")
    path = tmp_path / "store"
    shutil.copytree(made.clean, path)
    for each in (path, *path.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    os.chown(path / "rhm/catalogue", 0, 0)
    name, *options = tool
    program = (
        "import os, sys\n"
        f"import qstore.tools.{name} as tool\n"
        "import rocksdict, pickle\n"
        "os.chdir(sys.argv.pop(1))\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "tool.main()\n"
    )
    paths = ["store", "new"] if name == "qstore_recover" else ["store"]
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)
    tmp_path.chmod(0o777)
    done = forked.run([sys.executable, "-c", program, str(tmp_path), *options, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied" in done.stderr
    assert f"this process runs as user id {NOBODY}: check the owner and the mode of the path" in done.stderr
    assert "lost" not in done.stderr


@pytest.mark.parametrize("closed", [True, False], ids=["clean", "killed"])
def test_a_manifest_whose_last_record_is_cut(made: Made, tmp_path: Path, closed: bool) -> None:
    """RocksDB takes that for the end that a crash leaves, and here it has lost nothing by it."""
    path = tmp_path / "store"
    shutil.copytree(made.clean if closed else made.killed, path)
    manifest_cut(path, made)
    assert check(path).code == 1
    opened = OpenedStore(tool_environment(), path)
    assert_whole(opened)
    assert opened.store.close()
    assert check(path).code == 0


@pytest.mark.parametrize("closed", [True, False], ids=["clean", "killed"])
def test_neither_catalogue_nor_copy(made: Made, tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "store"
    shutil.copytree(made.clean if closed else made.killed, path)
    catalogue_removed(path, made)
    (path / "rhm/topology").unlink()
    assert check(path).code == 1
    with pytest.raises(StoreDamagedError, match="the catalogue is missing"):
        OpenedStore(tool_environment(), path, REFUSE)
    opened = OpenedStore(tool_environment(), path)
    line = next(line.text for line in opened.lines if line.level is Level.CRITICAL)
    assert "4 of them from their journals alone" in line
    assert "all other exchanges, bindings and links are lost and must be declared again" in line
    assert sorted(opened.recovered_data()) == QUEUES
    assert opened.store.topology.bindings == []
    assert opened.store.close()
    assert check(path).code == 0


def test_a_store_of_older_software_with_a_log_removed(made: Made, tmp_path: Path) -> None:
    """There is no copy, and the catalogue looks sound: the journals name the queues, which are made again.

    Nor is there a record of how far the store was synced.
    """
    path = tmp_path / "store"
    shutil.copytree(made.clean, path)
    for name in ("topology", "SYNCED"):
        (path / "rhm" / name).unlink()
    older_put_back(path, made)
    found = check(path)
    reported = [line["what"] for line in found.lines("damage") if "holds 3 messages" in line["what"]]
    assert (found.code, len(reported)) == (1, 2)
    with pytest.raises(StoreDamagedError, match="on-damage is refuse"):
        OpenedStore(tool_environment(), path, REFUSE)
    opened = OpenedStore(tool_environment(), path)
    reported = [
        line.text
        for line in opened.lines
        if line.level is Level.CRITICAL and "is recreated from its journal" in line.text
    ]
    assert len(reported) == 2
    assert {name: len(kept) for name, kept in opened.recovered_data().items() if name != "gone"} == dict.fromkeys(
        QUEUES, 3
    )
    assert [queue.record.name for queue in opened.store.topology.queues.values()] == ["gone", *QUEUES]
    assert not (path / "rhm/orphans").exists()
    assert opened.store.close()


def test_orphans_of_an_earlier_start_are_reported(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(made.clean, path)
    opened = OpenedStore(tool_environment(), path)
    journal, calls = opened.journal("queue-1"), Calls()
    kept = tmp_path / "kept"
    shutil.copytree(journal.directory, kept)
    opened.recovered()
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls)
    assert opened.store.close()
    (path / "rhm/orphans").mkdir()
    kept.rename(path / "rhm/orphans/3-0")

    found = check(path)
    (damage,) = found.lines("damage")
    assert found.code == 1
    assert damage["what"] == 'journal of queue "queue-1", which is not in the catalogue, holds 3 messages'
    assert "qstore-recover --orphans recover creates a queue from them" in damage["consequence"]
    assert dump(path, "--outstanding").code == 1
    left_out = recover(path, tmp_path / "left out")
    assert (left_out.report.code, left_out.report.lines("orphan")[0]["messages"]) == (1, 3)
    brought_back = recover(path, tmp_path / "new", "--orphans", "recover")
    assert brought_back.report.code == 0
    assert brought_back.summary["messages"] == 12
    assert check(path / "rhm/orphans/3-0").code == 0


def test_quarantined_records_are_reported(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(made.clean, path)
    older_put_back(path, made)
    journal = path / "rhm/jrnl/2/JournalData.0000.jdat"
    content = bytearray(journal.read_bytes())
    content[512 + 35] ^= 1
    journal.write_bytes(content)
    opened = OpenedStore(tool_environment(), path)
    assert opened.store.close()
    found = check(path)
    assert found.code == 0
    reported = "\n".join(line["text"] for line in found.lines("notice"))
    assert '2-0: quarantined damaged journal of queue "queue-0"; 2 messages can be read' in reported
    assert "catalogue-0: a damaged catalogue that was restored; remove it" in reported
