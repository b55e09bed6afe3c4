"""Recovering one journal, whatever its format, and what can be said of it afterwards."""
