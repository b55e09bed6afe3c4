"""Durability: journals, the catalogue, transactions, recovery.

The only room that reads and writes message data on disk. It knows nothing of sockets, sessions or exchanges.
"""
