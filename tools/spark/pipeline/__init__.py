"""The analysis of the table of records: functions from DataFrames to DataFrames.

    records = spark.read.format("qstore").load("/fleet/*/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load("/fleet/*/qpidd")

    outstanding(records, queues)          what a restart would deliver
    lifetimes(records), depth(…), waits(…), rates(…)
    duplicates, gaps, dangling, open_transactions, damage, checksum failures
    reconcile(left, right, on=…)          the differences between two tables of ids
    sizing(records, queues)               how large each journal should be
    export(records, path)                 Parquet by store and queue

prepared      the transaction prepared list -> the outcome of each transaction that is open in it
effects       records -> the effect of each on its journal's messages, and when
messages      effects -> one row for each message
outstanding   the messages that recovery would preserve
lifetimes     from enqueue to dequeue; waits and rates of each queue
depth         number of messages on a queue, over the length of its journal
findings      the findings of the audit
reconcile     compares two tables of ids
sizing        recommended journals
export        Parquet files

Spark does not tell a Python data source which columns it needs: read the records with `option("columns", …)`, naming
those of `effects.NEEDED` and any others, or every body is read.

No function collects rows on the driver except `sizing`, which collects one per queue. Only keys and numbers are
shuffled; bodies are joined back by position, on request. `outstanding` and `messages` pass over the records once;
functions that take messages may pass over them more often. To compute several tables of a large fleet, write records
without bodies, and then the messages, to Parquet, and continue from there, as `qstore-analyze` does.
"""
