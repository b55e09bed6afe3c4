"""How xdist's workers share the tests of a run, and what is done before they start.

A file's tests stay together, and so share what they have made for the module: a broker, stores. All tests of Spark are
one such group, so that one JVM serves them, and all checks of the code base, which parse it once. The groups that take
long come first, so that no worker ends long before another.

pytest rewrites the assertions of a test's module when it imports it, which takes most of the time of collecting, and
keeps the result in `__pycache__`. The workers import the same modules in the same order at the same time: in a fresh
checkout each would do it for itself, so all modules are compiled once before they start.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

_LONGEST_FIRST: Final = ("tests/spark/", "tests/faults/", "tests/system/", "tests/tools/", "tests/store/")
"""Folders in which a file takes seconds; in the others it takes less."""

_ONE_GROUP: Final = ("tests/spark/", "tests/")
"""Folders whose own files' tests are one group."""


def group_of(node: str) -> str:
    """The tests that run one after another in one worker."""
    file = node.partition("::")[0]
    folder = file[: file.rfind("/") + 1]
    return folder if folder in _ONE_GROUP else file


def rank_of(node: str) -> int:
    """When it is its turn; all of a rank stay in their order."""
    return next((rank for rank, folder in enumerate(_LONGEST_FIRST) if node.startswith(folder)), len(_LONGEST_FIRST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, where xdist then goes by this order."""
    if hasattr(config, "workerinput") and not config.getoption("--examples"):
        items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups instead of tests, unless another `--dist` than `-n` brings is asked for."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


_TESTS: Final = Path(__file__).parent.parent
_HALVES: Final = (("broker", "faults"), ("conformance", "formats", "interop", "spark", "store", "system", "tools"))
"""Folders that take about as long as the others, in the core suite as well; each half is one process's."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile, in the process that starts the workers, unless it was done before."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    last = "spark" if config.option.everything else "tools"
    if any((_TESTS / last / "__pycache__").glob("test_*-pytest-*.pyc")):
        return
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    collecting += ["--all"] if config.option.everything else []
    processes = [
        subprocess.Popen(
            [*collecting, *(f"--ignore={_TESTS / folder}" for folder in other_half)],
            cwd=_TESTS.parent,
            stdout=subprocess.DEVNULL,
        )
        for other_half in _HALVES
    ]
    for process in processes:
        process.wait()  # what is wrong with a module is reported when the workers collect it
