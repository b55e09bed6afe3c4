"""Fixtures of the system tests."""

from __future__ import annotations

from tests.support.running_broker import make_broker
from tests.system.broker_canary import canary, hostile_broker

__all__ = ["canary", "hostile_broker", "make_broker"]
