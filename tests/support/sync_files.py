"""Files that sync drivers are given."""

from __future__ import annotations

import os
from collections.abc import Callable

from qstore.store.writable_disk import OsWritableFile


class PipeFile(OsWritableFile):
    """A file that cannot be synced: a pipe's end, EINVAL."""

    def __init__(self) -> None:
        self._path = "pipe"
        self._size = 0
        self._descriptor, self._other = os.pipe()

    def close(self) -> None:
        super().close()
        os.close(self._other)


FileMaker = Callable[[int], list[OsWritableFile]]
"""Makes that many files, each with something to sync."""
