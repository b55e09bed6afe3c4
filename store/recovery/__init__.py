"""Recovering one journal of any format, and checking the result."""
