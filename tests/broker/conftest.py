"""Fixtures of the broker's tests."""

from __future__ import annotations

import pytest

from tests.support.fake_store import Model


@pytest.fixture
def model() -> Model:
    return Model()
