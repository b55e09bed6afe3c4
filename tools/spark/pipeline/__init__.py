"""From the table of records to answers: functions that take DataFrames and give DataFrames.

    records = spark.read.format("qstore").load("/fleet/*/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load("/fleet/*/qpidd")

    outstanding(records, queues)          what a restart would deliver
    lifetimes(records), depth(…), waits(…), rates(…)
    duplicates, gaps, dangling, open_transactions, damage, checksum failures
    reconcile(left, right, on=…)          what one side has and the other lacks
    sizing(records, queues)               how large each journal should be
    export(records, path)                 Parquet by store and queue

prepared      the transaction prepared list -> what becomes of each transaction that is open in it
effects       records -> what each does to its journal's messages, and when
messages      effects -> one row for each message
outstanding   those that are still there, as recovery would have them
lifetimes     from enqueue to dequeue; waits and rates of each queue
depth         how many messages a queue had, over the length of its journal
findings      what an audit points at
reconcile     two tables of ids against each other
sizing        recommended journals
export        Parquet files

Spark does not tell a Python data source which columns it needs: read the records with `option("columns", …)`, naming
those of `effects.NEEDED` and what else is wanted, or every body goes through.

No function reads a row to the driver but `sizing`, which takes one for each queue. Nothing but keys and numbers is
shuffled; bodies are joined back by place, where they are asked for. `outstanding` and `messages` pass over the records
once; what takes messages may pass over them more often. Where several tables are wanted of a large fleet, write records
without bodies, and then the messages, to Parquet, and go on from there, as `qstore-analyze` does.
"""
