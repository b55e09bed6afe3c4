"""The totals of an analysis: for people, for programs, and for the exit code.

Names and definitions are those of `tools.metrics`; the report uses the same totals.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from qstore.tools.report.content import ReportContent
from qstore.tools.spark.analyze.tables import Tables
from qstore.tools.spark.pipeline.findings import in_doubt_transactions
from qstore.tools.spark.pipeline.messages import count_of, is_in_doubt, is_live, is_outstanding
from qstore.tools.spark.pipeline.reconcile import FEWER, MISSING, TWICE

Fields = dict[str, Any]

#: Tables of the step audit -> metric that counts their rows.
_COUNTED: Final = {
    "duplicates": "duplicates",
    "gaps": "gaps",
    "dangling": "dangling_dequeues",
    "overwritten": "overwritten_dequeues",
    "transactions": "transactions",
}
_LOSSES: Final = (MISSING, FEWER)
_QUEUE_COLUMNS: Final = (
    "store", "format", "queue", "outstanding", "in_doubt", "depth", "peak_depth", "recorded", "mean_size", "live_bytes",
    "files", "pages", "capacity", "live_share", "limit", "used", "fill", "peak_fill", "near_threshold",
    "peak_near_threshold", "num_jfiles", "jfile_size_pgs", "pool_files", "large_enough", "problem",
)  # fmt: skip


class Summary:
    """Collects totals as the steps end.

    Attributes:
        queue_rows: from the step sizing, a row for each queue: objects with `_QUEUE_COLUMNS`.
        report: the content of the HTML report; None if not requested.
    """

    def __init__(self) -> None:
        self._fields: Fields = {"kind": "analysis"}
        self.queue_rows: list[Fields] = []
        self.report: ReportContent | None = None

    def add_tables(self, tables: Tables) -> None:
        """Totals of the input, independent of the steps."""
        files = tables.files.where("kind = 'journal file' and size is not null")
        self._fields |= {
            "stores": tables.known_stores().count(),
            "queues": tables.known_queues().count(),
            **_row(files, files=sql.count("*"), journal_bytes=_sum("size")),
            **_row(tables.totals, records=_sum("records"), record_bytes=_sum("record_bytes")),
            **_row(
                tables.messages,
                outstanding=count_of(is_outstanding()),
                in_doubt=count_of(is_in_doubt()),
                live_bytes=_sum(sql.when(is_live(), sql.col("size"))),
            ),
            "transactions_in_doubt": in_doubt_transactions(tables.prepared).count(),
            **_row(tables.damage, damage=sql.count("*"), checksum_failures=count_of(sql.col("checksum"))),
        }

    def add_audit(self, name: str, rows: DataFrame) -> None:
        """Totals of one of the tables of the step audit."""
        if name in _COUNTED:
            self._fields[_COUNTED[name]] = rows.count()

    def add_sizing(self, rows: DataFrame) -> None:
        """Totals of the step sizing."""
        self.queue_rows = [row.asDict() for row in rows.select(*_QUEUE_COLUMNS).orderBy("store", "queue").collect()]
        for name in ("near_threshold", "peak_near_threshold"):
            self._fields[name] = sum(bool(row[name]) for row in self.queue_rows)
        self._fields["too_small"] = sum(row["large_enough"] is False for row in self.queue_rows)

    def add_verdicts(self, name: str, rows: DataFrame) -> None:
        """Totals of reconciled ids."""
        verdicts = {row["verdict"]: row["count"] for row in rows.groupBy("verdict").count().collect()}
        self._fields[name] = verdicts
        self._add("missing_messages", sum(verdicts.get(verdict, 0) for verdict in _LOSSES))
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


def _row(rows: DataFrame, **columns: Any) -> Fields:
    """Aggregates over all rows."""
    row = rows.agg(*(column.alias(name) for name, column in columns.items())).first()
    assert row is not None
    return dict(row.asDict())


def _sum(what: Any) -> Any:
    return sql.coalesce(sql.sum(what), sql.lit(0))
