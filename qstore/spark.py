"""Stores as Spark tables; needs `pip install 'qstore[spark]'` and Java.

    from qstore.spark import OUTSTANDING_COLUMNS, outstanding, register, use_this_python

    use_this_python()
    spark = register(SparkSession.builder.getOrCreate())
    records = spark.read.format("qstore").option("columns", ",".join(OUTSTANDING_COLUMNS)).load("/fleet/*/data")
    outstanding(records).groupBy("store", "queue", "state").count().show()

`qstore.tools.spark.data_source` documents the options and tables, `qstore.tools.spark.pipeline` has the other queries.
"""

from __future__ import annotations

from qstore.tools.spark.data_source import QstoreDataSource, register
from qstore.tools.spark.needed import SparkMissingError, use_this_python
from qstore.tools.spark.pipeline import outstanding
from qstore.tools.spark.recovery import NEEDED as OUTSTANDING_COLUMNS

__all__ = [
    "OUTSTANDING_COLUMNS",
    "QstoreDataSource",
    "SparkMissingError",
    "outstanding",
    "register",
    "use_this_python",
]
