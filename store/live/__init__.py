"""A running store: appending, flushing, transactions, changes of the topology, and snapshots."""
