"""Exports: topology and messages of a store as JSON lines, as a Parquet file, or as an archive.

`README.md` describes the three forms. A writer takes items one after the other, a reader passes them to a sink, which
may be a writer, or what imports them (`ItemSink`).
"""
