"""Requirements of Spark that a plain installation does not have."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("pyspark", "pyarrow")
_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"


class SparkMissingError(ImportError):
    """A requirement of Spark is not installed; the text says what to do."""


def missing(*, java: bool = True) -> str | None:
    """What must be installed before Spark can be used, in one line; None if nothing.

    Args:
        java: whether Spark will be started, and not only its Python packages be used.
    """
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install 'qstore[spark]'"
    if java and not _has_java():
        return "Java is not installed: install version 17 or later (Debian: apt install openjdk-17-jre-headless)"
    return None


def check() -> None:
    """Check that all requirements of Spark are installed.

    Raises:
        SparkMissingError: something is not installed.
    """
    problem = missing()
    if problem is not None:
        raise SparkMissingError(problem)


def use_this_python() -> None:
    """Make Spark's workers use this interpreter, unless the environment names one; call before creating a session."""
    os.environ.setdefault(_PYTHON_VARIABLE, sys.executable)


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (home is not None and Path(home, "bin", "java").is_file())
