"""What the numbers that the tools show mean: one name for one thing, in every command, table and file.

A number has the same name wherever it stands: in the tables that Spark writes, `summary.json`, `queues.csv`, the
objects of `--json`, and, with a blank for each underscore, on the console and in a report. `tests.spark.test_figures`
compares each of them with the others, and with counts of other code. A share is 0 to 1, and shown as a percentage;
sizes are bytes.

A queue's number is of what its journal holds. Sums over a store or a fleet are over the queues that its catalogue
knows, unless said otherwise: what a crash or damage left without a queue (orphans) is in no sum of messages.
"""

from __future__ import annotations

from typing import Final

#: Name -> what it is.
FIGURES: Final = {
    # ---- what there is ----
    "stores": "stores that could be read",
    "queues": "queues of these stores, each name once in a store",
    "files": "files of the journals that were written to and are theirs, those of prepared lists and orphans too",
    "journal_bytes": "bytes of these files, as they are on the disk",
    "records": "records in all journals, those of prepared lists and orphans too; damaged stretches are none",
    "record_bytes": "bytes of records on disk, padding included: in sums of all `records`, of a queue of its own",
    "enqueues": "enqueue records, those of transactions that were rolled back and copies that were moved too",
    "dequeues": "dequeue records, those of transactions that were rolled back too",
    # ---- messages ----
    "outstanding": "messages that a restart would deliver",
    "in_doubt": "messages that a transaction in doubt would enqueue or dequeue",
    "depth": "messages whose records are needed: outstanding and in doubt",
    "peak_depth": "the most messages that were on the queue at once, as far as its journal tells",
    "recorded": "messages that the journal has or had and still tells of: outstanding, in doubt and dequeued ones",
    "dequeued": "of the recorded messages those that are gone",
    "live_bytes": "bytes of the records of the messages that are outstanding or in doubt",
    "peak_bytes": "the most of them at once",
    # ---- journals ----
    "capacity": "bytes of the data areas of a journal's files",
    "live_share": "live bytes, as a share of the capacity",
    "limit": "bytes that may be in use before enqueues are refused; none in a linearstore",
    "used": "bytes in use, as the limit counts them: version 2 the live records and one block for each, version 1 all "
            "from the file of the oldest of them to the end of the journal",
    "fill": "what is in use, as a share of the limit: at 100 % enqueues are refused; none in a linearstore",
    "peak_used": "the most that was in use at once, as far as the journal tells",
    "peak_fill": "peak_used, as a share of the limit",
    "near_threshold": "whether fill is 80 % or more; in sums: how many queues",
    "peak_near_threshold": "whether peak_fill is 80 % or more; in sums: how many queues",
    "large_enough": "whether the journal has the recommended size",
    "too_small": "queues whose journals do not have the recommended size",
    # ---- what is found ----
    "damage": "places where a store is damaged, as qstore-check counts them",
    "checksum_failures": "of the damage, records whose checksum does not match",
    "duplicates": "message ids, or record ids, that a queue has more than once",
    "gaps": "stretches of record ids that no record has; rings and restarts make them, so that they are no loss",
    "dangling_dequeues": "messages that are dequeued twice, or not in the journal though no overwriting explains it",
    "overwritten_dequeues": "messages of which a ring has overwritten all but the dequeue as it went round: normal",
    "transactions": "transactions that are open: in doubt, decided but not ended everywhere, or never prepared",
    "transactions_in_doubt": "of these, the distributed ones that are prepared and not decided",
    "missing_messages": "ids of messages that the publisher's log, or the other store, has more often than the stores",
    "stored_twice": "ids of messages that the stores have more often than the publisher's log, or the other store",
}  # fmt: skip


def label(name: str) -> str:
    """A figure's name for people. Raises KeyError for a number that is not defined."""
    assert name in FIGURES, name
    return name.replace("_", " ")


def percent(share: float) -> str:
    """A share as all tools show it: `30.9%`."""
    return f"{share:,.1%}"
