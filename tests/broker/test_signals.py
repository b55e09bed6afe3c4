"""The watchdog ends a process that hangs during shutdown."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from qstore.broker.process.watchdog import ShutdownWatchdog
from tests.support.processes import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
HANGS = """
import logging, sys, time
from qstore.broker.process.watchdog import ShutdownWatchdog
logging.basicConfig(stream=sys.stderr)
progress = [0]
dog = ShutdownWatchdog(lambda: progress[0], patience=2.0)
dog.start()
dog.start()
for _ in range({steps}):
    time.sleep(0.25)
    progress[0] += 1
print("hangs", flush=True)
time.sleep({seconds})
"""


def run(steps: int, seconds: float) -> subprocess.CompletedProcess[str]:
    """A process that makes `steps` steps of progress while it ends, and then none for a while."""
    program = HANGS.format(steps=steps, seconds=seconds)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def test_a_process_that_hangs_is_ended_and_the_log_says_where_it_hung() -> None:
    ended = run(0, 10 * PATIENCE_SECONDS)
    assert ended.returncode == 1
    assert "The shutdown hangs: no progress for 2 seconds (at <string>:13, <module>)" in ended.stderr
    assert "not closed cleanly" in ended.stderr


def test_a_process_that_does_something_is_left_alone() -> None:
    ended = run(12, 0)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_without_memory_for_a_thread_a_shutdown_goes_on(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    dog = ShutdownWatchdog(lambda: 0)
    with caplog.at_level(logging.WARNING), patch.object(threading.Thread, "start", side_effect=error):
        dog.start()
    assert "will not be noticed" in caplog.text
    with patch.object(threading.Thread, "start") as start:
        dog.start()
        dog.start()
    assert start.call_count == 1, "the next call tries again, and only that"
