"""A store that runs: appending, flushing, transactions, changes of the topology, and snapshots."""
