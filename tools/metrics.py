"""Definitions of the metrics that the tools report: one name for one metric, in every command, table and file.

A metric has the same name in the Spark tables, `summary.json`, `queues.csv` and the `--json` objects, and, with spaces
instead of underscores, on the console and in reports. `tests.spark.test_metrics` compares these with each other and
with independent counts. Shares range from 0 to 1 and are shown as percentages; sizes are in bytes.

A queue's metrics describe the content of its journal. Unless stated otherwise, sums over a store or a fleet cover the
queues in its catalogue: orphans, which a crash or damage left without a queue, are not counted in sums of messages.
"""

from __future__ import annotations

from typing import Final

#: Name -> definition.
METRICS: Final = {
    # ---- inventory ----
    "stores": "stores that could be read",
    "queues": "queues of these stores, each name once in a store",
    "files": "journal files that were written and belong to their journal, including prepared lists and orphans",
    "journal_bytes": "size of these files on disk, in bytes",
    "records": "records in all journals, including prepared lists and orphans; damaged regions are not counted",
    "record_bytes": "bytes of records on disk, with padding: in sums, of all `records`; for a queue, of its own",
    "enqueues": "enqueue records, including those of transactions that were rolled back and compaction copies",
    "dequeues": "dequeue records, including those of transactions that were rolled back",
    # ---- messages ----
    "outstanding": "messages that a restart would deliver",
    "in_doubt": "messages that a transaction in doubt would enqueue or dequeue",
    "depth": "messages whose records are needed: outstanding and in doubt",
    "peak_depth": "largest number of messages that were on the queue at the same time, as far as its journal shows",
    "recorded": "messages of which the journal has a record: outstanding, in doubt and dequeued",
    "dequeued": "recorded messages that were dequeued",
    "live_bytes": "bytes of the records of outstanding and in-doubt messages",
    "peak_bytes": "largest value of live_bytes, as far as the journal shows",
    # ---- journals ----
    "capacity": "bytes of the data areas of a journal's files",
    "live_share": "live bytes as a share of the capacity",
    "limit": "bytes that may be in use before enqueues are refused; null for a linearstore",
    "used": "bytes in use, as counted against the limit: version 2 counts live records and one block for each; "
        "version 1 counts everything from the file of the oldest live record to the end of the journal",
    "fill": "used as a share of the limit: at 100 % enqueues are refused; null for a linearstore",
    "peak_used": "largest value of used, as far as the journal shows",
    "peak_fill": "peak_used as a share of the limit",
    "near_threshold": "whether fill is 80 % or more; in sums: the number of queues",
    "peak_near_threshold": "queues whose journals came close to refusing enqueues; of one queue, whether its peak_fill "
        "is 80 % or more",
    "large_enough": "whether the journal has at least the recommended size and did not come near its limit",
    "too_small": "queues whose journals are smaller than recommended, or came near their limit",
    # ---- findings ----
    "damage": "damaged places in stores, as counted by qstore-check",
    "checksum_failures": "damaged places that are records with a wrong checksum",
    "duplicates": "message ids, or record ids, that occur more than once in a queue",
    "gaps": "ranges of record ids without a record; rings and restarts cause them, so they are not a loss",
    "dangling_dequeues": "messages that are dequeued twice, or are missing from the journal without having been "
        "overwritten",
    "overwritten_dequeues": "messages of which a ring has overwritten everything except the dequeue record: normal",
    "transactions": "open transactions: in doubt, decided but not completed in all queues, or never prepared",
    "transactions_in_doubt": "open transactions that are distributed, prepared and undecided",
    "missing_messages": "message ids that occur more often in the publisher's log, or in the other store, than "
        "in the stores",
    "stored_twice": "message ids that occur more often in the stores than in the publisher's log, or in the "
        "other store",
}  # fmt: skip


def label(name: str) -> str:
    """Name of a metric for people. Raises KeyError for a metric that is not defined."""
    assert name in METRICS, name
    return name.replace("_", " ")


def percent(share: float) -> str:
    """Format a share as all tools do: `30.9%`."""
    return f"{share:,.1%}"
