"""`qstore-analyze` that is interrupted at any moment leaves no process of its own, and says so in a line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from qstore.tools.generate.fleet import FleetSpec, StoreFormat
from qstore.tools.generate.make import make_store
from qstore.tools.spark.needed import missing
from qstore.tools.spark.request import SMALL_BYTES
from tests.spark.analyses import SHORT_LIVED, Fleet
from tests.support.profiles import only_on_its_day, today

ROOT: Final = Path(__file__).parent.parent.parent
STARTS_SECONDS: Final = 240.0  # at most, until a moment has come, on a machine that is busy with other things
ENDS_SECONDS: Final = 60.0  # until the command has ended
MARK: Final = "QSTORE_TEST_MARK"

Moment = Callable[["Running"], bool]

#: Name -> whether it has come.
MOMENTS: Final[dict[str, Moment]] = {
    "a process is started": lambda running: len(running.commands()) > 1,
    "Java puts its command together": lambda running: any("launcher.Main" in each for each in running.commands()),
    "Spark starts": lambda running: any("deploy.SparkSubmit" in each for each in running.commands()),
    "journals are read": lambda running: (running.out / "queues").exists(),
    "results are written": lambda running: (running.out / "export").exists(),
}
COMPARED: Final = ("--master", "local[1]", "--compare")  # with another store, for which Spark is needed


class Running:
    """The command, in a session of its own, with a mark by which the processes that it starts are known."""

    def __init__(self, fleet: Fleet, out: Path, *, spark: bool = True, paths: tuple[str, ...] = ()) -> None:
        self.out, self._mark = out, uuid.uuid4().hex
        options = [*COMPARED, fleet.paths[0]] if spark else ["--master", "local[2]"]
        command = ["-m", "qstore.tools.qstore_analyze", *(paths or fleet.paths[:1]), "--out", str(out), *options]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, MARK: self._mark, "SPARK_SUBMIT_OPTS": SHORT_LIVED},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def marked(self) -> dict[int, str]:
        """The processes that are there: their commands by id."""
        found = {}
        mark = f"{MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
            except OSError:
                continue  # gone, or another user's
        return found

    def commands(self) -> list[str]:
        """Those of its processes."""
        return list(self.marked().values())

    def wait_for(self, moment: Moment) -> None:
        deadline = time.monotonic() + STARTS_SECONDS
        while not moment(self):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.02)

    def ended(self) -> tuple[int, bytes]:
        """Its exit code, and what it said on standard error."""
        _, said = self.process.communicate(timeout=ENDS_SECONDS)
        return self.process.returncode, said

    def kill_all(self) -> None:
        for number in self.marked():
            os.kill(number, signal.SIGKILL)
        self.process.wait()


def gone(running: Running, seconds: float) -> bool:
    """Whether all processes are gone within `seconds`."""
    deadline = time.monotonic() + seconds
    while running.marked():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(autouse=True)
def java() -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)


@pytest.mark.parametrize("moment", today(list(MOMENTS), 1))
def test_ctrl_c_leaves_no_process(fleet: Fleet, tmp_path: Path, moment: str) -> None:
    running = Running(fleet, tmp_path / "out")
    try:
        running.wait_for(MOMENTS[moment])
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
        code, said = running.ended()
        assert (code, said) == (130, b"\nqstore-analyze: interrupted\n")
        # Java itself was waited for; what it had started sees the end of its pipe.
        assert not any("java" in command.partition(" ")[0] for command in running.marked().values())
        assert gone(running, 20.0), running.marked()
        assert not (running.out / "qstore-analyze.work").exists()
        assert not (running.out / "summary.json").exists()
    finally:
        running.kill_all()


@only_on_its_day(0, 2)
@pytest.mark.parametrize("moment", today(["a process is started", "Spark starts", "journals are read"], 1))
def test_sigterm_leaves_no_process(fleet: Fleet, tmp_path: Path, moment: str) -> None:
    running = Running(fleet, tmp_path / "out")
    try:
        running.wait_for(MOMENTS[moment])
        running.process.terminate()
        code, said = running.ended()
        assert (code, said) == (143, b"\nqstore-analyze: interrupted\n")
        assert gone(running, 20.0), running.marked()
        assert not (running.out / "qstore-analyze.work").exists()
    finally:
        running.kill_all()


@only_on_its_day(1, 2)
def test_java_goes_when_the_command_is_killed(fleet: Fleet, tmp_path: Path) -> None:
    running = Running(fleet, tmp_path / "out")
    try:
        running.wait_for(MOMENTS["Spark starts"])
        running.process.kill()
        assert running.ended()[0] == -signal.SIGKILL
        assert gone(running, STARTS_SECONDS), running.marked()
    finally:
        running.kill_all()


@pytest.fixture
def large(tmp_path: Path) -> tuple[str, ...]:
    """Paths of stores that are read by several processes."""
    spec = FleetSpec(format=StoreFormat.QSTORE, seed=3, queues=2, messages=2000)
    paths = [tmp_path / make_store(spec, str(tmp_path), number)["name"] for number in (1, 2, 3)]
    for path in paths:
        with (path / "ballast").open("wb") as file:
            file.truncate(SMALL_BYTES)  # without blocks on the disk
    return tuple(map(str, paths))


def readers(running: Running) -> list[int]:
    return [number for number, command in running.marked().items() if "spawn_main" in command]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_read_go_with_the_command(
    fleet: Fleet, tmp_path: Path, large: tuple[str, ...], number: signal.Signals
) -> None:
    running = Running(fleet, tmp_path / "out", spark=False, paths=large)
    try:
        running.wait_for(lambda running: len(readers(running)) == 2)
        assert not any("java" in command.partition(" ")[0] for command in running.commands())
        os.killpg(running.process.pid, number)
        code, said = running.ended()
        assert (code, said) == (128 + number, b"\nqstore-analyze: interrupted\n")
        assert gone(running, 20.0), running.marked()
        assert not (running.out / "summary.json").exists()
    finally:
        running.kill_all()


def test_a_process_that_is_killed_is_reported_in_a_line(fleet: Fleet, tmp_path: Path, large: tuple[str, ...]) -> None:
    running = Running(fleet, tmp_path / "out", spark=False, paths=large)
    try:
        running.wait_for(lambda running: bool(readers(running)))
        os.kill(readers(running)[0], signal.SIGKILL)
        code, said = running.ended()
        assert code == 2
        assert said.startswith(b"qstore-analyze: a process that reads stores was killed"), said
        assert said.count(b"\n") == 1
        assert gone(running, 20.0), running.marked()
    finally:
        running.kill_all()


def test_java_that_cannot_start_is_reported_in_a_line(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-submit"
    script.write_text("#!/bin/sh\necho not this\necho the heap is too small >&2\nexit 3\n")
    script.chmod(0o755)
    running = Running(fleet, tmp_path / "out")
    try:
        said = running.process.communicate(timeout=STARTS_SECONDS)[1]
        assert running.process.returncode == 2
        text = b"Java exited with code 3 before Spark was ready: the heap is too small"
        assert said == b"qstore-analyze: " + text + b"\n"
        assert gone(running, 20.0)
    finally:
        running.kill_all()
