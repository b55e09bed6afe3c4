"""Writing a journal: write batch, flushes, space, compaction, and the files that they go to."""
