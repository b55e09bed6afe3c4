"""What is asked of an analysis, and where its results go."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STEPS: Final = ("outstanding", "audit", "sizing", "export")
SUMMARY: Final = "summary.json"
QUEUES: Final = "queues.csv"
_TABLES: Final = ("queues", "files")
_WORK: Final = "qstore-analyze.work"
_MARK: Final = ".qstore-analyze"  # an empty file: the directory is one of results
#: What an analysis writes into its directory.
WRITTEN: Final = (*STEPS, *_TABLES, _WORK, SUMMARY, QUEUES)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


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
    """

    inputs: tuple[str, ...]
    out: str
    steps: frozenset[str] = frozenset(STEPS)
    bodies: bool = False
    split_bytes: int | None = None
    publisher_log: str | None = None
    publisher_id: str = "message_id"
    compare: tuple[str, ...] = ()

    @property
    def is_remote(self) -> bool:
        """Whether the results go to a URL."""
        return _URL.match(self.out) is not None

    def path(self, *names: str) -> str:
        """The path of a result."""
        return "/".join((self.out.rstrip("/"), *names))

    def work(self, name: str) -> str:
        """The path of a table that is needed on the way."""
        return self.path(_WORK, name)


def prepare(request: Request, *, force: bool) -> None:
    """Make the directory of the results.

    Args:
        request: what is asked for.
        force: whether results that are there may go. What has another name stays.

    Raises:
        UnusableRequestError: something is there, and `force` does not allow to replace it, or it is not of an analysis;
            or the directory cannot be made.
    """
    if request.is_remote:
        return
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
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARK).touch()
    except OSError as error:
        raise UnusableRequestError(f"{error.filename or out}: {error.strerror or error}") from None


def clean_up(request: Request) -> None:
    """Remove what was needed on the way. On a URL it stays."""
    if not request.is_remote:
        shutil.rmtree(request.path(_WORK), ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
