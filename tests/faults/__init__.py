"""Crash and fault simulation."""
