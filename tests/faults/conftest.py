"""Fixtures of the simulations."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults.broker_process import tiny_portions
from tests.faults.store_simulation import tiny_rid_blocks


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Brokers that are killed a thousand times log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def tiny_blocks() -> Iterator[None]:
    with tiny_rid_blocks():
        yield


@pytest.fixture
def tiny_pages() -> Iterator[None]:
    """Queues are paged a few messages at a time."""
    with tiny_portions():
        yield
