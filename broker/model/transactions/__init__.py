"""Transactions: what is done together, or not at all."""
