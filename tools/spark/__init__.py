"""Stores as Spark tables: the data source "qstore".

    from qstore.tools.spark.data_source import register

    register(spark)
    records = spark.read.format("qstore").load("/var/lib/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load(["/fleet/*/qpidd"])

columns       the tables: name, type and definition of each column
inputs        paths, globs and URLs -> stores; remote_disk reads those that are not on a local disk
plan          stores -> partitions: stretches of journals
stretches     a stretch of a journal -> the records that begin in it
batches       records -> Arrow record batches; messages extracts their message fields
selection     which rows are read: options, and filters that Spark pushes down
store_tables  the small tables, which are read store by store
arrays        values -> Arrow arrays; headers decodes the headers of many records at once
outcomes      the records of a whole journal -> the outcome of each, and the messages: the pipeline's work without Spark
data_source   the interface to Spark
pipeline/     the analysis, as functions of DataFrames
analyze/      the work of `qstore-analyze`: the pipeline over a fleet, and its report

Only `data_source`, `pipeline` and `analyze` need PySpark; `needed` reports missing packages.
"""
