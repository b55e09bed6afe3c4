"""What an analysis found, in numbers: for people, for programs, and for the exit code."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from tools.report.content import ReportContent
from tools.spark.pipeline.reconcile import FEWER, MISSING

Fields = dict[str, Any]

_FINDINGS: Final = ("duplicates", "gaps", "dangling", "transactions")
_LOSSES: Final = (MISSING, FEWER)
_QUEUE_COLUMNS: Final = (
    "store", "format", "queue", "messages", "depth", "peak_depth", "mean_size", "live_bytes", "capacity", "fill",
    "peak_fill", "near_threshold", "num_jfiles", "jfile_size_pgs", "pool_files", "large_enough", "problem",
)  # fmt: skip


class Summary:
    """Gathers numbers as the steps end.

    Attributes:
        queue_rows: of the step sizing, a row for each queue: objects with `_QUEUE_COLUMNS`.
        report: what the report for people says; None if it was not asked for.
    """

    def __init__(self) -> None:
        self._fields: Fields = {"kind": "analysis"}
        self.queue_rows: list[Fields] = []
        self.report: ReportContent | None = None

    def add_records(self, records: DataFrame, queues: DataFrame, damage: DataFrame) -> None:
        """Of what was read."""
        row = records.agg(sql.count("*").alias("records"), sql.sum("size").alias("bytes")).first()
        assert row is not None
        self._fields |= {
            "stores": queues.select("store").union(records.select("store")).distinct().count(),
            "queues": queues.count(),
            "records": row["records"],
            "bytes": row["bytes"] or 0,
            "damage": damage.count(),
        }

    def add_outstanding(self, there: DataFrame) -> None:
        """Of the step outstanding."""
        counts = {row["state"]: row["count"] for row in there.groupBy("state").count().collect()}
        self._fields["outstanding"] = counts.get("outstanding", 0)
        self._fields["in_doubt"] = sum(count for state, count in counts.items() if state.startswith("in-doubt"))

    def add_audit(self, name: str, rows: DataFrame) -> None:
        """Of one of the tables of the step audit."""
        if name in _FINDINGS:
            self._fields[name] = rows.count()
        elif name == "damage":
            self._fields["checksum_failures"] = rows.where("checksum").count()

    def add_sizing(self, rows: DataFrame) -> None:
        """Of the step sizing."""
        self.queue_rows = [row.asDict() for row in rows.select(*_QUEUE_COLUMNS).orderBy("store", "queue").collect()]
        self._fields["near_threshold"] = sum(bool(row["near_threshold"]) for row in self.queue_rows)
        self._fields["too_small"] = sum(row["large_enough"] is False for row in self.queue_rows)

    def add_verdicts(self, name: str, rows: DataFrame) -> None:
        """Of ids that were reconciled."""
        self._fields[name] = {row["verdict"]: row["count"] for row in rows.groupBy("verdict").count().collect()}

    def fields(self) -> Fields:
        """All of it."""
        return self._fields

    @property
    def has_losses(self) -> bool:
        """Whether anything is damaged, or missing."""
        verdicts = [self._fields.get(name, {}) for name in ("publisher", "compare")]
        lost = any(found.get(verdict) for found in verdicts for verdict in _LOSSES)
        return bool(self._fields.get("damage")) or lost
