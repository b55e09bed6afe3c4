"""Writing a journal: the write batch, flushes, space, compaction, and the files."""
