"""Residency: decides which messages of a queue are in memory, and reads the others back."""
