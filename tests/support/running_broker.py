"""A broker as a real process: started, looked at from outside, stopped or killed, and started again on its data.

What it says on its standard output is its port; its log is a file beside its data directory, which all its lives share.
A process that a test leaves behind is killed by the fixture, by its id, and so are those that it had started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.forked import ROOT, Forked
from tests.support.processes import PATIENCE_SECONDS, children_of, goes, is_running, memory_of

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class RunningBroker:
    """One data directory and, between `start` and `stop` or `kill`, a broker on it.

    Attributes:
        directory: holds the data directory and the log.
        data_directory: what `--data-dir` names.
        log: the file that standard error goes to.
        port: of the last start.
        runner: what Python is given in front of the broker's module, as a profiler.
        program: what is run instead of Python with the broker's module.
        environment: variables that the process gets besides this one's.
        children: the processes that the last broker had started when it was stopped or killed.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.data_directory = directory / "data"
        self.log = directory / "broker.log"
        self.options = options
        self.port = 0
        self.runner: tuple[str, ...] = ()
        self.program: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}
        self.children: list[int] = []
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self._process is not None
        return self._process.pid

    def command(self, *options: str) -> list[str]:
        """The command line."""
        fixed = ("--load-module", "store", "--data-dir", str(self.data_directory))
        given = (*self.options, *options)
        port = () if "--port" in given else ("--port", "0")
        auth = () if "--auth" in given else ("--auth", "no")
        program = self.program or (sys.executable, *self.runner, "-m", "qstore.broker.process.qpidd")
        return [*program, *fixed, *port, *auth, *given]

    def launch(self, *options: str) -> None:
        """Start the process and do not wait for its port."""
        assert self._process is None
        self.directory.mkdir(parents=True, exist_ok=True)
        command, streams = self.command(*options), {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        with self.log.open("ab") as log:
            if self.program or self.runner or self.environment:
                environment = {**os.environ, **self.environment}
                self._process = subprocess.Popen(command, **streams, stderr=log, cwd=ROOT, env=environment)
            else:
                self._process = Forked(command, **streams, stderr=log)

    def wait_for_port(self, patience: float = PATIENCE_SECONDS) -> int:
        """The port, once the broker says it. AssertionError with the log if it ends before that, or does not say it."""
        assert self._process is not None
        assert self._process.stdout is not None
        output, said = self._process.stdout.fileno(), b""
        end = time.monotonic() + patience
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the broker does not say its port: {said!r}\n{self.log_text()}"
            more = os.read(output, 4096)
            assert more, f"the broker has ended: {said!r}\n{self.log_text()}"
            said += more
        self.port = int(said.splitlines()[0])
        return self.port

    def start(self, *options: str) -> RunningBroker:
        """Start it and wait until it listens."""
        self.launch(*options)
        self.wait_for_port()
        return self

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send the signal (0: none), wait for the end of the process and all that it started; its exit status."""
        assert self._process is not None
        self.children = children_of(self.pid)
        self._process.send_signal(signal_number)
        try:
            self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker does not end\n{self.log_text()}") from None
        status = self._process.returncode
        self._process = None
        left = [pid for pid in self.children if not goes(pid)]
        assert not left, f"the broker's processes {left} are left behind"
        return status

    def kill(self) -> None:
        """SIGKILL."""
        status = self.stop(signal.SIGKILL)
        assert status == -signal.SIGKILL, f"status {status}\n{self.log_text()}"

    def restart(self, *options: str) -> RunningBroker:
        """SIGTERM, which must end it cleanly, and start."""
        status = self.stop()
        assert status == 0, f"status {status}\n{self.log_text()}"
        return self.start(*options)

    def close(self) -> None:
        """Whatever is still running is killed."""
        if self._process is None:
            return
        children = children_of(self.pid)
        self._process.kill()
        self._process.communicate()
        self._process = None
        for pid in children:
            if not goes(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # ---- looked at from outside ----

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None and is_running(self.pid)

    def log_text(self) -> str:
        """The end of what it logged, over all its lives."""
        return self.log.read_text(errors="replace")[-8000:] if self.log.exists() else ""

    def has_logged(self, text: str) -> bool:
        """Whether the log says so, after a while."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in self.log_text():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def resident_bytes(self) -> int:
        """The memory that the process holds, without pages that it shares with files."""
        return memory_of(self.pid, "RssAnon")

    def cpu_seconds(self) -> float:
        """The processor time that the process has used."""
        return cpu_seconds(self.pid)

    def open_files(self) -> int:
        """Descriptors that the process holds."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def allow_open_files(count: int) -> int:
    """Raise this process's limit of descriptors towards `count`; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


BrokerMaker = Callable[..., RunningBroker]


def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """What a fixture is that gives all tests of a module or of the session the same broker."""
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    running.start()
    yield running
    running.close()


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[BrokerMaker]:
    """Makes brokers that are not started yet, each with a directory of its own and the options given."""
    made: list[RunningBroker] = []

    def make(*options: str) -> RunningBroker:
        made.append(RunningBroker(tmp_path / f"broker{len(made)}", *options))
        return made[-1]

    yield make
    for broker in made:
        broker.close()
