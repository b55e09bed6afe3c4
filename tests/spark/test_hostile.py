"""Bad input makes rows that say so, or an error of one line."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import tool_environment
from qstore.store.inspect.layout import UnusableInputError
from qstore.tools.spark import needed
from qstore.tools.spark.columns import OptionError, Selection
from qstore.tools.spark.inputs import Input, named_inputs
from qstore.tools.spark.stretches import stretches
from tests.spark.reading import in_order, records, table
from tests.support.journal_builder import JournalBuilder
from tests.support.linear_builder import LinearBuilder
from tests.support.opened_store import OpenedStore


def journal(directory: Path, version: int = 2, messages: int = 40) -> Path:
    builder = JournalBuilder(version, Geometry(4, 16384))
    for number in range(messages):
        builder.enqueue(b"%d" % number * 30)
        builder.flush()
    builder.write_to(directory)
    return directory


def test_damage_is_a_row_with_its_place_and_its_length(tmp_path: Path) -> None:
    path = journal(tmp_path / "q")
    before = records(path)
    file = path / "JournalData.0000.jdat"
    content = bytearray(file.read_bytes())
    content[1024 + 40] ^= 0xFF
    file.write_bytes(content)
    (row,) = [row for row in records(path) if row["type"] == "damage"]
    assert (row["file"], row["offset"], row["size"]) == (str(file), 1024, 128)
    assert row["position"] == 1024 - 512
    assert "checksum" in row["damage"]
    lost = [row for row in before if (row["file"], row["offset"]) == (str(file), 1024)]
    assert len(lost) == 1
    assert in_order([row for row in records(path) if row["type"] != "damage"]) == in_order(
        [row for row in before if row not in lost]
    )


def test_records_that_hold_no_message_say_so_in_their_row(tmp_path: Path) -> None:
    rows = records(journal(tmp_path / "q"))
    assert {row["type"] for row in rows} == {"enqueue"}
    assert all(row["damage"].startswith("message header cannot be decoded") for row in rows)
    assert rows[7]["body"] == b"7" * 30
    assert all(row["damage"] is None for row in records(tmp_path / "q", "rid,damage"))


def test_a_file_that_cannot_be_opened_is_damage_and_the_rest_is_read(tmp_path: Path) -> None:
    path = journal(tmp_path / "q", messages=120)
    planned = stretches([Input(str(path))], None, None)
    os.unlink(path / "JournalData.0001.jdat")
    rows = records(path)
    assert [row for row in rows if row["type"] == "damage" and "0001" in row["file"]]
    assert [row for row in rows if row["type"] == "enqueue" and "0000" in row["file"]]
    # It went after the plan was made: what was read before stays, the rest of the stretch is told.
    from qstore.tools.spark.columns import table_columns
    from qstore.tools.spark.records import read_stretch

    (stretch,) = planned
    batches = read_stretch(stretch, stretch.source.disk()[0], table_columns("records"), Selection())
    late = [row for batch in batches for row in batch.to_pylist()]
    assert [row["damage"] for row in late if row["type"] == "damage"] == ["cannot be read: No such file or directory"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_noise_anywhere_ends_in_rows(tmp_path: Path, version: int) -> None:
    rng = random.Random(version)
    for turn in range(25):
        path = tmp_path / f"{turn}"
        if version == 3:
            builder = LinearBuilder("q", data_size=8)
            for rid in range(1, 60):
                builder.enqueue(rid, b"%d" % rid * 40)
            builder.flush()
            builder.write_plain(path)
        else:
            journal(path, version, 100)
        files = sorted(path.iterdir())
        for _ in range(rng.randrange(1, 6)):
            file = rng.choice(files)
            content = bytearray(file.read_bytes())
            at = rng.randrange(len(content))
            content[at : at + 16] = rng.randbytes(rng.choice([0, 1, 16]))
            file.write_bytes(content)
        for split in (None, 4096):
            rows = records(path, split_bytes=split)
            assert all(row["type"] for row in rows)
        assert table(path, "files")


def test_path_without_a_store_is_a_row_of_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("nothing\n")
    for name, reason in (("empty", "empty"), ("text", "few"), ("gone", "no such directory")):
        (row,) = table(tmp_path / name, "files")
        assert (row["kind"], row["file"]) == ("unusable", str(tmp_path / name))
        assert reason in row["reason"]
        assert table(tmp_path / name, "queues") == []


@pytest.mark.parametrize("how", ["made", "deleted"])
def test_crash_leftovers_of_a_queue_are_no_damage(tmp_path: Path, how: str) -> None:
    """As `qstore-check` has it: a queue that was being made, or deleted, when the broker was killed."""
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    opened.make_queue("orders")
    opened.store.close()
    sound, left = (tmp_path / "store" / "rhm" / "jrnl" / name for name in "12")
    left.mkdir()
    shutil.copy(sound / "JournalData.0000.jdat", left)
    (left / "JournalData.0001.jdat").touch()
    if how == "deleted":
        shutil.copy(sound / "JournalData.jinf", left)
        (left / "deleted").touch()
    for rows in (records(tmp_path / "store"), table(tmp_path / "store", "files")):
        assert not [row for row in rows if row.get("type") == "damage" or row.get("kind") == "damage"]
    shutil.rmtree(sound)
    left.rename(sound)
    (sound / "deleted").unlink(missing_ok=True)
    found = [row for row in records(tmp_path / "store") if row["type"] == "damage"]
    assert found, "the catalogue knows this one"


def test_one_readable_store_is_enough_and_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    journal(tmp_path / "q")
    inputs = named_inputs({"path": str(tmp_path / "*")})
    assert [Path(each.path).name for each in inputs] == ["empty", "q"]
    assert stretches(inputs, None, None)
    with pytest.raises(UnusableInputError, match=r"no input is a store: .*empty") as raised:
        stretches(inputs[:1], None, None)
    assert "\n" not in str(raised.value)


def test_a_list_and_a_glob_name_each_input_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    paths = json.dumps([str(tmp_path / "b"), str(tmp_path / "[ab]")])
    assert [Path(each.path).name for each in named_inputs({"paths": paths})] == ["b", "a"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"paths": "no list"},
        {"path": "/none-of-*-these"},
        {"path": "x", "storage_options": "1"},
        {"path": "nonsense://x/*"},
    ],
)
def test_options_that_say_nothing_usable_are_errors(options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as raised:
        named_inputs(options)
    assert "\n" not in str(raised.value)


def test_a_body_limit_cuts_the_body_but_not_its_stated_length(tmp_path: Path) -> None:
    rows = records(journal(tmp_path / "q"), "body,body_length", body_limit=5)
    assert {len(row["body"]) for row in rows} == {5}
    assert {row["body_length"] for row in rows} == {30, 60}


def test_record_ids_with_the_highest_bit_keep_their_bits(tmp_path: Path) -> None:
    builder = JournalBuilder(2, Geometry(4, 16384))
    builder.enqueue(b"x", rid=(1 << 64) - 2)
    builder.flush()
    builder.write_to(tmp_path / "q")
    (row,) = records(tmp_path / "q", "rid")
    assert row == {"rid": -2}
    assert records(tmp_path / "q", "rid", Selection(lowest=-5, highest=-1)) == [row]
    assert records(tmp_path / "q", "rid", Selection(lowest=1)) == []


def test_missing_requirement_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed, "_PACKAGES", ("pyspark_that_is_not", "orjson"))
    with pytest.raises(needed.SparkMissingError) as raised:
        needed.check()
    assert str(raised.value) == "pyspark_that_is_not not installed: pip install 'qstore[spark]'"
    monkeypatch.setattr(needed, "_PACKAGES", ("orjson",))
    monkeypatch.setattr(needed.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java is not installed" in (needed.missing() or "")


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("split_bytes", [None, 64 << 10])
@pytest.mark.parametrize("harm", ["zeroed", "emptied", "earlier"])
def test_a_journal_changed_since_the_clean_close_is_reported(
    tmp_path: Path, harm: str, split_bytes: int | None, closed: bool
) -> None:
    path = tmp_path / "store"
    opened = OpenedStore(tool_environment(), path)
    orders = opened.make_queue("orders")
    for round_ in range(3):
        for _ in range(30):
            opened.enqueue(orders, b"x" * 1000)
        opened.flush(orders)
        if round_ == 2 and not closed:
            break
        opened.store.close()
        if round_ == 0:
            shutil.copytree(path / "rhm/jrnl/1", tmp_path / "earlier")
        if round_ < 2:
            opened = OpenedStore(tool_environment(), path)
            orders = opened.journal("orders")
    assert [row for row in records(path, split_bytes=split_bytes) if row["type"] == "damage"] == []
    journal = path / "rhm/jrnl/1"
    if harm == "earlier":
        shutil.rmtree(journal)
        shutil.copytree(tmp_path / "earlier", journal)
    for file in journal.glob("*.jdat") if harm != "earlier" else ():
        content = file.read_bytes()
        kept = content[:512] if harm == "emptied" else b""
        file.write_bytes(kept.ljust(len(content), b"\0"))
    (row,) = [row for row in records(path, split_bytes=split_bytes) if "was last closed cleanly" in str(row["damage"])]
    assert (row["type"], row["queue"], row["file"]) == ("damage", "orders", str(journal))
