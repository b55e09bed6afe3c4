"""Fixtures of the tests of Spark's tables; without Java or the extra `spark` they skip, with the reason."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.tools.spark.needed import missing, use_this_python
from tests.spark.analyses import UNVERIFIED, Fleet, make_fleet
from tests.support.fixtures import StoreOpener

ROOT = Path(__file__).parent.parent.parent
_JAVA: Final = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn500m {UNVERIFIED}"
"""Garbage is seldom collected, too: together that saves a fifth of Java's processor time."""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests, on two processors of this machine."""
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    from pyspark.sql import SparkSession

    from qstore.tools.spark.data_source import QstoreDataSource

    use_this_python()
    # The workers are processes of their own, and import what they run.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.python.daemon.module", "tests.spark.daemon")
            # Histories are small: to compile each query for them takes longer than to run it.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.driver.extraJavaOptions", _JAVA)
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.dataSource.register(QstoreDataSource)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def fleet(open_fixture: StoreOpener, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A small fleet, with what a dump shows of it."""
    return make_fleet(tmp_path_factory.mktemp("fleet"), open_fixture)
