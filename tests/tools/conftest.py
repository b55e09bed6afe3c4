"""Fixtures of the tests of the tools."""

from __future__ import annotations

import pytest

from tests.support.fixtures import CopyFactory, CopyOpener, StoreFixture, StoreOpener
from tests.support.recover_runs import allocate_nothing


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of the tools asks whether there is space for what they allocate, but those that make it fail."""
    allocate_nothing(monkeypatch)


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
