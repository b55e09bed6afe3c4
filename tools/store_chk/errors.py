"""The error that ends a check."""

from __future__ import annotations


class CheckError(Exception):
    """The check cannot continue: one line that says what is wrong and where. The exit code is 1."""
