"""Fixtures of the conformance tests."""

from __future__ import annotations

from tests.support.running_broker import make_broker

__all__ = ["make_broker"]
