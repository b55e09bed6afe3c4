"""What is asked of an analysis, and where its results go."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.spark.analyze.scale import is_small

STEPS: Final = ("outstanding", "audit", "sizing", "export")
SUMMARY: Final = "summary.json"
QUEUES: Final = "queues.csv"
_TABLES: Final = ("queues", "files")
REPORT: Final = "report.html"
WORK: Final = "qstore-analyze.work"  # tables that are needed on the way
_MARK: Final = ".qstore-analyze"  # an empty file: the directory is one of results
#: What an analysis writes into its directory.
WRITTEN: Final = (*STEPS, *_TABLES, WORK, SUMMARY, QUEUES, REPORT)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_GLOB: Final = re.compile(r"[*?\[]")


class UnusableRequestError(Exception):
    """What was asked for cannot be done; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        inputs: paths, globs and URLs of stores.
        out: directory, or URL, of the results.
        steps: which of `STEPS`.
        bodies: whether bodies go into the results.
        split_bytes: bytes of a partition, at most; None to choose.
        publisher_log: a table of what was sent; None for none.
        publisher_id: its column of message ids.
        compare: paths of a store to compare with; none for none.
        report: whether a report for people is made.
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
        """Whether there is so little to read, and on this machine, that it is better done in another way (`scale`)."""
        return not self.is_remote and is_small(self.read)

    @property
    def read(self) -> tuple[str, ...]:
        """All that is read."""
        return (*self.inputs, *self.compare, *((self.publisher_log,) if self.publisher_log is not None else ()))


def prepare(request: Request, *, force: bool) -> None:
    """Make the directory of the results.

    Args:
        request: what is asked for.
        force: whether results that are there may go. What has another name stays.

    Raises:
        UnusableRequestError: something is there, and `force` does not allow to replace it, or it is not of an analysis;
            or the directory cannot be made; or nothing is where all inputs should be; or a report is to go to a URL.
    """
    if request.is_remote:
        if request.report:
            raise UnusableRequestError(f"{request.out}: --report needs a directory of this machine; leave it out")
        return
    if not any(_URL.match(path) or _GLOB.search(path) or Path(path).exists() for path in request.inputs):
        raise UnusableRequestError(f"{request.inputs[0]}: there is no directory and no file of that name")
    out = Path(request.out)
    try:
        there = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
        if there and not force:
            raise UnusableRequestError(f"{out}: not empty; choose another directory, or say --force to replace results")
        if there and _MARK not in there:
            raise UnusableRequestError(f"{out}: not empty, and no results of an analysis; choose another directory")
        for name in there:
            if name in WRITTEN:
                _remove(out / name)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        (out / _MARK).touch()
    except OSError as error:
        raise UnusableRequestError(f"{error.filename or out}: {error.strerror or error}") from None


def clean_up(request: Request) -> None:
    """Remove what was needed on the way. On a URL it stays."""
    if not request.is_remote:
        shutil.rmtree(request.path(WORK), ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
