"""Bodies as files of their own: one directory a queue, one file a message."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

_MAX_NAME: Final = 200  # a file name has at most 255 bytes


def body_directory(root: Path | None, queue: str) -> Path | None:
    """The directory for a queue's bodies below `root`, made if it is not there; None without a `root`."""
    if root is None:
        return None
    directory = root / _safe_name(queue)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def create_body_file(path: Path) -> BinaryIO:
    """A file for one body, readable by its owner alone. What was there is replaced, and no link is followed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _safe_name(queue: str) -> str:
    """A queue's name as a file name: percent-encoded, and never "." or ".." or too long."""
    octets = queue.encode("utf-8", "surrogateescape")
    name = quote(octets, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 17]}-{hashlib.sha256(octets).hexdigest()[:16]}"
    return name or "%"
