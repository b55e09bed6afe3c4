"""The Java process in which Spark's driver runs, and that nothing is left of it.

PySpark starts Java itself, and forgets it where it is interrupted before Java has said on which port it listens. So
Java is started here, in the way in which PySpark finds a process that is there already (`pyspark.java_gateway`:
PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET), and ended here:

    start   `spark-submit pyspark-shell`, in a session of its own: Ctrl-C on the terminal does not reach it, and what
            the script starts on the way can be ended with it. It writes its port and its secret to a file, and ends
            when its standard input does: so it goes too where this process is killed
    end     SIGTERM, on which it removes its temporary files; after `PATIENCE_SECONDS`, or where this is interrupted
            too, SIGKILL

Signals wait between the fork and the moment from which the process is known here. SIGPIPE is ignored while there is
Java, and where this is interrupted until the end: PySpark still writes to Java's socket when Java has ended.
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

from tools.entry import signals_wait

PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05  # between looks at whether Java is ready
_ADDRESS: Final = struct.Struct(">ii")  # the port, and the length of the secret, which follows
_VARIABLES: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")


class JavaFailedError(Exception):
    """Java ended before Spark was ready; the text says in one line why."""


@contextmanager
def java(settings: Mapping[str, str]) -> Iterator[None]:
    """Java with Spark's driver, which the next session of PySpark finds; nothing is left of it after the block.

    Args:
        settings: of Spark; those of Java itself (memory, options) only count here.

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
    """Java, which `stack` ends."""
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
    """Its port and secret, when it listens."""
    while not address.is_file():  # it gets its name when it is whole
        if process.poll() is not None:
            said.seek(0)
            lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
            why = lines[-1] if lines else "it says nothing"
            raise JavaFailedError(f"Java ended with the exit code {process.returncode} before Spark was ready: {why}")
        time.sleep(_LOOK_SECONDS)
    content = address.read_bytes()
    port, length = _ADDRESS.unpack_from(content)
    return port, content[_ADDRESS.size : _ADDRESS.size + length].decode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have Java end, and wait until it has."""
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
    """Send a signal to the process and to what it has started, as long as it is there."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # ended by a signal before it had a session of its own
            os.killpg(process.pid, number)
