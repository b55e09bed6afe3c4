"""Fixtures for all rooms' tests. Under xdist each worker has a base directory, and so unpacked stores, of its own.

`--examples N` runs the tests of hypothesis alone, each with N times as many examples as it says, in a random order.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import is_hypothesis_test, settings

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

# How long an example takes says nothing on a busy machine: a test that hangs is ended by CI.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# A shell starts jobs in the background with SIGINT ignored, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, default=0, metavar="N", help="hypothesis alone, with N times the examples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    times = config.getoption("--examples")
    if not times:
        return
    functions = {item: getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None)) for item in items}
    chosen = [item for item in items if functions[item] is not None and is_hypothesis_test(functions[item])]
    for function in {functions[item] for item in chosen}:
        given = getattr(function, "_hypothesis_internal_use_settings", None) or settings.default
        more = settings(given, max_examples=given.max_examples * times, database=None)
        function._hypothesis_internal_use_settings = more
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # which workers of one run share: they need the same order
    random.Random(run).shuffle(chosen)
    items[:] = chosen


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
