"""The steps of an analysis.

    stores -> work: records    the columns that the pipeline needs, and ids: the only pass over the journals, except
                               for bodies and for the export
           -> work: messages   a row for each message
           -> outstanding, audit/…, sizing, export; queues, files; queues.csv, summary.json

Each arrow ends in Parquet files, so that nothing is computed twice and memory is limited to that of one partition.
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
    whole_records,
)
from qstore.tools.spark.pipeline.depth import depth
from qstore.tools.spark.pipeline.effects import operations
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
from qstore.tools.spark.pipeline.sizing import sizing

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
    if "outstanding" in request.steps:
        stage("outstanding")
        _outstanding(spark, request, results, tables)
    if "audit" in request.steps:
        _audit(results, tables, summary, stage)
    if "sizing" in request.steps:
        stage("sizing")
        rows = sizing(tables.messages, tables.queues, results.made.get("audit/depth"), records=tables.records)
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
    if "export" in request.steps:
        stage("export")
        whole = whole_records(request.inputs, request.split_bytes, bodies=request.bodies)
        export(results.loaded(spark, whole, WORK, "whole"), request.path("export"))
    if request.report:
        stage("report")
        summary.report = report_content(tables, results.made, summary.fields(), datetime.now(UTC))
    return summary


def _tables(spark: SparkSession, request: Request, results: Results, stage: Stage) -> Tables:
    records = results.read(spark, narrow_records(request.inputs, request.split_bytes), WORK, "records")
    queues = results.read(spark, queues_of(request.inputs), "queues", small=True)
    files = results.read(spark, Load(request.inputs, "files"), "files", small=True)
    stage("computing message states")
    prepared = results.stored(prepared_transactions(records), WORK, "prepared", small=True)
    found = of_queues(operations(records, also=("message_id",)), queues)
    return Tables(records, queues, files, prepared, found, results.stored(messages_of(found), WORK, "messages"))


def _outstanding(spark: SparkSession, request: Request, results: Results, tables: Tables) -> None:
    there = with_columns(recovered_messages(tables.messages, tables.prepared), tables.records, DETAILS)
    if request.bodies:
        columns = ("store", "journal", "position", "type", "body")
        bodies = Load(request.inputs, columns=columns, split_bytes=request.split_bytes)
        there = with_columns(there, results.loaded(spark, bodies, WORK, "bodies"), ("body",))
    results.stored(there, "outstanding")


def _audit(results: Results, tables: Tables, summary: Summary, stage: Stage) -> None:
    stage("audit: lifetimes")
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
        "damage": lambda: damage(tables.records, tables.files),
    }
    for name, make in small.items():
        stage(f"audit: {name}")
        summary.add_audit(name, results.stored(make(), "audit", name, small=True))


def _enqueued(found: DataFrame) -> DataFrame:
    """The effective enqueues, each once."""
    first = found.where(kind_is("enqueue") & ~is_undone()).where("not moved and message_id is not null")
    return first.select("queue", "message_id")
