"""Stores as Spark tables: the data source "qstore".

    from tools.spark.data_source import QstoreDataSource

    spark.dataSource.register(QstoreDataSource)
    records = spark.read.format("qstore").load("/var/lib/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load(["/fleet/*/qpidd"])

columns       the tables: name, type and meaning of each column
inputs        paths, globs and URLs -> stores; remote_disk reads what is not on a local disk
plan          stores -> partitions: stretches of journals
stretches     a stretch of a journal -> the records that begin in it
batches       records -> Arrow record batches; messages has what is in them
selection     which rows: what options say, and filters that Spark pushes down
store_tables  the small tables, which are read store by store
arrays        values -> Arrow arrays; headers takes many records' headers at once
data_source   all of it put together for Spark
pipeline/     from these tables to answers, DataFrame by DataFrame
analyze/      the work of `qstore-analyze`: the pipeline over a fleet, and its report

Only `data_source`, `pipeline` and `analyze` need PySpark; what is missing is said by `needed`.
"""
