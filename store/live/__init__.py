"""A running store: appending, flushing, transactions, topology changes, and snapshots."""
