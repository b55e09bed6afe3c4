"""The data source "qstore", called by Spark.

    spark.dataSource.register(QstoreDataSource)
    spark.read.format("qstore").options(…).load(path, glob, URL or list of these)

Options:

    table            records (default), files, queues, exchanges, bindings, transactions
    columns          names, separated by commas: only these are read. Without message columns no message is decoded;
                     without `body` no body is copied
    split_bytes      largest size of a partition; by default chosen by the amount of data, 32 to 128 MiB
    body_limit       largest number of bytes read of a body; 128 MiB by default
    fillers          true: fillers are rows too
    storage_options  JSON object with options for fsspec

    queue            names, separated by commas (or a JSON array): only records of these queues
    type             types of records, likewise; `damage` is one of them
    xid              transaction ids in hex, likewise
    rids             record ids and ranges of them: "7,100-200,300-"
    pushdown         true: filters on queue, type, rid and xid are pushed down; false by default

The options queue, type, xid and rids select what is read, for every query on the result. Push-down makes Spark select
by a query's own filters, if `spark.sql.python.filterPushdown.enabled` is set too; but Spark (seen in 4.3) stores the
pushed-down filters with the loaded DataFrame, not with its use: another query on the same DataFrame, with other filters
or none, then silently gets the rows of the first filters only. The data source cannot detect which query it reads for.
So push-down is off by default, and a DataFrame loaded with it must be used in one query, and once in that: load it
again for the next.

Damage has rows of type `damage`; an input that is not a store is a row of the table `files`, and an error only if no
input is a store. Rows have positions (file, offset, position, flush), so that a reader can continue from an earlier
one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.tools.spark.needed import SparkMissingError, missing

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError:
    raise SparkMissingError(missing() or "PySpark is older than 4.0: pip install 'qstore[spark]'") from None

from qstore.tools.spark.batches import BODY_LIMIT, read_stretch
from qstore.tools.spark.columns import Column, OptionError, schema_text, table_columns
from qstore.tools.spark.inputs import Input, named_inputs
from qstore.tools.spark.plan import Stretch, partitions, stretches
from qstore.tools.spark.selection import Selection, chosen, push
from qstore.tools.spark.store_tables import read_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RECORDS: Final = "records"
_PLANNING: Final = "pyspark.sql.worker.plan_data_source_read"
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_TRUTH: Final = {"true": True, "false": False}


class QstoreDataSource(DataSource):
    """Stores as tables."""

    @classmethod
    def name(cls) -> str:
        """The format's name in Spark."""
        return "qstore"

    def schema(self) -> str:
        """The table's columns, or the chosen ones. Raises OptionError."""
        return schema_text(self._columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the table. Raises OptionError."""
        columns = self._columns()
        if schema.names != [column.name for column in columns]:
            raise OptionError('select columns with the option columns; "qstore" does not accept a schema')
        options = self._options()
        table = options.get("table", RECORDS)
        if table != RECORDS:
            return _TableReader(options, columns, table)
        filtering = _flag(options, "pushdown") and not _must_not_filter()
        return (_FilteringReader if filtering else _RecordsReader)(options, columns)

    def _options(self) -> dict[str, str]:
        return {str(name).lower(): str(value) for name, value in self.options.items()}

    def _columns(self) -> tuple[Column, ...]:
        options = self._options()
        return table_columns(options.get("table", RECORDS), options.get("columns"))


class _RecordsReader(DataSourceReader):
    """Reads the table of records."""

    def __init__(self, options: Mapping[str, str], columns: tuple[Column, ...]) -> None:
        self._inputs = named_inputs(options)
        self._columns = columns
        self._selection = chosen(options)
        self._split_bytes = _size(options, "split_bytes", None)
        self._body_limit = _size(options, "body_limit", BODY_LIMIT) or BODY_LIMIT
        self._fillers = _flag(options, "fillers")

    def partitions(self) -> list[InputPartition]:
        """The partitions. Raises UnusableInputError."""
        found = stretches(self._inputs, self._selection.queues, self._split_bytes)
        return [InputPartition(packed) for packed in partitions(found, self._split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one partition, as record batches."""
        packed: tuple[Stretch, ...] = partition.value or ()  # without partitions, Spark invents one
        for stretch in packed:
            disk, _ = stretch.source.disk()
            yield from read_stretch(
                stretch, disk, self._columns, self._selection, fillers=self._fillers, body_limit=self._body_limit
            )


class _FilteringReader(_RecordsReader):
    """The same with filter push-down."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802  # Spark's name
        """Take the filters that are supported; yields the others."""
        self._selection, left = push(filters, self._selection)
        return left


def _must_not_filter() -> bool:
    """Whether this is the process in which Spark plans a scan without filters.

    In that process, if push-down is not enabled, Spark refuses a reader that supports filters. With push-down it uses a
    process that has another module loaded.
    """
    return _PLANNING in sys.modules and _PUSHING not in sys.modules


class _TableReader(DataSourceReader):
    """Reads one of the small tables."""

    def __init__(self, options: Mapping[str, str], columns: tuple[Column, ...], table: str) -> None:
        self._inputs = named_inputs(options)
        self._columns = columns
        self._table = table

    def partitions(self) -> list[InputPartition]:
        """The stores."""
        return [InputPartition(source) for source in self._inputs]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one store, as record batches."""
        source: Input = partition.value
        yield from read_store(source, self._table, self._columns, Selection())


def _size(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not int(text):
        raise OptionError(f"option {name}: must be a number of bytes above 0, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in _TRUTH:
        raise OptionError(f"option {name}: must be true or false, not {text!r}")
    return _TRUTH[text]
