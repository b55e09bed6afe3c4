"""Residency: which messages of a queue are in memory, and how the others are read back."""
