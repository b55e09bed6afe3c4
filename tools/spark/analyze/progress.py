"""Spark's progress: the step, and the tasks of the running stage, on standard error if that is a terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StatusTracker
from pyspark.sql import SparkSession
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from qstore.tools.console.progress import Bar, progress_bar

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
