"""Outcomes of records and messages: by a plain walk, by recovery and columns, and by Spark; and whole stores."""

from __future__ import annotations

import errno
import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")
pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from qstore.store.journal.recovery import Outcome
from qstore.tools.spark import audit, recovery, stores
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.pipeline import (
    depth,
    directory,
    duplicates,
    gaps,
    lifetimes,
    messages,
    messages_of,
    of_queues,
    open_transactions,
    operations,
    overwritten,
    peak_use,
    prepared_transactions,
    rates,
    waits,
)
from qstore.tools.spark.recovery import PREPARED_LIST
from qstore.tools.spark.request import Request
from qstore.tools.spark.stores import AUDIT, INVENTORY, OUTSTANDING, SIZING, Job, directory_name
from tests.spark import plain_outcomes as plain
from tests.spark.analyses import Fleet, analyzed
from tests.spark.histories import SCHEMA, History, Row
from tests.support.fixtures import StoreOpener
from tests.support.planted_damage import version_2_store
from tests.support.profiles import only_on_its_day

_ARROW = {
    "string": pa.string(), "bigint": pa.int64(), "array<string>": pa.list_(pa.string()),
}  # fmt: skip
_TYPES = pa.schema([(name, _ARROW[kind]) for name, kind in (each.split() for each in SCHEMA.split(", "))])
FILE_SIZE = 512 + 16 * 256
ROOT = "/answers"

Tables = dict[str, set[tuple[Any, ...]]]


def table_of(rows: list[Row]) -> Any:
    """Rows as they come from the batches of a journal."""
    return pa.Table.from_batches(pa.Table.from_pylist(rows, _TYPES).to_batches(max_chunksize=7), _TYPES)


def tuples(table: Any) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in table.to_pylist()}


def by_walk(rows: list[Row]) -> Tables:
    """Table -> its rows without the names of the journal, for one store with one queue."""
    decided = plain.decisions(plain.Records([row for row in rows if row["queue"] == PREPARED_LIST]))
    records = plain.Records([row for row in rows if row["queue"] != PREPARED_LIST])
    found = plain.outcomes(records, {xid: decision for xid, _, decision in decided})
    every = plain.message_rows(plain.messages(records, found))
    fates = zip(records.kinds, records.targets, records.positions, *found, strict=True)
    ids = plain.duplicate_ids([(records, found)])
    twice = {("record id", None, row[0], row[0], row[7]) for row in every if row[7] > 1}
    branches = {decision.branch: xid for xid, _, decision in decided}
    return {
        "operations": {
            each for index, each in enumerate(fates)
            if each[0] in ("enqueue", "dequeue") and index not in records.transient
        },
        "prepared": {(xid, two_phase, *decision) for xid, two_phase, decision in decided},
        "messages": set(every),
        "kept": set(plain.outstanding_rows(every, branches, by_position=False)),
        "depth": set(plain.depth_rows(every)),
        "lifetimes": set(plain.lifetime_rows(every, {0: 5, 1: 7, 3: 20}, FILE_SIZE - 512)),
        "use": {plain.use_row(every, records, found, FILE_SIZE - 512)} if every else set(),
        "duplicates": twice | {("message id", name, min(rids), max(rids), len(rids)) for name, rids in ids.items()},
        "gaps": plain.gaps(row["rid"] for row in rows),
    }  # fmt: skip


def by_columns(rows: list[Row]) -> Tables:
    """The same, by recovery and columns."""
    listed = table_of([row for row in rows if row["queue"] == PREPARED_LIST])
    decided = recovery.decisions(recovery.replayed(listed), listed)
    records = table_of([row for row in rows if row["queue"] != PREPARED_LIST])
    replayed = recovery.replayed(records)
    known = {bytes.fromhex(xid): Outcome(each.outcome) for xid, each in decided.items()}
    fates = recovery.outcomes(records, decided, replayed.resolve(known))
    every = recovery.messages(records, fates, replayed)
    kinds = records["type"].to_pylist()
    shown = zip(kinds, recovery.targets(records).to_pylist(), records["position"].to_pylist(),
                *(column.to_pylist() for column in fates), strict=True)  # fmt: skip
    transient = recovery.has_flag(records, "transient").to_pylist()
    use = audit.use(every, audit.undone_enqueues(records, fates), FILE_SIZE - 512)
    kept_ones = audit.kept_enqueues(records, fates[0])
    return {
        "operations": {
            each for each, ignored in zip(shown, transient, strict=True)
            if each[0] in ("enqueue", "dequeue") and not (ignored and each[0] == "enqueue")
        },
        "prepared": tuples(recovery.prepared_table(decided)),
        "messages": tuples(every),
        "kept": tuples(recovery.kept(every, decided, by_position=False)),
        "depth": tuples(audit.depth(every)),
        "lifetimes": tuples(audit.lifetimes(every, {0: 5, 1: 7, 3: 20}, FILE_SIZE - 512)),
        "use": {(use["reserved"], use["longest"])} if every.num_rows else set(),
        "duplicates": tuples(audit.same_record_ids(kept_ones))
        | tuples(audit.same_message_ids(audit.message_ids(kept_ones))),
        "gaps": tuples(audit.gaps([audit.runs(audit.record_ids(each)) for each in (records, listed)])),
    }  # fmt: skip


def by_spark(spark: Any, rows: list[Row]) -> dict[str, dict[str, set[tuple[Any, ...]]]]:
    """Table -> store -> the same, by the functions of the pipeline."""
    records = spark.createDataFrame(rows, SCHEMA).repartition(3).cache()
    found = operations(records, also=("message_id",)).cache()
    every = messages_of(found).cache()
    queues = spark.createDataFrame(
        sorted({(row["store"], row["journal"], FILE_SIZE) for row in rows}),
        "store string, journal string, file_size int",
    )
    files = spark.createDataFrame(
        [("journal file", row[0], row[1], age, FILE_SIZE, at) for row in queues.collect()
         for age, at in ((0, 5), (1, 7), (3, 20))],
        "kind string, store string, journal string, age int, size bigint, written bigint",
    )  # fmt: skip
    tables = {
        "operations": (found, ("type", "rid", "position", "fate", "time", "branch", "ended")),
        "prepared": (prepared_transactions(records), recovery.PREPARED.names),
        "messages": (every, recovery.MESSAGES.names),
        "depth": (depth(every), audit.DEPTH.names),
        "lifetimes": (lifetimes(messages(records), files), audit.LIFETIMES.names),
        "use": (peak_use(every, queues, found), ("reserved", "longest")),
        "duplicates": (duplicates(found), audit.DUPLICATES.names),
        "gaps": (gaps(records), audit.GAPS.names),
    }
    reported: dict[str, dict[str, set[tuple[Any, ...]]]] = {}
    for name, (table, columns) in tables.items():
        reported[name] = defaultdict(set)
        for row in table.select("store", *columns).collect():
            reported[name][row[0]].add(tuple(row[1:]))
    spark.catalog.clearCache()
    return reported


def history(seed: int) -> list[Row]:
    """A store's rows; some are missing, overwritten or lost."""
    rows = list(History(seed, 90).rows())
    del rows[28::29]
    for index, row in enumerate(rows):
        if row["type"] == "enqueue" and row["queue"] != PREPARED_LIST:
            row["message_id"] = str(index % 23)
            row["size"] = 128 + index * 7 % 5 * 128
            row["flush"], row["timestamp"] = index // 3, 1000 + index
    return rows


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 3000), marks=pytest.mark.soak)])
def test_columns_are_those_of_a_plain_walk(seeds: range) -> None:
    for seed in seeds:
        rows = history(seed)
        expected, found = by_walk(rows), by_columns(rows)
        for name, each in expected.items():
            assert found[name] == each, (seed, name)


def test_outcomes_are_those_of_the_pipeline(spark: Any) -> None:
    histories = [history(seed) for seed in range(40)]
    reported = by_spark(spark, [row for each in histories for row in each])
    for each in histories:
        expected = by_walk(each)
        for name, found in reported.items():
            assert found[each[0]["store"]] == expected[name], (name, each[0]["store"])
    assert all(any(found.values()) for found in reported.values())


def rows_of(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.select(*sorted(table.columns)).collect())


@only_on_its_day(3, 4)
def test_an_analysis_has_the_tables_of_the_pipeline(spark: Any, fleet: Fleet, tmp_path: Path) -> None:
    request = Request((*fleet.paths, fleet.nothing), str(tmp_path / "out"))
    analyzed(spark, request)
    columns = ",".join((*recovery.NEEDED, "flush", "message_id", "timestamp"))
    records = spark.read.format("qstore").option("columns", columns).load(list(fleet.paths))
    queues, files = (spark.read.format("qstore").option("table", each).load(list(fleet.paths))
                     for each in ("queues", "files"))  # fmt: skip
    found = of_queues(operations(records, also=("message_id",)), queues).cache()
    every = messages_of(found).cache()
    lives = lifetimes(every, files).cache()
    tables = {
        "lifetimes": lives, "rates": rates(lives), "waits": waits(lives), "depth": depth(every),
        "duplicates": duplicates(found), "gaps": gaps(records), "overwritten": overwritten(every),
        "transactions": open_transactions(found, prepared_transactions(records)),
    }  # fmt: skip
    for name, table in tables.items():
        written = spark.read.parquet(request.path("audit", name))
        assert dict(written.dtypes) == dict(table.dtypes), name
        assert rows_of(written) == rows_of(table), name
    spark.catalog.clearCache()


# ---- the work of a task ----


def job(directory: Path | str, *, bodies: bool = False) -> Job:
    tables = (*AUDIT, *INVENTORY, OUTSTANDING, SIZING)
    return Job({table: f"{directory}/{table}" for table in tables}, f"{directory}/export", bodies, report=True)


def test_a_full_disk_ends_the_work_with_its_reason(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(open_fixture("legacy-c-localtx").path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stores.pq.ParquetWriter, "write_table", full)
    (found,) = list(stores.write_stores(job(tmp_path), 0, [Input(path)]))
    assert (found.problem, found.is_fatal) == ("the results cannot be written: No space left on device", True)


def test_path_without_a_store_does_not_stop_the_others(open_fixture: StoreOpener, tmp_path: Path) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    (tmp_path / "nothing").mkdir()
    found = list(stores.write_stores(job(tmp_path), 0, [Input(str(tmp_path / "nothing")), Input(path)]))
    assert found[1].problem is None
    assert (found[0].is_fatal, found[0].totals["stores"], found[0].totals["damage"]) == (False, 0, 1)
    assert found[0].problem is not None
    assert f"{tmp_path}/nothing" in found[0].problem
    rows = pq.read_table(tmp_path / "files").to_pylist()
    assert {row["store"] for row in rows} == {path, str(tmp_path / "nothing")}
    assert found[1].totals["records"] == 53
    assert gc.isenabled()


def test_a_path_that_is_not_utf_8_is_escaped(open_fixture: StoreOpener, tmp_path: Path) -> None:
    strange = tmp_path / os.fsdecode(b"s\xff<b>")
    strange.symlink_to(open_fixture("legacy-c-localtx").path)
    (found,) = list(stores.write_stores(job(tmp_path / "out"), 0, [Input(str(strange))]))
    assert (found.problem, found.totals["records"], found.totals["damage"]) == (None, 53, 0)
    written = ds.dataset(tmp_path / "out" / "export").to_table()
    assert set(written["store"].to_pylist()) == {found.store} == {f"{tmp_path}/s\\xff<b>"}
    assert all(str(each).startswith(f"{found.store}/") for each in written["file"].to_pylist())


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    if system.exists(ROOT):
        system.rm(ROOT, recursive=True)


@pytest.mark.parametrize("name", ["legacy-d-dtx", "linear-d-dtx", "version-2"])
def test_stores_and_results_at_a_url_have_the_same_tables(
    open_fixture: StoreOpener, tmp_path: Path, memory: Any, name: str
) -> None:
    local = version_2_store(tmp_path / "store").path if name == "version-2" else open_fixture(name).path
    for path in sorted(local.rglob("*")):
        if path.is_file():
            memory.pipe_file(f"{ROOT}/store/{path.relative_to(local)}", path.read_bytes())
    (here,) = list(stores.write_stores(job(tmp_path / "out", bodies=True), 0, [Input(str(local))]))
    there_job = job(f"memory://{ROOT}/out", bodies=True)
    (there,) = list(stores.write_stores(there_job, 0, [Input(f"memory://{ROOT}/store")]))
    assert here.totals == there.totals, there.findings
    assert here.totals["records"] > 0
    for table in (*AUDIT, OUTSTANDING, SIZING, "export"):
        both = [
            ds.dataset(f"{ROOT}/out/{table}", filesystem=memory).to_table(),
            ds.dataset(tmp_path / "out" / table).to_table(),
        ]
        shown = [
            sorted(repr(row).replace(f"memory://{ROOT}/store", str(local)) for row in each.to_pylist()) for each in both
        ]
        if table != "files":
            assert shown[0] == shown[1], table
    bodies = ds.dataset(tmp_path / "out" / OUTSTANDING).to_table()["body"]
    assert bodies.null_count == 0


def test_directories_of_an_export_have_the_same_names(spark: Any) -> None:
    names = ["orders", "2024-01-01", "a/b", "1", ".", "x" * 255, "ä=%", "-.-a", "/srv/fleet/store-7/qpidd", None]
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    found = rows.select(directory("name").alias("name"), sql.lit(1)).collect()
    assert [row.name for row in found] == [directory_name(name) for name in names]
