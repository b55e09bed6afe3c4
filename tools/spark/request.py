"""The request for an analysis, and the directory of its results."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STEPS: Final = ("outstanding", "audit", "sizing", "export")
SUMMARY: Final = "summary.json"
QUEUES: Final = "queues.csv"
_TABLES: Final = ("queues", "files")
REPORT: Final = "report.html"
WORK: Final = "qstore-analyze.work"  # intermediate tables
_MARK: Final = ".qstore-analyze"  # an empty file that marks a directory of results
#: Names that an analysis writes into its directory.
WRITTEN: Final = (*STEPS, *_TABLES, WORK, SUMMARY, QUEUES, REPORT)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_GLOB: Final = re.compile(r"[*?\[]")


class UnusableRequestError(Exception):
    """The request cannot be fulfilled; the text says why, and what to do."""


@dataclass(frozen=True)
class Request:
    """The request.

    Attributes:
        inputs: paths, globs and URLs of stores.
        out: directory, or URL, of the results.
        steps: which of `STEPS` to run.
        bodies: whether bodies are included in the results.
        split_bytes: largest size of the stores that a task reads; None for automatic.
        publisher_log: a table of sent messages; None for none.
        publisher_id: its column of message ids.
        compare: paths of a store to compare with; may be empty.
        report: whether an HTML report is written.
    """

    inputs: tuple[str, ...]
    out: str
    steps: frozenset[str] = frozenset(STEPS)
    bodies: bool = False
    split_bytes: int | None = None
    publisher_log: str | None = None
    publisher_id: str = "message_id"
    compare: tuple[str, ...] = ()
    report: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether the results go to a URL."""
        return _URL.match(self.out) is not None

    def path(self, *names: str) -> str:
        """The path of a result."""
        return "/".join((self.out.rstrip("/"), *names))

    @property
    def is_small(self) -> bool:
        """Whether the inputs are local and small enough for reading without Spark."""
        return not self.is_remote and is_small(self.read)

    @property
    def compares(self) -> bool:
        """Whether ids are compared, for which Spark is needed."""
        return self.publisher_log is not None or bool(self.compare)

    @property
    def read(self) -> tuple[str, ...]:
        """All inputs that are read."""
        return (*self.inputs, *self.compare, *((self.publisher_log,) if self.publisher_log is not None else ()))


def prepare(request: Request, *, force: bool) -> bool:
    """Create the directory of the results. Returns whether it is new.

    Args:
        request: the request.
        force: whether existing results may be removed. Other files are never removed.

    Raises:
        UnusableRequestError: the directory is not empty, and `force` is not given or its files are not results; or it
            cannot be created; or no input exists; or a report is requested for a URL.
    """
    if request.is_remote:
        if request.report:
            raise UnusableRequestError(f"{request.out}: --report needs a local directory; omit it")
        return False
    if not any(_URL.match(path) or _GLOB.search(path) or Path(path).exists() for path in request.inputs):
        raise UnusableRequestError(f"{request.inputs[0]}: there is no such file or directory")
    out = Path(request.out)
    try:
        is_new = not out.exists()
        there = [] if is_new else sorted(entry.name for entry in out.iterdir())
        if there and not force:
            raise UnusableRequestError(
                f"{out}: not empty; choose another directory, or use --force to replace the results"
            )
        if there and _MARK not in there:
            raise UnusableRequestError(
                f"{out}: not empty, and not the results of an analysis; choose another directory"
            )
        for name in there:
            if name in WRITTEN:
                _remove(out / name)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        (out / _MARK).touch()
    except OSError as error:
        raise UnusableRequestError(f"{error.filename or out}: {error.strerror or error}") from None
    return is_new


def abandon(request: Request, *, is_new: bool) -> None:
    """Remove what was written for an analysis that has failed, and the directory if it is new. On a URL it remains."""
    if request.is_remote:
        return
    out = Path(request.out)
    with contextlib.suppress(OSError):
        for name in (*WRITTEN, _MARK):
            if os.path.lexists(out / name):
                _remove(out / name)
        if is_new:
            out.rmdir()


def clean_up(request: Request) -> None:
    """Remove intermediate tables. On a URL they remain."""
    if not request.is_remote:
        shutil.rmtree(request.path(WORK), ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# ---- where the work is done ----

_LOCAL: Final = re.compile(r"local(\[(?P<count>\*|[1-9][0-9]{0,3})(, *[0-9]+)?\])?")


def processes_of(master: str) -> int | None:
    """The number of processes that a Spark master of this machine stands for; None for any other master."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    count = found["count"] or "1"
    return len(os.sched_getaffinity(0)) if count == "*" else int(count)


# ---- the amount of data ----

SMALL_BYTES: Final = 128 << 20
_FILE_COST: Final = 16 << 10  # bytes that could be read in the time in which a file is opened


def size_of(path: str) -> int:
    """Bytes of the files at a local path."""
    return sum(_sizes(path))


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
