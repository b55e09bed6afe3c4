"""Backups of stores that are not running: full, incremental, verified, restored."""
