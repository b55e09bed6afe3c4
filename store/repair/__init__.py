"""Changing a store that nobody runs: recovery into a new one, conversion, resizing, quarantine."""
