"""Fixtures of the protocols' tests."""

from __future__ import annotations

import pytest

from tests.broker.protocols.world import World


@pytest.fixture
def world() -> World:
    return World()
