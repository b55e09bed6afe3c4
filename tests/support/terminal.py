"""A command on a terminal: what a person types and sees."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.processes import PATIENCE_SECONDS, send_when_it_waits


class Terminal:
    """A command that runs on a terminal of its own, until the block ends.

    Args:
        command: its words.
        state: the user's state directory.
        environment: more variables.
    """

    def __init__(self, command: list[str], state: Path, **environment: str) -> None:
        self._master, slave = pty.openpty()
        variables = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb", **environment}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, close_fds=True, start_new_session=True
        )
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def read_until(self, text: str) -> None:
        """Wait until this is seen; what is before it is not looked at again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            if select.select([self._master], [], [], 0.1)[0]:
                self._seen += os.read(self._master, 65536).decode()
        self._seen = self._seen.partition(text)[2]

    def read_all(self) -> str:
        """What is seen until the command has ended."""
        with contextlib.suppress(OSError):  # how Linux tells that the other side was closed
            while chunk := os.read(self._master, 65536):
                self._seen += chunk.decode()
        return self._seen

    def type(self, text: str) -> None:
        """Type this."""
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        send_when_it_waits(self._process, signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM."""
        send_when_it_waits(self._process, signal.SIGTERM)

    def code(self) -> int:
        """Its exit code, when it has ended."""
        return self._process.wait(PATIENCE_SECONDS)
