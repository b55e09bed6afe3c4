"""What a running store says when it cannot do what it was asked."""

from __future__ import annotations


class StoreError(Exception):
    """One line: what, where, and what to do."""


class StoreLockedError(StoreError):
    """Another process has the store."""


class StoreDamagedError(StoreError):
    """The store is damaged, and the option on-damage says to refuse it."""


class NameTakenError(StoreError):
    """The store has an object of this kind and name."""
