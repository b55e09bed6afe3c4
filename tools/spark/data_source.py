"""The data source "qstore", called by Spark.

    spark = register(SparkSession.builder.getOrCreate())
    spark.read.format("qstore").options(…).load(path, glob, URL or list of these)

    CREATE TABLE orders USING qstore OPTIONS (path '/var/lib/qpidd', queue 'orders')

Options; a name that is not among them is an error:

    path, paths      what to read, as in load(…); paths is a JSON list
    table            records (default), files, queues, exchanges, bindings, transactions
    columns          names, separated by commas: only these are read. Without message columns no message is decoded;
                     without `body` no body is copied. Spark (4.0 to 4.3) does not tell a Python data source which
                     columns a query uses, so they must be named here
    split_bytes      largest size of a partition; by default chosen by the amount of data, 32 to 128 MiB
    body_limit       largest number of bytes read of a body; 128 MiB by default
    fillers          true: fillers are rows too
    storage_options  JSON object with options for fsspec

    queue            names, separated by commas (or a JSON array): only records of these queues; also in the tables
                     files, queues and bindings
    type             types of records, likewise; `damage` is one of them
    xid              transaction ids in hex, likewise
    rids             record ids and ranges of them: "7,100-200,300-"
    pushdown         true: filters on queue, type, rid and xid are pushed down; by default where Spark does it safely

The options queue, type, xid and rids select what is read, for every query on the result, and so only that is read.
Push-down makes Spark select by a query's own filters, which `explain("formatted")` shows; `register` enables it in the
session (`spark.sql.python.filterPushdown.enabled`). But Spark (4.0 to 4.3, `PythonDataSourceV2.readInfo`) stores the
pushed-down filters with the loaded DataFrame, not with its use: another query on the same DataFrame, with other filters
or none, then silently gets the rows of the first filters only. The data source cannot detect which query it reads for.
Nor does it help to leave every filter to Spark as well: of a scan without filters the data source is not asked, and
Spark reads the partitions of an earlier scan that were narrowed (4.3.0, with 4 partitions of 10 rows each: after a
count of one of them the whole has 10 rows, and `df.where("v = 1").union(df)` has 20 instead of 50).
Spark keeps the filters with the scan since it can push down limits (SPARK-58551, after 4.3): there push-down is on
by default. Before, it is off, and a DataFrame loaded with it must be used in one query, and once in that: load it
again for the next. A table of the catalogue is loaded for each query, so there only the second condition matters.
Always safe is to select when loading: `spark.read.format("qstore").option("queue", "orders").load(…)`.

Spark (seen in 4.3) does not hand the options of a table in its catalogue to a Python data source, only the table's
schema. So the schema carries them, in the metadata of its first column, except `storage_options`, which may contain
secrets: `SELECT … FROM orders WITH (storage_options = '…')` names them, and any other option, for one query.

Damage has rows of type `damage`; an input that is not a store is a row of the table `files`, and an error only if no
input is a store. Rows have positions (file, offset, position, flush), so that a reader can continue from an earlier
one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from qstore.tools.spark.needed import SparkMissingError, missing

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
    )
except ImportError:
    raise SparkMissingError(missing() or "PySpark is older than 4.0: pip install 'qstore[spark]'") from None

from qstore.store.inspect.layout import UnusableInputError
from qstore.tools.spark.columns import Column, OptionError, Selection, chosen, push, table_columns
from qstore.tools.spark.inputs import Input, named_inputs, named_patterns
from qstore.tools.spark.records import BODY_LIMIT, read_stretch
from qstore.tools.spark.store_tables import read_store
from qstore.tools.spark.stretches import Stretch, check_usable, partitions, stretches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS: Final = "records"
_OF_UNUSABLE: Final = "files"  # the table that lists inputs that are not stores
_PLANNING: Final = "pyspark.sql.worker.plan_data_source_read"
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_TRUTH: Final = {"true": True, "false": False}


OPTIONS: Final = (
    "path", "paths", "table", "columns", "split_bytes", "body_limit", "fillers", "storage_options", "queue", "type",
    "xid", "rids", "pushdown",
)  # fmt: skip
#: Those that only the table of records has; `queue` is one of any table with such a column.
_OF_RECORDS: Final = ("split_bytes", "body_limit", "fillers", "queue", "type", "xid", "rids", "pushdown")
#: Types of `columns.TYPES` -> Spark's.
_TYPES: Final = {
    "string": StringType(), "long": LongType(), "int": IntegerType(), "boolean": BooleanType(), "binary": BinaryType(),
    "strings": ArrayType(StringType()), "map": MapType(StringType(), StringType()),
}  # fmt: skip
_CARRIED: Final = "qstore"  # key of the metadata with the options of a table
_PROVIDER: Final = "provider"  # a property that tables of the catalogue have
_OPTION: Final = "option."  # prefix of their options
_NOT_CARRIED: Final = "storage_options"
_WORKERS: Final = "pyspark.sql.worker."
_HIDE: Final = "SPARK_HIDE_TRACEBACK"  # read by the handler of a worker's last exception


def register(spark: SparkSession) -> SparkSession:
    """Add the format "qstore" to a session, enable its option `pushdown` there, and return the session."""
    spark.dataSource.register(QstoreDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return spark


@contextmanager
def _plainly() -> Iterator[None]:
    """Of an input or option that cannot be used, a user gets the reason without a traceback.

    Spark ends a worker process after an exception, so the variable affects nothing else.
    """
    try:
        yield
    except (OptionError, UnusableInputError):
        if any(name.startswith(_WORKERS) for name in sys.modules):
            os.environ[_HIDE] = "1"
        raise


class QstoreDataSource(DataSource):
    """Stores as tables."""

    @classmethod
    def name(cls) -> str:
        """The format's name in Spark."""
        return "qstore"

    def schema(self) -> StructType:
        """The table's columns, or the chosen ones, and the options in their metadata. Raises OptionError."""
        with _plainly():
            options = self._options()
            _check(options)
            fields = [StructField(column.name, _TYPES[column.type]) for column in _columns(options)]
            carried = {name: value for name, value in options.items() if name != _NOT_CARRIED}
            fields[0].metadata = {_CARRIED: json.dumps(carried, sort_keys=True)}
            return StructType(fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the table. Raises OptionError."""
        with _plainly():
            options = _carried(schema) | self._options()
            columns = _columns(options)
            if schema.names != [column.name for column in columns]:  # first: such a table has lost its options
                raise OptionError('select columns with the option columns; "qstore" does not accept a schema')
            _check(options)
            table = options.get("table", RECORDS)
            if table != RECORDS:
                return _TableReader(options, columns, table)
            filtering = _flag(options, "pushdown", default=_is_safe()) and not _must_not_filter()
            return (_FilteringReader if filtering else _RecordsReader)(options, columns)

    def _options(self) -> dict[str, str]:
        options = {str(name).lower(): str(value) for name, value in self.options.items()}
        if _PROVIDER in options:
            options = _of_catalogue(options)
        for name in options:
            if name not in OPTIONS:
                similar = get_close_matches(name, OPTIONS, 1)
                meant = f'; did you mean "{similar[0]}"?' if similar else f"; the options are {', '.join(OPTIONS)}"
                raise OptionError(f'option {name}: there is no option "{name}"{meant}')
        return options


def _of_catalogue(properties: Mapping[str, str]) -> dict[str, str]:
    """The options of a table that is being created, of all its properties."""
    options = {name.removeprefix(_OPTION): text for name, text in properties.items() if name.startswith(_OPTION)}
    if "path" in properties:  # also of the clause LOCATION; Spark makes a URI of it
        options["path"] = re.sub("^file:(//)?(?=/)", "", properties["path"])
    return options


def _check(options: Mapping[str, str]) -> None:
    """Check everything that can be checked without reading, so that a table with a wrong option is not created.

    Raises:
        OptionError: an option is unusable, or the table does not have it.
    """
    table = options.get("table", RECORDS)
    names = {column.name for column in table_columns(table)}
    for name in options if table != RECORDS else ():
        if name in _OF_RECORDS and not (name == "queue" and name in names):
            raise OptionError(f"option {name}: the table {table} does not have it")
    named_patterns(options)
    chosen(options)
    for name in ("split_bytes", "body_limit"):
        _size(options, name, None)
    for name in ("fillers", "pushdown"):
        _flag(options, name)


def _is_safe() -> bool:
    """Whether Spark keeps pushed filters with the scan that they are of, as it does since it can push limits."""
    return hasattr(DataSourceReader, "pushLimit")


def _columns(options: Mapping[str, str]) -> tuple[Column, ...]:
    return table_columns(options.get("table", RECORDS), options.get("columns"))


def _carried(schema: StructType) -> dict[str, str]:
    """The options of a table of the catalogue; empty if there are none."""
    text = (schema.fields[0].metadata or {}).get(_CARRIED) if schema.fields else None
    try:
        return {str(name): str(value) for name, value in json.loads(text or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}


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
        with _plainly():
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
        self._selection = Selection(queues=chosen(options).queues)
        self._table = table

    def partitions(self) -> list[InputPartition]:
        """The stores. Raises UnusableInputError."""
        with _plainly():
            if self._table != _OF_UNUSABLE:
                check_usable(self._inputs)
        return [InputPartition(source) for source in self._inputs]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one store, as record batches."""
        source: Input = partition.value
        yield from read_store(source, self._table, self._columns, self._selection)


def _size(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not int(text):
        raise OptionError(f"option {name}: must be a number of bytes above 0, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in _TRUTH:
        raise OptionError(f"option {name}: must be true or false, not {text!r}")
    return _TRUTH[text]
