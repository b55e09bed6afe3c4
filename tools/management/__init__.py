"""Shared by the management commands: running on a console, amounts and names as text, lists of objects."""
