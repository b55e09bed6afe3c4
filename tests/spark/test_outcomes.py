"""Records that are read by store: their outcomes, and the tables of an analysis, are those of the pipeline."""

from __future__ import annotations

import errno
import gc
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow not installed: pip install 'qstore[spark]'")
pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from qstore.tools.spark import outcomes
from qstore.tools.spark.analyze import scale, stores
from qstore.tools.spark.analyze.request import Request
from qstore.tools.spark.analyze.stores import AUDIT_TABLES, INVENTORY, WORK_TABLES, Job
from qstore.tools.spark.analyze.tables import DETAILS, narrow_records
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.outcomes import Records
from qstore.tools.spark.pipeline.depth import depth
from qstore.tools.spark.pipeline.effects import operations
from qstore.tools.spark.pipeline.export import directory, directory_name
from qstore.tools.spark.pipeline.findings import duplicates, gaps
from qstore.tools.spark.pipeline.lifetimes import lifetimes
from qstore.tools.spark.pipeline.messages import messages_of
from qstore.tools.spark.pipeline.prepared import PREPARED_LIST, prepared_transactions
from qstore.tools.spark.pipeline.sizing import peak_use
from tests.spark.analyses import Fleet, analyzed
from tests.spark.histories import SCHEMA, History, Row
from tests.support.fixtures import StoreOpener
from tests.support.profiles import only_on_its_day

_ARROW = {
    "string": pa.string(), "bigint": pa.int64(), "array<string>": pa.list_(pa.string()),
}  # fmt: skip
_TYPES = pa.schema([(name, _ARROW[kind]) for name, kind in (each.split() for each in SCHEMA.split(", "))])
NEEDED_COLUMNS = narrow_records(()).columns or ()
FILE_SIZE = 512 + 16 * 256


def records_of(rows: list[Row]) -> Records:
    return Records(pa.Table.from_pylist(rows, _TYPES).to_batches(max_chunksize=7))


def by_store(rows: list[Row]) -> dict[str, set[tuple[Any, ...]]]:
    """Table -> its rows without the names of the journal, for one store with one queue."""
    decided = outcomes.decisions(records_of([row for row in rows if row["queue"] == PREPARED_LIST]))
    records = records_of([row for row in rows if row["queue"] != PREPARED_LIST])
    found = outcomes.outcomes(records, {xid: decision for xid, _, decision in decided})
    messages = outcomes.message_rows(outcomes.messages(records, found))
    fates = zip(records.kinds, records.targets, records.positions, *found, strict=True)
    ids = outcomes.duplicate_ids([(records, found)])
    missing = outcomes.gaps([pa.array([row["rid"] for row in rows], pa.int64())])
    twice = {("record id", None, row[0], row[0], row[7]) for row in messages if row[7] > 1}
    return {
        "operations": {
            each for index, each in enumerate(fates)
            if each[0] in ("enqueue", "dequeue") and index not in records.transient
        },
        "prepared": {(xid, two_phase, *decision) for xid, two_phase, decision in decided},
        "messages": set(messages),
        "depth": set(outcomes.depth_rows(messages)),
        "lifetimes": {row[:10] for row in outcomes.lifetime_rows(messages, {}, 0)},
        "use": {outcomes.use_row(messages, records, found, FILE_SIZE - 512)} if messages else set(),
        "duplicates": twice | {("message id", name, min(rids), max(rids), len(rids)) for name, rids in ids.items()},
        "gaps": set(zip(*(column.to_pylist() for column in missing), strict=True)),
    }  # fmt: skip


def by_spark(spark: Any, rows: list[Row]) -> dict[str, dict[str, set[tuple[Any, ...]]]]:
    """Table -> store -> the same, by the functions of the pipeline."""
    records = spark.createDataFrame(rows, SCHEMA).repartition(3).cache()
    found = operations(records, also=("message_id",)).cache()
    messages = messages_of(found).cache()
    queues = spark.createDataFrame(
        sorted({(row["store"], row["journal"], FILE_SIZE) for row in rows}),
        "store string, journal string, file_size int",
    )
    tables = {
        "operations": (found, ("type", "rid", "position", "fate", "time", "branch", "ended")),
        "prepared": (prepared_transactions(records), outcomes.PREPARED.names[1:]),
        "messages": (messages, outcomes.MESSAGES.names[4:]),
        "depth": (depth(messages), outcomes.DEPTH.names[4:]),
        "lifetimes": (lifetimes(messages), outcomes.LIFETIMES.names[4:14]),
        "use": (peak_use(messages, queues, found), outcomes.USE.names[4:]),
        "duplicates": (duplicates(found), outcomes.DUPLICATES.names[2:]),
        "gaps": (gaps(records), outcomes.GAPS.names[1:]),
    }
    told: dict[str, dict[str, set[tuple[Any, ...]]]] = {}
    for name, (table, columns) in tables.items():
        told[name] = defaultdict(set)
        for row in table.select("store", *columns).collect():
            told[name][row[0]].add(tuple(row[1:]))
    spark.catalog.clearCache()
    return told


def test_outcomes_are_those_of_the_pipeline(spark: Any) -> None:
    histories = [History(seed, 90) for seed in range(40)]
    rows = [list(history.rows()) for history in histories]
    for each in rows:
        del each[28::29]  # overwritten, or lost
        for index, row in enumerate(each):
            if row["type"] == "enqueue" and row["queue"] != PREPARED_LIST:
                row["message_id"] = str(index % 23)
                row["size"] = 128 + index * 7 % 5 * 128
                row["flush"], row["timestamp"] = index // 3, 1000 + index
    told = by_spark(spark, [row for each in rows for row in each])
    for history, each in zip(histories, rows, strict=True):
        for name, expected in by_store(each).items():
            assert told[name][history.store] == expected, (name, history.store)
    assert all(any(stores.values()) for stores in told.values())


@only_on_its_day(3, 4)
def test_an_analysis_by_store_has_the_tables_of_the_pipeline(
    spark: Any, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = []
    for name in ("by-store", "by-spark"):
        if name == "by-spark":
            monkeypatch.setattr(scale, "MAX_JOURNAL", 0)
        inputs = (*fleet.paths, fleet.nothing)
        request = Request(inputs, str(tmp_path / name))
        assert request.is_by_store == (name == "by-store")
        both.append((request, analyzed(spark, request)))
    assert both[0][1].fields() == both[1][1].fields()
    audit = [f"audit/{name}" for name in os.listdir(both[0][0].path("audit"))]
    for name in ("queues", "files", "sizing", "outstanding", "export", *audit):
        tables = [spark.read.parquet(request.path(name)) for request, _ in both]
        assert set(tables[0].columns) == set(tables[1].columns), name
        rows = [sorted(repr(row) for row in each.select(sorted(each.columns)).collect()) for each in tables]
        assert rows[0] == rows[1], name


def job(directory: Path) -> Job:
    tables = (*WORK_TABLES, *AUDIT_TABLES, *INVENTORY)
    return Job(
        {table: str(directory / table) for table in tables}, NEEDED_COLUMNS, DETAILS, str(directory / "export"), False
    )


def test_a_full_disk_ends_the_work_with_its_reason(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(open_fixture("legacy-c-localtx").path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stores.pq.ParquetWriter, "write_table", full)
    found = list(stores.write_stores(job(tmp_path), 0, [Input(path), Input(path)]))
    assert found == [stores.Unusable("the results cannot be written: No space left on device", is_fatal=True)]


def test_what_is_no_store_leaves_the_others(open_fixture: StoreOpener, tmp_path: Path) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    (tmp_path / "nothing").mkdir()
    found = list(stores.write_stores(job(tmp_path), 0, [Input(str(tmp_path / "nothing")), Input(path)]))
    assert found[1] is None
    assert found[0] is not None
    assert not found[0].is_fatal
    assert f"{tmp_path}/nothing" in found[0].reason
    rows = pq.read_table(tmp_path / "files").to_pylist()
    assert {row["store"] for row in rows} == {path, str(tmp_path / "nothing")}
    assert pq.read_table(tmp_path / "records").num_rows == 53
    assert gc.isenabled()


def test_large_journals_are_left_to_spark(open_fixture: StoreOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    assert scale.has_small_journals([path])
    assert not scale.has_small_journals(["s3://fleet/store", path])
    monkeypatch.setattr(scale, "MAX_JOURNAL", 1 << 16)
    assert not scale.has_small_journals([path])


def test_directories_of_an_export_have_the_same_names(spark: Any) -> None:
    names = ["orders", "2024-01-01", "a/b", "1", ".", "x" * 255, "ä=%", "-.-a", "/srv/fleet/store-7/qpidd", None]
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    found = rows.select(directory("name").alias("name"), sql.lit(1)).collect()
    assert [row.name for row in found] == [directory_name(name) for name in names]
