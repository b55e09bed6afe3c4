"""PySpark's daemon with all imported that its workers import: it forks one for each question that Spark has."""

from __future__ import annotations

import importlib
from typing import Final

from pyspark.daemon import manager

_WORKERS: Final = ("plan_data_source_read", "lookup_data_sources", "data_source_pushdown_filters")

if __name__ == "__main__":
    for name in ("pyspark.worker", *(f"pyspark.sql.worker.{worker}" for worker in _WORKERS)):
        importlib.import_module(name)
    importlib.import_module("qstore.tools.spark.data_source")
    manager()
