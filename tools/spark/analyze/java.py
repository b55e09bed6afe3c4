"""The Java process in which Spark's driver runs; it is always terminated.

PySpark starts Java itself, and loses track of it if it is interrupted before Java has reported its port. So Java is
started here, in the way in which PySpark attaches to an existing process (`pyspark.java_gateway`: PYSPARK_GATEWAY_PORT
and PYSPARK_GATEWAY_SECRET), and ended here:

    start   `spark-submit pyspark-shell` in a new session: Ctrl-C on the terminal does not reach it, and the processes
            that the script starts can be ended with it. It writes its port and its secret to a file, and exits at the
            end of its standard input, so also when this process is killed
    end     SIGTERM, on which it removes its temporary files; after `PATIENCE_SECONDS`, or if this is interrupted
            again, SIGKILL

Signals are deferred between the fork and the moment when the process is registered here. SIGPIPE is ignored while Java
runs, and after an interruption until the end, because PySpark still writes to Java's socket after Java has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pyspark

from qstore.tools.console.command import signals_wait

PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05  # between polls of whether Java is ready
_ADDRESS: Final = struct.Struct(">ii")  # the port, and the length of the following secret
_VARIABLES: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")


class JavaFailedError(Exception):
    """Java exited before Spark was ready; the text gives the reason in one line."""


@contextmanager
def java(settings: Mapping[str, str]) -> Iterator[None]:
    """Run Java with Spark's driver for the next PySpark session; all of its processes are ended with the block.

    Args:
        settings: Spark settings; those of Java itself (memory, options) are effective only here.

    Raises:
        JavaFailedError: it did not become ready.
    """
    on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qstore-analyze-")))
        said = stack.enter_context(tempfile.TemporaryFile())
        address = directory / "address"
        process = _started(stack, settings, address, said)
        port, secret = _ready(process, address, said)
        stack.callback(_forget)
        os.environ.update(zip(_VARIABLES, (str(port), secret), strict=True))
        yield
    signal.signal(signal.SIGPIPE, on_broken_pipe)


def _forget() -> None:
    for name in _VARIABLES:
        os.environ.pop(name, None)


def _started(
    stack: contextlib.ExitStack, settings: Mapping[str, str], address: Path, said: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start Java; `stack` ends it."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    command = [str(Path(home, "bin", "spark-submit"))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with signals_wait():
        process = subprocess.Popen(  # noqa: S603 (Spark's own script)
            [*command, "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
            start_new_session=True,
        )
        stack.callback(_end, process)
    return process


def _ready(process: subprocess.Popen[bytes], address: Path, said: IO[bytes]) -> tuple[int, str]:
    """Wait until it listens; returns its port and secret."""
    while not address.is_file():  # the file is renamed to this name when it is complete
        if process.poll() is not None:
            said.seek(0)
            lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
            why = lines[-1] if lines else "it printed no error"
            raise JavaFailedError(f"Java exited with code {process.returncode} before Spark was ready: {why}")
        time.sleep(_LOOK_SECONDS)
    content = address.read_bytes()
    port, length = _ADDRESS.unpack_from(content)
    return port, content[_ADDRESS.size : _ADDRESS.size + length].decode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate Java and wait until it has exited."""
    try:
        _send(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
    finally:
        _send(process, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process and its children, if they still exist."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # terminated by a signal before it had created its session
            os.killpg(process.pid, number)
