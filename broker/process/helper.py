"""Processes that start and end with the broker, such as that of `--console`: the HTTP API (`qstore-console`).

The console is a client like others, and found by the name of its module, so that the broker knows nothing of it. A
thread waits for the process, logs what it says, and starts it again after it has died, at intervals that double. It
ends with the broker: by SIGTERM at a shutdown, and by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Final

from qstore.broker.log.logs import log_of
from qstore.broker.settings import BrokerSettings
from qstore.formats.wording import printable

_MODULE: Final = "qstore.tools.qstore_console"
_LOG: Final = log_of("Management")
_FIRST_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 60.0
_END_SECONDS: Final = 3.0
_UNUSABLE: Final = 2
"""The exit status of a command whose options or files cannot be used: another start would not help."""
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "localhost": "127.0.0.1"}  # noqa: S104
_MAX_LINE: Final = 2000


def console_command(settings: BrokerSettings, port: int) -> list[str]:
    """The command line of the console of a broker that listens on a port."""
    host = settings.interfaces[0]
    host = _EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)
    command = [sys.executable, "-m", _MODULE, "--broker", f"{host}:{port}", "--parent", str(os.getpid())]
    if settings.console and settings.console != "yes":
        command += ["--listen", settings.console]
    if settings.console_credentials is not None:
        command += ["--credentials-file", settings.console_credentials]
    if settings.data_directory is not None:
        command += ["--history-dir", os.path.join(settings.data_directory, "console")]  # noqa: PTH118
    return command


class Helper:
    """A process that helps the broker.

    Args:
        name: what the log calls it.
        option: the option that it is started by.
        command: its command line.
        descriptors: those that it inherits.
    """

    def __init__(self, name: str, option: str, command: list[str], descriptors: tuple[int, ...] = ()) -> None:
        self._name, self._option, self._command, self._descriptors = name, option, command, descriptors
        self._process: subprocess.Popen[str] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = _FIRST_SECONDS
        while not self._ended.is_set():
            try:
                status = self._once()
            except OSError as error:
                status = error.errno or 1
                _LOG.error("The %s cannot be started: %s", self._name, error.strerror)
            if self._ended.is_set():
                return
            if status == _UNUSABLE:
                _LOG.error("The %s has ended, and is not started again: see --%s", self._name, self._option)
                return
            _LOG.warning("The %s has ended with status %d; it is started again in %g s", self._name, status, pause)
            self._ended.wait(pause)
            pause = min(pause * 2, _LAST_SECONDS)

    def _once(self) -> int:
        """Run it once. Returns its exit status."""
        with self._lock:
            if self._ended.is_set():
                return 0
            process = self._process = subprocess.Popen(  # noqa: S603 (the options of this broker's owner)
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", pass_fds=self._descriptors,
            )  # fmt: skip
        assert process.stdout is not None
        with process.stdout as lines:
            for line in iter(lambda: lines.readline(_MAX_LINE), ""):
                text = printable(line.rstrip())
                if text.isdecimal():
                    _LOG.notice("The %s listens on port %s", self._name, text)
                elif text:
                    _LOG.warning("%s", text)
        return process.wait()

    def leave(self) -> None:
        """It ends by itself now, and is not started again."""
        self._ended.set()

    def close(self) -> None:
        """End it. This does not wait for it: `wait` does."""
        with self._lock:
            self._ended.set()
            if self._process is not None and self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; it is killed if that takes too long. To be called after `close`."""
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._thread.join(_END_SECONDS)
