"""The watchdog: whatever hangs while a broker ends, its process ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

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


def run(steps: int, seconds: float) -> tuple[subprocess.CompletedProcess[str], float]:
    """A process that does so many things while it ends, and then nothing for a while."""
    began = time.monotonic()
    program = HANGS.format(steps=steps, seconds=seconds)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return ended, time.monotonic() - began


def test_a_process_that_hangs_is_ended_and_the_log_says_where_it_hung() -> None:
    ended, seconds = run(0, 50)
    assert ended.returncode == 1
    assert seconds < 40
    assert "The shutdown hangs: no progress for 2 seconds (at <string>:13, <module>)" in ended.stderr
    assert "not closed cleanly" in ended.stderr


def test_a_process_that_does_something_is_left_alone() -> None:
    ended, _ = run(12, 0)
    assert (ended.returncode, ended.stderr) == (0, "")
