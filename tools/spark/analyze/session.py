"""A Spark session for a command."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from qstore.tools.spark.analyze.java import JavaFailedError, java
from qstore.tools.spark.analyze.scale import BY_STORE_SETTINGS, SMALL_JAVA, SMALL_SETTINGS
from qstore.tools.spark.data_source import register
from qstore.tools.spark.needed import use_this_python

LOCAL: Final = "local[*]"
_ROOT: Final = Path(__file__).parents[4]
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
#: Errors of the data source, which Spark includes in the text of its own.
_OWN_ERRORS: Final = ("UnusableInputError", "OptionError", "NotAJournalError")
_LOCAL_SETTINGS: Final = {
    "spark.hadoop.fs.permissions.umask-mode": "077",  # tables contain messages: private to their owner
    "spark.driver.memory": "2g",  # in local mode the memory of all tasks
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "32",
}


class SparkFailedError(Exception):
    """Spark, or reading a store, failed; the text gives the reason in one line."""


@contextmanager
def session(master: str = LOCAL, *, small: bool = False, by_store: bool = False) -> Iterator[SparkSession]:
    """A session that supports the format "qstore"; it ends with the block.

    Args:
        master: a Spark master. On a cluster the workers need this package too.
        small: whether the amount of data is small (`scale`).
        by_store: whether most of the work is done by tasks in Python (`stores`).

    Raises:
        SparkFailedError: it cannot be started, or something in the block fails in Spark.
    """
    try:
        with _started(_settings(master, small=small, by_store=by_store)) as spark:
            yield spark
    except (PySparkException, Py4JError, JavaFailedError) as error:
        raise SparkFailedError(reason(error)) from None


@contextmanager
def _started(settings: dict[str, str]) -> Iterator[SparkSession]:
    use_this_python()
    # Local workers are separate processes and import the code they run.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # A separate Java process composes the command that starts Spark.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SMALL_JAVA)
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
        register(spark)
        yield spark
        spark.stop()  # skipped after an interruption or failure, because it would wait for running tasks


def _settings(master: str, *, small: bool, by_store: bool) -> dict[str, str]:
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
        settings |= SMALL_SETTINGS
    elif by_store:
        settings |= BY_STORE_SETTINGS
    if small or by_store:
        settings["spark.driver.extraJavaOptions"] += f" {SMALL_JAVA}"
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
