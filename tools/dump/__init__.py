"""The content of a store, as `qstore-dump` shows it and other commands use it.

rows      topology, transactions, records, journals and damage as JSON objects
messages  stored messages as JSON objects; their bodies as text, hex or files; which messages are selected
dump      everything in order: record by record, or as recovery would leave it
"""
