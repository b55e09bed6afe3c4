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
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
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

# Without bytecode files each worker of xdist, and each process that tests start, would compile all of its modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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

_ROOT: Final = Path(__file__).parent.parent
_SUITE: Final = "QSTORE_TEST_SUITE"
_FULL: Final = ("tests/faults/", "tests/system/", "tests/spark/", "tests/interop/")
"""Folders of which the core suite has what is marked `core`: a crash simulation and a real process of each kind."""
LONG: Final = (
    "tests/broker/client/test_closing.py::test_a_message_to_a_queue_that_is_gone",
    "tests/broker/client/test_failures.py::test_heartbeats_find_a_broker_that_stands_still",
    "tests/broker/protocols/test_arguments.py::test_a_wrong_value_is_refused_by_the_name_that_the_client_sent",
    "tests/conformance/test_authentication.py::test_the_client_speaks_every_mechanism",
    "tests/store/test_enqueue_map.py::test_memory_per_record",
    "tests/store/test_rebuild.py::test_memory_is_bounded",
    "tests/store/test_snapshot.py::test_copy_holds_records_appended_before_the_snapshot",
    "tests/tools/test_backup_running.py",
    "tests/tools/test_check_damage_stores.py",
    "tests/tools/test_damage_campaign.py",
    "tests/tools/test_denied_losses.py",
    "tests/tools/test_dump_cuts.py",
    "tests/tools/test_dump_harm.py",
    "tests/tools/test_generate_interrupted.py",
    "tests/tools/test_interchange_broker.py",
    "tests/tools/test_interchange_hostile.py",
    "tests/tools/test_qpid_tool.py::test_deleted_objects_are_kept_with_their_time",
    "tests/tools/test_qpid_tool.py::test_schemas_and_agents",
    "tests/tools/test_qstore_perf.py::test_a_broker_that_is_killed_ends_the_run",
    "tests/tools/test_qstore_perf.py::test_progress_is_told_every_second",
    "tests/tools/test_qstore_perf.py::test_several_processes_share_the_clients",
    "tests/tools/test_quarantine_crashes.py",
    "tests/tools/test_quarantine_recovered.py",
    "tests/tools/test_recover_damage.py",
    "tests/tools/test_recover_hostile.py",
    "tests/tools/test_store_chk_hostile.py::test_every_flipped_bit_of_a_real_journal",
    "tests/tools/test_wrong_file_types.py",
    "tests/tools/test_zeroed_journals.py",
    "tests/tools/web/test_health.py::test_memory_and_disk_raise_alarms_everywhere",
    "tests/tools/web/test_server.py::test_failed_logins_are_limited_and_valid_ones_stay",
    "tests/tools/web/test_stored.py::test_a_replay_creates_a_new_store",
    "tests/tools/web/test_stored.py::test_messages_and_records_come_in_pages",
    "tests/tools/web/test_stored.py::test_recovery_and_export_write_new_places_only",
)
"""In other folders, what takes or waits for some two seconds or more, for what others test in less."""

SAMPLED: Final = {
    "tests/broker/federation/test_shovel.py::test_nothing_is_lost_when": 5,
    "tests/broker/protocols/test_arguments.py::test_an_argument_has_its_effect": 5,
    "tests/broker/test_acl_roads.py::test_a_denied_user_reaches_no_denied_target": 5,
    "tests/broker/test_acl_roads.py::test_an_allowed_user_reaches_the_target": 5,
    "tests/store/test_message_store.py::test_what_replaces_a_directory_of_an_open_store_is_not_changed": 7,
    "tests/store/test_reading.py::test_a_damaged_record_splits_a_run": 7,
    "tests/tools/test_check_damage.py::test_damage_is_reported_as_it_is": 5,
}
"""Large tables of cases, each with a broker or a store of its own: the core suite has one case in so many.

A number has no common factor with those of the variants (protocols, kinds of rules), so that it has all of these.
"""


def has_chosen(config: pytest.Config) -> bool:
    """Whether the command line says what to run: a path, or an option that chooses. Then nothing else is left out."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    marks = config.getoption("markexpr") != "not soak"
    return (
        chosen or marks or bool(config.getoption("keyword") or config.getoption("--examples")) or profiles.is_nightly()
    )


def core_of(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that belong to the core suite."""
    seen: Counter[str] = Counter()

    def is_core(item: pytest.Item) -> bool:
        if item.nodeid.startswith(_FULL):
            return item.get_closest_marker("core") is not None
        sampled = next((name for name in SAMPLED if item.nodeid.startswith(name)), "")
        seen[sampled] += 1
        return not item.nodeid.startswith(LONG) and seen[sampled] % SAMPLED.get(sampled, 1) == 0

    return [item for item in items if is_core(item)]


def has_core_tests(path: Path) -> bool:
    """Whether a module or folder may have tests of the core suite: others are not imported to find that out."""
    if path.is_dir():
        return any(map(has_core_tests, path.rglob("test_*.py")))
    name = path.relative_to(_ROOT).as_posix()
    if name.startswith(_FULL):
        return "pytest.mark.core" in path.read_text()
    return name not in LONG


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.everything or not (collection_path.is_dir() or collection_path.name.startswith("test_")):
        return None
    return None if has_core_tests(collection_path) else True


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
        core = core_of(items)
        kept = set(core)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = core
    if compiled.is_compiled:
        left_out = [item for item in items if item.get_closest_marker("replaces") is not None]
        unrun = config.pluginmanager.getplugin("unrun")
        assert isinstance(unrun, Unrun)
        unrun.left_out += len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("replaces") is None]
    for item in items:
        if profiles.is_nightly() or config.getoption("--examples") or item.get_closest_marker("soak") is not None:
            item.add_marker(pytest.mark.timeout(0))  # takes as long as it is told to
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
