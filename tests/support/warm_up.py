"""Compiles the tests' modules once, before the workers of xdist start: in a fresh checkout each would do it for itself.

pytest rewrites the assertions of a test's module when it imports it, which takes most of the time of collecting, and
keeps the result in `__pycache__`. The workers import the same modules in the same order at the same time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parent.parent
_HALVES: Final = (("faults", "store", "system", "spark"), ("broker", "tools", "formats", "conformance"))
"""Folders that take about as long as the others; each half is one process's."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile, in the process that starts the workers, unless it was done before or nothing is kept."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or sys.dont_write_bytecode:
        return
    if any((_TESTS / "tools" / "__pycache__").glob("test_*-pytest-*.pyc")):
        return
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    processes = [
        subprocess.Popen([*collecting, *(str(_TESTS / folder) for folder in half)], stdout=subprocess.DEVNULL)
        for half in _HALVES
    ]
    for process in processes:
        process.wait()  # what is wrong with a module is reported when the workers collect it
