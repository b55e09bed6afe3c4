"""Changing a store that is not running: recovery into a new one, conversion, resizing, quarantine."""
