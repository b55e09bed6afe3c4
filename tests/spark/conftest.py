"""Fixtures of the tests of Spark's tables; without Java or the extra `spark` they skip, with the reason."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.tools.spark.needed import missing, use_this_python
from tests.spark.analyses import SHORT_LIVED, Fleet, make_fleet
from tests.support.fixtures import StoreOpener
from tests.support.profiles import is_nightly, today

ROOT = Path(__file__).parent.parent.parent
_JAVA: Final = f"{SHORT_LIVED} -Xms1g -Xmn500m"
"""Garbage is seldom collected, too: together that saves a fifth of Java's processor time."""
_ADAPTIVE: Final = (True, False, False, False)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
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
            # To plan each query again when a part of it has been run takes a tenth of all: as users have it one day in
            # four, and whenever everything is tested.
            .config("spark.sql.adaptive.enabled", str(is_nightly() or today(_ADAPTIVE, 1) == [True]).lower())
            .config("spark.sql.lightweightPlanChangeValidation", "false")  # it looks for bugs of Spark's optimizer
            .config("spark.sql.ui.explainMode", "simple")  # each query's plan is put into words for a page that is off
            .config("spark.driver.extraJavaOptions", _JAVA)
            .config("spark.driver.memory", "2g")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
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
