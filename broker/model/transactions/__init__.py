"""Transactions: several operations that take effect together, or not at all."""
