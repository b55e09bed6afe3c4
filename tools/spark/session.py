"""A Spark session for a command: quiet, local by default; its Java process is always terminated.

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

An analysis does its work in Python workers, and Spark only hands it out in a cluster and compares tables of ids. So
Java compiles quickly rather than well, and collects garbage in one thread. For small data queries are interpreted, too,
and everything is one partition.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import struct
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from qstore.tools.console.command import signals_wait
from qstore.tools.console.progress import Bar, progress_bar
from qstore.tools.spark.needed import use_this_python

#: Settings for small data.
_SMALL_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

LOCAL: Final = "local[*]"
_ROOT: Final = Path(__file__).parents[3]
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
#: Errors of the data source, which Spark includes in the text of its own.
_OWN_ERRORS: Final = ("UnusableInputError", "OptionError", "NotAJournalError")
_LOCAL_SETTINGS: Final = {
    "spark.hadoop.fs.permissions.umask-mode": "077",  # tables contain messages: private to their owner
    "spark.driver.memory": "2g",  # in local mode the memory of all tasks
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}


class SparkFailedError(Exception):
    """Spark, or reading a store, failed; the text gives the reason in one line."""


@contextmanager
def session(master: str = LOCAL, *, small: bool = False) -> Iterator[SparkSession]:
    """A session, which ends with the block.

    Args:
        master: a Spark master. On a cluster the workers need this package too.
        small: whether the amount of data is small (`request.is_small`).

    Raises:
        SparkFailedError: it cannot be started, or something in the block fails in Spark.
    """
    try:
        with _started(_settings(master, small=small)) as spark:
            yield spark
    except (PySparkException, Py4JError, JavaFailedError) as error:
        raise SparkFailedError(reason(error)) from None


@contextmanager
def _started(settings: dict[str, str]) -> Iterator[SparkSession]:
    use_this_python()
    # Local workers are separate processes and import the code they run.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # A separate Java process composes the command that starts Spark.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JAVA)
    builder = SparkSession.builder.appName("qstore-analyze")
    for name, value in settings.items():
        builder = builder.config(name, value)
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise Py4J prints tracebacks to standard error
    interrupt = signal.getsignal(signal.SIGINT)
    with java(settings):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark's own handler
            spark = builder.getOrCreate()
        signal.signal(signal.SIGINT, interrupt)  # PySpark's own handler asks Java to cancel, and may block
        spark.sparkContext.setLogLevel("OFF")
        yield spark
        spark.stop()  # skipped after an interruption or failure, because it would wait for running tasks


def _settings(master: str, *, small: bool) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }
    if not master.startswith("local"):
        return settings
    settings |= _LOCAL_SETTINGS
    if small:
        settings |= _SMALL_SETTINGS
    settings["spark.driver.extraJavaOptions"] += f" {_JAVA}"
    return settings


def reason(error: Exception) -> str:
    """The line that gives the reason of a failure: the data source's own error, if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        for name in _OWN_ERRORS:
            _, found, text = line.partition(f"{name}: ")
            if found:
                return text
    return lines[0] if lines else type(error).__name__


# ---- Java ----

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
        process = _run_java(stack, settings, address, said)
        port, secret = _ready(process, address, said)
        stack.callback(_forget)
        os.environ.update(zip(_VARIABLES, (str(port), secret), strict=True))
        yield
    signal.signal(signal.SIGPIPE, on_broken_pipe)


def _forget() -> None:
    for name in _VARIABLES:
        os.environ.pop(name, None)


def _run_java(
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


# ---- progress ----

_PERIOD: Final = 0.5  # seconds between polls


@contextmanager
def spark_progress(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """A callback that takes the name of the next step; a bar shows it until the block ends."""
    with progress_bar("starting", MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        if bar is None:
            yield lambda _: None
            return
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(spark, bar, over), daemon=True)
        watch.start()
        try:
            yield bar.begin
        finally:
            over.set()
            watch.join()


def _watch(spark: SparkSession, bar: Bar, over: threading.Event) -> None:
    with contextlib.suppress(Py4JError):  # Java has exited; the main thread gets the error
        _follow(spark.sparkContext.statusTracker(), bar, over)


def _follow(tracker: StatusTracker, bar: Bar, over: threading.Event) -> None:
    while not over.wait(_PERIOD):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            done = sum(stage.numCompletedTasks for stage in known)
            bar.set(done, sum(stage.numTasks for stage in known))
