"""Exchanges: which queues a message goes to. One module for each type; `types` is the table of them."""
