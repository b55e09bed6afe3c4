"""Fixtures for all rooms' tests. Under xdist each worker has a base directory, and so unpacked stores, of its own.

How much is tested is a matter of the profile (`--hypothesis-profile nightly` for all of it) and of the day
(`--seed-day N`, or `today`): see `tests/support/profiles.py`.
A plain `pytest` runs the core suite, `--all` everything: see `has_chosen`.
`--examples N` runs the tests of hypothesis alone, each with N times as many examples, in a random order.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest
from hypothesis import is_hypothesis_test, settings

from qstore.broker.process.command import kind_of_modules
from tests.support import compiled, forked, profiles, temporary
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

pytest_plugins = ["tests.support.workers"]

# A shell starts jobs in the background with SIGINT ignored, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STRICT: Final = "QSTORE_STRICT_SKIPS"
"""With this in the environment, as in CI, a skip for a reason that is not among `REASONS` is a failure."""
REASONS: Final = {
    compiled.REASON: "a compiled function refused a test's own class or method, which is known only when it runs",
    "it is compiled": "looks at the bytecode of functions",
    "the kernels are not compiled": "they are in the run of the compiled form",
    "CPython's tests of its C API are not installed": "a matter of how Python was built",
    r"runs on one of \d+ days: .*": "a run tests a part of what there is; the nightly run tests all",
    "a large store|many messages": "only the nightly run has them",
    "DAMAGE names no damage": "runs again a damage that a campaign has found; it is named by hand",
    "a small file system cannot be mounted here|no file system can be mounted here|no ext4 can be mounted here"
    "|needs a loop device|needs root, to mount a file system": "containers may not mount; power loss and full disks are"
    " simulated in tests/faults as well",
    "this system has no io_uring, or does not allow it": "a matter of the kernel; the helper process is tested",
    "this file system does not distinguish allocated blocks from written ones": "a matter of the file system",
    "only root can .*": "a run as another user; CI runs as root where programs are missing",
    "another user may not run the interpreter or read the source": "a matter of where both are installed",
    "there is no other address": "the machine has no network but the loopback interface",
    "rabbitmq-server is not installed": "it brings Erlang; shovels are tested between brokers of our own",
    "rabbitmqadmin is not installed: .*": "Debian's package of it starts a broker; the API is tested by itself",
    "no field can hold it": "a damage that some formats cannot have; the others have it",
}
"""Reasons for which a test may be skipped in CI, as regular expressions, and why that is right."""
_LEFT_OUT: Final = "left_out"  # what a worker of xdist tells the main process

_GARBAGE: Final = (5000, 20, 20)
"""Thresholds of the garbage collector: with those of Python it takes some percent of the time of all tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", dest="everything", help="all tests, not the core suite alone")
    parser.addoption("--examples", type=int, default=0, metavar="N", help="hypothesis alone, with N times the examples")
    parser.addoption(
        "--processor-times", type=int, default=0, metavar="N", help="show the N tests that take most processor time"
    )
    parser.addoption("--seed-day", metavar="N", help="the cases of the day N, which a failure tells; or of 'today'")


@pytest.hookimpl(trylast=True)  # after hypothesis has loaded the profile
def pytest_configure(config: pytest.Config) -> None:
    profiles.choose_day(config.getoption("--seed-day"))
    if times := config.getoption("--examples"):
        profiles.multiply(times)
    config.pluginmanager.register(Unrun(), "unrun")
    if most := config.option.processor_times:
        config.pluginmanager.register(ProcessorTimes(most), "processor-times")
    if not hasattr(config, "workerinput"):  # the workers of xdist see another command line
        os.environ[_SUITE] = "all" if config.option.everything or has_chosen(config) else "core"
    config.option.everything = os.environ[_SUITE] == "all"


def pytest_report_header(config: pytest.Config) -> str:
    suite = "" if config.option.everything else ", the core suite (--all for everything)"
    return f"qstore: {kind_of_modules()}{suite}"


# ---- the core suite ----

_SUITE: Final = "QSTORE_TEST_SUITE"
_FULL: Final = ("tests/faults/", "tests/system/", "tests/spark/")
"""Folders of which the core suite has what is marked `core`: a crash simulation and a real process of each kind."""
_LONG: Final = (
    "tests/store/test_enqueue_map.py::test_memory_per_record",
    "tests/store/test_rebuild.py::test_memory_is_bounded",
    "tests/tools/test_backup_running.py",
    "tests/tools/test_check_damage_stores.py",
    "tests/tools/test_damage_campaign.py",
    "tests/tools/test_denied_losses.py",
    "tests/tools/test_dump_cuts.py",
    "tests/tools/test_dump_harm.py",
    "tests/tools/test_generate_interrupted.py",
    "tests/tools/test_interchange_broker.py",
    "tests/tools/test_interchange_hostile.py",
    "tests/tools/test_quarantine_crashes.py",
    "tests/tools/test_quarantine_recovered.py",
    "tests/tools/test_recover_damage.py",
    "tests/tools/test_recover_hostile.py",
    "tests/tools/test_store_chk_hostile.py::test_every_flipped_bit_of_a_real_journal",
    "tests/tools/test_wrong_file_types.py",
    "tests/tools/test_zeroed_journals.py",
)
"""In other folders, what takes some two seconds of processor time or more, for what others test in less."""


def has_chosen(config: pytest.Config) -> bool:
    """Whether the command line says what to run: a path, or an option that chooses. Then nothing else is left out."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    marks = config.getoption("markexpr") != "not soak"
    return (
        chosen or marks or bool(config.getoption("keyword") or config.getoption("--examples")) or profiles.is_nightly()
    )


def is_core(item: pytest.Item) -> bool:
    """Whether a test belongs to the core suite."""
    if item.nodeid.startswith(_FULL):
        return item.get_closest_marker("core") is not None
    return not item.nodeid.startswith(_LONG)


class Unrun:
    """The tests that are not run: those that are left out of a compiled run, and those that are skipped."""

    def __init__(self) -> None:
        self.left_out = 0
        self._skipped: dict[str, list[str]] = {}

    @property
    def refused(self) -> dict[str, list[str]]:
        """Tests that were skipped for a reason that is not allowed, by reason."""
        return {
            reason: tests for reason, tests in self._skipped.items()
            if not any(re.fullmatch(allowed, reason) for allowed in REASONS)
        }  # fmt: skip

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skip(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skip(report)

    def _skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        where = report.longrepr
        reason = str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")
        self._skipped.setdefault(reason, []).append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reported = getattr(session.config, "workeroutput", None)
        if reported is not None:
            reported[_LEFT_OUT] = self.left_out
        elif os.environ.get(STRICT) and self.refused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All workers of xdist collect the same."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.left_out:
            terminalreporter.line(f"{self.left_out} tests that replace compiled functions were left out")
        if not os.environ.get(STRICT):
            return
        for reason, tests in self.refused.items():
            terminalreporter.line(
                f"ERROR: {len(tests)} skipped for a reason that tests/conftest.py does not allow: {reason}\n"
                f"       {', '.join(tests[:5])}",
                red=True,
            )


class ProcessorTimes:
    """The tests that take most processor time, which does not depend on what else the machine does.

    It includes fixtures, and processes that have ended: those that a module shares count for its last test. What a JVM
    takes is not in it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._before = most, forked.processor_seconds()
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = forked.processor_seconds()
        report.user_properties.append(("processor_seconds", now - self._before))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += dict(report.user_properties)["processor_seconds"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"{sum(self._seconds.values()):.0f} s of processor time")
        for test, seconds in self._seconds.most_common(self._most):
            terminalreporter.line(f"{seconds:8.2f} s  {test}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.everything:
        config.hook.pytest_deselected(items=[item for item in items if not is_core(item)])
        items[:] = [item for item in items if is_core(item)]
    if compiled.is_compiled:
        left_out = [item for item in items if item.get_closest_marker("replaces") is not None]
        unrun = config.pluginmanager.getplugin("unrun")
        assert isinstance(unrun, Unrun)
        unrun.left_out += len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("replaces") is None]
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
    """Collected tests stay to the end, so the garbage collector need not visit them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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


@pytest.fixture
def nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs do nothing: where no test asks what is durable, the disk that the tests run on is spared."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
