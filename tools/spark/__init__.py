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
portions       rows of a large journal in portions, in a temporary file
stores         the work of a task of `qstore-analyze`: stores, each read once -> all tables
request        what `qstore-analyze` is asked for, and where the results go
processes      tasks as processes of this machine
analysis       the steps, and the totals; with Spark only to compare ids and in a cluster
report_content the content of the HTML report

With it (`needed` reports what is not installed):

data_source    the interface to Spark
pipeline       the analysis as functions from DataFrames to DataFrames
session        a quiet Spark session for a command, local by default
"""
