"""`qstore-resize` as it is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import tool_environment
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import StoreParameters
from qstore.tools.qstore_dump import command as dump
from qstore.tools.qstore_resize import command
from qstore.tools.qstore_size import command as size
from tests.support.fixtures import CopyOpener, StoreFixture, snapshot
from tests.support.opened_store import OpenedStore


def resize(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def dumped(path: Path) -> list[dict[str, Any]]:
    """Messages that a restart would deliver."""
    return lines(CliRunner().invoke(dump, [str(path), "--outstanding", "--json"]))


@pytest.fixture
def store(copies: CopyOpener) -> Iterator[Path]:
    """The store with distributed transactions in doubt that qpidd left, as it is converted."""
    with copies("legacy-d-dtx").copy() as copy:
        MessageStore.open(tool_environment(), str(copy.path), StoreParameters(), "0.1.0", log=lambda _: None).close({})
        yield copy.path


def test_all_queues_and_the_prepared_list_then_the_dump_is_the_same(store: Path) -> None:
    before = dumped(store)
    assert sum(line["kind"] == "message" for line in before) > 20
    result = resize(store, "--num-jfiles", 6, "--jfile-size-pgs", 40, "--json")
    assert result.exit_code == 0, result.output
    *journals, summary = lines(result)
    assert summary == {
        "kind": "summary",
        "resized": 3,
        "planned": 0,
        "unchanged": 0,
        "would_shrink": 0,
        "too_small": 0,
        "discarded": 0,
    }
    for journal in journals:
        assert journal["after"] == {"num_jfiles": 6, "jfile_size_pgs": 40, "capacity": 6 * 40 * 65536}
        assert Path(journal["kept"]).is_dir()
    assert sum(journal["open_transactions"] for journal in journals) == 4
    assert dumped(store) == before
    assert resize(store, "--tpl", "--num-jfiles", 4).exit_code == 0
    assert dumped(store) == before
    result = resize(store, "--discard-old", "--json")
    assert [line["kind"] for line in lines(result)] == ["discarded"] * 4 + ["summary"]
    assert resize(store, "--discard-old").output == "There are no old journals to remove.\n"
    assert dumped(store) == before


def test_one_number_leaves_the_other(store: Path) -> None:
    (journal, _) = lines(resize(store, "d.q1", "--num-jfiles", 10, "--json"))
    before = journal["before"]
    assert journal["after"]["jfile_size_pgs"] == before["jfile_size_pgs"]
    assert before["num_jfiles"] == 8
    (journal, _) = lines(resize(store, "d.q1", "--jfile-size-pgs", 11, "--json"))
    assert (journal["before"]["num_jfiles"], journal["after"]["num_jfiles"]) == (10, 10)


def test_auto_uses_sizes_recommended_by_qstore_size(store: Path) -> None:
    wanted = {
        line["queue"]: line["recommended"]
        for line in lines(CliRunner().invoke(size, ["--from", str(store), "--json"]))
        if line["kind"] == "queue_size"
    }
    before = dumped(store)
    *journals, _ = lines(resize(store, "--auto", "--shrink", "--json"))
    assert {each["queue"]: each["after"]["jfile_size_pgs"] for each in journals} == {
        name: choice["jfile_size_pgs"] for name, choice in wanted.items()
    }
    assert {each["after"]["num_jfiles"] for each in journals} == {8}
    assert dumped(store) == before


def test_auto_makes_no_journal_smaller_unasked(tmp_path: Path) -> None:
    path = tmp_path / "store"
    opened = OpenedStore(tool_environment(), path)
    quiet, busy = opened.make_queue("quiet", Geometry.from_pages(8, 128)), opened.make_queue("busy")
    for number in range(11):
        opened.enqueue(quiet, bytes([number]) * 100)
        opened.enqueue(busy, bytes([number]) * 15_000)
    opened.flush(quiet, busy)
    opened.store.close({})
    for options in (("--dry-run",), ()):
        result = resize(path, "--auto", *options)
        assert result.exit_code == 0, result.output
        assert "quiet: not changed from 8 x 128 pages; 8 x 1 page is enough for the present messages" in result.output
    *journals, summary = lines(resize(path, "--auto", "--json"))
    results = {each["queue"]: (each["result"], each["after"]["jfile_size_pgs"]) for each in journals}
    assert results == {"quiet": ("would-shrink", 128), "busy": ("unchanged", 1)}
    assert journals[0]["recommended_smaller"]["num_jfiles"] == 8
    assert (summary["would_shrink"], summary["resized"]) == (1, 0)
    assert [each["after"]["num_jfiles"] for each in journals] == [8, 8], "the busy one had 4, and got larger before"
    *journals, summary = lines(resize(path, "--auto", "--shrink", "--json"))
    assert journals[0]["result"] == "resized"
    assert journals[0]["after"]["jfile_size_pgs"] == 1


def test_auto_leaves_a_queue_without_messages(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    opened.make_queue("empty", Geometry.from_pages(5, 7))
    opened.store.close({})
    (journal, _) = lines(resize(tmp_path / "store", "--auto", "--json"))
    assert (journal["result"], journal["after"]["num_jfiles"]) == ("unchanged", 5)


def test_a_dry_run_writes_nothing(store: Path) -> None:
    before = snapshot(store)
    result = resize(store, "--num-jfiles", 6, "--jfile-size-pgs", 40, "--dry-run")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "Nothing was changed: this was a dry run."
    assert {line.split()[-1] for line in result.output.splitlines()[1:4]} == {"planned"}
    assert snapshot(store) == before


def test_size_too_small_is_refused_with_sizes_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "store"
    opened = OpenedStore(tool_environment(), path)
    orders = opened.make_queue("orders", Geometry.from_pages(4, 16))
    for number in range(600):
        opened.enqueue(orders, bytes([number % 256]) * 4000)
        if number % 50 == 0:
            opened.flush(orders)
    opened.flush(orders)
    opened.store.close({})
    before = snapshot(path / "rhm" / "jrnl")
    result = resize(path, "orders", "--jfile-size-pgs", 4)
    assert result.exit_code == 1
    *_, text, last = result.output.splitlines()
    assert text.startswith(
        "orders: 600 messages and 0 open transactions, 2.34 MiB, do not fit into 4 x 4 pages; large enough: "
    )
    assert last == "Nothing was changed."
    assert snapshot(path / "rhm" / "jrnl") == before
    words = text.split("large enough: ")[1].split(" or ")
    assert len(words) == 2
    for advice in words:
        assert resize(path, "orders", *advice.split()).exit_code == 0
    assert resize(path, "orders", "--jfile-size-pgs", 4, "--json", "--discard-old").exit_code == 1
    assert len(list((path / "rhm" / "resized").iterdir())) == 2


def test_discarding_in_the_same_run(store: Path) -> None:
    result = resize(store, "d.q1", "--jfile-size-pgs", 30, "--discard-old")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == f"removed {store}/rhm/resized/{result.output.split('resized/')[1].strip()}"
    assert "kept" not in result.output
    assert not (store / "rhm" / "resized").exists()


def test_the_directory_rhm_does_as_well(store: Path) -> None:
    assert resize(f"{store}/rhm", "d.q1", "--jfile-size-pgs", 30).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give a size: --num-jfiles and --jfile-size-pgs, or --auto; or --discard-old."),
        (("--auto", "--num-jfiles", 5), "--auto cannot be combined with"),
        (("--shrink", "--num-jfiles", 5), "--shrink requires --auto"),
        (("--auto", "--tpl"), "--auto does not apply to --tpl"),
        (("--discard-old", "--dry-run"), "--dry-run and --discard-old cannot be combined."),
        (("--num-jfiles", 3), "3 is not in the range 4<=x<=64"),
        (("--jfile-size-pgs", 32769), "32769 is not in the range 1<=x<=32768"),
        (("nobody", "--num-jfiles", 8), 'there is no queue "nobody"'),
    ],
)
def test_usage(store: Path, arguments: tuple[object, ...], text: str) -> None:
    before = snapshot(store / "rhm" / "jrnl")
    result = resize(store, *arguments)
    assert result.exit_code == 2
    assert text in result.output
    assert snapshot(store / "rhm" / "jrnl") == before


def test_a_store_of_qpidds_gets_advice(legacy_store: StoreFixture, copies: CopyOpener) -> None:
    with copies(legacy_store.name).copy() as copy:
        result = resize(copy.path, "--num-jfiles", 8)
        assert result.exit_code == 2
        assert "resize its journals with qpid-store-resize, or convert it first, with" in result.output
        assert len(result.output.splitlines()) == 1


def test_a_store_in_use(tmp_path: Path) -> None:
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    for more in ((), ("--dry-run",)):
        result = resize(tmp_path / "store", "--num-jfiles", 8, *more)
        assert result.exit_code == 2
        text = "another process has locked the store: stop the broker first"
        assert result.output == f"qstore-resize: {tmp_path}/store: {text}\n"
    opened.store.close({})


def test_damage(store: Path) -> None:
    file = next((store / "rhm" / "jrnl").glob("*/JournalData.0000.jdat"))
    content = bytearray(file.read_bytes())
    content[0x300] ^= 1
    file.write_bytes(content)
    result = resize(store, "--num-jfiles", 8, "--jfile-size-pgs", 3)
    assert result.exit_code == 1
    assert "nothing was changed: start the broker" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_no_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = resize(tmp_path / name, "--num-jfiles", 8)
    assert result.exit_code == 2
    assert "no such directory" in result.output


def test_help_has_examples() -> None:
    result = resize("--help")
    assert result.exit_code == 0
    assert "qstore-resize /var/lib/qstore orders --num-jfiles 16 --jfile-size-pgs 64" in result.output
