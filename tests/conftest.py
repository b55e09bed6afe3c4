"""Fixtures for all rooms' tests. Under xdist each worker has a base directory, and so unpacked stores, of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fixtures import (
    LEGACY_STORES,
    LINEAR_STORES,
    CopyFactory,
    CopyOpener,
    StoreFixture,
    StoreOpener,
    set_writable,
    unpack,
)


@pytest.fixture(scope="session")
def open_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreOpener]:
    """Unpacks a store by name, once; the tree is read-only."""
    unpacked: dict[str, StoreFixture] = {}
    directory = tmp_path_factory.mktemp("fixtures")
    directory.chmod(0o755)

    def open_once(name: str) -> StoreFixture:
        if name not in unpacked:
            unpacked[name] = unpack(name, directory)
        return unpacked[name]

    yield open_once
    set_writable(directory, writable=True)


@pytest.fixture(scope="session", params=LEGACY_STORES)
def legacy_store(request: pytest.FixtureRequest, open_fixture: StoreOpener) -> StoreFixture:
    """Each of the seven stores of qpidd's legacystore, read-only."""
    return open_fixture(request.param)


@pytest.fixture(scope="session", params=LEGACY_STORES + LINEAR_STORES)
def qpidd_store(request: pytest.FixtureRequest, open_fixture: StoreOpener) -> StoreFixture:
    """Each of the fourteen stores of qpidd, read-only."""
    return open_fixture(request.param)


@pytest.fixture(scope="session")
def copies(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> CopyOpener:
    """Makes private copies of a store by its name."""
    return lambda name: CopyFactory(open_fixture(name), tmp_path_factory.mktemp("copies"))
