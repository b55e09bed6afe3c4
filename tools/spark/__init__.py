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
selection     filters that Spark pushes down
store_tables  the small tables, which are read store by store
data_source   all of it put together for Spark

Only `data_source` needs PySpark; what is missing is said by `needed`.
"""
