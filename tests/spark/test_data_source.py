"""The data source in Spark itself."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark not installed: pip install 'qstore[spark]'")

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import IntegerType, StructField, StructType

from qstore.store.disk import OsDisk
from qstore.store.inspect.layout import UnusableInputError
from qstore.tools.spark.columns import OptionError
from qstore.tools.spark.data_source import QstoreDataSource
from tests.support.fixtures import StoreOpener
from tests.support.profiles import only_on_its_day


def shown(row: dict[str, Any]) -> str:
    """A row as text; the entries of a map have no order in Spark, and bytes are of either type."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        plain[name] = sorted(value.items()) if isinstance(value, dict) else value
        if isinstance(value, bytearray):
            plain[name] = bytes(value)
    return repr(plain)


def rows(frame: Any) -> list[str]:
    return sorted(shown(row.asDict(recursive=True)) for row in frame.collect())


def expected(found: list[dict[str, Any]]) -> list[str]:
    maps = ("headers", "header_types", "arguments")
    return sorted(
        shown({name: dict(value) if name in maps and value is not None else value for name, value in row.items()})
        for row in found
    )


def test_spark_has_the_rows_that_are_read(spark: Any, open_fixture: StoreOpener) -> None:
    from tests.spark.reading import records, table

    path = str(open_fixture("legacy-d-dtx").path)
    reader = spark.read.format("qstore").option("split_bytes", "65536")
    assert rows(reader.load(path)) == expected(records(path))
    for name in ("files", "queues", "transactions"):
        assert rows(spark.read.format("qstore").option("table", name).load(path)) == expected(table(path, name))


def test_filters_are_pushed_down_and_change_nothing(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-e-wrap-clean").path)
    reader = spark.read.format("qstore").option("columns", "queue,type,rid,xid")
    every = [row.asDict() for row in reader.load(path).collect()]
    reader = reader.option("pushdown", "true")
    for condition, keeps in (
        (
            "type = 'dequeue' and rid between 700 and 900",
            lambda row: row["type"] == "dequeue" and 700 <= row["rid"] <= 900,
        ),
        ("queue = 'nothing'", lambda row: False),
        ("rid in (10, 11, 12) or type = 'commit'", lambda row: row["rid"] in (10, 11, 12) or row["type"] == "commit"),
        ("xid is null and rid > 800", lambda row: row["xid"] is None and row["rid"] > 800),
    ):
        frame = reader.load(path).where(condition)  # a load for each query
        assert rows(frame) == sorted(repr(row) for row in every if keeps(row))
        assert spark_compares(frame) == (" or " in condition), condition


def spark_compares(frame: Any) -> bool:
    """Whether Spark itself filters by values."""
    return re.search(" Filter .*[=<>]", frame._jdf.queryExecution().executedPlan().toString()) is not None


@only_on_its_day(3, 4)
def test_one_loaded_table_can_be_used_with_many_filters(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    frame = spark.read.format("qstore").option("columns", "type,rid").load(path)
    every = [row.type for row in frame.collect()]
    dequeues, commits = frame.where("type = 'dequeue'"), frame.where("type = 'commit'")
    assert 0 < every.count("dequeue") < len(every)
    assert every.count("commit")
    assert spark_compares(dequeues)
    for _ in range(2):
        assert dequeues.count() == every.count("dequeue")
        assert frame.count() == len(every)
        assert commits.count() == every.count("commit")
    assert dequeues.union(commits).union(frame).count() == (every.count("dequeue") + every.count("commit") + len(every))
    assert dequeues.crossJoin(commits).count() == every.count("dequeue") * every.count("commit")


def test_with_push_down_each_query_needs_a_load_of_its_own(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    reader = spark.read.format("qstore").option("columns", "type,rid")
    every = [row.type for row in reader.load(path).collect()]
    reader = reader.option("pushdown", "true")
    frame = reader.load(path)
    dequeues = every.count("dequeue")
    assert frame.where("type = 'dequeue'").count() == dequeues
    # The misuse that is warned of. If this fails Spark has mended it, and push-down can be the default.
    assert frame.count() == dequeues < len(every)
    assert reader.load(path).count() == len(every)
    assert reader.load(path).where("type = 'commit'").count() == every.count("commit")


def test_options_select_rows_in_every_query(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-d-dtx").path)
    reader = spark.read.format("qstore").option("columns", "queue,type,rid,xid")
    every = [row.asDict() for row in reader.load(path).collect()]
    xid = next(row["xid"] for row in every if row["xid"])
    queues = sorted({row["queue"] for row in every})[:2]
    for name, text, keeps in (
        ("queue", ",".join(queues), lambda row: row["queue"] in queues),
        ("type", "commit, abort", lambda row: row["type"] in ("commit", "abort")),
        ("rids", "3,10-20", lambda row: row["rid"] == 3 or 10 <= row["rid"] <= 20),
        ("xid", xid, lambda row: row["xid"] == xid),
    ):
        frame = spark.read.format("qstore").option("columns", "queue,type,rid,xid").option(name, text).load(path)
        kept = [row for row in every if keeps(row)]
        assert 0 < len(kept) < len(every)
        enqueues = [row for row in kept if row["type"] == "enqueue"]
        assert rows(frame.where("type = 'enqueue'")) == sorted(map(repr, enqueues))
        assert rows(frame) == sorted(map(repr, kept))


def test_lists_globs_and_urls_name_stores(spark: Any, open_fixture: StoreOpener, tmp_path: Path) -> None:
    first, second = (open_fixture(name).path for name in ("legacy-c-localtx", "linear-c-localtx"))
    (tmp_path / "first").symlink_to(first)
    (tmp_path / "second").symlink_to(second)
    (tmp_path / "third").mkdir()
    reader = spark.read.format("qstore").option("columns", "store,format,rid")
    listed = reader.load([str(tmp_path / "first"), str(tmp_path / "second")])
    assert rows(reader.load(str(tmp_path / "*"))) == rows(listed)
    counts = {row["format"]: row["count"] for row in listed.groupBy("format").count().collect()}
    assert counts == {"legacystore": 53, "linearstore": 53}
    assert reader.load(f"file://{first}").count() == 53
    unusable = spark.read.format("qstore").option("table", "files").load(str(tmp_path / "*")).where("kind = 'unusable'")
    assert [row["file"] for row in unusable.collect()] == [str(tmp_path / "third")]


def test_invalid_options_are_refused_with_the_reason(spark: Any, tmp_path: Path) -> None:
    for options, what in (
        ({"table": "nothing"}, "no table"),
        ({"columns": "nothing"}, "no column"),
        ({}, "is a store"),
    ):
        with pytest.raises(Exception, match=what):
            spark.read.format("qstore").options(**options).load(str(tmp_path)).count()


def test_without_push_down_the_same_rows_come(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        for pushdown in ("false", "true"):
            reader = spark.read.format("qstore").option("columns", "type,rid").option("pushdown", pushdown)
            frame = reader.load(path)
            assert frame.where("type = 'commit'").count() == 5
            assert frame.count() == 53
    finally:
        spark.conf.set(name, "true")


def test_a_misspelt_option_is_refused_with_the_one_that_is_meant(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    for name, meant in (("colums", "columns"), ("querue", "queue"), ("split_byte", "split_bytes")):
        with pytest.raises(Exception, match=f'there is no option "{name}"; did you mean "{meant}"'):
            spark.read.format("qstore").option(name, "queue").load(path).count()
    with pytest.raises(Exception, match="the options are path, paths, table"):
        spark.read.format("qstore").option("xyz", "1").load(path).count()


@pytest.mark.parametrize("table", ["records", "queues"])
def test_a_path_that_does_not_exist_is_an_error_without_a_traceback(spark: Any, tmp_path: Path, table: str) -> None:
    frame = spark.read.format("qstore").option("table", table).load(str(tmp_path / "nowhere"))
    with pytest.raises(AnalysisException) as raised:
        frame.count()
    assert f"no input is a store: {tmp_path}/nowhere: no such" in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_table_of_the_catalogue_can_be_read(spark: Any, open_fixture: StoreOpener, tmp_path: Path) -> None:
    path = str(open_fixture("legacy-d-dtx").path)
    names = ("all_records", "all_queues", "some_records")
    (tmp_path / "a b").symlink_to(path)
    try:
        spark.sql(f"CREATE TABLE all_records USING qstore OPTIONS (path '{path}')")
        spark.sql(f"CREATE TABLE all_queues USING qstore OPTIONS (table 'queues') LOCATION '{tmp_path}/a b'")
        spark.sql(f"CREATE TABLE some_records USING qstore OPTIONS (path '{path}', columns 'type,rid', type 'enqueue')")
        every = spark.read.format("qstore").load(path)
        enqueues = every.where("type = 'enqueue'").count()
        assert spark.table("all_records").count() == every.count()
        assert spark.table("all_records").columns == every.columns
        assert spark.sql("SELECT * FROM all_records WHERE type = 'enqueue'").count() == enqueues
        assert spark.sql("SELECT * FROM all_records WITH (type = 'enqueue')").count() == enqueues
        assert spark.table("all_records").count() == every.count()
        assert {row.store for row in spark.table("all_queues").collect()} == {f"{tmp_path}/a b"}
        assert spark.table("some_records").columns == ["type", "rid"]
        assert spark.table("some_records").count() == enqueues
        with pytest.raises(AnalysisException, match='did you mean "columns"'):
            spark.sql(f"CREATE TABLE no_records USING qstore OPTIONS (path '{path}', colums 'rid')")
    finally:
        for name in names:
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_pushed_filters_are_in_the_plan(
    spark: Any, open_fixture: StoreOpener, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    spark.read.format("qstore").option("pushdown", "true").load(path).where("queue = 'a'").explain("formatted")
    assert "PushedFilters: [EqualTo(queue,a)]" in capsys.readouterr().out


def test_options_with_secrets_are_not_in_the_schema(spark: Any, open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    frame = spark.read.format("qstore").option("storage_options", '{"secret": "s3cr3t"}').load(path)
    assert path in frame.schema.json()
    assert "s3cr3t" not in frame.schema.json()


# ---- options ----


def stages(**options: str) -> int:
    """The rows of a table, read without Spark. Raises OptionError and UnusableInputError."""
    schema = QstoreDataSource(options).schema()
    reader = QstoreDataSource(options).reader(schema)
    return sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "no input: name a path"),
        ({"path": ""}, "a path is empty"),
        ({"paths": "/a,/b"}, "option paths: must be a JSON list of paths, not '/a,/b'"),
        ({"paths": "{}"}, "option paths: must be a JSON list"),
        ({"paths": '["/a", ["/b"]]'}, "option paths: must be a JSON list"),
        ({"path": "/a", "storage_options": "[1]"}, "option storage_options: must be a JSON object"),
        ({"path": "/a", "split_bytes": "1MiB"}, "option split_bytes: must be a number of bytes above 0, not '1MiB'"),
        ({"path": "/a", "body_limit": "-1"}, "option body_limit: must be a number"),
        ({"path": "/a", "fillers": "yes"}, "option fillers: must be true or false, not 'yes'"),
        ({"path": "/a", "pushdown": "1"}, "option pushdown: must be true or false"),
        ({"path": "/a", "queue": " , "}, "option queue: must be one or more values"),
        ({"path": "/a", "type": "enqueues"}, 'there is no type "enqueues"'),
        ({"path": "/a", "xid": "0x1f"}, "option xid: must be transaction ids in hex, not '0x1f'"),
        ({"path": "/a", "rids": "9-1"}, "option rids: must be record ids or ranges"),
        ({"path": "/a", "columns": "rid,rid"}, "names no column, or one of them twice"),
        ({"path": "/a", "table": "queues", "type": "enqueue"}, "option type: the table queues does not have it"),
        ({"path": "/a", "table": "exchanges", "queue": "a"}, "option queue: the table exchanges does not have it"),
    ],
)
def test_a_wrong_option_is_refused_before_a_table_is_created(options: dict[str, str], what: str) -> None:
    with pytest.raises(OptionError, match=re.escape(what)):
        QstoreDataSource(options).schema()


def test_a_table_with_columns_of_its_own_is_refused_with_the_reason() -> None:
    """CREATE TABLE t (x INT) USING qstore: Spark asks no data source then, and the options are not kept."""
    with pytest.raises(OptionError, match="select columns with the option columns"):
        QstoreDataSource({}).reader(StructType([StructField("x", IntegerType())]))


@pytest.mark.parametrize("table", ["records", "queues", "transactions"])
def test_a_folder_without_a_store_is_an_error_in_every_table_but_files(tmp_path: Path, table: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    paths = json.dumps([str(tmp_path / name) for name in ("empty", "file", "nowhere")])
    with pytest.raises(UnusableInputError, match=r"no input is a store: .*empty: the directory is empty \(and 2 more"):
        stages(paths=paths, table=table)
    assert stages(paths=paths, table="files") == 3


def test_a_folder_that_cannot_be_read_is_an_error_with_its_reason(
    open_fixture: StoreOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(open_fixture("legacy-c-localtx").path)

    def denied(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(OsDisk, "names", denied)
    for table in ("records", "queues"):
        with pytest.raises(UnusableInputError, match=f"no input is a store: {path}: Permission denied"):
            stages(path=path, table=table)


def test_the_option_queue_selects_in_every_table_with_that_column(open_fixture: StoreOpener) -> None:
    path = str(open_fixture("legacy-c-localtx").path)
    assert stages(path=path, table="queues") == 2
    assert stages(path=path, table="queues", queue="c.q1") == 1
    assert 0 < stages(path=path, table="files", queue="c.q1") < stages(path=path, table="files")


def test_filters_are_pushed_by_default_where_spark_keeps_them_with_their_scan(
    open_fixture: StoreOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = QstoreDataSource({"path": str(open_fixture("legacy-c-localtx").path)})
    off = QstoreDataSource({**source.options, "pushdown": "false"})
    for is_safe in (False, True):
        if is_safe:
            monkeypatch.setattr(DataSourceReader, "pushLimit", lambda *_: False, raising=False)
        else:
            monkeypatch.delattr(DataSourceReader, "pushLimit", raising=False)
        pushed = type(source.reader(source.schema())).pushFilters is not DataSourceReader.pushFilters
        assert pushed == is_safe
        assert type(off.reader(off.schema())).pushFilters is DataSourceReader.pushFilters
