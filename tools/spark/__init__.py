"""Stores as Spark tables: the data source "qstore", and the analysis of whole fleets.

    from qstore.tools.spark.data_source import register

    register(spark)
    records = spark.read.format("qstore").load("/var/lib/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load(["/fleet/*/qpidd"])

Reading stores, without PySpark:

columns        the tables: name, type and definition of each column; which rows are read; values as Arrow arrays
inputs         paths, globs and URLs -> stores
stretches      stores -> parts of journals, and the records that begin in each
records        records -> Arrow record batches
store_tables   the small tables, which are read store by store
recovery       the records of a journal -> what the store's own recovery makes of them, as columns
audit          the messages of a journal, queue or store -> the tables of an analysis
stores         the work of a task of `qstore-analyze`: stores, each read once -> all tables

With it (`needed` reports what is not installed):

data_source    the interface to Spark
pipeline       the analysis as functions from DataFrames to DataFrames
request        what `qstore-analyze` is asked for, and where the results go
session        a quiet Spark session for a command, local by default
analysis       the steps, and the totals
report_content the content of the HTML report
"""
