"""Records as Parquet files, in a directory for each store and each queue.

Paths and queue names are unsuitable as directory names: they contain slashes, are too long, or look like numbers, which
Spark would convert. So a directory is named by the end of the name, reduced to plain characters, and a digest of the
whole: `store=data-qpidd-3f0a…/queue=orders-91bc…`. The full names are columns of the rows, as in any other table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

_NOT_PLAIN: Final = re.compile("[^A-Za-z0-9_.]+")
_SHOWN: Final = 40  # characters of the name
_DIGEST: Final = 12  # characters of the digest: among a million names, the chance of a collision is 1 in 500
#: The columns that name the directories.
DIRECTORIES: Final = ("store_directory", "queue_directory")


def export(records: DataFrame, path: str, *, columns: Sequence[str] | None = None, mode: str = "errorifexists") -> None:
    """Write records.

    Args:
        records: what to write; bodies are written if they are among its columns.
        path: the directory, or a URL that Spark can write to.
        columns: only these; store and queue are always written.
        mode: what to do with existing data, as in Spark's writers.
    """
    names = records.columns if columns is None else list(dict.fromkeys(["store", "queue", *columns]))
    with_directories(records.select(*names)).write.mode(mode).partitionBy(*DIRECTORIES).parquet(path)


def with_directories(rows: DataFrame) -> DataFrame:
    """Rows that have a store and a queue, with the names of their directories."""
    return rows.withColumns({DIRECTORIES[0]: directory("store"), DIRECTORIES[1]: directory("queue")})


def directory_name(name: str | None) -> str:
    """The same for a name itself."""
    if name is None:
        return "none"
    end = _NOT_PLAIN.sub("-", name)[-_SHOWN:].lstrip("-.")
    return f"{end}-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGEST]}"


def directory(name: str) -> Column:
    """Directory name for a name; "none" without a name, as for damage that belongs to no queue."""
    column = sql.col(name)
    plain = sql.regexp_replace(column, "[^A-Za-z0-9_.]+", "-")
    end = sql.regexp_replace(sql.substring(plain, -_SHOWN, _SHOWN), "^[-.]+", "")
    digest = sql.substring(sql.sha2(column, 256), 1, _DIGEST)
    return sql.coalesce(sql.concat(end, sql.lit("-"), digest), sql.lit("none"))
