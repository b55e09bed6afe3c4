"""Message bodies as separate files: one directory per queue, one file per message."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

_MAX_NAME: Final = 200  # a file name may have 255 bytes


class BodyFileError(Exception):
    """A body could not be written; the text says where and why."""


def body_directory(root: Path | None, queue: str) -> Path | None:
    """The directory for a queue's bodies below `root`; None without a `root`. It is created with its first file."""
    return None if root is None else root / _safe_name(queue)


class BodyFile:
    """A file for one body, readable only by its owner. An existing file is replaced; symbolic links are not followed.

    Raises:
        BodyFileError: from the constructor, `write` and `close`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explained():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        """Append to the body."""
        view = memoryview(chunk)
        with self._explained():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Close the file; the body is complete."""
        with self._explained():
            os.close(self._descriptor)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BodyFileError(f"{self.path}: {error.strerror}") from error


def _safe_name(queue: str) -> str:
    """A queue's name as a file name: percent-encoded, never "." or "..", and not too long."""
    octets = queue.encode("utf-8", "surrogateescape")
    name = quote(octets, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 17]}-{hashlib.sha256(octets).hexdigest()[:16]}"
    return name or "%"
