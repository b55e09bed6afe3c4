"""Processes that hold a pid file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

HOLDER: Final = """
import sys
from qstore.broker.process.held_files import PidFile
held = PidFile(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
ROOT: Final = Path(__file__).parents[2]


def launch_holder(path: Path) -> subprocess.Popen[bytes]:
    """A process that takes a file, says so, and holds it until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


def start_holder(path: Path) -> subprocess.Popen[bytes]:
    """One that has it."""
    process = launch_holder(path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it."""
    process.kill()
    process.communicate()
