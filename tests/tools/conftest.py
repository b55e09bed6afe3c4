"""What the tests of `qstore-dump` share: two small stores, and how to find a journal in one."""

from __future__ import annotations

import pytest

from tests.support.fixtures import CopyFactory, CopyOpener, StoreFixture, StoreOpener


@pytest.fixture(scope="session")
def local(open_fixture: StoreOpener) -> StoreFixture:
    """A store after three local transactions, read-only."""
    return open_fixture("legacy-c-localtx")


@pytest.fixture(scope="session")
def dtx(open_fixture: StoreOpener) -> StoreFixture:
    """A store with distributed transactions in doubt, read-only."""
    return open_fixture("legacy-d-dtx")


@pytest.fixture(scope="session")
def local_copies(copies: CopyOpener) -> CopyFactory:
    """Private copies of `local`."""
    return copies("legacy-c-localtx")


@pytest.fixture(scope="session")
def dtx_copies(copies: CopyOpener) -> CopyFactory:
    """Private copies of `dtx`."""
    return copies("legacy-d-dtx")
