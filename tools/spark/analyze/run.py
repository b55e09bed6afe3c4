"""The steps of an analysis.

    stores -> work: records    the columns that the pipeline needs, ids, and the outcome of each record
           -> work: messages   a row for each message
           -> outstanding, audit/…, sizing, export; queues, files; queues.csv, summary.json

Each arrow ends in Parquet files, so that nothing is computed twice and memory is limited. What has a row for each
record or message is written store by store, in one pass over the journals (`stores`). If a journal is too large for
that, or stores or results are not local, the pipeline's functions make the same tables from records that Spark reads
in partitions, in one pass for the records and one for the export.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from qstore.tools.spark.analyze.report import report_content
from qstore.tools.spark.analyze.request import WORK, Request
from qstore.tools.spark.analyze.summary import Summary
from qstore.tools.spark.analyze.tables import (
    DETAILS,
    Load,
    Results,
    Tables,
    narrow_records,
    publisher_log,
    queues_of,
    record_totals,
    whole_records,
)
from qstore.tools.spark.pipeline.depth import depth
from qstore.tools.spark.pipeline.effects import known_operations, operations
from qstore.tools.spark.pipeline.export import export
from qstore.tools.spark.pipeline.findings import (
    damage,
    dangling,
    duplicates,
    gaps,
    is_undone,
    open_transactions,
    overwritten,
)
from qstore.tools.spark.pipeline.lifetimes import lifetimes, rates, waits
from qstore.tools.spark.pipeline.messages import messages_of
from qstore.tools.spark.pipeline.outstanding import of_queues, recovered_messages, with_columns
from qstore.tools.spark.pipeline.prepared import kind_is, prepared_transactions
from qstore.tools.spark.pipeline.reconcile import reconcile
from qstore.tools.spark.pipeline.sizing import peak_use, sizing

Stage = Callable[[str], None]


def analyze(spark: SparkSession, request: Request, stage: Stage) -> Summary:
    """Run the requested steps.

    Args:
        spark: the session.
        request: the request; its directory exists and is empty.
        stage: called with the name of the next step.

    Raises:
        UnusableRequestError: a publisher's log is unusable, or no input is a store.
        PySparkException: Spark, or reading a store, failed.
    """
    log = None
    if request.publisher_log is not None:
        log = publisher_log(spark, request.publisher_log, request.publisher_id)
    stage("reading journals")
    results = Results(request, single=request.is_small)
    tables = _tables(spark, request, results, stage)
    summary = Summary()
    summary.add_tables(tables)
    if "outstanding" in request.steps and (request.bodies or not request.is_by_store):
        stage("outstanding")
        _outstanding(spark, request, results, tables)
    if "audit" in request.steps:
        _audit(results, tables, summary, stage)
    if "sizing" in request.steps:
        stage("sizing")
        use = tables.use
        if use is None:
            use = peak_use(tables.messages, tables.queues, tables.found)
        series = results.made.get("audit/depth")
        last = tables.totals.selectExpr("store", "journal", "'record' as type", "end as position", "0 as size")
        rows = sizing(tables.messages, tables.queues, series, records=last, use=use)
        summary.add_sizing(results.stored(rows, "sizing", small=True))
    if log is not None:
        stage("reconciling with the publisher's log")
        ids = _enqueued(tables.found).select("message_id")
        verdicts = reconcile(log, ids, on="message_id")
        summary.add_verdicts("publisher", results.stored(verdicts, "audit", "publisher", small=True))
    if request.compare:
        stage("reconciling with the other store")
        load = narrow_records(request.compare, request.split_bytes)
        other = _enqueued(operations(results.loaded(spark, load, WORK, "compared"), also=("message_id",)))
        verdicts = reconcile(_enqueued(tables.found), other, on=("queue", "message_id"))
        summary.add_verdicts("compare", results.stored(verdicts, "audit", "compare", small=True))
    if "export" in request.steps and not request.is_by_store:
        stage("export")
        whole = whole_records(request.inputs, request.split_bytes, bodies=request.bodies)
        export(results.loaded(spark, whole, WORK, "whole"), request.path("export"))
    if request.report:
        stage("report")
        summary.report = report_content(tables, results.made, summary.fields(), datetime.now(UTC))
    return summary


def _tables(spark: SparkSession, request: Request, results: Results, stage: Stage) -> Tables:
    if request.is_by_store:
        return _tables_by_store(spark, results)
    records = results.read(spark, narrow_records(request.inputs, request.split_bytes), WORK, "records")
    queues = results.read(spark, queues_of(request.inputs), "queues", small=True)
    files = results.read(spark, Load(request.inputs, "files"), "files", small=True)
    stage("computing message states")
    prepared = results.stored(prepared_transactions(records), WORK, "prepared", small=True)
    found = of_queues(operations(records, also=("message_id",)), queues)
    messages = results.stored(messages_of(found), WORK, "messages")
    return Tables(records, queues, files, prepared, found, messages, *_summed(results, records, files))


def _summed(results: Results, records: DataFrame, files: DataFrame) -> tuple[DataFrame, DataFrame]:
    """What several steps need of all records: totals, and damage."""
    totals = results.stored(record_totals(records), WORK, "totals", small=True)
    return totals, results.stored(damage(records, files), WORK, "damage", small=True)


def _tables_by_store(spark: SparkSession, results: Results) -> Tables:
    results.write_stores(spark)
    records, queues = results.opened(spark, WORK, "records"), results.opened(spark, "queues")
    found = of_queues(known_operations(records, also=("message_id",)), queues)
    prepared, messages = results.opened(spark, WORK, "prepared"), results.opened(spark, WORK, "messages")
    files, use = results.opened(spark, "files"), results.opened(spark, WORK, "use")
    return Tables(records, queues, files, prepared, found, messages, *_summed(results, records, files), use)


def _outstanding(spark: SparkSession, request: Request, results: Results, tables: Tables) -> None:
    there = with_columns(recovered_messages(tables.messages, tables.prepared), tables.records, DETAILS)
    if request.bodies:
        columns = ("store", "journal", "position", "type", "body")
        bodies = Load(request.inputs, columns=columns, split_bytes=request.split_bytes)
        there = with_columns(there, results.loaded(spark, bodies, WORK, "bodies"), ("body",))
    results.stored(there, "outstanding")


def _audit(results: Results, tables: Tables, summary: Summary, stage: Stage) -> None:
    stage("audit: lifetimes")
    lives = results.made.get("audit/lifetimes")
    if lives is None:
        lives = results.stored(lifetimes(tables.messages, tables.files), "audit", "lifetimes")
    small: dict[str, Callable[[], DataFrame]] = {
        "rates": lambda: rates(lives),
        "waits": lambda: waits(lives),
        "depth": lambda: depth(tables.messages),
        "duplicates": lambda: duplicates(tables.found),
        "gaps": lambda: gaps(tables.records),
        "dangling": lambda: dangling(tables.messages),
        "overwritten": lambda: overwritten(tables.messages),
        "transactions": lambda: open_transactions(tables.found, tables.prepared),
        "damage": lambda: tables.damage,
    }
    for name, make in small.items():
        stage(f"audit: {name}")
        found = results.made.get(f"audit/{name}")
        summary.add_audit(name, results.stored(make(), "audit", name, small=True) if found is None else found)


def _enqueued(found: DataFrame) -> DataFrame:
    """The effective enqueues, each once."""
    first = found.where(kind_is("enqueue") & ~is_undone()).where("not moved and message_id is not null")
    return first.select("queue", "message_id")
