"""The amount of data, and the Spark settings that follow from it.

Spark compiles each query, moves rows between tasks, and re-plans as it learns sizes. For terabytes that is right; for
one crashed store it takes many times as long as the work. For small data, therefore, queries are interpreted,
everything is one partition, and Java neither optimizes nor collects garbage in parallel.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

SMALL_BYTES: Final = 128 << 20
#: Bytes of a journal that one task reads as a whole. Its records, without bodies, are in memory: 0.4 GiB for messages
#: of 1 KiB, three times that for messages without bodies.
MAX_JOURNAL: Final = 256 << 20
_FILE_COST: Final = 16 << 10  # bytes that could be read in the time in which a file is opened
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

#: Settings for small data.
SMALL_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Settings for larger data whose records and messages are processed in Python. Spark gets what is left: aggregations,
#: for which compiled queries are worth their compilation (30 stores with 300 queues: Java takes 34 s of processor time,
#: and 64 if they are interpreted).
BY_STORE_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
}
#: Java options for small data.
SMALL_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def is_small(paths: Iterable[str]) -> bool:
    """Whether the files at these paths and globs have at most `SMALL_BYTES` in total; False for URLs."""
    left = SMALL_BYTES
    for pattern in paths:
        if _URL.match(pattern):
            return False
        for size in _sizes(pattern):
            left -= size + _FILE_COST
            if left < 0:
                return False
    return True


def has_small_journals(paths: Iterable[str]) -> bool:
    """Whether no journal at these paths and globs has more than `MAX_JOURNAL` bytes; False for URLs."""
    for pattern in paths:
        if _URL.match(pattern):
            return False
        for path in _matching(pattern):
            for directory, _, names in os.walk(path):
                if sum(_size(os.path.join(directory, name)) for name in names) > MAX_JOURNAL:  # noqa: PTH118
                    return False
    return True


def _matching(pattern: str) -> list[str]:
    return [pattern] if Path(pattern).exists() else glob.glob(pattern)  # noqa: PTH207  # any path, absolute or not


def _sizes(pattern: str) -> Iterator[int]:
    """Bytes of the files; unreadable ones are skipped here and reported when they are read."""
    for path in _matching(pattern):
        if not Path(path).is_dir():
            yield _size(path)
        for directory, _, names in os.walk(path):
            for name in names:
                yield _size(os.path.join(directory, name))  # noqa: PTH118  # as os.walk has it


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0
