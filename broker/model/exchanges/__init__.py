"""Exchanges: they route messages to queues. One module for each type; `types` is the table of them."""
