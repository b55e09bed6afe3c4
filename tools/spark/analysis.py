"""The steps of an analysis, and its totals.

    stores -> outstanding, audit/..., sizing, export; queues, files       one pass over each journal, by Python workers
           -> work: enqueued -> audit/publisher, audit/compare            message ids, compared by Spark
           -> summary.json, queues.csv, report.html

Everything that has a row for each record, message, queue or finding is written by the tasks that read the stores
(`stores`); what they hand back is summed up here. On one machine they are processes of ours (`processes`), and small
data are read in this one: Spark compares ids, and distributes stores in a cluster.

Names and definitions of the totals are those of `tools.metrics`; the report uses the same totals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.workers import WorkerKilledError, in_processes
from qstore.tools.report.content import MAX_EXAMPLES, FindingKind, ReportContent
from qstore.tools.spark.columns import OptionError
from qstore.tools.spark.inputs import Input, named_inputs
from qstore.tools.spark.report_content import report_content
from qstore.tools.spark.request import WORK, Request, UnusableRequestError, size_of
from qstore.tools.spark.stores import (
    AUDIT,
    ENQUEUED,
    INVENTORY,
    OUTSTANDING,
    SIZING,
    Finding,
    Found,
    Job,
    write_groups,
    write_stores,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fields = dict[str, Any]
Stage = Callable[[str], None]
_TASKS: Final = 4  # for each processor
_KILLED: Final = "a process that reads stores was killed, perhaps for lack of memory: use fewer (--master local[1])"
#: Totals of the step audit.
_OF_AUDIT: Final = ("duplicates", "gaps", "dangling_dequeues", "overwritten_dequeues", "transactions")
#: Those of every analysis.
_OF_INPUT: Final = (
    "stores", "queues", "files", "journal_bytes", "records", "record_bytes", "outstanding", "in_doubt", "live_bytes",
    "transactions_in_doubt", "damage", "checksum_failures",
)  # fmt: skip
_OF_SIZING: Final = ("near_threshold", "peak_near_threshold", "too_small")
_QUEUE_COLUMNS: Final = (
    "store", "format", "queue", "outstanding", "in_doubt", "depth", "peak_depth", "recorded", "mean_size", "live_bytes",
    "files", "pages", "capacity", "live_share", "limit", "used", "fill", "peak_fill", "near_threshold",
    "peak_near_threshold", "num_jfiles", "jfile_size_pgs", "pool_files", "large_enough", "problem",
)  # fmt: skip


class Summary:
    """Totals, collected as the steps end.

    Attributes:
        queue_rows: from the step sizing, a row for each queue: objects with `_QUEUE_COLUMNS`.
        report: the content of the HTML report; None if not requested.
    """

    def __init__(self) -> None:
        self._fields: Fields = {"kind": "analysis"}
        self.queue_rows: list[Fields] = []
        self.report: ReportContent | None = None

    def add_stores(self, found: Iterable[Found], steps: frozenset[str]) -> None:
        """Totals of all stores, and what the steps say of their queues."""
        names = [*_OF_INPUT, *(_OF_AUDIT if "audit" in steps else ()), *(_OF_SIZING if "sizing" in steps else ())]
        self._fields |= dict.fromkeys(names, 0)
        for store in found:
            for name in names:
                self._fields[name] += store.totals.get(name, 0)
            self.queue_rows += [{name: row[name] for name in _QUEUE_COLUMNS} for row in store.sized]
        self.queue_rows.sort(key=lambda row: (row["store"], row["queue"]))

    def add_verdicts(self, name: str, verdicts: Mapping[str, int]) -> None:
        """Totals of reconciled ids: verdict -> their number."""
        from qstore.tools.spark.pipeline import FEWER, MISSING, TWICE

        self._fields[name] = dict(verdicts)
        self._add("missing_messages", sum(verdicts.get(verdict, 0) for verdict in (MISSING, FEWER)))
        self._add("stored_twice", verdicts.get(TWICE, 0))

    def _add(self, name: str, count: int) -> None:
        self._fields[name] = self._fields.get(name, 0) + count

    def fields(self) -> Fields:
        """All fields."""
        return self._fields

    @property
    def has_losses(self) -> bool:
        """Whether anything is damaged or missing."""
        return bool(self._fields.get("damage")) or bool(self._fields.get("missing_messages"))


class Local(NamedTuple):
    """An analysis without Spark.

    Attributes:
        processes: the number of processes that read.
        done: shows progress.
    """

    processes: int
    done: Callable[[int, int], None]


def analyze(engine: SparkSession | Local, request: Request, stage: Stage) -> Summary:
    """Run the requested steps.

    Args:
        engine: the Spark session; or none, for a request that compares nothing.
        request: the request; its directory exists and is empty.
        stage: called with the name of the next step.

    Raises:
        UnusableRequestError: a publisher's log is unusable, or no input is a store, or results cannot be written.
        PySparkException: Spark failed.
    """
    summary = Summary()
    verdicts: list[Finding] = []
    if isinstance(engine, Local):
        assert not request.compares
        stage("reading journals")
        found = _read(engine, request, request.inputs, _job(request))
        summary.add_stores(found, request.steps)
    else:
        found, verdicts = _compared(engine, request, stage, summary)
    if request.report:
        stage("report")
        found.append(Found("", findings={None: verdicts}))
        summary.report = report_content(request, found, summary.fields(), datetime.now(UTC))
    return summary


def _compared(
    spark: SparkSession, request: Request, stage: Stage, summary: Summary
) -> tuple[list[Found], list[Finding]]:
    """Read the stores, and compare their ids; returns what was found in stores and among ids."""
    from qstore.tools.spark.data_source import register
    from qstore.tools.spark.pipeline import reconcile

    log = None
    if request.publisher_log is not None:
        log = publisher_log(register(spark), request.publisher_log, request.publisher_id)
    stage("reading journals")
    found = _read(spark, request, request.inputs, _job(request))
    summary.add_stores(found, request.steps)
    verdicts: list[Finding] = []
    if log is not None:
        stage("reconciling with the publisher's log")
        ids = spark.read.parquet(request.path(WORK, ENQUEUED)).select("message_id")
        verdicts += _verdicts(summary, request, "publisher", reconcile(log, ids, on="message_id"))
    if request.compare:
        stage("reconciling with the other store")
        other = Job({ENQUEUED: request.path(WORK, "compared")}, every_journal=True)
        _read(spark, request, request.compare, other)
        both = [spark.read.parquet(request.path(WORK, table)) for table in (ENQUEUED, "compared")]
        verdicts += _verdicts(summary, request, "compare", reconcile(*both, on=("queue", "message_id")))
    return found, verdicts


def _job(request: Request) -> Job:
    steps = request.steps
    directories = {table: request.path(table) for table in INVENTORY}
    if "outstanding" in steps:
        directories[OUTSTANDING] = request.path(OUTSTANDING)
    if "audit" in steps:
        directories |= {table: request.path("audit", table) for table in AUDIT}
    if "sizing" in steps:
        directories[SIZING] = request.path(SIZING)
    if request.publisher_log is not None or request.compare:
        directories[ENQUEUED] = request.path(WORK, ENQUEUED)
    export = request.path("export") if "export" in steps else None
    return Job(directories, export, request.bodies, request.report)


# ---- stores ----


def _read(engine: SparkSession | Local, request: Request, paths: tuple[str, ...], job: Job) -> list[Found]:
    """Write the tables of some stores.

    Raises:
        UnusableRequestError: no input is a store, or the results cannot be written.
    """
    try:
        inputs = named_inputs({"paths": json.dumps(paths)})
    except OptionError as error:
        raise UnusableRequestError(str(error)) from None
    if request.is_small:
        found = list(write_stores(job, 0, inputs))
    elif isinstance(engine, Local):
        groups = list(_grouped(inputs, request.split_bytes, _TASKS * engine.processes))
        try:
            found = _in_processes(engine, job, groups)
        except WorkerKilledError:
            raise UnusableRequestError(_KILLED) from None
    else:
        context = engine.sparkContext
        groups = list(_grouped(inputs, request.split_bytes, _TASKS * context.defaultParallelism))
        works = context.parallelize(groups, len(groups))
        found = works.mapPartitionsWithIndex(partial(write_groups, job)).collect()
    problems = [each for each in found if each.problem is not None]
    for each in problems:
        if each.is_fatal:
            raise UnusableRequestError(str(each.problem))
    if len(problems) == len(inputs):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UnusableRequestError(f"{problems[0].problem}{more}")
    return found


def _in_processes(engine: Local, job: Job, groups: list[list[Input]]) -> list[Found]:
    """Write the tables of groups of stores in processes, without Spark, whose start takes 7 s of processor time."""
    found: list[Found] = []
    with closing(
        in_processes(partial(_written, job), enumerate(groups), min(engine.processes, len(groups)))
    ) as written:
        for complete, of_group in enumerate(written, 1):
            found += of_group
            engine.done(complete, len(groups))
    return found


def _written(job: Job, group: tuple[int, list[Input]]) -> list[Found]:
    """Write the files of a group of stores, which has a number, in a process."""
    os.umask(0o077)
    return list(write_stores(job, *group))


def _grouped(inputs: list[Input], split_bytes: int | None, tasks: int) -> Iterator[list[Input]]:
    """The stores of each task: equal numbers, or as many as have `split_bytes`."""
    if split_bytes is None:
        count = min(len(inputs), tasks)
        yield from (inputs[index::count] for index in range(count))
        return
    group: list[Input] = []
    size = 0
    for source in inputs:
        own = split_bytes if source.is_remote else size_of(source.path)
        if group and size + own > split_bytes:
            yield group
            group, size = [], 0
        group.append(source)
        size += own
    yield group


# ---- ids ----


def _verdicts(summary: Summary, request: Request, name: str, rows: DataFrame) -> list[Finding]:
    """Write reconciled ids; returns the findings among them."""
    from qstore.tools.spark.pipeline import FEWER, MISSING, TWICE

    path = request.path("audit", name)
    rows.write.parquet(path)
    rows = rows.sparkSession.read.schema(rows.schema).parquet(path)
    counts = {row["verdict"]: row["count"] for row in rows.groupBy("verdict").count().collect()}
    summary.add_verdicts(name, counts)
    found = []
    columns = [each for each in ("queue", "message_id") if each in rows.columns]
    for kind, wanted in ((FindingKind.MISSING, (MISSING, FEWER)), (FindingKind.TWICE, (TWICE,))):
        count = sum(counts.get(verdict, 0) for verdict in wanted)
        if count and request.report:
            first = rows.where(rows["verdict"].isin(*wanted)).orderBy(*columns).limit(MAX_EXAMPLES).collect()
            examples = [
                (" ".join(row[each] for each in columns), f"{row['left']:,} expected, {row['right']:,} found")
                for row in first
            ]
            found.append(Finding(kind.name, count, examples))
    return found


def publisher_log(spark: SparkSession, name: str, column: str) -> DataFrame:
    """The ids of a publisher's log, in a column message_id.

    Args:
        spark: the session.
        name: path of a Parquet table, of a CSV file with a header (.csv), or of JSON lines (.json, .jsonl); or the name
            of a table in Spark's catalogue.
        column: the column of ids.

    Raises:
        UnusableRequestError: there is no such table or column.
    """
    from pyspark.errors import PySparkException

    try:
        match Path(name).suffix.lower():
            case ".csv":
                log = spark.read.option("header", "true").csv(name)
            case ".json" | ".jsonl":
                log = spark.read.json(name)
            case _ if "/" in name or Path(name).exists():
                log = spark.read.parquet(name)
            case _:
                log = spark.table(name)
        if column not in log.columns:
            raise UnusableRequestError(f'{name}: no column "{column}"; it has {", ".join(log.columns)}')
        return log.select(log[f"`{column}`"].cast("string").alias("message_id"))
    except PySparkException as error:
        what = (error.getMessage() or str(error)).splitlines()[0]
        raise UnusableRequestError(f"{name}: cannot be read as a table: {what}") from None
