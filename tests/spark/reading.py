"""The table of records as tests read it: in this process, without Spark."""

from __future__ import annotations

from typing import Any

from qstore.store.disk import Disk
from qstore.tools.spark.columns import Selection, table_columns
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.records import BODY_LIMIT, read_stretch
from qstore.tools.spark.store_tables import read_store
from qstore.tools.spark.stretches import stretches

Row = dict[str, Any]


def records(
    path: object,
    columns: str | None = None,
    selection: Selection | None = None,
    split_bytes: int | None = None,
    *,
    fillers: bool = False,
    body_limit: int = BODY_LIMIT,
    disk: Disk | None = None,
) -> list[Row]:
    """The rows of a store, in the order of the journals and their records."""
    selection = selection or Selection()
    rows: list[Row] = []
    for stretch in stretches([Input(str(path))], selection.queues, split_bytes):
        chosen = table_columns("records", columns)
        batches = read_stretch(
            stretch, disk or stretch.source.disk()[0], chosen, selection, fillers=fillers, body_limit=body_limit
        )
        for batch in batches:
            assert batch.schema.names == [column.name for column in chosen]
            rows += batch.to_pylist()
    return rows


def table(path: object, name: str, columns: str | None = None) -> list[Row]:
    """The rows of one of the small tables."""
    batches = read_store(Input(str(path)), name, table_columns(name, columns), Selection())
    return [row for batch in batches for row in batch.to_pylist()]


def in_order(rows: list[Row]) -> list[str]:
    """Rows that can be compared whatever their order."""
    return sorted(map(repr, rows))
