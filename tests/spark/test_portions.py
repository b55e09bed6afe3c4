"""A large journal is analyzed in portions: the same tables, in the memory of a portion."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")

import pyarrow as pa
import pyarrow.dataset as ds

from qstore.tools.generate.fleet import BodySizes, FleetSpec, StoreFormat
from qstore.tools.generate.make import make_store
from qstore.tools.spark import audit, portions
from qstore.tools.spark.columns import CODED, CODED_TYPE, Selection, table_columns
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.portions import Portions, portions_of, remainders
from qstore.tools.spark.records import read_stretch
from qstore.tools.spark.stores import AUDIT, INVENTORY, OUTSTANDING, SIZING, Job, write_stores
from qstore.tools.spark.stretches import stretches
from tests.support.dump import ROOT
from tests.support.fixtures import StoreOpener

COUNT = 7


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION_BYTES", 50_000)
    monkeypatch.setattr(portions, "_WAITING", 300)


def analyzed(paths: list[str], out: Path) -> tuple[list[Any], dict[str, list[str]]]:
    """What was found in the stores, and the rows of all tables."""
    tables = (*AUDIT, *INVENTORY, OUTSTANDING, SIZING)
    job = Job({table: f"{out}/{table}" for table in tables}, f"{out}/export", report=True)
    found = list(write_stores(job, 0, [Input(path) for path in paths]))
    rows = {table: sorted(map(repr, ds.dataset(out / table).to_table().to_pylist())) for table in (*tables, "export")}
    for each in found:
        for findings in each.findings.values():
            findings.sort()
    return found, rows


@pytest.mark.parametrize("form", list(StoreFormat))
def test_tables_are_the_same_in_portions(
    tmp_path: Path, form: StoreFormat, request: pytest.FixtureRequest, open_fixture: StoreOpener
) -> None:
    spec = FleetSpec(format=form, seed=9, queues=2, messages=1500, in_doubt=3, transactions=0.3, damage=1.0)
    paths = [str(tmp_path / make_store(spec, str(tmp_path), 1)["name"]), str(open_fixture("legacy-d-dtx").path)]
    whole = analyzed(paths, tmp_path / "whole")
    request.getfixturevalue("small_portions")
    assert portions_of(1 << 20) > 20
    assert analyzed(paths, tmp_path / "portions") == whole
    assert all(whole[1][table] for table in ("lifetimes", "depth", "waits", "export", OUTSTANDING, SIZING))


def test_rows_come_back_from_their_portions_in_order(small_portions: None) -> None:
    chance = random.Random(4)
    rows = pa.table({"id": [chance.randrange(-(1 << 63), 1 << 63) for _ in range(2000)], "at": range(2000)})
    rows = rows.append_column("kind", pa.array(chance.choice("abc") for _ in range(2000)).dictionary_encode())
    held = Portions(COUNT)
    for begin in range(0, 2000, 90):
        some = rows.slice(begin, 90)
        held.add(some, remainders(some["id"].combine_chunks(), COUNT))
    read = [held.read(number).to_pylist() for number in range(COUNT)]
    assert read == [[row for row in rows.to_pylist() if row["id"] % COUNT == number] for number in range(COUNT)]
    assert held.every(rows.schema).num_rows == 2000
    held.close()
    assert remainders(pa.array([None, 3], pa.int64()), COUNT).to_pylist() == [0, 3]


def test_percentiles_of_very_many_values_are_those_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_AT_ONCE", 10)
    chance = random.Random(5)
    kinds: tuple[Callable[[], float], ...] = (
        lambda: chance.randrange(40), lambda: chance.random() * 9, lambda: 5, lambda: chance.randrange(1 << 50)
    )  # fmt: skip
    for count in (1, 9, 300):
        for kind in kinds:
            values = [kind() for _ in range(count)]
            lives = pa.table({"dequeued": [1] * count, "distance": values, "waited": [float(each) for each in values]})
            row = audit.waits(lives)
            assert row is not None
            for share in audit.PERCENTILES:
                expected = sorted(values)[max(-(-share * count // 100) - 1, 0)]
                assert (row[f"distance_{share}"], row[f"waited_{share}"]) == (expected, float(expected))


@pytest.mark.parametrize("name", ["legacy-d-dtx", "linear-d-dtx", "generated"])
def test_columns_with_dictionaries_have_the_same_values(open_fixture: StoreOpener, tmp_path: Path, name: str) -> None:
    spec = FleetSpec(format=StoreFormat.QSTORE, seed=2, queues=2, messages=300, damage=1.0, transactions=0.2)
    is_made = name == "generated"
    path = str(tmp_path / make_store(spec, str(tmp_path), 1)["name"]) if is_made else str(open_fixture(name).path)
    columns = table_columns("records")
    for stretch in stretches([Input(path)], None, None):
        disk, _ = stretch.source.disk()
        plain = list(read_stretch(stretch, disk, columns, Selection()))
        coded = list(read_stretch(stretch, disk, columns, Selection(), coded=True))
        assert [each.to_pylist() for each in coded] == [each.to_pylist() for each in plain]
        for batch in coded:
            assert {field.name for field in batch.schema if field.type == CODED_TYPE} == CODED


MEASURED = """
import sys, threading
from qstore.tools.spark import portions
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.stores import AUDIT, INVENTORY, OUTSTANDING, SIZING, Job, write_stores

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) << 10

before, most, over = anonymous(), 0, threading.Event()

def watch():
    global most
    while not over.wait(0.002):
        most = max(most, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
portions.PORTION_BYTES, portions._WAITING = int(sys.argv[3]), 20000
job = Job({table: f"{sys.argv[2]}/{table}" for table in (*AUDIT, *INVENTORY, OUTSTANDING, SIZING)})
(found,) = write_stores(job, 0, [Input(sys.argv[1])])
over.set()
watcher.join()
print(found.totals["records"], most - before)
"""


def test_memory_is_that_of_a_portion(tmp_path: Path) -> None:
    spec = FleetSpec(seed=3, queues=1, messages=110_000, sizes=BodySizes("fixed", 100, 100))
    path = tmp_path / make_store(spec, str(tmp_path), 1)["name"]
    taken, records = [], 0
    for name, size in (("whole", 1 << 40), ("portions", 1 << 20)):
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / name), str(size)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        records, memory = map(int, done.stdout.split())
        assert records > 110_000
        taken.append(memory)
    whole, in_portions = taken  # both with some 70 MiB that do not depend on the records
    assert (whole - in_portions) / records > 300, taken
