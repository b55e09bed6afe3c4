"""The explanation in a store of qpidd's that was converted, and is kept."""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime, timedelta
from typing import Final

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.environment import Environment
from qstore.store.unfinished import CONVERTED, NEW

MARK: Final = "CONVERTED"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MARK_TEXT: Final = """\
This is a message store of qpidd's (legacystore, version 1). On {time} a new store was created from
it, in the directory rhm next to this one. The content of this directory was not changed, except for this file,
and is not used any more.

To discard it:        remove this directory, after checking that the new store works.
To return to qpidd:   stop the broker; move rhm elsewhere; rename this directory to rhm; remove this file. All
                      later changes are in the new store only.
"""


def mark_converted(environment: Environment, directory: StoreDirectory) -> None:
    """Write the explanation into the old store, unless that was done: a crash may have come before it.

    Every start does this before `finish_interrupted`, since the kept store's new name may not be durable yet.

    Raises:
        OSError: the disk fails.
    """
    disk = environment.disk
    kept = directory.below(CONVERTED)
    is_marked = disk.is_file(posixpath.join(kept, MARK))
    if not disk.is_directory(kept) or (is_marked and not disk.is_directory(directory.below(NEW))):
        return
    disk.sync_directory(directory.path)  # or the mark might be in a store that has its old name again
    if is_marked:
        disk.sync_directory(kept)
        return
    time = _EPOCH + timedelta(seconds=environment.clock() // 1_000_000_000)
    old = StoreDirectory(environment, directory.path, "")
    old.root = kept
    old.replace(MARK, _MARK_TEXT.format(time=f"{time:%Y-%m-%d %H:%M:%S} UTC").encode())
