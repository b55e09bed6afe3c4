"""Tests with real processes, on a real file system."""
