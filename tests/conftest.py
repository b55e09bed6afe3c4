"""Fixtures for all rooms' tests. Under xdist each worker has a base directory, and so unpacked stores, of its own.

How much is tested is a matter of the profile (`--hypothesis-profile nightly` for all of it) and of the day
(`--seed-day N`, or `today`): see `tests/support/profiles.py`.
`--examples N` runs the tests of hypothesis alone, each with N times as many examples, in a random order.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Generator, Iterator
from typing import Final

import pytest
from hypothesis import is_hypothesis_test, settings

from qstore.broker.process.command import kind_of_modules
from tests.support import compiled, profiles, temporary
from tests.support.fixtures import (
    HAS_RECOVERY,
    LEGACY_STORES,
    LINEAR_STORES,
    CopyFactory,
    CopyOpener,
    StoreFixture,
    StoreOpener,
    needs_recovery,
    set_writable,
    unpack,
)

profiles.register()
temporary.choose()

pytest_plugins = ["tests.support.scheduling", "tests.support.warm_up"]

# A shell starts jobs in the background with SIGINT ignored, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_GARBAGE: Final = (5000, 20, 20)
"""Thresholds of the garbage collector: with those of Python it takes some percent of the time of all tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, default=0, metavar="N", help="hypothesis alone, with N times the examples")
    parser.addoption("--seed-day", metavar="N", help="the cases of the day N, which a failure tells; or of 'today'")


@pytest.hookimpl(trylast=True)  # after hypothesis has loaded the profile
def pytest_configure(config: pytest.Config) -> None:
    profiles.choose_day(config.getoption("--seed-day"))
    if times := config.getoption("--examples"):
        profiles.multiply(times)


def pytest_report_header() -> str:
    return f"qstore: {kind_of_modules()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--examples"):
        return
    functions = {item: getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None)) for item in items}
    chosen = [item for item in items if functions[item] is not None and is_hypothesis_test(functions[item])]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # which workers of one run share: they need the same order
    random.Random(run).shuffle(chosen)
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: whoever collects garbage later does not have to look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and compiled.cannot_be_replaced(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {compiled.REASON}")
    if report.failed:
        name = settings.get_current_profile_name()
        report.sections.append(("Cases", f"of --seed-day {profiles.day()} --hypothesis-profile {name}"))
    return report


@pytest.fixture(scope="session")
def open_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreOpener]:
    """Unpacks a store by name, once; the tree is read-only. Crashed ones are read with db5.3_recover."""
    unpacked: dict[str, StoreFixture] = {}
    directory = tmp_path_factory.mktemp("fixtures")
    directory.chmod(0o755)

    def open_once(name: str) -> StoreFixture:
        if not (HAS_RECOVERY or name.endswith("-clean")):
            pytest.skip(needs_recovery.kwargs["reason"])
        if name not in unpacked:
            unpacked[name] = unpack(name, directory)
        return unpacked[name]

    yield open_once
    set_writable(directory, writable=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The stores of qpidd, half of them a day."""
    for name, stores in {"legacy_store": LEGACY_STORES, "qpidd_store": LEGACY_STORES + LINEAR_STORES}.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, profiles.today(stores, len(stores) // 2), indirect=True, scope="session")


@pytest.fixture(scope="session")
def legacy_store(request: pytest.FixtureRequest, open_fixture: StoreOpener) -> StoreFixture:
    """One of the seven stores of qpidd's legacystore, read-only."""
    return open_fixture(request.param)


@pytest.fixture(scope="session")
def qpidd_store(request: pytest.FixtureRequest, open_fixture: StoreOpener) -> StoreFixture:
    """One of the fourteen stores of qpidd, read-only."""
    return open_fixture(request.param)


@pytest.fixture(scope="session")
def copies(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> CopyOpener:
    """Makes private copies of a store by its name."""
    return lambda name: CopyFactory(open_fixture(name), tmp_path_factory.mktemp("copies"))
